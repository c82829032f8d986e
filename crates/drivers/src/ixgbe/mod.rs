//! `ixgbe`: the 82599 (X520), and the X540 as far as it is the same, driven from this process.
//!
//! Read it beside Intel's 82599 datasheet, whose order of initialisation it follows: `init` resets the NIC and makes its tables
//! empty, `rx` and `tx` prepare the two directions and their queues, `steer` says which packets are for us and which
//! queue gets them, `link` brings the link up, `stats` counts. The queues themselves, the code that runs for every
//! packet, are in `intel`. Frames move between the NIC and packet memory without a copy.
//!
//! Not done by this driver: receive side coalescing, header split, virtual functions of its own, DCB, FCoE, IPsec and
//! MACsec, time stamps, wake-up, flow control (pause frames are neither sent nor obeyed).

mod init;
pub(crate) mod link;
mod rx;
mod stats;
mod steer;
mod tx;

use std::time::Duration;

use bywash_frame::{Arena, FRAME_DATA, MAX_FRAMES};
use bywash_hw::ixgbe as hw;
use bywash_hw::pci::{Family, Nic};
use bywash_port::{Capabilities, Counter, Port, PortName, QueuePair};
use bywash_sys::function::Function;

pub use crate::intel::NicError;
pub use link::Link;
pub use steer::{FiveTuple, Multicast, Protocol, Rss};

pub(crate) use steer::check_unicast;

use crate::intel::{Bar, Memory, identify, power_down, power_up};
use stats::Watch;

/// Queue pairs: without virtualisation the NIC transmits from 64 queues, and it has as many vectors.
pub const MAX_QUEUES: u16 = 64;
/// Queues that RSS spreads packets over: its table has four bits for each.
pub const RSS_QUEUES: u16 = 16;
/// Descriptors in a ring.
pub const MAX_RING: u32 = 8192;

/// How the NIC is to be set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pairs of queues, 1 to [`MAX_QUEUES`]. RSS uses the first [`RSS_QUEUES`]; others get what rules send them.
    pub queues: u16,
    /// Descriptors in each ring: a power of two from 64 to [`MAX_RING`].
    pub ring: u32,
    /// Most bytes of a packet without FCS, both ways: 1518 or more, at most 9724.
    pub max_len: usize,
    /// Whether it receives.
    pub receives: bool,
    /// Whether it sends.
    pub sends: bool,
    /// Its Ethernet address; what its EEPROM says when `None`.
    pub mac: Option<[u8; 6]>,
    /// Take packets to any address.
    pub promiscuous: bool,
    /// Multicast packets to take.
    pub multicast: Multicast,
    /// How packets are spread over queues.
    pub rss: Rss,
    /// Take VLAN tags out of received packets, into their metadata.
    pub strip_vlan: bool,
    /// Least time between two interrupts of a queue, in microseconds, up to 1022.
    pub moderation_us: u32,
    /// Packets go from the transmitter to the receiver inside the NIC; nothing comes from or goes to the wire.
    pub loopback: bool,
    /// How often link and statistics are looked at by a thread of their own; when `None`, only as they are asked for, which
    /// must be more often than every 280 s at full rate or counters stick at their end.
    pub watch: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queues: 1,
            ring: 1024,
            max_len: LONGEST,
            receives: true,
            sends: true,
            mac: None,
            promiscuous: true,
            multicast: Multicast::All,
            rss: Rss::default(),
            strip_vlan: false,
            moderation_us: 20,
            loopback: false,
            watch: Some(Duration::from_secs(1)),
        }
    }
}

/// Longest packet, without FCS: 9728 bytes with it is what Intel's own drivers allow.
pub(crate) const LONGEST: usize = 9724;

