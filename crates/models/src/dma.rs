//! Memory of a driver in another process, or in this one by its file: mapped here, and found by the NIC's addresses.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bywash_sys::shared::Mapping;
use rustix::fs::fstat;

use crate::host::{Memory, NotMapped};

/// A range of addresses.
#[derive(Debug)]
struct Area {
    start: u64,
    bytes: u64,
    /// `None` for what has no file: the NIC cannot reach it.
    mapping: Option<Arc<Mapping>>,
    readable: bool,
    writable: bool,
}

/// All ranges, sorted by their first address. They do not overlap.
#[derive(Debug, Default)]
pub struct Maps {
    areas: Vec<Area>,
}

impl Maps {
    /// Lets the NIC reach `bytes` of `file` from `offset` on, at `address`. Without a file, or when it cannot be mapped, the
    /// range is known but cannot be reached. A file must not be made shorter while it is mapped.
    ///
    /// # Errors
    /// When the range overlaps another, or is none, or the file ends before it.
    pub fn map(
        &mut self,
        address: u64,
        bytes: u64,
        file: Option<(BorrowedFd<'_>, u64)>,
        (readable, writable): (bool, bool),
    ) -> io::Result<()> {
        let end =
            address.checked_add(bytes).filter(|end| *end > address).ok_or(io::ErrorKind::InvalidInput)?;
        let place = self.areas.partition_point(|area| area.start < end);
        if self.areas[..place].last().is_some_and(|area| area.start + area.bytes > address) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        // What lies behind a file's end can be mapped, but whoever touches it is killed, with all other clients' server.
        if let Some((file, offset)) = file {
            let end = offset.checked_add(bytes).ok_or(io::ErrorKind::InvalidInput)?;
            if fstat(file)?.st_size.cast_unsigned() < end {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        let mapping = file.and_then(|(file, offset)| Mapping::of_file(file, offset, len).ok());
        self.areas.insert(place, Area { start: address, bytes, mapping, readable, writable });
        Ok(())
    }

    /// Takes back a range that was given as one.
    ///
    /// # Errors
    /// When there is no such range.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> io::Result<()> {
        match self.areas.binary_search_by_key(&address, |area| area.start) {
            Ok(place) if self.areas[place].bytes == bytes => {
                self.areas.remove(place);
                Ok(())
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Takes back everything.
    pub fn clear(&mut self) {
        self.areas.clear();
    }

    /// Bytes mapped at exactly this address.
    pub fn bytes_at(&self, address: u64) -> Option<u64> {
        self.at(address).filter(|area| area.start == address).map(|area| area.bytes)
    }

    /// The last range that does not begin behind an address.
    #[inline]
    fn at(&self, address: u64) -> Option<&Area> {
        let behind = self.areas.partition_point(|area| area.start <= address);
        self.areas[..behind].last()
    }

    /// Where a range lies that is in one piece, as almost all are.
    #[inline]
    fn whole(&self, address: u64, bytes: usize, may: impl Fn(&Area) -> bool) -> Option<(&Mapping, usize)> {
        let area = self.at(address)?;
        let within = address - area.start;
        let fits = within.checked_add(bytes as u64)? <= area.bytes && may(area);
        Some((area.mapping.as_deref().filter(|_| fits)?, usize::try_from(within).ok()?))
    }

    /// Calls `each` with every mapped piece of a range, in order: mapping, offset in it, offset in the range, length.
    #[cold]
    fn pieces(
        &self,
        address: u64,
        bytes: usize,
        may: impl Fn(&Area) -> bool,
        mut each: impl FnMut(&Arc<Mapping>, usize, usize, usize),
    ) -> Result<(), NotMapped> {
        let missing = NotMapped { address, bytes };
        let mut done = 0;
        while done < bytes {
            let at = address.checked_add(done as u64).ok_or(missing)?;
            let area = self.at(at).ok_or(missing)?;
            let within = at - area.start;
            let mapping =
                area.mapping.as_ref().filter(|_| within < area.bytes && may(area)).ok_or(missing)?;
            let room = usize::try_from(area.bytes - within).map_err(|_| missing)?;
            let length = room.min(bytes - done);
            each(mapping, usize::try_from(within).map_err(|_| missing)?, done, length);
            done += length;
        }
        Ok(())
    }
}

impl Memory for Maps {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), NotMapped> {
        let bytes = to.len();
        if let Some((mapping, offset)) = self.whole(address, bytes, |area| area.readable) {
            mapping.copy_out(offset, to);
            return Ok(());
        }
        self.pieces(
            address,
            bytes,
            |area| area.readable,
            |mapping, offset, at, length| {
                mapping.copy_out(offset, &mut to[at..at + length]);
            },
        )
    }

    #[inline]
    fn prefetch(&self, address: u64) {
        if let Some((mapping, offset)) = self.whole(address, 1, |_| true) {
            mapping.prefetch(offset);
        }
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), NotMapped> {
        if let Some((mapping, offset)) = self.whole(address, from.len(), |area| area.writable) {
            mapping.copy_in(offset, from);
            return Ok(());
        }
        self.pieces(
            address,
            from.len(),
            |area| area.writable,
            |mapping, offset, at, length| {
                mapping.copy_in(offset, &from[at..at + length]);
            },
        )
    }

    fn publish(&mut self, address: u64, from: &[u8; 16]) -> Result<(), NotMapped> {
        let (first, second) = from.split_at(8);
        let done = u64::from_ne_bytes(second.try_into().unwrap_or_default());
        // Rings are aligned, so a descriptor lies in one piece and its second half can be one atomic store.
        match self.whole(address, from.len(), |area| area.writable) {
            Some((mapping, offset)) if mapping.publish(offset, first, done).is_ok() => Ok(()),
            _ => self.write(address, from),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn ranges_are_exact_and_may_continue_each_other() {
        let memory = bywash_sys::memory::allocate(1, bywash_sys::memory::HugePages::Off, None).unwrap();
        let mut maps = Maps::default();
        let file = memory.file.as_fd();
        maps.map(0x1000, 4096, Some((file, 0)), (true, true)).unwrap();
        maps.map(0x2000, 4096, Some((file, 8192)), (true, true)).unwrap();
        maps.map(0x3000, 4096, Some((file, 4096)), (true, false)).unwrap();
        maps.map(0x4000, 4096, None, (true, true)).unwrap();
        assert!(maps.map(0x1800, 16, None, (true, true)).is_err());
        maps.write(0x1ffe, b"abcd").unwrap();
        let mut out = [0; 4];
        maps.read(0x1ffe, &mut out).unwrap();
        assert_eq!(&out, b"abcd");
        maps.publish(0x2010, &[7; 16]).unwrap();
        maps.read(0x201c, &mut out).unwrap();
        assert_eq!(out, [7; 4]);
        assert_eq!(maps.write(0x2ffe, b"abcd"), Err(NotMapped { address: 0x2ffe, bytes: 4 }), "read only");
        assert!(maps.read(0x3ffe, &mut out).is_err(), "no file");
        assert!(maps.unmap(0x1000, 8192).is_err());
        maps.unmap(0x1000, 4096).unwrap();
        assert!(maps.read(0x1ffe, &mut out).is_err());
        assert!(maps.read(u64::MAX - 1, &mut out).is_err());
    }

    #[test]
    fn a_file_that_ends_before_the_range_is_refused() {
        let memory = bywash_sys::memory::allocate(1, bywash_sys::memory::HugePages::Off, None).unwrap();
        let (file, size) = (memory.file.as_fd(), fstat(&memory.file).unwrap().st_size.cast_unsigned());
        let mut maps = Maps::default();
        for (offset, bytes) in [(0, size + 4096), (4096, size), (u64::MAX - 4095, 8192)] {
            assert!(maps.map(0x1000, bytes, Some((file, offset)), (true, true)).is_err());
        }
        maps.map(0x1000, size, Some((file, 0)), (true, true)).unwrap();
        maps.write(0x1000 + size - 4, b"abcd").unwrap();
    }
}
