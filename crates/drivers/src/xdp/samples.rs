//! What the program of rules draws, on its way to whoever keeps it.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use bywash_filter::rules::{Drawn, Rule};
use bywash_port::Samples;
use bywash_sys::bpf::{BpfError, RingReader};

use super::program::Maps;

/// The names of the rules that draw, by the numbers of their counters; also of rules that hold no longer.
#[derive(Clone, Default)]
pub(super) struct Names(Arc<Mutex<HashMap<u32, String>>>);

impl Names {
    /// These rules draw from now on.
    pub(super) fn add<'a>(&self, rules: impl Iterator<Item = (&'a Rule, u32)>) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let drawing = rules.filter(|(rule, _)| rule.sample.is_some());
        names.extend(drawing.map(|(rule, slot)| (slot, rule.name.clone())));
    }
}

/// Reads the ring of a port.
pub(super) struct Ring {
    reader: RingReader,
    names: Names,
    record: [u8; Drawn::RECORD],
}

impl Ring {
    /// Of the port with these maps; nothing when it draws no samples.
    pub(super) fn of(maps: &Maps, names: &Names) -> Result<Option<Self>, BpfError> {
        let Some(ring) = maps.ring() else { return Ok(None) };
        Ok(Some(Self { reader: RingReader::new(ring)?, names: names.clone(), record: [0; Drawn::RECORD] }))
    }
}

impl Samples for Ring {
    fn each(&mut self, most: usize, show: &mut dyn FnMut(&str, Drawn<'_>)) -> usize {
        let Self { reader, names, record } = self;
        // A worker asks again and again.
        if reader.is_empty() {
            return 0;
        }
        let names = names.0.lock().unwrap_or_else(PoisonError::into_inner);
        reader.read(most, record, |record| {
            // Rules have their names before they draw, and what lies in its first buffer can be copied from a packet.
            if let Some(drawn) = Drawn::from_record(record)
                && let Some(name) = names.get(&drawn.slot)
            {
                show(name, drawn);
            }
        })
    }

    fn is_empty(&self) -> bool {
        self.reader.is_empty()
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
