//! What is left behind is found; what dies leaves nothing behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers, too")]

use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::sys::bpf::{Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec};
use bywash_lab::{Host, Lab, Pair, PairOptions, Snapshot, lock};

/// Drops the guard while `left` is still there; what the guard says about it.
fn found<T>(leave: impl FnOnce() -> T) -> String {
    let mut left = None;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _guard = lock().unwrap();
        left = Some(leave());
    }))
    .unwrap_err();
    panic.downcast_ref::<String>().unwrap().clone()
}

/// A program that is killed when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Waits until a process runs `program` and shows its environment, by which it is known: while it becomes another program
/// it has none.
fn settle(process: u32, program: &str) {
    let read = |what: &str| std::fs::read(format!("/proc/{process}/{what}")).unwrap();
    let start = Instant::now();
    while read("comm") != format!("{program}\n").as_bytes() || read("environ").is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "it does not become {program}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_left_behind_is_found() {
    let Some(guard) = lock() else { return };
    drop(guard);
    let namespace = found(|| Host::new().unwrap());
    assert!(namespace.contains("new network namespace net:["), "{namespace}");

    let link = found(|| {
        let options = PairOptions { names: ["bwtest1".into(), "bwtest2".into()], ..PairOptions::default() };
        let here = Host::here().unwrap();
        Pair::between(&here, &here, &PairOptions { addresses: Default::default(), ..options }).unwrap()
    });
    assert!(link.contains("there is: interface") && link.contains("bwtest1, 02:00:00:00:00:01"), "{link}");

    // A daemon of its own session, as a server that was not told to stay in the foreground.
    let daemon = found(|| {
        let host = Host::new().unwrap();
        let mut setsid = host.command("setsid").unwrap();
        let daemon = Daemon(setsid.args(["--wait", "sleep", "60"]).spawn().unwrap());
        settle(daemon.0.id(), "sleep");
        daemon
    });
    assert!(daemon.contains("new network namespace net:["), "{daemon}");

    // r0 = XDP_PASS (2); exit
    let program = found(|| {
        let instructions = [0x0000_0002_0000_00b7, 0x95];
        Program::load(&ProgramSpec {
            name: "left_behind",
            kind: ProgramKind::XdpFrags,
            instructions: &instructions,
        })
        .unwrap()
    });
    assert!(program.contains("'left_behind'"), "{program}");

    let map = found(|| {
        let spec = MapSpec {
            kind: MapKind::Array,
            name: "bywash_left",
            key_size: 4,
            value_size: 4,
            entries: 1,
            mappable: false,
        };
        Map::create(&spec).unwrap()
    });
    assert!(map.contains("new BPF map") && map.contains("'bywash_left'"), "{map}");
    assert_eq!(lock().map(drop), Some(()), "nothing of it is left now");
}

#[test]
fn a_test_that_has_failed_is_not_told_twice() {
    let Some(guard) = lock() else { return };
    let mut left = None;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _guard = guard;
        left = Some(Host::new().unwrap());
        panic!("the first reason");
    }));
    assert!(left.is_some());
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"the first reason"));
}

const VICTIM: &str = "BYWASH_TEST_VICTIM";

/// Not a test of its own, but the process that the test below kills.
#[test]
fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let here = Host::here().unwrap();
    let options = PairOptions {
        names: ["bwtest3".into(), "far".into()],
        addresses: Default::default(),
        ..PairOptions::default()
    };
    let pair = Pair::between(&here, &lab.hosts[0], &options).unwrap();
    let mut child = lab.hosts[1].command("true").unwrap().spawn().unwrap();
    child.wait().unwrap();
    println!("{} is up", pair.near.name);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap(); // until it is killed
}

#[test]
fn a_killed_process_leaves_no_namespace_and_no_link() {
    let Some(_guard) = lock() else { return };
    let before = Snapshot::take();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["victim", "--exact", "--nocapture"])
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("bwtest3 is up")));
    assert!(Host::here().unwrap().link("bwtest3").is_ok());
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!(before.difference(), Vec::<String>::new());
}
