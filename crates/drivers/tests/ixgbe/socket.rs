//! `vfio-user:`: the same driver on a NIC in another process, and what a broken one there can do to us.

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use bywash_drivers::port::frame::{Arena, Batch, Pool};
use bywash_drivers::port::{PortName, QueuePair, RxQueue, TxQueue, read_steer};
use bywash_drivers::{OpenOptions, open};
use bywash_hw::ixgbe::regs::RSSRK;
use bywash_models::cable::Impairment;
use bywash_models::ixgbe::Board;
use bywash_models::server::Server;
use bywash_models::world::Shared;
use bywash_sys::interface::HEADERS;
use bywash_sys::worker::{HEARTBEAT_NS, Idle, Placement, Stop, Task, Turn, Worker};

use crate::bed::{PATIENCE, bytes, frame, memory, no_violations, packet, world};

fn name(path: &Path) -> PortName {
    format!("vfio-user:{}", path.display()).parse().unwrap()
}

/// Serves the NICs of a world, each to one client, until those have gone.
pub(crate) fn serve(world: &Shared, paths: &[&Path], mapped: bool) {
    let stop = Arc::new(AtomicBool::new(false));
    let time = (world.clone(), stop.clone());
    thread::spawn(move || time.0.run(&time.1));
    let left = Arc::new(());
    for (index, path) in paths.iter().enumerate() {
        let offer = if mapped { Server::mapped } else { Server::new };
        let mut server = offer(path, world, index).unwrap();
        let (stop, left) = (stop.clone(), left.clone());
        thread::spawn(move || {
            server.serve().ok();
            stop.store(Arc::strong_count(&left) <= 2, Relaxed);
        });
    }
}

#[test]
fn two_nics_in_another_process_carry_packets() {
    for mapped in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("a.sock"), folder.path().join("b.sock")];
        let world = world(2);
        serve(&world, &[&paths[0], &paths[1]], mapped);
        let (arena, mut pool) = memory(8192);
        // With one queue nothing is dropped: the two NICs' registers are written by two ways, and one may be slower.
        let options = OpenOptions { queues: Some(1), ring: Some(256), ..OpenOptions::default() };
        let mut ports = paths.each_ref().map(|path| open(&name(path), &options, arena).unwrap());
        assert_eq!(ports[0].warnings.is_empty(), mapped, "{:?}", ports[0].warnings);
        assert_eq!(ports[1].port.mac(), Some([2, 0, 0, 0, 0, 2]));
        let [near, far] = ports.each_mut().map(|opened| opened.port.queues());
        let (near, far) = (halves(near), halves(far));
        carry(near, far, arena, &mut pool);
        for opened in ports {
            opened.port.close().unwrap();
        }
        no_violations(&world, 2);
    }
}

