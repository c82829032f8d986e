//! A port that is closed, killed or stopped gives the machine back, and no frame is lost or has two owners.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bywash_drivers::xdp::{self, Options};
use bywash_frame::{BATCH, Batch};
use bywash_lab::PairOptions;
use bywash_port::{Port, QueueChoice};
use rustix::process::{Pid, Signal, kill_process};

use crate::setup::{
    Cable, PATIENCE, UDP_PORT, arena, arrived, bytes, cable, close, counter, halves, kernel_socket, open,
    options, packet, receive, send, udp,
};

#[test]
fn a_closed_port_can_be_opened_again_at_once() {
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    let arena = arena(8192);
    for turn in 0..5 {
        let mut pool = arena.pool(256).unwrap();
        let mut port = open(cable.far(), "left", &options(), arena);
        assert!(cable.far().link("left").unwrap().xdp.native.is_some());
        // The halves are closed in either order: the last one brings the frames of both.
        for pair in port.queues() {
            let (rx, tx) = (pair.rx.unwrap(), pair.tx.unwrap());
            if turn % 2 == 0 {
                rx.close(&mut pool);
                tx.close(&mut pool);
            } else {
                tx.close(&mut pool);
                rx.close(&mut pool);
            }
        }
        assert_eq!(counter(&port, "abandoned_frames"), 0);
        port.close().unwrap();
        assert_eq!(cable.far().link("left").unwrap().xdp.first(), None);
        assert_eq!(pool.free() + arena.unused(), arena.frames());
    }
}

#[test]
fn a_queue_whose_receiving_half_is_closed_leaves_packets_to_the_kernel() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let arena = arena(4096);
    let mut pool = arena.pool(64).unwrap();
    let mut near = open(cable.near(), "right", &Options { rx: false, ..options() }, arena);
    let mut far = open(cable.far(), "left", &options(), arena);
    let (mut source, (rx, mut tx)) = (near.queues().remove(0).tx.unwrap(), halves(&mut far));
    let socket = kernel_socket(cable.far());
    rx.close(&mut pool);
    let mut batch = Batch::new();
    batch.push(packet(&mut pool, &udp(&cable, b"for the kernel"), 2048));
    send(source.as_mut(), &mut pool, &mut batch);
    assert_eq!(arrived(&socket).as_deref(), Some(&b"for the kernel"[..]));
    // The other half still sends.
    batch.push(packet(&mut pool, &bytes(1, 60), 2048));
    send(tx.as_mut(), &mut pool, &mut batch);
    assert_eq!(tx.counters().packets, 1);
    source.close(&mut pool);
    tx.close(&mut pool);
    assert_eq!(pool.free() + arena.unused(), arena.frames());
    far.close().unwrap();
    near.close().unwrap();
}

#[test]
fn a_port_closed_before_its_queues_says_so() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let arena = arena(4096);
    let mut pool = arena.pool(64).unwrap();
    let mut port = open(cable.far(), "left", &options(), arena);
    let (rx, tx) = halves(&mut port);
    let left = port.close().unwrap_err();
    assert_eq!(left, ["xdp:left: 1 queues were not closed before their port"]);
    assert_eq!(cable.far().link("left").unwrap().xdp.first(), None, "detached all the same");
    rx.close(&mut pool);
    tx.close(&mut pool);
    assert_eq!(pool.free() + arena.unused(), arena.frames());
}

#[test]
fn a_port_whose_queues_nobody_took_is_closed_with_them() {
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    let arena = arena(4096);
    open(cable.far(), "left", &options(), arena).close().unwrap();
    assert_eq!(arena.unused(), arena.frames());
}

#[test]
fn traffic_goes_on_after_the_interface_was_down() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let arena = arena(4096);
    let mut pool = arena.pool(512).unwrap();
    let mut near = open(cable.near(), "right", &options(), arena);
    let mut far = open(cable.far(), "left", &options(), arena);
    let ((near_rx, mut tx), (mut rx, far_tx)) = (halves(&mut near), halves(&mut far));
    let index = cable.lab.pairs[0].near.index;
    let mut batch = Batch::new();
    for turn in 0..3_u64 {
        (0..BATCH as u64).for_each(|i| batch.push(packet(&mut pool, &bytes(turn << 8 | i, 60), 2048)));
        send(tx.as_mut(), &mut pool, &mut batch);
        let got = receive(rx.as_mut(), &mut pool, BATCH);
        assert_eq!(got.len(), BATCH, "turn {turn}");

        cable.near().route().set_up(index, false).unwrap();
        batch.push(packet(&mut pool, &bytes(turn << 8 | 99, 60), 2048));
        for _ in 0..100 {
            tx.tx(&mut pool, &mut batch);
            tx.flush(&mut pool);
        }
        assert!(batch.is_empty());
        cable.near().route().set_up(index, true).unwrap();
        cable.near().wait_until_running("right").unwrap();
        cable.far().wait_until_running("left").unwrap();
        // What waited in the ring goes out now, or was dropped: either way its frame is back.
        send(tx.as_mut(), &mut pool, &mut batch);
        receive(rx.as_mut(), &mut pool, 1);
    }
    close(near, near_rx, tx, &mut pool);
    close(far, rx, far_tx, &mut pool);
    assert_eq!(pool.free() + arena.unused(), arena.frames());
}

