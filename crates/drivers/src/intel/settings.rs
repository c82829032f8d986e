//! How a physical function is to be set up, and what a family can do of it.

use std::time::Duration;

use bywash_frame::{FRAME_DATA, MAX_FRAMES};
use bywash_hw::pci::Nic;
use bywash_port::{Capabilities, FdirFilters};

use super::{Multicast, NicError, Rss};

/// Longest packet, without FCS: 9728 bytes with it is what Intel's own drivers allow.
pub(crate) const LONGEST: usize = 9724;

/// Bytes of the frame check sequence.
pub(crate) const FCS: usize = 4;

/// What a NIC can do that takes packets up to so many bytes, whether it is a physical function or a virtual one.
pub(crate) fn capabilities(nic: &Nic, max_len: usize, link_mbps: Option<u32>) -> Capabilities {
    Capabilities {
        max_len,
        sent: None,
        tx_checksum: true,
        segmentation: true,
        chains: true,
        zero_copy: true,
        mode: vec![nic.family.name(), "zero-copy"],
        link_mbps,
    }
}

/// How the NIC is to be set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pairs of queues, from 1 on. RSS uses as many of the first as it can; others get what rules send them.
    pub queues: u16,
    /// Descriptors in each ring: a power of two from 64 on.
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
    /// Least time between two interrupts of a queue, in microseconds.
    pub moderation_us: u32,
    /// Packets go from the transmitter to the receiver inside the NIC; nothing comes from or goes to the wire. The 82599
    /// can do this.
    pub loopback: bool,
    /// Room for flow director filters, which the 82599 has, for rules that five-tuple filters can't do
    /// ([`PhysicalFunction::steer`](super::PhysicalFunction::steer)).
    pub fdir: Option<FdirFilters>,
    /// How often link and statistics are looked at by a thread of their own; when `None`, only as they are asked for, which
    /// must be more often than every 50 s at 10 Gb/s or counters of bytes stick at their end.
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
            fdir: None,
            watch: Some(Duration::from_secs(1)),
        }
    }
}

/// Most of what a family has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Queue pairs.
    pub(crate) queues: u16,
    /// Queues that RSS spreads packets over.
    pub(crate) rss_queues: u16,
    /// Descriptors in a ring.
    pub(crate) ring: u32,
    /// Microseconds between two interrupts.
    pub(crate) moderation_us: u32,
    /// Whether packets can go from the transmitter to the receiver.
    pub(crate) loopback: bool,
    /// Whether there is a flow director.
    pub(crate) flow_director: bool,
}

impl Limits {
    /// What the NIC does not have is refused before it is touched.
    pub(crate) fn check(&self, settings: &Settings) -> Result<(), NicError> {
        let refuse = |reason: String| Err(NicError::Setting(reason));
        let Settings { queues, max_len, .. } = settings;
        if !(1..=self.queues).contains(queues) {
            return refuse(format!("{queues} queues: the NIC has 1 to {}", self.queues));
        }
        if !(1518..=LONGEST).contains(max_len) || *max_len > MAX_FRAMES * FRAME_DATA {
            return refuse(format!("packets of {max_len} bytes: the longest may have 1518 to {LONGEST}"));
        }
        if settings.loopback && !self.loopback {
            return refuse("packets cannot go back inside this NIC: loop them outside".into());
        }
        if settings.fdir.is_some() && !self.flow_director {
            return refuse("this NIC has no flow director: leave /fdir= out".into());
        }
        check_ring(settings.ring, self.ring)?;
        check_moderation(settings.moderation_us, self.moderation_us)?;
        settings.rss.check((*queues).min(self.rss_queues), *queues)
    }
}

/// Refuses a ring that no NIC has, or this one has not.
pub(crate) fn check_ring(ring: u32, most: u32) -> Result<(), NicError> {
    if ring.is_power_of_two() && (64..=most).contains(&ring) {
        return Ok(());
    }
    let reason = format!("a ring of {ring} packets: it must be a power of two from 64 to {most}");
    Err(NicError::Setting(reason))
}

/// Refuses a pause between interrupts that is too long.
pub(crate) fn check_moderation(us: u32, most: u32) -> Result<(), NicError> {
    if us <= most {
        return Ok(());
    }
    Err(NicError::Setting(format!("{us} µs between interrupts: at most {most}")))
}
