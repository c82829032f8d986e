//! Why a file, or the rest of one, cannot be read.

use std::io;

/// Why reading ended before the file did.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error("can't be read at byte {offset}: {source}")]
    Io {
        /// The first byte that was not read.
        offset: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// There is nothing in it.
    #[error("the file is empty: a capture file has a header at least")]
    Empty,
    /// It begins as no capture file does.
    #[error("this is no pcap or pcapng file: it begins with {0:02x?}")]
    Unknown([u8; 4]),
    /// It is a compressed file.
    #[error("it is compressed: unpack it first, with {0}")]
    Compressed(&'static str),
    /// It is written in a way that is not known here.
    #[error("it is written in version {major}.{minor} of its format, which is not known here")]
    Version {
        /// The file's major version.
        major: u16,
        /// The file's minor version.
        minor: u16,
    },
    /// It makes no sense from some byte on. Everything before it was read.
    #[error("broken at byte {offset}: {what}")]
    Broken {
        /// The first byte of the header, record or block that is broken.
        offset: u64,
        /// What is wrong there.
        what: Broken,
    },
}

impl ReadError {
    /// Whether nothing is wrong: the source has said [`WouldBlock`](io::ErrorKind::WouldBlock), and what has not come yet can be read
    /// later.
    #[must_use]
    pub fn is_for_later(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
    }

    /// The byte from which on the file could not be read.
    #[must_use]
    pub fn offset(&self) -> u64 {
        match self {
            Self::Io { offset, .. } | Self::Broken { offset, .. } => *offset,
            Self::Empty | Self::Unknown(_) | Self::Compressed(_) | Self::Version { .. } => 0,
        }
    }
}

/// What is wrong with a header, a record or a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The file ends in it.
    #[error("{what} of {wanted} bytes begins there, and the file ends after {left}")]
    Short {
        /// What begins there.
        what: &'static str,
        /// Bytes it has, as far as is known.
        wanted: u64,
        /// Bytes the file has from there on.
        left: u64,
    },
    /// A packet is longer than any.
    #[error("a packet of {0} bytes begins there, and none is longer than {max}", max = crate::MAX_PACKET)]
    TooLong(u32),
    /// A block's length is none.
    #[error("a block of {0} bytes begins there: a block's length is a multiple of 4, from 12 to 16 MiB")]
    Length(u32),
    /// A block does not end with the length it began with.
    #[error("a block begins there with a length of {head} bytes and ends with one of {tail}")]
    Trailer {
        /// The length in front.
        head: u32,
        /// The length behind.
        tail: u32,
    },
    /// A block is too short for what it must hold.
    #[error("a block of {length} bytes begins there, too short for what it holds")]
    Inside {
        /// The block's length.
        length: u32,
    },
    /// A packet is of an interface that was not described.
    #[error("a packet of interface {0} begins there, which no block before has described")]
    Interface(u32),
    /// A section describes more interfaces than are kept.
    #[error("an interface begins there, and its section has {max} already: no more are kept", max = crate::MAX_INTERFACES)]
    TooManyInterfaces,
    /// A section's byte order cannot be told.
    #[error("a section begins there with {0:02x?}, which tells no byte order")]
    ByteOrder([u8; 4]),
}
