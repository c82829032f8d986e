//! Where packets go that are to be sent: to a port, back to ourselves, or to wait for a neighbour's address.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bywash_frame::{Batch, Checksum, Packet, Place, Pool};
use bywash_wire::IPV6_MTU;

use crate::fast_open::Servers;
use crate::pairs::Pairs;
use crate::path_mtu::PathMtus;
use crate::request::{Request, Unreachable};
use crate::segmentation::{cut, has_cwr_on_each};
use crate::snapshot::{Link, Path, Reach};
use crate::stack::reserve;
use crate::tcp::Way;
use crate::time::Span;
use crate::{Address, InterfaceId, PortId, Snapshot, Timestamp, queue};

/// Frames of packets that wait for all neighbours together, and the part of a stack's frames that they are at most: whoever has us
/// send to many that do not answer takes nothing from the others. Those for one have half of what is left at most, so that the next
/// one finds room as well. RFC 4861, 7.2.2 asks for one packet at least, RFC 1122, 2.3.2.2 for the latest.
const WAITING: usize = 4096;
const WAITING_SHARE: usize = 4;
/// How long a line is looked at before it is dropped the next time: a neighbour that has not answered in seconds is known to be absent
/// (RFC 4861, 10: three questions, a second each), unless nobody has asked for it, because too many were asked for at once.
const WAIT: Duration = Duration::from_secs(5);
/// Neighbours that the control is asked for at once, and as many that are told to be used. Of those beyond, which a scan of a link
/// may bring (RFC 6583), some wait until it may be asked again.
const TOLD: usize = 1024;
const LATER: usize = 4096;
/// How long nobody tells it of the same again, if no snapshot says what became of it: it may not have heard. That neighbours are not
/// asked for more than once a second (RFC 1122, 2.3.2.1) is seen to by the control.
const TELL_AGAIN: Duration = Duration::from_millis(100);
/// Packets in a port's queue beyond which connections hold their data back: more would only wait, too.
const FULL: usize = 128;
/// Packets that wait for one port. Connections hold their data back before; only what others cause comes this far.
const QUEUE: usize = 4096;

/// Neighbours that are remembered to have been vouched for, a power of two.
const CONFIRMED: usize = 64;
/// How often the control hears that a neighbour has our packets: RFC 4861, 10, believes it for 15 seconds at least.
pub(crate) const CONFIRM: Span = Span::of(Duration::from_secs(5));

/// Destinations whose way is remembered, a power of two.
const DIRECT: usize = 64;

/// The way to a destination about which nothing is to be asked or told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direct {
    pub(crate) path: Path,
    pub(crate) link: Link,
    /// Bytes that the link takes in one packet.
    mtu: u16,
}

/// Packets that wait for one port, in batches that can leave whole: then none of them is moved.
#[derive(Debug, Default)]
struct Queue {
    /// Those before the last.
    whole: VecDeque<Batch>,
    /// It is filled before another begins.
    last: Batch,
    /// Empty ones, to be used again.
    spare: Vec<Batch>,
    /// Packets in all of them.
    len: usize,
    /// It takes less than there is: not all had been taken of what left before, and there are still some.
    slow: bool,
}

impl Queue {
    /// The place of the next packet; `None` when there are too many.
    #[inline(always)]
    fn place(&mut self) -> Option<Place<'_>> {
        if self.len >= QUEUE {
            return None;
        }
        self.len += 1;
        if self.last.room() == 0 {
            self.begin();
        }
        self.last.place()
    }

    #[cold]
    fn begin(&mut self) {
        let empty = self.spare.pop().unwrap_or_default();
        self.whole.push_back(std::mem::replace(&mut self.last, empty));
    }

    /// Takes all packets of a batch as a batch of its own, if there is none before it.
    fn take_whole(&mut self, from: &mut Batch) -> bool {
        let taken = self.len == 0 && !from.is_empty() && self.last.exchange(from);
        self.len += if taken { self.last.len() } else { 0 };
        taken
    }

    /// Moves packets into a batch, as many as there is room for beside those that nobody has taken.
    fn leave(&mut self, to: &mut Batch) {
        let was_left = !to.is_empty();
        self.len += to.len();
        while let Some(first) = self.whole.front_mut() {
            pour(first, to);
            if !first.is_empty() {
                break;
            }
            self.spare.extend(queue::pop(&mut self.whole));
        }
        if self.whole.is_empty() {
            pour(&mut self.last, to);
        }
        self.len -= to.len();
        self.slow = was_left && self.len > 0;
    }
}

