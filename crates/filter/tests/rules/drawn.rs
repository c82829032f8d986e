//! Samples: packets that are drawn go on as those that are not, and what is copied is what came.

use std::num::NonZeroU32;

use bywash_filter::rules::{Action, Condition, Drawn, Rule, RuleSet};
use bywash_filter::xdp::{LOST_SAMPLES, RULES_AT, Verdict};
use bywash_sys::bpf::{RingReader, possible_cpus};
use bywash_sys::clock;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use crate::loaded::{HOOKS, Loaded, expression, rights, rule};
use crate::plain;

/// The rule, the length on the wire, and the bytes of all that were drawn.
pub(crate) fn drawn(loaded: &Loaded) -> Vec<(u32, u32, Vec<u8>)> {
    let now = clock::monotonic();
    let (mut record, mut all) = ([0; Drawn::RECORD], Vec::new());
    let count = RingReader::new(&loaded.samples).unwrap().read(usize::MAX, &mut record, |record| {
        let drawn = Drawn::from_record(record).unwrap();
        assert!(now - drawn.time < 10 * clock::SECOND, "{now} {}", drawn.time);
        all.push((drawn.slot, drawn.wire_len, drawn.bytes.to_vec()));
    });
    assert_eq!(count, all.len());
    all
}

/// Such a packet, as it is to be drawn for this rule.
pub(crate) fn whole(rule: usize, packet: &[u8]) -> (u32, u32, Vec<u8>) {
    let [rule, len] = [rule, packet.len()].map(|number| u32::try_from(number).unwrap());
    (rule, len, packet[..packet.len().min(Drawn::MOST)].to_vec())
}

fn udp() -> Condition {
    Condition { expression: expression("udp"), ..Condition::default() }
}

#[test]
fn what_is_drawn_is_copied_for_each_rule_that_draws_it_and_goes_on() {
    if !rights() {
        return;
    }
    let listed = |net: &str| Condition { from: vec![net.parse().unwrap()], ..Condition::default() };
    let sample = NonZeroU32::new(1);
    let set = RuleSet::new(vec![
        Rule { sample, ..rule("seen", Action::Count, udp()) },
        rule("listed", Action::Drop, listed("10.1.0.0/16")),
        Rule { sample, ..rule("drawn list", Action::Drop, listed("10.2.0.0/16")) },
        Rule { sample, dry_run: true, ..rule("dry", Action::Drop, listed("10.3.0.0/16")) },
        Rule { sample, ..rule("passed", Action::Pass, listed("10.3.0.0/16")) },
        rule("behind", Action::Drop, listed("10.3.0.0/16")),
    ])
    .unwrap();
    for hook in HOOKS {
        let loaded = Loaded::new(hook, &set, &[]);
        let packet = |net, len| {
            let mut packet = plain(false, 17).packet();
            packet[27] = net;
            packet.resize(len, 7);
            packet
        };
        for (net, len, drops, by) in [
            (1, 60, true, vec![0]),
            (2, 60, true, vec![0, 2]),
            (3, 256, false, vec![0, 3, 4]),
            (4, 1500, false, vec![0]),
        ] {
            let packet = packet(net, len);
            assert_eq!(loaded.drops(&packet), drops, "{hook:?} {net}");
            let right: Vec<_> = by.into_iter().map(|rule| whole(rule, &packet)).collect();
            assert_eq!(drawn(&loaded), right, "{hook:?} {net}");
        }
        assert_eq!([0, 1, 2, 3, 4, 5].map(|rule| loaded.counted(rule)[0]), [4, 1, 1, 1, 1, 0], "{hook:?}");
        assert_eq!((loaded.verdict(Verdict::Left), loaded.verdict(Verdict::NoSocket)), (1, 0));
    }
}

#[test]
fn one_in_so_many_is_drawn_and_what_has_no_room_is_counted() {
    if !rights() {
        return;
    }
    let packet = plain(true, 17).packet();
    // Each CPU draws by itself.
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).unwrap();
    for hook in HOOKS {
        let load = |sample| {
            let sampled = Rule { sample: NonZeroU32::new(sample), ..rule("drawn", Action::Drop, udp()) };
            Loaded::new(hook, &RuleSet::new(vec![sampled]).unwrap(), &[])
        };
        let lost = |loaded: &Loaded| loaded.counters().sum::<2>(LOST_SAMPLES).unwrap()[0];
        let loaded = load(4);
        let (mut count, mut last) = (0, None);
        for number in 0..4000 {
            assert!(loaded.drops(&packet));
            let drawn = drawn(&loaded);
            assert!(
                drawn.iter().all(|drawn| *drawn == whole(0, &packet)),
                "also those beyond the ring's end"
            );
            if !drawn.is_empty() {
                assert!(last.is_none_or(|last| number - last <= 7), "{last:?} {number}");
                last = Some(number);
            }
            count += drawn.len();
        }
        // From one to seven packets are between two: the deviation is 16.
        assert!((900..1100).contains(&count), "{hook:?} {count}");
        assert_eq!((loaded.counted(0)[0], lost(&loaded)), (4000, 0));
        // One that is further away than there can be packets was drawn when samples were rarer.
        for (loaded, next, is_drawn) in
            [(&loaded, 1 << 40, true), (&loaded, 8, true), (&loaded, 7, false), (&load(1), 2, true)]
        {
            let count = [0, 0, next].map(u64::to_ne_bytes).concat().repeat(possible_cpus());
            loaded.counters().update(&RULES_AT.to_ne_bytes(), &count).unwrap();
            assert!(loaded.drops(&packet));
            assert_eq!(drawn(loaded).len(), usize::from(is_drawn), "{next}");
        }
        let loaded = load(1);
        (0..50).for_each(|_| assert!(loaded.drops(&packet)));
        let kept = drawn(&loaded).len() as u64;
        assert_eq!((kept + lost(&loaded), loaded.counted(0)[0]), (50, 50), "{hook:?}");
        // The ring of these tests has 4096 bytes.
        assert_eq!(kept, 4096 / (Drawn::RECORD as u64 + 8));
    }
}

#[test]
fn a_thousand_rules_that_draw_are_a_program() {
    if !rights() {
        return;
    }
    let all = |decides: bool| {
        let one = |number: u16| {
            let [high, low] = number.to_be_bytes();
            let condition = Condition {
                from: vec![format!("172.16.{high}.{low}").parse().unwrap()],
                ..Condition::default()
            };
            let sample = NonZeroU32::new(1);
            Rule { sample, dry_run: !decides, ..rule(&number.to_string(), Action::Drop, condition) }
        };
        RuleSet::new((0..1024).map(one).collect()).unwrap()
    };
    for (hook, decides) in HOOKS.into_iter().flat_map(|hook| [(hook, true), (hook, false)]) {
        let loaded = Loaded::new(hook, &all(decides), &[]);
        for number in [0_u16, 1, 500, 1023] {
            let mut packet = plain(false, 17).packet();
            packet[26..30].copy_from_slice(&[172, 16, number.to_be_bytes()[0], number.to_be_bytes()[1]]);
            assert_eq!(loaded.drops(&packet), decides);
            assert_eq!(drawn(&loaded), [whole(number.into(), &packet)]);
            assert_eq!(loaded.counted(number.into())[0], 1);
        }
    }
}
