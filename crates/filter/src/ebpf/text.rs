//! Programs as text, one instruction on a line: for finding out what the generator did.

use std::fmt;

use super::Program;
use super::instruction::{
    ATOMIC, BY_REGISTER, CALL, CLASS, END, EXIT, Instruction, JUMP, JUMP32, KERNEL_FUNCTION, LOAD,
    LOAD_IMMEDIATE, MAP_DESCRIPTOR, MAP_VALUE, OPERATE, OPERATE32, STORE, STORE_NUMBER,
};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut skip = false;
        for (index, instruction) in self.instructions.iter().enumerate() {
            if std::mem::take(&mut skip) {
                continue;
            }
            let next = self.instructions.get(index + 1);
            skip = instruction.opcode & CLASS == LOAD_IMMEDIATE;
            writeln!(f, "{index:4}: {}", line(*instruction, index, next.copied()))?;
        }
        Ok(())
    }
}

fn line(instruction: Instruction, index: usize, next: Option<Instruction>) -> String {
    let Instruction { opcode, destination, source, offset, immediate } = instruction;
    let class = opcode & CLASS;
    let name = |number: u8| {
        if matches!(class, OPERATE32 | JUMP32) { format!("w{number}") } else { format!("r{number}") }
    };
    let left = name(destination);
    let right = if opcode & BY_REGISTER != 0 { name(source) } else { immediate.to_string() };
    let goal = i64::try_from(index).unwrap_or(i64::MAX).saturating_add(1 + i64::from(offset));
    let memory = |base: u8| format!("*({})(r{base} {offset:+})", width(opcode));
    match class {
        LOAD_IMMEDIATE if source == MAP_DESCRIPTOR => format!("r{destination} = map {immediate}"),
        LOAD_IMMEDIATE if source == MAP_VALUE => {
            let offset = next.map_or(0, |next| next.immediate);
            format!("r{destination} = value of map {immediate} {offset:+}")
        }
        LOAD_IMMEDIATE => {
            let high = next.map_or(0, |next| next.immediate);
            format!(
                "r{destination} = 0x{:x}",
                u64::from(high.cast_unsigned()) << 32 | u64::from(immediate.cast_unsigned())
            )
        }
        LOAD => format!("r{destination} = {}", memory(source)),
        STORE_NUMBER => format!("{} = {immediate}", memory(destination)),
        STORE if opcode & 0xe0 == ATOMIC => format!("lock {} += r{source}", memory(destination)),
        STORE => format!("{} = r{source}", memory(destination)),
        JUMP if opcode == JUMP => format!("goto {goal}"),
        JUMP if opcode & 0xf0 == CALL && source == KERNEL_FUNCTION => format!("call kernel's {immediate}"),
        JUMP if opcode & 0xf0 == CALL => format!("call {immediate}"),
        JUMP if opcode & 0xf0 == EXIT => "exit".into(),
        JUMP | JUMP32 => format!("if {left} {} {right} goto {goal}", condition(opcode)),
        OPERATE32 if opcode & 0xf0 == END => format!("r{destination} = be{immediate} r{destination}"),
        OPERATE | OPERATE32 => match opcode & 0xf0 {
            0x80 => format!("{left} = -{left}"),
            0xb0 => format!("{left} = {right}"),
            other => format!("{left} {}= {right}", operation(other)),
        },
        _ => format!("opcode 0x{opcode:02x}"),
    }
}

fn width(opcode: u8) -> &'static str {
    match opcode & 0x18 {
        0x10 => "u8",
        0x08 => "u16",
        0x00 => "u32",
        _ => "u64",
    }
}

fn condition(opcode: u8) -> &'static str {
    match opcode & 0xf0 {
        0x10 => "==",
        0x20 => ">",
        0x30 => ">=",
        0x40 => "&",
        0x50 => "!=",
        0xa0 => "<",
        0xb0 => "<=",
        _ => "?",
    }
}

fn operation(code: u8) -> &'static str {
    match code {
        0x00 => "+",
        0x10 => "-",
        0x20 => "*",
        0x30 => "/",
        0x40 => "|",
        0x50 => "&",
        0x60 => "<<",
        0x70 => ">>",
        0x90 => "%",
        0xa0 => "^",
        _ => "?",
    }
}
