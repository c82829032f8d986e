//! The mailbox by which a virtual function talks to its physical one: sixteen words, which one side at a time may hold.
//!
//! Reading the control register clears some of its bits, so they are kept here until somebody has looked at them. Every wait
//! ends, every question is asked a few times, and an answer to another question is no answer. From version 1.5 of the
//! messages on, the buffer is held until the other side has acknowledged; before, asking gives it up.

use std::time::{Duration, Instant};

use bywash_hw::ixgbe::vf::{MAILBOX_WORDS, VFMAILBOX, message};
use bywash_hw::reg::Register;
use bywash_sys::function::Registers;

use super::Bar;

/// Bits that reading clears.
const CLEARED: u32 = VFMAILBOX::PFSTS.mask | VFMAILBOX::PFACK.mask | VFMAILBOX::RSTD.mask;

/// How often a question is asked before the other side counts as silent.
const TRIES: u32 = 3;

/// The low half of a message's first word: what it is.
const KIND: u32 = 0xffff;

/// A message.
pub(crate) type Words = [u32; MAILBOX_WORDS as usize];

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum MailboxError {
    /// Nothing came.
    #[error(
        "the physical function does not answer {asked}, asked {TRIES} times within {waited:?}: is its interface up (`ip link set dev PF up`), and its driver alive?"
    )]
    Silent {
        /// The message.
        asked: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The other side keeps the buffer for itself.
    #[error(
        "the physical function keeps the mailbox for itself, so {asked} can't be asked: reload its driver"
    )]
    Held {
        /// The message.
        asked: &'static str,
    },
    /// Something else was answered.
    #[error(
        "the physical function answers {asked} with message {got:#x}, which is none to it: update its driver"
    )]
    Wrong {
        /// The message.
        asked: &'static str,
        /// What came.
        got: u32,
    },
    /// It said no.
    #[error("the physical function refuses {asked}: {cure}")]
    Refused {
        /// The message.
        asked: &'static str,
        /// What may help.
        cure: &'static str,
    },
    /// The physical function was reset meanwhile, or begins anew with this one.
    #[error("the physical function was reset before it answered {asked}: try again")]
    Reset {
        /// The message.
        asked: &'static str,
    },
    /// It does not say that it is ready.
    #[error(
        "{register} is {value:#010x} {waited:?} after a reset, {bit}: the physical function is not ready; set its interface up (`ip link set dev PF up`)"
    )]
    NotReady {
        /// The mailbox's control register.
        register: &'static str,
        /// What it is.
        value: u32,
        /// The bit that says so.
        bit: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The device does not answer any more.
    #[error("the device is gone: its registers read as ones")]
    Gone,
}

/// What the other side says unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing, or that it is there.
    None,
    /// It was reset, or begins anew with this function: what was agreed on holds no more.
    Reset,
}

/// The function's end of the mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox<R> {
    bar: Bar<R>,
    control: &'static Register,
    memory: &'static Register,
    /// Bits that reading has cleared, and nobody has looked at.
    seen: u32,
    /// The other side knows of no reset of this function, and answers nothing else.
    lost: bool,
    /// The buffer is held until the other side has acknowledged.
    pub(crate) holds: bool,
    patience: Duration,
    /// Questions without an answer, and answers to others, so far.
    pub(crate) unanswered: u64,
}

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post<'a> {
    /// What it is called.
    pub(crate) name: &'static str,
    /// Its words.
    pub(crate) words: &'a [u32],
    /// What may help when it is refused.
    pub(crate) cure: &'static str,
}

impl<R: Registers> Mailbox<R> {
    /// A mailbox whose registers are these. Each answer may take `patience`.
    pub(crate) fn new(
        bar: Bar<R>,
        control: &'static Register,
        memory: &'static Register,
        patience: Duration,
    ) -> Self {
        Self { bar, control, memory, seen: 0, lost: false, holds: false, patience, unanswered: 0 }
    }

    fn status(&mut self) -> Result<u32, MailboxError> {
        let value = self.bar.get(self.control);
        if value == u32::MAX && self.bar.is_gone() {
            return Err(MailboxError::Gone);
        }
        self.seen |= value & CLEARED;
        Ok(value | self.seen)
    }

    /// Waits until one of `bits` is set, and forgets them then. False when that takes too long.
    fn wait(&mut self, bits: u32, deadline: Instant) -> Result<bool, MailboxError> {
        let mut nap = Duration::from_micros(20);
        loop {
            if self.status()? & bits != 0 {
                self.seen &= !bits;
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(2));
        }
    }

