//! Rules in the kernel: its verifier takes their programs, and they decide as this process does.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod crossed;
mod drawn;
mod established;
mod loaded;
#[path = "../random/mod.rs"]
mod random;
mod rest;

use std::num::NonZeroU32;

use bywash_filter::Hook;
use bywash_filter::rules::{
    Action, BlockKey, Condition, Established, Findings, Limit, Per, Prefix, Rule, RuleSet, SynProxy,
};
use bywash_filter::xdp::{NeverTake, Verdict};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use loaded::{Form, HOOKS, Loaded, expression, rights, rule};

/// What a random packet is made of: addresses of few values, so that they meet prefixes.
#[derive(Clone, Debug)]
struct Shape {
    tags: usize,
    six: bool,
    addresses: [u8; 4],
    protocol: u8,
    fragment: u16,
    options: u8,
    ports: [u16; 2],
    cut: usize,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let protocols = prop::sample::select(vec![6_u8, 17, 132, 1, 58]);
    let fragments = prop::sample::select(vec![0_u16, 0, 0, 0x2000, 5]);
    let cuts = prop::sample::select(vec![0_usize, 0, 0, 0, 3, 9, 30]);
    let ports = prop::array::uniform2(0_u16..6);
    // Half of them have no tag.
    (
        prop::sample::select(vec![0_usize, 0, 0, 1, 2, 3]),
        any::<bool>(),
        prop::array::uniform4(0_u8..3),
        protocols,
        fragments,
        5_u8..8,
        ports,
        cuts,
    )
        .prop_map(|(tags, six, addresses, protocol, fragment, options, ports, cut)| Shape {
            tags,
            six,
            addresses,
            protocol,
            fragment,
            options,
            ports,
            cut,
        })
}

impl Shape {
    fn packet(&self) -> Vec<u8> {
        let mut packet = vec![2; 12];
        for _ in 0..self.tags {
            packet.extend([0x81, 0, 0, 1]);
        }
        let [a, b, c, d] = self.addresses;
        if self.six {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, self.protocol, 64]);
            for (one, other) in [(a, b), (c, d)] {
                packet.extend([0x20, one, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, other]);
            }
        } else {
            let [high, low] = self.fragment.to_be_bytes();
            packet.extend([8, 0, 0x40 | self.options, 0, 0, 60, 0, 0, high, low, 64, self.protocol, 0, 0]);
            packet.extend([10, a, 0, b, 10, c, 0, d]);
            packet.extend(vec![0; usize::from(self.options - 5) * 4]);
        }
        packet.extend(self.ports.into_iter().flat_map(u16::to_be_bytes));
        packet.extend([0; 20]);
        let len = packet.len() - self.cut;
        packet.truncate(len.max(14));
        packet
    }
}

impl Shape {
    /// Whether it ends in its IP header: the kernel makes no test run of such a packet at TCX.
    fn is_cut_in_ip(&self) -> bool {
        self.tags == 0 && self.packet().len() < if self.six { 54 } else { 34 }
    }
}

/// A list that some of these packets meet.
fn prefixes() -> impl Strategy<Value = Vec<Prefix>> {
    let four = prop::sample::select(vec![
        "10.0.0.0/16",
        "10.1.0.0/24",
        "10.2.0.1",
        "10.0.0.0/8",
        "0.0.0.0/0",
        "10.0.0.0/15",
        "10.1.0.0/30",
    ]);
    let six =
        prop::sample::select(vec!["2000::/16", "2001::/16", "2002::1", "::/0", "2000::/10", "2001::/127"]);
    let one = prop_oneof![four, six].prop_map(|text| text.parse().unwrap());
    prop::collection::vec(one, 0..4)
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let ports =
        || prop::collection::vec((0_u16..5, 0_u16..2).prop_map(|(from, more)| from..=from + more), 0..2);
    let texts = vec![
        None,
        None,
        None,
        Some("udp"),
        Some("ip6 or vlan"),
        Some("len > 60"),
        Some("tcp dst port 3"),
        Some("anyvlan and l4 udp src port 2"),
        Some("fragment or icmp6"),
        Some("not net 10.1.0.0/16"),
        Some("ip[6:2] & 0x1fff = 0 and port 4"),
        Some("udp[8] = 0 or ip6"),
    ];
    let drawn = prop::option::weighted(0.3, Just(NonZeroU32::MIN));
    let lists = (prefixes(), prefixes(), ports(), ports());
    let one = (lists, prop::sample::select(texts), 0_usize..5, any::<bool>(), drawn);
    let rule = one.prop_map(|((from, to, from_ports, to_ports), text, kind, alone, sample)| {
        // Half of them have one list only.
        let (to, from_ports, to_ports) =
            if alone && !from.is_empty() { (vec![], vec![], vec![]) } else { (to, from_ports, to_ports) };
        let expression = text.filter(|_| !alone).and_then(expression);
        let condition = Condition { expression, from, to, from_ports, to_ports, ..Condition::default() };
        let action = [Action::Drop, Action::Pass, Action::Count, Action::Queue, Action::Drop][kind];
        Rule { dry_run: kind == 4, sample, ..rule("", action, condition) }
    });
    prop::collection::vec(rule, 1..12).prop_map(|rules| {
        rules.into_iter().enumerate().map(|(n, rule)| Rule { name: n.to_string(), ..rule }).collect()
    })
}

