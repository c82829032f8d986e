//! One run over a path, at one rate.

use std::fmt;
use std::io::IsTerminal;
use std::time::Duration;

use bywash_apps::App;
use bywash_apps::forward::{self, Forward};
use bywash_apps::generate::{self, Generate, Rate};
use bywash_apps::rate::{Pps, per_second};
use bywash_apps::receive::{self, LATENCY, Receive, Received};
use bywash_apps::report::Snapshot;
use bywash_port::frame::Arena;
use bywash_sys::worker::Stop;

use super::path::{End, Path};
use crate::failure::{self, Failure};

/// What came of it.
pub(super) struct Trial {
    sent: u64,
    received: receive::Summary,
    seconds: f64,
    /// What the cables dropped meanwhile.
    dropped: u64,
}

/// How often the live line changes.
const TICK: Duration = Duration::from_millis(250);

/// How long the last packets may take to arrive.
const SETTLE: Duration = Duration::from_millis(300);

/// Runs the path for `duration`, at `rate` or flat out, with a live line.
pub(super) fn run(
    path: &Path,
    rate: Option<Rate>,
    duration: Duration,
    arena: &'static Arena,
    user_stop: &Stop,
) -> Result<Trial, Failure> {
    let stop = Stop::new().map_err(Failure::Signals)?;
    let dropped = path.dropped()?;
    let Running { mut receiver, forwarders, mut generator } = start(path, rate, duration, arena, &stop)?;
    let what = if rate.is_some() { "paced   " } else { "flat out" };
    let mut last = None;
    let patience = (duration + Duration::from_secs(1)).as_millis() / TICK.as_millis();
    for _ in 0..patience {
        if generator.wait(TICK) || user_stop.is_set() {
            break;
        }
        show(&receiver, &mut last, what);
    }
    if user_stop.is_set() {
        stop.set();
    }
    let sent = generator.finish();
    for _ in 0..2 {
        // Nobody ends these but us: this only lets time pass.
        receiver.wait(SETTLE / 2);
        show(&receiver, &mut last, what);
    }
    live("");
    stop.set();
    for forwarder in forwarders {
        forwarder.finish();
    }
    let received = receiver.finish();
    let dropped = path.dropped()?.saturating_sub(dropped);
    Ok(Trial { sent: sent.tx_packets, received, seconds: sent.duration_s, dropped })
}

/// All apps of a path.
struct Running {
    receiver: Receive,
    forwarders: Vec<Forward>,
    generator: Generate,
}

/// Starts them, the receiver first. On an error those that run are ended, which closes their ports.
fn start(
    path: &Path,
    rate: Option<Rate>,
    duration: Duration,
    arena: &'static Arena,
    stop: &Stop,
) -> Result<Running, Failure> {
    let last = path.forwarders();
    let receiver_options =
        receive::Options { workers: path.workers(last + 1), ..receive::Options::default() };
    let port = path.open(last, End::Out, arena)?;
    let receiver = Receive::start(port, &receiver_options, arena, stop)?;
    let mut forwarders = Vec::new();
    let mut start_senders = || -> Result<Generate, Failure> {
        for n in 0..path.forwarders() {
            let from = path.open(n, End::Out, arena)?;
            let to = match path.open(n + 1, End::In, arena) {
                Ok(to) => to,
                Err(failure) => {
                    // Why it did not open matters more than what could not be undone.
                    drop(from.close());
                    return Err(failure);
                }
            };
            let options = forward::Options { workers: path.workers(n + 1), ..forward::Options::default() };
            forwarders.push(Forward::start(vec![forward::Pair::Both(from, to)], &options, arena, stop)?);
        }
        let orders = generate::Options {
            rate,
            duration: Some(duration),
            workers: path.workers(0),
            frame: generate::Frame { sources: 256, ..generate::Frame::default() },
            ..generate::Options::default()
        };
        Ok(Generate::start(path.open(0, End::In, arena)?, &orders, arena, stop)?)
    };
    match start_senders() {
        Ok(generator) => Ok(Running { receiver, forwarders, generator }),
        Err(failure) => {
            stop.set();
            for forwarder in forwarders {
                forwarder.finish();
            }
            receiver.finish();
            Err(failure)
        }
    }
}

/// Shows what the receiver has done since `last`.
fn show(receiver: &Receive, last: &mut Option<Snapshot>, what: &str) {
    let now = receiver.snapshot();
    live(&format!("{what} {}", now.since(last.as_ref())));
    *last = Some(now);
}

/// Shows a line in place of the one before, on a terminal.
fn live(line: &str) {
    if std::io::stderr().is_terminal() {
        failure::write(&format!("\r{line}\x1b[K"));
    }
}

