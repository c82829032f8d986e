//! `bywash generate --inject`, over cables between hosts of the test's own: what arrives is what a port would have sent.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::{Host, Lab, PairOptions};
use bywash_pcap::Reader;
use bywash_sys::bpf::{Program, program_ids};
use bywash_sys::worker::allowed_cores;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The sender's address, which a file has not.
const SENDER: &str = "--src-mac 02:00:00:00:00:01";

fn run(host: &Host, words: &str) -> Output {
    host.command(env!("CARGO_BIN_EXE_bywash")).unwrap().args(arguments(words)).output().unwrap()
}

/// Words, of which those in quotation marks are one.
fn arguments(words: &str) -> Vec<String> {
    let parts = words.split('\'').enumerate();
    let of = |(n, part): (usize, &str)| match n % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
        _ => vec![part.to_owned()],
    };
    parts.flat_map(of).collect()
}

fn summary(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let last = text.lines().last().unwrap_or_else(|| panic!("{output:?}"));
    serde_json::from_str(last).unwrap()
}

fn complaint(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{output:?}");
    text
}

/// A tool at the far end that has told that it began.
struct Far {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Far {
    fn start(lab: &Lab, words: &str) -> Self {
        let mut command = lab.hosts[1].command(env!("CARGO_BIN_EXE_bywash")).unwrap();
        let memory = "--huge-pages off --memory 32M --force --json --duration 20s";
        command.args(arguments(words)).args(arguments(memory)).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(r#""event":"start""#)), "it did not start: {words}");
        Self { child, lines }
    }

    /// Its summary: it ends by itself.
    fn end(mut self) -> Value {
        let last = self.lines.by_ref().map(Result::unwrap).last().unwrap();
        self.child.wait().unwrap();
        serde_json::from_str(&last).unwrap()
    }
}

fn packets(file: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::new(std::fs::File::open(file).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        packets.push(record.bytes.to_vec());
    }
    packets
}

/// Kinds of packets, and of ways in which they vary.
const KINDS: &[&str] = &[
    "--payload counting",
    "--sources 300 --payload none",
    "--src '10.0.0.0/8 random' --dport 80,443,8080 --proto tcp --flags syn,ack --payload none",
    "--src '10.0.0.0-10.0.2.200 random seed 3' --sport '1024-65535 step 3 down' --payload zeros",
    "--size imix --src 10.0.0.0/24 --field 'ipv4.id=0+' --payload random:4",
    "--size '71-200 step 7' --src fd00::/32 --dst 'fd01::1,fd01::2 random' --payload text:HELLO",
    "--vlan 100 --vlan '1-4 every 3' --mpls '16-1000 random' --dst-mac 'any random' --payload none",
    "--proto icmp --sport 1-9 --field 'icmp.seq=5+ step 3 down' --ttl 1,2 --tos '0-255' --payload counting",
    "--flows 7 --src '10.0.0.0/8 random' --sport any --payload none",
    "--flows 4500 --src '10.0.0.0/8 random' --sport '1-9 every 2' --payload none",
    "--ethertype 0x88b5 --payload counting --field payload[3:2]=0-999 --field 'frame[30:4]=any random'",
    "--proto tcp --field 'tcp.seq=4294967000+ step 7' --field 'tcp.ack=any random' --size 64,1000 --payload random",
    "--src fd00::1 --dst fd00::2 --proto icmp --payload random:2 --field 'ip.dst=fd00::/48 random'",
    // Words that end behind the packet, one of them with another field's bits.
    "--ethertype 0x88b5 --payload zeros --field 'frame[55:4]=any random'",
    "--ethertype 0x88b5 --payload counting --size 65-70 --field 'frame[60:1]=0+'",
    "--payload zeros --size 65 --field 'frame[57:2]=any random' --field 'frame[59:2]=0+ step 3'",
    "--payload zeros --size 301 --field 'frame[293:2]=0+' --field 'frame[295:2]=any random'",
];

#[test]
fn what_arrives_is_what_a_port_would_have_sent() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (sent, came) = (folder.path().join("sent.pcap"), folder.path().join("came.pcap"));
    for kind in KINDS {
        let words = format!("{kind} {SENDER} --count 5000 --json");
        let plain = run(&lab.hosts[0], &format!("generate pcap:{} {words} --huge-pages off", sent.display()));
        assert_eq!(plain.status.code(), Some(0), "{kind}: {plain:?}");
        let far = Far::start(&lab, &format!("capture xdp:left -w {} -c 5000", came.display()));
        let injected = run(&lab.hosts[0], &format!("generate --inject right {words} --rate 20k"));
        assert_eq!(summary(&injected)["tx_packets"], 5000, "{kind}: {injected:?}");
        assert_eq!(summary(&injected)["tx_bytes"], summary(&plain)["tx_bytes"], "{kind}");
        far.end();
        let (sent, came) = (packets(&sent), packets(&came));
        assert_eq!(came.len(), 5000, "{kind}");
        let different = sent.iter().zip(&came).position(|(sent, came)| sent != came);
        if let Some(n) = different {
            panic!("{kind}: packet {n} is {:02x?}\ninstead of {:02x?}", came[n], sent[n]);
        }
    }
}

/// A run of the kernel's that is long enough gets the pages of its first packets back. Not all arrive then.
#[test]
fn nothing_is_left_in_a_page_of_the_packet_before() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (sent, came) = (folder.path().join("sent.pcap"), folder.path().join("came.pcap"));
    // Two fields that share a word far behind.
    let fields = "--size 256 --field 'frame[128:1]=0+' --field 'frame[129:2]=0+'";
    let words = format!("{fields} --payload counting {SENDER} --count 20k --json");
    run(&lab.hosts[0], &format!("generate pcap:{} {words} --huge-pages off", sent.display()));
    let far = Far::start(&lab, &format!("capture xdp:left -w {}", came.display()));
    let injected = run(&lab.hosts[0], &format!("generate --inject right {words}"));
    kill_process(Pid::from_child(&far.child), Signal::INT).unwrap();
    far.end();
    let (sent, came) = (packets(&sent), packets(&came));
    assert!(sent.len() == 20_000 && came.len() > 1000, "{} came of {injected:?}", came.len());
    let sent: HashSet<_> = sent.into_iter().collect();
    let wrong = came.iter().position(|packet| !sent.contains(packet));
    assert_eq!(wrong, None, "of {}", came.len());
}

