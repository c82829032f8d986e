//! Rules in the NIC: n-tuple rules that drop what the XDP program would drop, before it costs anything; and those that give packets to
//! a queue, which only a NIC can, so that one that the driver does not take is an error.
//!
//! The program has all rules as well, so nothing is lost when a driver refuses a rule or forgets one. A rule in the NIC drops too
//! much when it stays behind: so those of a former set go before its program goes, and one that can't be removed keeps its set. They do
//! not end with the process, unlike all else that rules do; `bywash cleanup` removes them then.

use std::collections::{HashMap, HashSet};

use bywash_filter::rules::InNic;
use bywash_filter::{Hook, flows};
use bywash_port::{Action, Rule, RulePlace, Rules};
use bywash_sys::ethtool::{Ethtool, Fate, Flow};
use bywash_sys::interface::Interface;
use bywash_sys::route::Route;
use bywash_sys::state::{self, Undo};

use super::Options;
use super::ntuple::{self, Held, as_rule};
use super::steered::NTUPLE;
use crate::{Ntuple, RulesInNic};

/// Most n-tuple rules of one port: each is a line of the state file, which is written for each.
const MOST: usize = 2048;

/// What of a port's rules is in the NIC. Dropping it takes them out.
pub(super) struct RulesHeld {
    /// The interface's number, and what it was called when it was last asked for.
    index: u32,
    interface: String,
    /// Receive queues that the interface has.
    queues: u32,
    /// Why it can have none.
    unable: Option<String>,
    /// Those that drop stay out of it when absent.
    wish: Option<Wish>,
    held: Vec<Held>,
    /// Goes after them.
    feature: Option<Undo>,
    places: Vec<RulePlace>,
    /// What of the rules should be in it and is not.
    missing: Option<String>,
}

/// Whether rules that must be in the NIC and can't be are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// They are: somebody has written them, and hears of it.
    Firm,
    /// They are in the program alone, with a warning: what is never taken has changed, which must be spared, or some of them are gone.
    Soft,
}

impl Demand {
    /// For rules in the place of others: each that is new, or stands elsewhere, is somebody's wish.
    pub(super) fn of(rules: &[Rule], former: &[Rule]) -> Self {
        let mut former = former.iter();
        if rules.iter().all(|rule| former.any(|before| before == rule)) { Self::Soft } else { Self::Firm }
    }
}

/// That rules which drop are in the NIC, too.
#[derive(Clone, Copy)]
struct Wish {
    how: RulesInNic,
    /// By which it was said.
    flag: &'static str,
}

impl Wish {
    /// For rules of a file it must be said; what is steered by is the NIC's where it can be.
    fn of(options: &Options) -> Option<Self> {
        if options.steer.is_empty() {
            return options.rules_in_nic.map(|how| Self { how, flag: "--rules-in-nic" });
        }
        let how = match options.ntuple {
            None => RulesInNic::Auto,
            Some(Ntuple::Require) => RulesInNic::Require,
            Some(Ntuple::Off) => return None,
        };
        Some(Self { how, flag: "--ntuple" })
    }
}

/// Packets, and what becomes of them.
type Wanted = (Flow, Fate);

/// What a rule of ours is there for.
fn wanted_of(held: &Held) -> Wanted {
    (held.rule.flow.clone(), held.rule.fate)
}

/// What the NIC held, and what was told of that.
pub(super) struct Before {
    held: Vec<Wanted>,
    places: Vec<RulePlace>,
    missing: Option<String>,
}

impl RulesHeld {
    /// None yet. `queues` is how many the port receives by.
    pub(super) fn new(interface: &Interface, queues: usize, options: &Options) -> Self {
        let name = &interface.name;
        let unable = if !options.steer.is_empty() && options.ntuple == Some(Ntuple::Off) {
            Some("--ntuple off leaves the NIC as it is".into())
        } else if queues < interface.queues.rx as usize {
            Some(format!("the port has not all queues of {name}, and the NIC would decide for all"))
        } else if !interface.ntuple.on && !interface.ntuple.changeable {
            Some(format!("the driver of {name} has no n-tuple rules"))
        } else {
            None
        };
        Self {
            index: interface.index,
            interface: name.clone(),
            queues: interface.queues.rx,
            unable,
            wish: Wish::of(options),
            held: Vec::new(),
            feature: None,
            places: Vec::new(),
            missing: None,
        }
    }

