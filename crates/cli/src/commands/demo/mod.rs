//! `bywash demo`: shows in a few seconds that packets really move, over AF_XDP between namespaces of its own.
//!
//! A generator and a receiver, then a forwarder between the two. Each path is first measured flat out and then run at
//! [`SHARE`] of that, where every packet must arrive once, in order and undamaged. It is never too slow, only wrong: where
//! the kernel has counted each missing packet as one that found no room, the path is measured again, and asked for a share
//! of the least that it has carried so far.

mod path;
mod trial;

use std::fmt;
use std::time::Duration;

use bywash_apps::generate::Rate;
use bywash_apps::rate::Pps;
use bywash_port::frame::Arena;
use bywash_sys::memory::{self, HugePages};
use bywash_sys::worker::Stop;
use clap::Args as ClapArgs;

use crate::failure::{self, Failure};
use path::{Path, Place};
use trial::Trial;

const EXAMPLES: &str = "\
As root it builds network namespaces with veth pairs, which nobody else sees and which are gone when it ends, however it
ends. As another user it runs the same over ports in memory.

Examples:
  bywash demo                   what AF_XDP does on this machine, in some seconds
  setpriv --reuid nobody --clear-groups bywash demo    and packet memory alone, without a right

Exit codes: 0 every packet arrived as it was sent; 1 one did not, or it was interrupted; 2 it could not begin";

/// It takes no options.
#[derive(ClapArgs, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

/// Per cent of what a path can carry that it is then asked to carry without a fault.
const SHARE: u64 = 85;

/// How often in all a path may be measured: it is a fault of nobody when something else takes the machine for a while, but
/// it can't go on. All of them end within 20 s.
const ATTEMPTS: usize = 3;

/// How long a path is measured.
const FLAT_OUT: Duration = Duration::from_secs(1);

/// How long it then runs at its share.
const PACED: Duration = Duration::from_secs(2);

/// Why it ends on Ctrl-C.
const INTERRUPTED: &str = "interrupted: what was just being measured was cut short";

/// Packet memory: rings long enough that a pause of some milliseconds, as every machine makes, costs no packet.
const MEMORY: usize = 256 << 20;

/// Runs the demo. True when no packet was lost or damaged.
pub(crate) fn run(_: &Args) -> Result<bool, Failure> {
    let stop = Stop::new().map_err(Failure::Signals)?;
    bywash_sys::signals::stop_on_signals(stop.clone()).map_err(Failure::Signals)?;
    let place = match bywash_lab::root() {
        Ok(()) => Place::Namespaces,
        Err(why) => {
            failure::tell(&format!("{why}: the same over ports in memory"));
            Place::Memory
        }
    };
    let (arena, reservation) = packet_memory(&place)?;
    let mut rows = Vec::new();
    let outcome = run_paths(&place, arena, &stop, &mut rows);
    drop(reservation);
    failure::print(&Summary(&rows).to_string());
    match outcome? {
        None => Ok(true),
        Some(reason) => {
            failure::warn(&reason);
            Ok(false)
        }
    }
}

/// Memory in huge pages, asked of the kernel for as long as we run where we may.
fn packet_memory(place: &Place) -> Result<(&'static Arena, Option<bywash_sys::state::Undo>), Failure> {
    let reserved = match place {
        Place::Namespaces => memory::allocate(MEMORY, HugePages::Reserve, None).ok(),
        Place::Memory => None,
    };
    let allocation = match reserved {
        Some(allocation) => allocation,
        None => memory::allocate(MEMORY, HugePages::Auto, None)?,
    };
    Ok((Arena::new(allocation.memory)?, allocation.reservation))
}

/// What one path has shown.
struct Row {
    path: String,
    flat_out: Trial,
    /// The least that it has carried so far, packets per second: flat out, now or earlier, or when it was too slow for its share.
    able: u64,
    paced: Option<Trial>,
}

/// Runs each path; a sentence when something went wrong on the way.
fn run_paths(
    place: &Place,
    arena: &'static Arena,
    stop: &Stop,
    rows: &mut Vec<Row>,
) -> Result<Option<String>, Failure> {
    let mut attempts = ATTEMPTS;
    for forwarders in [0, 1] {
        let path = Path::build(place, forwarders)?;
        failure::tell(&format!("{path} over {}", path.means()));
        let mut able = u64::MAX;
        while let Some(verdict) = attempt(&path, able, arena, stop, rows)? {
            attempts -= 1;
            match verdict {
                Verdict::Slow(reason) if attempts > 0 => {
                    failure::tell(&format!("{reason}: the machine is busy, so it is measured again"));
                    let paced = rows.pop().and_then(|row| Some(row.able.min(row.paced?.received_pps())));
                    able = paced.unwrap_or(able);
                }
                Verdict::Slow(reason) | Verdict::Wrong(reason) => return Ok(Some(reason)),
            }
        }
    }
    Ok(None)
}

/// What is wrong with an attempt.
enum Verdict {
    /// The path could not carry what it had carried a moment ago, and says so.
    Slow(String),
    /// Anything else.
    Wrong(String),
}

/// Measures a path, which has carried `able` packets per second before, then asks for its share. `None` when all is well.
fn attempt(
    path: &Path,
    able: u64,
    arena: &'static Arena,
    stop: &Stop,
    rows: &mut Vec<Row>,
) -> Result<Option<Verdict>, Failure> {
    let wrong = |reason: String| Ok(Some(Verdict::Wrong(reason)));
    let flat_out = trial::run(path, None, FLAT_OUT, arena, stop)?;
    let able = able.min(flat_out.received_pps());
    let rate = able / 100 * SHARE;
    let broken = flat_out.damaged();
    rows.push(Row { path: path.to_string(), flat_out, able, paced: None });
    if stop.is_set() {
        return wrong(INTERRUPTED.into());
    }
    if let Some(reason) = broken {
        return wrong(format!("{path}, flat out: {reason}"));
    }
    if rate == 0 {
        return wrong(format!("{path}: no packet arrived"));
    }
    let paced = trial::run(path, Some(Rate::Packets(rate as f64)), PACED, arena, stop)?;
    let (fault, slow) = (paced.fault(), paced.was_only_slow());
    if let Some(row) = rows.last_mut() {
        row.paced = Some(paced);
    }
    if stop.is_set() {
        return wrong(INTERRUPTED.into());
    }
    let verdict = if slow { Verdict::Slow } else { Verdict::Wrong };
    Ok(fault.map(|reason| verdict(format!("{path}, at {SHARE} % of its rate: {reason}"))))
}

/// The figures of all paths.
struct Summary<'a>(&'a [Row]);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row { path, flat_out, able, paced } in self.0 {
            writeln!(f, "{path}")?;
            writeln!(f, "  flat out      {} received, 64-byte packets", Pps(flat_out.received_pps()))?;
            if let Some(paced) = paced {
                // Less than flat out when it could not keep that up.
                let less = Some(able).filter(|able| **able < flat_out.received_pps());
                let of = less.map_or_else(String::new, |able| format!(" of {}:", Pps(*able)));
                writeln!(f, "{:<16}{paced}", format!("  at {SHARE} %{of} "))?;
            }
        }
        Ok(())
    }
}

impl From<bywash_lab::LabError> for Failure {
    fn from(error: bywash_lab::LabError) -> Self {
        Self::Usage(format!("the demo's network can't be built: {error}"))
    }
}
