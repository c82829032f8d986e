//! `bywash demo` as root, when what it builds is interfered with: exit code 1, the reason, and nothing left behind.
//!
//! Its hosts have no names, but root can enter them by its file descriptors, as an administrator could.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bywash_apps::generate::{self, Generate};
use bywash_apps::port::frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_apps::port::{Port, PortName, QueuePair, TxQueue};
use bywash_apps::sys::worker::Stop;
use bywash_apps::{App, WorkerOptions};
use bywash_drivers::OpenOptions;
use bywash_lab::sys::route::Route;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::setup::{PATIENCE, await_line, lines, wait};

/// A demo that has begun its first part; killed when dropped.
struct Demo {
    child: Child,
    /// Lines of its standard error.
    said: Receiver<String>,
}

impl Demo {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
        let mut child = command.arg("demo").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = lines(child.stderr.take().unwrap());
        let demo = Self { child, said };
        await_line(&demo.said, "generator -> receiver over AF_XDP").unwrap();
        demo
    }

    /// Runs `work` in the host with the interface `name` and no other cable.
    fn enter<T: Send>(&self, name: &str, work: impl Fn() -> T + Send + Sync) -> T {
        let enter = |file: File| {
            // A thread of its own stays where it moved to.
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let links = Route::open().unwrap().links().unwrap();
            let names: Vec<_> = links.iter().map(|link| link.name.as_str()).filter(|&n| n != "lo").collect();
            (names == [name]).then(&work)
        };
        for entry in std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap() {
            let path = entry.unwrap().path();
            let target = std::fs::read_link(&path).unwrap_or_default();
            if !target.to_string_lossy().starts_with("net:[") {
                continue;
            }
            let Ok(file) = File::open(&path) else { continue };
            if let Some(done) = std::thread::scope(|scope| scope.spawn(|| enter(file)).join().unwrap()) {
                return done;
            }
        }
        panic!("the demo has no host with {name} alone");
    }

    /// Takes the core of the second receiver, which is the first of a given rate, amid its packets for a while, as a
    /// real-time program would. (A link that goes away for a moment drops packets that the kernel counts nowhere.)
    fn starve_second_receiver(&self) {
        let mut route = self.enter("left", || Route::open().unwrap());
        let (mut programs, mut before, start) = (BTreeSet::new(), None, Instant::now());
        let mut receives = || {
            let link = route.link("left").unwrap()?;
            programs.extend(link.xdp.first());
            let packets = route.counters(link.index).unwrap()?.rx_packets;
            (programs.len() >= 2).then(|| packets > *before.get_or_insert(packets))
        };
        while receives() != Some(true) {
            assert!(start.elapsed() < PATIENCE, "no second receiver");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(300));
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let core = tasks.map(|task| task.unwrap().path()).find_map(|task| {
            let name = std::fs::read_to_string(task.join("comm")).ok()?;
            let status = std::fs::read_to_string(task.join("status"))
                .ok()
                .filter(|_| name.trim_end() == "receive 0")?;
            status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
                .map(|core| core.trim().to_owned())
        });
        let words = [
            "0.3",
            "chrt",
            "--fifo",
            "1",
            "taskset",
            "-c",
            &core.unwrap(),
            "sh",
            "-c",
            "while :; do :; done",
        ];
        let ended = Command::new("timeout").args(words).status().unwrap();
        assert_eq!(ended.code(), Some(124), "chrt or taskset refuses");
    }

    /// Does something again and again until the demo ends, which it must with code 1. What it said.
    fn while_it_runs(&mut self, mut interfere: impl FnMut()) -> String {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "it does not notice");
            interfere();
        }
        self.end()
    }

    fn end(&mut self) -> String {
        let code = wait(&mut self.child);
        let said: Vec<String> = self.said.iter().collect();
        assert_eq!(code, Some(1), "{said:?}");
        said.join("\n")
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // It has ended already, as a rule.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn arena() -> &'static Arena {
    Arena::new(vec![0; 2500 * FRAME_SIZE]).unwrap()
}

/// The bytes of packets that a generator makes, with successive numbers in one stream.
fn generated(count: u64) -> Vec<Vec<u8>> {
    let arena = arena();
    let open = || {
        let name = PortName::Loop { name: "generated".into() };
        bywash_drivers::open(&name, &OpenOptions::default(), arena).unwrap().port
    };
    let (near, mut far) = (open(), open());
    let workers = WorkerOptions { frames: Some(1100), ..WorkerOptions::default() };
    let options = generate::Options { count: Some(count), workers, ..generate::Options::default() };
    let mut generator = Generate::start(near, &options, arena, &Stop::new().unwrap()).unwrap();
    assert!(generator.wait(PATIENCE));
    generator.finish();
    let QueuePair { rx, tx } = far.queues().remove(0);
    let (mut rx, mut pool, mut batch) = (rx.unwrap(), arena.pool(100).unwrap(), Batch::new());
    let mut packets = Vec::new();
    while rx.rx(&mut pool, &mut batch) > 0 {
        packets.extend(batch.iter().map(|packet| packet.head().to_vec()));
        pool.give_batch(&mut batch);
    }
    rx.close(&mut pool);
    tx.unwrap().close(&mut pool);
    far.close().unwrap();
    assert_eq!(packets.len() as u64, count);
    packets
}

