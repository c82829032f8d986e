//! A SYN flood is answered with cookies.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bywash_lab::{Host, HostOptions, Pair, PairOptions};
use bywash_sys::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use bywash_sys::route::{Gateway, Mac};
use tempfile::TempDir;

use super::bed::{BYWASH, Filter, arguments, flood, of_rule, sent, summary, two_families};
use super::trials::pcap;

/// A counter of the kernel's TCP.
fn tcp_counter(host: &Host, name: &str) -> u64 {
    let text = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/netstat")).unwrap().unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut found = names.split_whitespace().zip(values.split_whitespace());
    found.find(|(known, _)| *known == name).unwrap().1.parse().unwrap()
}

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a connection to who listens behind `address`, and says something there: its ends at the client and at the server.
fn open(client: &Host, address: SocketAddr, listener: &TcpListener) -> [TcpStream; 2] {
    let connect = || TcpStream::connect_timeout(&address, PATIENCE);
    let mut client = client.enter(connect).unwrap().unwrap_or_else(|error| panic!("{address}: {error}"));
    client.write_all(b"ping").unwrap();
    let until = Instant::now() + PATIENCE;
    let mut server = loop {
        match listener.accept() {
            Ok((server, _)) => break server,
            Err(error) => assert!(Instant::now() < until, "{address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    server.set_nonblocking(false).unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut said = [0; 4];
    server.read_exact(&mut said).unwrap();
    [client, server]
}

/// Says something in one direction.
fn say([from, to]: [&mut TcpStream; 2]) {
    from.write_all(b"ping").unwrap();
    let mut said = [0; 4];
    to.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"ping");
}

/// Connects, and says something in both directions. Which window scales each side says the connection has, and whether it
/// has timestamps and SACK: from the client, then from the server.
fn connect(hosts: [&Host; 2], listener: &TcpListener) -> [(Vec<u8>, bool); 2] {
    let [mut client, mut server] = open(hosts[0], listener.local_addr().unwrap(), listener);
    let long = vec![7; 200_000];
    let writer = std::thread::spawn(move || server.write_all(&long).map(|()| server).unwrap());
    let mut heard = vec![0; 200_000];
    client.read_exact(&mut heard).unwrap();
    let _server = writer.join().unwrap();
    let port = client.local_addr().unwrap().port();
    [(0, "sport"), (1, "dport")].map(|(host, side)| {
        let filter = format!("( {side} = :{port} )");
        let mut command = hosts[host].command("ss").unwrap();
        let output = command.args(["-tinoH", "state", "established", &filter]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let scales = words.iter().find_map(|word| word.strip_prefix("wscale:")).unwrap_or_default();
        let scales = scales.split(',').filter_map(|scale| scale.parse().ok()).collect();
        (scales, words.contains(&"ts") && words.contains(&"sack"))
    })
}

/// Has a veth look at what the other end's XDP program sends, which it does only when it has a program of its own: it returns XDP_PASS.
fn answers_come_out(host: &Host, index: u32) -> Link {
    let pass = [0x2_0000_00b7, 0x95];
    let spec = ProgramSpec { kind: ProgramKind::XdpFrags, name: "test_pass", instructions: &pass };
    host.enter(|| Link::xdp(&Program::load(&spec).unwrap(), index, XdpMode::Native).unwrap()).unwrap()
}

/// A rule file that has SYNs to port 80 answered.
fn web(folder: &TempDir) -> PathBuf {
    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, "[[rule]]\nname = \"web\"\nto_ports = [80]\naction = \"syncookie\"\n").unwrap();
    rules
}

#[test]
fn a_syn_flood_is_answered_with_cookies_and_connections_come_through() {
    if Command::new("ss").arg("-V").output().is_err() {
        return bywash_lab::skip("ss is not installed");
    }
    let Some(_guard) = bywash_lab::lock() else { return };
    let (hosts, pair) = two_families(&PairOptions::default());
    let _link = answers_come_out(&hosts[0], pair.near.index);
    let folder = tempfile::tempdir().unwrap();
    let words = format!("--rules {}", web(&folder).display());
    hosts[1].sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
    let all = format!("filter xdp:left {words} --huge-pages off --memory 32M");
    let refused = hosts[1].command(BYWASH).unwrap().args(arguments(&all)).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("net.ipv4.tcp_syncookies=2"), "{refused:?}");
    hosts[1].sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    hosts[1].sysctl("net.ipv4.tcp_timestamps", "2").unwrap();
    let once =
        hosts[1].command(BYWASH).unwrap().args(arguments(&format!("{all} --duration 1s"))).output().unwrap();
    let told = String::from_utf8_lossy(&once.stderr).matches("SYN cookies leave by left, a veth").count();
    assert_eq!((once.status.code(), told), (Some(0), 1), "{once:?}");
    let filter = Filter::on(&hosts[1], &words);
    let listeners = ["10.0.0.2:80", "[fd00::2]:80"].map(|address| {
        let listener = hosts[1].enter(|| TcpListener::bind(address)).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    });
    // The source addresses of both floods are nobody's.
    let flood_of = |words: &str| {
        let tcp = format!("--proto tcp --dport 80 --sport 1024-65535 --payload none {words}");
        sent(flood(&hosts[0], &tcp))
    };
    let (mut syns, mut connections) = (0, 0);
    for (listener, way) in
        listeners.iter().zip(["--dst 10.0.0.2 --src 10.9.0.0/16", "--dst fd00::2 --src fd00:9::/64"])
    {
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| flood_of(&format!("{way} --flags syn --rate 50k --duration 3s")));
            while !flood.is_finished() {
                let [(client, kept), (server, _)] = connect(hosts.each_ref(), listener);
                // Each side's own scale is the other's second.
                let turned: Vec<u8> = server.into_iter().rev().collect();
                assert!(client.len() == 2 && client == turned, "{client:?} {turned:?}");
                assert!(kept, "timestamps and SACK");
                connections += 1;
            }
            syns += flood.join().unwrap();
        });
        syns += flood_of(&format!("{way} --flags ack --rate 50k --count 5000"));
    }
    let told = filter.end();
    let summary = summary(&told);
    let hung = summary["port"]["counters"]["hung"].as_u64().unwrap();
    assert!(of_rule(summary, "web", "packets") + hung >= syns, "{syns} of a flood: {summary}");
    assert!(connections >= 10, "{connections}");
    let counter = |name| tcp_counter(&hosts[1], name);
    if hung == 0 {
        assert_eq!(
            (counter("SyncookiesSent"), counter("SyncookiesFailed")),
            (0, 0),
            "the kernel saw none of it"
        );
        // Now and then one is missing in the kernel's count.
        let counted = counter("SyncookiesRecv");
        assert!(counted <= connections && counted * 10 >= connections * 9, "{counted} of {connections}");
    }
}

