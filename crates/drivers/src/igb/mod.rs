//! `igb`: the 82576 with a copper PHY, driven from this process.
//!
//! It has the same files as `ixgbe`, and the same engine for its queues: `init` resets the NIC and makes its tables empty,
//! `rx` and `tx` prepare the two directions and their queues, `steer` says which packets are for us and which queue gets
//! them, `link` brings the link up, `stats` counts. The datasheet was not at hand: order and values follow Linux's igb and
//! DPDK's, where each file says so.
//!
//! Not done by this driver: ports with a SerDes, virtual functions of its own, n-tuple and EtherType filters, header split,
//! IPsec and MACsec, time stamps, wake-up, flow control (pause frames are neither sent nor obeyed).

mod init;
mod link;
mod rx;
mod stats;
mod steer;
mod tx;

use std::time::Duration;

use bywash_frame::{Arena, FRAME_DATA, MAX_FRAMES};
use bywash_hw::igb as hw;
use bywash_hw::pci::{Family, Media, Nic};
use bywash_port::{Capabilities, Counter, Port, PortName, QueuePair};
use bywash_sys::function::Function;

pub use crate::intel::NicError;
pub use crate::ixgbe::{Link, Multicast, Rss};

use crate::intel::{Bar, Memory, identify, power_down, power_up};
use stats::Watch;

/// Queue pairs: RSS spreads packets over so many, and the physical function has a vector for each.
pub const MAX_QUEUES: u16 = 8;
/// Descriptors in a ring, as Linux's driver has at most.
pub const MAX_RING: u32 = 4096;

/// Bytes of the frame check sequence.
const FCS: u32 = 4;
/// Longest packet, without FCS.
const LONGEST: usize = (hw::MAX_FRAME - FCS) as usize;

/// How the NIC is to be set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pairs of queues, 1 to [`MAX_QUEUES`].
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
    /// Least time between two interrupts of a queue, in microseconds, up to 8191.
    pub moderation_us: u32,
    /// How often link and statistics are looked at by a thread of their own; when `None`, only as they are asked for.
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
            watch: Some(Duration::from_secs(1)),
        }
    }
}

/// An 82576 that is up and running.
#[expect(missing_debug_implementations, reason = "queues are trait objects")]
pub struct Igb<F: Function> {
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
/// [`Igb::wait_for_link`].
///
/// # Errors
/// [`NicError`], naming the register. The device is out of use then.
pub fn open<F: Function>(
    mut function: F,
    name: PortName,
    settings: &Settings,
    arena: &'static Arena,
) -> Result<Igb<F>, NicError> {
    check(settings)?;
    let nic = identify(&mut function, Family::Igb)?;
    if nic.media != Media::Copper {
        return Err(NicError::Setting(format!(
            "{}: this driver knows ports with a copper PHY alone",
            nic.name
        )));
    }
    power_up(&mut function)?;
    let bar = Bar::new(function.registers());
    init::stop(&bar)?;
    init::reset(&bar)?;
    init::check_eeprom(&bar)?;
    init::clear_tables(&bar);
    let mac = steer::own_address(&bar, settings.mac)?;
    link::start(&bar)?;
    stats::clear(&bar);

    let memory = Memory::new(&mut function, arena, settings.queues, settings.ring)?;
    let bells = if settings.receives { function.interrupts(settings.queues)? } else { Vec::new() };
    rx::prepare(&bar, settings)?;
    rx::prepare_interrupts(&bar, settings);
    tx::prepare(&bar);
    let mut bells = bells.into_iter();
    let mut queues = Vec::with_capacity(usize::from(settings.queues));
    for queue in 0..u32::from(settings.queues) {
        let bell = bells.next();
        let rx = bell.map(|bell| rx::queue(&bar, &memory, settings, queue, bell)).transpose()?;
        let tx = settings.sends.then(|| tx::queue(&bar, &memory, settings, queue)).transpose()?;
        queues.push(QueuePair { rx: rx.map(|rx| Box::new(rx) as _), tx: tx.map(|tx| Box::new(tx) as _) });
    }
    if settings.receives {
        rx::start(&bar);
    }
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
    let (settings, closed, _memory) = (settings.clone(), false, memory);
    Ok(Igb { function, bar, nic, name, capabilities, mac, queues, settings, watch, closed, _memory })
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
    if *moderation_us > 8191 {
        return refuse(format!("{moderation_us} µs between interrupts: at most 8191"));
    }
    settings.rss.check(*queues, *queues)
}

impl<F: Function> Igb<F> {
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
    /// [`NicError::Timeout`] of STATUS, when it does not come up within that time.
    pub fn wait_for_link(&mut self, within: Duration) -> Result<Link, NicError> {
        let link = link::wait(&self.bar, within)?;
        self.watch.see(link);
        self.capabilities.link_mbps = link.mbps;
        Ok(link)
    }

    /// Takes packets to any address, or just those to its own and to the multicast groups named.
    ///
    /// # Errors
    /// [`NicError::Setting`] when a group is none.
    pub fn set_filter(&mut self, promiscuous: bool, multicast: Multicast) -> Result<(), NicError> {
        multicast.table()?;
        self.settings.promiscuous = promiscuous;
        self.settings.multicast = multicast;
        steer::filter(&self.bar, &self.settings)
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
        rss.check(self.settings.queues, self.settings.queues)?;
        steer::rss(&self.bar, rss, self.settings.queues);
        Ok(())
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

impl<F: Function> Port for Igb<F> {
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

impl<F: Function> Drop for Igb<F> {
    fn drop(&mut self) {
        self.stop();
    }
}
