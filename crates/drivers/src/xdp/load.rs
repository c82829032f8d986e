//! Which program a port has, and whom it spares: by the rules of a file, by those that it steers by, or what takes all that is
//! chosen.

use std::sync::Arc;

use bywash_filter::Hook;
use bywash_filter::rules::FlowOptions;
use bywash_filter::xdp::NeverTake;
use bywash_port::{RuleSet, Rules, check_steer};
use bywash_sys::bpf::{BpfError, Program};

use super::Options;
use super::guard::Guard;
use super::in_nic::Demand;
use super::moving::Former;
use super::open::Opening;
use super::program::{self, Maps};
use super::rules::{Place, Ruled, Scope, syn_cookies};
use super::steered::Steered;

/// Whether a port can steer by what it is to.
pub(super) fn check(options: &Options) -> Result<(), String> {
    let Options { steer, rules, rx, .. } = options;
    if steer.is_empty() {
        return Ok(());
    }
    if rules.is_some() {
        return Err("--steer is for ports without rules: write them into the rule file".into());
    }
    if !rx {
        return Err("--steer is about packets that are received, and here none is; leave it out".into());
    }
    let wrong = |rule| check_steer(rule).err().map(|error| (rule, error));
    match steer.iter().find_map(wrong) {
        Some((rule, error)) => Err(format!("'{}' can't be steered: {error} (--steer)", rule.name)),
        None => Ok(()),
    }
}

impl Opening<'_> {
    /// Whether nothing of what comes in is left to the kernel, unless a rule says so.
    fn takes_everything(&self) -> bool {
        self.options.only.is_none() && self.takes_all_queues()
    }

    /// Whether it receives by all queues, and no rules of a file decide what stays.
    pub(super) fn takes_all_queues(&self) -> bool {
        self.options.rules.is_none() && self.has_all_queues()
    }

    /// Whether it receives by all queues that there are.
    pub(super) fn has_all_queues(&self) -> bool {
        self.interface.queues.rx > 0
            && self.queues.iter().filter(|halves| halves.rx).count() >= self.interface.queues.rx as usize
    }

    /// Who knows what is spared; nobody for who takes everything without rules, which is allowed only where nobody misses it, and for
    /// who takes over: there is one already.
    pub(super) fn guard(&self, warnings: &mut Vec<String>) -> Result<Option<Guard>, String> {
        if self.former.is_some() || (self.takes_everything() && self.options.steer.is_empty()) {
            return Ok(None);
        }
        Guard::open(self.interface.index, warnings).map(Some)
    }

    /// The maps.
    pub(super) fn maps(&self, has_rules: bool) -> Result<Maps, BpfError> {
        let queues = self.interface.queues.rx;
        let maps = match &self.former {
            Some(former) => former.maps.at_xdp(queues),
            None => Maps::create(Hook::Xdp, queues, has_rules)?.with_samples(self.options.samples),
        }?;
        Ok(if self.has_all_queues() { maps.deciding_others() } else { maps })
    }

    /// The rules of a file, or those that it steers by.
    pub(super) fn rules(&self) -> Result<Option<Rules>, String> {
        let Options { steer, rules, .. } = self.options;
        if steer.is_empty() {
            return Ok(rules.clone());
        }
        let set = RuleSet::new(steer.clone()).map_err(|error| format!("{error} (--steer)"))?;
        Ok(Some(Rules { set: Arc::new(set), never: Vec::new(), flows: FlowOptions::default() }))
    }

    /// The program.
    pub(super) fn load(
        &self,
        maps: &Maps,
        rules: Option<&Rules>,
        never_take: Option<&NeverTake>,
        warnings: &mut Vec<String>,
    ) -> Result<(Option<Ruled>, Program), String> {
        let Options { steer, only, .. } = self.options;
        let Some(rules) = rules else {
            return Ok((None, program::load(maps, only.as_ref(), never_take.cloned())?));
        };
        let scope = match only {
            only if steer.is_empty() => Scope::Filter(only.clone()),
            None if self.takes_everything() => Scope::SteerEverything,
            only => Scope::Steer(only.clone()),
        };
        let place = Place::new(Hook::Xdp, &self.interface);
        let cookies = syn_cookies(&rules.set, place.mtu)?;
        if cookies.is_some_and(|cookies| cookies.window_scale.is_none()) {
            warnings.push(
                "connections by SYN cookies have no window scale and no SACK: for that set sysctl \
                 net.ipv4.tcp_timestamps=2, and tcp_sack and tcp_window_scaling to 1"
                    .into(),
            );
        }
        let answers_syns = rules.set.rules().iter().any(|rule| rule.action.answers_syns());
        if answers_syns && self.interface.kind.as_deref() == Some("veth") {
            warnings.push(format!(
                "SYN cookies leave by {}, a veth: they arrive only when its other end has an XDP program, too (any), which can't be \
                 seen from here",
                self.interface.name
            ));
        }
        let (ruled, program) = match &self.former {
            Some(Former { ruled, never_take, .. }) => {
                ruled.next_at(place, maps, rules, never_take.clone())?
            }
            None => Ruled::load(maps, rules, scope, never_take.unwrap_or(&NeverTake::default()), place)?,
        };
        Ok((Some(ruled), program))
    }

    /// Has the NIC do what it can of the rules.
    pub(super) fn give_to_nic(
        &self,
        steered: &mut Steered,
        ruled: &Ruled,
        rules: &Rules,
    ) -> Result<(), String> {
        let is_steered = !self.options.steer.is_empty();
        // What --ntuple asked for and did not get names that.
        let flag = |why: &str| if is_steered && !why.ends_with(" require)") { " (--steer)" } else { "" };
        steered
            .in_nic()
            .change(|| ruled.in_nic(), rules, Demand::Firm)
            .map_err(|why| format!("{why}{}", flag(&why)))?;
        if is_steered {
            steered.tell(ruled.rules());
        }
        Ok(())
    }
}
