//! Preparing transmission: each queue. The transmitter as a whole is the physical function's.

use bywash_hw::ixgbe::regs::TXDCTL;
use bywash_hw::ixgbe::vf::{VFTDBAH, VFTDBAL, VFTDH, VFTDLEN, VFTDT, VFTDWBAL, VFTXDCTL};
use bywash_sys::function::Registers;

use super::Shared;
use crate::intel::{NicError, SHORT, Switch, TxParts, TxRing, Wait};

/// Number of a transmitting ring.
const fn number(queue: u32) -> u32 {
    2 * queue + 1
}

/// A ring for a queue, which is still off.
pub(super) fn ring<R: Registers>(shared: &Shared<R>, queue: u32) -> Result<TxRing<R>, NicError> {
    let switch =
        Switch { offset: VFTXDCTL.at(queue), name: (VFTXDCTL.name, queue), enable: TXDCTL::ENABLE.mask };
    let ring = shared.memory.ring(shared.bar.clone(), number(queue), VFTDT.at(queue), switch)?;
    Ok(TxRing::new(TxParts { ring, max_len: shared.max_len, names_context: true }))
}

/// Switches a queue on.
pub(super) fn enable<R: Registers>(shared: &Shared<R>, queue: u32) -> Result<(), NicError> {
    let bar = &shared.bar;
    let [low, high] = shared.memory.ring_address(number(queue));
    bar.put_at(&VFTDBAL, queue, low);
    bar.put_at(&VFTDBAH, queue, high);
    bar.put_at(&VFTDLEN, queue, shared.memory.ring_bytes());
    bar.put_at(&VFTDH, queue, 0);
    bar.put_at(&VFTDT, queue, 0);
    // Done is said in descriptors; a function reset does not clear what an earlier driver wanted.
    bar.put_at(&VFTDWBAL, queue, 0);
    // Fetch up to 32 descriptors ahead; write back as RS asks, which a WTHRESH above 0 would override.
    let thresholds = TXDCTL::PTHRESH.with(32) | TXDCTL::HTHRESH.with(1) | TXDCTL::WTHRESH.with(0);
    bar.put_at(&VFTXDCTL, queue, thresholds | TXDCTL::ENABLE.mask);
    let on = Wait::set(TXDCTL::ENABLE.mask, SHORT, "the transmit queue does not start");
    bar.wait(&VFTXDCTL, queue, on).map(|_| ())
}