/// A packet without tags, options and fragments.
fn plain(six: bool, protocol: u8) -> Shape {
    Shape { tags: 0, six, addresses: [1, 1, 0, 2], protocol, fragment: 0, options: 5, ports: [1, 3], cut: 0 }
}

#[test]
fn the_kernel_decides_and_counts_as_this_process_does() {
    if !rights() {
        return;
    }
    let mut runner = TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let cases = (rules(), prop::collection::vec(shapes(), 60));
    let run = runner.run(&cases, |(rules, shapes)| {
        let without_queue = |rule: &Rule| match rule.action {
            Action::Queue => Rule { action: Action::Pass, ..rule.clone() },
            _ => rule.clone(),
        };
        let decided = RuleSet::new(rules.iter().map(without_queue).collect()).unwrap();
        let rules = RuleSet::new(rules).unwrap();
        for form in [Form::Usual, Form::Shorter] {
            judge(Hook::Xdp, &rules, &shapes, form)?;
            judge(Hook::Tcx, &decided, &shapes, form)?;
        }
        Ok(())
    });
    run.unwrap();
}

/// Has both decide about packets.
fn judge(hook: Hook, set: &RuleSet, shapes: &[Shape], form: Form) -> Result<(), TestCaseError> {
    let Some(loaded) = Loaded::unless_too_large(hook, set, form) else {
        return Err(TestCaseError::reject("more paths than the kernel follows"));
    };
    let mut counts = vec![[0_u64; 2]; set.rules().len()];
    for shape in shapes {
        let packet = shape.packet();
        if hook == Hook::Tcx && shape.is_cut_in_ip() {
            continue;
        }
        let (lookup, established) = (set.look_up(&packet), Established::default());
        let mut findings = Findings::default();
        let mut course = set.course(&lookup, (&packet, packet.len()), &established, &mut findings);
        let (mut dropped, mut right) = (false, Vec::new());
        loop {
            let index = course.next_index();
            let Some(rule) = set.rules().get(index) else { break };
            // Without a socket it stays with the kernel.
            if rule.action == Action::Queue {
                break;
            }
            let [packets, bytes] = &mut counts[index];
            *packets += 1;
            *bytes += packet.len() as u64;
            if rule.sample.is_some() {
                right.push(drawn::whole(index, &packet));
            }
            if rule.decides() {
                dropped = rule.action == Action::Drop;
                break;
            }
        }
        prop_assert_eq!(loaded.drops(&packet), dropped, "{:?}: {:?} {:?}", hook, shape, set.rules());
        prop_assert_eq!(drawn::drawn(&loaded), right, "{:?}: {:?} {:?}", hook, shape, set.rules());
    }
    for (index, count) in (0..).zip(&counts) {
        prop_assert_eq!(loaded.counted(index), *count, "{:?}: rule {} of {:?}", hook, index, set.rules());
    }
    Ok(())
}

#[test]
fn what_asks_for_a_name_goes_to_user_space_whatever_name_that_is() {
    if !rights() {
        return;
    }
    let condition = Condition { names: vec!["*.example.org".parse().unwrap()], ..Condition::default() };
    let set = RuleSet::new(vec![
        rule("names", Action::Drop, condition),
        rule("rest", Action::Drop, Condition { expression: expression("udp"), ..Condition::default() }),
    ]);
    let loaded = Loaded::new(Hook::Xdp, &set.unwrap(), &[]);
    let shape = |port| Shape {
        tags: 0,
        six: false,
        addresses: [1, 1, 0, 2],
        protocol: 17,
        fragment: 0,
        options: 5,
        ports: [9, port],
        cut: 0,
    };
    assert!(!loaded.drops(&shape(53).packet()), "without a socket it stays with the kernel");
    assert_eq!((loaded.verdict(Verdict::NoSocket), loaded.counted(0)[0], loaded.counted(1)[0]), (1, 0, 0));
    assert!(loaded.drops(&shape(54).packet()));
}

