//! What an engine shows of itself while it works.

use std::sync::{Mutex, PoisonError};

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

/// The last figures an engine has published. It writes them now and then and never waits for who reads them.
#[derive(Debug, Default)]
pub(crate) struct Shared(Mutex<Figures>);

impl Shared {
    pub(crate) fn new(ports: usize) -> Self {
        let figures = Figures { ports: vec![Default::default(); ports], ..Figures::default() };
        Self(Mutex::new(figures))
    }

    pub(crate) fn publish(&self, write: impl FnOnce(&mut Figures)) {
        if let Ok(mut figures) = self.0.try_lock() {
            write(&mut figures);
        }
    }

    pub(crate) fn read(&self) -> Figures {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