/// An 82599 that is up and running.
#[expect(missing_debug_implementations, reason = "queues are trait objects")]
pub struct Ixgbe<F: Function> {
    // Dropped first: no DMA after that, and the rings' memory may go.
    function: F,
    bar: Bar<F::Registers>,
    nic: &'static Nic,
    name: PortName,
    capabilities: Capabilities,
    mac: [u8; 6],
    queues: Vec<QueuePair>,
    settings: Settings,
    watch: Watch<F::Registers>,
    closed: bool,
    _memory: Memory,
}

/// Resets and starts the NIC behind `function`, on packets in `arena`. Its link need not be up when this returns:
/// [`Ixgbe::wait_for_link`].
///
/// # Errors
/// [`NicError`], naming the register. The device is out of use then.
pub fn open<F: Function>(
    mut function: F,
    name: PortName,
    settings: &Settings,
    arena: &'static Arena,
) -> Result<Ixgbe<F>, NicError> {
    check(settings)?;
    let nic = identify(&mut function, Family::Ixgbe)?;
    power_up(&mut function)?;
    let bar = Bar::new(function.registers());
    init::stop(&bar)?;
    init::reset(&bar)?;
    init::check_eeprom(&bar)?;
    init::clear_tables(&bar);
    let mac = steer::own_address(&bar, settings.mac)?;
    stats::clear(&bar);

    let memory = Memory::new(&mut function, arena, settings.queues, settings.ring)?;
    let bells = if settings.receives { function.interrupts(settings.queues)? } else { Vec::new() };
    rx::prepare(&bar, settings)?;
    rx::prepare_interrupts(&bar, settings);
    tx::prepare(&bar, settings);
    let mut bells = bells.into_iter();
    let mut queues = Vec::with_capacity(usize::from(settings.queues));
    for queue in 0..u32::from(settings.queues) {
        let bell = bells.next();
        let rx = bell.map(|bell| rx::queue(&bar, &memory, settings, queue, bell)).transpose()?;
        let tx = settings.sends.then(|| tx::queue(&bar, &memory, settings, queue)).transpose()?;
        queues.push(QueuePair { rx: rx.map(|rx| Box::new(rx) as _), tx: tx.map(|tx| Box::new(tx) as _) });
    }
    if settings.receives {
        rx::start(&bar)?;
    }
    link::start(&bar, nic.media, settings.loopback)?;
    let watch = Watch::start(bar.clone(), settings.watch);
    let capabilities = Capabilities {
        max_len: settings.max_len,
        tx_checksum: true,
        segmentation: true,
        chains: true,
        zero_copy: true,
        mode: vec![nic.family.name(), "zero-copy"],
        link_mbps: link::state(&bar).mbps,
    };
    let (settings, closed) = (settings.clone(), false);
    let _memory = memory;
    Ok(Ixgbe { function, bar, nic, name, capabilities, mac, queues, settings, watch, closed, _memory })
}

/// What the NIC does not have is refused before it is touched.
fn check(settings: &Settings) -> Result<(), NicError> {
    let refuse = |reason: String| Err(NicError::Setting(reason));
    let Settings { queues, ring, max_len, moderation_us, .. } = settings;
    if !(1..=MAX_QUEUES).contains(queues) {
        return refuse(format!("{queues} queues: the NIC has 1 to {MAX_QUEUES}"));
    }
    if !ring.is_power_of_two() || !(64..=MAX_RING).contains(ring) {
        return refuse(format!("a ring of {ring} packets: it must be a power of two from 64 to {MAX_RING}"));
    }
    if !(1518..=LONGEST).contains(max_len) || *max_len > MAX_FRAMES * FRAME_DATA {
        return refuse(format!("packets of {max_len} bytes: the longest may have 1518 to {LONGEST}"));
    }
    if *moderation_us > 1022 {
        return refuse(format!("{moderation_us} µs between interrupts: at most 1022"));
    }
    settings.rss.check(settings.queues.min(RSS_QUEUES), settings.queues)
}

