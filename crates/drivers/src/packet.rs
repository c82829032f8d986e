//! `packet:`, a copy of what an interface receives and sends, and a way to send on it; it takes nothing from the kernel.
//!
//! Packets come by a mapped ring, without a system call each, and are copied once, into frames; they go by one system
//! call for a batch. It sees both directions: also what this machine sends on the interface, but not what this port does.
//! Of a loopback interface, where all that is sent comes back, it sees what comes back: each packet once, this port's too.
//! Super-segments and packets whose checksum the NIC is still to fill in come as such, in chains of frames, with what is
//! missing in their [`Offload`](bywash_frame::Offload); both can be sent as well. A VLAN tag that the kernel or the NIC has
//! taken out is put back, so that packets are as on the wire.
//!
//! What it can lose: packets that come while the ring is full (`rx_ring_full`). What it costs: a packet is seen when its
//! block of the ring is handed over, up to [`Options::retire_ms`] later. It needs CAP_NET_RAW.
//!
//! When the interface is deleted its queues give nothing, count what is sent as errors, and let their worker sleep; while
//! it is down the same, until it is up again.

mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bywash_frame::{Arena, FRAME_DATA, MAX_FRAMES};
use bywash_port::{Capabilities, Counter, OpenError, Port, PortName, QueuePair, SentLen};
use bywash_sys::ethtool::Ethtool;
use bywash_sys::interface;
use bywash_sys::packet_socket::{PacketError, PacketSocket, RingSize, RxRing};
use bywash_sys::route::{Link, Route};

use crate::{OpenOptions, virtio};
pub(crate) use queue::PacketTx;

use queue::PacketRx;

/// How a `packet:` is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Queues to have. Each flow, both its directions, comes to one of them.
    pub queues: u16,
    /// Bytes of ring for each queue, rounded up to whole blocks of [`RingSize::MIN_BLOCK`] and to at least two.
    pub ring_bytes: usize,
    /// After how many milliseconds at most a packet is seen; from 1 on.
    pub retire_ms: u32,
    /// See packets to other addresses than the interface's.
    pub promiscuous: bool,
    /// Send past the interface's queueing discipline: faster, but what the driver has no room for is lost, and other
    /// programs that capture do not see it.
    pub bypass_qdisc: bool,
    /// Nothing will be received.
    pub tx_only: bool,
    /// Nothing will be sent.
    pub rx_only: bool,
}

impl Default for Options {
    /// One promiscuous queue for both directions with a ring of 16 MiB, looked at every millisecond.
    fn default() -> Self {
        Self {
            queues: 1,
            ring_bytes: 16 << 20,
            retire_ms: 1,
            promiscuous: true,
            bypass_qdisc: false,
            tx_only: false,
            rx_only: false,
        }
    }
}

impl From<&OpenOptions> for Options {
    fn from(options: &OpenOptions) -> Self {
        let own = Self::default();
        Self {
            queues: options.queues.unwrap_or(own.queues),
            ring_bytes: options.ring.map_or(own.ring_bytes, |packets| packets as usize * FRAME_DATA),
            tx_only: options.tx_only,
            rx_only: options.rx_only,
            ..own
        }
    }
}

/// The most sockets that share an interface's packets (`PACKET_FANOUT_MAX` before Linux 5.10).
const MAX_QUEUES: u16 = 256;

/// Opens `packet:interface` in the calling thread's network namespace.
///
/// # Errors
/// In one line what was wrong, why, and what to do. The machine is as it was.
pub fn open(interface: &str, options: &Options, arena: &'static Arena) -> Result<PacketPort, OpenError> {
    let name = PortName::Packet { interface: interface.into() };
    opened(name.clone(), interface, options, arena).map_err(|reason| OpenError { port: name, reason })
}

fn opened(
    name: PortName,
    interface: &str,
    options: &Options,
    arena: &'static Arena,
) -> Result<PacketPort, String> {
    check(options, arena)?;
    let link =
        Route::open().and_then(|mut route| route.link(interface)).map_err(|error| error.to_string())?;
    let link = link.ok_or_else(|| {
        format!("there is no interface '{interface}': `bywash ports` lists those there are")
    })?;
    if !link.ethernet && !link.loopback {
        return Err("the interface carries no Ethernet frames".into());
    }
    let shared = Arc::new(Shared::default());
    let queues = sockets(&link, options).map_err(|error| error.to_string())?;
    let sockets = queues.iter().map(|(socket, _)| Arc::clone(socket)).collect();
    let mut mode = vec!["copy"];
    if options.bypass_qdisc {
        mode.push("no queueing discipline");
    }
    let speed = Ethtool::open().ok().and_then(|ethtool| interface::speed(&link, &ethtool));
    let longest = link.mtu as usize + virtio::ETHERNET;
    // The kernel takes no more (packet_snd).
    let sent = SentLen { untagged: longest, tagged: longest + usize::from(virtio::VLAN_TAG) };
    let capabilities = Capabilities { sent: Some(sent), ..virtio::capabilities(link.mtu, mode, speed) };
    let mac = link.mac.map(|mac| mac.0);
    Ok(PacketPort { name, capabilities, mac, sends: !options.rx_only, sockets, queues, shared })
}

