//! The kernel's interfaces that ports are of. Their owner may change how long packets on them may be (`ip link set dev eth1 mtu
//! 1400`), and what is too long is lost there without a word: so the control hears of it.

use std::os::fd::{AsFd, BorrowedFd};

use bywash_stack::{Control, InterfaceId};
use bywash_sys::netlink::NetlinkError;
use bywash_sys::route::{LinkNews, Route};

/// An interface of the stack, by the kernel's interface that its port is of.
#[derive(Debug)]
struct Watched {
    index: u32,
    interface: InterfaceId,
    /// What it began with: the port was made for packets of that length, and takes no longer ones.
    most: u16,
}

/// Those whose MTU is watched.
#[derive(Debug)]
pub(crate) struct Links {
    route: Route,
    news: LinkNews,
    watched: Vec<Watched>,
}

impl Links {
    /// Of these interfaces, each with the name of the kernel's and the MTU that its port was made for. The control is told of those
    /// that have changed since.
    ///
    /// # Errors
    /// The kernel has no rtnetlink, or gives no more files.
    pub(crate) fn of(
        named: &[(&str, InterfaceId, u16)],
        control: &mut Control,
    ) -> Result<Self, NetlinkError> {
        let (news, mut route) = (LinkNews::open()?, Route::open()?);
        let mut watched = Vec::with_capacity(named.len());
        for (name, interface, most) in named {
            if let Some(link) = route.link(name)? {
                watched.push(Watched { index: link.index, interface: *interface, most: *most });
            }
        }
        let mut links = Self { route, news, watched };
        links.read(control);
        Ok(links)
    }

    /// Tells the control what has changed.
    pub(crate) fn look(&mut self, control: &mut Control) {
        if self.news.take() {
            self.read(control);
        }
    }

    fn read(&mut self, control: &mut Control) {
        for Watched { index, interface, most } in &self.watched {
            // One that has gone has no MTU, and one that IPv4 has no use for carries nothing.
            if let Ok(Some(link)) = self.route.link_at(*index) {
                let mtu = u16::try_from(link.mtu).unwrap_or(u16::MAX).min(*most);
                let _ = control.set_mtu(*interface, mtu);
            }
        }
    }
}

impl AsFd for Links {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}
