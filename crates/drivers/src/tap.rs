//! `tap:`, a wire to the kernel: an interface of its own whose other end is this port.
//!
//! It copies, and takes one system call for each packet in either direction: a TAP's file has no call for several. What
//! makes up for that are super-segments: the kernel gives and takes up to 64 KiB of TCP or UDP as one packet, which is
//! here a chain of frames, with what is to be cut and summed in its [`Offload`](bywash_frame::Offload). An interface that
//! does not exist is made, set up, and gone with the port; one that exists is attached to and left as it is.
//!
//! The port has no Ethernet address: the interface's own is the kernel's, who is the neighbour here.
//!
//! When the interface is deleted its queues give and take nothing any more, count an error, and let their worker sleep.

mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bywash_frame::{Arena, MAX_FRAMES};
use bywash_port::{Capabilities, Counter, OpenError, Port, PortName, QueuePair, TxQueue};
use bywash_sys::route::{Link, Mac, Route};
use bywash_sys::tun::{MAX_QUEUES, Tap, TunError};
use rustix::event::epoll;

use crate::{OpenOptions, virtio};
use queue::{TapRx, TapTx};

/// How a `tap:` is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Queues to have; the kernel spreads flows over them.
    pub queues: u16,
    /// Checksums and segmentation are left to whoever needs them: packets may lack the one and be up to 64 KiB long. Without
    /// it the kernel gives packets as they would be on a wire.
    pub offload: bool,
    /// The MTU, in bytes, of an interface that is made; 1500 when `None`.
    pub mtu: Option<u32>,
    /// The kernel's Ethernet address on an interface that is made; one by chance when `None`.
    pub mac: Option<[u8; 6]>,
}

impl Default for Options {
    /// One queue, with offload.
    fn default() -> Self {
        Self { queues: 1, offload: true, mtu: None, mac: None }
    }
}

impl From<&OpenOptions> for Options {
    fn from(options: &OpenOptions) -> Self {
        let own = Self::default();
        Self { queues: options.queues.unwrap_or(own.queues), offload: !options.plain, ..own }
    }
}

/// Opens `tap:interface` in the calling thread's network namespace.
///
/// # Errors
/// In one line what was wrong, why, and what to do. The machine is as it was.
pub fn open(interface: &str, options: &Options, arena: &'static Arena) -> Result<TapPort, OpenError> {
    let name = PortName::Tap { interface: interface.into() };
    opened(name.clone(), interface, options, arena).map_err(|reason| OpenError { port: name, reason })
}

fn opened(
    name: PortName,
    interface: &str,
    options: &Options,
    arena: &'static Arena,
) -> Result<TapPort, String> {
    let queues = options.queues;
    if queues == 0 || queues > MAX_QUEUES {
        return Err(format!("{queues} queues: a TAP interface has from 1 to {MAX_QUEUES} (--queues)"));
    }
    let need = usize::from(queues) * MAX_FRAMES;
    if need > arena.frames() {
        return Err(format!(
            "{need} frames to receive super-segments, the arena has {}: give it more (--memory)",
            arena.frames()
        ));
    }
    let (first, made) = first_queue(interface, queues > 1).map_err(|error| error.to_string())?;
    let mut taps = vec![Arc::new(first)];
    for _ in 1..queues {
        taps.push(Arc::new(Tap::attach(interface, true).map_err(|error| error.to_string())?));
    }
    let mut route = Route::open().map_err(|error| error.to_string())?;
    let link = settle(interface, options, made, &mut route)?;
    let wakes: Vec<Wake> = taps.iter().map(Wake::new).collect::<Result<_, _>>()?;
    let header_before =
        (!made).then(|| taps[0].header_len()).transpose().map_err(|error| error.to_string())?;
    let udp = taps[0].set_offloads(options.offload).map_err(|error| error.to_string())?;
    // From here on only what can't be undone by dropping: the interface is used.
    if made {
        route.set_up(link.index, true).map_err(|error| error.to_string())?;
    }
    let mut mode = vec!["copy"];
    if options.offload {
        mode.push(if udp { "checksum, TCP and UDP segmentation" } else { "checksum and TCP segmentation" });
    }
    let capabilities = virtio::capabilities(link.mtu, mode, None);
    let gone = Arc::new(AtomicBool::new(false));
    let control = Arc::clone(&taps[0]);
    let queues = taps.into_iter().zip(wakes).collect();
    Ok(TapPort { name, capabilities, control, header_before, queues, gone })
}

