//! `getsockopt` and `setsockopt`, as Linux answers them.

use std::num::NonZeroU8;
use std::time::Duration;

use bywash_stack::{CongestionControl, ConnectionId, Limits};

use crate::errno::{Errno, INVALID, Result};
use crate::fast_open::{TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE};
use crate::machine::Machine;
use crate::sockets::{Headers, Kind, Socket};

const TCP: i32 = libc::IPPROTO_TCP;
const SOCKET: i32 = libc::SOL_SOCKET;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;
/// `include/uapi/linux/tcp.h` and `asm-generic/socket.h`; not in `libc`.
const TCP_CC_INFO: i32 = 26;
const SO_MEMINFO: i32 = 55;
const TCP_NOTSENT_LOWAT: i32 = 25;
/// The option, and the type of what `recvmsg` then tells.
pub(crate) const TCP_INQ: i32 = 36;
const MEMINFO_BYTES: usize = 36;
/// Linux's smallest buffers, as `SO_RCVBUF` and `SO_SNDBUF` read back.
const LEAST_RECEIVE: i32 = 2304;
const LEAST_SEND: i32 = 4608;

/// Options that are kept and read back: what they ask for is so anyway, is looked up where it matters, or means nothing where no
/// kernel is below.
const KEPT: &[(i32, i32)] = &[
    (SOCKET, libc::SO_REUSEADDR),
    (SOCKET, libc::SO_REUSEPORT),
    (SOCKET, libc::SO_PRIORITY),
    (SOCKET, libc::SO_MARK),
    (SOCKET, libc::SO_OOBINLINE),
    (SOCKET, libc::SO_DONTROUTE),
    (SOCKET, libc::SO_BROADCAST),
    (SOCKET, libc::SO_TIMESTAMP),
    (SOCKET, libc::SO_BUSY_POLL),
    (IP, libc::IP_RECVERR),
    (IP, libc::IP_RECVTOS),
    (IP, libc::IP_RECVTTL),
    (IP, libc::IP_PKTINFO),
    (IP, libc::IP_FREEBIND),
    (IP, libc::IP_TRANSPARENT),
    (IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (IPV6, libc::IPV6_V6ONLY),
    (IPV6, libc::IPV6_RECVERR),
    (IPV6, libc::IPV6_RECVTCLASS),
];

/// Those of them that are numbers; the others are on or off, and read back as 1 or 0.
const NUMBERS: &[(i32, i32)] =
    &[(SOCKET, libc::SO_PRIORITY), (SOCKET, libc::SO_MARK), (SOCKET, libc::SO_BUSY_POLL)];

/// The bits of the traffic class that belong to congestion control (Linux's `INET_ECN_MASK`).
const ECN: u8 = 3;

fn truth(value: bool) -> Vec<u8> {
    number(i32::from(value))
}

fn number(value: i32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

fn seconds(time: Duration) -> Vec<u8> {
    number(i32::try_from(time.as_secs()).unwrap_or(i32::MAX))
}

/// A `struct timeval`; zero is "for ever".
fn timeval(bytes: &[u8]) -> Result<Option<Duration>> {
    let word = |at: usize| -> Result<i64> {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).ok_or(INVALID)?;
        Ok(i64::from_ne_bytes(bytes))
    };
    let (seconds, micros) = (word(0)?, word(8)?);
    let whole = Duration::from_secs(u64::try_from(seconds).map_err(|_| Errno(libc::EDOM))?);
    let part = u32::try_from(micros).ok().filter(|n| *n < 1_000_000).ok_or(Errno(libc::EDOM))?;
    Ok(Some(whole + Duration::from_micros(part.into())).filter(|time| !time.is_zero()))
}

fn to_timeval(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    [seconds.to_ne_bytes(), i64::from(time.subsec_micros()).to_ne_bytes()].concat()
}

impl Machine {
    pub(crate) fn set_option(&mut self, fd: i32, level: i32, name: i32, bytes: &[u8]) -> Result<()> {
        let socket = self.sockets.get_mut(fd)?;
        let value = bytes.get(..4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
        match (level, name) {
            (SOCKET, libc::SO_LINGER) => {
                let time = bytes.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
                let (on, time) = value.zip(time).ok_or(INVALID)?;
                let time = Duration::from_secs(u64::try_from(time).unwrap_or(u64::MAX / 4));
                socket.options.linger = (on != 0).then_some(time);
                return Ok(());
            }
            (SOCKET, libc::SO_RCVTIMEO) => {
                socket.options.receive_timeout = timeval(bytes)?;
                return Ok(());
            }
            (SOCKET, libc::SO_SNDTIMEO) => {
                socket.options.send_timeout = timeval(bytes)?;
                return Ok(());
            }
            (TCP, TCP_FASTOPEN_KEY) => return self.set_fast_open_key(fd, bytes),
            (TCP, libc::TCP_CONGESTION) => {
                let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                let congestion = match &bytes[..end] {
                    b"reno" => CongestionControl::NewReno,
                    b"cubic" => CongestionControl::Cubic,
                    _ => return Err(Errno(libc::ENOENT)),
                };
                return self.change(fd, |limits| limits.congestion = congestion);
            }
            _ => {}
        }
        // Options of IP may be given as one byte (ip(7)).
        let byte = bytes.first().filter(|_| level == IP).map(|byte| i32::from(*byte));
        let value = value.or(byte).ok_or(INVALID)?;
        match level {
            TCP => self.set_tcp(fd, name, value),
            SOCKET => self.set_socket(fd, name, value),
            IPV6 if !self.sockets.get(fd)?.v6 => Err(Errno(libc::ENOPROTOOPT)),
            IP | IPV6 => self.set_ip(fd, level, name, value),
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    fn set_tcp(&mut self, fd: i32, name: i32, value: i32) -> Result<()> {
        let on = value != 0;
        let positive = u64::try_from(value).ok().filter(|n| *n > 0);
        let small = |most: u8| u8::try_from(value).ok().filter(|n| (1..=most).contains(n)).ok_or(INVALID);
        let time = || positive.filter(|n| *n <= 32_767).map(Duration::from_secs).ok_or(INVALID);
        let stream = match self.sockets.get(fd)?.kind {
            Kind::Stream(id) => Some(id),
            Kind::Fresh | Kind::Listener { .. } => None,
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        let (now, stack, pool) = (self.now, &mut self.host.stack, &mut self.pool);
        match name {
            libc::TCP_NODELAY => {
                let options = &mut self.sockets.get_mut(fd)?.options;
                options.nodelay = on;
                let cork = options.cork;
                // A connection that has ended keeps what was set and sends nothing.
                let Some(id) = stream else { return Ok(()) };
                stack.set_nodelay(now, id, on, pool)?;
                if on {
                    // What a cork holds back goes out, once (tcp(7)).
                    stack.set_cork(now, id, false, pool)?;
                    self.run();
                    self.host.stack.set_cork(now, id, cork, &mut self.pool)?;
                }
                Ok(())
            }
            libc::TCP_CORK => {
                self.sockets.get_mut(fd)?.options.cork = on;
                stream.map_or(Ok(()), |id| Ok(stack.set_cork(now, id, on, pool)?))
            }
            libc::TCP_QUICKACK => {
                self.sockets.get_mut(fd)?.options.kept.insert((TCP, name), i32::from(on));
                stream.map_or(Ok(()), |id| Ok(stack.set_quick_ack(now, id, on, pool)?))
            }
            libc::TCP_DEFER_ACCEPT => {
                self.sockets.get_mut(fd)?.options.kept.insert((TCP, name), deferral(value));
                Ok(())
            }
            TCP_FASTOPEN_CONNECT => self.set_fast_open_connect(fd, value),
            libc::TCP_FASTOPEN | TCP_FASTOPEN_NO_COOKIE => self.set_fast_open(fd, name, value),
            // The last of these does nothing in Linux, either (tcp(7)).
            TCP_INQ | libc::TCP_THIN_LINEAR_TIMEOUTS | libc::TCP_THIN_DUPACK => {
                if !(0..=1).contains(&value) {
                    return Err(INVALID);
                }
                if name != libc::TCP_THIN_DUPACK {
                    self.sockets.get_mut(fd)?.options.kept.insert((TCP, name), value);
                }
                Ok(())
            }
            libc::TCP_MAXSEG => {
                // 0: as the path has it.
                let known = |mss: &u16| *mss == 0 || (88..=32_767).contains(mss);
                let mss = u16::try_from(value).ok().filter(known).ok_or(INVALID)?;
                self.change(fd, |limits| limits.mss = Some(mss).filter(|mss| *mss > 0))
            }
            libc::TCP_KEEPIDLE => {
                let time = time()?;
                self.change(fd, |limits| limits.keepalive_idle = time)
            }
            libc::TCP_KEEPINTVL => {
                let time = time()?;
                self.change(fd, |limits| limits.keepalive_interval = time)
            }
            libc::TCP_KEEPCNT => {
                let count = small(127)?;
                self.change(fd, |limits| limits.keepalive_count = count)
            }
            libc::TCP_SYNCNT => {
                let count = small(127)?;
                self.change(fd, |limits| limits.syn_retries = count)
            }
            libc::TCP_LINGER2 => {
                let old = self.flags.limits().fin_timeout;
                let kept = &mut self.sockets.get_mut(fd)?.options.kept;
                if value < 0 {
                    kept.insert((TCP, name), -1)
                } else {
                    kept.remove(&(TCP, name))
                };
                let time = match value {
                    ..0 => Duration::ZERO,
                    0 => old,
                    n => Duration::from_secs(n.unsigned_abs().into()).min(Duration::from_secs(120)),
                };
                self.change(fd, |limits| limits.fin_timeout = time)
            }
            TCP_NOTSENT_LOWAT => {
                self.sockets.get_mut(fd)?.options.kept.insert((TCP, name), value);
                let usual = self.flags.limits().unsent;
                let least = u32::try_from(value).unwrap_or(u32::MAX);
                self.change(fd, |limits| limits.unsent = if least == 0 { usual } else { least })
            }
            libc::TCP_WINDOW_CLAMP => {
                let socket = self.sockets.get_mut(fd)?;
                // "None" only while nothing has begun.
                if value == 0 && !matches!(socket.kind, Kind::Fresh) {
                    return Err(INVALID);
                }
                let kept = if value == 0 { 0 } else { value.max(LEAST_RECEIVE / 2) };
                socket.options.kept.insert((TCP, name), kept);
                let usual = self.flags.limits();
                self.size_window(fd, (usual.receive_initial, usual.receive_max))
            }
            libc::TCP_USER_TIMEOUT => {
                let millis = u64::try_from(value).map_err(|_| INVALID)?;
                self.sockets.get_mut(fd)?.options.kept.insert((TCP, name), value);
                let unset = Limits::default().user_timeout;
                let time = if millis == 0 { unset } else { Duration::from_millis(millis) };
                self.change(fd, |limits| limits.user_timeout = time)
            }
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    /// What `recvmsg` tells beside the bytes, where it was asked to (`TCP_INQ`): how many are left, the end counting as one.
    pub(crate) fn left_to_read(&self, fd: i32) -> Option<i32> {
        let socket = self.sockets.get(fd).ok()?;
        let Kind::Stream(id) = socket.kind else { return None };
        if socket.options.kept.get(&(TCP, TCP_INQ)) != Some(&1) {
            return None;
        }
        let left = self.host.stack.readable_bytes(id).unwrap_or(0);
        let ended = self.links.get(&id).is_none_or(|link| link.peer_closed || link.closed);
        Some(i32::try_from(left).unwrap_or(i32::MAX).max(i32::from(ended)))
    }

    /// Which of a listener's connections a program may have: with `TCP_DEFER_ACCEPT` those that have said something.
    pub(crate) fn acceptable(&self, fd: i32) -> impl Iterator<Item = usize> {
        let socket = self.sockets.get(fd).ok();
        let queue = socket.and_then(|socket| match &socket.kind {
            Kind::Listener { queue, .. } => Some(queue),
            _ => None,
        });
        let time = socket.and_then(|socket| socket.options.kept.get(&(TCP, libc::TCP_DEFER_ACCEPT)));
        let deferred = time.is_some_and(|time| *time > 0);
        queue.into_iter().flatten().enumerate().filter_map(move |(i, id)| {
            let said = || self.host.stack.readable_bytes(*id).unwrap_or(0) > 0;
            let ended = || self.links.get(id).is_none_or(|link| link.peer_closed || link.closed);
            (!deferred || said() || ended()).then_some(i)
        })
    }

    fn set_socket(&mut self, fd: i32, name: i32, value: i32) -> Result<()> {
        let socket = self.sockets.get_mut(fd)?;
        // As Linux has it: what is negative is much, and less than nothing only where nobody limits it.
        let size = |forced: bool, most: &str| {
            let most = if forced { i32::MAX / 2 } else { self.flags.most_memory(most) };
            match value {
                ..0 if forced => 0,
                ..0 => most,
                value => value.min(most),
            }
        };
        match name {
            libc::SO_KEEPALIVE => self.change(fd, |limits| limits.keepalive = value != 0),
            libc::SO_RCVBUF | libc::SO_RCVBUFFORCE => {
                // Linux doubles it for its own records, and lets half be window.
                let kept = size(name == libc::SO_RCVBUFFORCE, "rmem_max").max(LEAST_RECEIVE / 2);
                socket.options.kept.insert((SOCKET, libc::SO_RCVBUF), kept * 2);
                let bytes = kept.unsigned_abs();
                self.size_window(fd, (bytes, bytes))
            }
            libc::SO_SNDBUF | libc::SO_SNDBUFFORCE => {
                let kept = size(name == libc::SO_SNDBUFFORCE, "wmem_max").max(LEAST_SEND / 2);
                socket.options.kept.insert((SOCKET, libc::SO_SNDBUF), kept * 2);
                let bytes = kept.unsigned_abs();
                // All of the double one is for payload: Linux fills pages whole, and counts little else.
                let bytes = bytes.saturating_mul(2);
                self.change(fd, |limits| (limits.send_initial, limits.send_max) = (bytes, bytes))
            }
            libc::SO_TIMESTAMPING => self.set_stamps(fd, value),
            libc::SO_ZEROCOPY => {
                if matches!(socket.kind, Kind::Udp(_)) {
                    return Err(Errno(libc::EOPNOTSUPP));
                }
                if !(0..=1).contains(&value) {
                    return Err(INVALID);
                }
                socket.options.kept.insert((SOCKET, name), value);
                Ok(())
            }
            libc::SO_RCVLOWAT => {
                // Linux: at most half of a buffer, of which ours is the half that is window where it was set; it becomes larger
                // where it was not.
                let (set, limits) =
                    (socket.options.kept.contains_key(&(SOCKET, libc::SO_RCVBUF)), socket.options.limits);
                let most = if set { limits.receive_max } else { limits.receive_max / 2 };
                let least = u32::try_from(value).unwrap_or(u32::MAX).min(most).max(1);
                socket.options.low_water = least as usize;
                self.change(fd, |limits| limits.receive_initial = limits.receive_initial.max(least))
            }
            _ => keep(socket, SOCKET, name, value),
        }
    }

    fn set_ip(&mut self, fd: i32, level: i32, name: i32, value: i32) -> Result<()> {
        match (level, name) {
            (IP, libc::IP_TOS) | (IPV6, libc::IPV6_TCLASS) => {
                let class = match u8::try_from(value) {
                    Ok(class) => class,
                    // -1: as usual.
                    Err(_) if level == IPV6 && value != -1 => return Err(INVALID),
                    Err(_) if level == IPV6 => 0,
                    Err(_) => value.to_le_bytes()[0],
                };
                // Its bits are TCP's own; who sends datagrams does that himself.
                let datagrams = matches!(self.sockets.get(fd)?.kind, Kind::Udp(_));
                let class = if datagrams { class } else { class & !ECN };
                self.change_headers(fd, level, |headers| headers.class = class)
            }
            (IP, libc::IP_TTL) | (IPV6, libc::IPV6_UNICAST_HOPS) => {
                // -1: as the interface has it.
                let limit = u8::try_from(value).ok().and_then(NonZeroU8::new);
                if limit.is_none() && value != -1 {
                    return Err(INVALID);
                }
                self.change_headers(fd, level, |headers| headers.hop_limit = limit)
            }
            // TCP always discovers the path's MTU, which is "do"; "want" is the same where no one else cuts packets, and "dont"
            // only lets routers cut them.
            (IP, libc::IP_MTU_DISCOVER) | (IPV6, libc::IPV6_MTU_DISCOVER) => {
                if !(libc::IP_PMTUDISC_DONT..=libc::IP_PMTUDISC_OMIT).contains(&value) {
                    return Err(INVALID);
                }
                let socket = self.sockets.get_mut(fd)?;
                socket.options.kept.insert((level, name), value);
                Ok(())
            }
            _ => keep(self.sockets.get_mut(fd)?, level, name, value),
        }
    }

    /// Sizes the receive window, at first and at most, by `SO_RCVBUF` where that was set, or as is usual; and no larger than
    /// `TCP_WINDOW_CLAMP`.
    fn size_window(&mut self, fd: i32, usual: (u32, u32)) -> Result<()> {
        let kept = &self.sockets.get(fd)?.options.kept;
        let set = kept.get(&(SOCKET, libc::SO_RCVBUF)).map(|doubled| doubled.unsigned_abs() / 2);
        let clamp = kept.get(&(TCP, libc::TCP_WINDOW_CLAMP)).filter(|clamp| **clamp > 0);
        let most = clamp.map_or(u32::MAX, |clamp| clamp.unsigned_abs());
        let (initial, max) = set.map_or(usual, |bytes| (bytes, bytes));
        self.change(fd, |limits| {
            (limits.receive_initial, limits.receive_max) = (initial.min(most), max.min(most));
        })
    }

    /// Changes the limits of a socket, and of what is behind it.
    fn change(&mut self, fd: i32, change: impl FnOnce(&mut Limits)) -> Result<()> {
        change(&mut self.sockets.get_mut(fd)?.options.limits);
        self.tell_limits(fd)
    }

    fn change_headers(&mut self, fd: i32, level: i32, change: impl FnOnce(&mut Headers)) -> Result<()> {
        change(&mut self.sockets.get_mut(fd)?.options.headers[usize::from(level == IPV6)]);
        self.tell_limits(fd)
    }

    /// Tells the stack what was changed, if it knows the socket by now.
    fn tell_limits(&mut self, fd: i32) -> Result<()> {
        let socket = self.sockets.get(fd)?;
        let limits = socket.bound_limits();
        match socket.kind {
            Kind::Stream(id) => self.limit(id, limits),
            Kind::Listener { id, .. } => self.host.stack.set_listener_limits(id, limits),
            _ => {}
        }
        Ok(())
    }

    /// Gives a connection its limits. `tcp_retries2` holds only once it is open.
    pub(crate) fn limit(&mut self, id: ConnectionId, mut limits: Limits) {
        let open = self.links.get(&id).is_some_and(|link| link.connected);
        if open && limits.user_timeout == Limits::default().user_timeout {
            limits.user_timeout = self.flags.patience();
        }
        // A connection that has ended needs none.
        self.host.stack.set_connection_limits(self.now, id, limits, &mut self.pool).ok();
    }

    pub(crate) fn option(&mut self, fd: i32, level: i32, name: i32) -> Result<Vec<u8>> {
        let socket = self.sockets.get(fd)?;
        let headers = socket.options.headers[usize::from(level == IPV6)];
        if let Some(value) = socket.options.kept.get(&(level, name)) {
            return Ok(number(*value));
        }
        match level {
            TCP => self.tcp_option(fd, name),
            SOCKET => self.socket_option(fd, name),
            IPV6 if !socket.v6 => Err(Errno(libc::ENOPROTOOPT)),
            _ => match (level, name) {
                (IP, libc::IP_TOS) | (IPV6, libc::IPV6_TCLASS) => Ok(number(headers.class.into())),
                (IP, libc::IP_TTL) | (IPV6, libc::IPV6_UNICAST_HOPS) => {
                    Ok(number(headers.hop_limit.map_or(64, |limit| limit.get().into())))
                }
                (IP, libc::IP_MTU_DISCOVER) | (IPV6, libc::IPV6_MTU_DISCOVER) => {
                    Ok(number(libc::IP_PMTUDISC_WANT))
                }
                (IP, libc::IP_MTU) | (IPV6, libc::IPV6_MTU) => match socket.kind {
                    Kind::Stream(id) => {
                        let info = self.host.stack.tcp_info(self.now, id)?;
                        Ok(number(info.pmtu.cast_signed()))
                    }
                    _ => Err(Errno(libc::ENOTCONN)),
                },
                _ if KEPT.contains(&(level, name)) => Ok(number(0)),
                _ => Err(Errno(libc::ENOPROTOOPT)),
            },
        }
    }

    fn tcp_option(&self, fd: i32, name: i32) -> Result<Vec<u8>> {
        let socket = self.sockets.get(fd)?;
        let (options, limits) = (&socket.options, &socket.options.limits);
        let info = match socket.kind {
            Kind::Stream(id) => self.host.stack.tcp_info(self.now, id).ok(),
            Kind::Fresh | Kind::Listener { .. } => None,
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        match name {
            libc::TCP_INFO => Ok(match (info, &socket.kind) {
                (Some(info), _) => info.to_linux().to_vec(),
                (None, kind) => {
                    let mut bytes = vec![0; bywash_stack::LINUX_TCP_INFO];
                    // TCP_LISTEN, TCP_CLOSE
                    bytes[0] = if matches!(kind, Kind::Listener { .. }) { 10 } else { 7 };
                    bytes
                }
            }),
            TCP_CC_INFO => Ok(Vec::new()),
            libc::TCP_FASTOPEN => Ok(number(i32::try_from(options.fast_open.pending).unwrap_or(i32::MAX))),
            TCP_FASTOPEN_CONNECT => Ok(truth(options.fast_open_connect)),
            TCP_FASTOPEN_NO_COOKIE => Ok(truth(options.fast_open.cookieless)),
            TCP_FASTOPEN_KEY => Ok(self.fast_open_key(socket)),
            libc::TCP_NODELAY => Ok(truth(options.nodelay)),
            libc::TCP_CORK => Ok(truth(options.cork)),
            libc::TCP_QUICKACK => Ok(truth(true)),
            libc::TCP_MAXSEG => Ok(number(
                info.map_or(i32::from(limits.mss.unwrap_or(536)), |info| info.snd_mss.cast_signed()),
            )),
            libc::TCP_KEEPIDLE => Ok(seconds(limits.keepalive_idle)),
            libc::TCP_KEEPINTVL => Ok(seconds(limits.keepalive_interval)),
            libc::TCP_KEEPCNT => Ok(number(limits.keepalive_count.into())),
            libc::TCP_SYNCNT => Ok(number(limits.syn_retries.into())),
            TCP_NOTSENT_LOWAT
            | TCP_INQ
            | libc::TCP_USER_TIMEOUT
            | libc::TCP_DEFER_ACCEPT
            | libc::TCP_THIN_LINEAR_TIMEOUTS
            | libc::TCP_THIN_DUPACK => Ok(number(0)),
            libc::TCP_LINGER2 => Ok(seconds(limits.fin_timeout)),
            libc::TCP_WINDOW_CLAMP => {
                Ok(number(info.map_or(0, |_| i32::try_from(limits.receive_max).unwrap_or(i32::MAX))))
            }
            libc::TCP_CONGESTION => {
                let name: &[u8] = match limits.congestion {
                    CongestionControl::NewReno => b"reno",
                    CongestionControl::Cubic => b"cubic",
                };
                // Linux gives TCP_CA_NAME_MAX bytes.
                let mut bytes = name.to_vec();
                bytes.resize(16, 0);
                Ok(bytes)
            }
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    fn socket_option(&mut self, fd: i32, name: i32) -> Result<Vec<u8>> {
        let socket = self.sockets.get(fd)?;
        let (options, limits) = (&socket.options, &socket.options.limits);
        let stream = !matches!(socket.kind, Kind::Udp(_));
        match name {
            libc::SO_ERROR => {
                let error = match socket.kind {
                    Kind::Stream(id) => {
                        let link = self.links.get_mut(&id);
                        link.and_then(|link| link.error.take().or_else(|| link.soft_error.take()))
                    }
                    _ => self.sockets.get_mut(fd)?.error.take(),
                };
                Ok(number(error.map_or(0, |error| error.0)))
            }
            libc::SO_TYPE => Ok(number(if stream { libc::SOCK_STREAM } else { libc::SOCK_DGRAM })),
            libc::SO_DOMAIN => Ok(number(if socket.v6 { libc::AF_INET6 } else { libc::AF_INET })),
            libc::SO_PROTOCOL => Ok(number(if stream { TCP } else { libc::IPPROTO_UDP })),
            libc::SO_ACCEPTCONN => Ok(truth(matches!(socket.kind, Kind::Listener { .. }))),
            libc::SO_KEEPALIVE => Ok(truth(limits.keepalive)),
            // Nothing is doubled that nobody has set: see `settings::limits`.
            libc::SO_RCVBUF => Ok(number(limits.receive_initial.cast_signed())),
            libc::SO_SNDBUF => Ok(number(limits.send_initial.cast_signed())),
            libc::SO_RCVLOWAT => Ok(number(i32::try_from(options.low_water).unwrap_or(i32::MAX))),
            libc::SO_SNDLOWAT => Ok(number(1)),
            libc::SO_ZEROCOPY => Ok(number(0)),
            libc::SO_TIMESTAMPING => Ok(number(socket.reports.stamps())),
            libc::SO_RCVTIMEO => Ok(to_timeval(options.receive_timeout)),
            libc::SO_SNDTIMEO => Ok(to_timeval(options.send_timeout)),
            libc::SO_LINGER => {
                let time = options.linger.map_or(0, |time| i32::try_from(time.as_secs()).unwrap_or(i32::MAX));
                Ok([truth(options.linger.is_some()), number(time)].concat())
            }
            SO_MEMINFO => {
                // Nine numbers; of them SK_MEMINFO_RCVBUF and SK_MEMINFO_SNDBUF are the sizes of buffers.
                let (receive, send) =
                    (self.option(fd, SOCKET, libc::SO_RCVBUF)?, self.option(fd, SOCKET, libc::SO_SNDBUF)?);
                let mut bytes = vec![0; MEMINFO_BYTES];
                bytes[4..8].copy_from_slice(&receive);
                bytes[12..16].copy_from_slice(&send);
                Ok(bytes)
            }
            _ if KEPT.contains(&(SOCKET, name)) => Ok(number(0)),
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }
}

fn keep(socket: &mut Socket, level: i32, name: i32, value: i32) -> Result<()> {
    if !KEPT.contains(&(level, name)) {
        return Err(Errno(libc::ENOPROTOOPT));
    }
    // Where it is bound says already what it hears.
    if (level, name) == (IPV6, libc::IPV6_V6ONLY) && socket.local.is_some() {
        return Err(INVALID);
    }
    let value = if NUMBERS.contains(&(level, name)) { value } else { i32::from(value != 0) };
    socket.options.kept.insert((level, name), value);
    Ok(())
}

/// `TCP_DEFER_ACCEPT` in whole retransmissions of a SYN-ACK, as Linux keeps it (its `secs_to_retrans`): each waits twice as long as
/// the one before, from a second on, and at most 120.
fn deferral(seconds: i32) -> i32 {
    let (mut time, mut wait, mut count) = (i32::from(seconds > 0), 1, 1);
    while time < seconds && count < u8::MAX {
        wait = (wait * 2).min(120);
        time += wait;
        count += 1;
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Flags;
    use crate::sockets::tests::{connected, listener};

    #[test]
    fn sizes_of_buffers_read_back_as_they_are_and_doubled_once_they_are_set() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let fd = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let usual = Limits::default().receive_initial.cast_signed();
        let read = |machine: &mut Machine| {
            let info = machine.option(fd, SOCKET, SO_MEMINFO).unwrap();
            assert_eq!(info.len(), MEMINFO_BYTES);
            let size = machine.option(fd, SOCKET, libc::SO_RCVBUF).unwrap();
            assert_eq!((&info[4..8], &info[12..16]), (&size[..], &number(9216)[..]));
            size
        };
        machine.set_option(fd, SOCKET, libc::SO_SNDBUF, &number(4608)).unwrap();
        assert_eq!(read(&mut machine), number(usual));
        machine.set_option(fd, SOCKET, libc::SO_RCVBUF, &number(10_000)).unwrap();
        assert_eq!(read(&mut machine), number(20_000));
    }

    #[test]
    fn a_clamp_holds_from_the_first_window_on_and_can_be_taken_back() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let (fd, to) = listener(&mut machine);
        let clamp = |machine: &mut Machine, fd, most: i32| {
            let result = machine.set_option(fd, TCP, libc::TCP_WINDOW_CLAMP, &number(most));
            let limits = machine.sockets.get(fd).unwrap().options.limits;
            result.map(|()| (limits.receive_initial, limits.receive_max))
        };
        assert_eq!(clamp(&mut machine, fd, 20_000), Ok((20_000, 20_000)));
        assert_eq!(clamp(&mut machine, fd, 0), Err(INVALID));
        let client = connected(&mut machine, to);
        assert_eq!(clamp(&mut machine, client, 30_000), Ok((30_000, 30_000)));
        let fresh = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let usual = Limits::default();
        assert_eq!(clamp(&mut machine, fresh, 1), Ok((1152, 1152)));
        assert_eq!(machine.option(fresh, TCP, libc::TCP_WINDOW_CLAMP), Ok(number(1152)));
        machine.set_option(fresh, SOCKET, libc::SO_RCVBUF, &number(5000)).unwrap();
        assert_eq!(clamp(&mut machine, fresh, 4000), Ok((4000, 4000)));
        assert_eq!(clamp(&mut machine, fresh, 0), Ok((5000, 5000)));
        assert_eq!(machine.option(fresh, TCP, libc::TCP_WINDOW_CLAMP), Ok(number(0)));
        let other = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(clamp(&mut machine, other, 0), Ok((usual.receive_initial, usual.receive_max)));
    }

    #[test]
    fn options_read_back_as_linux_keeps_them() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let fd = machine.socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap();
        assert_eq!(machine.fcntl(fd, libc::F_GETFD, 0), Ok(libc::FD_CLOEXEC));
        for (level, name, value, read) in [
            (SOCKET, libc::SO_REUSEADDR, 5, 1),
            (SOCKET, libc::SO_PRIORITY, 5, 5),
            (SOCKET, libc::SO_SNDBUF, -1, i32::MAX - 1),
            (SOCKET, libc::SO_RCVBUF, -1, i32::MAX - 1),
            (SOCKET, libc::SO_SNDBUFFORCE, -1, LEAST_SEND),
            (TCP, libc::TCP_DEFER_ACCEPT, 5, 7),
            (TCP, libc::TCP_DEFER_ACCEPT, 1, 1),
            (TCP, libc::TCP_DEFER_ACCEPT, 128, 247),
            (TCP, libc::TCP_DEFER_ACCEPT, -1, 0),
            (TCP, libc::TCP_LINGER2, -1, -1),
            (TCP, libc::TCP_LINGER2, 5, 5),
            (IP, libc::IP_TOS, 3, 0),
            (IP, libc::IP_TOS, 0x128, 0x28),
            (IPV6, libc::IPV6_TCLASS, 0x2b, 0x28),
            (IPV6, libc::IPV6_TCLASS, -1, 0),
        ] {
            machine.set_option(fd, level, name, &number(value)).unwrap();
            let read_as = if name == libc::SO_SNDBUFFORCE { libc::SO_SNDBUF } else { name };
            assert_eq!(machine.option(fd, level, read_as), Ok(number(read)), "{level} {name} {value}");
        }
        assert_eq!(machine.set_option(fd, IPV6, libc::IPV6_TCLASS, &number(256)), Err(INVALID));
    }

    #[test]
    fn options_that_mean_nothing_are_refused() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let v4 = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let udp = machine.socket(libc::AF_INET6, libc::SOCK_DGRAM, 0).unwrap();
        for (fd, level, name) in
            [(v4, IPV6, libc::IPV6_TCLASS), (v4, IPV6, libc::IPV6_V6ONLY), (udp, TCP, libc::TCP_NODELAY)]
        {
            let refused = machine.set_option(fd, level, name, &number(0));
            assert_eq!(refused, Err(Errno(libc::ENOPROTOOPT)), "{level} {name}");
        }
        assert_eq!(machine.option(v4, IPV6, libc::IPV6_TCLASS), Err(Errno(libc::ENOPROTOOPT)));
        let bound = machine.socket(libc::AF_INET6, libc::SOCK_STREAM, 0).unwrap();
        machine.bind(bound, "[::]:80".parse().unwrap()).unwrap();
        assert_eq!(machine.set_option(bound, IPV6, libc::IPV6_V6ONLY, &number(1)), Err(INVALID));
    }

    #[test]
    fn what_a_listener_asks_of_its_handshakes_is_not_its_connections() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let (fd, to) = listener(&mut machine);
        for name in [libc::TCP_DEFER_ACCEPT, libc::TCP_FASTOPEN] {
            machine.set_option(fd, TCP, name, &number(1)).unwrap();
        }
        machine.fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).unwrap();
        let client = connected(&mut machine, to);
        machine.send(client, b"x", 0, None).unwrap();
        machine.run();
        let (child, _) = machine.accept(fd).unwrap();
        for name in [libc::TCP_DEFER_ACCEPT, libc::TCP_FASTOPEN] {
            assert_eq!(machine.option(child, TCP, name), Ok(number(0)), "{name}");
        }
        assert_eq!(machine.fcntl(child, libc::F_GETFD, 0), Ok(0));
    }

    #[test]
    fn options_that_linux_takes_are_taken() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let fd = machine.socket(libc::AF_INET6, libc::SOCK_STREAM, 0).unwrap();
        for (level, name, value, read) in [
            (TCP, libc::TCP_MAXSEG, 0, 536),
            (TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, 1, 1),
            (TCP, libc::TCP_THIN_DUPACK, 1, 0),
            (IPV6, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE, libc::IP_PMTUDISC_PROBE),
        ] {
            machine.set_option(fd, level, name, &number(value)).unwrap();
            assert_eq!(machine.option(fd, level, name), Ok(number(read)), "{name}");
        }
        for (level, name, value) in
            [(TCP, libc::TCP_MAXSEG, 87), (TCP, libc::TCP_THIN_DUPACK, 2), (IPV6, libc::IPV6_MTU_DISCOVER, 6)]
        {
            assert_eq!(machine.set_option(fd, level, name, &number(value)), Err(INVALID), "{name}");
        }
        assert_eq!(machine.option(fd, IPV6, libc::IPV6_MTU), Err(Errno(libc::ENOTCONN)));
    }

    #[test]
    fn a_connection_has_the_headers_of_its_protocol_whatever_its_socket_is() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let fd = machine.socket(libc::AF_INET6, libc::SOCK_STREAM, 0).unwrap();
        machine.bind(fd, "[::]:8080".parse().unwrap()).unwrap();
        for (level, name, value) in [
            (IP, libc::IP_TOS, 0x28),
            (IP, libc::IP_TTL, 9),
            (IPV6, libc::IPV6_TCLASS, 0x48),
            (IPV6, libc::IPV6_UNICAST_HOPS, 8),
        ] {
            machine.set_option(fd, level, name, &number(value)).unwrap();
        }
        machine.listen(fd, 1).unwrap();
        connected(&mut machine, "127.0.0.1:8080".parse().unwrap());
        let (child, _) = machine.accept(fd).unwrap();
        let limits = |machine: &Machine| {
            let limits = machine.host.stack.connection_limits(machine.connection(child).unwrap()).unwrap();
            (limits.traffic_class, limits.hop_limit.map(NonZeroU8::get))
        };
        assert_eq!(limits(&machine), (0x28, Some(9)));
        machine.set_option(child, IPV6, libc::IPV6_TCLASS, &number(0x50)).unwrap();
        assert_eq!(limits(&machine), (0x28, Some(9)));
        machine.set_option(child, IP, libc::IP_TOS, &number(0x50)).unwrap();
        assert_eq!(limits(&machine), (0x50, Some(9)));
    }

    #[test]
    fn who_asks_for_no_path_mtu_discovery_is_not_refused() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let fd = machine.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        machine.set_option(fd, IP, libc::IP_MTU_DISCOVER, &[0]).unwrap();
        assert_eq!(machine.option(fd, IP, libc::IP_MTU_DISCOVER).unwrap(), number(libc::IP_PMTUDISC_DONT));
    }
}
