//! `bywash filter` over a cable between hosts of the test's own: a flood dies, and whoever is served stays served.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod audit;
mod bed;
mod blocked;
mod end;
mod established;
mod ingress;
mod more_queues;
mod moves;
mod neighbours;
mod one_queue;
mod page;
mod pinned;
#[path = "../pty/mod.rs"]
mod pty;
mod reloads;
mod samples;
mod samples_end;
mod senders;
mod steered;
mod syn_cookies;
mod totals;
mod trials;
mod under_flood;
mod watched;
mod way_back;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bywash_lab::{Host, Snapshot};
use bywash_pcap::Reader;
use rustix::process::Signal;
use serde_json::Value;

use bed::{
    BYWASH, Bed, Filter, SERVER, Untouched, arguments, for_a_time, is_all, of_rule, sent, summary, unchanged,
};

const RULES: &str = r#"
never_drop = ["10.0.0.99"]
[[rule]]
name = "flood"
match = "udp dst port 9"
action = "drop"
[[rule]]
name = "sources"
from = ["10.7.0.0/16", "10.8.0.0/24"]
action = "drop"
[[rule]]
name = "asked"
to_ports = [7]
action = "count"
"#;

#[test]
fn what_rules_drop_is_gone_and_counted_and_the_rest_arrives() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    for attach in ["auto", "xdp"] {
        let bed = Bed::new(1);
        let rules = bed.rules(RULES);
        let host = &bed.lab.hosts[1];
        let untouched = Untouched::now(host);
        let words = format!("--rules {} --attach {attach} --prometheus 10.0.0.2:9100", rules.display());
        let filter = Filter::start(&bed, &words);
        bed.flood("--dport 9 --src 10.1.0.0/24 --count 30000");
        bed.flood("--dport 7 --src '10.7.1.0/24' --count 20000");
        bed.flood("--dport 9 --src 10.0.0.99 --count 1000");
        assert_eq!(bed.ask(200), 200);
        let until = Instant::now() + Duration::from_secs(5);
        while scraped(host, "bywash_rule_packets_total{rule=\"flood\",") == 0 {
            assert!(Instant::now() < until, "Prometheus is told of no packet");
            std::thread::sleep(Duration::from_millis(100));
        }
        only_states_are_gauges(&exposition(host));
        let told = filter.end();
        let summary = summary(&told);
        is_all(of_rule(summary, "flood", "packets"), 30_000, summary);
        is_all(of_rule(summary, "sources", "dropped_packets"), 20_000, summary);
        is_all(of_rule(summary, "asked", "packets"), 200, summary);
        is_all(summary["dropped_packets"].as_u64().unwrap(), 50_000, summary);
        assert_eq!(summary["taken_packets"], 0, "nothing had to leave the kernel: {summary}");
        assert_eq!(bed.ask(10), 10, "without it");
        untouched.check();
    }
    unchanged(&before);
}

/// What its port counts only grows, but for what is so now.
fn only_states_are_gauges(exposition: &str) {
    let types = exposition.lines().filter_map(|line| line.strip_prefix("# TYPE bywash_port_"));
    let (gauges, counters): (Vec<&str>, Vec<&str>) = types.partition(|line| line.ends_with(" gauge"));
    let states = ["interface_gone", "way_back_gone", "program_gone", "steering_lost"];
    assert_eq!(gauges, states.map(|state| format!("{state} gauge")), "{exposition}");
    assert!(counters.contains(&"left_total counter"), "{exposition}");
    assert!(counters.iter().all(|line| line.ends_with("_total counter")), "{exposition}");
}

/// A figure of what the filter on a host tells Prometheus.
fn scraped(host: &Host, series: &str) -> u64 {
    let answer = exposition(host);
    let value = answer.lines().find_map(|line| Some(line.strip_prefix(series)?.rsplit_once(' ')?.1));
    value.unwrap_or_else(|| panic!("no {series}: {answer}")).parse().unwrap()
}

