//! Every packet is what was asked for, with right lengths and checksums: judged by another reader of headers.

use std::collections::{HashMap, HashSet};

use bywash_port::frame::{BATCH, Batch, FRAME_SIZE};
use bywash_wire::Protocol;
use bywash_wire::checksum::Sum;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::probe::{PROBE, Probe};

const V6: [&str; 2] = ["2001:2::1", "2001:2::2"];

/// The first `n` packets of worker `worker` of `workers`.
fn made(frame: &Frame, n: usize, (worker, workers): (u64, u64)) -> Vec<Vec<u8>> {
    let plan = Plan::new(frame, None).unwrap_or_else(|reason| panic!("{reason}"));
    let mut maker = Maker::new(plan, (worker, workers), 77);
    let arena = Arena::new(vec![0xee; BATCH * FRAME_SIZE]).unwrap();
    let (mut pool, mut batch) = (arena.pool(BATCH).unwrap(), Batch::new());
    let mut packets = Vec::new();
    let keeps = maker.prepare(&mut pool);
    while packets.len() < n {
        // Frames that hold what is known, and frames that do not, in turn.
        let is_prepared = keeps && packets.len() % 128 == 0;
        if !is_prepared {
            let mut frames: Vec<_> = pool.take_many(BATCH).collect();
            frames.iter_mut().for_each(|frame| frame.bytes_mut().fill(0xee));
            pool.give_many(frames.into_iter());
        }
        // Of long packets there are not frames for so many.
        let made = maker.make((n - packets.len()).min(BATCH), 1234, is_prepared, &mut pool, &mut batch);
        assert!(made > 0 && made == batch.len());
        packets.extend(batch.iter().map(|packet| {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(&mut bytes);
            bytes
        }));
        pool.give_batch(&mut batch);
        assert_eq!(pool.free(), BATCH, "no frame is lost");
        maker.prepare(&mut pool);
    }
    packets
}

fn fields(fields: &[&str]) -> Vec<Field> {
    fields.iter().map(|field| field.parse().unwrap()).collect()
}

/// Where IP begins, behind any tags and labels.
fn ip_start(packet: &[u8]) -> Option<usize> {
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let mut at = 12;
    while matches!(word(at), 0x8100 | 0x88a8) {
        at += 4;
    }
    let kind = word(at);
    at += 2;
    if kind == 0x8847 {
        while packet[at + 2] & 1 == 0 {
            at += 4;
        }
        return Some(at + 4);
    }
    matches!(kind, 0x0800 | 0x86dd).then_some(at)
}

/// Asserts that lengths and checksums are right, and returns the payload behind all headers.
fn judge(packet: &[u8]) -> Vec<u8> {
    let at = ip_start(packet).expect("there is IP");
    let sliced =
        SlicedPacket::from_ip(&packet[at..]).unwrap_or_else(|error| panic!("{error}: {packet:02x?}"));
    let (net, transport) = (sliced.net.unwrap(), sliced.transport);
    if let NetSlice::Ipv4(ip) = &net {
        let header = ip.header().to_header();
        assert_eq!(header.calc_header_checksum(), header.header_checksum, "IPv4 of {packet:02x?}");
    }
    let (carried, right) = match (&net, transport) {
        (NetSlice::Ipv4(ip), Some(TransportSlice::Udp(udp))) => {
            let header = udp.to_header();
            assert_ne!(header.checksum, 0);
            (
                udp.payload(),
                header.calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap()
                    == header.checksum,
            )
        }
        (NetSlice::Ipv6(ip), Some(TransportSlice::Udp(udp))) => {
            let header = udp.to_header();
            assert_ne!(header.checksum, 0);
            (
                udp.payload(),
                header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload()).unwrap()
                    == header.checksum,
            )
        }
        (NetSlice::Ipv4(ip), Some(TransportSlice::Tcp(tcp))) => {
            let header = tcp.to_header();
            (
                tcp.payload(),
                header.calc_checksum_ipv4(&ip.header().to_header(), tcp.payload()).unwrap()
                    == header.checksum,
            )
        }
        (NetSlice::Ipv6(ip), Some(TransportSlice::Tcp(tcp))) => {
            let header = tcp.to_header();
            (
                tcp.payload(),
                header.calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()).unwrap()
                    == header.checksum,
            )
        }
        (NetSlice::Ipv4(_), Some(TransportSlice::Icmpv4(icmp))) => {
            (icmp.payload(), icmp.icmp_type().calc_checksum(icmp.payload()) == icmp.checksum())
        }
        (NetSlice::Ipv6(ip), Some(TransportSlice::Icmpv6(icmp))) => {
            (icmp.payload(), icmp.is_checksum_valid(ip.header().source(), ip.header().destination()))
        }
        (NetSlice::Ipv4(ip), None) => (ip.payload().payload, true),
        (NetSlice::Ipv6(ip), None) => (ip.payload().payload, true),
        (_, other) => panic!("{other:?}"),
    };
    assert!(right, "the checksum over the payload of {packet:02x?}");
    carried.to_vec()
}

