//! The ring under a model checker, which tries the orders in which two threads' accesses can happen; and under chance.

use std::cell::Cell as Plain;
use std::rc::Rc;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, fence};
use loom::thread;
use proptest::prelude::*;

use super::*;

/// Words whose every access the model checker sees.
#[derive(Clone)]
struct Modelled(Arc<AtomicU32>);

struct Loom;

impl Memory for Loom {
    fn fence(order: Ordering) {
        fence(order);
    }
}

impl Modelled {
    fn new() -> Self {
        Self(Arc::new(AtomicU32::new(0)))
    }
}

impl Cell for Modelled {
    fn load(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl OwnCell for Modelled {
    fn store(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

struct Ends {
    sender: Sender<Modelled, Loom>,
    receiver: Receiver<Modelled, Modelled, Loom>,
    tail: Modelled,
    asleep: Modelled,
    /// The checker panics when two threads reach one without an order between them.
    slots: Arc<Vec<UnsafeCell<u32>>>,
}

fn ends(size: u32) -> Ends {
    let [head, tail, asleep] = [Modelled::new(), Modelled::new(), Modelled::new()];
    Ends {
        sender: Sender::new(head.clone(), size),
        receiver: Receiver::new(head, tail.clone(), asleep.clone(), size),
        tail,
        asleep,
        slots: Arc::new((0..size).map(|_| UnsafeCell::new(u32::MAX)).collect()),
    }
}

fn slot(slots: &[UnsafeCell<u32>], index: u32) -> &UnsafeCell<u32> {
    &slots[index as usize % slots.len()]
}

/// Three packets through two slots: each slot is read after it was written, and written again after it was read.
#[test]
fn no_slot_is_touched_by_both_sides_at_once() {
    loom::model(|| {
        let Ends { mut sender, mut receiver, tail, slots, .. } = ends(2);
        let theirs = slots.clone();
        let sending = thread::spawn(move || {
            let mut sent = 0;
            while sent < 3 {
                if sender.room() == 0 {
                    sender.look(&tail).unwrap();
                    thread::yield_now();
                    continue;
                }
                slot(&theirs, sender.next()).with_mut(|_| sent += 1);
                sender.fill(1);
                sender.publish();
            }
        });
        let mut received = 0;
        while received < 3 {
            receiver.look().unwrap();
            if receiver.available() == 0 {
                thread::yield_now();
                continue;
            }
            slot(&slots, receiver.next()).with(|_| received += 1);
            receiver.empty(1);
            receiver.publish();
        }
        sending.join().unwrap();
    });
}

/// A packet that is sent while the receiver goes to sleep is seen, or rung for: no order leaves both out.
#[test]
fn no_sleep_is_slept_through() {
    loom::model(|| {
        let Ends { mut sender, mut receiver, asleep, .. } = ends(2);
        let sending = thread::spawn(move || {
            sender.fill(1);
            sender.publish();
            sender.must_ring(&asleep)
        });
        let sleeps = receiver.sleep();
        let rung = sending.join().unwrap();
        assert!(rung || !sleeps, "asleep with a packet there, and nobody rings");
    });
}

#[test]
fn one_sleep_is_rung_for_once() {
    loom::model(|| {
        let Ends { mut sender, mut receiver, asleep, .. } = ends(4);
        assert!(!sender.must_ring(&asleep), "nobody sleeps");
        assert!(receiver.sleep());
        sender.fill(1);
        sender.publish();
        assert!(sender.must_ring(&asleep) && !sender.must_ring(&asleep));
        receiver.wake();
        assert!(!sender.must_ring(&asleep));
        assert!(!receiver.sleep(), "a slot is filled");
        receiver.look().unwrap();
        receiver.empty(1);
        assert!(receiver.sleep() && sender.must_ring(&asleep), "another sleep");
    });
}

/// Words of a single thread, which a test sets as a hostile process would.
#[derive(Clone, Default)]
struct Word(Rc<Plain<u32>>);

impl Cell for Word {
    fn load(&self) -> u32 {
        self.0.get()
    }
}

impl OwnCell for Word {
    fn store(&self, value: u32) {
        self.0.set(value);
    }
}

struct Nothing;

impl Memory for Nothing {
    fn fence(_: Ordering) {}
}

const SIZE: u32 = 64;

proptest! {
    /// Whatever the other side writes where, the two counts stay within the ring, and what is honest is no fault.
    #[test]
    fn no_index_of_the_other_side_gets_us_out_of_the_ring(
        start in any::<u32>(),
        steps in prop::collection::vec((any::<u32>(), 0..2 * SIZE, any::<bool>()), 1..200),
    ) {
        let [head, tail, asleep] = [Word::default(), Word::default(), Word::default()];
        let (ours, theirs) = (Word::default(), Word::default());
        let mut sender = Sender::<_, Nothing>::new(ours, SIZE);
        let mut receiver = Receiver::<_, _, Nothing>::new(head.clone(), tail, asleep, SIZE);
        (sender.filled, sender.emptied) = (start, start);
        (receiver.filled, receiver.emptied) = (start, start);
        head.store(start);
        theirs.store(start);
        for (wild, near, hostile) in steps {
            let honest = near % (sender.used() + 1);
            theirs.store(if hostile { wild } else { sender.oldest().wrapping_add(honest) });
            let before = sender.oldest();
            let moved = sender.look(&theirs).is_ok();
            prop_assert!(moved || hostile);
            prop_assert!(moved || sender.oldest() == before);
            prop_assert!(sender.used() <= SIZE);
            sender.fill(near % (sender.room() + 1));
            sender.publish();

            let room = SIZE - receiver.available();
            let honest = receiver.filled.wrapping_add(near % (room + 1));
            head.store(if hostile { wild } else { honest });
            let before = receiver.available();
            let moved = receiver.look().is_ok();
            prop_assert!(moved || hostile);
            prop_assert!(receiver.available() <= SIZE && receiver.available() >= before);
            receiver.empty(near % (receiver.available() + 1));
            receiver.publish();
        }
    }
}
