//! How far apart frames should lie, which decided `FRAME_SIZE`: the time to swap the MAC addresses of packets in
//! rotation, by stride, headroom, number of frames and kind of page.
//!
//! Nothing but the addresses of the headers differs between two rows. What they show is the first-level cache: with a
//! stride that is a multiple of 4096, all headers fall into one of its sets, and with 2048 into two.
#![expect(clippy::print_stdout, reason = "the table is what it is for")]

use std::hint::black_box;
use std::time::Instant;

use bywash_frame::PAGE;
use bywash_sys::memory::{self, HugePages, MemoryError};

const STRIDES: [usize; 5] = [2048, 2304, 2368, 4096, 4160];
const FRAMES: [usize; 3] = [64, 1024, 8192];
const HEADROOMS: [usize; 3] = [0, 128, 256];

/// Packets of one measurement, at least: a few hundredths of a second.
const PACKETS: usize = 1 << 21;

/// Measurements of each kind; the best one counts, since all that can disturb makes it longer.
const ROUNDS: usize = 7;

/// Where a frame lies: none across a boundary of [`PAGE`], as in an arena.
fn offset(index: usize, stride: usize) -> usize {
    let in_page = PAGE / stride;
    index / in_page * PAGE + index % in_page * stride
}

/// Nanoseconds per packet.
fn measure(memory: &mut [u8], stride: usize, headroom: usize, frames: usize) -> f64 {
    let offsets: Vec<usize> = (0..frames).map(|index| offset(index, stride) + headroom).collect();
    let turns = PACKETS.div_ceil(frames);
    let best = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        for _ in 0..turns {
            for &at in black_box(&offsets) {
                let (destination, source) = memory[at..at + 12].split_at_mut(6);
                destination.swap_with_slice(source);
            }
        }
        start.elapsed().as_secs_f64() * 1e9 / (turns * frames) as f64
    });
    best.fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), MemoryError> {
    let widest =
        STRIDES.map(|stride| offset(FRAMES[FRAMES.len() - 1], stride)).into_iter().max().unwrap_or(0);
    let head: String = FRAMES.iter().map(|frames| format!(" {frames} frames |")).collect();
    println!("| pages | headroom | stride |{head}\n|---|---:|---:|{}", "---:|".repeat(FRAMES.len()));
    for (name, pages) in [("2 MiB", HugePages::Require), ("4 KiB", HugePages::Off)] {
        let mut memory = memory::allocate(widest + PAGE, pages, None)?.memory;
        for headroom in HEADROOMS {
            for stride in STRIDES {
                let times = FRAMES.map(|frames| measure(memory.as_mut(), stride, headroom, frames));
                let cells: String = times.iter().map(|ns| format!(" {ns:.2} |")).collect();
                println!("| {name} | {headroom} | {stride} |{cells}");
            }
        }
    }
    Ok(())
}
