//! Rules that can do nothing, or not all that they say. That is no mistake, but hardly what was meant: it is told with its place.

use std::ops::RangeInclusive;
use std::time::SystemTime;

use bywash_port::Rule;

use super::RuleFile;

/// Ports of a rule that are looked at one by one.
const MOST_PORTS: usize = 16;

/// So many rules are told of one by one.
const TOLD: usize = 16;

impl RuleFile {
    /// The rules that can do nothing from `now` on, and those whose samples nobody keeps, a line for each of the first,
    /// and one for all others.
    pub fn idle_rules(&self, now: SystemTime) -> Vec<String> {
        if self.rules.is_empty() {
            return vec![self.at(0, "there is no rule: nothing is dropped".into()).to_string()];
        }
        let mut ends_all = None;
        // Those that stay, and ask user space.
        let mut asking: Vec<&Rule> = Vec::new();
        let mut idle = Vec::new();
        for (rule, places) in self.rules.iter().zip(&self.places) {
            let name = &rule.name;
            if rule.expires.is_some_and(|end| end <= now) {
                let at = places.expires.unwrap_or(places.name);
                idle.push((at, format!("the rule '{name}' has expired: it does nothing")));
            } else if let Some(before) = ends_all {
                let what = format!(
                    "the rule '{name}' stands behind '{before}', which decides on every packet: it does nothing"
                );
                idle.push((places.name, what));
            } else if self.spared.covers(&rule.condition) {
                let what = format!(
                    "the rule '{name}' is about packets alone that are never dropped: it does nothing"
                );
                idle.push((places.name, what));
            } else if let Some(what) = rule.contradicts_itself() {
                let at = places.expression.unwrap_or(places.name);
                idle.push((at, format!("the rule '{name}' is about {what}: it does nothing")));
            } else if let Some(what) = asking.iter().find_map(|before| taken_before(rule, before)) {
                idle.push((places.name, what));
            } else {
                if let Some(at) = places.sample.filter(|_| !self.keeps_samples) {
                    idle.push((
                        at,
                        format!("the rule '{name}' draws no samples: without --samples nobody keeps them"),
                    ));
                }
                if rule.ends_all() && rule.expires.is_none() {
                    ends_all = Some(name);
                }
                if rule.asks_user_space() && rule.expires.is_none() {
                    asking.push(rule);
                }
            }
        }
        let more = idle.len().saturating_sub(TOLD);
        let told = idle.into_iter().take(TOLD).map(|(at, what)| self.at(at, what).to_string());
        let rest = format!("{}: {more} more such rules", self.files[0].path.display());
        told.chain((more > 0).then_some(rest)).collect()
    }
}

/// What is to be said of a rule that answers SYNs, when a rule before it gives them to user space: from there none comes back to it.
fn taken_before(rule: &Rule, before: &Rule) -> Option<String> {
    if !rule.action.answers_syns() {
        return None;
    }
    let takes = |port| before.takes_tcp_of(&rule.condition, port);
    let behind =
        format!("the rule '{}' stands behind '{}', which gives user space all TCP", rule.name, before.name);
    if takes(None) {
        return Some(format!("{behind} that it is about: it does nothing"));
    }
    let ports = &rule.condition.to_ports;
    // Each is compared with all lists of the other rule.
    if ports.len() > MOST_PORTS {
        return None;
    }
    let taken: Vec<_> = ports.iter().filter(|port| takes(Some(port))).map(shown).collect();
    match taken.len() {
        0 => None,
        all if all == ports.len() => Some(format!("{behind} that it is about: it does nothing")),
        _ => Some(format!("{behind} to port {}: it does nothing there", taken.join(", "))),
    }
}

/// As rule files have it.
fn shown(ports: &RangeInclusive<u16>) -> String {
    match ports.start() == ports.end() {
        true => ports.start().to_string(),
        false => format!("{}-{}", ports.start(), ports.end()),
    }
}
