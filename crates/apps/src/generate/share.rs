//! One worker's part of a plan: which packets are its own, when workers take turns.

use super::plan::{Patch, Plan};
use super::series::{self, Series};
use super::turns::gcd;

/// Flows of one worker up to which their values are kept in a table: what has a short circle would begin anew too often.
pub(super) const TABLE: u64 = 4096;

/// Longest cycle of sizes that is made so that all flows have all: sizes times flows. With `--inject` it lies in a value of
/// an eBPF map, which older kernels limit to 4 MiB.
const MOST_MIXED: u128 = 1 << 16;

/// What one worker makes of a plan.
pub(super) struct Share {
    /// The plan, with its flows' values in tables where they are few.
    pub(super) plan: Plan,
    /// Where each patch begins.
    pub(super) cursors: Box<[Cursor]>,
    /// After so many packets all cursors begin anew.
    pub(super) circle: u64,
    /// The first packet's size: a worker goes through all sizes by itself, so that none has the small ones alone.
    pub(super) size: usize,
    /// Flows that take turns in its stream, as its probes say.
    pub(super) flows: u16,
}

impl Share {
    /// That of worker `worker` of `workers`, who take turns.
    pub(super) fn new(mut plan: Plan, (worker, workers): (u64, u64)) -> Self {
        // A flow stays with its worker, so that its packets keep their order.
        let circle = match plan.flows {
            Some(flows) if flows <= workers => 1,
            Some(flows) => (flows - worker).div_ceil(workers),
            None => u64::MAX,
        };
        let first = plan.flows.map_or(worker, |flows| worker % flows);
        if circle <= TABLE {
            for patch in &mut plan.patches {
                let value = |n| patch.series.value(first + n * workers) & patch.mask;
                patch.series = Series::list((0..circle).map(value).collect());
            }
        }
        let flows = plan.turns.map_or(0, |turns| turns.of_worker(workers, circle));
        let cursor = |patch: &Patch| {
            if circle <= TABLE {
                Cursor::new(&patch.series, 0, 1)
            } else {
                Cursor::new(&patch.series, first, workers)
            }
        };
        let cursors: Box<[Cursor]> = plan.patches.iter().map(cursor).collect();
        // Few packets of many workers are a whole mix, too.
        let first = plan.cycle.len() as u64 * worker / workers;
        let size = usize::try_from(first).unwrap_or_default();
        plan.cycle = mixed_over(&plan.cycle, if circle == u64::MAX { flows.into() } else { circle });
        Self { cursors, circle, size, flows, plan }
    }
}

/// A cycle of sizes in which each of so many flows that take turns gets all sizes, each as often as the cycle has it.
///
/// Where the two numbers have a divisor in common, a flow would meet the same sizes again and again. So the cycle is one
/// size further each time both are at their ends together, until it has been everywhere.
fn mixed_over(cycle: &[u16], flows: u64) -> Box<[u16]> {
    let sizes = cycle.len() as u64;
    let shared = gcd(sizes.into(), flows.into());
    let together = u128::from(sizes) * u128::from(flows) / shared.max(1);
    if flows == 0 || shared == 1 || together * shared > MOST_MIXED {
        return cycle.into();
    }
    let size = |n: u128| usize::try_from((n + n / together) % u128::from(sizes)).unwrap_or_default();
    (0..together * shared).map(|n| cycle[size(n)]).collect()
}

/// A place in a series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) position: u64,
    /// Packets that had this position already, in all workers.
    pub(super) held: u64,
    pub(super) step: u64,
    pub(super) held_step: u64,
}

impl Cursor {
    /// At the first packet of worker `worker` of `workers`, who take turns.
    pub(super) fn new(series: &Series, worker: u64, workers: u64) -> Self {
        let step = workers / series.every;
        Self {
            position: series.position(worker),
            held: worker % series.every,
            step: if series.count == 0 { step } else { step % series.count },
            held_step: workers % series.every,
        }
    }

    /// The position in a series that holds its values for several packets, and on to the next packet's.
    #[inline]
    pub(super) fn next_held(&mut self, count: u64, every: u64) -> u64 {
        let position = self.position;
        self.position = series::add(position, self.step, count);
        self.held += self.held_step;
        if self.held >= every {
            self.held -= every;
            self.position = series::add(self.position, u64::from(count != 1), count);
        }
        position
    }
}
