//! `bywash filter xdp:IFACE/N --only ...` where the driver has no n-tuple rules: the XDP program does it, and says so.

use std::net::UdpSocket;
use std::process::Output;
use std::time::Duration;

use bywash_lab::{Host, Snapshot};
use serde_json::Value;

use crate::bed::{BYWASH, Bed, Filter, SERVER, arguments, summary, unchanged};

/// Flows that the sender's kernel spreads over both queues: all by one of them is a chance of 1 in 2^63.
const FLOWS: u16 = 64;

fn filter(host: &Host, words: &str) -> Output {
    let all = format!("filter {words} --huge-pages off --memory 16M --duration 100ms");
    host.command(BYWASH).unwrap().args(arguments(&all)).output().unwrap()
}

#[test]
fn a_queue_alone_gives_back_what_comes_to_it_and_says_what_does_not() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let told = filter(&bed.lab.hosts[1], "xdp:left/1/rx --only 'udp dst port 7' --json");
        let lines = String::from_utf8(told.stdout).unwrap();
        let steered: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).filter(is_steered).collect();
        let message = "xdp:left/1/rx: 'udp dst port 7' is in the XDP program alone: the driver of left has no n-tuple rules; \
                       packets that RSS gives to other queues than queue 1 stay with the kernel";
        assert_eq!(steered.len(), 1, "{lines}");
        assert_eq!(steered[0]["message"], message);
        let none = filter(&bed.lab.hosts[1], "xdp:left/1/rx --only 'udp dst port 7' --ntuple off --json");
        assert!(!String::from_utf8(none.stdout).unwrap().contains("steered"));

        let running = Filter::on_port(&bed.lab.hosts[1], "xdp:left/1/rx", "--only 'udp dst port 7'");
        let bind = || UdpSocket::bind("10.0.0.1:0").unwrap();
        let clients: Vec<UdpSocket> = (0..FLOWS).map(|_| bed.lab.hosts[0].enter(bind).unwrap()).collect();
        bed.server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        for client in &clients {
            client.send_to(b"one by one", SERVER).unwrap();
            bed.server.recv(&mut [0; 100]).unwrap();
        }
        let told = running.end();
        let summary = summary(&told);
        let count = |name: &str| summary[name].as_u64().unwrap();
        let taken = count("taken_packets");
        assert!(0 < taken && taken < u64::from(FLOWS), "a part comes by this queue: {summary}");
        assert_eq!(count("given_back_packets"), taken, "{summary}");
    }
    unchanged(&before);
}

fn is_steered(event: &Value) -> bool {
    event["event"] == "steered"
}

const NO_STEER: &str = "--steer is for ports without rules: write them into the rule file";

#[test]
fn what_a_queue_alone_cannot_be_is_one_line_and_nothing_has_changed() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(2);
    let (host, before) = (&bed.lab.hosts[1], Snapshot::take());
    let features = || host.ethtool().features("left").unwrap();
    let features_before = features();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, "[[rule]]\nname = \"r\"\nfrom = [\"192.0.2.0/24\"]\naction = \"drop\"").unwrap();
    let in_nic = format!("xdp:left --rules-in-nic require --rules {}", rules.display());
    let ruled = |attach: &str| {
        format!("xdp:left --attach {attach} --rules {} --steer 'ip and tcp drop'", rules.display())
    };
    for (words, says) in [
        ("xdp:left/2/rx --only udp", "left has no queue 2: its queues are 0 to 1"),
        (
            "xdp:left/1/rx --only udp --ntuple require",
            "'udp' is not in the NIC: the driver of left has no n-tuple rules",
        ),
        (
            "xdp:left/1/rx --only arp --ntuple require",
            "'arp' is not in the NIC: n-tuple rules say protocols, addresses",
        ),
        (
            "xdp:left --only udp --ntuple require",
            "--ntuple require is for --steer, or for --only and one of several queues",
        ),
        (
            &*in_nic,
            "the rule 'r' is not in the NIC: 'ip4 src-ip 192.0.2.0/24': the driver of left has no n-tuple",
        ),
        (
            "xdp:left/1/rx --ntuple require",
            "--ntuple require is for --steer, or for --only and one of several queues",
        ),
        ("xdp:left --attach xdp --steer 'ip and tcp queue 1'", NO_STEER),
        (&*ruled("auto"), NO_STEER),
        (&*ruled("tcx"), NO_STEER),
    ] {
        let output = filter(host, words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{words}: {said}");
        assert!(said.starts_with("bywash: ") && said.contains(says), "{words}: {said}");
        assert_eq!((before.difference(), features()), (Vec::new(), features_before.clone()), "{words}");
    }
}

#[test]
fn what_must_go_to_a_queue_is_refused_with_its_place_where_no_nic_can_do_that() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(2);
    let before = Snapshot::take();
    let rules = bed.rules(
        "[[rule]]\nname = \"dns\"\nmatch = \"ip and udp dst port 53\"\naction = \"queue\"\nqueue = 1\n",
    );
    for (attach, says) in [
        (
            "auto",
            "can't give its packets to queue 1: 'udp4 dst-port 53': the driver of left has no n-tuple rules",
        ),
        ("tcx", "gives its packets to a queue of the NIC's, and a program at TCX decides alone"),
    ] {
        let words = format!("xdp:left --rules {} --attach {attach}", rules.display());
        let output = filter(&bed.lab.hosts[1], &words);
        let said = String::from_utf8(output.stderr).unwrap();
        let place = format!("{}:4:10: the rule 'dns' {says}", rules.display());
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{words}: {said}");
        assert!(said.contains(&place), "{words}: {said}");
        assert_eq!(before.difference(), Vec::<String>::new(), "{words}");
    }
}

#[test]
fn what_steer_asks_of_a_driver_that_cannot_is_refused() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(2);
    let (host, before) = (&bed.lab.hosts[1], Snapshot::take());
    for (rule, says) in [
        (
            "ip and udp dst port 53 queue 1",
            "can't give its packets to queue 1: 'udp4 dst-port 53': the driver of left has no n-tuple rules; an XDP \
             program can't: it reaches no queue but the one that a packet came by (--steer)",
        ),
        ("udp dst port 53 queue 1", "write: ip and udp dst port 53"),
    ] {
        let mut command = host.command(BYWASH).unwrap();
        command.args(arguments(
            "receive xdp:left --force --huge-pages off --memory 16M --duration 100ms --steer",
        ));
        let output = command.arg(rule).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{rule}: {said}");
        assert!(said.contains(says), "{rule}: {said}");
        assert_eq!(before.difference(), Vec::<String>::new(), "{rule}");
    }
}