fn sizes() -> impl Strategy<Value = (Sizes, Payload)> {
    let size = prop_oneof![
        Just("150"),
        Just("imix"),
        Just("200-333"),
        Just("1518,151,152"),
        Just("151-999 random"),
        Just("150:3,1200:2"),
        Just("2052"),
        Just("9000"),
        Just("2049-2056"),
        Just("2052,2053,6148,6149"),
        Just("150:3,9000:2")
    ];
    let payload =
        prop_oneof!["probe", "zeros", "counting", "random:[0-9]{1,4}", "hex:(0a|ff){1,9}", "text:[a-z]{1,9}"];
    (size, payload, any::<bool>()).prop_map(|(size, payload, natural)| {
        // The mix's shortest packets have no room for many headers.
        let natural = natural || size == "imix";
        (if natural { Sizes::Natural } else { size.parse().unwrap() }, payload.parse().unwrap())
    })
}

fn field() -> impl Strategy<Value = String> {
    let values = prop_oneof![
        "[1-7]",
        "1,7,3,5",
        "1-7",
        "2-7 step 3",
        "1-6 down",
        "5\\+",
        "1-7 random seed [0-9]",
        "any random",
        "1-3 every [1-9]"
    ];
    let name = prop::sample::select(vec![
        "vlan.id",
        "vlan.pcp",
        "vlan2.id",
        "mpls.label",
        "mpls.ttl",
        "ip.tos",
        "ip.ttl",
        "ipv4.id",
        "ipv4.df",
        "ipv6.flow",
        "port.src",
        "port.dst",
        "tcp.seq",
        "tcp.window",
        "tcp.flags",
        "icmp.id",
        "icmp.seq",
        "payload[0:4]",
        "payload[3:2]",
        "payload[1:1]",
        "payload[9:4]",
    ]);
    (name, values).prop_map(|(name, values)| format!("{name}={values}"))
}

