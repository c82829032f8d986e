//! Rule sets, and what of them a NIC may have.

use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::rules::{Limit, Per, SynProxy};
use crate::xdp::NeverTake;
use crate::{NoNames, Options};

fn expression(text: &str) -> Expression {
    Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap()
}

fn rule(name: &str, action: Action, condition: Condition) -> Rule {
    Rule { name: name.into(), condition, action, sample: None, expires: None, dry_run: false }
}

fn matching(text: &str) -> Condition {
    Condition { expression: Some(expression(text)), ..Condition::default() }
}

fn from(prefixes: &[&str]) -> Condition {
    let from = prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect();
    Condition { from, ..Condition::default() }
}

fn to_ports(ports: &[RangeInclusive<u16>]) -> Condition {
    Condition { to_ports: ports.to_vec(), ..Condition::default() }
}

/// What is told of the last rule: flows, and what is in none.
fn last(rules: Vec<Rule>, only: Option<&str>, never: &[&str]) -> (Vec<String>, Vec<String>) {
    let set = RuleSet::new(rules).unwrap();
    let machine = NeverTake {
        operator: Some(("10.9.9.9:40000".parse().unwrap(), "10.0.0.2:22".parse().unwrap())),
        ..NeverTake::default()
    };
    let never: Vec<Expression> =
        [machine.sent()].into_iter().chain(never.iter().map(|text| expression(text))).collect();
    let only = only.map(expression);
    let all = in_nic(&set, only.as_ref(), &never);
    assert_eq!(all.len(), set.rules().len());
    let InNic { flows, left, beside } = all.into_iter().next_back().unwrap();
    let left = left.into_iter().chain(beside.into_iter().map(str::to_owned)).collect();
    (flows.iter().map(ToString::to_string).collect(), left)
}

