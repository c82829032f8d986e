//! Which packets are a generator's, and which of those are whole.

use bywash_port::frame::{Arena, FRAME_SIZE, Pool, Segment};
use bywash_wire::Mac;

use super::*;
use crate::generate::Frame;
use crate::generate::template_of;

fn pool() -> Pool {
    Arena::new(vec![0; 8 * FRAME_SIZE]).unwrap().pool(8).unwrap()
}

fn sent(frame: &Frame) -> Vec<u8> {
    template_of(frame, Mac([2, 0, 0, 0, 0, 1]), Probe { stream: 1, sequence: 2, time: 3, flows: 1 })
}

/// What a packet turned out to be.
#[derive(Debug, PartialEq)]
enum Seen {
    Right(Probe),
    Damaged(Damage),
    Foreign,
}

fn judged(bytes: &[u8], pool: &mut Pool) -> Seen {
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(bytes).unwrap();
    let judged = match read(&packet) {
        Ok(probe) => Seen::Right(probe),
        Err(ProbeError::Damaged) => Seen::Damaged(damage(&packet).unwrap()),
        Err(ProbeError::Foreign) => Seen::Foreign,
    };
    pool.give_packet(packet);
    judged
}

fn frames() -> [Frame; 3] {
    let v6 =
        Frame { src_ip: "fd00::1".parse().unwrap(), dst_ip: "fd00::2".parse().unwrap(), ..Frame::default() };
    [Frame::default(), Frame { size: 128.into(), ..Frame::default() }, Frame { size: 128.into(), ..v6 }]
}

#[test]
fn what_was_sent_is_right_also_with_vlan_tags_and_padding() {
    let mut pool = pool();
    for frame in frames() {
        let bytes = sent(&frame);
        let probe = Seen::Right(Probe { stream: 1, sequence: 2, time: 3, flows: 1 });
        assert_eq!(judged(&bytes, &mut pool), probe);
        let (addresses, rest) = bytes.split_at(12);
        assert_eq!(judged(&[addresses, &[0x81, 0, 0, 7], rest].concat(), &mut pool), probe);
        assert_eq!(judged(&[addresses, &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9], rest].concat(), &mut pool), probe);
        assert_eq!(judged(&[&bytes[..], &[0; 9]].concat(), &mut pool), probe);
    }
}

#[test]
fn a_flipped_bit_in_the_payload_is_never_right() {
    let mut pool = pool();
    for frame in frames() {
        let bytes = sent(&frame);
        for bit in (bytes.len() - 18) * 8..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(judged(&damaged, &mut pool), Seen::Right(_)), "bit {bit}");
        }
    }
    let mut damaged = sent(&Frame::default());
    damaged[28] ^= 1;
    let probe = Probe { stream: 1, sequence: 2, time: 3, flows: 1 };
    let beside = Seen::Damaged(Damage::Beside(probe));
    assert_eq!(judged(&damaged, &mut pool), beside, "the IPv4 header's checksum");
    damaged[47] ^= 1;
    assert_eq!(judged(&damaged, &mut pool), Seen::Damaged(Damage::Of(1)), "the number, too");
    damaged[42] ^= 1;
    assert_eq!(judged(&damaged, &mut pool), Seen::Foreign, "the same in somebody else's packet");
}

#[test]
fn no_packet_is_too_short_or_too_odd() {
    let mut pool = pool();
    for frame in frames() {
        let bytes = sent(&frame);
        for len in 0..bytes.len() {
            assert_eq!(judged(&bytes[..len], &mut pool), Seen::Foreign, "{len} bytes");
        }
        for at in 12..bytes.len().min(62) {
            for value in [0, 1, 0x7f, 0xff] {
                let mut odd = bytes.clone();
                odd[at] = value;
                // Whatever it is, it is judged.
                let _ = judged(&odd, &mut pool);
            }
        }
    }
}

#[test]
fn a_filler_in_several_frames_is_checked_as_one() {
    let mut pool = pool();
    let bytes = sent(&Frame { size: 600.into(), ..Frame::default() });
    for (flip, right) in [(None, true), (Some(599 - 4), false), (Some(310), false)] {
        let mut bytes = bytes.clone();
        if let Some(at) = flip {
            bytes[at] ^= 0x10;
        }
        let mut packet = Packet::new(pool.take().unwrap());
        packet.extend_from_slice(&bytes[..100]).unwrap();
        for part in bytes[100..].chunks(173) {
            let mut segment = Segment::new(pool.take().unwrap(), 0, part.len()).unwrap();
            segment.bytes_mut().copy_from_slice(part);
            packet.push_segment(segment, &mut pool).unwrap();
        }
        assert_eq!(read(&packet).is_ok(), right, "{flip:?}");
        pool.give_packet(packet);
    }
}

#[test]
fn what_tcp_and_echoes_carry_is_judged_too() {
    let mut pool = pool();
    let probe = Probe { stream: 5, sequence: 6, time: 7, flows: 0 }.to_bytes(0);
    let tcp = TcpHeader::new((1, 2), 3, 4, bywash_wire::TcpFlags::ACK, 5, 0);
    let echo = |kind: u8| [&[kind, 0, 0, 0, 0, 1, 0, 2][..], &probe].concat();
    let (tcp, from) = ([tcp.as_bytes(), &probe].concat(), [10, 0, 0, 1].into());
    for (protocol, datagram, right) in [
        (Protocol::TCP, tcp.clone(), true),
        (Protocol::ICMP, echo(icmpv4::ECHO_REQUEST), true),
        (Protocol::ICMP, echo(icmpv4::ECHO_REPLY), true),
        (Protocol::ICMP, echo(icmpv4::UNREACHABLE), false),
        (Protocol::GRE, tcp, false),
    ] {
        let ip = Ipv4Header::new(from, from, protocol.0, u16::try_from(datagram.len()).unwrap());
        let bytes = [&[0; 12][..], &[8, 0], ip.as_bytes(), &datagram].concat();
        assert_eq!(matches!(judged(&bytes, &mut pool), Seen::Right(_)), right, "{protocol}");
        for len in 0..bytes.len() {
            assert_eq!(judged(&bytes[..len], &mut pool), Seen::Foreign, "{protocol}, {len} bytes");
        }
    }
}

#[test]
fn a_damaged_packet_says_of_itself_what_is_not_damaged() {
    let mut pool = pool();
    let probe = Probe { stream: 1, sequence: 2, time: 3, flows: 1 };
    for size in [64, 65, 300, 1518] {
        let bytes = sent(&Frame { size: size.into(), ..Frame::default() });
        for at in [42 + 4, 42 + 17, 42 + 18, bytes.len() - 1].into_iter().filter(|at| *at < bytes.len()) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let left = if at < 42 + PROBE { Damage::Of(1) } else { Damage::Beside(probe) };
            assert_eq!(judged(&damaged, &mut pool), Seen::Damaged(left), "byte {at} of {size}");
        }
    }
}