fn frames() -> impl Strategy<Value = Frame> {
    let upper = prop_oneof![Just(Upper::Udp), Just(Upper::Tcp), Just(Upper::Icmp), Just(Upper::Other(253))];
    let tags = (prop::collection::vec(0..4096_u16, 0..3), prop::collection::vec(0..1_u32 << 20, 0..3));
    let addresses = prop::option::of(prop_oneof![
        "10\\.0\\.0\\.0/8 random",
        "10\\.[0-9]\\.0\\.1-10\\.[0-9]\\.9\\.9 step 3"
    ]);
    (
        (upper, any::<bool>(), tags, sizes()),
        (
            prop::collection::vec(field(), 0..5),
            addresses,
            any::<u64>(),
            prop::option::of(1..7_u64),
            0..4_u32,
            any::<[u8; 6]>(),
        ),
    )
        .prop_map(
            |(
                (upper, is_v6, (vlans, mpls), (size, payload)),
                (fields, address, seed, flows, sources, mac),
            )| {
                let mut frame =
                    Frame { size, payload: Some(payload), vlans, mpls, seed, flows, ..Frame::default() };
                frame.dst_mac = Mac(mac);
                frame.network = Network::Ip(upper);
                if is_v6 {
                    (frame.src_ip, frame.dst_ip) = (V6[0].parse().unwrap(), V6[1].parse().unwrap());
                }
                frame.sources = sources.max(1);
                let address = address.filter(|_| !is_v6).map(|values| format!("ip.dst={values}"));
                // Those that this packet has, and that go together.
                for field in fields.into_iter().chain(address) {
                    let mut more = frame.clone();
                    more.fields.push(field.parse().unwrap());
                    if more.check().is_ok() {
                        frame = more;
                    }
                }
                frame.flows = frame.flows.filter(|_| frame.check().is_ok());
                frame
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_is_right_whoever_makes_it(frame in frames()) {
        prop_assume!(frame.check().is_ok());
        let packets = made(&frame, 150, (0, 1));
        for packet in &packets {
            judge(packet);
        }
        let plan = Plan::new(&frame, None).unwrap();
        // What two workers make is what one makes, probes aside, unless flows stay with one of them, or each has all sizes.
        let two = [made(&frame, 75, (0, 2)), made(&frame, 75, (1, 2))];
        if frame.flows.is_none() && frame.payload != Some(Payload::Probe) && plan.variants.len() == 1 {
            for (n, packet) in packets.iter().enumerate() {
                prop_assert_eq!(&two[n % 2][n / 2], packet, "packet {}", n);
            }
        }
        for packet in two.iter().flatten() {
            judge(packet);
        }
        // What is made incrementally is what the definition says.
        for patch in &plan.patches {
            for (n, packet) in (0..).zip(&packets) {
                let n = frame.flows.map_or(n, |flows| n % flows);
                // The word's end may lie behind the packet's.
                let word = plan::read(&[&packet[..], &[0; 8]].concat(), patch.at, patch.width);
                prop_assert_eq!(word >> patch.shift & patch.mask, patch.series.value(n) & patch.mask);
            }
        }
    }

    #[test]
    fn a_template_of_any_bytes_is_sent_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0..4_usize) {
        let mut bytes = bytes;
        if let Some(to) = bytes.get_mut(12..15) {
            to.copy_from_slice(&[[8, 0, 0x45], [0x86, 0xdd, 0x60], [0x81, 0, 0], [0x88, 0x47, 0]][kind]);
        }
        let fields = fields(&["frame[0:4]=1-9", "ip.ttl=3-5"]);
        let frame = Frame { template: Some(bytes.clone()), fields, ..Frame::default() };
        for size in [Sizes::Natural, 200.into()] {
            let frame = Frame { size, ..frame.clone() };
            if frame.check().is_ok() {
                made(&frame, 3, (0, 1));
            }
        }
    }
}

#[test]
fn a_packet_holds_what_was_asked() {
    let frame = Frame {
        vlans: vec![100, 200],
        dst_port: 5000,
        ttl: 9,
        tos: 0xb8,
        fields: fields(&["vlan2.pcp=5", "eth.src=02:00:00:00:00:10-02:00:00:00:00:13"]),
        ..Frame::default()
    };
    let packets = made(&frame, 5, (0, 1));
    let packet = &packets[0];
    assert_eq!(packet.len(), 14 + 8 + 20 + 8 + PROBE);
    assert_eq!(packet[..6], [2, 0, 0, 0, 0, 2]);
    assert_eq!(packets.iter().map(|packet| packet[11]).collect::<Vec<_>>(), [0x10, 0x11, 0x12, 0x13, 0x10]);
    // 802.1ad outside, 802.1Q inside.
    assert_eq!(packet[12..22], [0x88, 0xa8, 0, 100, 0x81, 0, 0xa0, 200, 8, 0]);
    let ip = SlicedPacket::from_ethernet(packet).unwrap();
    assert_eq!(ip.vlan_ids().iter().map(|id| id.value()).collect::<Vec<_>>(), [100, 200]);
    let Some(NetSlice::Ipv4(ip)) = ip.net else { panic!("no IPv4") };
    let header = ip.header();
    assert_eq!((header.ttl(), header.dcp().value(), header.ecn().value()), (9, 46, 0));
    assert_eq!((header.source(), header.destination()), ([192, 168, 0, 1], [198, 18, 0, 1]));
    let probe = judge(packet);
    let expected = Probe { stream: 77, sequence: 0, time: 1234, flows: 1 };
    assert_eq!(Probe::read(probe.first_chunk().unwrap(), || crc32fast::hash(&probe[PROBE..])), Ok(expected));
    let last = judge(&packets[4]);
    assert_eq!(Probe::read(last.first_chunk().unwrap(), || 0).unwrap().sequence, 4);
}

#[test]
fn sources_count_up_and_their_ports_begin_anew() {
    let sources = |count, src_port| {
        let packets = made(&Frame { sources: count, src_port, ..Frame::default() }, 5, (0, 1));
        let word = |packet: &[u8], at| u16::from_be_bytes([packet[at], packet[at + 1]]);
        packets.iter().map(|packet| (word(packet, 28), word(packet, 34))).collect::<Vec<_>>()
    };
    assert_eq!(sources(3, 10_000), [(1, 10_000), (2, 10_001), (3, 10_002), (1, 10_000), (2, 10_001)]);
    assert_eq!(sources(4, 65_534), [(1, 65_534), (2, 65_535), (3, 65_534), (4, 65_535), (1, 65_534)]);
    let frame = Frame { sources: MOST_SOURCES, src_ip: "10.0.255.255".parse().unwrap(), ..Frame::default() };
    let all: HashSet<_> =
        made(&frame, 1 << 16, (0, 1)).iter().map(|packet| packet[26..36].to_vec()).collect();
    assert_eq!(all.len(), 1 << 16);
    assert!(all.iter().all(|source| source[..2] == [10, 0]), "the upper half stays");
}

#[test]
fn there_are_as_many_flows_as_were_asked_for_and_each_stays_with_its_worker() {
    let flow = |packet: &Vec<u8>| packet[26..38].to_vec();
    for flows in [1, 2, 7, 5000, 10_000] {
        for workers in [1, 2, 3_u64] {
            let text = fields(&["ip.src=10.0.0.0/8 random", "port.dst=80,443", "port.src=any random seed 3"]);
            let frame = Frame { flows: Some(flows), fields: text, ..Frame::default() };
            let of =
                |worker| made(&frame, 12_000, (worker, workers)).iter().map(flow).collect::<HashSet<_>>();
            let sets: Vec<_> = (0..workers).map(of).collect();
            let all: HashSet<_> = sets.iter().flatten().cloned().collect();
            assert_eq!(all.len() as u64, flows, "{workers} workers");
            if flows >= workers {
                assert_eq!(sets.iter().map(HashSet::len).sum::<usize>(), all.len());
            }
        }
    }
}

#[test]
fn long_random_addresses_fill_their_prefix() {
    let (src_ip, dst_ip) = (V6[0].parse().unwrap(), V6[1].parse().unwrap());
    let text =
        fields(&["ip.src=2001:db8::/32 random", "ip.dst=fd00::1,fe80::2 random", "eth.dst=any random"]);
    let packets = made(&Frame { src_ip, dst_ip, fields: text, ..Frame::default() }, 200, (0, 1));
    packets.iter().for_each(|packet| drop(judge(packet)));
    assert!(packets.iter().all(|packet| packet[22..26] == [0x20, 1, 0xd, 0xb8]));
    for at in (0..6).chain(26..38) {
        let bytes: HashSet<u8> = packets.iter().map(|packet| packet[at]).collect();
        assert!(bytes.len() > 60, "byte {at} has {} values", bytes.len());
    }
    let ends: HashSet<_> = packets.iter().map(|packet| (packet[38], packet[53])).collect();
    assert_eq!(ends, HashSet::from([(0xfd, 1), (0xfe, 2)]), "the halves of a list's values stay together");
}

#[test]
fn a_template_keeps_what_is_not_changed_and_its_checksums_are_made_right() {
    let mut whole =
        made(&Frame { payload: Some(Payload::Counting), size: 100.into(), ..Frame::default() }, 1, (0, 1))
            .remove(0);
    let right = whole.clone();
    whole[24] = 0;
    whole[41] = 7;
    let template = Some(whole.clone());
    assert_eq!(made(&Frame { template: template.clone(), ..Frame::default() }, 1, (0, 1))[0], right);
    let frame = Frame {
        template,
        fields: fields(&["ip.dst=10.0.0.1-10.0.0.3", "payload[2:2]=0xabcd"]),
        size: "80,120".parse().unwrap(),
        ..Frame::default()
    };
    let packets = made(&frame, 4, (0, 1));
    let payloads: Vec<_> = packets.iter().map(|packet| judge(packet)).collect();
    assert_eq!(packets.iter().map(|packet| packet[33]).collect::<Vec<_>>(), [1, 2, 3, 1]);
    assert_eq!(payloads.iter().map(Vec::len).collect::<Vec<_>>(), [34, 74, 34, 74]);
    assert_eq!((&payloads[1][..5], &payloads[1][53..56]), (&[0, 1, 0xab, 0xcd, 4][..], &[53, 0, 0][..]));
    let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 6, 0, 1]].concat();
    let sent = made(&Frame { template: Some(arp.clone()), ..Frame::default() }, 1, (0, 1)).remove(0);
    assert_eq!((&sent[..16], sent.len()), (&arp[..], 60));
}

