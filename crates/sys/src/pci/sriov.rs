//! Virtual functions: how many a NIC may have, which they are, who has them; making and removing them.

use std::io;
use std::path::Path;

use super::{Device, InUse, VFIO};

/// Why there are no virtual functions to be had, or why they must stay.
#[derive(Debug, thiserror::Error)]
pub enum SriovError {
    /// The NIC or the kernel cannot.
    #[error(
        "{device} has no virtual functions to give: the NIC has no SR-IOV, or its firmware or the machine's (BIOS: SR-IOV) switches it off, or the kernel was built without CONFIG_PCI_IOV"
    )]
    None {
        /// The NIC's address.
        device: String,
    },
    /// More than there are.
    #[error("{device} can have {most} virtual functions, not {wanted}")]
    TooMany {
        /// The NIC's address.
        device: String,
        /// How many it can have.
        most: u32,
        /// How many were wanted.
        wanted: u32,
    },
    /// It has some.
    #[error(
        "{device} has {count} virtual functions already, and their number can't be changed but by removing them all: `bywash vf destroy` first"
    )]
    Already {
        /// The NIC's address.
        device: String,
        /// How many it has.
        count: u32,
    },
    /// It is no NIC with a driver of the kernel's.
    #[error(
        "{device} has no driver of the kernel's, which alone can make virtual functions: `bywash unbind` it first"
    )]
    NoDriver {
        /// The NIC's address.
        device: String,
    },
    /// It is a virtual function itself.
    #[error("{device} is a virtual function itself, of {physical}")]
    Virtual {
        /// The function's address.
        device: String,
        /// The NIC's.
        physical: String,
    },
    /// A virtual function is in use.
    #[error("virtual function {number} ({device}) is in use: {reason}")]
    InUse {
        /// Its number.
        number: usize,
        /// Its address.
        device: String,
        /// By whom.
        reason: String,
    },
    /// The kernel refused.
    #[error("can't give {device} {wanted} virtual functions: {source}{}", cure(.source))]
    Refused {
        /// The NIC's address.
        device: String,
        /// How many were wanted.
        wanted: u32,
        /// Why.
        source: io::Error,
    },
}

/// What the kernel's refusal means, where it is known.
fn cure(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EBUSY) => {
            "; there is no room in the machine's address space or bus numbers: switch SR-IOV and 'above 4G decoding' on in its firmware, or add pci=realloc to the kernel's command line"
        }
        Some(libc::ENOENT | libc::ENOSYS | libc::EOPNOTSUPP) => "; its driver makes none",
        Some(libc::EPERM | libc::EACCES) => "; that needs root",
        _ => "",
    }
}

