//! Preparing transmission: each queue. The transmitter as a whole is the physical function's.

use bywash_hw::igb::vf::{TDBAH, TDBAL, TDH, TDLEN, TDT, TDWBAH, TDWBAL, TXDCTL};

use crate::igb::{REST, TX_THRESHOLDS};
use crate::intel::TxRegisters;

/// Its queues.
pub(super) const QUEUES: TxRegisters = TxRegisters {
    base: [&TDBAL, &TDBAH],
    length: &TDLEN,
    head: &TDH,
    tail: &TDT,
    head_in_memory: [&TDWBAL, &TDWBAH],
    control: &TXDCTL,
    thresholds: TX_THRESHOLDS,
    names_context: false,
    rest: REST,
};
