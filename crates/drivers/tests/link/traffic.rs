//! Packets over a link, both ends in one process.

use std::num::NonZeroU16;

use bywash_drivers::OpenOptions;
use bywash_frame::{Checksum, HEADROOM, Packet, Segment, Segmentation, SegmentationKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{End, Place, until};

fn ends(place: &Place, options: &OpenOptions) -> (End, End) {
    let (first, second) = (End::open(&place.name(), options), End::open(&place.name(), options));
    until("connected", || first.counter("connected") == 1);
    (first, second)
}

#[test]
fn packets_come_in_order_and_count_as_sent_when_they_were_taken() {
    let place = Place::new();
    let (mut first, mut second) = ends(&place, &OpenOptions { ring: Some(64), ..OpenOptions::default() });
    let (mut next, mut expected) = (0, 0);
    for _ in 0..2000 {
        while first.send(next) {
            next += 1;
        }
        assert_eq!(first.tx.in_flight() as u64, next - expected);
        for number in second.receive() {
            assert_eq!(number, expected);
            expected += 1;
        }
        assert!(second.send(expected));
        assert_eq!(first.receive(), [expected]);
    }
    assert_eq!(expected, next);
    first.tx.flush(&mut first.pool);
    let sent = first.tx.counters();
    assert_eq!((sent.packets, sent.bytes, first.tx.in_flight()), (next, next * 60, 0));
    assert_eq!(second.rx.counters(), sent);
    first.close();
    second.close();
}

fn chain(end: &mut End, lens: &[usize]) -> (Packet, Vec<u8>) {
    let mut all = Vec::new();
    let mut packet: Option<Packet> = None;
    for (number, &len) in lens.iter().enumerate() {
        let mut frame = end.pool.take().unwrap();
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + number * 31).to_le_bytes()[0]).collect();
        frame.bytes_mut()[HEADROOM..][..len].copy_from_slice(&bytes);
        all.extend(bytes);
        let segment = Segment::new(frame, HEADROOM, len).unwrap();
        match &mut packet {
            None => packet = Some(Packet::from_segment(segment)),
            Some(packet) => packet.push_segment(segment, &mut end.pool).unwrap(),
        }
    }
    (packet.unwrap(), all)
}

fn only(end: &mut End) -> (Packet, Vec<u8>) {
    assert_eq!(end.rx.rx(&mut end.pool, &mut end.batch), 1);
    let packet = end.batch.drain().next().unwrap();
    let mut bytes = vec![0; packet.len()];
    packet.copy_to(&mut bytes);
    (packet, bytes)
}

#[test]
fn chains_arrive_whole_however_they_were_cut() {
    let place = Place::new();
    let (mut first, mut second) = ends(&place, &OpenOptions { ring: Some(64), ..OpenOptions::default() });
    let longest = [2048; 34];
    for lens in [&[60][..], &[2048], &[2048, 1], &[14, 1, 2000, 2048, 3], &[100, 2048, 2048], &longest] {
        for _ in 0..5 {
            let (packet, bytes) = chain(&mut first, lens);
            assert!(first.send_packet(packet));
            let (packet, received) = only(&mut second);
            assert_eq!((received, packet.frames()), (bytes.clone(), bytes.len().div_ceil(2048)));
            second.pool.give_packet(packet);
        }
    }
    assert!(first.port.capabilities().max_len >= 65_535);
    // One that would not fit any packet.
    let mut lens = longest;
    (lens[0], lens[33]) = (2048, 2048);
    let (mut packet, _) = chain(&mut first, &lens);
    packet.push_front(1).unwrap();
    assert!(first.send_packet(packet));
    assert_eq!((first.tx.counters().errors, second.receive().len()), (1, 0));
    first.close();
    second.close();
}

