//! Rules are looked after: the kernel has all packets while nobody does, a new default gateway is spared like the old one, no change
//! of the rule file is missed, and without its interface a filter ends.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::{Host, Snapshot};
use bywash_sys::bpf::{Link, Program, link_ids};
use rustix::process::Signal;
use serde_json::Value;

use crate::bed::{BYWASH, Bed, Filter, SERVER, Untouched, arguments, fifo, summary, unchanged};

/// Asks until an answer comes, or none does.
fn until_answered(bed: &Bed, answered: bool, what: &str) {
    let until = Instant::now() + Duration::from_secs(10);
    while (bed.ask(1) == 1) != answered {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn while_the_audit_log_takes_nothing_the_kernel_is_served_and_then_rules_hold_again() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for attach in ["auto", "xdp"] {
        let bed = Bed::new(1);
        bed.server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let (audit, mut pipe) = fifo(&bed, "audit");
        let rule = "[[rule]]\nname = \"all\"\nto_ports = [7]\naction = \"drop\"\n";
        let rules = bed.rules(rule);
        let words = format!("--rules {} --audit {} --attach {attach}", rules.display(), audit.display());
        let mut filter = Filter::start(&bed, &words);
        until_answered(&bed, false, "it drops");
        fill(&mut pipe);
        bed.rules(&format!("{rule}# changed\n"));
        filter.signal(Signal::HUP);
        until_answered(&bed, true, "nobody would notice that the rule has expired");
        filter.wait_for("warning", hangs);
        assert!(bed.ask(50) > 40, "a late packet counts as lost");
        let mut bytes = [0; 4096];
        while pipe.read(&mut bytes).is_ok() {}
        until_answered(&bed, false, "it drops again");
        filter.end();
    }
}

#[test]
fn a_filter_that_was_stopped_and_goes_on_does_not_say_that_its_thread_hangs() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rules = bed.rules("[[rule]]\nname = \"all\"\nto_ports = [7]\naction = \"drop\"\n");
    let filter = Filter::start(&bed, &format!("--rules {}", rules.display()));
    for _ in 0..3 {
        filter.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(2200));
        filter.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(1300));
    }
    let told = filter.end();
    assert!(!told.iter().any(hangs), "{told:?}");
}

#[test]
fn an_audit_log_that_takes_nothing_does_not_keep_the_filter_from_its_end() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(1);
        let untouched = Untouched::now(&bed.lab.hosts[1]);
        let (audit, mut pipe) = fifo(&bed, "audit");
        let rule =
            "[[rule]]\nname = \"some\"\nto_ports = [8]\naction = \"limit\"\nrate = 9\nblock_seconds = 9\n";
        let rules = bed.rules(rule);
        let words = format!("--rules {} --audit {}", rules.display(), audit.display());
        let mut filter = Filter::start(&bed, &words);
        fill(&mut pipe);
        bed.rules(&format!("{rule}# changed\n"));
        filter.signal(Signal::HUP);
        filter.wait_for("warning", hangs);
        // Nobody reads what is in the pipe.
        let (code, told) = filter.end_anyhow();
        let left = |event: &Value| {
            event["event"] == "warning" && event["message"].as_str().unwrap().contains("'filter control'")
        };
        assert!(told.iter().any(left), "{told:?}");
        assert_eq!((code, &summary(&told)["reloads"]), (Some(0), &1.into()), "{told:?}");
        untouched.check();
        assert_eq!(bed.ask(10), 10, "the machine is as it was");
    }
    unchanged(&before);
}

/// Leaves a pipe no room.
fn fill(pipe: &mut File) {
    for size in [4096, 1] {
        while pipe.write(&vec![b'\n'; size]).is_ok() {}
    }
}