/// All that the filter on a host tells Prometheus.
fn exposition(host: &Host) -> String {
    let answer = host.enter(|| {
        let mut stream = TcpStream::connect("10.0.0.2:9100").unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    answer.unwrap()
}

#[test]
fn without_rules_everything_goes_through_user_space_and_back_in_order() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let untouched = Untouched::now(&bed.lab.hosts[1]);
        let filter = Filter::start(&bed, "");
        assert_eq!(bed.ask(2000), 2000);
        let told = filter.end();
        untouched.check();
        let summary = summary(&told);
        let count = |name: &str| summary[name].as_u64().unwrap();
        assert!(count("taken_packets") >= 2000, "{summary}");
        assert_eq!(count("taken_packets"), count("given_back_packets"), "{summary}");
        assert_eq!((count("dropped_packets"), count("lost_packets")), (0, 0), "{summary}");
    }
    unchanged(&before);
}

#[test]
fn a_limit_lets_the_rate_through_blocks_who_floods_and_keeps_samples() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let text = r#"
[[rule]]
name = "rate"
to_ports = [7, 8]
action = "limit"
rate = 1000
burst = 100
per = "source/24"
block_seconds = 30
sample = 10
"#;
    let rules = bed.rules(text);
    let [samples, audit] = ["samples.pcapng", "audit.log"].map(|name| bed.folder.path().join(name));
    let files = format!("--samples {} --audit {}", samples.display(), audit.display());
    let filter = Filter::start(&bed, &format!("--rules {} {files}", rules.display()));
    assert_eq!(bed.ask(50), 50);
    bed.flood("--dport 8 --src 10.9.1.0/24 --rate 5k --count 20000");
    // Another source is not held to account for that one.
    assert_eq!(bed.ask(50), 50);
    // Who is blocked stays so when rules are read anew.
    bed.rules(&format!("{text}[[rule]]\nname = \"more\"\nto_ports = [9]\naction = \"count\"\n"));
    filter.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(500));
    bed.flood("--dport 8 --src 10.9.1.0/24 --rate 50k --count 20000");
    let told = filter.end();
    let summary = summary(&told);
    let taken = summary["taken_packets"].as_u64().unwrap();
    is_all(of_rule(summary, "rate", "packets"), 40_100, summary);
    assert!(of_rule(summary, "rate", "dropped_packets") > 15_000, "{summary}");
    assert!(taken < 15_000, "the rest has died in XDP: {summary}");
    assert_eq!(summary["blocked_sources"], 1, "{summary}");
    let log = std::fs::read_to_string(audit).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    // It may have seen by itself that the file is another one, before it was told to read it.
    names.dedup();
    assert_eq!(names, ["start", "block", "reload", "stop"], "{events:?}");
    assert_eq!(events[1]["source"], "10.9.1.0/24");
    assert_eq!(count(&samples), summary["sampled_packets"].as_u64().unwrap());
    assert!(count(&samples) >= taken / 10 - 10, "{summary}");
}

