//! Bytes that are sent from where the program wrote them, without a copy.

use std::time::Duration;

use bywash_frame::{Batch, FRAME_DATA};
use bywash_stack::{ConnectionId, Event, Limits, Offloads, TcpError};

use crate::wire::trace::Trace;
use crate::wire::{PORT, Pair, address};

/// A connection by a port that cuts, with all acknowledged and a congestion window in which the bytes of a test are one
/// super-segment each time, and the peer's next acknowledgment.
fn wide() -> (Trace, ConnectionId, u32) {
    let mut t = Trace::over(Offloads { segmentation: true, ..Offloads::default() });
    let id = t.accept(60_000, "mss 1000", "");
    let (mut batch, mut acked) = (Batch::new(), 1);
    while let window = t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd
        && window < 20_000
    {
        t.send(id, window as usize);
        take(&mut t, &mut batch);
        t.pool.give_batch(&mut batch);
        t.pass(Duration::from_millis(20));
        acked += window;
        t.peer(&format!(". 1:1(0) ack {acked} win 60000"));
    }
    (t, id, acked)
}

/// Frames that nobody has.
fn free(t: &Trace) -> usize {
    t.pool.free() + t.pool.arena().unused()
}

/// Moves what is sent now into a batch.
fn take(t: &mut Trace, batch: &mut Batch) {
    t.host.advance(t.now, &mut t.pool);
    t.host.transmit(PORT, batch);
}

/// Writes bytes in place, and says where they lie: piece by piece, from where to where.
fn write(t: &mut Trace, id: ConnectionId, bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut rest, mut places) = (bytes, Vec::new());
    let write = |place: &mut [u8]| {
        let n = place.len().min(rest.len());
        place[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        places.push((place.as_ptr().addr(), place.as_ptr().addr() + n));
        n
    };
    assert_eq!(t.host.stack.send_in_place(t.now, id, write, &mut t.pool), Ok(bytes.len()));
    places
}

/// Where the payload of packets lies whose headers are in a frame of their own.
fn places(batch: &Batch) -> Vec<(usize, usize)> {
    let range = |bytes: &[u8]| (bytes.as_ptr().addr(), bytes.as_ptr().addr() + bytes.len());
    joined(batch.iter().flat_map(|packet| packet.slices().skip(1)).map(range))
}

/// The same places, without what divides one from another that goes on where it ends.
fn joined(places: impl IntoIterator<Item = (usize, usize)>) -> Vec<(usize, usize)> {
    let mut joined: Vec<(usize, usize)> = Vec::new();
    for (start, end) in places {
        match joined.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => joined.push((start, end)),
        }
    }
    joined
}

fn payload(batch: &Batch) -> Vec<u8> {
    batch.iter().flat_map(|packet| packet.slices().skip(1)).flatten().copied().collect()
}

#[test]
fn a_super_segment_lies_where_it_was_written() {
    let (mut t, id, _) = wide();
    let bytes: Vec<u8> = (0..8000_u32).map(|i| i.wrapping_mul(7).to_le_bytes()[0]).collect();
    let mut batch = Batch::new();
    let (first, second) = bytes.split_at(4000);
    let mut written = write(&mut t, id, first);
    take(&mut t, &mut batch);
    assert_eq!((places(&batch), payload(&batch)), (written.clone(), first.to_vec()));
    // What is written next goes into the rest of a frame whose front is out.
    let more = write(&mut t, id, second);
    assert_eq!(more[0].0, written.last().unwrap().1);
    take(&mut t, &mut batch);
    written.extend(more);
    assert_eq!((places(&batch), payload(&batch)), (joined(written), bytes));
    t.pool.give_batch(&mut batch);
}

/// Ports have limits: AF_XDP takes as many frames as a packet of its length fills, and refuses others for ever.
#[test]
fn what_no_port_cuts_has_no_more_frames_than_its_bytes_fill() {
    let mut t = Trace::over_mtu(9000, Offloads::default());
    let id = t.accept(60_000, "mss 8960", "");
    let (mut batch, mut acked, mut full) = (Batch::new(), 1, 0);
    for _ in 0..3 {
        let window = t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd;
        t.send(id, window as usize);
        take(&mut t, &mut batch);
        for packet in &batch {
            assert!(packet.frames() <= packet.len().div_ceil(FRAME_DATA), "{}", packet.frames());
            full += usize::from(packet.len() == 9000);
        }
        t.pool.give_batch(&mut batch);
        t.pass(Duration::from_millis(20));
        acked += window;
        t.peer(&format!(". 1:1(0) ack {acked} win 60000"));
    }
    assert!(full > 5, "{full}");
}

