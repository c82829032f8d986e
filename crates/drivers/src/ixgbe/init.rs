//! From whatever state the NIC was left in to one that is known: quiet, reset, EEPROM, empty tables.

use std::thread::sleep;
use std::time::Duration;

use bywash_hw::ixgbe::eeprom::{CHECKSUM_SUM, CHECKSUM_WORD};
use bywash_hw::ixgbe::regs::{
    CTRL, CTRL_EXT, EEC, EERD, EIMC, EIMC_EX, ETQF, FTQF, FWSM, GCR_EXT, HLREG0, MPSAR, MTA, PFUTA, PFVLVF,
    PFVLVFB, RAH, RDRXCTL, RXCTRL, RXDCTL, STATUS, SW_FW_SYNC, SWSM, TXDCTL, VFTA,
};
use bywash_hw::ixgbe::{Chip, RESET_QUIET_US};
use bywash_sys::function::Registers;

use super::{ALL_QUEUES, phy};
use crate::intel::{Bar, NicError, SHORT, Semaphore, Wait};

/// What keeps firmware and other drivers away from what is used by one at a time.
pub(super) const fn semaphore(chip: Chip) -> Semaphore {
    match chip {
        Chip::I82599 => {
            Semaphore { swsm: &SWSM, sync: &SW_FW_SYNC, second: None, rivals: |bits| bits | bits << 5 }
        }
        Chip::X540 => Semaphore {
            swsm: &SWSM,
            sync: &SW_FW_SYNC,
            second: Some(SW_FW_SYNC::REGSMP),
            // The EEPROM is a part of the flash, which the hardware itself may be busy with.
            rivals: |bits| match bits & SW_FW_SYNC::SW_EEP.mask {
                0 => bits | bits << 5,
                _ => bits | bits << 5 | SW_FW_SYNC::SW_FLASH.mask,
            },
        },
    }
}

/// Makes it quiet: interrupts masked, queues off, no more requests on the bus. A queue that hangs is an error when all else is done.
pub(super) fn stop<R: Registers>(bar: &Bar<R>, chip: Chip) -> Result<(), NicError> {
    if bar.is_gone() {
        return Err(NicError::Gone);
    }
    mask_interrupts(bar);
    bar.change(&RXCTRL, RXCTRL::RXEN.mask, 0);
    let mut stopped = Ok(());
    for queue in 0..ALL_QUEUES {
        if RXDCTL::ENABLE.is_set(bar.get_at(&RXDCTL, queue)) {
            bar.change_at(&RXDCTL, queue, RXDCTL::ENABLE.mask, 0);
            // One that hangs is enough to know.
            if stopped.is_ok() {
                let off = Wait::clear(RXDCTL::ENABLE.mask, SHORT, "the queue does not stop");
                stopped = bar.wait(&RXDCTL, queue, off).map(|_| ());
            }
        }
        bar.put_at(&TXDCTL, queue, TXDCTL::SWFLSH.mask);
    }
    // What queues had begun is done by then.
    sleep(Duration::from_micros(100));
    bar.change(&CTRL, 0, CTRL::GIO_DIS.mask);
    let quiet = Wait::clear(STATUS::GIO.mask, SHORT, "the NIC does not stop its requests on the bus");
    let quiet = match bar.wait(&STATUS, 0, quiet) {
        Err(NicError::Timeout { .. }) => flush_requests(bar, chip),
        other => other.map(|_| ()),
    };
    // The firmware may have the NIC to itself again.
    bar.change(&CTRL_EXT, CTRL_EXT::DRV_LOAD.mask, 0);
    stopped.and(quiet)
}

/// Requests are stuck: their buffers are cleared by hand, and the NIC is reset once more than usual.
fn flush_requests<R: Registers>(bar: &Bar<R>, chip: Chip) -> Result<(), NicError> {
    let (hlreg0, gcr_ext) = (bar.get(&HLREG0), bar.get(&GCR_EXT));
    bar.put(&HLREG0, hlreg0 | HLREG0::LPBK.mask);
    bar.put(&GCR_EXT, gcr_ext | GCR_EXT::BUFFERS_CLEAR.mask);
    bar.flush();
    sleep(Duration::from_micros(20));
    bar.put(&HLREG0, hlreg0);
    bar.put(&GCR_EXT, gcr_ext);
    reset(bar, chip)
}

fn mask_interrupts<R: Registers>(bar: &Bar<R>) {
    bar.put(&EIMC, 0x7fff_ffff);
    bar.fill(&EIMC_EX, u32::MAX);
    bar.flush();
}

