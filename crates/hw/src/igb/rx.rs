//! What a receive descriptor says of a packet that is wrong, in word 2: in another order than the 82599's. After Linux's igb
//! (`E1000_RXDEXT_STATERR_...`).

use crate::reg::Field;

/// The TCP or UDP checksum is wrong.
pub const L4E: Field = Field::new(&[29]);
/// The IPv4 header checksum is wrong.
pub const IPE: Field = Field::new(&[30]);
/// Link error: check sequence, length, symbol.
pub const RXE: Field = Field::new(&[31]);
