//! Urgent data as Linux's programs see it: one byte beside the stream, the last before the peer's mark, unless `SO_OOBINLINE`
//! leaves it there. Reading stops before it. For the stack it is a byte of the stream like the others (RFC 6093).

use bywash_stack::ConnectionId;

use crate::errno::{AGAIN, INVALID, Result};
use crate::machine::Machine;
use crate::sockets::{Kind, Socket};

impl Machine {
    /// How many bytes can be read before the urgent one, if there is one (perhaps only announced).
    pub(crate) fn before_urgent(&self, id: ConnectionId) -> Option<usize> {
        let urgent = self.host.stack.urgent_bytes(id).unwrap_or(0);
        usize::try_from(urgent).unwrap_or(usize::MAX).checked_sub(1)
    }

    /// The same, where that byte is not one of those that are read.
    pub(crate) fn out_of_band(&self, socket: &Socket, id: ConnectionId) -> Option<usize> {
        self.before_urgent(id).filter(|_| !socket.is_on(libc::SOL_SOCKET, libc::SO_OOBINLINE))
    }

    /// The urgent byte, if it has come and nobody has read it.
    pub(crate) fn urgent_byte(&self, id: ConnectionId) -> Option<u8> {
        let before = self.before_urgent(id)?;
        let unread = self.links.get(&id).is_some_and(|link| !link.urgent_read);
        self.host.stack.readable(id).ok()?.flatten().nth(before).copied().filter(|_| unread)
    }

    /// `recv` with `MSG_OOB`; it never waits.
    pub(crate) fn receive_urgent(&mut self, fd: i32, parts: &mut [&mut [u8]], flags: i32) -> Result<usize> {
        let socket = self.sockets.get(fd)?;
        let Kind::Stream(id) = socket.kind else { return Err(INVALID) };
        let read = self.links.get(&id).is_none_or(|link| link.urgent_read);
        if read || self.out_of_band(socket, id).is_none() {
            return Err(INVALID);
        }
        let byte = self.urgent_byte(id).ok_or(AGAIN)?;
        if flags & libc::MSG_PEEK == 0
            && let Some(link) = self.links.get_mut(&id)
        {
            link.urgent_read = true;
        }
        let place = parts.iter_mut().find_map(|part| part.first_mut());
        Ok(place.map_or(0, |place| {
            *place = byte;
            1
        }))
    }
}
