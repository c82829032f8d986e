//! Header prediction, after Van Jacobson: the segment that an undisturbed connection expects next, taken in one go.
//!
//! What comes in order, acknowledges what was sent, and says nothing else, nearly every segment, needs few of the steps in
//! `arrive`. Here is what those come to for it, and nothing that they would not do: a test plays the same conversations both
//! ways and compares.

use std::ops::Range;

use bywash_frame::Packet;
use bywash_wire::TcpFlags;
use bywash_wire::checksum::Sum;

use super::connection::{Connection, NEVER};
use super::facts::{AWAITS_WORD, ECN, ECT_SEEN, Facts, NOT_PREDICTED, TIMESTAMPS};
use super::header;
use super::receive_buffer::length;
use super::scoreboard::Delivered;
use super::segment::Segment;
use super::seq::Seq;
use super::state::State;
use crate::ip::{MARKED, checksum_right};
use crate::stack::Context;
use crate::time::Span;

impl Connection {
    /// Takes a segment in `place` of a packet that has come by the connection's own way.
    // A function of its own, which others are not part of: so all that it reads of the segment is in the processor's registers.
    #[inline(never)]
    pub(super) fn arrive_by_way(
        &mut self,
        packet: Packet,
        place: Range<usize>,
        ecn: u8,
        cx: &mut Context<'_>,
    ) {
        let Some((tcp, bytes)) = header(&packet, &place) else {
            cx.counters.malformed += 1;
            cx.counters.tcp_errors += 1;
            return cx.pool.give_packet(packet);
        };
        let length = u16::try_from(place.len()).unwrap_or(u16::MAX);
        let pseudo = self.way.as_ref().map_or(Sum::new(), |way| way.pseudo(length));
        if !checksum_right(&packet, place.clone(), pseudo) {
            cx.counters.checksum += 1;
            cx.counters.tcp_errors += 1;
            return cx.pool.give_packet(packet);
        }
        cx.counters.tcp_received += 1;
        let segment = Segment::of(tcp, bytes, place.clone(), ecn);
        self.tally.segments_in += 1;
        if self.is_predicted(&segment) {
            self.arrive_predicted(&segment, packet, cx);
        } else {
            self.arrive_otherwise(packet, place, ecn, cx);
        }
    }

    /// Takes one that was not predicted. It is read again: else all of it would have to be in memory for this.
    #[inline(never)]
    fn arrive_otherwise(&mut self, packet: Packet, place: Range<usize>, ecn: u8, cx: &mut Context<'_>) {
        let Some((tcp, bytes)) = header(&packet, &place) else { return cx.pool.give_packet(packet) };
        let segment = Segment::of(tcp, bytes, place, ecn);
        self.arrive_by_steps(&segment, packet, cx);
    }

    /// Whether a segment is the next in order, with a plausible clock (RFC 7323, 5.3), on a connection on which nothing is
    /// missing, either way, nor memory, and nothing is to be told beside its payload, its acknowledgment, and that these are the
    /// last.
    #[inline]
    pub(super) fn is_predicted(&self, segment: &Segment) -> bool {
        #[cfg(test)]
        if by_steps() {
            return false;
        }
        let stamps = match segment.options.timestamps {
            Some((value, _)) => self.facts.any(TIMESTAMPS) && !Seq(value).before(Seq(self.ts_recent)),
            None => !self.facts.any(TIMESTAMPS),
        };
        self.state == State::Established
            && segment.flags.without(TcpFlags::PSH.with(TcpFlags::FIN)) == TcpFlags::ACK
            && segment.seq == self.rcv_nxt
            && length(segment.payload) <= self.edge - self.rcv_nxt
            && stamps
            && (segment.ack == self.una && self.board.is_empty() || segment.ack.after(self.una))
            && self.acknowledges_as_usual(segment, NOT_PREDICTED)
            && !self.receive.has_gap()
            && !(self.facts.any(ECN) && self.tells_of_marks(segment))
    }

    /// Whether a segment has a mark, or is the first with data that could have had one.
    #[inline]
    fn tells_of_marks(&self, segment: &Segment) -> bool {
        let first = || segment.ecn != 0 && segment.payload > 0 && !self.facts.any(ECT_SEEN);
        segment.ecn == MARKED || first()
    }

    /// Whether an acknowledgment says nothing of losses, none was seen that still matters, and nothing is `unusual`.
    #[inline]
    fn acknowledges_as_usual(&self, segment: &Segment, unusual: Facts) -> bool {
        !segment.ack.after(self.nxt)
            && !self.board.is_disturbed()
            && segment.options.sack.is_empty()
            && !self.facts.any(unusual)
    }

