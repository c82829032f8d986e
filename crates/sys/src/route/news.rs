//! Word that something about a link has changed, so that nobody has to look again and again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::netlink::NetlinkError;

/// `RTMGRP_LINK`: links that come, go and change.
const LINKS: u32 = 1;

/// Hears of every change of a link in one network namespace: the one it was opened in, whichever thread uses it. It becomes
/// readable then. What has changed is to be looked up with [`Route::link_at`](super::Route::link_at).
#[derive(Debug)]
pub struct LinkNews {
    fd: OwnedFd,
}

impl LinkNews {
    /// Listens in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel has no rtnetlink or this process has too many files open.
    pub fn open() -> Result<Self, NetlinkError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, LINKS))?;
        Ok(Self { fd })
    }

    /// Whether there was any since the last call.
    pub fn take(&mut self) -> bool {
        let mut any = false;
        loop {
            // Nothing of what it says is used, so of each message a byte is enough.
            match retry_on_intr(|| rustix::net::recv(&self.fd, &mut [0; 1][..], RecvFlags::empty())) {
                Ok(_) => any = true,
                // More came than there was room for: there was some all the same.
                Err(rustix::io::Errno::NOBUFS) => any = true,
                Err(_) => return any,
            }
        }
    }
}

impl AsFd for LinkNews {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