/// Moves packets from one batch to another, all of them at once if that has none.
fn pour(from: &mut Batch, to: &mut Batch) {
    if !(to.is_empty() && from.exchange(to)) {
        let n = to.room().min(from.len());
        to.extend(from.drain_front(n));
    }
}

type Key = (InterfaceId, Address);

/// Packets that wait for one neighbour.
#[derive(Debug, Default)]
struct Line {
    packets: VecDeque<Packet>,
    /// In all of them.
    frames: usize,
    /// It was there when lines were last looked at.
    seen: bool,
}

/// Packets on their way out, and what is to be told to the control.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) snapshot: Arc<Snapshot>,
    ports: Vec<Queue>,
    /// With the link that link-local addresses are on.
    pub(crate) to_ourselves: VecDeque<(InterfaceId, Packet)>,
    /// Sorted, so that the order in which they leave depends on nothing else.
    waiting: BTreeMap<(InterfaceId, Address), Line>,
    /// Frames in all lines.
    waiting_frames: usize,
    /// How many stacks the frames are for.
    pub(crate) stacks: usize,
    /// When lines are looked at next, while there are any.
    look_at: Option<Timestamp>,
    pub(crate) requests: Vec<Request>,
    /// Neighbours that the control has been asked for, or will be, until the next snapshot or for a time.
    asked: HashSet<Key>,
    /// Of them, those that it has not been asked for yet, the first to come first.
    later: VecDeque<Key>,
    /// Neighbours that it knows to be used, until the next snapshot or for a time.
    used: HashSet<Key>,
    /// When it may be told of them again.
    tell_again: Option<Timestamp>,
    pub(crate) path_mtus: PathMtus,
    /// What is known of servers that take Fast Open.
    pub(crate) servers: Servers,
    /// Neighbours that TCP has vouched for lately, and when: a place for each remainder of their addresses.
    confirmed: [(Timestamp, Option<Path>); CONFIRMED],
    /// Ways that were found since the last snapshot: a place for each remainder of the destinations. Handshakes ask several
    /// times for one.
    direct: [Option<(Address, Direct)>; DIRECT],
    /// The same, with the headers of segments, for connections.
    pub(crate) ways: Pairs<Way>,
    /// Packets dropped because a queue was full.
    pub(crate) dropped: u64,
}

