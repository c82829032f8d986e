//! What was dropped stays told of: under a flood a rule expires, another one gets another name, and then it only counts.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::bed::{Bed, Filter, of_rule, sent, summary};
use crate::scraped;

/// The rules of a turn; the limit is for user space.
fn rules(first: &str, second: &str, limit: Option<&str>) -> String {
    let limit = limit.map_or_else(String::new, |name| {
        format!(
            "[[rule]]\nname = \"{name}\"\nto_ports = [11]\naction = \"limit\"\nrate = 10\nper = \"rule\"\n"
        )
    });
    format!(
        "[[rule]]\nname = \"first\"\nto_ports = [9]\naction = \"drop\"\n{first}\
         [[rule]]\nto_ports = [10]\naction = \"drop\"\n{second}{limit}"
    )
}

#[test]
fn totals_never_fall_and_the_summary_tells_of_rules_that_hold_no_longer() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for attach in ["xdp", "tcx"] {
        let bed = Bed::new(1);
        let soon = Command::new("date").args(["-u", "-d", "now + 4 seconds", "+%FT%TZ"]).output().unwrap();
        let expires = format!("expires = {}\n", String::from_utf8(soon.stdout).unwrap());
        let limits = |name| (attach == "xdp").then_some(name);
        let path = bed.rules(&rules(&expires, "name = \"second\"\n", limits("limit")));
        let words = format!("--rules {} --attach {attach} --prometheus 10.0.0.2:9100", path.display());
        let mut filter = Filter::start(&bed, &words);
        // By names of numbers, the largest that each has been.
        let mut most: HashMap<String, u64> = HashMap::new();
        let mut watch = |filter: &mut Filter, until: &dyn Fn(&Value) -> bool| {
            let end = Instant::now() + Duration::from_secs(20);
            loop {
                let report = filter.report().clone();
                let rows = report["rules"].as_array().unwrap().iter();
                let name = |row: &Value| format!("{} {} {}", row["rule"], row["action"], row["dry_run"]);
                let mut now: Vec<(String, u64)> =
                    rows.map(|row| (name(row), row["dropped_packets"].as_u64().unwrap())).collect();
                now.push(("in all".into(), report["dropped_packets"].as_u64().unwrap()));
                let metric = scraped(&bed.lab.hosts[1], "bywash_dropped_packets_total");
                now.push(("as Prometheus has it".into(), metric));
                for (name, value) in now {
                    let most = most.entry(name.clone()).or_default();
                    assert!(value >= *most, "{attach}: {name} was {most} and is {value}");
                    *most = value;
                }
                if until(&report) {
                    break;
                }
                assert!(Instant::now() < end, "{report}");
            }
        };
        let sent = std::thread::scope(|scope| {
            let flood = "--dport 9,10,11 --src 10.1.0.0/24 --rate 20k --duration 9s";
            let flood = scope.spawn(|| bed.flood(flood));
            watch(&mut filter, &|report| report["reloads"] == 1);
            let steps = [
                (2, "name = \"third\"\n", "limit of another name"),
                (3, "name = \"third\"\ndry_run = true\n", "limit of another name"),
                // Back again: it goes on from where it was.
                (4, "name = \"second\"\n", "limit"),
            ];
            for (reloads, second, limit) in steps {
                bed.rules(&rules(&expires, second, limits(limit)));
                filter.signal(Signal::HUP);
                watch(&mut filter, &|report| report["reloads"] == reloads);
                std::thread::sleep(Duration::from_millis(300));
            }
            while !flood.is_finished() {
                watch(&mut filter, &|_| true);
                std::thread::sleep(Duration::from_millis(200));
            }
            sent(flood.join().unwrap())
        });
        let told = filter.end();
        let summary = summary(&told);
        let of = |name: &str| of_rule(summary, name, "dropped_packets");
        let names = ["first", "second", "third", "limit", "limit of another name"];
        let names = &names[..if attach == "xdp" { 5 } else { 3 }];
        assert!(names.iter().all(|name| of(name) > 500), "{summary}");
        // What only counts has dropped nothing, and stands in a row of its own.
        let sum = |dry_run: bool| -> u64 {
            let rows = summary["rules"].as_array().unwrap().iter().filter(|row| row["dry_run"] == dry_run);
            rows.map(|row| row["dropped_packets"].as_u64().unwrap()).sum()
        };
        let dropped = summary["dropped_packets"].as_u64().unwrap();
        assert_eq!(sum(false), dropped, "{summary}");
        assert!(sum(true) > 500, "{summary}");
        let counters = &summary["port"]["counters"];
        let went_on: u64 = ["left", "hung"].iter().map(|name| counters[*name].as_u64().unwrap()).sum();
        let others =
            summary["given_back_packets"].as_u64().unwrap() + summary["lost_packets"].as_u64().unwrap();
        let all = dropped + went_on + others;
        assert!((sent..sent + 20).contains(&all), "{all} of {sent}: {summary}");
    }
}
