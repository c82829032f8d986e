//! What came of each flow: packets with the same protocol, addresses and ports.
//!
//! All memory is there from the start, whatever arrives. A flow has a place in one of eight ways of a set, chosen by a
//! hash of it. When all eight are taken, the flow with the fewest packets makes room, and what it had is counted with the
//! others: a flood of made-up flows pushes out its own and not those with many packets.
//!
//! The number in a packet counts the packets of its stream, which is a generator's queue. Numbers of a stream grow within
//! a flow too, so order and copies are known; and where a stream's flows take turns, as its probes say, the next packet
//! of a flow has a number that is just so much higher, so loss is known. From the first packet of a flow on until the
//! last one of its stream: a flow that has died goes on losing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{ETHERNET_HEADER, EtherType, IPV6_HEADER, Ipv4Header, Ipv6Header, Protocol, VlanTag};

use super::sequence::{Counts, Order};
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
    /// The stream it is of; `None` for what is no generator's, or of too many streams. Who sends a flow by two streams has
    /// two here.
    pub(super) stream: Option<u16>,
    /// Flows that take turns in the stream; 0 when they do not.
    pub(super) turns: u16,
    /// What is compared first: shorter than the key.
    hash: u64,
    pub(super) traffic: Traffic,
    /// Its part of the stream's numbers.
    pub(super) counts: Counts,
    /// Where the stream's count began in this queue.
    base: u64,
    /// Packets that say they are of it and are damaged. What was damaged may be just that.
    pub(super) damaged: u64,
}

