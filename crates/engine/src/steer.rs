//! Which engine a packet is for: the one whose stack has, or would have, its flow.
//!
//! Every engine asks this of every packet it receives, whatever queue it came in on, so that a flow is in one place
//! also where a NIC or a kernel spreads packets by rules of its own. The hash is keyed: nobody outside can choose flows
//! that all meet at one engine.

use bywash_stack::wire::zerocopy::FromBytes;
use bywash_stack::wire::{EtherType, EthernetHeader, Ipv4Header, Ipv6Header, Next, Place, Protocol, VlanTag};
use bywash_stack::{Address, Flow};

/// How flows are spread over engines.
#[derive(Clone, Debug)]
pub(crate) struct Steering {
    keys: [u64; 2],
    engines: usize,
}

impl Steering {
    pub(crate) fn new(random: [u8; 16], engines: usize) -> Self {
        let bits = u128::from_ne_bytes(random);
        #[expect(clippy::cast_possible_truncation, reason = "split in two halves")]
        Self { keys: [bits as u64 | 1, (bits >> 64) as u64 | 1], engines }
    }

    pub(crate) fn engines(&self) -> usize {
        self.engines
    }

    /// The engine of a flow of TCP or UDP.
    #[inline]
    pub(crate) fn engine(&self, flow: &Flow) -> usize {
        let ports = u64::from(flow.local_port) << 16 | u64::from(flow.remote_port);
        self.spread(flow.local, flow.remote, ports)
    }

    /// The engine for a frame that came in. What is not for one flow alone, as ARP, is for the first.
    #[inline]
    pub(crate) fn engine_of(&self, frame: &[u8], vlan: bool) -> usize {
        if self.engines == 1 {
            return 0;
        }
        network(frame, vlan)
            .and_then(|(kind, packet)| flow(kind, packet))
            .map_or(0, |flow| self.engine(&flow))
    }

    #[inline]
    fn spread(&self, local: Address, remote: Address, ports: u64) -> usize {
        let mut mixed = self.keys[0];
        for address in [local.wire(), remote.wire()] {
            for half in [address >> 64, address & u128::from(u64::MAX)] {
                mixed = mix(mixed ^ u64::try_from(half).unwrap_or_default(), self.keys[1]);
            }
        }
        let hash = mix(mixed ^ ports, self.keys[1]);
        // The upper bits, by a product: without a division, and evenly.
        let place = (u128::from(hash) * self.engines as u128) >> 64;
        usize::try_from(place).unwrap_or_default()
    }
}

