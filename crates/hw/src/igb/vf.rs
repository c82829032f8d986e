//! Registers of the 82576's virtual functions, and the messages by which they ask the physical one. The mailbox's bits and the
//! messages that both families have are in [`crate::ixgbe::vf`].
//!
//! Offsets as in Linux's `igbvf` (`regs.h` and `mbx.h`); `tests/registers.rs` compares them with another
//! source, `tests/values.rs` access and writable bits.

use crate::reg::{Access, Range, Register, registers};

/// Bytes of BAR 0.
pub const BAR_SIZE: u32 = 0x4000;
/// MSI-X vectors.
pub const VECTORS: u32 = 3;

registers! {
    CTRL "Device control" RW [0x00000] { RST 26 };
    STATUS "Device status" RO [0x00008] { FD 0, LU 1, SPEED 7:6 };
    VMBMEM "Mailbox message" RW [0x00800 + 4 * 16];
    V2PMAILBOX "Mailbox" RW [0x00c40] { REQ 0, ACK 1, VFU 2, PFU 3, PFSTS 4, PFACK 5, RSTI 6, RSTD 7 };
    VFGPRC "Good packets received; wraps" RO [0x00f10];
    VFGPTC "Good packets sent; wraps" RO [0x00f14];
    VFGORC "Good bytes received; wraps" RO [0x00f18];
    VFGOTC "Good bytes sent; wraps" RO [0x00f34];
    VFMPRC "Multicast packets received; wraps" RO [0x00f3c];
    VFGPRLBC "Packets received from other functions; wraps" RO [0x00f40];
    VFGPTLBC "Packets sent to other functions; wraps" RO [0x00f44];
    VFGORLBC "Bytes received from other functions; wraps" RO [0x00f48];
    VFGOTLBC "Bytes sent to other functions; wraps" RO [0x00f50];
    EICS "Interrupt cause set" WO [0x01520] & 0x0000_0007;
    EIMS "Interrupt mask set and read" RW [0x01524] & 0x0000_0007;
    EIMC "Interrupt mask clear" WO [0x01528] & 0x0000_0007;
    EIAC "Interrupt auto clear" RW [0x0152c] & 0x0000_0007;
    EIAM "Interrupt auto mask" RW [0x01530] & 0x0000_0007;
    EICR "Interrupt cause" W1C [0x01580] & 0x0000_0007;
    EITR "Interrupt throttle" RW [0x01680 + 4 * 3] { INTERVAL 14:2, CNT_WDIS 31 };
    IVAR0 "Interrupt vector allocation, two queues" RW [0x01700]
        { RX_EVEN 1:0, RX_EVEN_VALID 7, TX_EVEN 9:8, TX_EVEN_VALID 15, RX_ODD 17:16, RX_ODD_VALID 23, TX_ODD 25:24,
          TX_ODD_VALID 31 };
    IVAR_MISC "Interrupt vector allocation, mailbox" RW [0x01740] { MAILBOX 1:0, MAILBOX_VALID 7 };
    RDBAL "Receive ring address, low" RW [0x02800 + 0x100 * 2];
    RDBAH "Receive ring address, high" RW [0x02804 + 0x100 * 2];
    RDLEN "Receive ring length in bytes" RW [0x02808 + 0x100 * 2];
    SRRCTL "Split receive control" RW [0x0280c + 0x100 * 2] { BSIZEPACKET 6:0, DESCTYPE 27:25, DROP_EN 31 };
    RDH "Receive ring head" RW [0x02810 + 0x100 * 2];
    RXCTL "Receive cache access control" RW [0x02814 + 0x100 * 2];
    RDT "Receive ring tail" RW [0x02818 + 0x100 * 2];
    RXDCTL "Receive queue control" RW [0x02828 + 0x100 * 2] { PTHRESH 4:0, HTHRESH 12:8, WTHRESH 20:16, ENABLE 25 };
    TDBAL "Transmit ring address, low" RW [0x03800 + 0x100 * 2];
    TDBAH "Transmit ring address, high" RW [0x03804 + 0x100 * 2];
    TDLEN "Transmit ring length in bytes" RW [0x03808 + 0x100 * 2];
    TDH "Transmit ring head" RW [0x03810 + 0x100 * 2];
    TXCTL "Transmit cache access control" RW [0x03814 + 0x100 * 2] { TX_WB_RO_EN 11 };
    TDT "Transmit ring tail" RW [0x03818 + 0x100 * 2];
    TXDCTL "Transmit queue control" RW [0x03828 + 0x100 * 2] { PTHRESH 4:0, HTHRESH 12:8, WTHRESH 20:16, ENABLE 25 };
    TDWBAL "Transmit head write-back address, low" RW [0x03838 + 0x100 * 2] { HEAD_WB_EN 0 };
    TDWBAH "Transmit head write-back address, high" RW [0x0383c + 0x100 * 2];
}

/// Registers that reading changes though they are neither counters nor causes: it takes what the other side has said.
pub const TAKEN_BY_READING: &[&str] = &["V2PMAILBOX"];

/// Messages that only this family has: in the low half of their first word, their detail above.
pub mod message {
    use crate::reg::constants;

    constants! { TABLE: u32;
        /// Detail of [`crate::ixgbe::vf::message::SET_MAC`]: no more addresses but the own one.
        MAC_CLEAR = 1 << 16;
        /// Detail of [`crate::ixgbe::vf::message::SET_MAC`]: one more address.
        MAC_ADD = 2 << 16;
        /// Receive what is for others.
        SET_PROMISC = 0x06;
        /// Detail of [`SET_PROMISC`]: all multicast packets; without it, of the groups named.
        PROMISC_MULTICAST = 2 << 16;
    }
}
