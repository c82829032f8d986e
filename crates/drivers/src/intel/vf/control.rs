//! What the function counts, kept as 64 bits: its own counters wrap after 32 or 36, and only a reset clears them. Whoever
//! looks also looks at the link, and at whether the physical function was reset.

use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use bywash_port::Counter;
use bywash_sys::function::Registers;

use super::{Agreed, Settings, Shared};
use crate::intel::{
    Bar, Link, LinkRegister, Mailbox, MailboxError, News, NicError, Seen, Statistic, before_reset, lock,
};

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

/// What a counter reads, and how many bits it has: 32, or 36 with the four of its upper register.
fn read<R: Registers>(bar: &Bar<R>, &(_, low, high): &Statistic) -> (u64, u32) {
    let Some(high) = high else { return (u64::from(bar.get(low)), 32) };
    // The halves are not kept together: when the upper one changes meanwhile, both are read once more.
    let [before, low_first, after] = [bar.get(high), bar.get(low), bar.get(high)];
    let lower = if before == after { low_first } else { bar.get(low) };
    (u64::from(after & 0xf) << 32 | u64::from(lower), 36)
}

/// What the port says. One that comes up flaps at first, so it must say so several times.
pub(super) fn port_link<R: Registers>(bar: &Bar<R>, register: &LinkRegister) -> Link {
    let mut link = register.state(bar);
    for _ in 0..5 {
        if !link.up {
            break;
        }
        sleep(Duration::from_micros(100));
        link = register.state(bar);
    }
    link
}

/// What is only done by one at a time: messages, and counting.
#[derive(Debug)]
pub(super) struct Control<R> {
    pub(super) mailbox: Mailbox<R>,
    pub(super) agreed: Agreed,
    /// The address that its owner has chosen.
    pub(super) chosen_mac: Option<[u8; 6]>,
    statistics: &'static [Statistic],
    sums: Vec<Wrapping>,
    link: Seen,
    /// Resets of the physical function, and attempts to agree anew that failed.
    resets: u64,
    failures: u64,
    /// Other addresses that the host has given at that.
    mac_changes: u64,
    /// Nothing is agreed on.
    lost: bool,
    gone: bool,
}

impl<R: Registers> Control<R> {
    /// Counting begins with what the counters say now.
    pub(super) fn new(
        bar: &Bar<R>,
        mailbox: Mailbox<R>,
        agreed: Agreed,
        chosen_mac: Option<[u8; 6]>,
        statistics: &'static [Statistic],
    ) -> Self {
        let begin = |statistic| Wrapping { last: read(bar, statistic).0, sum: 0 };
        let sums = statistics.iter().map(begin).collect();
        let link = Seen::first(Link::DOWN);
        Self {
            mailbox,
            agreed,
            chosen_mac,
            statistics,
            sums,
            link,
            resets: 0,
            failures: 0,
            mac_changes: 0,
            lost: false,
            gone: false,
        }
    }

    /// Somebody has looked at the link.
    pub(super) fn see(&mut self, link: Link) {
        self.link.see(link);
    }

    /// Everything as of the last look.
    pub(super) fn counters(&self) -> Vec<Counter> {
        let statistics =
            self.statistics.iter().zip(&self.sums).map(|((name, ..), counter)| (*name, counter.sum));
        let own = [
            ("link_losses", self.link.losses),
            ("pf_resets", self.resets),
            ("pf_failures", self.failures),
            ("mac_changes", self.mac_changes),
            ("mailbox_unanswered", self.mailbox.unanswered),
        ];
        let counts = statistics.chain(own).map(|(name, value)| Counter::count(name, value));
        counts.chain([Counter::state("device_gone", self.gone)]).collect()
    }
}

impl<R: Registers> Shared<R> {
    /// Looks at everything, and agrees anew when the physical function was reset.
    pub(super) fn look(&self) {
        let control = &mut *lock(&self.control);
        let link = port_link(&self.bar, &self.driver.link);
        let now: Vec<_> = control.statistics.iter().map(|statistic| read(&self.bar, statistic)).collect();
        // Asked after the counters were read: a reset clears them, and of a device that is gone they read as ones. Neither counts.
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
        control.see(link);
        control.lost |= self.failed.swap(false, Relaxed);
        if control.lost && self.epoch.load(Relaxed).is_multiple_of(2) {
            self.epoch.fetch_add(1, Relaxed);
        }
        if !control.lost {
            control.sums.iter_mut().zip(now).for_each(|(counter, (now, bits))| counter.see(now, bits));
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
        before_reset((self.driver.stop)(&self.bar))?;
        let before = &control.agreed;
        let same = Settings {
            queues: Some(before.queues),
            max_len: Some(before.max_len),
            // The host may have another one for it by now. To insist on the old one would be in vain.
            mac: control.chosen_mac,
            promiscuous: before.promiscuous,
            multicast: before.multicast.clone(),
            vlans: before.vlans.clone(),
            ..self.settings.clone()
        };
        let mut agreed = (self.driver.agree)(&self.bar, &mut control.mailbox, &same, before.mac)?;
        for (number, mac) in (1..).zip(&before.more_macs) {
            (self.driver.add_mac)(&mut control.mailbox, *mac, number)?;
        }
        agreed.more_macs.clone_from(&before.more_macs);
        control.mac_changes += u64::from(agreed.mac != before.mac);
        self.strips.store(self.settings.strip_vlan || agreed.leaves_tags, Relaxed);
        self.vlans.set(&agreed.vlans);
        control.agreed = agreed;
        (self.driver.prepare)(&self.bar, &self.settings, self.queues);
        // The reset has cleared what they count.
        for (counter, statistic) in control.sums.iter_mut().zip(control.statistics) {
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
