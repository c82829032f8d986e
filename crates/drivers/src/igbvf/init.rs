//! From whatever state the function was left in to one that both sides agree on: quiet, reset, and then the messages; in the
//! order of Linux's igbvf (`e1000_reset_hw_vf` and what follows it).

use std::thread::sleep;
use std::time::Duration;

use bywash_hw::igb::vf::{CTRL, EICR, EIMC, RXDCTL, TXCTL, TXDCTL};
use bywash_sys::function::Registers;

use super::{MAX_QUEUES, Settings, steer};
use crate::intel::messages::{agree_on_mac, longest, set_vlan, tell_reset};
use crate::intel::{Agreed, Bar, LONGEST, Mailbox, NicError, SHORT, SHORT_FRAMES, TAGS, Wait};

/// Makes it quiet: interrupts masked, queues off. One that hangs is an error when all else is done.
pub(super) fn stop<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    if bar.is_gone() {
        return Err(NicError::Gone);
    }
    bar.put(&EIMC, EIMC.writable);
    bar.get(&EICR);
    let mut stopped = Ok(());
    for queue in 0..u32::from(MAX_QUEUES) {
        for (control, enable) in [(&RXDCTL, RXDCTL::ENABLE), (&TXDCTL, TXDCTL::ENABLE)] {
            bar.change_at(control, queue, enable.mask, 0);
            if stopped.is_ok() {
                let off = Wait::clear(enable.mask, SHORT, "the queue does not stop");
                stopped = bar.wait(control, queue, off).map(|_| ());
            }
        }
    }
    // What queues had begun is done by then.
    sleep(Duration::from_millis(10));
    stopped
}

/// Resets the function, and agrees with the physical one on all that `settings` wish; where neither names an address, on `spare`.
pub(super) fn agree<R: Registers>(
    bar: &Bar<R>,
    mailbox: &mut Mailbox<R>,
    settings: &Settings,
    spare: [u8; 6],
) -> Result<Agreed, NicError> {
    bar.change(&CTRL, 0, CTRL::RST.mask);
    bar.flush();
    sleep(Duration::from_millis(10));
    mailbox.wait_while_reset()?;
    // Descriptors are written back in order, or they would be believed too early.
    for queue in 0..TXCTL.count() {
        bar.change_at(&TXCTL, queue, TXCTL::TX_WB_RO_EN.mask, 0);
    }
    let (address, _) = tell_reset(mailbox)?;
    let mut agreed = Agreed {
        api: 0,
        mac: agree_on_mac(mailbox, settings.mac, address, spare)?,
        more_macs: Vec::new(),
        // Bits 47:36, which the answer does not say.
        multicast_bits: 0,
        promiscuous: settings.promiscuous,
        multicast: settings.multicast.clone(),
        vlans: settings.vlans.clone(),
        leaves_tags: false,
        queues: settings.queues.unwrap_or(1),
        max_len: longest(mailbox, settings.max_len, &[LONGEST, SHORT_FRAMES], TAGS)?,
        warnings: Vec::new(),
    };
    steer::filter(mailbox, &mut agreed)?;
    agreed.vlans.iter().try_for_each(|vlan| set_vlan(mailbox, *vlan, true))?;
    Ok(agreed)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Registers of which one's queue does not stop; what is written to the others.
    #[derive(Clone, Debug, Default)]
    struct Stuck(Arc<Mutex<Vec<(u32, u32)>>>);

    impl Registers for Stuck {
        fn read32(&self, offset: u32) -> u32 {
            if offset == RXDCTL.at(0) { RXDCTL::ENABLE.mask } else { 0 }
        }

        fn write32(&self, offset: u32, value: u32) {
            self.0.lock().unwrap().push((offset, value));
        }
    }

    #[test]
    fn a_queue_that_does_not_stop_keeps_no_other_from_it() {
        let registers = Stuck::default();
        let error = stop(&Bar::new(registers.clone())).unwrap_err();
        assert!(matches!(error, NicError::Timeout { register: "RXDCTL", index: 0, .. }), "{error}");
        let written = registers.0.lock().unwrap();
        for offset in [RXDCTL.at(1), TXDCTL.at(0), TXDCTL.at(1)] {
            assert!(written.contains(&(offset, 0)), "{offset:#x}");
        }
    }
}
