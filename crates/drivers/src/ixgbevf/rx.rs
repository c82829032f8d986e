//! Preparing reception: each queue, and the interrupts that wake workers.

use std::os::fd::{BorrowedFd, OwnedFd};

use bywash_frame::FRAME_DATA;
use bywash_hw::ixgbe::EITR_UNIT_US;
use bywash_hw::ixgbe::desc::DESCTYPE_ADVANCED;
use bywash_hw::ixgbe::regs::{RXDCTL, SRRCTL};
use bywash_hw::ixgbe::vf::{
    self, VFPSRTYPE, VFRDBAH, VFRDBAL, VFRDLEN, VFRDT, VFRXDCTL, VFSRRCTL, VTEIAC, VTEIAM, VTEIMS, VTEITR,
    VTIVAR, VTIVAR_MISC,
};
use bywash_sys::function::Registers;

use super::Shared;
use crate::intel::{NicError, RxParts, RxRing, SHORT, Switch, Wait, Wake};

/// Vectors: each of the first queues has one. Those beyond are polled, and the mailbox is looked at from time to time.
pub(super) const VECTORS: u16 = 3;
const _: () = assert!(vf::VECTORS == VECTORS as u32);

/// How many queues packets are spread over, and what wakes their workers. A vector is masked when it fires, and its cause
/// cleared.
pub(super) fn prepare<R: Registers>(shared: &Shared<R>) {
    let bar = &shared.bar;
    bar.put(&VFPSRTYPE, VFPSRTYPE::RQPL.with(shared.queues.ilog2()));
    bar.put(&VTEIAC, VTEIAC.writable);
    bar.put(&VTEIAM, VTEIAM.writable);
    bar.fill(&VTIVAR, 0);
    bar.put(&VTIVAR_MISC, 0);
    let interval = shared.settings.moderation_us / u32::try_from(EITR_UNIT_US).unwrap_or(1);
    for queue in 0..u32::from(shared.queues.min(VECTORS)) {
        let entry = match queue % 2 {
            0 => VTIVAR::RX_EVEN.with(queue) | VTIVAR::RX_EVEN_VALID.mask,
            _ => VTIVAR::RX_ODD.with(queue) | VTIVAR::RX_ODD_VALID.mask,
        };
        bar.change_at(&VTIVAR, queue / 2, 0, entry);
        bar.put_at(&VTEITR, queue, VTEITR::INTERVAL.with(interval) | VTEITR::CNT_WDIS.mask);
    }
}

/// Number of a receiving ring.
const fn number(queue: u32) -> u32 {
    2 * queue
}

/// A ring for a queue, which is still off. Without a bell its worker polls.
pub(super) fn ring<R: Registers>(
    shared: &Shared<R>,
    queue: u32,
    bell: Option<BorrowedFd<'_>>,
) -> Result<RxRing<R>, NicError> {
    let switch =
        Switch { offset: VFRXDCTL.at(queue), name: (VFRXDCTL.name, queue), enable: RXDCTL::ENABLE.mask };
    let ring = shared.memory.ring(shared.bar.clone(), number(queue), VFRDT.at(queue), switch)?;
    // The bell is the queue's own: the ring gets another handle of it.
    let bell: Option<OwnedFd> = bell.and_then(|bell| bell.try_clone_to_owned().ok());
    let wake = bell.map(|bell| Wake { bell, unmask: (VTEIMS.offset(), 1 << queue) });
    Ok(RxRing::new(RxParts { ring, wake }))
}

/// Switches a queue on. It has no descriptors before its first call to `rx`.
pub(super) fn enable<R: Registers>(shared: &Shared<R>, queue: u32) -> Result<(), NicError> {
    let bar = &shared.bar;
    let [low, high] = shared.memory.ring_address(number(queue));
    bar.put_at(&VFRDBAL, queue, low);
    bar.put_at(&VFRDBAH, queue, high);
    bar.put_at(&VFRDLEN, queue, shared.memory.ring_bytes());
    bar.put_at(&VFRDT, queue, 0);
    // With several queues, one that is not emptied must not hold up the others: what is for it is dropped.
    let drop = if shared.queues > 1 { SRRCTL::DROP_EN.mask } else { 0 };
    let kibibytes = u32::try_from(FRAME_DATA / 1024).unwrap_or(0);
    let one_buffer = SRRCTL::BSIZEPACKET.with(kibibytes) | SRRCTL::DESCTYPE.with(DESCTYPE_ADVANCED);
    bar.put_at(&VFSRRCTL, queue, one_buffer | drop);
    let strip = if shared.settings.strip_vlan { RXDCTL::VME.mask } else { 0 };
    bar.put_at(&VFRXDCTL, queue, RXDCTL::ENABLE.mask | strip);
    let on = Wait::set(RXDCTL::ENABLE.mask, SHORT, "the receive queue does not start");
    bar.wait(&VFRXDCTL, queue, on).map(|_| ())
}
