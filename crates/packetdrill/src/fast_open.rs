//! TCP Fast Open (RFC 7413), as Linux's programs ask for it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bywash_stack::{ConnectionId, FastOpenClient, FastOpenKeys, FastOpenServer};

use crate::errno::{AGAIN, Errno, INVALID, Result};
use crate::machine::Machine;
use crate::shared::{Patience, Shared};
use crate::sockets::{Kind, Socket, plain};

// Bits of `net.ipv4.tcp_fastopen` (`include/net/tcp.h`).
pub(crate) const CLIENT: u32 = 1;
pub(crate) const SERVER: u32 = 2;
/// Connections send data without a cookie.
const CLIENT_NO_COOKIE: u32 = 4;
/// Listeners take data without a cookie.
const SERVER_NO_COOKIE: u32 = 0x200;
/// Listeners take Fast Open that have not asked for it.
pub(crate) const UNASKED: u32 = 0x400;

// `include/uapi/linux/tcp.h`; not in `libc` for all.
pub(crate) const TCP_FASTOPEN_CONNECT: i32 = 30;
pub(crate) const TCP_FASTOPEN_KEY: i32 = 33;
pub(crate) const TCP_FASTOPEN_NO_COOKIE: i32 = 34;

impl Shared {
    /// What sending does first where it opens a connection: how many bytes went with the SYN, and whether others are to follow.
    pub(crate) fn open_by_sending(
        &self,
        patience: Patience,
        fd: i32,
        (bytes, flags): (&[u8], i32),
        to: Option<SocketAddr>,
    ) -> Result<(usize, bool)> {
        let opening = self.with(|machine| machine.send_opening(fd, bytes, flags, to))?;
        let Some((id, mut begun)) = opening else { return Ok((0, true)) };
        if patience != Patience::None {
            // Linux knows that somebody waits to send more, and so do we if the stack has it.
            begun += self.with(|machine| machine.send_later(id, &bytes[begun..]));
        }
        match self.call(|_| patience, |machine| machine.connecting(fd, id)) {
            // Nobody waits, or the time is over.
            Err(AGAIN) if begun > 0 => Ok((begun, false)),
            Err(AGAIN) => Err(Errno(libc::EINPROGRESS)),
            result => result.map(|()| (begun, begun < bytes.len())),
        }
    }
}

impl Machine {
    /// Tells the stack how a listener takes Fast Open.
    pub(crate) fn take_fast_open(&mut self, fd: i32) -> Result<()> {
        let socket = self.sockets.get(fd)?;
        let Kind::Listener { id, .. } = socket.kind else { return Ok(()) };
        let (bits, how) = (self.flags.fast_open(), socket.options.fast_open);
        let how = FastOpenServer {
            pending: if bits & SERVER != 0 { how.pending } else { 0 },
            keys: how.keys.or_else(|| self.flags.fast_open_keys()),
            cookieless: how.cookieless || bits & SERVER_NO_COOKIE != 0,
        };
        self.host.stack.set_fast_open(id, how);
        Ok(())
    }

    /// `TCP_FASTOPEN` and `TCP_FASTOPEN_NO_COOKIE`, of a socket that is no connection.
    pub(crate) fn set_fast_open(&mut self, fd: i32, name: i32, value: i32) -> Result<()> {
        let socket = self.sockets.get_mut(fd)?;
        let Some(pending) = usize::try_from(value).ok().filter(|_| !matches!(socket.kind, Kind::Stream(_)))
        else {
            return Err(INVALID);
        };
        match name {
            libc::TCP_FASTOPEN => socket.options.fast_open.pending = pending,
            _ if pending > 1 => return Err(INVALID),
            _ => socket.options.fast_open.cookieless = pending == 1,
        }
        self.take_fast_open(fd)
    }

    /// `TCP_FASTOPEN_CONNECT`, of a socket that is nothing yet.
    pub(crate) fn set_fast_open_connect(&mut self, fd: i32, value: i32) -> Result<()> {
        let allowed = self.flags.fast_open() & CLIENT != 0;
        let socket = self.sockets.get_mut(fd)?;
        let fresh = matches!(socket.kind, Kind::Fresh) && socket.deferred.is_none();
        match value {
            0 | 1 if !allowed => Err(Errno(libc::EOPNOTSUPP)),
            0 | 1 if fresh => {
                socket.options.fast_open_connect = value == 1;
                Ok(())
            }
            _ => Err(INVALID),
        }
    }