/// A way to send on the demo's own cable, beside its generator.
struct Intruder {
    port: Box<dyn Port>,
    tx: Box<dyn TxQueue>,
    pool: Pool,
}

impl Intruder {
    fn enter(demo: &Demo) -> Self {
        let (name, arena) = (PortName::Packet { interface: "right".into() }, arena());
        let options = OpenOptions { tx_only: true, ..OpenOptions::default() };
        let mut port = demo.enter("right", || bywash_drivers::open(&name, &options, arena).unwrap().port);
        let tx = port.queues().remove(0).tx.unwrap();
        Self { port, tx, pool: arena.pool(100).unwrap() }
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut batch = Batch::new();
        let mut packet = Packet::new(self.pool.take().unwrap());
        packet.extend_from_slice(bytes).unwrap();
        batch.push(packet);
        // What finds no room is not missed: more follow.
        self.tx.tx(&mut self.pool, &mut batch);
        self.tx.flush(&mut self.pool);
        self.pool.give_batch(&mut batch);
    }

    /// Lets go of the demo's host.
    fn leave(mut self) {
        self.tx.close(&mut self.pool);
        self.port.close().unwrap();
    }
}

#[test]
fn a_link_that_goes_away_for_moments_is_a_loss() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let mut demo = Demo::start();
    let mut route = demo.enter("left", || Route::open().unwrap());
    let mut programs = BTreeSet::new();
    let said = demo.while_it_runs(|| {
        std::thread::sleep(Duration::from_millis(1));
        // When the demo has ended it is gone.
        let Ok(Some(link)) = route.link("left") else { return };
        let Some(program) = link.xdp.first() else { return };
        // The second receiver is the first of a given rate. A receiver measures for a second at least: within that the
        // link goes away, and is up again when the next one opens it.
        if !programs.insert(program) || programs.len() < 2 {
            return;
        }
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(150));
            route.set_up(link.index, false).ok();
            std::thread::sleep(Duration::from_millis(10));
            route.set_up(link.index, true).ok();
        }
    });
    assert!(said.contains("bywash: generator -> receiver, at 85 % of its rate: "), "{said}");
    assert!(said.contains(" lost") || said.contains(" missing in the sequence"), "{said}");
}

#[test]
fn what_the_kernel_counted_as_dropped_is_tried_again() {
    let Some(_guard) = bywash_lab::lock() else { return };
    // Whether the kernel counts each packet that it drops is its own affair: mostly it does.
    let tried = (0..5).find_map(|_| {
        let mut demo = Demo::start();
        demo.starve_second_receiver();
        // Whether it then goes well is the machine's affair.
        let line = await_line(&demo.said, "measured again").ok()?;
        kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
        Some((line, demo.end()))
    });
    let (line, said) = tried.unwrap();
    assert!(line.contains("generator -> receiver, at 85 % of its rate: "), "{line}");
    assert!(said.contains("bywash: interrupted"), "{said}");
}

#[test]
fn a_gap_in_the_sequence_is_named() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let packets = generated(1000);
    let mut demo = Demo::start();
    let mut intruder = Intruder::enter(&demo);
    // Of a stream of its own every fifth packet comes, so that nothing of the demo's is lost.
    let mut numbers = (0..packets.len()).step_by(5).cycle();
    let said = demo.while_it_runs(|| {
        intruder.send(&packets[numbers.next().unwrap()]);
        std::thread::sleep(Duration::from_millis(20));
    });
    intruder.leave();
    assert!(said.contains("bywash: generator -> receiver, at 85 % of its rate: "), "{said}");
    assert!(said.contains(" packets missing in the sequence"), "{said}");
}

#[test]
fn a_wrong_payload_checksum_is_named_at_any_rate() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let mut packet = generated(1).remove(0);
    *packet.last_mut().unwrap() ^= 1;
    let mut demo = Demo::start();
    let mut intruder = Intruder::enter(&demo);
    let said = demo.while_it_runs(|| {
        intruder.send(&packet);
        std::thread::sleep(Duration::from_millis(5));
    });
    intruder.leave();
    assert!(said.contains("bywash: generator -> receiver, flat out: "), "{said}");
    assert!(said.contains(" packets arrived with a wrong payload checksum"), "{said}");
}

#[test]
fn ctrl_c_ends_it_and_removes_everything() {
    let Some(_guard) = bywash_lab::lock() else { return };
    // While it measures, and while its rate is given.
    for milliseconds in [300, 1800] {
        let mut demo = Demo::start();
        std::thread::sleep(Duration::from_millis(milliseconds));
        kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
        let said = demo.end();
        assert!(said.contains("bywash: interrupted"), "{said}");
    }
}
