//! What is read, what is refused, and in which words.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::net::{IpAddr, Ipv4Addr};

use bywash_filter::wire::{Mac, Protocol};
use bywash_filter::{Expression, Names, NoNames, Options};
use proptest::prelude::*;

fn read(text: &str) -> Result<Expression, String> {
    Expression::new(text, &Options { names: &NoNames, netmask: None }).map_err(|error| error.to_string())
}

fn error(text: &str) -> String {
    read(text).map(|_| String::new()).unwrap_or_else(|error| error)
}

#[test]
fn what_takes_packets_that_have_nothing_in_common_takes_all() {
    let takes_all = |text: &str| text.parse::<Expression>().unwrap().takes_all_kinds();
    for text in ["", "  ", "ip or not ip", "len >= 0", "not udp port 9999", "not host 192.0.2.1", "greater 1"]
    {
        assert!(takes_all(text), "{text}");
    }
    for text in
        ["ip", "not ip", "udp port 53", "arp", "not tcp", "ip or ip6", "greater 100", "ether proto 0x88b5"]
    {
        assert!(!takes_all(text), "{text}");
    }
}

#[test]
fn an_error_shows_the_place_and_suggests() {
    assert_eq!(
        error("tcp prot 80"),
        "filter expression: 'prot' is no word of the language\n    tcp prot 80\n        ^ did you mean 'port'?"
    );
    assert_eq!(
        error("tcp port 80 and net 10.0.0.1/8"),
        "filter expression: 10.0.0.1 has bits beyond its network\n    tcp port 80 and net 10.0.0.1/8\n                        ^ did you mean 10.0.0.0/8?"
    );
}