#[test]
fn what_is_blocked_or_dropped_for_a_time_comes_in_again_after_that() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let audit = bed.folder.path().join("audit.log");
    let rules = bed.rules(&for_a_time(4));
    let filter = Filter::start(&bed, &format!("--rules {} --audit {}", rules.display(), audit.display()));
    let events = || {
        let log = std::fs::read_to_string(&audit).unwrap();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.map(|event| event["event"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let until = |what: &str, number: usize| {
        let until = Instant::now() + Duration::from_secs(10);
        while events().iter().filter(|event| *event == what).count() < number {
            assert!(Instant::now() < until, "{what}: {:?}", events());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    assert_eq!(bed.ask(1), 0, "the first rule drops it");
    for turn in 1..=2 {
        // It can be blocked again only when it comes to user space again.
        bed.flood("--dport 8 --src 10.9.1.0/24 --rate 20k --count 8000");
        until("block", turn);
        until("unblock", turn);
    }
    until("expired", 1);
    assert_eq!(bed.ask(10), 10, "the first rule is gone");
    let told = filter.end();
    let summary = summary(&told);
    assert_eq!((&summary["blocked_sources"], &summary["blocked_now"]), (&2.into(), &0.into()), "{summary}");
    assert!(of_rule(summary, "rate", "dropped_packets") > 2000, "{summary}");
}

fn count(file: &Path) -> u64 {
    let mut reader = Reader::new(std::fs::File::open(file).unwrap()).unwrap();
    let mut count = 0;
    while reader.next_record().unwrap().is_some() {
        count += 1;
    }
    count
}

/// A DNS query for a name.
fn query(name: &str) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

#[test]
fn what_user_space_finds_inside_packets_is_dropped_and_the_rest_comes_back() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let text = r#"
[[rule]]
name = "subdomains"
to_ports = [7]
names = ["*.flood.example"]
action = "drop"
[[rule]]
name = "payload"
to_ports = [7]
payload = [{ text = "attack", within = 20 }]
action = "drop"
[[rule]]
name = "after"
to_ports = [7]
action = "count"
"#;
    let filter = Filter::start(&bed, &format!("--rules {}", bed.rules(text).display()));
    let good = query("www.example.org");
    for number in 0..50 {
        let bad = query(&format!("x{number}.Flood.Example"));
        for message in [&bad[..], b"one more attack", &good] {
            bed.client.send_to(message, SERVER).unwrap();
        }
        let mut bytes = [0; 64];
        let len = bed.server.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..len], good, "{number}");
    }
    let told = filter.end();
    let summary = summary(&told);
    is_all(of_rule(summary, "subdomains", "dropped_packets"), 50, summary);
    is_all(of_rule(summary, "payload", "dropped_packets"), 50, summary);
    is_all(of_rule(summary, "after", "packets"), 50, summary);
}

#[test]
fn rules_change_under_a_flood_and_no_packet_is_judged_by_half_of_them() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    // In each of them the flood is dropped by one rule or by the other, and never by both or by none.
    let text = |turn: u32| {
        let (first, second) = if turn.is_multiple_of(2) { (9, 10) } else { (10, 9) };
        format!(
            "[[rule]]\nname = \"a\"\nto_ports = [{first}]\naction = \"drop\"\n\
             [[rule]]\nname = \"b\"\nmatch = \"udp dst port {second}\"\naction = \"drop\"\n# {}\n",
            "x".repeat(turn as usize % 97)
        )
    };
    let rules = bed.rules(&text(0));
    let filter = Filter::start(&bed, &format!("--rules {}", rules.display()));
    let sent = std::thread::scope(|scope| {
        let flood = scope.spawn(|| bed.flood("--dport 9,10 --src 10.1.0.0/24 --rate 100k --duration 6s"));
        let mut turn = 1;
        while !flood.is_finished() {
            bed.rules(&text(turn));
            filter.signal(Signal::HUP);
            turn += 1;
            assert_eq!(bed.ask(5), 5);
            std::thread::sleep(Duration::from_millis(20));
        }
        sent(flood.join().unwrap())
    });
    bed.rules("[[rule]]\nname = \"a\"\nto_ports = [9]\naction = \"dorp\"\n");
    std::thread::sleep(Duration::from_millis(1500));
    let told = filter.end();
    let summary = summary(&told);
    is_all(of_rule(summary, "a", "packets") + of_rule(summary, "b", "packets"), sent, summary);
    assert!(summary["reloads"].as_u64().unwrap() >= 40, "{summary}");
    assert_eq!(summary["refused_reloads"], 1, "{summary}");
    let warned = told.iter().filter(|event| event["event"] == "warning");
    let wrong = warned.filter(|event| event["message"].as_str().unwrap().contains("rules.toml:4:10: 'dorp'"));
    assert_eq!(wrong.count(), 1, "{told:?}");
    for name in ["a", "b"] {
        let of = |event: &&Value| event["event"] == "interval";
        let counts: Vec<u64> = told.iter().filter(of).map(|event| of_rule(event, name, "packets")).collect();
        assert!(counts.is_sorted() && counts.len() >= 4, "{name}: {counts:?}");
    }
}

