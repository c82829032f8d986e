//! What the tests of `packet:` and `tap:` share: an opened port with its pool, packets to send, and a count of allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use bywash_frame::{Arena, Batch, FRAME_SIZE, Packet, Pool, Segment};
use bywash_port::{OpenError, Port, QueuePair, RxQueue, TxQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Packets for which nothing may be allocated.
pub(crate) const A_MILLION: u64 = 1_000_000;

/// Frames in an end's pool.
pub(crate) const FRAMES: usize = 2048;

/// A port, its queues and the pool that its frames come from.
pub(crate) struct End {
    pub(crate) port: Box<dyn Port>,
    pub(crate) queues: Vec<QueuePair>,
    pub(crate) pool: Pool,
    pub(crate) batch: Batch,
}

impl End {
    pub(crate) fn open<P: Port + 'static>(open: impl FnOnce(&'static Arena) -> Result<P, OpenError>) -> Self {
        let arena = Arena::new(vec![0; (FRAMES + 128) * FRAME_SIZE]).unwrap();
        let mut port: Box<dyn Port> = Box::new(open(arena).unwrap_or_else(|error| panic!("{error}")));
        let queues = port.queues();
        assert!(port.queues().is_empty(), "queues are given out once");
        Self { port, queues, pool: arena.pool(FRAMES).unwrap(), batch: Batch::new() }
    }

    pub(crate) fn rx(&mut self) -> &mut dyn RxQueue {
        &mut **self.queues[0].rx.as_mut().unwrap()
    }

    pub(crate) fn tx(&mut self) -> &mut dyn TxQueue {
        &mut **self.queues[0].tx.as_mut().unwrap()
    }

    /// Receives on one queue into the batch.
    pub(crate) fn turn(&mut self, queue: usize) -> usize {
        self.queues[queue].rx.as_mut().unwrap().rx(&mut self.pool, &mut self.batch)
    }

    /// Sleeps as a worker does, until a packet comes; false when none came in `patience`.
    pub(crate) fn sleep(&mut self, patience: Duration) -> bool {
        !self.rx().arm() || self.woken(patience)
    }

    /// Whether the queue's descriptor becomes readable.
    pub(crate) fn woken(&mut self, patience: Duration) -> bool {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(patience.as_nanos()).unwrap() };
        let wake = self.queues[0].rx.as_ref().unwrap().wake_fd().unwrap();
        poll(&mut [PollFd::from_borrowed_fd(wake, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    }

    /// The next packets on the first queue, at least `n`, for which `wanted` holds; it sleeps in between.
    pub(crate) fn receive(&mut self, n: usize, wanted: impl Fn(&Packet) -> bool) -> Vec<Packet> {
        let start = Instant::now();
        let mut packets = Vec::new();
        while packets.len() < n {
            assert!(start.elapsed() < PATIENCE, "{} of {n} packets came", packets.len());
            if self.turn(0) == 0 {
                self.sleep(Duration::from_millis(100));
            }
            for packet in self.batch.drain() {
                if wanted(&packet) { packets.push(packet) } else { self.pool.give_packet(packet) }
            }
        }
        packets
    }

    /// Sends a packet on the first queue.
    pub(crate) fn send(&mut self, packet: Packet) {
        let mut batch = Batch::new();
        batch.push(packet);
        let start = Instant::now();
        while !batch.is_empty() {
            assert!(start.elapsed() < PATIENCE, "the port takes nothing");
            let tx = self.queues[0].tx.as_mut().unwrap();
            tx.tx(&mut self.pool, &mut batch);
            tx.flush(&mut self.pool);
        }
    }

    /// A packet with these bytes, over as many frames as it takes.
    pub(crate) fn packet(&mut self, bytes: &[u8]) -> Packet {
        let mut pieces = bytes.chunks(1900);
        let mut packet = Packet::new(self.pool.take().unwrap());
        packet.extend_from_slice(pieces.next().unwrap()).unwrap();
        for piece in pieces {
            let segment = Segment::new(self.pool.take().unwrap(), 256, 0).unwrap();
            packet.push_segment(segment, &mut self.pool).unwrap();
            packet.extend_from_slice(piece).unwrap();
        }
        packet
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.port.counters().into_iter().find(|counter| counter.name == name).unwrap().value
    }

    /// Closes everything; every frame has come home.
    pub(crate) fn close(mut self) {
        for queue in self.queues.drain(..) {
            if let Some(rx) = queue.rx {
                rx.close(&mut self.pool);
            }
            if let Some(tx) = queue.tx {
                tx.close(&mut self.pool);
            }
        }
        self.port.close().unwrap();
        assert_eq!((self.pool.free(), self.pool.arena().orphaned()), (FRAMES, 0));
    }
}

/// All bytes of a packet.
pub(crate) fn bytes(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.copy_to(&mut bytes);
    bytes
}

/// An Ethernet frame of `len` bytes with the local experimental protocol, other bytes for each `n`.
pub(crate) fn frame(n: usize, len: usize) -> Vec<u8> {
    let mut frame = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]].concat();
    frame.extend(EXPERIMENTAL);
    frame.extend((0..len - 14).map(|i| (n.wrapping_mul(0x9e37_79b9) >> (i % 24)) as u8 ^ i as u8));
    frame
}

/// The protocol number of [`frame`].
pub(crate) const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];

pub(crate) fn experimental(packet: &Packet) -> bool {
    packet.head()[12..14] == EXPERIMENTAL
}

/// An Ethernet frame with a UDP datagram whose checksum is only begun: the pseudo-header's sum. From 1 to 2, `[10, net, 0, _]`.
pub(crate) fn datagram(net: u8, addresses: [[u8; 6]; 2], ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let (source, destination) = ([10, net, 0, 1], [10, net, 0, 2]);
    let len = u16::try_from(8 + payload.len()).unwrap();
    let mut frame = [addresses[1].as_slice(), &addresses[0], &[8, 0]].concat();
    let mut ip = [
        &[0x45, 0],
        (20 + len).to_be_bytes().as_slice(),
        &[0, 0, 0x40, 0, 64, 17, 0, 0],
        &source,
        &destination,
    ]
    .concat();
    let header = !sum(&ip);
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    frame.extend(ip);
    let pseudo = [source.as_slice(), &destination, &[0, 17], &len.to_be_bytes()].concat();
    for word in [ports[0], ports[1], len, sum(&pseudo)] {
        frame.extend(word.to_be_bytes());
    }
    frame.extend(payload);
    frame
}

/// Ones' complement sum of big-endian words (RFC 1071).
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// For [`rustix::thread::set_capabilities`].
pub(crate) fn no_capabilities() -> CapabilitySets {
    let none = CapabilitySet::empty();
    CapabilitySets { effective: none, permitted: none, inheritable: none }
}

/// Counts the calling thread's allocations.
pub(crate) struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of this thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are those that System asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `alloc` got the pointer from System.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
