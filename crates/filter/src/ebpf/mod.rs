//! A small assembler for eBPF programs: typed instructions, labels, and text for the eye.
//!
//! Only what the programs of this crate need, and each operand checked when the program is finished, so that what comes
//! out is a program that the kernel's verifier at least can read. The instruction set is RFC 9669's.

mod beside;
mod btf;
mod code;
mod instruction;
mod jumps;
mod text;
mod walk;

pub(crate) use beside::{AROUND_TAG, copy_tag};
pub(crate) use btf::Btf;
pub(crate) use code::{Bases, filter};
pub use instruction::{Condition, Instruction, Operand, Operation, Register, Width};

/// A finished program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    instructions: Vec<Instruction>,
}

/// A place in a program that is jumped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Builds a program.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// Where each label is, once it is placed.
    labels: Vec<Option<usize>>,
    /// Jumps, and the labels they lead to.
    jumps: Vec<(usize, Label)>,
}

/// Why a program can't be finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// A jump would have to be longer than its 16 bits allow.
    #[error(
        "the program is too long: a jump at instruction {at} would skip {distance}, at most 32767 can be skipped"
    )]
    TooFar {
        /// The jump.
        at: usize,
        /// How many instructions lie between.
        distance: i64,
    },
    /// Expressions need more of the stack than a program has.
    #[error("an expression is nested too deeply for the kernel: {bytes} bytes of stack, at most {most}")]
    TooDeep {
        /// What it needs.
        bytes: usize,
        /// What there is.
        most: usize,
    },
    /// A jump to a label that was never placed.
    #[error("the jump at instruction {at} leads nowhere")]
    Unplaced {
        /// The jump.
        at: usize,
    },
}

/// Functions of the kernel that programs call, by their numbers in `linux/bpf.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `bpf_map_lookup_elem(map, key)`.
    MapLookup = 1,
    /// `bpf_ktime_get_ns()`: `CLOCK_MONOTONIC`.
    Monotonic = 5,
    /// `bpf_get_prandom_u32()`.
    Random = 7,
    /// `bpf_skb_vlan_push(context, protocol, tag)`.
    PushVlan = 18,
    /// `bpf_skb_vlan_pop(context)`.
    PopVlan = 19,
    /// `bpf_redirect(interface, flags)`.
    Redirect = 23,
    /// `bpf_skb_load_bytes(context, offset, to, length)`.
    LoadBytes = 26,
    /// `bpf_csum_diff(from, from_size, to, to_size, seed)`: a sum of 32 bits, not folded.
    ChecksumDifference = 28,
    /// `bpf_skb_pull_data(context, length)`: so many bytes then lie where the context says.
    PullData = 39,
    /// `bpf_redirect_map(map, key, flags)`.
    RedirectMap = 51,
    /// `bpf_xdp_adjust_tail(context, difference)`.
    AdjustTail = 65,
    /// `bpf_fib_lookup(context, parameters, size, flags)`: what becomes of a packet by the routes; negative for an error.
    FindRoute = 69,
    /// `bpf_sk_release(socket)`.
    ReleaseSocket = 86,
    /// `bpf_skc_lookup_tcp(context, addresses, size, namespace, flags)`.
    FindTcpSocket = 99,
    /// `bpf_tcp_check_syncookie(socket, ip, ip_size, tcp, tcp_size)`: 0 for an ACK with a cookie.
    CheckSynCookie = 100,
    /// `bpf_tcp_gen_syncookie(socket, ip, ip_size, tcp, tcp_size)`: the cookie, the MSS above it.
    MakeSynCookie = 110,
    /// `bpf_jiffies64()`.
    Jiffies = 118,
    /// `bpf_ringbuf_reserve(map, size, flags)`: room for a record, or 0.
    RingReserve = 131,
    /// `bpf_ringbuf_submit(record, flags)`: its reader may have it.
    RingSubmit = 132,
    /// `bpf_ktime_get_coarse_ns()`: `CLOCK_MONOTONIC_COARSE`.
    MonotonicCoarse = 160,
    /// `bpf_xdp_get_buff_len(context)`.
    XdpLength = 188,
    /// `bpf_xdp_load_bytes(context, offset, to, length)`.
    XdpLoadBytes = 189,
    /// `bpf_xdp_store_bytes(context, offset, from, length)`.
    XdpStoreBytes = 190,
    /// `bpf_tcp_raw_gen_syncookie_ipv4(ip, tcp, tcp_size)`: the cookie, the MSS above it.
    MakeRawSynCookie4 = 204,
    /// `bpf_tcp_raw_gen_syncookie_ipv6(ip, tcp, tcp_size)`: the same.
    MakeRawSynCookie6 = 205,
}