fn check(options: &Options, arena: &'static Arena) -> Result<(), String> {
    if options.queues == 0 || options.queues > MAX_QUEUES {
        return Err(format!("{} queues: it can have from 1 to {MAX_QUEUES} (--queues)", options.queues));
    }
    if options.tx_only && options.rx_only {
        return Err("it would neither receive nor send: leave out one of the two options".into());
    }
    if options.retire_ms == 0 {
        return Err("a packet can't be seen after 0 ms: give it at least 1".into());
    }
    if options.ring_bytes > MAX_RING {
        return Err(format!("a ring of {} bytes: it can have up to {MAX_RING}", options.ring_bytes));
    }
    if MAX_FRAMES > arena.frames() {
        return Err(format!(
            "{MAX_FRAMES} frames for a super-segment, the arena has {}: give it more (--memory)",
            arena.frames()
        ));
    }
    Ok(())
}

/// Far below what the kernel's 32-bit sums take.
const MAX_RING: usize = 1 << 30;

/// Bytes in a block of the ring: a handful of super-segments, or some hundred packets.
const BLOCK: u32 = 256 << 10;

type Queue = (Arc<PacketSocket>, Option<RxRing>);

/// Opens all sockets. They receive nothing before they all share the interface's packets: none would see another's.
fn sockets(link: &Link, options: &Options) -> Result<Vec<Queue>, PacketError> {
    const { assert!(BLOCK >= RingSize::MIN_BLOCK && BLOCK.is_power_of_two()) };
    let blocks = options.ring_bytes.div_ceil(BLOCK as usize).max(2);
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    let size = RingSize { block_bytes: BLOCK, blocks, retire_ms: options.retire_ms };
    let mut group = None;
    let mut queues = Vec::new();
    for _ in 0..options.queues {
        let socket = PacketSocket::open()?;
        if options.bypass_qdisc {
            socket.bypass_qdisc()?;
        }
        let ring = if options.tx_only {
            socket.bind(link.index)?;
            None
        } else {
            let ring = socket.listen(link.index, size, true)?;
            if options.queues > 1 {
                group = Some(socket.share(group)?);
            }
            Some(ring)
        };
        queues.push((Arc::new(socket), ring));
    }
    if options.tx_only {
        return Ok(queues);
    }
    if options.promiscuous
        && let Some((first, _)) = queues.first()
    {
        first.be_promiscuous(link.index)?;
    }
    for (socket, _) in &queues {
        if link.loopback {
            socket.let_incoming_through()?;
        } else {
            socket.let_through()?;
        }
    }
    Ok(queues)
}

/// What queues tell their port.
#[derive(Debug, Default)]
struct Shared {
    /// Packets that the kernel dropped because the ring was full, as far as it has been asked.
    drops: AtomicU64,
    freezes: AtomicU64,
    /// Packets longer than a packet can be.
    too_long: AtomicU64,
}

/// An opened `packet:`.
#[derive(Debug)]
pub struct PacketPort {
    name: PortName,
    capabilities: Capabilities,
    mac: Option<[u8; 6]>,
    sends: bool,
    sockets: Vec<Arc<PacketSocket>>,
    /// Still to be given out.
    queues: Vec<Queue>,
    shared: Arc<Shared>,
}

impl Port for PacketPort {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> Option<[u8; 6]> {
        self.mac
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        let taken = std::mem::take(&mut self.queues);
        let pair = |(socket, ring): Queue| QueuePair {
            rx: ring.map(|ring| {
                Box::new(PacketRx::new(Arc::clone(&socket), ring, Arc::clone(&self.shared))) as _
            }),
            tx: self.sends.then(|| Box::new(PacketTx::new(socket)) as _),
        };
        taken.into_iter().map(pair).collect()
    }

    fn counters(&self) -> Vec<Counter> {
        // The kernel's numbers start again at 0 whenever they are read.
        for statistics in self.sockets.iter().map(|socket| socket.statistics()) {
            self.shared.drops.fetch_add(u64::from(statistics.drops), Ordering::Relaxed);
            self.shared.freezes.fetch_add(u64::from(statistics.freezes), Ordering::Relaxed);
        }
        let gone = self.sockets.iter().any(|socket| socket.is_orphan());
        let of = |name, value: &AtomicU64| Counter::count(name, value.load(Ordering::Relaxed));
        vec![
            of("rx_ring_full", &self.shared.drops),
            of("rx_ring_full_times", &self.shared.freezes),
            of("rx_too_long", &self.shared.too_long),
            Counter::state("interface_gone", gone),
        ]
    }

    /// The sockets take with them what they asked of the interface.
    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        Ok(())
    }
}