/// A packet of a protocol that is summed as a whole, at the front of what IP carries, its checksum `place` bytes behind that.
fn other(protocol: Protocol, is_v6: bool, place: usize) -> Vec<u8> {
    let (src, dst) = if is_v6 { (V6[0], V6[1]) } else { ("10.0.0.1", "10.0.0.2") };
    let frame = Frame {
        src_ip: src.parse().unwrap(),
        dst_ip: dst.parse().unwrap(),
        payload: Some(Payload::Counting),
        size: 100.into(),
        ..Frame::default()
    };
    let mut packet = made(&frame, 1, (0, 1)).remove(0);
    packet[if is_v6 { 20 } else { 23 }] = protocol.0;
    let inside = if is_v6 { 54 } else { 34 };
    packet[inside + place..inside + place + 2].fill(0);
    packet
}

#[test]
fn a_template_of_another_protocol_has_its_checksum_or_stays_as_it_is() {
    let cases = [
        (Protocol::IGMP, false, 2, false),
        (Protocol::OSPF, true, 12, true),
        (Protocol::VRRP, true, 6, true),
        (Protocol::MOBILITY, true, 4, true),
        (Protocol::HIP, false, 4, true),
    ];
    for (protocol, is_v6, place, pseudo) in cases {
        let template = Some(other(protocol, is_v6, place));
        let address = if is_v6 { "ip.src=2001:2::7-2001:2::9" } else { "ip.src=10.0.0.7-10.0.0.9" };
        let last = if is_v6 { "frame[90:4]=1+" } else { "frame[80:4]=1+" };
        let packets =
            made(&Frame { template, fields: fields(&[address, last]), ..Frame::default() }, 6, (0, 1));
        for packet in &packets {
            let (inside, at, len) = if is_v6 { (54, 22, 16) } else { (34, 26, 4) };
            let carried = &packet[inside..];
            let length = u32::try_from(carried.len()).unwrap();
            let (source, destination) = packet[at..at + 2 * len].split_at(len);
            let start =
                if pseudo { Sum::pseudo(source, destination, protocol.0, length) } else { Sum::new() };
            assert_eq!(start.bytes(carried).checksum(), 0, "{protocol}");
        }
        assert_ne!(packets[0], packets[1], "{protocol}");
    }
    for (protocol, is_v6) in [(Protocol::DCCP, true), (Protocol::UDP_LITE, false), (Protocol::VRRP, false)] {
        let template = Some(other(protocol, is_v6, 6));
        let whole = Frame { template: template.clone(), ..Frame::default() };
        // IPv4's own checksum is of another protocol.
        assert_eq!(made(&whole, 1, (0, 1))[0][34..], template.clone().unwrap()[34..], "{protocol}");
        let tos = Frame { fields: fields(&["ip.tos=1-5"]), ..whole.clone() };
        assert_eq!(tos.check(), Ok(()), "{protocol}");
        let address = if is_v6 { "ip.src=2001:2::7" } else { "ip.src=10.0.0.7" };
        for frame in [
            Frame { fields: fields(&[address]), ..whole.clone() },
            Frame { fields: fields(&["frame[70:2]=1+"]), ..whole.clone() },
            Frame { payload: Some(Payload::Counting), ..whole.clone() },
            Frame { size: 200.into(), ..whole.clone() },
        ] {
            let reason = frame.check().unwrap_err();
            assert!(reason.contains("checksum over it that is not worked out"), "{protocol}: {reason}");
        }
    }
    // Behind these headers stands what has a checksum, or they are themselves one over all that is there.
    for (protocol, is_v6) in [(Protocol::ROUTING, true), (Protocol::AH, true), (Protocol::AH, false)] {
        let whole = Frame { template: Some(other(protocol, is_v6, 6)), ..Frame::default() };
        assert_eq!(whole.check(), Ok(()), "{protocol}");
        let address = if is_v6 { "ip.src=2001:2::7" } else { "ip.src=10.0.0.7" };
        for frame in [
            Frame { fields: fields(&[address]), ..whole.clone() },
            Frame { fields: fields(&["frame[70:2]=1+"]), ..whole.clone() },
            Frame { size: 200.into(), ..whole.clone() },
        ] {
            let reason = frame.check().unwrap_err();
            assert!(reason.contains("checksum over it that is not worked out"), "{protocol}: {reason}");
        }
    }
    // An OSPF of version 2 and a PIM over IPv4 cover no addresses.
    let pim = Frame { template: Some(other(Protocol::PIM, false, 2)), ..Frame::default() };
    assert_eq!(Frame { fields: fields(&["ip.src=10.0.0.7"]), ..pim }.check(), Ok(()));
}

