//! A PCI function taken from the kernel's driver where there is no IOMMU: `pci:0000:03:00.0` with `--no-iommu`.
//!
//! The function is told physical addresses, and nothing keeps it from all others: a wrong one in a driver is somebody else's
//! memory. What can be done about that is done. Packets and rings lie in huge pages, which are never swapped out, and each of which
//! is one piece; the function may do DMA only while a process is there whose memory it is, or a guard that ends it. Who had
//! it before has it again at the end, or after `bywash cleanup`.
//!
//! Registers and configuration space are the files that sysfs has for them. There are no interrupts: without VFIO they would be
//! the kernel's.

mod guard;
mod pagemap;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::function::{DeviceAddresses, DmaMemory, Function, FunctionError, PageTable};
use crate::mapped_registers::MappedRegisters;
use crate::pci::{Config, Device, InUse};
use crate::shared::Mapping;
use crate::state::{State, StateError, Undo};
use guard::Guard;

pub use pagemap::PhysicalError;

/// Why a function could not be taken. It has the driver that it had.
#[derive(Debug, thiserror::Error)]
pub enum NoIommuError {
    /// There is an IOMMU.
    #[error("it is behind an IOMMU, in group {0}, which makes it safe: leave --no-iommu out")]
    Isolated(u32),
    /// It is in use.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// Another program has it.
    #[error("it is open in another program: end that first")]
    Open,
    /// A NIC cannot be given packet memory.
    #[error("packet memory: {0}")]
    Memory(#[from] PhysicalError),
    /// One of its files can't be used.
    #[error("{what}: {source}{}", cure(.source))]
    File {
        /// What was to be done.
        what: &'static str,
        /// Why it was not.
        source: io::Error,
    },
    /// It was not taken from its driver.
    #[error(transparent)]
    State(#[from] StateError),
}

fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ": it needs root, and a kernel that is not locked down (Secure Boot locks it)"
        }
        _ => "",
    }
}

/// A function without an IOMMU.
#[derive(Debug)]
pub struct NoIommu {
    name: String,
    device: Device,
    /// Vendor and device id of a virtual function, whose own configuration space has none (PCI Express says so).
    ids: Option<[u8; 4]>,
    held: Arc<Held>,
    /// Addresses of the first bytes of what is mapped.
    maps: Vec<u64>,
}

/// What must stay as long as anybody can reach the function, in the order in which it goes: no registers, no guard, nobody who
/// has it, and then its driver again.
#[derive(Debug)]
struct Held {
    bar: Arc<Mapping>,
    guard: Guard,
    config: Config,
    _driver: Undo,
}

impl NoIommu {
    /// Takes a function from the kernel's driver; `name` is what the user calls it. With `force`, although its interface is in use.
    /// It will be given `packets`, if any: when that cannot be, nothing is changed.
    ///
    /// # Errors
    /// [`NoIommuError`]: what is missing, or in the way.
    pub fn open(
        device: &Device,
        name: &str,
        force: bool,
        packets: Option<&DmaMemory<'_>>,
    ) -> Result<Self, NoIommuError> {
        Self::open_by(State::of_process()?, device, name, force, packets)
    }

    fn open_by(
        state: &Arc<State>,
        device: &Device,
        name: &str,
        force: bool,
        packets: Option<&DmaMemory<'_>>,
    ) -> Result<Self, NoIommuError> {
        if let Some(group) = device.group() {
            return Err(NoIommuError::Isolated(group.number()));
        }
        device.check_unused(force)?;
        packets.map(pagemap::huge_pages).transpose()?;
        let failed = |what| move |source| NoIommuError::File { what, source };
        // Dropped last: it has its driver again once nobody has it.
        let driver;
        let config = Config::open(device).map_err(failed("opening its configuration space"))?;
        if !config.lock_soon().map_err(failed("locking its configuration space"))? {
            return Err(NoIommuError::Open);
        }
        config.try_to_write().map_err(failed("writing its configuration space"))?;
        driver = state.set_driver(device, None)?;
        config.forbid_dma().map_err(failed("writing its configuration space"))?;
        // Who had it may have left queues running, as one does who is killed; our driver lets it do DMA again.
        device.reset().map_err(failed("resetting it"))?;
        let guard = Guard::start(&config).map_err(failed("starting the process that guards it"))?;
        let bar = map_bar(device).map_err(failed("mapping its BAR 0"))?;
        let held = Arc::new(Held { bar, guard, config, _driver: driver });
        let ids = device.physical_function().and_then(|_| device.ids()).map(ids_in_config);
        Ok(Self { name: name.into(), device: device.clone(), ids, held, maps: Vec::new() })
    }

