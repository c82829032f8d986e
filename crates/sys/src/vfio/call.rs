//! VFIO's calls (`linux/vfio.h`), each as a function.
#![expect(unsafe_code, reason = "ioctl(2) takes a struct, a number or a text by its request")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `_IO(';', 100)`: requests are numbered from here.
const FIRST: libc::Ioctl = (b';' as libc::Ioctl) << 8 | 100;

/// The version of this interface.
const API_VERSION: u32 = 0;
/// An IOMMU that maps what it is told, and takes mappings back as they were made.
const TYPE1V2: usize = 3;
/// `VFIO_GROUP_FLAGS_VIABLE`.
const VIABLE: u32 = 1 << 0;
/// `VFIO_REGION_INFO_FLAG_MMAP`.
const MMAP: u32 = 1 << 2;
/// `VFIO_DMA_MAP_FLAG_READ` and `_WRITE`.
const READ_WRITE: u32 = 3;
/// `VFIO_PCI_MSIX_IRQ_INDEX`.
const MSIX: u32 = 2;
/// `VFIO_IRQ_SET_DATA_NONE`, `_DATA_EVENTFD` and `_ACTION_TRIGGER`.
const DATA_NONE: u32 = 1 << 0;
const DATA_EVENTFD: u32 = 1 << 2;
const TRIGGER: u32 = 1 << 5;

/// Most vectors of a function: what MSI-X has.
const MOST_VECTORS: usize = 2048;

/// Does one of VFIO's requests.
///
/// # Safety
/// `argument` is what the request takes: a number, or the address of what it reads and writes, as large as it takes it
/// to be and not used by anybody else for the time of the call.
unsafe fn call(file: BorrowedFd<'_>, request: libc::Ioctl, argument: usize) -> io::Result<u32> {
    // SAFETY: the caller promises what the request needs; the file is open as long as it is borrowed.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FIRST + request, argument) };
    u32::try_from(done).map_err(|_| io::Error::last_os_error())
}

/// Bytes of a structure, which stands in its first field.
#[expect(clippy::cast_possible_truncation, reason = "just found to be small")]
const fn size<T>() -> u32 {
    assert!(size_of::<T>() < 256, "VFIO's structures are small");
    size_of::<T>() as u32
}

/// Whether a container speaks this interface, with an IOMMU as we want it.
pub(super) fn container_is_right(container: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: VFIO_GET_API_VERSION takes nothing.
    let version = unsafe { call(container, 0, 0) }?;
    // SAFETY: VFIO_CHECK_EXTENSION takes a number.
    let extension = unsafe { call(container, 1, TYPE1V2) }?;
    Ok(version == API_VERSION && extension != 0)
}

/// Whether nobody but programs has functions of a group.
pub(super) fn group_is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = [size::<[u32; 2]>(), 0];
    // SAFETY: VFIO_GROUP_GET_STATUS writes a vfio_group_status, two 32-bit numbers of which the first is their size.
    unsafe { call(group, 3, (&raw mut status).expose_provenance()) }?;
    Ok(status[1] & VIABLE != 0)
}

/// Puts a group into a container, and gives the container its IOMMU.
pub(super) fn join(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let file: libc::c_int = container.as_raw_fd();
    // SAFETY: VFIO_GROUP_SET_CONTAINER reads an int.
    unsafe { call(group, 4, (&raw const file).expose_provenance()) }?;
    // SAFETY: VFIO_SET_IOMMU takes a number.
    unsafe { call(container, 2, TYPE1V2) }.map(|_| ())
}

/// Opens a function of a group, by its PCI address.
pub(super) fn device(group: BorrowedFd<'_>, address: &str) -> io::Result<OwnedFd> {
    let name = CString::new(address).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: VFIO_GROUP_GET_DEVICE_FD reads a text that ends with a zero.
    let file = unsafe { call(group, 6, name.as_ptr().expose_provenance()) }?;
    let file = libc::c_int::try_from(file).map_err(io::Error::other)?;
    // SAFETY: the call has just made this descriptor, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// A part of what a function's file shows: one of its BARs, or configuration space.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct RegionInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    cap_offset: u32,
    /// Bytes.
    pub(super) size: u64,
    /// Where it begins in the file.
    pub(super) offset: u64,
}

