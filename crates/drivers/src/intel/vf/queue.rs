//! Queues that start again after the physical function was reset: their owner notices, when it comes by, that everything was
//! agreed on anew, and gives the NIC a fresh ring. What the NIC had is given back; what was to be sent is lost, and counted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bywash_frame::{Batch, Pool};
use bywash_port::{QueueCounters, RxQueue, TxQueue};
use bywash_sys::function::Registers;

use super::Shared;
use crate::intel::{NicError, RxRing, TxRing};

impl<R: Registers> Shared<R> {
    /// A ring for a queue, which is still off. The bell is the queue's own: the ring gets another handle of it.
    fn rx_ring(&self, number: u32, bell: Option<&OwnedFd>) -> Result<RxRing<R>, NicError> {
        let bell = bell.map(OwnedFd::try_clone).transpose().map_err(NicError::Ring)?;
        self.driver.queues.0.ring(&self.bar, &self.memory, number, bell, Some(self.vlans.clone()))
    }

    fn enable_rx(&self, number: u32) -> Result<(), NicError> {
        self.driver.queues.0.enable(&self.bar, &self.memory, number, self.queues, self.strips.load(Relaxed))
    }

    fn tx_ring(&self, number: u32) -> Result<TxRing<R>, NicError> {
        self.driver.queues.1.ring(&self.bar, &self.memory, number, self.max_len)
    }

    fn enable_tx(&self, number: u32) -> Result<(), NicError> {
        self.driver.queues.1.enable(&self.bar, &self.memory, number)
    }
}

/// Where a queue stands.
#[derive(Debug)]
struct Place<R> {
    shared: Arc<Shared<R>>,
    number: u32,
    /// When its ring was made.
    epoch: u32,
    /// What earlier rings have counted.
    before: QueueCounters,
}

impl<R> Place<R> {
    fn new(shared: &Arc<Shared<R>>, number: u32) -> Self {
        let epoch = shared.epoch.load(Relaxed);
        Self { shared: shared.clone(), number, epoch, before: QueueCounters::default() }
    }

    #[inline]
    fn is_past(&self) -> bool {
        self.shared.epoch.load(Relaxed) != self.epoch
    }

    /// Enters the present epoch. False while nothing is agreed on: the NIC has no queues then.
    fn enter(&mut self) -> bool {
        let now = self.shared.epoch.load(Relaxed);
        let agreed = now.is_multiple_of(2);
        if agreed {
            self.epoch = now;
        }
        agreed
    }

    /// The new ring did not start: all is to be agreed on once more.
    fn judge(&self, started: &Result<(), NicError>) {
        if started.is_err() {
            self.shared.failed.store(true, Relaxed);
        }
    }
}

/// The sum of what two rings have counted.
fn sum(a: QueueCounters, b: QueueCounters) -> QueueCounters {
    QueueCounters {
        packets: a.packets + b.packets,
        bytes: a.bytes + b.bytes,
        errors: a.errors + b.errors,
        no_frame: a.no_frame + b.no_frame,
    }
}

/// A receiving queue.
#[derive(Debug)]
pub(super) struct Rx<R> {
    ring: RxRing<R>,
    bell: Option<OwnedFd>,
    place: Place<R>,
}

impl<R: Registers> Rx<R> {
    /// Makes a queue, and switches it on.
    pub(super) fn start(
        shared: &Arc<Shared<R>>,
        number: u32,
        bell: Option<OwnedFd>,
    ) -> Result<Self, NicError> {
        let ring = shared.rx_ring(number, bell.as_ref())?;
        shared.enable_rx(number)?;
        Ok(Self { ring, bell, place: Place::new(shared, number) })
    }

    /// False when that must wait.
    #[cold]
    fn start_again(&mut self, pool: &mut Pool) -> bool {
        let Self { ring, bell, place } = self;
        if !place.enter() {
            return false;
        }
        let started = place.shared.rx_ring(place.number, bell.as_ref()).and_then(|fresh| {
            let old = Box::new(std::mem::replace(ring, fresh));
            place.before = sum(place.before, old.counters());
            old.close(pool);
            place.shared.enable_rx(place.number)
        });
        place.judge(&started);
        true
    }
}

impl<R: Registers> RxQueue for Rx<R> {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.place.is_past() && !self.start_again(pool) {
            return 0;
        }
        self.ring.rx(pool, batch)
    }

    fn arm(&mut self) -> bool {
        // A ring that is to be made anew wakes nobody.
        !self.place.is_past() && self.ring.arm()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(AsFd::as_fd)
    }

    fn counters(&self) -> QueueCounters {
        sum(self.place.before, self.ring.counters())
    }

    fn close(self: Box<Self>, pool: &mut Pool) {
        Box::new(self.ring).close(pool);
    }
}

/// A transmitting queue.
#[derive(Debug)]
pub(super) struct Tx<R> {
    ring: TxRing<R>,
    place: Place<R>,
}

impl<R: Registers> Tx<R> {
    /// Makes a queue, and switches it on.
    pub(super) fn start(shared: &Arc<Shared<R>>, number: u32) -> Result<Self, NicError> {
        let ring = shared.tx_ring(number)?;
        shared.enable_tx(number)?;
        Ok(Self { ring, place: Place::new(shared, number) })
    }

    /// False when that must wait.
    #[cold]
    fn start_again(&mut self, pool: &mut Pool) -> bool {
        let Self { ring, place } = self;
        if !place.enter() {
            return false;
        }
        let started = place.shared.tx_ring(place.number).and_then(|fresh| {
            let old = Box::new(std::mem::replace(ring, fresh));
            place.before = sum(place.before, old.counters());
            place.before.errors += old.in_flight() as u64;
            old.close(pool);
            place.shared.enable_tx(place.number)
        });
        place.judge(&started);
        true
    }
}

impl<R: Registers> TxQueue for Tx<R> {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.place.is_past() && !self.start_again(pool) {
            return 0;
        }
        self.ring.tx(pool, batch)
    }

    fn flush(&mut self, pool: &mut Pool) {
        if self.place.is_past() && !self.start_again(pool) {
            return;
        }
        self.ring.flush(pool);
    }

    fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    fn counters(&self) -> QueueCounters {
        sum(self.place.before, self.ring.counters())
    }

    fn close(self: Box<Self>, pool: &mut Pool) {
        Box::new(self.ring).close(pool);
    }
}