/// A client, a machine that forwards, and a server behind it, over both families; and the two pairs.
fn routed() -> ([Host; 3], [Pair; 2]) {
    let ([client, machine], pair) = two_families(&PairOptions::default());
    let server = Host::with(&HostOptions { ipv6: true, ..HostOptions::default() }).unwrap();
    let addresses = [["10.0.1.1/24", "fd01::1/64"], ["10.0.1.2/24", "fd01::2/64"]]
        .map(|end| end.map(|text| text.parse().unwrap()).into());
    let behind =
        Pair::between(&machine, &server, &PairOptions { addresses, ..PairOptions::default() }).unwrap();
    for setting in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        machine.sysctl(setting, "1").unwrap();
    }
    for (host, index, to, by) in [
        (&client, pair.near.index, "10.0.1.0/24", "10.0.0.2"),
        (&client, pair.near.index, "fd01::/64", "fd00::2"),
        (&server, behind.far.index, "10.0.0.0/24", "10.0.1.1"),
        (&server, behind.far.index, "fd00::/64", "fd01::1"),
    ] {
        let way = Gateway { index, address: Some(by.parse().unwrap()) };
        host.add_route(to.parse().unwrap(), way).unwrap();
    }
    ([client, machine, server], [pair, behind])
}

/// Who listens on all addresses of a machine listens on none of those behind it.
#[test]
fn connections_that_are_only_forwarded_are_not_answered_for() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let (hosts, [pair, _behind]) = routed();
    let [client, machine, server] = &hosts;
    let _link = answers_come_out(client, pair.near.index);
    machine.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let [own, far] = [machine, server].map(|host| {
        let listener = host.enter(|| TcpListener::bind("[::]:80")).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    });
    let through =
        || ["10.0.1.2:80", "[fd01::2]:80"].map(|address| open(client, address.parse().unwrap(), &far));
    let before = through();
    let folder = tempfile::tempdir().unwrap();
    let mut filter = Filter::on(machine, &format!("--rules {}", web(&folder).display()));
    for [mut near, mut far] in before.into_iter().chain(through()) {
        say([&mut near, &mut far]);
        say([&mut far, &mut near]);
    }
    assert_eq!(of_rule(filter.report(), "web", "packets"), 0, "none of it is this machine's");
    for address in ["10.0.0.2:80", "[fd00::2]:80"] {
        let [mut near, mut far] = open(client, address.parse().unwrap(), &own);
        say([&mut far, &mut near]);
    }
    assert!(of_rule(summary(&filter.end()), "web", "packets") >= 2, "a SYN of each");
}

