//! What stays with the kernel whatever is taken: asked for at the start, and again while rules hold.

use std::collections::BTreeSet;

use bywash_filter::rules::OwnKey;
use bywash_filter::xdp::NeverTake;
use bywash_sys::interface;
use bywash_sys::route::Route;

use super::own;

/// Knows what is never taken in the network namespace that the port was opened in, whichever thread asks.
pub(super) struct Guard {
    route: Route,
    /// As it was at the start.
    never_take: NeverTake,
}

impl Guard {
    /// In the calling thread's network namespace, for the operator's session and those of others, of what comes in by `interface`. What
    /// could not be understood goes to `warnings`, and what is not spared.
    pub(super) fn open(interface: u32, warnings: &mut Vec<String>) -> Result<Self, String> {
        let mut route = Route::open().map_err(|error| error.to_string())?;
        let never = interface::never_take(&mut route).map_err(|error| error.to_string())?;
        warnings.extend(never.warnings);
        let sessions = never.ssh.iter().chain(&never.sessions);
        warnings
            .extend(interface::carried(&mut route, interface, sessions).map_err(|error| error.to_string())?);
        let operator = never.ssh.map(|ssh| (ssh.client, ssh.server));
        let sessions = never.sessions.iter().map(|ssh| (ssh.client, ssh.server)).collect();
        Ok(Self { route, never_take: NeverTake { gateways: never.gateways, operator, sessions } })
    }

    /// The MTU that an interface has now.
    pub(super) fn mtu(&mut self, interface: u32) -> Option<u32> {
        Some(self.route.link_at(interface).ok()??.mtu)
    }

    /// By what packets for the machine come in by an interface, where that is known.
    pub(super) fn own(&mut self, interface: u32) -> Option<BTreeSet<OwnKey>> {
        own::find(&mut self.route, interface).ok()
    }

    /// What is never taken, as it was at the start.
    pub(super) fn never_take(&self) -> &NeverTake {
        &self.never_take
    }

    /// The same with the default gateways that the machine has now. Sessions are those of the start: the processes by which they
    /// were found may have ended.
    pub(super) fn look(&mut self) -> Result<NeverTake, String> {
        let gateways = interface::gateways(&mut self.route).map_err(|error| error.to_string())?;
        Ok(NeverTake { gateways, ..self.never_take.clone() })
    }
}
