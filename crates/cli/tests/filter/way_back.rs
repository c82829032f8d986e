//! The way back: what user space has seen comes to the kernel in order, and as if from the interface that it came in by.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use bywash_lab::{Host, PairOptions, Snapshot};
use rustix::process::Signal;
use serde_json::Value;

use crate::bed::{Bed, Filter, SERVER, Untouched, sent, summary, two_families, unchanged};

/// Counts what comes in, for conntrack to see, by the interface that it seems to come from.
const FIREWALL: &str = "table inet seen {
    counter ours { }
    counter others { }
    chain in {
        type filter hook prerouting priority filter; policy accept;
        iifname left udp dport 7 ct state new counter name ours accept
        udp dport 7 counter name others
    }
}";

fn nft(host: &Host, words: &[&str]) -> String {
    let output = host.command("nft").unwrap().args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Packets that the firewall has counted by this name.
fn seen(host: &Host, name: &str) -> u64 {
    let told: Value =
        serde_json::from_str(&nft(host, &["-j", "list", "counter", "inet", "seen", name])).unwrap();
    told["nftables"][1]["counter"]["packets"].as_u64().unwrap_or_else(|| panic!("{told}"))
}

#[test]
fn a_million_packets_of_a_thousand_flows_come_back_in_order_by_the_interface_that_they_came_from() {
    if Command::new("nft").arg("--version").output().is_err() {
        return bywash_lab::skip("nft is not installed");
    }
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let host = &bed.lab.hosts[1];
        nft(host, &[FIREWALL]);
        let untouched = Untouched::now(host);
        let filter = Filter::start(&bed, "");
        // Sees each packet where the kernel would have, had there been no filter, and not before.
        let receive = Filter::tool(host, "receive packet:left --ring 32768 --huge-pages off --memory 32M");
        // Two senders, so that both queues have flows; each flow has a queue.
        let words =
            "--cores 0,1 --src 10.0.0.1 --sport 10000-10999 --dport 7 --flows 1000 --count 1M --rate 100k";
        let all = sent(bed.flood(words));
        let (_, received) = receive.end_anyhow();
        let told = filter.end();
        let (filtered, received) = (summary(&told), summary(&received));
        let count = |summary: &Value, name: &str| summary[name].as_u64().unwrap();
        assert_eq!(all, 1_000_000);
        // What a worker that has no CPU for half a second leaves to the kernel overtakes what it has.
        let hung = filtered["port"]["counters"]["hung"].as_u64().unwrap();
        let late = count(received, "reordered_packets");
        assert!(late == 0 || hung > 0, "{received}");
        assert_eq!(count(received, "duplicate_packets"), 0, "{received}");
        assert!(count(received, "right_packets") > 900_000, "too few to judge the order by: {received}");
        let by_queue: Vec<u64> =
            filtered["queues"].as_array().unwrap().iter().map(|queue| count(queue, "packets")).collect();
        assert!(by_queue.len() == 2 && by_queue.iter().all(|packets| *packets > 100_000), "{by_queue:?}");
        // A busy machine loses some before user space has them, or leaves them to the kernel at once.
        let back = count(filtered, "given_back_packets");
        assert_eq!((seen(host, "ours"), seen(host, "others")), (back + hung, 0), "{filtered}");
        assert!(back + hung > 900_000, "too few: {filtered}");
        let flows = host.enter(|| std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count"));
        assert_eq!(flows.unwrap().unwrap().trim(), "1000", "connections of conntrack's");
        assert_eq!(count(filtered, "taken_packets"), back, "{filtered}");
        assert_eq!((count(filtered, "lost_packets"), count(filtered, "dropped_packets")), (0, 0));
        untouched.check();
    }
    unchanged(&before);
}

#[test]
fn packets_that_are_longer_than_the_mtu_of_the_start_go_to_the_kernel_and_are_warned_of() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rules = "[[rule]]\nname = 'asked'\nto_ports = [7]\naction = 'limit'\nrate = 1000000\n";
    let mut filter = Filter::start(&bed, &format!("--rules {}", bed.rules(rules).display()));
    assert_eq!(bed.ask(10), 10, "short ones come back");
    let pair = &bed.lab.pairs[0];
    for (host, interface) in bed.lab.hosts.iter().zip([&pair.near, &pair.far]) {
        host.route().set_mtu(interface.index, 9000).unwrap();
    }
    for len in [2000, 2100, 4000, 8900] {
        bed.client.send_to(&vec![7; len], SERVER).unwrap();
        assert_eq!(bed.server.recv(&mut [0; 9000]).unwrap(), len);
    }
    let warns = |event: &Value| {
        event["event"] == "warning" && event["message"].as_str().unwrap().contains("too_long")
    };
    filter.wait_for("warning", warns);
    let told = filter.end();
    assert_eq!(summary(&told)["port"]["counters"]["too_long"], 3, "{told:?}");
}

