//! Whether the kernel's verifier takes the program of rules, which it says when it is given it: for rules that are on no interface
//! yet.

use std::os::fd::AsRawFd;

use bywash_filter::Hook;
use bywash_filter::rules::{Action, RuleProgram, in_nic};
use bywash_filter::xdp::NeverTake;
use bywash_port::Rules;
use bywash_sys::bpf::BpfError;

use super::flows::{Table, load_notes};
use super::program::{self, Maps};
use super::rules::{Lists, load};

/// Why it is not known that the verifier takes rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotVerified {
    /// It does not take them.
    #[error("{0}")]
    Refused(String),
    /// It was not asked.
    #[error("{0}")]
    NotAsked(String),
}

/// Has it verify their program for XDP. Nothing is left of it.
///
/// # Errors
/// [`NotVerified`]
pub fn verify(rules: &Rules, never_take: &NeverTake) -> Result<(), NotVerified> {
    for (rule, in_nic) in rules.set.rules().iter().zip(in_nic(&rules.set, None, &[])) {
        // No NIC is asked for that, so none can have it.
        if let (Action::Steer(queue), Some(why)) = (rule.action, in_nic.left.first()) {
            let why = format!("the rule '{}' can't give its packets to queue {queue}: {why}", rule.name);
            return Err(NotVerified::Refused(why));
        }
    }
    on_trial(rules, never_take, |program| load(program).map(drop))
}

/// Does something with their program, while its maps are there.
fn on_trial<T>(
    rules: &Rules,
    never_take: &NeverTake,
    what: impl FnOnce(&RuleProgram<'_>) -> Result<T, NotVerified>,
) -> Result<T, NotVerified> {
    let not_asked = |error: BpfError| NotVerified::NotAsked(error.to_string());
    let draws = rules.set.rules().iter().any(|rule| rule.sample.is_some());
    let maps = Maps::create(Hook::Xdp, 1, true).and_then(|maps| maps.with_samples(draws));
    let maps = maps.map_err(not_asked)?;
    let slots: Vec<u32> = (0..).take(rules.set.rules().len()).collect();
    let lists = Lists::create(&rules.set, &slots).map_err(not_asked)?;
    let flows = rules.set.longest_idle().map(|_| Table::create(rules.flows.most));
    let flows = flows.transpose().map_err(NotVerified::NotAsked)?;
    if let Some((table, idle)) = flows.as_ref().zip(rules.set.longest_idle()) {
        load_notes(table.reached(), &rules.flows, &maps, idle)?;
    }
    let never = [&[never_take.expression()], &rules.never[..]].concat();
    let program = RuleProgram {
        maps: maps.descriptors(),
        sets: lists.descriptors(),
        samples: maps.ring().map(AsRawFd::as_raw_fd),
        hung_after_jiffies: program::hung_after(),
        buff: program::buff(),
        flows: flows.as_ref().map(Table::reached),
        ..RuleProgram::on_trial(&rules.set, &slots, &never)
    };
    what(&program)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use bywash_filter::rules::{Condition, FlowOptions, Rule, RuleSet};
    use bywash_sys::bpf::LoadError;

    use super::*;

    /// Rules that are alike, each of which walks along a packet's headers, behind one that joins lists.
    fn alike(count: u32) -> Rules {
        let about = |name: String, condition| Rule {
            name,
            condition,
            action: Action::Drop,
            sample: NonZeroU32::new(1000),
            expires: None,
            dry_run: false,
        };
        let joins = Condition {
            from: vec!["10.1.0.0/16".parse().unwrap()],
            to_ports: vec![7..=7],
            ..Condition::default()
        };
        let walks = |number: u32| {
            let expression = Some(format!("anyvlan and l4 udp port {number}").parse().unwrap());
            about(number.to_string(), Condition { expression, ..Condition::default() })
        };
        let rules = std::iter::once(about("both".into(), joins)).chain((0..count).map(walks));
        let set = Arc::new(RuleSet::new(rules.collect()).unwrap());
        Rules { set, never: Vec::new(), flows: FlowOptions::default() }
    }

    #[test]
    fn rules_whose_usual_program_is_too_large_are_taken_with_a_shorter_one_as_long_as_there_is_one() {
        let Some(_guard) = bywash_lab::lock() else { return };
        let never_take = NeverTake::default();
        let usual = |rules: &Rules| {
            let load = |program: &RuleProgram<'_>| {
                let words = program.program().unwrap().to_words();
                Ok(program::load_words(Hook::Xdp, "usual", &words).map(drop))
            };
            on_trial(rules, &never_take, load).unwrap()
        };
        assert!(usual(&alike(1)).is_ok());
        assert!(matches!(usual(&alike(10)), Err(LoadError::TooLarge { .. })));
        assert_eq!(verify(&alike(10), &never_take), Ok(()));
        let refused = verify(&alike(60), &never_take).unwrap_err();
        assert!(
            matches!(&refused, NotVerified::Refused(why) if why.contains("'0' most of all")),
            "{refused}"
        );
    }
}
