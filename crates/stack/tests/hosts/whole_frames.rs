//! Segments that go out in the frames in which they wait to be acknowledged, over a wire that hands on the packets themselves.

use std::time::Duration;

use bywash_frame::{Batch, Packet, Pool};
use bywash_stack::{ConnectionId, Event, Host, Interface, Medium, Offloads, Timestamp};
use bywash_wire::Mac;

use crate::random::Random;
use crate::wire::seeds::{Told, seeds};
use crate::wire::{PORT, address};

/// Bytes of a full segment of IPv4 with timestamps at an MTU of 1500, and those in front of them.
const FULL: usize = 1448;
const HEADERS: usize = 14 + 20 + 32;

/// Two hosts that have their memory in common, and what is under way from one to the other.
struct Common {
    now: Timestamp,
    pool: Pool,
    ends: [Host; 2],
    wires: [Vec<(Timestamp, Packet)>; 2],
    /// Packets that were frames of a send buffer.
    whole: usize,
}

impl Common {
    /// Of IPv4 or IPv6, with a tag or without.
    fn new(offloads: Offloads, v6: bool, vlan: Option<u16>) -> Self {
        let now = Timestamp::from_nanos(1_000_000_000);
        let mut pool = crate::wire::pool(2000);
        let ends = [1, 2].map(|number| {
            let mut host = Host::new([number; 16], &mut pool);
            let interface = Interface {
                name: "wire".into(),
                port: PORT,
                medium: Medium::Ethernet { mac: Mac([2, 0, 0, 0, 0, number]), vlan },
                mtu: 1500,
                offloads,
            };
            let id = host.control.add_interface(interface).unwrap();
            let prefix = if v6 { format!("fd00::{number}/64") } else { format!("10.0.0.{number}/24") };
            host.control.add_address(now, id, prefix.parse().unwrap()).unwrap();
            host.advance(now, &mut pool);
            host
        });
        Self { now, pool, ends, wires: Default::default(), whole: 0 }
    }

    /// Lets a millisecond pass: what has come is received, and what is sent is under way for as long as `fate` says, or lost.
    fn step(&mut self, mut fate: impl FnMut() -> Option<Duration>) {
        self.now = self.now + Duration::from_millis(1);
        let mut batch = Batch::new();
        for (to, host) in self.ends.iter_mut().enumerate() {
            let due: Vec<_> = self.wires[to].extract_if(.., |(at, _)| *at <= self.now).collect();
            for (_, packet) in due {
                batch.push(packet);
                if batch.room() == 0 {
                    host.receive(self.now, PORT, &mut batch, &mut self.pool);
                }
            }
            host.receive(self.now, PORT, &mut batch, &mut self.pool);
            host.advance(self.now, &mut self.pool);
            loop {
                host.transmit(PORT, &mut batch);
                if batch.is_empty() {
                    break;
                }
                for mut packet in batch.drain() {
                    if packet.frames() == 1 && !packet.is_single() {
                        self.whole += 1;
                        // Its headers are its own: nobody else minds what becomes of them.
                        packet.head_mut()[6..12].fill(0x22);
                    }
                    match fate() {
                        Some(way) => self.wires[1 - to].push((self.now + way, packet)),
                        None => self.pool.give_packet(packet),
                    }
                }
            }
        }
    }

    /// A connection, and the number of its end at the second host.
    fn connect(&mut self, v6: bool) -> (ConnectionId, ConnectionId) {
        // The addresses of IPv6 are ours for certain after a while (RFC 4862, 5.4).
        for _ in 0..3000 {
            self.step(|| Some(Duration::ZERO));
        }
        let [a, b] = &mut self.ends;
        b.stack.listen(None, 80, 10).unwrap();
        let peer = (address(if v6 { "fd00::2" } else { "10.0.0.2" }), 80);
        let client = a.stack.connect(self.now, (None, 0), peer, &mut self.pool).unwrap();
        for _ in 0..10 {
            self.step(|| Some(Duration::ZERO));
        }
        let accepted = self.ends[1].stack.events().find_map(|event| match event {
            Event::Accepted { connection, .. } => Some(connection),
            _ => None,
        });
        (client, accepted.unwrap())
    }

    /// Frames that nobody has.
    fn free(&self) -> usize {
        self.pool.free() + self.pool.arena().unused()
    }
}

