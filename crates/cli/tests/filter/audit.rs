//! What the audit log says: who has begun what, which rules have expired, whom it blocks; and that it takes no more.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bed::{BYWASH, Bed, Filter, for_a_time, moment_in};

#[test]
fn the_audit_log_says_who_began_what_which_rules_have_expired_and_whom_it_blocks() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let past =
        "[[rule]]\nname = \"past\"\nto_ports = [6]\naction = \"drop\"\nexpires = 2020-01-01T00:00:00Z\n";
    let text = past.to_owned() + &for_a_time(3);
    let (audit, rules) = (bed.folder.path().join("audit.log"), bed.rules(&text));
    let filter = Filter::start(&bed, &format!("--rules {} --audit {}", rules.display(), audit.display()));
    let of = |what: &str| -> Vec<Value> {
        let log = std::fs::read_to_string(&audit).unwrap();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["event"] == what).collect()
    };
    let next = |what: &str| {
        let until = Instant::now() + Duration::from_secs(10);
        while of(what).is_empty() {
            assert!(Instant::now() < until, "no {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
        of(what).remove(0)
    };
    let start = next("start");
    assert_eq!(start["uid"], json!(rustix::process::getuid().as_raw()));
    assert_eq!((&start["file"], &start["rules"]), (&json!(rules.display().to_string()), &json!(2)));
    assert!(start.get("login_uid").is_some(), "{start}");
    bed.flood("--dport 8 --src 10.9.1.0/24 --rate 20k --count 8000");
    let sources = [next("block"), next("unblock")].map(|event| event["source"].clone());
    assert_eq!(sources, [json!("10.9.1.0/24"), json!("10.9.1.0/24")]);
    let expired = next("expired");
    assert_eq!((&expired["expired"], &expired["rules"]), (&json!(["a while"]), &json!(1)));
    filter.signal(Signal::HUP);
    let reload = next("reload");
    assert_eq!((&reload["rules"], &reload["by"]), (&json!(1), &json!("signal")), "two of three have expired");
    let pid = filter.child.id();
    filter.end();
    let log = std::fs::read_to_string(&audit).unwrap();
    for line in log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        assert_eq!((&line["port"], &line["pid"]), (&json!("xdp:left"), &json!(pid)), "{line}");
    }
}

#[test]
fn the_audit_log_says_who_is_unblocked_when_the_limit_changes_or_expires() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let limit = |rate: u32, more: &str| {
        format!(
            "[[rule]]\nname = \"rate\"\nto_ports = [8]\naction = \"limit\"\nrate = {rate}\nper = \"source/24\"\n\
             block_seconds = 600\n{more}"
        )
    };
    let (audit, rules) = (bed.folder.path().join("audit.log"), bed.rules(&limit(100, "")));
    let filter = Filter::start(&bed, &format!("--rules {} --audit {}", rules.display(), audit.display()));
    let until = |names: &[&str]| {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let log = std::fs::read_to_string(&audit).unwrap();
            let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let told: Vec<_> = events.map(|event| event["event"].as_str().unwrap().to_owned()).collect();
            if told == names {
                break;
            }
            assert!(Instant::now() < until, "{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    bed.flood("--dport 8 --src 10.9.1.0/24 --rate 20k --count 4000");
    until(&["start", "block"]);
    bed.rules(&limit(200, &format!("expires = {}", moment_in(5))));
    until(&["start", "block", "unblock", "reload"]);
    bed.flood("--dport 8 --src 10.9.1.0/24 --rate 20k --count 4000");
    until(&["start", "block", "unblock", "reload", "block", "unblock", "expired"]);
    filter.end();
}

#[test]
fn an_audit_log_that_can_not_be_written_is_told_of_at_once_and_once() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rules = bed.rules("[[rule]]\nname = \"some\"\nto_ports = [9]\naction = \"drop\"\n");
    let mut filter = Filter::start(&bed, &format!("--rules {} --audit /dev/full", rules.display()));
    let ends = |event: &Value| {
        event["event"] == "warning" && event["message"].as_str().unwrap().contains("audit log ends")
    };
    filter.wait_for("warning", ends);
    let told = filter.end();
    assert_eq!(told.iter().filter(|event| ends(event)).count(), 1, "{told:?}");
}

