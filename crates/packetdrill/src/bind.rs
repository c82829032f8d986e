//! `bind` and `listen`: whose a port is.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use bywash_stack::{Address, ConnectionId, ListenerId, TcpError};

use crate::errno::{Errno, INVALID, Result};
use crate::fast_open;
use crate::machine::Machine;
use crate::sockets::{Kind, Socket, plain};

/// Ports for who listens without having asked for one.
const EPHEMERAL: RangeInclusive<u16> = 40_000..=60_999;

/// Addresses that a socket of TCP is bound to.
#[derive(Clone, Copy)]
struct Place {
    /// `None`: all of a family, or of both.
    address: Option<Address>,
    v4: bool,
    v6: bool,
}

impl Place {
    fn of(socket: &Socket, address: Option<Address>) -> Self {
        let only_v6 = socket.is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
        match address {
            Some(one) => Self { address, v4: one.is_v4(), v6: !one.is_v4() },
            None => Self { address, v4: !(socket.v6 && only_v6), v6: socket.v6 },
        }
    }

    /// The same as the stack has it: the unspecified address for all of a family.
    fn local(self) -> Option<Address> {
        let all_of_one = || match (self.v4, self.v6) {
            (true, false) => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into()),
            (false, true) => Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED).into()),
            _ => None,
        };
        self.address.or_else(all_of_one)
    }

    fn overlaps(self, other: Self) -> bool {
        let different = self.address.zip(other.address).is_some_and(|(one, other)| one != other);
        !different && ((self.v4 && other.v4) || (self.v6 && other.v6))
    }
}

impl Machine {
    /// Whether another socket of TCP has a port, and does not share it (Linux's `inet_bind_conflict`).
    fn is_taken(&self, fd: i32, address: Option<Address>, port: u16) -> Result<bool> {
        let socket = self.sockets.get(fd)?;
        let place = Place::of(socket, address);
        let both = |other: &Socket, name| {
            socket.is_on(libc::SOL_SOCKET, name) && other.is_on(libc::SOL_SOCKET, name)
        };
        Ok(self.sockets.others(fd).any(|other| {
            let Some((address, their_port)) = other.local else { return false };
            let shared = match other.kind {
                // A connection that has ended gives a port back that nobody bound it to.
                Kind::Stream(id) if other.bound.is_none() && self.has_ended(id) => true,
                Kind::Fresh | Kind::Stream(_) => {
                    both(other, libc::SO_REUSEADDR) || both(other, libc::SO_REUSEPORT)
                }
                Kind::Listener { .. } => both(other, libc::SO_REUSEPORT),
                _ => true,
            };
            port != 0 && port == their_port && !shared && place.overlaps(Place::of(other, address))
        }))
    }

    pub(crate) fn bind(&mut self, fd: i32, to: SocketAddr) -> Result<()> {
        let fits = self.sockets.get(fd)?.takes(to);
        fits.map_err(|error| if error.0 == libc::ENETUNREACH { INVALID } else { error })?;
        let address = plain(to);
        if let Some(address) = address {
            self.own(address);
            let ours = self.host.control.addresses().any(|(prefix, ..)| prefix.address() == address);
            if !ours && !address.is_loopback() {
                return Err(Errno(libc::EADDRNOTAVAIL));
            }
        }
        let taken = self.is_taken(fd, address, to.port())?;
        let socket = self.sockets.get_mut(fd)?;
        let local = Place::of(socket, address).local();
        match &mut socket.kind {
            Kind::Fresh if socket.local.is_none() && taken => return Err(Errno(libc::EADDRINUSE)),
            Kind::Fresh if socket.local.is_none() => {}
            Kind::Udp(id) if socket.bound.is_none() && !socket.connected => {
                let new = self.host.stack.udp_bind(local, to.port())?;
                let old = std::mem::replace(id, new);
                self.host.stack.udp_close(old, &mut self.pool);
            }
            _ => return Err(INVALID),
        }
        socket.local = Some((address, to.port()));
        socket.bound = socket.local;
        Ok(())
    }

