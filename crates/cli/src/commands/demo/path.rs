//! What packets of the demo travel over: cables between hosts of our own, or wires in memory.

use std::fmt;

use bywash_apps::WorkerOptions;
use bywash_drivers::{OpenOptions, Opened};
use bywash_lab::{Host, LabError, Pair, PairOptions};
use bywash_port::frame::Arena;
use bywash_port::{OpenError, Port, PortName};
use bywash_sys::worker::{self, Idle};

use crate::failure::Failure;

/// Where the demo runs.
pub(super) enum Place {
    /// In network namespaces of its own.
    Namespaces,
    /// In this process's memory.
    Memory,
}

/// A generator, some forwarders and a receiver in a row, with a wire from each to the next.
pub(super) struct Path {
    forwarders: usize,
    wires: Wires,
}

enum Wires {
    /// Removed with their hosts; the cables go first.
    Cables { _pairs: Vec<Pair>, hosts: Vec<Host> },
    /// With so many queues.
    Memory(usize),
}

/// An end of a wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Where packets go in, at the host that sends.
    In,
    /// Where they come out, at the next one.
    Out,
}

impl End {
    /// The lab calls a host's cable to the next one `right`, and that to the one before `left`.
    fn interface(self) -> &'static str {
        match self {
            Self::In => "right",
            Self::Out => "left",
        }
    }
}

/// Packets in the rings that receive: what arrives in 20 ms, since every machine pauses for some.
const RX_RING: u32 = 16384;

/// Packets in the rings that send.
const TX_RING: u32 = 2048;

/// Frames for each worker: its rings full, and as many again on their way.
const FRAMES: usize = 20_000;

/// The same where rings are in memory: the fewer, the more of them the cache holds.
const FRAMES_IN_MEMORY: usize = 2500;

/// Most queues of wires in memory.
const MOST_QUEUES: usize = 2;

impl Path {
    /// Lays the wires.
    pub(super) fn build(place: &Place, forwarders: usize) -> Result<Self, Failure> {
        let wires = match place {
            Place::Memory => Wires::Memory(worker::allowed_cores().len().clamp(1, MOST_QUEUES)),
            Place::Namespaces => {
                let hosts = (0..forwarders + 2).map(|_| Host::new()).collect::<Result<Vec<_>, _>>()?;
                let bare = PairOptions { addresses: [Vec::new(), Vec::new()], ..PairOptions::default() };
                let pairs = hosts.windows(2).map(|pair| Pair::between(&pair[0], &pair[1], &bare));
                Wires::Cables { _pairs: pairs.collect::<Result<Vec<_>, _>>()?, hosts }
            }
        };
        Ok(Self { forwarders, wires })
    }

    /// Forwarders between generator and receiver.
    pub(super) fn forwarders(&self) -> usize {
        self.forwarders
    }

    /// What packets go through, for the user.
    pub(super) fn means(&self) -> String {
        match self.wires {
            Wires::Cables { .. } => "AF_XDP, between namespaces of our own".into(),
            Wires::Memory(queues) => format!("ports in memory, {queues} queues with a core each"),
        }
    }

    /// How the workers of app number `app` run, from 0 for the generator to the receiver.
    pub(super) fn workers(&self, app: usize) -> WorkerOptions {
        let mut cores = worker::allowed_cores();
        if let Wires::Memory(queues) = self.wires {
            // Each queue has a core, and all its workers there: what a packet goes through stays in that core's cache.
            cores.truncate(queues);
            return WorkerOptions { cores, frames: Some(FRAMES_IN_MEMORY), idle: Idle::Yield };
        }
        // The generator has a core to itself where there are two, since its schedule is what is judged. Others may spin where
        // nobody shares their core; where somebody does, they would only keep each other from working.
        let shared = self.forwarders + 2 > cores.len();
        let core = if shared { app.min(cores.len().saturating_sub(1)) } else { app };
        WorkerOptions {
            cores: cores.get(core).copied().into_iter().collect(),
            frames: Some(FRAMES),
            idle: if shared && app > 0 { Idle::Sleep } else { Idle::Adaptive },
        }
    }

    /// Packets that the ends of all cables have dropped since they were laid: whoever was to take them had no room, or the
    /// cable was cut. Wires in memory drop none.
    pub(super) fn dropped(&self) -> Result<u64, Failure> {
        let Wires::Cables { hosts, .. } = &self.wires else { return Ok(0) };
        let mut dropped = 0;
        for wire in 0..=self.forwarders {
            let counters = |host: usize, end: End| {
                let host = &hosts[host];
                let index = host.link(end.interface())?.index;
                Ok::<_, LabError>(host.route().counters(index)?.unwrap_or_default())
            };
            // The kernel counts some of them at either end, and none at neither.
            dropped += counters(wire, End::In)?.tx_dropped + counters(wire + 1, End::Out)?.rx_dropped;
        }
        Ok(dropped)
    }

    /// Opens an end of wire number `wire`, to send there (`In`) or receive (`Out`). The warnings are left out: that a
    /// veth is slower than a NIC is no news here.
    pub(super) fn open(
        &self,
        wire: usize,
        end: End,
        arena: &'static Arena,
    ) -> Result<Box<dyn Port>, Failure> {
        let options = OpenOptions {
            tx_only: matches!(end, End::In),
            rx_only: matches!(end, End::Out),
            ..OpenOptions::default()
        };
        let opened: Result<Opened, OpenError> = match &self.wires {
            Wires::Memory(queues) => {
                let name = PortName::Loop { name: format!("demo {wire}") };
                let options = OpenOptions { queues: u16::try_from(*queues).ok(), ..options };
                bywash_drivers::open(&name, &options, arena)
            }
            Wires::Cables { hosts, .. } => {
                let (host, ring) = match end {
                    End::In => (wire, TX_RING),
                    End::Out => (wire + 1, RX_RING),
                };
                let name = PortName::Xdp { interface: end.interface().into(), queues: Default::default() };
                let options = OpenOptions { ring: Some(ring), ..options };
                hosts[host].enter(|| bywash_drivers::open(&name, &options, arena))?
            }
        };
        Ok(opened?.port)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generator -> {}receiver", "forwarder -> ".repeat(self.forwarders))
    }
}
