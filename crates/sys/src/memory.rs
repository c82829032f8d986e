//! Packet memory from the operating system: huge pages where there are some, ordinary ones with a warning elsewhere.
//!
//! The memory is a memfd, so that the same pages can be given to a device model or another process, is mapped at a
//! multiple of 2 MiB, present from the start, and is not seen by a forked child: a child that wrote to it would
//! otherwise take the pages along and leave the NIC writing to memory nobody reads.
#![expect(
    unsafe_code,
    reason = "mapping memory gives a raw pointer: this file turns it into `&mut [u8]` for the arena"
)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::state::{self, StateError, Undo};

/// Bytes in a huge page, and what all packet memory is aligned to.
pub const HUGE_PAGE: usize = 2 << 20;

/// What kind of pages packet memory is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Huge pages when enough are free, else ordinary ones and a warning.
    #[default]
    Auto,
    /// Huge pages, or an error.
    Require,
    /// Huge pages; those that are missing are asked of the kernel and given back at the end.
    Reserve,
    /// Ordinary pages, without a warning.
    Off,
}

impl HugePages {
    /// All of them, in the order a user would try them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Require, Self::Reserve, Self::Off];

    /// What it is called on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Require => "require",
            Self::Reserve => "reserve",
            Self::Off => "off",
        }
    }
}

/// Why there is no packet memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Huge pages were demanded and there are too few.
    #[error(
        "{wanted} huge pages of 2 MiB are needed and {free} are free{}: `echo {total} > {pool}`, or --huge-pages auto",
        on_node(*node)
    )]
    TooFewHugePages {
        /// Pages that are needed.
        wanted: usize,
        /// Pages that nobody has.
        free: usize,
        /// What the pool's size must become.
        total: usize,
        /// The file that says how many there are.
        pool: String,
        /// The NUMA node asked for.
        node: Option<u32>,
    },
    /// The machine does not have so much.
    #[error(
        "{bytes} bytes of packet memory are wanted and {available} are available: ask for less (--memory)"
    )]
    TooMuch {
        /// Bytes that were wanted.
        bytes: usize,
        /// Bytes that there are.
        available: usize,
    },
    /// The pool of huge pages could not be made larger.
    #[error("{source}: needs root")]
    Reserve {
        /// What failed.
        #[from]
        source: StateError,
    },
    /// The kernel did not find as many huge pages as it was asked for.
    #[error(
        "{wanted} more huge pages of 2 MiB are needed and the kernel finds {found}: memory is too fragmented or too \
         small; boot with hugepages={wanted}"
    )]
    NotFound {
        /// Pages that were asked for.
        wanted: usize,
        /// Pages that there were.
        found: u64,
    },
    /// The same, where a command could do without.
    #[error("{0}, or --huge-pages auto")]
    ReserveOrAuto(Box<Self>),
    /// A call failed.
    #[error("{bytes} bytes of packet memory: {what}: {source}: ask for less (--memory), or free some")]
    Map {
        /// Bytes that were wanted.
        bytes: usize,
        /// What failed.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl MemoryError {
    /// For commands whose `--huge-pages` takes `auto`.
    #[must_use]
    pub fn or_auto(self) -> Self {
        Self::ReserveOrAuto(Box::new(self))
    }
}

fn on_node(node: Option<u32>) -> String {
    node.map_or_else(String::new, |node| format!(" on NUMA node {node}"))
}

/// Memory for an arena of packets. It is unmapped when dropped; an arena never drops it.
#[derive(Debug)]
pub struct PacketMemory {
    base: NonNull<u8>,
    len: usize,
    huge: bool,
}

// SAFETY: the mapping belongs to the process and this is its only owner.
unsafe impl Send for PacketMemory {}

/// What [`allocate`] gives.
#[derive(Debug)]
pub struct Allocation {
    /// The memory.
    pub memory: PacketMemory,
    /// The memory's file, to be shared with a device model or another process.
    pub file: OwnedFd,
    /// What the user should know, with the cure: ordinary pages where huge ones were hoped for.
    pub warning: Option<String>,
    /// With [`HugePages::Reserve`]: what takes the added pages off the pool again. Keep it until the end; pages still in
    /// use then leave the pool when the process ends.
    pub reservation: Option<Undo>,
}

/// Packet memory that is mapped.
struct Mapped {
    base: usize,
    len: usize,
    file: OwnedFd,
}

