//! Preparing reception: each queue, and the interrupts that wake workers.

use bywash_hw::igb::vf::{
    EIAC, EIAM, EIMS, EITR, IVAR_MISC, IVAR0, RDBAH, RDBAL, RDH, RDLEN, RDT, RXDCTL, SRRCTL,
};
use bywash_sys::function::Registers;

use super::Settings;
use crate::igb::{REST, RX_THRESHOLDS};
use crate::intel::{Bar, RxBits, RxRegisters};

/// What wakes the workers of queues: each has a vector. It is masked when it fires, and its cause cleared.
pub(super) fn prepare<R: Registers>(bar: &Bar<R>, settings: &Settings, queues: u16) {
    bar.put(&EIAC, EIAC.writable);
    bar.put(&EIAM, EIAM.writable);
    bar.put(&IVAR_MISC, 0);
    let second = if queues > 1 { IVAR0::RX_ODD.with(1) | IVAR0::RX_ODD_VALID.mask } else { 0 };
    bar.put(&IVAR0, IVAR0::RX_EVEN.with(0) | IVAR0::RX_EVEN_VALID.mask | second);
    for queue in 0..u32::from(queues) {
        bar.put_at(&EITR, queue, EITR::INTERVAL.with(settings.moderation_us) | EITR::CNT_WDIS.mask);
    }
}

/// Its queues.
pub(super) const QUEUES: RxRegisters = RxRegisters {
    base: [&RDBAL, &RDBAH],
    length: &RDLEN,
    head: Some(&RDH),
    tail: &RDT,
    split: &SRRCTL,
    drop: SRRCTL::DROP_EN.mask,
    control: &RXDCTL,
    thresholds: RX_THRESHOLDS,
    strip: 0,
    unmask: &EIMS,
    bits: RxBits::IGB,
    rest: REST,
};