/// What a generator's packet says of its place in its stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbered {
    pub(super) stream: u16,
    pub(super) turns: u16,
    pub(super) order: Order,
    /// Where the stream's count began in this queue, and where the packet stands on it.
    pub(super) places: (u64, u64),
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
    pub(super) fn note(&mut self, head: &[u8], len: usize, numbered: Option<Numbered>) {
        let Some(key) = Key::of(head) else { return };
        let stream = numbered.map(|numbered| numbered.stream);
        let hash = key.hash(stream);
        let Some(set) = self.sets.get_mut(place(hash)) else { return };
        let known = set.iter().position(|flow| flow.is(hash, &key, stream));
        let way = known.unwrap_or_else(|| room(set));
        let Some(flow) = set.get_mut(way) else { return };
        if known.is_none() {
            self.others += flow.traffic;
            let base = numbered.map_or(0, |numbered| numbered.places.0);
            *flow = Flow { key, stream, hash, base, ..Flow::default() };
        }
        flow.traffic.packets += 1;
        flow.traffic.bytes += len as u64;
        if let Some(Numbered { turns, order, places: (_, place), .. }) = numbered {
            flow.turns = turns;
            flow.counts.note_part(place, order);
        }
    }

    /// A packet came, which begins like this, says that it is of this stream and is damaged. Its place is noted where it is
    /// known, and one of the flow's.
    #[cold]
    pub(super) fn note_damaged(&mut self, head: &[u8], stream: u16, numbered: Option<Numbered>) {
        let Some(key) = Key::of(head) else { return };
        let hash = key.hash(Some(stream));
        let set = self.sets.get_mut(place(hash)).into_iter().flatten();
        if let Some(flow) = set.into_iter().find(|flow| flow.is(hash, &key, Some(stream))) {
            flow.damaged += 1;
            if let Some(Numbered { order, places: (_, place), .. }) = numbered
                && flow.has_turn_at(place)
            {
                flow.counts.damaged(|counts| counts.note_part(place, order));
            }
        }
    }

    /// Writes the worst of them behind `flows`, and the largest of those that are as good, `most` of them at most; returns
    /// what all others had. `end_of` says where a stream's highest number stands in this queue. Nothing is allocated where
    /// there is room.
    pub(super) fn top(&mut self, most: usize, end_of: impl Fn(u16) -> u64, flows: &mut Vec<Flow>) -> Traffic {
        let all = self.sets.as_flattened();
        let rank = |place: &u16| {
            let flow = all.get(usize::from(*place))?;
            let end = flow.stream.map_or(0, &end_of);
            (flow.traffic.packets > 0).then(|| (flow.faults(end), flow.traffic.packets))
        };
        self.order.clear();
        self.order.extend((0..all.len()).filter_map(|place| u16::try_from(place).ok()));
        self.order.retain(|place| rank(place).is_some());
        if self.order.len() > most {
            self.order.select_nth_unstable_by_key(most, |place| std::cmp::Reverse(rank(place)));
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

/// The set of a flow: the upper bits depend on all bits of the key.
fn place(hash: u64) -> usize {
    usize::try_from(hash >> (u64::BITS - SETS.trailing_zeros())).unwrap_or(0)
}

impl Flow {
    #[inline]
    fn is(&self, hash: u64, key: &Key, stream: Option<u16>) -> bool {
        self.hash == hash && self.key == *key && self.stream == stream && self.traffic.packets > 0
    }

    /// Whether a number at this place of the stream's count is one of its own: what is damaged may name another flow.
    fn has_turn_at(&self, place: u64) -> bool {
        self.turns > 0 && self.counts.lies_on(self.turns.into(), place)
    }

    /// Packets that were lost, when its stream has come up to here; `None` when that is not known.
    fn lost_until(&self, end: u64) -> Option<u64> {
        (self.turns > 0).then(|| self.counts.lost_of_each(self.turns.into(), end))
    }

    /// Packets that were lost, when this came of its stream by all queues.
    pub(super) fn lost(&self, stream: &Counts) -> Option<u64> {
        self.lost_until(stream.span_for(self.base).1)
    }

    /// All that went wrong.
    fn faults(&self, end: u64) -> u64 {
        let Counts { duplicates, reordered, .. } = self.counts;
        self.lost_until(end).unwrap_or(0).saturating_add(duplicates + reordered + self.damaged)
    }

    /// Puts what came by two queues together.
    pub(super) fn merge(&mut self, other: &Self) {
        self.traffic += other.traffic;
        self.counts.merge(&other.counts);
        self.damaged += other.damaged;
        self.turns = self.turns.min(other.turns);
        // The queue that began before the wrap is the one whose count goes on.
        self.base = self.base.max(other.base);
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
    fn hash(&self, stream: Option<u16>) -> u64 {
        let [a, b] = self.source;
        let [c, d] = self.destination;
        let stream = stream.map_or(0, |stream| 1 << 16 | u64::from(stream));
        let last = stream << 40 | u64::from(self.ports) << 8 | u64::from(self.protocol);
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
    use proptest::prelude::*;

    use super::super::sequence::Window;
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
        let others = flows.top(most, |_| 0, &mut found);
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

    /// A receiver's queue: judges the stream, and of which flow each of its packets was.
    #[derive(Default)]
    struct Queue {
        stream: Counts,
        window: Window,
    }

    impl Queue {
        fn note(&mut self, flows: &mut Flows, port: u16, (stream, turns): (u16, u16), sequence: u32) {
            let order = self.stream.note(&mut self.window, sequence);
            let places = self.stream.place_of(sequence);
            flows.note(&packet(1, port), 60, Some(Numbered { stream, turns, order, places }));
        }
    }

    fn found(flows: &mut Flows, most: usize, end: u64) -> Vec<Flow> {
        let mut found = Vec::new();
        flows.top(most, |_| end, &mut found);
        found.sort_by_key(|flow| (flow.key, flow.stream));
        found
    }

    #[test]
    fn order_and_copies_are_judged_within_a_flow_and_a_stream() {
        let (mut flows, mut queues) = (Flows::new(), [Queue::default(), Queue::default()]);
        for (port, stream, sequence) in
            [(1, 0, u32::MAX), (2, 0, 5), (1, 0, 4), (2, 0, 3), (1, 0, 2), (1, 0, 4), (1, 1, 0), (1, 1, 1)]
        {
            queues[usize::from(stream)].note(&mut flows, port, (stream, 0), sequence);
        }
        let figures = |flow: &Flow| (flow.stream, flow.counts.reordered, flow.counts.duplicates);
        let found = found(&mut flows, 10, 0);
        assert_eq!(
            found.iter().map(figures).collect::<Vec<_>>(),
            [(Some(0), 1, 1), (Some(1), 0, 0), (Some(0), 1, 0)]
        );
        assert!(found.iter().all(|flow| flow.lost(&queues[0].stream).is_none()), "they do not take turns");
    }

    #[test]
    fn a_damaged_packet_is_of_the_flow_that_it_names_if_there_is_one() {
        let (mut flows, mut queue) = (Flows::new(), Queue::default());
        queue.note(&mut flows, 1, (9, 1), 0);
        for (port, stream) in [(1, 9), (2, 9), (1, 8)] {
            flows.note_damaged(&packet(1, port), stream, None);
        }
        let figures = |flow: &Flow| (flow.damaged, flow.counts.received, flow.counts.reordered);
        assert_eq!(found(&mut flows, 10, 0).iter().map(figures).collect::<Vec<_>>(), [(1, 1, 0)]);
        // The first has a number that another flow's packet should have.
        queue.note(&mut flows, 1, (9, 3), 9);
        let places = queue.stream.place_of(0);
        for (ahead, received) in [(4, 2), (3, 3)] {
            let place = (places.0, places.0 + ahead);
            let numbered = Numbered { stream: 9, turns: 3, order: Order::Late, places: place };
            flows.note_damaged(&packet(1, 1), 9, Some(numbered));
            assert_eq!(found(&mut flows, 10, 0)[0].counts.received, received);
        }
        assert_eq!(found(&mut flows, 10, 0).iter().map(figures).collect::<Vec<_>>(), [(3, 3, 0)]);
    }

    #[test]
    fn the_worst_flows_come_before_the_largest() {
        let (mut flows, mut queue) = (Flows::new(), Queue::default());
        for n in (0..1000_u16).filter(|n| *n != 502) {
            queue.note(&mut flows, n % 10, (9, 10), n.into());
        }
        for _ in 0..2000 {
            flows.note(&packet(7, 7), 60, None);
        }
        let end = queue.stream.highest();
        let one = |most, flows: &mut Flows| {
            found(flows, most, end).iter().map(|f| f.traffic.packets).collect::<Vec<_>>()
        };
        assert_eq!(one(1, &mut flows), [99]);
        assert_eq!(one(2, &mut flows), [99, 2000]);
    }

    proptest! {
        /// Flows in turn, over a wrap of the numbers, by two queues; some packets are lost, from some point on all of
        /// a flow, and some come late or twice. Against sets of what came.
        #[test]
        fn loss_is_of_the_flow_that_had_the_packet(
            first: u32,
            turns in 1_u16..20,
            dead in (0_u16..20, 0_u32..2000),
            fates in prop::collection::vec(0_u8..20, 50..2000),
        ) {
            let (mut flows, mut queues) = ([Flows::new(), Flows::new()], [Queue::default(), Queue::default()]);
            let mut came: Vec<Vec<u32>> = vec![Vec::new(); turns.into()];
            let (mut late, mut copies, mut end) = (None, 0, 0);
            for (n, fate) in (0_u16..).zip(&fates) {
                let (n, flow) = (u32::from(n), n % turns);
                let mut note = |n: u32, flow: u16| {
                    let queue = usize::from(flow % 2);
                    queues[queue].note(&mut flows[queue], flow, (9, turns), first.wrapping_add(n));
                };
                if *fate == 0 || (flow == dead.0 && n > dead.1) {
                    continue;
                }
                came[usize::from(flow)].push(n);
                end = n;
                if *fate == 1 && late.is_none() {
                    late = Some((n, flow));
                    continue;
                }
                note(n, flow);
                if *fate == 2 {
                    note(n, flow);
                    copies += 1;
                }
                if let Some((n, flow)) = late.take() {
                    note(n, flow);
                }
            }
            if let Some((n, flow)) = late {
                queues[usize::from(flow % 2)].note(&mut flows[usize::from(flow % 2)], flow, (9, turns), first.wrapping_add(n));
            }
            let mut stream = queues[0].stream;
            stream.merge(&queues[1].stream);
            let mut found: Vec<Flow> = flows.iter_mut().flat_map(|flows| found(flows, 100, 0)).collect();
            found.sort_by_key(|flow| flow.key);
            let expected: Vec<u64> = came.iter().filter_map(|numbers| {
                let first = numbers.iter().min()?;
                Some(u64::from((end - first) / u32::from(turns)) + 1 - numbers.len() as u64)
            }).collect();
            let lost: Vec<u64> = found.iter().filter_map(|flow| flow.lost(&stream)).collect();
            prop_assert_eq!(lost, expected);
            prop_assert_eq!(found.iter().map(|flow| flow.counts.duplicates).sum::<u64>(), copies);
        }
    }
}