#[test]
fn an_mtu_bounds_packets_both_ways() {
    // Of virtual functions, whose physical one must be told of it, as well.
    for device in [Board::default().device, 0x10ed] {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("a.sock"), folder.path().join("b.sock")];
        let boards = [1, 2].map(|last| Board { device, mac: [2, 0, 0, 0, 0, last] });
        let world = Shared::new(&boards, Impairment::default());
        serve(&world, &[&paths[0], &paths[1]], false);
        let (arena, mut pool) = memory(4096);
        let options = OpenOptions { queues: Some(1), ring: Some(64), ..OpenOptions::default() };
        let mut ports = [(&paths[0], 9000), (&paths[1], 1500)].map(|(path, mtu)| {
            let name = format!("vfio-user:{}/mtu={mtu}", path.display()).parse().unwrap();
            open(&name, &options, arena).unwrap().port
        });
        // What the stack makes an MTU of.
        let mtus = ports.each_ref().map(|port| port.capabilities().max_len - HEADERS as usize);
        assert_eq!(mtus, [9000, 1500]);
        let [near, far] = ports.each_mut().map(|port| halves(port.queues()).remove(0));
        let [(mut near_rx, mut near_tx), (mut far_rx, mut far_tx)] = [near, far];
        let (mut batch, mut received) = (Batch::new(), Batch::new());
        near_rx.rx(&mut pool, &mut received);
        far_rx.rx(&mut pool, &mut received);
        // The third comes from the wire and is too long for the receiver.
        let to = |last, length| {
            let mut bytes = frame(last, length);
            bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, last]);
            bytes
        };
        for length in [1514, 60, 4000, 61] {
            batch.push(packet(&to(2, length), 1000, &mut pool));
        }
        near_tx.tx(&mut pool, &mut batch);
        near_tx.flush(&mut pool);
        let deadline = Instant::now() + PATIENCE;
        while received.len() < 3 && Instant::now() < deadline {
            far_rx.rx(&mut pool, &mut received);
        }
        let lengths: Vec<_> = received.iter().map(|packet| packet.len()).collect();
        assert_eq!((lengths, near_tx.counters().errors), (vec![1514, 60, 61], 0));
        // This one is too long for the sender.
        batch.push(packet(&to(1, 4000), 1000, &mut pool));
        far_tx.tx(&mut pool, &mut batch);
        assert_eq!((far_tx.counters().errors, far_tx.in_flight()), (1, 0));
        pool.give_batch(&mut received);
        for (rx, tx) in [(near_rx, near_tx), (far_rx, far_tx)] {
            tx.close(&mut pool);
            rx.close(&mut pool);
        }
        ports.into_iter().for_each(|port| port.close().unwrap());
        no_violations(&world, 2);
    }
}

#[test]
fn rules_are_steered_when_a_port_is_opened_or_it_is_not_opened() {
    let devices = [Board::default().device, 0x10ed];
    let boards = devices.map(|device| Board { device, ..Board::default() });
    let (arena, _) = memory(1024);
    let attempt = |behind: &str, rules: &[&str], index: usize| {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("a.sock"), folder.path().join("b.sock")];
        let world = Shared::new(&boards, Impairment::default());
        serve(&world, &[&paths[0], &paths[1]], false);
        let steer = rules.iter().map(|rule| read_steer(rule).unwrap()).collect();
        let options = OpenOptions { queues: Some(2), ring: Some(64), steer, ..OpenOptions::default() };
        let name: PortName = format!("vfio-user:{}{behind}", paths[index].display()).parse().unwrap();
        let result = open(&name, &options, arena);
        let told = result.map(|opened| {
            opened.port.close().unwrap();
            opened.steered
        });
        no_violations(&world, 2);
        told.map_err(|error| error.reason)
    };
    let rules = [
        "ip and udp dst port 53 queue 1",
        "ether proto 0x88cc queue 0",
        "ip and src net 10.0.0.0/8 and tcp drop",
    ];
    let told = [
        "'ip and udp dst port 53 queue 1' is five-tuple filter 0",
        "'ether proto 0x88cc queue 0' is EtherType filter 0",
        "'ip and src net 10.0.0.0/8 and tcp drop' is flow director filter 0",
    ];
    assert_eq!(attempt("/fdir=4k", &rules, 0).unwrap(), told);
    let error = attempt("", &rules, 0).unwrap_err();
    assert!(
        error.starts_with("'ip and src net 10.0.0.0/8 and tcp drop' can't be steered: five-tuple"),
        "{error}"
    );
    assert!(error.ends_with("write /fdir=2k behind its name (--steer)"), "{error}");
    // A virtual function has no filters of its own.
    let words = "the ixgbevf driver has no filters that name a queue; leave";
    assert_eq!(attempt("/fdir=2k", &[], 1).unwrap_err(), format!("{words} /fdir= out"));
    assert_eq!(attempt("", &rules, 1).unwrap_err(), format!("{words} --steer out"));
    let options = OpenOptions { steer: vec![read_steer(rules[0]).unwrap()], ..OpenOptions::default() };
    let error = open(&PortName::Null, &options, arena).err().unwrap();
    assert_eq!(error.reason, "--steer is for xdp:, pci: and vfio-user: ports; leave it out");
}

