//! pcap: a header, then records of a packet each.

use std::io::Read;

use crate::input::{Input, Order};
use crate::read::Found;
use crate::{Broken, Link, MAX_PACKET, ReadError};

/// Bytes in the file's header.
const HEADER: usize = 24;

/// Times are in microseconds.
pub(crate) const MICROSECONDS: u32 = 0xa1b2_c3d4;
/// Times are in nanoseconds.
pub(crate) const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Microseconds, and eight more bytes in each record, which some Linux systems wrote around the year 2000.
const MODIFIED: u32 = 0xa1b2_cd34;

/// How to read the records.
#[derive(Debug)]
pub(crate) struct Classic {
    order: Order,
    /// Nanoseconds in the unit of a time's second half.
    unit: u64,
    /// Bytes in front of each packet.
    head: usize,
    /// Before version 2.3, the captured length came second; in 2.3 it came now and then.
    swapped: Swapped,
    link: Link,
    fcs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swapped {
    No,
    Maybe,
    Yes,
}

impl Classic {
    /// The byte order and the magic number, when these four bytes begin a pcap file.
    pub(crate) fn recognise(first: [u8; 4]) -> Option<(Order, u32)> {
        [(Order::Little, u32::from_le_bytes(first)), (Order::Big, u32::from_be_bytes(first))]
            .into_iter()
            .find(|(_, magic)| matches!(*magic, MICROSECONDS | NANOSECONDS | MODIFIED))
    }

    /// Reads the file's header.
    pub(crate) fn new<R: Read>(
        input: &mut Input<R>,
        (order, magic): (Order, u32),
    ) -> Result<Self, ReadError> {
        let bytes = input.fill(HEADER)?;
        if bytes.len() < HEADER {
            let (wanted, left) = (HEADER as u64, bytes.len() as u64);
            return Err(ReadError::Broken {
                offset: 0,
                what: Broken::Short { what: "a header", wanted, left },
            });
        }
        let (major, minor) = (order.u16(bytes, 4), order.u16(bytes, 6));
        let swapped = match (major, minor) {
            (2, 0..3) => Swapped::Yes,
            (2, 3) => Swapped::Maybe,
            (2, 4) => Swapped::No,
            _ => return Err(ReadError::Version { major, minor }),
        };
        // The upper half: bit 26 says that the four highest bits count the FCS's 16-bit words.
        let network = order.u32(bytes, 20);
        let fcs = if network & (1 << 26) == 0 { 0 } else { (network >> 28) as usize * 2 };
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is the link type")]
        let link = Link(network as u16);
        input.consume(HEADER);
        Ok(Self {
            order,
            unit: if magic == NANOSECONDS { 1 } else { 1000 },
            head: if magic == MODIFIED { 24 } else { 16 },
            swapped,
            link,
            fcs,
        })
    }

    /// The next record, which is then at hand from its first byte on.
    pub(crate) fn next<R: Read>(&self, input: &mut Input<R>) -> Result<Option<Found>, ReadError> {
        let offset = input.offset();
        let broken = |what| ReadError::Broken { offset, what };
        let bytes = input.fill(self.head)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() < self.head {
            let (wanted, left) = (self.head as u64, bytes.len() as u64);
            return Err(broken(Broken::Short { what: "a packet's header", wanted, left }));
        }
        let number = |at| self.order.u32(bytes, at);
        let time = u64::from(number(0)) * 1_000_000_000 + u64::from(number(4)) * self.unit;
        let (mut captured, mut original) = (number(8), number(12));
        if self.swapped == Swapped::Yes || (self.swapped == Swapped::Maybe && captured > original) {
            (captured, original) = (original, captured);
        }
        let len = captured as usize;
        if len > MAX_PACKET {
            return Err(broken(Broken::TooLong(captured)));
        }
        let total = self.head + len;
        let left = input.fill(total)?.len();
        if left < total {
            let (wanted, left) = (total as u64, left as u64);
            return Err(broken(Broken::Short { what: "a packet", wanted, left }));
        }
        Ok(Some(Found {
            time: Some(time),
            link: self.link,
            fcs: self.fcs,
            original,
            start: self.head,
            len,
            total,
        }))
    }
}
