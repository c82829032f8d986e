//! `--steer` on `xdp:` ports where the driver has no n-tuple rules: the port's own XDP program drops, passes and counts, before what
//! `--only` says, and leaves nothing behind.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Output;
use std::time::{Duration, Instant};

use bywash_lab::{Host, Snapshot};
use rustix::process::Signal;
use serde_json::Value;

use crate::bed::{BYWASH, Bed, Filter, arguments, summary, unchanged};

/// Packets to each port. The sender's kernel spreads them over both queues: all by one is a chance of 1 in 2^63.
const EACH: u16 = 64;

/// Sends packets of so many bytes to a port, each by a socket of its own.
fn send(from: &Host, to: &str, bytes: usize) {
    for _ in 0..EACH {
        let client = from.enter(|| UdpSocket::bind("10.0.0.1:0")).unwrap().unwrap();
        client.send_to(&vec![0; bytes], to).unwrap();
    }
}

/// How many come to a socket of the kernel's.
fn came(socket: &UdpSocket) -> u16 {
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut count = 0;
    loop {
        match socket.recv(&mut [0; 2000]) {
            Ok(_) => count += 1,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return count;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a summary's port tells of its rules: the rule, where it is, its packets.
fn counted<'a>(port: &'a Value) -> Vec<(&'a str, &'a str, u64)> {
    let rules = port["rules"].as_array().unwrap();
    let of = |rule: &'a Value| {
        let word = |name: &str| rule[name].as_str().unwrap();
        (word("rule"), word("place"), rule["packets"].as_u64().unwrap())
    };
    rules.iter().map(of).collect()
}

#[test]
fn packets_are_dropped_passed_counted_and_taken_in_the_order_of_the_rules() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    for extra in ["", "--xdp generic", "--zero-copy off --queues 2"] {
        let bed = Bed::new(2);
        let other = bed.lab.hosts[1].enter(|| UdpSocket::bind("10.0.0.2:9")).unwrap().unwrap();
        let rules = "--steer 'udp dst port 9 and len > 500 pass' --steer 'udp dst port 9 drop' --steer 'udp count' \
                     --steer 'udp dst port 7 pass'";
        let words = format!("receive xdp:left --only udp {rules} {extra} --huge-pages off --memory 32M");
        let running = Filter::tool(&bed.lab.hosts[1], &words);
        for (port, bytes) in [(9, 1000), (9, 10), (7, 10), (8, 10)] {
            send(&bed.lab.hosts[0], &format!("10.0.0.2:{port}"), bytes);
        }
        assert_eq!((came(&other), came(&bed.server)), (EACH, EACH), "{extra}");
        let output = running.end();
        let summary = summary(&output);
        let each = u64::from(EACH);
        assert_eq!(
            counted(&summary["port"]),
            [
                ("udp dst port 9 and len > 500 pass", "xdp", each),
                ("udp dst port 9 drop", "xdp", each),
                ("udp count", "xdp", 2 * each),
                ("udp dst port 7 pass", "xdp", each),
            ],
            "{extra}"
        );
        let taken = &summary["port"]["counters"]["taken"];
        assert_eq!((&summary["rx_packets"], taken), (&each.into(), &each.into()), "{extra}: {summary}");
    }
    unchanged(&before);
}

#[test]
fn a_file_of_rules_works_on_one_queue_with_what_the_port_takes_behind_it() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let rules = bed.rules(
            "[[rule]]\nname = \"bad\"\nto_ports = [9, \"20-29\"]\naction = \"drop\"\n\
             [[rule]]\nname = \"ours\"\nmatch = \"udp dst port 7\"\naction = \"pass\"\n\
             [[rule]]\nname = \"gone\"\naction = \"drop\"\nmatch = \"\"\ndry_run = true\n",
        );
        let words = format!(
            "receive xdp:left/1/rx --steer @{} --steer 'udp count' --huge-pages off --memory 32M",
            rules.display()
        );
        let running = Filter::tool(&bed.lab.hosts[1], &words);
        for port in [9, 7, 8] {
            send(&bed.lab.hosts[0], &format!("10.0.0.2:{port}"), 10);
        }
        assert_eq!(came(&bed.server), EACH);
        let output = running.end();
        let summary = summary(&output);
        let counted = counted(&summary["port"]);
        let names: Vec<(&str, &str)> = counted.iter().map(|(rule, place, _)| (*rule, *place)).collect();
        assert_eq!(names, ["bad", "ours", "gone", "udp count"].map(|name| (name, "xdp")));
        // A part came by the other queue, about which the port says nothing.
        for (_, _, packets) in &counted {
            assert!((1..u64::from(EACH)).contains(packets), "{counted:?}");
        }
        // Address resolution is spared, so it is nothing that was counted.
        assert_eq!(counted[2].2, counted[3].2, "{counted:?}");
        assert_eq!(summary["rx_packets"].as_u64(), Some(counted[3].2), "{summary}");
    }
    unchanged(&before);
}

