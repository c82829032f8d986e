//! One worker's part of a plan: which packets are its own, when workers take turns.

use super::plan::{Patch, Plan};
use super::series::{self, Series};

/// Flows of one worker up to which their values are kept in a table: what has a short circle would begin anew too often.
pub(super) const TABLE: u64 = 4096;

/// What one worker makes of a plan.
pub(super) struct Share {
    /// The plan, with its flows' values in tables where they are few.
    pub(super) plan: Plan,
    /// Where each patch begins.
    pub(super) cursors: Box<[Cursor]>,
    /// After so many packets all cursors begin anew.
    pub(super) circle: u64,
    /// The first packet's size, and how far the next one's is away.
    pub(super) size: usize,
    pub(super) size_step: usize,
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
        let sizes = plan.cycle.len() as u64;
        let index = |n: u64| usize::try_from(n % sizes).unwrap_or_default();
        Self { cursors, circle, size: index(worker), size_step: index(workers), flows, plan }
    }
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
