//! What the program of rules draws, on its way to whoever keeps it.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use bywash_filter::rules::{Drawn, Rule};
use bywash_filter::xdp::LOST_SAMPLES;
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
    maps: Arc<Maps>,
    names: Names,
    record: [u8; Drawn::RECORD],
    /// Records in which there was nothing.
    failed: u64,
}

impl Ring {
    /// Of the port with these maps; nothing when it draws no samples.
    pub(super) fn of(maps: &Arc<Maps>, names: &Names) -> Result<Option<Self>, BpfError> {
        let Some(ring) = maps.ring() else { return Ok(None) };
        let reader = RingReader::new(ring)?;
        let (maps, names) = (Arc::clone(maps), names.clone());
        Ok(Some(Self { reader, maps, names, record: [0; Drawn::RECORD], failed: 0 }))
    }
}

impl Samples for Ring {
    fn each(&mut self, most: usize, show: &mut dyn FnMut(&str, Drawn<'_>)) -> usize {
        let Self { reader, names, record, failed, .. } = self;
        let names = names.0.lock().unwrap_or_else(PoisonError::into_inner);
        reader.read(most, record, |record| {
            let drawn = Drawn::from_record(record);
            match drawn.and_then(|drawn| names.get(&drawn.slot).map(|name| (name, drawn))) {
                Some((name, drawn)) => show(name, drawn),
                None => *failed += 1,
            }
        })
    }

    fn lost(&self) -> u64 {
        self.maps.counted(LOST_SAMPLES)[0] + self.failed
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
