//! Options and questions of the kernel's TCP sockets that rustix has no function for (tcp(7)).

#![expect(
    unsafe_code,
    reason = "setsockopt(IPPROTO_TCP) is not all in rustix, and ioctl(SIOCOUTQ) is not there"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// An option whose value is one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// `TCP_MAXSEG`: the largest segment, bytes of payload.
    MaxSegment,
    /// `TCP_NOTSENT_LOWAT`: bytes that may wait to be sent for the first time.
    Unsent,
    /// `TCP_SYNCNT`: how often a SYN is sent again.
    SynRetries,
    /// `TCP_LINGER2`: seconds in FIN-WAIT-2 without a program.
    FinTimeout,
}

/// Sets an option.
///
/// # Errors
/// What setsockopt(2) says: `EINVAL` for a value that the kernel does not take.
pub fn set(socket: impl AsFd, option: TcpOption, value: u32) -> io::Result<()> {
    let name = match option {
        TcpOption::MaxSegment => libc::TCP_MAXSEG,
        TcpOption::Unsent => libc::TCP_NOTSENT_LOWAT,
        TcpOption::SynRetries => libc::TCP_SYNCNT,
        TcpOption::FinTimeout => libc::TCP_LINGER2,
    };
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` is four bytes that live until the call returns, and four is what it is told.
    let done = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, name, (&raw const value).cast(), 4) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `SIOCOUTQ`: bytes that a connection was given to send and whose acknowledgment has not come, a FIN among them as one.
///
/// # Errors
/// What ioctl(2) says: `EINVAL` for a listener.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes an `int` there, which lives until the call returns. SIOCOUTQ has TIOCOUTQ's number.
    let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ as _, &raw mut bytes) };
    if done == 0 { Ok(u32::try_from(bytes).unwrap_or_default()) } else { Err(io::Error::last_os_error()) }
}
