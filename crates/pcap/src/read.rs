//! Reading capture files of either kind.

use std::io::Read;

use crate::classic::Classic;
use crate::input::Input;
use crate::ng::{self, Ng};
use crate::{Broken, Format, Link, ReadError};

/// A packet in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was captured, in nanoseconds since 1970, if the file says so.
    pub time: Option<u64>,
    /// What its first bytes are.
    pub link: Link,
    /// Its length on the wire. Files are seen in which it is less than what was captured.
    pub original_len: u32,
    /// The bytes that were captured, without the FCS.
    pub bytes: &'a [u8],
}

impl Record<'_> {
    /// Whether the end of the packet was not captured.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.missing() > 0
    }

    /// How many bytes at the end of the packet were not captured.
    #[must_use]
    pub fn missing(&self) -> u32 {
        self.original_len.saturating_sub(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX))
    }
}

/// Where in the bytes at hand a packet is.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) time: Option<u64>,
    pub(crate) link: Link,
    /// Bytes of FCS at the packet's end.
    pub(crate) fcs: usize,
    pub(crate) original: u32,
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Bytes of the whole record or block.
    pub(crate) total: usize,
}

/// A capture file that is being read, packet by packet.
///
/// It reads in large pieces and needs no other buffer. Its memory is bounded, whatever the file says. Of a source that does not wait for
/// what has not come, nothing is lost: see [`ReadError::is_for_later`].
#[derive(Debug)]
pub struct Reader<R> {
    input: Input<R>,
    /// `None` while not all has come that tells it.
    kind: Option<Kind>,
    /// Bytes of the record that was given out last.
    used: usize,
    /// Nothing follows: the file has ended, or is broken.
    is_over: bool,
}

#[derive(Debug)]
enum Kind {
    Classic(Classic),
    Ng(Ng),
}

impl Kind {
    /// By the beginning of a file.
    fn of<R: Read>(input: &mut Input<R>) -> Result<Self, ReadError> {
        let bytes = input.fill(4)?;
        let Some(&first) = bytes.first_chunk::<4>() else {
            let left = bytes.len() as u64;
            return Err(match left {
                0 => ReadError::Empty,
                _ => ReadError::Broken {
                    offset: 0,
                    what: Broken::Short { what: "a header", wanted: 24, left },
                },
            });
        };
        if let Some(magic) = Classic::recognise(first) {
            return Classic::new(input, magic).map(Self::Classic);
        }
        if u32::from_be_bytes(first) == ng::SECTION {
            return Ok(Self::Ng(Ng::new()));
        }
        Err(match first {
            [0x1f, 0x8b, ..] => ReadError::Compressed("gunzip"),
            [0x28, 0xb5, 0x2f, 0xfd] => ReadError::Compressed("unzstd"),
            [0xfd, b'7', b'z', b'X'] => ReadError::Compressed("unxz"),
            [b'B', b'Z', b'h', _] => ReadError::Compressed("bunzip2"),
            [0x04, 0x22, 0x4d, 0x18] => ReadError::Compressed("unlz4"),
            _ => ReadError::Unknown(first),
        })
    }
}

impl<R: Read> Reader<R> {
    /// Looks at the beginning of `source`; what of it has not come yet is looked at with the first packet.
    ///
    /// # Errors
    /// [`ReadError`] when it is no capture file, or one of a kind that is not known here.
    pub fn new(source: R) -> Result<Self, ReadError> {
        let mut input = Input::new(source);
        let kind = match Kind::of(&mut input) {
            Err(error) if error.is_for_later() => None,
            kind => Some(kind?),
        };
        Ok(Self { input, kind, used: 0, is_over: false })
    }

    /// Where it reads from.
    pub fn source(&self) -> &R {
        self.input.source()
    }

    /// The next packet; `None` at the end, and after an error that is not for later.
    ///
    /// # Errors
    /// [`ReadError`] when the rest of the file cannot be read, or not yet.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        if self.is_over {
            return Ok(None);
        }
        self.input.consume(self.used);
        self.used = 0;
        let found = match &mut self.kind {
            Some(Kind::Classic(classic)) => classic.next(&mut self.input),
            Some(Kind::Ng(ng)) => ng.next(&mut self.input),
            None => self.first(),
        };
        self.is_over = match &found {
            Ok(found) => found.is_none(),
            Err(error) => !error.is_for_later(),
        };
        let Some(found) = found? else { return Ok(None) };
        self.used = found.total;
        let bytes = &self.input.bytes()[found.start..found.start + found.len];
        // Of a packet that was cut, the FCS was cut off first.
        let kept = (found.original as usize).saturating_sub(found.fcs).min(bytes.len());
        let (bytes, original_len) = if found.fcs > 0 && found.len > 0 {
            #[expect(clippy::cast_possible_truncation, reason = "an FCS has at most 30 bytes")]
            let fcs = found.fcs as u32;
            (&bytes[..kept], found.original.saturating_sub(fcs))
        } else {
            (bytes, found.original)
        };
        Ok(Some(Record { time: found.time, link: found.link, original_len, bytes }))
    }

    #[cold]
    fn first(&mut self) -> Result<Option<Found>, ReadError> {
        match self.kind.insert(Kind::of(&mut self.input)?) {
            Kind::Classic(classic) => classic.next(&mut self.input),
            Kind::Ng(ng) => ng.next(&mut self.input),
        }
    }

    /// The file's kind, once its beginning has come.
    pub fn format(&self) -> Option<Format> {
        self.kind.as_ref().map(|kind| match kind {
            Kind::Classic(_) => Format::Pcap,
            Kind::Ng(_) => Format::Pcapng,
        })
    }
}
