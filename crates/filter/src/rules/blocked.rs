//! The part of the program that drops sources which a limit has blocked.

use std::num::NonZeroU32;

use super::prefix::mask32;
use super::program::{Coder, KEY6};
use crate::ebpf::{Condition, Operation, Register, Width};

impl Coder<'_> {
    /// Drops the packet when its source is blocked, which its first `v4` or `v6` bits tell. Else goes on; the packet is not
    /// read after that.
    pub(super) fn drop_blocked(&mut self, (slot, sample): (u32, Option<NonZeroU32>), bits4: u8, bits6: u8) {
        let [v4, v6, search, done] = [(); 4].map(|()| self.assembler.label());
        let take = self.exits.take;
        self.network(v4, v6, done);
        self.assembler.place(v4);
        self.check(34, take);
        self.assembler.load(Width::Word, Register::R1, self.header, 26);
        self.assembler.operate32(Operation::And, Register::R1, mask32(bits4).to_be());
        self.assembler.store(Width::Double, Register::R10, KEY6 + 8, 0);
        self.assembler.store(Width::Word, Register::R10, KEY6 + 8, Register::R1);
        self.assembler.store(Width::Double, Register::R10, KEY6 + 16, 0);
        self.assembler.store(Width::Word, Register::R10, KEY6 + 4, 32);
        self.assembler.jump(search);
        self.assembler.place(v6);
        self.check(54, take);
        self.masked6(22, bits6);
        self.assembler.store(Width::Word, Register::R10, KEY6 + 4, 128);
        self.assembler.place(search);
        self.assembler.store(Width::Word, Register::R10, KEY6, slot.cast_signed());
        self.lookup(KEY6, self.rules.sets.blocks);
        self.assembler.jump_if(Register::R0, Condition::Equal, 0, done);
        self.assembler.add_atomically(Register::R0, 1, Register::R1);
        self.end(slot, self.rules.hook.drops(), sample);
        self.assembler.place(done);
    }
}