#[test]
fn a_rule_file_that_changes_while_it_is_read_is_read_again() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let list = bed.folder.path().join("list");
    assert!(Command::new("mkfifo").arg(&list).status().unwrap().success());
    let named = |name: &str, more: &str| {
        format!("[[rule]]\nname = \"{name}\"\nto_ports = [9]\n{more}action = \"drop\"\n")
    };
    let path = bed.rules(&named("before", "from_file = \"list\"\n"));
    // Whoever reads the list waits for this: by then the rule file was read.
    let change = |name: &str| {
        let mut pipe = OpenOptions::new().write(true).open(&list).unwrap();
        bed.rules(&named(name, ""));
        pipe.write_all(b"10.9.0.0/16\n").unwrap();
    };
    let mut filter = std::thread::scope(|scope| {
        scope.spawn(|| change("at the start"));
        Filter::start(&bed, &format!("--rules {}", path.display()))
    });
    let mut until = |name: &str| {
        let until = Instant::now() + Duration::from_secs(10);
        while filter.report()["rules"][0]["rule"] != name {
            assert!(Instant::now() < until, "{name}: {}", filter.report());
        }
    };
    until("at the start");
    bed.rules(&named("between", "from_file = \"list\"\n"));
    change("at a reload");
    until("at a reload");
    filter.end();
}

#[test]
fn a_list_that_a_refused_rule_file_names_is_watched_and_who_asks_is_told_again() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let list = bed.folder.path().join("list");
    std::fs::write(&list, "10.9.0.0/16\n10.8.0.0/33\n").unwrap();
    let rule = |name: &str, which: &str| format!("[[rule]]\nname = \"{name}\"\n{which}\naction = \"drop\"\n");
    let path = bed.rules(&rule("before", "to_ports = [9]"));
    let mut filter = Filter::start(&bed, &format!("--rules {}", path.display()));
    let is_refused = |event: &Value| {
        event["event"] == "warning" && event["message"].as_str().unwrap().contains("list:2:1: ")
    };
    bed.rules(&rule("after", "from_file = \"list\""));
    filter.wait_for("refusal", is_refused);
    filter.signal(Signal::HUP);
    filter.wait_for("answer to who asks", is_refused);
    std::fs::write(&list, "10.9.0.0/16\n10.8.0.0/16\n").unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while filter.report()["rules"][0]["rule"] != "after" {
        assert!(Instant::now() < until, "the list is right, and not read: {}", filter.report());
    }
    filter.end();
}

/// As by `: > rules.toml; sleep 1; cat good > rules.toml`.
#[test]
fn a_rule_file_that_is_emptied_before_it_is_written_drops_nothing_of_the_rules_between() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    bed.server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let rule = |name: &str| format!("[[rule]]\nname = \"{name}\"\nto_ports = [7]\naction = \"drop\"\n");
    let path = bed.rules(&rule("before"));
    let mut filter = Filter::start(&bed, &format!("--rules {}", path.display()));
    until_answered(&bed, false, "it drops");
    let is_told = |event: &Value| {
        event["event"] == "warning" && event["message"].as_str().unwrap().contains("rules.toml is empty")
    };
    File::create(&path).unwrap();
    filter.wait_for("warning", is_told);
    assert_eq!(bed.ask(5), 0, "the old rule holds");
    std::fs::write(&path, rule("after")).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while filter.report()["rules"][0]["rule"] != "after" {
        assert!(Instant::now() < until, "it is written: {}", filter.report());
    }
    File::create(&path).unwrap();
    filter.signal(Signal::HUP);
    until_answered(&bed, true, "who asks for it gets it");
    filter.end();
}

