//! One run over a path, at one rate.

use std::fmt;
use std::io::IsTerminal;
use std::time::Duration;

use bywash_apps::forward::{self, Forward};
use bywash_apps::generate::{self, Generate, Rate};
use bywash_apps::rate::{Pps, packets_per_second};
use bywash_apps::receive::{self, Receive};
use bywash_apps::{App, WorkerOptions};
use bywash_port::frame::Arena;
use bywash_sys::worker::{self, Idle, Stop};

use super::path::{End, Path};
use crate::failure::{self, Failure};

/// What came of it.
pub(super) struct Trial {
    sent: u64,
    received: receive::Summary,
    seconds: f64,
}

/// How often the live line changes.
const TICK: Duration = Duration::from_millis(250);

/// How long the last packets may take to arrive.
const SETTLE: Duration = Duration::from_millis(300);

/// Frames for each worker: its rings full, and as many again on their way.
const FRAMES: usize = 20_000;

/// Runs the path for `duration`, at `rate` or flat out, with a live line.
pub(super) fn run(
    path: &Path,
    rate: Option<Rate>,
    duration: Duration,
    arena: &'static Arena,
    user_stop: &Stop,
) -> Result<Trial, Failure> {
    let stop = Stop::new().map_err(Failure::Signals)?;
    let Running { mut receiver, forwarders, mut generator } = start(path, rate, duration, arena, &stop)?;
    let what = if rate.is_some() { "paced   " } else { "flat out" };
    let patience = (duration + Duration::from_secs(1)).as_millis() / TICK.as_millis();
    for _ in 0..patience {
        if generator.wait(TICK) || user_stop.is_set() {
            break;
        }
        live(&format!("{what} {}", receiver.interval()));
    }
    if user_stop.is_set() {
        stop.set();
    }
    let sent = generator.finish();
    for _ in 0..2 {
        // Nobody ends these but us: this only lets time pass.
        receiver.wait(SETTLE / 2);
        live(&format!("{what} {}", receiver.interval()));
    }
    live("");
    stop.set();
    for forwarder in forwarders {
        forwarder.finish();
    }
    Ok(Trial { sent: sent.tx_packets, received: receiver.finish(), seconds: sent.duration_s })
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
    let cores = worker::allowed_cores();
    // The generator has a core to itself where there are two, since its schedule is what is judged. Others may spin where
    // nobody shares their core; where somebody does, they would only keep each other from working.
    let shared = path.forwarders() + 2 > cores.len();
    let on = |n: usize| WorkerOptions {
        cores: cores
            .get(if shared { n.min(cores.len().saturating_sub(1)) } else { n })
            .copied()
            .into_iter()
            .collect(),
        frames: Some(FRAMES),
        idle: if shared && n > 0 { Idle::Sleep } else { Idle::Adaptive },
    };

    let last = path.forwarders();
    let receiver_options = receive::Options { workers: on(last + 1), ..receive::Options::default() };
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
            let options = forward::Options { workers: on(n + 1), ..forward::Options::default() };
            forwarders.push(Forward::start(vec![forward::Pair::Both(from, to)], &options, arena, stop)?);
        }
        let orders = generate::Options {
            rate,
            duration: Some(duration),
            workers: on(0),
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

/// Shows a line in place of the one before, on a terminal.
fn live(line: &str) {
    if std::io::stderr().is_terminal() {
        failure::write(&format!("\r{line}\x1b[K"));
    }
}

impl Trial {
    /// Packets that arrived, by the second.
    pub(super) fn received_pps(&self) -> u64 {
        packets_per_second(self.received.received.right_packets, self.seconds)
    }

    /// What is wrong at any rate: a packet that is not as it was sent.
    pub(super) fn damaged(&self) -> Option<String> {
        let received = &self.received.received;
        (received.damaged_packets > 0)
            .then(|| format!("{} packets arrived with a wrong payload checksum", received.damaged_packets))
    }

    /// What is wrong at a rate that the path can carry.
    pub(super) fn fault(&self) -> Option<String> {
        let received = &self.received.received;
        let lost = self.sent.saturating_sub(received.right_packets);
        let faults = [
            (lost, "lost"),
            (received.lost_packets, "missing in the sequence"),
            (received.reordered_packets, "out of order"),
            (received.duplicate_packets, "twice"),
        ];
        let named: Vec<String> =
            faults.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} packets {what}")).collect();
        self.damaged()
            .or_else(|| (!named.is_empty()).then(|| format!("{} of {} sent", named.join(", "), self.sent)))
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let received = &self.received.received;
        write!(f, "{}, {} sent, {} received", Pps(self.received_pps()), self.sent, received.right_packets)?;
        if let Some(latency) = &self.received.latency {
            write!(f, "\n  latency      {latency}")?;
        }
        Ok(())
    }
}
