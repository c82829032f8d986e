//! TCP: which connection a segment is for, and what becomes of connections.

mod api;
mod arrive;
mod busy;
mod challenge;
mod congestion;
mod connection;
mod emit;
mod facts;
mod fast_open;
mod follow;
mod info;
mod list;
mod listen;
mod open;
mod output;
mod parked;
mod predict;
mod rate;
mod receive_buffer;
mod records;
mod recovery;
mod rtt;
mod scoreboard;
mod segment;
mod seldom;
mod send_buffer;
mod seq;
mod state;
mod super_segment;
mod time_wait;
mod timers;
mod undo;
mod urgent;
mod way;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU8;
use std::ops::Range;
use std::time::Duration;

use bywash_frame::{Packet, prefetch};
use bywash_wire::{Protocol, TcpFlags, TcpHeader};

pub use api::TcpError;
pub use congestion::CongestionControl;
pub use info::{LINUX_TCP_INFO, TcpInfo};
#[cfg(test)]
pub(crate) use predict::by_steps;
pub use state::State;
pub(crate) use way::Way;

use crate::flow::{Purpose, Secret};
use crate::ip::{Inbound, checksum_right, pseudo};
use crate::outbox::Outbox;
use crate::pairs::Pairs;
use crate::slab::Slab;
use crate::stack::Context;
use crate::table::Table;
use crate::wheel::Wheel;
use crate::{Address, Flow, Notice, Timestamp, Unreachable};
use connection::{Connection, NEVER};
use facts::{ACK_NOW, DIRTY, RELEASED};
use listen::HalfOpen;
use parked::Parked;
use segment::Segment;
use time_wait::{TimeWait, Verdict};

/// A connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    index: u32,
    generation: u32,
}

/// A port that peers may connect to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ListenerId(u32);

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Both ends said all they had to say.
    Done,
    /// The peer broke it off (`ECONNRESET`).
    Reset,
    /// Nobody listens there (`ECONNREFUSED`).
    Refused,
    /// No answer for too long (`ETIMEDOUT`).
    TimedOut,
}

