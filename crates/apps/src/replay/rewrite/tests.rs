//! Packets of all kinds before and after rewriting. What is right afterwards is judged by summing anew.

use proptest::prelude::*;

use super::*;

const IPV4_SOURCE: [u8; 4] = [10, 1, 2, 3];
const IPV4_DESTINATION: [u8; 4] = [10, 9, 8, 7];

/// What the transport's payload is in these tests.
const PAYLOAD: &[u8] = b"odd payload";

/// A transport header with PAYLOAD; its checksum is 0.
fn transport(protocol: Protocol) -> Vec<u8> {
    let mut bytes = match protocol {
        Protocol::TCP => {
            let mut tcp = vec![0; 20];
            tcp[12] = 0x50;
            tcp
        }
        Protocol::UDP => vec![0, 0, 0, 0, 0, u8::try_from(8 + PAYLOAD.len()).unwrap(), 0, 0],
        _ => vec![128, 0, 0, 0, 0, 1, 0, 2],
    };
    if protocol != Protocol::ICMP && protocol != Protocol::ICMPV6 {
        put(&mut bytes, 0, 80);
        put(&mut bytes, 2, 5555);
    }
    bytes.extend_from_slice(PAYLOAD);
    bytes
}

fn place(protocol: Protocol) -> usize {
    match protocol {
        Protocol::TCP => 16,
        Protocol::UDP => 6,
        _ => 2,
    }
}

fn seal(mut bytes: Vec<u8>, protocol: Protocol, source: &[u8], destination: &[u8]) -> Vec<u8> {
    let sum = if protocol == Protocol::ICMP {
        Sum::new()
    } else {
        Sum::pseudo(source, destination, protocol.0, u32::try_from(bytes.len()).unwrap())
    };
    let checksum = sum.bytes(&bytes).checksum();
    put(&mut bytes, place(protocol), checksum);
    bytes
}

fn ethernet(tags: &[u16], kind: EtherType, inside: &[u8]) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for tag in tags {
        packet.extend(EtherType::VLAN.0.to_be_bytes());
        packet.extend(tag.to_be_bytes());
    }
    packet.extend(kind.0.to_be_bytes());
    packet.extend(inside);
    // Padding, as Ethernet has it.
    packet.resize(packet.len().max(60), 0xee);
    packet
}

fn ipv4(protocol: Protocol, fragment: u16) -> Vec<u8> {
    let transport = seal(transport(protocol), protocol, &IPV4_SOURCE, &IPV4_DESTINATION);
    // With options: a header of 24 bytes.
    let total = u16::try_from(24 + transport.len()).unwrap();
    let mut ip = vec![0x46, 0, 0, 0, 0x12, 0x34, 0, 0, 64, protocol.0, 0, 0];
    put(&mut ip, 2, total);
    put(&mut ip, 6, fragment);
    ip.extend([&IPV4_SOURCE[..], &IPV4_DESTINATION, &[1, 1, 1, 0]].concat());
    let checksum = Sum::new().bytes(&ip).checksum();
    put(&mut ip, 10, checksum);
    ip.extend(transport);
    ip
}

fn ipv6_addresses() -> (Vec<u8>, Vec<u8>) {
    let of = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets().to_vec();
    (of("2001:db8::1:2"), of("2001:db8:7::9"))
}

/// With these extension headers in front of the transport.
fn ipv6(protocol: Protocol, first: Protocol, extensions: &[u8]) -> Vec<u8> {
    let (source, destination) = ipv6_addresses();
    let inside = [extensions, &seal(transport(protocol), protocol, &source, &destination)].concat();
    let mut ip = vec![0x60, 0, 0, 0, 0, u8::try_from(inside.len()).unwrap(), first.0, 64];
    ip.extend([source, destination, inside].concat());
    ip
}