/// Starts a filter there, has something go, and sees that it says so and ends.
fn ends_when(attach: &str, goes: impl Fn(&Bed), why: &str) {
    let bed = Bed::new(1);
    let audit = bed.folder.path().join("audit.log");
    let rules = bed.rules(
        "[[rule]]\nname = \"answers\"\nestablished = true\naction = \"pass\"\n\
         [[rule]]\nname = \"some\"\nto_ports = [9]\naction = \"drop\"\n",
    );
    let words = format!("--rules {} --audit {} --attach {attach}", rules.display(), audit.display());
    let mut filter = Filter::start(&bed, &words);
    goes(&bed);
    filter.wait_for("summary", |event| event["event"] == "summary");
    let (code, told) = filter.ended();
    assert_eq!((code, &summary(&told)["unmet"]), (Some(1), &serde_json::json!([why])), "{told:?}");
    let log = std::fs::read_to_string(audit).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let names: Vec<_> = events.map(|event| event["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["start", "gone", "stop"], "{told:?}");
}

#[test]
fn a_filter_whose_interface_has_gone_says_so_and_ends() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let gone = "the interface of xdp:left is gone";
    let lost = "the way back into the interface of xdp:left is down or gone";
    for (attach, change, why) in [
        ("auto", "delete left", gone),
        ("xdp", "delete left", gone),
        ("auto", "set left netns NAMESPACE", gone),
        ("xdp", "set left netns NAMESPACE", gone),
        ("xdp", "set BACK down", lost),
        ("xdp", "delete BACK", lost),
    ] {
        let goes = |bed: &Bed| {
            let left = bed.lab.hosts[1].link("left").unwrap();
            let elsewhere = bed.lab.hosts[0].namespace().fd().as_raw_fd();
            let change = change.replace("BACK", &format!("bywash{}", left.index));
            let change = change.replace("NAMESPACE", &format!("/proc/{}/fd/{elsewhere}", std::process::id()));
            ip(&bed.lab.hosts[1], &format!("link {change}"));
        };
        ends_when(attach, goes, why);
    }
}

#[test]
fn a_filter_of_which_somebody_detaches_a_program_says_so_and_ends() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for (attach, name) in [
        ("auto", "bywash_rules"),
        ("auto", "bywash_flows"),
        ("xdp", "bywash_rules"),
        ("xdp", "bywash_flows"),
        ("xdp", "bywash_back"),
    ] {
        // As `bpftool link detach` does it.
        let goes = |_: &Bed| {
            let named = |link: &Link| Program::by_id(link.info().ok()?.program_id).ok()?.info().ok();
            let mut links = link_ids().unwrap().into_iter().filter_map(|id| Link::by_id(id).ok());
            let link = links.find(|link| named(link).is_some_and(|program| program.name == name));
            link.unwrap_or_else(|| panic!("no link of {name}")).detach().unwrap();
        };
        ends_when(attach, goes, "a program of xdp:left was detached by somebody else");
    }
}

/// Whether the event says that the thread hangs that looks after the rules.
fn hangs(event: &Value) -> bool {
    event["event"] == "warning" && event["message"].as_str().unwrap().contains("left to the kernel")
}

#[test]
fn all_who_are_logged_in_by_ssh_are_spared_and_others_are_not() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let rules = "[[rule]]\nname = \"all\"\nmatch = \"\"\naction = \"drop\"\n";
    for attach in ["auto", "xdp"] {
        let bed = Bed::new(1);
        let [client, server] = [&bed.lab.hosts[0], &bed.lab.hosts[1]];
        let listener = server.enter(|| TcpListener::bind("10.0.0.2:22")).unwrap().unwrap();
        let connect = || {
            let near = client.enter(|| TcpStream::connect("10.0.0.2:22")).unwrap().unwrap();
            let far = listener.accept().unwrap().0;
            far.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            (near, far)
        };
        let [mut one, mut other] = [connect(), connect()];
        // What sshd starts for a user who has logged in.
        let session = format!("10.0.0.1 {} 10.0.0.2 22", one.0.local_addr().unwrap().port());
        let mut shell = server.command("sh").unwrap();
        let mut shell = shell
            .args(["-c", "echo here; read end"])
            .env("SSH_CONNECTION", session)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let words = format!("--rules {} --attach {attach}", bed.rules(rules).display());
        let mut filter = Filter::start(&bed, &words);
        bed.client.send_to(b"gone", SERVER).unwrap();
        assert!(bed.server.recv(&mut [0; 4]).is_err(), "it drops");
        let arrives = |(near, far): &mut (TcpStream, TcpStream)| {
            near.write_all(b"x").unwrap();
            far.read_exact(&mut [0]).is_ok()
        };
        let until = Instant::now() + Duration::from_secs(60);
        while !arrives(&mut one) {
            assert!(Instant::now() < until, "who is logged in is lost: {}", filter.report());
        }
        assert!(!arrives(&mut other), "who is not, is dropped");
        drop(shell.stdin.take());
        shell.wait().unwrap();
        filter.end();
    }
}