/// Behind a NIC there are others: guests by macvlan, ipvlan or a bridge, and what a switch gives to all its ports.
#[test]
fn only_what_is_for_the_machines_own_addresses_by_its_own_mac_is_answered() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let (hosts, pair) = two_families(&PairOptions::default());
    hosts[1].sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _listener = hosts[1].enter(|| TcpListener::bind("[::]:80")).unwrap().unwrap();
    let mut filter = Filter::on(&hosts[1], &format!("--rules {}", web(&folder).display()));
    let mut answered = |mac: &str, address: &str| {
        let from = if address.contains(':') { "fd00:9::/64" } else { "10.9.0.0/16" };
        let words = format!(
            "generate --inject right --dst-mac {mac} --dst {address} --src {from} --proto tcp --dport 80 --payload none \
             --flags syn --rate 10k --count 20 --json"
        );
        let before = of_rule(filter.report(), "web", "packets");
        sent(hosts[0].command(BYWASH).unwrap().args(arguments(&words)).output().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        of_rule(filter.report(), "web", "packets") - before
    };
    let own = "02:00:00:00:00:02";
    for (mac, address) in [
        ("02:00:00:00:00:07", "10.0.0.2"),
        ("02:00:00:00:00:07", "fd00::2"),
        ("ff:ff:ff:ff:ff:ff", "10.0.0.2"),
        ("01:00:5e:00:00:01", "10.0.0.2"),
        (own, "10.0.0.255"),
        (own, "224.0.0.1"),
        (own, "10.0.0.77"),
        (own, "fd00::77"),
    ] {
        assert_eq!(answered(mac, address), 0, "{address} by {mac}");
    }
    for address in ["10.0.0.2", "fd00::2"] {
        assert_eq!(answered(own, address), 20, "{address}");
    }
    let mut until_answered = |mac: &str, address: &str| {
        let until = Instant::now() + PATIENCE;
        while answered(mac, address) == 0 {
            assert!(Instant::now() < until, "{address} by {mac} is not answered");
        }
    };
    hosts[1].route().add_address(pair.far.index, "10.0.0.77/24".parse().unwrap()).unwrap();
    until_answered(own, "10.0.0.77");
    hosts[1].route().set_mac(pair.far.index, Mac([2, 0, 0, 0, 0, 7])).unwrap();
    until_answered("02:00:00:00:00:07", "10.0.0.2");
    assert_eq!(answered(own, "10.0.0.2"), 0, "it is another's now");
    filter.end();
}

/// A SYN over IPv4 from a port, with these options behind the MSS.
fn syn(port: u16, options: &[u8]) -> Vec<u8> {
    let mut tcp = [port.to_be_bytes(), 80_u16.to_be_bytes()].concat();
    tcp.extend([0; 8]);
    let words = u8::try_from((24 + options.len()) / 4).unwrap();
    tcp.extend([words << 4, 2, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5, 0xb4]);
    tcp.extend(options);
    let total = u16::try_from(20 + tcp.len()).unwrap().to_be_bytes();
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, total[0], total[1]];
    frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(tcp);
    frame
}

