//! Giving a PCI function from one driver to another, by `driver_override`: no other function is touched by it.

use std::io;
use std::path::Path;

use super::{Config, Device};
use crate::interface::{InterfaceError, kernel_use};

/// The kernel's driver that hands a function to a program.
pub const VFIO: &str = "vfio-pci";

/// What a function without an override holds in its `driver_override`.
const NO_OVERRIDE: &str = "(null)";

/// Why a function should stay with the kernel's driver.
#[derive(Debug, thiserror::Error)]
pub enum InUse {
    /// An interface of it is in use.
    #[error(
        "it is {interface} here, and {reason}; take the interface out of use first, or take it all the same with --force"
    )]
    Interface {
        /// The interface.
        interface: String,
        /// What the kernel uses it for.
        reason: String,
    },
    /// Its interface is somewhere else.
    #[error(
        "{driver} drives it, and its interface is in another network namespace; take it all the same with --force"
    )]
    Elsewhere {
        /// The driver.
        driver: String,
    },
    /// It has virtual functions, which end with it.
    #[error("it has {0} virtual functions, which would vanish; remove them first (echo 0 > sriov_numvfs)")]
    VirtualFunctions(u32),
    /// The kernel did not say.
    #[error(transparent)]
    Unknown(#[from] InterfaceError),
}

impl Device {
    /// Whether it may be taken from the kernel's driver. With `force` it may although its interface is in use.
    ///
    /// # Errors
    /// [`InUse`].
    pub fn check_unused(&self, force: bool) -> Result<(), InUse> {
        let Some(driver) = self.driver().filter(|driver| driver != VFIO) else { return Ok(()) };
        match self.virtual_functions() {
            0 => {}
            count => return Err(InUse::VirtualFunctions(count)),
        }
        if force {
            return Ok(());
        }
        let interfaces = self.interfaces();
        if interfaces.is_empty() && self.is_ethernet() && self.has_interface_elsewhere() {
            return Err(InUse::Elsewhere { driver });
        }
        for interface in interfaces {
            if let Some(reason) = kernel_use(&interface)?.reason() {
                return Err(InUse::Interface { interface, reason });
            }
        }
        Ok(())
    }

    /// sysfs shows a network namespace's own interfaces alone; but the directory for them is there for all.
    fn has_interface_elsewhere(&self) -> bool {
        self.directory().join("net").exists()
    }

    /// The driver that it is reserved for.
    pub fn reserved_for(&self) -> Option<String> {
        self.read("driver_override").filter(|name| !name.is_empty() && name != NO_OVERRIDE)
    }

    /// Whether a driver of this name is loaded.
    pub fn is_loaded(&self, driver: &str) -> bool {
        self.bus.join("drivers").join(driver).exists()
    }

    /// Whether a program has it: through VFIO, where the kernel would wait until that ends before it gives the function away, or
    /// without an IOMMU.
    pub fn is_open(&self) -> bool {
        let busy = |error: io::Error| error.raw_os_error() == Some(libc::EBUSY);
        self.group().is_some_and(|group| std::fs::File::open(group.file()).is_err_and(busy))
            || Config::open(self).is_ok_and(|config| config.lock().is_ok_and(|free| !free))
    }

    /// Resets it, if the kernel can: whatever it was doing ends. Its configuration space is as before.
    pub(crate) fn reset(&self) -> io::Result<()> {
        let reset = Path::new("devices").join(self.address().to_string()).join("reset");
        match self.write(&reset, "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Lets the kernel find a driver for it.
    pub(crate) fn probe(&self) -> io::Result<()> {
        self.write(Path::new("drivers_probe"), &self.address().to_string())
    }

    /// Takes it from its driver, if it has one, and gives it to `driver`, if there is to be one; and reserves it for
    /// `reserve`, or for none. When that fails it may be left without a driver.
    ///
    /// # Errors
    /// What the kernel says. When its driver does not take it, too.
    pub fn give_to(&self, driver: Option<&str>, reserve: Option<&str>) -> io::Result<()> {
        let (address, devices) =
            (self.address().to_string(), Path::new("devices").join(self.address().to_string()));
        if self.driver().as_deref() != driver && self.driver().is_some() {
            self.write(&devices.join("driver/unbind"), &address)?;
        }
        // A line without a name takes the reservation away. A driver binds what is reserved for it though it does not know
        // its ids, and nobody else does.
        self.write(&devices.join("driver_override"), reserve.unwrap_or("\n"))?;
        let Some(driver) = driver.filter(|driver| self.driver().as_deref() != Some(*driver)) else {
            return Ok(());
        };
        // It may be bound by then: the kernel does that by itself when a module is loaded.
        let bound = self.write(&Path::new("drivers").join(driver).join("bind"), &address);
        if self.driver().as_deref() == Some(driver) {
            return Ok(());
        }
        bound.and_then(|()| Err(io::Error::other(format!("{driver} did not take it; dmesg may say why"))))
    }
}
