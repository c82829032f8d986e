//! Instructions of eBPF and their eight bytes (RFC 9669).

/// A register. `R0` is the result, `R1` to `R5` are arguments and lost by calls, `R6` to `R9` survive them, `R10` points
/// behind the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are named by their numbers")]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The right side of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Register(Register),
    /// A number; operations of 64 bits extend its sign.
    Number(i32),
}

/// What is done to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// `+`
    Add = 0x00,
    /// `-`
    Subtract = 0x10,
    /// `*`
    Multiply = 0x20,
    /// `/` without sign; by 0 it gives 0.
    Divide = 0x30,
    /// `|`
    Or = 0x40,
    /// `&`
    And = 0x50,
    /// `<<`; only the lowest 5 or 6 bits of the right side count.
    ShiftLeft = 0x60,
    /// `>>` without sign; only the lowest 5 or 6 bits of the right side count.
    ShiftRight = 0x70,
    /// `-` of the register alone; the right side is not used.
    Negate = 0x80,
    /// The remainder without sign; by 0 it gives the left side.
    Modulo = 0x90,
    /// `^`
    Xor = 0xa0,
    /// `=`
    Move = 0xb0,
}

/// When a jump is taken. Comparisons are without sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Condition {
    /// `==`
    Equal = 0x10,
    /// `>`
    Greater = 0x20,
    /// `>=`
    GreaterOrEqual = 0x30,
    /// `&` is not 0.
    CommonBit = 0x40,
    /// `!=`
    NotEqual = 0x50,
    /// `<`
    Less = 0xa0,
    /// `<=`
    LessOrEqual = 0xb0,
}

/// How much a load or store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// One byte.
    Byte = 0x10,
    /// Two bytes.
    Half = 0x08,
    /// Four bytes.
    Word = 0x00,
    /// Eight bytes.
    Double = 0x18,
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub(super) opcode: u8,
    pub(super) destination: u8,
    pub(super) source: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

pub(super) const CLASS: u8 = 0x07;
pub(super) const LOAD_IMMEDIATE: u8 = 0x00;
pub(super) const LOAD: u8 = 0x01;
pub(super) const STORE_NUMBER: u8 = 0x02;
pub(super) const STORE: u8 = 0x03;
pub(super) const OPERATE32: u8 = 0x04;
pub(super) const JUMP: u8 = 0x05;
pub(super) const JUMP32: u8 = 0x06;
pub(super) const OPERATE: u8 = 0x07;

/// The operand is a register.
pub(super) const BY_REGISTER: u8 = 0x08;
/// Loads and stores of memory at a register.
const MEMORY: u8 = 0x60;
/// Stores that other CPUs see as one step; the number says what is done, and 0 is an addition.
pub(super) const ATOMIC: u8 = 0xc0;
pub(super) const END: u8 = 0xd0;
pub(super) const CALL: u8 = 0x80;
pub(super) const EXIT: u8 = 0x90;
const EXIT_INSTRUCTION: u8 = JUMP | EXIT;
/// The 64-bit number stands for a map's file descriptor.
pub(super) const MAP_DESCRIPTOR: u8 = 1;
/// Its lower half stands for the file descriptor of an array with one entry, its upper half for an offset in that.
pub(super) const MAP_VALUE: u8 = 2;
/// The number of a call is a function's in the kernel's BTF.
pub(super) const KERNEL_FUNCTION: u8 = 2;

impl Instruction {
    pub(super) fn operation(operation: Operation, to: Register, with: Operand, wide: bool) -> Self {
        let class = if wide { OPERATE } else { OPERATE32 };
        Self::with_operand(class | operation as u8, to, with)
    }

    pub(super) fn jump_if(left: Register, condition: Condition, right: Operand, wide: bool) -> Self {
        let class = if wide { JUMP } else { JUMP32 };
        Self::with_operand(class | condition as u8, left, right)
    }

    pub(super) fn jump() -> Self {
        Self { opcode: JUMP, destination: 0, source: 0, offset: 0, immediate: 0 }
    }

    pub(super) fn from_network_order(register: Register, width: Width) -> Self {
        let bits = match width {
            Width::Byte => 8,
            Width::Half => 16,
            Width::Word => 32,
            Width::Double => 64,
        };
        let opcode = OPERATE32 | END | BY_REGISTER;
        Self { opcode, destination: register as u8, source: 0, offset: 0, immediate: bits }
    }

    pub(super) fn load(width: Width, to: Register, from: Register, offset: i16) -> Self {
        let opcode = LOAD | MEMORY | width as u8;
        Self { opcode, destination: to as u8, source: from as u8, offset, immediate: 0 }
    }

