//! `loop:NAME`, a wire in memory: what one end sends, the other receives, frame by frame and without a copy. Two opens
//! of one name in one process are its two ends.
//!
//! No system call is made while both ends are busy; a sleeping receiver is woken through an eventfd. A wire that is
//! full takes no more, as a NIC whose ring is full. When the other end is closed, what is sent is lost and counted.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bywash_frame::{Batch, FRAME_SIZE, HEADROOM, Packet, Pool};
use bywash_port::{Capabilities, Counter, Port, PortName, QueueCounters, QueuePair, RxQueue, TxQueue};
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};

use crate::OpenOptions;

/// Packets that a queue of the wire holds.
const RING: usize = 1024;

/// Wires with an open end, by name.
static WIRES: Mutex<Option<HashMap<String, Wire>>> = Mutex::new(None);

struct Wire {
    /// The second end, until it is opened.
    second: Option<LoopPort>,
    open_ends: usize,
}

fn wires() -> MutexGuard<'static, Option<HashMap<String, Wire>>> {
    WIRES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens one end of the wire called `name`.
///
/// # Errors
/// The reason, when both ends are open already, the second asks for other queues than the first, or the process is
/// out of file descriptors.
pub fn open(name: &str, options: &OpenOptions) -> Result<LoopPort, String> {
    let mut wires = wires();
    let wires = wires.get_or_insert_default();
    if let Some(wire) = wires.get_mut(name) {
        let second = wire.second.take().ok_or("both its ends are open already; use another name")?;
        let same = options.queues.is_none_or(|q| usize::from(q) == second.queues.len());
        if !same || options.ring.is_some_and(|r| r as usize != second.ring) {
            let message = format!(
                "its first end was opened with {} queues of {} packets; open both ends alike",
                second.queues.len(),
                second.ring
            );
            wire.second = Some(second);
            return Err(message);
        }
        wire.open_ends += 1;
        let second = LoopPort { end: Some(OpenEnd(name.into())), ..second };
        return Ok(second);
    }
    let (mut first, second) = LoopPort::pair(name, options)?;
    first.end = Some(OpenEnd(name.into()));
    wires.insert(name.into(), Wire { second: Some(second), open_ends: 1 });
    Ok(first)
}

/// One end of a wire in memory.
pub struct LoopPort {
    name: PortName,
    capabilities: Capabilities,
    queues: Vec<(LoopRx, LoopTx)>,
    ring: usize,
    /// Once it is opened.
    end: Option<OpenEnd>,
}

/// An open end of the wire with this name; dropped, the end is closed, however its port went.
struct OpenEnd(String);

impl Drop for OpenEnd {
    fn drop(&mut self) {
        let mut wires = wires();
        let wires = wires.get_or_insert_default();
        if let Some(wire) = wires.get_mut(&self.0) {
            wire.open_ends -= 1;
            if wire.open_ends == 0 {
                // A second end that goes with it was never opened, so this is not called again under the lock.
                wires.remove(&self.0);
            }
        }
    }
}

impl LoopPort {
    fn pair(name: &str, options: &OpenOptions) -> Result<(Self, Self), String> {
        let ring = options.ring.map_or(RING, |r| r as usize);
        let capabilities = Capabilities {
            max_len: FRAME_SIZE - HEADROOM,
            tx_checksum: true,
            segmentation: true,
            chains: true,
            zero_copy: true,
            mode: vec!["in memory"],
            link_mbps: None,
        };
        let mut ends = (Vec::new(), Vec::new());
        for _ in 0..options.queues.unwrap_or(1) {
            let (tx_one, rx_two) = wire(ring)?;
            let (tx_two, rx_one) = wire(ring)?;
            ends.0.push((rx_one, tx_one));
            ends.1.push((rx_two, tx_two));
        }
        let end = |queues| Self {
            name: PortName::Loop { name: name.into() },
            capabilities: capabilities.clone(),
            queues,
            ring,
            end: None,
        };
        Ok((end(ends.0), end(ends.1)))
    }
}

/// One direction of one queue.
fn wire(ring: usize) -> Result<(LoopTx, LoopRx), String> {
    let (producer, consumer) = RingBuffer::new(ring);
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| format!("no eventfd for waking the receiver: {e}"))?;
    let doorbell = Arc::new(Doorbell { bell, sleeping: AtomicBool::new(false) });
    let tx = LoopTx { ring: producer, doorbell: Arc::clone(&doorbell), counters: QueueCounters::default() };
    Ok((tx, LoopRx { ring: consumer, doorbell, armed: false, counters: QueueCounters::default() }))
}

impl Port for LoopPort {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        let queues = std::mem::take(&mut self.queues).into_iter();
        queues.map(|(rx, tx)| QueuePair { rx: Some(Box::new(rx)), tx: Some(Box::new(tx)) }).collect()
    }

    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        Ok(())
    }
}

/// How the sender wakes a receiver that sleeps.
struct Doorbell {
    bell: OwnedFd,
    sleeping: AtomicBool,
}

impl Doorbell {
    /// The receiver will sleep unless `is_empty` says otherwise.
    fn arm(&self, is_empty: impl Fn() -> bool) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        // Either the sender's ring() sees `sleeping`, or we see its packet: each writes, fences, then reads.
        fence(Ordering::SeqCst);
        let empty = is_empty();
        if !empty {
            self.sleeping.store(false, Ordering::Relaxed);
        }
        empty
    }

    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            // It only fails when the counter is full: then the receiver is awake already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    fn hush(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
        // It only fails when nobody rang.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

struct LoopRx {
    ring: Consumer<Packet>,
    doorbell: Arc<Doorbell>,
    /// Whether we have been asleep since the bell was last hushed.
    armed: bool,
    counters: QueueCounters,
}

impl RxQueue for LoopRx {
    fn rx(&mut self, _: &mut Pool, batch: &mut Batch) -> usize {
        if self.armed {
            self.doorbell.hush();
            self.armed = false;
        }
        let n = self.ring.slots().min(batch.room());
        let Ok(chunk) = self.ring.read_chunk(n) else { return 0 };
        let mut bytes = 0;
        for packet in chunk {
            // Another core has just written it: all first lines are asked for before the first one is looked at.
            packet.head_segment().frame().prefetch();
            bytes += packet.len();
            batch.push(packet);
        }
        self.counters.packets += n as u64;
        self.counters.bytes += bytes as u64;
        n
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        self.doorbell.arm(|| self.ring.is_empty())
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.doorbell.bell.as_fd())
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(mut self: Box<Self>, pool: &mut Pool) {
        while let Ok(packet) = self.ring.pop() {
            pool.give_packet(packet);
        }
    }
}

struct LoopTx {
    ring: Producer<Packet>,
    doorbell: Arc<Doorbell>,
    counters: QueueCounters,
}

impl TxQueue for LoopTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.ring.is_abandoned() {
            let lost = batch.len();
            self.counters.errors += lost as u64;
            pool.give_batch(batch);
            return lost;
        }
        let n = self.ring.slots().min(batch.len());
        let Ok(chunk) = self.ring.write_chunk_uninit(n) else { return 0 };
        let mut bytes = 0;
        chunk.fill_from_iter(batch.drain_front(n).inspect(|packet| bytes += packet.len()));
        self.counters.packets += n as u64;
        self.counters.bytes += bytes as u64;
        n
    }

    fn flush(&mut self, _: &mut Pool) {
        self.doorbell.ring();
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(self: Box<Self>, _: &mut Pool) {}
}
