//! What a receive descriptor says of a packet that is wrong, in word 2: in another order than the 82599's. After Linux's igb
//! (`E1000_RXDEXT_STATERR_...`).

use crate::reg::{Field, constants};

constants! { TABLE: Field;
    /// The TCP or UDP checksum is wrong.
    L4E = Field::new(&[29]);
    /// The IPv4 header checksum is wrong.
    IPE = Field::new(&[30]);
    /// Link error: check sequence, length, symbol.
    RXE = Field::new(&[31]);
}
