//! Where rules are decided, as it is told: at the start, and again when other rules have taken their place.

use std::collections::BTreeMap;

use bywash_port::RulePlace;
use serde::Serialize;

/// So many rules are told to people one by one.
const TOLD: usize = 16;

/// A rule's place, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// Its name.
    rule: String,
    /// `nic`, `nic_in_part`, `xdp`, `tcx` or `user_space`.
    place: &'static str,
    /// A phrase for each of its n-tuple rules.
    in_nic: Vec<String>,
    /// What of a rule that drops is not in the NIC, and why.
    left: Vec<String>,
}

/// For programs.
pub(super) fn placed(places: &[RulePlace]) -> Vec<Placed> {
    let of = |place: &RulePlace| Placed {
        rule: place.rule.clone(),
        place: place.decider().name(),
        in_nic: place.in_nic.clone(),
        left: place.left.clone(),
    };
    places.iter().map(of).collect()
}

/// For people: a line for each of the first rules, and one for all others.
pub(super) fn lines(places: &[RulePlace]) -> Vec<String> {
    let (told, more) = places.split_at(places.len().min(TOLD));
    let mut lines: Vec<String> = told.iter().map(ToString::to_string).collect();
    if !more.is_empty() {
        let mut counts = BTreeMap::new();
        for place in more {
            *counts.entry(place.decider()).or_insert(0) += 1;
        }
        let counts: Vec<String> =
            counts.iter().map(|(decider, count)| format!("{count} in {decider}")).collect();
        lines.push(format!("{} more rules: {}", more.len(), counts.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use bywash_port::Decider;

    use super::*;

    #[test]
    fn the_first_rules_are_told_one_by_one() {
        let place = |number: usize| RulePlace {
            rule: number.to_string(),
            outside: if number % 2 == 1 { Decider::UserSpace } else { Decider::Xdp },
            in_nic: if number == 17 { vec!["here".into()] } else { Vec::new() },
            left: Vec::new(),
        };
        let places: Vec<RulePlace> = (0..20).map(place).collect();
        let told = lines(&places);
        assert_eq!((told.len(), told[1].as_str()), (17, "'1' is in user space"));
        assert_eq!(told[16], "4 more rules: 1 in the NIC, 2 in XDP, 1 in user space");
        assert_eq!((lines(&places[..2]).len(), placed(&places)[17].place), (2, "nic"));
        assert_eq!(lines(&[]), Vec::<String>::new());
    }
}
