//! Walks over chains of headers, whose ends stand at no fixed place.
//!
//! A walk is a pure function of the packet, so that both back ends do each at most once for a packet where its findings
//! may be asked for again. Chains are followed for a bounded number of headers: what has more of them is no packet that
//! anyone sends.

use crate::formula::{Operator, Size, Value};

/// A walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Walk {
    /// How many bytes of VLAN tags begin at the EtherType at this offset.
    Tags { named_at: u32 },
    /// 1 when a header of `protocol` is in the chain of headers of an IP packet, else 0.
    Chain { start: Start, protocol: u8 },
    /// What stands behind the extension headers of an IP packet, as [`Transport`] says.
    Transport { start: Start },
    /// Where a part of what a Geneve header carries stands (RFC 8926).
    Geneve { outer: Outer, part: Part },
}

/// Where an IP header begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Start {
    pub(crate) family: Family,
    pub(crate) network: u32,
    pub(crate) pushed: Pushed,
}

/// What comes before a header and has no fixed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pushed {
    Nothing,
    /// VLAN tags from the EtherType at this offset on.
    Tags {
        named_at: u32,
    },
    /// All up to the end of a Geneve header, and of the Ethernet header in it.
    Geneve(Outer),
}

/// The IP packet that a Geneve header is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Outer {
    /// Where the number stands by which IPv4 is told from IPv6, and that number, of so many bytes.
    pub(crate) named_at: u32,
    pub(crate) named_size: Size,
    pub(crate) named_mask: u32,
    pub(crate) named_v4: u32,
    pub(crate) network: u32,
    /// The EtherType from which on VLAN tags push both further.
    pub(crate) tags_at: Option<u32>,
}

/// A part of what a Geneve header carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// Where the number stands that names the payload: in the inner Ethernet header, or in the Geneve header itself.
    Named,
    /// Where the inner Ethernet header stands, or the payload when there is none.
    Header,
    /// Where the payload stands.
    Payload,
}

/// What a Geneve header says when it carries an Ethernet frame.
pub(crate) const GENEVE_ETHERNET: u16 = 0x6558;

/// Versions of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

impl Family {
    /// What Ethernet calls it.
    pub(crate) fn ether_type(self) -> u16 {
        match self {
            Self::V4 => 0x0800,
            Self::V6 => 0x86dd,
        }
    }
}

/// Most different walks of one expression whose findings are kept.
pub(crate) const MOST_WALKS: usize = 12;

/// Most VLAN tags that are followed.
pub(crate) const MOST_TAGS: usize = 16;

/// Most headers in a chain that are followed.
pub(crate) const MOST_HEADERS: usize = 64;

/// The three EtherTypes of VLAN tags.
pub(crate) const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// How [`Walk::Transport`] says what it found, in one number: the offset of the upper header in the lower half, its
/// protocol above that, and flags.
pub(crate) struct Transport;

impl Transport {
    pub(crate) const OFFSET: u32 = 0xffff;
    pub(crate) const PROTOCOL: u32 = 0xff_0000;
    pub(crate) const PROTOCOL_SHIFT: u32 = 16;
    /// It is the first fragment of several.
    pub(crate) const FIRST: u32 = 1 << 24;
    /// It is a later fragment: no upper header is there.
    pub(crate) const LATER: u32 = 1 << 25;
}

/// What one header in a chain tells of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Its length is its second byte, plus one, times eight.
    Eights,
    /// Its length is its second byte, plus two, times four (AH).
    Fours,
    /// It has eight bytes and says which fragment this is.
    Fragment,
}

/// Protocols that are headers with another one behind them. `chain` is what `protochain` follows; the other is all that
/// IANA lists as extension headers.
pub(crate) fn links(walk: &Walk) -> &'static [(u8, Link)] {
    const AH: (u8, Link) = (51, Link::Fours);
    match walk {
        Walk::Tags { .. } | Walk::Geneve { .. } => &[],
        Walk::Chain { start: Start { family: Family::V4, .. }, .. }
        | Walk::Transport { start: Start { family: Family::V4, .. } } => &[AH],
        Walk::Chain { .. } => {
            &[(0, Link::Eights), (60, Link::Eights), (43, Link::Eights), (44, Link::Eights), AH]
        }
        Walk::Transport { .. } => &[
            (0, Link::Eights),
            (60, Link::Eights),
            (43, Link::Eights),
            (44, Link::Fragment),
            AH,
            (135, Link::Eights),
            (139, Link::Eights),
            (140, Link::Eights),
        ],
    }
}

impl Walk {
    /// What the walk finds; `None` when the packet ends on the way, or the way is too long.
    pub(crate) fn find(self, packet: &[u8]) -> Option<u32> {
        match self {
            Self::Tags { named_at } => tags(packet, named_at as usize),
            Self::Chain { start, protocol } => self.chain(packet, start, protocol),
            Self::Transport { start } => self.transport(packet, start),
            Self::Geneve { outer, part } => geneve(packet, outer, part).and_then(|at| u32::try_from(at).ok()),
        }
    }

    /// Whether its findings are kept: chains are rarely asked for the same protocol twice.
    pub(crate) fn is_kept(self) -> bool {
        !matches!(self, Self::Chain { .. })
    }

    /// The walk that this one begins with.
    pub(crate) fn first(self) -> Option<Self> {
        match self {
            Self::Tags { .. } => None,
            Self::Chain { start, .. } | Self::Transport { start } => start.pushed.walk(),
            Self::Geneve { outer, .. } => outer.tags(),
        }
    }

