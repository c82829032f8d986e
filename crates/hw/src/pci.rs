//! PCI: ids, and what drivers and models need of configuration space (PCI Local Bus 3.0, chapter 6; PCI Express Base 3.0,
//! chapter 7).

/// Intel, the vendor of all NICs here.
pub const INTEL: u16 = 0x8086;

/// Offsets of configuration space that every function has.
pub mod config {
    /// 16 bits: who made it.
    pub const VENDOR: u64 = 0x00;
    /// 16 bits: which device.
    pub const DEVICE: u64 = 0x02;
    /// 16 bits: see [`super::command`].
    pub const COMMAND: u64 = 0x04;
    /// 16 bits; bit 4 says that there is a list of capabilities.
    pub const STATUS: u64 = 0x06;
    /// 8 bits: revision; the class code follows.
    pub const REVISION: u64 = 0x08;
    /// Six times 32 bits: base addresses.
    pub const BAR0: u64 = 0x10;
    /// 16 bits: who made the board.
    pub const SUBSYSTEM_VENDOR: u64 = 0x2c;
    /// 16 bits: which board.
    pub const SUBSYSTEM: u64 = 0x2e;
    /// 8 bits: offset of the first capability.
    pub const CAPABILITIES: u64 = 0x34;
    /// 8 bits: the legacy interrupt line.
    pub const INTERRUPT_LINE: u64 = 0x3c;
    /// 8 bits: the legacy interrupt pin, 1 for INTA.
    pub const INTERRUPT_PIN: u64 = 0x3d;
}

/// Bits of the command register.
pub mod command {
    /// Memory accesses reach the BARs.
    pub const MEMORY: u16 = 1 << 1;
    /// The function may read and write memory by itself (DMA).
    pub const BUS_MASTER: u16 = 1 << 2;
    /// No legacy interrupts.
    pub const INTX_DISABLE: u16 = 1 << 10;
}

/// Numbers of capabilities.
pub mod capability {
    /// Power management.
    pub const POWER: u8 = 0x01;
    /// Message signalled interrupts.
    pub const MSI: u8 = 0x05;
    /// PCI Express.
    pub const EXPRESS: u8 = 0x10;
    /// Message signalled interrupts, from a table.
    pub const MSIX: u8 = 0x11;
}

/// PCI Express capability: 16-bit device control, from the capability's start.
pub const EXPRESS_DEVICE_CONTROL: u64 = 0x08;
/// Bit of [`EXPRESS_DEVICE_CONTROL`]: function level reset. Reads as zero.
pub const FUNCTION_LEVEL_RESET: u16 = 1 << 15;
/// MSI-X capability: 16-bit message control, from the capability's start.
pub const MSIX_CONTROL: u64 = 0x02;
/// Bit of [`MSIX_CONTROL`]: the vectors are on.
pub const MSIX_ENABLE: u16 = 1 << 15;
/// Bit of [`MSIX_CONTROL`]: all vectors are masked.
pub const MSIX_MASK_ALL: u16 = 1 << 14;
/// Power management capability: 16-bit control and status; bits 1:0 are the state, 0 is D0.
pub const POWER_CONTROL: u64 = 0x04;

/// Which driver a NIC wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// 82599 and X540.
    Ixgbe,
    /// Virtual functions of those.
    IxgbeVf,
    /// 82576.
    Igb,
    /// Virtual functions of it.
    IgbVf,
}

impl Family {
    /// What the driver is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ixgbe => "ixgbe",
            Self::IxgbeVf => "ixgbevf",
            Self::Igb => "igb",
            Self::IgbVf => "igbvf",
        }
    }
}

/// What a NIC's port is connected by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// A cage for SFP+ modules and direct-attach cables.
    Sfp,
    /// Lanes of a backplane, or a fixed cable: no module to ask.
    Backplane,
    /// Twisted pair, through a PHY.
    Copper,
    /// Fixed fibre, or a SerDes.
    Fiber,
    /// None of its own: a virtual function.
    Virtual,
}

/// A NIC we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Device id; the vendor is [`INTEL`].
    pub device: u16,
    /// What it is sold as.
    pub name: &'static str,
    /// The driver it wants.
    pub family: Family,
    /// What its port is connected by.
    pub media: Media,
}

const fn nic(device: u16, name: &'static str, family: Family, media: Media) -> Nic {
    Nic { device, name, family, media }
}

/// Every NIC we know, by device id. Ids as in `ixgbe_type.h` and `e1000_hw.h` of Intel's published drivers.
pub const NICS: &[Nic] = &[
    nic(0x10c9, "82576", Family::Igb, Media::Copper),
    nic(0x10ca, "82576 virtual function", Family::IgbVf, Media::Virtual),
    nic(0x10e6, "82576 fiber", Family::Igb, Media::Fiber),
    nic(0x10e7, "82576 SerDes", Family::Igb, Media::Fiber),
    nic(0x10e8, "82576 quad copper", Family::Igb, Media::Copper),
    nic(0x10ed, "82599 virtual function", Family::IxgbeVf, Media::Virtual),
    nic(0x10f7, "82599 KX4", Family::Ixgbe, Media::Backplane),
    nic(0x10f8, "82599 combined backplane", Family::Ixgbe, Media::Backplane),
    nic(0x10f9, "82599 CX4", Family::Ixgbe, Media::Backplane),
    nic(0x10fb, "82599ES SFP+", Family::Ixgbe, Media::Sfp),
    nic(0x10fc, "82599 XAUI", Family::Ixgbe, Media::Backplane),
    nic(0x1507, "82599 SFP+ (EM)", Family::Ixgbe, Media::Sfp),
    nic(0x150a, "82576 NS", Family::Igb, Media::Copper),
    nic(0x150d, "82576 quad SerDes", Family::Igb, Media::Fiber),
    nic(0x1514, "82599 KX4 mezzanine", Family::Ixgbe, Media::Backplane),
    nic(0x1515, "X540 virtual function", Family::IxgbeVf, Media::Virtual),
    nic(0x1517, "82599 KR", Family::Ixgbe, Media::Backplane),
    nic(0x1518, "82576 SerDes (NS)", Family::Igb, Media::Fiber),
    nic(0x1526, "82576 quad copper (ET2)", Family::Igb, Media::Copper),
    nic(0x1528, "X540-T2", Family::Ixgbe, Media::Copper),
    nic(0x154d, "82599 SFP+ (SF2)", Family::Ixgbe, Media::Sfp),
    nic(0x1557, "82599EN SFP+", Family::Ixgbe, Media::Sfp),
    nic(0x1560, "X540-T1", Family::Ixgbe, Media::Copper),
];

/// The NIC with these ids, if we know it.
pub fn known(vendor: u16, device: u16) -> Option<&'static Nic> {
    NICS.iter().find(|nic| vendor == INTEL && nic.device == device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_stands_once_in_order() {
        assert!(NICS.windows(2).all(|two| two[0].device < two[1].device));
    }

    #[test]
    fn only_intels_ids_are_known() {
        assert_eq!(known(INTEL, 0x10fb).map(|nic| nic.media), Some(Media::Sfp));
        assert_eq!(known(0x1af4, 0x10fb), None);
        assert_eq!(known(INTEL, 0x1572), None);
    }
}