impl Device {
    /// How many virtual functions it can have.
    pub fn most_virtual_functions(&self) -> u32 {
        self.read("sriov_totalvfs").and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Its virtual functions, by number.
    pub fn virtual_function_devices(&self) -> Vec<Self> {
        let numbers = 0..self.virtual_functions();
        numbers.map_while(|number| self.neighbour(&format!("virtfn{number}"))).collect()
    }

    /// The NIC that it is a virtual function of.
    pub fn physical_function(&self) -> Option<Self> {
        self.neighbour("physfn")
    }

    fn neighbour(&self, link: &str) -> Option<Self> {
        Self::on(self.bus.clone(), self.linked(link)?.parse().ok()?)
    }

    /// Why a virtual function must stay: a program has it, or an interface of it is in use.
    fn user(&self) -> Option<String> {
        if self.is_open() {
            return Some("a program has it open, through VFIO".into());
        }
        match self.check_unused(false) {
            Ok(()) | Err(InUse::VirtualFunctions(_)) => None,
            Err(InUse::Interface { interface, reason }) => {
                Some(format!("it is {interface} here, and {reason}"))
            }
            Err(InUse::Elsewhere { driver }) => {
                Some(format!("{driver} drives it, and its interface is in another network namespace"))
            }
            Err(InUse::Unknown(error)) => Some(error.to_string()),
        }
    }

    /// Whether its virtual functions may be removed.
    ///
    /// # Errors
    /// [`SriovError::InUse`].
    pub fn check_virtual_functions_unused(&self) -> Result<(), SriovError> {
        for (number, device) in self.virtual_function_devices().iter().enumerate() {
            if let Some(reason) = device.user() {
                return Err(SriovError::InUse { number, device: device.address().to_string(), reason });
            }
        }
        Ok(())
    }

    /// Whether it may get so many virtual functions.
    ///
    /// # Errors
    /// The reason; nothing was changed.
    pub fn check_virtual_functions(&self, wanted: u32) -> Result<(), SriovError> {
        let device = self.address().to_string();
        if let Some(physical) = self.physical_function() {
            return Err(SriovError::Virtual { device, physical: physical.address().to_string() });
        }
        if self.driver().is_none_or(|driver| driver == VFIO) {
            return Err(SriovError::NoDriver { device });
        }
        match (self.most_virtual_functions(), self.virtual_functions()) {
            (0, _) => Err(SriovError::None { device }),
            (_, count) if count != 0 => Err(SriovError::Already { device, count }),
            (most, _) if wanted > most => Err(SriovError::TooMany { device, most, wanted }),
            _ => Ok(()),
        }
    }

    /// Makes virtual functions, or removes them all.
    pub(crate) fn write_virtual_functions(&self, count: u32) -> Result<(), SriovError> {
        let file = Path::new("devices").join(self.address().to_string()).join("sriov_numvfs");
        self.write(&file, &count.to_string()).map_err(|source| SriovError::Refused {
            device: self.address().to_string(),
            wanted: count,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A bus with a NIC of 7 virtual functions at most and `count` now.
    fn bus(count: u32) -> (tempfile::TempDir, Device) {
        let bus = tempfile::tempdir().unwrap();
        let nic = bus.path().join("devices/0000:01:00.0");
        fs::create_dir_all(&nic).unwrap();
        fs::write(nic.join("sriov_totalvfs"), "7\n").unwrap();
        fs::write(nic.join("sriov_numvfs"), format!("{count}\n")).unwrap();
        symlink("/sys/bus/pci/drivers/igb", nic.join("driver")).unwrap();
        for number in 0..count {
            let function = bus.path().join(format!("devices/0000:01:10.{number}"));
            fs::create_dir_all(&function).unwrap();
            symlink("../0000:01:00.0", function.join("physfn")).unwrap();
            symlink(format!("../0000:01:10.{number}"), nic.join(format!("virtfn{number}"))).unwrap();
        }
        let device = Device::on(PathBuf::from(bus.path()), "0000:01:00.0".parse().unwrap()).unwrap();
        (bus, device)
    }

    #[test]
    fn functions_are_found_by_number_and_find_their_nic() {
        let (_bus, device) = bus(2);
        assert_eq!((device.most_virtual_functions(), device.virtual_functions()), (7, 2));
        let functions = device.virtual_function_devices();
        assert_eq!(functions[1].address().to_string(), "0000:01:10.1");
        assert_eq!(functions[1].physical_function(), Some(device.clone()));
        assert!(device.check_virtual_functions_unused().is_ok());
        let error = functions[0].check_virtual_functions(1).unwrap_err();
        assert!(matches!(error, SriovError::Virtual { .. }), "{error}");
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let (tree, device) = bus(0);
        assert!(device.check_virtual_functions(7).is_ok());
        let refused = |wanted| device.check_virtual_functions(wanted).unwrap_err().to_string();
        assert_eq!(refused(8), "0000:01:00.0 can have 7 virtual functions, not 8");
        let nic = tree.path().join("devices/0000:01:00.0");
        fs::write(nic.join("sriov_totalvfs"), "0\n").unwrap();
        assert!(refused(1).contains("CONFIG_PCI_IOV"), "{}", refused(1));
        fs::remove_file(nic.join("driver")).unwrap();
        assert!(refused(1).contains("no driver of the kernel's"), "{}", refused(1));
        let (_tree, device) = bus(1);
        assert!(matches!(device.check_virtual_functions(1), Err(SriovError::Already { count: 1, .. })));
    }

    #[test]
    fn a_refusal_says_what_the_machine_lacks() {
        for (errno, words) in [
            (libc::ENOMEM, "add pci=realloc to the kernel's command line"),
            (libc::EBUSY, "switch SR-IOV and 'above 4G decoding' on in its firmware"),
            (libc::ENOSYS, "; its driver makes none"),
            (libc::EPERM, "; that needs root"),
        ] {
            let source = io::Error::from_raw_os_error(errno);
            let refused =
                SriovError::Refused { device: "0000:01:00.0".into(), wanted: 2, source }.to_string();
            assert!(refused.contains(words) && refused.lines().count() == 1, "{refused}");
        }
        let source = io::Error::from_raw_os_error(libc::EIO);
        let refused = SriovError::Refused { device: "0000:01:00.0".into(), wanted: 2, source }.to_string();
        assert_eq!(refused, "can't give 0000:01:00.0 2 virtual functions: Input/output error (os error 5)");
    }

    #[test]
    fn the_number_is_written_to_the_kernels_file() {
        let (tree, device) = bus(0);
        device.write_virtual_functions(3).unwrap();
        let file = tree.path().join("devices/0000:01:00.0/sriov_numvfs");
        assert!(fs::read_to_string(&file).unwrap().starts_with('3'));
        fs::remove_file(file).unwrap();
        assert!(device.write_virtual_functions(0).unwrap_err().to_string().contains("its driver makes none"));
    }
}
