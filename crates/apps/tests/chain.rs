//! Generator, forwarder and receiver in one process, over wires in memory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;
mod ring;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bywash_apps::forward::{self, Forward, MacEdit, Pair};
use bywash_apps::generate::{self, Frame, Generate, Rate};
use bywash_apps::port::frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_apps::port::{Port, QueueCounters, QueuePair, RxQueue, TxQueue};
use bywash_apps::receive::{self, Receive};
use bywash_apps::report::{Reporter, Row, Style};
use bywash_apps::sys::worker::{Idle, Stop};
use bywash_apps::{App, Summary, WorkerOptions, sys};
use bywash_drivers::OpenOptions;

use fake::Fake;
use ring::Ring;

const PATIENCE: Duration = Duration::from_secs(30);

fn arena() -> &'static Arena {
    Arena::new(vec![0; 24_000 * FRAME_SIZE]).unwrap()
}

fn open(name: &str, queues: u16, arena: &'static Arena) -> Box<dyn Port> {
    let options = OpenOptions { queues: Some(queues), ..OpenOptions::default() };
    bywash_drivers::open(&name.parse().unwrap(), &options, arena).unwrap().port
}

fn workers(frames: usize) -> WorkerOptions {
    WorkerOptions { cores: Vec::new(), idle: Idle::Adaptive, frames: Some(frames) }
}

fn stop() -> Stop {
    Stop::new().unwrap()
}

fn generate(frame: Frame, count: u64) -> generate::Options {
    generate::Options { frame, count: Some(count), workers: workers(2500), ..generate::Options::default() }
}

fn receive(count: u64) -> receive::Options {
    receive::Options { count: Some(count), workers: workers(1000), ..receive::Options::default() }
}

/// A number of a row.
fn of(row: &Row, name: &str) -> u64 {
    row.value(name).unwrap()
}

/// Ends a forwarder when it has sent `packets` in its first direction.
fn finish_after(forward: Forward, stop: &Stop, packets: u64) -> forward::Summary {
    let until = Instant::now() + PATIENCE;
    while of(&forward.snapshot().rows("directions")[0], "tx_packets") < packets && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    stop.set();
    forward.finish()
}

#[test]
fn everything_that_is_generated_arrives_once_in_order_and_whole() {
    let cases = [(1, 64, 1, 100_000), (2, 300, 1000, 100_000), (1, 1518, 7, 100_000), (1, 9000, 7, 10_000)];
    for (case, (queues, size, sources, count)) in cases.into_iter().enumerate() {
        let arena = arena();
        let [a, b] = [format!("loop:chain{case}a"), format!("loop:chain{case}b")];
        let (near, far) = (open(&a, queues, arena), open(&b, queues, arena));
        let pair = Pair::Both(open(&a, queues, arena), open(&b, queues, arena));
        let (stop_all, stop_forward) = (stop(), stop());
        let mut receiver = Receive::start(far, &receive(count), arena, &stop_all).unwrap();
        let options = forward::Options { edit: MacEdit::Swap, workers: workers(1000), ..Default::default() };
        let forwarder = Forward::start(vec![pair], &options, arena, &stop_forward).unwrap();
        let frame = Frame { size: size.into(), sources, ..Frame::default() };
        let mut generator = Generate::start(near, &generate(frame, count), arena, &stop_all).unwrap();
        assert!(generator.wait(PATIENCE) && receiver.wait(PATIENCE), "in time");
        let (sent, forwarded) = (generator.finish(), finish_after(forwarder, &stop_forward, count));
        let received = receiver.finish();
        assert_eq!(
            (sent.unmet(), sent.tx_packets, sent.tx_bytes),
            (&[][..], count, count * (size as u64 - 4))
        );
        assert_eq!(
            (forwarded.unmet(), of(&forwarded.snapshot.rows("directions")[0], "tx_packets")),
            (&[][..], count)
        );
        assert_eq!((received.unmet(), received.received.right_packets), (&[][..], count));
        assert_eq!(received.received.foreign_packets + received.received.reordered_packets, 0);
        assert_eq!(received.snapshot.rows("streams").len(), usize::from(queues));
        let lost: Vec<_> =
            received.snapshot.rows("queues").iter().map(|row| row.value("lost_packets")).collect();
        assert_eq!(lost, vec![Some(0); queues.into()]);
        let latency = received.snapshot.distributions[0].times.percentiles().unwrap();
        assert!(latency.min_ns > 0 && latency.p50_ns <= latency.p99_ns && latency.p99_ns <= latency.max_ns);
        assert_eq!((arena.unused(), arena.orphaned()), (arena.frames(), 0), "every frame came home");
    }
}

