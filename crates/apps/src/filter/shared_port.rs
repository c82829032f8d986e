//! The port, for the thread that changes rules and for whoever tells and ends. Whoever ends has it for good: the thread may hang.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use bywash_port::Port;

/// How often it is tried to have it.
const INTERVAL: Duration = Duration::from_millis(10);

/// A port that there is until somebody has taken it.
#[derive(Clone)]
pub(super) struct SharedPort(Arc<Mutex<Option<Box<dyn Port>>>>);

impl SharedPort {
    pub(super) fn new(port: Box<dyn Port>) -> Self {
        Self(Arc::new(Mutex::new(Some(port))))
    }

    /// Does something with it.
    ///
    /// # Errors
    /// When it was taken.
    pub(super) fn with<T>(&self, what: impl FnOnce(&mut dyn Port) -> T) -> Result<T, String> {
        let mut port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        port.as_mut().map(|port| what(&mut **port)).ok_or_else(|| "the port is closed".into())
    }

    /// Takes it; `None` when somebody still does something with it at that time.
    pub(super) fn take(&self, until: Instant) -> Option<Box<dyn Port>> {
        loop {
            match self.0.try_lock() {
                Ok(mut port) => return port.take(),
                Err(TryLockError::Poisoned(port)) => return port.into_inner().take(),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(INTERVAL),
                Err(TryLockError::WouldBlock) => return None,
            }
        }
    }
}
