//! Memory that one process writes and another one reads: a sealed memfd, handed over as a file descriptor.
//!
//! Each side makes a region of its own and maps the other's read-only, so nobody can change what is somebody else's. The
//! seals are what makes it safe to look: the size cannot change any more, so no byte of the mapping can vanish, and the
//! one who reads can map it in no other way.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};

use crate::shared::Mapping;

/// `TMPFS_MAGIC` of `linux/magic.h`: what a memfd of ordinary pages lies on.
const TMPFS: i64 = 0x0102_1994;

/// A region of our own: we write, others read.
#[derive(Debug)]
pub struct Region {
    file: OwnedFd,
    mapping: Arc<Mapping>,
}

impl Region {
    /// `len` zeroed bytes, present from the start.
    ///
    /// # Errors
    /// When there is not so much memory, or no descriptor is left.
    pub fn new(len: usize) -> io::Result<Self> {
        let file = memfd_create(c"bywash region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        // Before the seals: from then on nobody maps it writable, not even we.
        let mapping = Mapping::of_file(file.as_fd(), 0, len)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        Ok(Self { file, mapping })
    }

    /// Its memory.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

impl AsFd for Region {
    /// What the other side gets.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Why what another process handed over is not looked at.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// It could vanish under our eyes: no memfd of ordinary pages, or one that can be shortened.
    #[error("it is no memory file whose size is sealed")]
    Unsealed,
    /// It is not as large as was said.
    #[error("it has {is} bytes and should have {should}")]
    Size {
        /// Its size in bytes.
        is: u64,
        /// What was said.
        should: usize,
    },
    /// The kernel does not map it.
    #[error("it can't be mapped: {0}")]
    Map(#[from] io::Error),
}

/// Maps a region of another process's, which must have `len` bytes, to be read.
///
/// # Errors
/// When reading it could do us harm, or it is another size.
pub fn watch(file: BorrowedFd<'_>, len: usize) -> Result<Arc<Mapping>, RegionError> {
    // Huge pages of another's can be missing when they are touched, which ends the process; files on disks likewise.
    let on_tmpfs = fstatfs(file).is_ok_and(|fs| fs.f_type == TMPFS);
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    if !on_tmpfs || !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(fixed)) {
        return Err(RegionError::Unsealed);
    }
    let is = fstat(file).map_err(io::Error::from)?.st_size.cast_unsigned();
    if is != len as u64 {
        return Err(RegionError::Size { is, should: len });
    }
    Ok(Mapping::read_only(file, 0, len)?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::shared::Word;

    #[test]
    fn what_one_writes_the_other_reads_and_cannot_change() {
        let region = Region::new(4096).unwrap();
        let seen = watch(region.as_fd(), 4096).unwrap();
        Word::u32_at(region.mapping(), 8).unwrap().store(5, Relaxed);
        assert_eq!(Word::watch(&seen, 8).unwrap().load(), 5);
        assert!(Mapping::of_file(region.as_fd(), 0, 4096).is_err(), "mapped writable a second time");
        assert!(rustix::io::pwrite(&region, b"x", 0).is_err());
        assert!(ftruncate(&region, 0).is_err());
    }

    #[test]
    fn what_could_vanish_is_not_mapped() {
        let region = Region::new(4096).unwrap();
        assert!(matches!(watch(region.as_fd(), 8192), Err(RegionError::Size { is: 4096, should: 8192 })));
        let open = memfd_create(c"unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert!(matches!(watch(open.as_fd(), 4096), Err(RegionError::Unsealed)));
        fcntl_add_seals(&open, SealFlags::GROW).unwrap();
        assert!(matches!(watch(open.as_fd(), 4096), Err(RegionError::Unsealed)), "it can be shortened");
        fcntl_add_seals(&open, SealFlags::SHRINK).unwrap();
        assert!(watch(open.as_fd(), 4096).is_ok());
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(matches!(watch(file.as_fd(), 4096), Err(RegionError::Unsealed)));
    }

    #[test]
    fn huge_pages_of_another_are_refused() {
        let huge = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(file) = memfd_create(c"huge", huge) else { return };
        ftruncate(&file, 2 << 20).unwrap();
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK).unwrap();
        assert!(matches!(watch(file.as_fd(), 2 << 20), Err(RegionError::Unsealed)));
    }
}