#[test]
fn a_payload_of_given_bytes_is_whole_at_least_once() {
    let text = "text:twenty-five bytes of text";
    let frame = Frame { payload: Some(text.parse().unwrap()), ..Frame::default() };
    assert_eq!(made(&frame, 1, (0, 1))[0][42..], *b"twenty-five bytes of text");
    let reason = Frame { size: "64,100".parse().unwrap(), ..frame }.check().unwrap_err();
    assert!(reason.contains("--size 64") && reason.contains("payload need 71"), "{reason}");
}

#[test]
fn each_flow_and_each_worker_has_all_sizes_as_often_as_the_mix() {
    // Of twelve frames seven have 64, four have 594 and one has 1518 bytes with FCS.
    let is_the_mix = |lengths: &[usize]| {
        let count = |size: usize| lengths.iter().filter(|len| **len == size - 4).count() * 12;
        [count(64), count(594), count(1518)] == [7, 4, 1].map(|share: usize| share * lengths.len())
    };
    let imix = || Frame { size: "imix".parse().unwrap(), ..Frame::default() };
    let cases = [
        Frame { flows: Some(4), ..imix() },
        Frame { flows: Some(12), ..imix() },
        Frame { flows: Some(24), payload: Some(Payload::Nothing), ..imix() },
        Frame { flows: Some(5), ..imix() },
        Frame { fields: fields(&["udp.src=1-6"]), ..imix() },
        imix(),
    ];
    for frame in cases {
        for workers in [1, 2, 4] {
            for worker in 0..workers {
                let mut flows = HashMap::<Vec<u8>, Vec<usize>>::new();
                for packet in made(&frame, 12 * 24 * 12, (worker, workers)) {
                    // Addresses and ports.
                    flows.entry(packet[26..38].to_vec()).or_default().push(packet.len());
                }
                let all: Vec<usize> = flows.values().flatten().copied().collect();
                assert!(is_the_mix(&all), "worker {worker} of {workers}");
                for (flow, lengths) in &flows {
                    assert!(is_the_mix(lengths) || lengths.len() % 12 > 0, "{flow:?}: {lengths:?}");
                }
            }
        }
    }
    // The first packets of all workers are a mix together.
    let few: Vec<usize> =
        (0..4).flat_map(|worker| made(&imix(), 3, (worker, 4))).map(|packet| packet.len()).collect();
    assert!(is_the_mix(&few), "{few:?}");
}

