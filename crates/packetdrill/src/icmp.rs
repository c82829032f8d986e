//! What ICMP errors are for sockets of TCP: the end of an attempt to connect, and no more than a remark later, as in Linux's
//! `tcp_v4_err` and `tcp_v6_err`. The stack keeps to RFC 5461 and ends an attempt only where nobody is there.

use std::net::IpAddr;

use bywash_stack::{Address, ConnectionId};

use crate::errno::{self, Errno};
use crate::machine::Machine;

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// The header of ICMP, before what it quotes.
const HEADER: usize = 8;

/// What IP says of a packet, and what is in it.
struct Ip<'a> {
    source: Address,
    destination: Address,
    protocol: u8,
    rest: &'a [u8],
}

impl<'a> Ip<'a> {
    /// Of IPv6, only what has no further headers.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?).into());
        let v6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?).into());
        let first = *bytes.first()?;
        match first >> 4 {
            4 => Some(Self {
                source: v4(12)?,
                destination: v4(16)?,
                protocol: *bytes.get(9)?,
                rest: bytes.get(usize::from(first & 15) * 4..)?,
            }),
            6 => Some(Self {
                source: v6(8)?,
                destination: v6(24)?,
                protocol: *bytes.get(6)?,
                rest: bytes.get(40..)?,
            }),
            _ => None,
        }
    }

    fn port(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes(self.rest.get(at..at + 2)?.try_into().ok()?))
    }

    fn sequence(&self) -> Option<u32> {
        Some(u32::from_be_bytes(self.rest.get(4..8)?.try_into().ok()?))
    }

    /// Whether the header of TCP has a flag.
    fn has(&self, flag: u8) -> bool {
        self.protocol == TCP && self.rest.get(13).is_some_and(|flags| flags & flag != 0)
    }
}

/// An ICMP error about a segment of ours.
pub(crate) struct Trouble {
    id: ConnectionId,
    errno: Errno,
    sequence: u32,
}

/// Linux's `icmp_err_convert` and `icmpv6_err_convert`. That a packet is too big is the stack's own affair.
fn errno(v6: bool, kind: u8, code: u8) -> Option<Errno> {
    let number = match (v6, kind, code) {
        (false, 3, 0 | 6 | 9 | 11) | (true, 1, 0) => libc::ENETUNREACH,
        (false, 3, 1 | 10 | 12..=15) | (false, 11, _) | (true, 1, 2 | 3) | (true, 3, _) => libc::EHOSTUNREACH,
        (false, 3, 2) => libc::ENOPROTOOPT,
        (false, 3, 3) | (true, 1, 4) => libc::ECONNREFUSED,
        (false, 3, 5) => libc::EOPNOTSUPP,
        (false, 3, 7) => libc::EHOSTDOWN,
        (false, 3, 8) => libc::ENONET,
        (true, 1, 1 | 5 | 6) => libc::EACCES,
        (false, 12, _) | (true, 4, _) => libc::EPROTO,
        _ => return None,
    };
    Some(Errno(number))
}

impl Machine {
    fn connection_between(
        &self,
        (ours, port): (Address, u16),
        theirs: (Address, u16),
    ) -> Option<ConnectionId> {
        let mut ids = self.links.keys().copied();
        ids.find(|id| {
            let flow = self.host.stack.flow(*id);
            flow.is_ok_and(|flow| {
                (flow.local, flow.local_port) == (ours, port) && (flow.remote, flow.remote_port) == theirs
            })
        })
    }

    /// Notes where the numbers of a connection begin: an error that quotes others is not about it.
    pub(crate) fn note_first(&mut self, sent: &[u8]) {
        let Some(ip) = Ip::parse(sent).filter(|ip| ip.has(SYN) && !ip.has(ACK)) else { return };
        let (Some(from), Some(to)) = (ip.port(0), ip.port(2)) else { return };
        let id = self.connection_between((ip.source, from), (ip.destination, to));
        if let Some(link) = id.and_then(|id| self.links.get_mut(&id)) {
            link.first = ip.sequence();
        }
    }

    /// What a packet that comes in has to do with ICMP: it may be an error about a connection; and one that acknowledges something
    /// shows that what was remarked is over.
    pub(crate) fn trouble(&mut self, bytes: &[u8]) -> Option<Trouble> {
        let ip = Ip::parse(bytes)?;
        if ip.has(ACK) {
            let ours = (ip.destination, ip.port(2)?);
            let id = self.connection_between(ours, (ip.source, ip.port(0)?))?;
            self.links.get_mut(&id)?.soft_error = None;
        }
        let v6 = match ip.protocol {
            ICMP => false,
            ICMPV6 => true,
            _ => return None,
        };
        let errno = errno(v6, *ip.rest.first()?, *ip.rest.get(1)?)?;
        let quoted = Ip::parse(ip.rest.get(HEADER..)?).filter(|quoted| quoted.protocol == TCP)?;
        let ours = (quoted.source, quoted.port(0)?);
        let id = self.connection_between(ours, (quoted.destination, quoted.port(2)?))?;
        if self.has_ended(id) {
            return None;
        }
        Some(Trouble { id, errno, sequence: quoted.sequence()? })
    }

    /// Does what Linux does of an error, once the stack has seen it.
    pub(crate) fn suffer(&mut self, trouble: &Trouble) {
        let Some(link) = self.links.get_mut(&trouble.id) else { return };
        if link.connected {
            let kept = self.host.stack.tcp_info(self.now, trouble.id).ok().and_then(|info| info.soft_error);
            if kept.map(errno::unreachable) == Some(trouble.errno) {
                link.soft_error = Some(trouble.errno);
            }
            return;
        }
        // Linux takes the number that follows, too.
        if link.first.is_none_or(|first| trouble.sequence.wrapping_sub(first) > 1) {
            return;
        }
        if !link.closed {
            link.changes += 1;
            self.host.stack.abort(self.now, trouble.id, &mut self.pool).ok();
        }
        (link.closed, link.error) = (true, Some(trouble.errno));
    }
}
