//! pcapng: blocks, of which some describe interfaces and some hold a packet each.

use std::io::Read;

use crate::input::{Input, Order};
use crate::read::Found;
use crate::{Broken, Link, MAX_INTERFACES, MAX_PACKET, ReadError};

/// Begins a section; the same in both byte orders.
pub(crate) const SECTION: u32 = 0x0a0d_0d0a;
/// Tells a section's byte order.
pub(crate) const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Describes an interface.
pub(crate) const INTERFACE: u32 = 1;
/// Holds a packet, as files before 2005 had it.
const OLD_PACKET: u32 = 2;
/// Holds a packet of interface 0 without a time.
const SIMPLE_PACKET: u32 = 3;
/// Holds statistics of an interface.
pub(crate) const STATISTICS: u32 = 5;
/// Holds a packet.
pub(crate) const PACKET: u32 = 6;

/// The option that ends a block's options.
pub(crate) const END_OF_OPTIONS: u16 = 0;
/// A text for people, of any block.
pub(crate) const COMMENT: u16 = 1;
/// An interface's unit of time: a negative power of 10, or of 2 when the highest bit is set.
pub(crate) const TIME_RESOLUTION: u16 = 9;
/// Length of the FCS.
const FCS_LENGTH: u16 = 13;
/// What is known of one packet, as bits.
const FLAGS: u16 = 2;
/// Seconds to be added to all times.
const TIME_OFFSET: u16 = 14;

/// The longest block that is held in memory. Others may be as long as they like.
const MAX_BLOCK: u32 = 16 << 20;

/// How to read the blocks that follow.
#[derive(Debug)]
pub(crate) struct Ng {
    order: Order,
    interfaces: Vec<Interface>,
    passing: Option<Passing>,
}

/// A block that tells us nothing, and that is not gone over to its end.
#[derive(Debug)]
struct Passing {
    offset: u64,
    length: u32,
    /// Bytes in front of the length that it ends with.
    left: u64,
}

/// What is known of an interface.
#[derive(Clone, Debug)]
struct Interface {
    link: Link,
    snap: u32,
    fcs: usize,
    unit: Unit,
    /// Seconds.
    offset: i64,
}

/// An interface's unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// So many in a nanosecond's place: each is this many nanoseconds.
    Nanoseconds(u64),
    /// So many in a second.
    PerSecond(u128),
}

