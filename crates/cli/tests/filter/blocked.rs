//! Who is blocked stays so, from the first packet on that other rules decide about.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::bed::{Bed, Filter, of_rule};
use crate::under_flood::{PATIENCE, flood, flooded, waiting};

/// Sources of the flood, each of which is blocked.
const SOURCES: u64 = 16;

const RELOADS: usize = 100;

#[test]
fn nothing_gets_through_of_who_is_blocked_while_rules_are_read_a_hundred_times() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let audit = bed.folder.path().join("audit.log");
    let text = "[[rule]]\nname = 'rate'\nto_ports = [9]\naction = 'limit'\nrate = 100\nper = 'source'\nblock_seconds = 600\n";
    let words = format!("--rules {} --audit {}", bed.rules(text).display(), audit.display());
    let mut filter = Filter::start(&bed, &words);
    let (target, flood) = (flooded(&bed, 9), flood(&bed, "10.0.0.16/28", "9", "20k"));
    let until = Instant::now() + PATIENCE;
    while filter.report()["blocked_now"] != SOURCES {
        assert!(Instant::now() < until, "not all are blocked");
    }
    // What was on its way to user space by then.
    std::thread::sleep(Duration::from_millis(100));
    let before = filter.report().clone();
    waiting(&target);
    for turn in 1..=RELOADS {
        filter.signal(Signal::HUP);
        let until = Instant::now() + PATIENCE;
        while std::fs::read_to_string(&audit).unwrap().matches("\"reload\"").count() < turn {
            assert!(Instant::now() < until, "the rules were not read");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let after = filter.report().clone();
    let through = waiting(&target);
    let hung = |event: &Value| event["ports"][0]["hung"].as_u64().unwrap();
    // A worker that has no CPU for half a second leaves all to the kernel.
    assert!(through <= hung(&after) - hung(&before), "{through} came through: {after}");
    let taken = |event: &Value| event["taken_packets"].as_u64().unwrap();
    assert_eq!(taken(&after), taken(&before), "user space had some: {after}");
    let blocked = |event: &Value| {
        event["blocks"].as_array().unwrap().iter().map(|row| row["packets"].as_u64().unwrap()).sum::<u64>()
    };
    assert!(
        blocked(&after) > blocked(&before) + 1000,
        "what each has had dropped goes on: {before}, {after}"
    );
    assert!(of_rule(&after, "rate", "packets") > of_rule(&before, "rate", "packets") + 1000, "{after}");
    assert_eq!((&after["blocked_sources"], &after["blocked_now"]), (&SOURCES.into(), &SOURCES.into()));
    flood.end_anyhow();
    filter.end();
}
