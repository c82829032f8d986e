//! `bywash capture`.

use std::path::PathBuf;
use std::time::Duration;

use bywash_apps::capture::pcap::{Format, MAX_PACKET};
use bywash_apps::capture::{Capture, Options};
use bywash_apps::sys::spool::{Rotation, Target};
use bywash_port::PortName;
use bywash_port::filter::Expression;
use clap::ValueEnum;

use crate::failure::Failure;
use crate::options::{PortArgs, ReportArgs, Use, WorkerArgs};
use crate::overwriting::{self, file_of};
use crate::setup::set_up;
use crate::values;

const EXAMPLES: &str = concat!(
    "\
Examples:
  bywash capture eth1 -w trace.pcapng                    a copy of all packets, in and out, until Ctrl-C
  bywash capture eth1 -w dns.pcap -c 1000 udp port 53    a thousand packets that match
  bywash capture eth1 -w ring.pcapng -C 100M -W 10       the last ten files of 100 MiB
  bywash capture eth1 -w hour.pcapng -G 1h -s 96         a file each hour, 96 bytes of each packet
  bywash capture xdp:eth1 -w flood.pcap udp port 123     taken away from the kernel, in the driver
  bywash capture pcap:in.pcap -w out.pcapng host ::1     what matches in a file, into another
  bywash capture eth1 -w - | tcpdump -r -                for another program

An interface's name alone means packet:NAME, which sees a copy and takes nothing. An xdp: port takes what it captures
away from the kernel: name it when you mean that. Times are in nanoseconds, the kernel's where it gives some. Checksums
that the NIC was to fill in are filled in. Where several files are made, their names have a number and the time in them.

Expressions are tcpdump's (pcap-filter(7)), and three primitives of our own: anyvlan (what stands to its right is looked
for behind any number of VLAN tags), l4 in front of port, portrange or proto (behind IPv6 extension headers too: l4 udp
port 53), and fragment [first|later].",
    exit_codes!("all that came and matched is in the file (else the file is whole up to where it ends)")
);

/// Write the packets that come to a file.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to capture: an interface, to see a copy, or any port
    #[arg(value_name = "PORT", value_parser = port)]
    name: PortName,
    /// Only packets that match, as tcpdump writes it; in the XDP program already on an xdp: port
    #[arg(value_name = "EXPRESSION")]
    expression: Vec<String>,
    /// The file; - is standard output
    #[arg(long, short, value_name = "FILE")]
    write: PathBuf,
    /// The file's format [default: pcapng when it is called .pcapng, else pcap]
    #[arg(long, value_name = "FORMAT")]
    format: Option<FormatArg>,
    /// Keep so many bytes of each packet; 0 keeps all
    #[arg(long, short, value_name = "BYTES", default_value_t = 0)]
    snap: u32,
    /// Stop after so many packets: 1000, 10M
    #[arg(long, short, value_name = "PACKETS", value_parser = values::count)]
    count: Option<u64>,
    /// Go on in another file before one is longer: 100M is 100 MiB; a bare number means millions of bytes, as tcpdump's
    #[arg(long, short = 'C', value_name = "SIZE", value_parser = file_size)]
    rotate_size: Option<u64>,
    /// Go on in another file when the first packet of one is so old: 60s, 1h
    #[arg(long, short = 'G', value_name = "TIME", value_parser = values::duration)]
    rotate_time: Option<Duration>,
    /// Keep so many files, the last ones
    #[arg(long, short = 'W', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    files: Option<u32>,
    /// Bring each packet into the file at once, for whoever reads along; usual is within a tenth of a second
    #[arg(long, short = 'U')]
    unbuffered: bool,
    /// Memory for packets that wait for the disk
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = values::bytes)]
    buffer: usize,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// `--format`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatArg {
    Pcap,
    Pcapng,
}

/// The largest ring that `packet:` has: a capture lives by it while the disk or the scheduler is slow.
const RING: u32 = 32_768;

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    let mut options = options(&args)?;
    let names = [args.name];
    let mut open = args.port.open_options(&names, Use::Receive)?;
    let [name] = &names;
    if let [open] = open.as_mut_slice() {
        match name {
            PortName::Xdp { .. } if open.only.is_none() => {
                open.only.clone_from(&options.expression);
                options.is_matched = options.expression.is_some();
            }
            PortName::Packet { .. } => open.ring = open.ring.or(Some(RING)),
            _ => {}
        }
    }
    overwriting::refuse(file_of(name), [args.write.as_path()])?;
    let is_piped = options.target == Target::Stdout;
    let mut reporter = if is_piped { args.report.reporter_beside_data()? } else { args.report.reporter()? };
    let mut setup = set_up(&names, (&args.port, &args.worker), &open, &mut reporter)?;
    let port = setup.ports.remove(0);
    let app = Capture::start(port, &options, setup.arena, &setup.stop)?;
    Ok(bywash_apps::run(app, args.report.duration, &setup.stop, &mut reporter))
}

fn options(args: &Args) -> Result<Options, Failure> {
    let expression = args.expression.join(" ");
    let expression =
        if expression.trim().is_empty() { None } else { Some(expression.parse::<Expression>()?) };
    let is_piped = args.write.as_os_str() == "-";
    let rotation = Rotation { bytes: args.rotate_size, time: args.rotate_time, keep: args.files };
    if rotation.keep.is_some() && rotation.bytes.is_none() && rotation.time.is_none() {
        return Err(Failure::Usage("--files counts files that -C or -G makes: give one of them too".into()));
    }
    if is_piped && rotation != Rotation::default() {
        return Err(Failure::Usage("standard output is one stream: leave -C, -G and -W out".into()));
    }
    let format = match args.format {
        Some(FormatArg::Pcap) => Format::Pcap,
        Some(FormatArg::Pcapng) => Format::Pcapng,
        None => Format::of_name(&args.write),
    };
    let target = if is_piped { Target::Stdout } else { Target::File(args.write.clone()) };
    let whole = Options::to(target, format);
    let snap = if args.snap == 0 { whole.snap } else { args.snap };
    if snap as usize > MAX_PACKET {
        return Err(Failure::Usage(format!(
            "--snap {snap}: packets have at most {MAX_PACKET} bytes in a file"
        )));
    }
    Ok(Options {
        rotation,
        expression,
        snap,
        count: args.count,
        flush: args.unbuffered,
        memory: args.buffer,
        batch: args.worker.batch(),
        workers: args.worker.options(),
        ..whole
    })
}

/// A port's name; an interface's name alone means that a copy is wanted.
fn port(text: &str) -> Result<PortName, String> {
    let name = if text.contains(':') { text.to_owned() } else { format!("packet:{text}") };
    name.parse::<PortName>().map_err(|error| error.to_string())
}

/// `100M`, `1G`; without a unit, millions of bytes, as tcpdump has it.
fn file_size(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(millions @ 1..) => {
            millions.checked_mul(1_000_000).ok_or_else(|| "that is longer than any file".into())
        }
        _ => values::file_size(text),
    }
}
