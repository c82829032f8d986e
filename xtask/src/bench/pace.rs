//! How quick the machine is just now: a virtual machine shares its cores with others, and what cpuinfo says of their clock
//! is not what they get. Two figures that no code of ours is part of, so that runs of different days can be compared.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Steps of which each needs the result of the one before.
const STEPS: u32 = 10_000_000;

/// Cache lines that go back and forth; many, so that several are under way at once, as with packets.
const LINES: usize = 1024;

/// How often each thread has them.
const ROUNDS: usize = 100;

/// A shift, an exclusive or and a multiplication, one after the other: five cycles of current processors.
fn step() -> Duration {
    let began = Instant::now();
    // Several of these are not one of another kind, as those of a linear generator are: no compiler finds a short cut.
    let last = (0..STEPS).fold(black_box(1_u64), |x, _| (x ^ x >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    black_box(last);
    began.elapsed()
}

/// The time of a step in nanoseconds, and of a cache line that another core has just changed until this one has changed
/// it, where many are asked for at once: of each the least disturbed of ten.
pub(super) fn measure() -> (f64, f64) {
    let step = (0..10).map(|_| step()).min().unwrap_or_default();
    (step.as_secs_f64() * 1e9 / f64::from(STEPS), line().as_secs_f64() * 1e9 / LINES as f64)
}

/// A line by itself: also without the one that processors fetch with it.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicUsize);

/// The quickest round in which all lines come over from the other thread.
fn line() -> Duration {
    let lines: Vec<Line> = std::iter::repeat_with(Line::default).take(LINES).collect();
    let turn = AtomicUsize::new(0);
    // Thread 0 has the even turns.
    let play = |me: usize| {
        let mut best = Duration::MAX;
        for round in 0..ROUNDS {
            let mine = 2 * round + me;
            while turn.load(Ordering::Acquire) != mine {
                // With one core, the other thread needs this one to play its turn.
                std::thread::yield_now();
            }
            let began = Instant::now();
            for Line(line) in &lines {
                line.store(line.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            if round > 0 {
                best = best.min(began.elapsed());
            }
            turn.store(mine + 1, Ordering::Release);
        }
        best
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(1));
        let ours = play(0);
        other.join().map_or(ours, |theirs| theirs.min(ours))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_five_cycles_and_a_line_longer_than_nothing() {
        let (step, line) = measure();
        // No processor has 8 GHz.
        assert!(step > 5.0 / 8.0 && step < 1000.0, "{step}");
        assert!(line > 0.0 && line < 1e6, "{line}");
    }
}
