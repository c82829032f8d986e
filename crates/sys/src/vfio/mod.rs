//! A PCI function taken from the kernel's driver, behind an IOMMU: `pci:0000:03:00.0`.
//!
//! The IOMMU lets the function reach what was mapped for it and nothing else, so that a wrong address in a driver is an error
//! of the device's and not somebody else's memory. When the last handle to the function is gone, or the process has
//! ended, the kernel resets it; who had it before has it again then, at the latest after `bywash cleanup`.
//!
//! Memory is mapped at multiples of 2 MiB and lies at such in the process: of huge pages the kernel makes entries of 2 MiB in
//! the IOMMU, which it can keep at hand where those of 4 KiB would be too many.

mod call;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::function::{DeviceAddresses, DmaMemory, Function, FunctionError};
use crate::mapped_registers::MappedRegisters;
use crate::memory::HUGE_PAGE;
use crate::pci::{BUS_MASTER, COMMAND, Device, InUse, NO_IOMMU_CURE, VFIO};
use crate::shared::Mapping;
use crate::state::{self, StateError, Undo};

/// VFIO's own file.
const CONTAINER: &str = "/dev/vfio/vfio";

/// Regions of a PCI function.
const BAR0: u32 = 0;
const CONFIG: u32 = 7;

/// Addresses that the function is given begin here: above those at which interrupts are written.
const FIRST_ADDRESS: u64 = 1 << 32;

/// Why a function could not be taken. It has the driver that it had.
#[derive(Debug, thiserror::Error)]
pub enum VfioError {
    /// It is in use.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// There is no IOMMU.
    #[error(
        "it is in no IOMMU group, so nothing would keep it from other memory: {NO_IOMMU_CURE}; or take that risk with --no-iommu"
    )]
    NoIommu,
    /// Its group has others in it.
    #[error(
        "the IOMMU cannot tell it from {members}, in group {group}: take those from their drivers too, or use another slot"
    )]
    Group {
        /// The group's number.
        group: u32,
        /// Who is in it.
        members: String,
    },
    /// The kernel's part is missing.
    #[error("the kernel's driver vfio-pci is not loaded: modprobe vfio-pci")]
    NoDriver,
    /// The kernel's part cannot map memory.
    #[error("this kernel's VFIO has no IOMMU of type 1, version 2: modprobe vfio_iommu_type1")]
    NoType1,
    /// One of VFIO's files can't be opened.
    #[error("can't open {file}: {source}{}", cure(.source))]
    Open {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// The group was not given to us although nothing is in the way.
    #[error("the kernel keeps IOMMU group {0} from programs; dmesg may say why")]
    NotViable(u32),
    /// One of VFIO's calls failed.
    #[error("{what}: {source}")]
    Call {
        /// What was to be done.
        what: &'static str,
        /// Why it was not.
        source: io::Error,
    },
    /// BAR 0 cannot be mapped.
    #[error("its BAR 0 is no memory that can be mapped")]
    NoBar,
    /// It was not taken from its driver.
    #[error(transparent)]
    State(#[from] StateError),
}

fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ": it needs root, or the right to this file",
        io::ErrorKind::ResourceBusy => ": another program has a device of its group",
        io::ErrorKind::NotFound => ": modprobe vfio-pci, or give the container this file",
        _ => "",
    }
}

/// A function behind VFIO.
#[derive(Debug)]
pub struct Vfio {
    name: String,
    held: Arc<Held>,
    config: call::RegionInfo,
    /// What is mapped: address and bytes.
    maps: Vec<(u64, u64)>,
    next: u64,
    vectors: u32,
    ringing: bool,
}

/// What must stay as long as anybody can reach the function. The kernel waits for all of its files to be closed before it
/// gives it back, so that comes last.
#[derive(Debug)]
struct Held {
    bar: Arc<Mapping>,
    device: OwnedFd,
    _group: File,
    container: File,
    _driver: Undo,
}

fn open(path: &Path) -> Result<File, VfioError> {
    let open = OpenOptions::new().read(true).write(true).open(path);
    open.map_err(|source| VfioError::Open { file: path.display().to_string(), source })
}

impl Vfio {
    /// Takes a function from the kernel's driver; `name` is what the user calls it. With `force`, although its interface is in
    /// use.
    ///
    /// # Errors
    /// [`VfioError`]: what is missing, or in the way.
    pub fn open(device: &Device, name: &str, force: bool) -> Result<Self, VfioError> {
        let group = device.group().ok_or(VfioError::NoIommu)?;
        let in_the_way = group.in_the_way(std::slice::from_ref(device));
        if !in_the_way.is_empty() {
            let members = in_the_way.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(VfioError::Group { group: group.number(), members });
        }
        device.check_unused(force)?;
        if !device.is_loaded(VFIO) {
            return Err(VfioError::NoDriver);
        }
        let container = open(Path::new(CONTAINER))?;
        let failed = |what| move |source| VfioError::Call { what, source };
        if !call::container_is_right(container.as_fd()).map_err(failed("asking VFIO for its version"))? {
            return Err(VfioError::NoType1);
        }
        let driver = state::set_driver(device, Some(VFIO))?;
        let file = open(&group.file())?;
        if !call::group_is_viable(file.as_fd()).map_err(failed("asking for the IOMMU group's state"))? {
            return Err(VfioError::NotViable(group.number()));
        }
        call::join(file.as_fd(), container.as_fd()).map_err(failed("giving the IOMMU group its mappings"))?;
        let address = device.address().to_string();
        let opened = call::device(file.as_fd(), &address).map_err(failed("opening the device by VFIO"))?;
        let asked = failed("asking VFIO what the device has");
        let region = |index| call::region(opened.as_fd(), index);
        let (bar, config) = (region(BAR0).map_err(asked)?, region(CONFIG).map_err(asked)?);
        let vectors = call::vectors(opened.as_fd()).map_err(asked)?;
        let bytes = usize::try_from(bar.size).ok().filter(|bytes| *bytes > 0 && bar.can_be_mapped());
        let bytes = bytes.ok_or(VfioError::NoBar)?;
        let bar = Mapping::of_file(opened.as_fd(), bar.offset, bytes).map_err(failed("mapping BAR 0"))?;
        let held = Held { bar, device: opened, _group: file, container, _driver: driver };
        let (name, held) = (name.into(), Arc::new(held));
        Ok(Self { name, held, config, maps: Vec::new(), next: FIRST_ADDRESS, vectors, ringing: false })
    }

