//! PCI functions as sysfs shows them: what each is, which driver has it, who shares its IOMMU group; and giving one to
//! another driver.

mod address;
mod config;
mod driver;
mod group;
mod sriov;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use address::{Address, AddressError};
pub(crate) use config::{BUS_MASTER, COMMAND, Config};
pub use driver::{InUse, VFIO};
pub use group::{Group, Member, NO_IOMMU_CURE};
pub use sriov::SriovError;

/// Where the kernel shows the PCI bus, whatever the network namespace.
pub(crate) const BUS: &str = "/sys/bus/pci";

/// Class 02 (network), subclass 00 (Ethernet), of PCI's code assignment.
const ETHERNET: &str = "0x0200";

/// A PCI function on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    bus: PathBuf,
    address: Address,
}

impl Device {
    /// The function at an address; `None` when there is none.
    pub fn at(address: Address) -> Option<Self> {
        Self::on(BUS.into(), address)
    }

    /// The function at an address of the bus that is shown in a directory.
    pub(crate) fn on(bus: PathBuf, address: Address) -> Option<Self> {
        let device = Self { bus, address };
        device.directory().exists().then_some(device)
    }

    /// Every function on this machine, by address.
    pub fn all() -> Vec<Self> {
        Self::all_on(Path::new(BUS))
    }

    /// Every function of the bus that is shown in a directory, by address.
    pub(crate) fn all_on(bus: &Path) -> Vec<Self> {
        let entries = fs::read_dir(bus.join("devices")).into_iter().flatten().flatten();
        let address = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        let mut all: Vec<Self> =
            entries.filter_map(address).map(|address| Self { bus: bus.into(), address }).collect();
        all.sort_by_key(|device| device.address);
        all
    }

    /// Where it is.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its directory in sysfs.
    pub fn directory(&self) -> PathBuf {
        self.bus.join("devices").join(self.address.to_string())
    }

    /// Its vendor's number, and its model's at that vendor.
    pub fn ids(&self) -> Option<(u16, u16)> {
        let id = |file| u16::from_str_radix(self.read(file)?.trim_start_matches("0x"), 16).ok();
        Some((id("vendor")?, id("device")?))
    }

    /// Whether it is an Ethernet NIC.
    pub fn is_ethernet(&self) -> bool {
        self.read("class").is_some_and(|class| class.starts_with(ETHERNET))
    }

    /// The driver that has it.
    pub fn driver(&self) -> Option<String> {
        self.linked("driver")
    }

    /// Its IOMMU group; without one there is no isolation.
    pub fn group(&self) -> Option<Group> {
        let number = self.linked("iommu_group")?.parse().ok()?;
        Some(Group::new(self.bus.clone(), self.directory().join("iommu_group"), number))
    }

    /// Its network interfaces in the calling thread's namespace. A virtio NIC's belong to the virtio device below it.
    pub fn interfaces(&self) -> Vec<String> {
        let names = |directory: &Path| -> Vec<String> {
            let entries = fs::read_dir(directory.join("net")).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let below = fs::read_dir(self.directory()).into_iter().flatten().flatten();
        let virtio = below.filter(|entry| entry.file_name().to_string_lossy().starts_with("virtio"));
        let mut all = names(&self.directory());
        all.extend(virtio.flat_map(|entry| names(&entry.path())));
        all.sort();
        all
    }

    /// Virtual functions that it has now.
    pub fn virtual_functions(&self) -> u32 {
        self.read("sriov_numvfs").and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// The content of one of its files, without blanks around it.
    pub(crate) fn read(&self, file: &str) -> Option<String> {
        Some(fs::read_to_string(self.directory().join(file)).ok()?.trim().to_owned())
    }

    /// The name of what one of its links points to.
    fn linked(&self, file: &str) -> Option<String> {
        Some(fs::read_link(self.directory().join(file)).ok()?.file_name()?.to_str()?.to_owned())
    }

    /// Writes to a file below the bus's directory, in one write(2) as the kernel wants it; never makes a file.
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).open(self.bus.join(path))?;
        io::Write::write_all(&mut file, value.as_bytes())
    }
}

#[cfg(test)]
mod tests;
