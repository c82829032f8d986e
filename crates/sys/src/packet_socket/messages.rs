//! Sending many packets with one system call, without an allocation: sendmmsg(2).
//!
//! A transmit ring (`PACKET_TX_RING`) sent between 0.9 and 1.25 times as many packets over a veth, 64 and 1514 bytes long, on
//! a busy machine: too little for what it takes away. Its slots have one size, which would have to be 64 KiB for
//! super-segments; it sends one piece only; and its packets are in flight until the receiver lets go of them.

#![expect(unsafe_code, reason = "messages point to the bytes they send: this file ties them to a borrow")]

use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::io::Errno;

use super::PacketSocket;

/// Memory for messages, used again and again.
#[derive(Debug)]
pub struct Messages {
    messages: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers in it are those of the last `Filling`, which is over: nobody follows them.
unsafe impl Send for Messages {}

impl Messages {
    /// Room for so many messages of so many pieces together; it grows when more are filled in.
    #[must_use]
    pub fn with_capacity(messages: usize, pieces: usize) -> Self {
        Self { messages: Vec::with_capacity(messages), pieces: Vec::with_capacity(pieces) }
    }

    /// Begins a row of messages.
    pub fn fill(&mut self) -> Filling<'_> {
        self.messages.clear();
        self.pieces.clear();
        Filling { memory: self, bytes: PhantomData }
    }
}

/// Messages being filled in, and sent.
#[derive(Debug)]
pub struct Filling<'a> {
    memory: &'a mut Messages,
    /// Whatever was added stays borrowed.
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Filling<'a> {
    /// Adds a message that is made of `pieces`, one after the other.
    pub fn add(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let before = self.memory.pieces.len();
        self.memory.pieces.extend(
            pieces.map(|piece| libc::iovec {
                iov_base: piece.as_ptr().cast_mut().cast(),
                iov_len: piece.len(),
            }),
        );
        // SAFETY: mmsghdr is integers and pointers: zeroes are a value.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iovlen = (self.memory.pieces.len() - before) as _;
        self.memory.messages.push(message);
    }

    /// Sends the messages from number `first` on, as many as the kernel takes, and returns how many that were. It does
    /// not wait.
    ///
    /// # Errors
    /// Why not even the message `first` was sent: `AGAIN` when there is no room now; `NETDOWN` when the interface is down,
    /// and once more after that when it is up again, unless [`PacketSocket::take_error`] has taken it; everything else is
    /// that message's own fault or the interface's, and will not pass by waiting.
    pub fn send(&mut self, socket: &PacketSocket, first: usize) -> Result<usize, Errno> {
        let mut at = 0;
        for message in &mut self.memory.messages {
            let n: usize = message.msg_hdr.msg_iovlen as _;
            message.msg_hdr.msg_iov = self.memory.pieces.get_mut(at).map_or(ptr::null_mut(), ptr::from_mut);
            at += n;
        }
        let Some(messages) = self.memory.messages.get_mut(first..) else { return Ok(0) };
        let count = libc::c_uint::try_from(messages.len()).unwrap_or(libc::c_uint::MAX);
        let file = socket.file.as_raw_fd();
        // SAFETY: `messages` are `count` headers; each points to `msg_iovlen` pieces in `pieces`, as `add` counted them,
        // and each piece to bytes that `self` borrows. The kernel reads them and writes only `msg_len`.
        let sent = unsafe { libc::sendmmsg(file, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
        usize::try_from(sent)
            .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}
