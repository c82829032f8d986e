//! The beginning and the end of a filter: its port takes nothing that nobody reads, and whatever it has taken is judged and comes
//! back.

use std::sync::Arc;
use std::time::Duration;

use bywash_drivers::xdp::{self, Options};
use bywash_lab::Host;
use bywash_port::filter::Hook;
use bywash_port::filter::rules::{FlowOptions, Per};
use bywash_port::frame::{Arena, Batch, Stride};
use bywash_port::{Action, Condition, Limit, Port, QueueChoice, QueuePair, Rule, RuleSet, Rules};
use bywash_sys::memory::{HugePages, allocate};
use serde_json::Value;

use crate::bed::{Bed, Filter, summary};

/// Packets that have come to the kernel's IP of a host, for the host itself.
fn delivered(host: &Host) -> u64 {
    let snmp = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap().unwrap();
    let mut lines = snmp.lines().filter(|line| line.starts_with("Ip:")).map(str::split_whitespace);
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.position(|name| name == "InDelivers").unwrap();
    values.nth(at).unwrap().parse().unwrap()
}

#[test]
fn what_is_on_its_way_to_user_space_at_the_end_comes_back() {
    let Some(_guard) = bywash_lab::lock() else { return };
    // Three times: how much is on its way when it ends is by chance.
    for turn in 0..3 {
        let bed = Bed::new(2);
        let [sender, receiver] = [0, 1].map(|host| &bed.lab.hosts[host]);
        let before = delivered(receiver);
        let filter = Filter::start(&bed, "--attach xdp --only udp --ring 4096");
        let words = "generate --inject right --dst-mac 02:00:00:00:00:02 --dst 10.0.0.2 --src 10.0.0.16/28";
        let flood = Filter::tool(sender, &format!("{words} --sport 1000-1099 --dport 7 --rate 60k"));
        std::thread::sleep(Duration::from_millis(1500));
        let told = filter.end();
        std::thread::sleep(Duration::from_millis(200));
        let (_, flood) = flood.end_anyhow();
        let summary = summary(&told);
        let count = |of: &Value, name: &str| of[name].as_u64().unwrap();
        let port = |name: &str| count(&summary["port"]["counters"], name);
        let full = port("rx_dropped") + port("rx_ring_full");
        assert_eq!(count(summary, "unjudged_packets"), full, "{summary}");
        assert_eq!(count(summary, "taken_packets") + full, port("taken"), "{turn}: {summary}");
        assert!(count(summary, "taken_packets") > 10_000, "too few: {summary}");
        assert_eq!((count(summary, "lost_packets"), count(summary, "dropped_packets")), (0, 0), "{summary}");
        assert_eq!(count(summary, "given_back_packets"), count(summary, "taken_packets"), "{summary}");
        assert!(count(crate::bed::summary(&flood), "tx_packets") > 20_000, "too short a flood: {flood:?}");
        let arrived = delivered(receiver) - before;
        assert!(arrived >= count(summary, "given_back_packets"), "{turn}: {arrived}: {summary}");
    }
}

#[test]
fn a_queue_takes_nothing_before_its_first_call_and_after_it_is_stopped() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let memory = allocate(Stride::Packed.memory_for(2048), HugePages::Off, None).unwrap().memory;
    let arena = Arena::new(memory).unwrap();
    let mut pool = arena.pool(512).unwrap();
    let limit = Limit { rate: 1, burst: 1, per: Per::Rule, block: None };
    let rule = Rule {
        name: "for user space".into(),
        condition: Condition { to_ports: vec![7..=7], ..Condition::default() },
        action: Action::Limit(limit),
        sample: None,
        expires: None,
        dry_run: false,
    };
    let set = Arc::new(RuleSet::new(vec![rule]).unwrap());
    let rules = Rules { set, never: Vec::new(), flows: FlowOptions::default() };
    let options = Options { rules: Some(rules), hook: Some(Hook::Xdp), ring_size: 512, ..Options::default() };
    let open = || xdp::open("left", QueueChoice::default(), &options, arena).unwrap();
    let mut port = Box::new(bed.lab.hosts[1].enter(open).unwrap());
    let QueuePair { rx: Some(mut rx), tx: Some(tx) } = port.queues().remove(0) else { panic!("two halves") };
    assert_eq!(bed.ask(10), 10, "the kernel's as long as nobody has called the queue");
    let mut batch = Batch::new();
    assert_eq!(rx.rx(&mut pool, &mut batch), 0, "none of these");
    assert_eq!(bed.ask(1), 0, "taken");
    rx.stop();
    assert_eq!(bed.ask(10), 10, "the kernel's again");
    assert_eq!(
        (rx.rx(&mut pool, &mut batch), bed.ask(10)),
        (1, 10),
        "what was taken before, and a call changes nothing"
    );
    rx.show_life(true);
    assert_eq!((rx.rx(&mut pool, &mut batch), bed.ask(10)), (0, 10), "nor does a sign of life");
    pool.give_batch(&mut batch);
    tx.close(&mut pool);
    rx.close(&mut pool);
    let counters = port.counters();
    let counted = |name| counters.iter().find(|counter| counter.name == name).unwrap().value;
    assert_eq!((counted("taken"), counted("no_socket") >= 40), (1, true), "{counters:?}");
    port.close().unwrap();
}
