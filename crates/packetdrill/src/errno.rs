//! Errors as system calls tell them.

use bywash_stack::{CloseReason, TcpError, UdpError, Unreachable};

/// One of `libc`'s `E...` numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Would block.
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);

impl From<TcpError> for Errno {
    fn from(error: TcpError) -> Self {
        Self(match error {
            TcpError::Taken => libc::EADDRINUSE,
            TcpError::Exists | TcpError::Waits | TcpError::NoPort => libc::EADDRNOTAVAIL,
            TcpError::NoRoute | TcpError::NoHost => libc::ENETUNREACH,
            TcpError::TooMany => libc::ENOBUFS,
            TcpError::Closed => libc::ENOTCONN,
            TcpError::Shutdown => libc::EPIPE,
        })
    }
}

impl From<UdpError> for Errno {
    fn from(error: UdpError) -> Self {
        Self(match error {
            UdpError::Taken => libc::EADDRINUSE,
            UdpError::NoPort => libc::EADDRNOTAVAIL,
            UdpError::Closed => libc::EBADF,
            UdpError::NoDestination => libc::EDESTADDRREQ,
            UdpError::NoRoute(_) => libc::ENETUNREACH,
            UdpError::TooLong => libc::EMSGSIZE,
            UdpError::NoMemory => libc::ENOBUFS,
            UdpError::Unreachable(why) => return unreachable(why),
        })
    }
}

/// What an ICMP error is for a program (Linux's `icmp_err_convert`).
pub(crate) fn unreachable(why: Unreachable) -> Errno {
    Errno(match why {
        Unreachable::Network => libc::ENETUNREACH,
        Unreachable::Protocol => libc::ENOPROTOOPT,
        Unreachable::Port => libc::ECONNREFUSED,
        Unreachable::TooBig(_) => libc::EMSGSIZE,
        Unreachable::Parameter { .. } => libc::EPROTO,
        Unreachable::Scope => libc::ENETUNREACH,
        Unreachable::Host | Unreachable::TimeExceeded | Unreachable::Reassembly => libc::EHOSTUNREACH,
    })
}

/// Why a connection ended, for a program; nothing when it ended as it should.
pub(crate) fn closed(reason: CloseReason, peer_closed: bool, soft: Option<Errno>) -> Option<Errno> {
    match reason {
        CloseReason::Done => None,
        // After the peer's FIN there is nothing more to lose (Linux's tcp_reset).
        CloseReason::Reset if peer_closed => Some(Errno(libc::EPIPE)),
        CloseReason::Reset => Some(Errno(libc::ECONNRESET)),
        CloseReason::Refused => Some(Errno(libc::ECONNREFUSED)),
        CloseReason::TimedOut => Some(soft.unwrap_or(Errno(libc::ETIMEDOUT))),
    }
}