    pub(super) fn store(width: Width, to: Register, offset: i16, from: Operand) -> Self {
        let (class, source, immediate) = match from {
            Operand::Register(register) => (STORE, register as u8, 0),
            Operand::Number(number) => (STORE_NUMBER, 0, number),
        };
        Self { opcode: class | MEMORY | width as u8, destination: to as u8, source, offset, immediate }
    }

    pub(super) fn add_atomically(to: Register, from: Register) -> Self {
        let opcode = STORE | ATOMIC | Width::Double as u8;
        Self { opcode, destination: to as u8, source: from as u8, offset: 0, immediate: 0 }
    }

    pub(super) fn number(to: Register, number: u64) -> [Self; 2] {
        let [a, b, c, d, e, f, g, h] = number.to_le_bytes();
        let opcode = LOAD_IMMEDIATE | Width::Double as u8;
        let first = Self {
            opcode,
            destination: to as u8,
            source: 0,
            offset: 0,
            immediate: i32::from_le_bytes([a, b, c, d]),
        };
        let second = Self {
            opcode: 0,
            destination: 0,
            source: 0,
            offset: 0,
            immediate: i32::from_le_bytes([e, f, g, h]),
        };
        [first, second]
    }

    pub(super) fn map(to: Register, descriptor: i32) -> [Self; 2] {
        let [first, second] = Self::number(to, u64::from(descriptor.cast_unsigned()));
        [Self { source: MAP_DESCRIPTOR, ..first }, second]
    }

    pub(super) fn map_value(to: Register, descriptor: i32, offset: u32) -> [Self; 2] {
        let number = u64::from(offset) << 32 | u64::from(descriptor.cast_unsigned());
        let [first, second] = Self::number(to, number);
        [Self { source: MAP_VALUE, ..first }, second]
    }

    pub(super) fn call(helper: i32) -> Self {
        Self { opcode: JUMP | CALL, destination: 0, source: 0, offset: 0, immediate: helper }
    }

    pub(super) fn call_kernel(function: i32) -> Self {
        Self { source: KERNEL_FUNCTION, ..Self::call(function) }
    }

    pub(super) fn exit() -> Self {
        Self { opcode: EXIT_INSTRUCTION, destination: 0, source: 0, offset: 0, immediate: 0 }
    }

    fn with_operand(opcode: u8, to: Register, with: Operand) -> Self {
        match with {
            Operand::Register(register) => Self {
                opcode: opcode | BY_REGISTER,
                destination: to as u8,
                source: register as u8,
                offset: 0,
                immediate: 0,
            },
            Operand::Number(number) => {
                Self { opcode, destination: to as u8, source: 0, offset: 0, immediate: number }
            }
        }
    }

    /// Whether it jumps always.
    pub(super) fn is_jump(self) -> bool {
        self.opcode == JUMP
    }

    /// A conditional jump that is taken when this one is not; `None` where there is none.
    pub(super) fn turned_round(self) -> Option<Self> {
        const CODE: u8 = 0xf0;
        let pairs = [
            (Condition::Equal, Condition::NotEqual),
            (Condition::Greater, Condition::LessOrEqual),
            (Condition::Less, Condition::GreaterOrEqual),
        ];
        let code = self.opcode & CODE;
        let other = pairs.into_iter().find_map(|(one, other)| match code {
            _ if !matches!(self.opcode & CLASS, JUMP | JUMP32) => None,
            _ if code == one as u8 => Some(other),
            _ if code == other as u8 => Some(one),
            _ => None,
        })?;
        Some(Self { opcode: self.opcode & !CODE | other as u8, ..self })
    }

    /// Whether the next instruction may come after it.
    pub(super) fn goes_on(self) -> bool {
        !matches!(self.opcode, JUMP | EXIT_INSTRUCTION)
    }

    pub(super) fn set_offset(&mut self, offset: i16) {
        self.offset = offset;
    }

    /// Its eight bytes in the machine's byte order.
    pub fn word(self) -> u64 {
        let registers = if cfg!(target_endian = "little") {
            self.source << 4 | self.destination
        } else {
            self.destination << 4 | self.source
        };
        let [offset_a, offset_b] = self.offset.to_ne_bytes();
        let [a, b, c, d] = self.immediate.to_ne_bytes();
        u64::from_ne_bytes([self.opcode, registers, offset_a, offset_b, a, b, c, d])
    }
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Operand {
    /// The same bits: right for operations of 32 bits.
    fn from(number: u32) -> Self {
        Self::Number(number.cast_signed())
    }
}