#[test]
fn a_name_asks_for_the_symmetric_key_which_a_virtual_function_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("a.sock"), folder.path().join("b.sock")];
    let boards = [Board::default().device, 0x10ed].map(|device| Board { device, ..Board::default() });
    let world = Shared::new(&boards, Impairment::default());
    serve(&world, &[&paths[0], &paths[1]], false);
    let (arena, _) = memory(1024);
    let options = OpenOptions { queues: Some(2), ring: Some(64), ..OpenOptions::default() };
    let [nic, function] = paths.map(|path| format!("vfio-user:{}/rss=symmetric", path.display()));
    let opened = open(&nic.parse().unwrap(), &options, arena).unwrap();
    let key = || (0..RSSRK.count()).map(|i| world.with(0, |device| device.nic.read32(RSSRK.at(i))));
    assert!(key().all(|word| word == 0x5a6d_5a6d), "{:x?}", key().collect::<Vec<_>>());
    opened.port.close().unwrap();
    let error = open(&function.parse().unwrap(), &options, arena).err().unwrap().reason;
    assert_eq!(
        error,
        "the ixgbevf driver cannot say how packets are spread, the physical function does; leave /rss= out"
    );
    no_violations(&world, 2);
}

type Halves = Vec<(Box<dyn RxQueue>, Box<dyn TxQueue>)>;

fn halves(queues: Vec<QueuePair>) -> Halves {
    queues.into_iter().map(|queue| (queue.rx.unwrap(), queue.tx.unwrap())).collect()
}

/// Sends a thousand packets, some of several frames, and finds each on the other side.
fn carry(mut near: Halves, mut far: Halves, arena: &'static Arena, pool: &mut Pool) {
    let free = pool.free();
    let mut batch = Batch::new();
    far.iter_mut().for_each(|(rx, _)| assert_eq!(rx.rx(pool, &mut batch), 0));
    let deadline = Instant::now() + PATIENCE;
    let (mut sent, mut arrived) = (0, 0_u32);
    let mut received = Batch::new();
    let lengths = [60, 1514, 4000];
    while arrived < 1000 {
        assert!(Instant::now() < deadline, "{sent} sent, {arrived} arrived");
        // No more on the way than the other side's ring holds.
        while batch.room() > 0 && sent < 1000 && sent - arrived + 64 < 250 / 3 {
            batch.push(packet(&frame(sent as u8, lengths[sent as usize % 3]), 1000, pool));
            sent += 1;
        }
        near[0].1.tx(pool, &mut batch);
        near[0].1.flush(pool);
        for (rx, _) in &mut far {
            rx.rx(pool, &mut received);
            for packet in received.drain() {
                let wanted = frame(arrived as u8, lengths[arrived as usize % 3]);
                let (hash, bytes) = (packet.offload.hash(), bytes(packet, pool));
                let counters = rx.counters();
                assert!(bytes == wanted, "number {arrived}: {} bytes, {hash:?}, {counters:?}", bytes.len());
                arrived += 1;
            }
        }
    }
    for (rx, tx) in near.into_iter().chain(far) {
        tx.close(pool);
        rx.close(pool);
    }
    assert_eq!((pool.free(), arena.orphaned()), (free, 0));
}

fn refusal(path: &Path, arena: &'static Arena) -> String {
    open(&name(path), &OpenOptions::default(), arena).err().unwrap().to_string()
}

/// A server that says these bytes to each message, then ends.
fn says(path: &Path, replies: Vec<Vec<u8>>) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for reply in replies {
            let mut header = [0; 16];
            if stream.read_exact(&mut header).is_err() {
                return;
            }
            let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
            let mut body = vec![0; size as usize - 16];
            stream.read_exact(&mut body).ok();
            stream.write_all(&reply).ok();
        }
    });
}