#[test]
fn the_receiver_finds_probes_right_and_their_delays_small() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let cores = allowed_cores().iter().take(2).map(ToString::to_string).collect::<Vec<_>>().join(",");
    let workers = format!("--cores {cores} --sources 50");
    for words in ["", "--size imix --src '10.0.0.0/8 random'", &workers] {
        let far = Far::start(&lab, "receive xdp:left --count 5000");
        let injected =
            run(&lab.hosts[0], &format!("generate --inject right --count 5000 --rate 20k --json {words}"));
        let sent = summary(&injected);
        assert_eq!(sent["tx_packets"], 5000, "{sent}");
        // A busy machine may put it behind its schedule.
        let is_late = sent["missed_packets"] != 0;
        assert!(is_late || injected.status.code() == Some(0), "{sent}");
        let received = far.end();
        assert_eq!(
            (&received["met"], &received["right_packets"]),
            (&true.into(), &5000.into()),
            "{received}"
        );
        let latency = |which: &str| received["latency"][which].as_u64().unwrap();
        // Below nothing a clock would have been wrong. Above it is the machine that decides.
        assert!((1..1_000_000).contains(&latency("min_ns")), "{received}");
    }
}

#[test]
fn flat_out_every_packet_is_counted_at_the_other_end() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let far = Far::start(&lab, "receive xdp:left --drop");
    let before = lab.hosts[1].route().counters(lab.pairs[0].far.index).unwrap().unwrap();
    let injected = run(&lab.hosts[0], "generate --inject right --count 300k --sources 256 --json");
    let after = lab.hosts[1].route().counters(lab.pairs[0].far.index).unwrap().unwrap();
    let summary = summary(&injected);
    let number = |name: &str| summary[name].as_u64().unwrap();
    assert_eq!(number("tx_packets") + number("errors") + number("in_flight_packets"), 300_000, "{summary}");
    assert_eq!(number("tx_packets"), after.rx_packets - before.rx_packets, "{summary}");
    kill_process(Pid::from_child(&far.child), Signal::INT).unwrap();
    far.end();
}

#[test]
fn what_cannot_be_is_refused_in_a_line_with_its_cure() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let refused = |words: &str| complaint(&run(&lab.hosts[0], &format!("generate {words}")));
    for (words, says) in [
        ("--inject right", "`ethtool -K PEER gro on`"),
        ("--inject absent", "there is no interface 'absent'"),
        ("--inject lo", "no Ethernet interface"),
        ("--inject right null:", "cannot be used with"),
        ("--inject right --zero-copy off", "cannot be used with"),
        ("--count 1", "name a PORT, or --inject IFACE"),
        ("--inject right --size 20", "--size 20"),
    ] {
        let line = refused(words);
        assert!(line.contains(says), "{words}: {line}");
    }
    lab.hosts[1].ethtool().set_features("left", &["rx-gro"], true).unwrap();
    assert!(refused("--inject right --size 1600").contains("its MTU is 1500"));
    assert!(refused("--inject right --rate 50%").contains("--line-rate"));
    let sent = run(&lab.hosts[0], "generate --inject right --count 1000 --json");
    assert_eq!(summary(&sent)["tx_packets"], 1000, "GRO is enough: {sent:?}");
    lab.hosts[0].route().set_up(lab.pairs[0].near.index, false).unwrap();
    assert!(refused("--inject right").contains("`ip link set right up`"));
}

#[test]
fn what_a_page_does_not_hold_is_refused() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions { mtu: 9000, ..PairOptions::default() }).unwrap();
    lab.hosts[1].ethtool().set_features("left", &["rx-gro"], true).unwrap();
    let line = complaint(&run(&lab.hosts[0], "generate --inject right --size 9000"));
    assert!(line.contains("at most 2052 bytes with FCS are injected"), "{line}");
}

/// Programs of ours that are loaded.
fn loaded() -> usize {
    let names = program_ids().unwrap().into_iter().filter_map(|id| Program::by_id(id).ok()?.info().ok());
    names.filter(|info| info.name.starts_with("bywash_inject")).count()
}

#[test]
fn it_stops_at_once_and_leaves_nothing_even_when_killed() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    lab.hosts[1].ethtool().set_features("left", &["rx-gro"], true).unwrap();
    for signal in [Signal::INT, Signal::KILL] {
        let mut command = lab.hosts[0].command(env!("CARGO_BIN_EXE_bywash")).unwrap();
        let words = "generate --inject right --duration 20s --json";
        let mut child = command.args(arguments(words)).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("injected into the kernel"));
        assert_eq!(loaded(), 1);
        let before = Instant::now();
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
        // The kernel frees in the background.
        let until = Instant::now() + Duration::from_secs(10);
        while loaded() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(loaded(), 0, "{signal:?}");
    }
}
