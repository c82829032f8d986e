//! Who floods is told: those that user space drops most of, and those that are blocked, with what has died of theirs.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::bed::{Bed, Filter};

/// A limit that blocks, and one that does not.
const RULES: &str = r#"
[[rule]]
name = "blocking"
to_ports = [8]
action = "limit"
rate = 100
per = "source/24"
block_seconds = 600
[[rule]]
name = "calm"
to_ports = [9]
action = "limit"
rate = 10
per = "source/24"
[[rule]]
name = "flows"
to_ports = [10]
action = "limit"
rate = 10
per = "flow"
"#;

/// Reports until one is as wanted.
fn report_until<'a>(filter: &'a mut Filter, what: &str, is_it: impl Fn(&Value) -> bool) -> &'a Value {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_it(filter.report()) {
        assert!(Instant::now() < until, "{what}: {}", filter.report());
        std::thread::sleep(Duration::from_millis(100));
    }
    filter.report()
}

/// The row of who is called so in a table.
fn row<'a>(event: &'a Value, table: &str, kind: &str, who: &str) -> Option<&'a Value> {
    event[table].as_array().unwrap().iter().find(|row| row[kind] == who)
}

#[test]
fn who_is_above_a_limit_and_who_is_blocked_is_told_with_all_packets() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rules = bed.rules(RULES);
    let words = format!("--rules {} --prometheus 10.0.0.2:9100", rules.display());
    let mut filter = Filter::start(&bed, &words);
    bed.flood("--dport 9 --src 10.9.2.0/24 --rate 20k --count 4000");
    bed.flood("--dport 9 --src 10.9.3.0/24 --rate 20k --count 1000");
    bed.flood("--dport 10 --src 10.9.4.1 --sport 77 --rate 20k --count 3000");
    bed.flood("--dport 8 --src 10.9.1.0/24 --rate 20k --count 8000");
    let all = |event: &Value| {
        let blocked = row(event, "blocks", "source", "10.9.1.0/24").map_or(0, packets);
        let taken = row(event, "heavy_hitters", "source", "10.9.1.0/24").map_or(0, packets);
        (blocked, taken)
    };
    // What a worker was too busy for is the kernel's, or nobody's.
    let counted = |event: &Value, name: &str| event["ports"][0][name].as_u64().unwrap();
    let hung = |event: &Value| {
        ["hung", "rx_dropped", "rx_ring_full"].map(|name| counted(event, name)).iter().sum::<u64>()
    };
    let is_told = |event: &Value| {
        let (blocked, taken) = all(event);
        let of = |who: &str| row(event, "heavy_hitters", "source", who).map_or(0, packets);
        let flow = row(event, "heavy_hitters", "flow", "UDP 10.9.4.1:77 -> 10.0.0.2:10").map_or(0, packets);
        let sum = blocked + taken + of("10.9.2.0/24") + of("10.9.3.0/24") + flow;
        blocked > 0 && sum + hung(event) >= 16_000
    };
    let report = report_until(&mut filter, "not all are told", is_told);
    let hitter = row(report, "heavy_hitters", "source", "10.9.2.0/24").unwrap();
    assert_eq!(hitter["rule"], "calm");
    let dropped = hitter["dropped_packets"].as_u64().unwrap();
    assert!(dropped > 100 && dropped < packets(hitter), "{report}");
    assert_eq!(row(report, "heavy_hitters", "source", "10.9.3.0/24").unwrap()["rule"], "calm");
    let block = row(report, "blocks", "source", "10.9.1.0/24").unwrap();
    let [been, left] = ["blocked_s", "left_s"].map(|name| block[name].as_u64().unwrap());
    assert_eq!((&block["rule"], &report["blocked_now"]), (&"blocking".into(), &1.into()));
    assert!((598..=600).contains(&(been + left)), "{block}");
    let (before, _) = all(report);
    let lost_before = hung(report);

    // What was dropped before other rules came is not forgotten, and goes on.
    bed.rules(&format!("{RULES}# changed\n"));
    filter.signal(Signal::HUP);
    report_until(&mut filter, "no reload", |event| event["reloads"] == 1);
    bed.flood("--dport 8 --src 10.9.1.0/24 --rate 20k --count 1000");
    let goes_on = |event: &Value| all(event).0 + hung(event) >= before + 1000 + lost_before;
    report_until(&mut filter, "the block's count begins anew", goes_on);

    let metrics = crate::exposition(&bed.lab.hosts[1]);
    assert!(metrics.contains("bywash_blocked_now 1"), "{metrics}");
    assert!(!metrics.contains("10.9."), "senders would be series for ever: {metrics}");
    filter.end();
}

fn packets(row: &Value) -> u64 {
    row["packets"].as_u64().unwrap()
}

#[test]
fn no_more_senders_are_told_of_than_were_asked_for() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let mut filter = Filter::start(&bed, &format!("--rules {} --top 2", bed.rules(RULES).display()));
    for (prefix, count) in [("10.9.1", 500), ("10.9.2", 3000), ("10.9.3", 2000)] {
        bed.flood(&format!("--dport 9 --src {prefix}.0/24 --rate 50k --count {count}"));
    }
    // Once nobody has sent for a while, those come first that have had most dropped in all.
    let told = |event: &Value| {
        let rows = event["heavy_hitters"].as_array().unwrap().iter();
        rows.map(|row| row["source"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    report_until(&mut filter, "the heaviest two", |event| told(event) == ["10.9.2.0/24", "10.9.3.0/24"]);
    let summary = filter.end();
    assert_eq!(told(summary.last().unwrap()).len(), 2);
}