/// A reply to message `number`.
fn reply(number: u8, command: u8, flags: u8, error: u8, body: &[u8]) -> Vec<u8> {
    let size = (16 + body.len()) as u32;
    let mut message = vec![number, 0, command, 0];
    message.extend(size.to_le_bytes());
    message.extend([flags, 0, 0, 0, error, 0, 0, 0]);
    message.extend(body);
    message
}

#[test]
fn whatever_answers_at_the_socket_opening_ends_with_one_line() {
    let (arena, _) = memory(64);
    let version = || reply(1, 1, 1, 0, &[0, 0, 1, 0, b'{', b'}', 0]);
    let info = |flags: u8| reply(2, 4, 1, 0, &[16, 0, 0, 0, flags, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0]);
    let irqs = || reply(3, 7, 1, 0, &[16, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 64, 0, 0, 0]);
    // A list of areas that points behind itself, and one whose count is beyond all.
    let region = |cap: u8, count: u8| {
        let mut body = vec![64, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, cap, 0, 0, 0];
        body.extend([0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        body.extend([1, 0, 1, 0, 32, 0, 0, 0, count, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        reply(4, 5, 1, 0, &body)
    };
    let cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
        (vec![], "the process behind the socket has ended"),
        (vec![vec![0xff; 64]], "its reply is not to what was asked"),
        (vec![reply(1, 1, 1, 0, &[1, 0, 0, 0])], "it speaks another version"),
        (vec![version(), info(1)], "is no PCI function"),
        (vec![version(), reply(2, 4, 0x21, 13, &[])], "Permission denied"),
        (vec![version(), reply(2, 4, 0x21, 0, &[])], "refused, and does not say why"),
        (vec![version(), reply(2, 4, 1, 0, &[])], "is no PCI function"),
        (vec![version(), reply(9, 4, 1, 0, &[])], "its reply is not to what was asked"),
        (vec![version(), info(2), irqs(), reply(4, 5, 1, 0, &[0; 32])], "is no PCI function"),
        (vec![version(), info(2), irqs(), region(8, 1)], "the process behind the socket has ended"),
        (vec![version(), info(2), irqs(), region(32, 255)], "the process behind the socket has ended"),
    ];
    for (replies, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nic.sock");
        says(&path, replies);
        let error = refusal(&path, arena);
        assert!(error.contains(words) && error.lines().count() == 1, "{words}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let nobody = refusal(&folder.path().join("nobody"), arena);
    assert!(nobody.contains("is a device being served at this socket?"), "{nobody}");
    let path = folder.path().join("nic.sock");
    serve(&world(1), &[&path], false);
    let options = OpenOptions { queues: Some(17), ..OpenOptions::default() };
    let error = open(&name(&path), &options, arena).err().unwrap().to_string();
    assert!(error.ends_with("17 queues: the 82599 spreads packets over 16 at most (--queues)"), "{error}");
}

/// What tells this program that it is the device's process, and where to serve.
const SERVE: &str = "BYWASH_TEST_SERVE";

#[test]
fn serves_when_it_is_asked_to() {
    let Ok(path) = std::env::var(SERVE) else { return };
    serve(&world(1), &[Path::new(&path)], false);
    thread::sleep(6 * PATIENCE);
}

#[test]
fn a_process_that_is_killed_is_a_device_that_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic.sock");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "socket::serves_when_it_is_asked_to"])
        .env(SERVE, &path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (arena, mut pool) = memory(4096);
    let options = OpenOptions { queues: Some(1), ..OpenOptions::default() };
    let deadline = Instant::now() + PATIENCE;
    let mut opened = loop {
        match open(&name(&path), &options, arena) {
            Ok(opened) => break opened,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    let mut queue = opened.port.queues().remove(0);
    let mut batch = Batch::new();
    queue.rx.as_mut().unwrap().rx(&mut pool, &mut batch);
    child.kill().unwrap();
    child.wait().unwrap();
    batch.push(packet(&frame(1, 100), 2048, &mut pool));
    let tx = queue.tx.as_mut().unwrap();
    tx.tx(&mut pool, &mut batch);
    tx.flush(&mut pool);
    assert_eq!(tx.in_flight(), 1);
    let counters = opened.port.counters();
    assert_eq!(counters.iter().find(|counter| counter.name == "device_gone").unwrap().value, 1);
    queue.tx.unwrap().close(&mut pool);
    queue.rx.unwrap().close(&mut pool);
    let errors = opened.port.close().unwrap_err();
    assert!(errors[0].starts_with("the device is gone"), "{errors:?}");
}

/// Receives, and tells of each turn that has found packets, and how many turns there were by then.
struct Receiver {
    rx: Box<dyn RxQueue>,
    pool: Pool,
    batch: Batch,
    turns: u64,
    found: Sender<(Instant, u64)>,
}

impl Task for Receiver {
    fn turn(&mut self) -> Turn {
        self.turns += 1;
        if self.rx.rx(&mut self.pool, &mut self.batch) == 0 {
            return Turn::Idle;
        }
        self.pool.give_batch(&mut self.batch);
        self.found.send((Instant::now(), self.turns)).unwrap();
        Turn::Busy
    }

    fn arm(&mut self) -> bool {
        self.rx.arm()
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.rx.wake_fd());
    }

    fn next_deadline(&self, _: u64) -> Option<u64> {
        None
    }
}

#[test]
fn a_packet_wakes_a_worker_that_sleeps() {
    // Of virtual functions, whose interrupts are armed otherwise, as well.
    for device in [Board::default().device, 0x10ed] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nic.sock");
        let world = Shared::new(&[Board { device, ..Board::default() }], Impairment::default());
        serve(&world, &[&path], false);
        let (arena, pool) = memory(1024);
        let options = OpenOptions { queues: Some(1), ring: Some(64), ..OpenOptions::default() };
        let mut port = open(&name(&path), &options, arena).unwrap().port;
        let (rx, tx) = halves(port.queues()).remove(0);
        let (found, finds) = channel();
        let task = Receiver { rx, pool, batch: Batch::new(), turns: 0, found };
        let (stop, idle) = (Stop::new().unwrap(), Idle::Sleep);
        let placement = Placement { name: "receiver".into(), core: None, idle };
        let spawned = Worker::spawn(placement, stop.clone(), task, |_| ());
        let Ok(worker) = spawned else { panic!("no thread") };
        let mut late: Vec<Duration> = Vec::new();
        let mut turns = 0;
        for seed in 0..15 {
            // It has gone to sleep by then, and looks again by itself much later.
            thread::sleep(Duration::from_millis(10));
            let sent = Instant::now();
            world.with(0, |device| device.nic.receive(broadcast(seed), true));
            let found = finds.recv_timeout(PATIENCE).unwrap();
            late.push(found.0.saturating_duration_since(sent));
            turns = found.1;
        }
        stop.set();
        let Ok((mut task, Ok(()))) = worker.join() else { panic!("the worker failed") };
        late.sort();
        assert!(late[7] < Duration::from_nanos(HEARTBEAT_NS / 3), "{device:x}: {late:?}");
        assert!(turns < 1000, "{device:x}: it does not sleep: {turns} turns");
        tx.close(&mut task.pool);
        task.rx.close(&mut task.pool);
        port.close().unwrap();
        no_violations(&world, 1);
    }
}

/// A frame that each NIC takes.
fn broadcast(seed: u8) -> Vec<u8> {
    let mut bytes = frame(seed, 60);
    bytes[..6].fill(0xff);
    bytes
}
