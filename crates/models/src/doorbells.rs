//! Pages of BAR 0 that a client maps instead of sending messages: those of the queues' registers, with their tails.
//!
//! A write to memory wakes nobody, so the pages are looked at: tails of enabled queues each time, all other words now and
//! then, and around each message, so that what a client wrote before it is done before it. A word that differs from what
//! was last put there was written by the client. Reading a mapped counter does not clear it: a client that wants
//! statistics reads them by message.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use bywash_hw::ixgbe::BAR_SIZE;
use bywash_sys::shared::{Mapping, Word};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::ixgbe::Nic;

/// The pages, by their offsets in BAR 0: receive queues up to 63, transmit queues, receive queues from 64 on.
pub const PAGES: [Range<u32>; 3] = [0x1000..0x2000, 0x6000..0x8000, 0xd000..0xe000];

/// Microseconds between looks at all words: some thousands, which costs as much as dozens of packets. Drivers that wait for one of
/// them look once a millisecond.
const SWEEP_US: u64 = 500;

/// A word of the pages that is a register.
#[derive(Debug)]
struct Doorbell {
    offset: u32,
    /// Where the model finds the register.
    first_address: u32,
    word: Word<AtomicU32>,
    /// What the model has put there, or has done of what it found there.
    seen: u32,
    /// What lay there when it was last read.
    found: u32,
}

/// The pages.
#[derive(Debug)]
pub struct Doorbells {
    file: OwnedFd,
    tails: Vec<Doorbell>,
    /// Those with the bits that enable queues.
    switches: Vec<Doorbell>,
    others: Vec<Doorbell>,
    /// Places in `tails` of queues that are enabled.
    live: Vec<usize>,
    next_sweep: u64,
}

impl Doorbells {
    /// Pages that show the registers of `nic`.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn new(nic: &Nic) -> io::Result<Self> {
        let file = memfd_create("bywash-doorbells", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, u64::from(BAR_SIZE))?;
        let mapping = Mapping::of_file(file.as_fd(), 0, BAR_SIZE as usize)?;
        let offsets = PAGES.into_iter().flat_map(|page| page.step_by(4));
        let word = |(offset, first_address): (u32, u32)| {
            let word = Word::u32_at(&mapping, offset as usize)?;
            Ok(Doorbell { offset, first_address, word, seen: 0, found: 0 })
        };
        let registers = offsets.filter_map(|offset| Some((offset, Nic::first_address(offset)?)));
        let words = registers.map(word).collect::<io::Result<Vec<_>>>()?;
        let is_tail = |word: &Doorbell| nic.has_tail(word.offset).is_some();
        let (tails, others): (Vec<_>, Vec<_>) = words.into_iter().partition(is_tail);
        let is_switch = |word: &Doorbell| Nic::has_switch(word.offset);
        let (switches, others) = others.into_iter().partition(is_switch);
        let mut doorbells = Self { file, tails, switches, others, live: Vec::new(), next_sweep: 0 };
        doorbells.show(nic);
        Ok(doorbells)
    }

    /// The file, in which pages lie at their offsets in the BAR.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Does what a client wrote to live tails, and at times to all words. True when there was something.
    pub fn look(&mut self, nic: &mut Nic, now: u64) -> bool {
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP_US;
            let written = self.take(nic);
            self.show(nic);
            return written;
        }
        self.live.iter().map(|at| u32::from(self.tails[*at].take(nic))).sum::<u32>() > 0
    }

    /// Does all that a client wrote; tails only when there was nothing else, because a queue that was enabled must start first.
    /// True when there was something.
    ///
    /// A client goes on writing meanwhile, ring, switch and tail of a queue in this order. They are read in the opposite one: what
    /// was written before something that is seen here is seen, too.
    pub fn take(&mut self, nic: &mut Nic) -> bool {
        self.tails.iter_mut().chain(&mut self.switches).chain(&mut self.others).for_each(Doorbell::read);
        let act = |words: &mut dyn Iterator<Item = &mut Doorbell>, nic: &mut Nic| {
            words.map(|word| u32::from(word.act(nic))).sum::<u32>() > 0
        };
        // A ring changes between the end of one queue and the start of the next.
        let ended = act(&mut self.switches.iter_mut().filter(|word| !Nic::is_on(word.found)), nic);
        let changed = act(&mut self.others.iter_mut(), nic);
        let started = act(&mut self.switches.iter_mut(), nic);
        if ended || changed || started {
            return true;
        }
        let mut rung = false;
        for tail in self.tails.iter_mut().filter(|tail| tail.found != tail.seen) {
            rung |= !nic.is_starting(tail.offset) && tail.act(nic);
        }
        rung
    }

    /// Shows what registers have become.
    pub fn show(&mut self, nic: &Nic) {
        let words = self.others.iter_mut().chain(&mut self.switches).chain(&mut self.tails);
        words.for_each(|word| word.show(nic));
        self.live.clear();
        let tails = self.tails.iter().enumerate();
        self.live.extend(tails.filter(|(_, tail)| nic.has_tail(tail.offset) == Some(true)).map(|(at, _)| at));
    }
}

impl Doorbell {
    #[inline]
    fn take(&mut self, nic: &mut Nic) -> bool {
        self.read();
        self.act(nic)
    }

    #[inline]
    fn read(&mut self) {
        self.found = self.word.load(Acquire);
    }

    /// Does what was read, if it is the client's.
    #[inline]
    fn act(&mut self, nic: &mut Nic) -> bool {
        if self.found == self.seen {
            return false;
        }
        self.seen = self.found;
        nic.write32(self.offset, self.found);
        true
    }

    /// Puts the register's value there, unless the client has written meanwhile: then that is for the next look.
    fn show(&mut self, nic: &Nic) {
        let value = nic.peek(self.first_address);
        if value != self.seen && self.word.compare_exchange(self.seen, value, AcqRel, Acquire).is_ok() {
            self.seen = value;
        }
    }
}