/// What a connection may use and how long it waits. New connections get the stack's.
///
/// In front is what each segment needs: it shares a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Limits {
    /// Bytes of receive window at first, and at most: it grows as the program reads.
    pub receive_initial: u32,
    /// Bytes of receive window at most.
    pub receive_max: u32,
    /// Bytes of send buffer at first: it grows with the congestion window.
    pub send_initial: u32,
    /// Bytes of send buffer at most.
    pub send_max: u32,
    /// Bytes that may wait to go out for the first time (`TCP_NOTSENT_LOWAT`).
    pub unsent: u32,
    /// How the congestion window is made.
    pub congestion: CongestionControl,
    /// The upper six bits are the DiffServ field of every segment (RFC 9293, MUST-48); the lower two are TCP's own.
    pub traffic_class: u8,
    /// The time to live, or hop limit, of every segment (RFC 9293, MUST-49); where nothing is said, 64, and in IPv6 what routers say.
    pub hop_limit: Option<NonZeroU8>,
    /// Whether our own connections ask for explicit congestion notification (RFC 3168). See `answers_ecn`, too.
    pub ecn: bool,
    /// Whether a silent peer is probed. Off, as RFC 9293, MUST-25 says.
    pub keepalive: bool,
    /// How long data may stay without an answer (RFC 5482; Linux's 15 retransmissions are about as long).
    pub user_timeout: Duration,
    /// How long a peer is silent before the first probe.
    pub keepalive_idle: Duration,
    /// Between two probes.
    pub keepalive_interval: Duration,
    /// How long a connection whose program has gone waits for the peer's FIN.
    pub fin_timeout: Duration,
    /// Probes without an answer that end the connection.
    pub keepalive_count: u8,
    /// Whether the options are offered, and taken when the peer offers them: scaled windows and timestamps (RFC 7323),
    /// selective acknowledgments (RFC 2018).
    pub window_scaling: bool,
    /// See `window_scaling`.
    pub timestamps: bool,
    /// See `window_scaling`.
    pub sack: bool,
    /// Whether peers that ask for explicit congestion notification get it.
    pub answers_ecn: bool,
    /// The largest segment, both ways, where that is less than what the path takes (`TCP_MAXSEG`).
    pub mss: Option<u16>,
    /// Whether what the path takes is to be found out anew after a pause (RFC 5681, 4.1).
    pub restart_after_idle: bool,
    /// Segments of a super-segment at least, if the congestion window holds two such (`tcp_min_tso_segs`). It has more where the
    /// path takes more within a millisecond, and never more than 60 000 bytes or less than one segment.
    pub super_segment_min: u8,
    /// How often a SYN is sent again; a SYN,ACK.
    pub syn_retries: u8,
    /// See `syn_retries`.
    pub syn_ack_retries: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            receive_initial: 128 << 10,
            receive_max: 4 << 20,
            send_initial: 64 << 10,
            send_max: 4 << 20,
            // More than leaves in a turn, and few enough to be in a core's cache still when they go. Behind an open window
            // a program would otherwise write megabytes ahead.
            unsent: 256 << 10,
            congestion: CongestionControl::default(),
            user_timeout: Duration::from_secs(924),
            ecn: false,
            answers_ecn: true,
            keepalive: false,
            keepalive_idle: Duration::from_secs(7200),
            keepalive_interval: Duration::from_secs(75),
            keepalive_count: 9,
            window_scaling: true,
            timestamps: true,
            sack: true,
            mss: None,
            restart_after_idle: true,
            super_segment_min: 2,
            // Without an answer MUST-23's three minutes are over first.
            syn_retries: 7,
            syn_ack_retries: 5,
            fin_timeout: Duration::from_secs(60),
            traffic_class: 0,
            hop_limit: None,
        }
    }
}

impl Limits {
    /// The smallest scale by which the largest window fits its field (RFC 7323, 2.3: at most 14).
    fn scale(&self) -> u8 {
        let bits = u32::BITS - self.receive_max.leading_zeros();
        u8::try_from(bits.saturating_sub(u16::BITS).min(14)).unwrap_or(14)
    }
}

#[derive(Debug)]
struct Listener {
    local: Option<Address>,
    port: u16,
    /// Handshakes under way, and at most.
    half_open: usize,
    backlog: usize,
    /// Its program takes no connection more for now.
    full: bool,
    /// When a SYN was last answered by a cookie.
    cookie_sent: Option<Timestamp>,
    /// What its connections begin with.
    limits: Limits,
    /// How it takes Fast Open, if it was told.
    fast_open: Option<Box<fast_open::Taking>>,
}

/// What a number in the table stands for: its upper bits say in which slab the entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Connection(u32),
    HalfOpen(u32),
    TimeWait(u32),
}

const KIND: u32 = 30;

impl Entry {
    fn value(self) -> u32 {
        match self {
            Self::Connection(i) => i,
            Self::HalfOpen(i) => 1 << KIND | i,
            Self::TimeWait(i) => 2 << KIND | i,
        }
    }

    #[inline]
    fn from_value(value: u32) -> Self {
        let i = value & ((1 << KIND) - 1);
        match value >> KIND {
            0 => Self::Connection(i),
            1 => Self::HalfOpen(i),
            _ => Self::TimeWait(i),
        }
    }
}

/// Connections at most, of each kind.
const CONNECTIONS: usize = 1 << 21;

