//! `xdp_drop INTERFACE COMMAND...`: runs a command while an XDP program on an interface drops all that comes, and prints
//! what the interface has counted meanwhile, as JSON: how fast a sender can be when its receiver costs next to nothing.
#![expect(clippy::print_stdout, reason = "its output is the result")]

use std::error::Error;
use std::process::{Command, ExitCode};

use bywash_sys::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use bywash_sys::route::Route;

/// `r0 = XDP_DROP; exit`, as eBPF (RFC 9669) on a little-endian machine.
const DROP: [u64; 2] = [0x0000_0001_0000_00b7, 0x0000_0000_0000_0095];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(command)) = (arguments.next(), arguments.next()) else {
        return Err("usage: xdp_drop INTERFACE COMMAND...".into());
    };
    let mut route = Route::open()?;
    let index = route.link(&name)?.ok_or("there is no such interface")?.index;
    let spec = ProgramSpec { kind: ProgramKind::XdpFrags, name: "drop", instructions: &DROP };
    let _link = Link::xdp(&Program::load(&spec)?, index, XdpMode::Native)?;
    let before = route.counters(index)?.ok_or("it is gone")?;
    let status = Command::new(command).args(arguments).status()?;
    let after = route.counters(index)?.ok_or("it is gone")?;
    println!(r#"{{"event":"far","rx_packets":{}}}"#, after.rx_packets - before.rx_packets);
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
