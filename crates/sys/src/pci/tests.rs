//! A bus in a temporary directory: what is read of it, and who is in the way.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

/// Puts a function on a bus, with files and links.
fn add(bus: &Path, address: &str, files: &[(&str, &str)], links: &[(&str, &str)]) -> Device {
    let directory = bus.join("devices").join(address);
    fs::create_dir_all(&directory).unwrap();
    for (name, content) in files {
        fs::write(directory.join(name), format!("{content}\n")).unwrap();
    }
    for (name, to) in links {
        symlink(to, directory.join(name)).unwrap();
    }
    Device::on(bus.into(), address.parse().unwrap()).unwrap()
}

const NIC: [(&str, &str); 3] = [("class", "0x020000"), ("vendor", "0x8086"), ("device", "0x10c9")];

#[test]
fn a_function_is_described() {
    let bus = tempfile::tempdir().unwrap();
    let links = [("driver", "/sys/bus/pci/drivers/igb"), ("iommu_group", "/sys/kernel/iommu_groups/17")];
    let device = add(bus.path(), "0000:03:00.0", &[&NIC[..], &[("sriov_numvfs", "2")]].concat(), &links);
    fs::create_dir_all(device.directory().join("net/eth1")).unwrap();
    fs::create_dir_all(device.directory().join("virtio1/net/eth2")).unwrap();
    assert_eq!((device.ids(), device.is_ethernet()), (Some((0x8086, 0x10c9)), true));
    assert_eq!((device.driver().as_deref(), device.group().unwrap().number()), (Some("igb"), 17));
    assert_eq!((device.interfaces(), device.virtual_functions()), (vec!["eth1".into(), "eth2".into()], 2));
    assert_eq!(device.reserved_for(), None);
    fs::write(device.directory().join("driver_override"), "(null)\n").unwrap();
    assert_eq!(device.reserved_for(), None);
    fs::write(device.directory().join("driver_override"), "vfio-pci\n").unwrap();
    assert_eq!(device.reserved_for().as_deref(), Some("vfio-pci"));
    let bare = add(bus.path(), "0000:02:00.0", &[], &[]);
    assert_eq!((bare.ids(), bare.is_ethernet(), bare.driver(), bare.group()), (None, false, None, None));
    assert_eq!(Device::all_on(bus.path()), [bare, device]);
    assert_eq!(Device::on(bus.path().into(), "0000:09:00.0".parse().unwrap()), None);
}

#[test]
fn drivers_of_the_kernel_are_in_the_way_of_a_group() {
    let bus = tempfile::tempdir().unwrap();
    let group = bus.path().join("groups/7");
    fs::create_dir_all(group.join("devices")).unwrap();
    let mut all = Vec::new();
    for (address, driver) in [
        ("0000:00:01.0", Some("pcieport")),
        ("0000:01:00.0", Some("igb")),
        ("0000:01:00.1", Some("igb")),
        ("0000:01:00.2", None),
        ("0000:01:00.3", Some("vfio-pci")),
    ] {
        let driver = driver.map(|driver| format!("/drivers/{driver}"));
        let links: Vec<_> = driver.iter().map(|driver| ("driver", driver.as_str())).collect();
        let group_link = ("iommu_group", group.to_str().unwrap());
        let device = add(bus.path(), address, &NIC, &[&links[..], &[group_link]].concat());
        symlink(device.directory(), group.join("devices").join(address)).unwrap();
        all.push(device);
    }
    fs::create_dir_all(all[2].directory().join("net/eth3")).unwrap();
    let group = all[1].group().unwrap();
    assert_eq!((group.number(), group.members().len()), (7, 5));
    let others: Vec<_> = group.in_the_way(&all[1..2]).iter().map(Member::to_string).collect();
    assert_eq!(others, ["0000:01:00.1 (igb, eth3)"]);
    assert_eq!(group.in_the_way(&all[1..3]), [], "those that are taken together");
}

#[test]
fn virtual_functions_end_with_their_parent() {
    let bus = tempfile::tempdir().unwrap();
    let driver = [("driver", "/drivers/igb")];
    let parent = add(bus.path(), "0000:01:00.0", &[&NIC[..], &[("sriov_numvfs", "2")]].concat(), &driver);
    assert!(matches!(parent.check_unused(true), Err(InUse::VirtualFunctions(2))));
    let plain = add(bus.path(), "0000:02:00.0", &NIC, &driver);
    plain.check_unused(false).unwrap();
    fs::create_dir(plain.directory().join("net")).unwrap();
    assert!(matches!(plain.check_unused(false), Err(InUse::Elsewhere { .. })));
    plain.check_unused(true).unwrap();
}
