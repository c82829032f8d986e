//! Messages of the vfio-user protocol, version 0.1: a command and its reply, over a Unix socket.
//!
//! Every reply is looked at: its number, its size, its error. One that does not come within [`PATIENCE`], or that is not
//! what the protocol says, ends the connection: what follows could not be told apart any more.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a connection that the other side has closed means.
const ENDED: &str = "the process behind the socket has ended";

/// Bytes of a header: number, command, size, flags, error.
const HEADER: usize = 16;

/// Most bytes of a reply that we ever wait for.
const MOST: usize = 8192;

/// Bits of a header's flags.
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// Commands, by their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceInfo = 4,
    RegionInfo = 5,
    IrqInfo = 7,
    SetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    DeviceReset = 13,
}

/// A connection to a device.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    next: u16,
    /// Room for a message: the hot path allocates nothing.
    out: Vec<u8>,
    /// A reply was missing or wrong: nothing can be said or believed any more.
    is_broken: bool,
}

impl Connection {
    /// Connects, and agrees on the protocol's version.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut connection = Self { stream, next: 0, out: Vec::with_capacity(256), is_broken: false };
        // Version 0.1. The other side may send one file with a message.
        let mut body = [0_u16.to_le_bytes(), 1_u16.to_le_bytes()].concat();
        body.extend(br#"{"capabilities":{"max_msg_fds":1}}"#);
        body.push(0);
        let (reply, _) = connection.call(Command::Version, &body, None)?;
        match reply.first_chunk::<4>() {
            Some([0, 0, ..]) => Ok(connection),
            _ => Err(connection.breaks("it speaks another version of vfio-user than 0")),
        }
    }

    /// Sends a command, with a file if it has one, and waits for the reply: its body, and the file that came with it.
    pub(super) fn call(
        &mut self,
        command: Command,
        body: &[u8],
        file: Option<BorrowedFd<'_>>,
    ) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let number = self.send(command, body, file, 0)?;
        let mut header = [0; HEADER];
        let with = self.receive(&mut header)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = header;
        let size = u32::from_le_bytes([e, f, g, h]) as usize;
        let flags = u32::from_le_bytes([i, j, k, l]);
        let right = u16::from_le_bytes([a, b]) == number
            && u16::from_le_bytes([c, d]) == command as u16
            && flags & 0xf == REPLY
            && (HEADER..=MOST).contains(&size);
        if !right {
            return Err(self.breaks("its reply is not to what was asked"));
        }
        let mut reply = vec![0; size - HEADER];
        self.receive(&mut reply)?;
        if flags & ERROR != 0 {
            // Some devices say that there was an error, but not which.
            let number = i32::from_le_bytes([m, n, o, p]);
            return Err(if number > 0 {
                io::Error::from_raw_os_error(number)
            } else {
                io::Error::other("the device refused, and does not say why")
            });
        }
        Ok((reply, with))
    }

    /// Sends a command that is not answered.
    pub(super) fn post(&mut self, command: Command, body: &[u8]) -> io::Result<()> {
        self.send(command, body, None, NO_REPLY).map(|_| ())
    }

    /// Sends a message, and returns its number.
    fn send(
        &mut self,
        command: Command,
        body: &[u8],
        file: Option<BorrowedFd<'_>>,
        flags: u32,
    ) -> io::Result<u16> {
        if self.is_broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.next = self.next.wrapping_add(1);
        let size = u32::try_from(HEADER + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.out.clear();
        self.out.extend(self.next.to_le_bytes());
        self.out.extend((command as u16).to_le_bytes());
        self.out.extend(size.to_le_bytes());
        self.out.extend(flags.to_le_bytes());
        self.out.extend(0_u32.to_le_bytes());
        self.out.extend(body);
        let mut done = 0;
        while done < self.out.len() {
            let files = [file].into_iter().flatten().collect::<arrayvec::ArrayVec<_, 1>>();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // With the first byte only.
            if done == 0 && !files.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&files));
            }
            let rest = [IoSlice::new(&self.out[done..])];
            match sendmsg(&self.stream, &rest, &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => done += sent,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(self.breaks(ENDED)),
                Err(error) => {
                    self.is_broken = true;
                    return Err(error.into());
                }
            }
        }
        Ok(self.next)
    }

    /// Receives exactly so many bytes, and a file if one comes with them.
    fn receive(&mut self, to: &mut [u8]) -> io::Result<Option<OwnedFd>> {
        let (mut done, mut file) = (0, None);
        while done < to.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut rest = [IoSliceMut::new(&mut to[done..])];
            match recvmsg(&self.stream, &mut rest, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) if received.bytes == 0 => return Err(self.breaks(ENDED)),
                Err(Errno::CONNRESET) => return Err(self.breaks(ENDED)),
                Ok(received) => done += received.bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    return Err(self.breaks("the process behind the socket does not answer"));
                }
                Err(error) => {
                    self.is_broken = true;
                    return Err(error.into());
                }
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    file = files.last().or(file);
                }
            }
        }
        Ok(file)
    }

    fn breaks(&mut self, why: &'static str) -> io::Error {
        self.is_broken = true;
        io::Error::other(why)
    }
}
