//! The program by which what user space has written becomes packets of the kernel's, as if they had just come in.

use std::os::fd::RawFd;

use super::{MD_DATA, MD_DATA_END, XDP_DROP, XDP_PASS};
use crate::ebpf::{AssembleError, Assembler, Condition, Helper, Operation, Program, Register, Width};

/// An XDP program for live runs (`BPF_F_TEST_XDP_LIVE_FRAMES`), which the kernel runs once for each packet that it has made: it
/// becomes the next of those that stand in a map, and is left to the kernel.
///
/// The map is an array with one value, which user space maps: a region for each queue, by [`Self::region`]. In it are, by their
/// offsets, how many packets of the run are made ([`Self::NEXT`], 64 bits, which user space sets to 0 before), the length of
/// each ([`Self::length`], 32 bits), and its bytes ([`Self::packet`]). The kernel is given [`Self::MADE`] bytes to make packets with, the
/// first four of which say which region it is, as the machine writes numbers: so those of several queues may run at once. (A run's
/// context does not say it: the kernel has a queue of its own for live frames, whose number is 0.)
#[derive(Clone, Copy, Debug)]
pub struct LiveFrames {
    /// The map, by its descriptor.
    pub map: RawFd,
    /// How many regions it has.
    pub queues: u32,
}

impl LiveFrames {
    /// Packets of one run, at most.
    pub const MOST: usize = 1 << MOST_SHIFT;
    /// Bytes that a packet has at most. It has at least those of an Ethernet header.
    pub const LONGEST: usize = 1 << LONGEST_SHIFT;
    /// Bytes that the kernel shall make packets with. The program gives each its own.
    pub const MADE: usize = 64;
    /// Where in a region it stands how many of the run's packets are made.
    pub const NEXT: usize = 0;

    /// Where the region of this number begins.
    pub const fn region(place: usize) -> usize {
        place * REGION
    }

    /// Where in a region a packet's length stands.
    pub const fn length(packet: usize) -> usize {
        LENGTHS + packet * size_of::<u32>()
    }

    /// Where in a region a packet's bytes stand.
    pub const fn packet(packet: usize) -> usize {
        PACKETS + (packet << LONGEST_SHIFT)
    }

    /// The program. What it can't make it drops.
    ///
    /// # Errors
    /// None that is known: its jumps are short.
    pub fn program(&self) -> Result<Program, AssembleError> {
        const CONTEXT: Register = Register::R6;
        const STATE: Register = Register::R7;
        const PACKET: Register = Register::R8;
        const LENGTH: Register = Register::R9;
        let mut a = Assembler::new();
        let drop = a.label();
        a.mov(CONTEXT, Register::R1);
        a.load(Width::Word, Register::R2, CONTEXT, MD_DATA);
        a.load(Width::Word, Register::R3, CONTEXT, MD_DATA_END);
        a.mov(Register::R1, Register::R2);
        a.operate(Operation::Add, Register::R1, constant(size_of::<u32>()));
        a.jump_if(Register::R1, Condition::Greater, Register::R3, drop);
        a.load(Width::Word, Register::R1, Register::R2, 0);
        a.jump_if(Register::R1, Condition::GreaterOrEqual, constant(self.queues as usize), drop);
        a.operate(Operation::Multiply, Register::R1, constant(REGION));
        a.map_value(STATE, self.map, 0);
        a.operate(Operation::Add, STATE, Register::R1);
        a.load(Width::Double, PACKET, STATE, displacement(Self::NEXT));
        a.jump_if(PACKET, Condition::GreaterOrEqual, constant(Self::MOST), drop);
        a.mov(Register::R1, PACKET);
        a.operate(Operation::Add, Register::R1, 1);
        a.store(Width::Double, STATE, displacement(Self::NEXT), Register::R1);
        a.mov(Register::R1, PACKET);
        a.operate(Operation::ShiftLeft, Register::R1, constant(size_of::<u32>().ilog2() as usize));
        a.operate(Operation::Add, Register::R1, STATE);
        a.load(Width::Word, LENGTH, Register::R1, displacement(LENGTHS));
        // For the kernel's verifier: a call that copies copies something.
        a.jump_if(LENGTH, Condition::Equal, 0, drop);
        a.jump_if(LENGTH, Condition::Greater, constant(Self::LONGEST), drop);
        a.mov(Register::R1, CONTEXT);
        a.mov(Register::R2, LENGTH);
        a.operate(Operation::Subtract, Register::R2, constant(Self::MADE));
        a.call(Helper::AdjustTail);
        a.jump_if(Register::R0, Condition::NotEqual, 0, drop);
        a.mov(Register::R1, CONTEXT);
        a.mov(Register::R2, 0);
        a.mov(Register::R3, PACKET);
        a.operate(Operation::ShiftLeft, Register::R3, constant(LONGEST_SHIFT));
        a.operate(Operation::Add, Register::R3, STATE);
        a.operate(Operation::Add, Register::R3, constant(PACKETS));
        a.mov(Register::R4, LENGTH);
        a.call(Helper::XdpStoreBytes);
        a.jump_if(Register::R0, Condition::NotEqual, 0, drop);
        a.mov(Register::R0, XDP_PASS);
        a.exit();
        a.place(drop);
        a.mov(Register::R0, XDP_DROP);
        a.exit();
        a.finish()
    }
}

const MOST_SHIFT: usize = 6;
const LONGEST_SHIFT: usize = 11;

/// Where in a region lengths and packets begin: each on cache lines of its own.
const LENGTHS: usize = 64;
const PACKETS: usize = LENGTHS + LiveFrames::MOST * size_of::<u32>();
const REGION: usize = PACKETS + (LiveFrames::MOST << LONGEST_SHIFT);

/// Sizes of regions and counts of queues, which are small.
fn constant(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn displacement(offset: usize) -> i16 {
    i16::try_from(offset).unwrap_or(i16::MAX)
}
