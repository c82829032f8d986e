//! Up to where several queues that share streams are judged at the end of a run.
//!
//! They are not read at the same moment: what one has seen just before the end has a higher number than what still lies in
//! another's ring, and all that would look lost. So once every worker has come to its end, each notes what has come by its
//! queues; the highest number of a stream that any has noted is where the stream ends. Nobody receives in between: what a
//! late worker notes then lies in the rings of the others. Up to there all queues are read, and what is missing is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sequence::Counts;

/// What had come of each stream by all queues at the end: up to the highest number of each it is judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds(BTreeMap<u16, Counts>);

impl Bounds {
    /// Whether a packet with this number was sent after the last one that is judged.
    pub(super) fn is_beyond(&self, stream: u16, number: u32) -> bool {
        self.0.get(&stream).is_none_or(|counts| counts.ahead(number) > 0)
    }

    /// Whether nothing is missing.
    pub(super) fn are_whole(&self) -> bool {
        self.0.values().all(|counts| counts.lost() == 0)
    }
}

/// Where the workers of a run meet at its end. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Ending(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Workers that have not come to their end, and those that have not noted it.
    coming: usize,
    noting: usize,
    bounds: Bounds,
}

impl Ending {
    /// For so many workers.
    pub(super) fn of(workers: usize) -> Self {
        Self(Arc::new(Mutex::new(State { coming: workers, noting: workers, bounds: Bounds::default() })))
    }

    /// A worker has come to its end.
    pub(super) fn come(&self) {
        let mut state = self.state();
        state.coming = state.coming.saturating_sub(1);
    }

    /// Whether all have.
    pub(super) fn have_all_come(&self) -> bool {
        self.state().coming == 0
    }

    /// Notes what has come of each stream by a worker's queues.
    pub(super) fn note(&self, streams: impl Iterator<Item = (u16, Counts)>) {
        let mut state = self.state();
        for (id, counts) in streams {
            state.bounds.0.entry(id).or_default().merge(&counts);
        }
        state.noting = state.noting.saturating_sub(1);
    }

    /// Whether all have noted that.
    pub(super) fn have_all_noted(&self) -> bool {
        self.state().noting == 0
    }

    /// What has been noted.
    pub(super) fn bounds(&self) -> Bounds {
        self.state().bounds.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::streams::Streams;
    use super::*;

    /// What workers have noted whose queues got these numbers of stream 9.
    fn bounds(queues: &[&[u32]]) -> Bounds {
        let ending = Ending::of(queues.len());
        queues.iter().for_each(|_| ending.come());
        assert!(ending.have_all_come());
        for numbers in queues {
            assert!(!ending.have_all_noted());
            let mut streams = Streams::new(true);
            for number in *numbers {
                streams.note(9, 0, *number);
            }
            ending.note(streams.all().map(|stream| (stream.id, stream.counts)));
        }
        assert!(ending.have_all_noted());
        ending.bounds()
    }

    #[test]
    fn a_stream_ends_with_the_highest_number_that_any_queue_has_seen() {
        let beyond = |bounds: &Bounds, numbers: [u32; 4]| numbers.map(|number| bounds.is_beyond(9, number));
        let found = bounds(&[&[0, 4], &[1, 3], &[]]);
        assert_eq!(beyond(&found, [2, 4, 5, u32::MAX]), [false, false, true, false]);
        assert!(found.is_beyond(8, 0), "nothing of it had come");
        assert!(!found.are_whole() && bounds(&[&[0, 2], &[1, 3]]).are_whole());
        let across = bounds(&[&[u32::MAX - 1, 0], &[u32::MAX]]);
        assert_eq!(beyond(&across, [u32::MAX, 0, 1, 1000]), [false, false, true, true], "the numbers wrap");
        assert!(across.are_whole());
    }

    #[test]
    fn the_end_is_when_all_have_come() {
        let ending = Ending::of(2);
        ending.come();
        assert!(!ending.have_all_come());
        ending.clone().come();
        assert!(ending.have_all_come() && !ending.have_all_noted());
    }
}