#[test]
fn what_is_never_dropped_stays_and_so_does_everything_when_nobody_beats() {
    if !rights() {
        return;
    }
    let set = RuleSet::new(vec![rule(
        "all",
        Action::Drop,
        Condition { expression: expression(""), ..Condition::default() },
    )]);
    let set = set.unwrap();
    let never = NeverTake { gateways: vec!["10.0.0.1".parse().unwrap()], ..NeverTake::default() };
    let arp = [&[0; 12][..], &[8, 6], &[0; 46]].concat();
    let shape = Shape {
        tags: 1,
        six: false,
        addresses: [0, 1, 0, 2],
        protocol: 17,
        fragment: 0,
        options: 5,
        ports: [1, 2],
        cut: 0,
    };
    for hook in HOOKS {
        let loaded = Loaded::new(hook, &set, &[never.expression()]);
        let other = Shape { addresses: [1, 1, 0, 2], ..shape.clone() }.packet();
        assert!(!loaded.drops(&arp));
        assert!(!loaded.drops(&shape.packet()), "the gateway's own, tagged");
        assert!(loaded.drops(&other));
        assert_eq!((loaded.verdict(Verdict::NeverTake), loaded.counted(0)), (2, [1, other.len() as u64]));
        loaded.beat(0);
        assert!(!loaded.drops(&other));
        assert_eq!((loaded.verdict(Verdict::NoSocket), loaded.counted(0)[0]), (1, 1));
    }
}

#[test]
fn a_blocked_source_is_dropped_by_its_limit_and_nobody_else() {
    if !rights() {
        return;
    }
    let limit = Limit {
        rate: 1,
        burst: 1,
        per: Per::Source { v4: 24, v6: 64 },
        block: Some(std::time::Duration::from_secs(1)),
    };
    let condition = Condition { expression: expression("anyvlan and udp"), ..Condition::default() };
    let loaded = Loaded::new(
        Hook::Xdp,
        &RuleSet::new(vec![Rule {
            sample: NonZeroU32::new(1),
            ..rule("limit", Action::Limit(limit), condition)
        }])
        .unwrap(),
        &[],
    );
    for source in ["10.1.0.0", "2001::"] {
        let key = BlockKey { slot: 0, source: source.parse().unwrap() };
        loaded.blocks.update(&key.to_bytes(), &[0; 8]).unwrap();
    }
    let dropped = |source: &str| {
        let mut packets = [0; 8];
        let key = BlockKey { slot: 0, source: source.parse().unwrap() };
        assert!(loaded.blocks.lookup(&key.to_bytes(), &mut packets).unwrap());
        u64::from_ne_bytes(packets)
    };
    let shape = |six, host, net, protocol| Shape {
        tags: 1,
        addresses: [net, host, 0, 2],
        ports: [1, 2],
        ..plain(six, protocol)
    };
    for six in [false, true] {
        assert!(loaded.drops(&shape(six, 1, 1, 17).packet()));
        assert!(loaded.drops(&shape(six, 2, 1, 17).packet()), "the same prefix");
        // Without a socket the others stay with the kernel.
        assert!(!loaded.drops(&shape(six, 1, 2, 17).packet()), "another one");
        assert!(!loaded.drops(&shape(six, 1, 1, 6).packet()), "another protocol");
    }
    assert_eq!((loaded.counted(0)[0], loaded.verdict(Verdict::NoSocket)), (4, 2));
    assert_eq!(["10.1.0.0", "2001::"].map(dropped), [2, 2], "of each source");
    assert_eq!(drawn::drawn(&loaded).len(), 4, "what it has not counted it has not drawn");
}

#[test]
fn a_program_that_answers_syns_is_taken_and_leaves_alone_what_is_for_no_listener() {
    if !rights() {
        return;
    }
    let condition = || Condition { to_ports: vec![3..=4], ..Condition::default() };
    let set = RuleSet::new(vec![
        rule("cookies", Action::SynCookie, condition()),
        rule("proxy", Action::SynProxy(SynProxy { mss: 1460, window_scale: 7 }), condition()),
        rule("behind", Action::Count, condition()),
    ]);
    let loaded = Loaded::new(Hook::Xdp, &set.unwrap(), &[]);
    for six in [false, true] {
        for protocol in [6, 17] {
            for flags in [0x02, 0x10, 0x12, 0x04] {
                let mut packet = plain(six, protocol).packet();
                let tcp = packet.len() - 24;
                (packet[tcp + 12], packet[tcp + 13]) = (6 << 4, flags);
                assert!(!loaded.drops(&packet), "{six} {protocol} {flags:#x}");
            }
        }
    }
    assert_eq!([0, 1, 2].map(|slot| loaded.counted(slot)[0]), [0, 0, 16]);
}