    fn chain(self, packet: &[u8], start: Start, wanted: u8) -> Option<u32> {
        let (mut protocol, mut at, _) = start.header(packet)?;
        for _ in 0..MOST_HEADERS {
            if protocol == wanted {
                return Some(1);
            }
            let Some((_, link)) = links(&self).iter().find(|(known, _)| *known == protocol) else {
                return Some(0);
            };
            (protocol, at) = (*packet.get(at)?, at + link.length(*packet.get(at + 1)?));
        }
        None
    }

    fn transport(self, packet: &[u8], start: Start) -> Option<u32> {
        let (mut protocol, mut at, mut flags) = start.header(packet)?;
        let link =
            |protocol| links(&self).iter().find(|(known, _)| *known == protocol).map(|(_, link)| *link);
        let mut passed = 0;
        while let (Some(link), 0) = (link(protocol), flags & Transport::LATER) {
            if link == Link::Fragment {
                let [high, low] = *packet.get(at + 2..)?.first_chunk()?;
                flags = fragment_flags(u16::from_be_bytes([high, low]), 0xfff8, 1);
            }
            (protocol, at) = (*packet.get(at)?, at + link.length(*packet.get(at + 1)?));
            passed += 1;
            // Behind the header of a later fragment there is none to look for.
            if passed == MOST_HEADERS && flags & Transport::LATER == 0 {
                return None;
            }
        }
        let at = u32::try_from(at).ok().filter(|at| *at <= Transport::OFFSET)?;
        Some(flags | u32::from(protocol) << Transport::PROTOCOL_SHIFT | at)
    }
}

fn fragment_flags(field: u16, offset: u16, more: u16) -> u32 {
    if field & offset != 0 {
        Transport::LATER
    } else if field & more != 0 {
        Transport::FIRST
    } else {
        0
    }
}

fn tags(packet: &[u8], named_at: usize) -> Option<u32> {
    let mut bytes = 0;
    for _ in 0..=MOST_TAGS {
        let kind = *packet.get(named_at + bytes..)?.first_chunk()?;
        if !TAGS.contains(&u16::from_be_bytes(kind)) {
            return u32::try_from(bytes).ok();
        }
        bytes += 4;
    }
    None
}

fn geneve(packet: &[u8], outer: Outer, part: Part) -> Option<usize> {
    let pushed = Pushed::of_tags(outer.tags_at).bytes(packet)?;
    let network = outer.network as usize + pushed;
    let named = outer.named_at as usize + pushed;
    let number = match outer.named_size {
        Size::Byte => u32::from(*packet.get(named)?),
        _ => u32::from(u16::from_be_bytes(*packet.get(named..)?.first_chunk()?)),
    };
    let is_v4 = number & outer.named_mask == outer.named_v4;
    let header = if is_v4 { 4 * usize::from(packet.get(network)? & 0xf) } else { 40 };
    let [first, _, kind @ ..] = *packet.get(network + header + UDP_HEADER as usize..)?.first_chunk::<4>()?;
    let start = network + header + UDP_HEADER as usize;
    let end = start + 8 + 4 * usize::from(first & 0x3f);
    let ethernet = u16::from_be_bytes(kind) == GENEVE_ETHERNET;
    Some(match part {
        Part::Named if ethernet => end + 12,
        Part::Named => start + 2,
        Part::Payload if ethernet => end + 14,
        Part::Header | Part::Payload => end,
    })
}

/// Bytes of a UDP header.
pub(crate) const UDP_HEADER: u32 = 8;

impl Outer {
    fn tags(self) -> Option<Walk> {
        self.tags_at.map(|named_at| Walk::Tags { named_at })
    }
}

impl Pushed {
    pub(crate) fn of_tags(tags_at: Option<u32>) -> Self {
        tags_at.map_or(Self::Nothing, |named_at| Self::Tags { named_at })
    }

    /// The walk that says by how many bytes.
    pub(crate) fn walk(self) -> Option<Walk> {
        match self {
            Self::Nothing => None,
            Self::Tags { named_at } => Some(Walk::Tags { named_at }),
            Self::Geneve(outer) => Some(Walk::Geneve { outer, part: Part::Payload }),
        }
    }

    fn bytes(self, packet: &[u8]) -> Option<usize> {
        match self.walk() {
            Some(walk) => usize::try_from(walk.find(packet)?).ok(),
            None => Some(0),
        }
    }
}

impl Start {
    /// The first protocol behind the IP header, where it begins, and which fragment it is.
    fn header(self, packet: &[u8]) -> Option<(u8, usize, u32)> {
        let at = self.network as usize + self.pushed.bytes(packet)?;
        match self.family {
            Family::V4 => {
                let length = 4 * usize::from(packet.get(at)? & 0xf);
                let [high, low] = *packet.get(at + 6..)?.first_chunk()?;
                let protocol = *packet.get(at + 9)?;
                Some((protocol, at + length, fragment_flags(u16::from_be_bytes([high, low]), 0x1fff, 0x2000)))
            }
            Family::V6 => Some((*packet.get(at + 6)?, at + 40, 0)),
        }
    }
}

impl Link {
    fn length(self, second: u8) -> usize {
        match self {
            Self::Eights => 8 * (usize::from(second) + 1),
            Self::Fours => 4 * (usize::from(second) + 2),
            Self::Fragment => 8,
        }
    }
}

/// The sum of two values, of which the first may be missing.
pub(crate) fn sum(first: Option<Value>, second: Value) -> Value {
    match first {
        Some(first) => Value::Binary(Operator::Add, Box::new(first), Box::new(second)),
        None => second,
    }
}