    pub(crate) fn listen(&mut self, fd: i32, backlog: i32) -> Result<()> {
        // Both of handshakes under way and of connections that wait for `accept` Linux takes one more than it is asked for.
        let most = usize::try_from(backlog).unwrap_or(4096);
        let socket = self.sockets.get_mut(fd)?;
        match &mut socket.kind {
            Kind::Fresh => {}
            Kind::Listener { id, backlog, .. } => {
                *backlog = most;
                let id = *id;
                self.host.stack.set_listener_full(id, self.sockets.is_full(id));
                return Ok(());
            }
            Kind::Stream(_) => return Err(INVALID),
            Kind::Udp(_) => return Err(Errno(libc::EOPNOTSUPP)),
            _ => return Err(Errno(libc::ENOTSOCK)),
        }
        let (address, port) = socket.local.unwrap_or((None, 0));
        let local = Place::of(socket, address).local();
        let shared = self.shared_listener(fd)?;
        let mut ports = if port == 0 { EPHEMERAL } else { port..=port };
        let (port, id) = loop {
            let port = ports.next().ok_or(Errno(libc::EADDRINUSE))?;
            match self.host.stack.listen(local, port, most.saturating_add(1)) {
                Ok(id) => break (port, id),
                Err(TcpError::Taken) if let Some(id) = shared => break (port, id),
                Err(TcpError::Taken) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let socket = self.sockets.get_mut(fd)?;
        self.host.stack.set_listener_limits(id, socket.bound_limits());
        let bits = self.flags.fast_open();
        if bits & (fast_open::SERVER | fast_open::UNASKED) == fast_open::SERVER | fast_open::UNASKED
            && socket.options.fast_open.pending == 0
        {
            socket.options.fast_open.pending = most;
        }
        socket.local = Some((address, port));
        socket.kind = Kind::Listener { id, queue: VecDeque::new(), backlog: most, taken: 0 };
        self.host.stack.set_listener_full(id, self.sockets.is_full(id));
        self.take_fast_open(fd)
    }

    /// What listens already where a socket is to, and lets others do so, too: both have `SO_REUSEPORT`.
    fn shared_listener(&self, fd: i32) -> Result<Option<ListenerId>> {
        let socket = self.sockets.get(fd)?;
        let shares = |socket: &Socket| socket.is_on(libc::SOL_SOCKET, libc::SO_REUSEPORT);
        Ok(self.sockets.others(fd).find_map(|other| match other.kind {
            Kind::Listener { id, .. } => {
                let same = (other.local, other.v6) == (socket.local, socket.v6);
                (same && shares(socket) && shares(other)).then_some(id)
            }
            _ => None,
        }))
    }

    /// A socket listens no more; those in its queue are reset. The others that share its port still do.
    pub(crate) fn give_up(&mut self, id: ListenerId, queue: VecDeque<ConnectionId>) {
        if self.sockets.has(id) {
            self.host.stack.set_listener_full(id, self.sockets.is_full(id));
        } else {
            self.host.stack.unlisten(id);
        }
        for child in queue {
            // Nobody will ever read what they sent.
            self.host.stack.abort(self.now, child, &mut self.pool).ok();
            self.links.remove(&child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Flags;
    use crate::sockets::tests::connected;

    const NONE: &[i32] = &[];
    const ADDRESS: &[i32] = &[libc::SO_REUSEADDR];
    const PORT: &[i32] = &[libc::SO_REUSEPORT];

    #[test]
    fn listeners_that_share_a_port_share_its_connections() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let to: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        let listening = |machine: &mut Machine, options: &[i32]| {
            let fd = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
            for name in options {
                machine.set_option(fd, libc::SOL_SOCKET, *name, &1i32.to_ne_bytes()).unwrap();
            }
            machine.bind(fd, to).and_then(|()| machine.listen(fd, 0)).map(|()| fd)
        };
        let [one, other] = [0, 1].map(|_| listening(&mut machine, PORT).unwrap());
        assert_eq!(listening(&mut machine, NONE), Err(Errno(libc::EADDRINUSE)));
        // One of them has one, and the next is for the other.
        for _ in 0..2 {
            connected(&mut machine, to);
        }
        let client = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(machine.connect(client, to), Err(Errno(libc::EINPROGRESS)));
        machine.run();
        assert_eq!(machine.connect(client, to), Err(Errno(libc::EALREADY)), "both are full");
        for fd in [one, other] {
            machine.accept(fd).unwrap();
            assert_eq!(machine.accept(fd), Err(crate::errno::AGAIN));
        }
        machine.close(one).unwrap();
        machine.advance_to(machine.now + std::time::Duration::from_secs(3));
        assert_eq!(machine.connect(client, to), Ok(()));
        machine.accept(other).unwrap();
        machine.close(other).unwrap();
        let late = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(machine.connect(late, to), Err(Errno(libc::EINPROGRESS)));
        machine.run();
        assert_eq!(machine.connect(late, to), Err(Errno(libc::ECONNREFUSED)));
    }

    #[test]
    fn an_address_is_of_the_socket_s_family() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let (v4, v6, mapped) = ("127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80");
        let (family, unreachable) = (libc::EAFNOSUPPORT, libc::ENETUNREACH);
        for (domain, only_v6, to, bind, connect, udp_connect) in [
            (libc::AF_INET, false, v6, family, family, family),
            (libc::AF_INET, false, mapped, family, family, family),
            (libc::AF_INET6, false, v4, libc::EINVAL, libc::EINVAL, 0),
            (libc::AF_INET6, false, mapped, 0, libc::EINPROGRESS, 0),
            (libc::AF_INET6, true, mapped, libc::EINVAL, unreachable, unreachable),
        ] {
            let to: SocketAddr = to.parse().unwrap();
            let mut socket = |kind| {
                let fd = machine.socket(domain, kind, 0).unwrap();
                if only_v6 {
                    let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
                    machine.set_option(fd, level, name, &1i32.to_ne_bytes()).unwrap();
                }
                fd
            };
            let [bound, stream] = [0; 2].map(|_| socket(libc::SOCK_STREAM));
            let datagrams = socket(libc::SOCK_DGRAM);
            let told = [machine.bind(bound, to), machine.connect(stream, to), machine.connect(datagrams, to)];
            let told = told.map(|result| result.err().map_or(0, |error| error.0));
            assert_eq!(told, [bind, connect, udp_connect], "{domain} {to}");
        }
    }

    #[test]
    fn a_port_belongs_to_one_socket_unless_both_share_it() {
        let (any, one, other) = ("0.0.0.0:80", "127.0.0.1:80", "127.0.0.2:80");
        for (first, options, listens, second, their_options, taken) in [
            (any, NONE, false, any, NONE, true),
            (any, NONE, false, "0.0.0.0:81", NONE, false),
            (any, NONE, false, one, ADDRESS, true),
            (one, NONE, false, other, NONE, false),
            (one, ADDRESS, false, one, ADDRESS, false),
            (one, ADDRESS, true, any, ADDRESS, true),
            (any, PORT, true, any, PORT, false),
            ("[::]:80", NONE, false, one, NONE, true),
            ("[::]:80", &[libc::IPV6_V6ONLY], true, any, NONE, false),
        ] {
            let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
            let mut bind = |to: &str, options: &[i32], listens: bool| {
                let to: SocketAddr = to.parse().unwrap();
                let domain = if to.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
                let fd = machine.socket(domain, libc::SOCK_STREAM, 0).unwrap();
                for name in options {
                    let level =
                        if *name == libc::IPV6_V6ONLY { libc::IPPROTO_IPV6 } else { libc::SOL_SOCKET };
                    machine.set_option(fd, level, *name, &1i32.to_ne_bytes()).unwrap();
                }
                machine.bind(fd, to)?;
                if listens { machine.listen(fd, 1) } else { Ok(()) }
            };
            bind(first, options, listens).unwrap();
            let expected = if taken { Err(Errno(libc::EADDRINUSE)) } else { Ok(()) };
            assert_eq!(bind(second, their_options, listens), expected, "{first} {second} {their_options:?}");
        }
    }
}