/// A sending half alone: what is written comes out of the kernel's end.
pub(crate) fn sender(tap: Arc<Tap>, gone: Arc<AtomicBool>) -> Box<dyn TxQueue> {
    Box::new(TapTx::new(tap, gone))
}

/// The first queue of an interface, and whether it was made.
fn first_queue(interface: &str, multi_queue: bool) -> Result<(Tap, bool), TunError> {
    match Tap::create(interface, multi_queue) {
        Ok(tap) => return Ok((tap, true)),
        Err(TunError::Exists(_)) => {}
        Err(error) => return Err(error),
    }
    match Tap::attach(interface, multi_queue) {
        // One queue is wanted of an interface that was made for several.
        Err(TunError::Mismatch(..)) if !multi_queue => Tap::attach(interface, true),
        tap => tap,
    }
    .map(|tap| (tap, false))
}

/// Gives an interface that was made its MTU and address, and finds one that existed as it is wanted.
fn settle(interface: &str, options: &Options, made: bool, route: &mut Route) -> Result<Link, String> {
    let link = look(interface, route)?;
    let mac = options.mac.map(Mac);
    if !made {
        if let Some(mtu) = options.mtu.filter(|&mtu| mtu != link.mtu) {
            return Err(format!(
                "it exists with an MTU of {}, not {mtu}: change it there, or leave --mtu out",
                link.mtu
            ));
        }
        if let Some(mac) = mac.filter(|&mac| Some(mac) != link.mac) {
            return Err(format!(
                "it exists with another address than {mac}: change it there, or leave --mac out"
            ));
        }
        return Ok(link);
    }
    if let Some(mtu) = options.mtu {
        route.set_mtu(link.index, mtu).map_err(|error| error.to_string())?;
    }
    if let Some(mac) = mac {
        route.set_mac(link.index, mac).map_err(|error| error.to_string())?;
    }
    look(interface, route)
}

fn look(interface: &str, route: &mut Route) -> Result<Link, String> {
    let link = route.link(interface).map_err(|error| error.to_string())?;
    link.ok_or_else(|| "the interface was deleted while it was opened: try again".into())
}

/// An opened `tap:`.
#[derive(Debug)]
pub struct TapPort {
    name: PortName,
    capabilities: Capabilities,
    /// The first queue.
    control: Arc<Tap>,
    /// Bytes of the header that packets of one that existed had.
    header_before: Option<usize>,
    /// Still to be given out.
    queues: Vec<(Arc<Tap>, Wake)>,
    gone: Arc<AtomicBool>,
}

impl Port for TapPort {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        let taken = std::mem::take(&mut self.queues);
        let pair = |(tap, wake): (Arc<Tap>, Wake)| QueuePair {
            rx: Some(Box::new(TapRx::new(Arc::clone(&tap), wake, Arc::clone(&self.gone)))),
            tx: Some(Box::new(TapTx::new(tap, Arc::clone(&self.gone)))),
        };
        taken.into_iter().map(pair).collect()
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter::state("interface_gone", self.gone.load(Ordering::Relaxed))]
    }

    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        let Some(header) = self.header_before.filter(|_| !self.gone.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        // Both outlast us. What offloads there were the kernel does not tell: none, as on one that nobody has opened yet.
        let restored = self.control.set_offloads(false).and_then(|_| self.control.set_header_len(header));
        restored.map_err(|error| vec![format!("{}: {error}", self.name)])
    }
}

/// What a worker sleeps on. It is not the TAP's file itself, which is readable for ever once its interface is deleted: a
/// worker could then neither sleep nor know which of its copies to close.
#[derive(Debug)]
struct Wake {
    epoll: std::os::fd::OwnedFd,
}

impl Wake {
    fn new(tap: &Arc<Tap>) -> Result<Self, String> {
        let new = || -> rustix::io::Result<Self> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, tap, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            Ok(Self { epoll })
        };
        new().map_err(|errno| format!("can't make what its worker sleeps on: {errno}"))
    }

    /// Is never readable again.
    fn silence(&self, tap: &Tap) {
        // It can only fail when that has been done.
        epoll::delete(&self.epoll, tap).ok();
    }
}
