//! What `poll` and `epoll` say of a socket.

use bywash_stack::State;

use crate::errno::{AGAIN, Errno, INVALID, Result};
use crate::machine::Machine;
use crate::sockets::{Kind, Socket};

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM).cast_unsigned();
pub(crate) const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM).cast_unsigned();
const URGENT: u32 = libc::EPOLLPRI.cast_unsigned();
const ERROR: u32 = libc::EPOLLERR.cast_unsigned();
const HANG_UP: u32 = libc::EPOLLHUP.cast_unsigned();
const READ_HANG_UP: u32 = libc::EPOLLRDHUP.cast_unsigned();
const ONCE: u32 = libc::EPOLLONESHOT.cast_unsigned();
const EDGE: u32 = libc::EPOLLET.cast_unsigned();

/// Events that something that can be read wakes a sleeper for (`sock_def_readable`).
const INPUT: u32 = IN | URGENT | libc::EPOLLRDBAND.cast_unsigned();
/// How many epolls may watch one another in a row, less one (Linux's `EP_MAX_NESTS`).
const NESTS: usize = 4;
/// Bits that say how to tell, and not what.
const MANNERS: u32 = EDGE | ONCE | (libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE).cast_unsigned();

/// How often something happened to a file number that wakes who waits for it: what edges are made of. What can be read says
/// nothing to who wants to write, but a new state, an end or an error wakes everyone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Activity {
    input: u64,
    output: u64,
    state: u64,
}

/// One file number in an epoll.
#[derive(Debug)]
struct Interest {
    events: u32,
    data: u64,
    /// It is on Linux's list of those that are perhaps ready: it was when it was added, or has been woken since it was looked at.
    listed: bool,
    /// What had happened when it was looked at last.
    seen: Activity,
}

impl Interest {
    fn is_woken(&self, now: Activity) -> bool {
        now.state != self.seen.state
            || (self.events & INPUT != 0 && now.input != self.seen.input)
            || (self.events & OUT != 0 && now.output != self.seen.output)
    }
}

/// The file numbers that an epoll watches, in the order in which they are told: who was told is the last the next time.
#[derive(Debug, Default)]
pub(crate) struct Epoll(Vec<(i32, Interest)>);

impl Epoll {
    pub(crate) fn forget(&mut self, fd: i32) {
        self.0.retain(|(other, _)| *other != fd);
    }

    fn get_mut(&mut self, fd: i32) -> Option<&mut Interest> {
        self.0.iter_mut().find(|(other, _)| *other == fd).map(|(_, interest)| interest)
    }

    fn fds(&self) -> impl Iterator<Item = i32> {
        self.0.iter().map(|(fd, _)| *fd)
    }

    fn control(&mut self, operation: i32, fd: i32, interest: Interest) -> Result<()> {
        match (operation, self.get_mut(fd)) {
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno(libc::EEXIST)),
            (libc::EPOLL_CTL_ADD, None) => self.0.push((fd, interest)),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno(libc::ENOENT)),
            (libc::EPOLL_CTL_MOD, Some(old)) => *old = interest,
            (libc::EPOLL_CTL_DEL, Some(_)) => self.forget(fd),
            _ => return Err(INVALID),
        }
        Ok(())
    }
}

impl Machine {
    /// What holds of a file number, in the bits of `poll` and `epoll`; Linux's `tcp_poll`.
    pub(crate) fn readiness(&self, fd: i32) -> Result<u32> {
        let socket = self.sockets.get(fd)?;
        Ok(match &socket.kind {
            Kind::Fresh if socket.deferred.is_some() => OUT,
            Kind::Fresh => {
                let error = socket.error.is_some() || !socket.reports.is_empty();
                OUT | HANG_UP | if error { ERROR } else { 0 }
            }
            Kind::Listener { .. } => match self.acceptable(fd).next() {
                Some(_) => IN,
                None => 0,
            },
            Kind::Stream(_) => self.stream_readiness(socket),
            Kind::Udp(_) => datagram_readiness(socket),
            Kind::Pipe(end) => {
                let (bytes, room) = self.sockets.pipes.fill(*end);
                let gone = self.sockets.pipes.other_end_closed(*end);
                match end.writes() {
                    false => (if bytes > 0 { IN } else { 0 }) | if gone { HANG_UP } else { 0 },
                    true => (if room > 0 { OUT } else { 0 }) | if gone { ERROR } else { 0 },
                }
            }
            Kind::Epoll(epoll) => {
                let ready = |(fd, interest): &(i32, Interest)| {
                    self.readiness(*fd).is_ok_and(|bits| bits & interest.events != 0)
                };
                if epoll.0.iter().any(ready) { IN } else { 0 }
            }
        })
    }

