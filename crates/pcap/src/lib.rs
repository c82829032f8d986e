//! What capture files mean: pcap and pcapng, read and written.
//!
//! [`Reader`] reads both, in either byte order and with any resolution of time, and takes nothing in a file on trust: a
//! broken file is read up to the break, and the error names the byte. [`Format`] says how the same is written, piece by
//! piece into memory that the caller has, so that writing a packet allocates nothing. Facts: draft-ietf-opsawg-pcap and
//! draft-ietf-opsawg-pcapng.
//!
//! It is a crate because ports and apps both read and write files, and neither may see the other. It is written here
//! because the crate `pcap-file` (3.0.0-rc.3) does not say at which byte a file is broken, ends a file at a captured
//! length above the original one, at any reserved bit and at any bad option, and allocates for each packet's options.
//!
//! ```
//! use bywash_pcap::{Format, Interface, Reader};
//!
//! let mut file = Format::Pcapng.file_header(&Interface::named("eth1"));
//! file.extend(Format::Pcapng.record_head(1_700_000_000_000_000_001, 5, 5).bytes());
//! file.extend(b"hello");
//! file.extend(Format::Pcapng.record_tail(5).bytes());
//!
//! let mut reader = Reader::new(file.as_slice()).unwrap();
//! let record = reader.next_record().unwrap().unwrap();
//! assert_eq!((record.bytes, record.time), (&b"hello"[..], Some(1_700_000_000_000_000_001)));
//! assert!(reader.next_record().unwrap().is_none());
//! ```

#![forbid(unsafe_code)]

mod classic;
mod error;
mod input;
mod link;
mod ng;
mod read;
mod write;

pub use error::{Broken, ReadError};
pub use link::Link;
pub use read::{Reader, Record};
pub use write::{Bytes, Comment, Format, Interface, Statistics};

/// The longest packet that is read, in bytes; the same as libpcap's and tcpdump's limit.
pub const MAX_PACKET: usize = 1 << 18;
/// The most interfaces that are kept of one section, in whose place a hostile file could have any number.
pub const MAX_INTERFACES: usize = 1 << 16;
