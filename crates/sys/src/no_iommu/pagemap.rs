//! Physical addresses of huge pages, from `/proc/self/pagemap` (the kernel's admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::fstatfs;

use crate::function::DmaMemory;
use crate::memory::HUGE_PAGE;

/// `HUGETLBFS_MAGIC` (linux/magic.h): what fstatfs(2) calls the file system of a memfd of huge pages.
const HUGETLBFS: u32 = 0x9584_58f6;

/// Bytes of an entry.
const ENTRY: usize = 8;

/// Bits of one: the page's number, and that it is there.
const NUMBER: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;

/// Why there are no physical addresses that a device could use.
#[derive(Debug, thiserror::Error)]
pub enum PhysicalError {
    /// Ordinary pages lie anywhere, and move.
    #[error(
        "without an IOMMU it must be of huge pages of 2 MiB, and this is not: `bywash setup` first, or --huge-pages reserve"
    )]
    Ordinary,
    /// The kernel does not tell.
    #[error("the kernel hides physical addresses from this user: it needs root (CAP_SYS_ADMIN)")]
    Hidden,
    /// The page has no place in memory.
    #[error("the page at {0:#x} is not in memory")]
    Absent(usize),
    /// They can't be asked for.
    #[error("can't ask for physical addresses: {0}")]
    Read(#[from] io::Error),
}

/// Where in physical memory each huge page of `memory` begins, in the order of the memory. They stay there until somebody has the
/// kernel move them (migratepages(8), taking a memory module out): what is in use is not swapped out.
pub(super) fn huge_pages(memory: &DmaMemory<'_>) -> Result<Vec<u64>, PhysicalError> {
    let kind = fstatfs(memory.file).map_err(io::Error::from)?;
    let is_huge = u32::try_from(kind.f_type).is_ok_and(|kind| kind == HUGETLBFS)
        && usize::try_from(kind.f_bsize).is_ok_and(|bytes| bytes == HUGE_PAGE);
    if !is_huge || !memory.address.is_multiple_of(HUGE_PAGE) {
        return Err(PhysicalError::Ordinary);
    }
    let map = File::open("/proc/self/pagemap")?;
    // Ordinary pages have an entry each, also within a huge one.
    let page = rustix::param::page_size();
    let pages = (memory.address..memory.address + memory.bytes).step_by(HUGE_PAGE);
    pages
        .map(|address| {
            let mut entry = [0; ENTRY];
            map.read_exact_at(&mut entry, (address / page * ENTRY) as u64)?;
            physical(u64::from_ne_bytes(entry), address, page)
        })
        .collect()
}

/// What an entry says of the page at an address of this process.
fn physical(entry: u64, address: usize, page: usize) -> Result<u64, PhysicalError> {
    if entry & PRESENT == 0 {
        return Err(PhysicalError::Absent(address));
    }
    match (entry & NUMBER) * page as u64 {
        0 => Err(PhysicalError::Hidden),
        // Of a huge page the first part was asked for.
        first if !first.is_multiple_of(HUGE_PAGE as u64) => Err(PhysicalError::Ordinary),
        first => Ok(first),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::{HugePages, allocate};

    #[test]
    fn an_entry_says_where_a_page_is() {
        let soft_dirty_and_shared = 1 << 55 | 1 << 61;
        let physical = |entry, address| physical(entry, address, 4096);
        assert_eq!(physical(PRESENT | soft_dirty_and_shared | 0x1234_5600, 0).unwrap(), 0x123_4560_0000);
        assert!(matches!(physical(PRESENT, 0), Err(PhysicalError::Hidden)));
        assert!(matches!(physical(0x200, 0x7000), Err(PhysicalError::Absent(0x7000))));
        assert!(matches!(physical(PRESENT | 0x201, 0), Err(PhysicalError::Ordinary)));
    }

    #[test]
    fn ordinary_pages_are_refused() {
        let mut allocation = allocate(1, HugePages::Off, None).unwrap();
        let bytes = allocation.memory.as_mut();
        let (address, bytes) = (bytes.as_ptr().addr(), bytes.len());
        let memory = DmaMemory { address, bytes, file: allocation.file.as_fd(), offset: 0 };
        assert!(matches!(huge_pages(&memory), Err(PhysicalError::Ordinary)));
    }
}
