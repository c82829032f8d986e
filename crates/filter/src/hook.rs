//! Where on an interface a program runs, and what the kernel calls things there.
//!
//! XDP sees packets before the kernel has made anything of them, TCX what it has made: there a tag may stand beside the
//! packet, only the first of its bytes may be where a program can read them, and several packets may have become one.

use crate::ebpf::{Assembler, Condition, Helper, Label, Operation, Register, Width};
use crate::xdp::{CONTEXT, DATA, DATA_END, LENGTH, MD_DATA, MD_DATA_END, XDP_DROP, XDP_PASS, XdpBuff};

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// In the driver, or first of all in the kernel's stack (`struct xdp_md`).
    Xdp,
    /// In the traffic control layer, as packets come in (`struct __sk_buff`).
    Tcx,
}

/// `TCX_NEXT` of `linux/bpf.h`: the next program decides, and in the end the kernel.
pub const TCX_NEXT: i32 = -1;
/// `TCX_DROP`: the packet is gone.
pub const TCX_DROP: i32 = 2;

/// Offsets in `struct __sk_buff` of `linux/bpf.h`.
pub(crate) const SKB_LEN: i16 = 0;
pub(crate) const SKB_VLAN_PRESENT: i16 = 20;
const SKB_DATA: i16 = 76;
const SKB_DATA_END: i16 = 80;

/// Bytes of a VLAN tag: two to the power of this.
const TAG_SHIFT: i32 = 2;

/// The tag that stands beside a packet meanwhile; nobody sees it.
const ANY_TAG: u16 = 0;
const TAG_PROTOCOL: u16 = 0x8100;

impl Hook {
    /// Its name: `XDP` or `TCX`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "XDP",
            Self::Tcx => "TCX",
        }
    }

    /// What a program returns for a packet that is gone.
    pub fn drops(self) -> i32 {
        match self {
            Self::Xdp => XDP_DROP,
            Self::Tcx => TCX_DROP,
        }
    }

    /// What a program returns for a packet that is the kernel's.
    pub fn passes(self) -> i32 {
        match self {
            Self::Xdp => XDP_PASS,
            Self::Tcx => TCX_NEXT,
        }
    }

    /// A program's first instructions: the context, and the packet's length on the wire, also before its tag is where it was.
    /// At XDP they say where the packet lies, too.
    pub(crate) fn begin(self, assembler: &mut Assembler, buff: Option<XdpBuff>) {
        assembler.mov(CONTEXT, Register::R1);
        match self {
            Self::Xdp => {
                let known = assembler.label();
                if let Some(buff) = buff {
                    buff.load_has_frags(assembler);
                }
                self.find_packet(assembler);
                if buff.is_some() {
                    assembler.mov(LENGTH, DATA_END);
                    assembler.operate(Operation::Subtract, LENGTH, DATA);
                    assembler.jump_if(Register::R0, Condition::Equal, 0, known);
                    assembler.mov(Register::R1, CONTEXT);
                }
                assembler.call(Helper::XdpLength);
                assembler.mov(LENGTH, Register::R0);
                assembler.place(known);
            }
            Self::Tcx => {
                assembler.load(Width::Word, LENGTH, CONTEXT, SKB_LEN);
                assembler.load(Width::Word, Register::R1, CONTEXT, SKB_VLAN_PRESENT);
                assembler.operate(Operation::ShiftLeft, Register::R1, TAG_SHIFT);
                assembler.operate(Operation::Add, LENGTH, Register::R1);
            }
        }
    }

    /// Sets the registers that say where the packet lies.
    pub(crate) fn find_packet(self, assembler: &mut Assembler) {
        let (data, data_end) = match self {
            Self::Xdp => (MD_DATA, MD_DATA_END),
            Self::Tcx => (SKB_DATA, SKB_DATA_END),
        };
        assembler.load(Width::Word, DATA, CONTEXT, data);
        assembler.load(Width::Word, DATA_END, CONTEXT, data_end);
    }
}

/// At TCX: puts the tag that the kernel has taken off back to where expressions look for it, and another one in its place,
/// by which [`take_tag_off`] knows such packets. The packet is as it was when it goes to `failed`.
pub(crate) fn put_tag_back(assembler: &mut Assembler, failed: Label) {
    let untagged = assembler.label();
    assembler.load(Width::Word, Register::R1, CONTEXT, SKB_VLAN_PRESENT);
    assembler.jump_if(Register::R1, Condition::Equal, 0, untagged);
    assembler.mov(Register::R1, CONTEXT);
    assembler.mov(Register::R2, i32::from(TAG_PROTOCOL.to_be()));
    assembler.mov(Register::R3, i32::from(ANY_TAG));
    assembler.call(Helper::PushVlan);
    assembler.jump_if(Register::R0, Condition::NotEqual, 0, failed);
    assembler.place(untagged);
}

/// At TCX: undoes [`put_tag_back`]. Uses r0 to r5.
pub(crate) fn take_tag_off(assembler: &mut Assembler) {
    let untagged = assembler.label();
    assembler.load(Width::Word, Register::R1, CONTEXT, SKB_VLAN_PRESENT);
    assembler.jump_if(Register::R1, Condition::Equal, 0, untagged);
    assembler.mov(Register::R1, CONTEXT);
    assembler.call(Helper::PopVlan);
    assembler.place(untagged);
}

/// At TCX: goes on when the program can read the first `bytes` of the packet, or all of it. Uses r1.
pub(crate) fn unless_in_front(assembler: &mut Assembler, bytes: u32, otherwise: Label) {
    let there = assembler.label();
    assembler.mov(Register::R1, DATA);
    assembler.operate(Operation::Add, Register::R1, bytes);
    assembler.jump_if(Register::R1, Condition::LessOrEqual, DATA_END, there);
    assembler.mov(Register::R1, DATA);
    assembler.operate(Operation::Add, Register::R1, LENGTH);
    assembler.jump_if(Register::R1, Condition::Greater, DATA_END, otherwise);
    assembler.place(there);
}

/// At TCX: has the first `bytes` of the packet, or all of it, brought to where the program can read them, which changes none
/// of them, and says where the packet lies then. r0 is 0 when that was done. Uses r0 to r5.
pub(crate) fn bring_to_front(assembler: &mut Assembler, bytes: u32) {
    let few = assembler.label();
    let bytes = bytes.cast_signed();
    assembler.mov(Register::R2, LENGTH);
    assembler.jump_if(Register::R2, Condition::LessOrEqual, bytes, few);
    assembler.mov(Register::R2, bytes);
    assembler.place(few);
    assembler.mov(Register::R1, CONTEXT);
    assembler.call(Helper::PullData);
    Hook::Tcx.find_packet(assembler);
}
