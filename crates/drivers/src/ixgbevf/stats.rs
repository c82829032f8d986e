//! What the function counts, kept as 64 bits: its own counters wrap after 32 or 36 and nothing clears them. Whoever looks also
//! looks at the link, and at whether the physical function was reset.

use std::sync::atomic::Ordering::Relaxed;

use bywash_hw::ixgbe::vf::{VFGORC_LSB, VFGORC_MSB, VFGOTC_LSB, VFGOTC_MSB, VFGPRC, VFGPTC, VFMPRC};
use bywash_hw::reg::Register;
use bywash_port::Counter;
use bywash_sys::function::Registers;

use super::init::{self, Agreed};
use super::{Link, MailboxError, NicError, Shared, link, rx};
use crate::intel::{Bar, Mailbox, News, Seen, lock};

/// A counter: its name, its register, and the register of its four upper bits when it has more than 32.
type Statistic = (&'static str, &'static Register, Option<&'static Register>);

/// All of them.
const STATISTICS: [Statistic; 5] = [
    ("rx_good_packets", &VFGPRC, None),
    ("rx_good_bytes", &VFGORC_LSB, Some(&VFGORC_MSB)),
    ("rx_multicast", &VFMPRC, None),
    ("tx_good_packets", &VFGPTC, None),
    ("tx_good_bytes", &VFGOTC_LSB, Some(&VFGOTC_MSB)),
];

/// A counter that wraps, and what it has counted since it was first looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Wrapping {
    last: u64,
    sum: u64,
}

impl Wrapping {
    /// It reads `now`, of `bits` bits. Between two looks it wraps once at most.
    fn see(&mut self, now: u64, bits: u32) {
        self.sum += now.wrapping_sub(self.last) & ((1 << bits) - 1);
        self.last = now;
    }
}

fn read<R: Registers>(bar: &Bar<R>, (_, low, high): Statistic) -> (u64, u32) {
    let Some(high) = high else { return (u64::from(bar.get(low)), 32) };
    // The halves are not kept together: when the upper one changes meanwhile, both are read once more.
    let [before, low_first, after] = [bar.get(high), bar.get(low), bar.get(high)];
    let lower = if before == after { low_first } else { bar.get(low) };
    (u64::from(after & 0xf) << 32 | u64::from(lower), 36)
}

/// What is only done by one at a time: messages, and counting.
#[derive(Debug)]
pub(super) struct Control<R> {
    pub(super) mailbox: Mailbox<R>,
    pub(super) agreed: Agreed,
    statistics: [Wrapping; STATISTICS.len()],
    link: Seen,
    /// Resets of the physical function, and attempts to agree anew that failed.
    resets: u64,
    failures: u64,
    /// Nothing is agreed on.
    lost: bool,
    gone: bool,
}

impl<R: Registers> Control<R> {
    /// Counting begins with what the counters say now.
    pub(super) fn new(bar: &Bar<R>, mailbox: Mailbox<R>, agreed: Agreed) -> Self {
        let statistics = STATISTICS.map(|statistic| Wrapping { last: read(bar, statistic).0, sum: 0 });
        let link = Seen::first(Link::DOWN);
        Self { mailbox, agreed, statistics, link, resets: 0, failures: 0, lost: false, gone: false }
    }

    /// Somebody has looked at the link.
    pub(super) fn see(&mut self, link: Link) {
        self.link.see(link);
    }

    /// Everything as of the last look.
    pub(super) fn counters(&self) -> Vec<Counter> {
        let statistics =
            STATISTICS.iter().zip(&self.statistics).map(|(statistic, counter)| (statistic.0, counter.sum));
        let own = [
            ("link_losses", self.link.losses),
            ("pf_resets", self.resets),
            ("pf_failures", self.failures),
            ("mailbox_unanswered", self.mailbox.unanswered),
            ("device_gone", u64::from(self.gone)),
        ];
        statistics.chain(own).map(|(name, value)| Counter { name, value }).collect()
    }
}

impl<R: Registers> Shared<R> {
    /// Looks at everything, and agrees anew when the physical function was reset.
    pub(super) fn look(&self) {
        let control = &mut *lock(&self.control);
        match control.mailbox.news() {
            Ok(News::Reset) => {
                // One that did not come back yet is the same reset.
                control.resets += u64::from(!control.lost);
                control.lost = true;
            }
            Err(MailboxError::Gone) => {
                control.gone = true;
                return;
            }
            Ok(News::None) | Err(_) => {}
        }
        control.see(link::port(&self.bar));
        control.lost |= self.failed.swap(false, Relaxed);
        if control.lost && self.epoch.load(Relaxed).is_multiple_of(2) {
            self.epoch.fetch_add(1, Relaxed);
        }
        if !control.lost {
            for (counter, statistic) in control.statistics.iter_mut().zip(STATISTICS) {
                let (now, bits) = read(&self.bar, statistic);
                counter.see(now, bits);
            }
        } else {
            match self.agree_again(control) {
                Ok(()) => control.lost = false,
                Err(NicError::Gone | NicError::Mailbox(MailboxError::Gone)) => control.gone = true,
                Err(_) => control.failures += 1,
            }
        }
    }

    /// All queues start again once this is done, each when its owner comes by.
    fn agree_again(&self, control: &mut Control<R>) -> Result<(), NicError> {
        init::stop(&self.bar)?;
        let again = init::agree_again(&self.bar, &mut control.mailbox, &self.settings, &control.agreed)?;
        control.agreed = again;
        rx::prepare(self);
        // The reset has cleared what they count.
        for (counter, statistic) in control.statistics.iter_mut().zip(STATISTICS) {
            counter.last = read(&self.bar, statistic).0;
        }
        self.epoch.fetch_add(1, Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_wrap_without_a_loss() {
        let mut counter = Wrapping { last: 0xffff_fff0, sum: 0 };
        counter.see(0xffff_ffff, 32);
        counter.see(5, 32);
        assert_eq!(counter.sum, 21);
        let mut counter = Wrapping { last: (1 << 36) - 1, sum: 100 };
        counter.see(9, 36);
        assert_eq!(counter.sum, 110);
    }
}
