//! A network with delay, loss, reordering, duplication, corruption and a bottleneck, the same in every run of a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use bywash_stack::Timestamp;

use super::{Node, PORT};

/// What the network does to packets, in both directions. Chances are in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) delay: Duration,
    pub(crate) loss: u32,
    pub(crate) reorder: u32,
    pub(crate) duplicate: u32,
    pub(crate) corrupt: u32,
    /// Bytes each second, and bytes that may wait; none: no bottleneck.
    pub(crate) bottleneck: Option<(u64, u64)>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(5),
            loss: 0,
            reorder: 0,
            duplicate: 0,
            corrupt: 0,
            bottleneck: None,
        }
    }
}

/// A packet on its way: when it arrives, which one it was, whether it goes to b, its bytes.
type Flying = Reverse<(Timestamp, u64, bool, Vec<u8>)>;

/// Two hosts and what is between them.
pub(crate) struct Network {
    pub(crate) now: Timestamp,
    pub(crate) a: Node,
    pub(crate) b: Node,
    faults: Faults,
    flying: BinaryHeap<Flying>,
    random: u64,
    count: u64,
    /// When the bottleneck is free again, each way.
    busy: [Timestamp; 2],
    /// When the programs do something again by themselves.
    pub(crate) wake: Option<Timestamp>,
}

impl Network {
    pub(crate) fn new(a: Node, b: Node, faults: Faults, seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let now = Timestamp::from_nanos(1_000_000_000);
        Self { now, a, b, faults, flying: BinaryHeap::new(), random, count: 0, busy: [now; 2], wake: None }
    }

    /// Lets everything happen that happens before `limit` from now; stops when `done` says so, after each event.
    pub(crate) fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        for _ in 0..5_000_000 {
            self.exchange();
            if done(self) {
                return true;
            }
            self.exchange();
            let arrival = self.flying.peek().map(|Reverse((at, ..))| *at);
            let deadlines = [self.a.host.next_deadline(), self.b.host.next_deadline(), arrival, self.wake];
            let Some(next) = deadlines.into_iter().flatten().min() else { return false };
            // A deadline in the past would stand still.
            self.now = next.max(self.now + Duration::from_nanos(1));
            if self.now > end {
                return false;
            }
            while self.flying.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                let Some(Reverse((_, _, to_b, bytes))) = self.flying.pop() else { break };
                let to = if to_b { &mut self.b } else { &mut self.a };
                to.put(self.now, PORT, &bytes);
            }
        }
        panic!("too many events");
    }

    pub(crate) fn is_anything_flying(&self) -> bool {
        !self.flying.is_empty()
    }

    fn exchange(&mut self) {
        for (to_b, packets) in [(true, self.a.take(self.now, PORT)), (false, self.b.take(self.now, PORT))] {
            for bytes in packets {
                self.launch(to_b, bytes);
            }
        }
    }

    fn chance(&mut self, thousandths: u32) -> bool {
        self.next() % 1000 < u64::from(thousandths)
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 16
    }

    fn launch(&mut self, to_b: bool, mut bytes: Vec<u8>) {
        if self.chance(self.faults.loss) {
            return;
        }
        let mut start = self.now;
        if let Some((rate, room)) = self.faults.bottleneck {
            let free = &mut self.busy[usize::from(to_b)];
            let queued = free.since(self.now).as_nanos() * u128::from(rate) / 1_000_000_000;
            if queued + bytes.len() as u128 > u128::from(room) {
                return;
            }
            *free = (*free).max(self.now) + Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / rate);
            start = *free;
        }
        if self.chance(self.faults.corrupt) {
            let at = usize::try_from(self.next()).unwrap() % bytes.len();
            bytes[at] ^= 1 << (self.next() % 8);
        }
        let copies = 1 + u32::from(self.chance(self.faults.duplicate));
        for _ in 0..copies {
            let mut at = start + self.faults.delay;
            if self.chance(self.faults.reorder) {
                let most = u64::try_from(self.faults.delay.as_nanos()).unwrap().max(1);
                at = at + Duration::from_nanos(self.next() % most);
            }
            self.count += 1;
            self.flying.push(Reverse((at, self.count, to_b, bytes.clone())));
        }
    }
}
