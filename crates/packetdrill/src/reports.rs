//! A socket's error queue (`MSG_ERRQUEUE`), and what it tells of bytes that were sent: with `MSG_ZEROCOPY`, that their memory may be
//! used again (Linux's Documentation/networking/msg_zerocopy.rst). Here they are always copied, and it says so.

use std::collections::VecDeque;

use crate::machine::Machine;
use crate::sockets::{Kind, Socket};

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` (`include/uapi/linux/errqueue.h`).
const ORIGIN_DONE: u8 = 5;
const COPIED: u8 = 1;

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) level: i32,
    pub(crate) kind: i32,
    pub(crate) data: Vec<u8>,
}

/// One entry of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    /// The sends of these numbers, of those with `MSG_ZEROCOPY`, are done with: from the first to the last.
    Done(u32, u32),
}

/// Something to be told of a send.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    what: What,
    /// How many bytes the connection was given up to its last.
    end: u64,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// All have arrived: the send of this number is done with.
    Done(u32),
}

#[derive(Debug, Default)]
pub(crate) struct Reports {
    queue: VecDeque<Report>,
    awaited: Vec<Awaited>,
    /// The number of the next send with `MSG_ZEROCOPY`.
    next: u32,
    /// How often something was queued, for edges.
    pub(crate) arrived: u64,
}

impl Reports {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn push(&mut self, report: Report) {
        self.arrived += 1;
        match (self.queue.back_mut(), report) {
            // Those that follow each other are told as one.
            (Some(Report::Done(_, last)), Report::Done(first, end)) if last.wrapping_add(1) == first => {
                *last = end;
            }
            _ => self.queue.push_back(report),
        }
    }
}

impl Socket {
    /// Takes the first entry out of the error queue, as control messages.
    pub(crate) fn take_report(&mut self) -> Option<Vec<Control>> {
        let Report::Done(first, last) = self.reports.queue.pop_front()?;
        Some(vec![self.extended_error(0, [ORIGIN_DONE, 0, COPIED], (first, last))])
    }

    /// A `struct sock_extended_err`, and behind it the address of nobody (ip(7), `IP_RECVERR`): its number, origin, type and code,
    /// `ee_info` and `ee_data`.
    fn extended_error(&self, errno: i32, kind: [u8; 3], (info, data): (u32, u32)) -> Control {
        let (level, name, address) = if self.v6 {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, size_of::<libc::sockaddr_in6>())
        } else {
            (libc::IPPROTO_IP, libc::IP_RECVERR, size_of::<libc::sockaddr_in>())
        };
        let words = [&errno.to_ne_bytes()[..], &kind, &[0], &info.to_ne_bytes(), &data.to_ne_bytes()];
        let mut bytes = words.concat();
        bytes.resize(bytes.len() + address, 0);
        Control { level, kind: name, data: bytes }
    }
}

impl Machine {
    /// A call has sent bytes; what is to be told of them is awaited.
    pub(crate) fn note_send(&mut self, fd: i32, flags: i32) {
        let Ok(socket) = self.sockets.get_mut(fd) else { return };
        let Kind::Stream(id) = socket.kind else { return };
        let Some(link) = self.links.get(&id) else { return };
        if flags & libc::MSG_ZEROCOPY != 0 && socket.is_on(libc::SOL_SOCKET, libc::SO_ZEROCOPY) {
            let what = What::Done(socket.reports.next);
            socket.reports.next = socket.reports.next.wrapping_add(1);
            socket.reports.awaited.push(Awaited { what, end: link.written });
        }
        self.take_reports();
    }

    /// Queues what has come true of all that is awaited.
    pub(crate) fn take_reports(&mut self) {
        for socket in self.sockets.all_mut().filter(|socket| !socket.reports.awaited.is_empty()) {
            let id = if let Kind::Stream(id) = socket.kind { Some(id) } else { None };
            let open = id.filter(|id| self.links.get(id).is_some_and(|link| !link.closed));
            let info = open.and_then(|id| self.host.stack.tcp_info(self.now, id).ok());
            // What is left of a connection that has ended is done with, too.
            let arrived = info.map_or(u64::MAX, |info| info.bytes_acked);
            let Socket { reports, .. } = socket;
            for Awaited { what, end } in std::mem::take(&mut reports.awaited) {
                match what {
                    What::Done(number) if arrived >= end => reports.push(Report::Done(number, number)),
                    What::Done(_) => reports.awaited.push(Awaited { what, end }),
                }
            }
        }
    }
}