    /// The driver is asked by name, and that may be another one by now.
    fn look_for_name(&mut self) {
        if let Ok(Some(link)) = Route::open().and_then(|mut route| route.link_at(self.index)) {
            self.interface = link.name;
        }
    }

    /// Switches n-tuple rules on before the first one. Drivers may restart then.
    fn switch_on(&mut self) {
        if self.feature.is_none() && self.unable.is_none() {
            match state::set_feature(&self.interface, NTUPLE, true) {
                Ok(undo) => self.feature = Some(undo),
                Err(error) => self.unable = Some(error.to_string()),
            }
        }
    }

    /// Has the NIC hold what it can of these rules, and nothing of those before. What it can is only asked for when something is to be in
    /// it: each rule is held against all before it then. Returns what it had.
    ///
    /// # Errors
    /// What of the former rules can't be taken out, or what is not in it, where all is required and the demand is firm; then it has what
    /// it had.
    pub(super) fn change(
        &mut self,
        wanted: impl FnOnce() -> Vec<InNic>,
        rules: &Rules,
        demand: Demand,
    ) -> Result<Before, String> {
        let held = self.held.iter().map(wanted_of).collect();
        let (places, missing) = (std::mem::take(&mut self.places), self.missing.take());
        let before = Before { held, places, missing };
        let nothing = InNic::default();
        let wish = self.wish;
        let is_for_it = |rule: &Rule| wish.is_some() || matches!(rule.action, Action::Steer(_));
        let rules = rules.set.rules();
        let wanted = if rules.iter().any(is_for_it) { wanted() } else { Vec::new() };
        let of_rule = |(index, rule)| {
            let wanted = wanted.get(index).filter(|_| is_for_it(rule)).unwrap_or(&nothing);
            (rule, wanted)
        };
        let pairs: Vec<(&Rule, &InNic)> = rules.iter().enumerate().map(of_rule).collect();
        if !pairs.iter().any(|(rule, _)| is_for_it(rule)) && self.held.is_empty() {
            return Ok(before);
        }
        let all: Vec<Wanted> = pairs.iter().flat_map(|(rule, it)| all_of(rule, it)).collect();
        let changed = self.hold(&all).and_then(|refused| {
            let place = |(rule, wanted): &(&Rule, &InNic)| RulePlace {
                in_nic: self.told(rule, wanted),
                left: left(rule, wanted, &refused),
                ..RulePlace::outside_the_nic(rule, Hook::Xdp)
            };
            self.places = pairs.iter().map(place).collect();
            self.must_be_there(&pairs)?;
            match self.require(&wanted) {
                Err(why) if demand == Demand::Soft => self.missing = Some(why),
                required => required?,
            }
            Ok(())
        });
        match changed {
            Ok(()) => Ok(before),
            Err(why) => {
                self.change_back(before);
                Err(why)
            }
        }
    }

    /// Has the NIC hold what it held, as far as it takes that.
    pub(super) fn change_back(&mut self, before: Before) {
        // What it does not take is in the XDP program.
        self.hold(&before.held).ok();
        (self.places, self.missing) = (before.places, before.missing);
    }

    /// What of the rules should be in it, and is not any more.
    pub(super) fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// Where each rule is; nothing where rules are kept out of the NIC.
    pub(super) fn places(&self) -> Vec<RulePlace> {
        self.places.clone()
    }

    /// Adds again what the driver of the interface, which is called `name` now, has lost when it restarted.
    pub(super) fn confirm(&mut self, name: &str) -> Result<(), String> {
        ntuple::renew(name, &mut self.held)
    }

    /// Takes all out.
    pub(super) fn take_out(&mut self) -> Result<(), String> {
        self.hold(&[]).map(drop)
    }

    /// Takes all out, and switches n-tuple rules off where they were.
    pub(super) fn put_back(&mut self) -> Result<(), String> {
        self.take_out()?;
        self.feature.take().map_or(Ok(()), |undo| undo.undo().map(drop).map_err(|error| error.to_string()))
    }