impl Outbox {
    pub(crate) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            snapshot,
            ports: Vec::new(),
            to_ourselves: VecDeque::new(),
            waiting: BTreeMap::new(),
            waiting_frames: 0,
            stacks: 1,
            look_at: None,
            requests: Vec::new(),
            asked: HashSet::new(),
            later: VecDeque::new(),
            used: HashSet::new(),
            tell_again: None,
            path_mtus: PathMtus::default(),
            servers: Servers::default(),
            confirmed: [(Timestamp::ZERO, None); CONFIRMED],
            direct: [None; DIRECT],
            ways: Pairs::new(),
            dropped: 0,
        }
    }

    /// The way to a destination if nothing is to be asked or told about it, and then it is remembered.
    pub(crate) fn direct(&mut self, destination: Address) -> Option<Direct> {
        let known = self.remembered(destination);
        if known.is_some() {
            return known.copied();
        }
        let path = self.snapshot.path(destination)?;
        let Reach::Ready { link, stale: false } = self.snapshot.reach(path) else { return None };
        let direct = Direct { path, link, mtu: self.snapshot.mtu(path) };
        self.direct[place(destination)] = Some((destination, direct));
        Some(direct)
    }

    #[inline]
    fn remembered(&self, destination: Address) -> Option<&Direct> {
        self.direct[place(destination)]
            .as_ref()
            .filter(|(of, _)| *of == destination)
            .map(|(_, direct)| direct)
    }

    /// Sends an IP packet along a path: now, or when the neighbour is found.
    pub(crate) fn send(&mut self, packet: Packet, path: Path, pool: &mut Pool) {
        match self.reach(path) {
            Reach::Ready { link, .. } => self.send_link(packet, &link, pool),
            Reach::Absent => self.absent(packet, path),
            Reach::Unresolved => self.wait(packet, path, pool),
        }
    }

    /// Bytes that may go to a destination in one packet: what its first link takes, or less where a router said so.
    pub(crate) fn mtu_to(&self, destination: Address, now: Timestamp) -> usize {
        let link = self.link_mtu_to(destination);
        self.path_mtus.find(now, destination).map_or(link, |path| link.min(path.into()))
    }

    /// Bytes of a packet that the first link to a destination takes, wherever it narrows later.
    pub(crate) fn link_mtu_to(&self, destination: Address) -> usize {
        let link = match self.remembered(destination) {
            Some(direct) => direct.mtu,
            None => match self.snapshot.path(destination) {
                Some(path) => self.snapshot.mtu(path),
                // Without a route nothing is sent; the number is what every path takes.
                None if destination.is_v4() => 576,
                None => IPV6_MTU,
            },
        };
        usize::from(link)
    }

    /// How packets get along a path. The control hears of neighbours that are asked for or in doubt.
    #[inline]
    pub(crate) fn reach(&mut self, path: Path) -> Reach {
        let reach = self.snapshot.reach(path);
        let Path { interface, next_hop: address } = path;
        match reach {
            Reach::Unresolved => self.ask((interface, address)),
            Reach::Ready { stale: true, .. } => {
                if self.used.len() < TOLD && self.used.insert((interface, address)) {
                    self.requests.push(Request::Used { interface, address });
                }
            }
            Reach::Ready { .. } | Reach::Absent => {}
        }
        reach
    }

    /// The neighbour on a path has our packets (RFC 4861, 7.3.1): the control is told, for all connections together only
    /// now and then.
    pub(crate) fn confirm(&mut self, path: Path, now: Timestamp) {
        let Path { interface, next_hop: address } = path;
        let place = &mut self.confirmed[(address.bits() & (CONFIRMED as u128 - 1)) as usize];
        if place.1 == Some(path) && now.span(place.0) < CONFIRM {
            return;
        }
        *place = (now, Some(path));
        self.requests.push(Request::Confirmed { interface, address });
    }

    /// Sends an IP packet whose link is known.
    #[inline]
    pub(crate) fn send_link(&mut self, mut packet: Packet, link: &Link, pool: &mut Pool) {
        let header = link.header();
        #[expect(clippy::cast_possible_truncation, reason = "at most 18 bytes")]
        packet.offload.shift_checksum(header.len() as u16);
        match packet.push_front(header.len()) {
            Ok(front) => front[..header.len()].copy_from_slice(header),
            Err(_) => return self.drop(packet, pool),
        }
        self.send_framed(packet, (link.port, link.interface), header.len(), pool);
    }

    /// Sends a packet that begins with its link header, of `network` bytes.
    pub(crate) fn send_framed(
        &mut self,
        packet: Packet,
        (port, interface): (PortId, InterfaceId),
        network: usize,
        pool: &mut Pool,
    ) {
        if port == PortId::NONE {
            if self.to_ourselves.len() < QUEUE {
                self.to_ourselves.push_back((interface, packet));
            } else {
                self.drop(packet, pool);
            }
            return;
        }
        if packet.offload.asks_for_work() {
            return self.send_finished(packet, (port, interface), network, pool);
        }
        self.enqueue(packet, port, pool);
    }

    /// Sends a packet that leaves work to the port, and does the work that the port cannot.
    fn send_finished(
        &mut self,
        packet: Packet,
        (port, interface): (PortId, InterfaceId),
        network: usize,
        pool: &mut Pool,
    ) {
        let offloads = self.snapshot.interface(interface).offloads;
        let partial = match packet.offload.checksum() {
            Checksum::Partial { start, .. } => Some(start),
            _ => None,
        };
        let whole = packet.offload.segmentation().is_some();
        // A port cuts only what it sums, too.
        let cuts = partial.is_some_and(|start| offloads.segmentation && !has_cwr_on_each(&packet, start));
        if whole && !cuts || partial.is_some() && !offloads.checksum {
            let sum = !offloads.checksum;
            if !cut(packet, network, sum, pool, |piece, pool| self.enqueue(piece, port, pool)) {
                self.dropped += 1;
            }
            return;
        }
        self.enqueue(packet, port, pool);
    }

    /// Where the next packet of a port's queue will lie, one that begins with its link header; `None` when the queue is full.
    #[inline(always)]
    pub(crate) fn place(&mut self, port: PortId) -> Option<Place<'_>> {
        self.queue(port).place()
    }

    /// Puts a packet that begins with its link header into a port's queue.
    pub(crate) fn enqueue(&mut self, packet: Packet, port: PortId, pool: &mut Pool) {
        match self.place(port) {
            Some(place) => place.put(packet),
            None => self.drop(packet, pool),
        }
    }

    /// Puts all packets of a batch that begin with their link headers into a port's queue.
    pub(crate) fn enqueue_all(&mut self, batch: &mut Batch, port: PortId, pool: &mut Pool) {
        if self.queue(port).take_whole(batch) {
            return;
        }
        for packet in batch.drain() {
            self.enqueue(packet, port, pool);
        }
    }

    #[inline(always)]
    fn queue(&mut self, port: PortId) -> &mut Queue {
        let port = usize::from(port.0);
        if self.ports.len() <= port {
            self.add_queues(port);
        }
        &mut self.ports[port]
    }

    #[cold]
    fn add_queues(&mut self, last: usize) {
        self.ports.resize_with(last + 1, Queue::default);
    }

    /// Packets in a port's queue.
    #[inline]
    fn queued(&self, port: PortId) -> usize {
        self.ports.get(usize::from(port.0)).map_or(0, |queue| queue.len)
    }

    /// Whether connections are to hold their data back from a port.
    #[inline]
    pub(crate) fn is_full(&self, port: PortId) -> bool {
        self.queued(port) >= FULL
    }

    /// Whether some port was still full when packets were taken from it last.
    pub(crate) fn has_slow_port(&self) -> bool {
        self.ports.iter().any(|queue| queue.slow)
    }

    /// Packets that a port's queue takes before it counts as full.
    pub(crate) fn room(&self, port: PortId) -> usize {
        FULL.saturating_sub(self.queued(port))
    }

    /// Moves packets of a port into a batch, as many as there is room for.
    pub(crate) fn take(&mut self, port: PortId, batch: &mut Batch) {
        if let Some(queue) = self.ports.get_mut(usize::from(port.0)) {
            queue.leave(batch);
        }
    }

    /// Takes a snapshot, and if it is new sends what has been waiting for it; `false` when it is the one before.
    #[inline]
    pub(crate) fn update(&mut self, snapshot: &Arc<Snapshot>, pool: &mut Pool) -> bool {
        let new = snapshot.generation != self.snapshot.generation;
        if new {
            self.renew(snapshot.clone(), pool);
        }
        new
    }

    fn renew(&mut self, snapshot: Arc<Snapshot>, pool: &mut Pool) {
        self.snapshot = snapshot;
        self.used.clear();
        self.ask_again();
        self.direct = [None; DIRECT];
        self.ways.clear();
        let waiting: Vec<_> = self.waiting.keys().copied().collect();
        for key in waiting {
            let path = Path { interface: key.0, next_hop: key.1 };
            let reach = self.snapshot.reach(path);
            if matches!(reach, Reach::Unresolved) {
                continue;
            }
            let line = self.waiting.remove(&key).unwrap_or_default();
            self.waiting_frames -= line.frames;
            for packet in line.packets {
                match &reach {
                    Reach::Ready { link, .. } => self.send_link(packet, link, pool),
                    _ => self.absent(packet, path),
                }
            }
        }
    }

    /// Gives a packet back to the pool and counts it.
    pub(crate) fn drop(&mut self, packet: Packet, pool: &mut Pool) {
        self.dropped += 1;
        pool.give_packet(packet);
    }

    /// Lets the control be told again of what it may not have heard.
    #[inline]
    pub(crate) fn forget_told(&mut self, now: Timestamp) {
        if self.asked.is_empty() && self.used.is_empty() {
            self.tell_again = None;
        } else if now >= *self.tell_again.get_or_insert(now + TELL_AGAIN) {
            self.used.clear();
            self.tell_again = None;
            self.ask_again();
        }
    }

    fn ask(&mut self, key: Key) {
        if self.asked.len() >= TOLD + LATER || !self.asked.insert(key) {
            return;
        }
        if self.asked.len() - self.later.len() > TOLD {
            self.later.push_back(key);
        } else {
            self.requests.push(Request::Resolve { interface: key.0, address: key.1 });
        }
    }

    /// Asks for those that had to wait, and then for any.
    #[cold]
    fn ask_again(&mut self) {
        self.asked.clear();
        for (interface, next_hop) in std::mem::take(&mut self.later) {
            // It may have been found, or not, for another stack.
            if matches!(self.snapshot.reach(Path { interface, next_hop }), Reach::Unresolved) {
                self.ask((interface, next_hop));
            }
        }
    }

    /// The neighbour does not answer: whoever sent the packet hears of it.
    fn absent(&mut self, packet: Packet, path: Path) {
        self.requests.push(Request::Report { interface: path.interface, packet, error: Unreachable::Host });
    }

    fn wait(&mut self, packet: Packet, path: Path, pool: &mut Pool) {
        let (key, frames) = ((path.interface, path.next_hop), packet.frames());
        if let Some(line) = self.waiting.get_mut(&key) {
            // The oldest make room for the latest.
            while line.frames + frames > room(self.waiting_frames, self.stacks, pool)
                && let Some(oldest) = line.packets.pop_front()
            {
                line.frames -= oldest.frames();
                self.waiting_frames -= oldest.frames();
                self.dropped += 1;
                pool.give_packet(oldest);
            }
        }
        if frames > room(self.waiting_frames, self.stacks, pool) {
            // Nothing stays of a line that has made room in vain.
            if self.waiting.get(&key).is_some_and(|line| line.packets.is_empty()) {
                self.waiting.remove(&key);
            }
            return self.drop(packet, pool);
        }
        let line = self.waiting.entry(key).or_default();
        line.frames += frames;
        self.waiting_frames += frames;
        line.packets.push_back(packet);
    }

    /// When [`Outbox::look_at_lines`] has something to do, or [`Outbox::forget_told`] has something to ask.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let due = |any: bool, at: Option<Timestamp>| any.then(|| at.unwrap_or(Timestamp::ZERO));
        let lines = due(!self.waiting.is_empty(), self.look_at);
        lines.into_iter().chain(due(!self.later.is_empty(), self.tell_again)).min()
    }

    /// Drops lines that were there the last time.
    pub(crate) fn look_at_lines(&mut self, now: Timestamp, pool: &mut Pool) {
        if self.waiting.is_empty() {
            self.look_at = None;
            return;
        }
        if now < *self.look_at.get_or_insert(now + WAIT) {
            return;
        }
        self.look_at = Some(now + WAIT);
        let old: Vec<_> =
            self.waiting.extract_if(.., |_, line| std::mem::replace(&mut line.seen, true)).collect();
        for (_, line) in old {
            self.waiting_frames -= line.frames;
            line.packets.into_iter().for_each(|packet| self.drop(packet, pool));
        }
    }
}

