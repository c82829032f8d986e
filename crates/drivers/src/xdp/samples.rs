//! What the program of rules draws, on its way to whoever keeps it.

use std::os::fd::{AsFd, BorrowedFd};

use bywash_port::Samples;
use bywash_port::filter::rules::Drawn;
use bywash_sys::bpf::RingReader;

/// Reads the ring of a port.
pub(super) struct Ring {
    reader: RingReader,
    record: [u8; Drawn::RECORD],
}

impl Ring {
    pub(super) fn new(reader: RingReader) -> Self {
        Self { reader, record: [0; Drawn::RECORD] }
    }
}

impl Samples for Ring {
    fn each(&mut self, most: usize, show: &mut dyn FnMut(Drawn<'_>)) -> usize {
        self.reader.read(most, &mut self.record, |record| {
            if let Some(drawn) = Drawn::from_record(record) {
                show(drawn);
            }
        })
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
