//! The ports of an instance, for whoever closes them and whoever asks what they count. Engines have the queues and never come here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bywash_port::{Counter, Port, has_gone};

use crate::instance::Summary;

/// The ports, until they are closed.
pub(crate) struct Ports(Mutex<Vec<Box<dyn Port>>>);

impl Ports {
    pub(crate) fn new(ports: Vec<Box<dyn Port>>) -> Self {
        Self(Mutex::new(ports))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Box<dyn Port>>> {
        // Each port is as good as before, whoever has panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each counts beside its queues.
    pub(crate) fn counters(&self) -> Vec<Vec<Counter>> {
        self.lock().iter().map(|port| port.counters()).collect()
    }

    /// What of each has gone for good, in a sentence.
    pub(crate) fn gone(&self) -> Vec<Option<String>> {
        self.lock().iter().map(|port| gone(&**port)).collect()
    }

    /// Closes them, whose queues are closed. What has gone of them goes to the errors, and what could not be undone to the warnings.
    pub(crate) fn close(&self, summary: &mut Summary) {
        // Whoever asks meanwhile need not wait.
        let ports = std::mem::take(&mut *self.lock());
        for port in ports {
            summary.errors.extend(gone(&*port));
            let name = port.name().to_string();
            let sentences = port.close().err().into_iter().flatten();
            summary.warnings.extend(sentences.map(|sentence| format!("{name}: {sentence}")));
        }
    }
}

fn gone(port: &dyn Port) -> Option<String> {
    has_gone(&port.counters()).map(|gone| gone.of(port.name()))
}
