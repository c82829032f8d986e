//! The packet tools as they are run: what they print where, and how they end.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Ordinary pages, so that nothing is said about them.
const QUIET_MEMORY: [&str; 4] = ["--huge-pages", "off", "--memory", "16M"];

/// The user without rights.
const NOBODY: u32 = 65_534;

fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
    command.args(words.split_whitespace());
    // The kernel's sockets have their own.
    if !words.contains("--kernel") {
        command.args(QUIET_MEMORY);
    }
    command
}

fn run(words: &str) -> Output {
    command(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Its events, which must be JSON line by line.
fn events(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

/// Waits for the end, but not for ever.
fn end(child: &mut Child) -> i32 {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("it did not end");
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn forward_reports_each_direction_and_ends_with_its_time() {
    let output = run("forward null: null: --mac-swap --duration 1100ms --json");
    let events = events(&output);
    assert_eq!(names(&events), ["start", "interval", "summary"]);
    let summary = &events[2];
    assert_eq!((output.status.code(), &summary["met"]), (Some(0), &Value::Bool(true)));
    for direction in summary["directions"].as_array().unwrap() {
        let number = |name: &str| direction[name].as_u64().unwrap();
        assert!(number("tx_packets") > 100_000 && number("rate_pps") > 100_000);
        assert_eq!(number("rx_packets"), number("tx_packets"));
        assert_eq!(number("tx_bytes"), number("tx_packets") * 64);
        let queue = summary["queues"].as_array().unwrap().iter().find(|queue| queue["way"] == "rx");
        assert_eq!((&queue.unwrap()["queue"], &queue.unwrap()["port"]), (&0.into(), &"null:".into()));
    }
}

#[test]
fn generate_sends_what_was_asked_and_says_so_in_every_style() {
    let output = run("generate null: --count 2k --rate 100k --sources 100 --json");
    let events = events(&output);
    let summary = events.last().unwrap();
    assert_eq!(
        (output.status.code(), names(&events)[0], summary["event"].as_str()),
        (Some(0), "start", Some("summary"))
    );
    assert_eq!((&summary["tx_packets"], &summary["size_bytes"]), (&2000.into(), &64.into()));
    assert_eq!(summary["tx_bytes"], 2000 * 60);
    let human = run("generate null: --count 2000 --size 128");
    assert!(text(&human.stdout).starts_with("sent 2000 packets of 128 bytes (with FCS)"), "{human:?}");
    assert!(text(&human.stderr).contains("generating 128 bytes (with FCS) on null:"));
    let quiet = run("generate null: --count 2000 --quiet");
    assert_eq!((quiet.status.code(), quiet.stdout, quiet.stderr), (Some(0), vec![], vec![]));
}

#[test]
fn generate_makes_packets_of_all_kinds() {
    let template = tempfile::NamedTempFile::new().unwrap();
    let file = bywash_pcap::Format::Pcapng.file_header(&bywash_pcap::Interface::named("eth1"));
    let packet = [[0xff; 12].as_slice(), &[8, 6], &[1; 46]].concat();
    let head = bywash_pcap::Format::Pcapng.record_head(1, 60, 60);
    let tail = bywash_pcap::Format::Pcapng.record_tail(60);
    std::fs::write(template.path(), [&file, head.bytes(), &packet, tail.bytes()].concat()).unwrap();
    let template = template.path().display();
    for (words, bytes) in [
        ("--size imix".to_owned(), 12_000 / 12 * (7 * 60 + 4 * 590 + 1514)),
        ("--size 64,128".to_owned(), 12_000 * (60 + 124) / 2),
        ("--vlan 100 --vlan 1-4 --proto tcp --flags syn --payload none".to_owned(), 12_000 * 62),
        ("--mpls 16 --mpls 17-99 --src fd00::/64 --dst fd01::1".to_owned(), 12_000 * (14 + 8 + 40 + 8 + 18)),
        ("--proto icmp --sport 1-9 --field icmp.seq=0+ --ttl 1,2 --tos 0xb8".to_owned(), 12_000 * 60),
        ("--spread --dport 80,443 --payload random:7 --size 100".to_owned(), 12_000 * 96),
        ("--flows 1000 --dst any --seed 5 --burst 32 --burst-every 100us".to_owned(), 12_000 * 60),
        ("--ethertype 0x88b5 --line-rate 10G --rate 5%".to_owned(), 12_000 * 60),
        ("--proto 253 --payload counting".to_owned(), 12_000 * 60),
        (format!("--template {template}"), 12_000 * 60),
        (format!("--template {template}#1 --size 100 --dst-mac 02:00:00:00:00:01"), 12_000 * 96),
        ("--hex 02:00:00:00:00:01:02:00:00:00:00:02:08:06:00".to_owned(), 12_000 * 60),
    ] {
        let output = run(&format!("generate null: --count 12k --json {words}"));
        let events = events(&output);
        let summary = events.last().unwrap();
        assert_eq!(
            (&summary["tx_packets"], &summary["tx_bytes"]),
            (&12_000.into(), &bytes.into()),
            "{words}"
        );
        assert_eq!(summary["errors"], 0, "{words}");
        if words.contains("--line-rate") {
            assert_eq!(events[0]["line_rate_pps"], 14_880_952);
            assert!(summary["line_rate_percent"].as_f64().unwrap() > 0.0);
            assert!(summary["gap"]["p99_ns"].is_u64() && summary["late"]["p99_ns"].is_u64(), "{summary}");
        }
    }
}

#[test]
fn generate_says_why_nothing_leaves_while_it_waits() {
    // One end of a wire fills up, and nobody empties it.
    let output = run("generate loop:nobody --duration 3s --json");
    let events = events(&output);
    let warning = events.iter().find(|event| event["event"] == "warning").unwrap();
    assert!(warning["message"].as_str().unwrap().contains("nobody takes packets out"), "{warning}");
    assert_eq!(names(&events).iter().filter(|name| **name == "warning").count(), 1, "it is said once");
}

#[test]
fn two_processes_are_joined_by_a_link_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let link = format!("link:{}/wire.sock", directory.path().display());
    for first in ["generate", "receive"] {
        let start = |tool: &str| {
            // Who comes before anybody receives can't keep to a rate.
            let rate = if first == "receive" && tool == "generate" { "--rate 20k" } else { "" };
            let words = format!("{tool} {link} {rate} --count 20k --duration 20s --json");
            command(&words).stdout(Stdio::piped()).spawn().unwrap()
        };
        let second = if first == "generate" { "receive" } else { "generate" };
        let children = [first, second].map(|tool| {
            let child = start(tool);
            std::thread::sleep(Duration::from_millis(10));
            child
        });
        for (tool, child) in [first, second].iter().zip(children) {
            let output = child.wait_with_output().unwrap();
            let events = events(&output);
            let summary = events.last().unwrap();
            let name = if *tool == "generate" { "tx_packets" } else { "rx_packets" };
            assert_eq!(summary[name], 20_000, "{summary}");
            let all_came = output.status.code() == Some(0) && summary["lost_packets"] == 0;
            // Whether a rate is kept is this machine's affair.
            assert!(*tool == "generate" || all_came, "{summary}");
        }
    }
    let third = run(&format!("receive link:{}/nowhere/wire.sock", directory.path().display()));
    assert_eq!(third.status.code(), Some(2));
    assert!(text(&third.stderr).contains("there is no directory"), "{third:?}");
}

#[test]
fn an_aim_that_is_not_met_is_exit_code_1_and_its_reason() {
    let output = run("generate loop:nobody --count 5000 --duration 100ms --quiet");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "not met: 1024 of 5000 packets were sent\n");
    let output = run("receive loop:nobody --count 5 --duration 100ms --json");
    assert_eq!(
        (output.status.code(), text(&output.stderr).as_str()),
        (Some(1), "not met: 0 of 5 packets came\n")
    );
    let events = events(&output);
    assert_eq!(events.last().unwrap()["unmet"][0], "0 of 5 packets came");
}

#[test]
fn receive_counts_what_is_not_ours_as_foreign() {
    let output = run("receive null: --duration 200ms --json");
    let events = events(&output);
    let summary = events.last().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(summary["rx_packets"].as_u64().unwrap() > 10_000);
    assert_eq!(summary["foreign_packets"], summary["rx_packets"]);
    assert_eq!(summary["latency"], Value::Null);
}

#[test]
fn a_signal_ends_each_tool_with_its_summary() {
    for (words, stop) in [
        ("forward null: null: --json", Signal::INT),
        ("forward null: --json", Signal::TERM),
        ("generate null: --rate 1k --json", Signal::INT),
        ("receive loop:idle --json", Signal::HUP),
    ] {
        let mut child = command(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains(r#""event":"start""#));
        signal(&child, stop);
        let last = lines.last().unwrap().unwrap();
        assert!(last.starts_with(r#"{"event":"summary","#), "{last}");
        assert_eq!(
            end(&mut child),
            i32::from(words.starts_with("generate") && last.contains(r#""met":false"#))
        );
    }
}

#[test]
fn signals_close_together_are_one_and_a_later_one_ends_what_hangs() {
    // Its end waits for who reads what it has sent.
    let mut generate = command("generate pcap:- --json");
    let mut child = generate.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(told.next().unwrap().unwrap().contains(r#""event":"start""#));
    // A pipe holds 64 KiB: from then on it waits.
    let until = Instant::now() + Duration::from_secs(10);
    while rustix::io::ioctl_fionread(child.stdout.as_ref().unwrap()).unwrap() < 60_000 {
        assert!(Instant::now() < until, "it sends nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(&child, Signal::TERM);
    std::thread::sleep(Duration::from_millis(20));
    signal(&child, Signal::TERM);
    std::thread::sleep(Duration::from_millis(700));
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    signal(&child, Signal::TERM);
    assert_eq!(end(&mut child), 128 + 15);

    let mut child =
        command("forward null: null: --json").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains(r#""event":"start""#));
    signal(&child, Signal::TERM);
    signal(&child, Signal::INT);
    let last = lines.last().unwrap().unwrap();
    assert!(last.starts_with(r#"{"event":"summary","#), "{last}");
    assert_eq!(end(&mut child), 0);
}

#[test]
fn ctrl_c_ends_the_demo_of_an_ordinary_user_as_not_met() {
    // Where nobody may run it: a directory that we are built in may be closed to others.
    let directory = std::env::temp_dir().join(format!("bywash-demo-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    let binary = directory.join("bywash");
    std::fs::copy(env!("CARGO_BIN_EXE_bywash"), &binary).unwrap();
    let mut demo = Command::new(&binary);
    if bywash_lab::root().is_ok() {
        demo.uid(NOBODY).gid(NOBODY);
    }
    let mut child = demo
        .arg("demo")
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .inspect_err(|_| std::fs::remove_dir_all(&directory).unwrap())
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let told = lines.by_ref().map(Result::unwrap).find(|line| line.contains("over ports in memory"));
    std::thread::sleep(Duration::from_millis(500));
    let asked = Instant::now();
    signal(&child, Signal::INT);
    let code = end(&mut child);
    let took = asked.elapsed();
    std::fs::remove_dir_all(&directory).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(told.is_some(), "{rest:?}");
    assert_eq!(code, 1, "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_reader_that_goes_away_ends_the_tool() {
    let mut child =
        command("forward null: null: --json").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(end(&mut child), 0);
}

/// What a process has done since it began: hundredths of a second on a core, and how often one of its threads has gone to sleep.
fn work_and_naps(child: &Child) -> (u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // A thread may end meanwhile.
    let naps_of = |task: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).ok()?;
        let naps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        naps.trim().parse::<u64>().ok()
    };
    let naps = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().filter_map(naps_of).sum();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap(), naps)
}

/// How little that costs depends on the machine: what does not is that it sleeps, and how often it wakes.
#[test]
fn an_idle_tool_sleeps() {
    let mut child =
        command("receive loop:nobody --json").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let (before, start) = (work_and_naps(&child), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let (after, seconds) = (work_and_naps(&child), start.elapsed().as_secs_f64());
    signal(&child, Signal::INT);
    assert_eq!(end(&mut child), 0);
    // A tool that polls is on its core all the time; one that looks every millisecond naps a thousand times a second.
    let [busy, naps] = [(after.0, before.0), (after.1, before.1)]
        .map(|(after, before)| after.saturating_sub(before) as f64 / seconds);
    assert!(busy < 25.0 && naps < 100.0, "busy for {busy:.1} % of the time, {naps:.0} naps a second");
}

#[test]
fn wrong_input_is_one_line_and_exit_code_2() {
    for (words, says) in [
        ("forward null: null: null:", "null: has no partner"),
        ("forward loop:a loop:b loop:a loop:c", "loop:a is in two pairs"),
        ("forward null: null: --mac-swap --src-mac 2:0:0:0:0:1", "cannot be used with"),
        ("forward null: null: --src-mac 2:0:0", "'2:0:0' is no Ethernet address"),
        ("forward null: null: --batch 65", "65 is not in 1..=64"),
        ("forward null: null: --queues 0", "0 is not in 1..=65535"),
        ("forward null: null: --ring 100", "power of two"),
        ("forward null: null: --cores 9999", "this process may not use core 9999"),
        ("forward null: null: --frame-stride 2048", "invalid value '2048' for '--frame-stride <BYTES>'"),
        ("forward null: null: --only udp", "--only is for xdp: ports"),
        ("forward null: null: --force", "--force is for xdp: and pci: ports"),
        ("forward null: null: --busy-poll", "--busy-poll is for xdp: ports"),
        ("forward null: null: --zero-copy off", "--zero-copy is for xdp: ports"),
        ("forward null: null: --duration 5d", "'d' is no unit of time"),
        ("generate null: --duration 10000000000000000000", "longer than 1000000000 seconds"),
        ("forward null: eth1", "'eth1' is not a port"),
        ("forward null: null: --json --quiet", "cannot be used with"),
        ("generate null: --size 63", "64 or more"),
        ("generate null: --src-ip ::1 --size 100", "two versions of IP"),
        ("generate null: --rate 50%", "link of unknown speed"),
        ("generate null: --rate fast", "write 1.5M"),
        ("generate null: --rate 50% --line-rate fast", "write 10G"),
        ("generate null: --rate 11Gbps --line-rate 10G", "at most 14880952 packets/s"),
        ("generate null: --burst 5", "--burst-every or --rate"),
        ("generate null: --burst-every 1s", "required"),
        ("generate null: --burst 2000000 --rate 1k", "1 to 1000000"),
        ("generate null: --size 64:0", "is no size"),
        ("generate null: --size 65540", "at most 65539"),
        ("generate null: --size 64 --proto tcp", "need 76"),
        ("generate null: --field ip.scr=1", "there is no field 'ip.scr'"),
        ("generate null: --field vlan.id=1", "no such VLAN tag"),
        ("generate null: --vlan 4096", "4096 is not in 0-4095"),
        ("generate null: --ttl 256", "256 is not in 0-255"),
        ("generate null: --sport 0", "port 0"),
        ("generate null: --src 10.0.0.0/33", "no IPv4 address"),
        ("generate null: --dport http", "'http' is no number"),
        ("generate null: --flags syn", "no TCP header"),
        ("generate null: --flows 5 --sources 5", "cannot be used with"),
        ("generate null: --spread --src 10.0.0.1", "cannot be used with"),
        ("generate null: --payload maybe", "is no payload"),
        ("generate null: --proto sctp", "udp, tcp, icmp"),
        ("generate null: --ethertype 5", "0x0600"),
        ("generate null: --ethertype 0x+888", "0x0600"),
        ("generate null: --template /nowhere", "/nowhere: No such file"),
        ("generate null: --hex 123", "pairs of hex digits"),
        ("generate null: --hex 1234", "2 bytes"),
        ("generate null: --count 0", "at least"),
        ("generate null: --sources 70000", "1 to 65536"),
        ("generate null: null:", "unexpected argument"),
        ("generate null: --rate -5", "--rate -5: it can't be less than 0"),
        ("generate null: --rate -5kpps", "before 5kpps"),
        ("generate null: --rate=-5", "a rate can't be less than 0"),
        ("generate null: --rate 0", "ask for more than 0"),
        ("generate null: --rate 5 kpps", "a number and its unit are one word; write 5kpps"),
        ("generate --rate 5 kpps null:", "a number and its unit are one word; write 5kpps"),
        ("generate null: --rate 5kp", "'kp' is no unit of a rate"),
        ("generate null: --rate 99999999999Tpps", "'Tpps' is no unit of a rate"),
        ("generate null: --rate 99999999999Gpps", "between 0.001 and 10 G packets/s"),
        ("generate null: --count 99999999999999G", "more than can be counted"),
        ("generate null: --count -1", "--count -1: it can't be less than 0"),
        ("generate null: --count=-1", "it can't be less than 0"),
        ("generate null: --burst 0 --rate 1k", "at least"),
        ("generate null: --batch 0", "0 is not in 1..=64"),
        ("generate null: --duration -1s", "before 1s"),
        ("generate null: --duration 5 s", "write 5s"),
        ("generate null: --memory 99999999999G", "more than any machine has"),
        ("generate null: --size 0", "64 or more"),
        ("generate null: --payload template", "--template or --hex"),
        ("generate null: --hex 02000000000202000000000108004500 --vlan 5", "IPv4 header is not whole"),
        ("generate null: --hex 020000000002020000000001080601 --vlan 5", "the template has no such VLAN tag"),
        ("receive null: --count 0", "at least"),
        ("receive null: --count 5x", "'x' is no unit: write k, M or G"),
        ("receive null: --flows 0", "0 is not in 1..=1000"),
        ("receive null: --flows -1", "it can't be less than 0"),
        ("forward null: null: --batch -1", "it can't be less than 0"),
        ("forward null: null: --batch 0", "0 is not in 1..=64"),
        ("capture null: -w - -s -1", "-s -1: it can't be less than 0"),
        ("capture null: -w - -c 0", "at least"),
        ("capture null: -w f -C 0", "longer than nothing"),
        ("capture null: -w f -C 5X", "'X' is no unit of memory"),
        ("capture null: -w f -C 99999999999999999", "longer than any file"),
        ("capture null: -w f -C 5 -W 0", "0 is not in 1.."),
        ("capture null: -w f --snaplen 0", "'--snap'"),
        ("replay f null: --speed -1", "it can't be less than 0"),
        ("replay f null: --speed 0", "between 0.000001 and 1000000"),
        ("replay f null: --loops -1", "it can't be less than 0"),
        ("replay f null: --loops 1x", "'x' is no unit: write k, M or G"),
        ("replay f null: --rate 5 Mpps", "write 5Mpps"),
        ("tcp load redis 127.0.0.1:1 --kernel --set 513M", "redis takes values of up to 536870912 bytes"),
        (
            "tcp load memcached 127.0.0.1:1 --kernel --set 1025M",
            "more than 1073741824 bytes to keep in memory",
        ),
        (
            "tcp load redis 127.0.0.1:1 --kernel --set 1M --connections 64 --depth 17",
            "with 1088 requests under way",
        ),
        (
            "tcp load http 127.0.0.1:1 --kernel --connections 1000000 --depth 65536",
            "requests under way at once are more than 1073741824 bytes",
        ),
        (
            "tcp load memcached 127.0.0.1:1 --kernel --set 0 --connections 1000000 --depth 65536",
            "more than 1073741824 bytes to keep in memory",
        ),
        ("tcp load http 127.0.0.1:1 --kernel --rate 0", "must be 1 at least"),
        ("tcp connect http://127.0.0.1/ --kernel", "it is a URL"),
        ("tcp http --kernel --no-redirects", "'--no-redirects'"),
        ("tcp echo --batch 8 --kernel", "'--batch <PACKETS>'"),
        ("tcp load http 127.0.0.1:1 --kernel --memory 64M", "'--memory <SIZE>'"),
        ("tcp download 127.0.0.1:1 --kernel --queues 2", "'--queues <N>'"),
        ("tcp connect 127.0.0.1:1 --kernel --only tcp", "'--only <EXPRESSION>'"),
        ("tcp sink --kernel --ring 64", "'--ring <PACKETS>'"),
        ("tcp http --kernel --file /dev/zero", "it is no regular file"),
        ("serve --config /dev/zero", "it has more than 134217728 bytes"),
        ("serve --addr 10.0.0.2/24", "--addr is about a port, and there is none; name one (--port"),
        ("tcp http --kernel --file Cargo.toml --file src/../Cargo.toml", "another has the same name"),
        ("tcp http --kernel --file /nonexistent", "--file /nonexistent: No such file"),
        ("receive", "required arguments were not provided"),
        ("recieve null:", "'receive'"),
    ] {
        let output = run(words);
        let complaint = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{words}: {complaint}");
        assert!(complaint.contains(says), "{words}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{words}: {complaint}");
        assert!(complaint.starts_with("bywash: "), "{words}: {complaint}");
    }
}

#[test]
fn help_has_examples_and_exit_codes() {
    for tool in ["forward", "generate", "receive"] {
        let output = Command::new(env!("CARGO_BIN_EXE_bywash")).args([tool, "--help"]).output().unwrap();
        let help = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0));
        assert!(help.contains(&format!("bywash {tool} xdp:")) && help.contains("Exit codes: 0"), "{help}");
    }
}

/// What only the stack or a driver finds wrong in a file of an instance is told with line and column, too.
#[test]
fn a_mistake_in_an_instances_file_has_its_place_whoever_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.toml");
    let port = "[[port]]\nport = 'link:bw-p-mistake'\naddresses = ['10.0.0.2/24']\n";
    for (text, place, says) in [
        (
            "forward = true\n[[port]]\nport = 'null:'\naddresses = ['auto6']".into(),
            "4:14",
            "auto6 is for hosts",
        ),
        (format!("{port}[[route]]\nprefix = 'default'\nvia = '10.1.0.1'"), "6:7", "10.1.0.1 is on no link"),
        (
            format!("{port}[[port]]\nport = 'null:'\naddresses = ['10.0.0.2/24']"),
            "6:14",
            "an address of ours already",
        ),
        (
            format!("{port}[[port]]\nport = 'null:'\naddresses = ['127.0.0.5/8']"),
            "6:14",
            "is this host itself",
        ),
        (format!("{port}[[port]]\nport = 'xdp:bw-absent0'"), "5:8", "there is no interface 'bw-absent0'"),
    ] {
        std::fs::write(&path, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_bywash"))
            .args(["serve", "--huge-pages", "off", "--memory", "16M", "--duration", "1s", "--config"])
            .arg(&path)
            .env("XDG_RUNTIME_DIR", folder.path())
            .output()
            .unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        let begins = format!("bywash: {}:{place}: ", path.display());
        assert!(complaint.starts_with(&begins) && complaint.contains(says), "{complaint}");
        assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1));
    }
}

#[test]
fn a_tool_of_tcp_without_a_place_says_what_to_name() {
    for words in [&["tcp", "http"][..], &["tcp", "load", "http", "10.0.0.2:80"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_bywash")).args(words).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        let says = "bywash: name a port (--port), a file (--config), or --kernel\n";
        assert_eq!((output.status.code(), complaint.as_str()), (Some(2), says));
    }
    for (words, says) in [
        (&["tcp", "http", "--path", "x"][..], "(see `bywash tcp http --help`)"),
        (&["tcp"], "no command given; `bywash tcp --help` lists them"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_bywash")).args(words).output().unwrap();
        assert!(String::from_utf8(output.stderr).unwrap().contains(says));
    }
}