    fn give(&mut self, memory: &DmaMemory<'_>) -> io::Result<DeviceAddresses> {
        let pages = pagemap::huge_pages(memory).map_err(io::Error::other)?;
        self.held.guard.keep(memory.file)?;
        self.maps.extend(pages.first());
        Ok(DeviceAddresses::Paged(PageTable::new(&pages)))
    }

    fn config_error(&self, offset: u64, source: io::Error) -> FunctionError {
        FunctionError::Config { function: self.name.clone(), offset, source }
    }
}

/// Vendor and device id as configuration space begins with them.
fn ids_in_config((vendor, device): (u16, u16)) -> [u8; 4] {
    let ([a, b], [c, d]) = (vendor.to_le_bytes(), device.to_le_bytes());
    [a, b, c, d]
}

/// The registers in BAR 0.
fn map_bar(device: &Device) -> io::Result<Arc<Mapping>> {
    let file = OpenOptions::new().read(true).write(true).open(device.directory().join("resource0"))?;
    let bytes = usize::try_from(File::metadata(&file)?.len()).map_err(io::Error::other)?;
    Mapping::of_file(file.as_fd(), 0, bytes)
}

impl Function for NoIommu {
    type Registers = MappedRegisters;

    fn name(&self) -> &str {
        &self.name
    }

    fn registers(&self) -> MappedRegisters {
        MappedRegisters::new(&self.held.bar, self.held.clone())
    }

    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError> {
        self.held.config.read(offset, to).map_err(|source| self.config_error(offset, source))?;
        for (at, id) in (0..).zip(self.ids.iter().flatten()) {
            let byte = u64::checked_sub(at, offset).and_then(|at| to.get_mut(usize::try_from(at).ok()?));
            byte.into_iter().for_each(|byte| *byte = *id);
        }
        Ok(())
    }

    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), FunctionError> {
        self.held.config.write(offset, from).map_err(|source| self.config_error(offset, source))
    }

    fn map(&mut self, memory: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError> {
        let bytes = memory.bytes;
        self.give(memory).map_err(|source| FunctionError::Map { function: self.name.clone(), bytes, source })
    }

    /// The guard keeps the memory's pages until the function is dropped: whether the device still reaches them can't be known.
    fn unmap(&mut self, address: u64) -> Result<(), FunctionError> {
        match self.maps.iter().position(|first| *first == address) {
            Some(at) => {
                self.maps.swap_remove(at);
                Ok(())
            }
            None => {
                let source = io::ErrorKind::NotFound.into();
                Err(FunctionError::Map { function: self.name.clone(), bytes: 0, source })
            }
        }
    }

    /// There are none.
    fn interrupts(&mut self, _: u16) -> Result<Vec<OwnedFd>, FunctionError> {
        Ok(Vec::new())
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        let failed = |source| FunctionError::Reset { function: self.name.clone(), source };
        std::fs::write(self.device.directory().join("reset"), "1").map_err(failed)?;
        // The kernel puts configuration space back as it was before.
        self.held.config.forbid_dma().map_err(failed)
    }
}