/// Whether the checksums of an IP packet are right, whose transport begins at `at`.
fn is_right(ip: &[u8], at: usize, protocol: Protocol) -> bool {
    let (addresses, end) = if ip[0] >> 4 == 4 {
        ((&ip[12..16], &ip[16..20]), usize::from(word(ip, 2)))
    } else {
        ((&ip[8..24], &ip[24..40]), 40 + usize::from(word(ip, 4)))
    };
    let header = ip[0] >> 4 == 6 || Sum::new().bytes(&ip[..24]).checksum() == 0;
    let length = u32::try_from(end - at).unwrap();
    let sum = if protocol == Protocol::ICMP {
        Sum::new()
    } else {
        Sum::pseudo(addresses.0, addresses.1, protocol.0, length)
    };
    header && sum.bytes(&ip[at..end]).checksum() == 0
}

fn maps(texts: &[&str]) -> Vec<Map> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Moves all of our addresses, and port 80.
fn moving() -> Rewrite {
    let maps = maps(&["10.0.0.0/8=172.0.0.0/8", "2001:db8::/32=fd00:1::/32"]);
    let ports = vec!["80=8080".parse().unwrap()];
    Rewrite {
        src_ip: maps.clone(),
        dst_ip: maps,
        src_port: ports.clone(),
        dst_port: ports,
        ..Rewrite::default()
    }
}

const PROTOCOLS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::ICMP];

#[test]
fn ipv4_addresses_move_and_checksums_stay_right() {
    for protocol in PROTOCOLS {
        for tags in [&[][..], &[7], &[0x2007, 9]] {
            let mut packet = ethernet(tags, EtherType::IPV4, &ipv4(protocol, 0x4000));
            let before = packet.clone();
            moving().apply(&mut packet, false);
            let at = 14 + 4 * tags.len();
            let ip = &packet[at..];
            assert_eq!((&ip[12..16], &ip[16..20]), (&[172, 1, 2, 3][..], &[172, 9, 8, 7][..]));
            assert!(is_right(ip, 24, protocol), "{protocol:?}");
            if protocol != Protocol::ICMP {
                assert_eq!((word(ip, 24), word(ip, 26)), (8080, 5555));
            }
            assert_eq!(packet[..at], before[..at]);
        }
    }
}

#[test]
fn ipv6_addresses_move_behind_all_extension_headers() {
    let hop = [Protocol::DESTINATION_OPTIONS.0, 0, 1, 4, 0, 0, 0, 0];
    for protocol in [Protocol::TCP, Protocol::UDP, Protocol::ICMPV6] {
        let options = [protocol.0, 0, 1, 4, 0, 0, 0, 0];
        let ah = [protocol.0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2];
        let whole_fragment = [protocol.0, 0, 0, 0, 0, 0, 0, 1];
        for (first, extensions) in [
            (protocol, vec![]),
            (Protocol::DESTINATION_OPTIONS, options.to_vec()),
            (Protocol::HOP_BY_HOP, [hop, options].concat()),
            (Protocol::AH, ah.to_vec()),
            (Protocol::FRAGMENT, whole_fragment.to_vec()),
        ] {
            let mut packet = ethernet(&[], EtherType::IPV6, &ipv6(protocol, first, &extensions));
            for fix_checksums in [false, true] {
                Rewrite { fix_checksums, ..moving() }.apply(&mut packet, false);
                let ip = &packet[14..];
                assert_eq!(ip[8..14], [0xfd, 0, 0, 1, 0, 0]);
                assert_eq!(ip[24..30], [0xfd, 0, 0, 1, 0, 7]);
                assert!(is_right(ip, 40 + extensions.len(), protocol), "{protocol:?} {extensions:?}");
            }
        }
    }
}

/// Other protocols, whether over IPv6, where their checksum lies, and whether it covers a pseudo-header.
const OTHERS: [(Protocol, bool, usize, bool); 15] = [
    (Protocol::IGMP, false, 2, false),
    (Protocol::OSPF, false, 12, false),
    (Protocol::OSPF, true, 12, true),
    (Protocol::PIM, false, 2, false),
    (Protocol::PIM, true, 2, true),
    (Protocol::VRRP, false, 6, false),
    (Protocol::VRRP, false, 6, true),
    (Protocol::VRRP, true, 6, true),
    (Protocol::DCCP, false, 6, true),
    (Protocol::DCCP, true, 6, true),
    (Protocol::UDP_LITE, false, 6, true),
    (Protocol::UDP_LITE, true, 6, true),
    (Protocol::MOBILITY, true, 4, true),
    (Protocol::HIP, false, 4, true),
    (Protocol::HIP, true, 4, true),
];

