//! Preparing reception: each queue, and the interrupts that wake workers.

use bywash_hw::ixgbe::EITR_UNIT_US;
use bywash_hw::ixgbe::regs::{RXDCTL, SRRCTL};
use bywash_hw::ixgbe::vf::{
    self, VFPSRTYPE, VFRDBAH, VFRDBAL, VFRDH, VFRDLEN, VFRDT, VFRXDCTL, VFSRRCTL, VTEIAC, VTEIAM, VTEIMS,
    VTEITR, VTIVAR, VTIVAR_MISC,
};
use bywash_sys::function::Registers;

use super::Settings;
use crate::intel::{Bar, REST, RxBits, RxRegisters};

/// Vectors: each of the first queues has one. Those beyond are polled, and the mailbox is looked at from time to time.
pub(super) const VECTORS: u16 = 3;
const _: () = assert!(vf::VECTORS == VECTORS as u32);

/// How many queues packets are spread over, and what wakes their workers. A vector is masked when it fires, and its cause
/// cleared.
pub(super) fn prepare<R: Registers>(bar: &Bar<R>, settings: &Settings, queues: u16) {
    bar.put(&VFPSRTYPE, VFPSRTYPE::RQPL.with(queues.ilog2()));
    bar.put(&VTEIAC, VTEIAC.writable);
    bar.put(&VTEIAM, VTEIAM.writable);
    bar.fill(&VTIVAR, 0);
    bar.put(&VTIVAR_MISC, 0);
    let interval = settings.moderation_us / u32::try_from(EITR_UNIT_US).unwrap_or(1);
    for queue in 0..u32::from(queues.min(VECTORS)) {
        let entry = match queue % 2 {
            0 => VTIVAR::RX_EVEN.with(queue) | VTIVAR::RX_EVEN_VALID.mask,
            _ => VTIVAR::RX_ODD.with(queue) | VTIVAR::RX_ODD_VALID.mask,
        };
        bar.change_at(&VTIVAR, queue / 2, 0, entry);
        bar.put_at(&VTEITR, queue, VTEITR::INTERVAL.with(interval) | VTEITR::CNT_WDIS.mask);
    }
}

/// Its queues.
pub(super) const QUEUES: RxRegisters = RxRegisters {
    base: [&VFRDBAL, &VFRDBAH],
    length: &VFRDLEN,
    head: Some(&VFRDH),
    tail: &VFRDT,
    split: &VFSRRCTL,
    drop: SRRCTL::DROP_EN.mask,
    control: &VFRXDCTL,
    thresholds: 0,
    strip: RXDCTL::VME.mask,
    unmask: &VTEIMS,
    bits: RxBits::IXGBE,
    rest: REST,
};