#[test]
fn full_segments_of_a_run_take_no_frame_beside_those_in_which_they_wait() {
    for offloads in [Offloads::default(), Offloads { checksum: true, ..Offloads::default() }] {
        let mut common = Common::new(offloads, false, None);
        let (client, server) = common.connect(false);
        let (free, mut batch) = (common.free(), Batch::new());
        let bytes: Vec<u8> = (0..4 * FULL + 100).map(|i| (i * i % 253).to_le_bytes()[0]).collect();
        let Common { now, pool, ends: [a, _], .. } = &mut common;
        // The first of three pieces fills no frame, and the last one neither.
        for piece in [&bytes[..1000], &bytes[1000..4000], &bytes[4000..]] {
            assert_eq!(a.stack.send(*now, client, piece, pool), Ok(piece.len()));
        }
        a.advance(*now, pool);
        a.transmit(PORT, &mut batch);
        let sizes: Vec<_> = batch.iter().map(|packet| packet.len() - HEADERS).collect();
        assert_eq!(sizes, [FULL, FULL, FULL, FULL, 100]);
        for packet in batch.iter_mut().take(4) {
            assert_eq!((packet.frames(), packet.is_single(), packet.head_mut().len()), (1, false, HEADERS));
        }
        let Common { now, pool, ends: [a, b], .. } = &mut common;
        // Five frames wait to be acknowledged, and the last of them was copied.
        assert_eq!(pool.free() + pool.arena().unused(), free - 6);
        b.receive(*now, PORT, &mut batch, pool);
        let mut received = vec![0; bytes.len()];
        assert_eq!(b.stack.receive_copy(*now, server, &mut received, pool), Ok(bytes.len()));
        assert_eq!(received, bytes);
        // What has been read is still kept by who sent it.
        assert_eq!(pool.free() + pool.arena().unused(), free - 5);
        a.stack.abort(*now, client, pool).unwrap();
        b.stack.abort(*now, server, pool).unwrap();
        for _ in 0..3 {
            common.step(|| None);
        }
        assert_eq!(common.free(), common.pool.arena().frames());
    }
}

/// What is sent again is copied while the frame is under way, and what was received has the frame for as long as it waits to be read.
#[test]
fn what_is_lost_late_or_long_unread_arrives_as_it_was_written() {
    for seed in seeds(60) {
        let _told = Told(format!("seed {seed}"));
        let mut random = Random::new(seed);
        let offloads = Offloads { checksum: random.happens(300), segmentation: false };
        let (v6, vlan) = (random.happens(500), random.happens(500).then_some(5));
        let mut common = Common::new(offloads, v6, vlan);
        let (mut client, mut server) = common.connect(v6);
        let backwards = random.happens(500);
        if backwards {
            common.ends.reverse();
            common.wires.reverse();
            (client, server) = (server, client);
        }
        let all: Vec<u8> = (0..300_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let (mut written, mut read, mut copy) = (0, 0, vec![0; 40_000]);
        let (loss, late, slow) = (random.below(40), random.below(200), random.below(900));
        let (odd, full) = (random.happens(300), if v6 { FULL - 20 } else { FULL });
        for _ in 0..60_000 {
            if read == all.len() {
                break;
            }
            let left = all.len() - written;
            let most = random.below(60_000).min(left);
            let most = if odd || left < 60_000 { most.max(left.min(100)) } else { most / full * full };
            let (now, [a, b], pool) = (common.now, &mut common.ends, &mut common.pool);
            let piece = &all[written..][..most];
            written += if random.happens(500) {
                a.stack.send(now, client, piece, pool).unwrap()
            } else {
                let mut rest = piece;
                let write = |place: &mut [u8]| {
                    let (now, later) = rest.split_at(place.len().min(rest.len()));
                    place[..now.len()].copy_from_slice(now);
                    rest = later;
                    now.len()
                };
                a.stack.send_in_place(now, client, write, pool).unwrap()
            };
            if !random.happens(slow) {
                let n = b.stack.receive_copy(now, server, &mut copy, pool).unwrap();
                assert!(copy[..n] == all[read..read + n], "from {read} on");
                read += n;
            }
            common.step(|| {
                let way = if random.happens(late) { 1 + random.below(300) } else { 3 };
                (!random.happens(loss)).then(|| Duration::from_millis(way as u64))
            });
            common.ends.iter_mut().for_each(|end| end.stack.events().for_each(drop));
        }
        assert_eq!(
            (read, common.ends.each_ref().map(|end| end.stack.counters().checksum)),
            (all.len(), [0; 2])
        );
        // A short segment in between puts the next ones across two frames each, until all is acknowledged.
        assert!(odd || common.whole > 20, "{} frames went as they were", common.whole);
        let (now, [a, b], pool) = (common.now, &mut common.ends, &mut common.pool);
        a.stack.abort(now, client, pool).unwrap();
        b.stack.abort(now, server, pool).unwrap();
        for _ in 0..400 {
            common.step(|| None);
        }
        assert_eq!(common.free(), common.pool.arena().frames());
    }
}
