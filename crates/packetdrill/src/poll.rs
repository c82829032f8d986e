//! What `poll` and `epoll` say of a socket.

use std::collections::BTreeMap;

use bywash_stack::State;

use crate::errno::{AGAIN, Errno, INVALID, Result};
use crate::machine::Machine;
use crate::sockets::{Kind, Socket};

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM).cast_unsigned();
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM).cast_unsigned();
const ERROR: u32 = libc::EPOLLERR.cast_unsigned();
const HANG_UP: u32 = libc::EPOLLHUP.cast_unsigned();
const READ_HANG_UP: u32 = libc::EPOLLRDHUP.cast_unsigned();
const ONCE: u32 = libc::EPOLLONESHOT.cast_unsigned();
const EDGE: u32 = libc::EPOLLET.cast_unsigned();

/// One file number in an epoll.
#[derive(Debug)]
struct Interest {
    events: u32,
    data: u64,
    /// What was told last, for edges.
    told: Option<(u32, u64)>,
}

/// The file numbers that an epoll watches.
#[derive(Debug, Default)]
pub(crate) struct Epoll(BTreeMap<i32, Interest>);

impl Epoll {
    pub(crate) fn forget(&mut self, fd: i32) {
        self.0.remove(&fd);
    }

    fn control(&mut self, operation: i32, fd: i32, events: u32, data: u64) -> Result<()> {
        let there = self.0.contains_key(&fd);
        match operation {
            libc::EPOLL_CTL_ADD if there => return Err(Errno(libc::EEXIST)),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !there => return Err(Errno(libc::ENOENT)),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                self.0.insert(fd, Interest { events, data, told: None });
            }
            libc::EPOLL_CTL_DEL => self.forget(fd),
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
            Kind::Fresh => OUT | HANG_UP,
            Kind::Listener { .. } => match self.acceptable(fd)? {
                Some(_) => IN,
                None => 0,
            },
            Kind::Stream(_) => self.stream_readiness(socket),
            // There is always room for a datagram.
            Kind::Udp(_) => OUT,
            Kind::Pipe(end) => match (end.writes(), self.sockets.pipes.fill(*end)) {
                (false, (1.., _)) => IN,
                (true, (_, 1..)) => OUT,
                _ => 0,
            },
            Kind::Epoll(epoll) => {
                let ready = |(fd, interest): (&i32, &Interest)| {
                    self.readiness(*fd).is_ok_and(|bits| bits & interest.events != 0)
                };
                if epoll.0.iter().any(ready) { IN } else { 0 }
            }
        })
    }

    fn stream_readiness(&self, socket: &Socket) -> u32 {
        let Kind::Stream(id) = socket.kind else { return 0 };
        let link = self.links.get(&id);
        let error = link.is_some_and(|link| link.error.is_some());
        let closed = link.is_none_or(|link| link.closed);
        if !closed && !link.is_some_and(|link| link.connected) {
            return if error { ERROR } else { 0 };
        }
        let state = self.host.stack.tcp_info(self.now, id).map_or(State::Closed, |info| info.state);
        let read_shut = closed || socket.read_shut || link.is_some_and(|link| link.peer_closed);
        let write_shut = closed || socket.write_shut;
        let mut bits = 0;
        if self.host.stack.readable_bytes(id).unwrap_or(0) >= socket.options.low_water || read_shut {
            bits |= IN;
        }
        if write_shut || self.host.stack.send_room(id).unwrap_or(0) > 0 {
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

    /// A number that grows when something new happens that an edge is made of.
    fn activity(&self, fd: i32) -> u64 {
        let Ok(socket) = self.sockets.get(fd) else { return 0 };
        match &socket.kind {
            Kind::Stream(id) => {
                let received = self.host.stack.tcp_info(self.now, *id).map_or(0, |info| info.bytes_received);
                let link = self.links.get(id);
                received
                    + link.map_or(0, |link| link.edges + u64::from(link.peer_closed) + u64::from(link.closed))
            }
            Kind::Listener { queue, .. } => queue.len() as u64,
            _ => 0,
        }
    }

    /// `poll`: the bits that hold of each, and how many have any. `EAGAIN` when none has.
    pub(crate) fn poll(&self, wanted: &[(i32, i16)]) -> Result<(usize, Vec<i16>)> {
        let bits = wanted.iter().map(|(fd, events)| {
            if *fd < 0 {
                return 0;
            }
            let always = ERROR | HANG_UP;
            let Ok(ready) = self.readiness(*fd) else { return libc::POLLNVAL };
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
        self.sockets.get(fd)?;
        let Kind::Epoll(watched) = &mut self.sockets.get_mut(epoll)?.kind else { return Err(INVALID) };
        if epoll == fd {
            return Err(INVALID);
        }
        watched.control(operation, fd, events, data)
    }

    /// What has happened, at most `most` of it; `EAGAIN` when nothing has.
    pub(crate) fn epoll_wait(&mut self, epoll: i32, most: usize) -> Result<Vec<(u32, u64)>> {
        let Kind::Epoll(watched) = &self.sockets.get(epoll)?.kind else { return Err(INVALID) };
        let mut found = Vec::new();
        for (fd, interest) in &watched.0 {
            let Ok(ready) = self.readiness(*fd) else { continue };
            let bits = ready & (interest.events | ERROR | HANG_UP);
            let now = (bits, self.activity(*fd));
            let news = interest.events & EDGE == 0 || interest.told != Some(now);
            // A one-shot that has been told has no events any more.
            if bits != 0 && news && interest.events & !(EDGE | ONCE) != 0 && found.len() < most {
                found.push((*fd, now, interest.data));
            }
        }
        let Kind::Epoll(watched) = &mut self.sockets.get_mut(epoll)?.kind else { return Err(INVALID) };
        for (fd, now, _) in &found {
            if let Some(interest) = watched.0.get_mut(fd) {
                interest.told = Some(*now);
                if interest.events & ONCE != 0 {
                    interest.events &= EDGE | ONCE;
                }
            }
        }
        if found.is_empty() {
            return Err(AGAIN);
        }
        Ok(found.into_iter().map(|(_, (bits, _), data)| (bits, data)).collect())
    }
}
