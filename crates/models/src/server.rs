//! A modelled NIC behind a vfio-user socket, for guests (QEMU's `vfio-user-pci`) and for drivers in other processes.
//!
//! The protocol is the crate `vfio_user`'s. Every access is a message, so that all are seen in their order; memory must come
//! with a file, because the NIC cannot ask for bytes by message. The MSI-X table is the client's: vectors come as eventfds.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use bywash_hw::ixgbe::{BAR_SIZE, VECTORS};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion};

use crate::config_space;
use crate::world::Shared;

/// Bytes of BAR 4, where the MSI-X table lies.
const MSIX_BAR_SIZE: u64 = 0x4000;

/// Why a NIC cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Something else has the name.
    #[error("{}: exists and is no socket that was left behind: name another", .0.display())]
    Exists(PathBuf),
    /// A client sent what is no message of the protocol.
    #[error("{}: a client sent a malformed message", .0.display())]
    Malformed(PathBuf),
    /// The socket could not be made or waited on.
    #[error("{}: {source}", .path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: vfio_user::Error,
    },
}

/// A socket that clients can come to, one after the other.
#[expect(missing_debug_implementations, reason = "the library's server has none")]
pub struct Server {
    socket: vfio_user::Server,
    path: PathBuf,
    backend: Backend,
}

impl Server {
    /// Offers device `index` of a world at `path`. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn new(path: &Path, world: &Shared, index: usize) -> Result<Self, ServeError> {
        if let Ok(found) = path.symlink_metadata() {
            if !found.file_type().is_socket() || UnixStream::connect(path).is_ok() {
                return Err(ServeError::Exists(path.into()));
            }
            std::fs::remove_file(path).map_err(|_| ServeError::Exists(path.into()))?;
        }
        let failed = |source| ServeError::Socket { path: path.into(), source };
        let socket = vfio_user::Server::new(path, true, interrupts(), regions()).map_err(failed)?;
        Ok(Self { socket, path: path.into(), backend: Backend { world: world.clone(), index } })
    }

    /// Waits for a client and serves it until it goes; then the NIC is as after power-on.
    ///
    /// # Errors
    /// When the socket fails, or the client breaks the protocol.
    pub fn serve(&mut self) -> Result<(), ServeError> {
        // The library asserts on some malformed messages: that must end one client's session, not the server.
        let session = AssertUnwindSafe(|| self.socket.run(&mut self.backend));
        let result = catch_unwind(session);
        self.backend.world.with(self.backend.index, |device| {
            device.reset();
            device.vectors.clear();
            device.maps.clear();
        });
        match result {
            Ok(result) => result.map_err(|source| ServeError::Socket { path: self.path.clone(), source }),
            Err(_) => Err(ServeError::Malformed(self.path.clone())),
        }
    }
}

fn regions() -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                VFIO_PCI_BAR0_REGION_INDEX => u64::from(BAR_SIZE),
                VFIO_PCI_BAR4_REGION_INDEX => MSIX_BAR_SIZE,
                VFIO_PCI_CONFIG_REGION_INDEX => config_space::SIZE as u64,
                _ => 0,
            };
            let flags = if size == 0 { 0 } else { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE };
            let argsz = u32::try_from(size_of::<vfio_region_info>()).unwrap_or(0);
            let region_info = vfio_region_info { argsz, flags, index, size, ..Default::default() };
            ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
        })
        .collect()
}

fn interrupts() -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let msix = index == VFIO_PCI_MSIX_IRQ_INDEX;
            let (flags, count) = if msix { (VFIO_IRQ_INFO_EVENTFD, VECTORS) } else { (0, 0) };
            IrqInfo { index, flags, count }
        })
        .collect()
}

/// What messages do.
struct Backend {
    world: Shared,
    index: usize,
}

/// Registers are words of 32 bits, and nothing else is answered.
fn word(offset: u64, bytes: usize) -> io::Result<u32> {
    let offset = u32::try_from(offset)
        .ok()
        .filter(|offset| bytes == 4 && offset.is_multiple_of(4) && *offset < BAR_SIZE);
    offset.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        match region {
            VFIO_PCI_BAR0_REGION_INDEX => {
                let at = word(offset, data.len())?;
                let value = self.world.with(self.index, |device| device.nic.read32(at));
                data.copy_from_slice(&value.to_le_bytes());
                Ok(())
            }
            VFIO_PCI_CONFIG_REGION_INDEX => {
                self.world.with(self.index, |device| device.read_config(offset, data))
            }
            // The table is the client's own.
            VFIO_PCI_BAR4_REGION_INDEX => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_BAR0_REGION_INDEX => {
                let at = word(offset, data.len())?;
                let value = u32::from_le_bytes(data.try_into().map_err(|_| io::ErrorKind::InvalidInput)?);
                self.world.with(self.index, |device| device.nic.write32(at, value));
                Ok(())
            }
            VFIO_PCI_CONFIG_REGION_INDEX => {
                self.world.with(self.index, |device| device.write_config(offset, data))
            }
            VFIO_PCI_BAR4_REGION_INDEX => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        let file = file.as_ref().map(|file| (file.as_fd(), offset));
        let may = (flags.contains(DmaMapFlags::READ), flags.contains(DmaMapFlags::WRITE));
        self.world.with(self.index, |device| device.maps.map(address, size, file, may))
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.world.with(self.index, |device| {
            if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
                device.maps.clear();
                return Ok(());
            }
            device.maps.unmap(address, size)
        })
    }

    fn reset(&mut self) -> io::Result<()> {
        self.world.with(self.index, |device| device.reset());
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX || flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            return Ok(());
        }
        self.world.with(self.index, |device| {
            if count == 0 {
                device.vectors.clear();
            }
            if flags & VFIO_IRQ_SET_DATA_EVENTFD == 0 { Ok(()) } else { device.vectors.set(start, files) }
        })
    }
}
