//! Whether the kernel has let go of a queue.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Bind, Chunks, CopyMode, RingSizes, Socket};
use crate::shared::Mapping;

/// Finds out whether the kernel has let go of a queue's last socket and of its memory.
///
/// The kernel releases a closed socket's memory in deferred work, after the last packet in flight is freed; only then
/// can the queue be bound again. So a bind that works proves that nobody will touch that memory any more. Made when
/// the queue is opened, since the interface's number means something else in another network namespace.
#[derive(Debug)]
pub struct Probe {
    socket: Socket,
    interface: u32,
    queue: u32,
    /// What the probe registers; the kernel pins it for as long as it needs it.
    _memory: Arc<Mapping>,
}

impl Probe {
    /// A probe for a queue of an interface of this thread's network namespace.
    ///
    /// # Errors
    /// As [`Socket::new`] and [`Socket::register`].
    pub fn new(interface: u32, queue: u32) -> io::Result<Self> {
        const BYTES: usize = 4096;
        let socket = Socket::new()?;
        let memory = Mapping::anonymous(BYTES)?;
        socket.register_unchecked(memory.address(), BYTES, Chunks::Aligned)?;
        drop(socket.rings(&RingSizes { fill: 1, completion: 1, rx: 1, tx: 0 })?);
        Ok(Self { socket, interface, queue, _memory: memory })
    }

    /// Whether the queue was released, tried for `patience`; after that it is free for the next one.
    pub fn is_released(self, patience: Duration) -> bool {
        let to =
            Bind { interface: self.interface, queue: self.queue, mode: CopyMode::Copy, multi_buffer: false };
        self.socket.bind(&to, patience).is_ok()
    }
}
