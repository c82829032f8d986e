//! Registers of an X540's copper PHY, behind MSCA and MSRWD (clause 45 of IEEE 802.3): as far as drivers touch them.
//!
//! An offset is what a command in MSCA carries to name the register: device (DEVADD), then its address there (MDIADD). A register
//! has 16 bits. Addresses and fields as in Intel's shared code (`ixgbe_type.h` of intel/ethernet-linux-ixgbe, commit 52e3c49);
//! bits that clause 22 has as well as in its `e1000_defines.h` (intel/ethernet-linux-igb, commit afaa453), and what neither names
//! (PMD_DEVICES, PMD_STATUS_2, PCS_STATUS, AN_10G_STATUS, AN_STATUS.PARTNER_ABLE) as in Linux's `mdio.h`.
//! `tests/registers.rs` compares them with other sources. Values after a reset are not given: the PHY's EEPROM has them.
//! Access stands here alone.

use crate::reg::{Access, Range, Register, registers};

/// Addresses of PHYs there may be on the bus.
pub const ADDRESSES: u32 = 32;
/// What ID_HIGH and ID_LOW say together, without the revision.
pub const X540_ID: u32 = 0x0154_0200;

/// MSCA.OPCODE: the address of the register that the next command is for.
pub const OPCODE_ADDRESS: u32 = 0;
/// MSCA.OPCODE: write.
pub const OPCODE_WRITE: u32 = 1;
/// MSCA.OPCODE: read, and go on to the next address.
pub const OPCODE_READ_NEXT: u32 = 2;
/// MSCA.OPCODE: read.
pub const OPCODE_READ: u32 = 3;

registers! {
    PMD_CONTROL "PMA/PMD control" RW [0x01_0000] { LOW_POWER 11, RESET 15 };
    ID_HIGH "Identifier, high" RO [0x01_0002];
    ID_LOW "Identifier, low" RO [0x01_0003] { REVISION 3:0 };
    SPEEDS "Speeds it is capable of" RO [0x01_0004] { GBIT_10 0, GBIT_1 4, MBIT_100 5 };
    PMD_DEVICES "Devices in the package" RO [0x01_0005] { PMD 1, PCS 3, AN 7 };
    PMD_STATUS_2 "PMA/PMD status 2" RO [0x01_0008] { PRESENT 15:14 };
    PCS_STATUS "PCS status" RO [0x03_0001] { LINK 2 };
    AN_CONTROL "Auto-negotiation control" RW [0x07_0000] { RESTART 9, ENABLE 12, RESET 15 };
    AN_STATUS "Auto-negotiation status" RO [0x07_0001] { PARTNER_ABLE 0, LINK 2, ABLE 3, COMPLETE 5 };
    AN_ADVERTISE "What is offered: 100BASE-TX" RW [0x07_0010] { TX_100_HALF 7, TX_100 8 };
    AN_PARTNER "What the other side offers: 100BASE-TX" RO [0x07_0013] { TX_100 8 };
    AN_10G_CONTROL "What is offered: 10GBASE-T" RW [0x07_0020] { T_10G 12 };
    AN_10G_STATUS "What the other side offers: 10GBASE-T" RO [0x07_0021] { T_10G 11 };
    AN_PROVISION "What is offered: 1000BASE-T" RW [0x07_c400] { T_1000 15 };
    AN_SPEED "The speed that was agreed on" RO [0x07_c800] { FULL_DUPLEX 0, SPEED 2:1 };
    POWER "Power of the whole PHY" RW [0x1e_0000] { LOW_POWER 11 };
}
