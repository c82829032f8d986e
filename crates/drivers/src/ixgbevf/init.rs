//! From whatever state the function was left in to one that both sides agree on: quiet, reset, and then the messages.

use std::thread::sleep;
use std::time::Duration;

use bywash_hw::ixgbe::regs::{DCA_RXCTRL, DCA_TXCTRL, RXDCTL, SRRCTL, TXDCTL};
use bywash_hw::ixgbe::vf::{
    API_VERSIONS, VFCTRL, VFDCA_RXCTRL, VFDCA_TXCTRL, VFPSRTYPE, VFRDH, VFRDT, VFRXDCTL, VFSRRCTL, VFTDH,
    VFTDT, VFTDWBAH, VFTDWBAL, VFTXDCTL, VTEICR, VTEIMC, message,
};
use bywash_sys::function::Registers;

use super::{MAX_QUEUES, Settings, steer};
use crate::intel::messages::{agree_on_mac, longest, set_vlan, tell_reset};
use crate::intel::{Agreed, Bar, Mailbox, NicError, Post, SHORT, SHORT_FRAMES, Wait};

/// Version 1.1, by its place in the table: from it on queues are granted by number.
const V1_1: usize = 1;
/// Version 1.5: from it on the mailbox is held while a message is under way.
const V1_5: usize = 5;

/// Queues whose registers there are, used or not.
const ALL_QUEUES: u32 = VFRDT.count();

/// Makes it quiet: interrupts masked, queues off. One that hangs is an error when all else is done.
pub(super) fn stop<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    if bar.is_gone() {
        return Err(NicError::Gone);
    }
    bar.put(&VTEIMC, VTEIMC.writable);
    bar.get(&VTEICR);
    let mut stopped = Ok(());
    for queue in 0..ALL_QUEUES {
        bar.put_at(&VFTXDCTL, queue, TXDCTL::SWFLSH.mask);
        if RXDCTL::ENABLE.is_set(bar.get_at(&VFRXDCTL, queue)) {
            bar.change_at(&VFRXDCTL, queue, RXDCTL::ENABLE.mask, 0);
            if stopped.is_ok() {
                let off = Wait::clear(RXDCTL::ENABLE.mask, SHORT, "the queue does not stop");
                stopped = bar.wait(&VFRXDCTL, queue, off).map(|_| ());
            }
        }
    }
    bar.put(&VFPSRTYPE, 0);
    // What queues had begun is done by then.
    sleep(Duration::from_micros(100));
    stopped
}

/// Resets the function, and agrees with the physical one on all that `settings` wish; where neither names an address, on `spare`.
pub(super) fn agree<R: Registers>(
    bar: &Bar<R>,
    mailbox: &mut Mailbox<R>,
    settings: &Settings,
    spare: [u8; 6],
) -> Result<Agreed, NicError> {
    let (address, multicast_bits) = reset(bar, mailbox)?;
    let api = negotiate(mailbox)?;
    let mac = agree_on_mac(mailbox, settings.mac, address, spare)?;
    let (granted, leaves_tags) = if api >= V1_1 { granted(mailbox)? } else { (1, false) };
    let queues = settings.queues.unwrap_or_else(|| down(granted.min(settings.most_queues)));
    if queues > granted {
        return Err(NicError::Setting(format!(
            "{queues} queues: the physical function grants {granted} (fewer virtual functions have more each)"
        )));
    }
    // Long ones are not asked for unasked: they make an X540's host take them on the whole port, and it never takes that back.
    let mut agreed = Agreed {
        api,
        mac,
        more_macs: Vec::new(),
        multicast_bits,
        promiscuous: settings.promiscuous,
        multicast: settings.multicast.clone(),
        vlans: settings.vlans.clone(),
        leaves_tags,
        queues,
        // The NIC lets tags pass beyond that.
        max_len: longest(mailbox, settings.max_len, &[SHORT_FRAMES], 0)?,
        warnings: Vec::new(),
    };
    steer::filter(mailbox, &mut agreed)?;
    agreed.vlans.iter().try_for_each(|vlan| set_vlan(mailbox, *vlan, true))?;
    Ok(agreed)
}

