//! Reading and writing.

use std::net::SocketAddr;

use bywash_stack::ConnectionId;

use crate::errno::{AGAIN, Errno, INVALID, Result};
use crate::machine::Machine;
use crate::reports::Control;
use crate::shared::{Patience, Shared};
use crate::sockets::Kind;

/// What a call has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// How many bytes, or how many there were.
    pub(crate) n: usize,
    /// Who sent them, where that may be anyone.
    pub(crate) source: Option<SocketAddr>,
    /// `msg_flags`
    pub(crate) flags: i32,
    pub(crate) controls: Vec<Control>,
}

impl Received {
    pub(crate) fn bytes(n: usize) -> Self {
        Self { n, source: None, flags: 0, controls: Vec::new() }
    }
}

impl Machine {
    /// Reads bytes. A stream's are taken as they come, also when the call must wait for
    /// more (`EAGAIN`): `done` counts them.
    pub(crate) fn receive(
        &mut self,
        fd: i32,
        parts: &mut [&mut [u8]],
        flags: i32,
        done: &mut usize,
    ) -> Result<Received> {
        let socket = self.sockets.get_mut(fd)?;
        if flags & libc::MSG_OOB != 0 {
            let received = self.receive_urgent(fd, parts, flags).map(Received::bytes);
            return received.map(|received| Received { flags: libc::MSG_OOB, ..received });
        }
        if flags & libc::MSG_ERRQUEUE != 0 {
            let (controls, flags) = socket.take_report().ok_or(AGAIN)?;
            return Ok(Received { n: 0, source: None, flags, controls });
        }
        match &mut socket.kind {
            Kind::Stream(id) => {
                let id = *id;
                self.receive_stream(fd, id, parts, flags, done).map(Received::bytes)
            }
            Kind::Udp(_) => self.receive_datagram(fd, parts, flags),
            Kind::Pipe(end) => {
                let end = *end;
                self.sockets.pipes.read(end, parts).map(Received::bytes)
            }
            Kind::Fresh if socket.deferred.is_some() => Err(AGAIN),
            Kind::Fresh | Kind::Listener { .. } => Err(socket.error.take().unwrap_or(Errno(libc::ENOTCONN))),
            Kind::Epoll(_) => Err(INVALID),
        }
    }

    fn receive_stream(
        &mut self,
        fd: i32,
        id: ConnectionId,
        parts: &mut [&mut [u8]],
        flags: i32,
        done: &mut usize,
    ) -> Result<usize> {
        let socket = self.sockets.get(fd)?;
        let peeks = flags & libc::MSG_PEEK != 0;
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let mut seen = if peeks { *done } else { 0 };
        let mut there = self.host.stack.readable_bytes(id).unwrap_or(0).saturating_sub(seen);
        match self.out_of_band(socket, id) {
            Some(before) if before == seen && *done > 0 => return Ok(*done),
            // Who begins to read at the urgent byte reads on behind it.
            Some(before) if before == seen && there.min(wanted) > 0 => {
                there -= 1;
                if peeks {
                    seen += 1;
                } else {
                    self.host.stack.consume(self.now, id, 1, &mut self.pool)?;
                }
            }
            Some(before) if before > seen => there = there.min(before - seen),
            _ => {}
        }
        let stack = &mut self.host.stack;
        let n = there.min(wanted - *done);
        if n > 0 {
            // With MSG_TRUNC the bytes are not wanted, only gone.
            if flags & libc::MSG_TRUNC == 0 || peeks {
                scatter(stack.readable(id)?.flatten().skip(seen), parts, *done);
            }
            if !peeks {
                stack.consume(self.now, id, n, &mut self.pool)?;
            }
            *done += n;
        }
        let least =
            if flags & libc::MSG_WAITALL != 0 { wanted } else { socket.options.low_water.min(wanted) };
        let at_urgent = self.out_of_band(socket, id) == Some(if peeks { *done } else { 0 });
        let link = self.links.entry(id).or_default();
        let ended = link.peer_closed || link.closed || socket.read_shut || (at_urgent && *done > 0);
        if *done > 0 {
            // An error comes with the next call.
            return if *done >= least || ended { Ok(*done) } else { Err(AGAIN) };
        }
        if let Some(error) = link.error.take() {
            return Err(error);
        }
        if ended || wanted == 0 { Ok(0) } else { Err(AGAIN) }
    }

