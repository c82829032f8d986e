//! Between rx and tx there is no allocation and no system call: a million packets through each app, in a process that
//! the kernel kills at the first system call.
#![expect(unsafe_code, reason = "a global allocator that counts, and an exit that does nothing else")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use bywash_apps::forward::{self, Forward, MacEdit, Pair};
use bywash_apps::generate::{self, Frame, Generate};
use bywash_apps::port::frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_apps::port::{Capabilities, Counter, Port, PortName, QueueCounters, QueuePair, RxQueue, TxQueue};
use bywash_apps::probe::Probe;
use bywash_apps::receive::{self, Receive};
use bywash_apps::replay::{self, Replay, Source, Timing};
use bywash_apps::sys::worker::{Stop, allowed_cores};
use bywash_apps::wire::zerocopy::IntoBytes;
use bywash_apps::wire::{Ipv4Header, Protocol};
use bywash_apps::{App, WorkerOptions};
use bywash_drivers::OpenOptions;
use bywash_pcap::{Format, Interface};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Packets before it counts.
const WARM_UP: usize = 100_000;

/// Packets that must cost nothing.
const MEASURED: usize = 1_000_000;

/// What tells the process that it is the one to be killed, and which app to run.
const APP: &str = "BYWASH_TEST_APP";

/// How the process says that there were allocations.
const ALLOCATED: i32 = 3;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

struct Counting;

// SAFETY: everything is done by `System`; counting in a thread-local without a destructor allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` comes from `System.alloc`, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Counts packets; after the warm-up forbids its thread all system calls, and ends the process when it has seen
/// enough.
#[derive(Default)]
struct Gauge {
    packets: usize,
    allocations: Option<u64>,
}

impl Gauge {
    fn count(&mut self, packets: usize) {
        self.packets += packets;
        let allocations = ALLOCATIONS.with(Cell::get);
        match self.allocations {
            None if self.packets > WARM_UP => {
                forbid_system_calls();
                self.allocations = Some(ALLOCATIONS.with(Cell::get));
            }
            Some(before) if self.packets > WARM_UP + MEASURED => {
                exit(if allocations == before { 0 } else { ALLOCATED });
            }
            _ => {}
        }
    }
}

fn forbid_system_calls() {
    let exit_only = [(libc::SYS_exit_group, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter =
        SeccompFilter::new(exit_only, SeccompAction::KillProcess, SeccompAction::Allow, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

fn exit(code: i32) -> ! {
    // SAFETY: it ends the process by one system call and touches nothing.
    unsafe { libc::_exit(code) }
}

/// A port of which one half is gauged: there can be only one gauge in a thread.
struct Gauged {
    inner: Box<dyn Port>,
    gauge_tx: bool,
    /// Packets that are put in by the first rx, to go round.
    inject: usize,
    /// What comes in becomes a generator's packets, with every fault there is.
    probes: bool,
}

struct GaugedRx(Box<dyn RxQueue>, Gauge, usize, Option<Probes>);

/// Makes a generator's packets of others.
struct Probes {
    head: Vec<u8>,
    made: u32,
}

impl Probes {
    fn new() -> Self {
        let (from, to) = (Ipv4Addr::new(192, 168, 0, 1), Ipv4Addr::new(192, 168, 0, 2));
        let ip = Ipv4Header::new(from, to, Protocol::UDP.0, 26);
        let head = [&[0; 12][..], &[8, 0], ip.as_bytes(), &[0, 9, 0, 9, 0, 26, 0, 0]].concat();
        Self { head, made: 0 }
    }

    /// 300 streams in turn; each has packets late, twice, damaged, and holes, narrow and wide.
    fn write(&mut self, packet: &mut [u8]) {
        let (stream, n) = ((self.made % 300) as u16, self.made / 300);
        self.made += 1;
        let sequence = match n % 16 {
            3 => n.wrapping_sub(1),
            5 => n.wrapping_sub(3),
            7 => n.wrapping_mul(10_000),
            _ => n.wrapping_mul(3),
        };
        let mut probe = Probe { stream, sequence, time: u64::from(self.made) << 8, flows: 3 }.to_bytes(0);
        probe[17] ^= u8::from(n % 16 == 9);
        packet[..self.head.len()].copy_from_slice(&self.head);
        packet[self.head.len()..][..probe.len()].copy_from_slice(&probe);
    }
}

struct GaugedTx(Box<dyn TxQueue>, Gauge);

impl Port for Gauged {
    fn name(&self) -> &PortName {
        self.inner.name()
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn mac(&self) -> Option<[u8; 6]> {
        self.inner.mac()
    }
    fn queues(&mut self) -> Vec<QueuePair> {
        let (inject, gauge_tx, probes) = (self.inject, self.gauge_tx, self.probes);
        let gauged = self.inner.queues().into_iter().map(|QueuePair { rx, tx }| {
            if gauge_tx {
                let tx = tx.map(|tx| -> Box<dyn TxQueue> { Box::new(GaugedTx(tx, Gauge::default())) });
                return QueuePair { rx, tx };
            }
            let probes = probes.then(Probes::new);
            let rx =
                rx.map(|rx| -> Box<dyn RxQueue> { Box::new(GaugedRx(rx, Gauge::default(), inject, probes)) });
            QueuePair { rx, tx }
        });
        gauged.collect()
    }
    fn counters(&self) -> Vec<Counter> {
        self.inner.counters()
    }
    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        self.inner.close()
    }
}

impl RxQueue for GaugedRx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        while self.2 > 0 && batch.room() > 0 {
            self.2 -= 1;
            let mut packet = Packet::new(pool.take().unwrap());
            packet.extend_from_slice(&[0x5a; 60]).unwrap();
            batch.push(packet);
        }
        let n = if batch.is_empty() { self.0.rx(pool, batch) } else { batch.len() };
        if let Some(probes) = &mut self.3 {
            batch.iter_mut().for_each(|packet| probes.write(packet.head_mut()));
        }
        self.1.count(n);
        n
    }
    fn arm(&mut self) -> bool {
        self.0.arm()
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.wake_fd()
    }
    fn counters(&self) -> QueueCounters {
        self.0.counters()
    }
    fn close(self: Box<Self>, pool: &mut Pool) {
        self.0.close(pool);
    }
}

impl TxQueue for GaugedTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = self.0.tx(pool, batch);
        self.1.count(n);
        n
    }
    fn flush(&mut self, pool: &mut Pool) {
        self.0.flush(pool);
    }
    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
    fn counters(&self) -> QueueCounters {
        self.0.counters()
    }
    fn close(self: Box<Self>, pool: &mut Pool) {
        self.0.close(pool);
    }
}