#[test]
fn a_reflector_sends_back_on_the_wire_it_came_by() {
    let arena = arena();
    let (near, reflected) = (open("loop:reflect", 1, arena), open("loop:reflect", 1, arena));
    let stop = stop();
    let options = forward::Options { edit: MacEdit::Swap, workers: workers(1000), ..Default::default() };
    let reflector = Forward::start(vec![Pair::Same(reflected)], &options, arena, &stop).unwrap();
    let mut near = near;
    let QueuePair { rx, tx } = near.queues().remove(0);
    let (mut rx, mut tx, mut pool) = (rx.unwrap(), tx.unwrap(), arena.pool(200).unwrap());
    let mut batch = Batch::new();
    for n in 0..50_u8 {
        let mut packet = Packet::new(pool.take().unwrap());
        packet.extend_from_slice(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0, n]).unwrap();
        batch.push(packet);
    }
    assert_eq!(tx.tx(&mut pool, &mut batch), 50);
    tx.flush(&mut pool);
    let until = Instant::now() + PATIENCE;
    while batch.len() < 50 && Instant::now() < until {
        rx.rx(&mut pool, &mut batch);
    }
    for (n, packet) in (0..).zip(&batch) {
        assert_eq!(packet.head(), [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 8, 0, n]);
    }
    assert_eq!(batch.len(), 50);
    pool.give_batch(&mut batch);
    tx.close(&mut pool);
    rx.close(&mut pool);
    let summary = finish_after(reflector, &stop, 50);
    let directions = summary.snapshot.rows("directions");
    assert_eq!((directions.len(), of(&directions[0], "tx_packets")), (1, 50));
    near.close().unwrap();
}

#[test]
fn a_paced_generator_keeps_its_rate() {
    let arena = arena();
    let stop = stop();
    let options = generate::Options {
        rate: Some(Rate::Packets(20_000.0)),
        duration: Some(Duration::from_secs(1)),
        workers: workers(5000),
        ..generate::Options::default()
    };
    let mut generator = Generate::start(open("null:", 1, arena), &options, arena, &stop).unwrap();
    assert!(generator.wait(PATIENCE), "it ends by itself");
    let summary = generator.finish();
    // The schedule leaves no choice: what was not sent was missed. A busy machine may make it miss many.
    assert_eq!(summary.tx_packets + summary.missed_packets, 20_000);
    assert!(summary.tx_packets > 2_000 && summary.met == (summary.missed_packets <= 20), "{summary}");
}

#[test]
fn a_full_wire_is_said_to_be_the_reason_why_not_all_was_sent() {
    let arena = arena();
    let _nobody = open("loop:full", 1, arena);
    let port = open("loop:full", 1, arena);
    let stop = stop();
    let options =
        generate::Options { duration: Some(Duration::from_millis(50)), ..generate(Frame::default(), 5000) };
    let mut generator = Generate::start(port, &options, arena, &stop).unwrap();
    assert!(generator.wait(PATIENCE), "it ends with its time, though the last batch found no room");
    let summary = generator.finish();
    assert_eq!((summary.met, summary.tx_packets), (false, 1024));
    assert_eq!(summary.unmet, ["1024 of 5000 packets were sent"]);
}

#[test]
fn a_link_that_takes_nothing_ends_with_the_time_and_all_is_missed() {
    for rate in [None, Some(Rate::Packets(10_000.0))] {
        let (arena, stop) = (arena(), stop());
        let dead = only_sends("tap:dead", StuckTx);
        let duration = Some(Duration::from_millis(50));
        let options = generate::Options { rate, duration, workers: workers(1000), ..Default::default() };
        let mut generator = Generate::start(dead, &options, arena, &stop).unwrap();
        assert!(generator.wait(PATIENCE), "it ends by itself");
        let summary = generator.finish();
        assert_eq!((summary.tx_packets, summary.missed_packets), (0, if rate.is_some() { 500 } else { 0 }));
    }
}

