//! A modelled NIC behind a vfio-user socket, for guests (QEMU's `vfio-user-pci`) and for drivers in other processes.
//!
//! The protocol is the crate `vfio_user`'s. Every access is a message, so that all are seen in their order, unless pages are to
//! be mapped ([`Server::mapped`]); memory must come with a file, because the NIC cannot ask for bytes by message. The MSI-X table is the client's: vectors come as eventfds.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use bywash_hw::ixgbe::BAR_SIZE;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_MMAP,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info, vfio_region_sparse_mmap_area,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion, SparseArea};

use crate::config_space;
use crate::doorbells::{Doorbells, PAGES};
use crate::ixgbe::Board;
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
    /// There is no memory for pages that clients map.
    #[error("{}: pages to map: {source}", .path.display())]
    Pages {
        /// The socket's path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
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
    /// The file that the socket hands out by its number.
    _pages: Option<OwnedFd>,
}

impl Server {
    /// Offers device `index` of a world at `path`. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn new(path: &Path, world: &Shared, index: usize) -> Result<Self, ServeError> {
        Self::offer(path, world, index, None)
    }

    /// As [`Server::new`], but clients may map the [pages](crate::doorbells::PAGES) of the queues' registers. Faster, while
    /// [`Shared::run`] has a processor for itself; but the order of mapped writes and messages is no longer certain.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn mapped(path: &Path, world: &Shared, index: usize) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Pages { path: path.into(), source };
        let pages = world.with(index, |device| {
            if device.nic.board().is_virtual() {
                return Err(io::Error::other("a virtual function's registers are not in them"));
            }
            let pages = Doorbells::new(&device.nic)?;
            let file = pages.file().try_clone()?;
            device.doorbells = Some(pages);
            Ok(file)
        });
        Self::offer(path, world, index, Some(pages.map_err(failed)?))
    }

    fn offer(path: &Path, world: &Shared, index: usize, pages: Option<OwnedFd>) -> Result<Self, ServeError> {
        if let Ok(found) = path.symlink_metadata() {
            if !found.file_type().is_socket() || UnixStream::connect(path).is_ok() {
                return Err(ServeError::Exists(path.into()));
            }
            std::fs::remove_file(path).map_err(|_| ServeError::Exists(path.into()))?;
        }
        let failed = |source| ServeError::Socket { path: path.into(), source };
        let board = world.with(index, |device| device.nic.board());
        let regions = regions(board, pages.as_ref());
        let socket = vfio_user::Server::new(path, true, interrupts(board), regions).map_err(failed)?;
        Ok(Self {
            socket,
            path: path.into(),
            backend: Backend { world: world.clone(), index },
            _pages: pages,
        })
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

fn regions(board: Board, pages: Option<&OwnedFd>) -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                VFIO_PCI_BAR0_REGION_INDEX => board.bar_size().into(),
                VFIO_PCI_BAR4_REGION_INDEX => MSIX_BAR_SIZE,
                VFIO_PCI_CONFIG_REGION_INDEX => config_space::SIZE as u64,
                _ => 0,
            };
            let pages = pages.filter(|_| index == VFIO_PCI_BAR0_REGION_INDEX);
            let access = if size == 0 { 0 } else { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE };
            let flags = access | if pages.is_some() { VFIO_REGION_INFO_FLAG_MMAP } else { 0 };
            let sparse_areas = pages.iter().flat_map(|_| PAGES).map(|page| SparseArea {
                area: vfio_region_sparse_mmap_area {
                    offset: page.start.into(),
                    size: (page.end - page.start).into(),
                },
            });
            let argsz = u32::try_from(size_of::<vfio_region_info>()).unwrap_or(0);
            let region_info = vfio_region_info { argsz, flags, index, size, ..Default::default() };
            let mmap_fd = pages.map(AsRawFd::as_raw_fd);
            ServerRegion { region_info, sparse_areas: sparse_areas.collect(), mmap_fd }
        })
        .collect()
}

fn interrupts(board: Board) -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let msix = index == VFIO_PCI_MSIX_IRQ_INDEX;
            let (flags, count) = if msix { (VFIO_IRQ_INFO_EVENTFD, board.vectors()) } else { (0, 0) };
            IrqInfo { index, flags, count }
        })
        .collect()
}

/// What messages do.
struct Backend {
    world: Shared,
    index: usize,
}

/// Where the words lie that an access covers: one, or two for drivers that write a pair of registers at once.
///
/// Another access is no error of the protocol: a guest may do any, and a posted write must not be answered.
fn words(offset: u64, bytes: usize) -> Option<Range<u32>> {
    let end = u32::try_from(offset.checked_add(bytes as u64)?).ok().filter(|end| *end <= BAR_SIZE)?;
    let start = u32::try_from(offset).ok()?;
    (matches!(bytes, 4 | 8) && start.is_multiple_of(4)).then_some(start..end)
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        match region {
            VFIO_PCI_BAR0_REGION_INDEX => {
                self.world.with(self.index, |device| match words(offset, data.len()) {
                    Some(words) => {
                        for (at, word) in words.step_by(4).zip(data.as_chunks_mut().0) {
                            *word = device.nic.read32(at).to_le_bytes();
                        }
                    }
                    None => device.nic.misaccess(offset, data.len()),
                });
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
                self.world.with(self.index, |device| match words(offset, data.len()) {
                    Some(words) => {
                        for (at, word) in words.step_by(4).zip(data.as_chunks().0) {
                            device.nic.write32(at, u32::from_le_bytes(*word));
                        }
                    }
                    None => device.nic.misaccess(offset, data.len()),
                });
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
