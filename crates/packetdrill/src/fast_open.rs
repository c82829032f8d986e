//! TCP Fast Open (RFC 7413), as Linux's programs ask for it.

use bywash_stack::{FastOpenKeys, FastOpenServer};

use crate::errno::{INVALID, Result};
use crate::machine::Machine;
use crate::sockets::{Kind, Socket};

// Bits of `net.ipv4.tcp_fastopen` (`include/net/tcp.h`).
pub(crate) const CLIENT: u32 = 1;
pub(crate) const SERVER: u32 = 2;
/// Listeners take data without a cookie.
const SERVER_NO_COOKIE: u32 = 0x200;
/// Listeners take Fast Open that have not asked for it.
pub(crate) const UNASKED: u32 = 0x400;

// `include/uapi/linux/tcp.h`; not in `libc` for all.
pub(crate) const TCP_FASTOPEN_KEY: i32 = 33;
pub(crate) const TCP_FASTOPEN_NO_COOKIE: i32 = 34;

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
