//! Rules in one line, and what filters are asked for because of them.

use super::*;

#[test]
fn flows_print_as_the_expressions_that_mean_them() {
    for text in [
        "ip queue 0",
        "ip and udp dst port 53 queue 2",
        "vlan 4094 and ip and src net 192.0.2.0/24 and dst host 198.51.100.1 and tcp src port 0 and tcp dst port 65535 drop",
        "ip and src net 10.0.0.0/8 and sctp queue 65535",
        "vlan 1 and ip and dst net 224.0.0.0/4 drop",
        "ether proto 0x88cc queue 1",
        "ether proto 0x0806 drop",
    ] {
        assert_eq!(text.parse::<SteerRule>().unwrap().to_string(), text);
    }
    for (text, says) in [
        (
            "  tcp  dst port 80\tand src host 192.0.2.1 queue  3 ",
            "ip and src host 192.0.2.1 and tcp dst port 80 queue 3",
        ),
        ("src net 192.0.2.0/24 and tcp drop", "ip and src net 192.0.2.0/24 and tcp drop"),
        ("vlan 7 and ip queue 1", "vlan 7 and ip queue 1"),
        ("anyvlan and ip and udp dst port 53 queue 1", "ip and udp dst port 53 queue 1"),
        ("ether proto 35020 queue 3", "ether proto 0x88cc queue 3"),
        ("arp queue 3", "ether proto 0x0806 queue 3"),
    ] {
        assert_eq!(text.parse::<SteerRule>().unwrap().to_string(), says);
    }
}

#[test]
fn a_rule_is_all_its_flows() {
    let all = |text: &str| {
        let rules = SteerRule::of(&read_steer(text).unwrap()).unwrap();
        let mut texts: Vec<String> = rules.iter().map(ToString::to_string).collect();
        texts.sort();
        texts
    };
    let both = ["ip and udp dst port 53 queue 1", "ip and udp src port 53 queue 1"];
    assert_eq!(all("ip and udp port 53 queue 1"), both);
    let two = ["ether proto 0x0806 queue 1", "ip and tcp queue 1"];
    assert_eq!(all("arp or (ip and tcp) queue 1"), two);
    assert_eq!("ip and udp port 53 drop".parse::<SteerRule>(), Err(SteerError::Several(2)));
}

#[test]
fn each_wrong_rule_says_what_to_write() {
    for (text, says) in [
        ("", "'' does not say what becomes of its packets: end it with drop, pass, count or queue N"),
        ("udp dst port 53", "does not say what becomes of its packets"),
        ("udp queue 1 drop", "queue"),
        ("udp queue", "does not say what becomes of its packets"),
        ("udp sample 100", "--steer has no 'sample': `bywash filter xdp:IFACE --rules FILE` has it"),
        ("udp limit 200 per source/24", "--steer has no 'limit'"),
        ("udp queue -1", "'-1' is no queue: write its number, from 0 on"),
        ("udp4 dst-port 53 queue 2", "udp4"),
        ("udp dst port 53 queue 2", "IPv6 is a part of it, of which NICs may look behind extension headers"),
        ("udp dst port 53 queue 2", ": write: ip and udp dst port 53"),
        ("drop", "packets that are neither IPv4 nor all of an EtherType are a part of it: write: ip"),
        ("ip and udp and len > 400 drop", "a NIC would take all of 'udp4'"),
        ("icmp queue 1", "'ip4 l4proto 1': filters compare no protocols but TCP, UDP and SCTP"),
        ("ip and udp dst portrange 6-7 drop", "filters compare whole ports: write a rule for each"),
        (
            "ip[12:4] & 0xff0000ff = 0x0a000001 and udp drop",
            "filters compare addresses and prefixes of these",
        ),
        ("vlan 0 and ip drop", "'0' is no VLAN: write an id from 1 to 4094"),
        ("ether proto 0x8100 queue 1", "'0x8100' is no EtherType to steer by: write one from 0x600"),
    ] {
        let told = read_steer(text).and_then(|rule| SteerRule::of(&rule)).unwrap_err().to_string();
        assert!(told.contains(says), "{text}: {told}");
        assert_eq!(told.lines().count(), 1);
    }
    let rule = read_steer("ip and udp drop").unwrap();
    let told = |rule: Rule| SteerRule::of(&rule).unwrap_err().to_string();
    let passes = told(Rule { action: Action::Pass, ..rule.clone() });
    assert_eq!(
        passes,
        "a NIC gives packets to a queue or drops them, and does not 'pass': write queue or drop; xdp: ports pass and count"
    );
    assert_eq!(told(Rule { dry_run: true, ..rule.clone() }), "dry_run drops nothing");
    let ends = told(Rule { expires: Some(std::time::SystemTime::UNIX_EPOCH), ..rule });
    assert_eq!(ends, "rules of --steer hold while the port is open: leave expires out");
}

