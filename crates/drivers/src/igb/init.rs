//! From whatever state the NIC was left in to one that is known: quiet, reset, EEPROM, empty tables; in the order of Linux's
//! igb (`igb_reset_hw_82575` and `igb_init_hw_82575`).

use std::thread::sleep;
use std::time::Duration;

use bywash_hw::igb::regs::{
    CTRL, CTRL_EXT, EEC, EERD, EIMC, ETQF, FTQF, ICR, IMC, MTA, RAH, RAL, RCTL, RXDCTL, STATUS, SW_FW_SYNC,
    SWSM, TCTL, TXDCTL, UTA, VFTA,
};
use bywash_hw::ixgbe::eeprom::{CHECKSUM_SUM, CHECKSUM_WORD};
use bywash_sys::function::Registers;

use super::steer;
use crate::intel::{Bar, NicError, SHORT, Semaphore, Wait};

/// What keeps firmware and other drivers away from what is used by one at a time.
pub(super) const SEMAPHORE: Semaphore =
    Semaphore { swsm: &SWSM, sync: &SW_FW_SYNC, second: None, rivals: |bits| bits | bits << 16 };

/// How long requests on the bus may take to end: 800 times 100 µs.
const QUIET: Duration = Duration::from_millis(80);

/// Makes it quiet: interrupts masked, both directions and all queues off, no more requests on the bus.
pub(super) fn stop<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    if bar.is_gone() {
        return Err(NicError::Gone);
    }
    mask_interrupts(bar);
    bar.change(&RCTL, RCTL::RXEN.mask, 0);
    bar.change(&TCTL, TCTL::EN.mask, 0);
    bar.flush();
    // What is on its way from or to the wire is through by then.
    sleep(Duration::from_millis(10));
    for queue in 0..RXDCTL.count() {
        bar.change_at(&RXDCTL, queue, RXDCTL::ENABLE.mask, 0);
        bar.change_at(&TXDCTL, queue, TXDCTL::ENABLE.mask, 0);
    }
    bar.change(&CTRL, 0, CTRL::GIO_DIS.mask);
    let quiet =
        Wait::clear(STATUS::GIO_MASTER_EN.mask, QUIET, "the NIC does not stop its requests on the bus");
    let quiet = bar.wait(&STATUS, 0, quiet).map(|_| ());
    // The firmware may have the NIC to itself again.
    bar.change(&CTRL_EXT, CTRL_EXT::DRV_LOAD.mask, 0);
    quiet
}

fn mask_interrupts<R: Registers>(bar: &Bar<R>) {
    bar.put(&EIMC, u32::MAX);
    bar.put(&IMC, u32::MAX);
    bar.flush();
}

/// Resets it and waits until it has read its configuration from the EEPROM.
pub(super) fn reset<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    bar.change(&CTRL, 0, CTRL::RST.mask);
    // It does not answer at once.
    sleep(Duration::from_millis(2));
    let done = Wait::clear(CTRL::RST.mask, SHORT, "the reset does not end; power the machine off and on");
    bar.wait(&CTRL, 0, done)?;
    let read = Wait::set(EEC::AUTO_RD.mask, SHORT, "the NIC does not finish reading its EEPROM");
    match bar.wait(&EEC, 0, read) {
        Err(NicError::Timeout { value, .. }) if !EEC::PRES.is_set(value) => {
            return Err(NicError::NoEeprom { eec: value });
        }
        // Linux goes on, too: QEMU's NIC does not say that it has read it. The checksum is looked at next.
        Err(NicError::Timeout { .. }) | Ok(_) => {}
        Err(error) => return Err(error),
    }
    mask_interrupts(bar);
    // Clears causes.
    bar.get(&ICR);
    // The first ones are on after a reset, and rings are not to be set meanwhile. As long as Linux waits.
    bar.fill(&RXDCTL, 0);
    bar.fill(&TXDCTL, 0);
    bar.flush();
    sleep(Duration::from_millis(10));
    // Tell the firmware that a driver is there.
    bar.change(&CTRL_EXT, 0, CTRL_EXT::DRV_LOAD.mask);
    Ok(())
}

/// Adds up the EEPROM's words: a wrong sum means that nothing it configured can be believed.
pub(super) fn check_eeprom<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    let sum = SEMAPHORE.guarded(bar, SW_FW_SYNC::SW_EEP.mask, || {
        let words = (0..=CHECKSUM_WORD).map(|at| read_eeprom(bar, at));
        words.sum::<Result<u32, NicError>>()
    })?;
    let [low, high, ..] = sum.to_le_bytes();
    let sum = u16::from_le_bytes([low, high]);
    if sum == CHECKSUM_SUM { Ok(()) } else { Err(NicError::EepromChecksum { sum }) }
}

fn read_eeprom<R: Registers>(bar: &Bar<R>, at: u16) -> Result<u32, NicError> {
    bar.put(&EERD, EERD::ADDR.with(u32::from(at)) | EERD::START.mask);
    let done = Wait::set(EERD::DONE.mask, SHORT, "the EEPROM is not read");
    Ok(EERD::DATA.of(bar.wait(&EERD, 0, done)?))
}

/// Empties the filters that a reset leaves as they were, or may.
pub(super) fn clear_tables<R: Registers>(bar: &Bar<R>) {
    (0..ETQF.count()).for_each(|number| steer::no_ether_type(bar, number));
    (0..FTQF.count()).for_each(|number| steer::no_five_tuple(bar, number));
    for table in [&VFTA, &MTA, &UTA] {
        bar.fill(table, 0);
    }
    // All but its own address, number 0.
    for index in 1..RAH.count() {
        bar.put_at(&RAL, index, 0);
        bar.put_at(&RAH, index, 0);
    }
}