    /// Why a rule that gives packets to a queue can't: the NIC has not all of it.
    fn must_be_there(&self, pairs: &[(&Rule, &InNic)]) -> Result<(), String> {
        for ((rule, _), place) in pairs.iter().zip(&self.places) {
            let Action::Steer(queue) = rule.action else { continue };
            if rule.dry_run {
                continue;
            }
            let name = &self.interface;
            let why = match place.left.first() {
                _ if u32::from(queue) >= self.queues && self.queues == 1 => {
                    format!("{name} has one queue, 0")
                }
                _ if u32::from(queue) >= self.queues => format!("{name} has {} queues", self.queues),
                Some(why) => format!(
                    "{why}; an XDP program can't: it reaches no queue but the one that a packet came by"
                ),
                None => continue,
            };
            return Err(format!("the rule '{}' can't give its packets to queue {queue}: {why}", rule.name));
        }
        Ok(())
    }

    /// Why what must be in the NIC is not.
    fn require(&self, wanted: &[InNic]) -> Result<(), String> {
        let Some(Wish { how: RulesInNic::Require, flag }) = self.wish else { return Ok(()) };
        let is_missing = |(place, wanted): &(&RulePlace, &InNic)| place.left.len() > wanted.beside.len();
        let mut missing = self.places.iter().zip(wanted).filter(is_missing);
        let Some((place, _)) = missing.next() else { return Ok(()) };
        let more = match missing.count() {
            0 => String::new(),
            more => format!(", and {more} more rules"),
        };
        Err(format!(
            "the rule '{}' is not in the NIC: {}{more} ({flag} require)",
            place.rule,
            place.left.join("; ")
        ))
    }

    /// A phrase for each of a rule's flows that is in the NIC.
    fn told(&self, rule: &Rule, wanted: &InNic) -> Vec<String> {
        let name = &self.interface;
        let fate = fate(rule);
        let phrase = |flow: &flows::Flow| {
            let wanted = (as_rule(flow), fate);
            let held = self.held.iter().find(|held| wanted_of(held) == wanted)?;
            Some(held.told(flow, name))
        };
        wanted.flows.iter().filter_map(phrase).collect()
    }

    /// Has the NIC hold these and no others. Returns which it does not take, and why.
    fn hold(&mut self, all: &[Wanted]) -> Result<HashMap<Wanted, String>, String> {
        let wanted: HashSet<&Wanted> = all.iter().collect();
        if !(wanted.is_empty() && self.held.is_empty()) {
            self.look_for_name();
        }
        self.remove_but(&wanted)?;
        let mut missing: HashSet<&Wanted> = wanted;
        for held in &self.held {
            missing.remove(&wanted_of(held));
        }
        let mut refused = HashMap::new();
        if missing.is_empty() {
            return Ok(refused);
        }
        self.switch_on();
        let mut table = match &self.unable {
            Some(why) => Err(why.clone()),
            None => Ethtool::open()
                .and_then(|ethtool| ethtool.rule_table(&self.interface))
                .map_err(|error| error.to_string()),
        };
        // In the order of the rules: the first ones have the first say.
        for wanted @ (flow, fate) in all {
            if !missing.remove(wanted) {
                continue;
            }
            let added = table.as_mut().map_err(|why| why.clone()).and_then(|table| match self.held.len() {
                MOST.. => Err(format!("{MOST} n-tuple rules are the most that are made")),
                _ => Held::add(&self.interface, table, flow, *fate),
            });
            match added {
                Ok(held) => self.held.push(held),
                Err(why) => {
                    refused.insert(wanted.clone(), why);
                }
            }
        }
        Ok(refused)
    }