#[test]
fn a_time_that_no_clock_reaches_is_no_end() {
    let (arena, stop) = (arena(), stop());
    let options = generate::Options { duration: Some(Duration::MAX), ..generate(Frame::default(), 1000) };
    let generator = Generate::start(open("null:", 1, arena), &options, arena, &stop).unwrap();
    assert!(bywash_apps::run(
        generator,
        options.patience(),
        &stop,
        &mut Reporter::stdio(Style::Quiet).unwrap()
    ));
}

/// A queue that breaks what passes through it, in the ways networks do.
struct FaultyRx {
    inner: Box<dyn RxQueue>,
    seen: u64,
}

impl RxQueue for FaultyRx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut one = Batch::with_limit(1);
        if self.inner.rx(pool, &mut one) == 0 {
            return 0;
        }
        self.seen += 1;
        match self.seen {
            10 | 11 => pool.give_batch(&mut one),
            20 => one.iter_mut().for_each(|packet| packet.head_mut()[50] ^= 4),
            30 => one.iter_mut().for_each(|packet| packet.head_mut()[12] = 0x88),
            _ => {}
        }
        batch.extend(one.drain());
        batch.len()
    }
    fn arm(&mut self) -> bool {
        self.inner.arm()
    }
    fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.inner.wake_fd()
    }
    fn counters(&self) -> QueueCounters {
        self.inner.counters()
    }
    fn close(self: Box<Self>, pool: &mut Pool) {
        self.inner.close(pool);
    }
}

#[test]
fn a_receiver_names_each_fault_and_what_the_port_could_not_undo() {
    let arena = arena();
    let (near, mut far) = (open("loop:faulty", 1, arena), open("loop:faulty", 1, arena));
    let QueuePair { rx, tx } = far.queues().remove(0);
    let faulty = Box::new(FaultyRx { inner: rx.unwrap(), seen: 0 });
    let queue = QueuePair { rx: Some(faulty), tx: None };
    let faulty = Fake::new("loop:faulty", vec![queue], Box::new(|| Err(vec!["it stays broken".into()])));
    let stop = stop();
    let mut receiver = Receive::start(faulty, &receive(1000 - 4), arena, &stop).unwrap();
    let mut generator = Generate::start(near, &generate(Frame::default(), 1000), arena, &stop).unwrap();
    assert!(generator.wait(PATIENCE) && receiver.wait(PATIENCE), "in time");
    assert!(generator.finish().met);
    let summary = receiver.finish();
    let received = &summary.received;
    assert_eq!((received.damaged_packets, received.foreign_packets, received.lost_packets), (1, 1, 4));
    assert_eq!(
        summary.unmet,
        [
            "4 packets lost",
            "1 packets damaged, 1 of them so that their number can't be read: they count as lost, too"
        ]
    );
    assert_eq!(summary.warnings, ["loop:faulty: it stays broken"]);
    assert_eq!(summary.port.counters[0].value, 3);
    let mut pool = arena.pool(0).unwrap();
    tx.unwrap().close(&mut pool);
    far.close().unwrap();
}

/// A queue that holds some packets back for a while, or until nothing more is to come.
struct HeldRx {
    now: VecDeque<Vec<u8>>,
    later: Vec<Vec<u8>>,
    /// How long after the last of the others; `None` for those that come when it is told to stop.
    after: Option<Duration>,
    dry: Option<Instant>,
    packets: u64,
}

impl RxQueue for HeldRx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.now.is_empty() {
            let dry = *self.dry.get_or_insert_with(Instant::now);
            if self.after.is_some_and(|after| dry.elapsed() >= after) {
                self.now.extend(self.later.drain(..));
            }
        }
        let n = self.now.len().min(batch.room());
        for bytes in self.now.drain(..n) {
            let mut packet = Packet::new(pool.take().unwrap());
            packet.extend_from_slice(&bytes).unwrap();
            batch.push(packet);
        }
        self.packets += n as u64;
        n
    }
    fn arm(&mut self) -> bool {
        self.later.is_empty()
    }
    fn stop(&mut self) {
        if self.after.is_none() {
            self.now.extend(self.later.drain(..));
        }
    }
    fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters { packets: self.packets, ..QueueCounters::default() }
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

