//! A NIC's registers by name and field, read without touching anything else: for `bywash registers`.
//!
//! Reading changes some: counters and causes are cleared by it, a semaphore is taken. Those are read only when they are named
//! in full.

use std::path::Path;

use bywash_hw::pci::{self, Family, command, config};
use bywash_hw::reg::{Access, Register};
use bywash_hw::{igb, ixgbe};
use bywash_port::{NicOptions, PortName};
use bywash_sys::function::{Function, FunctionError, Registers as _};
use bywash_sys::no_iommu::NoIommu;
use bywash_sys::vfio::Vfio;
use bywash_sys::vfio_user::VfioUser;

use crate::nic;

/// Why registers cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum RegistersError {
    /// The kernel's, or none.
    #[error(
        "{0} has no registers that could be read: name a pci: or vfio-user: port, without options behind it"
    )]
    NoRegisters(PortName),
    /// Nobody is there, or the kernel keeps it.
    #[error("{port}: {reason}")]
    Open {
        /// The port.
        port: PortName,
        /// Why.
        reason: String,
    },
    /// What is for one kind of port only.
    #[error("{0} is for pci: ports; leave it out")]
    PciOnly(&'static str),
    /// How it is reached.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// A NIC without a table.
    #[error("{port}: {vendor:04x}:{device:04x} is no NIC whose registers are known")]
    Unknown {
        /// The port.
        port: PortName,
        /// Vendor id.
        vendor: u16,
        /// Device id.
        device: u16,
    },
    /// No register of that name.
    #[error("{nic} has no register '{name}'{}", .meant.as_ref().map_or_else(
        || "; without a name all are listed".to_owned(), |meant| format!("; did you mean {meant}?")))]
    Name {
        /// The NIC.
        nic: &'static str,
        /// What was asked for.
        name: String,
        /// What is most like it.
        meant: Option<&'static str>,
    },
    /// The device does not answer.
    #[error("{0}: the device is gone: its registers read as ones")]
    Gone(PortName),
}

/// What was read.
#[derive(Clone, Debug)]
pub struct Dump {
    /// What the NIC is sold as.
    pub nic: &'static str,
    /// Its PCI device id; the vendor is Intel.
    pub device: u16,
    /// The driver that it wants.
    pub driver: &'static str,
    /// Registers in the order of the table.
    pub values: Vec<Value>,
    /// Names that were meant and not read, because reading changes them or says nothing.
    pub not_read: Vec<&'static str>,
    /// Registers of arrays that were not named and hold what they hold after a reset.
    pub left_out: usize,
}

/// A register, read.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// Which.
    pub register: &'static Register,
    /// Its number, of an array.
    pub index: Option<u32>,
    /// Where it lies, in bytes from the start of BAR 0.
    pub offset: u32,
    /// What it holds.
    pub value: u32,
}

impl Value {
    /// Its fields and what they hold.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let value = self.value;
        self.register.fields.iter().map(move |(name, field)| (*name, field.of(value)))
    }
}

/// A NIC's table of registers.
struct Table {
    registers: &'static [Register],
    taken_by_reading: &'static [&'static str],
}

fn table(family: Family) -> Table {
    let (registers, taken_by_reading) = match family {
        Family::Ixgbe => (ixgbe::regs::TABLE, ixgbe::regs::TAKEN_BY_READING),
        Family::IxgbeVf => (ixgbe::vf::TABLE, ixgbe::vf::TAKEN_BY_READING),
        Family::Igb => (igb::regs::TABLE, igb::regs::TAKEN_BY_READING),
        Family::IgbVf => (igb::vf::TABLE, igb::vf::TAKEN_BY_READING),
    };
    Table { registers, taken_by_reading }
}

/// How a NIC on the PCI bus is had for the time of reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taking {
    /// Although its interface is in use.
    pub force: bool,
    /// Although no IOMMU watches it.
    pub no_iommu: bool,
}

/// Reads registers of a port's NIC: all, or those that `name` means, which is a name (`RDT`), one of an array (`RDT[3]`), a
/// pattern (`RD*`) or a part of names (`addr`). The kernel's driver has the NIC again afterwards.
///
/// # Errors
/// [`RegistersError`].
pub fn read(port: &PortName, name: Option<&str>, taking: Taking) -> Result<Dump, RegistersError> {
    let failed = |reason| RegistersError::Open { port: port.clone(), reason };
    let called = port.to_string();
    let plain = NicOptions::default();
    match port {
        PortName::Pci { address, options } if *options == plain => {
            let device = nic::device(address).map_err(failed)?;
            if taking.no_iommu {
                let function = NoIommu::open(&device, &called, taking.force, None);
                return read_function(function.map_err(|error| failed(error.to_string()))?, port, name);
            }
            let function = Vfio::open(&device, &called, taking.force);
            read_function(function.map_err(|error| failed(error.to_string()))?, port, name)
        }
        PortName::VfioUser { socket, options } if *options == plain => {
            let useless = [(taking.force, "--force"), (taking.no_iommu, "--no-iommu")];
            if let Some((_, flag)) = useless.into_iter().find(|(is_set, _)| *is_set) {
                return Err(RegistersError::PciOnly(flag));
            }
            let function = VfioUser::connect(Path::new(socket), &called);
            read_function(function.map_err(|error| failed(error.to_string()))?, port, name)
        }
        _ => Err(RegistersError::NoRegisters(port.clone())),
    }
}

