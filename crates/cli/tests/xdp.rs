//! The packet tools on `xdp:` ports, over cables between hosts of the test's own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::{Host, Lab, PairOptions, Snapshot};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A tool on one of the hosts that has told that it began.
struct Tool {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Tool {
    fn start(host: &Host, words: &str) -> Self {
        let memory = "--huge-pages off --memory 32M --force --json";
        let mut child = host
            .command(env!("CARGO_BIN_EXE_bywash"))
            .unwrap()
            .args(words.split(' ').chain(memory.split(' ')))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.find(|line| line.as_ref().unwrap().contains(r#""event":"start""#));
        assert!(first.is_some(), "it did not start: {words}");
        Self { child, lines }
    }

    /// Its summary. Each has a `--duration`, so it ends.
    fn end(mut self) -> Value {
        let last = self.lines.by_ref().map(Result::unwrap).last().unwrap();
        self.child.wait().unwrap();
        serde_json::from_str(&last).unwrap()
    }

    fn stop(self) -> Value {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        self.end()
    }
}

#[test]
fn a_capture_whose_file_takes_nothing_has_closed_its_port_when_it_waits_for_that() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let before = lab.hosts[1].enter(Snapshot::take).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RWXU).unwrap();
    let pipe = File::options().read(true).write(true).open(&file).unwrap();
    let mut capture = Tool::start(&lab.hosts[1], &format!("capture xdp:left -w {}", file.display()));
    let words = "generate xdp:right --count 2000 --rate 20k --size 300 --duration 20s";
    Tool::start(&lab.hosts[0], words).end();
    kill_process(Pid::from_child(&capture.child), Signal::INT).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !lab.hosts[1].enter(|| before.difference().is_empty()).unwrap() {
        assert!(Instant::now() < until, "{:?}", lab.hosts[1].enter(|| before.difference()));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(capture.child.try_wait().unwrap().is_none(), "what was captured is not thrown away");
    drop(pipe);
    assert!(capture.end()["rx_packets"].as_u64().unwrap() > 1000);
}

#[test]
fn packets_are_forwarded_with_frames_at_either_distance() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for stride in ["2304", "4096"] {
        let lab = Lab::row(3, &PairOptions::default()).unwrap();
        let start = |host: usize, words: &str| {
            let words = format!("{words} --frame-stride {stride} --duration 20s");
            Tool::start(&lab.hosts[host], &words)
        };
        let receive = start(2, "receive xdp:left --count 5000");
        let forward = start(1, "forward xdp:left xdp:right --mac-swap");
        let generate = start(0, "generate xdp:right --count 5000 --rate 20k --size 300");
        assert_eq!(generate.end()["tx_packets"], 5000);
        let received = receive.end();
        assert_eq!(
            (&received["met"], &received["right_packets"]),
            (&true.into(), &5000.into()),
            "{received}"
        );
        let forwarded = forward.stop();
        assert_eq!(forwarded["directions"][0]["tx_packets"], 5000, "{forwarded}");
    }
}

#[test]
fn long_packets_are_generated_as_chains_and_judged_whole() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions { mtu: 9000, ..PairOptions::default() }).unwrap();
    for port in ["xdp:right --force", "packet:right"] {
        let receive = Tool::start(&lab.hosts[1], "receive xdp:left --count 1000 --duration 20s");
        let mut command = lab.hosts[0].command(env!("CARGO_BIN_EXE_bywash")).unwrap();
        // A pause's packets must find room in the receiver's rings, five frames each.
        let words = format!(
            "generate {port} --count 1000 --rate 2k --size 9000 --huge-pages off --memory 32M --json"
        );
        let output = command.args(words.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{port}: {output:?}");
        let received = receive.end();
        let right = (&received["met"], &received["right_packets"], &received["damaged_packets"]);
        assert_eq!(right, (&true.into(), &1000.into(), &0.into()), "{port}: {received}");
    }
}

#[test]
fn what_is_longer_than_an_interface_takes_is_refused_before_the_first_packet() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for mtu in [1500, 9000] {
        let lab = Lab::row(2, &PairOptions { mtu, ..PairOptions::default() }).unwrap();
        let generate = |what: &str, size: u32| {
            let words = format!("generate {what} --size {size} --force --huge-pages off --count 3 --quiet");
            let mut command = lab.hosts[0].command(env!("CARGO_BIN_EXE_bywash")).unwrap();
            let output = command.args(words.split(' ')).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        // With the Ethernet header and the FCS; a VLAN tag has room, of which only `packet:` makes sure that it is one.
        for (what, longer) in [
            ("xdp:right", 22),
            ("xdp:right --vlan 5", 22),
            ("packet:right", 18),
            ("packet:right --vlan 5", 22),
        ] {
            let most = mtu + longer;
            let (code, complaint) = generate(what, most);
            assert_eq!(code, Some(0), "{what}, {most} bytes: {complaint}");
            let (code, complaint) = generate(what, most + 1);
            assert_eq!(code, Some(2), "{what}, {most} bytes and one: {complaint}");
            let says = format!("at most {most} bytes with FCS, --size {} is more", most + 1);
            assert!(complaint.contains(&says), "{complaint}");
        }
    }
}

#[test]
fn frames_far_apart_do_not_do_with_long_packets() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions { mtu: 9000, ..PairOptions::default() }).unwrap();
    let mut command = lab.hosts[0].command(env!("CARGO_BIN_EXE_bywash")).unwrap();
    let words = "receive xdp:right --force --huge-pages off --memory 32M --frame-stride 4096";
    let output = command.args(words.split(' ')).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{complaint}");
    assert!(complaint.contains("mtu 2026") && complaint.contains("leave --frame-stride out"), "{complaint}");
}