#[inline]
fn mix(a: u64, key: u64) -> u64 {
    let product = u128::from(a) * u128::from(key | 0x9e37_79b9_0000_0001);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are wanted")]
    let folded = (product >> 64) as u64 ^ product as u64;
    (folded ^ folded >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// What is behind the Ethernet header and its tag. `vlan`: the tag has been taken off already.
#[inline]
fn network(frame: &[u8], vlan: bool) -> Option<(EtherType, &[u8])> {
    let (ethernet, rest) = EthernetHeader::ref_from_prefix(frame).ok()?;
    let kind = EtherType(ethernet.kind.get());
    if kind == EtherType::VLAN && !vlan {
        let (tag, rest) = VlanTag::ref_from_prefix(rest).ok()?;
        return Some((EtherType(tag.kind.get()), rest));
    }
    Some((kind, rest))
}

/// The flow of a packet seen from here. Pieces of a datagram have no ports, so that all of them meet, and what is
/// neither TCP nor UDP has none either.
#[inline]
fn flow(kind: EtherType, packet: &[u8]) -> Option<Flow> {
    let (source, destination, upper): (Address, Address, _) = match kind {
        EtherType::IPV4 => {
            let (header, _) = Ipv4Header::ref_from_prefix(packet).ok()?;
            let upper = (!header.is_fragment()).then_some((header.protocol, header.header_length()));
            (header.source().into(), header.destination().into(), upper)
        }
        EtherType::IPV6 => {
            let (header, _) = Ipv6Header::ref_from_prefix(packet).ok()?;
            let upper = match Place::first(packet)?.follow(packet) {
                Ok(Next::Upper(place)) => Some((place.protocol, place.start)),
                Ok(Next::Fragment(_)) | Err(_) => None,
            };
            (header.source().into(), header.destination().into(), upper)
        }
        _ => return None,
    };
    let flow = Flow { local: destination, remote: source, ..Flow::default() };
    let ports = upper
        .filter(|(protocol, _)| matches!(Protocol(*protocol), Protocol::TCP | Protocol::UDP))
        .and_then(|(_, start)| packet.get(start..start + 4));
    let Some([a, b, c, d]) = ports else { return Some(flow) };
    let (remote_port, local_port) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
    Some(Flow { local_port, remote_port, ..flow })
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use bywash_stack::wire::zerocopy::IntoBytes;
    use bywash_stack::wire::{FragmentHeader, Mac};
    use proptest::prelude::*;

    use super::*;

    fn ethernet(kind: EtherType) -> Vec<u8> {
        let header = EthernetHeader { destination: Mac([2; 6]), source: Mac([4; 6]), kind: kind.0.into() };
        header.as_bytes().to_vec()
    }

    fn frame(flow: &Flow, protocol: Protocol) -> Vec<u8> {
        let ports = [flow.remote_port.to_be_bytes(), flow.local_port.to_be_bytes()].concat();
        match (flow.remote.ip(), flow.local.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let header = Ipv4Header::new(from, to, protocol.0, 8);
                [&ethernet(EtherType::IPV4), header.as_bytes(), &ports, &[0; 4]].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let header = Ipv6Header::new(from, to, protocol.0, 8);
                [&ethernet(EtherType::IPV6), header.as_bytes(), &ports, &[0; 4]].concat()
            }
            _ => unreachable!("both ends are of one family"),
        }
    }

    fn steering(engines: usize) -> Steering {
        Steering::new([9; 16], engines)
    }

    #[test]
    fn flows_that_are_alike_are_spread_evenly() {
        for (local, remote) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let [local, remote] = [local, remote].map(|text| text.parse::<IpAddr>().unwrap().into());
            let mut flows = [0; 3];
            for remote_port in 1000..4000 {
                flows[steering(3).engine(&Flow { local, remote, local_port: 80, remote_port })] += 1;
            }
            assert!(flows.iter().all(|n| (900..1100).contains(n)), "{flows:?}");
        }
    }

    #[test]
    fn a_tag_makes_no_difference_and_pieces_of_a_datagram_meet() {
        let flow = Flow {
            local: Ipv4Addr::new(10, 0, 0, 1).into(),
            remote: Ipv4Addr::new(10, 0, 0, 2).into(),
            local_port: 80,
            remote_port: 1234,
        };
        let steering = steering(64);
        let plain = frame(&flow, Protocol::UDP);
        let tagged = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
        assert_eq!(steering.engine_of(&plain, false), steering.engine_of(&tagged, false));
        let pieces = [0x2000u16, 0x0001].map(|fragment| {
            let mut piece = plain.clone();
            piece[20..22].copy_from_slice(&fragment.to_be_bytes());
            // What looks like ports is payload in all but the first.
            piece[34..38].copy_from_slice(&u32::from(fragment).to_be_bytes());
            steering.engine_of(&piece, false)
        });
        assert_eq!(pieces[0], pieces[1]);
        assert_eq!(steering.engine_of(&ethernet(EtherType::ARP), false), 0);
    }

    #[test]
    fn extension_headers_are_passed_over() {
        let ends = [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];
        let flow = Flow { local: ends[0].into(), remote: ends[1].into(), local_port: 80, remote_port: 99 };
        let plain = frame(&flow, Protocol::TCP);
        let mut padded = [&plain[..54], &[Protocol::TCP.0, 0, 1, 4, 0, 0, 0, 0], &plain[54..]].concat();
        padded[20] = Protocol::DESTINATION_OPTIONS.0;
        let steering = steering(64);
        assert_eq!(steering.engine_of(&padded, false), steering.engine(&flow));
        let fragment = FragmentHeader::new(Protocol::TCP.0, 0, true, 7);
        let mut piece = [&plain[..54], fragment.as_bytes(), &plain[54..]].concat();
        piece[20] = Protocol::FRAGMENT.0;
        let ports = Flow { local_port: 0, remote_port: 0, ..flow };
        assert_eq!(steering.engine_of(&piece, false), steering.engine(&ports));
    }

    proptest! {
        /// A frame goes where its flow is looked for when the program opens a connection.
        #[test]
        fn a_frame_goes_where_its_flow_is(
            ends in any::<[u32; 2]>(), ports in any::<[u16; 2]>(), v6 in any::<bool>(), engines in 1usize..9,
        ) {
            let ip = |bits: u32| -> Address {
                if v6 { Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(bits)).into() } else { Ipv4Addr::from_bits(bits).into() }
            };
            let flow =
                Flow { local: ip(ends[0]), remote: ip(ends[1]), local_port: ports[0], remote_port: ports[1] };
            let steering = steering(engines);
            prop_assert_eq!(steering.engine_of(&frame(&flow, Protocol::TCP), false), steering.engine(&flow));
        }

        #[test]
        fn any_bytes_have_an_engine(bytes in any::<Vec<u8>>(), vlan in any::<bool>()) {
            prop_assert!(steering(5).engine_of(&bytes, vlan) < 5);
        }
    }
}
