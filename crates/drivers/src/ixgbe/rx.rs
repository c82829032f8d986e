//! Preparing reception: the receiver as a whole, each queue, and the interrupts that wake workers.

use std::time::Duration;

use bywash_hw::ixgbe::regs::{
    DCA_RXCTRL, EIAC, EIAM_EX, EIMS_EX, EITR, FCRTH, GPIE, HLREG0, IVAR, IVAR_MISC, MAXFRS, MFLCN, RDBAH,
    RDBAL, RDH, RDLEN, RDRXCTL, RDT, RXCSUM, RXCTRL, RXDCTL, RXPBSIZE, SECRXCTRL, SECRXSTAT, SRRCTL, VLNCTRL,
};
use bywash_hw::ixgbe::{Chip, EITR_UNIT_US};
use bywash_sys::function::Registers;

use super::{RSS_QUEUES, flow_director, steer};
use crate::intel::{Bar, FCS, NicError, REST, RxBits, RxRegisters, Settings, Wait};

/// Prepares the receiver. It is off until [`start`].
pub(super) fn prepare<R: Registers>(bar: &Bar<R>, settings: &Settings, chip: Chip) -> Result<(), NicError> {
    bar.change(&RXCTRL, RXCTRL::RXEN.mask, 0);
    steer::filter(bar, settings)?;
    // Both registers must say the same of the check sequence.
    bar.change(&HLREG0, 0, HLREG0::RXCRCSTRP.mask | HLREG0::JUMBOEN.mask);
    let set = RDRXCTL::CRCSTRIP.mask | RDRXCTL::RSCACKC.mask | RDRXCTL::FCOE_WRFIX.mask;
    bar.change(&RDRXCTL, RDRXCTL::RSCFRSTSIZE.mask, set);
    let longest = u32::try_from(settings.max_len + FCS).unwrap_or(u32::MAX);
    bar.put(&MAXFRS, MAXFRS::MFS.with(longest));
    // One packet buffer has all that there is.
    let buffer = chip.receive_memory() - flow_director::memory(settings.fdir);
    bar.fill(&RXPBSIZE, 0);
    bar.put_at(&RXPBSIZE, 0, buffer);
    // Without flow control too: above this, the switch between packet buffers would drop.
    bar.put_at(&FCRTH, 0, (buffer - 0x6000) & FCRTH::RTH.mask);
    // Pause frames are dropped, not obeyed.
    bar.put(&MFLCN, MFLCN::DPF.mask);
    bar.change(&VLNCTRL, VLNCTRL::VFE.mask, 0);
    // The RSS hash in descriptors, where else a sum over fragments would be.
    bar.put(&RXCSUM, RXCSUM::PCSD.mask);
    steer::RSS.spread(bar, &settings.rss, settings.queues.min(RSS_QUEUES));
    // A bit that must be 0, says the datasheet, before a queue is switched on.
    for queue in 0..u32::from(settings.queues) {
        bar.change_at(&DCA_RXCTRL, queue, DCA_RXCTRL::RESERVED_12.mask, 0);
    }
    Ok(())
}

/// Each receiving queue gets the vector of its number, masked until a worker wants to sleep. When it fires, it is masked
/// and its cause cleared by the NIC itself.
pub(super) fn prepare_interrupts<R: Registers>(bar: &Bar<R>, settings: &Settings) {
    bar.put(&GPIE, GPIE::MSIX_MODE.mask | GPIE::EIAME.mask | GPIE::PBA_SUPPORT.mask | GPIE::OCD.mask);
    bar.put(&EIAC, 0xffff);
    bar.fill(&EIAM_EX, u32::MAX);
    bar.fill(&IVAR, 0);
    bar.put(&IVAR_MISC, 0);
    let interval = settings.moderation_us / u32::try_from(EITR_UNIT_US).unwrap_or(1);
    for queue in 0..u32::from(settings.queues) {
        let entry = match queue % 2 {
            0 => IVAR::RX_EVEN.with(queue) | IVAR::RX_EVEN_VALID.mask,
            _ => IVAR::RX_ODD.with(queue) | IVAR::RX_ODD_VALID.mask,
        };
        bar.change_at(&IVAR, queue / 2, 0, entry);
        bar.put_at(&EITR, queue, EITR::INTERVAL.with(interval) | EITR::CNT_WDIS.mask);
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
    thresholds: 0,
    strip: RXDCTL::VME.mask,
    unmask: &EIMS_EX,
    bits: RxBits::IXGBE,
    rest: REST,
};

/// Switches the receiver on, with the data path held meanwhile: else its DMA may hang (erratum).
pub(super) fn start<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    hold(bar)?;
    bar.change(&RXCTRL, 0, RXCTRL::RXEN.mask);
    release(bar);
    Ok(())
}

/// Does something with the receiver off: filters are changed so.
pub(super) fn paused<R: Registers>(
    bar: &Bar<R>,
    act: impl FnOnce() -> Result<(), NicError>,
) -> Result<(), NicError> {
    if !RXCTRL::RXEN.is_set(bar.get(&RXCTRL)) {
        return act();
    }
    hold(bar)?;
    bar.change(&RXCTRL, RXCTRL::RXEN.mask, 0);
    let result = act();
    bar.change(&RXCTRL, 0, RXCTRL::RXEN.mask);
    release(bar);
    result
}

/// How long the receive data path may take to become empty: as long as DPDK waits.
const EMPTY: Duration = Duration::from_millis(40);

/// Holds the receive data path, which says when it is empty. One that does not is let go: what has run so far runs on.
fn hold<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    bar.change(&SECRXCTRL, 0, SECRXCTRL::RX_DIS.mask);
    let empty = Wait::set(SECRXSTAT::SECRX_RDY.mask, EMPTY, "the receive data path does not become empty");
    let held = bar.wait(&SECRXSTAT, 0, empty).map(|_| ());
    if held.is_err() {
        release(bar);
    }
    held
}

fn release<R: Registers>(bar: &Bar<R>) {
    bar.change(&SECRXCTRL, SECRXCTRL::RX_DIS.mask, 0);
    bar.flush();
}