/// Reads options until they end; the second argument's value is the option's bytes.
fn each_option(order: Order, mut rest: &[u8], mut each: impl FnMut(u16, &[u8])) -> Option<()> {
    while rest.len() >= 4 {
        let (code, len) = (order.u16(rest, 0), usize::from(order.u16(rest, 2)));
        if code == END_OF_OPTIONS {
            break;
        }
        each(code, rest.get(4..4 + len)?);
        // The last option's padding is sometimes left out.
        rest = rest.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(())
}

impl Unit {
    fn new(resolution: u8) -> Self {
        let exponent = u32::from(resolution & 0x7f);
        if resolution & 0x80 != 0 {
            return Self::PerSecond(1 << exponent);
        }
        match exponent {
            0..=9 => Self::Nanoseconds(10_u64.pow(9 - exponent)),
            // Beyond 10^38 in a second no time is as long as a nanosecond.
            _ => Self::PerSecond(10_u128.checked_pow(exponent).unwrap_or(u128::MAX)),
        }
    }

    #[inline]
    fn nanoseconds(self, ticks: u64) -> u64 {
        match self {
            Self::Nanoseconds(each) => ticks.saturating_mul(each),
            Self::PerSecond(units) => {
                u64::try_from(u128::from(ticks) * 1_000_000_000 / units).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Interface {
    /// From a block's body; `None` when it is too short for what it says.
    fn parse(order: Order, body: &[u8]) -> Option<Self> {
        let fixed = body.get(..8)?;
        let mut interface = Self {
            link: Link(order.u16(fixed, 0)),
            snap: order.u32(fixed, 4),
            fcs: 0,
            unit: Unit::new(6),
            offset: 0,
        };
        each_option(order, &body[8..], |code, value| match (code, value) {
            (TIME_RESOLUTION, &[resolution]) => interface.unit = Unit::new(resolution),
            // The draft counts bits; files are seen that count bytes.
            (FCS_LENGTH, &[4 | 32]) => interface.fcs = 4,
            (TIME_OFFSET, value) if value.len() == 8 => interface.offset = order.i64(value, 0),
            _ => {}
        })?;
        Some(interface)
    }

    /// Nanoseconds since 1970, from a time's two halves; the nearest that can be said when it lies outside.
    #[inline]
    fn time(&self, high: u32, low: u32) -> u64 {
        let time = self.unit.nanoseconds(u64::from(high) << 32 | u64::from(low));
        if self.offset == 0 {
            return time;
        }
        let time = i128::from(time) + i128::from(self.offset) * 1_000_000_000;
        u64::try_from(time.max(0)).unwrap_or(u64::MAX)
    }
}

impl Ng {
    /// For a file that begins with a section, which is not read yet.
    pub(crate) fn new() -> Self {
        Self { order: Order::Little, interfaces: Vec::new(), passing: None }
    }

    /// The next packet's block, which is then at hand from its first byte on.
    pub(crate) fn next<R: Read>(&mut self, input: &mut Input<R>) -> Result<Option<Found>, ReadError> {
        loop {
            self.pass(input)?;
            let offset = input.offset();
            let broken = |what| ReadError::Broken { offset, what };
            let bytes = input.fill(12)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            if bytes.len() < 12 {
                let left = bytes.len() as u64;
                return Err(broken(Broken::Short { what: "a block", wanted: 12, left }));
            }
            let is_section = self.order.u32(bytes, 0) == SECTION;
            if is_section {
                self.order = byte_order(bytes).map_err(broken)?;
                self.interfaces.clear();
            }
            let (kind, length) = (self.order.u32(bytes, 0), self.order.u32(bytes, 4));
            if length < 12 || !length.is_multiple_of(4) {
                return Err(broken(Broken::Length(length)));
            }
            if !matches!(kind, SECTION | INTERFACE | OLD_PACKET | SIMPLE_PACKET | PACKET) {
                self.passing = Some(Passing { offset, length, left: u64::from(length) - 4 });
                continue;
            }
            let block = whole(self.order, input, length)?;
            let body = &block[8..block.len() - 4];
            let found = match kind {
                SECTION => section(self.order, body, length, offset).map(|()| None)?,
                INTERFACE if self.interfaces.len() == MAX_INTERFACES => {
                    return Err(broken(Broken::TooManyInterfaces));
                }
                INTERFACE => {
                    let interface = Interface::parse(self.order, body);
                    self.interfaces.push(interface.ok_or_else(|| broken(Broken::Inside { length }))?);
                    None
                }
                _ => Some(self.packet(kind, body, length).map_err(broken)?),
            };
            if found.is_some() {
                return Ok(found);
            }
            input.consume(length as usize);
        }
    }

    /// Goes over a block that tells us nothing, or over the rest of it.
    fn pass<R: Read>(&mut self, input: &mut Input<R>) -> Result<(), ReadError> {
        let Some(Passing { offset, length, left }) = &mut self.passing else { return Ok(()) };
        let there = input.skip(left)?;
        let (offset, length) = (*offset, *length);
        let bytes = if there { input.fill(4)? } else { input.bytes() };
        if !there || bytes.len() < 4 {
            let left = input.offset() - offset + input.bytes().len() as u64;
            return Err(ReadError::Broken {
                offset,
                what: Broken::Short { what: "a block", wanted: length.into(), left },
            });
        }
        let tail = self.order.u32(bytes, 0);
        if tail != length {
            return Err(ReadError::Broken { offset, what: Broken::Trailer { head: length, tail } });
        }
        input.consume(4);
        self.passing = None;
        Ok(())
    }

    /// What a packet's block says.
    fn packet(&self, kind: u32, body: &[u8], length: u32) -> Result<Found, Broken> {
        let number = |at| self.order.u32(body, at);
        let fixed = if kind == SIMPLE_PACKET { 4 } else { 20 };
        let space = body.len().checked_sub(fixed).ok_or(Broken::Inside { length })?;
        let id = match kind {
            PACKET => number(0),
            OLD_PACKET => self.order.u16(body, 0).into(),
            _ => 0,
        };
        let interface = usize::try_from(id).ok().and_then(|id| self.interfaces.get(id));
        let interface = interface.ok_or(Broken::Interface(id))?;
        let (time, captured, original) = if kind == SIMPLE_PACKET {
            let original = number(0);
            let snap = if interface.snap == 0 { u32::MAX } else { interface.snap };
            (None, original.min(snap), original)
        } else {
            (Some(interface.time(number(4), number(8))), number(12), number(16))
        };
        let len = captured as usize;
        if len > MAX_PACKET {
            return Err(Broken::TooLong(captured));
        }
        if len > space {
            return Err(Broken::Inside { length });
        }
        let options = body.get(fixed + len.next_multiple_of(4)..).unwrap_or_default();
        let own = if kind == SIMPLE_PACKET { 0 } else { fcs_of_packet(self.order, options) };
        let (link, fcs) = (interface.link, if own == 0 { interface.fcs } else { own });
        Ok(Found { time, link, fcs, original, start: 8 + fixed, len, total: length as usize })
    }
}

/// Bytes of the FCS that a packet's options tell of; 0 where they don't.
#[inline]
fn fcs_of_packet(order: Order, options: &[u8]) -> usize {
    let mut fcs = 0;
    // What is wrong with options is no reason not to have the packet.
    let _ = each_option(order, options, |code, value| {
        if code == FLAGS && value.len() == 4 {
            fcs = (order.u32(value, 0) >> 5 & 0xf) as usize;
        }
    });
    fcs
}

/// Brings a whole block to hand and compares its two lengths.
fn whole<R: Read>(order: Order, input: &mut Input<R>, length: u32) -> Result<&[u8], ReadError> {
    let offset = input.offset();
    let broken = |what| ReadError::Broken { offset, what };
    if length > MAX_BLOCK {
        return Err(broken(Broken::Length(length)));
    }
    let bytes = input.fill(length as usize)?;
    let left = bytes.len() as u64;
    let Some(block) = bytes.get(..length as usize) else {
        return Err(broken(Broken::Short { what: "a block", wanted: length.into(), left }));
    };
    let tail = order.u32(block, block.len() - 4);
    if tail == length { Ok(block) } else { Err(broken(Broken::Trailer { head: length, tail })) }
}

fn byte_order(block: &[u8]) -> Result<Order, Broken> {
    let order = [Order::Little, Order::Big].into_iter().find(|order| order.u32(block, 8) == BYTE_ORDER);
    order.ok_or_else(|| {
        let mut raw = [0; 4];
        raw.copy_from_slice(&block[8..12]);
        Broken::ByteOrder(raw)
    })
}

/// Looks at a section's version.
fn section(order: Order, body: &[u8], length: u32, offset: u64) -> Result<(), ReadError> {
    if body.len() < 16 {
        return Err(ReadError::Broken { offset, what: Broken::Inside { length } });
    }
    match (order.u16(body, 4), order.u16(body, 6)) {
        // 1.2 is the same and was written for a while.
        (1, 0 | 2) => Ok(()),
        (major, minor) => Err(ReadError::Version { major, minor }),
    }
}
