//! Which packets are for us beside those to our own address, each kind by a message.

use bywash_hw::igb::vf::message::{MAC_ADD, MAC_CLEAR, PROMISC_MULTICAST, SET_PROMISC};
use bywash_hw::ixgbe::vf::message;
use bywash_sys::function::Registers;

use super::{Multicast, NicError};
use crate::intel::messages::{set_groups, tell_mac};
use crate::intel::{Agreed, Mailbox, Post};

/// Takes packets to one more address: the first one after the list was emptied.
pub(super) fn add_mac<R: Registers>(
    mailbox: &mut Mailbox<R>,
    mac: [u8; 6],
    number: usize,
) -> Result<(), NicError> {
    if number == 1 {
        tell_mac(mailbox, "SET_MAC (clear)", message::SET_MAC | MAC_CLEAR, mac)?;
    }
    tell_mac(mailbox, "SET_MAC (add)", message::SET_MAC | MAC_ADD, mac)
}

/// Says which packets to other addresses than our own to take, as far as the other side gives them.
pub(super) fn filter<R: Registers>(mailbox: &mut Mailbox<R>, agreed: &mut Agreed) -> Result<(), NicError> {
    // First, because the groups named are forgotten when all are taken.
    let all = agreed.promiscuous || agreed.multicast == Multicast::All;
    let words = [SET_PROMISC | if all { PROMISC_MULTICAST } else { 0 }];
    let (_, given) = mailbox.ask_whether(Post { name: "SET_PROMISC", words: &words, cure: "" })?;
    if !all {
        set_groups(mailbox, agreed)?;
    }
    agreed.warnings.clear();
    if agreed.promiscuous {
        agreed.warnings.push(
            "the physical function gives packets to other addresses than its own to no virtual one: send to this \
             port's address, or broadcast"
                .into(),
        );
    }
    if agreed.multicast == Multicast::All && !given {
        agreed.warnings.push(
            "the physical function gives multicast packets of named groups only (`ip link set dev PF vf N trust on` may \
             help)"
                .into(),
        );
    }
    if agreed.queues > 1 {
        let text = "packets are received by the first queue alone: Linux's igb spreads none over those of a virtual function";
        agreed.warnings.push(text.into());
    }
    Ok(())
}
