//! XDP programs run by the kernel on given packets, and how long they take.

use bywash_filter::ebpf;
use bywash_sys::bpf::{Program, ProgramKind, ProgramSpec, TestInput};

/// How often the kernel runs a program on a packet at once.
const REPEAT: u32 = 20_000;

/// Has the kernel check and compile a program.
pub(crate) fn load(program: &ebpf::Program) -> Program {
    let instructions = program.to_words();
    let spec = ProgramSpec { kind: ProgramKind::XdpFrags, name: "cost", instructions: &instructions };
    Program::load(&spec).unwrap()
}

/// Nanoseconds for each packet.
pub(crate) fn run(program: &Program, packets: &[Vec<u8>]) -> f64 {
    let time = |packet: &Vec<u8>| {
        let input = TestInput { packet, repeat: REPEAT, ..TestInput::default() };
        program.test_run(&input).unwrap().duration.as_secs_f64()
    };
    packets.iter().map(time).sum::<f64>() * 1e9 / packets.len() as f64
}