impl<F: Function> Ixgbe<F> {
    /// Which NIC it is.
    pub fn nic(&self) -> &'static Nic {
        self.nic
    }

    /// The link now.
    pub fn link(&self) -> Link {
        link::state(&self.bar)
    }

    /// Waits until the link is up.
    ///
    /// # Errors
    /// [`NicError::Timeout`] of LINKS, when it does not come up within that time.
    pub fn wait_for_link(&mut self, within: Duration) -> Result<Link, NicError> {
        let link = link::wait(&self.bar, within)?;
        self.watch.see(link);
        self.capabilities.link_mbps = link.mbps;
        Ok(link)
    }

    /// Takes packets to any address, or just those to its own and to the multicast groups named.
    ///
    /// # Errors
    /// [`NicError`] when the receiver does not stop for it.
    pub fn set_filter(&mut self, promiscuous: bool, multicast: Multicast) -> Result<(), NicError> {
        self.settings.promiscuous = promiscuous;
        self.settings.multicast = multicast;
        rx::paused(&self.bar, || steer::filter(&self.bar, &self.settings))
    }

    /// Changes its Ethernet address.
    ///
    /// # Errors
    /// [`NicError::Mac`] when it is no address of one NIC.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), NicError> {
        self.mac = steer::own_address(&self.bar, Some(mac))?;
        Ok(())
    }

    /// Takes packets to one more address.
    ///
    /// # Errors
    /// [`NicError`] when it is no unicast address, or there is no room for more.
    pub fn add_mac(&mut self, mac: [u8; 6]) -> Result<(), NicError> {
        steer::add_address(&self.bar, mac)
    }

    /// Changes how packets are spread over queues, while they run.
    ///
    /// # Errors
    /// [`NicError::Setting`] when the table names a queue that is not there.
    pub fn set_rss(&mut self, rss: &Rss) -> Result<(), NicError> {
        rss.check(self.settings.queues.min(RSS_QUEUES), self.settings.queues)?;
        steer::rss(&self.bar, rss, self.settings.queues);
        Ok(())
    }

    /// Sends packets of one EtherType to a queue; filter `number` of eight.
    ///
    /// # Errors
    /// [`NicError::Setting`] when there is no such filter or queue.
    pub fn steer_ether_type(&mut self, number: u32, ether_type: u16, queue: u16) -> Result<(), NicError> {
        steer::ether_type(&self.bar, number, ether_type, self.queue_number(queue)?)
    }

    /// Sends packets that a five-tuple matches to a queue; filter `number` of 128.
    ///
    /// # Errors
    /// [`NicError::Setting`] when there is no such filter or queue.
    pub fn steer_five_tuple(&mut self, number: u32, tuple: &FiveTuple, queue: u16) -> Result<(), NicError> {
        steer::five_tuple(&self.bar, number, tuple, self.queue_number(queue)?)
    }

    fn queue_number(&self, queue: u16) -> Result<u32, NicError> {
        let queues = self.settings.queues;
        if queue < queues {
            return Ok(u32::from(queue));
        }
        Err(NicError::Setting(format!("queue {queue}: the port was opened with {queues}")))
    }

    /// Takes the NIC out of use: no DMA, no interrupt, no packet after this.
    fn stop(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.closed, true) {
            return Vec::new();
        }
        self.watch.stop();
        let stopped = [
            init::stop(&self.bar).err().map(|error| error.to_string()),
            power_down(&mut self.function).err().map(|error| error.to_string()),
        ];
        stopped.into_iter().flatten().collect()
    }
}

impl<F: Function> Port for Ixgbe<F> {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> Option<[u8; 6]> {
        Some(self.mac)
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn counters(&self) -> Vec<Counter> {
        self.watch.counters()
    }

    fn close(mut self: Box<Self>) -> Result<(), Vec<String>> {
        let sentences = self.stop();
        if sentences.is_empty() { Ok(()) } else { Err(sentences) }
    }
}

impl<F: Function> Drop for Ixgbe<F> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Queues whose registers there are, used or not.
const ALL_QUEUES: u32 = hw::QUEUES;
