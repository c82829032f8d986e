//! Which packets are for us beside those to our own address, each kind by a message; and how they are spread over queues, which is
//! the physical function's business.

use bywash_hw::ixgbe::vf::{API_VERSIONS, message, xcast};
use bywash_sys::function::Registers;

use super::{Multicast, NicError, Rss};
use crate::intel::messages::{detail, set_groups, tell_mac};
use crate::intel::{Agreed, Mailbox, Post};

/// Version 1.2, by its place in the table: from it on more than named groups can be asked for.
const V1_2: usize = 2;
/// Version 1.3: from it on everything can be asked for.
const V1_3: usize = 3;

/// Takes packets to one more address, the function's `number`th beside its own: number 1 begins the list anew.
pub(super) fn add_mac<R: Registers>(
    mailbox: &mut Mailbox<R>,
    mac: [u8; 6],
    number: usize,
) -> Result<(), NicError> {
    let number = u32::try_from(number).unwrap_or(u32::MAX).min(0xff);
    tell_mac(mailbox, "SET_MACVLAN", message::SET_MACVLAN | detail(number), mac)
}

/// Says which packets to other addresses than our own to take, as far as the other side gives them.
pub(super) fn filter<R: Registers>(mailbox: &mut Mailbox<R>, agreed: &mut Agreed) -> Result<(), NicError> {
    set_groups(mailbox, agreed)?;

    agreed.warnings.clear();
    let all = agreed.multicast == Multicast::All;
    let given = if agreed.api >= V1_2 { widest(mailbox, agreed, all)? } else { xcast::MULTICAST };
    if agreed.promiscuous && given < xcast::PROMISCUOUS {
        agreed.warnings.push(
            "the physical function gives packets to other addresses than its own to no virtual one: send to this \
             port's address, or broadcast"
                .into(),
        );
    }
    if all && given < xcast::ALL_MULTICAST {
        let version = API_VERSIONS[agreed.api].0;
        agreed.warnings.push(format!(
            "the physical function gives multicast packets of named groups only (its messages are of version {version}; \
             `ip link set dev PF vf N trust on` may help)"
        ));
    }
    Ok(())
}

/// Asks for the widest mode that is wished, then for narrower ones. Returns what is given.
fn widest<R: Registers>(mailbox: &mut Mailbox<R>, agreed: &Agreed, all: bool) -> Result<u32, NicError> {
    let wished = [
        (agreed.promiscuous && agreed.api >= V1_3).then_some(xcast::PROMISCUOUS),
        (agreed.promiscuous || all).then_some(xcast::ALL_MULTICAST),
        Some(xcast::MULTICAST),
    ];
    for mode in wished.into_iter().flatten() {
        let words = [message::UPDATE_XCAST_MODE, mode];
        let post = Post { name: "UPDATE_XCAST_MODE", words: &words, cure: "" };
        if let (answer, true) = mailbox.ask_whether(post)? {
            // It may say yes and give less.
            return Ok(answer[1].min(mode));
        }
    }
    Ok(xcast::MULTICAST)
}

/// Asks for the table and key by which packets are spread over queues.
pub(super) fn rss<R: Registers>(mailbox: &mut Mailbox<R>, queues: u16) -> Result<Rss, NicError> {
    let cure = "its host must allow it: `ip link set dev PF vf N query_rss on`";
    let words = mailbox.ask(Post { name: "GET_RETA", words: &[message::GET_RETA], cure })?;
    let entry = |i: usize| words[1 + i / 16] >> (i % 16 * 2) & 3 & (u32::from(queues) - 1);
    let table = std::array::from_fn(|i| u8::try_from(entry(i)).unwrap_or(0));
    let words = mailbox.ask(Post { name: "GET_RSS_KEY", words: &[message::GET_RSS_KEY], cure })?;
    let key = std::array::from_fn(|i| words[1 + i / 4].to_le_bytes()[i % 4]);
    Ok(Rss { key, table: Some(table) })
}
