//! `xdp_drop [--udp-port PORT] [--tcx] INTERFACE COMMAND...`: runs a command while a program on an interface drops all that
//! comes, or UDP to one port over IPv4, and prints what the interface has counted meanwhile, as JSON: how fast a sender
//! can be when its receiver costs next to nothing, and how fast the shortest filter is. In XDP, or at TCX.
#![expect(clippy::print_stdout, reason = "its output is the result")]

use std::error::Error;
use std::process::{Command, ExitCode};

use bywash_sys::bpf::{Link, Program, ProgramKind, ProgramSpec, TcxDirection, XdpMode};
use bywash_sys::route::Route;

/// Where a program is attached, and what that asks of it.
struct Place {
    kind: ProgramKind,
    /// Offsets of `data` and `data_end` in its context (`linux/bpf.h`).
    data: [i16; 2],
    drop: i32,
    pass: i32,
}

const XDP: Place = Place { kind: ProgramKind::XdpFrags, data: [0, 4], drop: 1, pass: 2 };
/// Not `TC_ACT_OK` but `TCX_NEXT`: others may follow.
const TCX: Place = Place { kind: ProgramKind::SchedCls, data: [76, 80], drop: 2, pass: -1 };

/// An instruction of eBPF (RFC 9669, section 3), on a little-endian machine.
fn instruction(opcode: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    let bytes = [[opcode, to | from << 4], offset.to_le_bytes()].concat();
    let high = u64::from(immediate.cast_unsigned()) << 32;
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)) | high
}

/// Drops all, or UDP to a port over plain Ethernet and IPv4 without options.
fn program(place: &Place, port: Option<u16>) -> Vec<u64> {
    let (mov, exit, load, jump_above, jump_unequal) = (0xb7, 0x95, 0x61, 0x2d, 0x55);
    let end = |verdict| [instruction(mov, 0, 0, 0, verdict), instruction(exit, 0, 0, 0, 0)];
    let Some(port) = port else { return end(place.drop).to_vec() };
    let ending = [end(place.drop), end(place.pass)].concat();
    // 38 bytes: Ethernet, IPv4 and the ports.
    let front = [
        instruction(load, 2, 1, place.data[0], 0),
        instruction(load, 3, 1, place.data[1], 0),
        instruction(0xbf, 4, 2, 0, 0),
        instruction(0x07, 4, 0, 0, 38),
        instruction(jump_above, 4, 3, 6, 0),
        instruction(0x71, 4, 2, 23, 0),
        instruction(jump_unequal, 4, 0, 4, 17),
        instruction(0x69, 4, 2, 36, 0),
        instruction(jump_unequal, 4, 0, 2, port.to_be().into()),
    ];
    [&front[..], &ending].concat()
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let (mut port, mut place) = (None, XDP);
    while let Some(option) = arguments.next_if(|argument| argument.starts_with("--")) {
        match option.as_str() {
            "--udp-port" => port = Some(arguments.next().ok_or("--udp-port needs a port")?.parse()?),
            "--tcx" => place = TCX,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let (Some(name), Some(command)) = (arguments.next(), arguments.next()) else {
        return Err("usage: xdp_drop [--udp-port PORT] [--tcx] INTERFACE COMMAND...".into());
    };
    let mut route = Route::open()?;
    let index = route.link(&name)?.ok_or("there is no such interface")?.index;
    let instructions = program(&place, port);
    let program =
        Program::load(&ProgramSpec { kind: place.kind, name: "drop", instructions: &instructions })?;
    let _link = match place.kind {
        ProgramKind::SchedCls => Link::tcx(&program, index, TcxDirection::Ingress)?,
        _ => Link::xdp(&program, index, XdpMode::Native)?,
    };
    let before = route.counters(index)?.ok_or("it is gone")?;
    let status = Command::new(command).args(arguments).status()?;
    let after = route.counters(index)?.ok_or("it is gone")?;
    println!(r#"{{"event":"far","rx_packets":{}}}"#, after.rx_packets - before.rx_packets);
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
