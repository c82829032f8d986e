//! Services on the kernel's sockets: one worker with one epoll set.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bywash_engine::stack::Timestamp;
use bywash_sys::clock::monotonic;
use bywash_sys::tcp_option::unacknowledged;
use bywash_sys::worker::{Stop, Task, Turn};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, accept_with, bind, connect,
    getpeername, listen, recv, send, shutdown, socket_with, sockopt,
};

use crate::counters::Counters;
use crate::kernel_options::KernelOptions;
use crate::sockets::{Ended, Happened, Service, Sockets};

/// Handshakes that may be under way at a port.
const BACKLOG: i32 = 4096;
/// Bytes read at once.
const READ: usize = 64 << 10;
/// Events taken at once.
const EVENTS: usize = 64;
/// Bytes that a socket moves in one turn at most. A peer that keeps pace would never let the turn end.
const TURN: usize = 1 << 20;
/// How long listeners are left alone when the kernel had no descriptor or no memory for a connection: by then others may have given
/// some back.
const REST: Duration = Duration::from_millis(100);
/// What the epoll set has with the bell: no socket.
const BELL: u64 = u64::MAX;

/// A socket. A place is used again, and then has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelId {
    place: u32,
    generation: u32,
}

impl KernelId {
    fn data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.place)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    fn of(data: u64) -> Self {
        Self { place: data as u32, generation: (data >> 32) as u32 }
    }
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    socket: Option<Socket>,
}

#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    kind: Kind,
    /// Read and not taken.
    rest: Vec<u8>,
    /// Bytes that the kernel has taken to be sent.
    sent: u64,
    /// The service knows that the peer sends no more, or that all is over.
    told_end: bool,
    told_closed: bool,
    /// The service sends no more.
    shut: bool,
    full: bool,
    turn: InTurn,
}

/// What a socket has done in one turn.
#[derive(Debug, Default)]
struct InTurn {
    number: u64,
    bytes: usize,
    /// The service will be told to go on reading, or sending, in the next turn.
    reads_on: bool,
    sends_on: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Listener,
    Connecting,
    Open,
}

/// The kernel's sockets.
#[derive(Debug)]
pub struct KernelSockets {
    options: KernelOptions,
    epoll: OwnedFd,
    /// Rung by other threads of the service.
    bell: Arc<OwnedFd>,
    places: Vec<Place>,
    free: Vec<u32>,
    happened: VecDeque<Happened<KernelId>>,
    buffer: Vec<u8>,
    begun: u64,
    now: Timestamp,
    turn: u64,
    /// Listeners that are left alone, and until when.
    resting: Vec<KernelId>,
    rest_until: Timestamp,
    counters: Counters,
}

