//! What one connection to the other end gives each queue, and how a queue hears of a new one.
//!
//! The thread that holds the socket makes sessions; a queue's worker takes them over between two packets. It looks at one
//! word in each turn, and at the rest only when that says that there is news.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bywash_sys::shared::Mapping;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::layout::{Emptying, Filling, Layout, Reader};

/// Letters that wait for a queue whose worker does not turn; of more the oldest are forgotten.
const WAITING: usize = 8;

/// What happened to the wire.
#[derive(Debug)]
pub(super) enum News<S> {
    /// The other end is there.
    Session(S),
    /// The other end is gone.
    Gone,
}

/// News for one half of a queue.
#[derive(Debug)]
pub(super) struct Mailbox<S> {
    /// Changes with each news.
    number: AtomicU32,
    letters: Mutex<VecDeque<News<S>>>,
}

impl<S> Default for Mailbox<S> {
    fn default() -> Self {
        Self { number: AtomicU32::new(0), letters: Mutex::default() }
    }
}

impl<S> Mailbox<S> {
    pub(super) fn post(&self, news: News<S>) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        if letters.len() == WAITING {
            letters.pop_front();
        }
        letters.push_back(news);
        self.number.fetch_add(1, Ordering::Release);
    }

    /// Whether there is news since `seen`, which is brought up to date.
    #[inline]
    pub(super) fn has_news(&self, seen: &mut u32) -> bool {
        let number = self.number.load(Ordering::Acquire);
        let news = number != *seen;
        *seen = number;
        news
    }

    /// As [`Mailbox::has_news`], and it stays news.
    pub(super) fn is_newer(&self, seen: u32) -> bool {
        self.number.load(Ordering::Acquire) != seen
    }

    pub(super) fn is_empty(&self) -> bool {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn take(&self) -> Option<News<S>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What rings for a sleeping worker at the other end, and what wakes ours. A socket, and not an eventfd: of that the other
/// side could take away that it never blocks.
#[derive(Clone, Debug)]
pub(super) struct Doorbell(pub(super) Arc<OwnedFd>);

impl Doorbell {
    pub(super) fn ring(&self) {
        // When it is full the other side has been rung for often enough; when it is cut there is nobody.
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Forgets that it was rung. False when it will never ring again.
    pub(super) fn hush(&self) -> bool {
        let mut rings = [0; 64];
        match recv(&self.0, &mut rings, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => false,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
            Err(_) => false,
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Says that a session must end, because the other side broke the rules.
#[derive(Clone, Debug)]
pub(super) struct Alarm(Arc<AlarmInner>);

#[derive(Debug)]
struct AlarmInner {
    is_set: AtomicBool,
    bell: OwnedFd,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(AlarmInner { is_set: AtomicBool::new(false), bell })))
    }

    pub(super) fn set(&self) {
        if !self.0.is_set.swap(true, Ordering::Relaxed) {
            // A fresh eventfd takes a first 1.
            let _ = rustix::io::write(&self.0.bell, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

/// What a sending half has of the other end.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) reader: Reader,
    pub(super) doorbell: Doorbell,
    pub(super) alarm: Alarm,
    /// Whether anybody reads there at all.
    pub(super) receives: bool,
}

/// A session, as a sending half sees it.
#[derive(Debug)]
pub(super) struct TxSession {
    pub(super) filling: Filling,
    pub(super) peer: Peer,
}

/// A session, as a receiving half sees it.
#[derive(Debug)]
pub(super) struct RxSession {
    pub(super) emptying: Emptying,
    pub(super) doorbell: Doorbell,
    pub(super) alarm: Alarm,
}

/// Everything two ends have agreed upon.
pub(super) struct Agreement {
    pub(super) ours: Arc<Mapping>,
    pub(super) our_layout: Layout,
    pub(super) theirs: Arc<Mapping>,
    pub(super) their_layout: Layout,
    /// One for each queue.
    pub(super) doorbells: Vec<Doorbell>,
    /// Whether anybody reads at the other end.
    pub(super) receives: bool,
    pub(super) alarm: Alarm,
}

impl Agreement {
    /// What it gives queue `number`.
    pub(super) fn halves(&self, number: usize) -> io::Result<(RxSession, TxSession)> {
        let doorbell = || self.doorbells.get(number).cloned().ok_or(io::ErrorKind::InvalidInput);
        let (ours, theirs) = ((&self.ours, self.our_layout), (&self.theirs, self.their_layout));
        let rx = RxSession {
            emptying: Emptying::new(ours, theirs, number)?,
            doorbell: doorbell()?,
            alarm: self.alarm.clone(),
        };
        let tx = TxSession {
            filling: Filling::new(&self.ours, self.our_layout, number)?,
            peer: Peer {
                reader: Reader::new(&self.theirs, self.their_layout, number)?,
                doorbell: doorbell()?,
                alarm: self.alarm.clone(),
                receives: self.receives,
            },
        };
        Ok((rx, tx))
    }
}

/// What one queue and the socket's thread share.
#[derive(Debug)]
pub(super) struct QueueShared {
    pub(super) rx: Mailbox<RxSession>,
    pub(super) tx: Mailbox<TxSession>,
    /// Wakes the receiving half's worker when there is news.
    pub(super) news: OwnedFd,
}

impl QueueShared {
    pub(super) fn new() -> io::Result<Self> {
        let news = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { rx: Mailbox::default(), tx: Mailbox::default(), news })
    }

    pub(super) fn wake(&self) {
        // It only fails when the counter is full: then the worker is awake already.
        let _ = rustix::io::write(&self.news, &1_u64.to_ne_bytes());
    }
}

/// What the port counts.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Connections that were made.
    pub(super) connections: AtomicU64,
    /// Sessions that were ended because the other side broke the rules.
    pub(super) faults: AtomicU64,
    /// Processes that were sent away.
    pub(super) refused: AtomicU64,
    /// Packets that waited for the other end while it was gone.
    pub(super) kept: AtomicU64,
    /// Whether the other end is there.
    pub(super) connected: AtomicBool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_comes_in_order_and_is_news_once() {
        let (mailbox, mut seen) = (Mailbox::default(), 0);
        assert!(!mailbox.has_news(&mut seen));
        mailbox.post(News::Session(1));
        mailbox.post(News::Gone);
        assert!(mailbox.is_newer(seen) && mailbox.has_news(&mut seen) && !mailbox.has_news(&mut seen));
        assert!(matches!(mailbox.take(), Some(News::Session(1))));
        assert!(matches!(mailbox.take(), Some(News::Gone)));
        assert!(mailbox.take().is_none());
        (0..100).for_each(|n| mailbox.post(News::Session(n)));
        assert!(matches!(mailbox.take(), Some(News::Session(92))), "the oldest are forgotten");
    }
}