    /// [`Machine::readiness`] for somebody who waits: one that finds no room to write is told when there is some.
    fn check(&mut self, fd: i32) -> Result<u32> {
        let bits = self.readiness(fd)?;
        if let Kind::Stream(id) = self.sockets.get(fd)?.kind
            && let Some(link) = self.links.get_mut(&id)
        {
            link.wants_room |= link.connected && bits & OUT == 0;
        }
        Ok(bits)
    }

    /// Whether a call that waits to write should go on; it will find out what is wrong with a socket that cannot be written.
    pub(crate) fn is_writable(&self, fd: i32) -> bool {
        let Ok(Kind::Stream(id)) = self.sockets.get(fd).map(|socket| &socket.kind) else { return true };
        self.has_ended(*id) || self.host.stack.is_writable(*id).unwrap_or(true)
    }

    /// Whether nothing more can be written to a stream.
    pub(crate) fn is_broken(&self, fd: i32) -> bool {
        let Ok(socket) = self.sockets.get(fd) else { return true };
        let Kind::Stream(id) = socket.kind else { return false };
        socket.write_shut || self.has_ended(id)
    }

    fn stream_readiness(&self, socket: &Socket) -> u32 {
        let Kind::Stream(id) = socket.kind else { return 0 };
        let link = self.links.get(&id);
        let error = link.is_some_and(|link| link.error.is_some()) || !socket.reports.is_empty();
        let closed = link.is_none_or(|link| link.closed);
        if !closed && !link.is_some_and(|link| link.connected) {
            return if error { ERROR } else { 0 };
        }
        let state = self.host.stack.tcp_info(self.now, id).map_or(State::Closed, |info| info.state);
        let read_shut = closed || socket.read_shut || link.is_some_and(|link| link.peer_closed);
        let write_shut = closed || socket.write_shut;
        let mut bits = 0;
        let at_urgent = self.out_of_band(socket, id) == Some(0);
        let least = socket.options.low_water + usize::from(at_urgent);
        if self.host.stack.readable_bytes(id).unwrap_or(0) >= least || read_shut {
            bits |= IN;
        }
        if self.urgent_byte(id).is_some() {
            bits |= URGENT;
        }
        if write_shut || self.host.stack.is_writable(id).unwrap_or(true) {
            bits |= OUT;
        }
        if error {
            bits |= ERROR;
        }
        if read_shut {
            bits |= READ_HANG_UP;
        }
        if (read_shut && write_shut) || state == State::Closed {
            bits |= HANG_UP;
        }
        bits
    }

    fn activity(&self, fd: i32) -> Activity {
        let Ok(socket) = self.sockets.get(fd) else { return Activity::default() };
        match &socket.kind {
            Kind::Stream(id) => {
                let input = self.host.stack.tcp_info(self.now, *id).map_or(0, |info| info.bytes_received);
                let link = self.links.get(id);
                let (output, changes) = link.map_or((0, 0), |link| (link.roomy, link.changes));
                Activity { input, output, state: socket.changes + changes + socket.reports.arrived }
            }
            // Those that are gone, and those that wait: it does not shrink when one is taken.
            Kind::Listener { taken, .. } => {
                Activity { input: taken + self.acceptable(fd).count() as u64, ..Activity::default() }
            }
            Kind::Pipe(end) => {
                let input = self.sockets.pipes.activity(*end);
                Activity { input, output: input, state: 0 }
            }
            Kind::Epoll(epoll) => {
                let inner = epoll.fds().map(|fd| self.activity(fd));
                let input = inner.map(|inner| inner.input + inner.output + inner.state).sum();
                Activity { input, ..Activity::default() }
            }
            Kind::Udp(_) => {
                let inbox = &socket.inbox;
                Activity { input: inbox.arrived, output: 0, state: inbox.errors }
            }
            Kind::Fresh => Activity { state: socket.changes, ..Activity::default() },
        }
    }

    /// `poll`: the bits that hold of each, and how many have any. `EAGAIN` when none has.
    pub(crate) fn poll(&mut self, wanted: &[(i32, i16)]) -> Result<(usize, Vec<i16>)> {
        let bits = wanted.iter().map(|(fd, events)| {
            if *fd < 0 {
                return 0;
            }
            let always = ERROR | HANG_UP;
            let Ok(ready) = self.check(*fd) else { return libc::POLLNVAL };
            // poll's bits are epoll's lower ones.
            let asked = u32::from(events.cast_unsigned()) | always;
            i16::try_from(ready & asked & 0x7fff).unwrap_or(0)
        });
        let bits: Vec<i16> = bits.collect();
        match bits.iter().filter(|bits| **bits != 0).count() {
            0 => Err(AGAIN),
            n => Ok((n, bits)),
        }
    }

