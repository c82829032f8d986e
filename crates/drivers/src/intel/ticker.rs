//! A thread that does something from time to time, until it is told to stop.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread, and how it is told.
#[derive(Debug)]
pub(crate) struct Ticker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

/// What a mutex guards; each change to it is whole before anything that could panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticker {
    /// Does `act` each `period`; without one, or when no thread can be had, never.
    pub(crate) fn start(
        name: &str,
        period: Option<Duration>,
        mut act: impl FnMut() + Send + 'static,
    ) -> Self {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let thread = period.and_then(|period| {
            let told = stop.clone();
            let run = move || {
                let mut stop = lock(&told.0);
                while !*stop {
                    stop = told.1.wait_timeout(stop, period).unwrap_or_else(PoisonError::into_inner).0;
                    if !*stop {
                        drop(stop);
                        act();
                        stop = lock(&told.0);
                    }
                }
            };
            std::thread::Builder::new().name(name.into()).spawn(run).ok()
        });
        Self { stop, thread }
    }

    /// Ends the thread.
    pub(crate) fn stop(&mut self) {
        *lock(&self.stop.0) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // It only fails when the thread panicked, and said so.
            thread.join().ok();
        }
    }
}
