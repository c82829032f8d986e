//! Writing capture files: each piece as bytes, with times in nanoseconds and little-endian numbers.
//!
//! A file is a header, then for each packet a head, its bytes and a tail; a pcapng file ends with statistics. Where the
//! bytes go is the caller's affair.

use std::path::Path;

use crate::{Link, MAX_PACKET, classic, ng};

/// The two kinds of capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// The older one, which every tool reads: no names, no statistics.
    Pcap,
    /// The newer one.
    Pcapng,
}

/// What a file says of the interface that its packets come from.
#[derive(Clone, Copy, Debug)]
pub struct Interface<'a> {
    /// Its name.
    pub name: &'a str,
    /// Bytes of a packet that are kept at most.
    pub snap: u32,
    /// The expression that packets had to match.
    pub filter: Option<&'a str>,
}

impl<'a> Interface<'a> {
    /// An Ethernet interface of which packets are kept whole.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "2^18")]
    pub fn named(name: &'a str) -> Self {
        Self { name, snap: MAX_PACKET as u32, filter: None }
    }
}

/// What became of an interface's packets during a capture. What is not known is left out of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The capture's first moment, in nanoseconds since 1970.
    pub start: u64,
    /// Its last moment.
    pub end: u64,
    /// Packets that reached us, kept or not.
    pub received: Option<u64>,
    /// Packets that matched the expression.
    pub accepted: Option<u64>,
    /// Packets that the interface lost, for want of room.
    pub lost_interface: Option<u64>,
    /// Packets that were lost between the interface and the file.
    pub lost_system: Option<u64>,
    /// Packets in the file.
    pub delivered: Option<u64>,
}

/// A few bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    bytes: [u8; 28],
    len: usize,
}

impl Bytes {
    /// The bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline]
    fn of(words: &[u32]) -> Self {
        let mut bytes = [0; 28];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Self { bytes, len: 4 * words.len() }
    }
}

/// A packet's head in pcapng, of a block of this length.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the two halves of a number")]
fn ng_head(length: u32, time: u64, captured: u32, original: u32) -> Bytes {
    Bytes::of(&[ng::PACKET, length, 0, (time >> 32) as u32, time as u32, captured, original])
}

/// The program that wrote a file.
const PROGRAM: &str = concat!("bywash ", env!("CARGO_PKG_VERSION"));

/// Bytes around a packet in pcapng: its head, and the length at its end.
const NG_AROUND: usize = 28 + 4;