    pub(crate) fn epoll_create(&mut self) -> Result<i32> {
        let limits = self.flags.limits();
        self.sockets.add(Socket::new(Kind::Epoll(Epoll::default()), false, limits))
    }

    pub(crate) fn epoll_control(
        &mut self,
        epoll: i32,
        operation: i32,
        fd: i32,
        (events, data): (u32, u64),
    ) -> Result<()> {
        if epoll == fd {
            return Err(INVALID);
        }
        if operation == libc::EPOLL_CTL_ADD {
            self.refuse_nests(epoll, fd)?;
        }
        let ready = self.check(fd)?;
        // Linux tells of errors and of the end who asked for nothing, too.
        let events = events | ERROR | HANG_UP;
        let interest = Interest { events, data, listed: ready & events != 0, seen: self.activity(fd) };
        let Kind::Epoll(watched) = &mut self.sockets.get_mut(epoll)?.kind else { return Err(INVALID) };
        watched.control(operation, fd, interest)
    }

    fn watched(&self, fd: i32) -> impl Iterator<Item = i32> {
        let epoll = self.sockets.get(fd).ok().and_then(|socket| match &socket.kind {
            Kind::Epoll(epoll) => Some(epoll),
            _ => None,
        });
        epoll.into_iter().flat_map(Epoll::fds)
    }

    fn watches(&self, fd: i32, other: i32) -> bool {
        self.watched(fd).any(|inner| inner == other || self.watches(inner, other))
    }

    /// How many epolls there are in a row within this file number.
    fn nests(&self, fd: i32) -> usize {
        let epoll =
            |fd: &i32| self.sockets.get(*fd).is_ok_and(|socket| matches!(socket.kind, Kind::Epoll(_)));
        self.watched(fd).filter(epoll).map(|inner| 1 + self.nests(inner)).max().unwrap_or(0)
    }

    /// How many epolls there are in a row around this one.
    fn nested(&self, epoll: i32) -> usize {
        let outer = self.sockets.numbers().filter(|fd| self.watched(*fd).any(|inner| inner == epoll));
        outer.map(|outer| 1 + self.nested(outer)).max().unwrap_or(0)
    }

    /// Refuses that an epoll would watch itself, by way of others, or that too many would be in a row (Linux's `ep_loop_check`).
    fn refuse_nests(&self, epoll: i32, fd: i32) -> Result<()> {
        if !matches!(self.sockets.get(fd)?.kind, Kind::Epoll(_)) {
            return Ok(());
        }
        if self.watches(fd, epoll) || self.nested(epoll) + 1 + self.nests(fd) > NESTS {
            return Err(Errno(libc::ELOOP));
        }
        Ok(())
    }

    /// What has happened, at most `most` of it; `EAGAIN` when nothing has. As in Linux, who asked for edges and was woken is told
    /// all that holds by now, and is then told nothing until it is woken again.
    pub(crate) fn epoll_wait(&mut self, epoll: i32, most: usize) -> Result<Vec<(u32, u64)>> {
        let Kind::Epoll(watched) = &self.sockets.get(epoll)?.kind else { return Err(INVALID) };
        let looks = watched.0.iter().map(|(fd, interest)| (*fd, interest, self.activity(*fd)));
        let looks = looks.filter(|(_, interest, now)| {
            interest.events & EDGE == 0 || interest.listed || interest.is_woken(*now)
        });
        let looks: Vec<_> = looks.map(|(fd, .., now)| (fd, now)).collect();
        let (mut found, mut told) = (Vec::new(), Vec::new());
        for (fd, now) in looks {
            if found.len() >= most {
                break;
            }
            let ready = self.check(fd)?;
            let Kind::Epoll(watched) = &mut self.sockets.get_mut(epoll)?.kind else { return Err(INVALID) };
            let Some(interest) = watched.get_mut(fd) else { continue };
            (interest.listed, interest.seen) = (false, now);
            let bits = ready & interest.events;
            if bits != 0 {
                found.push((bits, interest.data));
                told.push(fd);
                if interest.events & ONCE != 0 {
                    // It has no events any more, until it is given new ones.
                    interest.events &= MANNERS;
                }
            }
        }
        if let Kind::Epoll(watched) = &mut self.sockets.get_mut(epoll)?.kind {
            watched.0.sort_by_key(|(fd, _)| told.contains(fd));
        }
        if found.is_empty() { Err(AGAIN) } else { Ok(found) }
    }
}