/// The sum over what IP carries, from byte `at` on.
fn carried(ip: &[u8], at: usize, protocol: Protocol, pseudo: bool) -> u16 {
    let (source, destination) =
        if at < IPV6_HEADER { (&ip[12..16], &ip[16..20]) } else { (&ip[8..24], &ip[24..40]) };
    let length = u32::try_from(ip.len() - at).unwrap();
    let start = if pseudo { Sum::pseudo(source, destination, protocol.0, length) } else { Sum::new() };
    start.bytes(&ip[at..]).checksum()
}

#[test]
fn checksums_of_other_protocols_move_with_the_addresses_that_they_cover() {
    for (protocol, is_v6, place, pseudo) in OTHERS {
        let case = format!("{protocol} {is_v6} {pseudo}");
        let (mut ip, at) = if is_v6 { (ipv6(protocol, protocol, &[]), 40) } else { (ipv4(protocol, 0), 24) };
        // Long enough for all of them; IP's own header is as it was.
        ip.truncate(at);
        ip.extend(1..=28);
        put(&mut ip, if is_v6 { 4 } else { 2 }, if is_v6 { 28 } else { 24 + 28 });
        put(&mut ip, at + place, 0);
        let checksum = carried(&ip, at, protocol, pseudo);
        put(&mut ip, at + place, checksum);
        let mut packet = ethernet(&[], if is_v6 { EtherType::IPV6 } else { EtherType::IPV4 }, &ip);
        moving().apply(&mut packet, false);
        let moved = &packet[14..14 + ip.len()];
        assert_ne!(moved[..at], ip[..at], "{case}: the addresses");
        assert_eq!(carried(moved, at, protocol, pseudo), 0, "{case}");
        // What was wrong is made right, where all that IP carries is covered.
        let whole = !matches!(protocol, Protocol::PIM | Protocol::DCCP | Protocol::UDP_LITE)
            && (is_v6 || !matches!(protocol, Protocol::OSPF | Protocol::VRRP));
        let mut wrong = packet.clone();
        wrong[14 + at + place] ^= 0x55;
        Rewrite { fix_checksums: true, ..Rewrite::default() }.apply(&mut wrong, false);
        assert_eq!(carried(&wrong[14..14 + ip.len()], at, protocol, pseudo) == 0, whole, "{case}");
    }
}

#[test]
fn the_pseudo_header_of_a_source_route_is_summed_with_the_last_address() {
    // One segment left: the destination that counts is in here.
    let last = "2001:db8:77::5".parse::<Ipv6Addr>().unwrap().octets();
    let routing = [&[Protocol::UDP.0, 2, 0, 1, 0, 0, 0, 0][..], &last].concat();
    let (source, _) = ipv6_addresses();
    let mut ip = ipv6(Protocol::UDP, Protocol::ROUTING, &routing);
    let sealed = seal(transport(Protocol::UDP), Protocol::UDP, &source, &last);
    let at = ip.len() - sealed.len();
    ip.splice(at.., sealed);
    let mut packet = ethernet(&[], EtherType::IPV6, &ip);
    Rewrite { fix_checksums: true, ..moving() }.apply(&mut packet, false);
    let ip = &packet[14..];
    let end = 40 + usize::from(word(ip, 4));
    let sum = Sum::pseudo(&ip[8..24], &last, Protocol::UDP.0, u32::try_from(end - at).unwrap());
    assert_eq!(sum.bytes(&ip[at..end]).checksum(), 0);
}

#[test]
fn pieces_and_packets_without_an_end_keep_checksums_that_are_right_for_the_whole() {
    // The first piece of a datagram: its transport's checksum is over bytes that are not here.
    for (fragment, is_cut) in [(0x2000, false), (0x4000, true)] {
        let whole = ipv4(Protocol::UDP, fragment);
        let mut packet = ethernet(&[], EtherType::IPV4, &whole);
        packet.truncate(14 + 24 + 8 + 4);
        Rewrite { fix_checksums: true, ..moving() }.apply(&mut packet, is_cut);
        // With the end put back, everything is right.
        let mut ip = packet[14..].to_vec();
        ip.extend_from_slice(&whole[ip.len()..]);
        assert!(is_right(&ip, 24, Protocol::UDP), "{fragment:x}");
    }
    // A later piece has no header: its bytes stay.
    let mut packet = ethernet(&[], EtherType::IPV4, &ipv4(Protocol::UDP, 0x2001));
    let before = packet.clone();
    moving().apply(&mut packet, false);
    assert_eq!(packet[14 + 24..], before[14 + 24..]);
    assert_eq!(Sum::new().bytes(&packet[14..38]).checksum(), 0);
}