#[test]
fn frames_of_an_interface_that_has_gone_are_abandoned_and_counted() {
    let Some(mut cable) = cable(&PairOptions::default()) else { return };
    let arena = arena(4096);
    let mut pool = arena.pool(64).unwrap();
    let mut far = open(cable.far(), "left", &options(), arena);
    let (rx, tx) = halves(&mut far);
    cable.lab.pairs.clear();
    rx.close(&mut pool);
    tx.close(&mut pool);
    let abandoned = counter(&far, "abandoned_frames");
    assert_eq!(pool.free() + arena.unused() + 512, arena.frames());
    assert_eq!(abandoned, 512, "nothing shows that the kernel has let go of them");
    // There is no interface to detach from any more; that is no failure worth more than a sentence.
    let _ = far.close();
}

/// A process that takes everything on the second host, until it is killed.
struct Taker(Child);

impl Taker {
    fn start(cable: &Cable) -> Self {
        let mut command = cable.far().command(std::env::current_exe().unwrap()).unwrap();
        command.args(["--exact", "closing::taker", "--ignored", "--nocapture"]).env(TAKER, "1");
        let mut child = Self(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(TAKES)), "it did not start");
        child.0.stdout = None;
        child
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const TAKER: &str = "BYWASH_TEST_TAKER";
const TAKES: &str = "takes everything";

#[test]
#[ignore = "a process that other tests start and kill"]
fn taker() {
    if std::env::var_os(TAKER).is_none() {
        return;
    }
    let arena = arena(4096);
    let mut pool = arena.pool(64).unwrap();
    let mut port = xdp::open("left", QueueChoice::default(), &options(), arena).unwrap();
    let (mut rx, _tx) = halves(&mut port);
    println!("{TAKES}");
    let (start, mut batch) = (Instant::now(), Batch::new());
    while start.elapsed() < 2 * PATIENCE {
        rx.rx(&mut pool, &mut batch);
        pool.give_batch(&mut batch);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends datagrams by the kernel until one arrives at the kernel's socket; how long that took.
fn until_arrival(cable: &Cable, socket: &UdpSocket, at_most: Duration) -> Option<Duration> {
    let sender = cable.near().enter(|| UdpSocket::bind(("10.0.0.1", 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let start = Instant::now();
    while start.elapsed() < at_most {
        sender.send_to(b"hello", ("10.0.0.2", UDP_PORT)).unwrap();
        if arrived(socket).is_some() {
            return Some(start.elapsed());
        }
    }
    None
}

#[test]
fn a_killed_process_leaves_no_program_and_the_kernels_traffic_flowing() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let socket = kernel_socket(cable.far());
    assert!(until_arrival(&cable, &socket, PATIENCE).is_some());
    let taker = Taker::start(&cable);
    assert!(cable.far().link("left").unwrap().xdp.first().is_some());
    assert_eq!(until_arrival(&cable, &socket, Duration::from_millis(300)), None);
    taker.signal(Signal::KILL);
    drop(taker);
    let delay = until_arrival(&cable, &socket, PATIENCE).expect("nothing arrives");
    assert!(delay < Duration::from_secs(1), "{delay:?}");
    let start = Instant::now();
    while cable.far().link("left").unwrap().xdp.first().is_some() {
        assert!(start.elapsed() < PATIENCE, "the program is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
    // And the queue is free for the next one.
    let arena = arena(4096);
    let mut pool = arena.pool(64).unwrap();
    let mut port = open(cable.far(), "left", &options(), arena);
    let (rx, tx) = halves(&mut port);
    close(port, rx, tx, &mut pool);
}

#[test]
fn a_stopped_process_loses_its_packets_to_the_kernel_until_it_goes_on() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let socket = kernel_socket(cable.far());
    let taker = Taker::start(&cable);
    assert_eq!(until_arrival(&cable, &socket, Duration::from_millis(300)), None);
    taker.signal(Signal::STOP);
    let delay = until_arrival(&cable, &socket, PATIENCE).expect("nothing arrives");
    assert!(delay < Duration::from_secs(1), "{delay:?}");
    taker.signal(Signal::CONT);
    std::thread::sleep(Duration::from_millis(50));
    while arrived(&socket).is_some() {}
    assert_eq!(until_arrival(&cable, &socket, Duration::from_millis(300)), None, "it takes them again");
}