/// Linux's `datagram_poll`. There is always room for a datagram.
fn datagram_readiness(socket: &Socket) -> u32 {
    let mut bits = OUT;
    if socket.error.is_some() {
        bits |= ERROR;
    }
    if socket.inbox.next().is_some() || socket.read_shut {
        bits |= IN;
    }
    if socket.read_shut {
        bits |= READ_HANG_UP;
    }
    if socket.read_shut && socket.write_shut {
        bits |= HANG_UP;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Flags;
    use crate::sockets::tests::{connected, listener};

    const WAITS: Result<Vec<(u32, u64)>> = Err(AGAIN);

    fn machine() -> Machine {
        Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap()
    }

    fn added(machine: &mut Machine, fd: i32, events: u32) -> i32 {
        let epoll = machine.epoll_create().unwrap();
        machine.epoll_control(epoll, libc::EPOLL_CTL_ADD, fd, (events, 7)).unwrap();
        epoll
    }

    #[test]
    fn each_connection_is_news_of_its_listener() {
        let mut machine = machine();
        let (fd, to) = listener(&mut machine);
        let epoll = added(&mut machine, fd, IN | EDGE);
        for _ in 0..3 {
            assert_eq!(machine.epoll_wait(epoll, 1), WAITS);
            connected(&mut machine, to);
            assert_eq!(machine.epoll_wait(epoll, 1), Ok(vec![(IN, 7)]));
            machine.accept(fd).unwrap();
        }
        assert_eq!(machine.epoll_wait(epoll, 1), WAITS);
    }

    #[test]
    fn each_write_is_news_of_a_pipe_and_its_end_is_a_hang_up() {
        let mut machine = machine();
        let (read, write) = machine.pipe().unwrap();
        let epoll = added(&mut machine, read, IN | EDGE);
        for _ in 0..2 {
            assert_eq!(machine.epoll_wait(epoll, 1), WAITS);
            machine.send(write, b"abc", 0, None).unwrap();
            assert_eq!(machine.epoll_wait(epoll, 1), Ok(vec![(IN, 7)]));
            machine.receive(read, &mut [&mut [0; 9]], 0, &mut 0).unwrap();
        }
        machine.close(write).unwrap();
        assert_eq!(machine.epoll_wait(epoll, 1), Ok(vec![(HANG_UP, 7)]));
    }

    #[test]
    fn where_there_is_room_for_few_each_has_its_turn() {
        let mut machine = machine();
        let epoll = machine.epoll_create().unwrap();
        for data in 0..3 {
            let fd = machine.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
            machine.epoll_control(epoll, libc::EPOLL_CTL_ADD, fd, (OUT, data)).unwrap();
        }
        for (most, told) in [(1, vec![0]), (2, vec![1, 2]), (2, vec![0, 1]), (9, vec![2, 0, 1])] {
            let told = told.into_iter().map(|data| (OUT, data)).collect();
            assert_eq!(machine.epoll_wait(epoll, most), Ok(told));
        }
    }

    #[test]
    fn no_epoll_watches_itself_or_too_many_in_a_row() {
        let mut machine = machine();
        let epolls = [0; 6].map(|_| machine.epoll_create().unwrap());
        let mut add = |outer: usize, inner: usize| {
            machine.epoll_control(epolls[outer], libc::EPOLL_CTL_ADD, epolls[inner], (IN, 0)).map_err(|e| e.0)
        };
        assert_eq!(add(0, 0), Err(libc::EINVAL));
        assert_eq!([add(0, 1), add(1, 2), add(3, 4)], [Ok(()); 3]);
        assert_eq!((add(1, 0), add(2, 0)), (Err(libc::ELOOP), Err(libc::ELOOP)));
        assert_eq!(add(2, 3), Ok(()), "five in a row");
        assert_eq!((add(4, 5), add(5, 0)), (Err(libc::ELOOP), Err(libc::ELOOP)));
        assert_eq!(machine.epoll_wait(epolls[0], 1), WAITS);
    }

    #[test]
    fn who_asks_for_no_events_hears_of_the_end() {
        let mut machine = machine();
        let (fd, to) = listener(&mut machine);
        let client = connected(&mut machine, to);
        let epoll = added(&mut machine, client, 0);
        assert_eq!(machine.epoll_wait(epoll, 1), WAITS);
        let (server, _) = machine.accept(fd).unwrap();
        machine.set_option(server, libc::SOL_SOCKET, libc::SO_LINGER, &[1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        machine.close(server).unwrap();
        machine.run();
        assert_eq!(machine.epoll_wait(epoll, 1), Ok(vec![(ERROR | HANG_UP, 7)]));
    }
}
