//! Which packets are a generator's, and which of those are whole.

use bywash_port::frame::{Arena, FRAME_SIZE, Segment};
use bywash_wire::Mac;

use super::*;
use crate::generate::Frame;
use crate::generate::template_of;

fn pool() -> Pool {
    Arena::new(vec![0; 8 * FRAME_SIZE]).unwrap().pool(8).unwrap()
}

fn sent(frame: &Frame) -> Vec<u8> {
    template_of(frame, Mac([2, 0, 0, 0, 0, 1]), Probe { stream: 1, sequence: 2, time: 3 })
}

fn judged(bytes: &[u8], pool: &mut Pool) -> Result<Probe, ProbeError> {
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(bytes).unwrap();
    let judged = read(&packet);
    pool.give_packet(packet);
    judged
}

fn frames() -> [Frame; 3] {
    let v6 =
        Frame { src_ip: "fd00::1".parse().unwrap(), dst_ip: "fd00::2".parse().unwrap(), ..Frame::default() };
    [Frame::default(), Frame { size: 128, ..Frame::default() }, Frame { size: 128, ..v6 }]
}

#[test]
fn what_was_sent_is_right_also_with_vlan_tags_and_padding() {
    let mut pool = pool();
    for frame in frames() {
        let bytes = sent(&frame);
        let probe = Ok(Probe { stream: 1, sequence: 2, time: 3 });
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
            judged(&damaged, &mut pool).unwrap_err();
        }
    }
    let mut damaged = sent(&Frame::default());
    damaged[28] ^= 1;
    assert_eq!(judged(&damaged, &mut pool), Err(ProbeError::Damaged), "the IPv4 header's checksum");
    damaged[42] ^= 1;
    assert_eq!(judged(&damaged, &mut pool), Err(ProbeError::Foreign), "the same in somebody else's packet");
}

#[test]
fn no_packet_is_too_short_or_too_odd() {
    let mut pool = pool();
    for frame in frames() {
        let bytes = sent(&frame);
        for len in 0..bytes.len() {
            assert_eq!(judged(&bytes[..len], &mut pool), Err(ProbeError::Foreign), "{len} bytes");
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
    let bytes = sent(&Frame { size: 600, ..Frame::default() });
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
fn streams_beyond_what_can_be_told_apart_are_none() {
    let mut streams = Streams::new();
    for id in 0..300_u16 {
        assert_eq!(streams.of(id * 200).map(|stream| stream.id), (id < 256).then_some(id * 200));
    }
    assert_eq!(streams.of(0).map(|stream| stream.id), Some(0));
}
