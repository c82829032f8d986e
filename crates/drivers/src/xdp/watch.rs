//! Whether the interface is still there, and the way back into it.

use std::sync::{Mutex, PoisonError};

use bywash_port::Counter;
use bywash_sys::interface::Interface;
use bywash_sys::route::Route;

/// Looks in the network namespace that the port was opened in, whichever thread asks.
pub(super) struct Watch {
    route: Mutex<Route>,
    interface: u32,
    back: Option<u32>,
}

impl Watch {
    /// For an interface, and the TAP interface by which packets go back into it if there is one.
    pub(super) fn open(interface: &Interface, back: Option<u32>) -> Result<Self, String> {
        let route = Mutex::new(Route::open().map_err(|error| error.to_string())?);
        Ok(Self { route, interface: interface.index, back })
    }

    /// What is lost for good: sockets of an interface that was deleted, or moved to another namespace, get nothing any more, and
    /// what is written to a TAP that is down is lost.
    pub(super) fn counters(&self) -> [Counter; 2] {
        let mut route = self.route.lock().unwrap_or_else(PoisonError::into_inner);
        // When the kernel does not answer, nothing is known to be wrong.
        let mut is_lost = |index: u32, must_be_up: bool| match route.link_at(index) {
            Ok(link) => !link.is_some_and(|link| link.up || !must_be_up),
            Err(_) => false,
        };
        let counter = |name, is_so: bool| Counter { name, value: u64::from(is_so) };
        let interface = is_lost(self.interface, false);
        let back = self.back.is_some_and(|back| is_lost(back, true));
        [counter("interface_gone", interface), counter("way_back_gone", back)]
    }
}