impl KernelSockets {
    /// None yet; those to come are set to `options`. What their service does not hear of goes to `counters`, which are its own.
    ///
    /// # Errors
    /// The kernel gives no epoll set, or no eventfd.
    pub fn new(options: KernelOptions, counters: Counters) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self {
            options,
            epoll,
            bell: Arc::new(bell),
            places: Vec::new(),
            free: Vec::new(),
            happened: VecDeque::new(),
            buffer: vec![0; READ],
            begun: monotonic(),
            now: Timestamp::ZERO,
            turn: 0,
            resting: Vec::new(),
            rest_until: Timestamp::ZERO,
            counters,
        })
    }

    fn clock(&self) -> Timestamp {
        Timestamp::from_nanos(monotonic() - self.begun)
    }

    fn add(&mut self, fd: OwnedFd, kind: Kind) -> io::Result<KernelId> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.places.push(Place::default());
                u32::try_from(self.places.len() - 1).map_err(io::Error::other)?
            }
        };
        let entry = &mut self.places[place as usize];
        let id = KernelId { place, generation: entry.generation };
        // Listeners by level: what was not accepted in one turn is in the next.
        let flags = match kind {
            Kind::Listener => epoll::EventFlags::IN,
            Kind::Connecting | Kind::Open => {
                epoll::EventFlags::IN
                    | epoll::EventFlags::OUT
                    | epoll::EventFlags::RDHUP
                    | epoll::EventFlags::ET
            }
        };
        if let Err(errno) = epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(id.data()), flags) {
            self.free.push(place);
            return Err(errno.into());
        }
        entry.socket = Some(Socket {
            fd,
            kind,
            rest: Vec::new(),
            sent: 0,
            told_end: false,
            told_closed: false,
            shut: false,
            full: false,
            turn: InTurn::default(),
        });
        Ok(id)
    }

    fn there(&self, id: KernelId) -> Option<&Socket> {
        let place = self.places.get(id.place as usize)?;
        place.socket.as_ref().filter(|_| place.generation == id.generation)
    }

    fn socket(&mut self, id: KernelId) -> Option<&mut Socket> {
        let place = self.places.get_mut(id.place as usize)?;
        place.socket.as_mut().filter(|_| place.generation == id.generation)
    }

    fn remove(&mut self, id: KernelId) -> Option<Socket> {
        self.socket(id)?;
        // What it gives back is somebody's who waits.
        self.rest_until = self.now;
        let place = &mut self.places[id.place as usize];
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.place);
        place.socket.take()
    }

    /// Asks the kernel what happened, without waiting.
    fn look(&mut self) -> io::Result<()> {
        if self.rest_until <= self.now {
            for listener in std::mem::take(&mut self.resting) {
                self.wake_for(listener, epoll::EventFlags::IN);
            }
        }
        let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (events, _) = match epoll::wait(&self.epoll, &mut events, Some(&none)) {
            Err(Errno::INTR) => return Ok(()),
            events => events?,
        };
        for event in events {
            match event.data.u64() {
                // Whoever rang has laid down before what the service looks for after this. It only fails when nobody rang.
                BELL => _ = rustix::io::read(&*self.bell, &mut [0; 8]),
                socket => self.sort(KernelId::of(socket), event.flags),
            }
        }
        Ok(())
    }

    fn sort(&mut self, id: KernelId, flags: epoll::EventFlags) {
        let Some(socket) = self.socket(id).filter(|socket| !socket.told_closed) else { return };
        match socket.kind {
            Kind::Listener => return self.accept(id),
            Kind::Connecting => {
                let failed = sockopt::socket_error(&socket.fd).and_then(|result| result).err();
                if failed.is_some() || flags.contains(epoll::EventFlags::HUP | epoll::EventFlags::OUT) {
                    socket.told_closed = true;
                    let ended = failed.map_or(Ended::Reset, ended_by);
                    return self.happened.push_back(Happened::Closed(id, ended));
                }
                if !flags.contains(epoll::EventFlags::OUT) {
                    return;
                }
                socket.kind = Kind::Open;
                self.happened.push_back(Happened::Connected(id));
            }
            Kind::Open => {
                if flags.contains(epoll::EventFlags::OUT) && std::mem::take(&mut socket.full) {
                    self.happened.push_back(Happened::Writable(id));
                }
                if flags.contains(epoll::EventFlags::HUP) {
                    self.look_whether_over(id);
                }
            }
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ERR) {
            self.happened.push_back(Happened::Readable(id));
        }
    }

    fn accept(&mut self, listener: KernelId) {
        for _ in 0..EVENTS {
            let Some(socket) = self.socket(listener) else { return };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let added = match accept_with(&socket.fd, flags) {
                Ok(fd) => {
                    let _ = sockopt::set_tcp_nodelay(&fd, true);
                    self.add(fd, Kind::Open)
                }
                Err(Errno::AGAIN) => return,
                // A peer that has gone again.
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(errno) => Err(errno.into()),
            };
            match added {
                Ok(id) => self.happened.push_back(Happened::Accepted(id)),
                Err(error) => return self.rest(listener, &error),
            }
        }
    }

    /// Leaves a listener alone for a while. Whoever waits there would wake this worker again and again, and can't be let in.
    fn rest(&mut self, listener: KernelId, why: &io::Error) {
        self.wake_for(listener, epoll::EventFlags::empty());
        self.resting.push(listener);
        self.rest_until = self.now + REST;
        self.counters.put_off(with_cure(why, ""));
    }

    /// Has a listener tell of nothing but this.
    fn wake_for(&self, listener: KernelId, flags: epoll::EventFlags) {
        if let Some(Socket { fd, .. }) = self.there(listener) {
            let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(listener.data()), flags);
        }
    }

    /// When listeners are looked at again that were left alone.
    fn next_deadline(&self) -> Option<Timestamp> {
        (!self.resting.is_empty()).then_some(self.rest_until)
    }

    /// The socket, if it may move more in this turn. Otherwise the service is told to go on in the next. What came before the
    /// connection broke can still be read.
    fn going_on(&mut self, id: KernelId, sends: bool) -> Option<&mut Socket> {
        let number = self.turn;
        let socket = self.socket(id).filter(|socket| !(sends && socket.told_closed))?;
        if socket.turn.number != number {
            socket.turn = InTurn { number, ..InTurn::default() };
        }
        let InTurn { bytes, reads_on, sends_on, .. } = &mut socket.turn;
        if *bytes >= TURN {
            let (told, later) =
                if sends { (sends_on, Happened::Writable(id)) } else { (reads_on, Happened::Readable(id)) };
            if !std::mem::replace(told, true) {
                self.happened.push_back(later);
            }
            return None;
        }
        self.socket(id)
    }

    /// The peer sends no more.
    fn at_end(&mut self, id: KernelId) {
        let Some(socket) = self.socket(id).filter(|socket| !socket.told_closed) else { return };
        if !std::mem::replace(&mut socket.told_end, true) {
            self.happened.push_back(Happened::PeerClosed(id));
        }
        self.look_whether_over(id);
    }

    /// Both have said all, and each has it from the other: then the socket has no peer any more.
    fn look_whether_over(&mut self, id: KernelId) {
        let both = |socket: &&mut Socket| socket.told_end && socket.shut && !socket.told_closed;
        let Some(socket) = self.socket(id).filter(both) else { return };
        if getpeername(&socket.fd).err() != Some(Errno::NOTCONN) {
            return;
        }
        let (error, sent) = (sockopt::socket_error(&socket.fd), socket.sent);
        // The peer may know nothing of it any more when our FIN comes: that says nothing to us who have said all and heard all
        // (RFC 9293, 3.10.7.4, RST in LAST-ACK), if all of it had arrived.
        let over = |why| why == Errno::CONNRESET && self.acknowledged(id) == Some(sent);
        match error {
            Ok(Err(why)) if !over(why) => self.broken(id, why),
            _ => {
                if let Some(socket) = self.socket(id) {
                    socket.told_closed = true;
                }
                self.happened.push_back(Happened::Closed(id, Ended::InOrder));
            }
        }
    }

    /// It has ended out of order.
    fn broken(&mut self, id: KernelId, why: Errno) {
        let Some(socket) = self.socket(id) else { return };
        if !std::mem::replace(&mut socket.told_closed, true) {
            self.happened.push_back(Happened::Closed(id, ended_by(why)));
        }
    }

    /// Lets peers connect to a port, by the listener of this number of `count`.
    fn listen(&mut self, port: u16, number: usize, count: usize) -> Result<(), String> {
        let any = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
        let opened = || -> io::Result<OwnedFd> {
            // Both families by one socket, or IPv4 alone where the kernel has no IPv6.
            let (fd, address) = match stream(&any) {
                Ok(fd) => {
                    sockopt::set_ipv6_v6only(&fd, false)?;
                    (fd, any)
                }
                Err(_) => {
                    let any = SocketAddr::from(([0, 0, 0, 0], port));
                    (stream(&any)?, any)
                }
            };
            sockopt::set_socket_reuseaddr(&fd, true)?;
            self.options.apply(&fd)?;
            // Each worker has a listener of its own, and the kernel deals out connections. The first one binds without that, or
            // any other process of this user that listens there would share them (socket(7)).
            if number == 0 {
                bind(&fd, &address)?;
            }
            sockopt::set_socket_reuseport(&fd, count > 1)?;
            if number > 0 {
                bind(&fd, &address)?;
            }
            listen(&fd, BACKLOG)?;
            Ok(fd)
        };
        let added = opened().and_then(|fd| self.add(fd, Kind::Listener));
        // The kernel may be told otherwise: net.ipv4.ip_unprivileged_port_start.
        let reserved = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        added.map(drop).map_err(|error| match reserved(&error) {
            true => format!(
                "port {port}: {error}: low ports are for root (CAP_NET_BIND_SERVICE); choose one from 1024 on (--listen)"
            ),
            false => format!("port {port}: {error}"),
        })
    }
}

