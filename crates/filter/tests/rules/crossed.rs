//! Rules of lists alone that are so many that the program looks combinations of lists up: they mean what they mean one by one.

use std::cell::Cell;
use std::net::IpAddr;

use bywash_filter::Hook;
use bywash_filter::rules::{Action, Condition, Rule, RuleSet};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::loaded::{Form, Loaded, rights, rule};
use super::{Shape, judge, plain, prefixes, rules, shapes};

/// Rules that ask for lists alone; most join several.
fn of_lists() -> impl Strategy<Value = Vec<Rule>> {
    let ports =
        || prop::collection::vec((0_u16..5, 0_u16..2).prop_map(|(from, more)| from..=from + more), 1..3);
    let one = (prefixes(), prefixes(), ports(), ports(), 0_u8..16, 0_usize..5);
    let rule = one.prop_map(|(from, to, from_ports, to_ports, used, kind)| {
        let mut condition = Condition { from, to, from_ports, to_ports, ..Condition::default() };
        if used & 3 == 0 {
            condition.from.clear();
        }
        if used & 12 == 0 {
            condition.to.clear();
        }
        if used & 5 != 0 {
            condition.from_ports.clear();
        }
        let action = [Action::Drop, Action::Pass, Action::Count, Action::Queue, Action::Drop][kind];
        Rule { dry_run: kind == 4, ..rule("", action, condition) }
    });
    prop::collection::vec(rule, 90)
}

#[test]
fn the_kernel_decides_and_counts_by_many_rules_of_lists_as_this_process_does() {
    if !rights() {
        return;
    }
    let mut runner = TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
    // Rules that decide about everything would hide what is behind them.
    let meets_all = |rule: &Rule| rule.decides() && rule.condition == Condition::default();
    let cases = (rules(), of_lists(), prop::collection::vec(shapes(), 60), any::<u64>());
    let judged = Cell::new(0);
    let run = runner.run(&cases, |(mut rules, of_lists, shapes, seed)| {
        rules.retain(|rule| !meets_all(rule));
        for (n, rule) in (0_u64..).zip(of_lists) {
            let at = seed.wrapping_mul(2 * n + 1).wrapping_add(n) % (rules.len() as u64 + 1);
            rules.insert(usize::try_from(at).unwrap_or(0), rule);
        }
        for (n, rule) in rules.iter_mut().enumerate() {
            rule.name = n.to_string();
        }
        let without_queue = |rule: &Rule| match rule.action {
            Action::Queue => Rule { action: Action::Count, ..rule.clone() },
            _ => rule.clone(),
        };
        let decided = RuleSet::new(rules.iter().map(without_queue).collect()).unwrap();
        let set = RuleSet::new(rules).unwrap();
        let judge_both = |form| {
            judge(Hook::Xdp, &set, &shapes, form)?;
            judge(Hook::Tcx, &decided, &shapes, form)
        };
        match [Form::Usual, Form::Shorter].into_iter().try_for_each(judge_both) {
            // A program of other rules may have more paths than the kernel follows.
            Err(TestCaseError::Reject(_)) => Ok(()),
            outcome => {
                judged.set(judged.get() + 1);
                outcome
            }
        }
    });
    run.unwrap();
    assert!(judged.get() > 3, "most programs had too many paths");
}

/// So many rules of all shapes: prefixes, ports, both, with several actions, and dry runs.
const MANY: u16 = 10_000;

fn many() -> Vec<Rule> {
    let rule = |n: u16| {
        let [high, low] = n.to_be_bytes();
        let from = vec![format!("10.{high}.0.{low}").parse().unwrap()];
        let to = vec![format!("10.{}.0.0/16", n % 3).parse().unwrap()];
        let (ports, all) = (vec![n..=n], Condition::default());
        let condition = match n % 4 {
            0 => Condition { from, ..all },
            1 => Condition { to_ports: ports, ..all },
            2 => Condition { from, to_ports: ports, ..all },
            _ => Condition { from, to, to_ports: ports, ..all },
        };
        let action = [Action::Drop, Action::Pass, Action::Count][usize::from(n / 4 % 3)];
        Rule { dry_run: n.is_multiple_of(5), ..rule(&n.to_string(), action, condition) }
    };
    (0..MANY).map(rule).collect()
}

#[test]
fn ten_thousand_rules_of_mixed_shapes_are_a_program_and_each_is_met() {
    if !rights() {
        return;
    }
    let rules = many();
    let set = RuleSet::new(rules.clone()).unwrap();
    let loaded = Loaded::new(Hook::Xdp, &set, &[]);
    let mut counts = vec![0; rules.len()];
    for n in (0..MANY).step_by(7) {
        let [high, low] = n.to_be_bytes();
        let mut packet = Shape { addresses: [high, low, (n % 3) as u8, 1], ..plain(false, 17) }.packet();
        packet[36..38].copy_from_slice(&n.to_be_bytes());
        // By the definition, rule by rule.
        let source: IpAddr = [10, high, 0, low].into();
        let destination: IpAddr = [10, (n % 3) as u8, 0, 1].into();
        let is_met = |condition: &Condition| {
            let of = |list: &[bywash_filter::rules::Prefix], address| {
                list.is_empty() || list.iter().any(|prefix| prefix.contains(address))
            };
            of(&condition.from, source)
                && of(&condition.to, destination)
                && (condition.to_ports.is_empty()
                    || condition.to_ports.iter().any(|ports| ports.contains(&n)))
        };
        let mut dropped = false;
        for (rule, count) in rules.iter().zip(&mut counts).filter(|(rule, _)| is_met(&rule.condition)) {
            *count += 1;
            if rule.decides() {
                dropped = rule.action == Action::Drop;
                break;
            }
        }
        assert_eq!(loaded.drops(&packet), dropped, "{n}");
    }
    let counted: Vec<u64> = (0..u32::from(MANY)).map(|rule| loaded.counted(rule)[0]).collect();
    assert!(counted == counts && counted.iter().sum::<u64>() > 1400);
}