/// Frames that may wait beside those that do.
fn room(waiting: usize, stacks: usize, pool: &Pool) -> usize {
    let frames = pool.arena().frames() / stacks;
    let most = WAITING.min(frames / WAITING_SHARE);
    most.saturating_sub(waiting).min(pool.free().saturating_sub(reserve(frames)))
}

/// Where the way to a destination is remembered.
#[inline]
fn place(destination: Address) -> usize {
    (destination.bits() & (DIRECT as u128 - 1)) as usize
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn packets_leave_a_port_in_the_order_in_which_they_came_whole_batches_or_not() {
        let mut pool = bywash_frame::Arena::new(vec![0; 1 << 20]).unwrap().pool(300).unwrap();
        let mut out = Outbox::new(crate::Control::new([7; 16]).snapshot(&mut pool).clone());
        let (port, mut next) = (PortId(1), 0u8);
        let mut packets = |n: usize, pool: &mut Pool| {
            let mut batch = Batch::new();
            for _ in 0..n {
                let mut packet = Packet::new(pool.take().unwrap());
                packet.extend_from_slice(&[next]).unwrap();
                next += 1;
                batch.push(packet);
            }
            batch
        };
        out.enqueue_all(&mut packets(40, &mut pool), port, &mut pool);
        out.enqueue_all(&mut packets(3, &mut pool), port, &mut pool);
        for packet in packets(30, &mut pool).drain() {
            out.enqueue(packet, port, &mut pool);
        }
        out.enqueue_all(&mut packets(64, &mut pool), port, &mut pool);
        assert_eq!(out.queued(port), 137);
        let mut seen = Vec::new();
        // Into a batch that is empty, one that is not, and one with room for fewer than came whole.
        for (begun, limit) in [(1, 64), (0, 10), (0, 64), (0, 64)] {
            let mut batch = Batch::with_limit(limit);
            batch.extend((0..begun).map(|_| Packet::new(pool.take().unwrap())));
            out.take(port, &mut batch);
            seen.extend(batch.iter().filter_map(|packet| packet.head().first().copied()));
            pool.give_batch(&mut batch);
        }
        out.enqueue_all(&mut packets(20, &mut pool), port, &mut pool);
        for limit in [5, 64] {
            let mut batch = Batch::with_limit(limit);
            out.take(port, &mut batch);
            seen.extend(batch.iter().filter_map(|packet| packet.head().first().copied()));
            pool.give_batch(&mut batch);
        }
        assert_eq!((seen, out.queued(port)), ((0..157).collect(), 0));
    }

    #[test]
    fn a_neighbour_is_vouched_for_now_and_then_however_many_connections_there_are() {
        let mut pool = bywash_frame::Arena::new(vec![0; 1 << 20]).unwrap().pool(8).unwrap();
        let mut out = Outbox::new(crate::Control::new([7; 16]).snapshot(&mut pool).clone());
        let path =
            |last| Path { interface: InterfaceId::LOOPBACK, next_hop: Ipv4Addr::new(10, 0, 0, last).into() };
        let now = Timestamp::from_nanos(1);
        for (last, at) in [(1, now), (1, now), (2, now), (1, now), (1, now + CONFIRM), (1, now + CONFIRM)] {
            out.confirm(path(last), at);
        }
        let told = out.requests.iter().map(|request| match request {
            Request::Confirmed { address, .. } => *address,
            other => panic!("{other:?}"),
        });
        assert_eq!(told.collect::<Vec<_>>(), [1, 2, 1].map(|last| path(last).next_hop));
    }
}
