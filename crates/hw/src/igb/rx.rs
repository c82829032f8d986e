//! What a receive descriptor says in word 2 and the 82599's does not say so: bit 2 means something else, and what is wrong with a
//! packet stands in another order. After Linux's igb (`E1000_RXD_STAT_...`, `E1000_RXDEXT_STATERR_...`); the 82575EB's manual has the
//! same (5.3.4).

use crate::reg::{Field, constants};

constants! { TABLE: Field;
    /// No checksum was looked at, whatever is said of them.
    IXSM = Field::new(&[2]);
    /// The TCP or UDP checksum is wrong.
    L4E = Field::new(&[29]);
    /// The IPv4 header checksum is wrong.
    IPE = Field::new(&[30]);
    /// Link error: check sequence, length, symbol.
    RXE = Field::new(&[31]);
}
