//! `ixgbevf`: a virtual function of the 82599 or X540, driven from this process beside the kernel's driver on the NIC itself.
//!
//! Most of the NIC is the physical function's: what a virtual one may have it asks for by messages. `init` resets the
//! function and agrees with the other side on a version of the messages and on all that depends on it, `steer` says which
//! packets are for us, `rx` and `tx` prepare queues, `link` looks at the link, `stats` counts, and notices when the physical
//! function was reset: all is agreed on anew then, and each `queue` starts again when its worker comes by. The rings are
//! those of `intel`, and no different from the NIC's own.
//!
//! Not done by this driver: a table and key for RSS of its own, which only later NICs give a function; several traffic
//! classes; IPsec.

mod init;
mod link;
mod queue;
mod rx;
mod stats;
mod steer;
mod tx;

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bywash_frame::{Arena, FRAME_DATA, MAX_FRAMES};
use bywash_hw::ixgbe::vf::{VFMAILBOX, VFMBMEM, VFRDT};
use bywash_hw::pci::{Family, Nic};
use bywash_port::{Capabilities, Counter, Port, PortName, QueuePair};
use bywash_sys::function::Function;

pub use crate::intel::{Link, MailboxError, Multicast, NicError, Rss};

use crate::intel::{
    Bar, LONGEST, Mailbox, Memory, Ticker, check_moderation, check_ring, identify, lock, power_down, power_up,
};
use crate::ixgbe::MAX_RING;
use init::Agreed;
use stats::Control;

/// Queue pairs that a function has at most.
pub const MAX_QUEUES: u16 = 8;
/// Multicast groups that can be named.
pub const MAX_GROUPS: usize = 30;

/// How the function is to be set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pairs of queues: 1, 2, 4 or 8; as many as the physical function grants when `None`.
    pub queues: Option<u16>,
    /// Not more than so many when `queues` is `None`.
    pub most_queues: u16,
    /// Descriptors in each ring: a power of two from 64 to 8192.
    pub ring: u32,
    /// Most bytes of a packet without FCS, both ways, 1514 to 9724; the most that the physical function lets pass when `None`.
    pub max_len: Option<usize>,
    /// Whether it receives.
    pub receives: bool,
    /// Whether it sends.
    pub sends: bool,
    /// Its Ethernet address; what the physical function says when `None`, or a random one when that says nothing.
    pub mac: Option<[u8; 6]>,
    /// Take packets to any address. The 82599 does not give this to a function.
    pub promiscuous: bool,
    /// Multicast packets to take.
    pub multicast: Multicast,
    /// VLANs to take packets of, beside those without a tag.
    pub vlans: Vec<u16>,
    /// Take VLAN tags out of received packets, into their metadata.
    pub strip_vlan: bool,
    /// Least time between two interrupts of a queue, in microseconds, up to 1022.
    pub moderation_us: u32,
    /// How long the physical function may take for each answer.
    pub patience: Duration,
    /// How often link, statistics and the physical function are looked at by a thread of their own; when `None`, only as
    /// they are asked for.
    pub watch: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queues: None,
            most_queues: MAX_QUEUES,
            ring: 1024,
            max_len: None,
            receives: true,
            sends: true,
            mac: None,
            promiscuous: true,
            multicast: Multicast::All,
            vlans: Vec::new(),
            strip_vlan: false,
            moderation_us: 20,
            patience: Duration::from_secs(1),
            watch: Some(Duration::from_millis(250)),
        }
    }
}

/// What the port, its watch and its queues share.
#[derive(Debug)]
struct Shared<R> {
    bar: Bar<R>,
    memory: Memory,
    /// As the function was opened: queues and lengths are those agreed on.
    settings: Settings,
    queues: u16,
    max_len: usize,
    /// How often what was agreed on was lost, and agreed on anew: odd while it is lost. Queues of an earlier epoch must be
    /// started again.
    epoch: AtomicU32,
    /// A queue did not start.
    failed: AtomicBool,
    control: Mutex<Control<R>>,
}