    /// Removes all rules but those for some flows, the last one first. One that can't be removed stays ours.
    fn remove_but(&mut self, wanted: &HashSet<&Wanted>) -> Result<(), String> {
        if self.held.iter().all(|held| wanted.contains(&wanted_of(held))) {
            return Ok(());
        }
        let ethtool = Ethtool::open().map_err(|error| error.to_string())?;
        for at in (0..self.held.len()).rev() {
            let rule = &self.held[at].rule;
            if wanted.contains(&wanted_of(&self.held[at])) {
                continue;
            }
            let place = ethtool.find_rule(&self.interface, rule);
            let gone =
                place.and_then(|place| place.map_or(Ok(()), |at| ethtool.remove_rule(&self.interface, at)));
            gone.map_err(|error| error.to_string())?;
            // Nothing is left to be undone but the record of it.
            self.held.remove(at).into_undo().undo().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// What becomes of a rule's packets in the NIC.
fn fate(rule: &Rule) -> Fate {
    match rule.action {
        Action::Steer(queue) => Fate::Queue(queue.into()),
        _ => Fate::Drop,
    }
}

/// What the NIC shall hold for a rule.
fn all_of(rule: &Rule, wanted: &InNic) -> impl Iterator<Item = Wanted> {
    let fate = fate(rule);
    wanted.flows.iter().map(move |flow| (as_rule(flow), fate))
}

/// What of a rule is not in the NIC, and why: a phrase for each reason.
fn left(rule: &Rule, wanted: &InNic, refused: &HashMap<Wanted, String>) -> Vec<String> {
    let mut reasons: Vec<(&flows::Flow, &String, usize)> = Vec::new();
    for flow in &wanted.flows {
        let Some(why) = refused.get(&(as_rule(flow), fate(rule))) else { continue };
        match reasons.iter_mut().find(|(_, known, _)| *known == why) {
            Some((.., count)) => *count += 1,
            None => reasons.push((flow, why, 0)),
        }
    }
    let refused = reasons.into_iter().map(|(flow, why, more)| match more {
        0 => format!("'{flow}': {why}"),
        more => format!("'{flow}' and {more} more: {why}"),
    });
    let beside = wanted.beside.iter().map(|line| (*line).to_owned());
    wanted.left.iter().cloned().chain(refused).chain(beside).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use bywash_filter::rules::{Condition, FlowOptions, RuleSet, in_nic};
    use bywash_filter::xdp::NeverTake;

    use super::*;

    fn rule(name: &str) -> Rule {
        let condition = Condition { from: vec!["192.0.2.0/24".parse().unwrap()], ..Condition::default() };
        Rule {
            name: name.into(),
            condition,
            action: Action::Drop,
            sample: None,
            expires: None,
            dry_run: false,
        }
    }

    #[test]
    fn rules_that_are_there_already_ask_for_less() {
        let [a, b, c] = ["a", "b", "c"].map(rule);
        let former = [a.clone(), b.clone(), c.clone()];
        assert_eq!(Demand::of(&former, &former), Demand::Soft, "other gateways");
        assert_eq!(Demand::of(&[a.clone(), c.clone()], &former), Demand::Soft, "one has expired");
        assert_eq!(Demand::of(&[c, a.clone()], &former), Demand::Firm, "in another order");
        assert_eq!(
            Demand::of(&[a, Rule { sample: NonZeroU32::new(7), ..b }], &former),
            Demand::Firm,
            "another one"
        );
    }

    #[test]
    fn what_is_never_taken_comes_before_what_must_be_in_the_nic() {
        let options = Options { rules_in_nic: Some(RulesInNic::Require), ..Options::default() };
        let mut held = RulesHeld::new(&Interface::default(), 1, &options);
        let set = Arc::new(RuleSet::new(vec![rule("flood")]).unwrap());
        let gateways = vec![IpAddr::from([192, 0, 2, 1])];
        let never = [NeverTake { gateways, ..NeverTake::default() }.sent()];
        let rules = Rules { set: Arc::clone(&set), never: Vec::new(), flows: FlowOptions::default() };
        let wanted = || in_nic(&set, None, &never);
        assert!(wanted()[0].flows.is_empty(), "the gateway is among these");
        let refused = held.change(wanted, &rules, Demand::Firm).err().unwrap();
        assert!(
            refused.contains("'flood' is not in the NIC: ") && refused.ends_with("require)"),
            "{refused}"
        );
        assert_eq!(held.missing(), None);
        let before = held.change(wanted, &rules, Demand::Soft).unwrap();
        assert_eq!(held.missing(), Some(&*refused));
        assert_eq!(held.places().len(), 1);
        held.change_back(before);
        assert_eq!((held.missing(), held.places()), (None, Vec::new()));
    }
}
