//! Our end: one stack on a port, with all connections of a group, and the faults in between.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use bywash_drivers::port::{Port, RxQueue, TxQueue};
use bywash_stack::frame::{Batch, FRAME_DATA, Packet, Pool, Segment};
use bywash_stack::wire::Mac;
use bywash_stack::{
    Address, CloseReason, ConnectionId, Event, Host, Interface, ListenerId, Medium, Offloads, PortId,
    Timestamp,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::draw::{Case, First, Received, stream};
use crate::faults::{Direction, Faults};

const PORT: PortId = PortId(0);

/// Where our end is, and the other.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) ours: (IpAddr, u8),
    pub(crate) our_mac: Mac,
    pub(crate) kernel: IpAddr,
    pub(crate) kernel_mac: Mac,
    pub(crate) mtu: u16,
}

struct End {
    case: Case,
    listener: Option<ListenerId>,
    id: Option<ConnectionId>,
    to_send: Vec<u8>,
    sent: usize,
    shut: bool,
    received: Received,
    /// Reads nothing before.
    reads_at: Timestamp,
    outcome: Option<Result<(), String>>,
}

pub(crate) struct Ours<'a> {
    host: Host,
    port: Box<dyn Port>,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    pool: &'a mut Pool,
    batch: Batch,
    pub(crate) faults: Faults,
    start: Instant,
    ends: Vec<End>,
    /// Which end a connection is.
    numbers: HashMap<ConnectionId, usize>,
}

impl<'a> Ours<'a> {
    /// A stack on a port. Its listeners listen.
    pub(crate) fn new(mut port: Box<dyn Port>, pool: &'a mut Pool, place: &Place, cases: &[Case]) -> Self {
        let queue = port.queues().pop().unwrap();
        let mut host = Host::new([9; 16], pool);
        let medium = Medium::Ethernet { mac: place.our_mac, vlan: None };
        let interface = Interface {
            name: "port".into(),
            port: PORT,
            medium,
            mtu: place.mtu,
            offloads: Offloads::default(),
        };
        let id = host.control.add_interface(interface).unwrap();
        let prefix = format!("{}/{}", place.ours.0, place.ours.1).parse().unwrap();
        host.control.add_address(Timestamp::ZERO, id, prefix).unwrap();
        host.control.add_neighbour(id, place.kernel.into(), place.kernel_mac).unwrap();
        host.advance(Timestamp::ZERO, pool);
        let ends = cases.iter().map(|case| {
            let listener = (!case.we_open).then(|| host.stack.listen(None, case.port(), 4).unwrap());
            if let Some(listener) = listener {
                host.stack.set_listener_limits(listener, case.limits);
            }
            End::new(case.clone(), listener)
        });
        let ends = ends.collect();
        let (rx, tx) = (queue.rx.unwrap(), queue.tx.unwrap());
        let (faults, numbers) = (Faults::of(cases), HashMap::new());
        Self { host, port, rx, tx, pool, batch: Batch::new(), faults, start: Instant::now(), ends, numbers }
    }

    /// Opens the connections that are ours to open.
    pub(crate) fn connect(&mut self, kernel: IpAddr) {
        let now = self.now();
        for (number, end) in self.ends.iter_mut().enumerate().filter(|(_, end)| end.case.we_open) {
            let to = (Address::from(kernel), end.case.port());
            let id = self.host.stack.connect_with(now, (None, 0), to, end.case.limits, self.pool).unwrap();
            self.numbers.insert(id, number);
        }
    }

    /// Works until `done`, or until that is too late.
    pub(crate) fn serve(&mut self, until: Instant, mut done: impl FnMut(&Self) -> bool) -> bool {
        while !done(self) {
            if Instant::now() >= until {
                return false;
            }
            if !self.turn() {
                self.sleep();
            }
        }
        true
    }

    /// Whether every connection has come to its end, good or bad.
    pub(crate) fn is_done(&self) -> bool {
        self.ends.iter().all(|end| end.outcome.is_some())
    }

    /// Whether nothing is left of the connections but TIME-WAIT.
    pub(crate) fn is_quiet(&self) -> bool {
        let (connections, handshakes, _) = self.host.stack.connections();
        connections + handshakes == 0
    }

    /// Whether addresses can be used: the one of IPv6 is looked for on the link first.
    pub(crate) fn has_address(&self) -> bool {
        let known = |state| matches!(state, bywash_stack::AddressState::Preferred);
        self.host.control.addresses().any(|(_, _, state)| known(state))
    }

    /// How each connection ended, in the cases' order; closes the port. Packets with a wrong checksum, too.
    pub(crate) fn finish(mut self) -> (Vec<Result<(), String>>, u64) {
        let outcomes = self.ends.drain(..).map(End::outcome).collect();
        let checksum = self.host.stack.counters().checksum;
        let now = self.now();
        self.host.stack.abort_some(now, 0, usize::MAX, self.pool);
        self.turn();
        self.rx.close(self.pool);
        self.tx.close(self.pool);
        self.port.close().unwrap();
        (outcomes, checksum)
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.start.elapsed()
    }

    /// One turn; `false` when there was nothing to do.
    fn turn(&mut self) -> bool {
        let received = self.rx.rx(self.pool, &mut self.batch);
        let now = self.now();
        self.take(now, Direction::FromKernel);
        while self.give(now, Direction::FromKernel) {
            self.host.receive(now, PORT, &mut self.batch, self.pool);
        }
        self.events(now);
        for number in 0..self.ends.len() {
            self.work(now, number);
        }
        self.host.advance(now, self.pool);
        loop {
            self.host.transmit(PORT, &mut self.batch);
            if self.batch.is_empty() {
                break;
            }
            self.take(now, Direction::ToKernel);
        }
        let mut sent = 0;
        while self.give(now, Direction::ToKernel) {
            sent += self.tx.tx(self.pool, &mut self.batch);
            self.tx.flush(self.pool);
            // What the kernel has no room for is lost, as on any other network.
            self.pool.give_batch(&mut self.batch);
        }
        received + sent > 0
    }

