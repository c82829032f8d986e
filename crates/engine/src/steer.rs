//! Which engine a packet is for: the one whose stack has, or would have, its flow.
//!
//! A flow must be in one place, whatever queue its packets come in on. One of two says which, for all of an instance and from
//! its start on:
//!
//! - A keyed hash in software. Every engine asks it of every packet it receives, and hands over what is another's. That goes
//!   with any port. Nobody outside can choose flows that all meet at one engine.
//! - The NICs themselves, where each port has one queue for each engine and says by which key and table it spreads flows
//!   (RSS), all ports by the same. A segment of TCP that is certain to come where it belongs is hashed by no engine. What NICs may
//!   see otherwise than we is looked at in software, by the NIC's own hash: pieces of datagrams, which have no ports, options and
//!   extension headers in front of the ports, and UDP where its ports are not hashed. All else (ARP, ICMP) is no flow's, and
//!   any engine's. A connection of our own gets a port by which the answers come to the queue of its engine.
//!
//!   Where nothing is certain, since the NIC is a kernel's driver's, all TCP and UDP is looked at. Whoever may can set another key or
//!   table while we run (`ethtool -X`), or send a flow elsewhere (n-tuple rules, ixgbe's flow director of itself), and a driver may
//!   hash otherwise than it tells. A flow goes on then, by hand-over, as all of them do by a hash in software. To look only where a
//!   segment meets no connection would not do: a SYN meets a listener on each engine, and made a connection where nobody looks for
//!   it any more once the NIC is as it was.

use bywash_port::{Certain, RssSpread};
use bywash_stack::wire::zerocopy::FromBytes;
use bywash_stack::wire::{EtherType, EthernetHeader, Ipv4Header, Ipv6Header, Next, Place, Protocol, VlanTag};
use bywash_stack::{Address, Flow};

/// How flows are spread over engines.
#[derive(Clone, Debug)]
pub(crate) struct Steering {
    engines: usize,
    way: Way,
}

#[derive(Clone, Debug)]
enum Way {
    /// By a hash with these keys.
    Software([u64; 2]),
    /// By the NICs. Each queue has the engine of its number.
    Nic(Box<RssSpread>),
}

impl Steering {
    /// By a hash in software.
    pub(crate) fn by_software(random: [u8; 16], engines: usize) -> Self {
        let bits = u128::from_ne_bytes(random);
        #[expect(clippy::cast_possible_truncation, reason = "split in two halves")]
        let keys = [bits as u64 | 1, (bits >> 64) as u64 | 1];
        Self { engines, way: Way::Software(keys) }
    }

    /// As NICs do it. `None` where that leaves an engine without flows, or names one that is not there.
    pub(crate) fn by_nic(spread: RssSpread, engines: usize) -> Option<Self> {
        let mut queues = spread.table().iter().map(|queue| usize::from(*queue));
        let has = |engine: usize| spread.table().iter().any(|queue| usize::from(*queue) == engine);
        let fits = (0..engines).all(has) && queues.all(|queue| queue < engines);
        fits.then(|| Self { engines, way: Way::Nic(Box::new(spread)) })
    }

    pub(crate) fn engines(&self) -> usize {
        self.engines
    }

    /// Whether NICs do it.
    pub(crate) fn is_by_nic(&self) -> bool {
        matches!(self.way, Way::Nic(_))
    }

    /// The engine of a flow of TCP or UDP.
    #[inline]
    pub(crate) fn engine(&self, flow: &Flow) -> usize {
        match &self.way {
            Way::Software(keys) => self.hashed(*keys, flow),
            Way::Nic(spread) => {
                let ports = (flow.remote_port, flow.local_port);
                spread.queue((flow.remote.ip(), flow.local.ip()), Some(ports))
            }
        }
    }

    /// The engine for a frame that came in `here`. `vlan`: its tag has been taken off already.
    #[inline]
    pub(crate) fn engine_of(&self, frame: &[u8], vlan: bool, here: usize) -> usize {
        let packet = network(frame, vlan);
        match &self.way {
            // What is not for one flow alone, as ARP, is for the first.
            Way::Software(keys) => packet
                .and_then(|(kind, packet)| seen(kind, packet))
                .map_or(0, |(flow, _)| self.hashed(*keys, &flow)),
            Way::Nic(spread) => match packet {
                Some((kind, packet)) if !is_there(kind, packet, spread.certain()) => {
                    seen(kind, packet).map_or(here, |seen| by_nic(spread, seen, here))
                }
                _ => here,
            },
        }
    }

