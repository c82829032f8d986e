//! Many packets at once on their way back: one call of the kernel's makes them its own, where a TAP takes each by itself.
//!
//! BPF_PROG_TEST_RUN's live frames are packets that nobody received, made by an XDP program ([`LiveFrames`]) as if they had come
//! in by the interface. What it leaves to the kernel goes through its stack together, as what a driver has polled
//! does, at less than half of the price of one that a TAP takes. A call has a price too, so few packets go by the TAP.
//!
//! Both ways are over when the call returns, so that what comes later by either is later for the kernel. One exception: a TAP's
//! packets pass the CPU's backlog, and may wait there when the CPU has too much to receive. Only when nothing waits there does what
//! comes next go the other way ([`softnet::backlog`]). Where the kernel deals out flows to other CPUs (RPS), it does so the same way with
//! both.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use bywash_filter::xdp::LiveFrames;
use bywash_frame::{Batch, Packet, Pool};
use bywash_port::{QueueCounters, TxQueue};
use bywash_sys::bpf::{InTrampoline, Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec, TestInput};
use bywash_sys::namespace::Namespace;
use bywash_sys::shared::Mapping;
use bywash_sys::{clock, softnet};
use rustix::thread::sched_getcpu;
use zerocopy::IntoBytes;

use crate::virtio::ETHERNET;

/// With so many packets at once a queue is behind. Less than a batch, which one that is behind always has.
const ENOUGH: usize = 32;

/// After so many packets while it is behind they begin to go together. A burst that is over by then goes by the TAP, by which it takes a
/// sixth of the room in sockets' buffers: here each counts as the page that it lies in.
const BEHIND: usize = 256;

/// As long as there are so many they go on doing so: what a call costs is less than what they save.
const STILL_ENOUGH: usize = 12;

/// How soon it is tried again when the kernel has refused.
const AGAIN_NS: u64 = clock::SECOND;

/// What all queues of a way back share: the program, and the memory that it makes packets of.
#[derive(Debug)]
pub(super) struct Live {
    program: Program,
    memory: Arc<Mapping>,
    interface: u32,
    /// The network namespace in which it has that number: a call means the caller's.
    namespace: u64,
    _place: InTrampoline,
    /// Kept for as long as the program may look into it.
    _map: Map,
}

impl Live {
    /// Makes ready what gives packets to `interface`, for so many workers.
    ///
    /// # Errors
    /// What the kernel says; without CAP_SYS_ADMIN it refuses.
    pub(super) fn open(interface: u32, queues: usize) -> Result<Arc<Self>, String> {
        let count = u32::try_from(queues).unwrap_or(u32::MAX);
        let spec = MapSpec {
            kind: MapKind::Array,
            name: "bywash_live",
            key_size: 4,
            value_size: u32::try_from(LiveFrames::region(queues)).unwrap_or(u32::MAX),
            entries: 1,
            mappable: true,
        };
        let map = Map::create(&spec).map_err(|error| error.to_string())?;
        let instructions = LiveFrames { map: map.as_raw_fd(), queues: count }
            .program()
            .map_err(|error| error.to_string())?
            .to_words();
        let spec =
            ProgramSpec { kind: ProgramKind::XdpFrags, name: "bywash_live", instructions: &instructions };
        let program = Program::load(&spec).map_err(|error| error.to_string())?;
        let place = InTrampoline::put(&program).map_err(|error| error.to_string())?;
        let memory = map.map_memory().map_err(|error| error.to_string())?;
        let namespace = Namespace::current().and_then(|namespace| namespace.number());
        let namespace = namespace.map_err(|error| error.to_string())?;
        Ok(Arc::new(Self { program, memory, interface, namespace, _place: place, _map: map }))
    }

    /// The sending half of a queue, counted from the first one, whose packets go by `tap` when they are few.
    pub(super) fn sender(self: &Arc<Self>, place: usize, tap: Box<dyn TxQueue>) -> LiveTx {
        let mut made = [0; LiveFrames::MADE];
        let number = u32::try_from(place).unwrap_or(u32::MAX);
        made[..size_of_val(&number)].copy_from_slice(number.as_bytes());
        // `struct xdp_md`: where the packet begins and ends, its metadata, the interface and its queue, and where it leaves.
        let end = u32::try_from(made.len()).unwrap_or(u32::MAX);
        let context = [0, end, 0, self.interface, 0, 0];
        LiveTx {
            live: Arc::clone(self),
            tap,
            region: LiveFrames::region(place),
            made,
            context,
            behind: 0,
            together: false,
            not_before: 0,
            counters: QueueCounters::default(),
        }
    }
}

