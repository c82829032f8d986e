//! A virtual function that runs, for all families: what it agrees on with its physical function, its queues, and what its owner
//! may ask of it. How each family does so it says in a table.
//!
//! `control` looks at the link, counts, and notices when the physical function was reset: all is agreed on anew then, and each
//! `queue` starts again when its worker comes by. `messages` is what is asked the same way everywhere.

mod control;
pub(crate) mod messages;
mod queue;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bywash_frame::{Arena, FRAME_DATA, MAX_FRAMES};
use bywash_hw::ixgbe::vf::API_VERSIONS;
use bywash_hw::pci::{Family, Nic};
use bywash_hw::reg::Register;
use bywash_port::{Capabilities, Certain, Counter, Port, PortName, QueuePair, RssSpread};
use bywash_sys::function::{Function, Registers};

use super::{
    Bar, LONGEST, Link, LinkRegister, Mailbox, Memory, Multicast, NicError, Rss, RxRegisters, Statistic,
    Ticker, TxRegisters, Vlans, allow_dma, before_reset, capabilities, check_moderation, check_ring,
    identify, lock, power_up, retire,
};
use control::{Control, port_link};

/// Most bytes of a packet without FCS and tags where long ones are not allowed.
pub(crate) const SHORT_FRAMES: usize = 1514;

/// Bytes of two VLAN tags: a packet may have them beyond the length that is agreed on.
pub(crate) const TAGS: usize = 8;

/// How the function is to be set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pairs of queues: 1, 2, 4 or 8, of an 82576 1 or 2; as many as the physical function grants and spreads packets over when
    /// `None`.
    pub queues: Option<u16>,
    /// Not more than so many when `queues` is `None`.
    pub most_queues: u16,
    /// Descriptors in each ring: a power of two from 64 to 8192, of an 82576 to 4096.
    pub ring: u32,
    /// Most bytes of a packet without FCS and VLAN tags, both ways, 1514 to 9724. When `None`, 1514; of an 82576 the most that the
    /// physical function lets pass.
    pub max_len: Option<usize>,
    /// Whether it receives.
    pub receives: bool,
    /// Whether it sends.
    pub sends: bool,
    /// Its Ethernet address; what the physical function says when `None`, again after each reset of that, or a random one when
    /// that says nothing.
    pub mac: Option<[u8; 6]>,
    /// Take packets to any address. Neither the 82599 nor the 82576 gives this to a function.
    pub promiscuous: bool,
    /// Multicast packets to take.
    pub multicast: Multicast,
    /// VLANs to take packets of, beside those without a tag.
    pub vlans: Vec<u16>,
    /// Take VLAN tags out of received packets, into their metadata. Of an 82576 the physical function decides that. The tag of a VLAN
    /// that the host has put the function into is taken out in any case, and forgotten.
    pub strip_vlan: bool,
    /// Least time between two interrupts of a queue, in microseconds, up to 1022, of an 82576 to 8191.
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
            most_queues: 8,
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

/// What the two sides have agreed on, and what is asked for again when the physical function was reset.
#[derive(Clone, Debug)]
pub(crate) struct Agreed {
    /// Version of the messages, by its place in the table of versions; the first where they have none.
    pub(crate) api: usize,
    /// The function's own address.
    pub(crate) mac: [u8; 6],
    pub(crate) more_macs: Vec<[u8; 6]>,
    /// Which bits of an address the multicast filter takes.
    pub(crate) multicast_bits: u32,
    pub(crate) promiscuous: bool,
    pub(crate) multicast: Multicast,
    pub(crate) vlans: Vec<u16>,
    /// The host has put the function into a VLAN. It puts the tag in, but does not take it out.
    pub(crate) leaves_tags: bool,
    pub(crate) queues: u16,
    /// Most bytes of a packet without FCS and tags.
    pub(crate) max_len: usize,
    /// What was wished and is not given.
    pub(crate) warnings: Vec<String>,
}

impl Agreed {
    /// The version's name.
    fn version(&self) -> &'static str {
        API_VERSIONS[self.api].0
    }
}

