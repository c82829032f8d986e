//! `bywash generate`.

use std::time::Duration;

use bywash_apps::generate::{Burst, Field, Generate, Inject, Options, Payload, Rate, Sizes};
use bywash_port::PortName;

use crate::failure::Failure;
use crate::options::{PortArgs, ReportArgs, Use, WorkerArgs};
use crate::overwriting::{self, file_of};
use crate::setup::{catch_signals, set_up};

mod packet;

use packet::PacketArgs;

const EXAMPLES: &str = "\
Examples:
  bywash generate xdp:eth1 --dst-mac 02:00:00:00:00:02        64-byte frames, as fast as it goes
  bywash generate xdp:eth1 --rate 50% --size imix --duration 10s
                                                              half of what the link can carry, in a mix of sizes
  bywash generate xdp:eth1 --rate 1.5M --count 10M --flows 1000
                                                              10 million packets of 1000 flows
  bywash generate xdp:eth1 --spread --dport 80,443 --proto tcp --flags syn --payload none
                                                              SYNs from random addresses 192.168.x.y to two ports
  bywash generate xdp:eth1 --src '10.0.0.0/8 random seed 7' --sport '1024-65535 step 3' --field 'ipv4.id=0+'
                                                              fields that each go their own way
  bywash generate xdp:eth1 --vlan 100 --vlan '1-4 every 10' --src fd00::/64 --dst fd01::1
                                                              two VLAN tags, ten packets each for four inner VLANs
  bywash generate xdp:eth1 --template file.pcap#3 --dst '10.0.0.1-10.0.0.9'
                                                              the third packet of a capture, to nine addresses
  bywash generate xdp:eth1 --burst 32 --burst-every 1ms       32 packets back to back, a thousand times a second
  bywash generate --inject veth0 --spread --cores 1           several times as fast as xdp: where that must copy
  bywash generate null: --duration 3s                         what this machine can do

Values (of addresses, ports, VLANs, labels, --ttl, --tos, --flags and --field NAME=VALUES) are a set and an order:
  80  80,443  1000-2000  10.0.0.0/8  1000+ (counts up from there)  any
  step N   each Nth of a range             random   each value once in an order of its own, then again
  down     the last one first              seed N   which order that is; the same in each run with the same seed
  every N  so many packets with the same value
Fields go round independently: 2 addresses and 3 ports make 6 flows. --flows N makes all begin anew after N packets.
Lengths and checksums are always right: those of a template are worked out anew.

Fields of --field: ";

const EXPLANATIONS: &str = concat!(
    "

A size counts the FCS, as RFC 2544 does: the shortest Ethernet frame is 64. imix is the Simple IMIX: 7 of 64, 4 of 594, 1
of 1518. Up to 65539 can be asked for, where the port takes so much: an interface's MTU bounds it. Rates are shown as
packets/s, L2 bit/s (frames with FCS) and L1 bit/s (with preamble and gap: what fills the link). The probe, which is the
payload unless you choose another, is a stream, a sequence number, the time, how many flows take turns, and a check: 18
bytes, which the shortest frame has room for. By it `bywash receive` judges what came, of each flow too when each comes
once before the first one comes again. What counts as sent is what the port says has left.

--inject has the kernel make the packets by an XDP program and hand them to the interface, without a socket: on a veth some
five million a second from one core. It takes CAP_BPF and CAP_NET_ADMIN, attaches nothing, and works where a driver sends
what XDP programs redirect to it. A veth does only while its other end has GRO or an XDP program: `ethtool -K PEER gro on`.
One worker sends, or one on each of --cores. What counts as sent is what the interface has not counted as dropped.",
    exit_codes!("all was sent, at the rate that was asked")
);

/// What says how a port is opened: without one there is nothing to say.
const PORT_OPTIONS: [&str; 9] =
    ["queues", "only", "ring", "zero_copy", "xdp", "busy_poll", "memory", "huge_pages", "frame_stride"];

