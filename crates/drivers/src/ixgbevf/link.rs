//! The link: the port's own, as the function sees it, unless the host takes it away.

use bywash_hw::ixgbe::vf::{VFLINKS, message};
use bywash_sys::function::Registers;

use crate::intel::{Agreed, LinkRegister, Mailbox, MailboxError, Post};
use crate::ixgbe::SPEEDS;

/// Version 1.2, by its place in the table: from it on the host may be asked.
const V1_2: usize = 2;

/// Where the function sees it.
pub(super) const REGISTER: LinkRegister =
    LinkRegister { register: &VFLINKS, up: VFLINKS::UP, speed: VFLINKS::SPEED, mbps: SPEEDS };

/// Whether the host lets the function have it. Those that do not know the question take no link away. One that begins anew with the
/// function has given it none yet.
pub(super) fn is_given<R: Registers>(mailbox: &mut Mailbox<R>, agreed: &Agreed) -> bool {
    if agreed.api < V1_2 {
        return true;
    }
    let post = Post { name: "GET_LINK_STATE", words: &[message::GET_LINK_STATE, 0], cure: "" };
    match mailbox.ask_whether(post) {
        Ok((words, true)) => words[1] != 0,
        Err(MailboxError::Reset { .. }) => false,
        Ok((_, false)) | Err(_) => true,
    }
}