#[test]
fn udp_without_a_checksum_stays_without_and_a_sum_of_zero_is_written_as_ones() {
    let mut ip = ipv4(Protocol::UDP, 0);
    put(&mut ip, 24 + 6, 0);
    let mut packet = ethernet(&[], EtherType::IPV4, &ip);
    moving().apply(&mut packet, false);
    assert_eq!(word(&packet, 14 + 24 + 6), 0);
    // A payload that makes the sum zero after the move.
    let mut ip = ipv4(Protocol::UDP, 0);
    let rewrite = moving();
    let mut packet = ethernet(&[], EtherType::IPV4, &ip);
    rewrite.apply(&mut packet, false);
    let sum = word(&packet, 14 + 24 + 6);
    let old = word(&ip, 24 + 8);
    put(&mut ip, 24 + 8, u16::try_from((u32::from(old) + u32::from(sum)) % 65_535).unwrap());
    let mut plain = ip[24..].to_vec();
    put(&mut plain, 6, 0);
    let sealed = seal(plain, Protocol::UDP, &IPV4_SOURCE, &IPV4_DESTINATION);
    ip.splice(24.., sealed);
    let mut packet = ethernet(&[], EtherType::IPV4, &ip);
    rewrite.apply(&mut packet, false);
    assert_eq!(word(&packet, 14 + 24 + 6), 0xffff);
    assert!(is_right(&packet[14..], 24, Protocol::UDP));
}

#[test]
fn what_was_wrong_stays_wrong_unless_it_is_to_be_fixed() {
    for protocol in PROTOCOLS {
        let mut ip = ipv4(protocol, 0);
        ip[11] ^= 1;
        let at = 24 + place(protocol);
        ip[at] ^= 0x40;
        let mut kept = ethernet(&[], EtherType::IPV4, &ip);
        let mut fixed = kept.clone();
        moving().apply(&mut kept, false);
        assert!(!is_right(&kept[14..], 24, protocol));
        Rewrite { fix_checksums: true, ..moving() }.apply(&mut fixed, false);
        assert!(is_right(&fixed[14..], 24, protocol), "{protocol:?}");
    }
}

#[test]
fn ethernet_addresses_and_tags_are_rewritten() {
    // So long that Ethernet needs no padding.
    let inside = [ipv4(Protocol::UDP, 0), vec![7; 40]].concat();
    let tagged = |tags: &[u16]| ethernet(tags, EtherType::IPV4, &inside);
    let with = |vlan: Vlan, tags: &[u16]| {
        let mut packet = tagged(tags);
        Rewrite { vlan: Some(vlan), ..Rewrite::default() }.apply(&mut packet, false);
        packet
    };
    assert_eq!(with(Vlan::Set(9), &[]), tagged(&[9]));
    assert_eq!(with(Vlan::Set(9), &[0x6007, 5]), tagged(&[0x6009, 5]));
    assert_eq!(with(Vlan::Remove, &[0x6007, 5]), tagged(&[]));
    assert_eq!(with(Vlan::Remove, &[]), tagged(&[]));
    let mut packet = tagged(&[7]);
    let (src_mac, dst_mac) = (Some(Mac([6; 6])), Some(Mac([4; 6])));
    Rewrite { src_mac, dst_mac, ..Rewrite::default() }.apply(&mut packet, false);
    assert_eq!((&packet[..12], &packet[12..]), (&[[4; 6], [6; 6]].concat()[..], &tagged(&[7])[12..]));
}