impl Mapped {
    fn contains(&self, address: usize, len: usize) -> bool {
        address
            .checked_sub(self.base)
            .and_then(|from| from.checked_add(len))
            .is_some_and(|end| end <= self.len)
    }
}

/// All packet memory that is mapped: what may be registered with the kernel or a device.
static MAPPED: Mutex<Vec<Mapped>> = Mutex::new(Vec::new());

/// Whether the bytes are (part of) packet memory that is mapped now.
pub fn is_packet_memory(address: usize, len: usize) -> bool {
    let mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
    mapped.iter().any(|memory| memory.contains(address, len))
}

/// The file behind packet memory, and where in it `address` lies; `None` when these bytes are none.
pub fn file_of(address: usize, len: usize) -> Option<(OwnedFd, u64)> {
    let mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = mapped.iter().find(|memory| memory.contains(address, len))?;
    Some((memory.file.try_clone().ok()?, (address - memory.base) as u64))
}

/// Allocates at least `bytes` of packet memory, in whole huge pages' worth; on NUMA node `node` if it has room, when one
/// is named.
///
/// # Errors
/// [`MemoryError`], naming sizes and the cure.
pub fn allocate(bytes: usize, pages: HugePages, node: Option<u32>) -> Result<Allocation, MemoryError> {
    let too_much = || MemoryError::TooMuch { bytes, available: available() };
    let len = bytes.max(1).checked_next_multiple_of(HUGE_PAGE).ok_or_else(too_much)?;
    let wanted = len / HUGE_PAGE;
    let pool = Pool::of(node);
    let free = pool.free();
    let missing = wanted.saturating_sub(free);
    let too_few = || MemoryError::TooFewHugePages {
        wanted,
        free,
        total: pool.total() + missing,
        pool: pool.size_file().display().to_string(),
        node,
    };
    let mut reservation = None;
    match pages {
        HugePages::Require if missing > 0 => return Err(too_few()),
        HugePages::Reserve if missing > 0 => {
            reservation = Some(pool.reserve(missing).map_err(MemoryError::or_auto)?);
        }
        HugePages::Auto => {
            // Another process may take the free ones first: then it is as if there had been none.
            let huge = if missing == 0 { map(len, true, node).ok() } else { None };
            let (memory, file) = huge.map_or_else(|| map_ordinary(len, node), Ok)?;
            let warning = (!memory.huge).then(|| {
                let cure = too_few_hint(&too_few());
                format!(
                    "packet memory is made of 4 KiB pages: {cure} (or --huge-pages reserve; off is silent)"
                )
            });
            return Ok(Allocation { memory, file, warning, reservation });
        }
        HugePages::Off | HugePages::Require | HugePages::Reserve => {}
    }
    let (memory, file) =
        if pages == HugePages::Off { map_ordinary(len, node) } else { map(len, true, node) }?;
    Ok(Allocation { memory, file, warning: None, reservation })
}

/// How many huge pages the machine lacks for so many bytes.
pub fn missing_huge_pages(bytes: usize) -> usize {
    bytes.div_ceil(HUGE_PAGE).saturating_sub(Pool::of(None).free())
}

/// Adds huge pages to the machine's pool until the [`Undo`] is dropped.
///
/// # Errors
/// [`MemoryError::NotFound`] when the kernel does not find so many; then the pool is as it was.
pub fn add_huge_pages(count: usize) -> Result<Undo, MemoryError> {
    Pool::of(None).reserve(count)
}

/// The cure alone, without the alternatives that are none when huge pages were not demanded.
fn too_few_hint(error: &MemoryError) -> String {
    match error {
        MemoryError::TooFewHugePages { wanted, free, total, pool, .. } => {
            format!("{wanted} huge pages of 2 MiB are needed and {free} are free: `echo {total} > {pool}`")
        }
        other => other.to_string(),
    }
}

/// The kernel's pool of huge pages, of the machine or of one node.
struct Pool(PathBuf);

impl Pool {
    fn of(node: Option<u32>) -> Self {
        Self(match node {
            None => "/sys/kernel/mm/hugepages/hugepages-2048kB".into(),
            Some(node) => format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB").into(),
        })
    }

    fn size_file(&self) -> PathBuf {
        self.0.join("nr_hugepages")
    }

    /// Pages in it; 0 also on a kernel without huge pages.
    fn total(&self) -> usize {
        read_number(&self.size_file()).unwrap_or(0)
    }

