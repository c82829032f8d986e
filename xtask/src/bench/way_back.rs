//! Benchmark `way-back`: how many packets a second come through user space and back into the kernel by the interface that
//! they came from, and in which order.
//!
//! `bywash filter` without rules takes all that comes and gives all of it back. The packets are made on core 0; on core 1 are
//! the filter's worker and, behind the way back, the kernel with nftables and conntrack.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::pairs::Spread;
use super::record::Record;
use super::{Options, ours};
use crate::project::Problem;
use crate::tools;

/// What is run in a namespace of its own.
const SCENE: &str = include_str!("way_back/scene.sh");

/// What must come back, packets/s.
const AIM: f64 = 6e5;

/// Packets/s that come: what is aimed at, more, and more than anybody can take.
const RATES: [&str; 4] = ["600k", "800k", "1M", "max"];

/// Packets/s at which the order is judged: what is slow enough that the receiver, on the same core, misses little; and what is
/// aimed at, of which it sees what is left to it. What it misses it can't judge, and does not call late.
const JUDGED: [&str; 2] = ["250k", "600k"];

/// Packets that are judged at least, for the order to count as seen.
const LEAST_JUDGED: f64 = 1e6;

/// Runs at most until so many were judged: on a busy machine the receiver sees few.
const MOST_RUNS: usize = 8;

const FLOWS: u64 = 1000;

/// What one run has shown. Without a filter all that nftables has seen counts as given back.
struct Shown {
    /// Packets that the sender has handed over.
    sent: f64,
    seconds: f64,
    given_back: f64,
    /// Packets that user space had, and the kernel had no room for.
    lost: f64,
    /// Packets that nftables has seen come in by the original interface, and by others.
    seen: [f64; 2],
    connections: u64,
    /// Packets judged by their order, and those that came after a later one.
    judged: Option<[f64; 2]>,
}

pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let mut scene = |rate: &str, seconds: u32, who: &str| {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", SCENE, "sh", rate]).arg(seconds.to_string()).arg(who).arg(&binary);
        command.envs(tools::environment());
        read(&record.run(&mut command, Duration::from_secs(u64::from(seconds) + 60))?)
    };
    let mut text = format!(
        "Packets of 64 bytes in {FLOWS} flows of UDP on a veth of one queue, {} runs of {} s each. The sender is on core 0; \
         user space, nftables, conntrack and the socket that they are for, of which nobody reads, share core 1. nftables counts by the \
         original interface.\n\n\
         | that come, /s | back in the kernel, Mpps | of all that came, % | lost in user space | seen by nftables |\n\
         |---|---:|---:|---:|---|\n",
        options.pairs, options.seconds
    );
    let mut reached = false;
    for rate in RATES {
        let all: Vec<_> =
            (0..options.pairs).map(|_| scene(rate, options.seconds, "kernel")).collect::<Result<_, _>>()?;
        let figures = |of: fn(&Shown) -> f64| Spread::of(&all.iter().map(of).collect::<Vec<_>>());
        let back = figures(|shown| shown.given_back / shown.seconds);
        let part = figures(|shown| 100.0 * shown.given_back / shown.sent);
        let lost: f64 = all.iter().map(|shown| shown.lost).sum();
        let is_seen = |shown: &Shown| shown.seen == [shown.given_back, 0.0] && shown.connections == FLOWS;
        let seen = if all.iter().all(is_seen) { "all" } else { "not all" };
        text.push_str(&format!(
            "| {rate} | {:.2} ({:.2} to {:.2}) | {:.1} | {lost:.0} | {seen} |\n",
            back.median / 1e6,
            back.min / 1e6,
            back.max / 1e6,
            part.median
        ));
        reached |= back.median >= AIM && lost == 0.0 && seen == "all";
    }
    let alone: Vec<_> = (0..options.pairs)
        .map(|_| {
            scene(RATES[0], options.seconds, "alone").map(|shown| shown.given_back / shown.seconds / 1e6)
        })
        .collect::<Result<_, _>>()?;
    let alone = Spread::of(&alone);
    text.push_str(&format!(
        "\nWithout a filter the same core takes {:.2} Mpps ({:.2} to {:.2}) of {}/s into the kernel, by RPS.\n",
        alone.median, alone.min, alone.max, RATES[0]
    ));
    let mut in_order = true;
    for rate in JUDGED {
        let mut sum = Order::default();
        for _ in 0..MOST_RUNS {
            sum.add(&scene(rate, options.seconds, "order")?)?;
            if sum.right >= LEAST_JUDGED {
                break;
            }
        }
        in_order &= sum.late == 0.0 && sum.right >= LEAST_JUDGED;
        text.push_str(&format!("\n{}\n", sum.sentence(rate)));
    }
    text.push_str(&format!(
        "\nAt least {:.1} Mpps, none lost, all by their interface, and of a million judged at each rate none late: {}.\n",
        AIM / 1e6,
        if reached && in_order { "reached" } else { "not reached" }
    ));
    Ok(text)
}

