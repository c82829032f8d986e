//! A queue of so many packets.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use bywash_apps::port::frame::{Batch, Packet, Pool};
use bywash_apps::port::{QueueCounters, RxQueue};

/// Bytes of each packet.
pub(crate) const LEN: usize = 1000;

/// A queue with packets that are told by their place, some of which come only when nothing more is to.
pub(crate) struct Ring {
    pub(crate) left: usize,
    pub(crate) at_the_end: usize,
    /// When all have come, that was all.
    pub(crate) ends: bool,
    pub(crate) received: u64,
    /// How long each look at it takes.
    pub(crate) pause: Duration,
}

impl Ring {
    pub(crate) fn new(left: usize, at_the_end: usize) -> Self {
        Self { left, at_the_end, ends: at_the_end == 0, received: 0, pause: Duration::ZERO }
    }
}

impl RxQueue for Ring {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        std::thread::sleep(self.pause);
        let n = self.left.min(batch.room());
        for _ in 0..n {
            let mut packet = Packet::new(pool.take().unwrap());
            packet.extend_from_slice(&[0; LEN]).unwrap();
            batch.push(packet);
        }
        self.left -= n;
        self.received += n as u64;
        n
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn has_ended(&self) -> bool {
        self.ends && self.left == 0
    }
    fn stop(&mut self) {
        self.left += std::mem::take(&mut self.at_the_end);
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters { packets: self.received, ..QueueCounters::default() }
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}
