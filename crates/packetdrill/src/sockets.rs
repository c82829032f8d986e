//! Sockets: what Linux's system calls do, with the stack below. A call that would block says `EAGAIN`.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU8;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use bywash_stack::{Address, ConnectionId, FastOpenServer, Limits, ListenerId, State, UdpId};

use crate::datagrams::Inbox;
use crate::errno::{AGAIN, Errno, INVALID, Result};
use crate::machine::Machine;
use crate::pipes::PipeEnd;
use crate::poll::Epoll;
use crate::reports::Reports;

/// What a file number stands for.
#[derive(Debug)]
pub(crate) struct Socket {
    /// A file of the kernel's that does nothing: it reserves the number, and packetdrill closes it at the end of a script
    /// without asking us.
    place: Option<OwnedFd>,
    pub(crate) kind: Kind,
    /// Addresses are given as IPv6's.
    pub(crate) v6: bool,
    pub(crate) nonblocking: bool,
    pub(crate) local: Option<(Option<Address>, u16)>,
    /// What `bind` was given: it stays when the connection goes.
    pub(crate) bound: Option<(Option<Address>, u16)>,
    /// `connect` has said that there is a connection, or `accept` has (`SS_CONNECTED`).
    pub(crate) connected: bool,
    /// `connect` has said that there is a connection, and it begins when there is something to send (`TCP_FASTOPEN_CONNECT`).
    pub(crate) deferred: Option<SocketAddr>,
    /// What is wrong, to be told once, where no connection is to ask.
    pub(crate) error: Option<Errno>,
    /// How often the state of earlier connections changed, for edges.
    pub(crate) changes: u64,
    /// Of UDP.
    pub(crate) inbox: Inbox,
    pub(crate) reports: Reports,
    pub(crate) options: Options,
    /// `shutdown` was called for this side.
    pub(crate) read_shut: bool,
    pub(crate) write_shut: bool,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// A TCP socket that is nothing yet, or no more.
    Fresh,
    Listener {
        id: ListenerId,
        queue: VecDeque<ConnectionId>,
        /// Of how many in the queue one more is too many.
        backlog: usize,
        /// How many were accepted.
        taken: u64,
    },
    Stream(ConnectionId),
    Udp(UdpId),
    Epoll(Epoll),
    Pipe(PipeEnd),
}

/// What a program asks of the headers of one protocol: the traffic class, for TCP without the bits of congestion control, and the
/// time to live.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Headers {
    pub(crate) class: u8,
    pub(crate) hop_limit: Option<NonZeroU8>,
}

/// Options that sockets keep for themselves; the others are in [`Limits`].
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// But for what `headers` say.
    pub(crate) limits: Limits,
    /// Of IPv4 and of IPv6: what a connection has is that of the protocol of its packets, whatever the family of the socket.
    pub(crate) headers: [Headers; 2],
    pub(crate) nodelay: bool,
    pub(crate) cork: bool,
    /// `SO_LINGER`, when it is on.
    pub(crate) linger: Option<Duration>,
    pub(crate) receive_timeout: Option<Duration>,
    pub(crate) send_timeout: Option<Duration>,
    /// `SO_RCVLOWAT`
    pub(crate) low_water: usize,
    /// `TCP_FASTOPEN`, `TCP_FASTOPEN_KEY`, `TCP_FASTOPEN_NO_COOKIE`: how a listener takes Fast Open.
    pub(crate) fast_open: FastOpenServer,
    /// `TCP_FASTOPEN_CONNECT`
    pub(crate) fast_open_connect: bool,
    /// Set and read back, and nothing else: reuse of addresses, priority and so on.
    pub(crate) kept: BTreeMap<(i32, i32), i32>,
}

/// All file numbers.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    all: BTreeMap<i32, Socket>,
    pub(crate) pipes: crate::pipes::Pipes,
}

impl Sockets {
    pub(crate) fn get(&self, fd: i32) -> Result<&Socket> {
        self.all.get(&fd).ok_or(Errno(libc::EBADF))
    }

    pub(crate) fn get_mut(&mut self, fd: i32) -> Result<&mut Socket> {
        self.all.get_mut(&fd).ok_or(Errno(libc::EBADF))
    }