#[test]
fn whatever_becomes_of_it_the_kernel_is_served() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    // A limit has a map of its own, and the way back has something to do; without it the program is at TCX.
    let limit =
        "[[rule]]\nname = \"some\"\nto_ports = [8]\naction = \"limit\"\nrate = 9\nblock_seconds = 9\n";
    for limit in [limit, ""] {
        let bed = Bed::new(1);
        let all = "[[rule]]\nname = \"all\"\nto_ports = [7]\naction = \"drop\"\n";
        let rules = bed.rules(&format!("{all}{limit}"));
        let untouched = Untouched::now(&bed.lab.hosts[1]);
        let filter = Filter::start(&bed, &format!("--rules {}", rules.display()));
        bed.client.send_to(b"gone", SERVER).unwrap();
        assert!(bed.server.recv(&mut [0; 4]).is_err(), "it is dropped");
        filter.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(700));
        // The first packet after that may still find it alive.
        bed.client.send_to(b"lost", SERVER).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        while bed.server.recv(&mut [0; 4]).is_ok() {}
        assert_eq!(bed.ask(20), 20, "it hangs");
        filter.signal(Signal::CONT);
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            bed.client.send_to(b"gone", SERVER).unwrap();
            if bed.server.recv(&mut [0; 4]).is_err() {
                break;
            }
            assert!(Instant::now() < until, "it drops again");
        }
        let (link, host) = (bed.lab.pairs[0].far.index, &bed.lab.hosts[1]);
        // The server loses its route to the client by this.
        bed.check_sources(false);
        host.route().set_up(link, false).unwrap();
        host.route().set_up(link, true).unwrap();
        host.wait_until_running("left").unwrap();
        filter.signal(Signal::KILL);
        let mut child = filter.child;
        child.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while bed.ask(1) == 0 {
            assert!(Instant::now() < until, "it is dead");
        }
        assert_eq!(bed.ask(20), 20);
        bed.check_sources(true);
        untouched.check();
    }
    unchanged(&before);
}

#[test]
fn wrong_rules_are_refused_by_line_and_column_and_nothing_is_changed() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(1);
        let refused = |words: &str| {
            let mut command = bed.lab.hosts[1].command(BYWASH).unwrap();
            let output = command.args(arguments(words)).output().unwrap();
            let text = String::from_utf8(output.stderr.clone()).unwrap();
            assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{output:?}");
            text
        };
        let rules = bed.rules("[[rule]]\nname = \"a\"\nmatch = \"udp prot 9\"\naction = \"drop\"\n");
        assert!(
            refused(&format!("filter xdp:left --rules {}", rules.display())).contains("rules.toml:3:14: ")
        );
        let rules = bed.rules("[[rule]]\nname = \"a\"\nfrom = [\"10.0.0.0/33\"]\naction = \"drop\"\n");
        assert!(
            refused(&format!("filter xdp:left --rules {}", rules.display())).contains("rules.toml:3:9: ")
        );
        assert!(refused("filter xdp:left --rules /absent.toml").contains("can't be read"));
        assert!(refused("filter packet:left").contains("filter needs an xdp: port"));
        assert!(refused("filter xdp:left --xdp generic").contains("rules need native XDP"));
    }
    unchanged(&before);
}

#[test]
fn a_trial_says_what_each_rule_would_have_done() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [capture, rules] = ["attack.pcapng", "rules.toml"].map(|name| folder.path().join(name));
    let here = Host::here().unwrap();
    let run = |words: &str| {
        let output = here.command(BYWASH).unwrap().args(arguments(words)).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        output.stdout
    };
    let made = "--sport 53 --dport 1-10 --src 10.7.0.1,10.8.1.1 --count 1000 --src-mac 02:00:00:00:00:01";
    run(&format!("generate pcap:{} {made} --huge-pages off", capture.display()));
    let dry = "[[rule]]\nname = \"dry\"\nmatch = \"udp\"\naction = \"drop\"\ndry_run = true\n";
    std::fs::write(&rules, format!("{dry}{RULES}").replace("never_drop = [\"10.0.0.99\"]\n", "")).unwrap();
    let words = format!("filter test --rules {} --pcap {}", rules.display(), capture.display());
    let told: Value = serde_json::from_slice(&run(&format!("{words} --json"))).unwrap();
    assert_eq!(told["packets"], 1000, "{told}");
    assert_eq!(of_rule(&told, "dry", "dropped_packets"), 1000, "{told}");
    let dropped = of_rule(&told, "flood", "packets") + of_rule(&told, "sources", "packets");
    assert_eq!(told["dropped_packets"], dropped, "{told}");
    assert!(dropped >= 500 && told["passed_packets"].as_u64().unwrap() == 1000 - dropped, "{told}");
    assert!(String::from_utf8(run(&words)).unwrap().contains("dry (drop): 1000 packets"));
}