#[test]
fn that_a_session_comes_inside_of_other_packets_is_told_at_the_start() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let server = &bed.lab.hosts[1];
    ip(server, "link add vx0 type vxlan id 7 remote 10.0.0.1 dstport 4789 dev left");
    ip(server, "address add 10.77.0.2/24 dev vx0");
    ip(server, "link set vx0 up");
    let rules = bed.rules("[[rule]]\nname = \"all\"\nmatch = \"\"\naction = \"drop\"\n");
    for attach in ["xdp", "tcx"] {
        let told = |session: &str| {
            let words = format!("filter xdp:left --rules {} --attach {attach}", rules.display());
            let words = format!("{words} --huge-pages off --memory 16M --duration 100ms --json");
            let mut command = server.command(BYWASH).unwrap();
            let output = command.args(arguments(&words)).env("SSH_CONNECTION", session).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let says = "the ssh session of 10.77.0.9 comes by vx0: what carries it is not protected where that comes in by left";
        let inside = told("10.77.0.9 50000 10.77.0.2 22");
        assert_eq!(inside.matches(says).count(), 1, "{inside}");
        assert!(!told("10.0.0.1 50000 10.0.0.2 22").contains("not protected"));
    }
}

#[test]
fn a_new_default_gateway_is_spared_soon() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for attach in ["auto", "xdp"] {
        let bed = Bed::new(1);
        bed.server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let [client, server] = [&bed.lab.hosts[0], &bed.lab.hosts[1]];
        ip(client, "address add 10.0.0.9/24 dev right");
        ip(server, "route replace default via 10.0.0.1");
        let other = client.enter(|| UdpSocket::bind("10.0.0.9:5000")).unwrap().unwrap();
        let audit = bed.folder.path().join("audit.log");
        let rules = bed.rules("[[rule]]\nname = \"all\"\nmatch = \"\"\naction = \"drop\"\n");
        let words = format!("--rules {} --audit {} --attach {attach}", rules.display(), audit.display());
        let filter = Filter::start(&bed, &words);
        // What came late before is not taken for it.
        let arrives = |socket: &UdpSocket| {
            socket.send_to(b"here", SERVER).unwrap();
            let from = socket.local_addr().unwrap();
            std::iter::from_fn(|| bed.server.recv_from(&mut [0; 4]).ok()).any(|(_, sender)| sender == from)
        };
        let until_arrives = |socket: &UdpSocket, what: &str| {
            let until = Instant::now() + Duration::from_secs(10);
            while !arrives(socket) {
                assert!(Instant::now() < until, "{what}");
            }
        };
        until_arrives(&bed.client, "the gateway is not spared");
        assert!(!arrives(&other), "another one is");
        ip(server, "route replace default via 10.0.0.9");
        until_arrives(&other, "the new gateway is not spared");
        assert!(!arrives(&bed.client), "the old one is a machine like others");
        filter.end();
        let log = std::fs::read_to_string(audit).unwrap();
        let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
        assert_eq!(names, ["start", "gateways", "stop"], "{events:?}");
        assert_eq!(events[1]["gateways"], serde_json::json!(["10.0.0.9"]));
    }
}

fn ip(host: &Host, words: &str) {
    let status = host.command("ip").unwrap().args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}
