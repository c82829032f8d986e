//! What an engine shows of itself while it works.

use std::sync::{Mutex, PoisonError, TryLockError};

use bywash_port::QueueCounters;
use bywash_stack::Counters;

use crate::EngineCounters;

/// The figures of one engine.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Between engines.
    pub engine: EngineCounters,
    /// What became of packets.
    pub stack: Counters,
    /// For each port what its queues of this engine have received and sent.
    pub ports: Vec<(QueueCounters, QueueCounters)>,
}

/// The last figures an engine has published. It writes them now and then and does not wait for who reads them, but at its end.
#[derive(Debug, Default)]
pub(crate) struct Shared(Mutex<Figures>);

impl Shared {
    pub(crate) fn new(ports: usize) -> Self {
        let figures = Figures { ports: vec![Default::default(); ports], ..Figures::default() };
        Self(Mutex::new(figures))
    }

    /// Writes them unless somebody reads, and says whether it has.
    pub(crate) fn publish(&self, write: impl FnOnce(&mut Figures)) -> bool {
        match self.0.try_lock() {
            Ok(mut figures) => write(&mut figures),
            Err(TryLockError::Poisoned(poisoned)) => write(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }

    /// Writes the last ones, once nobody reads.
    pub(crate) fn publish_last(&self, write: impl FnOnce(&mut Figures)) {
        write(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn read(&self) -> Figures {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_is_not_waited_for_but_at_the_end() {
        let shared = Shared::new(1);
        let write = |handed_over| move |figures: &mut Figures| figures.engine.handed_over = handed_over;
        assert!(shared.publish(write(1)));
        let reader = shared.0.lock().unwrap();
        assert!(!shared.publish(write(2)), "the engine knows that it has to do it again");
        std::thread::scope(|scope| {
            let last = scope.spawn(|| shared.publish_last(write(3)));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!((reader.engine.handed_over, last.is_finished()), (1, false));
            drop(reader);
        });
        assert_eq!(shared.read().engine.handed_over, 3);
    }
}