/// A virtual function that is up and running.
#[expect(missing_debug_implementations, reason = "queues are trait objects")]
pub struct IxgbeVf<F: Function> {
    // Dropped first: no DMA after that, and the rings' memory may go.
    function: F,
    nic: &'static Nic,
    name: PortName,
    capabilities: Capabilities,
    queues: Vec<QueuePair>,
    shared: Arc<Shared<F::Registers>>,
    ticker: Ticker,
    closed: bool,
}

/// Resets and starts the virtual function behind `function`, on packets in `arena`. Its link need not be up when this
/// returns: [`IxgbeVf::wait_for_link`].
///
/// # Errors
/// [`NicError`], naming the register or the message. The device is out of use then.
pub fn open<F: Function + 'static>(
    mut function: F,
    name: PortName,
    settings: &Settings,
    arena: &'static Arena,
) -> Result<IxgbeVf<F>, NicError> {
    check(settings)?;
    let nic = identify(&mut function, Family::IxgbeVf)?;
    power_up(&mut function)?;
    let bar = Bar::new(function.registers());
    if bar.is_gone() {
        return Err(NicError::Gone);
    }
    let mut mailbox = Mailbox::new(bar.clone(), &VFMAILBOX, &VFMBMEM, settings.patience);
    init::stop(&bar)?;
    let agreed = init::agree(&bar, &mut mailbox, settings)?;
    let Agreed { queues, max_len, .. } = agreed;
    let memory = Memory::new(&mut function, arena, queues, settings.ring)?;
    let vectors = if settings.receives { queues.min(rx::VECTORS) } else { 0 };
    let mut bells = function.interrupts(vectors)?.into_iter();
    let shared = Arc::new(Shared {
        control: Mutex::new(Control::new(&bar, mailbox, agreed)),
        bar,
        memory,
        settings: settings.clone(),
        queues,
        max_len,
        epoch: AtomicU32::new(0),
        failed: AtomicBool::new(false),
    });
    rx::prepare(&shared);
    let mut pairs = Vec::with_capacity(usize::from(queues));
    for number in 0..u32::from(queues) {
        let rx = settings.receives.then(|| queue::Rx::start(&shared, number, bells.next())).transpose()?;
        let tx = settings.sends.then(|| queue::Tx::start(&shared, number)).transpose()?;
        pairs.push(QueuePair { rx: rx.map(|rx| Box::new(rx) as _), tx: tx.map(|tx| Box::new(tx) as _) });
    }
    let capabilities = Capabilities {
        max_len,
        sent: None,
        tx_checksum: true,
        segmentation: true,
        chains: true,
        zero_copy: true,
        mode: vec![nic.family.name(), "zero-copy"],
        link_mbps: None,
    };
    let watched = shared.clone();
    let ticker = Ticker::start("ixgbevf-watch", settings.watch, move || watched.look());
    Ok(IxgbeVf { function, nic, name, capabilities, queues: pairs, shared, ticker, closed: false })
}

/// What a function does not have is refused before it is touched.
fn check(settings: &Settings) -> Result<(), NicError> {
    let refuse = |reason: String| Err(NicError::Setting(reason));
    let Settings { queues, ring, max_len, moderation_us, multicast, vlans, .. } = settings;
    if let Some(queues) = queues.filter(|queues| !queues.is_power_of_two() || *queues > MAX_QUEUES) {
        return refuse(format!("{queues} queues: a virtual function spreads packets over 1, 2, 4 or 8"));
    }
    if let Some(max_len) =
        max_len.filter(|len| !(SHORT_FRAMES..=LONGEST).contains(len) || *len > MAX_FRAMES * FRAME_DATA)
    {
        return refuse(format!(
            "packets of {max_len} bytes: the longest may have {SHORT_FRAMES} to {LONGEST}"
        ));
    }
    check_ring(*ring, MAX_RING)?;
    check_moderation(*moderation_us, 1022)?;
    if let Some(vlan) = vlans.iter().find(|vlan| **vlan > 4094) {
        return refuse(format!("VLAN {vlan}: there are 0 to 4094"));
    }
    steer::check(multicast)
}

/// Most bytes of a packet without FCS where long ones are not allowed.
const SHORT_FRAMES: usize = 1514;