    /// Gives a socket a number: the lowest that is free, for the kernel, too.
    pub(crate) fn add(&mut self, mut socket: Socket) -> Result<i32> {
        let place: OwnedFd = File::open("/dev/null").map_err(|_| Errno(libc::EMFILE))?.into();
        let fd = place.as_raw_fd();
        socket.place = Some(place);
        self.all.insert(fd, socket);
        Ok(fd)
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Socket> {
        self.all.values_mut()
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = i32> {
        self.all.keys().copied()
    }

    /// All sockets but one.
    pub(crate) fn others(&self, fd: i32) -> impl Iterator<Item = &Socket> {
        self.all.iter().filter(move |(other, _)| **other != fd).map(|(_, socket)| socket)
    }

    /// The end. Numbers that are still there are the program's: it may have closed them already.
    pub(crate) fn abandon(&mut self) {
        for (_, mut socket) in std::mem::take(&mut self.all) {
            socket.place.take().map(IntoRawFd::into_raw_fd);
        }
    }

    /// The queues of a listener's sockets, of which there are several where they share a port (`SO_REUSEPORT`): how many were
    /// accepted, who waits, and of how many one more is too many.
    fn queues(
        &mut self,
        listener: ListenerId,
    ) -> impl Iterator<Item = (u64, &mut VecDeque<ConnectionId>, usize)> {
        self.all.values_mut().filter_map(move |socket| match &mut socket.kind {
            Kind::Listener { id, queue, backlog, taken } if *id == listener => {
                Some((*taken, queue, *backlog))
            }
            _ => None,
        })
    }

    /// A connection for a listener; `false` where no socket listens by it any more. Of several sockets it is for one that had the
    /// fewest: Linux deals them out by a hash that nobody knows.
    pub(crate) fn arrived(&mut self, listener: ListenerId, connection: ConnectionId) -> bool {
        let free = self
            .queues(listener)
            .min_by_key(|(taken, queue, backlog)| (queue.len() > *backlog, taken + queue.len() as u64));
        free.map(|(_, queue, _)| queue.push_back(connection)).is_some()
    }

    /// Whether nobody can take a connection for a listener.
    pub(crate) fn is_full(&mut self, listener: ListenerId) -> bool {
        self.queues(listener).all(|(_, queue, backlog)| queue.len() > backlog)
    }

    /// Whether a socket listens by it.
    pub(crate) fn has(&mut self, listener: ListenerId) -> bool {
        self.queues(listener).next().is_some()
    }
}

impl Socket {
    pub(crate) fn new(kind: Kind, v6: bool, limits: Limits) -> Self {
        let options = Options {
            limits,
            headers: [Headers::default(); 2],
            nodelay: false,
            cork: false,
            linger: None,
            receive_timeout: None,
            send_timeout: None,
            low_water: 1,
            fast_open: FastOpenServer::default(),
            fast_open_connect: false,
            kept: BTreeMap::new(),
        };
        Self {
            place: None,
            kind,
            v6,
            nonblocking: false,
            local: None,
            bound: None,
            connected: false,
            deferred: None,
            error: None,
            changes: 0,
            inbox: Inbox::default(),
            reports: Reports::default(),
            options,
            read_shut: false,
            write_shut: false,
        }
    }

    /// The limits of a connection whose packets are of IPv6, or of IPv4; of datagrams, too, what is of their headers.
    pub(crate) fn limits(&self, v6: bool) -> Limits {
        let Headers { class, hop_limit } = self.options.headers[usize::from(v6)];
        Limits { traffic_class: class, hop_limit, ..self.options.limits }
    }

    /// The limits by the address that it is bound to. One without may have connections of both protocols; they are IPv6's.
    pub(crate) fn bound_limits(&self) -> Limits {
        self.limits(self.is_bound_in_v6())
    }

    fn is_bound_in_v6(&self) -> bool {
        let address = self.local.and_then(|(address, _)| address);
        address.map_or(self.v6, |address| !address.is_v4())
    }

    /// Whether an option that is only kept is on.
    pub(crate) fn is_on(&self, level: i32, name: i32) -> bool {
        self.options.kept.get(&(level, name)).is_some_and(|value| *value != 0)
    }

    /// Refuses an address that a socket of its family has no way to.
    pub(crate) fn reaches(&self, to: SocketAddr) -> Result<()> {
        let v4 = match to.ip() {
            IpAddr::V6(_) if !self.v6 => return Err(Errno(libc::EAFNOSUPPORT)),
            IpAddr::V6(v6) => v6.to_ipv4_mapped().is_some(),
            IpAddr::V4(_) => true,
        };
        let only_v6 = self.v6 && self.is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
        if v4 && only_v6 { Err(Errno(libc::ENETUNREACH)) } else { Ok(()) }
    }

    /// The same, where one of IPv4 must be given within IPv6: Linux finds it too short.
    pub(crate) fn takes(&self, to: SocketAddr) -> Result<()> {
        if self.v6 && to.is_ipv4() { Err(INVALID) } else { self.reaches(to) }
    }

    /// An address in the socket's family.
    pub(crate) fn address(&self, (address, port): (Address, u16)) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(v4) if self.v6 => SocketAddr::new(v4.to_ipv6_mapped().into(), port),
            ip => SocketAddr::new(ip, port),
        }
    }
}

