//! A file's bytes, as many at hand as are needed, with their place in the file.

use std::io::{self, ErrorKind, Read};

use crate::ReadError;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 18;

/// A source and the part of it that has been read and not used.
#[derive(Debug)]
pub(crate) struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Where in the source `start` is.
    offset: u64,
}

impl<R: Read> Input<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, buffer: vec![0; CHUNK], start: 0, end: 0, offset: 0 }
    }

    pub(crate) fn source(&self) -> &R {
        &self.source
    }

    /// The place in the source of the first byte of [`Input::bytes`].
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes at hand.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Brings `wanted` bytes to hand, or as many as there are left, and returns them all: more may be there already. After an error those
    /// that have come are at hand.
    #[inline]
    pub(crate) fn fill(&mut self, wanted: usize) -> Result<&[u8], ReadError> {
        if self.end - self.start < wanted {
            self.read(wanted)?;
        }
        Ok(self.bytes())
    }

    #[cold]
    fn read(&mut self, wanted: usize) -> Result<(), ReadError> {
        // What comes piece by piece is moved once.
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted.next_power_of_two(), 0);
        }
        while self.end < wanted {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(n) => self.end += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(self.failed(source)),
            }
        }
        Ok(())
    }

    /// Goes on by `n` of the bytes at hand.
    #[inline]
    pub(crate) fn consume(&mut self, n: usize) {
        let n = n.min(self.end - self.start);
        self.start += n;
        self.offset += n as u64;
    }

    /// Goes on by `n` bytes, however many are at hand, and counts them down to those that are left. False when the source ends before.
    pub(crate) fn skip(&mut self, n: &mut u64) -> Result<bool, ReadError> {
        while *n > 0 {
            let step = usize::try_from(*n).unwrap_or(usize::MAX).min(CHUNK);
            let step = step.min(self.fill(1)?.len());
            if step == 0 {
                return Ok(false);
            }
            self.consume(step);
            *n -= step as u64;
        }
        Ok(true)
    }

    fn failed(&self, source: io::Error) -> ReadError {
        ReadError::Io { offset: self.offset + (self.end - self.start) as u64, source }
    }
}

/// In which order a file's numbers have their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    /// The number at `at`, which the caller knows to be there; 0 when it is not.
    #[inline]
    pub(crate) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let raw = array(bytes, at);
        if self == Self::Little { u16::from_le_bytes(raw) } else { u16::from_be_bytes(raw) }
    }

    /// The number at `at`.
    #[inline]
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let raw = array(bytes, at);
        if self == Self::Little { u32::from_le_bytes(raw) } else { u32::from_be_bytes(raw) }
    }

    /// The number at `at`.
    pub(crate) fn i64(self, bytes: &[u8], at: usize) -> i64 {
        let raw = array(bytes, at);
        if self == Self::Little { i64::from_le_bytes(raw) } else { i64::from_be_bytes(raw) }
    }
}

#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}