#[test]
fn what_a_machine_lives_by_is_never_dropped() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(1);
        // The client is the way to everywhere.
        let everywhere = bywash_sys::route::Prefix { address: [0, 0, 0, 0].into(), length: 0 };
        let index = bed.lab.pairs[0].far.index;
        let gateway = bywash_sys::route::Gateway { index, address: Some([10, 0, 0, 1].into()) };
        bed.lab.hosts[1].add_route(everywhere, gateway).unwrap();
        let words = "receive xdp:left --only 'udp dst port 9' --steer drop --huge-pages off --memory 32M";
        let running = Filter::tool(&bed.lab.hosts[1], words);
        assert_eq!(bed.ask(20), 20);
        let output = running.end();
        let summary = summary(&output);
        assert!(summary["port"]["counters"]["never_take"].as_u64().unwrap() >= 20, "{summary}");
        assert_eq!(summary["rx_packets"], 0, "{summary}");
    }
    unchanged(&before);
}

#[test]
fn nothing_is_dropped_any_more_by_who_hangs_or_is_dead() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(1);
        let words = "receive xdp:left --only arp --steer 'udp dst port 7 drop' --huge-pages off --memory 32M";
        let running = Filter::tool(&bed.lab.hosts[1], words);
        assert_eq!(bed.ask(1), 0);
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(bed.ask(1), 0, "who sleeps because nothing comes is not hung");
        running.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(700));
        // The first packet after that may still find it alive.
        bed.ask(1);
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(bed.ask(20), 20, "it hangs");
        running.signal(Signal::CONT);
        let until = Instant::now() + Duration::from_secs(5);
        while bed.ask(1) == 1 {
            assert!(Instant::now() < until, "it drops again");
        }
        running.signal(Signal::KILL);
        let mut child = running.child;
        child.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while bed.ask(1) == 0 {
            assert!(Instant::now() < until, "it is dead");
        }
        assert_eq!(bed.ask(20), 20);
    }
    unchanged(&before);
}

fn tool(host: &Host, words: &str) -> Output {
    let all = format!("{words} --huge-pages off --memory 16M --duration 100ms");
    host.command(BYWASH).unwrap().args(arguments(&all)).output().unwrap()
}

#[test]
fn where_each_rule_is_is_said_at_the_start() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let words = "receive xdp:left --force --steer 'anyvlan and ip and udp dst port 9 drop' --steer 'arp count' --json";
    let output = tool(&bed.lab.hosts[1], words);
    let lines = String::from_utf8(output.stdout).unwrap();
    for says in [
        "xdp:left: 'anyvlan and ip and udp dst port 9 drop' is in XDP: 'udp4 dst-port 9': the driver of left has no n-tuple rules",
        "xdp:left: 'arp count' is in XDP",
    ] {
        let line = serde_json::json!({ "event": "steered", "message": says });
        let is_it = |line: &Value, told: &str| serde_json::from_str::<Value>(told).unwrap() == *line;
        assert!(lines.lines().any(|told| is_it(&line, told)), "{says}: {lines}");
    }
}

#[test]
fn what_no_program_does_is_refused_in_one_line_and_nothing_has_changed() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(2);
    let (host, before) = (&bed.lab.hosts[1], Snapshot::take());
    let file = |text: &str| {
        let path = bed.folder.path().join("steer.toml");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let limit = file("[[rule]]\nname = \"r\"\naction = \"limit\"\nrate = 5\nmatch = \"\"\n");
    for (words, says) in [
        ("--steer 'udp sample 10'", "--steer has no 'sample': `bywash filter xdp:IFACE --rules FILE` has it"),
        ("--steer 'udp limit 200'", "--steer has no 'limit': `bywash filter xdp:IFACE --rules FILE` has it"),
        ("--steer 'udp dst port 9'", "end it with drop, pass, count or queue N"),
        ("--steer 'udp dst port drop'", "port"),
        ("--steer 'udp drop' --steer 'udp drop'", "the name 'udp drop' is there twice"),
        (
            &*format!("--steer @{limit}"),
            "steer.toml:3:10: 'r' is no rule for --steer: --steer has no 'limit'",
        ),
        (
            "--steer 'anyvlan and ip and udp drop' --ntuple require",
            "the rule 'anyvlan and ip and udp drop' is not in the NIC: 'udp4': the driver of left has no n-tuple rules (--ntuple require)\n",
        ),
        (
            "--steer 'ip and udp queue 1' --ntuple off",
            "can't give its packets to queue 1: 'udp4': --ntuple off leaves the NIC as it is; an XDP program can't",
        ),
        (
            "--steer 'udp count' --steer 'ip and udp dst port 53 queue 1'",
            "the driver of left has no n-tuple rules; an XDP program can't: it reaches no queue but the one that a packet came by",
        ),
    ] {
        let output = tool(host, &format!("receive xdp:left --force {words}"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{words}: {said}");
        assert!(said.starts_with("bywash: ") && said.contains(says), "{words}: {said}");
        assert_eq!(before.difference(), Vec::<String>::new(), "{words}");
    }
    // In front of rules of a file there is no place for them, wherever these are decided.
    let rules = file("[[rule]]\nname = \"r\"\naction = \"drop\"\nmatch = \"udp\"\n");
    let output = tool(host, &format!("filter xdp:left --rules {rules} --steer 'udp pass'"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--steer is for ports without rules: write them into the rule file"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}
