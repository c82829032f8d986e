//! The XDP program of a port: which packets go to our sockets, and what it counted.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bywash_port::Counter;
use bywash_sys::bpf::{
    BpfError, LoadError, Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec, jiffies,
};
use bywash_sys::shared::{Mapping, Word};
use bywash_sys::xsk::Socket;

/// After so long without a call of `rx` a process counts as hung, and its packets stay with the kernel.
const HUNG: Duration = Duration::from_millis(500);

/// What the program and we share.
pub(super) struct Maps {
    sockets: Map,
    heartbeat: Map,
    counters: Map,
    beats: Arc<Mapping>,
}

/// A queue's heartbeat: shows the program that somebody takes its packets.
pub(super) struct Beat {
    word: Word<AtomicU64>,
    count: u64,
}

impl Beat {
    /// Once more.
    #[inline]
    pub(super) fn beat(&mut self) {
        self.count = self.count.wrapping_add(1);
        self.word.store(self.count, Relaxed);
    }
}

impl Maps {
    /// Maps for an interface with so many queues.
    pub(super) fn create(queues: u32) -> Result<Self, BpfError> {
        let map = |kind, name, value_size, entries, mappable| {
            Map::create(&MapSpec { kind, name, key_size: 4, value_size, entries, mappable })
        };
        let heartbeat = map(MapKind::Array, "bywash_beat", BEAT_SIZE, queues, true)?;
        Ok(Self {
            sockets: map(MapKind::XskMap, "bywash_sockets", 4, queues, false)?,
            counters: map(MapKind::PerCpuArray, "bywash_counters", 16, 1, false)?,
            beats: heartbeat.map_memory()?,
            heartbeat,
        })
    }

    /// From now on the queue's packets go to this socket.
    pub(super) fn add_socket(&self, queue: u32, socket: &Socket) -> Result<(), BpfError> {
        self.sockets.update_fd(queue, socket.as_fd())
    }

    /// From now on the queue's packets stay with the kernel. The kernel does the same by itself for a closed socket.
    pub(super) fn remove_socket(&self, queue: u32) {
        let _ = self.sockets.delete(&queue.to_ne_bytes());
    }

    /// The heartbeat of a queue.
    pub(super) fn beat(&self, queue: u32) -> std::io::Result<Beat> {
        let mut beat =
            Beat { word: Word::u64_at(&self.beats, queue as usize * BEAT_SIZE as usize)?, count: 0 };
        // A queue just opened is as good as one just called.
        beat.beat();
        Ok(beat)
    }

    /// What the program has counted.
    pub(super) fn counters(&self) -> Vec<Counter> {
        let mut counters = Vec::new();
        for (index, [packets, bytes]) in (0..).zip(COUNTERS) {
            let [p, b] = self.counters.sum(index).unwrap_or_default();
            counters.push(Counter { name: packets, value: p });
            counters.push(Counter { name: bytes, value: b });
        }
        counters
    }
}

const BEAT_SIZE: u32 = 64;
const COUNTERS: [[&str; 2]; 1] = [["taken_packets", "taken_bytes"]];

/// Loads the program that gives packets to the sockets in `maps`.
pub(super) fn load(maps: &Maps) -> Result<Program, LoadError> {
    let i = |code: u8, regs: u8, off: i16, imm: i32| {
        let mut b = [code, regs, 0, 0, 0, 0, 0, 0];
        b[2..4].copy_from_slice(&off.to_ne_bytes());
        b[4..].copy_from_slice(&imm.to_ne_bytes());
        u64::from_ne_bytes(b)
    };
    let limit = i32::try_from(jiffies(HUNG)).unwrap_or(i32::MAX);
    let map = |map: &Map| [i(0x18, 0x11, 0, map.as_raw_fd()), 0];
    let mut instructions = vec![i(0xbf, 0x16, 0, 0), i(0x61, 0x67, 16, 0), i(0x63, 0x7a, -4, 0)];
    instructions.extend(map(&maps.heartbeat));
    instructions.extend([
        i(0xbf, 0xa2, 0, 0),
        i(0x07, 0x02, 0, -4),
        i(0x85, 0, 0, 1),
        i(0x15, 0, 17, 0), // no such queue: pass
        i(0xbf, 0x08, 0, 0),
        i(0x85, 0, 0, 118),
        i(0x79, 0x81, 0, 0),
        i(0x79, 0x82, 8, 0),
        i(0x5d, 0x21, 4, 0), // it has beaten
        i(0x79, 0x83, 16, 0),
        i(0x1f, 0x30, 0, 0),
        i(0x25, 0, 9, limit), // hung: pass
        i(0x05, 0, 2, 0),
        i(0x7b, 0x18, 8, 0),
        i(0x7b, 0x08, 16, 0),
    ]);
    instructions.extend(map(&maps.sockets));
    instructions.extend([
        i(0xbf, 0x72, 0, 0),
        i(0xb7, 0x03, 0, 2),
        i(0x85, 0, 0, 51),
        i(0x95, 0, 0, 0),
        i(0xb7, 0, 0, 2),
        i(0x95, 0, 0, 0),
    ]);
    Program::load(&ProgramSpec { kind: ProgramKind::XdpFrags, name: "bywash", instructions: &instructions })
}

/// Loads the program that leaves everything to the kernel: what some drivers want before they send without copies.
pub(super) fn load_pass() -> Result<Program, LoadError> {
    let instructions = [0x2_0000_00b7, 0x95];
    Program::load(&ProgramSpec {
        kind: ProgramKind::XdpFrags,
        name: "bywash_pass",
        instructions: &instructions,
    })
}