/// The packets of a generator, in the order of their numbers.
fn generated(count: u64, arena: &'static Arena) -> Vec<Vec<u8>> {
    let (near, mut far) = (open("loop:generated", 1, arena), open("loop:generated", 1, arena));
    let generator = Generate::start(near, &generate(Frame::default(), count), arena, &stop()).unwrap();
    let QueuePair { rx, tx } = far.queues().remove(0);
    let (mut rx, mut pool, mut packets) = (rx.unwrap(), arena.pool(200).unwrap(), Vec::new());
    let until = Instant::now() + PATIENCE;
    while (packets.len() as u64) < count && Instant::now() < until {
        let mut batch = Batch::new();
        rx.rx(&mut pool, &mut batch);
        packets.extend(batch.iter().map(|packet| packet.head().to_vec()));
        pool.give_batch(&mut batch);
    }
    assert!(generator.finish().met);
    tx.unwrap().close(&mut pool);
    rx.close(&mut pool);
    far.close().unwrap();
    packets
}

#[test]
fn what_one_of_two_queues_still_holds_at_the_end_is_not_lost_and_what_never_comes_is() {
    let arena = arena();
    let packets = generated(200, arena);
    let one = sys::worker::allowed_cores()[..1].to_vec();
    let cases = [(None, false), (Some(Duration::from_millis(15)), true), (None, true)];
    for ((after, has_loss), cores) in
        cases.into_iter().flat_map(|case| [(case, Vec::new()), (case, one.clone())])
    {
        let of = |odd: usize| packets.iter().skip(odd).step_by(2).cloned().collect::<Vec<_>>();
        let (even, mut odd) = (of(0), of(1));
        // The second one is behind, and of what it has still to give the last one was sent after all that have come.
        let later = odd.split_off(50);
        if has_loss {
            odd.remove(20);
        }
        let count = (even.len() + odd.len()) as u64;
        let queue = |now: Vec<Vec<u8>>, later| {
            let held = HeldRx { now: now.into(), later, after, dry: None, packets: 0 };
            QueuePair { rx: Some(Box::new(held)), tx: None }
        };
        let port =
            Fake::new("tap:two", vec![queue(even, Vec::new()), queue(odd, later)], Box::new(|| Ok(())));
        let options =
            receive::Options { workers: WorkerOptions { cores, ..workers(1000) }, ..receive(count) };
        let mut receiver = Receive::start(port, &options, arena, &stop()).unwrap();
        assert!(receiver.wait(PATIENCE), "in time");
        let summary = receiver.finish();
        let received = &summary.received;
        let lost: &[&str] = if has_loss { &["1 packets lost"] } else { &[] };
        assert_eq!(summary.unmet(), lost, "{after:?} {summary}");
        assert_eq!((received.right_packets, received.rx_packets), (count + 50, count + 50));
        // What was sent up to the last packet that is judged: the last one of the first queue.
        let [stream] = summary.snapshot.rows("streams") else { panic!("{summary}") };
        assert_eq!(["packets", "lost_packets"].map(|name| self::of(stream, name)).iter().sum::<u64>(), 199);
    }
}

#[test]
fn a_worker_without_packets_hears_at_once_that_all_have_come() {
    let arena = arena();
    let after = Some(Duration::from_millis(20));
    let queue = |later| {
        let held = HeldRx { now: VecDeque::new(), later, after, dry: None, packets: 0 };
        QueuePair { rx: Some(Box::new(held)), tx: None }
    };
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let queues = vec![queue(vec![vec![0; 60]; 200]), queue(Vec::new())];
            let port = Fake::new("tap:two", queues, Box::new(|| Ok(())));
            let options = receive::Options { drop: true, ..receive(200) };
            let began = Instant::now();
            let mut receiver = Receive::start(port, &options, arena, &stop()).unwrap();
            assert!(receiver.wait(PATIENCE), "in time");
            let time = began.elapsed();
            assert!(receiver.finish().met);
            time
        })
        .collect();
    times.sort();
    assert!(times[4] < Duration::from_millis(60), "it does not sleep on: {times:?}");
}

/// A port with this queue alone.
fn only_sends(name: &str, tx: impl TxQueue + 'static) -> Box<dyn Port> {
    Fake::new(name, vec![QueuePair { rx: None, tx: Some(Box::new(tx)) }], Box::new(|| Ok(())))
}

