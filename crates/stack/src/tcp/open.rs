//! How connections begin: listeners, the handshakes of peers, connections of our own.

use bywash_frame::Packet;
use bywash_wire::TcpFlags;

use super::connection::NEVER;
use super::emit::Bare;
use super::listen::{self, Answered, HalfOpen, default_mss};
use super::segment::Segment;
use super::seq::Seq;
use super::state::Cause;
use super::{ConnectionId, Entry, Limits, Listener, ListenerId, Tcp, TcpError};
use crate::flow::Purpose;
use crate::stack::Context;
use crate::{Address, FastOpenClient, Flow, Snapshot};

/// Ports that are given to connections that do not ask for one: Linux's. RFC 6335, 6 calls those from 49152 on dynamic, which are
/// few; RFC 6056, 3.2 would have all from 1024 on, but there are servers.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

impl Tcp {
    pub(super) fn listen(
        &mut self,
        local: Option<Address>,
        port: u16,
        backlog: usize,
    ) -> Result<ListenerId, TcpError> {
        let same = |id: &u32| self.listeners[id].local == local;
        if self.ports.get(&port).is_some_and(|ids| ids.iter().any(same)) {
            return Err(TcpError::Taken);
        }
        self.next_listener += 1;
        let id = ListenerId(self.next_listener);
        self.add_listener(id, local, port, backlog);
        Ok(id)
    }

    pub(super) fn add_listener(&mut self, id: ListenerId, local: Option<Address>, port: u16, backlog: usize) {
        self.listeners.insert(
            id.0,
            Listener {
                local,
                port,
                half_open: 0,
                backlog,
                full: false,
                cookie_sent: None,
                limits: self.limits,
                fast_open: None,
            },
        );
        self.ports.entry(port).or_default().push(id.0);
    }

