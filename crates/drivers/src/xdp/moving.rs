//! From TCX to XDP while rules hold, when new ones come that a program at TCX can't decide.
//!
//! The XDP program is there before the other one goes. It counts and draws where that one does and asks the same established flows.
//! As long as its queues have no worker it passes all packets, and the old rules decide them at TCX. From then on it decides, and for
//! [`OVERLAP`] TCX decides, too, about what it has passed: no packet is decided by neither, also not one that XDP has passed before and
//! that comes to TCX after that. What both pass is counted twice. Counters that new rules have of rules that are gone count for those
//! until then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash_filter::Hook;
use bywash_filter::xdp::NeverTake;
use bywash_frame::Arena;
use bywash_port::{LoadedRules, Moved, Port, PortName, RuleLoad, Rules};
use bywash_sys::bpf::{BpfError, Link};

use super::open::Opening;
use super::program::Maps;
use super::rules::Ruled;
use super::samples::Names;
use super::{Options, XdpPort};

/// How long a packet may be on its way from XDP to TCX: a veth's packets wait for each other to be joined, and some for another core.
const OVERLAP: Duration = Duration::from_millis(10);

/// How a port whose program is at TCX is opened at XDP.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) name: PortName,
    pub(super) options: Options,
    pub(super) arena: &'static Arena,
}

/// What a port at TCX leaves to the one at XDP.
pub(super) struct Former {
    pub(super) maps: Arc<Maps>,
    pub(super) names: Names,
    pub(super) ruled: Arc<Ruled>,
    pub(super) never_take: NeverTake,
}

/// A port at XDP that waits for its rules to hold. When they never do it is closed again.
struct Successor(Option<Box<XdpPort>>);

/// The program at TCX once its port has moved, until it goes.
pub(super) struct Leaving {
    link: Arc<Link>,
    /// Since when all queues at XDP have workers.
    since: Option<Instant>,
}

impl Way {
    /// Opens the port at XDP with rules that can't be at TCX, and `why` they can't.
    pub(super) fn load(self, former: Former, rules: &Rules, why: String) -> RuleLoad {
        let Self { name, options, arena } = self;
        let options = Options { rules: Some(rules.clone()), hook: Some(Hook::Xdp), ..options };
        RuleLoad::moving(move || match Opening::after(former, &name, &options, arena) {
            Ok(port) => Ok(LoadedRules(Box::new(Successor(Some(Box::new(port)))))),
            Err(error) => Err(format!("{why}; at XDP: {error}")),
        })
    }
}

impl XdpPort {
    /// Becomes the port at XDP, if that is what was loaded.
    pub(super) fn move_to(&mut self, rules: LoadedRules) -> Result<Moved, LoadedRules> {
        let mut successor = rules.0.downcast::<Successor>().map_err(LoadedRules)?;
        let Some(port) = successor.0.take() else { return Err(LoadedRules(successor)) };
        let former = std::mem::replace(self, *port);
        (self.guard, self.samples) = (former.guard, former.samples);
        self.watch.follow(&former.watch);
        if let (Some(ruled), Some(guard)) = (&self.ruled, &mut self.guard) {
            ruled.look_at_own(guard);
        }
        self.leaving = former.link.map(|link| Leaving { link, since: None });
        let moved = format!("the rules have moved to XDP ({})", self.capabilities.mode.join(", "));
        let told =
            [moved].iter().chain(&self.warnings).map(|line| format!("{}: {line}", self.name)).collect();
        Ok(Moved { queues: self.queues(), told })
    }

    /// Ends the program at TCX when what XDP has passed before its queues had workers has come there.
    pub(super) fn leave(&mut self) -> bool {
        let Some(leaving) = &mut self.leaving else { return true };
        if !self.lives.iter().all(|life| life.has_worker()) {
            return false;
        }
        let since = leaving.since.get_or_insert_with(|| {
            // Rules are loaded one after the other: nobody else has these.
            if let Some((ruled, maps)) = self.ruled.as_mut().and_then(Arc::get_mut).zip(self.maps.as_ref()) {
                ruled.settle(maps);
            }
            Instant::now()
        });
        if since.elapsed() < OVERLAP {
            return false;
        }
        // Where it can't be detached at once it is as soon as nobody has it.
        drop(self.leaving.take().map(Leaving::end));
        true
    }
}

impl Leaving {
    pub(super) fn end(self) -> Result<(), BpfError> {
        self.link.detach()
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        // What can't be undone stays in the state file, for `bywash cleanup`.
        self.0.take().map(Port::close).transpose().ok();
    }
}
