//! Preparing transmission: the transmitter as a whole, and each queue; as DPDK's igb does it (`eth_igb_tx_init`).

use bywash_hw::igb::regs::{TCTL, TDBAH, TDBAL, TDH, TDLEN, TDT, TDWBAH, TDWBAL, TXDCTL};
use bywash_sys::function::Registers;

use super::Settings;
use crate::intel::{Bar, Memory, NicError, SHORT, Switch, TxParts, TxRing, Wait};

/// Attempts to send after collisions, and the distance of those, in byte times: both for half duplex alone.
const COLLISIONS: u32 = 15;
const DISTANCE: u32 = 63;

/// Prepares the transmitter, and switches it on: queues send nothing before they are.
pub(super) fn prepare<R: Registers>(bar: &Bar<R>) {
    let half_duplex = TCTL::RTLC.mask | TCTL::CT.with(COLLISIONS) | TCTL::COLD.with(DISTANCE);
    let clear = TCTL::CT.mask | TCTL::COLD.mask;
    // Short packets are padded.
    bar.change(&TCTL, clear, half_duplex | TCTL::PSP.mask | TCTL::EN.mask);
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
    // Done is said in descriptors, not by the head in memory.
    bar.put_at(&TDWBAL, queue, 0);
    bar.put_at(&TDWBAH, queue, 0);
    // As Linux's igb has them for this NIC with MSI-X: each descriptor that asks for it is written back at once.
    let thresholds = TXDCTL::PTHRESH.with(8) | TXDCTL::HTHRESH.with(1) | TXDCTL::WTHRESH.with(1);
    bar.put_at(&TXDCTL, queue, thresholds | TXDCTL::ENABLE.mask);
    bar.wait(&TXDCTL, queue, Wait::set(TXDCTL::ENABLE.mask, SHORT, "the transmit queue does not start"))?;
    Ok(TxRing::new(TxParts { ring, max_len: settings.max_len, names_context: false }))
}