    #[inline]
    fn hashed(&self, keys: [u64; 2], flow: &Flow) -> usize {
        let mut mixed = keys[0];
        for address in [flow.local.wire(), flow.remote.wire()] {
            for half in [address >> 64, address & u128::from(u64::MAX)] {
                mixed = mix(mixed ^ u64::try_from(half).unwrap_or_default(), keys[1]);
            }
        }
        let ports = u64::from(flow.local_port) << 16 | u64::from(flow.remote_port);
        let hash = mix(mixed ^ ports, keys[1]);
        // The upper bits, by a product: without a division, and evenly.
        let place = (u128::from(hash) * self.engines as u128) >> 64;
        usize::try_from(place).unwrap_or_default()
    }
}

/// Where a packet belongs that may have come elsewhere.
#[inline]
fn by_nic(spread: &RssSpread, (flow, part): (Flow, Part), here: usize) -> usize {
    let ports = match part {
        Part::Whole => Some((flow.remote_port, flow.local_port)),
        Part::Piece => None,
        Part::Other => return here,
    };
    spread.queue((flow.remote.ip(), flow.local.ip()), ports)
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

/// Whether a packet is certain to be where it belongs: it has its ports where every NIC finds and hashes them, right behind an IP
/// header without options.
#[inline]
fn is_there(kind: EtherType, packet: &[u8], certain: Certain) -> bool {
    if certain == Certain::Nothing {
        return false;
    }
    let protocol = match kind {
        EtherType::IPV4 => match Ipv4Header::ref_from_prefix(packet) {
            Ok((header, _)) if header.header_length() == size_of::<Ipv4Header>() && !header.is_fragment() => {
                header.protocol
            }
            _ => return false,
        },
        EtherType::IPV6 => match Ipv6Header::ref_from_prefix(packet) {
            Ok((header, _)) => header.next_header,
            Err(_) => return false,
        },
        _ => return false,
    };
    let protocol = Protocol(protocol);
    protocol == Protocol::TCP || (certain == Certain::TcpAndUdp && protocol == Protocol::UDP)
}

/// What a packet is of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// All of a packet of TCP or UDP.
    Whole,
    /// A piece of a datagram. It has no ports, so that all of them meet.
    Piece,
    /// Neither TCP nor UDP: it has no ports either.
    Other,
}

