//! `loop:NAME`, a wire in memory: what one end sends, the other receives, whole batches at once and without a copy.
//! Two opens of one name in one process are its two ends.
//!
//! No system call is made while both ends are busy; a sleeping receiver is woken through an eventfd. A wire that is
//! full takes no more, as a NIC whose ring is full. When the other end is closed, what is sent is lost and counted.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bywash_frame::{BATCH, Batch, FRAME_DATA, MAX_FRAMES, Packet, Pool};
use bywash_port::{Capabilities, Counter, Port, PortName, QueueCounters, QueuePair, RxQueue, TxQueue};
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};

use crate::OpenOptions;

/// Packets that a queue of the wire holds.
const RING: usize = 1024;

/// From so many packets on, a batch goes over the wire as it is, and an empty one comes back for it: no packet is moved.
/// Fewer go one by one, so that a wire full of small batches holds as many packets as one of large ones, and needs no
/// memory for batches that are mostly empty.
const WHOLE: usize = BATCH / 4;

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
            max_len: MAX_FRAMES * FRAME_DATA,
            tx_checksum: true,
            segmentation: true,
            chains: true,
            zero_copy: true,
            mode: vec!["in memory"],
            link_mbps: None,
            sent: None,
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
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| format!("no eventfd for waking the receiver: {e}"))?;
    let doorbell = Arc::new(Doorbell { bell, sleeping: AtomicBool::new(false) });
    let taken = Arc::new(Taken(AtomicUsize::new(0)));
    let (entries, arrivals) = RingBuffer::new(ring);
    // So many batches of `WHOLE` packets at most can be on the way.
    let batches = ring.div_ceil(WHOLE);
    let (back, returned) = RingBuffer::new(batches);
    let tx = LoopTx {
        ring: entries,
        returned,
        empty: std::iter::repeat_with(Batch::new).take(batches).collect(),
        size: ring,
        sent: 0,
        taken: Arc::clone(&taken),
        seen_taken: 0,
        doorbell: Arc::clone(&doorbell),
        counters: QueueCounters::default(),
    };
    let rx = LoopRx {
        ring: arrivals,
        back,
        rest: Batch::new(),
        taken,
        doorbell,
        armed: false,
        counters: QueueCounters::default(),
    };
    Ok((tx, rx))
}

/// What lies on the wire.
enum Entry {
    One(Packet),
    /// [`WHOLE`] packets or more.
    Many(Batch),
}

/// How many packets the receiver has taken, by which the sender knows how many are on the wire. In a cache line of its
/// own, and the one that is fetched with it: it is written in every turn.
#[repr(align(128))]
struct Taken(AtomicUsize);

impl Port for LoopPort {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
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
    ring: Consumer<Entry>,
    /// Empty batches on their way back to the sender.
    back: Producer<Batch>,
    /// What did not fit of a batch that was taken off the ring.
    rest: Batch,
    taken: Arc<Taken>,
    doorbell: Arc<Doorbell>,
    /// Whether we have been asleep since the bell was last hushed.
    armed: bool,
    counters: QueueCounters,
}

impl LoopRx {
    /// Takes the next packets off the ring; false when there are none. There is room in `batch`, and `rest` is empty.
    #[inline]
    fn take(&mut self, batch: &mut Batch) -> bool {
        match self.ring.pop() {
            Err(_) => return false,
            Ok(Entry::One(packet)) => batch.push(packet),
            Ok(Entry::Many(mut many)) => {
                if !batch.is_empty() || !batch.exchange(&mut many) {
                    // No batch has a limit in here.
                    self.rest.exchange(&mut many);
                }
                // There is room for all batches that the wire has.
                let _ = self.back.push(many);
            }
        }
        true
    }
}

impl RxQueue for LoopRx {
    fn rx(&mut self, _: &mut Pool, batch: &mut Batch) -> usize {
        if self.armed {
            self.doorbell.hush();
            self.armed = false;
        }
        let before = batch.len();
        while batch.room() > 0 {
            if !self.rest.is_empty() {
                let room = batch.room();
                batch.extend(self.rest.drain_front(room));
            } else if !self.take(batch) {
                break;
            }
        }
        let mut bytes = 0;
        for packet in batch.iter().skip(before) {
            // Another core has just written it: all first lines are asked for before the first one is looked at.
            packet.head_segment().frame().prefetch();
            bytes += packet.len();
        }
        let n = batch.len() - before;
        if n > 0 {
            self.counters.packets += n as u64;
            self.counters.bytes += bytes as u64;
            // After the pops: the sender may rely on the entries being free.
            let taken = self.taken.0.load(Ordering::Relaxed);
            self.taken.0.store(taken.wrapping_add(n), Ordering::Release);
        }
        n
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        self.doorbell.arm(|| self.rest.is_empty() && self.ring.is_empty())
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.doorbell.bell.as_fd())
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(mut self: Box<Self>, pool: &mut Pool) {
        pool.give_batch(&mut self.rest);
        while let Ok(entry) = self.ring.pop() {
            match entry {
                Entry::One(packet) => pool.give_packet(packet),
                Entry::Many(mut many) => pool.give_batch(&mut many),
            }
        }
    }
}

struct LoopTx {
    ring: Producer<Entry>,
    /// Empty batches that come back from the receiver.
    returned: Consumer<Batch>,
    /// Those that are here. The last one that came back goes first: it is still in the cache.
    empty: Vec<Batch>,
    /// Packets that the wire holds.
    size: usize,
    sent: usize,
    taken: Arc<Taken>,
    /// What `taken` was when it was last looked at.
    seen_taken: usize,
    doorbell: Arc<Doorbell>,
    counters: QueueCounters,
}

impl LoopTx {
    /// How many of `wanted` packets there is room for.
    #[inline]
    fn room(&mut self, wanted: usize) -> usize {
        if self.size - self.sent.wrapping_sub(self.seen_taken) < wanted {
            self.seen_taken = self.taken.0.load(Ordering::Acquire);
        }
        wanted.min(self.size - self.sent.wrapping_sub(self.seen_taken))
    }

    /// Puts the first `n` packets on the ring, whole when they are all and worth it; false, and they stay, when it is
    /// full.
    #[inline]
    fn put(&mut self, batch: &mut Batch, n: usize) -> bool {
        while let Ok(empty) = self.returned.pop() {
            self.empty.push(empty);
        }
        if n >= WHOLE
            && n == batch.len()
            && let Ok(place) = self.ring.write_chunk_uninit(1)
            && let Some(mut many) = self.empty.pop()
        {
            // No batch has a limit in here, and this one is empty.
            many.exchange(batch);
            place.fill_from_iter([Entry::Many(many)]);
            return true;
        }
        let Ok(places) = self.ring.write_chunk_uninit(n) else { return false };
        places.fill_from_iter(batch.drain_front(n).map(Entry::One));
        true
    }
}

impl TxQueue for LoopTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.ring.is_abandoned() {
            let lost = batch.len();
            self.counters.errors += lost as u64;
            pool.give_batch(batch);
            return lost;
        }
        let n = self.room(batch.len());
        let bytes: usize = batch.iter().take(n).map(Packet::len).sum();
        if n == 0 || !self.put(batch, n) {
            return 0;
        }
        self.sent = self.sent.wrapping_add(n);
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
