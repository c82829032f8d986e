//! Preparing reception: the receiver as a whole, each queue, and the interrupts that wake workers.

use std::os::fd::OwnedFd;

use bywash_frame::FRAME_DATA;
use bywash_hw::ixgbe::EITR_UNIT_US;
use bywash_hw::ixgbe::desc::DESCTYPE_ADVANCED;
use bywash_hw::ixgbe::regs::{
    DCA_RXCTRL, EIAC, EIAM_EX, EIMS_EX, EITR, GPIE, HLREG0, IVAR, IVAR_MISC, MAXFRS, MFLCN, RDBAH, RDBAL,
    RDH, RDLEN, RDRXCTL, RDT, RXCSUM, RXCTRL, RXDCTL, RXPBSIZE, SECRXCTRL, SECRXSTAT, SRRCTL, VLNCTRL,
};
use bywash_sys::function::Registers;

use super::{Settings, steer};
use crate::intel::{Bar, Memory, NicError, RxParts, RxRing, SHORT, Switch, Wait, Wake};

/// Bytes of the packet buffer: all of it, because there is one.
const PACKET_BUFFER: u32 = 512 * 1024;

/// Bytes of the frame check sequence.
pub(super) const FCS: u32 = 4;

/// Prepares the receiver. It is off until [`start`].
pub(super) fn prepare<R: Registers>(bar: &Bar<R>, settings: &Settings) -> Result<(), NicError> {
    bar.change(&RXCTRL, RXCTRL::RXEN.mask, 0);
    steer::filter(bar, settings)?;
    // Both registers must say the same of the check sequence.
    bar.change(&HLREG0, 0, HLREG0::RXCRCSTRP.mask | HLREG0::JUMBOEN.mask);
    let set = RDRXCTL::CRCSTRIP.mask | RDRXCTL::RSCACKC.mask | RDRXCTL::FCOE_WRFIX.mask;
    bar.change(&RDRXCTL, RDRXCTL::RSCFRSTSIZE.mask, set);
    let longest = u32::try_from(settings.max_len).unwrap_or(u32::MAX).saturating_add(FCS);
    bar.put(&MAXFRS, MAXFRS::MFS.with(longest));
    bar.fill(&RXPBSIZE, 0);
    bar.put_at(&RXPBSIZE, 0, PACKET_BUFFER);
    // Pause frames are dropped, not obeyed.
    bar.put(&MFLCN, MFLCN::DPF.mask);
    bar.change(&VLNCTRL, VLNCTRL::VFE.mask, 0);
    // The RSS hash in descriptors, where else a sum over fragments would be.
    bar.put(&RXCSUM, RXCSUM::PCSD.mask);
    steer::rss(bar, &settings.rss, settings.queues);
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
    bar.change_at(&DCA_RXCTRL, queue, DCA_RXCTRL::RESERVED_12.mask, 0);
    let strip = if settings.strip_vlan { RXDCTL::VME.mask } else { 0 };
    bar.put_at(&RXDCTL, queue, RXDCTL::ENABLE.mask | strip);
    bar.wait(&RXDCTL, queue, Wait::set(RXDCTL::ENABLE.mask, SHORT, "the receive queue does not start"))?;
    let unmask = (EIMS_EX.at(queue / 32), 1 << (queue % 32));
    Ok(RxRing::new(RxParts { ring, wake: Some(Wake { bell, unmask }) }))
}

/// Switches the receiver on, with the data path held meanwhile: else its DMA may hang (erratum).
pub(super) fn start<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    hold(bar)?;
    bar.change(&RXCTRL, 0, RXCTRL::RXEN.mask);
    bar.change(&SECRXCTRL, SECRXCTRL::RX_DIS.mask, 0);
    bar.flush();
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
    bar.change(&SECRXCTRL, SECRXCTRL::RX_DIS.mask, 0);
    bar.flush();
    result
}

/// Holds the receive data path, which says when it is empty.
fn hold<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    bar.change(&SECRXCTRL, 0, SECRXCTRL::RX_DIS.mask);
    let empty = Wait::set(SECRXSTAT::SECRX_RDY.mask, SHORT, "the receive data path does not become empty");
    bar.wait(&SECRXSTAT, 0, empty).map(|_| ())
}