#[test]
fn who_signs_a_syn_is_answered_by_the_kernel() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for timestamps in ["1", "2"] {
        let (hosts, _pair) = two_families(&PairOptions::default());
        hosts[1].sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
        hosts[1].sysctl("net.ipv4.tcp_timestamps", timestamps).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let _listener = hosts[1].enter(|| TcpListener::bind("10.0.0.2:80")).unwrap().unwrap();
        let mut filter = Filter::on(&hosts[1], &format!("--rules {}", web(&folder).display()));
        let mut answered = |options: &[u8]| {
            let before = of_rule(filter.report(), "web", "packets");
            let file = folder.path().join("syn.pcap");
            std::fs::write(&file, pcap(&[syn(5000, options)])).unwrap();
            let words = format!("replay {} packet:right", file.display());
            let output = hosts[0].command(BYWASH).unwrap().args(arguments(&words)).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            std::thread::sleep(Duration::from_millis(100));
            of_rule(filter.report(), "web", "packets") - before
        };
        let md5 = [&[1, 1, 19, 18][..], &[7; 16]].concat();
        let ao = [&[1, 1, 1, 1, 29, 16, 1, 1][..], &[7; 12]].concat();
        assert_eq!([&md5[..], &ao, &[]].map(&mut answered), [0, 0, 1], "timestamps {timestamps}");
        filter.end();
    }
}

/// netfilter's SYNPROXY takes them as well: it makes and checks cookies by the same functions of the kernel.
#[test]
fn synproxy_takes_the_acknowledgments_of_cookies() {
    if lacks_ss_or_nft() {
        return;
    }
    let Some(_guard) = bywash_lab::lock() else { return };
    let (hosts, pair) = two_families(&PairOptions::default());
    let _link = answers_come_out(&hosts[0], pair.near.index);
    let folder = tempfile::tempdir().unwrap();
    synproxy(&hosts[1], &folder, "input");
    hosts[1].sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    hosts[1].sysctl("net.ipv4.tcp_timestamps", "2").unwrap();
    let filter = Filter::on(&hosts[1], &format!("--rules {}", web(&folder).display()));
    for (n, address) in ["10.0.0.2:80", "[fd00::2]:80"].into_iter().enumerate() {
        let listener = hosts[1].enter(|| TcpListener::bind(address)).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let [(client, kept), _] = connect(hosts.each_ref(), &listener);
        assert!(client.len() == 2 && kept, "{client:?}: timestamps and SACK come through");
        assert_eq!(synproxy_has(&hosts[1], VALID), n as u64 + 1);
    }
    assert!(of_rule(summary(&filter.end()), "web", "packets") >= 2, "a SYN of each: ACKs go on");
}

/// Whether ss or nft is missing, which is said.
fn lacks_ss_or_nft() -> bool {
    let missing = |tool: &str, ask: &str| Command::new(tool).arg(ask).output().is_err();
    let lacks = missing("ss", "-V") || missing("nft", "--version");
    if lacks {
        bywash_lab::skip("ss or nft is not installed");
    }
    lacks
}

/// Puts netfilter's SYNPROXY in front of port 80, in this hook.
fn synproxy(host: &Host, folder: &TempDir, hook: &str) {
    let firewall = folder.path().join("synproxy.nft");
    let chain = format!(
        "type filter hook {hook} priority 0; policy accept;\n\
         tcp dport 80 ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm\n\
         tcp dport 80 ct state invalid drop"
    );
    std::fs::write(&firewall, format!("table inet t {{ chain c {{ {chain}\n}}\n}}\n")).unwrap();
    let set = host.command("nft").unwrap().arg("-f").arg(&firewall).output().unwrap();
    assert!(set.status.success(), "{set:?}");
    // Else an ACK that is of no connection would begin one.
    host.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0").unwrap();
}

/// What [`synproxy_has`] can say: SYNs that came, and cookies that were right.
const SYNS: usize = 1;
const VALID: usize = 3;

/// What SYNPROXY has counted, on all CPUs.
fn synproxy_has(host: &Host, column: usize) -> u64 {
    let text =
        host.enter(|| std::fs::read_to_string("/proc/thread-self/net/stat/synproxy")).unwrap().unwrap();
    let of = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column).unwrap(), 16).unwrap();
    text.lines().skip(1).map(of).sum()
}

