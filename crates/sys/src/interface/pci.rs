//! NICs on the PCI bus, by sysfs: where they sit and how wide their way to memory is.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::pci::Device;

/// A device's connection to the PCI Express bus.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pcie {
    /// Lanes in use.
    pub lanes: u32,
    /// Lanes the device has.
    pub max_lanes: u32,
    /// Transfers per second on each lane in use, in units of 10⁹ (GT/s).
    pub gigatransfers: f64,
    /// The most the device can do.
    pub max_gigatransfers: f64,
}

impl Pcie {
    /// What goes through in one direction, in Mbit/s, without the overhead of PCIe packets (about a tenth for large
    /// ones).
    #[must_use]
    pub fn mbps(&self) -> f64 {
        rate(self.lanes, self.gigatransfers)
    }

    /// The same of the device in the best slot.
    #[must_use]
    pub fn max_mbps(&self) -> f64 {
        rate(self.max_lanes, self.max_gigatransfers)
    }
}

/// Up to 5 GT/s ten bits carry eight; above, 130 carry 128. (Above 32 GT/s it is a little more still.)
fn rate(lanes: u32, gigatransfers: f64) -> f64 {
    let payload = if gigatransfers <= 5.0 { 8.0 / 10.0 } else { 128.0 / 130.0 };
    f64::from(lanes) * gigatransfers * 1000.0 * payload
}

/// An Ethernet NIC on the PCI bus that is no interface here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PciNic {
    /// Its address: `0000:03:00.0`.
    pub address: String,
    /// Its vendor's number.
    pub vendor: u16,
    /// Its model's number at that vendor.
    pub device: u16,
    /// What drives it: `vfio-pci`. With a kernel's network driver its interface is in another network namespace.
    pub driver: Option<String>,
    /// Its IOMMU group; without one there is no isolation.
    pub iommu_group: Option<u32>,
    /// The NUMA node it sits on.
    pub numa_node: Option<u32>,
    /// How it is connected.
    pub pcie: Option<Pcie>,
}

/// All Ethernet NICs of a bus that are no interface, but those at the addresses of `interfaces`.
pub(super) fn nics(devices: &[Device], interfaces: &[&str]) -> Vec<PciNic> {
    let describe = |device: &Device| {
        let address = device.address().to_string();
        if interfaces.contains(&address.as_str()) || !device.is_ethernet() || !device.interfaces().is_empty()
        {
            return None;
        }
        let ((vendor, model), directory) = (device.ids()?, device.directory());
        Some(PciNic {
            address,
            vendor,
            device: model,
            driver: device.driver(),
            iommu_group: device.group().map(|group| group.number()),
            numa_node: numa_node(&directory),
            pcie: pcie(&directory),
        })
    };
    devices.iter().filter_map(describe).collect()
}

pub(super) fn numa_node(device: &Path) -> Option<u32> {
    read(device, "numa_node")?.parse().ok() // -1 where there is one node only
}

/// `None` for a device that only looks like one on the bus, as a virtual machine's.
pub(super) fn pcie(device: &Path) -> Option<Pcie> {
    let lanes = |file| read(device, file)?.parse().ok().filter(|lanes| (1..=32).contains(lanes));
    let speed = |file| read(device, file)?.split_ascii_whitespace().next()?.parse::<f64>().ok();
    Some(Pcie {
        lanes: lanes("current_link_width")?,
        max_lanes: lanes("max_link_width")?,
        gigatransfers: speed("current_link_speed")?,
        max_gigatransfers: speed("max_link_speed")?,
    })
}

fn read(device: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(device.join(file)).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn device(bus: &Path, address: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let device = bus.join("devices").join(address);
        fs::create_dir_all(&device).unwrap();
        for (name, content) in files {
            fs::write(device.join(name), format!("{content}\n")).unwrap();
        }
        device
    }

    #[test]
    fn nics_that_are_no_interface_are_found() {
        let bus = tempfile::tempdir().unwrap();
        let nic = [("class", "0x020000"), ("vendor", "0x8086"), ("device", "0x10fb"), ("numa_node", "1")];
        let link = [
            ("current_link_width", "4"),
            ("max_link_width", "8"),
            ("current_link_speed", "5.0 GT/s PCIe"),
            ("max_link_speed", "5.0 GT/s PCIe"),
        ];
        let free = device(bus.path(), "0000:03:00.0", &[&nic[..], &link].concat());
        symlink("/sys/bus/pci/drivers/vfio-pci", free.join("driver")).unwrap();
        symlink("/sys/kernel/iommu_groups/17", free.join("iommu_group")).unwrap();
        let here = device(bus.path(), "0000:03:00.1", &nic);
        fs::create_dir_all(here.join("net/eth1")).unwrap();
        let virtio = device(bus.path(), "0000:00:04.0", &nic);
        fs::create_dir_all(virtio.join("virtio1/net/eth2")).unwrap();
        device(bus.path(), "0000:00:1f.0", &[("class", "0x010601")]);
        device(bus.path(), "0000:05:00.0", &nic);

        let nics = nics(&Device::all_on(bus.path()), &["0000:05:00.0"]);
        assert_eq!(nics.len(), 1, "{nics:?}");
        let found = &nics[0];
        assert_eq!((found.address.as_str(), found.vendor, found.device), ("0000:03:00.0", 0x8086, 0x10fb));
        assert_eq!((found.driver.as_deref(), found.iommu_group), (Some("vfio-pci"), Some(17)));
        assert_eq!((found.numa_node, found.pcie.unwrap().lanes), (Some(1), 4));
    }

    #[test]
    fn a_lane_carries_less_than_it_transfers() {
        let slot = |lanes, gigatransfers| {
            Pcie { lanes, max_lanes: 8, gigatransfers, max_gigatransfers: 8.0 }.mbps().round()
        };
        assert!((slot(1, 5.0) - 4_000.0).abs() < 0.5);
        assert!((slot(8, 2.5) - 16_000.0).abs() < 0.5);
        assert!((slot(8, 8.0) - 63_015.0).abs() < 0.5);
    }

    #[test]
    fn a_device_without_lanes_has_no_width() {
        let bus = tempfile::tempdir().unwrap();
        let files = [
            ("current_link_width", "0"),
            ("max_link_width", "0"),
            ("current_link_speed", "Unknown"),
            ("max_link_speed", "Unknown"),
            ("numa_node", "-1"),
        ];
        let device = device(bus.path(), "0000:00:03.0", &files);
        assert_eq!((pcie(&device), numa_node(&device)), (None, None));
    }
}