impl Assembler {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many instructions there are so far.
    pub(crate) fn here(&self) -> usize {
        self.instructions.len()
    }

    /// A label, to be placed later or now.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label before the next instruction.
    pub fn place(&mut self, label: Label) {
        let here = self.here();
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(here);
        }
    }

    /// `to = from`.
    pub fn mov(&mut self, to: Register, from: impl Into<Operand>) {
        self.push(Instruction::operation(Operation::Move, to, from.into(), true));
    }

    /// `to = to OPERATION with`, of 64 bits.
    pub fn operate(&mut self, operation: Operation, to: Register, with: impl Into<Operand>) {
        self.push(Instruction::operation(operation, to, with.into(), true));
    }

    /// `to = to OPERATION with`, of the lower 32 bits; the upper ones become 0.
    pub fn operate32(&mut self, operation: Operation, to: Register, with: impl Into<Operand>) {
        self.push(Instruction::operation(operation, to, with.into(), false));
    }

    /// Turns the lowest bytes of a register from network byte order to the machine's, or back: it is the same. The
    /// others become 0.
    pub fn from_network_order(&mut self, register: Register, width: Width) {
        self.push(Instruction::from_network_order(register, width));
    }

    /// `to = *(from + offset)`; the upper bytes become 0.
    pub fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.push(Instruction::load(width, to, from, offset));
    }

    /// `*(to + offset) = from`.
    pub fn store(&mut self, width: Width, to: Register, offset: i16, from: impl Into<Operand>) {
        self.push(Instruction::store(width, to, offset, from.into()));
    }

    /// `*to += number`, of eight bytes, so that no addition of another CPU is lost. `by` has the number after that.
    pub fn add_atomically(&mut self, to: Register, number: i32, by: Register) {
        self.mov(by, number);
        self.push(Instruction::add_atomically(to, by));
    }

    /// `to = ` the map behind a file descriptor. Takes the place of two instructions.
    pub fn map(&mut self, to: Register, descriptor: i32) {
        let [first, second] = Instruction::map(to, descriptor);
        self.push(first);
        self.push(second);
    }

    /// `to = ` the address of the only value of the array behind a file descriptor, plus an offset: no call is needed to
    /// look it up. Takes the place of two instructions.
    pub fn map_value(&mut self, to: Register, descriptor: i32, offset: u32) {
        let [first, second] = Instruction::map_value(to, descriptor, offset);
        self.push(first);
        self.push(second);
    }

    /// `to = number`. Takes the place of two instructions.
    pub fn number(&mut self, to: Register, number: u64) {
        let [first, second] = Instruction::number(to, number);
        self.push(first);
        self.push(second);
    }

    /// Jumps.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(Instruction::jump());
    }

    /// Jumps when `left CONDITION right`, of 64 bits, without sign.
    pub fn jump_if(&mut self, left: Register, condition: Condition, right: impl Into<Operand>, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(Instruction::jump_if(left, condition, right.into(), true));
    }

    /// Jumps when `left CONDITION right`, of the lower 32 bits, without sign.
    pub fn jump_if32(&mut self, left: Register, condition: Condition, right: impl Into<Operand>, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(Instruction::jump_if(left, condition, right.into(), false));
    }

    /// Calls a function of the kernel: arguments in r1 to r5, which are lost, and the result in r0.
    pub fn call(&mut self, helper: Helper) {
        self.push(Instruction::call(helper as i32));
    }

    /// Calls a function of the kernel that has no other number than the one in this kernel's BTF.
    pub fn call_kernel(&mut self, function: i32) {
        self.push(Instruction::call_kernel(function));
    }

    /// Ends the program with r0 as its result.
    pub fn exit(&mut self) {
        self.push(Instruction::exit());
    }

    /// The program, with its jumps filled in. What can't be reached is left out: the verifier refuses programs with such
    /// instructions. So are jumps that a program can do without.
    ///
    /// # Errors
    /// [`AssembleError::TooFar`] for a program that is too long; [`AssembleError::Unplaced`] for a forgotten label.
    pub fn finish(mut self) -> Result<Program, AssembleError> {
        let mut goals = vec![None; self.instructions.len()];
        for (at, label) in &self.jumps {
            let place = self.labels.get(label.0).copied().flatten();
            goals[*at] = Some(place.ok_or(AssembleError::Unplaced { at: *at })?);
        }
        let is_left = jumps::shorten(&mut self.instructions, &mut goals);
        // Where each instruction comes to stand, and one place more for labels at the end.
        let mut place = vec![0];
        for is_left in &is_left {
            place.push(place[place.len() - 1] + i64::from(*is_left));
        }
        let mut instructions = Vec::new();
        for (index, instruction) in
            self.instructions.into_iter().enumerate().filter(|(index, _)| is_left[*index])
        {
            let mut instruction = instruction;
            if let Some(goal) = goals[index] {
                let distance = place[goal] - place[index] - 1;
                let at = instructions.len();
                instruction
                    .set_offset(i16::try_from(distance).map_err(|_| AssembleError::TooFar { at, distance })?);
            }
            instructions.push(instruction);
        }
        Ok(Program { instructions })
    }

    /// The program, when it has no jumps.
    pub(crate) fn finish_without_jumps(self) -> Program {
        debug_assert!(self.jumps.is_empty());
        Program { instructions: self.instructions }
    }

    fn push(&mut self, instruction: Instruction) {
        self.instructions.push(instruction);
    }
}

