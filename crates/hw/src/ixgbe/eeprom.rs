//! What words of the 82599's EEPROM mean, and the commands of the serial chip behind it.

/// Words the checksum covers: this one brings the sum of all up to here to [`CHECKSUM_SUM`], pointers' sections included.
pub const CHECKSUM_WORD: u16 = 0x3f;
/// What the covered words add up to.
pub const CHECKSUM_SUM: u16 = 0xbaba;
/// Words of the image, as EEC.SIZE says for 16 Ki words.
pub const WORDS: u16 = 0x4000;
/// First and last word that points to a section which the checksum covers too; 0xffff and 0 are no section. The firmware's,
/// [`FIRMWARE_POINTER`], lies behind them and is not covered. An X540's has exceptions: [`super::Chip::covers_section`].
pub const POINTERS: std::ops::RangeInclusive<u16> = 0x03..=0x0e;
/// Points to the module of an X540's PHY, which its checksum does not cover.
pub const PHY_POINTER: u16 = 0x04;
/// Points to an X540's option ROM, which its checksum does not cover.
pub const OPTION_ROM_POINTER: u16 = 0x05;
/// Points to the firmware's module.
pub const FIRMWARE_POINTER: u16 = 0x0f;
/// In the firmware's module: points to the pass-through patch module.
pub const FIRMWARE_PATCH_POINTER: u16 = 0x04;
/// In the patch module: the version. Fibre parts with 5 or less are before production.
pub const FIRMWARE_VERSION: u16 = 0x07;
/// The board's number, or in 0x15 its marker and in 0x16 a pointer.
pub const PBA: [u16; 2] = [0x15, 0x16];
/// Points to the list of SFP modules' start-up sequences.
pub const SFP_LIST_POINTER: u16 = 0x2b;
/// Device capabilities.
pub const CAPABILITIES: u16 = 0x2c;
/// Version numbers of the image.
pub const IMAGE_VERSION: [u16; 2] = [0x2d, 0x2e];
/// First of three words with the port's MAC address.
pub const MAC_ADDRESS: u16 = 0x50;

/// Commands of the serial EEPROM behind EEC's pins.
pub mod spi {
    /// Read from the 8- or 16-bit address that follows.
    pub const READ: u8 = 0x03;
    /// Read the status register.
    pub const READ_STATUS: u8 = 0x05;
    /// Address bit 8 of parts with 8-bit addresses stands in the command.
    pub const ADDRESS_BIT_8: u8 = 0x08;
}
