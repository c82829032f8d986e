//! Bytes that are sent from where the program wrote them, without a copy.

use std::time::Duration;

use bywash_frame::Batch;
use bywash_stack::{ConnectionId, Offloads};

use crate::wire::PORT;
use crate::wire::trace::Trace;

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