/// The flow of a packet of IP seen from here.
#[inline]
fn seen(kind: EtherType, packet: &[u8]) -> Option<(Flow, Part)> {
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
    let Some((protocol, start)) = upper else { return Some((flow, Part::Piece)) };
    if !matches!(Protocol(protocol), Protocol::TCP | Protocol::UDP) {
        return Some((flow, Part::Other));
    }
    let Some([a, b, c, d]) = packet.get(start..start + 4) else { return Some((flow, Part::Other)) };
    let (remote_port, local_port) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
    Some((Flow { local_port, remote_port, ..flow }, Part::Whole))
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
        Steering::by_software([9; 16], engines)
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
        assert_eq!(steering.engine_of(&plain, false, 0), steering.engine_of(&tagged, false, 0));
        let pieces = [0x2000u16, 0x0001].map(|fragment| {
            let mut piece = plain.clone();
            piece[20..22].copy_from_slice(&fragment.to_be_bytes());
            // What looks like ports is payload in all but the first.
            piece[34..38].copy_from_slice(&u32::from(fragment).to_be_bytes());
            steering.engine_of(&piece, false, 0)
        });
        assert_eq!(pieces[0], pieces[1]);
        assert_eq!(steering.engine_of(&ethernet(EtherType::ARP), false, 5), 0);
    }

    #[test]
    fn extension_headers_are_passed_over() {
        let ends = [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];
        let flow = Flow { local: ends[0].into(), remote: ends[1].into(), local_port: 80, remote_port: 99 };
        let plain = frame(&flow, Protocol::TCP);
        let mut padded = [&plain[..54], &[Protocol::TCP.0, 0, 1, 4, 0, 0, 0, 0], &plain[54..]].concat();
        padded[20] = Protocol::DESTINATION_OPTIONS.0;
        let steering = steering(64);
        assert_eq!(steering.engine_of(&padded, false, 0), steering.engine(&flow));
        let fragment = FragmentHeader::new(Protocol::TCP.0, 0, true, 7);
        let mut piece = [&plain[..54], fragment.as_bytes(), &plain[54..]].concat();
        piece[20] = Protocol::FRAGMENT.0;
        let ports = Flow { local_port: 0, remote_port: 0, ..flow };
        assert_eq!(steering.engine_of(&piece, false, 0), steering.engine(&ports));
    }

    /// Each of four engines has a quarter of the table. The key is one by chance.
    fn nic(certain: Certain) -> RssSpread {
        let key = std::array::from_fn(|i| (i * i * 37 + 11).to_le_bytes()[0]);
        RssSpread::new(key, (0..128).map(|i| i % 4).collect::<Vec<_>>(), certain).unwrap()
    }

    #[test]
    fn what_nics_hash_by_ports_stays_and_the_rest_goes_where_they_would_have_it() {
        let four = |a: u8| Ipv4Addr::new(10, 0, 0, a).into();
        let six = |a: u16| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, a).into();
        for (local, remote, remote_port) in
            [(four(1), four(2), 1234), (four(1), four(3), 99), (six(1), six(2), 4000), (six(1), six(9), 7)]
        {
            let flow = Flow { local, remote, local_port: 80, remote_port };
            let addresses = (flow.remote.ip(), flow.local.ip());
            let spreads = [Certain::TcpAndUdp, Certain::Tcp, Certain::Nothing].map(nic);
            let place = spreads[0].queue(addresses, Some((remote_port, 80)));
            let pieces = spreads[0].queue(addresses, None);
            let [by, of_tcp, of_none] = spreads.map(|spread| Steering::by_nic(spread, 4).unwrap());
            assert_eq!(by.engine(&flow), place);
            let (tcp, udp) = (frame(&flow, Protocol::TCP), frame(&flow, Protocol::UDP));
            let tagged = [&tcp[..12], &[0x81, 0, 0, 5], &tcp[12..]].concat();
            // With four bytes of options, or an extension header of eight; and a piece of a datagram.
            let (mut late, mut piece);
            if local.is_v4() {
                late = [&tcp[..34], &[1; 4], &tcp[34..]].concat();
                late[14] = 0x46;
                piece = udp.clone();
                piece[20..22].copy_from_slice(&0x2000_u16.to_be_bytes());
            } else {
                late = [&tcp[..54], &[Protocol::TCP.0, 0, 1, 4, 0, 0, 0, 0], &tcp[54..]].concat();
                late[20] = Protocol::DESTINATION_OPTIONS.0;
                let fragment = FragmentHeader::new(Protocol::UDP.0, 0, true, 7);
                piece = [&udp[..54], fragment.as_bytes(), &udp[54..]].concat();
                piece[20] = Protocol::FRAGMENT.0;
            }
            for here in 0..4 {
                for (bytes, expected) in [
                    (&tcp, here),
                    (&tagged, here),
                    (&udp, here),
                    (&late, place),
                    (&piece, pieces),
                    (&frame(&flow, Protocol::ICMP), here),
                    (&ethernet(EtherType::ARP), here),
                ] {
                    assert_eq!(by.engine_of(bytes, false, here), expected, "{bytes:02x?} at {here}");
                }
                assert_eq!(of_tcp.engine_of(&tcp, false, here), here);
                assert_eq!(of_tcp.engine_of(&udp, false, here), place);
                // Wherever it comes, as when somebody has changed the NIC's table.
                for (bytes, expected) in [
                    (&tcp, place),
                    (&tagged, place),
                    (&udp, place),
                    (&late, place),
                    (&piece, pieces),
                    (&ethernet(EtherType::ARP), here),
                ] {
                    assert_eq!(of_none.engine_of(bytes, false, here), expected, "{bytes:02x?} at {here}");
                }
            }
        }
    }

    #[test]
    fn nics_that_have_no_queue_for_each_engine_do_not_spread() {
        for engines in [3, 5] {
            assert!(Steering::by_nic(nic(Certain::Tcp), engines).is_none(), "{engines}");
        }
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
            prop_assert_eq!(steering.engine_of(&frame(&flow, Protocol::TCP), false, 0), steering.engine(&flow));
        }

        #[test]
        fn any_bytes_have_an_engine(bytes in any::<Vec<u8>>(), vlan in any::<bool>()) {
            prop_assert!(steering(5).engine_of(&bytes, vlan, 0) < 5);
            prop_assert!(Steering::by_nic(nic(Certain::Tcp), 4).unwrap().engine_of(&bytes, vlan, 3) < 4);
        }
    }
}
