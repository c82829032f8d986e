//! Files written by a thread of their own, so that nobody who has something to write waits for a disk.
//!
//! What is written are records, one after the other behind a header. A worker puts them into blocks of memory that were
//! there from the start and hands over a block when it is full; when all blocks wait for the disk there is no room, and
//! what to lose is the worker's decision. The file ends with a whole record, also when the disk is full.

mod files;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use rtrb::{Consumer, RingBuffer};

/// Bytes in a block: enough that a system call for each costs nothing.
pub const BLOCK: usize = 1 << 20;

/// The fewest blocks a producer can do with: one to fill, one to write, and two between them.
const FEWEST_BLOCKS: usize = 4;

/// Where to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file; what was in it is lost.
    File(PathBuf),
}

/// When to go on in another file. A record is never cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Before a file has more bytes than this.
    pub bytes: Option<u64>,
    /// When a file's first record is as old as this.
    pub time: Option<Duration>,
    /// Keep so many files, the last ones, and delete those before.
    pub keep: Option<u32>,
}

impl Rotation {
    /// Whether there is more than one file.
    fn is_wanted(&self) -> bool {
        self.bytes.is_some() || self.time.is_some()
    }
}

/// Tells a record's length from its first bytes.
pub type RecordLen = Box<dyn Fn(&[u8]) -> Option<usize> + Send>;

/// Makes what a file ends with, of what has been written until then.
pub type Trailer = Box<dyn FnMut(&Written) -> Vec<u8> + Send>;

/// What is to be written.
pub struct Plan {
    /// Where to.
    pub target: Target,
    /// When to go on in another file.
    pub rotation: Rotation,
    /// What each file begins with.
    pub header: Vec<u8>,
    /// How records are told apart.
    pub record_len: RecordLen,
    /// What each file ends with: always as long, since room is left for it.
    pub trailer: Trailer,
    /// Whether a pipe that nobody reads yet is waited for, or refused.
    pub waits_for_reader: bool,
    /// Who writes: so many producers.
    pub producers: usize,
    /// Memory for records that wait for the disk, in bytes; shared by all producers.
    pub memory: usize,
}

/// Why nothing can be written.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file can't be made.
    #[error("{name} can't be written: {source}")]
    File {
        /// Its name.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The process may have no more threads.
    #[error("no thread for writing: {0}")]
    Thread(io::Error),
}

/// What has been written so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Records.
    pub records: u64,
    /// Bytes in all files, headers too.
    pub bytes: u64,
    /// Files, those deleted since included.
    pub files: u64,
    /// Why writing ended early: nothing is written any more.
    pub failure: Option<String>,
    /// Who read the pipe has gone away: nothing is written any more, and nothing is wrong.
    pub is_gone: bool,
    /// Not all was written in time, and the thread was left behind with the rest.
    pub is_left_behind: bool,
}

impl Written {
    /// Whether what was put in and is not in a file by now is lost.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.failure.is_some() || self.is_gone || self.is_left_behind
    }
}

/// What the thread tells.
#[derive(Debug, Default)]
struct Shared {
    records: AtomicU64,
    bytes: AtomicU64,
    files: AtomicU64,
    has_ended: AtomicBool,
    is_gone: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Shared {
    fn read(&self) -> Written {
        // First whether it has ended: what is counted after that are the last figures.
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_gone = self.is_gone.load(Ordering::Acquire);
        Written {
            records: self.records.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            files: self.files.load(Ordering::Relaxed),
            failure,
            is_gone,
            is_left_behind: false,
        }
    }
}

/// Records on their way.
struct Block {
    bytes: Vec<u8>,
    records: u64,
}

/// A producer as the thread sees it.
struct Source {
    full: Consumer<Block>,
    free: rtrb::Producer<Block>,
    /// Records that are in a file, or were given up.
    settled: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

/// Who puts records in: one per worker.
pub struct Producer {
    current: Option<Block>,
    full: rtrb::Producer<Block>,
    free: Consumer<Block>,
    writer: Thread,
    shared: Arc<Shared>,
    put: u64,
    settled: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl Producer {
    /// Whether there is room for a record of `len` bytes. If so, [`Producer::put`] it, in as many pieces as it has, and
    /// [`Producer::end`] it.
    #[inline]
    pub fn has_room(&mut self, len: usize) -> bool {
        match &self.current {
            Some(_) if !self.is_full_for(len) => true,
            _ => len <= BLOCK && self.hand_over(),
        }
    }

    /// Whether asking for room for a record of `len` bytes hands over what has been put in so far. Whoever tells others of that
    /// tells them before: the file may end with it.
    #[inline]
    pub fn hands_over_for(&self, len: usize) -> bool {
        len <= BLOCK && self.is_full_for(len) && !self.free.is_empty()
    }

    fn is_full_for(&self, len: usize) -> bool {
        self.current.as_ref().is_some_and(|block| block.bytes.capacity() - block.bytes.len() < len)
    }

    /// Appends to a record that there is room for.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        if let Some(block) = &mut self.current {
            debug_assert!(block.bytes.capacity() - block.bytes.len() >= bytes.len(), "no room was asked for");
            block.bytes.extend_from_slice(bytes);
        }
    }