/// Runs `app` in a process of its own, by running the calling test there again.
fn in_a_process_of_its_own(test: &str, app: fn(&'static Arena, Stop)) {
    if std::env::var(APP).is_ok_and(|name| name == test) {
        app(Arena::new(vec![0; 12_000 * FRAME_SIZE]).unwrap(), Stop::new().unwrap());
        unreachable!("the app was to run until the process ended");
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let status = child.args(["--exact", test, "--nocapture"]).env(APP, test).status().unwrap();
    assert_ne!(status.signal(), Some(libc::SIGSYS), "a system call was made");
    assert_ne!(status.code(), Some(ALLOCATED), "memory was allocated");
    assert!(status.success(), "{status}");
}

fn open(name: &str, arena: &'static Arena) -> Box<dyn Port> {
    bywash_drivers::open(&name.parse().unwrap(), &OpenOptions::default(), arena).unwrap().port
}

fn gauged(name: &str, arena: &'static Arena, inject: usize) -> Box<dyn Port> {
    Box::new(Gauged { inner: open(name, arena), gauge_tx: false, inject, probes: false })
}

fn until_the_end(mut app: impl App) {
    app.wait(Duration::from_secs(60));
}

#[test]
fn forwarding_between_null_ports() {
    in_a_process_of_its_own("forwarding_between_null_ports", |arena, stop| {
        let options = forward::Options { edit: MacEdit::Swap, ..Default::default() };
        let pair = Pair::Both(gauged("null:", arena, 0), open("null:", arena));
        until_the_end(Forward::start(vec![pair], &options, arena, &stop).unwrap());
    });
}

#[test]
fn forwarding_round_two_wires() {
    // Out of one wire into the other and back: one worker, so that both ends are busy.
    in_a_process_of_its_own("forwarding_round_two_wires", |arena, stop| {
        let workers = WorkerOptions { cores: allowed_cores()[..1].to_vec(), ..Default::default() };
        let options = forward::Options { edit: MacEdit::Swap, workers, ..Default::default() };
        let there = Pair::Both(gauged("loop:round a", arena, 300), open("loop:round b", arena));
        let back = Pair::Both(open("loop:round b", arena), open("loop:round a", arena));
        until_the_end(Forward::start(vec![there, back], &options, arena, &stop).unwrap());
    });
}

#[test]
fn forwarding_round_two_links() {
    // As above. Both ends of a link are the test's own; the thread that holds its socket may sleep in peace.
    in_a_process_of_its_own("forwarding_round_two_links", |arena, stop| {
        let name = |wire: &str| {
            format!("link:{}/bywash-{wire}-{}", std::env::temp_dir().display(), std::process::id())
        };
        let [a, b] = ["a", "b"].map(name);
        let workers = WorkerOptions { cores: allowed_cores()[..1].to_vec(), ..Default::default() };
        let options = forward::Options { edit: MacEdit::Swap, workers, ..Default::default() };
        let there = Pair::Both(gauged(&a, arena, 300), open(&b, arena));
        let back = Pair::Both(open(&b, arena), open(&a, arena));
        for path in [a, b] {
            // Both ends are connected: the file is not needed any more.
            std::fs::remove_file(path.trim_start_matches("link:")).unwrap();
        }
        until_the_end(Forward::start(vec![there, back], &options, arena, &stop).unwrap());
    });
}

#[test]
fn generating_with_three_varying_fields() {
    in_a_process_of_its_own("generating_with_three_varying_fields", |arena, stop| {
        let frame = Frame { size: 300.into(), sources: 1000, ..Frame::default() };
        let options = generate::Options { frame, ..Default::default() };
        let port = Gauged { inner: open("null:", arena), gauge_tx: true, inject: 0, probes: false };
        until_the_end(Generate::start(Box::new(port), &options, arena, &stop).unwrap());
    });
}

/// (Capturing is not here: it wakes the thread that writes once for each MiB.)
#[test]
fn replaying_over_and_over() {
    in_a_process_of_its_own("replaying_over_and_over", |arena, stop| {
        let format = Format::Pcap;
        let mut file = format.file_header(&Interface::named("test"));
        for len in 60..1500 {
            file.extend(format.record_head(0, len, len).bytes());
            file.extend(vec![0x5a; len as usize]);
        }
        let path = std::env::temp_dir().join(format!("bywash-hot-{}.pcap", std::process::id()));
        std::fs::write(&path, file).unwrap();
        let whole = replay::Options::of(Source::File(path.clone()));
        let options = replay::Options { timing: Timing::Flat, loops: None, ..whole };
        let port = Gauged { inner: open("null:", arena), gauge_tx: true, inject: 0, probes: false };
        let app = Replay::start(Box::new(port), &options, arena, &stop);
        std::fs::remove_file(path).unwrap();
        until_the_end(app.unwrap());
    });
}

#[test]
fn receiving() {
    in_a_process_of_its_own("receiving", |arena, stop| {
        let options = receive::Options::default();
        until_the_end(Receive::start(gauged("null:", arena, 0), &options, arena, &stop).unwrap());
    });
}

#[test]
fn receiving_with_every_fault_there_is() {
    in_a_process_of_its_own("receiving_with_every_fault_there_is", |arena, stop| {
        let port = Gauged { inner: open("null:", arena), gauge_tx: false, inject: 0, probes: true };
        until_the_end(Receive::start(Box::new(port), &receive::Options::default(), arena, &stop).unwrap());
    });
}

#[test]
fn receiving_by_flow() {
    in_a_process_of_its_own("receiving_by_flow", |arena, stop| {
        let options = receive::Options { flows: 20, ..Default::default() };
        let port = Gauged { inner: open("null:", arena), gauge_tx: false, inject: 0, probes: true };
        until_the_end(Receive::start(Box::new(port), &options, arena, &stop).unwrap());
    });
}

#[test]
fn dropping() {
    in_a_process_of_its_own("dropping", |arena, stop| {
        let options = receive::Options { drop: true, ..Default::default() };
        until_the_end(Receive::start(gauged("null:", arena, 0), &options, arena, &stop).unwrap());
    });
}

/// That the judge is awake: a system call and an allocation are seen.
#[test]
fn a_system_call_or_an_allocation_would_be_seen() {
    let run = |what: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_crime_of_our_own", "--ignored"]).env(APP, what).status().unwrap()
    };
    assert_eq!(run("system call").signal(), Some(libc::SIGSYS));
    assert_eq!(run("allocation").code(), Some(ALLOCATED));
    assert_eq!(run("nothing").code(), Some(0));
}

#[test]
#[ignore = "it is run by the test above"]
fn a_crime_of_our_own() {
    let crime = std::env::var(APP).unwrap_or_default();
    let mut gauge = Gauge::default();
    gauge.count(WARM_UP + 1);
    match crime.as_str() {
        "system call" => std::thread::yield_now(),
        "allocation" => drop(std::hint::black_box(Box::new(1))),
        _ => {}
    }
    gauge.count(MEASURED);
    exit(1);
}
