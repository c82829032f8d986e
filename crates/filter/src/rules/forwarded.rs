//! Whether a packet is one that the machine only passes on to another one, as its routes say.

use super::cookie::at;
use super::program::{CONTEXT_AT, Coder};
use crate::ebpf::{Condition, Helper, Label, Operation, Register, Width};
use crate::plain::{NETWORK, Plain};
use crate::walk::Family;
use crate::xdp::{DATA, MD_INGRESS_IFINDEX};

/// Bytes of `struct bpf_fib_lookup`. Behind the destination there are results alone.
pub(super) const ROUTE: i16 = 64;

/// Offsets in it.
const PROTOCOL: i16 = 1;
const PORTS: i16 = 2;
const INTERFACE: i16 = 8;
const CLASS: i16 = 12;
const SOURCE: i16 = 16;
const DESTINATION: i16 = 32;

const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;

/// `BPF_FIB_LKUP_RET_NOT_FWDED`: the destination is this machine's, or for all on the link, or has no route; and
/// `BPF_FIB_LKUP_RET_FWD_DISABLED`: nothing is forwarded that comes in by this interface.
const STAYS_HERE: [i32; 2] = [4, 5];

/// `BPF_FIB_LKUP_RET_SUCCESS`: the neighbour is known that it is passed on to; and `BPF_FIB_LKUP_RET_NO_NEIGH`: it is not yet.
const PASSED_ON: [i32; 2] = [0, 7];

impl Coder<'_> {
    /// Goes to `forwarded` when the packet may be for another machine. What routes are asked is on the stack, from `place` on.
    pub(super) fn unless_forwarded(&mut self, plain: Plain, place: i16, forwarded: Label) {
        self.unless_route_says(&STAYS_HERE, plain, place, forwarded);
    }

    /// Goes to `other` unless the packet is for another machine, to which this one passes it on. The same stack.
    pub(super) fn unless_passed_on(&mut self, plain: Plain, place: i16, other: Label) {
        self.unless_route_says(&PASSED_ON, plain, place, other);
    }

    /// Goes to `other` unless routes, asked for the packet, answer one of these.
    fn unless_route_says(&mut self, answers: &[i32], plain: Plain, place: i16, other: Label) {
        let found = self.assembler.label();
        for double in (0..ROUTE).step_by(8) {
            self.assembler.store(Width::Double, Register::R10, place + double, 0);
        }
        let (ip, tcp) = (at(NETWORK), at(plain.transport()));
        let (family, addresses, len) = match plain.family {
            Family::V4 => (AF_INET, ip + 12, 4),
            Family::V6 => (AF_INET6, ip + 8, 16),
        };
        self.assembler.store(Width::Byte, Register::R10, place, family);
        self.assembler.store(Width::Byte, Register::R10, place + PROTOCOL, i32::from(plain.protocol));
        // Rules of routing may ask for all of it.
        let mut pieces = vec![(Width::Half, tcp, PORTS), (Width::Half, tcp + 2, PORTS + 2)];
        for word in (0..len).step_by(4) {
            pieces.push((Width::Word, addresses + word, SOURCE + word));
            pieces.push((Width::Word, addresses + len + word, DESTINATION + word));
        }
        for (width, from, to) in pieces {
            self.assembler.load(width, Register::R1, DATA, from);
            self.assembler.store(width, Register::R10, place + to, Register::R1);
        }
        let (width, from, mask) = match plain.family {
            Family::V4 => (Width::Byte, ip + 1, 0xff),
            Family::V6 => (Width::Word, ip, 0x0fff_ffff_u32.to_be()),
        };
        self.assembler.load(width, Register::R1, DATA, from);
        self.assembler.operate32(Operation::And, Register::R1, mask);
        self.assembler.store(width, Register::R10, place + CLASS, Register::R1);
        self.assembler.load(Width::Double, Register::R1, Register::R10, CONTEXT_AT);
        self.assembler.load(Width::Word, Register::R2, Register::R1, MD_INGRESS_IFINDEX);
        self.assembler.store(Width::Word, Register::R10, place + INTERFACE, Register::R2);
        self.assembler.mov(Register::R2, Register::R10);
        self.assembler.operate(Operation::Add, Register::R2, i32::from(place));
        self.assembler.mov(Register::R3, i32::from(ROUTE));
        self.assembler.mov(Register::R4, 0);
        self.assembler.call(Helper::FindRoute);
        for &answer in answers {
            self.assembler.jump_if(Register::R0, Condition::Equal, answer, found);
        }
        self.assembler.jump(other);
        self.assembler.place(found);
    }
}
