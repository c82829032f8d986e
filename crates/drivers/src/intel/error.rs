//! What can go wrong with a NIC before it runs. On the hot path there are counters instead.

use std::time::Duration;

use bywash_sys::function::FunctionError;
use bywash_sys::memory::MemoryError;

use super::MailboxError;

/// Why a NIC could not be made ready. Registers are named as the datasheet names them.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// A register did not come to say what it should.
    #[error("{register}[{index}] is {value:#010x} after {waited:?}: {meaning}")]
    Timeout {
        /// The register.
        register: &'static str,
        /// Which of them, for arrays.
        index: u32,
        /// What it said last.
        value: u32,
        /// How long it was waited for.
        waited: Duration,
        /// What that means, and what to do.
        meaning: &'static str,
    },
    /// The device does not answer any more.
    #[error(
        "the device is gone: its registers read as ones (pulled out, powered down, or its process has ended)"
    )]
    Gone,
    /// Another PCI device.
    #[error("{vendor:04x}:{device:04x} is not a NIC that this driver knows")]
    Unknown {
        /// Vendor id.
        vendor: u16,
        /// Device id.
        device: u16,
    },
    /// The EEPROM is not there, or not read.
    #[error("EEC is {eec:#010x}: the EEPROM was not found, so the NIC has no configuration")]
    NoEeprom {
        /// EEC.
        eec: u32,
    },
    /// The EEPROM's words do not add up.
    #[error(
        "the EEPROM's checksum is wrong: its words add up to {sum:#06x}, not to 0xbaba; the NIC's firmware must be written anew"
    )]
    EepromChecksum {
        /// What they add up to.
        sum: u16,
    },
    /// Firmware says that it failed.
    #[error("FWSM is {fwsm:#010x}: the NIC's firmware reports an error in its EXT_ERR_IND bits")]
    Firmware {
        /// FWSM.
        fwsm: u32,
    },
    /// The PHY refused.
    #[error("MDIC is {mdic:#010x}: the PHY does not answer; power the machine off and on")]
    Phy {
        /// MDIC.
        mdic: u32,
    },
    /// No PHY on its bus.
    #[error("nobody answers at any of the 32 addresses of MDIO: the port has no PHY, or it has no power")]
    NoPhy,
    /// The PHY is not ready.
    #[error(
        "the PHY {id:08x} does not end its reset (its PMD_CONTROL is {control:#06x}); power the machine off and on"
    )]
    PhyReset {
        /// Its identifier.
        id: u32,
        /// Its control register, 1.0.
        control: u32,
    },
    /// Not a PHY for this port.
    #[error(
        "the PHY {id:08x} is capable of neither 10 Gb/s nor 1 Gb/s nor 100 Mb/s (its SPEEDS is {speeds:#06x})"
    )]
    PhyUnable {
        /// Its identifier.
        id: u32,
        /// What it says of its speeds, 1.4.
        speeds: u32,
    },
    /// No agreement with the other side.
    #[error(
        "the PHY has not come to an agreement (its AN_STATUS is {status:#06x}): is the cable in, the other side on, and does it \
         offer 10GBASE-T, 1000BASE-T or 100BASE-TX?"
    )]
    Negotiation {
        /// What it says of negotiation, 7.1.
        status: u32,
    },
    /// The PHY has a link, the rest of the NIC has none.
    #[error(
        "the PHY has agreed on {mbps} Mbit/s (its AN_STATUS is {status:#06x}, the other side's offers {partner:04x?}), but LINKS says \
         that there is no link"
    )]
    NotFollowed {
        /// The speed, in Mbit/s.
        mbps: u32,
        /// What it says of negotiation, 7.1.
        status: u32,
        /// What the other side offers, 7.19 and 7.33.
        partner: (u32, u32),
    },
    /// No usable address.
    #[error("{0:02x?} is no address of one NIC: set another")]
    Mac([u8; 6]),
    /// A setting that the NIC does not have.
    #[error("{0}")]
    Setting(String),
    /// Packet memory that no device can be given.
    #[error(
        "packet memory is not backed by a file, so no device can be given it: allocate it by sys::memory"
    )]
    PrivateMemory,
    /// A filter that the NIC did not take.
    #[error(
        "FDIRCMD is {fdircmd:#010x}: the flow director has not kept the filter, though FDIRFREE is {fdirfree:#010x}; open the port again"
    )]
    FilterLost {
        /// FDIRCMD, as it answers for the filter.
        fdircmd: u32,
        /// FDIRFREE.
        fdirfree: u32,
    },
    /// A register of a filter that does not hold what was written.
    #[error(
        "{register}[{index}] is {value:#010x} after {written:#010x} was written: this NIC does not have the filter (QEMU's 82576 has none but for EtherTypes)"
    )]
    FilterNotKept {
        /// The register.
        register: &'static str,
        /// Which of them.
        index: u32,
        /// What it says.
        value: u32,
        /// What was written.
        written: u32,
    },
    /// The physical function does not do what its virtual one asks.
    #[error(transparent)]
    Mailbox(#[from] MailboxError),
    /// How the device is reached.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// No memory for rings.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A ring that cannot be.
    #[error("descriptor ring: {0}")]
    Ring(std::io::Error),
}