/// What is different from family to family.
#[derive(Debug)]
#[expect(
    clippy::type_complexity,
    reason = "a table of functions: a name for their types would hide what they take"
)]
pub(crate) struct VfDriver<R> {
    pub(crate) family: Family,
    /// What its watching thread is called.
    pub(crate) thread: &'static str,
    /// The mailbox's control register and its words.
    pub(crate) mailbox: (&'static Register, &'static Register),
    pub(crate) link: LinkRegister,
    pub(crate) statistics: &'static [Statistic],
    pub(crate) queues: (RxRegisters, TxRegisters),
    /// Vectors: each of the first queues has one. Those beyond are polled, and the mailbox is looked at from time to time.
    pub(crate) vectors: u16,
    /// Most queues, descriptors in a ring, and microseconds between interrupts.
    pub(crate) most_queues: u16,
    pub(crate) most_ring: u32,
    pub(crate) most_moderation_us: u32,
    /// Most bytes of a packet without FCS, tags counted.
    pub(crate) longest: usize,
    /// Makes it quiet: interrupts masked, queues off.
    pub(crate) stop: fn(&Bar<R>) -> Result<(), NicError>,
    /// Resets the function, and agrees with the physical one on all that the settings wish; where neither names an address, on
    /// this one.
    pub(crate) agree: fn(&Bar<R>, &mut Mailbox<R>, &Settings, [u8; 6]) -> Result<Agreed, NicError>,
    /// Says how many queues there are, and what wakes their workers: masked when it fires, and its cause cleared.
    pub(crate) prepare: fn(&Bar<R>, &Settings, u16),
    /// Says which packets to other addresses than its own to take, as far as the other side gives them.
    pub(crate) filter: fn(&mut Mailbox<R>, &mut Agreed) -> Result<(), NicError>,
    /// Takes packets to one more address, of a number from 1 on.
    pub(crate) add_mac: fn(&mut Mailbox<R>, [u8; 6], usize) -> Result<(), NicError>,
    /// Whether the host lets the function have the port's link.
    pub(crate) has_link: fn(&mut Mailbox<R>, &Agreed) -> bool,
    /// Asks for the table and key by which packets are spread over so many queues.
    pub(crate) rss: Option<fn(&mut Mailbox<R>, u16) -> Result<Rss, NicError>>,
}

/// What the port, its watch and its queues share.
#[derive(Debug)]
struct Shared<R> {
    bar: Bar<R>,
    driver: VfDriver<R>,
    memory: Memory,
    /// As the function was opened: queues and lengths are those agreed on.
    settings: Settings,
    queues: u16,
    /// Most bytes of a packet without FCS, tags counted.
    max_len: usize,
    /// Whether queues take tags out, and of which VLANs these are the packets' own, as it was agreed on last.
    strips: AtomicBool,
    vlans: Arc<Vlans>,
    /// How often what was agreed on was lost, and agreed on anew: odd while it is lost. Queues of an earlier epoch must be
    /// started again.
    epoch: AtomicU32,
    /// A queue did not start.
    failed: AtomicBool,
    control: Mutex<Control<R>>,
}

impl<R: Registers> Shared<R> {
    /// The link now.
    fn link(&self) -> Link {
        let link = port_link(&self.bar, &self.driver.link);
        let control = &mut *lock(&self.control);
        let has = link.up && (self.driver.has_link)(&mut control.mailbox, &control.agreed);
        if has { link } else { Link::DOWN }
    }

    /// Waits until it is up.
    fn wait_for_link(&self, within: Duration) -> Result<Link, NicError> {
        let begun = Instant::now();
        loop {
            let link = self.link();
            if link.up {
                lock(&self.control).see(link);
                return Ok(link);
            }
            let register = self.driver.link.register;
            let value = self.bar.get(register);
            if value == u32::MAX && self.bar.is_gone() {
                return Err(NicError::Gone);
            }
            let waited = begun.elapsed();
            if waited >= within {
                let meaning = "the link is down; is the cable in, the other side on, and does the host give the function its link (`ip link set dev PF vf N state auto`)?";
                return Err(NicError::Timeout { register: register.name, index: 0, value, waited, meaning });
            }
            sleep(Duration::from_millis(2));
        }
    }
}