impl Program {
    /// Its instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// As bpf(2) takes it: eight bytes for each instruction, in the machine's byte order.
    pub fn to_words(&self) -> Vec<u64> {
        self.instructions.iter().map(|instruction| instruction.word()).collect()
    }

    /// As bpf(2) takes it, byte by byte.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_words().into_iter().flat_map(u64::to_ne_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_filled_in() {
        let mut assembler = Assembler::new();
        let (end, start) = (assembler.label(), assembler.label());
        assembler.place(start);
        assembler.mov(Register::R0, 2);
        assembler.jump_if(Register::R0, Condition::Equal, 2, end);
        assembler.mov(Register::R0, 1);
        assembler.jump(start);
        assembler.place(end);
        assembler.exit();
        let program = assembler.finish().unwrap();
        let text = program.to_string();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            ["   0: r0 = 2", "   1: if r0 == 2 goto 4", "   2: r0 = 1", "   3: goto 0", "   4: exit"]
        );
    }

    #[test]
    fn a_jump_reaches_32767_instructions_and_no_more() {
        let program = |between: usize| {
            let mut assembler = Assembler::new();
            let end = assembler.label();
            assembler.jump_if(Register::R1, Condition::Equal, 0, end);
            for _ in 0..between {
                assembler.mov(Register::R0, 0);
            }
            assembler.place(end);
            assembler.exit();
            assembler.finish()
        };
        assert!(program(32767).is_ok());
        assert_eq!(program(32768), Err(AssembleError::TooFar { at: 0, distance: 32768 }));
    }

    #[test]
    fn what_is_never_reached_is_left_out() {
        let mut assembler = Assembler::new();
        let end = assembler.label();
        assembler.jump(end);
        assembler.number(Register::R3, u64::MAX);
        assembler.place(end);
        assembler.number(Register::R0, 5 << 32);
        assembler.exit();
        assembler.mov(Register::R0, 7);
        let text = assembler.finish().unwrap().to_string();
        assert_eq!(text.lines().collect::<Vec<_>>(), ["   0: r0 = 0x500000000", "   2: exit"]);
    }

    #[test]
    fn the_value_of_a_map_is_named_with_its_offset() {
        let mut assembler = Assembler::new();
        assembler.map(Register::R1, 7);
        assembler.map_value(Register::R8, 5, 24);
        assembler.add_atomically(Register::R8, 1, Register::R2);
        assembler.exit();
        let text = assembler.finish().unwrap().to_string();
        let lines = [
            "   0: r1 = map 7",
            "   2: r8 = value of map 5 +24",
            "   4: r2 = 1",
            "   5: lock *(u64)(r8 +0) += r2",
            "   6: exit",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn a_forgotten_label_is_an_error() {
        let mut assembler = Assembler::new();
        let nowhere = assembler.label();
        assembler.jump(nowhere);
        assert_eq!(assembler.finish(), Err(AssembleError::Unplaced { at: 0 }));
    }
}
