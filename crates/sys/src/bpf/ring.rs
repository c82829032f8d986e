//! A ring that BPF programs write on any CPU and one reader reads, in order (`BPF_MAP_TYPE_RINGBUF`, Linux 5.8; the kernel's
//! `Documentation/bpf/ringbuf.rst` has its shape).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{BpfError, Map};
use crate::shared::{Mapping, Slots, Watched, Word};

/// A record's first four bytes: its length, and one of these.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// Bytes before each record.
const HEADER: usize = 8;

/// The one reader of a ring. Its descriptor becomes readable when there is something that was not read.
#[derive(Debug)]
pub struct RingReader {
    map: OwnedFd,
    /// How far we have read, in bytes since the ring's beginning.
    consumer: Word<AtomicU64>,
    /// How far programs have written.
    producer: Watched<Word<AtomicU64>>,
    /// The records, twice one behind the other, so that each lies in one piece.
    records: Arc<Mapping>,
    /// Their headers: the same memory.
    headers: Watched<Slots<u32>>,
    /// Where they begin in it.
    begin: usize,
    size: u32,
}

impl RingReader {
    /// Of a [`MapKind::RingBuf`](super::MapKind::RingBuf), from where the last one ended. There must be no other one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(map: &Map) -> Result<Self, BpfError> {
        Self::mapped(map).map_err(|error| BpfError::new(format!("mapping the ring '{}'", map.name()), error))
    }

    fn mapped(map: &Map) -> io::Result<Self> {
        let (page, size) = (rustix::param::page_size(), map.entries());
        let ours = Mapping::of_file(map.as_fd(), 0, page)?;
        let records = Mapping::read_only(map.as_fd(), page as u64, page + 2 * size as usize)?;
        Ok(Self {
            map: map.as_fd().try_clone_to_owned()?,
            consumer: Word::u64_at(&ours, 0)?,
            producer: Word::watch_u64(&records, 0)?,
            headers: Slots::watch(&records, page, size / 2)?,
            records,
            begin: page,
            size,
        })
    }

    /// Whether nothing is there that was not read, nor is being written.
    pub fn is_empty(&self) -> bool {
        self.producer.load_u64() == self.consumer.load(Ordering::Relaxed)
    }

    /// Takes so many records at most: each is copied to `buffer`, as far as it has room, and shown. Returns how many there were.
    pub fn read(&mut self, most: usize, buffer: &mut [u8], mut show: impl FnMut(&[u8])) -> usize {
        let mut at = self.consumer.load(Ordering::Relaxed);
        let end = self.producer.load_u64();
        fence(Ordering::Acquire);
        let mut count = 0;
        while at != end && count < most {
            let place = u32::try_from(at % u64::from(self.size)).unwrap_or(0);
            let header = self.headers.read(place / 4);
            if header & BUSY != 0 {
                break;
            }
            fence(Ordering::Acquire);
            let len = (header & !DISCARDED) as usize;
            if header & DISCARDED == 0 {
                let shown = len.min(buffer.len());
                self.records.copy_out(self.begin + place as usize + HEADER, &mut buffer[..shown]);
                show(&buffer[..shown]);
                count += 1;
            }
            at = at.wrapping_add((len + HEADER).next_multiple_of(8) as u64);
            // From here on programs may write there.
            self.consumer.store(at, Ordering::Release);
        }
        count
    }
}

impl AsFd for RingReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