/// Send packets of any kind, as fast as it goes or on an exact schedule.
#[derive(clap::Args, Debug)]
#[command(mut_arg("only", |only| only.hide(true)), mut_arg("xdp", |xdp| xdp.hide(true)))]
#[command(after_help = format!("{EXAMPLES}{}{EXPLANATIONS}", bywash_apps::generate::field_names()))]
pub(crate) struct Args {
    /// Where to send
    #[arg(value_name = "PORT", conflicts_with = "inject")]
    name: Option<PortName>,
    /// Have the kernel make the packets and hand them to this interface, in place of PORT; see below
    #[arg(long, value_name = "IFACE", conflicts_with_all = PORT_OPTIONS)]
    inject: Option<String>,
    /// Bytes of each frame, with FCS: 64, 64,128,512, '64-1518 step 16', '64-1518 random', imix, or weights as in
    /// 64:7,594:4,1518:1 [default: the shortest, or as long as the template]
    #[arg(long, value_name = "SIZES")]
    size: Option<Sizes>,
    /// 1.5M (packets/s), 10Gbps (frames' bits/s, L2), 10GbpsL1 (the link's bits/s) or 50% (of the link)
    /// [default: as fast as it goes]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Send so many packets back to back, and then wait: until the rate is kept, or by --burst-every
    #[arg(long, value_name = "PACKETS", value_parser = crate::values::count)]
    burst: Option<u64>,
    /// From the start of one burst to the start of the next; --rate, if given, is that within a burst
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration, requires = "burst")]
    burst_every: Option<Duration>,
    /// What the link can carry: 10G, 100M [default: what the port says]
    #[arg(long, value_name = "BITS", value_parser = crate::values::line_rate)]
    line_rate: Option<u64>,
    /// Stop after so many packets: 1000, 10M
    #[arg(long, value_name = "PACKETS", value_parser = crate::values::count)]
    count: Option<u64>,
    #[command(flatten)]
    packet: PacketArgs,
    /// Send from so many sources in turn: addresses and ports count up, 192.168.0.1:10000, 192.168.0.2:10001, ...
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Variation")]
    sources: u32,
    /// Send from addresses 192.168.x.y in random order, so that a receiver's RSS spreads them over all of its queues
    #[arg(long, conflicts_with_all = ["src_ip", "sources"], help_heading = "Variation")]
    spread: bool,
    /// Give a field values by its name: 'ipv4.id=0+', 'tcp.seq=any random'; see below
    #[arg(long, value_name = "NAME=VALUES", help_heading = "Variation")]
    field: Vec<Field>,
    /// Begin anew after so many packets, so that there are just so many flows; when nothing varies, as --sources
    #[arg(long, value_name = "N", conflicts_with = "sources", help_heading = "Variation")]
    flows: Option<u64>,
    /// Decides the order of all random values that have no seed of their own
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Variation")]
    seed: u64,
    /// probe, none, zeros, counting, random, random:SEED, hex:DEADBEEF, text:HELLO or template
    /// [default: probe, or the template's own]
    #[arg(long, value_name = "WHAT", help_heading = "Packet")]
    payload: Option<Payload>,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    let template = args.packet.template_file().map(|(file, _)| file);
    overwriting::refuse(template, args.name.as_ref().and_then(file_of))?;
    let mut frame = args.packet.frame()?;
    frame.size = args.size.unwrap_or_default();
    frame.sources = args.sources;
    frame.flows = args.flows;
    frame.seed = args.seed;
    frame.payload = args.payload;
    if args.spread {
        let spread = Field::new("ipv4.src", "192.168.0.0/16 random", "--spread");
        frame.fields.push(spread.map_err(|error| Failure::Usage(error.to_string()))?);
    }
    frame.fields.extend(args.field);
    frame.check().map_err(Failure::Usage)?;
    let options = Options {
        frame,
        rate: args.rate,
        burst: args.burst.map(|packets| Burst { packets, every: args.burst_every }),
        line_rate: args.line_rate,
        count: args.count,
        duration: args.report.duration,
        batch: args.worker.batch(),
        workers: args.worker.options(),
    };
    let patience: Option<Duration> = options.patience();
    if let Some(interface) = &args.inject {
        if options.rate.is_none() {
            args.port.refuse_flood(&PortName::Packet { interface: interface.clone() })?;
        }
        let mut reporter = args.report.reporter()?;
        let stop = catch_signals()?;
        let app = Inject::start(interface, &options, &stop)?;
        return Ok(bywash_apps::run(app, patience, &stop, &mut reporter));
    }
    let names = [args.name.ok_or_else(|| Failure::Usage("name a PORT, or --inject IFACE".into()))?];
    if options.rate.is_none() {
        args.port.refuse_flood(&names[0])?;
    }
    let open = args.port.open_options(&names, Use::Send)?;
    let mut reporter = args.report.reporter_for(&names)?;
    let mut setup = set_up(&names, (&args.port, &args.worker), &open, &mut reporter)?;
    let port = setup.ports.remove(0);
    let app = Generate::start(port, &options, setup.arena, &setup.stop)?;
    Ok(bywash_apps::run(app, patience, &setup.stop, &mut reporter))
}