/// A sending half of a way back: few packets go one by one, many together.
pub(super) struct LiveTx {
    live: Arc<Live>,
    tap: Box<dyn TxQueue>,
    /// Where this queue's packets stand in memory.
    region: usize,
    /// What the kernel makes packets with.
    made: [u8; LiveFrames::MADE],
    context: [u32; 6],
    /// Packets since the queue is behind.
    behind: usize,
    /// The last ones went together.
    together: bool,
    /// The kernel has refused, and is not asked again before.
    not_before: u64,
    /// What went together.
    counters: QueueCounters,
}

impl LiveTx {
    /// Notes that so many packets wait.
    fn note(&mut self, waiting: usize) {
        if waiting >= ENOUGH {
            self.behind = self.behind.saturating_add(waiting);
        } else if !self.together || waiting < STILL_ENOUGH {
            (self.behind, self.together) = (0, false);
        }
    }

    /// How many of the first packets go together now.
    fn going_together(&mut self, batch: &Batch) -> usize {
        if self.behind < BEHIND {
            return 0;
        }
        let enough = if self.together { STILL_ENOUGH } else { ENOUGH };
        // Mostly all that there are.
        let fit = batch.iter().take(LiveFrames::MOST).take_while(|packet| fits(packet)).count();
        self.together = fit >= enough && (self.together || self.may_begin());
        if self.together { fit } else { 0 }
    }

    /// Whether all that went by the TAP has arrived, and the kernel may be asked.
    #[cold]
    fn may_begin(&self) -> bool {
        let is_here = || Namespace::current().and_then(|here| here.number());
        (self.not_before == 0 || clock::monotonic() >= self.not_before)
            && is_here().is_ok_and(|here| here == self.live.namespace)
            && softnet::backlog(sched_getcpu()).is_ok_and(|waits| waits == 0)
    }

    /// Gives the kernel so many of the first packets, and says how many it has.
    fn give(&mut self, batch: &Batch, count: usize) -> usize {
        let memory = &self.live.memory;
        for (place, packet) in batch.iter().take(count).enumerate() {
            let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
            memory.copy_in(self.region + LiveFrames::length(place), len.as_bytes());
            let mut at = self.region + LiveFrames::packet(place);
            for bytes in packet.slices() {
                memory.copy_in(at, bytes);
                at += bytes.len();
            }
        }
        memory.copy_in(self.region + LiveFrames::NEXT, 0_u64.as_bytes());
        let repeat = u32::try_from(count).unwrap_or(u32::MAX);
        let result = self.live.program.test_run(&TestInput {
            packet: &self.made,
            context: self.context.as_bytes(),
            repeat,
            live: true,
            batch: repeat,
        });
        if result.is_err() {
            self.together = false;
            self.not_before = clock::monotonic() + AGAIN_NS;
        }
        // What the program has made is the kernel's, whatever the call says of those behind.
        let made = self.live.memory.read::<u64>(self.region + LiveFrames::NEXT).unwrap_or(0);
        usize::try_from(made).unwrap_or(usize::MAX).min(count)
    }
}

/// Whether the program can make this packet.
#[inline]
fn fits(packet: &Packet) -> bool {
    !packet.offload.asks_for_work() && (ETHERNET..=LiveFrames::LONGEST).contains(&packet.len())
}

impl TxQueue for LiveTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.note(batch.len());
        let mut done = 0;
        while !batch.is_empty() {
            let count = self.going_together(batch);
            let given = if count == 0 { 0 } else { self.give(batch, count) };
            if given == 0 {
                return done + self.tap.tx(pool, batch);
            }
            for packet in batch.drain_front(given) {
                self.counters.packets += 1;
                self.counters.bytes += packet.len() as u64;
                pool.give_packet(packet);
            }
            done += given;
        }
        done
    }

    fn flush(&mut self, pool: &mut Pool) {
        self.tap.flush(pool);
    }

    fn in_flight(&self) -> usize {
        self.tap.in_flight()
    }

    fn counters(&self) -> QueueCounters {
        [self.counters, self.tap.counters()].into_iter().sum()
    }

    fn close(self: Box<Self>, pool: &mut Pool) {
        self.tap.close(pool);
    }
}
