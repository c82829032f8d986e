//! Preparing reception: the receiver as a whole, each queue, and the interrupts that wake workers; as DPDK's igb does it
//! (`eth_igb_rx_init`).

use std::os::fd::OwnedFd;

use bywash_frame::FRAME_DATA;
use bywash_hw::igb::regs::{
    CTRL, EIAC, EIAM, EIMS, EITR, GPIE, IVAR, IVAR_MISC, RCTL, RDBAH, RDBAL, RDH, RDLEN, RDT, RLPML, RXCSUM,
    RXDCTL, SRRCTL,
};
use bywash_hw::ixgbe::desc::DESCTYPE_ADVANCED;
use bywash_sys::function::Registers;

use super::{FCS, Settings, steer};
use crate::intel::{Bar, Memory, NicError, RxParts, RxRing, SHORT, Switch, Wait, Wake};

/// Prepares the receiver. It is off until [`start`].
pub(super) fn prepare<R: Registers>(bar: &Bar<R>, settings: &Settings) -> Result<(), NicError> {
    let longest = u32::try_from(settings.max_len).unwrap_or(u32::MAX).saturating_add(FCS);
    bar.put(&RLPML, longest);
    // The check sequence is taken off, frames may be long, and the size of buffers is each queue's.
    bar.put(&RCTL, RCTL::LPE.mask | RCTL::SECRC.mask);
    let strip = if settings.strip_vlan { CTRL::VME.mask } else { 0 };
    bar.change(&CTRL, CTRL::VME.mask, strip);
    // The RSS hash in descriptors, where else a sum over fragments would be; and all checksums looked at.
    bar.put(&RXCSUM, RXCSUM::PCSD.mask | RXCSUM::IPOFL.mask | RXCSUM::TUOFL.mask | RXCSUM::CRCOFL.mask);
    steer::filter(bar, settings)?;
    steer::rss(bar, &settings.rss, settings.queues);
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

/// Prepares and enables a queue. It has no descriptors before its first call to `rx`.
pub(super) fn queue<R: Registers>(
    bar: &Bar<R>,
    memory: &Memory,
    settings: &Settings,
    queue: u32,
    bell: OwnedFd,
) -> Result<RxRing<R>, NicError> {
    let switch = Switch { offset: RXDCTL.at(queue), name: (RXDCTL.name, queue), enable: RXDCTL::ENABLE.mask };
    let number = 2 * queue;
    let ring = memory.ring(bar.clone(), number, RDT.at(queue), switch)?;
    let [low, high] = memory.ring_address(number);
    bar.put_at(&RDBAL, queue, low);
    bar.put_at(&RDBAH, queue, high);
    bar.put_at(&RDLEN, queue, memory.ring_bytes());
    bar.put_at(&RDH, queue, 0);
    bar.put_at(&RDT, queue, 0);
    // With several queues, one that is not emptied must not hold up the others: what is for it is dropped.
    let drop = if settings.queues > 1 { SRRCTL::DROP_EN.mask } else { 0 };
    let kibibytes = u32::try_from(FRAME_DATA / 1024).unwrap_or(0);
    let one_buffer = SRRCTL::BSIZEPACKET.with(kibibytes) | SRRCTL::DESCTYPE.with(DESCTYPE_ADVANCED);
    bar.put_at(&SRRCTL, queue, one_buffer | drop);
    // As Linux's igb has them for this NIC with MSI-X: each descriptor is written back at once.
    let thresholds = RXDCTL::PTHRESH.with(8) | RXDCTL::HTHRESH.with(8) | RXDCTL::WTHRESH.with(1);
    bar.put_at(&RXDCTL, queue, thresholds | RXDCTL::ENABLE.mask);
    bar.wait(&RXDCTL, queue, Wait::set(RXDCTL::ENABLE.mask, SHORT, "the receive queue does not start"))?;
    let unmask = (EIMS.offset(), 1 << queue);
    Ok(RxRing::new(RxParts { ring, wake: Some(Wake { bell, unmask }) }))
}

/// Switches the receiver on.
pub(super) fn start<R: Registers>(bar: &Bar<R>) {
    bar.change(&RCTL, 0, RCTL::RXEN.mask);
    bar.flush();
}
