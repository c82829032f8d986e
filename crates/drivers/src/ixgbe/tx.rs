//! Preparing transmission: the transmitter as a whole, and each queue.

use bywash_hw::ixgbe::regs::{
    DCA_TXCTRL, DMATXCTL, DTXMXSZRQ, HLREG0, MTQC, RTTBCNRC, RTTDCS, RTTDQSEL, RTTDT1C, TDBAH, TDBAL, TDH,
    TDLEN, TDT, TDWBAL, TXDCTL, TXPBSIZE, TXPBTHRESH,
};
use bywash_sys::function::Registers;

use super::rx::FCS;
use super::{ALL_QUEUES, Settings};
use crate::intel::{Bar, Memory, NicError, SHORT, Switch, TxParts, TxRing, Wait};

/// Bytes of the packet buffer: all of it, because there is one.
const PACKET_BUFFER: u32 = 160 * 1024;

/// Prepares the transmitter.
pub(super) fn prepare<R: Registers>(bar: &Bar<R>, settings: &Settings) {
    bar.change(&HLREG0, 0, HLREG0::TXCRCEN.mask | HLREG0::TXPADEN.mask);
    // The arbiter is off while buffers and queues are divided up.
    bar.change(&RTTDCS, 0, RTTDCS::ARBDIS.mask);
    for queue in 0..ALL_QUEUES {
        bar.put(&RTTDQSEL, RTTDQSEL::TXDQ_IDX.with(queue));
        bar.put(&RTTDT1C, 0);
        bar.put(&RTTBCNRC, 0);
    }
    bar.fill(&TXPBSIZE, 0);
    bar.put_at(&TXPBSIZE, 0, PACKET_BUFFER);
    let longest = u32::try_from(settings.max_len).unwrap_or(u32::MAX).saturating_add(FCS);
    bar.fill(&TXPBTHRESH, 0);
    bar.put_at(&TXPBTHRESH, 0, TXPBTHRESH::THRESH.with(PACKET_BUFFER / 1024 - longest.div_ceil(1024)));
    bar.put(&DTXMXSZRQ, DTXMXSZRQ::MAX_BYTES.mask);
    bar.put(&MTQC, 0);
    bar.change(&RTTDCS, RTTDCS::ARBDIS.mask, 0);
    // Before any queue.
    bar.change(&DMATXCTL, 0, DMATXCTL::TE.mask);
}

/// Prepares and enables a queue.
pub(super) fn queue<R: Registers>(
    bar: &Bar<R>,
    memory: &Memory,
    settings: &Settings,
    queue: u32,
) -> Result<TxRing<R>, NicError> {
    let switch = Switch { offset: TXDCTL.at(queue), name: (TXDCTL.name, queue), enable: TXDCTL::ENABLE.mask };
    let number = 2 * queue + 1;
    let ring = memory.ring(bar.clone(), number, TDT.at(queue), switch)?;
    let [low, high] = memory.ring_address(number);
    bar.put_at(&TDBAL, queue, low);
    bar.put_at(&TDBAH, queue, high);
    bar.put_at(&TDLEN, queue, memory.ring_bytes());
    bar.put_at(&TDH, queue, 0);
    bar.put_at(&TDT, queue, 0);
    // Done is said in descriptors, not by the head in memory; and in order, or it would be believed too early.
    bar.put_at(&TDWBAL, queue, 0);
    bar.change_at(&DCA_TXCTRL, queue, DCA_TXCTRL::DESC_WRO_EN.mask, 0);
    // Fetch up to 32 descriptors ahead; write back as RS asks, which a WTHRESH above 0 would override.
    let thresholds = TXDCTL::PTHRESH.with(32) | TXDCTL::HTHRESH.with(1) | TXDCTL::WTHRESH.with(0);
    bar.put_at(&TXDCTL, queue, thresholds | TXDCTL::ENABLE.mask);
    bar.wait(&TXDCTL, queue, Wait::set(TXDCTL::ENABLE.mask, SHORT, "the transmit queue does not start"))?;
    Ok(TxRing::new(TxParts { ring, max_len: settings.max_len, names_context: false }))
}