fn read_function<F: Function>(
    mut function: F,
    port: &PortName,
    name: Option<&str>,
) -> Result<Dump, RegistersError> {
    let mut id = [0; 6];
    function.read_config(config::VENDOR, &mut id)?;
    let [a, b, c, d, e, f] = id;
    let (vendor, device) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    let known = pci::known(vendor, device);
    let nic = known.ok_or_else(|| RegistersError::Unknown { port: port.clone(), vendor, device })?;
    let table = table(nic.family);
    let wish = Wish::new(name);
    let mut dump = Dump {
        nic: nic.name,
        device,
        driver: nic.family.name(),
        values: Vec::new(),
        not_read: Vec::new(),
        left_out: 0,
    };
    let wanted: Vec<&Register> = table.registers.iter().filter(|register| wish.means(register)).collect();
    if let Some(name) = name.filter(|_| wanted.is_empty()) {
        let meant = like(table.registers, &wish.name);
        return Err(RegistersError::Name { nic: nic.name, name: name.into(), meant });
    }
    // Registers are there only while the function answers to memory accesses.
    let before = u16::from_le_bytes([e, f]);
    let on = before | command::MEMORY;
    if on != before {
        function.write_config(config::COMMAND, &on.to_le_bytes())?;
    }
    let registers = function.registers();
    for register in wanted {
        let changes = matches!(register.access, Access::RC | Access::W1C)
            || table.taken_by_reading.contains(&register.name);
        if register.access == Access::WO || changes && !wish.is_full_name() {
            dump.not_read.push(register.name);
            continue;
        }
        let array = register.count() > 1;
        for index in (0..register.count()).filter(|index| wish.index.is_none_or(|only| only == *index)) {
            let offset = register.at(index);
            let value = registers.read32(offset);
            if array && name.is_none() && value == register.reset.unwrap_or(0) {
                dump.left_out += 1;
                continue;
            }
            dump.values.push(Value { register, index: array.then_some(index), offset, value });
        }
    }
    if on != before {
        function.write_config(config::COMMAND, &before.to_le_bytes())?;
    }
    let gone = !dump.values.is_empty() && dump.values.iter().all(|value| value.value == u32::MAX);
    if gone && registers.read32(STATUS) == u32::MAX {
        return Err(RegistersError::Gone(port.clone()));
    }
    Ok(dump)
}

/// Offset of STATUS on all of Intel's NICs. It never reads as ones while the device is there.
const STATUS: u32 = 0x8;

/// What somebody wants to see.
struct Wish {
    /// In capitals, without a number; empty for everything.
    name: String,
    index: Option<u32>,
    how: How,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Everything,
    Full,
    Pattern,
    Part,
}

impl Wish {
    fn new(text: Option<&str>) -> Self {
        let text = text.unwrap_or_default().trim().to_ascii_uppercase();
        let parts = text.strip_suffix(']').and_then(|text| text.split_once('['));
        let numbered = parts.and_then(|(name, number)| Some((name.to_owned(), number.parse().ok()?)));
        let (name, index) = numbered.map_or((text, None), |(name, number)| (name, Some(number)));
        let known = [ixgbe::regs::TABLE, ixgbe::vf::TABLE, igb::regs::TABLE, igb::vf::TABLE].concat();
        let how = if name.is_empty() {
            How::Everything
        } else if name.contains(['*', '?']) {
            How::Pattern
        } else if known.iter().any(|register| register.name == name) {
            How::Full
        } else {
            How::Part
        };
        Self { name, index, how }
    }

    fn is_full_name(&self) -> bool {
        self.how == How::Full
    }

    fn means(&self, register: &Register) -> bool {
        let named = match self.how {
            How::Everything => true,
            How::Full => register.name == self.name,
            How::Pattern => matches(self.name.as_bytes(), register.name.as_bytes()),
            How::Part => {
                register.name.contains(&self.name) || register.about.to_ascii_uppercase().contains(&self.name)
            }
        };
        named && self.index.is_none_or(|index| index < register.count())
    }
}

/// Whether a pattern with `*` and `?` means a name.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches(rest, name) || name.split_first().is_some_and(|(_, name)| matches(pattern, name))
        }
        (Some((b'?', rest)), Some((_, name))) => matches(rest, name),
        (Some((a, rest)), Some((b, name))) => a == b && matches(rest, name),
        _ => false,
    }
}

/// The register whose name is most like what was written, if one is.
fn like(registers: &'static [Register], name: &str) -> Option<&'static str> {
    let scored = registers.iter().map(|register| (strsim::jaro_winkler(register.name, name), register.name));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > 0.75).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_stars_and_question_marks() {
        for (pattern, name, is) in [
            ("RD*", "RDT", true),
            ("RD?", "RDT", true),
            ("*T*L", "RXDCTL", true),
            ("RD?", "RDBAL", false),
            ("*", "", true),
            ("RDT", "RDTX", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), is, "{pattern} {name}");
        }
    }

    #[test]
    fn a_wish_is_a_name_a_number_a_pattern_or_a_part() {
        let names = |text| {
            let wish = Wish::new(Some(text));
            let all = ixgbe::regs::TABLE.iter().filter(|register| wish.means(register));
            all.map(|register| register.name).collect::<Vec<_>>()
        };
        assert_eq!(names("rdt"), ["RDT"]);
        assert_eq!(names("RDT[127]"), ["RDT"]);
        assert_eq!(names("RDT[128]"), [""; 0]);
        assert_eq!(names("RDBA?"), ["RDBAL", "RDBAH"]);
        assert!(names("LINK").contains(&"LINKS"));
        assert_eq!(like(ixgbe::regs::TABLE, "RXDCTRL"), Some("RXDCTL"));
        assert_eq!(like(ixgbe::regs::TABLE, "QQQQ"), None);
    }
}
