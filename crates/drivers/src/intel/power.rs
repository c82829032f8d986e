//! A NIC as a PCI function: which one it is, awake and allowed to reach memory, or not any more.

use std::thread::sleep;
use std::time::Duration;

use bywash_hw::pci::{self, Family, Nic, POWER_CONTROL, capability, command, config};
use bywash_sys::function::{Function, FunctionError};

use super::NicError;

/// Which NIC it is, when its driver is that of `family`.
pub(crate) fn identify<F: Function>(function: &mut F, family: Family) -> Result<&'static Nic, NicError> {
    let mut id = [0; 4];
    function.read_config(config::VENDOR, &mut id)?;
    let [a, b, c, d] = id;
    let (vendor, device) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    if (vendor, device) == (u16::MAX, u16::MAX) {
        return Err(NicError::Gone);
    }
    let known = pci::known(vendor, device).filter(|nic| nic.family == family);
    known.ok_or(NicError::Unknown { vendor, device })
}

/// Wakes it up (state D0) and lets it be reached; no legacy interrupts, and no DMA before [`allow_dma`].
pub(crate) fn power_up<F: Function>(function: &mut F) -> Result<(), NicError> {
    if let Some(power) = find_capability(function, capability::POWER)? {
        let state = read16(function, power + POWER_CONTROL)?;
        if state & 3 != 0 {
            function.write_config(power + POWER_CONTROL, &(state & !3).to_le_bytes())?;
            // Ten milliseconds (PCI Power Management) from D3 to D0.
            sleep(Duration::from_millis(10));
        }
    }
    change_command(function, command::BUS_MASTER, command::MEMORY | command::INTX_DISABLE)
}

/// Lets it reach memory: once it was reset, because queues that somebody has left running write wherever those were.
pub(crate) fn allow_dma<F: Function>(function: &mut F) -> Result<(), NicError> {
    change_command(function, 0, command::BUS_MASTER)
}

/// What comes of stopping it when a reset follows: that ends also what does not stop as it is told.
pub(crate) fn before_reset(stopped: Result<(), NicError>) -> Result<(), NicError> {
    match stopped {
        Err(NicError::Timeout { .. }) => Ok(()),
        other => other,
    }
}

/// Takes it out of use once its queues have been stopped, as it is told: no DMA after this, however that went. Returns what went
/// wrong.
pub(crate) fn retire<F: Function>(stopped: Result<(), NicError>, function: &mut F) -> Vec<String> {
    // One that does not stop as it is told is reset from outside. Of one that is gone nothing is asked.
    let reset = match &stopped {
        Ok(()) | Err(NicError::Gone) => Ok(()),
        Err(_) => function.reset().map_err(NicError::from),
    };
    let ended = [stopped, reset, change_command(function, command::BUS_MASTER, 0)];
    ended.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect()
}

/// Bits of `clear` go, then bits of `set` come.
fn change_command<F: Function>(function: &mut F, clear: u16, set: u16) -> Result<(), NicError> {
    let command = read16(function, config::COMMAND)? & !clear | set;
    Ok(function.write_config(config::COMMAND, &command.to_le_bytes())?)
}

fn read16<F: Function>(function: &mut F, offset: u64) -> Result<u16, FunctionError> {
    let mut bytes = [0; 2];
    function.read_config(offset, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

/// Offset of a capability. The list has at most 48 entries in 192 bytes, so a longer one is a circle.
fn find_capability<F: Function>(function: &mut F, wanted: u8) -> Result<Option<u64>, FunctionError> {
    let mut at = read16(function, config::CAPABILITIES)? & 0xfc;
    for _ in 0..48 {
        if at == 0 {
            break;
        }
        let [id, next] = read16(function, u64::from(at))?.to_le_bytes();
        if id == wanted {
            return Ok(Some(u64::from(at)));
        }
        at = u16::from(next & 0xfc);
    }
    Ok(None)
}
