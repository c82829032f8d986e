//! One worker's stack: packets and time in, packets and events out.

use std::sync::Arc;

use bywash_frame::{BATCH, Batch, FRAME_SIZE, Pool};
use bywash_wire::Protocol;

use crate::counters::Counters;
use crate::flow::{Purpose, Secret};
use crate::ip::{Reassembled, Reassembly};
use crate::outbox::Outbox;
use crate::tcp::{CloseReason, ConnectionId, ListenerId, Tcp};
use crate::udp::{Datagram, Udp, UdpError, UdpId, UdpOptions};
use crate::{Address, Flow, Notice, PortId, Request, Snapshot, Timestamp, Unreachable};

/// Something that happened, for the program.
// Of whole words, because it is moved as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Event {
    /// A UDP socket that had nothing to read has a datagram or an error.
    UdpReadable(UdpId),
    /// A peer has connected.
    Accepted {
        /// To what.
        listener: ListenerId,
        /// As what.
        connection: ConnectionId,
    },
    /// A connection of ours is open.
    Connected(ConnectionId),
    /// A connection that had nothing to read has something; it is said again when all has been read.
    Readable(ConnectionId),
    /// A connection whose buffer was full takes bytes again.
    Writable(ConnectionId),
    /// The peer wants all to be read soon up to a place further on than before: see [`Stack::urgent_bytes`].
    Urgent(ConnectionId),
    /// The peer sends no more; what came before can still be read.
    PeerClosed(ConnectionId),
    /// The connection has ended; what came before can still be read until it is closed.
    Closed(ConnectionId, CloseReason),
}

impl Event {
    /// The connection that it happened to, if it was one.
    pub fn connection(&self) -> Option<ConnectionId> {
        match *self {
            Self::UdpReadable(_) => None,
            Self::Accepted { connection: id, .. }
            | Self::Connected(id)
            | Self::Readable(id)
            | Self::Writable(id)
            | Self::Urgent(id)
            | Self::PeerClosed(id)
            | Self::Closed(id, _) => Some(id),
        }
    }
}

/// TCP/IP for one worker. Nothing is shared with other stacks; what all of them read comes as a [`Snapshot`].
#[derive(Debug)]
pub struct Stack {
    pub(crate) secret: Secret,
    pub(crate) out: Outbox,
    pub(crate) fragments: Reassembly,
    pub(crate) reassembled: Vec<Reassembled>,
    pub(crate) udp: Udp,
    pub(crate) tcp: Tcp,
    pub(crate) events: Vec<Event>,
    pub(crate) counters: Counters,
    pub(crate) share: Share,
    /// A link takes only shorter packets by now, or a route leads to one that does, perhaps.
    narrowed: bool,
    /// An empty batch, once there was one: of packets that come between others that are passed on.
    pub(crate) others: Option<Batch>,
}

/// The part of all frames that send buffers may hold, beyond the first of each.
const QUEUED_SHARE: usize = 2;
/// Eighths of all frames that may hold what has come and was not read: in order, beyond the first of each connection, and early.
const RECEIVED_EIGHTHS: usize = 3;
/// The part of all frames that is for what must come and go however much programs leave unread: two batches at most.
const RESERVE_SHARE: usize = 8;

/// Frames of those that are a stack's that only what must come and go may have.
pub(crate) fn reserve(frames: usize) -> usize {
    (frames / RESERVE_SHARE).min(2 * BATCH)
}

/// What a stack needs to know of those that have the same addresses and packet memory.
#[derive(Debug)]
pub(crate) struct Share {
    /// Which of them it is, from 0 on.
    pub(crate) number: usize,
    /// How many they are, this one among them.
    pub(crate) stacks: usize,
    /// Bytes of frames that hold what has come out of order here, of all connections.
    pub(crate) early: usize,
    /// Bytes of frames that hold what has come in order here and was not read, datagrams among it, without the first frame of each
    /// connection and socket.
    pub(crate) unread: usize,
    /// Frames of send buffers here, without the first of each.
    pub(crate) queued: usize,
    /// So few frames were free when that was looked at last that only what needs none may come: acknowledgments, resets, ends.
    pub(crate) low: bool,
    /// Bytes of frames that `early` and `unread` may be, as of then.
    pub(crate) most_received: usize,
    /// Fast Open's handshakes that are over, until their listeners hear of it: whose, and until when they count all the same.
    pub(crate) opened: Vec<(ListenerId, Option<Timestamp>)>,
}

