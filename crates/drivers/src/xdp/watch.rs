//! Whether the interface is still there, the way back into it and the port's programs, and whether it has outgrown its port. What its
//! NIC does for the port it does again when it has been down.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bywash_port::Counter;
use bywash_sys::bpf::Link;
use bywash_sys::ethtool::Ethtool;
use bywash_sys::interface::Interface;
use bywash_sys::route::{self, Route};

use super::steered::Steered;

/// Looks in the network namespace that the port was opened in, whichever thread asks. The kernel answers under its lock of interfaces
/// (RTNL), which others may hold for seconds.
pub(super) struct Watch {
    route: Mutex<Route>,
    ethtool: Ethtool,
    interface: u32,
    back: Option<u32>,
    /// How many receive queues there were, of a port that has all of them.
    queues: Option<u32>,
    /// What the NIC does for the port.
    steered: Weak<Mutex<Steered>>,
    /// How often the carrier had changed when all of that was there.
    carrier_changes: AtomicU32,
    /// Somebody looks by himself, and others go by what is found.
    apart: AtomicBool,
    /// What the last look has found to be lost, in the order of [`COUNTERS`].
    lost: [AtomicBool; COUNTERS.len()],
    /// Why the NIC does not do for the port what it did, when two looks have found it so. Once may be while its driver begins.
    steering: Mutex<Option<String>>,
}

const COUNTERS: [&str; 4] = ["interface_gone", "way_back_gone", "program_gone", "steering_lost"];

impl Watch {
    /// For an interface, the TAP interface by which packets go back into it if there is one, its receive queues if the port has all
    /// of them, and what its NIC does for the port.
    pub(super) fn open(
        interface: &Interface,
        back: Option<u32>,
        queues: Option<u32>,
        steered: &Arc<Mutex<Steered>>,
    ) -> Result<Self, String> {
        let route = Mutex::new(Route::open().map_err(|error| error.to_string())?);
        let ethtool = Ethtool::open().map_err(|error| error.to_string())?;
        Ok(Self {
            route,
            ethtool,
            interface: interface.index,
            back,
            queues,
            steered: Arc::downgrade(steered),
            carrier_changes: AtomicU32::default(),
            apart: AtomicBool::default(),
            lost: Default::default(),
            steering: Mutex::default(),
        })
    }

    /// What is lost for good: sockets of an interface that was deleted, or moved to another namespace, get nothing any more, and
    /// what is written to a TAP that is down is lost. So is the work of a program that somebody else has detached (`bpftool link
    /// detach`), whose link stays with us.
    pub(super) fn look(&self, programs: &[Arc<Link>]) {
        // Before the interface: when that goes, its programs go with it, and it is what has to be told.
        let is_detached = |link: &Arc<Link>| link.info().is_ok_and(|info| info.interface == 0);
        let program = programs.iter().any(is_detached);
        let mut route = self.route.lock().unwrap_or_else(PoisonError::into_inner);
        // When the kernel does not answer, nothing is known to be wrong.
        let here = route.link_at(self.interface);
        let interface = here.as_ref().is_ok_and(Option::is_none);
        let back = self
            .back
            .is_some_and(|back| route.link_at(back).is_ok_and(|link| !link.is_some_and(|link| link.up)));
        drop(route);
        let steering = here.ok().flatten().and_then(|link| self.renew(&link).err());
        let [.., lost] = &self.lost;
        let was_lost = lost.load(Ordering::Relaxed);
        for (lost, now) in self.lost.iter().zip([interface, back, program, steering.is_some()]) {
            lost.store(now, Ordering::Relaxed);
        }
        let lasts =
            steering.filter(|_| was_lost).map(|why| format!("{why}; it is tried again until it works"));
        *self.steering.lock().unwrap_or_else(PoisonError::into_inner) = lasts;
    }

    /// Some drivers (Linux's ixgbe) forget n-tuple rules when their interface goes down. Returns why not all of them could be added
    /// again: then that is tried at the next look.
    fn renew(&self, link: &route::Link) -> Result<(), String> {
        let Some(steered) = self.steered.upgrade() else { return Ok(()) };
        // Who goes down loses the carrier, if there was one. Else somebody else has removed a rule that is missing, and wants that so.
        if !link.up || self.carrier_changes.load(Ordering::Relaxed) == link.carrier_changes {
            return Ok(());
        }
        // By the name that it has now: another one may have that of the start.
        steered.lock().unwrap_or_else(PoisonError::into_inner).renew(&link.name)?;
        self.carrier_changes.store(link.carrier_changes, Ordering::Relaxed);
        Ok(())
    }

    /// Why the NIC does not do for the port what it did.
    pub(super) fn lost_steering(&self) -> Option<String> {
        self.steering.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on somebody looks apart from those who ask for the counters.
    pub(super) fn is_apart(&self) {
        self.apart.store(true, Ordering::Relaxed);
    }

    /// Who looks at another one looks at this one next.
    pub(super) fn follow(&self, other: &Self) {
        self.apart.store(other.apart.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// What is lost by now or, where somebody looks apart, was so at the last look.
    pub(super) fn counters(
        &self,
        programs: impl FnOnce() -> Vec<Arc<Link>>,
    ) -> impl Iterator<Item = Counter> {
        if !self.apart.load(Ordering::Relaxed) {
            self.look(&programs());
        }
        COUNTERS
            .into_iter()
            .zip(&self.lost)
            .map(|(name, lost)| Counter::state(name, lost.load(Ordering::Relaxed)))
    }

    /// That the interface has another MTU by now than this.
    pub(super) fn other_mtu(&self, mtu: u32) -> Option<String> {
        let mut route = self.route.lock().unwrap_or_else(PoisonError::into_inner);
        let link = route.link_at(self.interface).ok()??;
        let (name, now) = (link.name, link.mtu);
        (now != mtu)
            .then(|| format!("the MTU of {name} is {now}, and SYNs are answered with the MSS of {mtu}"))
    }

    /// That the interface has more queues by now than there were.
    pub(super) fn more_queues(&self) -> Option<String> {
        let had = self.queues?;
        let mut route = self.route.lock().unwrap_or_else(PoisonError::into_inner);
        // By the name that it has now.
        let name = route.link_at(self.interface).ok()??.name;
        let has = self.ethtool.channels(&name).ok()?.rx;
        (has > had).then(|| {
            format!(
                "{name} has {has} receive queues and had {had} at the start: of what comes by the others user space judges nothing, \
                 only what XDP decides alone is decided; start the filter again, or `ethtool -L {name}` with {had}"
            )
        })
    }
}