    pub(super) fn unlisten(&mut self, id: ListenerId) {
        let Some(listener) = self.listeners.remove(&id.0) else { return };
        if let Some(ids) = self.ports.get_mut(&listener.port) {
            ids.retain(|other| *other != id.0);
            if ids.is_empty() {
                self.ports.remove(&listener.port);
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        local: (Option<Address>, u16),
        remote: (Address, u16),
        (limits, first): (Limits, Option<FastOpenClient<'_>>),
        wanted: impl Fn(&Flow) -> bool,
        cx: &mut Context<'_>,
    ) -> Result<(ConnectionId, usize), TcpError> {
        let mut flow = Flow {
            local: local.0.unwrap_or_default(),
            remote: remote.0,
            local_port: local.1,
            remote_port: remote.1,
        };
        // Where there is a way, there is a host and a route to it.
        if local.0.is_none() || cx.out.ways.get(&flow).is_none() {
            flow.local = source(local.0, remote.0, &cx.out.snapshot)?;
        }
        let (flow, hash, waits) = if local.1 == 0 {
            self.free_flow(flow, limits.timestamps, wanted, cx)?
        } else {
            self.given_flow(flow, limits.timestamps, cx)?
        };
        let i = self.connections.take().ok_or(TcpError::TooMany)?;
        let last = waits.map(|w| self.take_wait(w));
        let connection = &mut self.connections[i];
        connection.id.index = i;
        connection.reset(flow, hash, &limits, cx.now);
        connection.state = connection.state.after(Cause::Opened);
        let iss = listen::initial_sequence(&flow, last, cx);
        connection.set_iss(iss);
        connection.ts_offset = listen::known_clock_offset(&mut self.clocks, &flow, cx);
        connection.path_mss = listen::largest_segment(&flow, &limits, cx);
        connection.set_mss(default_mss(&flow).min(connection.path_mss));
        connection.board.push(iss, iss + 1, cx.now, connection.window.mss());
        connection.stalled = cx.now;
        connection.rcv_scale = if limits.window_scaling { limits.scale() } else { 0 };
        let id = connection.id;
        cx.counters.tcp_active_opens += 1;
        let data = match first {
            Some(first) => connection.begin_fast(first, cx),
            None => {
                connection.send_range(iss, 1, cx);
                0
            }
        };
        self.table.insert(hash, Entry::Connection(i).value());
        self.settle(i, cx);
        Ok((id, data))
    }

    /// The flow, its hash, and its entry in TIME-WAIT, if it has one, which gives way only where clocks tell the two connections
    /// apart.
    fn given_flow(
        &mut self,
        flow: Flow,
        stamps: bool,
        cx: &Context<'_>,
    ) -> Result<(Flow, u64, Option<u32>), TcpError> {
        let hash = cx.secret.hash(Purpose::Table, &flow);
        match self.find(hash, &flow) {
            None => Ok((flow, hash, None)),
            Some(Entry::TimeWait(i)) if stamps && self.time_wait[i].may_be_reused(cx.now) => {
                Ok((flow, hash, Some(i)))
            }
            Some(Entry::TimeWait(_)) => Err(TcpError::Waits),
            Some(_) => Err(TcpError::Exists),
        }
    }

    /// Ends TIME-WAIT for a new connection, and says our last number on its flow: our own numbers go on above, and our clock is
    /// higher by now (RFC 6191, 2).
    fn take_wait(&mut self, i: u32) -> Seq {
        let last = self.time_wait[i].nxt;
        self.forget_wait(i);
        last
    }

    /// RFC 6056, 3.3.3: the search begins at a place that only we know for this destination, and goes on from one
    /// connection to the next. A port in TIME-WAIT is taken where clocks tell the two connections apart. The flow is one that is
    /// `wanted`.
    fn free_flow(
        &mut self,
        flow: Flow,
        stamps: bool,
        wanted: impl Fn(&Flow) -> bool,
        cx: &Context<'_>,
    ) -> Result<(Flow, u64, Option<u32>), TcpError> {
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        #[expect(clippy::cast_possible_truncation, reason = "a part of a hash is one")]
        let start = cx.secret.hash(Purpose::Port, &flow) as u32 % count;
        for _ in 0..count {
            let at = (start + self.next_port) % count;
            self.next_port = (self.next_port + 1) % count;
            let Ok(offset) = u16::try_from(at) else { continue };
            let flow = Flow { local_port: EPHEMERAL.start() + offset, ..flow };
            if !wanted(&flow) {
                continue;
            }
            let hash = cx.secret.hash(Purpose::Table, &flow);
            match self.find(hash, &flow) {
                None => return Ok((flow, hash, None)),
                Some(Entry::TimeWait(i)) if stamps && self.time_wait[i].may_be_reused(cx.now) => {
                    return Ok((flow, hash, Some(i)));
                }
                Some(_) => {}
            }
        }
        Err(TcpError::NoPort)
    }

    /// A segment without a connection: LISTEN or CLOSED (RFC 9293, 3.10.7.1 and 3.10.7.2).
    pub(super) fn listen_input(
        &mut self,
        (hash, flow): (u64, Flow),
        segment: &Segment,
        packet: Packet,
        cx: &mut Context<'_>,
    ) {
        let listener = self.listener_of(&flow);
        let reply = match listener {
            _ if segment.has(TcpFlags::RST) => None,
            Some(listener) if segment.has(TcpFlags::ACK) && !segment.has(TcpFlags::SYN) => {
                // Where no cookie is on its way, none can be guessed.
                let sent = self.listeners.get(&listener.0).and_then(|listener| listener.cookie_sent);
                let limits = self.limits_of(listener);
                if sent.is_some_and(|at| cx.now.since(at) <= 2 * listen::COOKIE_AGE)
                    && let Some(half) = HalfOpen::from_cookie(flow, segment, hash, (listener, &limits), cx)
                {
                    // The cookie is as good a little later.
                    return match self.room(listener, cx) {
                        Some(place) => {
                            cx.counters.tcp_cookies_accepted += 1;
                            self.table.insert(hash, Entry::Connection(place).value());
                            self.establish(place, (half, &limits), &segment.without_echo(), packet, cx);
                        }
                        None => cx.pool.give_packet(packet),
                    };
                }
                Bare::reset(flow, segment)
            }
            Some(listener) if segment.opens() => {
                return self.open((hash, flow), listener, segment, (None, packet), cx);
            }
            // Neither asks for anything nor says that it knows of us (3.10.7.2, the fourth step).
            Some(_) if !segment.has(TcpFlags::ACK) => None,
            _ => Bare::reset(flow, segment),
        };
        cx.pool.give_packet(packet);
        if let Some(reset) = reply {
            cx.counters.refused += 1;
            reset.send(cx);
        }
    }

    /// A SYN for a listener. Data on it is taken only by Fast Open: else it comes again (RFC 9293 would queue it). `waits`: the entry of
    /// its flow in TIME-WAIT, which gives way. What was there opens beyond the backlog, too: there are no more of them than there were
    /// connections, and a cookie would forget the number.
    pub(super) fn open(
        &mut self,
        (hash, flow): (u64, Flow),
        id: ListenerId,
        segment: &Segment,
        (waits, packet): (Option<u32>, Packet),
        cx: &mut Context<'_>,
    ) {
        if !cx.share.opened.is_empty() {
            self.settle_openings(cx);
        }
        let Some(listener) = self.listeners.get_mut(&id.0) else { return cx.pool.give_packet(packet) };
        if listener.full {
            cx.counters.tcp_listen_overflows += 1;
            return cx.pool.give_packet(packet);
        }
        let (limits, last) = (listener.limits, waits.map(|w| self.time_wait[w].nxt));
        let mut half = HalfOpen::new(flow, segment, hash, id, &limits, last, cx);
        half.ts_offset = listen::known_clock_offset(&mut self.clocks, &flow, cx);
        let mut told = None;
        if let Some(taking) = listener.fast_open.as_deref_mut() {
            let fast;
            (fast, told) = taking.judge(&flow, segment, cx);
            // Without room for a connection the handshake is an ordinary one.
            if let Some(place) = if fast { self.connections.take() } else { None } {
                taking.pending += 1;
                return self.open_fast(place, (half, &limits), told, segment, (waits, packet), cx);
            }
        }
        cx.pool.give_packet(packet);
        let room = listener.half_open < listener.backlog || last.is_some();
        let place = if room { self.half_open.take() } else { None };
        let Some(i) = place else {
            listener.cookie_sent = Some(cx.now);
            if let Some(w) = waits {
                self.forget_wait(w);
            }
            return half.answer_by_cookie(&limits, cx);
        };
        listener.half_open += 1;
        half.answer(&limits, told, cx);
        self.half_open[i] = half;
        self.enter(hash, Entry::HalfOpen(i), waits);
        self.half_wheel.set_at_most(i, self.half_open[i].again());
    }

    /// Lets the table know an entry, in the place of the one in TIME-WAIT that gives way.
    #[inline(always)]
    pub(super) fn enter(&mut self, hash: u64, entry: Entry, waits: Option<u32>) {
        match waits {
            Some(w) => {
                self.table.replace(hash, Entry::TimeWait(w).value(), entry.value());
                self.give_wait(w);
            }
            None => self.table.insert(hash, entry.value()),
        }
    }

    /// A segment for a handshake under way (RFC 9293, 3.10.7.4, SYN-RECEIVED after a passive open).
    pub(super) fn complete(&mut self, i: u32, segment: &Segment, packet: Packet, cx: &mut Context<'_>) {
        if self.is_orphan(i) {
            // The segment is for who listens now, or for nobody.
            let HalfOpen { hash, flow, .. } = self.half_open[i];
            self.give_up_half(i, cx);
            return self.listen_input((hash, flow), segment, packet, cx);
        }
        let limits = self.limits_of(self.half_open[i].listener);
        let half = &mut self.half_open[i];
        let done = segment.has(TcpFlags::ACK) && segment.ack == half.iss + 1;
        if segment.has(TcpFlags::SYN) && !segment.has(TcpFlags::RST) {
            half.asked_again(segment);
            // The peer has not got our answer. Another SYN than the first is answered the same: RFC 9293 would go back to LISTEN,
            // and a stranger could end handshakes by it.
            if half.answered == Answered::Not {
                half.answered = Answered::Repeated;
                half.answer_again(&limits, cx);
            }
        } else if let Err(answer) = half.check(segment, &limits, cx.counters) {
            if answer {
                half.acknowledge(&limits, cx);
            }
        } else if segment.has(TcpFlags::RST) {
            if segment.seq == half.irs + 1 {
                cx.counters.tcp_resets_received += 1;
                self.give_up_half(i, cx);
            } else {
                half.acknowledge(&limits, cx);
            }
        } else if done {
            // Where there is no room the handshake stays, and our answer is repeated: the peer's next segment may find some. It
            // believes itself connected and would otherwise be reset for it.
            if let Some(place) = self.room(self.half_open[i].listener, cx) {
                let half = self.half_open[i].clone();
                let entries = (Entry::HalfOpen(i).value(), Entry::Connection(place).value());
                self.table.replace(half.hash, entries.0, entries.1);
                self.give_half(i);
                return self.establish(place, (half, &limits), segment, packet, cx);
            }
        } else if segment.has(TcpFlags::ACK)
            && let Some(reset) = Bare::reset(half.flow, segment)
        {
            reset.send_as(&limits, cx);
        }
        cx.pool.give_packet(packet);
    }

    /// The handshake is done: the connection, which the table knows, takes the segment that completed it.
    fn establish(
        &mut self,
        i: u32,
        (half, limits): (HalfOpen, &Limits),
        segment: &Segment,
        packet: Packet,
        cx: &mut Context<'_>,
    ) {
        cx.counters.tcp_passive_opens += 1;
        let connection = &mut self.connections[i];
        connection.id.index = i;
        half.into_connection(connection, limits, cx);
        connection.arrive(segment, packet, cx);
        self.settle(i, cx);
    }

    /// A free connection for a listener; what finds none is counted.
    fn room(&mut self, id: ListenerId, cx: &mut Context<'_>) -> Option<u32> {
        let full = self.listeners.get(&id.0).is_some_and(|listener| listener.full);
        let place = if full { None } else { self.connections.take() };
        cx.counters.no_memory += u64::from(place.is_none() && !full);
        cx.counters.tcp_listen_overflows += u64::from(place.is_none());
        place
    }

    pub(super) fn limits_of(&self, id: ListenerId) -> Limits {
        self.listeners.get(&id.0).map_or(self.limits, |listener| listener.limits)
    }

    /// The timer of an entry has gone off: perhaps an earlier handshake's, that nobody has stopped.
    pub(super) fn answer_again(&mut self, i: u32, cx: &mut Context<'_>) {
        let again = self.half_open[i].again();
        if again > cx.now {
            if again != NEVER {
                self.half_wheel.set(i, again);
            }
            return;
        }
        let (limits, orphan) = (self.limits_of(self.half_open[i].listener), self.is_orphan(i));
        let half = &mut self.half_open[i];
        if half.tries >= limits.syn_ack_retries || orphan {
            return self.give_up_half(i, cx);
        }
        half.tries += 1;
        half.sent = cx.now;
        half.answered = Answered::Not;
        half.answer_again(&limits, cx);
        self.half_wheel.set(i, half.again());
    }

    /// Whether the listener of a handshake is gone: nobody would take its connection.
    fn is_orphan(&self, i: u32) -> bool {
        !self.listeners.contains_key(&self.half_open[i].listener.0)
    }

    /// A handshake has come to nothing.
    fn give_up_half(&mut self, i: u32, cx: &mut Context<'_>) {
        cx.counters.tcp_attempts_failed += 1;
        self.table.remove(self.half_open[i].hash, Entry::HalfOpen(i).value());
        self.give_half(i);
    }

    /// Takes an entry back that the table does not know any more.
    fn give_half(&mut self, i: u32) {
        let half = &mut self.half_open[i];
        if let Some(listener) = self.listeners.get_mut(&half.listener.0) {
            listener.half_open -= 1;
        }
        half.sent = NEVER;
        self.half_open.give(i);
    }

    /// The listener that a flow is for: one on its address before one on all of its family, and that before one on all.
    pub(super) fn listener_of(&self, flow: &Flow) -> Option<ListenerId> {
        let closeness = |id: &u32| flow.local.closeness(self.listeners[id].local);
        let ids = self.ports.get(&flow.local_port)?.iter();
        let (_, id) =
            ids.filter_map(|id| Some((closeness(id)?, *id))).max_by_key(|(closeness, _)| *closeness)?;
        Some(ListenerId(id))
    }
}

/// Our address of a connection to `remote`: the given one, or the route's.
pub(super) fn source(
    local: Option<Address>,
    remote: Address,
    snapshot: &Snapshot,
) -> Result<Address, TcpError> {
    if !remote.is_host() || snapshot.is_broadcast(remote) {
        return Err(TcpError::NoHost);
    }
    let path = snapshot.path(remote).ok_or(TcpError::NoRoute)?;
    snapshot.source_or(local, path, remote).ok_or(TcpError::NoRoute)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bywash_frame::{Arena, Batch, Packet, Pool};
    use bywash_wire::checksum::Sum;
    use bywash_wire::zerocopy::IntoBytes;
    use bywash_wire::{Ipv4Header, TcpHeader};

    use super::*;
    use crate::slab::Slab;
    use crate::{Event, Host, Interface, Medium, Offloads, PortId, Timestamp};

    const NOW: Timestamp = Timestamp::from_nanos(10_000_000_000);

    /// The peer sends a segment; the sequence number of what is answered.
    fn exchange(
        host: &mut Host,
        pool: &mut Pool,
        now: Timestamp,
        (port, seq): (u16, u32),
        ack: Option<u32>,
    ) -> Vec<u32> {
        let (from, to) = ([10, 0, 0, 2], [10, 0, 0, 1]);
        let flags = if ack.is_some() { TcpFlags::ACK } else { TcpFlags::SYN };
        let mut tcp = TcpHeader::new((port, 80), seq, ack.unwrap_or(0), flags, 30_000, 0);
        tcp.checksum = Sum::pseudo(&from, &to, 6, 20).bytes(tcp.as_bytes()).checksum().into();
        let mut ip = Ipv4Header::new(from.into(), to.into(), 6, 20);
        ip.seal();
        let mut packet = Packet::new(pool.take().unwrap());
        packet.extend_from_slice(&[ip.as_bytes(), tcp.as_bytes()].concat()).unwrap();
        let mut batch = Batch::new();
        batch.push(packet);
        host.receive(now, PortId(0), &mut batch, pool);
        sent(host, pool, now)
    }

    fn sent(host: &mut Host, pool: &mut Pool, now: Timestamp) -> Vec<u32> {
        let mut batch = Batch::new();
        host.advance(now, pool);
        host.transmit(PortId(0), &mut batch);
        let mut numbers = Vec::new();
        for packet in batch.drain() {
            numbers.push(TcpHeader::parse(&packet.head()[20..]).unwrap().sequence.get());
            pool.give_packet(packet);
        }
        numbers
    }

    fn listening() -> (Host, Pool) {
        let mut pool = Arena::new(vec![0; 64 * 2304]).unwrap().pool(32).unwrap();
        let mut host = Host::new([5; 16], &mut pool);
        let interface = Interface {
            name: "test".into(),
            port: PortId(0),
            medium: Medium::Ip,
            mtu: 1500,
            offloads: Offloads::default(),
        };
        let id = host.control.add_interface(interface).unwrap();
        host.control.add_address(NOW, id, "10.0.0.1/24".parse().unwrap()).unwrap();
        host.advance(NOW, &mut pool);
        host.stack.listen(None, 80, 4).unwrap();
        (host, pool)
    }

    /// A peer's connection from a port.
    fn accepted(host: &mut Host, pool: &mut Pool, now: Timestamp, port: u16) -> ConnectionId {
        let [first] = exchange(host, pool, now, (port, 1000), None)[..] else { panic!("one answer") };
        assert_eq!(exchange(host, pool, now, (port, 1001), Some(first.wrapping_add(1))), [0; 0]);
        let id = host.stack.events().find_map(|event| match event {
            Event::Accepted { connection, .. } => Some(connection),
            _ => None,
        });
        id.expect("accepted")
    }

    #[test]
    fn a_handshake_that_finds_no_room_is_completed_when_there_is_some() {
        let (mut host, mut pool) = listening();
        host.stack.tcp.connections = Slab::new(0);
        let [first] = exchange(&mut host, &mut pool, NOW, (5000, 1000), None)[..] else {
            panic!("one answer")
        };
        let completes = Some(first.wrapping_add(1));
        assert_eq!(exchange(&mut host, &mut pool, NOW, (5000, 1001), completes), [0; 0], "no reset");
        let counted = host.stack.counters();
        let told = (counted.no_memory, counted.tcp_listen_overflows, counted.tcp_passive_opens);
        assert_eq!(told, (1, 1, 0));
        assert_eq!(host.stack.connections(), (0, 1, 0), "it waits");
        // Our answer is repeated, which makes the peer acknowledge it again.
        let later = NOW + Duration::from_millis(1100);
        assert_eq!(sent(&mut host, &mut pool, later), [first]);
        host.stack.tcp.connections = Slab::new(1);
        assert_eq!(exchange(&mut host, &mut pool, later, (5000, 1001), completes), [0; 0]);
        assert_eq!(host.stack.connections(), (1, 0, 0));
        assert!(matches!(host.stack.events().next(), Some(Event::Accepted { .. })));
    }

    #[test]
    fn time_wait_stays_where_there_is_no_room_for_what_comes_after() {
        let (mut host, mut pool) = listening();
        let id = accepted(&mut host, &mut pool, NOW, 5000);
        host.stack.with_tcp(NOW, &mut pool, |tcp, cx| {
            tcp.connections[id.index].facts.add(crate::tcp::facts::TIMESTAMPS);
            tcp.wait(id.index, NOW, cx);
        });
        let later = NOW + Duration::from_secs(2);
        let peer = Address::from(std::net::Ipv4Addr::new(10, 0, 0, 2));
        let mut connect = |host: &mut Host| {
            host.stack.connect(later, (None, 80), (peer, 5000), &mut pool).map(|_| host.stack.connections())
        };
        host.stack.tcp.connections = Slab::new(0);
        assert_eq!(connect(&mut host), Err(TcpError::TooMany));
        assert_eq!(host.stack.connections(), (0, 0, 1));
        host.stack.tcp.connections = Slab::new(1);
        assert_eq!(connect(&mut host), Ok((1, 0, 0)), "it gives way");
    }

    #[test]
    fn an_answer_is_repeated_by_its_own_time_not_by_that_of_an_earlier_handshake_in_its_place() {
        let (mut host, mut pool) = listening();
        let at = |millis| NOW + Duration::from_millis(millis);
        accepted(&mut host, &mut pool, at(500), 5000);
        let answer = exchange(&mut host, &mut pool, at(1000), (5001, 1000), None);
        assert_eq!((host.stack.connections(), answer.len()), ((1, 1, 0), 1));
        assert_eq!(sent(&mut host, &mut pool, at(1600)), [0; 0], "the first one's timer");
        assert_eq!(sent(&mut host, &mut pool, at(2100)), answer);
    }

    #[test]
    fn timers_of_connections_that_have_ended_do_nothing_to_those_in_their_place() {
        let (mut host, mut pool) = listening();
        let at = |millis| NOW + Duration::from_millis(millis);
        let first = accepted(&mut host, &mut pool, at(0), 5000);
        host.stack.send(at(0), first, b"first", &mut pool).unwrap();
        assert_eq!(sent(&mut host, &mut pool, at(0)).len(), 1);
        host.stack.abort(at(10), first, &mut pool).unwrap();
        assert_eq!(sent(&mut host, &mut pool, at(10)).len(), 1, "a reset");
        let second = accepted(&mut host, &mut pool, at(100), 5001);
        assert_eq!(second.index, first.index, "its place");
        host.stack.send(at(100), second, b"second", &mut pool).unwrap();
        let data = sent(&mut host, &mut pool, at(100));
        assert_eq!(sent(&mut host, &mut pool, at(290)), [0; 0]);
        assert_eq!(sent(&mut host, &mut pool, at(310)), data, "by its own timer");
        host.stack.abort(at(320), second, &mut pool).unwrap();
        assert_eq!(sent(&mut host, &mut pool, at(320)).len(), 1);
        assert_eq!(sent(&mut host, &mut pool, at(9000)), [0; 0]);
        assert_eq!(host.stack.next_deadline(), None, "what was left in the wheel is gone");
    }

    #[test]
    fn a_way_that_is_remembered_is_forgotten_with_its_route() {
        let (mut host, mut pool) = listening();
        let [ours, theirs] = [1, 2].map(|last| Address::from(std::net::Ipv4Addr::new(10, 0, 0, last)));
        let mut connect = |host: &mut Host| {
            let id = host.stack.connect(NOW, (Some(ours), 0), (theirs, 80), &mut pool);
            host.advance(NOW, &mut pool);
            id
        };
        assert!(connect(&mut host).is_ok() && connect(&mut host).is_ok());
        assert!(host.control.remove_address(ours));
        let before = connect(&mut host);
        assert_eq!((before.is_ok(), connect(&mut host)), (true, Err(TcpError::NoRoute)), "from then on");
    }
}