/// An address without a family: IPv4 within IPv6 is IPv4. `None`: any.
pub(crate) fn plain(address: SocketAddr) -> Option<Address> {
    let ip = match address.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    };
    (ip != IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !ip.is_unspecified()).then(|| ip.into())
}

impl Machine {
    pub(crate) fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<i32> {
        let v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        };
        let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let kind = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Kind::Fresh,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                let local = (!v6).then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
                Kind::Udp(self.host.stack.udp_bind(local, 0)?)
            }
            _ => return Err(Errno(libc::EPROTONOSUPPORT)),
        };
        let mut socket = Socket::new(kind, v6, self.flags.limits());
        socket.nonblocking = flags & libc::SOCK_NONBLOCK != 0;
        if flags & libc::SOCK_CLOEXEC != 0 {
            socket.options.kept.insert(CLOSES, libc::FD_CLOEXEC);
        }
        self.sockets.add(socket)
    }

    pub(crate) fn accept(&mut self, fd: i32) -> Result<(i32, SocketAddr)> {
        match self.sockets.get(fd)?.kind {
            Kind::Listener { .. } => {}
            Kind::Fresh | Kind::Stream(_) => return Err(INVALID),
            Kind::Udp(_) => return Err(Errno(libc::EOPNOTSUPP)),
            Kind::Epoll(_) | Kind::Pipe(_) => return Err(Errno(libc::ENOTSOCK)),
        }
        let next = self.acceptable(fd).next().ok_or(AGAIN)?;
        let socket = self.sockets.get_mut(fd)?;
        let (v6, options, bound_in_v6) = (socket.v6, socket.options.clone(), socket.is_bound_in_v6());
        let Kind::Listener { id: listener, queue, taken, .. } = &mut socket.kind else {
            return Err(INVALID);
        };
        let id = queue.remove(next).ok_or(AGAIN)?;
        *taken += 1;
        let listener = *listener;
        self.host.stack.set_listener_full(listener, self.sockets.is_full(listener));
        let flow = self.host.stack.flow(id)?;
        let mut child = Socket::new(Kind::Stream(id), v6, options.limits);
        (child.local, child.connected) = (Some((Some(flow.local), flow.local_port)), true);
        child.options = options;
        // These are the listener's alone.
        child
            .options
            .kept
            .retain(|name, _| ![CLOSES, (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)].contains(name));
        child.options.fast_open.pending = 0;
        let peer = child.address((flow.remote, flow.remote_port));
        let (nodelay, cork) = (child.options.nodelay, child.options.cork);
        self.host.stack.set_nodelay(self.now, id, nodelay, &mut self.pool)?;
        self.host.stack.set_cork(self.now, id, cork, &mut self.pool)?;
        // A listener of both protocols has given it the headers of IPv6.
        let is_v6 = !flow.local.is_v4();
        if is_v6 != bound_in_v6 {
            let Limits { traffic_class, hop_limit, .. } = child.limits(is_v6);
            let given = self.host.stack.connection_limits(id)?;
            self.limit(id, Limits { traffic_class, hop_limit, ..given });
        }
        Ok((self.sockets.add(child)?, peer))
    }

    pub(crate) fn shutdown(&mut self, fd: i32, how: i32) -> Result<()> {
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(INVALID),
        };
        let socket = self.sockets.get_mut(fd)?;
        match &mut socket.kind {
            Kind::Stream(id) => {
                let id = *id;
                let link = self.links.get_mut(&id).filter(|link| !link.closed);
                let link = link.ok_or(Errno(libc::ENOTCONN))?;
                if !link.connected {
                    return self.disconnect(fd);
                }
                // Linux wakes all that wait for the socket.
                link.changes += 1;
                socket.connected = true;
                socket.read_shut |= read;
                if write && !socket.write_shut {
                    socket.write_shut = true;
                    self.host.stack.shutdown(self.now, id, &mut self.pool)?;
                }
                Ok(())
            }
            Kind::Listener { .. } if read => self.disconnect(fd),
            Kind::Listener { .. } => Ok(()),
            Kind::Udp(_) if socket.connected => {
                socket.read_shut |= read;
                socket.write_shut |= write;
                Ok(())
            }
            Kind::Fresh | Kind::Udp(_) => Err(Errno(libc::ENOTCONN)),
            _ => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// The first half of a close that lingers: `EAGAIN` until all that was sent is acknowledged.
    pub(crate) fn linger(&mut self, fd: i32) -> Result<()> {
        let socket = self.sockets.get_mut(fd)?;
        let Kind::Stream(id) = socket.kind else { return Ok(()) };
        if self.host.stack.readable_bytes(id).unwrap_or(0) > 0 {
            return Ok(());
        }
        if !socket.write_shut {
            socket.write_shut = true;
            // A connection that has ended has nothing to wait for.
            self.host.stack.shutdown(self.now, id, &mut self.pool).ok();
        }
        let state = self.host.stack.tcp_info(self.now, id).map_or(State::Closed, |info| info.state);
        match state {
            State::FinWait1 | State::Closing | State::LastAck => Err(AGAIN),
            _ => Ok(()),
        }
    }

    pub(crate) fn close(&mut self, fd: i32) -> Result<()> {
        let socket = self.sockets.all.remove(&fd).ok_or(Errno(libc::EBADF))?;
        let (stack, pool, now) = (&mut self.host.stack, &mut self.pool, self.now);
        match socket.kind {
            Kind::Fresh | Kind::Epoll(_) => {}
            Kind::Listener { id, queue, .. } => self.give_up(id, queue),
            Kind::Stream(id) => {
                // A connection that has ended by itself has nothing more to say.
                match socket.options.linger {
                    Some(Duration::ZERO) => stack.abort(now, id, pool).ok(),
                    _ => stack.close(now, id, pool).ok(),
                };
                self.links.remove(&id);
            }
            Kind::Udp(id) => stack.udp_close(id, pool),
            Kind::Pipe(end) => self.sockets.pipes.close(end),
        }
        for other in self.sockets.all.values_mut() {
            if let Kind::Epoll(epoll) = &mut other.kind {
                epoll.forget(fd);
            }
        }
        Ok(())
    }

    pub(crate) fn fcntl(&mut self, fd: i32, command: i32, argument: i32) -> Result<i32> {
        let socket = self.sockets.get_mut(fd)?;
        match command {
            libc::F_GETFL => Ok(libc::O_RDWR | if socket.nonblocking { libc::O_NONBLOCK } else { 0 }),
            libc::F_SETFL => {
                socket.nonblocking = argument & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            libc::F_GETFD => Ok(socket.options.kept.get(&CLOSES).copied().unwrap_or(0)),
            libc::F_SETFD => {
                socket.options.kept.insert(CLOSES, argument & libc::FD_CLOEXEC);
                Ok(0)
            }
            _ => Err(INVALID),
        }
    }

    /// The number an `ioctl` gives; `argument` is what is at its pointer, for those that read it.
    pub(crate) fn ioctl(&mut self, fd: i32, request: u64, argument: i32) -> Result<Option<i32>> {
        let socket = self.sockets.get_mut(fd)?;
        if request == libc::FIONBIO {
            socket.nonblocking = argument != 0;
            return Ok(None);
        }
        let socket = self.sockets.get(fd)?;
        let kind = &socket.kind;
        let bytes = |n: u64| Ok(Some(i32::try_from(n).unwrap_or(i32::MAX)));
        match (request, kind) {
            (_, Kind::Listener { .. }) => Err(INVALID),
            (libc::FIONREAD, Kind::Stream(id)) => {
                let there = self.host.stack.readable_bytes(*id).unwrap_or(0);
                let most = self.out_of_band(socket, *id).unwrap_or(usize::MAX);
                bytes(there.min(most) as u64)
            }
            (SIOCATMARK, Kind::Stream(id)) => Ok(Some(i32::from(self.before_urgent(*id) == Some(0)))),
            (libc::TIOCOUTQ | SIOCOUTQNSD, Kind::Stream(id)) => {
                let info = self.host.stack.tcp_info(self.now, *id)?;
                let sent = if request == libc::TIOCOUTQ { info.unacked_bytes } else { 0 };
                let sent = if info.state == State::SynSent { 0 } else { sent };
                bytes(u64::from(info.notsent_bytes) + u64::from(sent))
            }
            (libc::FIONREAD, Kind::Udp(_)) => bytes(socket.inbox.next().unwrap_or(0) as u64),
            (libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD, Kind::Fresh) => Ok(Some(0)),
            (libc::TIOCOUTQ, Kind::Udp(_)) => Ok(Some(0)),
            _ => Err(Errno(libc::ENOTTY)),
        }
    }
}

/// Where `FD_CLOEXEC` is kept, beside the options.
const CLOSES: (i32, i32) = (-1, libc::F_GETFD);
/// Bytes that were not sent yet (`include/uapi/linux/sockios.h`).
const SIOCOUTQNSD: u64 = 0x894b;
/// Whether the urgent byte is the next one.
const SIOCATMARK: u64 = 0x8905;

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// A listener of the machine's own address, and where it is.
    pub(crate) fn listener(machine: &mut Machine) -> (i32, SocketAddr) {
        let fd = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 8080);
        machine.bind(fd, to).unwrap();
        machine.listen(fd, 8).unwrap();
        (fd, to)
    }

    /// A socket that has connected there.
    pub(crate) fn connected(machine: &mut Machine, to: SocketAddr) -> i32 {
        let fd = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(machine.connect(fd, to), Err(Errno(libc::EINPROGRESS)));
        machine.run();
        assert_eq!(machine.connect(fd, to), Ok(()));
        fd
    }

    #[test]
    fn connections_that_wait_for_accept_are_as_many_as_the_backlog_and_one_more() {
        let mut machine = Machine::new(crate::settings::Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let (listener, to) = listener(&mut machine);
        machine.listen(listener, 0).unwrap();
        connected(&mut machine, to);
        let second = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let connect = |machine: &mut Machine| {
            let error = machine.connect(second, to);
            machine.advance_to(machine.now + Duration::from_secs(3));
            error
        };
        assert_eq!(connect(&mut machine), Err(Errno(libc::EINPROGRESS)));
        assert_eq!(connect(&mut machine), Err(Errno(libc::EALREADY)));
        machine.accept(listener).unwrap();
        assert_eq!(connect(&mut machine), Err(Errno(libc::EALREADY)));
        assert_eq!(connect(&mut machine), Ok(()));
    }

    #[test]
    fn a_connection_that_no_queue_takes_is_broken_off() {
        let mut machine = Machine::new(crate::settings::Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let (listener, to) = listener(&mut machine);
        let fd = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(machine.connect(fd, to), Err(Errno(libc::EINPROGRESS)));
        // It is complete, and the machine has not heard of it.
        (0..8).for_each(|_| machine.host.advance(machine.now, &mut machine.pool));
        assert_eq!(machine.host.stack.connections().0, 2);
        machine.close(listener).unwrap();
        machine.run();
        assert_eq!(machine.host.stack.connections().0, 1, "the other end is the socket's");
        assert_eq!(machine.send(fd, b"x", 0, None), Err(Errno(libc::ECONNRESET)));
    }
}