#[test]
fn what_has_no_payload_is_padded_behind_its_datagram() {
    let network = Network::Ip(Upper::Tcp);
    let frame = Frame {
        network,
        payload: Some(Payload::Nothing),
        fields: fields(&["tcp.flags=syn"]),
        ..Frame::default()
    };
    let packet = made(&frame, 1, (0, 1)).remove(0);
    assert_eq!((packet.len(), judge(&packet).len(), packet[47]), (60, 0, 2));
    let frame = Frame { network: Network::Ethernet(0x88b5), size: 70.into(), ..Frame::default() };
    let packet = made(&frame, 1, (0, 1)).remove(0);
    assert_eq!((&packet[12..14], packet.len()), (&[0x88, 0xb5][..], 66));
    assert!(
        Probe::read(packet[14..].first_chunk().unwrap(), || crc32fast::hash(&packet[14 + PROBE..])).is_ok()
    );
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let refused = |frame: Frame, part: &str| {
        let reason = frame.check().expect_err(part);
        assert!(reason.contains(part) && !reason.contains('\n'), "{part}: {reason}");
    };
    let good = Frame::default;
    let with = |text: &[&str]| Frame { fields: fields(text), ..good() };
    let v6 = || Frame { src_ip: V6[0].parse().unwrap(), dst_ip: V6[1].parse().unwrap(), ..good() };
    let template = |bytes: &[u8], fields| Frame { template: Some(bytes.to_vec()), ..with(fields) };
    refused(template(&[0], &[]), "has 1 byte:");
    refused(template(&[0; 60], &["vlan.id=5"]), "the template has no such VLAN tag");
    refused(Frame { payload: Some(Payload::Template), ..good() }, "no template");
    let udp = |kept: usize| {
        let packet = made(&good(), 1, (0, 1)).remove(0);
        template(&packet[..kept], &[])
    };
    assert_eq!(udp(42).check(), Ok(()), "all headers are there");
    refused(udp(41), "UDP header is not whole");
    refused(udp(33), "IPv4 header is not whole");
    refused(udp(14), "IPv4 header is not whole");
    refused(template(&[&[0; 12][..], &[0x81, 0, 0, 5, 0x86, 0xdd, 0x60]].concat(), &[]), "IPv6 header");
    refused(template(&[&[0; 12][..], &[0x81, 0, 0, 5]].concat(), &[]), "VLAN tag is not whole");
    refused(template(&[&[0; 12][..], &[0x88, 0x47, 0, 0, 0, 64]].concat(), &[]), "stack of MPLS labels");
    refused(Frame { size: 63.into(), ..good() }, "64 or more");
    refused(Frame { size: 83.into(), ..v6() }, "need 84");
    refused(Frame { size: "64,63".parse().unwrap(), ..good() }, "--size 63");
    refused(Frame { size: 65_540.into(), ..good() }, "at most 65539 bytes");
    refused(Frame { dst_ip: V6[0].parse().unwrap(), ..good() }, "two versions");
    refused(Frame { sources: 0, ..good() }, "1 to 65536");
    refused(Frame { sources: 65_537, ..good() }, "1 to 65536");
    refused(Frame { dst_port: 0, ..good() }, "port 0");
    refused(Frame { vlans: vec![4096], ..good() }, "--vlan 4096");
    refused(Frame { mpls: vec![1 << 20], ..good() }, "--mpls 1048576");
    refused(Frame { flows: Some(0), ..good() }, "--flows 0");
    refused(Frame { flows: Some(70_000), ..good() }, "65536 sources are the most");
    refused(Frame { flows: Some(11), ..with(&["port.src=1-5", "port.dst=1,2"]) }, "only 10 different");
    refused(Frame { template: Some(vec![0; 13]), ..good() }, "13 bytes");
    refused(Frame { template: Some(vec![0; 65_536]), ..good() }, "65536 bytes");
    let tags = [&[0; 12][..], &[0x81, 0, 0, 1].repeat(600), &[8, 0]].concat();
    refused(Frame { template: Some(tags), payload: Some(Payload::Template), ..good() }, "first 2048 bytes");
    refused(with(&["vlan.id=1"]), "no such VLAN tag");
    refused(with(&["tcp.seq=1"]), "no TCP header");
    refused(with(&["ip.src=fd00::/64"]), "no IPv4 address");
    refused(with(&["port.src=0-5"]), "0 is not in 1-65535");
    refused(with(&["frame[16:2]=1"]), "must be right");
    refused(with(&["frame[12:2]=1"]), "must be right");
    refused(with(&["frame[25:4]=1"]), "must be right");
    refused(with(&["frame[32:4]=1"]), "across two headers");
    refused(with(&["payload[0:4]=1-9"]), "the probe lies there");
    refused(
        Frame { payload: Some(Payload::Pattern(vec![0])), ..with(&["payload[90:2]=1-9"]) },
        "ends before",
    );
    refused(with(&["ip.tos=1-9", "ip.dscp=1"]), "change the same bits");
    refused(Frame { sources: 5, ..with(&["ip.src=10.0.0.0/8"]) }, "change the same bits");
    refused(Frame { sources: 5, network: Network::Ethernet(0x88b5), ..good() }, "no IP header");
    let mut piece = made(&good(), 1, (0, 1)).remove(0);
    piece[20] = 0x20;
    refused(Frame { template: Some(piece), ..with(&["ip.src=10.0.0.0/8"]) }, "fragment");
}

