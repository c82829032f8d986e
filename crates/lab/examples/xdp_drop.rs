//! `xdp_drop [--udp-port PORT | --sources FILE] [--tcx] INTERFACE COMMAND...`: runs a command while a program on an
//! interface drops all that comes, or over IPv4 UDP to one port, or what comes from the prefixes in a file, and prints
//! what the interface has counted meanwhile, as JSON: how fast a sender can be when its receiver costs next to nothing,
//! and how fast the shortest filter is. In XDP, or at TCX.
//!
//! With `--pin PATH` in the place of an interface and a command the program is left in a BPF file system, for
//! `tc filter add ... bpf direct-action object-pinned PATH`.
#![expect(clippy::print_stdout, reason = "its output is the result")]

use std::error::Error;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitCode};

use bywash_sys::bpf::{
    Link, Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec, TcxDirection, XdpMode,
};
use bywash_sys::route::Route;

const USAGE: &str =
    "usage: xdp_drop [--udp-port PORT | --sources FILE] { [--tcx] INTERFACE COMMAND... | --pin PATH }";

/// What is dropped.
enum Dropped {
    All,
    UdpTo(u16),
    /// What has its source in this LPM trie.
    From(Map),
}

/// Where a program is attached, and what that asks of it.
struct Place {
    kind: ProgramKind,
    /// Offsets of `data` and `data_end` in its context (`linux/bpf.h`).
    data: [i16; 2],
    drop: i32,
    pass: i32,
}

const XDP: Place = Place { kind: ProgramKind::XdpFrags, data: [0, 4], drop: 1, pass: 2 };
/// Not `TC_ACT_OK` but `TCX_NEXT`: others may follow. To tc's classifier the same number is `TC_ACT_UNSPEC`, which says that too.
const TCX: Place = Place { kind: ProgramKind::SchedCls, data: [76, 80], drop: 2, pass: -1 };

/// An instruction of eBPF (RFC 9669, section 3), on a little-endian machine.
fn instruction(opcode: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    let bytes = [[opcode, to | from << 4], offset.to_le_bytes()].concat();
    let high = u64::from(immediate.cast_unsigned()) << 32;
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)) | high
}

/// Drops all, or over plain Ethernet what [`Dropped`] says: UDP over IPv4 without options.
fn program(place: &Place, dropped: &Dropped) -> Vec<u64> {
    let (mov, add, copy, exit, call, load_map) = (0xb7, 0x07, 0xbf, 0x95, 0x85, 0x18);
    let (load, load_half, load_byte, store, store_number) = (0x61, 0x69, 0x71, 0x63, 0x62);
    let (jump_above, jump_equal, jump_unequal) = (0x2d, 0x15, 0x55);
    let end = |verdict| [instruction(mov, 0, 0, 0, verdict), instruction(exit, 0, 0, 0, 0)];
    let ending = [end(place.drop), end(place.pass)].concat();
    // Passes what is shorter than these bytes, `pass` instructions further on.
    let at_least = |bytes, pass| {
        [
            instruction(load, 2, 1, place.data[0], 0),
            instruction(load, 3, 1, place.data[1], 0),
            instruction(copy, 4, 2, 0, 0),
            instruction(add, 4, 0, 0, bytes),
            instruction(jump_above, 4, 3, pass, 0),
        ]
    };
    match dropped {
        Dropped::All => end(place.drop).to_vec(),
        Dropped::UdpTo(port) => {
            let compare = [
                instruction(load_byte, 4, 2, 23, 0),
                instruction(jump_unequal, 4, 0, 4, 17),
                instruction(load_half, 4, 2, 36, 0),
                instruction(jump_unequal, 4, 0, 2, port.to_be().into()),
            ];
            // 38 bytes: Ethernet, IPv4 and the ports.
            [&at_least(38, 6)[..], &compare, &ending].concat()
        }
        Dropped::From(trie) => {
            // The key lies on the stack: 32 bits to compare, then the source.
            let search = [
                instruction(load_half, 4, 2, 12, 0),
                instruction(jump_unequal, 4, 0, 11, 0x0800_u16.to_be().into()),
                instruction(load, 4, 2, 26, 0),
                instruction(store, 10, 4, -4, 0),
                instruction(store_number, 10, 0, -8, 32),
                instruction(copy, 2, 10, 0, 0),
                instruction(add, 2, 0, 0, -8),
                // `BPF_PSEUDO_MAP_FD`, over two instructions.
                instruction(load_map, 1, 1, 0, trie.as_raw_fd()),
                0,
                // `bpf_map_lookup_elem`.
                instruction(call, 0, 0, 0, 1),
                instruction(jump_equal, 0, 0, 2, 0),
            ];
            // 34 bytes: Ethernet and IPv4.
            [&at_least(34, 13)[..], &search, &ending].concat()
        }
    }
}

/// An LPM trie of the prefixes in a file, one on each line.
fn trie(file: &Path) -> Result<Map, Box<dyn Error>> {
    let text = std::fs::read_to_string(file)?;
    let prefixes: Vec<_> = text.lines().collect();
    let entries = prefixes.len().try_into()?;
    let map = Map::create(&MapSpec {
        kind: MapKind::LpmTrie,
        name: "sources",
        key_size: 8,
        value_size: 1,
        entries,
        mappable: false,
    })?;
    for prefix in prefixes {
        let (address, bits) = prefix.split_once('/').ok_or_else(|| format!("{prefix} is no prefix"))?;
        let (address, bits): (Ipv4Addr, u32) = (address.parse()?, bits.parse()?);
        map.update(&[bits.to_ne_bytes(), address.octets()].concat(), &[1])?;
    }
    Ok(map)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let (mut dropped, mut place, mut pin) = (Dropped::All, XDP, None);
    while let Some(option) = arguments.next_if(|argument| argument.starts_with("--")) {
        let mut value = || arguments.next().ok_or(USAGE);
        match option.as_str() {
            "--udp-port" => dropped = Dropped::UdpTo(value()?.parse()?),
            "--sources" => dropped = Dropped::From(trie(value()?.as_ref())?),
            "--tcx" => place = TCX,
            "--pin" => (place, pin) = (TCX, Some(value()?)),
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let instructions = program(&place, &dropped);
    let program =
        Program::load(&ProgramSpec { kind: place.kind, name: "drop", instructions: &instructions })?;
    if let Some(path) = pin {
        program.pin(path.as_ref())?;
        return Ok(ExitCode::SUCCESS);
    }
    let (Some(name), Some(command)) = (arguments.next(), arguments.next()) else {
        return Err(USAGE.into());
    };
    let mut route = Route::open()?;
    let index = route.link(&name)?.ok_or("there is no such interface")?.index;
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
