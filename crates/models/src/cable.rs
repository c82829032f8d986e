//! A cable between two NICs that can delay, lose, reorder and corrupt frames: by the numbers of a seed, so that a run can be
//! repeated.

use std::collections::VecDeque;

/// What a cable does to frames. Chances are in a thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Time a frame is under way, in microseconds.
    pub delay_us: u64,
    /// How many of a thousand frames are lost.
    pub loss: u32,
    /// How many of a thousand frames are held back by [`Impairment::hold_us`] more, so that others overtake them.
    pub reorder: u32,
    /// How long such a frame is held back, in microseconds.
    pub hold_us: u64,
    /// How many of a thousand frames have a bit changed, so that their check sequence is wrong.
    pub corrupt: u32,
    /// Where the numbers that decide begin.
    pub seed: u64,
}

/// A frame that comes out of a cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its bytes, without the check sequence.
    pub frame: Vec<u8>,
    /// Whether the check sequence would be right.
    pub check_good: bool,
}

/// One direction of a cable.
#[derive(Clone, Debug)]
pub struct Cable {
    impairment: Impairment,
    state: u64,
    /// With the time at which each arrives: by that, then by the order they were sent in.
    under_way: VecDeque<(u64, Arrival)>,
}

impl Cable {
    /// A cable.
    pub fn new(impairment: Impairment) -> Self {
        // Any seed but zero, which the generator would never leave.
        Self { impairment, state: impairment.seed | 1 << 63, under_way: VecDeque::new() }
    }

    /// A frame goes in at time `now`, in microseconds.
    pub fn send(&mut self, frame: Vec<u8>, now: u64) {
        if self.happens(self.impairment.loss) {
            return;
        }
        let held = self.happens(self.impairment.reorder);
        let mut arrival = Arrival { frame, check_good: true };
        if self.happens(self.impairment.corrupt) && !arrival.frame.is_empty() {
            let bit = usize::try_from(self.next() >> 32).unwrap_or(0) % (arrival.frame.len() * 8);
            arrival.frame[bit / 8] ^= 1 << (bit % 8);
            arrival.check_good = false;
        }
        let at = now + self.impairment.delay_us + if held { self.impairment.hold_us } else { 0 };
        // All but what overtakes goes to the end.
        match self.under_way.back() {
            Some((last, _)) if *last > at => {
                let place = self.under_way.partition_point(|(other, _)| *other <= at);
                self.under_way.insert(place, (at, arrival));
            }
            _ => self.under_way.push_back((at, arrival)),
        }
    }

    /// The next frame that has arrived by `now`.
    pub fn receive(&mut self, now: u64) -> Option<Arrival> {
        self.under_way.front().filter(|(at, _)| *at <= now)?;
        self.under_way.pop_front().map(|(_, arrival)| arrival)
    }

    fn happens(&mut self, in_a_thousand: u32) -> bool {
        in_a_thousand != 0 && self.next() >> 32 < (u64::from(in_a_thousand) << 32) / 1000
    }

    /// The next number (xorshift64*).
    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(impairment: Impairment) -> Vec<Arrival> {
        let mut cable = Cable::new(impairment);
        (0..1000_u16).for_each(|i| cable.send(i.to_be_bytes().into(), u64::from(i)));
        std::iter::from_fn(|| cable.receive(10_000)).collect()
    }

    #[test]
    fn a_good_cable_only_takes_time() {
        let mut cable = Cable::new(Impairment { delay_us: 5, ..Impairment::default() });
        cable.send(b"a".into(), 10);
        cable.send(b"b".into(), 10);
        assert_eq!(cable.receive(14), None);
        assert_eq!(cable.receive(15).unwrap().frame, b"a");
        assert_eq!(cable.receive(15).unwrap().frame, b"b");
    }

    #[test]
    fn a_bad_cable_is_bad_in_the_same_way_each_time() {
        let bad = Impairment { loss: 100, reorder: 100, hold_us: 50, corrupt: 100, seed: 7, delay_us: 0 };
        let frames = run(bad);
        assert_eq!(frames, run(bad));
        assert_ne!(frames, run(Impairment { seed: 8, ..bad }));
        assert!((850..950).contains(&frames.len()), "{}", frames.len());
        let corrupt = frames.iter().filter(|arrival| !arrival.check_good).count();
        assert!((50..150).contains(&corrupt), "{corrupt}");
        let good: Vec<_> =
            frames.iter().filter(|arrival| arrival.check_good).map(|arrival| &arrival.frame).collect();
        assert!(!good.is_sorted());
    }
}