#[test]
fn each_wrong_expression_is_refused_for_its_own_reason() {
    for (text, at, what, cure) in [
        ("host", 4, "a value is missing after 'host'", ""),
        ("1.2.3.4", 0, "an address stands alone", "write 'host'"),
        ("80", 0, "80 stands alone", "'port 80'"),
        ("tpc", 0, "'tpc' is no word", "'tcp'"),
        ("www", 0, "'www' is no word", "'host www'"),
        ("(tcp", 0, "this '(' is never closed", ""),
        ("tcp)", 3, "')' closes no '('", ""),
        ("tcp and", 7, "something is missing", ""),
        ("and tcp", 0, "'and' has nothing before it", ""),
        ("tcp udp", 4, "'udp' can't follow here", "'and' or 'or'"),
        ("ip proto tcp", 9, "a value is missing after 'ip proto'", "\\tcp"),
        ("src proto 6", 4, "'proto' has no direction", ""),
        ("port 70000", 5, "70000 is no port", ""),
        ("portrange 1-70000", 12, "70000 is no port", ""),
        ("port ssssh", 5, "no service is called 'ssssh'", ""),
        ("port 1-5", 5, "no service is called '1-5'", "portrange"),
        ("icmp port 5", 0, "'icmp' has no ports", ""),
        ("udp port ssh", 0, "belongs to TCP", ""),
        ("udp host 10.0.0.1", 0, "'udp' has no IPv4 addresses", "udp and host"),
        ("ip host ::1", 0, "'ip' has no IPv6 addresses", "'ip6'"),
        ("host 10.0.0.256", 5, "256 can't be part of an address", ""),
        ("host 10.0.0.0/8", 0, "a prefix is no host", "'net'"),
        ("net 10.0.0.0/33", 13, "a prefix of 33 bits is too long", ""),
        ("net fe80::1/10", 4, "has bits beyond its prefix", "fe80::/10"),
        ("host 2:0:0:0:0:1", 0, "is an Ethernet address", "ether host"),
        ("host nowhere.invalid", 5, "no address is known for the host 'nowhere.invalid'", ""),
        ("ip proto 256", 9, "256 is no protocol number", ""),
        ("l4 proto 300", 9, "300 is no protocol number", ""),
        ("l4 proto 65542", 9, "65542 is no protocol number", ""),
        ("ether proto 65536", 12, "65536 is no EtherType", ""),
        ("tcp proto 6", 0, "'tcp proto' is not known", ""),
        ("vlan 4096", 5, "4096 is too great for a VLAN identifier", ""),
        ("mpls 1048576", 5, "too great for an MPLS label", ""),
        ("pppoes and vlan", 11, "no VLAN tag can stand behind PPPoE", ""),
        ("mpls and arp", 9, "only IPv4 and IPv6 can be told apart", ""),
        ("gateway foo", 0, "'gateway' is not supported", "ether host"),
        ("src gateway foo", 4, "'gateway' is not supported", ""),
        ("inbound", 0, "'inbound' is not supported", "not ether src MAC"),
        ("tcp and outbound", 8, "'outbound' is not supported", "ether src MAC"),
        ("ifindex 2", 0, "'ifindex' is not supported", "the port"),
        ("ifname eth0", 0, "'ifname' is for OpenBSD's pflog", "the port"),
        ("tcp and on eth0", 8, "'on' is for OpenBSD's pflog", "the port"),
        ("ip gateway foo", 3, "'gateway' is not supported", "ether host"),
        ("net loopback", 4, "a network's name does not say", "127.0.0.0/8"),
        ("not src net loopback", 12, "a network's name does not say", "127.0.0.0/8"),
        ("net lopback", 4, "/etc/networks knows no 'lopback'", "10.0.0.0/8"),
        ("net loopback/8", 12, "'/' can't follow here", "a network's number"),
        ("ether host 1:2:3-4:5:6 or arp", 11, "'1:2:3-4:5:6' is no Ethernet address", "02:00"),
        ("(ether src a:b:c:d:e)", 11, "'a:b:c:d:e' is no Ethernet address", "02:00"),
        ("ether host aabb.ccdd", 11, "/etc/ethers knows no 'aabb.ccdd'", "02:00"),
        ("host aabbccddeeff", 0, "aa:bb:cc:dd:ee:ff is an Ethernet address", "ether host"),
        ("len > 000000000080", 6, "'000000000080' is no number", ""),
        ("wlan ra 1", 5, "802.11", ""),
        ("ip broadcast", 0, "needs the netmask", "ip dst host ADDRESS"),
        ("tcp broadcast", 0, "'tcp' has no broadcast", ""),
        ("ip[0:3] = 1", 5, "3 bytes can't be loaded at once", "1, 2 or 4"),
        ("ip[0 = 1", 5, "']' is missing", ""),
        ("ip[1-2] = 3", 3, "'1-2' is read as one name", "blanks"),
        ("ip[0] = 1 / 0", 10, "this divides by zero", ""),
        ("ip[0] << 32 = 1", 6, "a shift by 32 bits", ""),
        ("esp[0] = 1", 0, "bytes of 'esp' can't be addressed", ""),
        ("1 + 2", 5, "a number alone says nothing", "compare it"),
        ("less 08", 5, "'08' is no octal number", ""),
        ("less 4294967296", 5, "does not fit 32 bits", ""),
        ("llc foo", 4, "'foo' is no kind of LLC frame", "rr"),
        ("tcp # port", 4, "'#' has no meaning here", ""),
        ("tcp \u{e9}", 4, "'\u{e9}' has no meaning here", ""),
        ("host \\", 5, "a name must follow", ""),
        ("ether", 0, "'ether' says nothing alone", ""),
        ("l4 80", 3, "'l4' needs", "l4 tcp dst port"),
        ("port 80,443", 7, "',' has no meaning here", "80 or 443"),
        ("\u{201c}tcp\u{201d}", 0, "has no meaning here", "quotation marks"),
        ("tcp port 80 # web", 12, "'#' has no meaning here", "comments"),
        ("tcp dport 80", 4, "'dport' is no word", "'dst port'"),
        ("ipv6", 0, "'ipv6' is no word", "'ip6'"),
        ("dns", 0, "'dns' is no word", "'port 53'"),
        ("TCP port 80", 0, "'TCP' is no word", "lower case: 'tcp'"),
        ("tcp.port == 80", 0, "'tcp.port' is no word", "Wireshark"),
        ("ip == 10.0.0.1", 3, "'==' can't follow here", "'host'"),
        ("tcp port = 80", 9, "a value is missing", "leave out '='"),
        ("dst port tcp 80", 9, "a value is missing", "'tcp dst port'"),
        ("host 10.0.0.1:80", 13, "':' can't follow here", "'and port'"),
        ("host 2001:db8", 9, "':' can't follow here", "'::'"),
        ("portrange 80:90", 12, "':' can't follow here", "80-90"),
        ("port 80 to 90", 8, "'to' can't follow here", "portrange"),
        ("host fe80::1%eth0", 12, "'%' can't follow here", "interface"),
        ("net 10.0.0.0/255.0.0.0", 13, "a number is missing after '/'", "'mask'"),
        ("net 10.0.0.0 255.0.0.0", 13, "can't follow here", "'mask'"),
        ("ip src net 10/8", 13, "'/' can't follow here", "10.0.0.0/8"),
        ("mask 255.0.0.0", 0, "'mask' can't stand here", "net 10.0.0.0 mask"),
        ("ether 02:00:00:00:00:01", 6, "can't follow here", "'ether host'"),
        ("tcp syn", 4, "'syn' can't follow here", "tcp[tcpflags]"),
        ("icmp6 echo", 6, "'echo' can't follow here", "icmptype"),
        ("icmp type 8", 5, "'type' is for 802.11", "icmptype"),
        ("tcp[13] = syn", 10, "'syn' is no number", "'tcp-syn'"),
        ("icmp[icmptype] = echo", 17, "'echo' is no number", "'icmp-echo'"),
        ("tcp[13] & tcp-sny != 0", 10, "'tcp-sny' is no number", "'tcp-syn'"),
        ("ip[0] => 5", 7, "a number is missing before '>'", "'>='"),
        ("ip[0] =! 5", 7, "a number is missing before 'not'", "'!='"),
        ("()", 1, "nothing stands between", ""),
        ("(tcp and )", 9, "something is missing before ')'", ""),
        ("tcp port xyzzy", 9, "no service is called 'xyzzy'", "number"),
        ("geneve and geneve", 11, "can't stand behind", ""),
    ] {
        let options = Options { names: &NoNames, netmask: None };
        let error = Expression::new(text, &options).expect_err(text);
        assert!(error.what().contains(what), "{text}: {error}");
        assert_eq!(error.at(), at, "{error}");
        assert!(error.cure().unwrap_or_default().contains(cure), "{error}");
    }
}