fn alone(condition: Condition) -> (Vec<String>, Vec<String>) {
    last(vec![rule("r", Action::Drop, condition)], None, &[])
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

const V6: &str = "IPv6: NICs may look behind extension headers, where rules do not";
const TAGS: &str = "NICs look behind VLAN tags, and the rule does not: write 'anyvlan and ...', or lists";
const SCTP_PORTS: &str = "not all NICs compare SCTP's ports";
const MACHINE: &str = "neighbour discovery, a gateway or an ssh session may be among them";

#[test]
fn flows_are_what_lists_and_expressions_name() {
    let both = |condition: Condition| Condition { to: from(&["10.0.0.2"]).from, ..condition };
    for (condition, flows, left) in [
        (
            to_ports(&[7..=7]),
            &["tcp4 dst-port 7", "udp4 dst-port 7"][..],
            &[&*format!("'sctp4 dst-port 7': {SCTP_PORTS}"), V6][..],
        ),
        (
            from(&["198.51.100.0/24", "192.0.2.1"]),
            &["ip4 src-ip 198.51.100.0/24", "ip4 src-ip 192.0.2.1"],
            &[],
        ),
        (both(from(&["198.51.100.0/24"])), &["ip4 src-ip 198.51.100.0/24 dst-ip 10.0.0.2"], &[]),
        (
            Condition { expression: Some(expression("anyvlan and ip and udp")), ..to_ports(&[6..=8]) },
            &["udp4 dst-port 6/0xfffe", "udp4 dst-port 8"],
            &[],
        ),
        (matching("anyvlan and ip and udp dst port 7"), &["udp4 dst-port 7"], &[]),
        (matching("anyvlan and udp dst port 7"), &["udp4 dst-port 7"], &[V6]),
        (matching("ip and udp dst port 7"), &[], &[&format!("'udp4 dst-port 7': {TAGS}")]),
        (
            matching("anyvlan and ip and udp dst port 7 and len > 400"),
            &[],
            &["'udp4 dst-port 7': the rule asks for more than an n-tuple rule can say"],
        ),
        (from(&["2001:db8::/32"]), &[], &[V6]),
        (matching("arp"), &[], &["packets that are neither IPv4 nor IPv6: n-tuple rules do not say them"]),
        (matching("anyvlan and ip[6:2] & 0x1fff != 0"), &[], &["n-tuple rules do not say what it is about"]),
    ] {
        assert_eq!(alone(condition.clone()), (lines(flows), lines(left)), "{condition:?}");
    }
    let hosts: Vec<String> = (0..2000).map(|n| format!("198.51.{}.{}", n / 250, n % 250)).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    assert_eq!(alone(from(&hosts)), (vec![], lines(&["it is more flows than n-tuple rules can say"])));
    let everything = alone(matching(""));
    assert_eq!(everything.0, lines(&[]));
    assert!(everything.1[0].starts_with("'ip4': an n-tuple rule must name a protocol"), "{everything:?}");
}

#[test]
fn what_only_the_program_can_do_stays_there() {
    let seven = || matching("anyvlan and ip and udp dst port 7");
    let drop = || rule("r", Action::Drop, seven());
    for (rule, why) in [
        (Rule { dry_run: true, ..drop() }, "dry_run drops nothing"),
        (Rule { sample: NonZeroU32::new(9), ..drop() }, "a NIC keeps no samples"),
        (
            rule("r", Action::Drop, Condition { names: vec!["*".parse().unwrap()], ..seven() }),
            "names and payload are for user space",
        ),
        (
            rule("r", Action::Drop, Condition { established: Some(Duration::from_secs(1)), ..seven() }),
            "a NIC does not know which flows are established",
        ),
    ] {
        assert_eq!(last(vec![rule], None, &[]), (vec![], lines(&[why])));
    }
    let proxy = Action::SynProxy(SynProxy { mss: 1460, window_scale: 7 });
    for action in [Action::Pass, Action::Count, Action::SynCookie, proxy] {
        assert_eq!(last(vec![rule("r", action, seven())], None, &[]), (vec![], vec![]), "{action:?}");
    }
}

#[test]
fn a_flow_that_others_may_want_stays_in_the_program() {
    let seven = || rule("r", Action::Drop, matching("anyvlan and ip and udp dst port 7"));
    let limit = Action::Limit(Limit { rate: 1, burst: 1, per: Per::Rule, block: None });
    let dry = |condition| Rule { dry_run: true, ..rule("before", Action::Drop, condition) };
    let sampled = |condition| Rule { sample: NonZeroU32::new(1), ..rule("before", Action::Drop, condition) };
    let before = |action| move |condition| rule("before", action, condition);
    let kinds: [&dyn Fn(Condition) -> Rule; 5] =
        [&before(Action::Pass), &before(Action::Count), &before(limit), &dry, &sampled];
    let told = lines(&["'udp4 dst-port 7': the rule 'before' before it may be about some of them"]);
    let is_in = |rules| last(rules, None, &[]) == (lines(&["udp4 dst-port 7"]), vec![]);
    for of in kinds {
        for meets in [
            from(&["10.0.0.0/8"]),
            to_ports(&[1..=9]),
            matching("udp"),
            matching("vlan 7"),
            matching("ip[0] & 0xf > 5"),
            Condition { established: Some(Duration::from_secs(1)), ..Condition::default() },
        ] {
            assert_eq!(
                last(vec![of(meets.clone()), seven()], None, &[]),
                (vec![], told.clone()),
                "{meets:?}"
            );
            assert!(is_in(vec![rule("before", Action::Drop, meets.clone()), seven()]), "{meets:?}");
            let (mut behind, mut only) = (of(meets), seven());
            (behind.name, only.name) = ("behind".into(), "first".into());
            let set = RuleSet::new(vec![only, behind]).unwrap();
            assert_eq!(in_nic(&set, None, &[])[0].flows.len(), 1);
        }
        for other in [
            to_ports(&[8..=9, 1..=6]),
            matching("anyvlan and tcp"),
            matching("anyvlan and dst port 8"),
            matching("arp"),
            from(&["2001:db8::/32"]),
            Condition { expression: Some(expression("anyvlan and tcp")), ..from(&["10.0.0.0/8"]) },
        ] {
            assert!(is_in(vec![of(other.clone()), seven()]), "{other:?}");
        }
    }
    // The lists of a rule hold together.
    let source = rule("r", Action::Drop, Condition { to_ports: vec![7..=7], ..from(&["10.5.0.0/16"]) });
    let pass = |prefix| rule("before", Action::Pass, Condition { to_ports: vec![7..=9], ..from(&[prefix]) });
    assert_eq!(last(vec![pass("10.4.0.0/15"), source.clone()], None, &[]).0, lines(&[]));
    assert_eq!(last(vec![pass("10.6.0.0/15"), source], None, &[]).0.len(), 2);
}

/// The operator's connection goes from port 40000 of 10.9.9.9 to port 22.
#[test]
fn the_operator_and_the_gateway_are_in_no_flow() {
    for (condition, is_in) in [
        (from(&["10.9.9.0/24"]), false),
        (from(&["10.9.8.0/24"]), true),
        (matching("anyvlan and ip and tcp dst port 22"), false),
        (matching("anyvlan and ip and tcp dst port 22 and src net 10.9.9.0/24"), false),
        (matching("anyvlan and ip and tcp dst port 22 and src host 10.9.9.8"), true),
        (matching("anyvlan and ip and tcp dst port 80"), true),
        (matching("anyvlan and ip and udp and src host 10.9.9.9"), true),
    ] {
        let (flows, left) = alone(condition.clone());
        assert_eq!((flows.len() == 1, left.is_empty()), (is_in, is_in), "{condition:?}: {left:?}");
        assert!(is_in || left[0].ends_with(MACHINE), "{left:?}");
    }
    let gateways = vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
    let never = [NeverTake { gateways, ..NeverTake::default() }.sent()];
    for (condition, is_in) in [
        (from(&["10.0.0.0/24"]), false),
        (from(&["10.0.1.0/24"]), true),
        (matching("anyvlan and ip and udp dst port 7"), false),
        (matching("anyvlan and ip and udp src port 53 and src net 198.51.100.0/24"), true),
    ] {
        let set = RuleSet::new(vec![rule("r", Action::Drop, condition.clone())]).unwrap();
        assert_eq!(in_nic(&set, None, &never)[0].flows.len() == 1, is_in, "{condition:?}");
    }
}

#[test]
fn a_flow_is_not_what_is_never_dropped_and_not_beyond_only() {
    let seven = || vec![rule("r", Action::Drop, matching("anyvlan and ip and udp dst port 7"))];
    let is_in = (lines(&["udp4 dst-port 7"]), vec![]);
    assert_eq!(last(seven(), None, &["tcp port 179"]), is_in);
    let never = "'anyvlan and net 192.0.2.0/24', which is never dropped, may be among them";
    assert_eq!(
        last(seven(), None, &["anyvlan and net 192.0.2.0/24"]),
        (vec![], lines(&[&format!("'udp4 dst-port 7': {never}")]))
    );
    assert_eq!(last(seven(), Some("anyvlan and udp"), &[]), is_in);
    for only in ["udp", "anyvlan and udp and len > 99", "anyvlan and net 192.0.2.0/24"] {
        let told = lines(&["'udp4 dst-port 7': it may reach beyond --only"]);
        assert_eq!(last(seven(), Some(only), &[]), (vec![], told), "{only}");
    }
}

#[test]
fn what_goes_to_a_queue_is_wholly_in_the_nic_whatever_other_rules_say() {
    let of = |action, condition| {
        last(vec![rule("before", Action::Pass, matching("")), rule("r", action, condition)], None, &[])
    };
    let flows = (lines(&["udp4 dst-port 53"]), vec![]);
    assert_eq!(of(Action::Steer(3), matching("ip and udp dst port 53")), flows);
    let lists = Condition { expression: Some(expression("ip and udp")), ..to_ports(&[6..=7]) };
    assert_eq!(of(Action::Steer(3), lists), (lines(&["udp4 dst-port 6/0xfffe"]), vec![]));
    let part = of(Action::Steer(3), matching("udp dst port 53"));
    assert!(part.0.is_empty() && part.1[0].ends_with("write: ip and udp dst port 53"), "{part:?}");
    let more = "n-tuple rules are made for addresses, protocols and ports of IPv4 alone";
    for text in ["arp", "vlan 7 and ip"] {
        assert_eq!(of(Action::Steer(3), matching(text)), (vec![], lines(&[more])), "{text}");
    }
}
