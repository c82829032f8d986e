//! Preparing reception: the receiver as a whole, each queue, and the interrupts that wake workers; as DPDK's igb does it
//! (`eth_igb_rx_init`).

use bywash_hw::igb::regs::{
    CTRL, EIAC, EIAM, EIMS, EITR, GPIE, IVAR, IVAR_MISC, RCTL, RDBAH, RDBAL, RDH, RDLEN, RDT, RLPML, RXCSUM,
    RXDCTL, SRRCTL,
};
use bywash_sys::function::Registers;

use super::{REST, steer};
use crate::intel::{Bar, FCS, NicError, RxBits, RxRegisters, Settings};

/// Prepares the receiver. It is off until [`start`].
pub(super) fn prepare<R: Registers>(bar: &Bar<R>, settings: &Settings) -> Result<(), NicError> {
    let longest = u32::try_from(settings.max_len + FCS).unwrap_or(u32::MAX);
    bar.put(&RLPML, longest);
    // The check sequence is taken off, frames may be long, and the size of buffers is each queue's.
    bar.put(&RCTL, RCTL::LPE.mask | RCTL::SECRC.mask);
    let strip = if settings.strip_vlan { CTRL::VME.mask } else { 0 };
    bar.change(&CTRL, CTRL::VME.mask, strip);
    // The RSS hash in descriptors, where else a sum over fragments would be; and all checksums looked at.
    bar.put(&RXCSUM, RXCSUM::PCSD.mask | RXCSUM::IPOFL.mask | RXCSUM::TUOFL.mask | RXCSUM::CRCOFL.mask);
    steer::filter(bar, settings)?;
    steer::RSS.spread(bar, &settings.rss, settings.queues);
    Ok(())
}

/// Each receiving queue gets the vector of its number, masked until a worker wants to sleep. When it fires, it is masked
/// and its cause cleared by the NIC itself.
pub(super) fn prepare_interrupts<R: Registers>(bar: &Bar<R>, settings: &Settings) {
    bar.put(&GPIE, GPIE::NSICR.mask | GPIE::MSIX_MODE.mask | GPIE::EIAME.mask | GPIE::PBA.mask);
    let vectors = (1 << settings.queues) - 1;
    bar.put(&EIAC, vectors);
    bar.put(&EIAM, vectors);
    bar.fill(&IVAR, 0);
    bar.put(&IVAR_MISC, 0);
    for queue in 0..u32::from(settings.queues) {
        bar.put_at(&IVAR, queue, IVAR::RX_LOW.with(queue) | IVAR::RX_LOW_VALID.mask);
        bar.put_at(&EITR, queue, EITR::INTERVAL.with(settings.moderation_us) | EITR::CNT_WDIS.mask);
    }
}

/// Its queues. As Linux's igb has them for this NIC with MSI-X: each descriptor is written back at once.
pub(super) const QUEUES: RxRegisters = RxRegisters {
    base: [&RDBAL, &RDBAH],
    length: &RDLEN,
    head: Some(&RDH),
    tail: &RDT,
    split: &SRRCTL,
    drop: SRRCTL::DROP_EN.mask,
    control: &RXDCTL,
    thresholds: THRESHOLDS,
    strip: 0,
    unmask: &EIMS,
    bits: RxBits::IGB,
    rest: REST,
};

/// Virtual functions have the same.
pub(crate) const THRESHOLDS: u32 =
    RXDCTL::PTHRESH.with(8) | RXDCTL::HTHRESH.with(8) | RXDCTL::WTHRESH.with(1);

/// Switches the receiver on.
pub(super) fn start<R: Registers>(bar: &Bar<R>) {
    bar.change(&RCTL, 0, RCTL::RXEN.mask);
    bar.flush();
}