#[test]
fn what_no_packet_can_match_is_refused_at_the_part_that_leaves_none() {
    const ALONE: &str = "no packet is so";
    const WITH_OTHERS: &str = "this excludes what stands before it";
    for (text, at, cure) in [
        ("tcp and udp", 8, WITH_OTHERS),
        ("ip and ip6", 7, WITH_OTHERS),
        ("port 80 and arp", 12, WITH_OTHERS),
        ("arp and host ::1", 8, WITH_OTHERS),
        ("src port 80 and tcp and src port 443", 24, WITH_OTHERS),
        ("tcp and port 80 and icmp and host 10.0.0.1", 20, WITH_OTHERS),
        ("host 10.0.0.1 and (tcp and udp)", 27, WITH_OTHERS),
        ("(tcp and udp) and host 10.0.0.1", 9, WITH_OTHERS),
        ("(arp or ip6) and (icmp or host 10.0.0.1 and igmp)", 44, WITH_OTHERS),
        ("ip and not ip", 11, WITH_OTHERS),
        ("vlan and ip and arp", 16, WITH_OTHERS),
        ("ip and vlan", 7, WITH_OTHERS),
        ("tcp and udp or ip6 and arp", 23, WITH_OTHERS),
        ("not (ip or not ip)", 5, ALONE),
        ("1 = 2", 0, ALONE),
        ("1 = 2 and tcp", 0, ALONE),
    ] {
        let options = Options { names: &NoNames, netmask: None };
        assert!(Expression::new(text, &options).is_ok_and(|read| !read.matches(&[0; 60])));
        let error = Expression::possible(text, &options).expect_err(text);
        assert_eq!(error.what(), "it can match no packet", "{error}");
        assert_eq!(error.at(), at, "{error}");
        assert!(error.cure().unwrap().starts_with(cure), "{error}");
    }
    for text in [
        "",
        "tcp or udp",
        "port 80 and port 443",
        "src port 80 and dst port 443",
        "ip and not ip6",
        "vlan 5 and vlan 6",
        "ip proto 4 and ip6[0] = 0 or arp",
        "tcp and udp or arp",
        "icmp and not tcp",
        "host 10.0.0.1 and host 10.0.0.2",
        "less 100 and greater 50",
    ] {
        assert!(text.parse::<Expression>().is_ok(), "{text}");
    }
}