/// What an error of a socket says of its connection.
fn ended_by(why: Errno) -> Ended {
    match why {
        Errno::CONNREFUSED => Ended::Refused,
        Errno::TIMEDOUT => Ended::TimedOut,
        // What a router or firewall on the way has said: EACCES and EPERM are "prohibited".
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::ACCESS | Errno::PERM => {
            Ended::Unreachable
        }
        _ => Ended::Reset,
    }
}

/// An error, and what to do where that is known, `or` something else.
fn with_cure(error: &io::Error, or: &str) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => format!("{error}: raise the limit (ulimit -n){or}"),
        _ => error.to_string(),
    }
}

fn stream(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
}

impl Sockets for KernelSockets {
    type Id = KernelId;

    fn now(&self) -> Timestamp {
        self.now
    }

    fn connect(&mut self, to: SocketAddr) -> Result<KernelId, String> {
        let opened = || -> io::Result<(OwnedFd, Option<Errno>)> {
            let fd = stream(&to)?;
            sockopt::set_tcp_nodelay(&fd, true)?;
            self.options.apply(&fd)?;
            match connect(&fd, &to) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok((fd, None)),
                // What the kernel knows at once of the way there is no other matter than what it hears later.
                Err(errno) if ended_by(errno) != Ended::Reset => Ok((fd, Some(errno))),
                Err(errno) => Err(errno.into()),
            }
        };
        let added = opened().and_then(|(fd, failed)| Ok((self.add(fd, Kind::Connecting)?, failed)));
        let (id, failed) = added
            .map_err(|error| format!("{to}: {}", with_cure(&error, ", or ask for fewer connections")))?;
        if let Some(errno) = failed {
            self.broken(id, errno);
        }
        Ok(id)
    }

    fn send(&mut self, id: KernelId, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len()
            && let Some(socket) = self.going_on(id, true)
        {
            match send(&socket.fd, &bytes[sent..], SendFlags::NOSIGNAL) {
                Ok(n) => {
                    (sent, socket.turn.bytes) = (sent + n, socket.turn.bytes + n);
                    socket.sent += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    socket.full = true;
                    break;
                }
                Err(why) => {
                    self.broken(id, why);
                    break;
                }
            }
        }
        sent
    }

    fn read(&mut self, id: KernelId, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut read = 0;
        while let Some(socket) = self.going_on(id, false) {
            if !socket.rest.is_empty() {
                let taken = take(&socket.rest).min(socket.rest.len());
                socket.rest.drain(..taken);
                read += taken;
                if !socket.rest.is_empty() {
                    break;
                }
            }
            match recv(&socket.fd, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => {
                    self.at_end(id);
                    break;
                }
                Ok((n, _)) => {
                    let taken = take(&buffer[..n]).min(n);
                    (read, socket.turn.bytes) = (read + taken, socket.turn.bytes + n);
                    if taken < n {
                        socket.rest.extend_from_slice(&buffer[taken..n]);
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(why) => {
                    self.broken(id, why);
                    break;
                }
            }
        }
        self.buffer = buffer;
        read
    }

    fn is_at_end(&self, id: KernelId) -> bool {
        self.there(id).is_some_and(|socket| socket.told_end || socket.told_closed)
    }

    fn acknowledged(&self, id: KernelId) -> Option<u64> {
        let socket = self.there(id)?;
        // A FIN counts as a byte, and is the last.
        let waiting = u64::from(unacknowledged(&socket.fd).ok()?).saturating_sub(u64::from(socket.shut));
        socket.sent.checked_sub(waiting)
    }

    fn shutdown(&mut self, id: KernelId) {
        if let Some(socket) = self.socket(id) {
            socket.shut = true;
            let _ = shutdown(&socket.fd, Shutdown::Write);
        }
    }

    fn close(&mut self, id: KernelId) {
        drop(self.remove(id));
    }

    fn abort(&mut self, id: KernelId) {
        if let Some(socket) = self.remove(id) {
            let _ = sockopt::set_socket_linger(&socket.fd, Some(Duration::ZERO));
        }
    }

    fn waker(&self) -> Box<dyn Fn() + Send> {
        let bell = self.bell.clone();
        // It only fails when the counter is full: then it wakes already.
        Box::new(move || {
            let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
        })
    }
}

/// A service on the kernel's sockets, as the task of a worker.
#[derive(Debug)]
pub struct OnKernel<T> {
    service: T,
    sockets: KernelSockets,
    happened: Vec<Happened<KernelId>>,
    failure: Option<String>,
    stop: Stop,
}

impl<T: Service<KernelId>> OnKernel<T> {
    /// The service, to be started. If it fails it sets `stop`.
    pub fn new(service: T, sockets: KernelSockets, stop: Stop) -> Self {
        Self { service, sockets, happened: Vec::new(), failure: None, stop }
    }

    /// Starts the service, of this number among `count` that share its port, from 0 on: its listeners are open then.
    ///
    /// # Errors
    /// Why it cannot do its work.
    pub fn begin(&mut self, number: usize, count: usize) -> Result<(), String> {
        if let Some(port) = self.service.listens() {
            self.sockets.listen(port, number, count)?;
        }
        self.service.start(&mut self.sockets)
    }

    /// Why it ended before its time.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

impl<T: Service<KernelId>> Task for OnKernel<T> {
    fn turn(&mut self) -> Turn {
        self.sockets.now = self.sockets.clock();
        self.sockets.turn += 1;
        if let Err(error) = self.sockets.look() {
            self.failure = Some(format!("epoll: {error}"));
            self.stop.set();
            return Turn::Done;
        }
        self.happened.clear();
        self.happened.extend(self.sockets.happened.drain(..));
        let due = self.service.next_deadline().is_some_and(|at| at <= self.sockets.now);
        if due || !self.happened.is_empty() {
            self.service.turn(&self.happened, &mut self.sockets);
        }
        match (self.service.is_done(), due || !self.happened.is_empty()) {
            (true, _) => Turn::Done,
            (false, true) => Turn::Busy,
            (false, false) => Turn::Idle,
        }
    }

    fn arm(&mut self) -> bool {
        self.sockets.happened.is_empty()
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.sockets.epoll.as_fd());
    }

    fn next_deadline(&self, _: u64) -> Option<u64> {
        let next = self.service.next_deadline().into_iter().chain(self.sockets.next_deadline()).min();
        next.map(|at| self.sockets.begun.saturating_add(at.as_nanos()))
    }

    fn finish(&mut self) {
        self.service.end(self.sockets.clock());
    }
}

#[cfg(test)]
mod tests;