#[test]
fn a_port_with_a_program_steers_by_any_expression_and_leaves_the_rest_to_the_filter() {
    for (text, action) in [
        ("udp and len > 400 drop", Action::Drop),
        ("drop", Action::Drop),
        ("not ip6 pass", Action::Pass),
        ("tcp[tcpflags] & tcp-syn != 0  count", Action::Count),
        ("ip and udp dst port 53 queue 3", Action::Steer(3)),
    ] {
        let rule = read_steer(text).unwrap();
        assert_eq!((rule.action, check_steer(&rule)), (action, Ok(())), "{text}");
    }
    let told = |rule: Rule| check_steer(&rule).unwrap_err().to_string();
    assert!(told(read_steer("udp queue 3").unwrap()).contains(": write: ip and udp"));
    let rule = read_steer("udp drop").unwrap();
    assert_eq!(check_steer(&Rule { dry_run: true, ..rule.clone() }), Ok(()));
    let established = Some(std::time::Duration::from_secs(1));
    let condition = Condition { established, ..Condition::default() };
    let proxy = bywash_filter::rules::SynProxy { mss: 1460, window_scale: 7 };
    for (rule, what) in [
        (Rule { action: Action::SynCookie, ..rule.clone() }, "syncookie"),
        (Rule { action: Action::SynProxy(proxy), ..rule.clone() }, "synproxy"),
        (Rule { sample: std::num::NonZeroU32::new(9), ..rule.clone() }, "sample"),
        (Rule { condition, ..rule.clone() }, "established"),
    ] {
        let said = told(rule);
        assert!(
            said.starts_with(&format!("--steer has no '{what}': ")) && said.ends_with(" has it"),
            "{said}"
        );
    }
    let ends = told(Rule { expires: Some(std::time::SystemTime::UNIX_EPOCH), ..rule });
    assert!(ends.ends_with("leave expires out"), "{ends}");
}

#[test]
fn flows_overlap_when_a_packet_can_be_of_both() {
    let flow = |text: &str| match format!("{text} drop").parse::<SteerRule>().unwrap().flow {
        Flow::Ipv4(flow) => flow,
        Flow::EtherType(_) => unreachable!("not asked for"),
    };
    for (a, b, both) in [
        ("ip", "vlan 3 and ip and udp", true),
        ("ip and udp", "ip and tcp", false),
        ("ip and udp src port 3", "ip and udp dst port 3", true),
        ("ip and udp src port 3", "ip and udp src port 4", false),
        ("ip src net 10.0.0.0/8", "ip src net 10.1.0.0/16", true),
        ("ip src net 10.0.0.0/8", "ip src net 11.1.0.0/16", false),
        ("ip dst host 10.0.0.1", "ip dst host 10.0.0.2", false),
        ("vlan 3 and ip", "vlan 4 and ip", false),
    ] {
        assert_eq!(flow(a).overlaps(&flow(b)), both, "{a}, {b}");
        assert_eq!(flow(b).overlaps(&flow(a)), both, "{b}, {a}");
    }
}