/// A queue that sends nowhere: its ring is always full.
struct StuckTx;

impl TxQueue for StuckTx {
    fn tx(&mut self, _: &mut Pool, _: &mut Batch) -> usize {
        0
    }
    fn flush(&mut self, _: &mut Pool) {}
    fn in_flight(&self) -> usize {
        0
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

#[test]
fn a_dead_link_costs_its_own_packets_and_keeps_nothing_waiting() {
    let arena = arena();
    let stop = stop();
    let dead = only_sends("tap:dead", StuckTx);
    let pair = Pair::Both(open("null:", 1, arena), dead);
    let options = forward::Options { workers: workers(5000), ..Default::default() };
    let mut forwarder = Forward::start(vec![pair], &options, arena, &stop).unwrap();
    let until = Instant::now() + PATIENCE;
    while of(&forwarder.snapshot().total, "dropped_packets") < 100_000 && Instant::now() < until {
        assert!(!forwarder.wait(Duration::from_millis(1)));
    }
    stop.set();
    let summary = forwarder.finish();
    let directions = summary.snapshot.rows("directions");
    assert_eq!(directions.len(), 1, "null: can't get anything from a port that only sends");
    let dropped = of(&directions[0], "dropped_packets");
    assert!(dropped >= 100_000, "{dropped} dropped");
    assert_eq!(dropped, of(&directions[0], "rx_packets"));
    assert!(summary.to_string().contains(&format!("{dropped} dropped: the other side took no more")));
}

/// A queue that takes a packet every tenth of a second.
struct SlowTx(Instant);

impl TxQueue for SlowTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.0.elapsed() < Duration::from_millis(100) {
            return 0;
        }
        self.0 = Instant::now();
        batch.drain_front(1).for_each(|packet| pool.give_packet(packet));
        1
    }
    fn flush(&mut self, _: &mut Pool) {}
    fn in_flight(&self) -> usize {
        0
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

#[test]
fn a_slow_link_does_not_keep_its_worker_from_receiving() {
    let arena = arena();
    let stop = stop();
    let slow = only_sends("tap:slow", SlowTx(Instant::now()));
    let pair = Pair::Both(open("null:", 1, arena), slow);
    let options = forward::Options { workers: workers(5000), ..Default::default() };
    let mut forwarder = Forward::start(vec![pair], &options, arena, &stop).unwrap();
    assert!(!forwarder.wait(Duration::from_secs(2)));
    let received = of(&forwarder.snapshot().total, "rx_packets");
    // The first batch alone would take over six seconds to leave.
    assert!(received >= 3 * 64, "{received} received");
    stop.set();
    forwarder.finish();
}

/// A port with this queue alone.
fn only_receives(name: &str, rx: Ring) -> Box<dyn Port> {
    Fake::new(name, vec![QueuePair { rx: Some(Box::new(rx)), tx: None }], Box::new(|| Ok(())))
}

#[test]
fn what_is_in_a_ring_at_the_end_is_still_sent() {
    let (arena, stop) = (arena(), stop());
    let pair = Pair::Both(only_receives("tap:full", Ring::new(50, 5000)), open("null:", 1, arena));
    let options = forward::Options { workers: workers(5000), ..Default::default() };
    let forwarder = Forward::start(vec![pair], &options, arena, &stop).unwrap();
    let summary = finish_after(forwarder, &stop, 50);
    assert_eq!((summary.unmet(), of(&summary.snapshot.total, "tx_packets")), (&[][..], 5050));
}

#[test]
fn ports_of_the_same_name_are_told_apart() {
    let (arena, stop) = (arena(), stop());
    let mut null = [open("null:", 1, arena), open("null:", 1, arena)];
    let [a, b] = [(0, 10), (1, 1000)].map(|(port, packets)| {
        let rx: Box<dyn RxQueue> = Box::new(Ring { ends: false, ..Ring::new(packets, 0) });
        let queue = QueuePair { rx: Some(rx), ..null[port].queues().remove(0) };
        Fake::new("null:", vec![queue], Box::new(|| Ok(())))
    });
    let options = forward::Options { workers: workers(5000), ..Default::default() };
    let forward = Forward::start(vec![Pair::Both(a, b)], &options, arena, &stop).unwrap();
    let until = Instant::now() + PATIENCE;
    while of(&forward.snapshot().total, "tx_packets") < 1010 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = forward.snapshot();
    std::thread::sleep(Duration::from_millis(50));
    let now = forward.snapshot();
    let interval = now.since(Some(&before));
    for table in &now.tables {
        for (number, row) in table.rows.iter().enumerate() {
            let rates = interval.rates(table, row);
            assert!(rates.is_none_or(|rates| rates.pps == 0), "nothing has come since: {row:?} {rates:?}");
            assert!(table.rows[..number].iter().all(|other| other.labels != row.labels), "{table:?}");
        }
    }
    stop.set();
    let summary = forward.finish();
    let [there, back] = summary.snapshot.rows("directions") else { panic!("{summary}") };
    assert_eq!([there, back].map(|row| of(row, "tx_packets")), [10, 1000]);
    assert_eq!(there.labels, [("from", "null:".into()), ("to", "null:#2".into())]);
    assert_eq!([0, 1].map(|port: usize| summary.ports[port].name.as_str()), ["null:", "null:#2"]);
}

/// A queue that takes everything and never says that anything was sent.
struct SilentTx(usize);

impl TxQueue for SilentTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len();
        pool.give_batch(batch);
        self.0 += n;
        n
    }
    fn flush(&mut self, _: &mut Pool) {}
    fn in_flight(&self) -> usize {
        self.0
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

#[test]
fn what_was_handed_over_and_never_left_was_not_forwarded() {
    let (arena, stop) = (arena(), stop());
    let pair = Pair::Both(only_receives("tap:in", Ring::new(10, 0)), only_sends("tap:out", SilentTx(0)));
    let options = forward::Options { workers: workers(5000), ..Default::default() };
    let mut forward = Forward::start(vec![pair], &options, arena, &stop).unwrap();
    assert!(forward.wait(PATIENCE), "it ends with its packets");
    let summary = forward.finish();
    assert_eq!(summary.unmet(), ["10 packets were handed to tap:out and never left"]);
    assert!(!summary.met);
}

#[test]
fn a_worker_that_had_no_time_has_not_seen_its_ring_dry() {
    let (arena, stop) = (arena(), stop());
    let slow = Ring { pause: Duration::from_millis(2), ..Ring::new(50, 300) };
    let pair = Pair::Both(only_receives("tap:slow", slow), open("null:", 1, arena));
    let options = forward::Options { workers: workers(5000), ..Default::default() };
    let forward = Forward::start(vec![pair], &options, arena, &stop).unwrap();
    let summary = finish_after(forward, &stop, 50);
    assert_eq!(of(&summary.snapshot.total, "tx_packets"), 350);
}

/// A queue that takes a packet for a while, then nothing for longer than a link is waited for, then everything.
struct PausedTx {
    begun: Option<Instant>,
    counters: QueueCounters,
}

impl TxQueue for PausedTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let is_first = self.begun.is_none();
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if !is_first && begun.elapsed() < Duration::from_millis(700) {
            return 0;
        }
        let n = batch.len();
        pool.give_batch(batch);
        self.counters.packets += n as u64;
        n
    }
    fn flush(&mut self, _: &mut Pool) {}
    fn in_flight(&self) -> usize {
        0
    }
    fn counters(&self) -> QueueCounters {
        self.counters
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

#[test]
fn from_a_file_to_a_file_nothing_is_dropped_however_long_it_takes() {
    let options = forward::Options { workers: workers(5000), ..Default::default() };
    for (from, to, lost) in [("pcap:in", "pcap:out", false), ("pcap:in", "tap:out", true)] {
        let (arena, stop) = (arena(), stop());
        let exit = only_sends(to, PausedTx { begun: None, counters: QueueCounters::default() });
        let pair = Pair::Both(only_receives(from, Ring::new(1000, 0)), exit);
        let mut forwarder = Forward::start(vec![pair], &options, arena, &stop).unwrap();
        assert!(forwarder.wait(PATIENCE), "it ends with its file");
        let summary = forwarder.finish();
        let [sent, dropped] = ["tx_packets", "dropped_packets"].map(|name| of(&summary.snapshot.total, name));
        assert_eq!((sent + dropped, dropped > 0), (1000, lost), "{from} {to}");
    }
}

#[test]
fn queues_of_different_number_all_find_a_worker() {
    let arena = arena();
    let stop = stop();
    let pair = Pair::Both(open("null:", 3, arena), open("null:", 2, arena));
    let other = Pair::Same(open("null:", 1, arena));
    let options = forward::Options { workers: workers(7000), ..Default::default() };
    let mut forwarder = Forward::start(vec![pair, other], &options, arena, &stop).unwrap();
    // Long enough for each worker to have had a turn, on a busy machine too.
    assert!(!forwarder.wait(Duration::from_secs(1)));
    stop.set();
    let summary = forwarder.finish();
    let [directions, queues] = ["directions", "queues"].map(|table| summary.snapshot.rows(table));
    assert_eq!((directions.len(), queues.len()), (3, 3 + 2 + 2 + 2 + 1 + 1));
    for queue in queues {
        assert!(of(queue, "packets") > 0, "{queue:?}");
    }
}

#[test]
fn a_queue_that_is_not_forwarded_from_is_closed_at_the_start() {
    let arena = arena();
    let (near, mut far) = (open("loop:oneway", 1, arena), open("loop:oneway", 1, arena));
    let mut source = open("null:", 1, arena);
    let queue = QueuePair { tx: None, ..source.queues().remove(0) };
    let only_receives = Fake::new("loop:only-receives", vec![queue], Box::new(|| Ok(())));
    let stop = stop();
    let options = forward::Options { workers: workers(3000), ..Default::default() };
    let forwarder = Forward::start(vec![Pair::Both(only_receives, near)], &options, arena, &stop).unwrap();
    let QueuePair { rx, tx } = far.queues().remove(0);
    let (mut tx, mut pool, mut batch) = (tx.unwrap(), arena.pool(10).unwrap(), Batch::new());
    batch.push(Packet::new(pool.take().unwrap()));
    tx.tx(&mut pool, &mut batch);
    assert_eq!(tx.counters().errors, 1, "nobody receives what is sent to it");
    stop.set();
    forwarder.finish();
    tx.close(&mut pool);
    rx.unwrap().close(&mut pool);
    far.close().unwrap();
}

#[test]
fn what_does_not_go_together_is_refused_and_leaves_every_frame_at_home() {
    let arena = arena();
    let cores = WorkerOptions { cores: vec![0, 1, 2], ..WorkerOptions::default() };
    let refused = |result: Result<Generate, bywash_apps::StartError>, part: &str| {
        let reason = result.err().unwrap().to_string();
        assert!(reason.contains(part) && !reason.contains('\n'), "{reason}");
    };
    let options = generate::Options { workers: cores.clone(), ..Default::default() };
    refused(Generate::start(open("null:", 2, arena), &options, arena, &stop()), "3 cores for 2 queues");
    let options = generate::Options { rate: Some(Rate::Percent(5.0)), ..Default::default() };
    refused(Generate::start(open("null:", 1, arena), &options, arena, &stop()), "unknown speed");
    let options =
        generate::Options { frame: Frame { size: 1519.into(), ..Frame::default() }, ..Default::default() };
    refused(Generate::start(only_sends("tap:a", StuckTx), &options, arena, &stop()), "at most 1518 bytes");
    let frame = Frame { size: 9000.into(), ..Frame::default() };
    let options = generate::Options { frame, workers: workers(4), ..Default::default() };
    refused(Generate::start(open("null:", 1, arena), &options, arena, &stop()), "5 frames of memory");
    let options = generate::Options { workers: workers(1 << 20), ..Default::default() };
    refused(Generate::start(open("null:", 1, arena), &options, arena, &stop()), "--memory");
    let pair = Pair::Both(only_sends("tap:a", StuckTx), only_sends("tap:b", StuckTx));
    let error = Forward::start(vec![pair], &forward::Options::default(), arena, &stop()).err().unwrap();
    assert_eq!(error.to_string(), "tap:a and tap:b: one must receive and the other send");
    let error = Receive::start(only_sends("tap:a", StuckTx), &receive::Options::default(), arena, &stop())
        .err()
        .unwrap();
    assert_eq!(error.to_string(), "tap:a only sends: nothing can be received from it");
    assert_eq!(arena.unused(), arena.frames());
}