/// Resets it and waits until it has read its configuration from the EEPROM.
pub(super) fn reset<R: Registers>(bar: &Bar<R>, chip: Chip) -> Result<(), NicError> {
    let begin = || {
        bar.change(&CTRL, 0, CTRL::RST.mask);
        // No register may be touched meanwhile; twice the time, because the clock of whoever measures is not ours.
        sleep(Duration::from_micros(2 * RESET_QUIET_US));
        let done = Wait::clear(CTRL::RST.mask, SHORT, "the reset does not end; power the machine off and on");
        bar.wait(&CTRL, 0, done).map(|_| ())
    };
    match chip {
        Chip::I82599 => begin()?,
        // Its PHY is reset with it, so that nobody may be talking to that.
        Chip::X540 => {
            semaphore(chip).guarded(bar, phy::semaphore_bit(bar), begin)?;
        }
    }
    sleep(Duration::from_millis(10));
    mask_interrupts(bar);
    let read =
        Wait::set(EEC::ARD.mask, Duration::from_millis(100), "the NIC does not finish reading its EEPROM");
    match bar.wait(&EEC, 0, read) {
        Err(NicError::Timeout { value, .. }) if !EEC::PRES.is_set(value) => {
            return Err(NicError::NoEeprom { eec: value });
        }
        other => other?,
    };
    let fwsm = bar.get(&FWSM);
    if FWSM::EXT_ERR_IND.is_set(fwsm) {
        return Err(NicError::Firmware { fwsm });
    }
    let ready = Wait::set(RDRXCTL::DMAIDONE.mask, SHORT, "the receiver's DMA does not become ready");
    bar.wait(&RDRXCTL, 0, ready)?;
    // Tell the firmware that a driver is there, and take no snoop hints from it.
    bar.change(&CTRL_EXT, 0, CTRL_EXT::DRV_LOAD.mask | CTRL_EXT::NS_DIS.mask);
    Ok(())
}

/// Adds up the EEPROM's words: a wrong sum means that nothing it configured can be believed.
pub(super) fn check_eeprom<R: Registers>(bar: &Bar<R>, chip: Chip) -> Result<(), NicError> {
    let sum = semaphore(chip).guarded(bar, SW_FW_SYNC::SW_EEP.mask, || {
        let mut sum = 0_u16;
        for at in 0..=CHECKSUM_WORD {
            let word = read_eeprom(bar, at)?;
            sum = sum.wrapping_add(word);
            if !chip.covers_section(at) || matches!(word, 0 | 0xffff) {
                continue;
            }
            let length = read_eeprom(bar, word)?;
            if !matches!(length, 0 | 0xffff) {
                let section = word.saturating_add(1)..=word.saturating_add(length);
                for at in section.take(usize::from(bywash_hw::ixgbe::eeprom::WORDS)) {
                    sum = sum.wrapping_add(read_eeprom(bar, at)?);
                }
            }
        }
        Ok(sum)
    })?;
    if sum == CHECKSUM_SUM { Ok(()) } else { Err(NicError::EepromChecksum { sum }) }
}

fn read_eeprom<R: Registers>(bar: &Bar<R>, at: u16) -> Result<u16, NicError> {
    bar.put(&EERD, EERD::ADDR.with(u32::from(at)) | EERD::START.mask);
    let done = Wait::set(EERD::DONE.mask, SHORT, "the EEPROM is not read");
    let value = bar.wait(&EERD, 0, done)?;
    Ok(u16::try_from(EERD::DATA.of(value)).unwrap_or(u16::MAX))
}

/// Empties the filters that a reset leaves as they were.
pub(super) fn clear_tables<R: Registers>(bar: &Bar<R>) {
    for table in [&PFUTA, &VFTA, &PFVLVF, &PFVLVFB, &MTA, &FTQF, &ETQF] {
        bar.fill(table, 0);
    }
    // Its own address, number 0, belongs to pool 0; the others are not valid.
    (1..RAH.count()).for_each(|index| bar.put_at(&RAH, index, 0));
    bar.fill(&MPSAR, 0);
    bar.put_at(&MPSAR, 0, 1);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Registers that are memory.
    #[derive(Clone, Debug, Default)]
    struct Words(Arc<Mutex<BTreeMap<u32, u32>>>);

    impl Registers for Words {
        fn read32(&self, offset: u32) -> u32 {
            self.0.lock().unwrap().get(&offset).copied().unwrap_or(0)
        }

        fn write32(&self, offset: u32, value: u32) {
            self.0.lock().unwrap().insert(offset, value);
        }
    }

    #[test]
    fn the_firmware_is_told_when_a_driver_has_gone() {
        let bar = Bar::new(Words::default());
        bar.put(&CTRL_EXT, CTRL_EXT::DRV_LOAD.mask | CTRL_EXT::NS_DIS.mask);
        stop(&bar, Chip::I82599).unwrap();
        assert_eq!(bar.get(&CTRL_EXT), CTRL_EXT::NS_DIS.mask);
    }
}
