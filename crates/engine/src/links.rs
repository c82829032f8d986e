//! The kernel's interfaces that ports are of. Their owner may change how long packets on them may be (`ip link set dev eth1 mtu
//! 1400`), and what is too long is lost there without a word; or their Ethernet address (`ip link set dev eth1 address …`), and
//! what comes to the old one is lost in the NIC. So the control hears of both.

use std::os::fd::{AsFd, BorrowedFd};

use bywash_stack::wire::Mac;
use bywash_stack::{Control, InterfaceId, Timestamp};
use bywash_sys::netlink::NetlinkError;
use bywash_sys::route::{LinkNews, Route};

/// An interface of the stack, and what its port began with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    pub(crate) interface: InterfaceId,
    /// The port was made for packets of that length, and takes no longer ones.
    pub(crate) mtu: u16,
    /// Whether the Ethernet address was that of the kernel's interface: a tap's is at the other end.
    pub(crate) kernels_mac: bool,
}

/// The same by the kernel's interface that the port is of.
#[derive(Debug)]
struct Watched {
    index: u32,
    began: Began,
}

/// Those that are watched.
#[derive(Debug)]
pub(crate) struct Links {
    route: Route,
    news: LinkNews,
    watched: Vec<Watched>,
    /// The kernel did not answer: it is asked again.
    unread: bool,
}

impl Links {
    /// Of these interfaces, each with the name of the kernel's. The control is told of those that have changed since.
    ///
    /// # Errors
    /// The kernel has no rtnetlink, or gives no more files.
    pub(crate) fn of(
        named: &[(&str, Began)],
        now: Timestamp,
        control: &mut Control,
    ) -> Result<Self, NetlinkError> {
        let (news, mut route) = (LinkNews::open()?, Route::open()?);
        let mut watched = Vec::with_capacity(named.len());
        for (name, began) in named {
            if let Some(link) = route.link(name)? {
                watched.push(Watched { index: link.index, began: *began });
            }
        }
        let mut links = Self { route, news, watched, unread: false };
        links.read(now, control);
        Ok(links)
    }

    /// Tells the control what has changed.
    pub(crate) fn look(&mut self, now: Timestamp, control: &mut Control) {
        if self.news.take() || self.unread {
            self.read(now, control);
        }
    }

    fn read(&mut self, now: Timestamp, control: &mut Control) {
        self.unread = false;
        for Watched { index, began } in &self.watched {
            let link = match self.route.link_at(*index) {
                Ok(Some(link)) => link,
                Ok(None) => continue,
                Err(_) => {
                    self.unread = true;
                    continue;
                }
            };
            // What IPv4 has no use for carries nothing.
            let mtu = u16::try_from(link.mtu).unwrap_or(u16::MAX).min(began.mtu);
            let _ = control.set_mtu(began.interface, mtu);
            // Many drivers want it changed while the link is down; everyone can be told when it is up. Who is nobody hears nothing.
            if let Some(mac) = link.mac.filter(|_| began.kernels_mac && link.running) {
                let _ = control.set_mac(now, began.interface, Mac(mac.0));
            }
        }
    }
}

impl AsFd for Links {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}