#[test]
fn what_is_left_to_do_travels_along_or_is_done_for_who_wants_plain_packets() {
    let place = Place::new();
    let (mut first, mut second) = ends(&place, &OpenOptions::default());
    let segmentation = Segmentation { kind: SegmentationKind::Tcp4, size: NonZeroU16::new(1448).unwrap() };
    let marked = |end: &mut End, segmented: bool| {
        let (mut packet, _) = chain(end, &[60]);
        packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 16 });
        packet.offload.set_segmentation(segmented.then_some(segmentation));
        packet.offload.set_vlan(Some(7));
        packet
    };
    let packet = marked(&mut first, true);
    assert!(first.send_packet(packet));
    let (packet, bytes) = only(&mut second);
    assert_eq!(bytes[12..16], [0x81, 0, 0, 7], "the tag is in the packet now");
    assert_eq!(packet.offload.checksum(), Checksum::Partial { start: 38, offset: 16 });
    assert_eq!(packet.offload.segmentation(), Some(segmentation));
    second.pool.give_packet(packet);
    second.close();

    let plain = OpenOptions { plain: true, ..OpenOptions::default() };
    let mut second = End::open(&place.name(), &plain);
    until("connected again", || first.counter("connections") == 2);
    for segmented in [true, false] {
        let packet = marked(&mut first, segmented);
        assert!(first.send_packet(packet));
    }
    let (packet, bytes) = only(&mut second);
    assert_eq!((packet.offload.checksum(), second.rx.counters().errors), (Checksum::Unknown, 1));
    // RFC 1071: all words and the checksum sum up to the complement of what stood in its place, the pseudo-header's sum.
    let sum: u64 = bytes[38..].chunks(2).map(|two| u64::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let before = u64::from(u16::from_be_bytes([50_usize, 51].map(|n| (n * 7).to_le_bytes()[0])));
    assert_eq!(sum % 0xffff, 0xffff - before);
    second.pool.give_packet(packet);
    first.close();
    second.close();
}

#[test]
fn a_sleeping_end_is_woken_once_by_a_packet() {
    let place = Place::new();
    let (mut first, mut second) = ends(&place, &OpenOptions::default());
    let woken = |end: &End, limit: i64| {
        let mut wait = [PollFd::from_borrowed_fd(end.rx.wake_fd().unwrap(), PollFlags::IN)];
        poll(&mut wait, Some(&Timespec { tv_sec: limit, tv_nsec: 0 })).unwrap() == 1
    };
    for round in 0..100 {
        until("asleep", || {
            // The first time there is news, of the connection.
            second.receive();
            second.rx.arm() && !woken(&second, 0)
        });
        assert!(first.send(round));
        assert!(woken(&second, 10), "packet {round}");
        assert_eq!(second.receive(), [round]);
        assert!(!woken(&second, 0), "it was hushed");
    }
    assert!(first.send(1));
    assert!(!second.rx.arm(), "a packet is there: no reason to sleep");
    second.receive();
    // Its other end's death wakes it as well, and then it can sleep.
    assert!(second.rx.arm());
    first.close();
    assert!(woken(&second, 10));
    until("asleep without the other end", || {
        second.receive();
        second.rx.arm() && !woken(&second, 0)
    });
    second.close();
}

#[test]
fn what_was_sent_before_anybody_came_is_received() {
    let place = Place::new();
    let options = OpenOptions { ring: Some(64), ..OpenOptions::default() };
    let mut first = End::open(&place.name(), &options);
    assert_eq!((0..100).take_while(|&n| first.send(n)).count(), 64);
    assert_eq!((first.tx.in_flight(), first.tx.counters().packets), (64, 0));
    let mut second = End::open(&place.name(), &options);
    let mut received = Vec::new();
    until("all", || {
        first.tx.flush(&mut first.pool);
        received.extend(second.receive());
        received.len() == 64
    });
    assert_eq!(received, Vec::from_iter(0..64));
    assert_eq!(first.counter("kept_packets"), 64);
    // And what was sent before everybody went.
    assert!(first.send(64) && second.send(65));
    first.close();
    until("the last", || second.receive() == [64]);
    second.close();
}

#[test]
fn an_end_that_only_sends_is_no_place_to_send_to() {
    let place = Place::new();
    let mut sender = End::open(&place.name(), &OpenOptions { tx_only: true, ..OpenOptions::default() });
    let mut other = End::open(&place.name(), &OpenOptions::default());
    for number in 0..5000 {
        assert!(other.send(number), "it is never full");
    }
    assert_eq!((other.tx.counters().packets, other.tx.counters().errors), (0, 5000));
    until("the way there", || sender.send(7) && other.receive().contains(&7));
    other.close();
    sender.close();
}
