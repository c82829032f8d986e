//! Timers in O(1): a wheel of wheels, each slot a list of entries linked by their numbers.

use crate::Timestamp;

/// Nanoseconds in a tick, as a power of two: 65.5 us. Finer than any timer of TCP needs, and coarse enough that few
/// ticks are empty.
const TICK: u32 = 16;
/// Slots per level, as a power of two.
const SLOTS: u32 = 6;
/// Six levels of 64 slots reach 52 days ahead; what lies further is looked at again then.
const LEVELS: usize = 6;
/// How far a tick is shifted to count in slots of each level.
const SHIFTS: [u32; LEVELS] = [0, SLOTS, 2 * SLOTS, 3 * SLOTS, 4 * SLOTS, 5 * SLOTS];
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    previous: u32,
    /// The tick it is due; the slot follows from that and from when it was put in.
    due: u64,
    /// `level * 64 + slot`, or `IDLE`.
    slot: u16,
}

const IDLE: u16 = u16::MAX;
const VACANT: Node = Node { next: NONE, previous: NONE, due: 0, slot: IDLE };

/// One timer for each number, set or not.
#[derive(Debug)]
pub(crate) struct Wheel {
    nodes: Vec<Node>,
    heads: [[u32; 1 << SLOTS]; LEVELS],
    /// Which slots of a level hold something.
    occupied: [u64; LEVELS],
    /// Everything due before this tick has been handed out.
    tick: u64,
    set: usize,
}

impl Wheel {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            nodes: Vec::new(),
            heads: [[NONE; 1 << SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            tick: now.as_nanos() >> TICK,
            set: 0,
        }
    }

    /// Sets the timer of `number`, or sets it anew. It goes off at the end of the tick that `at` lies in, never early.
    #[inline]
    pub(crate) fn set(&mut self, number: u32, at: Timestamp) {
        self.clear(number);
        if self.nodes.len() <= number as usize {
            self.nodes.resize(number as usize + 1, VACANT);
        }
        self.nodes[number as usize].due = (at.as_nanos() >> TICK) + 1;
        self.link(number);
        self.set += 1;
    }

    /// Sets the timer of `number`, unless it goes off before anyway: who looks then whether it was meant need not stop it.
    #[inline]
    pub(crate) fn set_at_most(&mut self, number: u32, at: Timestamp) {
        let due = (at.as_nanos() >> TICK) + 1;
        if !self.nodes.get(number as usize).is_some_and(|node| node.slot != IDLE && node.due <= due) {
            self.set(number, at);
        }
    }

    /// Stops the timer of `number`.
    #[inline]
    fn clear(&mut self, number: u32) {
        if self.nodes.get(number as usize).is_some_and(|node| node.slot != IDLE) {
            self.unlink(number);
            self.set -= 1;
        }
    }

    /// Whether the timer of `number` is set.
    #[cfg(test)]
    pub(crate) fn is_set(&self, number: u32) -> bool {
        self.nodes.get(number as usize).is_some_and(|node| node.slot != IDLE)
    }

