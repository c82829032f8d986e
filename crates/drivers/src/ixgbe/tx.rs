//! Preparing transmission: the transmitter as a whole, and its queues.

use bywash_hw::ixgbe::regs::{
    DCA_TXCTRL, DMATXCTL, DTXMXSZRQ, DTXTCPFLGL, HLREG0, MTQC, RTTBCNRC, RTTDCS, RTTDQSEL, RTTDT1C, TDBAH,
    TDBAL, TDH, TDLEN, TDT, TDWBAH, TDWBAL, TXDCTL, TXPBSIZE, TXPBTHRESH,
};
use bywash_sys::function::Registers;

use super::ALL_QUEUES;
use crate::intel::{Bar, FCS, REST, Settings, TxRegisters};

/// Bytes of the packet buffer: all of it, because there is one.
const PACKET_BUFFER: u32 = 160 * 1024;

/// TCP's flags that pieces of a super-segment keep, but the last: all but FIN and PSH.
const FLAGS: u32 = 0xff6;
/// The one of these that belongs on the first piece alone.
const CWR: u32 = 0x080;

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
    for queue in 0..u32::from(settings.queues) {
        // Done is written to descriptors in order, or it would be believed too early.
        bar.change_at(&DCA_TXCTRL, queue, DCA_TXCTRL::DESC_WRO_EN.mask, 0);
    }
    bar.fill(&TXPBSIZE, 0);
    bar.put_at(&TXPBSIZE, 0, PACKET_BUFFER);
    let longest = u32::try_from(settings.max_len + FCS).unwrap_or(u32::MAX);
    bar.fill(&TXPBTHRESH, 0);
    bar.put_at(&TXPBTHRESH, 0, TXPBTHRESH::THRESH.with(PACKET_BUFFER / 1024 - longest.div_ceil(1024)));
    bar.put(&DTXMXSZRQ, DTXMXSZRQ::MAX_BYTES.mask);
    bar.put(&MTQC, 0);
    // A reset leaves CWR on all pieces but the last. RFC 3168, 6.1.2: it is said once.
    bar.put(&DTXTCPFLGL, DTXTCPFLGL::FIRST.with(FLAGS) | DTXTCPFLGL::MIDDLE.with(FLAGS & !CWR));
    bar.change(&RTTDCS, RTTDCS::ARBDIS.mask, 0);
    // Before any queue.
    bar.change(&DMATXCTL, 0, DMATXCTL::TE.mask);
}

/// Its queues: they fetch up to 32 descriptors ahead, and write back as RS asks, which a WTHRESH above 0 would override.
pub(super) const QUEUES: TxRegisters = TxRegisters {
    base: [&TDBAL, &TDBAH],
    length: &TDLEN,
    head: &TDH,
    tail: &TDT,
    head_in_memory: [&TDWBAL, &TDWBAH],
    control: &TXDCTL,
    thresholds: THRESHOLDS,
    names_context: false,
    rest: REST,
};

/// Virtual functions have the same.
pub(crate) const THRESHOLDS: u32 =
    TXDCTL::PTHRESH.with(32) | TXDCTL::HTHRESH.with(1) | TXDCTL::WTHRESH.with(0);