    /// Whether a socket's connection has data in its SYN without a cookie.
    fn needs_no_cookie(&self, fd: i32) -> Result<bool> {
        let asked = self.sockets.get(fd)?.options.fast_open.cookieless;
        Ok(asked || self.flags.fast_open() & CLIENT_NO_COOKIE != 0)
    }

    /// `connect` with `TCP_FASTOPEN_CONNECT`: where the SYN could have data, it waits for that.
    pub(crate) fn connect_later(&mut self, fd: i32, to: SocketAddr) -> Result<()> {
        self.sockets.get(fd)?.takes(to)?;
        let cookieless = self.needs_no_cookie(fd)?;
        let remote = plain(to).unwrap_or(IpAddr::from(Ipv4Addr::LOCALHOST).into());
        let socket = self.sockets.get_mut(fd)?;
        let local = socket.local.and_then(|(local, _)| local);
        if cookieless || self.host.stack.has_fast_open_cookie(self.now, local, remote) {
            socket.deferred = Some(to);
            return Ok(());
        }
        self.begin(fd, to, Some(FastOpenClient { data: &[], cookieless }))?;
        Err(Errno(libc::EINPROGRESS))
    }

    /// Sending with `MSG_FASTOPEN`, or on a socket whose connection waits for that (Linux's `tcp_sendmsg_fastopen`): the connection that
    /// has begun, and how many bytes its SYN has. `None`: there is one, and all is to be sent as usual.
    pub(crate) fn send_opening(
        &mut self,
        fd: i32,
        bytes: &[u8],
        flags: i32,
        to: Option<SocketAddr>,
    ) -> Result<Option<(ConnectionId, usize)>> {
        let socket = self.sockets.get(fd)?;
        let asked = flags & libc::MSG_FASTOPEN != 0;
        if !(asked || socket.deferred.is_some()) {
            return Ok(None);
        }
        let unspecified = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let refused = asked && (self.flags.fast_open() & CLIENT == 0 || to == Some(unspecified));
        match socket.kind {
            Kind::Fresh | Kind::Stream(_) | Kind::Listener { .. } if refused => Err(Errno(libc::EOPNOTSUPP)),
            Kind::Fresh => {
                let to = socket.deferred.or(to).ok_or(INVALID)?;
                let cookieless = self.needs_no_cookie(fd)?;
                self.begin(fd, to, Some(FastOpenClient { data: bytes, cookieless })).map(Some)
            }
            Kind::Stream(_) if socket.connected => Err(Errno(libc::EISCONN)),
            Kind::Stream(id) => match self.connecting(fd, id) {
                Err(AGAIN) => Err(Errno(libc::EALREADY)),
                result => result.map(|()| None),
            },
            Kind::Listener { .. } => Err(Errno(libc::EISCONN)),
            _ => Ok(None),
        }
    }

    /// Queues what is to follow a handshake that is under way, and says how many bytes.
    fn send_later(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        // A connection that has failed meanwhile says so to who waits for it.
        let n = self.host.stack.send(self.now, id, bytes, &mut self.pool).unwrap_or(0);
        self.links.entry(id).or_default().written += n as u64;
        n
    }

    /// `TCP_FASTOPEN_KEY`: a key, or one and the one before.
    pub(crate) fn set_fast_open_key(&mut self, fd: i32, bytes: &[u8]) -> Result<()> {
        let (keys, rest) = bytes.as_chunks::<16>();
        let keys = match keys {
            [primary] => FastOpenKeys { primary: *primary, backup: None },
            [primary, backup] => FastOpenKeys { primary: *primary, backup: Some(*backup) },
            _ => return Err(INVALID),
        };
        if !rest.is_empty() {
            return Err(INVALID);
        }
        self.sockets.get_mut(fd)?.options.fast_open.keys = Some(keys);
        self.take_fast_open(fd)
    }

    /// The keys that a listener would have.
    pub(crate) fn fast_open_key(&self, socket: &Socket) -> Vec<u8> {
        let keys = socket.options.fast_open.keys.or_else(|| self.flags.fast_open_keys());
        keys.map_or(Vec::new(), |keys| {
            [&keys.primary[..], keys.backup.as_ref().map_or(&[], |key| &key[..])].concat()
        })
    }
}