    /// Pages that nobody has or was promised. Only the machine's pool counts promises.
    fn free(&self) -> usize {
        let promised = read_number(&self.0.join("resv_hugepages")).unwrap_or(0);
        read_number(&self.0.join("free_hugepages")).unwrap_or(0).saturating_sub(promised)
    }

    /// Makes it larger. The kernel gives as many as it can find and calls that a success.
    fn reserve(&self, missing: usize) -> Result<Undo, MemoryError> {
        let undo = state::add_to_file(self.size_file(), missing as u64)?;
        match undo.added() {
            found if found < missing as u64 => Err(MemoryError::NotFound { wanted: missing, found }),
            _ => Ok(undo),
        }
    }
}

fn read_number(file: &std::path::Path) -> io::Result<usize> {
    std::fs::read_to_string(file)?.trim().parse().map_err(io::Error::other)
}

impl PacketMemory {
    /// Whether its pages are huge.
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    /// Bytes in it.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

impl AsMut<[u8]> for PacketMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: `map` mapped `len` readable, writable, zeroed bytes here, which `self` alone owns; the kernel and
        // devices write only to chunks they were lent, which the arena's owner does not touch meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for PacketMemory {
    fn drop(&mut self) {
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.retain(|memory| memory.base != self.base.as_ptr().addr());
        // SAFETY: `map` mapped exactly this range and `self` owns it, so no reference to it is left. Whom the kernel was
        // told about it has pinned the pages themselves.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Ordinary pages, when the machine has them: getting more than that would make the kernel end some process for it.
fn map_ordinary(len: usize, node: Option<u32>) -> Result<(PacketMemory, OwnedFd), MemoryError> {
    let available = available();
    if len > available {
        return Err(MemoryError::TooMuch { bytes: len, available });
    }
    map(len, false, node)
}

/// Bytes that programs can have without others losing theirs; everything when the kernel does not say.
fn available() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok());
    kibibytes.map_or(usize::MAX, |n| n.saturating_mul(1024))
}

fn map(len: usize, huge: bool, node: Option<u32>) -> Result<(PacketMemory, OwnedFd), MemoryError> {
    let failed = |what| move |source| MemoryError::Map { bytes: len, what, source };
    let file = memory_file(c"bywash-packets", huge).map_err(failed("making its file"))?;
    let size = libc::off_t::try_from(len).map_err(|error| failed("sizing it")(io::Error::other(error)))?;
    // SAFETY: ftruncate(2) takes no address.
    checked(unsafe { libc::ftruncate(file.as_raw_fd(), size) }).map_err(failed("sizing it"))?;
    let memory = map_aligned(len, huge, file.as_fd()).map_err(failed("mapping it"))?;
    if let Some(node) = node {
        prefer_node(&memory, node).map_err(failed("placing it on its NUMA node"))?;
    }
    let (address, len) = (memory.base.as_ptr().cast(), memory.len);
    // SAFETY: the range is mapped by us and this only fills it in.
    match checked(unsafe { libc::madvise(address, len, libc::MADV_POPULATE_WRITE) }) {
        // Before Linux 5.14 there is no such advice: pages come when first touched.
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
            return Err(failed("getting its pages")(error));
        }
        _ => {}
    }
    // SAFETY: the range is mapped by us; a child without it is what is wanted.
    checked(unsafe { libc::madvise(address, len, libc::MADV_DONTFORK) })
        .map_err(failed("keeping it from children"))?;
    Ok((memory, file))
}

fn memory_file(name: &CStr, huge: bool) -> io::Result<OwnedFd> {
    let pages = if huge { libc::MFD_HUGETLB | libc::MFD_HUGE_2MB } else { 0 };
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | pages) };
    checked(fd)?;
    // SAFETY: the descriptor was just opened and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Maps the file at a multiple of [`HUGE_PAGE`]: within a larger range that is taken first and given back around it.
