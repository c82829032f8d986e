//! A thousand sets of rules, one after the other, under a flood that each of them drops; in XDP, and at TCX.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash_drivers::xdp::{self, Options};
use bywash_port::filter::Hook;
use bywash_port::filter::rules::FlowOptions;
use bywash_port::frame::{Arena, Batch, Stride};
use bywash_port::{Action, Condition, Port, QueueChoice, Rule, RuleSet, Rules};
use bywash_sys::memory::{HugePages, allocate};

use crate::bed::{Bed, Filter, MOST, summary};

const RELOADS: u32 = 1000;

const AT_MOST: Duration = MOST.saturating_sub(Duration::from_secs(20));

/// The flood is dropped by one rule or by the other, of one list or of an expression, and never by both or by none.
fn rules(turn: u32) -> Rules {
    let (first, second) = if turn.is_multiple_of(2) { (9, 10) } else { (10, 9) };
    let expression = Some(format!("udp dst port {second}").parse().unwrap());
    let conditions = [
        ("list", Condition { to_ports: vec![first..=first], ..Condition::default() }),
        ("expression", Condition { expression, ..Condition::default() }),
    ];
    let rule = |(name, condition): (&str, Condition)| Rule {
        name: name.into(),
        condition,
        action: Action::Drop,
        sample: None,
        expires: None,
        dry_run: false,
    };
    let set = Arc::new(RuleSet::new(conditions.map(rule).into()).unwrap());
    Rules { set, never: Vec::new(), flows: FlowOptions::default() }
}

#[test]
fn a_thousand_reloads_under_a_flood_let_nothing_through_and_no_counter_goes_back() {
    let Some(_guard) = bywash_lab::lock() else { return };
    // Each mostly waits for the kernel: both at a time.
    std::thread::scope(|scope| {
        for hook in [Hook::Xdp, Hook::Tcx] {
            scope.spawn(move || reload(hook));
        }
    });
}

fn reload(hook: Hook) {
    let bed = Bed::new(1);
    let memory = allocate(Stride::Packed.memory_for(2048), HugePages::Off, None).unwrap().memory;
    let arena = Arena::new(memory).unwrap();
    let mut pool = arena.pool(1024).unwrap();
    let ring_size = if hook == Hook::Xdp { 512 } else { Options::default().ring_size };
    let options = Options { rules: Some(rules(0)), hook: Some(hook), ring_size, ..Options::default() };
    let open = || xdp::open("left", QueueChoice::default(), &options, arena).unwrap();
    let mut port = Box::new(bed.lab.hosts[1].enter(open).unwrap());
    let queues = port.queues();
    let (mut queues, mut batch) = (queues.into_iter().next().unwrap(), Batch::new());
    // Until then everything is the kernel's.
    queues.rx.as_mut().unwrap().rx(&mut pool, &mut batch);
    let words = "generate --inject right --dst-mac 02:00:00:00:00:02 --dst 10.0.0.2 --dport 9,10 --src 10.1.0.0/24 --rate 50k";
    let flood = Filter::tool(&bed.lab.hosts[0], words);
    let mut last = [0; 2];
    let started = Instant::now();
    for turn in 1..=RELOADS {
        let loaded = port.load_rules(&rules(turn)).unwrap().load().unwrap();
        port.set_rules(loaded, &[]).unwrap();
        // Nothing comes, but the program wants to be sure that somebody is there.
        queues.rx.as_mut().unwrap().rx(&mut pool, &mut batch);
        assert!(batch.is_empty());
        let counts = port.rule_counts();
        let now = [counts[0].packets, counts[1].packets];
        assert!(now[0] >= last[0] && now[1] >= last[1], "{turn}: {last:?}, then {now:?}");
        last = now;
        // The flood must not end before. Alone on two cores it takes two minutes.
        assert!(started.elapsed() < AT_MOST, "{turn} reloads so far");
    }
    let (_, told) = flood.end_anyhow();
    let sent = summary(&told)["tx_packets"].as_u64().unwrap();
    let dropped: u64 = port.rule_counts().iter().map(|count| count.packets).sum();
    let counters = port.counters();
    let counted = |name| counters.iter().find(|counter| counter.name == name).unwrap().value;
    // A packet that half a set had decided would be counted by neither rule, or by both. What was hung was slower than half a second.
    assert_eq!((dropped + counted("hung"), counted("left")), (sent, 0), "in {:?}", started.elapsed());
    assert!(sent > 10_000 && last.iter().all(|count| *count > 1000), "{sent} {last:?}");
    queues.rx.take().unwrap().close(&mut pool);
    queues.tx.take().unwrap().close(&mut pool);
    port.close().unwrap();
}