impl<F: Function> IxgbeVf<F> {
    /// Which NIC it is.
    pub fn nic(&self) -> &'static Nic {
        self.nic
    }

    /// The version of the messages that both sides speak: `1.5`.
    pub fn api(&self) -> &'static str {
        lock(&self.shared.control).agreed.version()
    }

    /// What was wished and is not given, each a line.
    pub fn warnings(&self) -> Vec<String> {
        lock(&self.shared.control).agreed.warnings.clone()
    }

    /// The link now: the port's, unless the host takes it from this function.
    pub fn link(&self) -> Link {
        link::state(&self.shared)
    }

    /// Waits until the link is up.
    ///
    /// # Errors
    /// [`NicError::Timeout`] of VFLINKS, when it does not come up within that time.
    pub fn wait_for_link(&mut self, within: Duration) -> Result<Link, NicError> {
        let link = link::wait(&self.shared, within)?;
        self.capabilities.link_mbps = link.mbps;
        Ok(link)
    }

    /// The table and key by which the NIC spreads packets over queues; all functions of a port have the same.
    ///
    /// # Errors
    /// [`MailboxError::Refused`] where the host does not tell, or speaks an older version than 1.2.
    pub fn rss(&mut self) -> Result<Rss, NicError> {
        steer::rss(&mut lock(&self.shared.control), self.shared.queues)
    }

    /// Changes its Ethernet address.
    ///
    /// # Errors
    /// [`NicError::Mac`] when it is no address of one NIC; [`MailboxError::Refused`] when the host does not allow it.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), NicError> {
        let control = &mut *lock(&self.shared.control);
        steer::set_mac(&mut control.mailbox, mac)?;
        control.agreed.mac = mac;
        Ok(())
    }

    /// Takes packets to one more address.
    ///
    /// # Errors
    /// As [`IxgbeVf::set_mac`].
    pub fn add_mac(&mut self, mac: [u8; 6]) -> Result<(), NicError> {
        let control = &mut *lock(&self.shared.control);
        steer::add_mac(&mut control.mailbox, mac, control.agreed.more_macs.len() + 1)?;
        control.agreed.more_macs.push(mac);
        Ok(())
    }

    /// Changes which multicast packets are taken.
    ///
    /// # Errors
    /// When a group is none, or there are too many, or the physical function refuses.
    pub fn set_multicast(&mut self, multicast: Multicast) -> Result<(), NicError> {
        steer::check(&multicast)?;
        let control = &mut *lock(&self.shared.control);
        control.agreed.multicast = multicast;
        steer::filter(&mut control.mailbox, &mut control.agreed)
    }

    /// Takes packets of a VLAN, or no more.
    ///
    /// # Errors
    /// When there is no such VLAN, or the physical function refuses.
    pub fn set_vlan(&mut self, vlan: u16, on: bool) -> Result<(), NicError> {
        let control = &mut *lock(&self.shared.control);
        steer::set_vlan(&mut control.mailbox, vlan, on)?;
        control.agreed.vlans.retain(|other| *other != vlan);
        control.agreed.vlans.extend(on.then_some(vlan));
        Ok(())
    }

    /// Takes the function out of use: no DMA, no interrupt, no packet after this.
    fn stop(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.closed, true) {
            return Vec::new();
        }
        self.ticker.stop();
        let stopped = [
            init::stop(&self.shared.bar).err().map(|error| error.to_string()),
            power_down(&mut self.function).err().map(|error| error.to_string()),
        ];
        stopped.into_iter().flatten().collect()
    }
}

impl<F: Function> Port for IxgbeVf<F> {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> Option<[u8; 6]> {
        Some(lock(&self.shared.control).agreed.mac)
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn counters(&self) -> Vec<Counter> {
        self.shared.look();
        lock(&self.shared.control).counters()
    }

    fn close(mut self: Box<Self>) -> Result<(), Vec<String>> {
        let sentences = self.stop();
        if sentences.is_empty() { Ok(()) } else { Err(sentences) }
    }
}

impl<F: Function> Drop for IxgbeVf<F> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Queues whose registers there are, used or not.
const ALL_QUEUES: u32 = VFRDT.count();
