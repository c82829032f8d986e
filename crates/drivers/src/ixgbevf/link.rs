//! The link: the port's own, as the function sees it, unless the host takes it away.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bywash_hw::ixgbe::vf::{VFLINKS, message};
use bywash_sys::function::Registers;

use super::{Link, NicError, Shared};
use crate::intel::{Bar, LinkRegister, Post, lock};
use crate::ixgbe::SPEEDS;

/// Where the function sees it, with the fields of LINKS.
const REGISTER: LinkRegister =
    LinkRegister { register: &VFLINKS, up: VFLINKS::UP, speed: VFLINKS::SPEED, mbps: SPEEDS };

/// Version 1.2, by its place in the table: from it on the host may be asked.
const V1_2: usize = 2;

/// What the port says. One that comes up flaps at first, so it must say so several times.
pub(super) fn port<R: Registers>(bar: &Bar<R>) -> Link {
    let mut link = REGISTER.state(bar);
    for _ in 0..5 {
        if !link.up {
            break;
        }
        sleep(Duration::from_micros(100));
        link = REGISTER.state(bar);
    }
    link
}

/// The link now.
pub(super) fn state<R: Registers>(shared: &Shared<R>) -> Link {
    let link = port(&shared.bar);
    let control = &mut *lock(&shared.control);
    if !link.up || control.agreed.api < V1_2 {
        return link;
    }
    let post = Post { name: "GET_LINK_STATE", words: &[message::GET_LINK_STATE, 0], cure: "" };
    // Hosts that do not know the question take no link away.
    match control.mailbox.ask_whether(post) {
        Ok((words, true)) if words[1] == 0 => Link::DOWN,
        _ => link,
    }
}

/// Waits until it is up.
pub(super) fn wait<R: Registers>(shared: &Shared<R>, within: Duration) -> Result<Link, NicError> {
    let begun = Instant::now();
    loop {
        let link = state(shared);
        if link.up {
            lock(&shared.control).see(link);
            return Ok(link);
        }
        let value = shared.bar.get(&VFLINKS);
        if value == u32::MAX && shared.bar.is_gone() {
            return Err(NicError::Gone);
        }
        let waited = begun.elapsed();
        if waited >= within {
            let meaning = "the link is down; is the cable in, the other side on, and does the host give the function its link (`ip link set dev PF vf N state auto`)?";
            return Err(NicError::Timeout { register: "VFLINKS", index: 0, value, waited, meaning });
        }
        sleep(Duration::from_millis(2));
    }
}
