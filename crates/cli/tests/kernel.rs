//! The kernel as judge: it drops what has a wrong length or checksum, and counts what it takes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Output;
use std::time::{Duration, Instant};

use bywash_lab::{Host, HostOptions, Pair, PairOptions, lock};
use serde_json::Value;

/// Packets of each kind.
const PACKETS: u64 = 3000;

/// A counter of the kernel's, `Udp NoPorts` or `Icmp6InEchos`.
fn counter(host: &Host, name: &str) -> u64 {
    let read = |file: &str| {
        // Of the thread, which is the one that has entered.
        let path = format!("/proc/thread-self/net/{file}");
        host.enter(|| std::fs::read_to_string(&path)).unwrap().unwrap()
    };
    match name.split_once(' ') {
        Some((protocol, name)) => {
            let text = read("snmp");
            let mut lines = text.lines().filter(|line| line.starts_with(&format!("{protocol}:")));
            let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
            let at = names.split_whitespace().position(|other| other == name).unwrap();
            values.split_whitespace().nth(at).unwrap().parse().unwrap()
        }
        None => {
            let text = read("snmp6");
            let line = text.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        }
    }
}

fn generate(host: &Host, words: &[&str]) -> Output {
    let mut command = host.command(env!("CARGO_BIN_EXE_bywash")).unwrap();
    let count = PACKETS.to_string();
    command.args(["generate", "xdp:right", "--count", &count, "--rate", "20k", "--json"]);
    command.args(["--huge-pages", "off", "--memory", "16M"]).args(words).output().unwrap()
}

#[test]
fn the_kernel_takes_every_packet_of_every_kind() {
    let Some(_guard) = lock() else { return };
    let host = || Host::with(&HostOptions { ipv6: true, ..HostOptions::default() }).unwrap();
    let (near, far) = (host(), host());
    let mut options = PairOptions::default();
    options.addresses[1].push("fd00::2/64".parse().unwrap());
    let _pair = Pair::between(&near, &far, &options).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    // While the kernel asks whether somebody else has its address (the flag is 0x40), it takes nothing to it.
    let is_tentative = || {
        let text = far.enter(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6")).unwrap().unwrap();
        text.lines().any(|line| line.starts_with("fd00") && line.split_whitespace().nth(4) == Some("40"))
    };
    while is_tentative() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let v4 = ["--src", "10.0.0.3-10.0.0.250 random", "--dst", "10.0.0.2", "--ttl", "5-64"];
    let v6 = ["--src", "fd00::/64 random", "--dst", "fd00::2", "--field", "ipv6.flow=any random"];
    for (taken, wrong, more) in [
        ("Udp NoPorts", "Udp InCsumErrors", vec!["--sport", "any random", "--dport", "20000-60000 step 7"]),
        ("Udp NoPorts", "Udp InCsumErrors", vec!["--size", "64-1518 random", "--payload", "random:9"]),
        (
            "Udp NoPorts",
            "Udp InErrors",
            vec!["--size", "imix", "--field", "ipv4.id=0+", "--tos", "0-252 step 4"],
        ),
        (
            "Tcp InSegs",
            "Tcp InCsumErrors",
            vec!["--proto", "tcp", "--flags", "ack", "--field", "tcp.seq=any random"],
        ),
        (
            "Icmp InEchos",
            "Icmp InCsumErrors",
            vec!["--proto", "icmp", "--field", "icmp.seq=0+", "--size", "100,101"],
        ),
        ("Udp6NoPorts", "Udp6InCsumErrors", vec!["--sport", "1000+ step 3", "--size", "84-1518"]),
        (
            "Icmp6InEchos",
            "Icmp6InCsumErrors",
            vec!["--proto", "icmp", "--sport", "1-999", "--payload", "counting"],
        ),
    ] {
        let addresses = if taken.contains('6') { v6 } else { v4 };
        let before = (counter(&far, taken), counter(&far, wrong), counter(&far, "Ip InHdrErrors"));
        let output = generate(&near, &[&addresses[..], &more].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let summary: Value =
            serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_default();
        assert_eq!(summary["tx_packets"], PACKETS, "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
        let until = Instant::now() + Duration::from_secs(5);
        while counter(&far, taken) - before.0 < PACKETS && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let after = (counter(&far, taken), counter(&far, wrong), counter(&far, "Ip InHdrErrors"));
        assert_eq!((after.1, after.2), (before.1, before.2), "{more:?}: wrong ones");
        assert_eq!(after.0 - before.0, PACKETS, "{more:?}: {taken}");
    }
}

#[test]
fn what_keeps_packets_from_leaving_is_named() {
    let Some(_guard) = lock() else { return };
    let (near, far) = (Host::new().unwrap(), Host::new().unwrap());
    let _pair = Pair::between(&near, &far, &PairOptions::default()).unwrap();
    let mut command = far.command("ip").unwrap();
    if !command.args(["link", "set", "left", "down"]).status().is_ok_and(|status| status.success()) {
        bywash_lab::skip("there is no program ip");
        return;
    }
    let output = generate(&near, &["--duration", "2s"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("right has no carrier: "), "{told}");
}
