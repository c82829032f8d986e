//! Flows: which one a packet is of, and which packets of this machine's establish one.
//!
//! A flow is told by protocol, addresses and ports, seen from this machine: what it sends and what comes back have the same
//! flow. Headers are looked for where lists look for them ([`Headers`](super::Headers)): behind up to two VLAN tags, not
//! behind extension headers of IPv6, and not in later fragments.
//!
//! What establishes a flow must be nothing that a stranger's packet alone can make this machine send, or a flood would fill
//! the memory for flows with its own:
//!
//! | what leaves | establishes its flow |
//! |---|---|
//! | TCP with SYN and without ACK, or with ACK and without SYN; no RST | yes: we open a connection, or have one |
//! | TCP with SYN and ACK, or with RST; an ACK of a listener's, which only the kernel's program can tell | no: so strangers are answered |
//! | UDP | yes; answers of servers are left out by [`FlowOptions::except`] |
//! | ICMP and ICMPv6 echo requests | yes |
//! | all other ICMP, all other protocols | no: echo replies and errors are answers |

use super::headers::network;
use crate::Expression;
use crate::walk::Family;

/// What is kept of flows.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowOptions {
    /// So many at once, at most; rounded up to a power of two. What was used least recently makes room for others.
    pub most: usize,
    /// What leaves and matches one of these establishes nothing.
    pub except: Vec<Expression>,
}

/// Flows that are kept when nobody says how many.
const USUAL_FLOWS: usize = 1 << 16;

/// Most flows that can be kept.
pub const MOST_FLOWS: usize = 1 << 22;

impl Default for FlowOptions {
    fn default() -> Self {
        Self { most: USUAL_FLOWS, except: Vec::new() }
    }
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It comes in.
    In,
    /// It leaves this machine.
    Out,
}

/// A flow, as the words that it is known by: 0 is the IP version, the protocol and the ports, first ours, or an echo's
/// identifier in place of ours; the others are the addresses as they lie in a packet, first ours, and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    pub(super) words: [u64; WORDS],
}

/// Words that a flow is known by, and how many of them IPv4 uses.
pub(super) const WORDS: usize = 5;
pub(super) const WORDS_V4: usize = 2;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;

/// A TCP header's flags that say whether a packet establishes a flow: alone, the first two do.
pub(super) const SYN: u8 = 0x02;
pub(super) const ACK: u8 = 0x10;
pub(super) const SYN_RST_ACK: u8 = 0x16;
/// Where they stand.
pub(super) const FLAGS: usize = 13;
/// Where an echo's identifier stands.
pub(super) const IDENTIFIER: usize = 4;

/// The protocol of echoes, and the type of those that go this way: requests leave, replies come in.
pub(super) fn echo(family: Family, way: Way) -> (u8, u8) {
    match (family, way) {
        (Family::V4, Way::Out) => (ICMP, 8),
        (Family::V4, Way::In) => (ICMP, 0),
        (Family::V6, Way::Out) => (ICMPV6, 128),
        (Family::V6, Way::In) => (ICMPV6, 129),
    }
}

/// What stands above the ports in a flow's first word.
pub(super) fn kind(family: Family, protocol: u8) -> u32 {
    let version = match family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    version << 8 | u32::from(protocol)
}

impl Flow {
    /// The flow of a packet that begins with its Ethernet header. `None` for what has none and, of packets that leave, for
    /// what establishes none.
    pub fn of(packet: &[u8], way: Way) -> Option<Self> {
        let (family, at) = network(packet)?;
        let header = packet.get(at..)?;
        let (protocol, upper, addresses) = match family {
            Family::V4 => {
                let fixed: &[u8; 20] = header.first_chunk()?;
                if u16::from_be_bytes([fixed[6], fixed[7]]) & 0x1fff != 0 {
                    return None;
                }
                (fixed[9], usize::from(fixed[0] & 0xf) * 4, &fixed[12..])
            }
            Family::V6 => {
                let fixed: &[u8; 40] = header.first_chunk()?;
                (fixed[6], fixed.len(), &fixed[8..])
            }
        };
        let ports = ports(header.get(upper..)?, (family, protocol), way)?;
        let (source, destination) = addresses.split_at(addresses.len() / 2);
        let mut words = [0; WORDS];
        words[0] = u64::from(kind(family, protocol)) << 32 | u64::from(u32::from_ne_bytes(ports));
        let both = if way == Way::Out { [source, destination] } else { [destination, source] }.concat();
        for (word, bytes) in words[1..].iter_mut().zip(both.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Some(Self { words })
    }

    /// The words that are not always zero.
    pub(super) fn used_words(&self) -> &[u64] {
        let is_v4 = self.words[0] >> 40 == 4;
        &self.words[..if is_v4 { WORDS_V4 } else { WORDS }]
    }
}

/// Our port and the other one, as they lie in what leaves.
fn ports(upper: &[u8], (family, protocol): (Family, u8), way: Way) -> Option<[u8; 4]> {
    let (icmp, kind) = echo(family, way);
    if protocol == icmp {
        let &[high, low] = upper.get(IDENTIFIER..)?.first_chunk()?;
        return (upper[0] == kind).then_some([high, low, 0, 0]);
    }
    if protocol != TCP && protocol != UDP {
        return None;
    }
    let &[a, b, c, d] = upper.first_chunk()?;
    if way == Way::In {
        return Some([c, d, a, b]);
    }
    if protocol == TCP {
        let flags = upper.get(FLAGS)? & SYN_RST_ACK;
        return (flags == SYN || flags == ACK).then_some([a, b, c, d]);
    }
    Some([a, b, c, d])
}
