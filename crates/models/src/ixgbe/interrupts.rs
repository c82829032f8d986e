//! Interrupts: causes, masks, which vector a cause has, and how often a vector may be raised.

use bywash_hw::ixgbe::EITR_UNIT_US;
use bywash_hw::ixgbe::regs::{self, EICR, EITR, GPIE, IVAR, IVAR_MISC};

use super::file::File;
use crate::host::Interrupts as Sink;

/// Causes and masks. Vectors are bits of 64; the first sixteen are also the low bits of EICR, EIMS and their like.
#[derive(Clone, Debug)]
pub(super) struct Interrupts {
    /// Causes of vectors that software has not taken (EICR's low bits).
    causes: u64,
    /// Vectors whose message is still to be sent.
    pending: u64,
    mask: u64,
    /// EICR, bits above 15.
    other: u32,
    other_mask: u32,
    other_pending: bool,
    /// When a vector may be raised again, in microseconds.
    next: [u64; 64],
}

impl Interrupts {
    pub(super) fn new() -> Self {
        Self { causes: 0, pending: 0, mask: 0, other: 0, other_mask: 0, other_pending: false, next: [0; 64] }
    }

    /// A queue has something to say.
    pub(super) fn queue(&mut self, file: &File, queue: u32, receive: bool) {
        // Two queues to a register: receive and transmit of the even one, then of the odd one. Beyond 64 queues there is
        // no entry of their own: the table wraps.
        let ivar = file.get(&IVAR, queue / 2 % IVAR.count());
        let (vector, valid) = match (queue % 2, receive) {
            (0, true) => (IVAR::RX_EVEN, IVAR::RX_EVEN_VALID),
            (0, false) => (IVAR::TX_EVEN, IVAR::TX_EVEN_VALID),
            (_, true) => (IVAR::RX_ODD, IVAR::RX_ODD_VALID),
            (_, false) => (IVAR::TX_ODD, IVAR::TX_ODD_VALID),
        };
        if valid.is_set(ivar) {
            self.vectors(1 << vector.of(ivar));
        }
    }

    fn vectors(&mut self, vectors: u64) {
        self.causes |= vectors;
        self.pending |= vectors;
    }

    /// Another cause: bits of EICR above 15.
    pub(super) fn other(&mut self, causes: u32) {
        let causes = causes & !EICR::RTX_QUEUE.mask;
        self.other |= causes;
        self.other_pending |= causes & self.other_mask != 0;
    }

    /// EICS was written.
    pub(super) fn set_causes(&mut self, value: u32) {
        self.vectors(u64::from(EICR::RTX_QUEUE.of(value)));
        self.other(value);
    }

    /// EICS_EX was written.
    pub(super) fn set_vectors(&mut self, index: u32, value: u32) {
        self.vectors(u64::from(value) << (32 * index));
    }

    /// EIMS as it reads.
    pub(super) fn eims(&self) -> u32 {
        low(self.mask) & EICR::RTX_QUEUE.mask | self.other_mask
    }

    /// EIMS or EIMC was written.
    pub(super) fn unmask(&mut self, value: u32, on: bool) {
        let (vectors, causes) = (u64::from(EICR::RTX_QUEUE.of(value)), value & !EICR::RTX_QUEUE.mask);
        if on {
            self.mask |= vectors;
            self.other_mask |= causes & regs::EIMS.writable;
            self.other_pending |= self.other & causes != 0;
        } else {
            self.mask &= !vectors;
            self.other_mask &= !causes;
        }
    }

    /// EIMS_EX as it reads.
    pub(super) fn eims_ex(&self, index: u32) -> u32 {
        low(self.mask >> (32 * index))
    }

    /// EIMS_EX or EIMC_EX was written.
    pub(super) fn unmask_vectors(&mut self, index: u32, value: u32, on: bool) {
        let vectors = u64::from(value) << (32 * index);
        self.mask = if on { self.mask | vectors } else { self.mask & !vectors };
    }

    /// EICS is read: the causes, which stay. Linux's driver reads them so, because of an erratum.
    pub(super) fn causes(&self) -> u32 {
        low(self.causes) & EICR::RTX_QUEUE.mask | self.other
    }

    /// EICR is read: causes are cleared, and without MSI-X those that EIAM names are masked.
    pub(super) fn read_causes(&mut self, file: &File) -> u32 {
        let causes = self.causes();
        if causes != 0 && !GPIE::MSIX_MODE.is_set(file.one(&GPIE)) {
            self.unmask(file.one(&regs::EIAM), false);
        }
        self.clear_causes(u32::MAX);
        causes
    }

