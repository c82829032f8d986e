//! `connect` and its opposite, as Linux's `__inet_stream_connect` and `tcp_disconnect` have them.

use std::net::{IpAddr, SocketAddr};

use bywash_stack::{ConnectionId, FastOpenClient};

use crate::errno::{AGAIN, Errno, Result};
use crate::machine::{Link, Machine};
use crate::sockets::{Kind, plain};

impl Machine {
    /// Begins a connection, or finishes one that was begun before. `EINPROGRESS` and `EALREADY` mean that the handshake is under way:
    /// who waits goes on with [`Machine::connecting`].
    pub(crate) fn connect(&mut self, fd: i32, to: SocketAddr) -> Result<()> {
        let socket = self.sockets.get(fd)?;
        match socket.kind {
            Kind::Fresh if socket.deferred.is_some() => Err(Errno(libc::EISCONN)),
            Kind::Fresh if socket.options.fast_open_connect => self.connect_later(fd, to),
            Kind::Fresh => {
                self.begin(fd, to, None)?;
                Err(Errno(libc::EINPROGRESS))
            }
            Kind::Stream(_) if socket.connected => Err(Errno(libc::EISCONN)),
            Kind::Stream(id) => match self.connecting(fd, id) {
                Err(AGAIN) => Err(Errno(libc::EALREADY)),
                result => result,
            },
            Kind::Listener { .. } => Err(Errno(libc::EISCONN)),
            Kind::Udp(id) => {
                socket.reaches(to)?;
                let peer = plain(to).map(|address| (address, to.port()));
                self.host.stack.udp_connect(id, peer)?;
                self.sockets.get_mut(fd)?.connected = peer.is_some();
                Ok(())
            }
            _ => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// The connection that a socket is about to have, for who waits for it.
    pub(crate) fn connection(&self, fd: i32) -> Option<ConnectionId> {
        match self.sockets.get(fd).ok()?.kind {
            Kind::Stream(id) => Some(id),
            _ => None,
        }
    }

    /// Begins a connection, perhaps with Fast Open, and says how many bytes its SYN has.
    pub(crate) fn begin(
        &mut self,
        fd: i32,
        to: SocketAddr,
        first: Option<FastOpenClient<'_>>,
    ) -> Result<(ConnectionId, usize)> {
        let socket = self.sockets.get_mut(fd)?;
        socket.takes(to)?;
        let remote = (plain(to).unwrap_or(IpAddr::from([127, 0, 0, 1]).into()), to.port());
        let (local, limits) = (socket.local.unwrap_or((None, 0)), socket.limits(!remote.0.is_v4()));
        let (now, stack, pool) = (self.now, &mut self.host.stack, &mut self.pool);
        let (id, data) = match first {
            Some(first) => stack.connect_fast(now, local, remote, (limits, first), |_| true, pool)?,
            None => (stack.connect_with(now, local, remote, limits, pool)?, 0),
        };
        socket.deferred = None;
        let flow = self.host.stack.flow(id)?;
        socket.local = Some((Some(flow.local), flow.local_port));
        (socket.kind, socket.error) = (Kind::Stream(id), None);
        let (nodelay, cork) = (socket.options.nodelay, socket.options.cork);
        self.links.insert(id, Link { written: data as u64, ..Link::default() });
        self.host.stack.set_nodelay(self.now, id, nodelay, &mut self.pool)?;
        self.host.stack.set_cork(self.now, id, cork, &mut self.pool)?;
        Ok((id, data))
    }

    /// How far the handshake is: `EAGAIN` while it is under way. Only the first who asks hears that it is over; where it has
    /// failed, the socket can be used again.
    pub(crate) fn connecting(&mut self, fd: i32, id: ConnectionId) -> Result<()> {
        let socket = self.sockets.get_mut(fd)?;
        if !matches!(socket.kind, Kind::Stream(other) if other == id) {
            // Another thread has disconnected it.
            return Err(Errno(libc::EPIPE));
        }
        let link = self.links.entry(id).or_default();
        if link.closed {
            let error = link.error.take().unwrap_or(Errno(libc::ECONNABORTED));
            self.disconnect(fd)?;
            return Err(error);
        }
        if !link.connected {
            return Err(AGAIN);
        }
        socket.connected = true;
        Ok(())
    }

    /// `connect` to `AF_UNSPEC`: whatever a socket is, it is nothing afterwards, but for the port it was bound to.
    pub(crate) fn disconnect(&mut self, fd: i32) -> Result<()> {
        let socket = self.sockets.get_mut(fd)?;
        let (stack, pool, now) = (&mut self.host.stack, &mut self.pool, self.now);
        // Who waits for the socket is woken, and what happens to the next connection is news, too.
        socket.changes += 1;
        match &mut socket.kind {
            Kind::Fresh => {}
            Kind::Udp(id) => {
                stack.udp_connect(*id, None)?;
                socket.connected = false;
                return Ok(());
            }
            Kind::Stream(id) => {
                let link = self.links.remove(id);
                socket.changes += link.as_ref().map_or(0, |link| link.changes);
                if link.is_none_or(|link| link.closed) {
                    stack.close(now, *id, pool).ok();
                } else {
                    stack.abort(now, *id, pool).ok();
                    socket.error = Some(Errno(libc::ECONNRESET));
                }
            }
            Kind::Listener { .. } => {
                if let Kind::Listener { id, queue, .. } = std::mem::replace(&mut socket.kind, Kind::Fresh) {
                    self.give_up(id, queue);
                }
            }
            _ => return Err(Errno(libc::ENOTSOCK)),
        }
        let socket = self.sockets.get_mut(fd)?;
        socket.kind = Kind::Fresh;
        socket.local = socket.bound;
        (socket.connected, socket.read_shut, socket.write_shut) = (false, false, false);
        socket.deferred = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Flags;
    use crate::sockets::tests::{connected, listener};

    #[test]
    fn a_connect_that_failed_is_told_once_and_leaves_the_port_it_was_bound_to() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let fd = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        machine.bind(fd, SocketAddr::new([127, 0, 0, 1].into(), 5555)).unwrap();
        let to = SocketAddr::new([127, 0, 0, 1].into(), 8080);
        for error in [libc::ECONNREFUSED, libc::ECONNABORTED] {
            assert_eq!(machine.connect(fd, to), Err(Errno(libc::EINPROGRESS)));
            machine.run();
            if error == libc::ECONNABORTED {
                let told = machine.option(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap();
                assert_eq!(told, libc::ECONNREFUSED.to_ne_bytes());
            }
            assert_eq!(machine.connect(fd, to), Err(Errno(error)));
            assert_eq!(machine.sockets.get(fd).unwrap().local.map(|(_, port)| port), Some(5555));
        }
    }

    #[test]
    fn another_connection_of_a_socket_is_news() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let (_, to) = listener(&mut machine);
        let fd = connected(&mut machine, to);
        let epoll = machine.epoll_create().unwrap();
        let events = (libc::EPOLLOUT | libc::EPOLLET).cast_unsigned();
        machine.epoll_control(epoll, libc::EPOLL_CTL_ADD, fd, (events, 0)).unwrap();
        let told = Ok(vec![(libc::EPOLLOUT.cast_unsigned(), 0)]);
        assert_eq!(machine.epoll_wait(epoll, 1), told);
        machine.disconnect(fd).unwrap();
        assert_eq!(machine.connect(fd, to), Err(Errno(libc::EINPROGRESS)));
        machine.run();
        assert_eq!(machine.epoll_wait(epoll, 1), told);
    }

    #[test]
    fn a_listener_that_is_disconnected_listens_no_more_and_can_again() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let (fd, to) = listener(&mut machine);
        machine.disconnect(fd).unwrap();
        let client = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(machine.connect(client, to), Err(Errno(libc::EINPROGRESS)));
        machine.run();
        assert_eq!(machine.connect(client, to), Err(Errno(libc::ECONNREFUSED)));
        machine.listen(fd, 1).unwrap();
        connected(&mut machine, to);
        machine.accept(fd).unwrap();
    }
}