/// The port may still have what the peer has acknowledged: it had come twice, or the acknowledgment was quicker than the port.
#[test]
fn what_a_port_still_has_is_not_used_again() {
    let (mut t, id, acked) = wide();
    let bytes: Vec<u8> = (0..6000_u32).map(|i| i.wrapping_mul(11).to_le_bytes()[0]).collect();
    let (mut batch, mut later) = (Batch::new(), Batch::new());
    let before = free(&t);
    write(&mut t, id, &bytes);
    take(&mut t, &mut batch);
    t.peer(&format!(". 1:1(0) ack {} win 60000", acked + 6000));
    // Whoever takes frames now, and writes to them, has others.
    let mut frames: Vec<_> = std::iter::from_fn(|| t.pool.take()).collect();
    frames.iter_mut().for_each(|frame| frame.bytes_mut().fill(0xee));
    assert_eq!(payload(&batch), bytes);
    frames.into_iter().for_each(|frame| t.pool.give(frame));
    assert!(free(&t) < before);
    t.pool.give_batch(&mut batch);
    assert_eq!(free(&t), before);
    // The same when the connection is gone.
    write(&mut t, id, &bytes);
    take(&mut t, &mut batch);
    t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
    take(&mut t, &mut later);
    assert_eq!(payload(&batch), bytes);
    t.pool.give_batch(&mut batch);
    t.pool.give_batch(&mut later);
    assert_eq!(free(&t), before);
}

#[test]
fn what_is_sent_once_more_may_be_out_still() {
    let (mut t, id, acked) = wide();
    let bytes: Vec<u8> = (0..4000_u32).map(|i| i.wrapping_mul(13).to_le_bytes()[0]).collect();
    let (mut first, mut copies) = (Batch::new(), Batch::new());
    write(&mut t, id, &bytes);
    take(&mut t, &mut first);
    t.pass(Duration::from_secs(3));
    take(&mut t, &mut copies);
    assert!(!copies.is_empty());
    assert_eq!(payload(&first), bytes);
    t.pool.give_batch(&mut copies);
    assert_eq!(payload(&first), bytes);
    t.peer(&format!(". 1:1(0) ack {} win 60000", acked + 4000));
    assert_eq!(payload(&first), bytes);
    t.pool.give_batch(&mut first);
}

#[test]
fn what_has_come_is_passed_on_as_far_as_there_is_room() {
    let mut t = Trace::new();
    let id = t.accept(60_000, "mss 1000", "");
    let small = Limits { send_initial: 1500, send_max: 1500, ..Limits::default() };
    t.host.stack.set_connection_limits(t.now, id, small, &mut t.pool).unwrap();
    assert_eq!(t.host.stack.pass(t.now, id, id, &mut t.pool), Ok(0));
    t.peer(". 1:1001(1000) ack 1 win 60000");
    t.peer("P. 1001:2001(1000) ack 1 win 60000");
    assert_eq!(t.events(), [Event::Readable(id)]);
    let expected = t.host.stack.readable(id).unwrap().flatten().copied().collect::<Vec<_>>();
    assert_eq!(t.host.stack.pass(t.now, id, id, &mut t.pool), Ok(1500));
    assert_eq!(t.host.stack.readable_bytes(id), Ok(500));
    let mut sent = sent(&mut t);
    t.peer(". 2001:2001(0) ack 1501 win 60000");
    assert_eq!(t.events(), [Event::Writable(id)]);
    assert_eq!(t.host.stack.pass(t.now, id, id, &mut t.pool), Ok(500));
    sent.extend(self::sent(&mut t));
    assert_eq!(sent, expected);
    // Who may not send keeps what it has.
    t.peer("P. 2001:2011(10) ack 2001 win 60000");
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    assert_eq!(t.host.stack.pass(t.now, id, id, &mut t.pool), Err(TcpError::Shutdown));
    assert_eq!(t.host.stack.readable_bytes(id), Ok(10));
}

/// The payload of what is sent now.
fn sent(t: &mut Trace) -> Vec<u8> {
    let mut batch = Batch::new();
    take(t, &mut batch);
    let sent = batch.iter().flat_map(|packet| packet.slices().flatten().skip(40)).copied().collect();
    t.pool.give_batch(&mut batch);
    sent
}

#[test]
fn one_connection_s_bytes_are_passed_on_to_another() {
    let mut pair = Pair::new(1500);
    let listener = pair.b.host.stack.listen(None, 80, 4).unwrap();
    let connect = |pair: &mut Pair| {
        let to = (address("10.0.0.2"), 80);
        let client = pair.a.host.stack.connect(pair.now, (None, 0), to, &mut pair.a.pool).unwrap();
        pair.settle();
        let mut events = pair.b.host.stack.events();
        let server = events.find_map(|event| match event {
            Event::Accepted { listener: of, connection } if of == listener => Some(connection),
            _ => None,
        });
        (client, server.unwrap())
    };
    let (from, to) = (connect(&mut pair), connect(&mut pair));
    let bytes: Vec<u8> = (0..9000_u32).map(|i| i.wrapping_mul(17).to_le_bytes()[0]).collect();
    pair.a.host.stack.send(pair.now, from.0, &bytes, &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(pair.b.host.stack.pass(pair.now, from.1, to.1, &mut pair.b.pool), Ok(9000));
    assert_eq!(pair.b.host.stack.readable_bytes(from.1), Ok(0));
    pair.settle();
    let got: Vec<u8> = pair.a.host.stack.readable(to.0).unwrap().flatten().copied().collect();
    assert_eq!(got, bytes);
    pair.b.host.stack.close(pair.now, to.1, &mut pair.b.pool).unwrap();
    pair.a.host.stack.send(pair.now, from.0, b"more", &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(pair.b.host.stack.pass(pair.now, from.1, to.1, &mut pair.b.pool), Err(TcpError::Closed));
    assert_eq!(pair.b.host.stack.readable_bytes(from.1), Ok(4));
}