impl Trial {
    /// Packets that arrived, by the second.
    pub(super) fn received_pps(&self) -> u64 {
        per_second(self.received.received.right_packets, self.seconds)
    }

    /// What is wrong at any rate.
    pub(super) fn damaged(&self) -> Option<String> {
        damage(&self.received.received)
    }

    /// What is wrong at a rate that the path can carry.
    pub(super) fn fault(&self) -> Option<String> {
        fault(self.sent, &self.received.received)
    }

    /// Whether nothing is wrong but that packets found no room: the path is slower than it was when it was measured, or
    /// something else had a core meanwhile.
    pub(super) fn was_only_slow(&self) -> bool {
        was_only_slow(self.sent, self.dropped, &self.received.received)
    }
}

/// A packet that is not as it was sent.
fn damage(received: &Received) -> Option<String> {
    (received.damaged_packets > 0)
        .then(|| format!("{} packets arrived with a wrong payload checksum", received.damaged_packets))
}

/// Damage, or packets that did not come once and in order.
fn fault(sent: u64, received: &Received) -> Option<String> {
    let lost = sent.saturating_sub(received.right_packets);
    let faults = [
        (lost, "lost"),
        (received.lost_packets, "missing in the sequence"),
        (received.reordered_packets, "out of order"),
        (received.duplicate_packets, "twice"),
    ];
    let named: Vec<String> =
        faults.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} packets {what}")).collect();
    damage(received).or_else(|| (!named.is_empty()).then(|| format!("{} of {sent} sent", named.join(", "))))
}

/// Packets are missing, and as many were counted where they were dropped.
fn was_only_slow(sent: u64, dropped: u64, received: &Received) -> bool {
    let lost = sent.saturating_sub(received.right_packets).max(received.lost_packets);
    lost > 0
        && lost <= dropped
        && received.damaged_packets + received.reordered_packets + received.duplicate_packets == 0
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let received = &self.received.received;
        write!(f, "{}, {} sent, {} received", Pps(self.received_pps()), self.sent, received.right_packets)?;
        let latency = self.received.snapshot.distributions.iter().find(|times| times.name == LATENCY);
        match latency.and_then(|latency| latency.times.percentiles()) {
            Some(latency) => write!(f, "\n  latency      {latency}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_slowness_when_it_was_counted_as_such() {
        let lost = Received { right_packets: 990, lost_packets: 8, ..Received::default() };
        let judged = |dropped, change: fn(&mut Received)| {
            let mut received = lost;
            change(&mut received);
            was_only_slow(1000, dropped, &received)
        };
        assert!(judged(10, |_| ()));
        assert!(judged(11, |_| ()), "a drop that both ends counted");
        assert!(!judged(9, |_| ()), "one is lost that nobody dropped");
        assert!(
            judged(10, |r| r.right_packets = 1000),
            "what is dropped on the way out does not count as sent"
        );
        assert!(!judged(10, |r| r.lost_packets = 11));
        assert!(!judged(10, |r| r.damaged_packets = 1));
        assert!(!judged(10, |r| r.reordered_packets = 1));
        assert!(!judged(10, |r| r.duplicate_packets = 1));
    }

    #[test]
    fn each_fault_is_named() {
        let right = Received { rx_packets: 1000, right_packets: 1000, ..Received::default() };
        let judged = |change: fn(&mut Received)| {
            let mut received = right;
            change(&mut received);
            (fault(1000, &received).unwrap_or_default(), damage(&received).unwrap_or_default())
        };
        let only = |reason: &str| (reason.to_owned(), String::new());
        assert_eq!(judged(|_| ()), only(""));
        assert_eq!(judged(|r| r.foreign_packets = 9), only(""), "others' packets are no fault");
        // The last packets leave no gap, and one that came late fills its own.
        assert_eq!(judged(|r| r.right_packets = 993), only("7 packets lost of 1000 sent"));
        assert_eq!(judged(|r| r.lost_packets = 4), only("4 packets missing in the sequence of 1000 sent"));
        assert_eq!(judged(|r| r.reordered_packets = 1), only("1 packets out of order of 1000 sent"));
        assert_eq!(judged(|r| r.duplicate_packets = 2), only("2 packets twice of 1000 sent"));
        let all = "7 packets lost, 7 packets missing in the sequence of 1000 sent";
        assert_eq!(judged(|r| (r.right_packets, r.lost_packets) = (993, 7)), only(all));
        let wrong = "3 packets arrived with a wrong payload checksum".to_owned();
        assert_eq!(
            judged(|r| (r.right_packets, r.damaged_packets) = (997, 3)),
            (wrong.clone(), wrong),
            "also flat out"
        );
    }
}