/// Tells packets of connections to port 8080 apart: by family, by what conntrack knows of them, and by the interface.
const OF_CONNECTIONS: &str = "table inet seen {
    counter new4 { }
    counter new6 { }
    counter known4 { }
    counter known6 { }
    counter others { }
    chain in {
        type filter hook prerouting priority filter; policy accept;
        iifname left tcp dport 8080 ct state new meta nfproto ipv4 counter name new4 accept
        iifname left tcp dport 8080 ct state new meta nfproto ipv6 counter name new6 accept
        iifname left tcp dport 8080 ct state established meta nfproto ipv4 counter name known4 accept
        iifname left tcp dport 8080 ct state established meta nfproto ipv6 counter name known6 accept
        tcp dport 8080 counter name others
    }
}";

/// What a connection carries each way.
const BYTES: usize = 1 << 20;

#[test]
fn connections_whose_packets_come_back_are_whole_and_as_if_from_their_interface() {
    if Command::new("nft").arg("--version").output().is_err() {
        return bywash_lab::skip("nft is not installed");
    }
    let Some(_guard) = bywash_lab::lock() else { return };
    let (hosts, _pair) = two_families(&PairOptions::default());
    let host = &hosts[1];
    nft(host, &[OF_CONNECTIONS]);
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.toml");
    let text = "[[rule]]\nname = 'asked'\nto_ports = [8080]\naction = 'limit'\nrate = 1000000000\n";
    std::fs::write(&rules, text).unwrap();
    let filter = Filter::on(host, &format!("--rules {}", rules.display()));
    // No period that a segment or a buffer could have: what is in another place is seen.
    let bytes: Vec<u8> = (0..BYTES).map(|n| u8::try_from(n * n / 7 % 251).unwrap()).collect();
    for address in ["10.0.0.2:8080", "[fd00::2]:8080"] {
        let listener = host.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        let connect = || TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(20));
        let mut client = hosts[0].enter(connect).unwrap().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        let mut sender = client.try_clone().unwrap();
        let (mut there, mut back) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sender.write_all(&bytes).unwrap();
                sender.shutdown(Shutdown::Write).unwrap();
            });
            server.read_to_end(&mut there).unwrap();
            scope.spawn(|| {
                server.write_all(&there).unwrap();
                server.shutdown(Shutdown::Write).unwrap();
            });
            client.read_to_end(&mut back).unwrap();
        });
        assert!(there == bytes && back == bytes, "{address}: {} and {} bytes", there.len(), back.len());
    }
    let told = filter.end();
    let summary = summary(&told);
    let count = |name: &str| summary[name].as_u64().unwrap();
    let [new4, new6, known4, known6, others] =
        ["new4", "new6", "known4", "known6", "others"].map(|name| seen(host, name));
    assert_eq!((new4, new6, others), (1, 1, 0), "{summary}");
    // A worker that has no CPU for half a second leaves all to the kernel.
    let hung = summary["port"]["counters"]["hung"].as_u64().unwrap();
    let (back, all) = (count("given_back_packets"), new4 + new6 + known4 + known6);
    assert!(all <= back + hung && all + hung >= back, "{all} of {back} were seen: {summary}");
    // Each has a megabyte in segments of an Ethernet's size.
    assert!(known4.min(known6) + hung > 700 && count("taken_packets") + hung > 1400, "{summary}");
    assert_eq!((count("lost_packets"), count("dropped_packets")), (0, 0), "{summary}");
}

/// How many packets have gone by the filter's TAP.
fn by_tap(bed: &Bed) -> u64 {
    let name = format!("bywash{}", bed.lab.pairs[0].far.index);
    let mut route = bed.lab.hosts[1].route();
    let tap = route.link(&name).unwrap().unwrap_or_else(|| panic!("no {name}"));
    route.counters(tap.index).unwrap().unwrap().rx_packets
}

#[test]
fn many_go_together_and_few_one_by_one_in_order() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let filter = Filter::start(&bed, "");
    let receive =
        Filter::tool(&bed.lab.hosts[1], "receive packet:left --ring 32768 --huge-pages off --memory 32M");
    // What it is behind with, and between that packets that come alone, and groups that it is done with soon.
    for words in
        ["--count 100k", "--rate 20k --count 10k", "--rate 64k --burst 64 --count 10k", "--count 100k"]
    {
        bed.flood(&format!("--src 10.0.0.1 --sport 10000-10999 --dport 7 --flows 1000 {words}"));
    }
    let by_tap = by_tap(&bed);
    let (_, received) = receive.end_anyhow();
    let told = filter.end();
    let (filtered, received) = (summary(&told), summary(&received));
    let count = |summary: &Value, name: &str| summary[name].as_u64().unwrap();
    let back = count(filtered, "given_back_packets");
    assert!(by_tap > 1000 && back > 10_000 + by_tap, "{by_tap} of {back} went by the TAP");
    // Where a worker hangs, see above.
    let hung = filtered["port"]["counters"]["hung"].as_u64().unwrap();
    let late = count(received, "reordered_packets");
    assert!(late == 0 || hung > 0, "{received}");
    assert_eq!(count(received, "duplicate_packets"), 0, "{received}");
    assert_eq!((count(filtered, "taken_packets"), count(filtered, "lost_packets")), (back, 0), "{filtered}");
}

