//! Rings from one thread to another, bounded and without a lock, and the bell that wakes whoever sleeps beside them.
//!
//! What cannot be put into a full ring comes back to the sender, who decides what is lost. All rings to one thread share
//! its bell, which costs a system call only when that thread sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};

#[cfg(test)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(test))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether a thread sleeps, or is about to.
#[derive(Debug)]
struct Asleep(AtomicBool);

impl Asleep {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The thread will sleep unless `is_empty` says otherwise.
    fn fall_asleep(&self, is_empty: impl FnOnce() -> bool) -> bool {
        self.0.store(true, Ordering::Relaxed);
        // Either the sender sees this, or we see what it has put in: each writes, fences, then reads.
        fence(Ordering::SeqCst);
        let empty = is_empty();
        if !empty {
            self.0.store(false, Ordering::Relaxed);
        }
        empty
    }

    fn wake_up(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether someone who has put something in must wake the thread. Of several, one is told so.
    fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// A thread's bell. Clones are the same bell.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<(Asleep, OwnedFd)>);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new((Asleep::new(), fd))))
    }

    /// Wakes the thread if it sleeps. After something was put in.
    pub(crate) fn ring(&self) {
        if self.0.0.must_wake() {
            // It only fails when the counter is full: then the thread is awake already.
            let _ = rustix::io::write(&self.0.1, &1u64.to_ne_bytes());
        }
    }

    /// Wakes the thread, asleep or about to be, for something that it cannot see is there.
    pub(crate) fn ring_anyway(&self) {
        let _ = rustix::io::write(&self.0.1, &1u64.to_ne_bytes());
    }

    /// The bell's own thread will sleep unless something is there.
    pub(crate) fn arm(&self, is_empty: impl FnOnce() -> bool) -> bool {
        self.0.0.fall_asleep(is_empty)
    }

    /// The thread is awake, and looks at everything after this.
    pub(crate) fn hush(&self) {
        self.0.0.wake_up();
        // It only fails when nobody rang.
        let _ = rustix::io::read(&self.0.1, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.1.as_fd()
    }
}

/// What one thread tells another of which only the newest matters: one place, however far the other is behind. A lock that is held
/// for a moment, and taken only when there is something new.
#[derive(Debug)]
pub(crate) struct Newest<T>(Arc<Mutex<Option<T>>>);

impl<T> Newest<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// The same place, for the other thread.
    pub(crate) fn other_end(&self) -> Self {
        Self(self.0.clone())
    }

    /// Puts something in; what it replaces has not been taken.
    pub(crate) fn put(&self, thing: T) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(thing)
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The end that things are put in at.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    ring: Producer<T>,
    bell: Bell,
    /// Something was put in since the bell was last rung.
    news: bool,
}

/// The end that they come out at.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Consumer<T>);

/// A ring for `size` things, to the thread that has the bell.
pub(crate) fn ring<T>(size: usize, bell: &Bell) -> (Sender<T>, Receiver<T>) {
    let (producer, consumer) = RingBuffer::new(size);
    (Sender { ring: producer, bell: bell.clone(), news: false }, Receiver(consumer))
}

impl<T> Sender<T> {
    /// Puts something in. Full, it gives it back.
    #[inline]
    pub(crate) fn put(&mut self, thing: T) -> Result<(), T> {
        self.ring.push(thing).map_err(|rtrb::PushError::Full(thing)| thing)?;
        self.news = true;
        Ok(())
    }

    /// Puts several in, if there is [room](Sender::room) for all of them, and says how many.
    pub(crate) fn put_some(&mut self, things: impl ExactSizeIterator<Item = T>) -> usize {
        let Ok(chunk) = self.ring.write_chunk_uninit(things.len()) else { return 0 };
        let put = chunk.fill_from_iter(things);
        self.news |= put > 0;
        put
    }

    /// Wakes the other thread if it sleeps and something was put in: once for many.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.news) {
            self.bell.ring();
        }
    }

    /// How much can be put in.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.ring.slots()
    }

    /// Whether all that was put in has been taken out.
    pub(crate) fn is_empty(&self) -> bool {
        self.room() == self.ring.buffer().capacity()
    }
}

impl<T> Receiver<T> {
    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        self.0.pop().ok()
    }

    /// Takes so many at most; what is not asked for stays.
    pub(crate) fn take_some(&mut self, most: usize) -> impl Iterator<Item = T> {
        let count = self.0.slots().min(most);
        self.0.read_chunk(count).into_iter().flatten()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::Asleep;

    /// Something that is put in while the thread goes to sleep is seen, or rung for: no order leaves both out.
    #[test]
    fn no_sleep_is_slept_through() {
        loom::model(|| {
            let (asleep, ring) = (Arc::new(Asleep::new()), Arc::new(AtomicU32::new(0)));
            let (theirs, full) = (asleep.clone(), ring.clone());
            let sending = thread::spawn(move || {
                full.store(1, Ordering::Release);
                theirs.must_wake()
            });
            let sleeps = asleep.fall_asleep(|| ring.load(Ordering::Acquire) == 0);
            let rung = sending.join().unwrap();
            assert!(rung || !sleeps, "asleep with something there, and nobody rings");
        });
    }

    /// Two senders: the thread is woken, and by one of them.
    #[test]
    fn of_two_senders_one_rings() {
        loom::model(|| {
            let asleep = Arc::new(Asleep::new());
            assert!(asleep.fall_asleep(|| true));
            let theirs = asleep.clone();
            let other = thread::spawn(move || theirs.must_wake());
            let here = asleep.must_wake();
            assert!(here ^ other.join().unwrap());
        });
    }
}
