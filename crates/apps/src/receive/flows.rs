//! What came of each flow: packets with the same protocol, addresses and ports.
//!
//! All memory is there from the start, whatever arrives. A flow has a place in one of eight ways of a set, chosen by a
//! hash of it. When all eight are taken, the flow with the fewest packets makes room, and what it had is counted with the
//! others: a flood of made-up flows pushes out its own and not those with many packets.
//!
//! Loss is not known by flow. The number in a packet counts the packets of its stream, which is a generator's queue, and
//! nobody says which flow a missing number was of. Order is known: numbers of a stream grow within a flow too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{ETHERNET_HEADER, EtherType, IPV6_HEADER, Ipv4Header, Ipv6Header, Protocol, VlanTag};

use crate::probe::Probe;
use crate::rate::Traffic;

/// Flows that one queue can tell apart.
const MOST_FLOWS: usize = 4096;

/// Places that a flow may have.
const WAYS: usize = 8;

const SETS: usize = MOST_FLOWS / WAYS;

/// Most flows that are shown.
pub const MOST_SHOWN: usize = 1000;

/// What packets of one flow have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// IPv4 addresses are in the lower half, behind [`V4`].
    source: [u64; 2],
    destination: [u64; 2],
    /// The ports; 0 where there are none.
    ports: u32,
    protocol: u8,
}

/// In front of an IPv4 address (IPv4-mapped, RFC 4291).
const V4: u64 = 0xffff << 32;

/// What came of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) key: Key,
    /// What is compared first: shorter than the key.
    hash: u64,
    pub(super) traffic: Traffic,
    /// Packets that came after one of the same stream with a higher number.
    pub(super) reordered: u64,
    /// The stream of the last packet and its highest number.
    highest: Option<(u16, u32)>,
}

/// The flows of one queue.
pub(super) struct Flows {
    sets: Box<[[Flow; WAYS]]>,
    /// Of packets whose flow made room.
    others: Traffic,
    /// Places of flows, for sorting.
    order: Vec<u16>,
}

impl Flows {
    pub(super) fn new() -> Self {
        Self {
            sets: vec![[Flow::default(); WAYS]; SETS].into(),
            others: Traffic::default(),
            order: Vec::with_capacity(MOST_FLOWS),
        }
    }

    /// A packet came, which begins like this and has `len` bytes.
    #[inline]
    pub(super) fn note(&mut self, head: &[u8], len: usize, probe: Option<&Probe>) {
        let Some(key) = Key::of(head) else { return };
        let hash = key.hash();
        // The upper bits depend on all bits of the key.
        let place = usize::try_from(hash >> (u64::BITS - SETS.trailing_zeros())).unwrap_or(0);
        let Some(set) = self.sets.get_mut(place) else { return };
        let is_it = |flow: &Flow| flow.hash == hash && flow.key == key && flow.traffic.packets > 0;
        let known = set.iter().position(is_it);
        let way = known.unwrap_or_else(|| room(set));
        let Some(flow) = set.get_mut(way) else { return };
        if known.is_none() {
            self.others += flow.traffic;
            *flow = Flow { key, hash, ..Flow::default() };
        }
        flow.traffic.packets += 1;
        flow.traffic.bytes += len as u64;
        if let Some(Probe { stream, sequence, .. }) = probe {
            match &mut flow.highest {
                Some((of, highest)) if of == stream => {
                    let ahead = sequence.wrapping_sub(*highest).cast_signed();
                    flow.reordered += u64::from(ahead < 0);
                    if ahead > 0 {
                        *highest = *sequence;
                    }
                }
                highest => *highest = Some((*stream, *sequence)),
            }
        }
    }

