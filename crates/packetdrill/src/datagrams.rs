//! Sockets of UDP: what has come is kept here until it is read, for it can be looked at without being taken.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bywash_stack::{Address, Limits, UdpError, UdpId, UdpOptions};

use crate::errno::{AGAIN, Errno, INVALID, Result};
use crate::machine::Machine;
use crate::sockets::{Kind, Socket, plain};
use crate::transfer::{Received, scatter};

/// Bytes that are taken from the stack before they are read; what is beyond waits there.
const KEPT: usize = 65_536;

/// Datagrams that have come.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    queue: VecDeque<(Vec<u8>, (Address, u16))>,
    /// How many have come ever, and how many errors, for edges.
    pub(crate) arrived: u64,
    pub(crate) errors: u64,
}

impl Inbox {
    /// Bytes of the next datagram, if there is one.
    pub(crate) fn next(&self) -> Option<usize> {
        self.queue.front().map(|(bytes, _)| bytes.len())
    }

    fn bytes(&self) -> usize {
        self.queue.iter().map(|(bytes, _)| bytes.len()).sum()
    }
}

impl Machine {
    /// Takes from the stack what has come for sockets of UDP.
    pub(crate) fn take_datagrams(&mut self) {
        for socket in self.sockets.all_mut() {
            let Kind::Udp(id) = socket.kind else { continue };
            while socket.inbox.bytes() < KEPT {
                match self.host.stack.udp_receive(id) {
                    Ok(Some(datagram)) => {
                        let bytes = datagram.slices().flatten().copied().collect();
                        socket.inbox.queue.push_back((bytes, datagram.source));
                        socket.inbox.arrived += 1;
                        datagram.release(&mut self.pool);
                    }
                    Err(UdpError::Unreachable(why)) if !why.may_pass() || socket.hears_all() => {
                        socket.error = Some(UdpError::Unreachable(why).into());
                        socket.inbox.errors += 1;
                    }
                    Err(UdpError::Unreachable(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
            // Those of a socket without a peer, which Linux tells to who asks for all.
            while let Some((_, why)) = self.host.stack.udp_error(id) {
                if socket.hears_all() {
                    socket.error = Some(UdpError::Unreachable(why).into());
                    socket.inbox.errors += 1;
                }
            }
        }
    }

    pub(crate) fn receive_datagram(
        &mut self,
        fd: i32,
        parts: &mut [&mut [u8]],
        flags: i32,
    ) -> Result<Received> {
        let socket = self.sockets.get_mut(fd)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        let waits = !socket.nonblocking && flags & libc::MSG_DONTWAIT == 0;
        let Some((bytes, source)) = socket.inbox.queue.front() else {
            return if socket.read_shut && waits { Ok(Received::bytes(0)) } else { Err(AGAIN) };
        };
        let n = scatter(bytes.iter(), parts, 0);
        let received = Received {
            n: if flags & libc::MSG_TRUNC != 0 { bytes.len() } else { n },
            source: Some(socket.address(*source)),
            flags: if n < bytes.len() { libc::MSG_TRUNC } else { 0 },
            controls: Vec::new(),
        };
        if flags & libc::MSG_PEEK == 0 {
            socket.inbox.queue.pop_front();
        }
        Ok(received)
    }

    pub(crate) fn send_datagram(
        &mut self,
        fd: i32,
        id: UdpId,
        bytes: &[u8],
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        let socket = self.sockets.get_mut(fd)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        if socket.write_shut {
            return Err(Errno(libc::EPIPE));
        }
        to.map_or(Ok(()), |to| socket.reaches(to))?;
        let to = to.map(|to| plain(to).map(|address| (address, to.port())).ok_or(INVALID)).transpose()?;
        let v6 = to.or(self.host.stack.udp_peer(id)).is_some_and(|(address, _)| !address.is_v4());
        let Limits { traffic_class, hop_limit, .. } = socket.limits(v6);
        let options = UdpOptions { traffic_class, hop_limit, ..UdpOptions::default() };
        self.host.stack.set_udp_options(id, options)?;
        self.host.stack.udp_send(self.now, id, to, bytes, &mut self.pool)?;
        Ok(bytes.len())
    }
}

impl Socket {
    /// Whether errors that may pass are errors, too (`IP_RECVERR`).
    fn hears_all(&self) -> bool {
        self.is_on(libc::IPPROTO_IP, libc::IP_RECVERR) || self.is_on(libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Flags;

    fn pair() -> (Machine, i32, i32) {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let to: SocketAddr = "127.0.0.1:53".parse().unwrap();
        let server = machine.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        machine.bind(server, to).unwrap();
        let client = machine.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        machine.connect(client, to).unwrap();
        (machine, server, client)
    }

    fn receive(machine: &mut Machine, fd: i32, room: usize, flags: i32) -> Result<(usize, i32)> {
        let mut bytes = vec![0; room];
        let received = machine.receive(fd, &mut [&mut bytes], flags, &mut 0)?;
        Ok((received.n, received.flags))
    }

    fn is(machine: &mut Machine, fd: i32) -> i16 {
        let asked = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
        machine.poll(&[(fd, asked)]).map_or(0, |(_, bits)| bits[0])
    }

    #[test]
    fn a_datagram_is_told_looked_at_and_taken() {
        let (mut machine, server, client) = pair();
        assert_eq!(is(&mut machine, server), libc::POLLOUT);
        machine.send(client, b"one", 0, None).unwrap();
        machine.send(client, b"another", 0, None).unwrap();
        machine.run();
        assert_eq!(is(&mut machine, server), libc::POLLIN | libc::POLLOUT);
        assert_eq!(machine.ioctl(server, libc::FIONREAD, 0), Ok(Some(3)));
        for flags in [libc::MSG_PEEK, 0] {
            assert_eq!(receive(&mut machine, server, 9, flags), Ok((3, 0)));
        }
        let flags = libc::MSG_PEEK | libc::MSG_TRUNC;
        assert_eq!(receive(&mut machine, server, 4, flags), Ok((7, libc::MSG_TRUNC)));
        assert_eq!(receive(&mut machine, server, 4, 0), Ok((4, libc::MSG_TRUNC)));
        assert_eq!(receive(&mut machine, server, 4, 0), Err(AGAIN));
        assert_eq!(machine.ioctl(server, libc::FIONREAD, 0), Ok(Some(0)));
    }

    #[test]
    fn who_is_not_there_is_an_error_that_is_told_once() {
        let (mut machine, server, client) = pair();
        machine.close(server).unwrap();
        for asks in [false, true] {
            machine.send(client, b"one", 0, None).unwrap();
            machine.run();
            assert_eq!(is(&mut machine, client), libc::POLLERR | libc::POLLOUT);
            if asks {
                let told = machine.option(client, libc::SOL_SOCKET, libc::SO_ERROR).unwrap();
                assert_eq!(told, libc::ECONNREFUSED.to_ne_bytes());
            } else {
                assert_eq!(receive(&mut machine, client, 9, 0), Err(Errno(libc::ECONNREFUSED)));
            }
            assert_eq!(receive(&mut machine, client, 9, 0), Err(AGAIN));
        }
    }

    /// As the protocol of the packet has it: here a datagram of IPv4 on a socket of IPv6, to a peer or to whom is named.
    #[test]
    fn datagrams_have_the_headers_of_their_protocol() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let ours: std::net::IpAddr = "fd3d:a0b:17d6::1".parse().unwrap();
        machine.own(ours.into());
        for (to, connects) in [
            ("[::ffff:192.0.2.1]:53", false),
            ("[::ffff:192.0.2.1]:53", true),
            ("[fd3d:fa7b:d17d::1]:53", true),
        ] {
            let to: SocketAddr = to.parse().unwrap();
            let fd = machine.socket(libc::AF_INET6, libc::SOCK_DGRAM, 0).unwrap();
            for (level, name, value) in [
                (libc::IPPROTO_IP, libc::IP_TOS, 0xb9),
                (libc::IPPROTO_IP, libc::IP_TTL, 9),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x48),
                (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 8),
            ] {
                machine.set_option(fd, level, name, &i32::to_ne_bytes(value)).unwrap();
            }
            let v4 = to.ip().to_canonical().is_ipv4();
            let to = if connects { machine.connect(fd, to).map(|()| None).unwrap() } else { Some(to) };
            machine.send(fd, b"x", 0, to).unwrap();
            machine.run();
            let (_, packet) = machine.sent().unwrap();
            if v4 {
                assert_eq!((packet[1], packet[8], packet[9]), (0xb9, 9, 17), "{connects}");
            } else {
                assert_eq!((packet[0] << 4 | packet[1] >> 4, packet[6], packet[7]), (0x48, 17, 8));
            }
        }
    }

    #[test]
    fn without_a_peer_errors_are_told_to_who_asks_for_all() {
        let (mut machine, server, _) = pair();
        machine.close(server).unwrap();
        for asks in [false, true] {
            let fd = machine.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
            if asks {
                machine.set_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR, &1i32.to_ne_bytes()).unwrap();
            }
            machine.send(fd, b"one", 0, Some("127.0.0.1:53".parse().unwrap())).unwrap();
            machine.run();
            let expected = if asks { Errno(libc::ECONNREFUSED) } else { AGAIN };
            assert_eq!(receive(&mut machine, fd, 9, 0), Err(expected));
            assert_eq!(receive(&mut machine, fd, 9, 0), Err(AGAIN));
        }
    }

    #[test]
    fn what_only_streams_have_is_refused() {
        let (mut machine, server, client) = pair();
        assert_eq!(machine.accept(server), Err(Errno(libc::EOPNOTSUPP)));
        assert_eq!(machine.send(client, b"x", libc::MSG_OOB, None), Err(Errno(libc::EOPNOTSUPP)));
        for fd in [server, client] {
            assert_eq!(machine.bind(fd, "127.0.0.1:54".parse().unwrap()), Err(INVALID), "it has a port");
        }
    }

    #[test]
    fn only_who_is_connected_can_be_shut_down() {
        let (mut machine, server, client) = pair();
        assert_eq!(machine.shutdown(server, libc::SHUT_WR), Err(Errno(libc::ENOTCONN)));
        machine.shutdown(client, libc::SHUT_RDWR).unwrap();
        assert_eq!(machine.send(client, b"one", 0, None), Err(Errno(libc::EPIPE)));
        assert_eq!(receive(&mut machine, client, 9, 0), Ok((0, 0)));
        assert_eq!(receive(&mut machine, client, 9, libc::MSG_DONTWAIT), Err(AGAIN));
        let shut = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLHUP;
        assert_eq!(is(&mut machine, client), shut);
    }
}