fn map_aligned(len: usize, huge: bool, file: BorrowedFd<'_>) -> io::Result<PacketMemory> {
    let room = len + HUGE_PAGE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel chooses a free range.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, private, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    let base = start.wrapping_byte_add(before);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: `base..base + len` lies within the range just taken, so MAP_FIXED replaces only that.
    let mapped =
        unsafe { libc::mmap(base, len, access, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        // SAFETY: the range was taken above and nothing in it is used.
        unsafe { libc::munmap(start, room) };
        return Err(error);
    }
    let (after, rest) = (base.wrapping_byte_add(len), HUGE_PAGE - before);
    for (unused, len) in [(start, before), (after, rest)] {
        if len > 0 {
            // SAFETY: what lies around the mapping is of the range taken above and nobody uses it.
            unsafe { libc::munmap(unused, len) };
        }
    }
    let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    let memory = PacketMemory { base, len, huge };
    let mapped = Mapped { base: base.as_ptr().addr(), len, file: file.try_clone_to_owned()? };
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner).push(mapped);
    Ok(memory)
}

/// `MPOL_PREFERRED`: from that node while it has pages, else from another.
const PREFERRED: libc::c_long = 1;

fn prefer_node(memory: &PacketMemory, node: u32) -> io::Result<()> {
    let mut mask = [0_u64; 16];
    let word = mask.get_mut(node as usize / 64).ok_or(io::ErrorKind::InvalidInput)?;
    *word = 1 << (node % 64);
    let bits = mask.len() * 64;
    // SAFETY: the range is mapped by us, the mask has as many bits as are named, and both live through the call.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, memory.base.as_ptr(), memory.len, PREFERRED, mask.as_ptr(), bits, 0)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_memory_is_aligned_zeroed_and_known_while_it_lives() {
        let mut allocation = allocate(3 << 20, HugePages::Off, None).unwrap();
        assert!(allocation.warning.is_none() && allocation.reservation.is_none());
        assert!(!allocation.memory.is_huge());
        let bytes = allocation.memory.as_mut();
        assert_eq!(bytes.len(), 4 << 20);
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(7);
        let (address, len) = (bytes.as_ptr().addr(), bytes.len());
        assert_eq!(address % HUGE_PAGE, 0);
        assert!(is_packet_memory(address, len));
        assert!(is_packet_memory(address + 4096, len - 4096));
        assert!(!is_packet_memory(address + 4096, len));
        assert!(!is_packet_memory(address - 1, 1));
        assert!(!is_packet_memory(address, usize::MAX));
        drop(allocation.memory);
        assert!(!is_packet_memory(address, len));
    }

    #[test]
    fn auto_warns_when_it_falls_back_and_require_refuses() {
        // More than any machine has: 1 TiB of huge pages.
        let error = allocate(1 << 40, HugePages::Require, None).unwrap_err().to_string();
        assert!(error.starts_with("524288 huge pages of 2 MiB are needed"), "{error}");
        assert!(error.contains("nr_hugepages`"), "{error}");

        let small = allocate(1, HugePages::Auto, None).unwrap();
        assert_eq!(small.memory.is_huge(), small.warning.is_none());
        if let Some(warning) = small.warning {
            assert!(warning.contains("4 KiB pages") && warning.contains("echo"), "{warning}");
        }
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_it_is_taken() {
        for bytes in [1 << 50, usize::MAX] {
            for pages in [HugePages::Auto, HugePages::Off] {
                let error = allocate(bytes, pages, None).unwrap_err();
                assert!(matches!(error, MemoryError::TooMuch { .. }), "{error}");
            }
        }
    }

    #[test]
    fn memory_can_be_placed_on_a_node() {
        // Every machine has node 0, unless its kernel knows no nodes at all: then it is the same memory.
        match allocate(1, HugePages::Off, Some(0)) {
            Ok(allocation) => assert_eq!(allocation.memory.bytes(), HUGE_PAGE),
            Err(MemoryError::Map { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::ENOSYS)),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn the_file_shares_the_same_bytes() {
        let mut allocation = allocate(1, HugePages::Off, None).unwrap();
        allocation.memory.as_mut()[5] = 0x55;
        let other = crate::shared::Mapping::of_file(allocation.file.as_fd(), 0, 4096).unwrap();
        assert_eq!(crate::shared::Slots::<u8>::new(&other, 0, 8).unwrap().read(5), 0x55);
        let address = allocation.memory.as_mut().as_ptr().addr();
        let (file, offset) = file_of(address + 4096, 4096).unwrap();
        assert_eq!(offset, 4096);
        let other = crate::shared::Mapping::of_file(file.as_fd(), 0, 4096).unwrap();
        assert_eq!(other.read::<u8>(5), Some(0x55));
        assert!(file_of(address + 4096, HUGE_PAGE).is_none());
    }
}