#[test]
fn arp_moves_with_its_addresses() {
    let arp = |operation: u8, sender: [u8; 4], target: [u8; 4]| {
        let head = [0, 1, 8, 0, 6, 4, 0, operation];
        [&head[..], &[1; 6], &sender, &[2; 6], &target].concat()
    };
    let rewrite = Rewrite { src_ip: maps(&["10.0.0.0/8=11.0.0.0/8"]), ..Rewrite::default() };
    for (operation, sender, target) in [(1, [11, 0, 0, 1], [10, 0, 0, 2]), (2, [10, 0, 0, 1], [11, 0, 0, 2])]
    {
        let mut packet = ethernet(&[], EtherType::ARP, &arp(operation, [10, 0, 0, 1], [10, 0, 0, 2]));
        rewrite.apply(&mut packet, false);
        assert_eq!(packet, ethernet(&[], EtherType::ARP, &arp(operation, sender, target)));
    }
}

#[test]
fn the_first_map_that_has_an_address_counts_and_the_rest_of_it_is_kept() {
    let maps = maps(&["10.1.0.0/16=1.2.0.0/16", "10.0.0.0/8=9.0.0.0/8", "0.0.0.0/0=0.0.0.0/0", "::1=::2"]);
    let of = |a: [u8; 4]| {
        let old = u128::from(u32::from_be_bytes(a));
        maps.iter().find_map(|map| map.apply(old, true)).map(|new| u32::try_from(new).unwrap().to_be_bytes())
    };
    assert_eq!(of([10, 1, 2, 3]), Some([1, 2, 2, 3]));
    assert_eq!(of([10, 2, 2, 3]), Some([9, 2, 2, 3]));
    assert_eq!(of([8, 8, 8, 8]), Some([8, 8, 8, 8]));
    assert_eq!(maps[3].apply(1, false), Some(2));
    assert_eq!(maps[3].apply(1, true), None);
}

#[test]
fn what_is_no_map_is_refused_with_the_reason() {
    let error = |text: &str| text.parse::<Map>().unwrap_err();
    assert_eq!(error("10.0.0.1"), MapError::Form);
    assert_eq!(error("10.0.0.0/33=1.0.0.0/33"), MapError::Net("10.0.0.0/33".into()));
    assert_eq!(error("x=y"), MapError::Net("x".into()));
    assert_eq!(error("10.0.0.0/8=1.0.0.0/9"), MapError::Sides("10.0.0.0/8=1.0.0.0/9".into()));
    assert_eq!(error("10.0.0.0=::1"), MapError::Sides("10.0.0.0=::1".into()));
    assert_eq!(error("10.0.0.1/8=1.0.0.0/8"), MapError::Bits("10.0.0.1/8".into()));
    assert!("80=70000".parse::<PortMap>().is_err() && "80".parse::<PortMap>().is_err());
    assert!("4095".parse::<Vlan>().is_err() && "none".parse::<Vlan>() == Ok(Vlan::Remove));
}

proptest! {
    /// Nothing in a packet makes rewriting panic, or changes the length but for tags.
    #[test]
    fn nonsense_is_survived(
        mut packet in prop::collection::vec(any::<u8>(), 0..140),
        kind in prop_oneof![Just(0x0800_u16), Just(0x86dd), Just(0x0806), Just(0x8100)],
        version: bool,
        next in prop_oneof![Just(0_u8), Just(6), Just(17), Just(43), Just(44), Just(51), Just(60)],
        is_cut: bool,
        fix_checksums: bool,
    ) {
        if packet.len() > 40 {
            put(&mut packet, 12, kind);
            packet[14] = if version { 0x45 } else { 0x60 };
            packet[20] = next;
        }
        let len = packet.len();
        let all = maps(&["0.0.0.0/1=128.0.0.0/1", "::/1=8000::/1"]);
        let rewrite = Rewrite { src_ip: all.clone(), dst_ip: all, fix_checksums, ..moving() };
        rewrite.apply(&mut packet, is_cut);
        prop_assert_eq!(packet.len(), len);
        for vlan in [Vlan::Set(1), Vlan::Remove] {
            Rewrite { vlan: Some(vlan), ..rewrite.clone() }.apply(&mut packet, is_cut);
        }
        prop_assert!(packet.len() <= len + 4);
    }
}