    /// Takes the buffer.
    fn hold(&mut self, deadline: Instant) -> Result<bool, MailboxError> {
        loop {
            self.bar.put(self.control, VFMAILBOX::VFU.mask);
            if VFMAILBOX::VFU.is_set(self.status()?) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Directly before a reset of the function: what was said until now is no answer to it.
    pub(crate) fn forget(&mut self) {
        self.bar.get(self.control);
        self.seen = 0;
    }

    /// After a reset of the function: waits until the other side is ready for its messages, which are of the first version.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), MailboxError> {
        self.holds = false;
        if self.wait(VFMAILBOX::RSTD.mask, Instant::now() + self.patience)? {
            return Ok(());
        }
        Err(self.not_ready("without RSTD")?)
    }

    /// After a reset of the function, where the other side says that it is ready once and not after each: waits while that is
    /// itself being reset.
    pub(crate) fn wait_while_reset(&mut self) -> Result<(), MailboxError> {
        self.holds = false;
        let begun = Instant::now();
        while VFMAILBOX::RSTI.is_set(self.status()?) {
            if begun.elapsed() >= self.patience {
                return Err(self.not_ready("with RSTI")?);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.seen &= !VFMAILBOX::RSTD.mask;
        Ok(())
    }

    fn not_ready(&mut self, bit: &'static str) -> Result<MailboxError, MailboxError> {
        let value = self.status()?;
        Ok(MailboxError::NotReady { register: self.control.name, value, bit, waited: self.patience })
    }

    /// Sends a message and returns the answer, when that says that it was done.
    pub(crate) fn ask(&mut self, post: Post<'_>) -> Result<Words, MailboxError> {
        let (asked, cure) = (post.name, post.cure);
        match self.ask_whether(post)? {
            (words, true) => Ok(words),
            (_, false) => Err(MailboxError::Refused { asked, cure }),
        }
    }

    /// Sends a message and returns the answer, and whether that says that it was done.
    pub(crate) fn ask_whether(&mut self, post: Post<'_>) -> Result<(Words, bool), MailboxError> {
        let begun = Instant::now();
        let mut last = None;
        for _ in 0..TRIES {
            match self.try_once(post) {
                Ok(Some(words)) => return Ok((words, words[0] & message::NACK == 0)),
                Ok(None) => last = None,
                Err(error @ (MailboxError::Wrong { .. } | MailboxError::Held { .. })) => last = Some(error),
                Err(error) => return Err(error),
            }
            self.unanswered += 1;
        }
        Err(last.unwrap_or_else(|| MailboxError::Silent { asked: post.name, waited: begun.elapsed() }))
    }

    /// Once. `None` when no answer comes.
    fn try_once(&mut self, post: Post<'_>) -> Result<Option<Words>, MailboxError> {
        let asked = post.name;
        let deadline = Instant::now() + self.patience;
        self.hold_empty(deadline, asked)?;
        let kind = post.words[0] & KIND;
        if self.lost && kind != message::RESET {
            self.bar.put(self.control, 0);
            return Err(MailboxError::Reset { asked });
        }
        self.seen &= !(VFMAILBOX::PFSTS.mask | VFMAILBOX::PFACK.mask);
        for (index, word) in (0..self.memory.count()).zip(post.words) {
            self.bar.put_at(self.memory, index, *word);
        }
        let held = if self.holds { VFMAILBOX::VFU.mask } else { 0 };
        self.bar.put(self.control, VFMAILBOX::REQ.mask | held);
        let taken = self.wait(VFMAILBOX::PFACK.mask, deadline)?;
        if self.holds {
            self.bar.put(self.control, 0);
        }
        let mut wrong = None;
        while taken && self.wait(VFMAILBOX::PFSTS.mask, deadline)? {
            let words = self.read(deadline, asked)?;
            if self.lost && kind != message::RESET {
                return Err(MailboxError::Reset { asked });
            }
            // As answers to questions that were given up, or news, others may come first.
            match words[0] & KIND {
                got if got == kind => return Ok(Some(words)),
                message::CONTROL => {}
                got => wrong = Some(got),
            }
        }
        if self.seen & VFMAILBOX::RSTD.mask != 0 {
            return Err(MailboxError::Reset { asked });
        }
        wrong.map_or(Ok(None), |got| Err(MailboxError::Wrong { asked, got }))
    }

    /// Takes the buffer with nothing in it that was not read: that would be overwritten, and may be news.
    fn hold_empty(&mut self, deadline: Instant, asked: &'static str) -> Result<(), MailboxError> {
        loop {
            if VFMAILBOX::PFSTS.is_set(self.status()?) {
                self.seen &= !VFMAILBOX::PFSTS.mask;
                self.read(deadline, asked)?;
            }
            if !self.hold(deadline)? {
                return Err(MailboxError::Held { asked });
            }
            // Between the two something may have come.
            if self.seen & VFMAILBOX::PFSTS.mask == 0 || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    /// Copies what lies in the buffer, and says so.
    fn read(&mut self, deadline: Instant, asked: &'static str) -> Result<Words, MailboxError> {
        if !self.holds && !self.hold(deadline)? {
            return Err(MailboxError::Held { asked });
        }
        let mut words = Words::default();
        (0..self.memory.count())
            .zip(&mut words)
            .for_each(|(index, word)| *word = self.bar.get_at(self.memory, index));
        self.bar.put(self.control, VFMAILBOX::ACK.mask);
        // To a function that it knows of no reset of, the other side says no to everything but that, and not that it may go on.
        let [first, ..] = words;
        let said = first & message::NACK != 0 || first & KIND == message::CONTROL;
        self.lost = match first & KIND {
            message::RESET => false,
            _ => self.lost || said && first & message::CLEAR_TO_SEND == 0,
        };
        Ok(words)
    }

    /// What has been said unasked since the last call.
    pub(crate) fn news(&mut self) -> Result<News, MailboxError> {
        let status = self.status()?;
        if status & (VFMAILBOX::RSTI.mask | VFMAILBOX::RSTD.mask) != 0 {
            return Ok(News::Reset);
        }
        if VFMAILBOX::PFSTS.is_set(status) {
            self.seen &= !VFMAILBOX::PFSTS.mask;
            self.read(Instant::now() + self.patience, "its news")?;
        }
        Ok(if std::mem::take(&mut self.lost) { News::Reset } else { News::None })
    }
}
