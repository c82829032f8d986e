//! A socket's error queue (`MSG_ERRQUEUE`), and what it tells of bytes that were sent: with `MSG_ZEROCOPY`, that their memory may be
//! used again (Linux's Documentation/networking/msg_zerocopy.rst). Here they are always copied, and it says so. And with
//! `SO_TIMESTAMPING`, when the last of a call's bytes left and when it arrived (Documentation/networking/timestamping.rst, 1.4).

use std::collections::VecDeque;
use std::time::Duration;

use bywash_stack::State;

use crate::errno::{Errno, INVALID, Result};
use crate::machine::Machine;
use crate::sockets::{Kind, Socket};

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` (`include/uapi/linux/errqueue.h`).
const ORIGIN_DONE: u8 = 5;
const COPIED: u8 = 1;
/// `SO_EE_ORIGIN_TIMESTAMPING`, and its `ee_info`: `SCM_TSTAMP_SND`, `SCM_TSTAMP_SCHED`, `SCM_TSTAMP_ACK`.
const ORIGIN_STAMP: u8 = 4;
const SENT: u32 = 0;
const SCHEDULED: u32 = 1;
const ARRIVED: u32 = 2;

/// The length of a `struct cmsghdr`.
const CONTROL: usize = 16;

/// What may be asked for by `SO_TIMESTAMPING`: times by a clock of the kernel's; and what can be had without any work, since no
/// hardware here has a clock, and no other message comes with the times.
const KNOWN: u32 = libc::SOF_TIMESTAMPING_TX_SOFTWARE
    | libc::SOF_TIMESTAMPING_TX_SCHED
    | libc::SOF_TIMESTAMPING_TX_ACK
    | libc::SOF_TIMESTAMPING_SOFTWARE
    | libc::SOF_TIMESTAMPING_OPT_ID
    | libc::SOF_TIMESTAMPING_OPT_ID_TCP
    | libc::SOF_TIMESTAMPING_OPT_TSONLY
    | libc::SOF_TIMESTAMPING_OPT_CMSG
    | libc::SOF_TIMESTAMPING_OPT_TX_SWHW
    | libc::SOF_TIMESTAMPING_TX_HARDWARE
    | libc::SOF_TIMESTAMPING_RX_HARDWARE
    | libc::SOF_TIMESTAMPING_SYS_HARDWARE
    | libc::SOF_TIMESTAMPING_RAW_HARDWARE;

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
    /// `ee_info`, `ee_data`, and when it was.
    Stamp(u32, u32, Duration),
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
    /// All have left: `ee_info`, `ee_data`.
    Left(u32, u32),
    /// All have arrived: `ee_data`.
    Arrived(u32),
}

#[derive(Debug, Default)]
pub(crate) struct Reports {
    queue: VecDeque<Report>,
    awaited: Vec<Awaited>,
    /// The number of the next send with `MSG_ZEROCOPY`.
    next: u32,
    /// `SO_TIMESTAMPING`
    stamps: u32,
    /// The byte of the connection that has the number 0 in `ee_data`.
    first: u64,
    /// How often something was queued, for edges.
    pub(crate) arrived: u64,
}

impl Reports {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// `SO_TIMESTAMPING`, as it reads back.
    pub(crate) fn stamps(&self) -> i32 {
        self.stamps.cast_signed()
    }

    fn asks(&self, what: u32) -> bool {
        self.stamps & what != 0
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
    /// Takes the first entry out of the error queue, as control messages; and `msg_flags`.
    pub(crate) fn take_report(&mut self) -> Option<(Vec<Control>, i32)> {
        let (info, data, at) = match self.reports.queue.pop_front()? {
            Report::Done(first, last) => {
                let error = self.extended_error(0, [ORIGIN_DONE, 0, COPIED], (first, last));
                return Some((vec![error], libc::MSG_ERRQUEUE));
            }
            Report::Stamp(info, data, at) => (info, data, at),
        };
        let mut controls = Vec::new();
        if self.reports.asks(libc::SOF_TIMESTAMPING_SOFTWARE) {
            // Three of `struct timespec`: the second is nothing any more, the third is the hardware's.
            let (seconds, nanos) = (at.as_secs().to_ne_bytes(), u64::from(at.subsec_nanos()).to_ne_bytes());
            let data = [&seconds[..], &nanos, &[0; 32]].concat();
            controls.push(Control { level: libc::SOL_SOCKET, kind: libc::SO_TIMESTAMPING, data });
        }
        controls.push(self.extended_error(libc::ENOMSG, [ORIGIN_STAMP, 0, 0], (info, data)));
        // In Linux the packet comes with it, if that was not refused. Nobody has kept it, as if there had been no room.
        let cut = if self.reports.asks(libc::SOF_TIMESTAMPING_OPT_TSONLY) { 0 } else { libc::MSG_TRUNC };
        Some((controls, libc::MSG_ERRQUEUE | cut))
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
        let (reports, end) = (&mut socket.reports, link.written);
        let numbers = reports.asks(libc::SOF_TIMESTAMPING_OPT_ID);
        #[expect(clippy::cast_possible_truncation, reason = "it wraps")]
        let data = if numbers { end.wrapping_sub(1).wrapping_sub(reports.first) as u32 } else { 0 };
        for (asked, what) in [
            (libc::SOF_TIMESTAMPING_TX_SCHED, What::Left(SCHEDULED, data)),
            (libc::SOF_TIMESTAMPING_TX_SOFTWARE, What::Left(SENT, data)),
            (libc::SOF_TIMESTAMPING_TX_ACK, What::Arrived(data)),
        ] {
            if reports.asks(asked) {
                reports.awaited.push(Awaited { what, end });
            }
        }
        self.take_reports();
    }

    /// `SO_TIMESTAMPING`, as Linux's `sock_set_timestamping`.
    pub(crate) fn set_stamps(&mut self, fd: i32, value: i32) -> Result<()> {
        let socket = self.sockets.get_mut(fd)?;
        let (asked, number) = (value.cast_unsigned(), libc::SOF_TIMESTAMPING_OPT_ID);
        if matches!(socket.kind, Kind::Udp(_)) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let has = |what: u32| asked & what != 0;
        if has(!KNOWN) || (has(libc::SOF_TIMESTAMPING_OPT_ID_TCP) && !has(number)) {
            return Err(INVALID);
        }
        if has(number) && !socket.reports.asks(number) {
            // There are no bytes to be numbered yet.
            let Kind::Stream(id) = socket.kind else { return Err(INVALID) };
            let info = self.host.stack.tcp_info(self.now, id)?;
            let written = self.links.get(&id).map_or(0, |link| link.written);
            // A SYN that is not acknowledged has a number, too.
            let syn = u64::from(info.state == State::SynSent);
            let queued = has(libc::SOF_TIMESTAMPING_OPT_ID_TCP);
            socket.reports.first = if queued { written } else { info.bytes_acked.wrapping_sub(syn) };
        }
        socket.reports.stamps = asked;
        Ok(())
    }

    /// Queues what has come true of all that is awaited.
    pub(crate) fn take_reports(&mut self) {
        let time = self.time();
        for socket in self.sockets.all_mut().filter(|socket| !socket.reports.awaited.is_empty()) {
            let id = if let Kind::Stream(id) = socket.kind { Some(id) } else { None };
            let open = id.filter(|id| self.links.get(id).is_some_and(|link| !link.closed));
            let info = open.and_then(|id| self.host.stack.tcp_info(self.now, id).ok());
            let Socket { reports, .. } = socket;
            for Awaited { what, end } in std::mem::take(&mut reports.awaited) {
                let has_arrived = info.as_ref().is_some_and(|info| info.bytes_acked >= end);
                let has_left =
                    info.as_ref().is_some_and(|info| info.bytes_acked + u64::from(info.unacked_bytes) >= end);
                match what {
                    // What is left of a connection that has ended is done with, too.
                    What::Done(number) if has_arrived || info.is_none() => {
                        reports.push(Report::Done(number, number));
                    }
                    What::Left(info, data) if has_left => reports.push(Report::Stamp(info, data, time)),
                    What::Arrived(data) if has_arrived => reports.push(Report::Stamp(ARRIVED, data, time)),
                    _ if info.is_none() => {}
                    _ => reports.awaited.push(Awaited { what, end }),
                }
            }
        }
    }
}

/// Writes control messages, as many and as much of them as there is room for: how many bytes, and whether that is not all (Linux's
/// `put_cmsg`).
pub(crate) fn put_controls(controls: &[Control], mut place: &mut [u8]) -> (usize, bool) {
    let (all, mut cut) = (place.len(), false);
    for Control { level, kind, data } in controls {
        let header =
            [&((CONTROL + data.len()) as u64).to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes()];
        if place.len() < CONTROL {
            cut = true;
            break;
        }
        let mut bytes = [&header.concat()[..], data].concat();
        if place.len() < bytes.len() {
            cut = true;
            bytes.truncate(place.len());
            bytes[..8].copy_from_slice(&(place.len() as u64).to_ne_bytes());
        }
        // The next one begins at a multiple of eight bytes.
        bytes.resize(bytes.len().next_multiple_of(8).min(place.len()), 0);
        let (now, later) = place.split_at_mut(bytes.len());
        now.copy_from_slice(&bytes);
        place = later;
    }
    (all - place.len(), cut)
}