impl Format {
    /// The format that a file's name asks for: pcapng for `.pcapng`, else pcap.
    #[must_use]
    pub fn of_name(file: &Path) -> Self {
        let is_new = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("pcapng"));
        if is_new { Self::Pcapng } else { Self::Pcap }
    }

    /// What a file begins with.
    #[must_use]
    pub fn file_header(self, interface: &Interface<'_>) -> Vec<u8> {
        let link = Link::ETHERNET.0;
        match self {
            Self::Pcap => {
                let mut out = classic::NANOSECONDS.to_le_bytes().to_vec();
                // Version 2.4; two fields that nobody uses.
                out.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                out.extend(interface.snap.to_le_bytes());
                out.extend(u32::from(link).to_le_bytes());
                out
            }
            Self::Pcapng => {
                let mut body = ng::BYTE_ORDER.to_le_bytes().to_vec();
                // Version 1.0, a section of unknown length.
                body.extend([1, 0, 0, 0]);
                body.extend([0xff; 8]);
                option(&mut body, 3, b"Linux");
                option(&mut body, 4, PROGRAM.as_bytes());
                option(&mut body, ng::END_OF_OPTIONS, &[]);
                let mut out = block(ng::SECTION, &body);
                let mut body = link.to_le_bytes().to_vec();
                body.extend([0, 0]);
                body.extend(interface.snap.to_le_bytes());
                option(&mut body, 2, interface.name.as_bytes());
                option(&mut body, ng::TIME_RESOLUTION, &[9]);
                if let Some(filter) = interface.filter {
                    // A 0 in front says that it is in words.
                    option(&mut body, 11, &[&[0], filter.as_bytes()].concat());
                }
                option(&mut body, ng::END_OF_OPTIONS, &[]);
                out.extend(block(ng::INTERFACE, &body));
                out
            }
        }
    }

    /// What goes in front of a packet that came at `time` (nanoseconds since 1970), of which `captured` bytes follow and
    /// which had `original` on the wire.
    #[inline]
    #[must_use]
    pub fn record_head(self, time: u64, captured: u32, original: u32) -> Bytes {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of a number; seconds until 2106")]
        match self {
            Self::Pcap => {
                let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
                Bytes::of(&[seconds as u32, rest as u32, captured, original])
            }
            Self::Pcapng => ng_head(self.record_len(captured) as u32, time, captured, original),
        }
    }

    /// What goes behind a packet's `captured` bytes.
    #[inline]
    #[must_use]
    pub fn record_tail(self, captured: u32) -> Bytes {
        let mut bytes = [0; 28];
        match self {
            Self::Pcap => Bytes { bytes, len: 0 },
            Self::Pcapng => {
                let padding = (captured.next_multiple_of(4) - captured) as usize;
                #[expect(clippy::cast_possible_truncation, reason = "a record's length is 32 bits wide")]
                let length = self.record_len(captured) as u32;
                bytes[padding..padding + 4].copy_from_slice(&length.to_le_bytes());
                Bytes { bytes, len: padding + 4 }
            }
        }
    }

    /// Bytes of a record with `captured` bytes of a packet.
    #[inline]
    #[must_use]
    pub fn record_len(self, captured: u32) -> usize {
        match self {
            Self::Pcap => 16 + captured as usize,
            Self::Pcapng => NG_AROUND + (captured as usize).next_multiple_of(4),
        }
    }

    /// Bytes of the record or block that `bytes` begin with, in a file written here; `None` when they are too few to
    /// tell.
    #[must_use]
    pub fn record_len_at(self, bytes: &[u8]) -> Option<usize> {
        let number = |at: usize| bytes.get(at..)?.first_chunk().map(|raw| u32::from_le_bytes(*raw));
        match self {
            Self::Pcap => number(8).map(|captured| self.record_len(captured)),
            Self::Pcapng => number(4).map(|length| length as usize),
        }
    }

    /// What a file ends with: nothing in pcap.
    #[must_use]
    pub fn statistics(self, statistics: &Statistics) -> Vec<u8> {
        if self == Self::Pcap {
            return Vec::new();
        }
        let time = |time: u64| {
            let [a, b, c, d, e, f, g, h] = time.to_le_bytes();
            // The high half comes first.
            [e, f, g, h, a, b, c, d]
        };
        let mut body = vec![0; 4];
        body.extend(time(statistics.end));
        option(&mut body, 2, &time(statistics.start));
        option(&mut body, 3, &time(statistics.end));
        let counts = [
            (4, statistics.received),
            (5, statistics.lost_interface),
            (6, statistics.accepted),
            (7, statistics.lost_system),
            (8, statistics.delivered),
        ];
        for (code, count) in counts {
            if let Some(count) = count {
                option(&mut body, code, &count.to_le_bytes());
            }
        }
        option(&mut body, ng::END_OF_OPTIONS, &[]);
        block(ng::STATISTICS, &body)
    }
}

/// A comment that packets of a pcapng file have, made once for all of them.
#[derive(Clone, Debug)]
pub struct Comment {
    /// The option, and the end of options.
    options: Vec<u8>,
}

impl Comment {
    /// A comment with this text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut options = Vec::new();
        option(&mut options, ng::COMMENT, text.as_bytes());
        option(&mut options, ng::END_OF_OPTIONS, &[]);
        Self { options }
    }

    /// Bytes of a record with `captured` bytes of a packet.
    #[inline]
    #[must_use]
    pub fn record_len(&self, captured: u32) -> usize {
        Format::Pcapng.record_len(captured) + self.options.len()
    }

    /// The record of a packet that came at `time` (nanoseconds since 1970), of which these bytes are kept and which had `original` on
    /// the wire; piece by piece.
    pub fn write_record(&self, time: u64, packet: &[u8], original: u32, mut put: impl FnMut(&[u8])) {
        let captured = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        let length = u32::try_from(self.record_len(captured)).unwrap_or(u32::MAX);
        put(ng_head(length, time, captured, original).bytes());
        put(packet);
        put(&[0; 3][..packet.len().next_multiple_of(4) - packet.len()]);
        put(&self.options);
        put(&length.to_le_bytes());
    }
}

/// A block around a body, whose length is a multiple of 4.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 12).unwrap_or(u32::MAX).to_le_bytes();
    [&kind.to_le_bytes()[..], &length, body, &length].concat()
}

/// Appends an option, padded to a multiple of 4; a text is cut where the format ends it.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX - 3);
    body.extend(code.to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend(&value[..usize::from(len)]);
    body.resize(body.len().next_multiple_of(4), 0);
}