impl Share {
    /// That of a stack that is alone.
    pub(crate) fn new() -> Self {
        Self {
            number: 0,
            stacks: 1,
            early: 0,
            unread: 0,
            queued: 0,
            low: false,
            most_received: usize::MAX,
            opened: Vec::new(),
        }
    }

    /// Looks at how many frames there are, and are free, for what comes until the next time.
    pub(crate) fn look(&mut self, pool: &mut Pool) {
        let frames = pool.arena().frames() / self.stacks;
        let reserve = reserve(frames);
        self.low = pool.at_hand(reserve) < reserve;
        self.most_received = frames * RECEIVED_EIGHTHS / 8 * FRAME_SIZE;
    }

    /// Whether a connection that holds something unread may have `more` bytes of frames for what comes next.
    #[inline]
    pub(crate) fn takes(&self, more: usize) -> bool {
        !self.low && self.early + self.unread + more <= self.most_received
    }

    /// Whether a send buffer may have one more than so many frames. The first is always its own; of half of all frames, which
    /// are for the others, each may have as many as are left: who holds much leaves as much to the next one, whether
    /// or not its peer will ever acknowledge anything.
    pub(crate) fn grants(&self, frames: usize, pool: &Pool) -> bool {
        frames == 0 || (self.queued + frames) * QUEUED_SHARE * self.stacks <= pool.arena().frames()
    }

    /// Whether send buffers hold more than half of the frames that they may: bytes are to lie close together in more of them.
    pub(crate) fn is_scarce(&self, pool: &Pool) -> bool {
        !self.grants(self.queued.max(1), pool)
    }
}

/// What every protocol needs while it works on something.
pub(crate) struct Context<'a> {
    pub(crate) now: Timestamp,
    pub(crate) secret: &'a Secret,
    pub(crate) out: &'a mut Outbox,
    pub(crate) pool: &'a mut Pool,
    pub(crate) events: &'a mut Vec<Event>,
    pub(crate) counters: &'a mut Counters,
    pub(crate) share: &'a mut Share,
}

impl Stack {
    /// A stack without sockets. `random` is its only source of randomness: different for every stack, and unknown
    /// to everyone else.
    pub fn new(snapshot: Arc<Snapshot>, random: [u8; 16]) -> Self {
        let mut stack = Self {
            secret: Secret::new(random),
            out: Outbox::new(snapshot),
            fragments: Reassembly::default(),
            reassembled: Vec::new(),
            udp: Udp::default(),
            tcp: Tcp::new(),
            events: Vec::new(),
            counters: Counters::default(),
            share: Share::new(),
            narrowed: false,
            others: None,
        };
        stack.listen_as_told();
        stack
    }

    /// Takes a new picture of what the control owns.
    #[inline]
    pub fn update(&mut self, snapshot: &Arc<Snapshot>, pool: &mut Pool) {
        let listeners = !Arc::ptr_eq(&snapshot.listeners, &self.out.snapshot.listeners);
        let links = !Arc::ptr_eq(&snapshot.interfaces, &self.out.snapshot.interfaces);
        self.narrowed |= links && snapshot.is_narrower_than(&self.out.snapshot);
        if self.out.update(snapshot, pool) {
            self.tcp.follow_ways();
        }
        if listeners {
            self.listen_as_told();
        }
    }

    /// Listens on what the snapshot says.
    #[cold]
    pub(crate) fn listen_as_told(&mut self) {
        self.tcp.follow(&self.out.snapshot.listeners, self.share.stacks);
    }

    /// The picture it has now.
    pub fn snapshot(&self) -> &Snapshot {
        &self.out.snapshot
    }

    /// Lets time pass, and takes packets to ourselves round once.
    pub fn advance(&mut self, now: Timestamp, pool: &mut Pool) {
        self.share.look(pool);
        if !self.fragments.is_empty() {
            for (interface, packet) in self.fragments.expire(now, &mut self.counters, pool) {
                self.out.requests.push(Request::Report { interface, packet, error: Unreachable::Reassembly });
            }
        }
        self.out.forget_told(now);
        self.out.look_at_lines(now, pool);
        let narrowed = std::mem::take(&mut self.narrowed);
        self.with_tcp(now, pool, |tcp, cx| {
            if narrowed {
                tcp.fit_links(cx);
            }
            tcp.advance(cx);
            tcp.output(cx);
        });
        // Those that are there now: what they cause waits for the next round.
        for _ in 0..self.out.to_ourselves.len() {
            let Some((zone, packet)) = self.out.to_ourselves.pop_front() else { break };
            self.deliver(now, zone, packet, pool);
        }
    }