/// The handshake: resets the function, waits for the physical one, and says so. Returns the address that it has for us, if it
/// has one, and which bits its multicast filter takes.
fn reset<R: Registers>(bar: &Bar<R>, mailbox: &mut Mailbox<R>) -> Result<(Option<[u8; 6]>, u32), NicError> {
    mailbox.forget();
    bar.put(&VFCTRL, VFCTRL::RST.mask);
    bar.flush();
    // Ten milliseconds as after any reset; then it says itself when it is done.
    sleep(Duration::from_millis(10));
    mailbox.wait_until_ready()?;
    clear(bar);
    let (address, filter) = tell_reset(mailbox)?;
    Ok((address, filter & 3))
}

/// Registers that a reset of the function alone leaves as the last driver set them.
fn clear<R: Registers>(bar: &Bar<R>) {
    bar.put(&VFPSRTYPE, 0);
    for queue in 0..ALL_QUEUES {
        bar.put_at(&VFRXDCTL, queue, 0);
        bar.put_at(&VFTXDCTL, queue, 0);
        for register in [&VFRDH, &VFRDT, &VFTDH, &VFTDT, &VFTDWBAH, &VFTDWBAL] {
            bar.put_at(register, queue, 0);
        }
        bar.put_at(&VFSRRCTL, queue, SRRCTL::BSIZEPACKET.with(2));
        let receive = [DCA_RXCTRL::DESC_RRO_EN, DCA_RXCTRL::DATA_WRO_EN, DCA_RXCTRL::HEAD_WRO_EN];
        bar.put_at(&VFDCA_RXCTRL, queue, receive.iter().fold(0, |all, field| all | field.mask));
        // Descriptors are written back in order, or they would be believed too early.
        let transmit = DCA_TXCTRL::DESC_RRO_EN.mask | DCA_TXCTRL::DATA_RRO_EN.mask;
        bar.put_at(&VFDCA_TXCTRL, queue, transmit);
    }
    bar.flush();
}

/// Finds the newest version of the messages that both sides know. Who does not know this question speaks 1.0.
fn negotiate<R: Registers>(mailbox: &mut Mailbox<R>) -> Result<usize, NicError> {
    for (at, (_, number)) in API_VERSIONS.iter().enumerate().rev() {
        let words = [message::API_NEGOTIATE, *number];
        let (_, known) = mailbox.ask_whether(Post { name: "API_NEGOTIATE", words: &words, cure: "" })?;
        if known {
            mailbox.holds = at >= V1_5;
            return Ok(at);
        }
    }
    Ok(0)
}

/// How many queues the physical function grants, and whether it leaves a tag in what is received, of a VLAN that the function knows
/// nothing of.
fn granted<R: Registers>(mailbox: &mut Mailbox<R>) -> Result<(u16, bool), NicError> {
    let cure = "update its driver";
    let words = mailbox.ask(Post { name: "GET_QUEUES", words: &[message::GET_QUEUES], cure })?;
    // To send and to receive; an absurd number is no grant.
    let number = |word: u32| u16::try_from(word).unwrap_or(1).clamp(1, MAX_QUEUES);
    Ok((number(words[1]).min(number(words[2])), words[3] != 0))
}

/// The largest power of two that is not larger.
fn down(queues: u16) -> u16 {
    1 << queues.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use bywash_hw::ixgbe::vf::{VFMAILBOX, VFMBMEM};

    use super::*;
    use crate::intel::{MailboxError, News};

    /// A mailbox that has said something before anybody asked, and says nothing more.
    #[derive(Clone, Debug)]
    struct Silent(Arc<AtomicU32>);

    impl Registers for Silent {
        fn read32(&self, offset: u32) -> u32 {
            if offset == VFMAILBOX.offset() { self.0.swap(0, Relaxed) } else { 0 }
        }

        fn write32(&self, _: u32, _: u32) {}
    }

    #[test]
    fn an_earlier_reset_that_is_done_is_no_answer_to_ours() {
        for is_seen in [false, true] {
            let bar = Bar::new(Silent(Arc::new(AtomicU32::new(VFMAILBOX::RSTD.mask))));
            let mut mailbox = Mailbox::new(bar.clone(), &VFMAILBOX, &VFMBMEM, Duration::from_millis(1));
            if is_seen {
                assert_eq!(mailbox.news().unwrap(), News::Reset);
            }
            let error = reset(&bar, &mut mailbox).unwrap_err();
            assert!(matches!(error, NicError::Mailbox(MailboxError::NotReady { .. })), "{error}");
        }
    }
}
