//! Figures that a worker shows while it works.

use std::sync::{Arc, Mutex, PoisonError};

/// Turns between two publications by a worker that is never idle: every few hundred microseconds.
pub(crate) const PUBLISH_TURNS: u32 = 256;

/// The last figures that one worker has published.
///
/// The worker writes them now and then and never waits: when somebody is reading, it tries again the next time.
#[derive(Debug, Default)]
pub(crate) struct Live<T>(Arc<Mutex<T>>);

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone> Live<T> {
    pub(crate) fn new(figures: T) -> Self {
        Self(Arc::new(Mutex::new(figures)))
    }

    /// Shows them unless somebody is reading just now, and says whether that was so.
    pub(crate) fn publish(&self, write: impl FnOnce(&mut T)) -> bool {
        self.0.try_lock().is_ok_and(|mut figures| {
            write(&mut figures);
            true
        })
    }

    /// Changes what is shown for certain, also when somebody is reading just now: for what is done seldom.
    pub(crate) fn replace(&self, write: impl FnOnce(&mut T)) {
        write(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn read(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// When to publish: after [`PUBLISH_TURNS`] turns with work, and on the first turn without.
#[derive(Debug, Default)]
pub(crate) struct Publication {
    unpublished: u32,
}

impl Publication {
    /// Whether now is the time, after a turn that was `busy` or not.
    #[inline]
    pub(crate) fn is_due(&mut self, busy: bool) -> bool {
        self.unpublished += u32::from(busy);
        let due = if busy { self.unpublished >= PUBLISH_TURNS } else { self.unpublished > 0 };
        if due {
            self.unpublished = 0;
        }
        due
    }
}