/// All of TCP on one stack.
#[derive(Debug)]
pub(crate) struct Tcp {
    table: Table,
    connections: Slab<Connection>,
    half_open: Slab<HalfOpen>,
    time_wait: Slab<TimeWait>,
    /// Few: found faster by comparing than by a hash.
    listeners: BTreeMap<u32, Listener>,
    ports: BTreeMap<u16, Vec<u32>>,
    next_listener: u32,
    wheel: Wheel,
    half_wheel: Wheel,
    wait_queue: time_wait::Queue,
    /// The start of our clock for each pair: see [`listen::clock_offset`].
    clocks: Pairs<u32>,
    /// Connections that have something to send, or that are to be looked at.
    dirty: VecDeque<u32>,
    /// Of those, the ones that send to a port that is slow.
    parked: Parked,
    /// Numbers from a wheel, kept so that it does not allocate.
    due: Vec<u32>,
    pub(crate) limits: Limits,
    /// Counts ports given out, all around (RFC 6056, 3.3.3).
    next_port: u32,
}

impl Tcp {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::with_capacity(1024),
            connections: Slab::new(CONNECTIONS),
            half_open: Slab::new(CONNECTIONS),
            time_wait: Slab::new(CONNECTIONS),
            listeners: BTreeMap::new(),
            ports: BTreeMap::new(),
            next_listener: 0,
            wheel: Wheel::new(Timestamp::ZERO),
            half_wheel: Wheel::new(Timestamp::ZERO),
            wait_queue: time_wait::Queue::new(),
            clocks: Pairs::new(),
            dirty: VecDeque::new(),
            parked: Parked::default(),
            due: Vec::new(),
            limits: Limits::default(),
            next_port: 0,
        }
    }

    /// Takes a segment from IP.
    pub(crate) fn input(&mut self, inbound: Inbound, cx: &mut Context<'_>) {
        if inbound.group {
            // RFC 9293, MUST-57 and 3.9.2.3: nothing that was sent to many is for TCP.
            return cx.pool.give_packet(inbound.packet);
        }
        let Inbound { packet, source, destination, start, end, ecn, .. } = inbound;
        self.host_input((destination, source), packet, (start..end, ecn), cx);
    }

    /// Takes a segment from one host to another, which is in `place` of its packet.
    pub(crate) fn host_input(
        &mut self,
        (local, remote): (Address, Address),
        packet: Packet,
        (place, ecn): (Range<usize>, u8),
        cx: &mut Context<'_>,
    ) {
        let Some((tcp, bytes)) = header(&packet, &place) else {
            cx.counters.malformed += 1;
            cx.counters.tcp_errors += 1;
            return cx.pool.give_packet(packet);
        };
        if !checksum_right(&packet, place.clone(), pseudo(remote, local, Protocol::TCP.0, place.len())) {
            cx.counters.checksum += 1;
            cx.counters.tcp_errors += 1;
            return cx.pool.give_packet(packet);
        }
        cx.counters.tcp_received += 1;
        let (flow, segment) = (Flow::of(tcp, local, remote), Segment::of(tcp, bytes, place, ecn));
        let hash = cx.secret.hash(Purpose::Table, &flow);
        match self.find(hash, &flow) {
            Some(Entry::Connection(i)) => {
                self.connections[i].arrive(&segment, packet, cx);
                self.settle(i, cx);
            }
            Some(Entry::HalfOpen(i)) => self.complete(i, &segment, packet, cx),
            Some(Entry::TimeWait(i)) => self.wait_input(i, flow, &segment, packet, cx),
            None => self.listen_input((hash, flow), &segment, packet, cx),
        }
    }

    /// The hash of a flow of which a segment has come. The place in the table is asked for: [`Tcp::seems`] needs it soon.
    #[inline]
    pub(crate) fn expect(&self, flow: &Flow, secret: &Secret) -> u64 {
        let hash = secret.hash(Purpose::Table, flow);
        self.table.prefetch(hash);
        hash
    }

    /// What a flow of that hash seems to be: nearly always it is, but only its memory says so, which is asked for.
    #[inline]
    pub(crate) fn seems(&self, hash: u64) -> Option<Entry> {
        let entry = self.table.find(hash, |_| true).map(Entry::from_value)?;
        match entry {
            Entry::Connection(i) => self.connections[i].prefetch(),
            Entry::HalfOpen(i) => prefetch(&self.half_open[i], 0..size_of::<HalfOpen>()),
            Entry::TimeWait(i) => prefetch(&self.time_wait[i], 0..size_of::<TimeWait>()),
        }
        Some(entry)
    }

    /// Whether it is the connection of a segment with these addresses in its IPv4 header, has not ended, and its packets come in as
    /// usual, as far as a snapshot knows: its way says so.
    #[inline]
    pub(crate) fn is_heard(&self, i: u32, addresses: [u8; 8], segment: &TcpHeader, generation: u32) -> bool {
        let connection = &self.connections[i];
        let ports = (connection.flow.remote_port, connection.flow.local_port);
        (segment.source_port.get(), segment.destination_port.get()) == ports
            && connection.state != State::Closed
            && connection.way.as_ref().is_some_and(|way| way.is_heard(addresses, generation))
    }

    /// Takes a segment of such a connection, which is in `place` of its packet.
    #[inline]
    pub(crate) fn known_input(
        &mut self,
        i: u32,
        packet: Packet,
        (place, ecn): (Range<usize>, u8),
        cx: &mut Context<'_>,
    ) {
        self.connections[i].arrive_by_way(packet, place, ecn, cx);
        self.settle(i, cx);
    }

    #[inline]
    fn find(&self, hash: u64, flow: &Flow) -> Option<Entry> {
        let same = |value| match Entry::from_value(value) {
            Entry::Connection(i) => self.connections[i].flow == *flow,
            Entry::HalfOpen(i) => self.half_open[i].flow == *flow,
            Entry::TimeWait(i) => self.time_wait[i].flow == *flow,
        };
        self.table.find(hash, same).map(Entry::from_value)
    }

    /// After something has happened to a connection: its timer, its place in line, its end.
    #[inline]
    fn settle(&mut self, i: u32, cx: &mut Context<'_>) {
        let connection = &mut self.connections[i];
        if matches!(connection.state, State::TimeWait | State::Closed) {
            return self.settle_end(i, cx);
        }
        if !connection.facts.any(DIRTY) {
            connection.facts.add(DIRTY);
            self.dirty.push_back(i);
        }
    }

    #[cold]
    fn settle_end(&mut self, i: u32, cx: &mut Context<'_>) {
        match self.connections[i].state {
            State::TimeWait => self.wait(i, cx.now, cx),
            _ => self.close_out(i, cx),
        }
    }

    /// Both have said all: what remains is a small entry. The program may still read.
    fn wait(&mut self, i: u32, now: Timestamp, cx: &mut Context<'_>) {
        let connection = &mut self.connections[i];
        // The peer's FIN is acknowledged by the connection, later ones by the entry.
        if connection.facts.any(ACK_NOW) {
            connection.emit(connection.nxt, 0, TcpFlags::ACK, cx);
        }
        let entry = TimeWait::of(connection, now);
        let hash = connection.hash;
        connection.terminate(CloseReason::Done, cx);
        match self.time_wait.take() {
            Some(w) => {
                self.time_wait[w] = entry;
                self.wait_queue.push(&mut self.time_wait, w);
                self.table.replace(hash, Entry::Connection(i).value(), Entry::TimeWait(w).value());
                self.let_go(i, cx);
            }
            None => self.close_out(i, cx),
        }
    }

    /// A connection has ended.
    fn close_out(&mut self, i: u32, cx: &mut Context<'_>) {
        self.table.remove(self.connections[i].hash, Entry::Connection(i).value());
        self.let_go(i, cx);
    }

    /// The table does not know a connection any more. Its entry is free when the program has let go of it, too.
    fn let_go(&mut self, i: u32, cx: &mut Context<'_>) {
        let connection = &mut self.connections[i];
        if connection.facts.any(RELEASED) && !connection.facts.any(DIRTY) {
            connection.forget_received(cx);
            connection.send.clear(cx.share, cx.pool);
            connection.id.generation = connection.id.generation.wrapping_add(1);
            connection.facts.remove(RELEASED);
            self.connections.give(i);
        }
    }

    /// Lets time pass.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_>) {
        let mut due = std::mem::take(&mut self.due);
        if self.wheel.turns(cx.now) {
            self.wheel.advance(cx.now, &mut due);
            for i in due.drain(..) {
                let connection = &mut self.connections[i];
                connection.wheel_at = NEVER;
                // A deadline outlives its connection: to stop it costs more than to look at it once in vain.
                if connection.state != State::Closed {
                    let waits = connection.facts.any(DIRTY);
                    connection.expire(cx);
                    self.settle(i, cx);
                    if waits {
                        // Its turn may be far: its port takes nothing.
                        let connection = &mut self.connections[i];
                        connection.arm(cx.now);
                        connection.set_in(&mut self.wheel);
                    }
                }
            }
        }
        if self.half_wheel.turns(cx.now) {
            self.half_wheel.advance(cx.now, &mut due);
            due.drain(..).for_each(|i| self.answer_again(i, cx));
        }
        self.due = due;
        while let Some(i) = self.wait_queue.due(&self.time_wait, cx.now) {
            self.forget_wait(i);
        }
    }

    /// Lets connections send, each in its turn, once around.
    pub(crate) fn output(&mut self, cx: &mut Context<'_>) {
        self.output_parked(cx);
        // Those who send to a slow port are not to hold up others.
        let slow = cx.out.has_slow_port();
        for _ in 0..self.dirty.len() {
            let Some(i) = self.dirty.pop_front() else { return };
            let (more, full) = self.take_turn(i, cx);
            if !full {
                if more {
                    self.dirty.push_back(i);
                }
            } else if !slow {
                // What else waits for a port waits with it: the port is emptied before the next round. That is another's.
                if more {
                    self.dirty.push_back(i);
                }
                return;
            } else if more {
                self.park(i, cx);
            }
        }
    }

    /// Lets those send whose ports have room again.
    #[inline]
    fn output_parked(&mut self, cx: &mut Context<'_>) {
        for _ in 0..self.parked.len() {
            let Some(i) = self.parked.pop(|port| !cx.out.is_full(port)) else { break };
            if let (true, _) = self.take_turn(i, cx) {
                self.park(i, cx);
            }
        }
    }

    /// Lets one connection send: whether it has more, and is to be lined up again, and whether its port is full now.
    #[inline(always)]
    fn take_turn(&mut self, i: u32, cx: &mut Context<'_>) -> (bool, bool) {
        let connection = &mut self.connections[i];
        let more = !connection.send_message(cx) && connection.output(cx);
        connection.facts.set(DIRTY, more);
        if connection.state == State::Closed {
            connection.facts.remove(DIRTY);
            self.close_out(i, cx);
            return (false, false);
        }
        let full = connection.port_is_full(cx);
        connection.set_in(&mut self.wheel);
        (more, full)
    }

    /// Lets a connection wait for its port, if that is full: its way may be of another snapshot.
    #[cold]
    fn park(&mut self, i: u32, cx: &mut Context<'_>) {
        let connection = &mut self.connections[i];
        let port = connection.current_way(cx.out).map(|way| way.port);
        match port.filter(|port| cx.out.is_full(*port)) {
            Some(port) => self.parked.push(port, i),
            None => self.dirty.push_back(i),
        }
    }

    /// Ways may lead to other ports by a new snapshot: who waits for one is to find out.
    #[inline]
    pub(crate) fn follow_ways(&mut self) {
        self.parked.leave(&mut self.dirty);
    }

    /// When [`Tcp::advance`] or [`Tcp::output`] has something to do.
    pub(crate) fn next_deadline(&self, out: &Outbox) -> Option<Timestamp> {
        if !self.dirty.is_empty() || self.parked.has_any(|port| !out.is_full(port)) {
            return Some(Timestamp::ZERO);
        }
        let waits = self.wait_queue.next_deadline(&self.time_wait);
        [self.wheel.next_deadline(), self.half_wheel.next_deadline(), waits].into_iter().flatten().min()
    }

    /// ICMP told something (RFC 9293, 3.9.2.2; RFC 5927: only what names a number that is in flight is believed).
    pub(crate) fn notice(&mut self, notice: &Notice, cx: &mut Context<'_>) {
        let hash = cx.secret.hash(Purpose::Table, &notice.flow);
        let Some(Entry::Connection(i)) = self.find(hash, &notice.flow) else { return };
        let connection = &mut self.connections[i];
        let number = seq::Seq(notice.sequence);
        if number.before(connection.una) || !number.before(connection.nxt) {
            return;
        }
        match notice.error {
            Unreachable::TooBig(mtu) => {
                connection.path_mtu(mtu, cx.now);
                cx.out.path_mtus.learn(cx.now, notice.flow.remote, mtu);
            }
            // SHLD-25: the program can ask for what may only be a passing trouble (MUST-56).
            Unreachable::Network | Unreachable::Host => connection.soft_error = Some((notice.error, cx.now)),
            // Hard errors end an attempt, and nothing else (RFC 5927, 5.2; RFC 9293, SHLD-26 would end connections as well).
            Unreachable::Port | Unreachable::Protocol if connection.state == State::SynSent => {
                connection.terminate(CloseReason::Refused, cx);
            }
            _ => {}
        }
        self.settle(i, cx);
    }

    /// A segment for an entry in TIME-WAIT.
    fn wait_input(&mut self, i: u32, flow: Flow, segment: &Segment, packet: Packet, cx: &mut Context<'_>) {
        let listener = if segment.opens() { self.listener_of(&flow) } else { None };
        let stamps = listener.map(|id| self.limits_of(id).timestamps);
        let wait = &mut self.time_wait[i];
        match wait.arrive(segment, stamps, cx) {
            Verdict::Keep => cx.pool.give_packet(packet),
            Verdict::Restart => {
                wait.until = cx.now + time_wait::TIME_WAIT;
                self.wait_queue.remove(&mut self.time_wait, i);
                self.wait_queue.push(&mut self.time_wait, i);
                cx.pool.give_packet(packet);
            }
            Verdict::Reuse => {
                let hash = wait.hash;
                match listener {
                    Some(listener) => self.open((hash, flow), listener, segment, (Some(i), packet), cx),
                    None => cx.pool.give_packet(packet),
                }
            }
        }
    }

    fn forget_wait(&mut self, i: u32) {
        let wait = &self.time_wait[i];
        self.table.remove(wait.hash, Entry::TimeWait(i).value());
        self.give_wait(i);
    }

    /// Takes an entry back that the table does not know any more.
    fn give_wait(&mut self, i: u32) {
        self.wait_queue.remove(&mut self.time_wait, i);
        self.time_wait.give(i);
    }
}

/// The header of a segment in `place` of a packet, and its bytes as far as they lie in the first frame.
#[inline(always)]
fn header<'a>(packet: &'a Packet, place: &Range<usize>) -> Option<(&'a TcpHeader, &'a [u8])> {
    let head = packet.head();
    let bytes = head.get(place.start..place.end.min(head.len()))?;
    Some((TcpHeader::parse(bytes)?, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_small() {
        let sizes = [size_of::<Connection>(), size_of::<HalfOpen>(), size_of::<TimeWait>()];
        assert_eq!(sizes, [1344, 88, 96], "the numbers in the first lines of lib.rs");
        assert_eq!(connection::STATE, 64..192, "two cache lines");
        assert_eq!(connection::HOT, [64..512, 704..952], "what each segment needs, in lib.rs, too");
    }
}