    /// Whether a segment that is not predicted itself, for it ends something, acknowledges new data as usual.
    #[inline]
    pub(super) fn acknowledges_next(&self, segment: &Segment) -> bool {
        #[cfg(test)]
        if by_steps() {
            return false;
        }
        segment.ack.after(self.una)
            && !segment.has(TcpFlags::ECE)
            && self.acknowledges_as_usual(segment, AWAITS_WORD)
    }

    /// Takes such a segment.
    #[inline(always)]
    pub(super) fn arrive_predicted(&mut self, segment: &Segment, packet: Packet, cx: &mut Context<'_>) {
        #[cfg(test)]
        tests::PREDICTED.set(tests::PREDICTED.get() + 1);
        if let Some((value, _)) = segment.options.timestamps
            && !segment.seq.after(self.last_ack_sent)
        {
            (self.ts_recent, self.ts_recent_at) = (value, cx.now);
        }
        self.note_peer(cx.now);
        if segment.ack == self.una {
            self.update_window(segment);
            self.stalled = NEVER;
        } else {
            self.acknowledge_next(segment, cx);
        }
        if segment.payload == 0 {
            cx.pool.give_packet(packet);
        } else {
            self.note_data(segment, &packet, cx);
            self.take_next(segment.start, segment.payload, packet, cx);
        }
        if segment.has(TcpFlags::FIN) {
            self.check_fin(true, segment.end(), cx);
        }
    }

    /// New data is acknowledged (RFC 5681, 3.1), all of it sent once.
    #[inline(always)]
    pub(super) fn acknowledge_next(&mut self, segment: &Segment, cx: &mut Context<'_>) {
        let (before, una) = (self.board.in_flight(), self.una);
        self.update_window(segment);
        let mut delivered = Delivered::default();
        self.board.acknowledge(segment.ack, cx.now, self.rtt.shortest(), &mut delivered);
        self.count_delivered(delivered.bytes);
        self.advance_una(segment.ack, cx);
        self.measure(segment, true, &delivered, cx);
        if self.board.is_empty() {
            self.reorder_wait = Span::ZERO;
            self.note_last_rate(una, cx.now);
        } else {
            self.find_losses(true, delivered.bytes, delivered.bytes, cx);
            self.note_rate(una, delivered.rtt, cx.now);
        }
        self.grow(before, &delivered, cx.now);
        self.restart_timer();
    }
}

