//! IOMMU groups: functions that the IOMMU cannot tell apart, so that all of them are one program's or none is.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::{Device, VFIO};

/// An IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    bus: PathBuf,
    directory: PathBuf,
    number: u32,
}

/// What to do where there are no groups.
pub const NO_IOMMU_CURE: &str = "switch VT-d or AMD-Vi on in the machine's firmware, and on Intel's add intel_iommu=on to the kernel's command line";

/// A function of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The function.
    pub device: Device,
    /// What drives it.
    pub driver: Option<String>,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device.address())?;
        let interfaces = self.device.interfaces();
        let words = self.driver.iter().chain(&interfaces).map(String::as_str).collect::<Vec<_>>();
        if words.is_empty() { Ok(()) } else { write!(f, " ({})", words.join(", ")) }
    }
}

/// Drivers that do no DMA of their own and so leave a group to programs: VFIO's, the stub's, and bridges' (the kernel's
/// `driver_managed_dma`).
const HARMLESS: [&str; 3] = [VFIO, "pci-stub", "pcieport"];

impl Group {
    pub(super) fn new(bus: PathBuf, directory: PathBuf, number: u32) -> Self {
        Self { bus, directory, number }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// VFIO's file for it, which one program can have open.
    pub fn file(&self) -> PathBuf {
        format!("/dev/vfio/{}", self.number).into()
    }

    /// All functions in it, by address.
    pub fn members(&self) -> Vec<Member> {
        let entries = fs::read_dir(self.directory.join("devices")).into_iter().flatten().flatten();
        let device =
            |entry: fs::DirEntry| Device::on(self.bus.clone(), entry.file_name().to_str()?.parse().ok()?);
        let mut devices: Vec<Device> = entries.filter_map(device).collect();
        devices.sort_by_key(Device::address);
        devices.into_iter().map(|device| Member { driver: device.driver(), device }).collect()
    }

    /// Who in it, beside `devices`, has a driver of the kernel's: as long as there is one the group cannot be used.
    pub fn in_the_way(&self, devices: &[Device]) -> Vec<Member> {
        let harmless =
            |member: &Member| member.driver.as_deref().is_none_or(|driver| HARMLESS.contains(&driver));
        let mut members = self.members();
        members.retain(|member| !devices.contains(&member.device) && !harmless(member));
        members
    }
}