#[test]
fn slips_of_the_finger_are_shown_where_they_are() {
    // Each expression, its caret, and the words behind the caret.
    for (text, caret, cure) in [
        ("prot 80", "^", "'port'"),
        ("hots 1.2.3.4", "^", "'host'"),
        ("tcp nad udp", "    ^", "'and'"),
        ("tcp src prt 80", "        ^", "'port'"),
        ("srcport 80", "^", "'src port'"),
        ("tcp port htpp", "         ^", "'http'"),
        ("tcp port https8", "         ^", "'https'"),
        ("udp port domian or arp", "         ^", "'domain'"),
        ("portrange ftp-smtpp", "              ^", "'smtp'"),
        ("portrange ftpp-smtp", "          ^", "'ftp'"),
        ("ip proto tpc", "         ^", "'\\tcp'"),
        ("ether proto \\arpp", "            ^", "'\\arp'"),
        ("tcp[tcpflag] = 1", "    ^", "'tcpflags'"),
        ("ip[0", "    ^", ""),
        ("ip]0[ = 1", "  ^", "closes no '['"),
        ("net 10.0.0.1/33", "             ^", ""),
        ("net ::1/129", "        ^", ""),
        ("host 10.0.0.0/33", "              ^", ""),
        ("portrange 9-", "           ^", "portrange 80-90"),
        ("portrange -9", "          ^", "portrange 80-90"),
        ("portrange 9 - 10", "            ^", "without blanks"),
        ("l4 portrange 9-", "              ^", "portrange 80-90"),
        ("(tcp or udp", "^", ""),
        ("tcp or udp)", "          ^", ""),
        ("port 70000", "     ^", ""),
        ("vlan 5000", "     ^", ""),
        ("vlan 5 and vlan 5000", "                ^", ""),
        ("vlan foo", "     ^", "is a number"),
        ("pppoes 65536", "       ^", ""),
        ("geneve 16777216", "       ^", ""),
        ("and and", "^", ""),
        ("tcp and or udp", "        ^", "one of the two"),
        ("tcp & udp", "    ^", "'&&'"),
        ("tcp | udp", "    ^", "'||'"),
        ("not", "   ^", "'host'"),
    ] {
        let options = Options { names: &NoNames, netmask: None };
        let error = Expression::new(text, &options).expect_err(text).to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines[1], format!("    {text}"));
        assert!(
            lines[2] == format!("    {caret}") || lines[2].starts_with(&format!("    {caret} ")),
            "{error}"
        );
        assert!(lines[2].contains(cure), "{error}");
    }
}

#[test]
fn too_much_of_anything_is_refused() {
    let deep = format!("{}tcp{}", "(".repeat(101), ")".repeat(101));
    assert!(error(&deep).contains("nested more than 100 deep"), "{}", error(&deep));
    assert!(read(&format!("{}tcp{}", "(".repeat(100), ")".repeat(100))).is_ok());
    assert!(error(&format!("{}tcp", "not ".repeat(101))).contains("nested more than 100 deep"));
    let sum = format!("ip[0] {} = 1", "+ 1".repeat(60));
    assert!(error(&sum).contains("more than 40 operations"), "{}", error(&sum));
    assert!(error(&format!("{}1 = 1", "- ".repeat(60))).contains("more than 40 operations"));
    assert!(
        error(&format!("{}1{} = 1", "ip[".repeat(60), "]".repeat(60))).contains("more than 40 operations")
    );
    assert!(error(&"tcp or ".repeat(10_000)).contains("65536 is the most"));
    let ranges = format!("portrange 1-2{}", " or 1-2".repeat(8000));
    assert!(error(&ranges).contains("too large"));
}

#[test]
fn a_long_expression_shows_only_where_it_is_wrong() {
    let text = format!("{}prot 80{}", "tcp or ".repeat(40), " or udp".repeat(40));
    let shown = error(&text);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() < 140), "{shown}");
    assert_eq!(lines[1].find("prot 80"), lines[2].find('^'), "{shown}");
}

#[test]
fn an_expression_prints_as_it_was_written() {
    let text = "tcp  dst port 443 and (not src net 10.0.0.0/8)";
    let expression = read(&format!(" {text}\n")).unwrap();
    assert_eq!(expression.to_string(), text);
    assert_eq!(expression, text.parse().unwrap());
}

/// Names of its own.
struct House;

impl Names for House {
    fn host(&self, name: &str) -> Vec<IpAddr> {
        if name == "kitchen" { vec![[10, 0, 0, 7].into(), "fe80::7".parse().unwrap()] } else { Vec::new() }
    }

    fn service(&self, name: &str) -> Vec<(u16, Protocol)> {
        if name == "oven" { vec![(99, Protocol::UDP)] } else { Vec::new() }
    }

    fn protocol(&self, name: &str) -> Option<Protocol> {
        (name == "tcp").then_some(Protocol::TCP)
    }