#[test]
fn what_the_kernel_deals_out_by_rps_keeps_its_order_whichever_way_it_goes() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(2);
    let host = &bed.lab.hosts[1];
    // Each queue has another core, as with drivers that spread interrupts.
    let deal = "mount -t sysfs sysfs /sys && cd /sys/class/net/left/queues && echo 1 >rx-0/rps_cpus && echo 2 >rx-1/rps_cpus";
    let status = host.command("unshare").unwrap().args(["--mount", "sh", "-c", deal]).status().unwrap();
    assert!(status.success());
    let filter = Filter::start(&bed, "");
    let receive = Filter::tool(host, "receive packet:left --ring 32768 --huge-pages off --memory 32M");
    // What it is behind with, and what comes alone, in turn.
    let words = "--src 10.0.0.1 --sport 10000-10999 --dport 7 --flows 1000 --cores 0,1";
    for _ in 0..20 {
        for rate in ["--count 8k", "--rate 20k --count 1k"] {
            bed.flood(&format!("{words} {rate}"));
        }
    }
    let by_tap = by_tap(&bed);
    let (_, received) = receive.end_anyhow();
    let told = filter.end();
    let (filtered, received) = (summary(&told), summary(&received));
    let back = filtered["given_back_packets"].as_u64().unwrap();
    assert!(by_tap > 1000 && back > 10_000 + by_tap, "{by_tap} of {back} went by the TAP");
    let late = received["reordered_packets"].as_u64().unwrap();
    assert!(late == 0 || filtered["port"]["counters"]["hung"] != 0, "{received}");
}

#[test]
fn what_goes_together_has_the_bytes_that_it_came_with() {
    /// Datagrams in a row.
    const BURST: u32 = 1500;
    const BURSTS: u32 = 15;
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let pair = &bed.lab.pairs[0];
    for (host, interface) in bed.lab.hosts.iter().zip([&pair.near, &pair.far]) {
        host.route().set_mtu(interface.index, 9000).unwrap();
    }
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&bed.server, 64 << 20).unwrap();
    let filter = Filter::start(&bed, "");
    // Some are longer than what goes together, and some as long as it, with their headers of 42 bytes.
    let datagram = |number: u32| {
        let len = match number % 61 {
            0 => 4000,
            1..=3 => 2005 + number as usize % 3,
            _ => 4 + number as usize * 7 % 1400,
        };
        let mut bytes: Vec<u8> =
            (0..len).map(|n| u8::try_from((n + number as usize) % 251).unwrap()).collect();
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        bytes
    };
    let mut bytes = [0; 9000];
    let (mut arrived, mut late) = (0, 0);
    for burst in 0..BURSTS {
        let numbers = burst * BURST..(burst + 1) * BURST;
        let datagrams: Vec<Vec<u8>> = numbers.clone().map(datagram).collect();
        // It is behind with what comes while it stands still, which is not long enough to count as hung.
        filter.signal(Signal::STOP);
        for datagram in &datagrams {
            bed.client.send_to(datagram, SERVER).unwrap();
        }
        filter.signal(Signal::CONT);
        // What is missing found no room in front of the filter.
        let mut next = numbers.start;
        while next < numbers.end
            && let Ok(len) = bed.server.recv(&mut bytes)
        {
            let number = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            assert!(numbers.contains(&number), "{number} in {numbers:?}");
            late += u32::from(number < next);
            assert!(bytes[..len] == datagrams[(number - numbers.start) as usize], "{number} is another one");
            (next, arrived) = (next.max(number + 1), arrived + 1);
        }
    }
    let by_tap = by_tap(&bed);
    let told = filter.end();
    let back = summary(&told)["given_back_packets"].as_u64().unwrap();
    assert!(late == 0 || summary(&told)["port"]["counters"]["hung"] != 0, "{late} came late");
    assert!(arrived > u64::from(BURSTS * BURST) / 2, "{arrived} arrived of {back}");
    assert!(by_tap > arrived / 61 && back > 1000 + by_tap, "{by_tap} of {back} went by the TAP");
}
