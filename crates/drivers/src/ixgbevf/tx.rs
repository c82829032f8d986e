//! Preparing transmission: each queue. The transmitter as a whole is the physical function's.

use bywash_hw::ixgbe::vf::{VFTDBAH, VFTDBAL, VFTDH, VFTDLEN, VFTDT, VFTDWBAH, VFTDWBAL, VFTXDCTL};

use crate::intel::{REST, TxRegisters};
use crate::ixgbe::THRESHOLDS;

/// Its queues.
pub(super) const QUEUES: TxRegisters = TxRegisters {
    base: [&VFTDBAL, &VFTDBAH],
    length: &VFTDLEN,
    head: &VFTDH,
    tail: &VFTDT,
    head_in_memory: [&VFTDWBAL, &VFTDWBAH],
    control: &VFTXDCTL,
    thresholds: THRESHOLDS,
    names_context: true,
    rest: REST,
};