    /// Writes those with the most packets behind `flows`, `most` of them at most; returns what all others had. Nothing is
    /// allocated where there is room.
    pub(super) fn top(&mut self, most: usize, flows: &mut Vec<Flow>) -> Traffic {
        let all = self.sets.as_flattened();
        let packets = |place: &u16| all.get(usize::from(*place)).map_or(0, |flow| flow.traffic.packets);
        self.order.clear();
        self.order.extend((0..all.len()).filter_map(|place| u16::try_from(place).ok()));
        self.order.retain(|place| packets(place) > 0);
        if self.order.len() > most {
            self.order.select_nth_unstable_by_key(most, |place| std::cmp::Reverse(packets(place)));
        }
        let (shown, rest) = self.order.split_at(most.min(self.order.len()));
        let at = |place: &u16| all.get(usize::from(*place));
        flows.extend(shown.iter().filter_map(at));
        rest.iter().filter_map(at).fold(self.others, |sum, flow| sum + flow.traffic)
    }
}

/// A free place, or that of the flow with the fewest packets.
#[cold]
fn room(set: &[Flow; WAYS]) -> usize {
    let places = set.iter().enumerate().min_by_key(|(_, flow)| flow.traffic.packets);
    places.map_or(0, |(place, _)| place)
}

impl Flow {
    /// Packets of many flows.
    pub(super) fn of_many(traffic: Traffic) -> Self {
        Self { traffic, ..Self::default() }
    }

    /// Puts what came by two queues together.
    pub(super) fn merge(&mut self, other: &Self) {
        self.traffic += other.traffic;
        self.reordered += other.reordered;
    }
}

impl Key {
    /// The flow of an IP packet behind up to two VLAN tags; `None` for others.
    #[inline]
    fn of(head: &[u8]) -> Option<Self> {
        let mut at = ETHERNET_HEADER;
        let mut kind = u16::from_be_bytes(*head.get(at - 2..)?.first_chunk()?);
        for _ in 0..2 {
            if EtherType(kind).is_vlan() {
                kind = VlanTag::ref_from_prefix(head.get(at..)?).ok()?.0.kind.get();
                at += size_of::<VlanTag>();
            }
        }
        let ip = head.get(at..)?;
        let (source, destination, protocol, behind) = match EtherType(kind) {
            EtherType::IPV4 => {
                let (header, _) = Ipv4Header::ref_from_prefix(ip).ok()?;
                let address = |address: Ipv4Addr| [0, V4 | u64::from(address.to_bits())];
                // Only the first fragment has ports: all are told without.
                let behind = if header.is_fragment() { usize::MAX } else { header.header_length() };
                (address(header.source()), address(header.destination()), header.protocol, behind)
            }
            EtherType::IPV6 => {
                let (header, _) = Ipv6Header::ref_from_prefix(ip).ok()?;
                let address = |address: Ipv6Addr| {
                    let number = address.to_bits();
                    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
                    [(number >> 64) as u64, number as u64]
                };
                (address(header.source()), address(header.destination()), header.next_header, IPV6_HEADER)
            }
            _ => return None,
        };
        let has_ports = [Protocol::UDP, Protocol::TCP, Protocol::SCTP].contains(&Protocol(protocol));
        let ports = ip.get(behind..).and_then(|rest| rest.first_chunk()).filter(|_| has_ports);
        Some(Self {
            source,
            destination,
            ports: ports.map_or(0, |ports| u32::from_be_bytes(*ports)),
            protocol,
        })
    }