impl RegionInfo {
    /// Whether it may be mapped.
    pub(super) fn can_be_mapped(&self) -> bool {
        self.flags & MMAP != 0
    }
}

/// Where region `index` is.
pub(super) fn region(device: BorrowedFd<'_>, index: u32) -> io::Result<RegionInfo> {
    let mut info = RegionInfo { argsz: size::<RegionInfo>(), index, ..RegionInfo::default() };
    // SAFETY: VFIO_DEVICE_GET_REGION_INFO reads and writes a vfio_region_info, which `info` is, as its first field says.
    unsafe { call(device, 8, (&raw mut info).expose_provenance()) }?;
    Ok(info)
}

/// How many MSI-X vectors there are.
pub(super) fn vectors(device: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [size::<[u32; 4]>(), 0, MSIX, 0];
    // SAFETY: VFIO_DEVICE_GET_IRQ_INFO reads and writes a vfio_irq_info, four 32-bit numbers.
    unsafe { call(device, 9, (&raw mut info).expose_provenance()) }?;
    Ok(info[3])
}

/// Turns all MSI-X vectors off; an error when they are.
pub(super) fn vectors_off(device: BorrowedFd<'_>) -> io::Result<()> {
    let mut set = [size::<[u32; 5]>(), DATA_NONE | TRIGGER, MSIX, 0, 0];
    // SAFETY: VFIO_DEVICE_SET_IRQS reads a vfio_irq_set, five 32-bit numbers without data behind them.
    unsafe { call(device, 10, (&raw mut set).expose_provenance()) }.map(|_| ())
}

/// Makes MSI-X vectors from 0 on ring these bells. All at once: older kernels take no more once some are on.
pub(super) fn vectors_ring(device: BorrowedFd<'_>, bells: &[OwnedFd]) -> io::Result<()> {
    let count = u32::try_from(bells.len()).ok().filter(|_| bells.len() <= MOST_VECTORS);
    let count = count.ok_or(io::ErrorKind::InvalidInput)?;
    let bytes = size::<[u32; 5]>() + 4 * count;
    let mut set = vec![bytes, DATA_EVENTFD | TRIGGER, MSIX, 0, count];
    set.extend(bells.iter().map(|bell| bell.as_raw_fd().cast_unsigned()));
    // SAFETY: VFIO_DEVICE_SET_IRQS reads a vfio_irq_set with `count` descriptors behind it, as its first field says.
    unsafe { call(device, 10, set.as_mut_ptr().expose_provenance()) }.map(|_| ())
}

/// Resets a function.
pub(super) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: VFIO_DEVICE_RESET takes nothing.
    unsafe { call(device, 11, 0) }.map(|_| ())
}

#[repr(C)]
struct DmaMap {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

#[repr(C)]
struct DmaUnmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

/// Lets the functions of a container read and write memory of this process at `iova`. The kernel keeps its pages.
pub(super) fn map(container: BorrowedFd<'_>, address: u64, iova: u64, bytes: u64) -> io::Result<()> {
    let mut map = DmaMap { argsz: size::<DmaMap>(), flags: READ_WRITE, vaddr: address, iova, size: bytes };
    // SAFETY: VFIO_IOMMU_MAP_DMA reads a vfio_iommu_type1_dma_map, which `map` is. What devices may write there is shared
    // memory, of which no reference is made: see `DmaMemory`.
    unsafe { call(container, 13, (&raw mut map).expose_provenance()) }.map(|_| ())
}

/// Takes back what was mapped at `iova`.
pub(super) fn unmap(container: BorrowedFd<'_>, iova: u64, bytes: u64) -> io::Result<()> {
    let mut unmap = DmaUnmap { argsz: size::<DmaUnmap>(), flags: 0, iova, size: bytes };
    // SAFETY: VFIO_IOMMU_UNMAP_DMA reads and writes a vfio_iommu_type1_dma_unmap, which `unmap` is.
    unsafe { call(container, 14, (&raw mut unmap).expose_provenance()) }.map(|_| ())
}
