//! Packets that no rule decides, where a port takes packets: ours, as far as they match, or the kernel's.

use bywash_filter::rules::{Action, Condition, Rest, Rule, RuleSet};
use bywash_filter::xdp::{Take, Verdict};

use crate::loaded::{Loaded, expression, rights, rule};

/// UDP over IPv4 from 192.0.2.1 to a port, with a VLAN tag or without.
fn udp(port: u16, is_tagged: bool) -> Vec<u8> {
    let mut packet = vec![2; 12];
    if is_tagged {
        packet.extend([0x81, 0, 0, 7]);
    }
    packet.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 9]);
    packet.extend(port.to_be_bytes());
    packet.resize(packet.len() + 16, 0);
    packet
}

fn rules() -> RuleSet {
    let about = |name: &str, action, text: &str| {
        rule(name, action, Condition { expression: expression(text), ..Condition::default() })
    };
    let ports = Condition { to_ports: vec![5..=6], ..Condition::default() };
    let rules: Vec<Rule> = vec![
        about("queue", Action::Steer(1), "anyvlan and udp dst port 4"),
        about("count", Action::Count, "anyvlan and udp"),
        rule("listed", Action::Drop, ports),
        about("after", Action::Drop, "anyvlan and udp dst port 4"),
        about("pass", Action::Pass, "anyvlan and udp dst port 3"),
    ];
    RuleSet::new(rules).unwrap()
}

#[test]
fn rules_come_before_what_is_ours_and_a_queue_of_the_nics_ends_them() {
    if !rights() {
        return;
    }
    let (set, only) = (rules(), expression("anyvlan and udp dst portrange 2-4").unwrap());
    let never = [expression("anyvlan and dst port 9").unwrap()];
    let ours = Rest::Ours(Take::Matching(&only));
    for is_tagged in [false, true] {
        // For each port: whether it is dropped, and the verdict where no rule decides. Nobody's socket takes what is ours.
        for (port, drops, verdict) in [
            (1, false, Some(Verdict::Left)),
            (2, false, Some(Verdict::NoSocket)),
            (3, false, None),
            (4, false, Some(Verdict::NoSocket)),
            (5, true, None),
            (9, false, Some(Verdict::NeverTake)),
        ] {
            let loaded = Loaded::with_rest(&set, &never, ours);
            assert_eq!(loaded.drops(&udp(port, is_tagged)), drops, "{port}");
            for each in Verdict::ALL {
                assert_eq!(loaded.verdict(each), u64::from(Some(each) == verdict), "{port} {each:?}");
            }
            let counted = [0, 1, 2, 3, 4].map(|rule| loaded.counted(rule)[0]);
            let wanted = match port {
                1 | 2 => [0, 1, 0, 0, 0],
                3 => [0, 1, 0, 0, 1],
                4 => [1, 0, 0, 0, 0],
                5 => [0, 1, 1, 0, 0],
                _ => [0; 5],
            };
            assert_eq!(counted, wanted, "{port}");
        }
    }
}

#[test]
fn who_takes_everything_takes_what_rules_may_not_drop() {
    if !rights() {
        return;
    }
    let (set, never) = (rules(), [expression("dst port 5").unwrap()]);
    for (rest, spared) in [(Rest::Everything, Verdict::NoSocket), (Rest::Ours(Take::All), Verdict::NeverTake)]
    {
        let loaded = Loaded::with_rest(&set, &never, rest);
        assert!(
            !loaded.drops(&udp(5, false)) && loaded.drops(&udp(6, false)) && !loaded.drops(&udp(1, false))
        );
        assert_eq!(loaded.verdict(Verdict::Left), 0, "all of them are ours");
        let others = u64::from(spared == Verdict::NoSocket);
        assert_eq!((loaded.verdict(spared), loaded.verdict(Verdict::NoSocket)), (1 + others, 1 + others));
    }
}