/// A virtual function that is up and running.
#[expect(missing_debug_implementations, reason = "queues are trait objects")]
pub struct VirtualFunction<F: Function> {
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

/// Resets and starts a virtual function by `driver`.
pub(crate) fn open<F: Function + 'static>(
    driver: VfDriver<F::Registers>,
    mut function: F,
    name: PortName,
    settings: &Settings,
    arena: &'static Arena,
) -> Result<VirtualFunction<F>, NicError> {
    check(&driver, settings)?;
    let nic = identify(&mut function, driver.family)?;
    power_up(&mut function)?;
    let bar = Bar::new(function.registers());
    if bar.is_gone() {
        return Err(NicError::Gone);
    }
    let (control, words) = driver.mailbox;
    let mut mailbox = Mailbox::new(bar.clone(), control, words, settings.patience);
    before_reset((driver.stop)(&bar))?;
    let agreed = (driver.agree)(&bar, &mut mailbox, settings, any_mac())?;
    allow_dma(&mut function)?;
    let Agreed { queues, max_len, .. } = agreed;
    let max_len = (max_len + TAGS).min(driver.longest);
    let strips = AtomicBool::new(settings.strip_vlan || agreed.leaves_tags);
    let vlans = Arc::new(Vlans::new(&agreed.vlans));
    let memory = Memory::new(&mut function, arena, queues, settings.ring)?;
    let vectors = if settings.receives { queues.min(driver.vectors) } else { 0 };
    let mut bells = function.interrupts(vectors)?.into_iter();
    (driver.prepare)(&bar, settings, queues);
    let shared = Arc::new(Shared {
        control: Mutex::new(Control::new(&bar, mailbox, agreed, settings.mac, driver.statistics)),
        bar,
        driver,
        memory,
        settings: settings.clone(),
        queues,
        max_len,
        strips,
        vlans,
        epoch: AtomicU32::new(0),
        failed: AtomicBool::new(false),
    });
    let mut pairs = Vec::with_capacity(usize::from(queues));
    for number in 0..u32::from(queues) {
        let rx = settings.receives.then(|| queue::Rx::start(&shared, number, bells.next())).transpose()?;
        let tx = settings.sends.then(|| queue::Tx::start(&shared, number)).transpose()?;
        pairs.push(QueuePair { rx: rx.map(|rx| Box::new(rx) as _), tx: tx.map(|tx| Box::new(tx) as _) });
    }
    let capabilities = capabilities(nic, max_len, None);
    let watched = shared.clone();
    let ticker = Ticker::start(shared.driver.thread, settings.watch, move || watched.look());
    Ok(VirtualFunction { function, nic, name, capabilities, queues: pairs, shared, ticker, closed: false })
}

/// A local address of one NIC, by chance.
fn any_mac() -> [u8; 6] {
    let [a, b, c, d, e, ..] = RandomState::new().hash_one("mac").to_le_bytes();
    [0x02, a, b, c, d, e]
}

/// What a function does not have is refused before it is touched.
fn check<R>(driver: &VfDriver<R>, settings: &Settings) -> Result<(), NicError> {
    let refuse = |reason: String| Err(NicError::Setting(reason));
    let Settings { queues, max_len, multicast, vlans, .. } = settings;
    let most = driver.most_queues;
    if let Some(queues) = queues.filter(|queues| !queues.is_power_of_two() || *queues > most) {
        return refuse(format!(
            "{queues} queues: this virtual function has 1 to {most}, and their number is a power of two"
        ));
    }
    if let Some(max_len) =
        max_len.filter(|len| !(SHORT_FRAMES..=LONGEST).contains(len) || *len > MAX_FRAMES * FRAME_DATA)
    {
        return refuse(format!(
            "packets of {max_len} bytes: the longest may have {SHORT_FRAMES} to {LONGEST}"
        ));
    }
    check_ring(settings.ring, driver.most_ring)?;
    check_moderation(settings.moderation_us, driver.most_moderation_us)?;
    vlans.iter().try_for_each(|vlan| messages::check_vlan(*vlan))?;
    messages::check(multicast)
}

