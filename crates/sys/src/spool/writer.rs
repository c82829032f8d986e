//! The thread that writes what producers hand over.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::files::{Ended, Files};
use super::{Block, Plan, RecordLen, Shared, Source, SpoolError, Trailer};

/// How long to sleep at most when nothing is there: a producer that ends may do so without a word.
const NAP: Duration = Duration::from_millis(20);

/// The thread's own.
pub(super) struct Writer {
    files: Files,
    header: Vec<u8>,
    record_len: RecordLen,
    trailer: Trailer,
    /// Bytes of it.
    trailer_len: u64,
    shared: Arc<Shared>,
    is_over: bool,
    /// The file has no end yet, and can have one.
    is_open: bool,
}

impl Writer {
    /// Makes the first file.
    pub(super) fn new(plan: Plan, shared: Arc<Shared>) -> Result<Self, SpoolError> {
        let Plan { target, rotation, header, record_len, mut trailer, waits_for_reader, .. } = plan;
        let trailer_len = trailer(&shared.read()).len() as u64;
        let (files, begun) = Files::new(target, rotation, waits_for_reader, &header)?;
        shared.files.store(1, Ordering::Relaxed);
        shared.bytes.store(files.len, Ordering::Relaxed);
        let mut writer =
            Self { files, header, record_len, trailer, trailer_len, shared, is_over: false, is_open: true };
        if let Err(ended) = begun {
            writer.end(ended);
        }
        Ok(writer)
    }

    /// Writes until all producers are gone.
    pub(super) fn run(mut self, mut sources: Vec<Source>) {
        loop {
            // Asked before the rings are looked at: what was put in before is seen then.
            let all_gone = sources.iter().all(|source| source.full.is_abandoned());
            let mut found = false;
            for source in &mut sources {
                if let Ok(block) = source.full.pop() {
                    found = true;
                    self.take(block, source);
                }
            }
            if !found {
                if all_gone {
                    break;
                }
                std::thread::park_timeout(NAP);
            }
        }
        // Only now, also where the disk got full long ago: what all have put in is known, and how much of it was written.
        if self.is_open {
            self.end_file(0);
        }
    }

    fn take(&mut self, mut block: Block, source: &mut Source) {
        let (written, stored) = if self.is_over { (0, Ok(())) } else { self.store(&block) };
        self.shared.records.fetch_add(written, Ordering::Relaxed);
        source.written.fetch_add(written, Ordering::Relaxed);
        // Whoever learns of the end finds all counted that is in a file, and who has waited for the last record learns of it.
        if let Err(ended) = stored {
            self.end(ended);
        }
        source.settled.fetch_add(block.records, Ordering::Release);
        block.bytes.clear();
        block.records = 0;
        // A ring whose other end is gone keeps it.
        let _ = source.free.push(block);
    }

    /// Writes a block and returns how many of its records are in files, and why no more can be.
    fn store(&mut self, block: &Block) -> (u64, Result<(), Ended>) {
        let mut at = 0;
        while at < block.bytes.len() {
            let rest = &block.bytes[at..];
            let taken = self.files.len + self.trailer_len;
            let room = self.files.rotation.bytes.map(|limit| limit.saturating_sub(taken));
            let mut part = match room {
                Some(room) => whole(&self.record_len, rest, usize::try_from(room).unwrap_or(usize::MAX)),
                None => rest.len(),
            };
            if self.files.is_old() || (part == 0 && self.files.has_records()) {
                let here = count(&self.record_len, &block.bytes[..at]);
                self.end_file(here);
                if let Err(ended) = self.files.rotate(&self.header) {
                    return (here, Err(ended));
                }
                self.is_open = true;
                self.shared.files.fetch_add(1, Ordering::Relaxed);
                self.shared.bytes.fetch_add(self.header.len() as u64, Ordering::Relaxed);
                continue;
            }
            if part == 0 {
                // A record that is longer than a file may be has one of its own.
                part = (self.record_len)(rest).unwrap_or(rest.len()).clamp(1, rest.len());
            }
            let before = self.files.len;
            let appended = self.files.append(&rest[..part], |bytes, n| whole(&self.record_len, bytes, n));
            let kept = self.files.len - before;
            self.shared.bytes.fetch_add(kept, Ordering::Relaxed);
            at += usize::try_from(kept).unwrap_or(usize::MAX);
            if let Err(ended) = appended {
                return (count(&self.record_len, &block.bytes[..at]), Err(ended));
            }
        }
        (block.records, Ok(()))
    }

    /// Writes what a file ends with, if that still fits; so many records of the block at hand are in it.
    fn end_file(&mut self, here: u64) {
        self.is_open = false;
        let mut written = self.shared.read();
        written.records += here;
        let trailer = (self.trailer)(&written);
        let before = self.files.len;
        self.files.append_last(&trailer);
        self.shared.bytes.fetch_add(self.files.len - before, Ordering::Relaxed);
    }

    fn end(&mut self, ended: Ended) {
        self.is_over = true;
        match ended {
            Ended::Gone => {
                self.is_open = false;
                self.shared.is_gone.store(true, Ordering::Release);
            }
            Ended::Failed(reason) => {
                *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
            }
        }
        self.shared.has_ended.store(true, Ordering::Release);
    }
}

/// Lengths of the records at the front of `bytes`, one after the other, as far as they are whole.
fn lengths<'a>(record_len: &'a RecordLen, mut bytes: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    std::iter::from_fn(move || {
        let len = record_len(bytes).filter(|len| *len > 0)?;
        bytes = bytes.get(len..)?;
        Some(len)
    })
}

/// Bytes of the whole records among the first `n` bytes.
fn whole(record_len: &RecordLen, bytes: &[u8], n: usize) -> usize {
    if n >= bytes.len() {
        return bytes.len();
    }
    lengths(record_len, &bytes[..n]).sum()
}

/// Whole records in `bytes`.
fn count(record_len: &RecordLen, bytes: &[u8]) -> u64 {
    lengths(record_len, bytes).count() as u64
}