    /// Where in the device's file `bytes` of configuration space from `offset` on lie.
    fn config_at(&self, offset: u64, bytes: usize) -> io::Result<u64> {
        let inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= self.config.size);
        if inside { Ok(self.config.offset + offset) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn config_error(&self, offset: u64, source: io::Error) -> FunctionError {
        FunctionError::Config { function: self.name.clone(), offset, source }
    }

    fn ring(&mut self, count: u16) -> io::Result<Vec<OwnedFd>> {
        if u32::from(count) > self.vectors {
            return Err(io::Error::other(format!("the device has {}", self.vectors)));
        }
        if std::mem::take(&mut self.ringing) {
            call::vectors_off(self.held.device.as_fd())?;
        }
        let make = |_| Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bells: Vec<OwnedFd> = (0..count).map(make).collect::<io::Result<_>>()?;
        if count > 0 {
            call::vectors_ring(self.held.device.as_fd(), &bells)?;
            self.ringing = true;
        }
        Ok(bells)
    }

    /// No DMA any more.
    fn quiet(&mut self) -> Result<(), FunctionError> {
        let mut command = [0; 2];
        self.read_config(COMMAND, &mut command)?;
        let off = u16::from_le_bytes(command) & !BUS_MASTER;
        self.write_config(COMMAND, &off.to_le_bytes())
    }
}

/// Whole, or an error.
fn whole(done: usize, wanted: usize) -> io::Result<()> {
    if done == wanted { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

impl Function for Vfio {
    type Registers = MappedRegisters;

    fn name(&self) -> &str {
        &self.name
    }

    fn registers(&self) -> MappedRegisters {
        MappedRegisters::new(&self.held.bar, self.held.clone())
    }

    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError> {
        let wanted = to.len();
        let read = self
            .config_at(offset, wanted)
            .and_then(|at| whole(rustix::io::pread(&self.held.device, to, at)?, wanted));
        read.map_err(|source| self.config_error(offset, source))
    }

    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), FunctionError> {
        let written = self
            .config_at(offset, from.len())
            .and_then(|at| whole(rustix::io::pwrite(&self.held.device, from, at)?, from.len()));
        written.map_err(|source| self.config_error(offset, source))
    }

    fn map(&mut self, memory: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError> {
        let (iova, bytes) = (self.next, memory.bytes as u64);
        let mapped = call::map(self.held.container.as_fd(), memory.address as u64, iova, bytes);
        mapped.map_err(|error| FunctionError::Map {
            function: self.name.clone(),
            bytes: memory.bytes,
            source: match error.raw_os_error() {
                Some(libc::ENOMEM) => io::Error::other("more than this user may keep in memory (ulimit -l)"),
                _ => error,
            },
        })?;
        self.maps.push((iova, bytes));
        self.next = (iova + bytes).next_multiple_of(HUGE_PAGE as u64);
        Ok(DeviceAddresses::Linear(iova))
    }

    fn unmap(&mut self, address: u64) -> Result<(), FunctionError> {
        let at = self.maps.iter().position(|(first, _)| *first == address);
        let (bytes, result) = match at.map(|at| self.maps.swap_remove(at)) {
            Some((address, bytes)) => (bytes, call::unmap(self.held.container.as_fd(), address, bytes)),
            None => (0, Err(io::ErrorKind::NotFound.into())),
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        result.map_err(|source| FunctionError::Map { function: self.name.clone(), bytes, source })
    }

    fn interrupts(&mut self, count: u16) -> Result<Vec<OwnedFd>, FunctionError> {
        self.ring(count).map_err(|source| FunctionError::Interrupts {
            function: self.name.clone(),
            wanted: count,
            source,
        })
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        self.interrupts(0)?;
        let failed = |source| FunctionError::Reset { function: self.name.clone(), source };
        call::reset(self.held.device.as_fd()).map_err(failed)?;
        // The kernel puts configuration space back as it was before.
        self.quiet()
    }
}

impl Drop for Vfio {
    /// No DMA and no interrupt comes from here on, also when handles to its registers live on.
    fn drop(&mut self) {
        self.quiet().ok();
        self.interrupts(0).ok();
        for (address, bytes) in std::mem::take(&mut self.maps) {
            call::unmap(self.held.container.as_fd(), address, bytes).ok();
        }
    }
}