impl<F: Function> VirtualFunction<F> {
    /// Which NIC it is.
    pub fn nic(&self) -> &'static Nic {
        self.nic
    }

    /// The version of the messages that both sides speak: `1.5`; 1.0 where they have none.
    pub fn api(&self) -> &'static str {
        lock(&self.shared.control).agreed.version()
    }

    /// What was wished and is not given, each a line.
    pub fn warnings(&self) -> Vec<String> {
        lock(&self.shared.control).agreed.warnings.clone()
    }

    /// The link now: the port's, unless the host takes it from this function.
    pub fn link(&self) -> Link {
        self.shared.link()
    }

    /// Waits until the link is up.
    ///
    /// # Errors
    /// [`NicError::Timeout`], when it does not come up within that time.
    pub fn wait_for_link(&mut self, within: Duration) -> Result<Link, NicError> {
        let link = self.shared.wait_for_link(within)?;
        self.capabilities.link_mbps = link.mbps;
        Ok(link)
    }

    /// The table and key by which the NIC spreads packets over queues; all functions of a port have the same.
    ///
    /// # Errors
    /// [`MailboxError::Refused`](super::MailboxError::Refused) where the host does not tell, or speaks an older version than 1.2;
    /// [`NicError::Setting`] where the NIC spreads none.
    pub fn rss(&self) -> Result<Rss, NicError> {
        let none = || NicError::Setting(format!("{}: packets come by the first queue", self.nic.name));
        let rss = self.shared.driver.rss.ok_or_else(none)?;
        rss(&mut lock(&self.shared.control).mailbox, self.shared.queues)
    }

    /// Changes its Ethernet address.
    ///
    /// # Errors
    /// [`NicError::Mac`] when it is no address of one NIC; [`MailboxError::Refused`](super::MailboxError::Refused) when the host
    /// does not allow it.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), NicError> {
        let control = &mut *lock(&self.shared.control);
        messages::set_mac(&mut control.mailbox, mac)?;
        (control.agreed.mac, control.chosen_mac) = (mac, Some(mac));
        Ok(())
    }

    /// Takes packets to one more address.
    ///
    /// # Errors
    /// As [`VirtualFunction::set_mac`].
    pub fn add_mac(&mut self, mac: [u8; 6]) -> Result<(), NicError> {
        let control = &mut *lock(&self.shared.control);
        (self.shared.driver.add_mac)(&mut control.mailbox, mac, control.agreed.more_macs.len() + 1)?;
        control.agreed.more_macs.push(mac);
        Ok(())
    }

    /// Changes which multicast packets are taken.
    ///
    /// # Errors
    /// When a group is none, or there are too many, or the physical function refuses.
    pub fn set_multicast(&mut self, multicast: Multicast) -> Result<(), NicError> {
        messages::check(&multicast)?;
        let control = &mut *lock(&self.shared.control);
        control.agreed.multicast = multicast;
        (self.shared.driver.filter)(&mut control.mailbox, &mut control.agreed)
    }

    /// Takes packets of a VLAN, or no more.
    ///
    /// # Errors
    /// When there is no such VLAN, or the physical function refuses.
    pub fn set_vlan(&mut self, vlan: u16, on: bool) -> Result<(), NicError> {
        let control = &mut *lock(&self.shared.control);
        messages::set_vlan(&mut control.mailbox, vlan, on)?;
        control.agreed.vlans.retain(|other| *other != vlan);
        control.agreed.vlans.extend(on.then_some(vlan));
        self.shared.vlans.set(&control.agreed.vlans);
        Ok(())
    }

    /// Takes the function out of use: no DMA, no interrupt, no packet after this.
    fn stop(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.closed, true) {
            return Vec::new();
        }
        self.ticker.stop();
        retire((self.shared.driver.stop)(&self.shared.bar), &mut self.function)
    }
}

impl<F: Function> Port for VirtualFunction<F> {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> Option<[u8; 6]> {
        Some(lock(&self.shared.control).agreed.mac)
    }

    fn spread(&self) -> Option<RssSpread> {
        // Whether UDP's ports are hashed the host does not tell.
        self.rss().ok().and_then(|rss| rss.spread(self.shared.queues, Certain::Tcp))
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

impl<F: Function> Drop for VirtualFunction<F> {
    fn drop(&mut self) {
        self.stop();
    }
}