    /// Timers that are set.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.set
    }

    /// Whether a tick has ended since [`Wheel::advance`]: else nothing can be due.
    #[inline]
    pub(crate) fn turns(&self, now: Timestamp) -> bool {
        self.tick < now.as_nanos() >> TICK
    }

    /// Puts the numbers whose timers are due into `due`; they are then not set.
    pub(crate) fn advance(&mut self, now: Timestamp, due: &mut Vec<u32>) {
        let until = now.as_nanos() >> TICK;
        while self.tick < until {
            if self.set == 0 {
                self.tick = until;
                return;
            }
            self.tick = self.skip(until);
            self.cascade();
            self.expire(due);
        }
    }

    /// No timer goes off before this. When it is reached, one may go off later still.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        (self.set > 0).then(|| Timestamp::from_nanos(self.skip(u64::MAX >> TICK) << TICK))
    }

    /// The next tick after this one at which a slot is to be opened, at most `until`.
    fn skip(&self, until: u64) -> u64 {
        let mut best = until;
        for (level, occupied) in self.occupied.iter().enumerate() {
            if *occupied == 0 {
                continue;
            }
            let shift = SHIFTS[level];
            let here = self.tick >> shift;
            // Slots after the current one in this turn, else those of the next turn.
            let ahead = occupied.rotate_right(((here + 1) & 63) as u32).trailing_zeros();
            best = best.min((here + 1 + u64::from(ahead)) << shift);
        }
        best.max(self.tick + 1)
    }

    /// Moves the entries of coarser slots that begin now into finer ones.
    fn cascade(&mut self) {
        for (level, shift) in SHIFTS.into_iter().enumerate().skip(1) {
            if self.tick & ((1 << shift) - 1) != 0 {
                return;
            }
            let slot = (self.tick >> shift & 63) as usize;
            let mut number = std::mem::replace(&mut self.heads[level][slot], NONE);
            self.occupied[level] &= !(1 << slot);
            while number != NONE {
                let next = self.nodes[number as usize].next;
                self.link(number);
                number = next;
            }
        }
    }

    fn expire(&mut self, due: &mut Vec<u32>) {
        let slot = (self.tick & 63) as usize;
        let mut number = std::mem::replace(&mut self.heads[0][slot], NONE);
        self.occupied[0] &= !(1 << slot);
        while number != NONE {
            let node = std::mem::replace(&mut self.nodes[number as usize], VACANT);
            self.set -= 1;
            due.push(number);
            number = node.next;
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a level is below 6 and a slot below 64")]
    fn link(&mut self, number: u32) {
        let due = self.nodes[number as usize].due;
        // In `cascade`, what is due in this very tick goes into the slot that `expire` opens next.
        let ahead = due.saturating_sub(self.tick);
        let level =
            if ahead == 0 { 0 } else { ((63 - ahead.leading_zeros()) / SLOTS) as usize }.min(LEVELS - 1);
        let shift = SHIFTS[level];
        let farthest = (self.tick >> shift) + 63;
        let slot = ((due.max(self.tick) >> shift).min(farthest) & 63) as usize;
        let head = std::mem::replace(&mut self.heads[level][slot], number);
        if head != NONE {
            self.nodes[head as usize].previous = number;
        }
        let node = &mut self.nodes[number as usize];
        (node.next, node.previous, node.slot) = (head, NONE, (level << SLOTS | slot) as u16);
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, number: u32) {
        let node = std::mem::replace(&mut self.nodes[number as usize], VACANT);
        let (level, slot) = (usize::from(node.slot >> SLOTS), usize::from(node.slot & 63));
        if node.next != NONE {
            self.nodes[node.next as usize].previous = node.previous;
        }
        if node.previous == NONE {
            self.heads[level][slot] = node.next;
            if node.next == NONE {
                self.occupied[level] &= !(1 << slot);
            }
        } else {
            self.nodes[node.previous as usize].next = node.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a sorted map: nothing early, nothing later than two ticks, nothing lost, and no deadline too late.
        #[test]
        fn it_is_a_sorted_map(steps in proptest::collection::vec((0u32..20, 0u8..4, 0u32..40, any::<u64>()), 0..300)) {
            let mut now = Timestamp::from_nanos(123_456_789);
            let mut wheel = Wheel::new(now);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (number, action, magnitude, random) in steps {
                let far = Timestamp::from_nanos(now.as_nanos() + random % (1u64 << (magnitude + 8)));
                match action {
                    0 => {
                        wheel.set(number, far);
                        model.insert(number, far.as_nanos());
                    }
                    1 => {
                        wheel.clear(number);
                        model.remove(&number);
                    }
                    2 => {
                        wheel.set_at_most(number, far);
                        let at = model.entry(number).or_insert(u64::MAX);
                        *at = far.as_nanos().min(*at);
                    }
                    _ => {
                        now = far;
                        let mut due = Vec::new();
                        wheel.advance(now, &mut due);
                        for number in due {
                            let at = model.remove(&number).expect("set");
                            prop_assert!(at <= now.as_nanos(), "early");
                        }
                        prop_assert!(model.values().all(|at| *at + (2 << TICK) > now.as_nanos()), "late");
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                if let Some(first) = model.values().min() {
                    let deadline = wheel.next_deadline().expect("set").as_nanos();
                    prop_assert!(deadline <= first.max(&now.as_nanos()) + (2 << TICK));
                }
            }
        }
    }

    #[test]
    fn a_timer_beyond_the_last_level_waits_its_turn() {
        let mut wheel = Wheel::new(Timestamp::ZERO);
        let at = Timestamp::from_nanos(1 << 60);
        wheel.set(3, at);
        let mut due = Vec::new();
        wheel.advance(Timestamp::from_nanos((1 << 60) - (1 << 20)), &mut due);
        assert!(due.is_empty() && wheel.is_set(3));
        wheel.advance(Timestamp::from_nanos((1 << 60) + (1 << 20)), &mut due);
        assert_eq!(due, [3]);
    }
}
