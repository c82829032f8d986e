//! What drivers and firmware share is used by one at a time: two semaphores, and a register of who has what.

use std::thread::sleep;
use std::time::Duration;

use bywash_hw::ixgbe::regs::SWSM;
use bywash_hw::reg::{Field, Register};
use bywash_sys::function::Registers;

use super::{Bar, NicError, SHORT, Wait};

/// Where a NIC has them. The bits of the first register are the same on all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Semaphore {
    /// The semaphores.
    pub(crate) swsm: &'static Register,
    /// Who has what.
    pub(crate) sync: &'static Register,
    /// The second semaphore, if reading `sync` takes it; else it is SWSM.SWESMBI.
    pub(crate) second: Option<Field>,
    /// Bits of `sync` that keep one from taking these: the same, and the firmware's.
    pub(crate) rivals: fn(u32) -> u32,
}

impl Semaphore {
    /// Does something while no other driver and no firmware does it: `bits` of the register of who has what.
    ///
    /// What another driver has not given back in a second is taken from it, as Intel's driver for Linux does
    /// (`ixgbe_acquire_swfw_sync`): it was killed meanwhile. The 82576's driver there does not; the bit would stay until power is off.
    /// What the firmware has is left to it.
    pub(crate) fn guarded<R: Registers, T>(
        &self,
        bar: &Bar<R>,
        bits: u32,
        act: impl FnOnce() -> Result<T, NicError>,
    ) -> Result<T, NicError> {
        let held = (self.rivals)(bits);
        let mut left = 200;
        loop {
            self.take(bar)?;
            let sync = bar.get(self.sync);
            let rivals = if left == 0 { held & !bits } else { held };
            if sync & rivals == 0 {
                bar.put(self.sync, sync | bits);
                self.release(bar);
                break;
            }
            self.release(bar);
            if left == 0 {
                let (register, waited) = (self.sync.name, Duration::from_secs(1));
                let meaning = "the firmware keeps the semaphore; power the machine off and on";
                return Err(NicError::Timeout { register, index: 0, value: sync, waited, meaning });
            }
            left -= 1;
            sleep(Duration::from_millis(5));
        }
        let result = act();
        if self.take(bar).is_ok() {
            bar.change(self.sync, bits, 0);
            self.release(bar);
            if self.second.is_some() {
                // The firmware has its turn then, as Linux's driver leaves it.
                sleep(Duration::from_millis(5));
            }
        }
        result
    }

    /// SMBI is taken by reading it as 0; then the second, likewise, or SWESMBI by writing it and seeing it stay.
    fn take<R: Registers>(&self, bar: &Bar<R>) -> Result<(), NicError> {
        self.take_by_reading(bar, self.swsm, SWSM::SMBI)?;
        if let Some(second) = self.second {
            return self.take_by_reading(bar, self.sync, second);
        }
        for _ in 0..100 {
            bar.change(self.swsm, 0, SWSM::SWESMBI.mask);
            if SWSM::SWESMBI.is_set(bar.get(self.swsm)) {
                return Ok(());
            }
            sleep(Duration::from_millis(1));
        }
        self.release(bar);
        let (register, waited) = (self.swsm.name, Duration::from_millis(100));
        let meaning = "the firmware keeps the semaphore; power the machine off and on";
        Err(NicError::Timeout { register, index: 0, value: bar.get(self.swsm), waited, meaning })
    }

    fn take_by_reading<R: Registers>(
        &self,
        bar: &Bar<R>,
        register: &'static Register,
        bit: Field,
    ) -> Result<(), NicError> {
        let meaning = "another driver keeps the semaphore; unbind it, or power the machine off and on";
        let free = Wait::clear(bit.mask, Duration::from_millis(100), meaning);
        let Err(error) = bar.wait(register, 0, free) else { return Ok(()) };
        if matches!(error, NicError::Gone) {
            return Err(error);
        }
        // A driver that was killed may have left it taken: it is given back once, and asked for again.
        self.release(bar);
        if register.name != self.swsm.name {
            bar.wait(self.swsm, 0, Wait { mask: SWSM::SMBI.mask, within: SHORT, ..free })?;
        }
        bar.wait(register, 0, Wait { within: SHORT, ..free }).map(|_| ()).inspect_err(|_| self.release(bar))
    }

    fn release<R: Registers>(&self, bar: &Bar<R>) {
        if let Some(second) = self.second {
            bar.change(self.sync, second.mask, 0);
        }
        bar.change(self.swsm, SWSM::SMBI.mask | SWSM::SWESMBI.mask, 0);
        bar.flush();
    }
}
