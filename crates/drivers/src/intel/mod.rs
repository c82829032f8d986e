//! What the drivers of Intel's NICs share: registers with names and timeouts, the queue engine, and all that an opened NIC is
//! asked. 82599, 82576 and their virtual functions have the same advanced descriptors; where their registers lie, and what else
//! is different, is in each family's own tables.

mod bar;
mod error;
mod filters;
#[cfg(test)]
mod garbage;
mod link;
mod mailbox;
mod memory;
mod offload;
mod physical;
mod power;
mod queue;
mod rx;
mod semaphore;
mod settings;
mod steer;
mod ticker;
mod tx;
mod vf;
mod vlans;
mod watch;

pub use error::NicError;
pub use link::Link;
pub use mailbox::MailboxError;
pub use physical::PhysicalFunction;
pub use settings::Settings;
pub use steer::{Multicast, Place, Rss};
pub use vf::{Settings as VfSettings, VirtualFunction};

pub(crate) use bar::{Bar, SHORT, Wait};
pub(crate) use filters::{FilterCounts, Filters, check_new, five_tuple_queue};
pub(crate) use link::{LinkRegister, Seen};
pub(crate) use mailbox::{Mailbox, News, Post};
pub(crate) use memory::Memory;
pub(crate) use physical::{Driver, Prepared};
pub(crate) use power::{allow_dma, before_reset, identify, power_up, retire};
pub(crate) use queue::{REST, RxRegisters, TxRegisters, start_all};
pub(crate) use rx::{RxBits, RxParts, RxRing, Wake};
pub(crate) use semaphore::Semaphore;
pub(crate) use settings::{FCS, LONGEST, Limits, capabilities, check_moderation, check_ring};
pub(crate) use steer::{Addresses, RssRegisters, Steer, check_unicast};
pub(crate) use ticker::{Ticker, lock};
pub(crate) use tx::{TxParts, TxRing};
pub(crate) use vf::{Agreed, SHORT_FRAMES, TAGS, VfDriver, messages, open as open_vf};
pub(crate) use vlans::Vlans;
pub(crate) use watch::{Shared, Statistic, Statistics, Watch, clear as clear_counters};

use std::time::Duration;

use bywash_frame::Arena;
use bywash_sys::dma::Descriptors;
use bywash_sys::function::DeviceAddresses;

/// How a queue is switched off: by clearing its enable bit, which then reads as clear.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch {
    /// Offset of the register.
    pub(crate) offset: u32,
    /// Its name and the queue's number, for errors.
    pub(crate) name: (&'static str, u32),
    /// The enable bit.
    pub(crate) enable: u32,
    /// How long what the queue had begun may go on after that.
    pub(crate) rest: Duration,
}

/// What both kinds of rings are made of.
#[derive(Debug)]
pub(crate) struct RingParts<R> {
    pub(crate) bar: Bar<R>,
    pub(crate) descriptors: Descriptors,
    /// Offset of the tail register.
    pub(crate) tail: u32,
    pub(crate) switch: Switch,
    pub(crate) arena: &'static Arena,
    /// The device's addresses of the arena.
    pub(crate) addresses: DeviceAddresses,
}