    /// Whether packets to ourselves wait for [`Stack::advance`].
    pub fn has_own_packets(&self) -> bool {
        !self.out.to_ourselves.is_empty()
    }

    /// When [`Stack::advance`] is to be called next, if nothing comes in before. Connections that wait for a port that has too many
    /// packets already go on after [`Stack::transmit`]: it is to be asked after that.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if !self.out.to_ourselves.is_empty() {
            return Some(Timestamp::ZERO);
        }
        let lines = self.out.next_deadline();
        self.fragments.next_deadline().into_iter().chain(self.tcp.next_deadline(&self.out)).chain(lines).min()
    }

    /// Moves packets for a port into a batch, as many as there is room for.
    pub fn transmit(&mut self, port: PortId, batch: &mut Batch) {
        self.out.take(port, batch);
    }

    /// What has happened since this was last called.
    pub fn events(&mut self) -> impl Iterator<Item = Event> {
        self.events.drain(..)
    }

    /// Whether something is left to the control.
    pub fn has_requests(&self) -> bool {
        !self.out.requests.is_empty()
    }

    /// What is left to the control since this was last called.
    pub fn requests(&mut self) -> impl Iterator<Item = Request> {
        self.out.requests.drain(..)
    }

    /// What became of packets and connections.
    pub fn counters(&self) -> Counters {
        let (_, half_open, time_wait) = self.connections();
        Counters {
            no_memory: self.counters.no_memory + self.out.dropped,
            tcp_half_open: half_open as u64,
            tcp_time_wait: time_wait as u64,
            ..self.counters.clone()
        }
    }

    /// ICMP told something about a packet that perhaps was ours.
    pub fn notice(&mut self, now: Timestamp, notice: &Notice, pool: &mut Pool) {
        match Protocol(notice.protocol) {
            Protocol::UDP => {
                let (_, udp, mut context) = self.protocols(now, pool);
                udp.notice(notice, &mut context);
            }
            Protocol::TCP => self.with_tcp(now, pool, |tcp, cx| tcp.notice(notice, cx)),
            _ => {}
        }
    }

    /// The transport protocols, and what they need while they work on something.
    #[inline]
    pub(crate) fn protocols<'a>(
        &'a mut self,
        now: Timestamp,
        pool: &'a mut Pool,
    ) -> (&'a mut Tcp, &'a mut Udp, Context<'a>) {
        let context = Context {
            now,
            secret: &self.secret,
            out: &mut self.out,
            pool,
            events: &mut self.events,
            counters: &mut self.counters,
            share: &mut self.share,
        };
        (&mut self.tcp, &mut self.udp, context)
    }

    /// Works on TCP with everything else at hand.
    pub(crate) fn with_tcp<T>(
        &mut self,
        now: Timestamp,
        pool: &mut Pool,
        work: impl FnOnce(&mut Tcp, &mut Context<'_>) -> T,
    ) -> T {
        let (tcp, _, mut context) = self.protocols(now, pool);
        work(tcp, &mut context)
    }

    /// Opens a UDP socket on a port, on one of our addresses, on all of a family (the unspecified one), or on all; port 0 means any
    /// that is free. On a group's address, or everyone's, it hears what is for that, and what it sends comes from one of ours.
    ///
    /// # Errors
    /// [`UdpError::Taken`], [`UdpError::NoPort`]; [`UdpError::NoRoute`] for an address of another host.
    pub fn udp_bind(&mut self, local: Option<Address>, port: u16) -> Result<UdpId, UdpError> {
        let snapshot = &self.out.snapshot;
        let for_many = |local: Address| local.is_multicast() || snapshot.is_broadcast(local);
        if let Some(local) = local.filter(|local| !local.is_unspecified())
            && !snapshot.is_ours(local)
            && !for_many(local)
        {
            return Err(UdpError::NoRoute(local));
        }
        let start = self.first_port();
        self.udp.bind(local, port, start)
    }

    /// Where free ports are looked for from: another place for each socket, so that who sees one port does not know the next (RFC
    /// 6056, 3.3.1).
    fn first_port(&self) -> u64 {
        let [a, b, c, d] = self.udp.opened().to_be_bytes();
        let (local_port, remote_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        self.secret.hash(Purpose::Port, &Flow { local_port, remote_port, ..Flow::default() })
    }

    /// Opens a UDP socket that is tied to a peer, as [`Stack::udp_bind`] and [`Stack::udp_connect`] do, on the address that its
    /// datagrams come from: the given one, or the route's. With port 0 it gets one whose flow is `wanted`: where there are several
    /// stacks, one by which the answers come to this one.
    ///
    /// # Errors
    /// [`UdpError::NoRoute`], [`UdpError::Taken`], [`UdpError::NoPort`].
    pub fn udp_connect_where(
        &mut self,
        (local, local_port): (Option<Address>, u16),
        (remote, remote_port): (Address, u16),
        wanted: impl Fn(&Flow) -> bool,
    ) -> Result<UdpId, UdpError> {
        let (_, local) = crate::udp::way(&self.out.snapshot, local, remote)?;
        let start = self.first_port();
        self.udp.open(Flow { local, remote, local_port, remote_port }, start, wanted)
    }

    /// Ties a UDP socket to a peer: it hears only that one, and of its errors, and only at the address that it was opened on, else at
    /// the one that the route has for what it sends. `None` unties it.
    ///
    /// # Errors
    /// [`UdpError::Closed`]; [`UdpError::NoRoute`] to the peer; [`UdpError::Taken`] if by now another socket has its port and address
    /// with that peer, or, when it is untied, without one.
    pub fn udp_connect(&mut self, id: UdpId, peer: Option<(Address, u16)>) -> Result<(), UdpError> {
        self.udp.connect(id, peer, &self.out.snapshot)
    }

    /// A UDP socket's port.
    pub fn udp_port(&self, id: UdpId) -> Option<u16> {
        self.udp.local_port(id)
    }

    /// The peer that a UDP socket is tied to.
    pub fn udp_peer(&self, id: UdpId) -> Option<(Address, u16)> {
        self.udp.peer(id)
    }

    /// The next datagram of a UDP socket.
    ///
    /// # Errors
    /// [`UdpError::Closed`]; [`UdpError::Unreachable`] once for each error that came back from the peer.
    pub fn udp_receive(&mut self, id: UdpId) -> Result<Option<Datagram>, UdpError> {
        self.udp.receive(id, &mut self.share)
    }

    /// Sends a datagram to `to`, or to the peer. Longer ones than the link takes are fragmented. An error that came back from the
    /// peer is told here, too, unless it [may pass](Unreachable::may_pass).
    ///
    /// # Errors
    /// [`UdpError`]: the datagram was not sent.
    pub fn udp_send(
        &mut self,
        now: Timestamp,
        id: UdpId,
        to: Option<(Address, u16)>,
        payload: &[u8],
        pool: &mut Pool,
    ) -> Result<(), UdpError> {
        let (_, udp, mut context) = self.protocols(now, pool);
        udp.send(id, None, to, payload, &mut context)
    }

    /// [`Stack::udp_send`] from an address that the program names, as it must be able to (RFC 1122, 4.1.3.5): a socket on all of our
    /// addresses answers from the one at which it was asked, [`Datagram::destination`]. Where that is a group's, or everyone's, it is
    /// from the socket's own or the route's.
    ///
    /// # Errors
    /// [`UdpError`]: the datagram was not sent. [`UdpError::NoRoute`] if the address is not ours.
    pub fn udp_send_from(
        &mut self,
        now: Timestamp,
        id: UdpId,
        (from, to): (Address, (Address, u16)),
        payload: &[u8],
        pool: &mut Pool,
    ) -> Result<(), UdpError> {
        let (_, udp, mut context) = self.protocols(now, pool);
        udp.send(id, Some(from), Some(to), payload, &mut context)
    }

    /// The next error that came back for a datagram of a socket without a peer, and to whom that was: the last eight are kept. A
    /// program that wants to hear of them asks after [`Event::UdpReadable`], until there is none. Whoever knows the port can make them
    /// up, and where each of several stacks has a socket on a port, each hears of all. Those of a peer are told by
    /// [`Stack::udp_receive`] and [`Stack::udp_send`].
    pub fn udp_error(&mut self, id: UdpId) -> Option<((Address, u16), Unreachable)> {
        self.udp.error(id)
    }

    /// Says how a UDP socket's datagrams are sent from now on.
    ///
    /// # Errors
    /// [`UdpError::Closed`].
    pub fn set_udp_options(&mut self, id: UdpId, options: UdpOptions) -> Result<(), UdpError> {
        *self.udp.options(id).ok_or(UdpError::Closed)? = options;
        Ok(())
    }

    /// Closes a UDP socket.
    pub fn udp_close(&mut self, id: UdpId, pool: &mut Pool) {
        self.udp.close(id, &mut self.share, pool);
    }
}