    fn network(&self, name: &str) -> Option<(Ipv4Addr, u32)> {
        (name == "cellar").then_some((Ipv4Addr::new(10, 1, 0, 0), 16))
    }

    fn ether(&self, name: &str) -> Option<Mac> {
        (name == "stove").then_some(Mac([2, 0, 0, 0, 0, 7]))
    }
}

#[test]
fn names_stand_for_what_they_are_known_as() {
    let read = |text: &str| Expression::new(text, &Options { names: &House, netmask: None }).unwrap();
    let same = |left: &str, right: &str| {
        let instructions = |text| bywash_filter::xdp::verdict_program(&read(text), 1, 2).unwrap();
        assert_eq!(instructions(left), instructions(right), "{left}");
    };
    same("src host kitchen", "src host 10.0.0.7 or src host fe80::7");
    same("ip6 host kitchen", "ip6 host fe80::7");
    same("port oven", "udp port 99");
    same("portrange 9-oven", "portrange 9-99");
    same("ip proto \\tcp", "ip proto 6");
    same("ether src stove", "ether src 02:00:00:00:00:07");
    same("tcp port 80 or 443", "tcp port 80 or tcp port 443");
    same("host 10.0.0.1 or not 10.0.0.2", "host 10.0.0.1 or not host 10.0.0.2");
    same("port 80 or (443 or 22)", "port 80 or (port 443 or port 22)");
    same("tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn", "tcp[13] & (2 | 16) = 0x02");
    same("link[12:2] = 010", "ether[12:2] = 8");
    same("length > 10 && ! greater 020", "len > 10 and not greater 16");
}

#[test]
fn the_system_knows_the_common_names() {
    for text in ["port ssh", "tcp port http", "ip proto \\udp", "host localhost", "portrange ftp-smtp"] {
        text.parse::<Expression>().unwrap();
    }
}

#[test]
fn a_networks_name_is_refused_with_its_number() {
    let options = Options { names: &House, netmask: None };
    let error = Expression::new("net cellar", &options).unwrap_err();
    assert_eq!((error.at(), error.cure()), (4, Some("did you mean 10.1.0.0/16?")));
}

/// Words that expressions are made of, so that random texts come far.
fn words() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "tcp",
        "udp",
        "ip",
        "ip6",
        "arp",
        "host",
        "net",
        "port",
        "portrange",
        "src",
        "dst",
        "and",
        "or",
        "not",
        "(",
        ")",
        "[",
        "]",
        ":",
        "=",
        "!=",
        "<",
        ">>",
        "&",
        "|",
        "^",
        "%",
        "/",
        "*",
        "-",
        "+",
        "!",
        "len",
        "less",
        "greater",
        "vlan",
        "mpls",
        "pppoes",
        "geneve",
        "anyvlan",
        "l4",
        "fragment",
        "first",
        "proto",
        "protochain",
        "ether",
        "broadcast",
        "byte",
        "llc",
        "rr",
        "1",
        "0",
        "6",
        "80",
        "0x10",
        "4294967295",
        "10.0.0.1",
        "10.0",
        "fe80::1",
        "/",
        "8",
        "mask",
        "255.0.0.0",
        "02:00:00:00:00:01",
        "1-5",
        "icmp",
        "tcpflags",
        "tcp-syn",
        "\\",
        "\\tcp",
        "gateway",
        "decnet",
        "iso",
        "l1",
    ]);
    prop::collection::vec(word, 0..24).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_and_no_packet_panics(
        text in prop_oneof![words(), any::<String>(), "[ -~]{0,60}"],
        packet in prop::collection::vec(any::<u8>(), 0..200),
        length in any::<usize>(),
    ) {
        let options = Options { names: &NoNames, netmask: Some(Ipv4Addr::new(255, 255, 255, 0)) };
        match Expression::new(&text, &options) {
            Ok(expression) => {
                expression.matches_len(&packet, length);
                let again = Expression::new(&expression.to_string(), &options).unwrap();
                prop_assert_eq!(again.matches(&packet), expression.matches(&packet));
                if let Err(error) = Expression::possible(&text, &options) {
                    prop_assert!(error.at() < text.len() && !expression.matches(&packet));
                }
                bywash_filter::xdp::verdict_program(&expression, 1, 2).unwrap().to_bytes();
            }
            Err(error) => {
                prop_assert!(error.at() <= text.len());
                prop_assert_eq!(error.to_string().lines().count(), 3);
            }
        }
    }
}