/// What a receiver behind the way back has seen of the order, in all runs at a rate.
#[derive(Debug, Default, PartialEq)]
struct Order {
    sent: f64,
    given_back: f64,
    right: f64,
    late: f64,
}

impl Order {
    fn add(&mut self, shown: &Shown) -> Result<(), Problem> {
        let [right, late] = shown.judged.ok_or_else(|| Problem("nobody has judged the order".into()))?;
        self.sent += shown.sent;
        self.given_back += shown.given_back;
        self.right += right;
        self.late += late;
        Ok(())
    }

    fn sentence(&self, rate: &str) -> String {
        format!(
            "Of {:.0} packets that came at {rate}/s and {:.0} that came back, a receiver behind the way back has seen {:.0}: {:.0} after a \
             later one.",
            self.sent, self.given_back, self.right, self.late
        )
    }
}

/// What a run has printed.
fn read(output: &str) -> Result<Shown, Problem> {
    let objects: Vec<Value> =
        output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
    let with = |name: &str| {
        let found = objects.iter().find(|object| object[name].is_number());
        found.ok_or_else(|| Problem(format!("nobody has told of {name}:\n{output}")))
    };
    let sent = with("tx_packets")?;
    let filter = with("given_back_packets").ok();
    let counters: Vec<&Value> =
        objects.iter().filter_map(|object| object["nftables"].as_array()).flatten().collect();
    let counter = |name: &str| {
        let found = counters.iter().find(|object| object["counter"]["name"] == name);
        found
            .and_then(|object| object["counter"]["packets"].as_f64())
            .ok_or_else(|| Problem(format!("nftables has no counter {name}:\n{output}")))
    };
    let connections = output.lines().find_map(|line| line.strip_prefix("conntrack: ")?.parse().ok());
    let judged = objects.iter().find(|object| object["reordered_packets"].is_number());
    let judged = judged.map(|object| {
        Ok::<_, Problem>([
            ours::number(object, "/right_packets")?,
            ours::number(object, "/reordered_packets")?,
        ])
    });
    let seen = [counter("ours")?, counter("others")?];
    let of_filter = |name: &str| filter.map(|filter| ours::number(filter, name)).transpose();
    Ok(Shown {
        sent: ours::number(sent, "/tx_packets")?,
        seconds: ours::number(sent, "/duration_s")?,
        given_back: of_filter("/given_back_packets")?.unwrap_or(seen[0]),
        lost: of_filter("/lost_packets")?.unwrap_or(0.0),
        seen,
        connections: connections.unwrap_or(0),
        judged: judged.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_prints_is_read() {
        let counter = |name: &str, packets: u32| {
            format!(r#"{{"counter":{{"family":"inet","name":"{name}","packets":{packets},"bytes":9}}}}"#)
        };
        let firewall = format!(
            r#"{{"nftables":[{{"metainfo":{{}}}},{},{}]}}"#,
            counter("ours", 7),
            counter("others", 0)
        );
        let output = format!(
            "{}\n{}\n{firewall}\nconntrack: 1000\n",
            r#"{"event":"summary","tx_packets":9,"duration_s":3.0}"#,
            r#"{"event":"summary","given_back_packets":7,"lost_packets":1}"#
        );
        let shown = read(&output).unwrap_or_else(|Problem(why)| panic!("{why}"));
        assert_eq!((shown.sent, shown.seconds, shown.given_back, shown.lost), (9.0, 3.0, 7.0, 1.0));
        assert_eq!((shown.seen, shown.connections, shown.judged), ([7.0, 0.0], 1000, None));
        let judged = format!("{}\n{output}", r#"{"right_packets":6,"reordered_packets":1}"#);
        let judged = read(&judged).unwrap_or_else(|Problem(why)| panic!("{why}"));
        assert_eq!(judged.judged, Some([6.0, 1.0]));
        let mut order = Order::default();
        assert!(order.add(&shown).is_err(), "nobody has judged it");
        for _ in 0..2 {
            order.add(&judged).unwrap_or_else(|Problem(why)| panic!("{why}"));
        }
        assert_eq!(order, Order { sent: 18.0, given_back: 14.0, right: 12.0, late: 2.0 });
        let alone =
            read(&output.replace("given_back_packets", "x")).unwrap_or_else(|Problem(why)| panic!("{why}"));
        assert_eq!(alone.given_back, 7.0, "what nftables has seen");
        assert!(read(&output.replace("others", "theirs")).is_err());
    }
}