#[test]
fn long_packets_are_whole_and_their_probes_are_judged_right() {
    for (size, frames) in [(2052, 1), (2053, 2), (9000, 5), (65_539, 32)] {
        let frame = Frame { size: size.into(), sources: 5, ..Frame::default() };
        assert_eq!(Plan::new(&frame, None).unwrap().most_frames(), frames);
        for packet in made(&frame, 7, (0, 1)) {
            let payload = judge(&packet);
            assert_eq!((packet.len(), payload.len()), (size - 4, size - 4 - 42));
            assert!(
                Probe::read(payload.first_chunk().unwrap(), || crc32fast::hash(&payload[PROBE..])).is_ok()
            );
        }
    }
}

#[test]
fn long_templates_keep_their_bytes_and_vary_in_front_only() {
    let long = Frame { size: 9000.into(), payload: Some(Payload::Random(7)), ..Frame::default() };
    let template = made(&long, 1, (0, 1)).remove(0);
    let of = |field: &str| Frame {
        template: Some(template.clone()),
        fields: fields(&[field]),
        payload: Some(Payload::Template),
        ..Frame::default()
    };
    let sent = made(&of("port.src=1-9"), 2, (0, 1)).remove(1);
    judge(&sent);
    assert_eq!((sent.len(), &sent[34..36], &sent[42..]), (8996, &[0, 2][..], &template[42..]));
    // What does not vary may lie anywhere.
    let sent = made(&of("frame[5000:2]=7"), 1, (0, 1)).remove(0);
    judge(&sent);
    assert_eq!((&sent[5000..5002], &sent[5002..]), (&[0, 7][..], &template[5002..]));
    let reason = of("frame[2047:2]=1-9").check().unwrap_err();
    assert!(reason.contains("first 2048 bytes") && !reason.contains('\n'), "{reason}");
}