    /// Ends a record.
    #[inline]
    pub fn end(&mut self) {
        if let Some(block) = &mut self.current {
            block.records += 1;
            self.put += 1;
        }
    }

    /// Hands over what has been put in so far, so that it is soon in the file, unless the disk is behind anyway. Returns whether
    /// nothing is left.
    pub fn flush(&mut self) -> bool {
        let has_some = self.current.as_ref().is_some_and(|block| block.records > 0);
        !has_some || (self.free.slots() > self.free.buffer().capacity() / 2 && self.hand_over())
    }

    /// Records that were put in and are not in a file yet.
    pub fn pending(&self) -> u64 {
        self.put - self.settled.load(Ordering::Acquire).min(self.put)
    }

    /// Records of this producer that are in a file.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Whether the disk is behind: all memory but the block that is being filled waits for it.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.current.is_some() && self.free.is_empty()
    }

    /// Whether nothing is written any more.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Acquire)
    }

    /// Whether that is because nobody reads it any more: what comes later is not lost to anybody.
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone.load(Ordering::Acquire)
    }

    /// Takes a free block for the current one; false when there is none.
    #[cold]
    fn hand_over(&mut self) -> bool {
        let Ok(fresh) = self.free.pop() else { return false };
        if let Some(block) = self.current.replace(fresh) {
            self.send(block);
        }
        true
    }

    fn send(&mut self, block: Block) {
        // There are no more blocks than the ring has places.
        if self.full.push(block).is_ok() {
            self.writer.unpark();
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if let Some(block) = self.current.take() {
            self.send(block);
        }
    }
}

/// The thread that writes.
#[derive(Debug)]
pub struct Spool {
    thread: JoinHandle<()>,
    shared: Arc<Shared>,
}

impl Spool {
    /// Makes the first file and starts the thread. It ends when all producers have been dropped.
    ///
    /// # Errors
    /// [`SpoolError`], and no producer.
    pub fn start(plan: Plan) -> Result<(Self, Vec<Producer>), SpoolError> {
        let shared = Arc::new(Shared::default());
        let blocks = (plan.memory / BLOCK / plan.producers.max(1)).max(FEWEST_BLOCKS);
        let (mut sources, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..plan.producers {
            let (mut free, free_end) = RingBuffer::new(blocks);
            let (full_end, full) = RingBuffer::new(blocks);
            for _ in 0..blocks {
                // Written once, so that no page is missing later.
                let mut bytes = vec![0xff; BLOCK];
                bytes.clear();
                // The ring has a place for each.
                let _ = free.push(Block { bytes, records: 0 });
            }
            let settled = Arc::new(AtomicU64::new(0));
            let written = Arc::new(AtomicU64::new(0));
            ends.push((full_end, free_end, Arc::clone(&settled), Arc::clone(&written)));
            sources.push(Source { full, free, settled, written });
        }
        let writer = writer::Writer::new(plan, Arc::clone(&shared))?;
        let thread = std::thread::Builder::new()
            .name("writer".into())
            .spawn(move || writer.run(sources))
            .map_err(SpoolError::Thread)?;
        let producers = ends
            .into_iter()
            .map(|(full, free, settled, written)| Producer {
                current: None,
                full,
                free,
                writer: thread.thread().clone(),
                shared: Arc::clone(&shared),
                put: 0,
                settled,
                written,
            })
            .collect();
        Ok((Self { thread, shared }, producers))
    }

    /// What has been written so far.
    pub fn written(&self) -> Written {
        self.shared.read()
    }

    /// Waits until everything is written; the producers must be dropped before, or it waits for that too.
    pub fn finish(self) -> Written {
        let panicked = self.thread.join().is_err();
        let mut written = self.shared.read();
        if panicked && written.failure.is_none() {
            written.failure = Some("the thread that writes has died".into());
        }
        written
    }

    /// The same, but goes without the thread when it has not ended by then.
    pub fn finish_by(self, until: Instant) -> Written {
        while !self.thread.is_finished() {
            if Instant::now() >= until {
                return Written { is_left_behind: true, ..self.shared.read() };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.finish()
    }
}

#[cfg(test)]
mod tests;