    /// EICR was written: ones clear.
    pub(super) fn clear_causes(&mut self, value: u32) {
        self.causes &= !u64::from(EICR::RTX_QUEUE.of(value));
        self.other &= !value;
        self.other_pending &= self.other & self.other_mask != 0;
    }

    /// Sends the messages that are due.
    pub(super) fn deliver(&mut self, file: &File, now: u64, sink: &mut dyn Sink) {
        let gpie = file.one(&GPIE);
        let msix = GPIE::MSIX_MODE.is_set(gpie);
        let mut due = self.pending & self.mask;
        while due != 0 {
            let vector = due.trailing_zeros();
            due &= due - 1;
            if now < self.next[vector as usize] {
                continue;
            }
            let bit = 1 << vector;
            self.pending &= !bit;
            sink.raise(if msix { u16::try_from(vector).unwrap_or(0) } else { 0 });
            let eitr = file.get(&EITR, vector);
            self.next[vector as usize] = now + u64::from(EITR::INTERVAL.of(eitr)) * EITR_UNIT_US;
            if msix {
                // Only the first sixteen have a bit in EIAC; what lies above is always cleared.
                let clears = vector >= 16 || file.one(&regs::EIAC) & (1 << vector) != 0;
                self.causes &= if clears { !bit } else { u64::MAX };
                if GPIE::EIAME.is_set(gpie) && file.get(&regs::EIAM_EX, vector / 32) >> (vector % 32) & 1 != 0
                {
                    self.mask &= !bit;
                }
            }
        }
        if std::mem::take(&mut self.other_pending) {
            let ivar = file.one(&IVAR_MISC);
            if !msix {
                sink.raise(0);
            } else if IVAR_MISC::OTHER_VALID.is_set(ivar) {
                sink.raise(u16::try_from(IVAR_MISC::OTHER.of(ivar) & 0x3f).unwrap_or(0));
            }
        }
    }
}

fn low(vectors: u64) -> u32 {
    u32::try_from(vectors & 0xffff_ffff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn msix(ivar: u32) -> (File, Interrupts) {
        let mut file = File::new();
        file.put(&GPIE, GPIE::MSIX_MODE.mask | GPIE::EIAME.mask);
        file.put(&regs::EIAC, 0xffff);
        file.set(&IVAR, 0, ivar);
        (file, Interrupts::new())
    }

    #[test]
    fn a_queue_raises_the_vector_that_ivar_names_when_it_is_unmasked() {
        let (file, mut interrupts) = msix(0x0083_0000);
        let mut raised = Vec::new();
        interrupts.queue(&file, 0, true);
        interrupts.queue(&file, 1, true);
        interrupts.deliver(&file, 0, &mut raised);
        assert!(raised.is_empty());
        interrupts.unmask_vectors(0, 1 << 3, true);
        interrupts.deliver(&file, 0, &mut raised);
        interrupts.deliver(&file, 0, &mut raised);
        assert_eq!(raised, [3]);
        assert_eq!(interrupts.read_causes(&file), 0, "auto clear");
    }

    #[test]
    fn eitr_spaces_messages_by_units_of_two_microseconds() {
        let (mut file, mut interrupts) = msix(0x0000_0080);
        file.set(&EITR, 0, EITR::INTERVAL.with(5));
        interrupts.unmask(1, true);
        let mut raised = Vec::new();
        let mut times = Vec::new();
        for now in 0..35 {
            interrupts.queue(&file, 0, true);
            interrupts.deliver(&file, now, &mut raised);
            times.extend(raised.drain(..).map(|_| now));
        }
        assert_eq!(times, [0, 10, 20, 30]);
    }

    #[test]
    fn eiam_masks_a_vector_that_was_raised() {
        let (mut file, mut interrupts) = msix(0x0000_0080);
        file.set(&regs::EIAM_EX, 0, 1);
        interrupts.unmask_vectors(0, 1, true);
        let mut raised = Vec::new();
        for _ in 0..3 {
            interrupts.queue(&file, 0, true);
            interrupts.deliver(&file, 0, &mut raised);
        }
        assert_eq!((raised.as_slice(), interrupts.eims_ex(0)), (&[0][..], 0));
    }

    #[test]
    fn other_causes_wait_in_eicr_until_they_are_read() {
        let (mut file, mut interrupts) = msix(0);
        file.put(&IVAR_MISC, 0x8200);
        let mut raised = Vec::new();
        interrupts.other(EICR::LSC.mask);
        interrupts.deliver(&file, 0, &mut raised);
        assert!(raised.is_empty());
        interrupts.unmask(EICR::LSC.mask, true);
        interrupts.deliver(&file, 0, &mut raised);
        assert_eq!(raised, [2]);
        assert_eq!(interrupts.read_causes(&file), EICR::LSC.mask);
        assert_eq!(interrupts.read_causes(&file), 0);
    }
}
