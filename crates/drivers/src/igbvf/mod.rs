//! `igbvf`: a virtual function of the 82576, driven from this process beside the kernel's driver on the NIC itself.
//!
//! It has the same files as `ixgbevf`, and the same engine: `init` resets the function and agrees with the physical one, `steer`
//! says which packets are for us, `rx` and `tx` say what queues are like, `link` where the link is seen, `stats` what is counted.
//! The datasheet was not at hand: order and values follow Linux's igbvf.
//!
//! Its messages have no versions, and nothing is granted by number: a function has two queues to send from, and Linux's igb
//! gives all that it receives to the first. VLAN tags are taken out, or not, as the physical function says.
//!
//! Not done by this driver: a queue for received packets of a priority; header split.

mod init;
mod link;
mod rx;
mod stats;
mod steer;
mod tx;

use bywash_frame::Arena;
use bywash_hw::igb::vf::{V2PMAILBOX, VMBMEM};
use bywash_hw::pci::Family;
use bywash_port::PortName;
use bywash_sys::function::{Function, Registers};

pub use crate::intel::{Link, MailboxError, Multicast, NicError, VfSettings as Settings, VirtualFunction};

use crate::igb::MAX_RING;
use crate::intel::{LONGEST, VfDriver, open_vf};

/// Queue pairs that a function has.
pub const MAX_QUEUES: u16 = 2;

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
        family: Family::IgbVf,
        thread: "igbvf-watch",
        mailbox: (&V2PMAILBOX, &VMBMEM),
        link: link::REGISTER,
        statistics: &stats::STATISTICS,
        queues: (rx::QUEUES, tx::QUEUES),
        vectors: MAX_QUEUES,
        most_queues: MAX_QUEUES,
        most_ring: MAX_RING,
        most_moderation_us: 8191,
        longest: LONGEST,
        stop: init::stop,
        agree: init::agree,
        prepare: rx::prepare,
        filter: steer::filter,
        add_mac: steer::add_mac,
        // The host has no say in it.
        has_link: |_, _| true,
        rss: None,
    }
}