#[test]
fn an_audit_log_on_a_disk_that_was_full_has_whole_lines_alone() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rules = bed.rules("[[rule]]\nname = \"some\"\nto_ports = [9]\naction = \"drop\"\n");
    // A disk of two pages, gone with the last process that sees it: one is another file's, and in the other one there is no room for
    // a line.
    let small = bed.folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mut command = bed.lab.hosts[1].command("unshare").unwrap();
    let script = "mount -t tmpfs -o size=8k none \"$0\" && cd \"$0\" && head -c 4096 /dev/zero > other && \
                  printf '%-4059s{\"event\":\"earlier\"}\\n' '' > audit.log && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(&small).arg(BYWASH);
    let words =
        format!("filter xdp:left --rules {} --audit {}", rules.display(), small.join("audit.log").display());
    let mut filter = Filter::by(command, &format!("{words} --huge-pages off --memory 32M"));
    let ends = |event: &Value| {
        event["event"] == "warning" && event["message"].as_str().unwrap().contains("audit log ends")
    };
    filter.wait_for("warning", ends);
    let seen = format!("/proc/{}/root{}", filter.child.id(), small.display());
    std::fs::remove_file(format!("{seen}/other")).unwrap();
    filter.signal(Signal::HUP);
    let until = Instant::now() + Duration::from_secs(20);
    let log = loop {
        let log = std::fs::read_to_string(format!("{seen}/audit.log")).unwrap();
        if log.contains("reload") && log.ends_with('\n') {
            break log;
        }
        assert!(Instant::now() < until, "{log}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let events =
        log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
    let events: Vec<String> = events.map(|event| event["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(events, ["earlier", "reload"]);
    filter.end();
}

#[test]
fn an_audit_log_that_was_moved_away_goes_on_in_a_new_file_when_asked_and_loses_no_line() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rule = |port: u16| format!("[[rule]]\nname = \"some\"\nto_ports = [{port}]\naction = \"drop\"\n");
    let [audit, moved] = ["audit.log", "audit.log.1"].map(|name| bed.folder.path().join(name));
    let rules = bed.rules(&rule(9));
    let filter = Filter::start(&bed, &format!("--rules {} --audit {}", rules.display(), audit.display()));
    let events = |path: &std::path::Path| -> Vec<String> {
        let log = std::fs::read_to_string(path).unwrap_or_default();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.map(|event| event["event"].as_str().unwrap().to_owned()).collect()
    };
    let until = |path: &std::path::Path, names: &[&str]| {
        let until = Instant::now() + Duration::from_secs(20);
        while events(path) != names {
            assert!(Instant::now() < until, "{:?}, not {names:?}", events(path));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until(&audit, &["start"]);
    std::fs::rename(&audit, &moved).unwrap();
    bed.rules(&rule(10));
    until(&moved, &["start", "reload"]);
    filter.signal(Signal::HUP);
    until(&audit, &["reload"]);
    let files = std::fs::read_dir(format!("/proc/{}/fd", filter.child.id())).unwrap();
    let mut files = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    assert!(!files.any(|file| file == moved), "it is open for ever");
    filter.end();
    assert_eq!(
        (events(&moved), events(&audit)),
        (vec!["start".into(), "reload".into()], vec!["reload".into(), "stop".into()])
    );
}

#[test]
fn a_rule_that_has_expired_and_can_not_be_taken_out_is_told_of_and_goes_as_soon_as_it_can() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let host = &bed.lab.hosts[1];
    host.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let web = "[[rule]]\nname = \"web\"\nto_ports = [80]\naction = \"syncookie\"\n";
    let (audit, rules) = (bed.folder.path().join("audit.log"), bed.rules(&(for_a_time(8) + web)));
    let mut filter = Filter::start(&bed, &format!("--rules {} --audit {}", rules.display(), audit.display()));
    // No set of rules with cookies is taken from now on.
    host.sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
    let still = |event: &Value| {
        event["event"] == "warning" && event["message"].as_str().unwrap().contains("expired still holds")
    };
    filter.wait_for("warning", still);
    std::thread::sleep(Duration::from_millis(1500));
    host.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    let log = loop {
        let log = std::fs::read_to_string(&audit).unwrap();
        if log.contains("\"expired\":[\"a while\"]") {
            break log;
        }
        assert!(Instant::now() < until, "{log}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(log.matches("\"overdue\"").count(), 1, "{log}");
    filter.end();
}