/// Whether a test wants every segment to go the longest way.
#[cfg(test)]
pub(crate) fn by_steps() -> bool {
    tests::BY_STEPS.get()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use bywash_frame::{Arena, Batch, Pool, Stride};
    use bywash_wire::Mac;
    use proptest::prelude::*;

    use crate::{
        CongestionControl, ConnectionId, Event, Host, Interface, Limits, Medium, Offloads, PortId, Timestamp,
    };

    thread_local! {
        /// Nothing is predicted, nor taken by the shortest way in or out: every segment goes by the steps.
        pub(super) static BY_STEPS: Cell<bool> = const { Cell::new(false) };
        /// Segments that were predicted.
        pub(super) static PREDICTED: Cell<u64> = const { Cell::new(0) };
    }

    const PORT: PortId = PortId(0);
    /// Frames that are more than two hosts need.
    const MANY: usize = 1500;

    struct World {
        hosts: [Host; 2],
        connections: [ConnectionId; 2],
        pool: Pool,
        now: Timestamp,
        sent: u8,
        /// All that can be seen from outside: packets, events, numbers.
        log: Vec<String>,
    }

    impl World {
        fn new(limits: Limits, frames: usize) -> Self {
            let mut pool =
                Arena::new(vec![0; Stride::Packed.memory_for(frames)]).unwrap().pool(frames).unwrap();
            let now = Timestamp::from_nanos(1_000_000_000);
            let host = |number: u8, pool: &mut Pool| {
                let mut host = Host::new([number; 16], pool);
                let interface = Interface {
                    name: "wire".into(),
                    port: PORT,
                    medium: Medium::Ethernet { mac: Mac([2, 0, 0, 0, 0, number]), vlan: None },
                    mtu: 1500,
                    offloads: Offloads::default(),
                };
                let id = host.control.add_interface(interface).unwrap();
                host.control.add_address(now, id, format!("10.0.0.{number}/24").parse().unwrap()).unwrap();
                host.stack.set_limits(limits);
                host.advance(now, pool);
                host
            };
            let hosts = [host(1, &mut pool), host(2, &mut pool)];
            let connections = [ConnectionId::default(); 2];
            let mut world = Self { hosts, connections, pool, now, sent: 0, log: Vec::new() };
            world.hosts[1].stack.listen(None, 80, 4).unwrap();
            let to = (std::net::Ipv4Addr::new(10, 0, 0, 2).into(), 80);
            let (stack, pool) = (&mut world.hosts[0].stack, &mut world.pool);
            world.connections[0] = stack.connect(now, (None, 4000), to, pool).unwrap();
            for _ in 0..8 {
                world.carry(0, 0);
                world.carry(1, 0);
            }
            world
        }

        /// Carries what one host sends to the other; `fault` says what becomes of it on the way.
        fn carry(&mut self, from: usize, fault: u16) {
            let mut batch = Batch::new();
            self.hosts[from].advance(self.now, &mut self.pool);
            self.hosts[from].transmit(PORT, &mut batch);
            let mut packets: Vec<_> = batch.drain().collect();
            self.log.extend(packets.iter().map(|packet| format!("{from}: {:02x?}", packet.head())));
            if !packets.is_empty() {
                let at = usize::from(fault >> 3) % packets.len();
                match fault & 7 {
                    1 => self.pool.give_packet(packets.remove(at)),
                    2 => packets.rotate_left(at),
                    3 => packets.drain(..).for_each(|packet| self.pool.give_packet(packet)),
                    // One that looks whole but is marked "congestion experienced": its header's sum is wrong if it was not.
                    4 => packets[at].head_mut()[15] ^= 3,
                    _ => {}
                }
            }
            batch.extend(packets.into_iter());
            self.hosts[1 - from].receive(self.now, PORT, &mut batch, &mut self.pool);
            self.hosts[1 - from].advance(self.now, &mut self.pool);
            for host in 0..2 {
                for event in self.hosts[host].stack.events().collect::<Vec<_>>() {
                    if let Event::Accepted { connection, .. } = event {
                        self.connections[host] = connection;
                    }
                    self.log.push(format!("{host}: {event:?}"));
                }
            }
        }

        fn step(&mut self, (action, amount): (u8, u16)) {
            let end = usize::from(action & 1);
            let (stack, pool, id) = (&mut self.hosts[end].stack, &mut self.pool, self.connections[end]);
            match action >> 1 {
                // Messages, and more than a segment has room for.
                longest @ (0 | 1) => {
                    self.sent = self.sent.wrapping_add(1);
                    let bytes = vec![self.sent; usize::from(amount) % [1500, 20_000][usize::from(longest)]];
                    self.log.push(format!("{:?}", stack.send(self.now, id, &bytes, pool)));
                }
                2 => {
                    let n = stack.readable_bytes(id).unwrap_or(0);
                    self.log.push(format!("{n}: {:?}", stack.consume(self.now, id, n, pool)));
                }
                3 => self.now = self.now + Duration::from_micros(amount.into()),
                4 => self.now = self.now + Duration::from_millis(u64::from(amount) % 300),
                5 if amount < 2000 => drop(stack.shutdown(self.now, id, pool)),
                _ => self.carry(end, amount),
            }
            for end in 0..2 {
                let info = self.hosts[end].stack.tcp_info(self.now, self.connections[end]);
                self.log.push(format!("{info:?}"));
            }
        }
    }

    fn play(by_steps: bool, limits: Limits, frames: usize, script: &[(u8, u16)]) -> Vec<String> {
        BY_STEPS.set(by_steps);
        let mut world = World::new(limits, frames);
        script.iter().for_each(|step| world.step(*step));
        BY_STEPS.set(false);
        for (host, id) in world.hosts.iter_mut().zip(world.connections) {
            let _ended = host.stack.abort(world.now, id, &mut world.pool);
            host.advance(world.now, &mut world.pool);
            let share = &host.stack.share;
            assert_eq!((share.early, share.unread, share.queued), (0, 0, 0), "nothing is held any more");
        }
        world.log
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Conversations with loss, reordering, marks, pauses, and memory that runs out: the same packets, events and numbers.
        #[test]
        fn prediction_is_what_the_steps_come_to(
            script in prop::collection::vec((0u8..32, any::<u16>()), 1..120),
            (sack, timestamps, ecn, newreno) in any::<(bool, bool, bool, bool)>(),
            frames in prop_oneof![Just(MANY), 64usize..256],
        ) {
            let congestion = if newreno { CongestionControl::NewReno } else { CongestionControl::Cubic };
            let limits = Limits { sack, timestamps, ecn, congestion, ..Limits::default() };
            prop_assert_eq!(play(false, limits, frames, &script), play(true, limits, frames, &script));
        }
    }

    #[test]
    fn nearly_all_of_an_undisturbed_stream_is_predicted() {
        let before = PREDICTED.get();
        let rounds = [(2, 15_000), (12, 0), (13, 0), (5, 0)].repeat(20);
        play(false, Limits::default(), MANY, &rounds);
        assert!(PREDICTED.get() - before >= 50, "{}", PREDICTED.get() - before);
    }
}
