//! Registers of the 82599's virtual functions, and the mailbox by which they talk to the physical one.
//!
//! Offsets and fields as in Linux's `ixgbevf` (`regs.h` and `mbx.h`); `tests/registers.rs` compares them with other
//! sources, `tests/values.rs` access and writable bits.

use crate::reg::{Access, Range, Register, registers};

/// Bytes of BAR 0.
pub const BAR_SIZE: u32 = 0x4000;
/// MSI-X vectors.
pub const VECTORS: u32 = 3;
/// 32-bit words of a mailbox message.
pub const MAILBOX_WORDS: u32 = 16;

registers! {
    VFCTRL "Device control" WO [0x00000] { RST 26 };
    VFSTATUS "Device status" RO [0x00008];
    VFLINKS "Link status" RO [0x00010] { SPEED 29:28, UP 30 };
    VFFRTIMER "Free running timer" RO [0x00048];
    VTEICR "Interrupt cause" W1C [0x00100] = 0 & 0x0000_0007;
    VTEICS "Interrupt cause set" WO [0x00104] & 0x0000_0007;
    VTEIMS "Interrupt mask set and read" RW [0x00108] = 0 & 0x0000_0007;
    VTEIMC "Interrupt mask clear" WO [0x0010c] & 0x0000_0007;
    VTEIAC "Interrupt auto clear" RW [0x00110] = 0 & 0x0000_0007;
    VTEIAM "Interrupt auto mask" RW [0x00114] = 0 & 0x0000_0007;
    VTIVAR "Interrupt vector allocation, two queues" RW [0x00120 + 4 * 4]
        { RX_EVEN 1:0, RX_EVEN_VALID 7, TX_EVEN 9:8, TX_EVEN_VALID 15, RX_ODD 17:16, RX_ODD_VALID 23, TX_ODD 25:24,
          TX_ODD_VALID 31 };
    VTIVAR_MISC "Interrupt vector allocation, mailbox" RW [0x00140] { MAILBOX 1:0, MAILBOX_VALID 7 };
    VTRSCINT "Receive side coalescing interrupt" RW [0x00180 + 4 * 3];
    VFMBMEM "Mailbox message" RW [0x00200 + 4 * 16];
    VFMAILBOX "Mailbox" RW [0x002fc] = 0
        { REQ 0, ACK 1, VFU 2, PFU 3, PFSTS 4, PFACK 5, RSTI 6, RSTD 7 };
    VFPSRTYPE "Packet split and RSS queues" RW [0x00300] { RQPL 31:29 };
    VTEITR "Interrupt throttle" RW [0x00820 + 4 * 3] = 0 { INTERVAL 11:3, CNT_WDIS 31 };
    VFRDBAL "Receive ring address, low" RW [0x01000 + 0x40 * 8];
    VFRDBAH "Receive ring address, high" RW [0x01004 + 0x40 * 8];
    VFRDLEN "Receive ring length in bytes" RW [0x01008 + 0x40 * 8] = 0;
    VFDCA_RXCTRL "Receive cache access control" RW [0x0100c + 0x40 * 8];
    VFRDH "Receive ring head" RO [0x01010 + 0x40 * 8] = 0;
    VFSRRCTL "Split receive control" RW [0x01014 + 0x40 * 8];
    VFRDT "Receive ring tail" RW [0x01018 + 0x40 * 8] = 0;
    VFGPRC "Good packets received; wraps" RO [0x0101c];
    VFGORC_LSB "Good bytes received, low; wraps" RO [0x01020];
    VFGORC_MSB "Good bytes received, high" RO [0x01024];
    VFRXDCTL "Receive queue control" RW [0x01028 + 0x40 * 8] = 0;
    VFRSCCTL "Receive side coalescing control" RW [0x0102c + 0x40 * 8] = 0;
    VFMPRC "Multicast packets received; wraps" RO [0x01034];
    VFTDBAL "Transmit ring address, low" RW [0x02000 + 0x40 * 8];
    VFTDBAH "Transmit ring address, high" RW [0x02004 + 0x40 * 8];
    VFTDLEN "Transmit ring length in bytes" RW [0x02008 + 0x40 * 8] = 0;
    VFDCA_TXCTRL "Transmit cache access control" RW [0x0200c + 0x40 * 8];
    VFTDH "Transmit ring head" RW [0x02010 + 0x40 * 8] = 0;
    VFTDT "Transmit ring tail" RW [0x02018 + 0x40 * 8] = 0;
    VFGPTC "Good packets sent; wraps" RO [0x0201c];
    VFGOTC_LSB "Good bytes sent, low; wraps" RO [0x02020];
    VFGOTC_MSB "Good bytes sent, high" RO [0x02024];
    VFTXDCTL "Transmit queue control" RW [0x02028 + 0x40 * 8] = 0;
    VFTDWBAL "Transmit head write-back address, low" RW [0x02038 + 0x40 * 8];
    VFTDWBAH "Transmit head write-back address, high" RW [0x0203c + 0x40 * 8];
}

/// Registers that reading changes though they are neither counters nor causes: it takes what the other side has said.
pub const TAKEN_BY_READING: &[&str] = &["VFMAILBOX"];

/// Messages: the low half of their first word.
pub mod message {
    use crate::reg::constants;

    constants! { TABLE: u32;
        /// Reset; the answer has the MAC address and the type of multicast filter.
        RESET = 0x01;
        /// Use this MAC address.
        SET_MAC = 0x02;
        /// Receive these multicast groups, by their hashes of 12 bits.
        SET_MULTICAST = 0x03;
        /// Receive a VLAN, or no more.
        SET_VLAN = 0x04;
        /// Longest frame.
        SET_LPE = 0x05;
        /// Receive another MAC address.
        SET_MACVLAN = 0x06;
        /// Which version of this interface both know.
        API_NEGOTIATE = 0x08;
        /// How many queues there are.
        GET_QUEUES = 0x09;
        /// The RSS table: two bits for each of its 128 entries.
        GET_RETA = 0x0a;
        /// The RSS key.
        GET_RSS_KEY = 0x0b;
        /// How much to receive that is not for its own addresses: see [`super::xcast`].
        UPDATE_XCAST_MODE = 0x0c;
        /// Whether the host lets the function have a link.
        GET_LINK_STATE = 0x10;
        /// From the physical function, unasked: it is there, or, without [`CLEAR_TO_SEND`], it was reset.
        CONTROL = 0x100;

        /// In an answer: done.
        ACK = 0x8000_0000;
        /// In an answer: not done.
        NACK = 0x4000_0000;
        /// In an answer: the function may go on sending messages.
        CLEAR_TO_SEND = 0x2000_0000;
    }
}

/// Modes of [`message::UPDATE_XCAST_MODE`].
pub mod xcast {
    use crate::reg::constants;

    constants! { TABLE: u32;
        /// Groups that were named.
        MULTICAST = 1;
        /// All groups.
        ALL_MULTICAST = 2;
        /// Everything; from version 1.3 on.
        PROMISCUOUS = 3;
    }
}

/// Versions of the messages, the oldest first, as [`message::API_NEGOTIATE`] numbers them: 2.0, which is 1, was never used
/// by these. 1.6 and later ones are other NICs'.
pub const API_VERSIONS: [(&str, u32); 6] =
    [("1.0", 0), ("1.1", 2), ("1.2", 3), ("1.3", 4), ("1.4", 5), ("1.5", 6)];