    /// Hands what is in the batch to the faults.
    fn take(&mut self, now: Timestamp, direction: Direction) {
        for packet in self.batch.drain() {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(&mut bytes);
            self.pool.give_packet(packet);
            self.faults.take(now, direction, bytes);
        }
    }

    /// Fills the batch with what the faults let through; `false` when that is nothing.
    fn give(&mut self, now: Timestamp, direction: Direction) -> bool {
        while self.batch.room() > 0
            && let Some(bytes) = self.faults.next(now, direction)
        {
            // Without memory it is lost, too.
            if let Some(packet) = packet(&bytes, self.pool) {
                self.batch.push(packet);
            }
        }
        !self.batch.is_empty()
    }

    fn sleep(&mut self) {
        if !self.rx.arm() {
            return;
        }
        let busy = self.faults.is_holding() || self.ends.iter().any(|end| end.case.ours.pause > 0);
        let most = Duration::from_millis(if busy { 1 } else { 5 });
        let now = self.now();
        let until = self.host.next_deadline().map_or(most, |at| at.since(now)).min(most);
        let timeout = Timespec::try_from(until).expect("milliseconds");
        let wake = self.rx.wake_fd().unwrap();
        poll(&mut [PollFd::from_borrowed_fd(wake, PollFlags::IN)], Some(&timeout)).unwrap();
    }

    fn events(&mut self, now: Timestamp) {
        for event in self.host.stack.events().collect::<Vec<_>>() {
            if let Event::Accepted { listener, connection } = event {
                let number = self.ends.iter().position(|end| end.listener == Some(listener)).unwrap();
                self.numbers.insert(connection, number);
            }
            let Some(number) = event.connection().and_then(|id| self.numbers.get(&id)) else { continue };
            let end = &mut self.ends[*number];
            if let Event::Accepted { connection: id, .. } | Event::Connected(id) = event
                && end.id.replace(id).is_some()
            {
                end.outcome = Some(Err("ours: opened twice".into()));
            }
            if let Event::Closed(id, reason) = event
                && reason != CloseReason::Done
            {
                let stuck = end.stuck();
                end.outcome.get_or_insert(Err(format!("{reason:?}, {stuck}")));
                // Nobody works on it any more, so it is let go of here.
                self.host.stack.close(now, id, self.pool).unwrap();
            }
        }
    }

    /// Reads, writes and closes as one end does.
    fn work(&mut self, now: Timestamp, number: usize) {
        let end = &mut self.ends[number];
        let Some(id) = end.id.filter(|_| end.outcome.is_none()) else { return };
        let stack = &mut self.host.stack;
        if now >= end.reads_at {
            let mut buffer = [0; 1 << 16];
            let room = end.case.ours.reads.min(buffer.len());
            let n = stack.receive_copy(now, id, &mut buffer[..room], self.pool).unwrap_or(0);
            if n > 0 {
                end.reads_at = now + Duration::from_millis(end.case.ours.pause);
            }
            if let Err(why) = end.received.take(&buffer[..n]) {
                end.outcome = Some(Err(format!("ours: {why}")));
                return;
            }
        }
        if end.sent < end.to_send.len() {
            let to = end.to_send.len().min(end.sent + end.case.ours.writes);
            end.sent += stack.send(now, id, &end.to_send[end.sent..to], self.pool).unwrap_or(0);
        }
        let at_end = stack.is_at_end(id);
        if end.sent == end.to_send.len() && !end.shut && (end.case.first != First::Kernel || at_end) {
            end.shut = stack.shutdown(now, id, self.pool).is_ok();
        }
        if at_end && end.shut {
            let all = end.received.is_all();
            let ended = format!("ours: the end after {} bytes", end.received.length);
            end.outcome = Some(if all { Ok(()) } else { Err(ended) });
            stack.close(now, id, self.pool).ok();
        }
    }
}

impl End {
    fn new(case: Case, listener: Option<ListenerId>) -> Self {
        Self {
            listener,
            id: None,
            to_send: stream(case.seed, true, case.ours.length),
            sent: 0,
            shut: false,
            received: Received::of(stream(case.seed, false, case.kernel.length)),
            reads_at: Timestamp::ZERO,
            outcome: None,
            case,
        }
    }

    fn outcome(mut self) -> Result<(), String> {
        self.outcome.take().unwrap_or_else(|| Err(self.stuck()))
    }

    fn stuck(&self) -> String {
        let (open, sent, received) = (self.id.is_some(), self.sent, self.received.length);
        format!("ours: open {open}, {sent} sent, {received} received, closed {}", self.shut)
    }
}

/// Bytes as a packet; nothing when there is no memory.
fn packet(bytes: &[u8], pool: &mut Pool) -> Option<Packet> {
    let mut pieces = bytes.chunks(FRAME_DATA);
    let mut packet = Packet::new(pool.take()?);
    packet.extend_from_slice(pieces.next()?).expect("it fits");
    for piece in pieces {
        let Some(frame) = pool.take() else {
            pool.give_packet(packet);
            return None;
        };
        let segment = Segment::new(frame, 0, 0).expect("in the frame");
        packet.push_segment(segment, pool).expect("64 KiB at most");
        packet.extend_from_slice(piece).expect("it fits");
    }
    Some(packet)
}