    #[inline]
    fn hash(&self) -> u64 {
        let [a, b] = self.source;
        let [c, d] = self.destination;
        let last = u64::from(self.ports) << 8 | u64::from(self.protocol);
        let mut hash = 0_u64;
        for word in [a, b, c, d, last] {
            hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        hash
    }
}

impl std::fmt::Display for Key {
    /// `UDP 10.0.0.1:9 > 10.0.0.2:9`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = |[high, low]: [u64; 2]| match (high, u32::try_from(low ^ V4)) {
            (0, Ok(address)) => IpAddr::V4(Ipv4Addr::from_bits(address)),
            _ => IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))),
        };
        let (source, destination) = (address(self.source), address(self.destination));
        write!(f, "{} ", Protocol(self.protocol))?;
        if self.ports == 0 {
            return write!(f, "{source} > {destination}");
        }
        let [from, to] = [self.ports >> 16, self.ports & 0xffff];
        match source {
            IpAddr::V4(_) => write!(f, "{source}:{from} > {destination}:{to}"),
            IpAddr::V6(_) => write!(f, "[{source}]:{from} > [{destination}]:{to}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(source: u32, port: u16) -> Vec<u8> {
        let mut packet = vec![2; 12];
        packet.extend([8, 0, 0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0, 0]);
        packet.extend(source.to_be_bytes());
        packet.extend([10, 0, 0, 2]);
        packet.extend(port.to_be_bytes());
        packet.extend([0, 9, 0, 26, 0, 0]);
        packet
    }

    fn top(flows: &mut Flows, most: usize) -> (Vec<(String, u64)>, u64) {
        let mut found = Vec::new();
        let others = flows.top(most, &mut found);
        found.sort_by_key(|flow| (std::cmp::Reverse(flow.traffic.packets), flow.key));
        (found.iter().map(|flow| (flow.key.to_string(), flow.traffic.packets)).collect(), others.packets)
    }

    #[test]
    fn each_flow_is_counted_by_itself() {
        let mut flows = Flows::new();
        for _ in 0..3 {
            flows.note(&packet(0x0a00_0001, 7), 60, None);
        }
        flows.note(&packet(0x0a00_0001, 8), 60, None);
        let mut tagged = packet(0x0a00_0001, 7);
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        flows.note(&tagged, 64, None);
        let mut six = vec![2; 12];
        six.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 6, 64]);
        six.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets());
        six.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets());
        six.extend([0, 80, 1, 0]);
        flows.note(&six, 60, None);
        flows.note(&[0; 60], 60, None);
        flows.note(&six[..20], 20, None);
        let (found, others) = top(&mut flows, 10);
        let names: Vec<_> = found.iter().map(|(name, packets)| (name.as_str(), *packets)).collect();
        assert_eq!(
            names,
            [
                ("UDP 10.0.0.1:7 > 10.0.0.2:9", 4),
                ("UDP 10.0.0.1:8 > 10.0.0.2:9", 1),
                ("TCP [fd00::1]:80 > [fd00::2]:256", 1)
            ]
        );
        assert_eq!(others, 0);
        assert_eq!(top(&mut flows, 1).1, 2);
    }

    #[test]
    fn a_flood_of_flows_leaves_the_large_ones() {
        let mut flows = Flows::new();
        for _ in 0..5 {
            flows.note(&packet(1, 1), 60, None);
        }
        for source in 0..100_000_u32 {
            flows.note(&packet(source.wrapping_mul(0x1003), 7), 60, None);
        }
        let (found, others) = top(&mut flows, 1);
        assert_eq!(found, [("UDP 0.0.0.1:1 > 10.0.0.2:9".to_owned(), 5)]);
        assert_eq!(others, 100_000);
    }

    #[test]
    fn order_is_judged_within_a_flow_and_a_stream() {
        let mut flows = Flows::new();
        let mut note = |port, stream, sequence| {
            let probe = Probe { stream, sequence, time: 0 };
            flows.note(&packet(1, port), 60, Some(&probe));
        };
        for (port, stream, sequence) in
            [(1, 1, u32::MAX), (2, 1, 5), (1, 1, 4), (2, 1, 3), (1, 1, 2), (1, 1, 4), (1, 2, 0), (1, 2, 1)]
        {
            note(port, stream, sequence);
        }
        let mut found = Vec::new();
        flows.top(10, &mut found);
        found.sort_by_key(|flow| flow.key);
        assert_eq!(found.iter().map(|flow| flow.reordered).collect::<Vec<_>>(), [1, 1]);
    }
}
