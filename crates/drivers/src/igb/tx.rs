//! Preparing transmission: the transmitter as a whole, and its queues; as DPDK's igb does it (`eth_igb_tx_init`).

use std::time::Duration;

use bywash_hw::igb::regs::{TCTL, TDBAH, TDBAL, TDH, TDLEN, TDT, TDWBAH, TDWBAL, TXDCTL};
use bywash_sys::function::Registers;

use crate::intel::{Bar, TxRegisters};

/// Attempts to send after collisions, and the distance of those, in byte times: both for half duplex alone.
const COLLISIONS: u32 = 15;
const DISTANCE: u32 = 63;

/// Prepares the transmitter. It is off until [`start`].
pub(super) fn prepare<R: Registers>(bar: &Bar<R>) {
    let half_duplex = TCTL::RTLC.mask | TCTL::CT.with(COLLISIONS) | TCTL::COLD.with(DISTANCE);
    let clear = TCTL::CT.mask | TCTL::COLD.mask;
    // Short packets are padded.
    bar.change(&TCTL, clear, half_duplex | TCTL::PSP.mask);
}

/// Switches the transmitter on, once its queues are.
pub(super) fn start<R: Registers>(bar: &Bar<R>) {
    bar.change(&TCTL, 0, TCTL::EN.mask);
}

/// Its queues. As Linux's igb has them for this NIC with MSI-X: each descriptor that asks for it is written back at once.
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

/// What a queue had begun is done after so long, either way: as long as Linux's igb waits.
pub(crate) const REST: Duration = Duration::from_millis(10);

/// Virtual functions have the same.
pub(crate) const THRESHOLDS: u32 =
    TXDCTL::PTHRESH.with(8) | TXDCTL::HTHRESH.with(1) | TXDCTL::WTHRESH.with(1);
