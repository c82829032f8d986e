//! The kernel's own `struct xdp_buff`, by which a program knows without a call whether a packet lies in several buffers.

use super::XDP_PASS;
use crate::ebpf::{Assembler, Btf, Operation, Program, Register, Width};

/// How programs see in the kernel's own `struct xdp_buff` whether a packet lies in several buffers. What they are given says
/// nothing of that, and asking `bpf_xdp_get_buff_len` costs a call: where returns are guarded, twice as much as all else that a
/// rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpBuff {
    /// The number of `bpf_cast_to_kern_ctx`, which Linux has had since 6.2.
    cast: i32,
    /// Where `flags` stands.
    flags_at: i16,
    /// `XDP_FLAGS_HAS_FRAGS`.
    has_frags: i32,
}

impl XdpBuff {
    /// By what a kernel says of its types (`/sys/kernel/btf/vmlinux`); `None` where it says nothing of these.
    pub fn new(btf: &[u8]) -> Option<Self> {
        let btf = Btf::new(btf)?;
        Some(Self {
            cast: btf.function("bpf_cast_to_kern_ctx")?,
            flags_at: btf.member("xdp_buff", "flags")?,
            has_frags: btf.enumerator("XDP_FLAGS_HAS_FRAGS")?,
        })
    }

    /// A program that looks there and passes everything. A kernel that refuses it refuses all that do so: it wants
    /// `CAP_PERFMON`, for one.
    pub fn trial_program(self) -> Program {
        let mut assembler = Assembler::new();
        self.load_has_frags(&mut assembler);
        assembler.mov(Register::R0, XDP_PASS);
        assembler.exit();
        assembler.finish_without_jumps()
    }

    /// With the context in r1: r0 is not 0 when the packet lies in several buffers. Uses r0 to r5.
    pub(crate) fn load_has_frags(self, assembler: &mut Assembler) {
        assembler.call_kernel(self.cast);
        assembler.load(Width::Word, Register::R0, Register::R0, self.flags_at);
        assembler.operate(Operation::And, Register::R0, self.has_frags);
    }
}