    /// Sends bytes, as many as there is room for.
    pub(crate) fn send(
        &mut self,
        fd: i32,
        bytes: &[u8],
        flags: i32,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        let socket = self.sockets.get_mut(fd)?;
        match socket.kind {
            Kind::Stream(id) => {
                let link = self.links.entry(id).or_default();
                if let Some(error) = link.error.take() {
                    return Err(error);
                }
                if link.closed || socket.write_shut {
                    return Err(Errno(libc::EPIPE));
                }
                if !link.connected {
                    return Err(AGAIN);
                }
                // What leaves at once makes room for more.
                let mut n = 0;
                loop {
                    let (stack, pool) = (&mut self.host.stack, &mut self.pool);
                    let bytes = &bytes[n..];
                    let has = |flag: i32| flags & flag != 0;
                    let taken = if has(libc::MSG_OOB) {
                        stack.send_urgent(self.now, id, bytes, pool)
                    } else if has(libc::MSG_EOR) {
                        stack.send_record(self.now, id, bytes, pool)
                    } else if has(libc::MSG_MORE) {
                        stack.send_part(self.now, id, bytes, pool)
                    } else {
                        stack.send(self.now, id, bytes, pool)
                    };
                    match taken {
                        Ok(0) => break,
                        Ok(taken) => n += taken,
                        // What was sent has broken the connection: the next call is told why.
                        Err(_) if n > 0 => break,
                        Err(error) => return Err(error.into()),
                    }
                    self.run();
                }
                if let Some(link) = self.links.get_mut(&id) {
                    link.wants_room |= n < bytes.len();
                    link.written += n as u64;
                }
                if n == 0 && !bytes.is_empty() { Err(AGAIN) } else { Ok(n) }
            }
            // Linux looks at that only in IPv4.
            Kind::Udp(_) if flags & libc::MSG_OOB != 0 && !socket.v6 => Err(Errno(libc::EOPNOTSUPP)),
            Kind::Udp(id) => self.send_datagram(fd, id, bytes, to),
            Kind::Pipe(end) => self.sockets.pipes.write(end, bytes),
            Kind::Fresh | Kind::Listener { .. } => Err(socket.error.take().unwrap_or(Errno(libc::EPIPE))),
            Kind::Epoll(_) => Err(INVALID),
        }
    }
}

impl Shared {
    /// Sends all bytes, as far as the call may wait for room.
    pub(crate) fn send_all(
        &self,
        fd: i32,
        (bytes, flags): (&[u8], i32),
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        // One time for all pieces.
        let patience = self.with(|machine| Patience::of(fd, flags, true)(machine));
        let (mut sent, more) = self.open_by_sending(patience, fd, (bytes, flags), to)?;
        if !more {
            return Ok(sent);
        }
        loop {
            // Who waits in the midst of its bytes goes on when a socket that is polled would be writable; also one that another thread
            // has shut down.
            let mut waited = sent > 0;
            let call = |machine: &mut Machine| {
                if waited && !machine.is_writable(fd) && !machine.is_broken(fd) {
                    return Err(AGAIN);
                }
                // What was sent was sent; the error stays for the next call.
                if sent > 0 && machine.is_broken(fd) {
                    return Err(Errno(libc::EPIPE));
                }
                machine.send(fd, &bytes[sent..], flags, to).inspect_err(|_| waited = true)
            };
            match self.call(|_| patience, call) {
                Ok(n) => sent += n,
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
            }
            if sent >= bytes.len() || patience == Patience::None {
                return Ok(sent);
            }
        }
    }
}

/// Copies bytes into several places, one after the other, from the one behind `done` bytes on, and says how many there was room for.
pub(crate) fn scatter<'a>(
    bytes: impl Iterator<Item = &'a u8>,
    parts: &mut [&mut [u8]],
    done: usize,
) -> usize {
    let places = parts.iter_mut().flat_map(|part| part.iter_mut()).skip(done);
    places.zip(bytes).map(|(place, byte)| *place = *byte).count()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::poll::OUT;
    use crate::settings::Flags;
    use crate::sockets::tests::{connected, listener};

    #[test]
    fn what_was_sent_counts_where_it_broke_the_connection() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let (listener, to) = listener(&mut machine);
        let client = connected(&mut machine, to);
        let (server, _) = machine.accept(listener).unwrap();
        machine.close(server).unwrap();
        machine.run();
        assert_eq!(machine.send(client, b"abc", 0, None), Ok(3));
        assert_eq!(machine.send(client, b"abc", 0, None), Err(Errno(libc::EPIPE)));
    }

    #[test]
    fn a_write_that_waits_ends_when_its_side_is_shut_down() {
        let machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let shared = Shared::new(machine);
        let fd = shared.with(|machine| {
            let (_, to) = listener(machine);
            connected(machine, to)
        });
        let (ended, sent, room) = std::thread::scope(|scope| {
            let write = scope.spawn(|| shared.send_all(fd, (&[0; 8 << 20], 0), None));
            let wait = |until: &dyn Fn() -> bool| {
                (0..100).any(|_| {
                    shared.sleep_for(Duration::from_millis(10));
                    std::thread::sleep(Duration::from_millis(1));
                    until()
                })
            };
            let room = |machine: &mut Machine| machine.readiness(fd).unwrap() & OUT;
            assert!(wait(&|| shared.with(room) == 0), "the peer reads nothing");
            shared.with(|machine| machine.shutdown(fd, libc::SHUT_WR)).unwrap();
            let ended = wait(&|| write.is_finished());
            // If it waits, then not for ever.
            shared.sleep_for(Duration::from_secs(6 * 3600));
            (ended, write.join().unwrap(), shared.with(room))
        });
        assert!(ended && sent.is_ok_and(|n| n > 0), "{ended} {sent:?}");
        assert_ne!(room, 0);
        assert_eq!(shared.send_all(fd, (b"x", 0), None), Err(Errno(libc::EPIPE)));
    }
}