impl Drop for NoIommu {
    /// No DMA comes from here on, also when handles to its registers live on.
    fn drop(&mut self) {
        self.held.config.forbid_dma().ok();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use rustix::io::pwrite;

    use super::*;
    use crate::pci::COMMAND;

    /// Configuration space with memory and bus master on.
    fn space() -> [u8; 64] {
        let mut space = [0; 64];
        space[command()] = 6;
        space
    }

    fn command() -> usize {
        COMMAND.try_into().unwrap()
    }

    /// A bus with a function that has no driver, and a directory for changes to it.
    struct Bus {
        folder: tempfile::TempDir,
        device: Device,
        state: Arc<State>,
    }

    impl Bus {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let directory = folder.path().join("devices/0000:01:00.0");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("config"), space()).unwrap();
            for name in ["driver_override", "reset"] {
                fs::write(directory.join(name), "").unwrap();
            }
            let device = Device::all_on(folder.path()).remove(0);
            let state = State::on(folder.path().join("state"), folder.path().into()).unwrap();
            Self { folder, device, state }
        }

        fn open(&self) -> Result<NoIommu, NoIommuError> {
            NoIommu::open_by(&self.state, &self.device, "nic", false, None)
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.device.directory().join(name)
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.path(name)).unwrap()
        }

        fn may_do_dma(&self) -> bool {
            fs::read(self.path("config")).unwrap()[command()] & 4 != 0
        }

        fn records(&self) -> usize {
            let entries = fs::read_dir(self.folder.path().join("state")).unwrap();
            entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some()).count()
        }
    }

    /// Configuration space that a locked down kernel lets nobody write.
    fn locked_down(at: &Path, space: &[u8]) -> OwnedFd {
        let file = memfd_create(c"config", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        pwrite(&file, space, 0).unwrap();
        fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        fs::remove_file(at).unwrap();
        symlink(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)), at).unwrap();
        file
    }

    #[test]
    fn it_is_reset_when_it_is_taken_and_again_before_it_is_given_back() {
        let bus = Bus::new();
        fs::write(bus.path("resource0"), [0; 4096]).unwrap();
        let function = bus.open().unwrap();
        assert_eq!((bus.read("reset").as_str(), bus.may_do_dma()), ("1", false));
        assert_eq!((bus.read("driver_override").as_str(), bus.records()), ("bywash", 1));
        fs::write(bus.path("reset"), "").unwrap();
        drop(function);
        assert_eq!((bus.read("reset").as_str(), bus.may_do_dma()), ("1", false));
        assert_eq!((bus.read("driver_override").starts_with('\n'), bus.records()), (true, 0));
        // Some can't be reset.
        fs::remove_file(bus.path("reset")).unwrap();
        drop(bus.open().unwrap());
        assert_eq!((bus.path("reset").exists(), bus.records()), (false, 0));
    }

    #[test]
    fn what_cannot_be_used_is_given_back_at_once() {
        let bus = Bus::new();
        let begun = Instant::now();
        let error = bus.open().unwrap_err().to_string();
        assert!(error.starts_with("mapping its BAR 0: "), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(1), "nobody has it that would be waited for");
        assert!(!bus.may_do_dma());
        assert_eq!((bus.read("driver_override").starts_with('\n'), bus.records()), (true, 0));
    }

    #[test]
    fn a_kernel_that_is_locked_down_says_so_before_anything_is_changed() {
        let bus = Bus::new();
        let _config = locked_down(&bus.path("config"), &space());
        let error = bus.open().unwrap_err().to_string();
        assert!(error.contains("locked down (Secure Boot locks it)"), "{error}");
        assert_eq!(["driver_override", "reset"].map(|name| bus.read(name)), ["", ""]);
        assert_eq!(bus.records(), 0);
    }

    #[test]
    fn where_dma_is_off_it_is_not_switched_off_again() {
        let bus = Bus::new();
        let _config = locked_down(&bus.path("config"), &space());
        assert!(Config::open(&bus.device).unwrap().forbid_dma().is_err());
        let _config = locked_down(&bus.path("config"), &[0; 64]);
        Config::open(&bus.device).unwrap().forbid_dma().unwrap();
    }
}
