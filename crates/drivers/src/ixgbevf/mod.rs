//! `ixgbevf`: a virtual function of the 82599 or X540, driven from this process beside the kernel's driver on the NIC itself.
//!
//! Most of the NIC is the physical function's: what a virtual one may have it asks for by messages. `init` resets the
//! function and agrees with the other side on a version of the messages and on all that depends on it, `steer` says which
//! packets are for us, `rx` and `tx` say what queues are like, `link` looks at the link, `stats` says what is counted. The rings
//! are those of `intel`, and no different from the NIC's own; `intel::vf` is what virtual functions of all families do.
//!
//! Not done by this driver: a table and key for RSS of its own, which only later NICs give a function; several traffic
//! classes; IPsec.

mod init;
mod link;
mod rx;
mod stats;
mod steer;
mod tx;

use bywash_frame::Arena;
use bywash_hw::ixgbe::vf::{VFMAILBOX, VFMBMEM};
use bywash_hw::pci::Family;
use bywash_port::PortName;
use bywash_sys::function::{Function, Registers};

pub use crate::intel::{
    Link, MailboxError, Multicast, NicError, Rss, VfSettings as Settings, VirtualFunction,
};

use crate::intel::{LONGEST, TAGS, VfDriver, open_vf};
use crate::ixgbe::MAX_RING;

/// Queue pairs that a function has at most.
pub const MAX_QUEUES: u16 = 8;

/// Resets and starts the virtual function behind `function`, on packets in `arena`. Its link need not be up when this
/// returns: [`VirtualFunction::wait_for_link`].
///
/// # Errors
/// [`NicError`], naming the register or the message. The device is out of use then.
pub fn open<F: Function + 'static>(
    function: F,
    name: PortName,
    settings: &Settings,
    arena: &'static Arena,
) -> Result<VirtualFunction<F>, NicError> {
    open_vf(driver(), function, name, settings, arena)
}

fn driver<R: Registers>() -> VfDriver<R> {
    VfDriver {
        family: Family::IxgbeVf,
        thread: "ixgbevf-watch",
        mailbox: (&VFMAILBOX, &VFMBMEM),
        link: link::REGISTER,
        statistics: &stats::STATISTICS,
        queues: (rx::QUEUES, tx::QUEUES),
        vectors: rx::VECTORS,
        most_queues: MAX_QUEUES,
        most_ring: MAX_RING,
        most_moderation_us: 1022,
        longest: LONGEST + TAGS,
        stop: init::stop,
        agree: init::agree,
        prepare: rx::prepare,
        filter: steer::filter,
        add_mac: steer::add_mac,
        has_link: link::is_given,
        rss: Some(steer::rss),
    }
}