/// Servers on machines behind this one, which only passes packets on.
#[test]
fn a_syn_flood_at_a_server_behind_synproxy_is_answered_and_connections_come_through() {
    if lacks_ss_or_nft() {
        return;
    }
    let Some(_guard) = bywash_lab::lock() else { return };
    let (hosts, [pair, _behind]) = routed();
    let [client, machine, server] = &hosts;
    let _link = answers_come_out(client, pair.near.index);
    let folder = tempfile::tempdir().unwrap();
    synproxy(machine, &folder, "forward");
    let rules = folder.path().join("rules.toml");
    let text = "[[rule]]\nname = \"web\"\nto_ports = [80]\naction = \"synproxy\"\nmss = 1400\nwscale = 7\n";
    std::fs::write(&rules, text).unwrap();
    let filter = Filter::on(machine, &format!("--rules {}", rules.display()));
    let mut answered = 0;
    for (n, (address, way)) in [
        ("10.0.1.2:80", "--dst 10.0.1.2 --src 10.9.0.0/16"),
        ("[fd01::2]:80", "--dst fd01::2 --src fd00:9::/64"),
    ]
    .into_iter()
    .enumerate()
    {
        let listener = server.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let [(scales, kept), (_, told)] = connect([client, server], &listener);
        assert!(scales.len() == 2 && kept && told, "{scales:?}: window scale, timestamps and SACK");
        assert_eq!(synproxy_has(machine, VALID), n as u64 + 1);
        let flood_of = |mac: &str, words: &str| {
            let words = format!(
                "generate --inject right --dst-mac {mac} --proto tcp --dport 80 --sport 1024-65535 --payload none \
                 --rate 20k --count 5000 --json {words}"
            );
            sent(client.command(BYWASH).unwrap().args(arguments(&words)).output().unwrap())
        };
        let (mac, other) = ("02:00:00:00:00:02", "02:00:00:00:00:07");
        answered += flood_of(mac, &format!("--flags syn {way}")) + 1;
        // What is no SYN is the firewall's to judge, and what is for another station, or for the machine itself, no SYN of a server's.
        flood_of(mac, &format!("--flags ack {way}"));
        flood_of(other, &format!("--flags syn {way}"));
        let own = if n == 0 { "--dst 10.0.0.2 --src 10.9.0.0/16" } else { "--dst fd00::2 --src fd00:9::/64" };
        flood_of(mac, &format!("--flags syn {own}"));
    }
    let told = filter.end();
    let summary = summary(&told);
    let hung = summary["port"]["counters"]["hung"].as_u64().unwrap();
    let counted = of_rule(summary, "web", "packets");
    assert!(counted <= answered && counted + hung >= answered, "{answered}: {summary}");
    if hung == 0 {
        assert_eq!(synproxy_has(machine, SYNS), 0, "the kernel saw none of them");
    }
}

#[test]
fn answers_to_syns_follow_the_mtu() {
    if Command::new("ss").arg("-V").output().is_err() {
        return bywash_lab::skip("ss is not installed");
    }
    let Some(_guard) = bywash_lab::lock() else { return };
    let (hosts, pair) = two_families(&PairOptions::default());
    let _link = answers_come_out(&hosts[0], pair.near.index);
    let folder = tempfile::tempdir().unwrap();
    hosts[1].sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let filter = Filter::on(&hosts[1], &format!("--rules {}", web(&folder).display()));
    let listener = hosts[1].enter(|| TcpListener::bind("10.0.0.2:80")).unwrap().unwrap();
    listener.set_nonblocking(true).unwrap();
    // What the client may send in one segment: no more than the answer says.
    let mss = || -> u32 {
        let ends = open(&hosts[0], listener.local_addr().unwrap(), &listener);
        let filter = format!("( sport = :{} )", ends[0].local_addr().unwrap().port());
        let mut command = hosts[0].command("ss").unwrap();
        let output = command.args(["-tinOH", "state", "established", &filter]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mss = text.split_whitespace().find_map(|word| word.strip_prefix("mss:"));
        mss.and_then(|mss| mss.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    assert!(mss() > 1400);
    hosts[1].route().set_mtu(pair.far.index, 1300).unwrap();
    let until = Instant::now() + PATIENCE;
    while mss() > 1260 {
        assert!(Instant::now() < until, "the MSS is that of the MTU at the start");
        std::thread::sleep(Duration::from_millis(100));
    }
    filter.end();
}
