//! `bywash forward`.

use bywash_apps::forward::{Forward, MacEdit, Options, Pair};
use bywash_apps::wire::Mac;
use bywash_drivers::OpenOptions;
use bywash_port::PortName;

use crate::failure::Failure;
use crate::options::{PortArgs, ReportArgs, Use, WorkerArgs};
use crate::overwriting::{self, file_of};
use crate::setup::set_up;

const EXAMPLES: &str = concat!(
    "\
Examples:
  bywash forward xdp:eth1 xdp:eth2                     both ways, a worker per queue
  bywash forward xdp:eth1 xdp:eth2 --cores 2,3         two workers, on cores 2 and 3
  bywash forward xdp:eth1 --mac-swap                   send everything back to who sent it
  bywash forward xdp:eth1 xdp:eth1 --only 'udp port 7' --mac-swap
                                                       only port 7; the rest stays with the kernel
  bywash forward xdp:eth1 xdp:eth2 xdp:eth3 xdp:eth4   two pairs
  bywash forward pcap:a.pcap xdp:eth1                  what a file holds, as fast as it goes
  bywash forward xdp:eth1 pcap:out.pcapng              into a file
  bywash forward null: null: --mac-swap --duration 5s  what this machine can do

When a port takes no more packets, nothing more is received for it: overload is dropped by the NIC.
What is for a port that has taken none for 200 ms (its link is down, say) is dropped and counted: the exit code is 1 then.",
    exit_codes!("it ran until its end, and all that came was sent on")
);

/// Forward packets between pairs of ports, in both directions.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Two ports, or several pairs: A B [C D]...; one port, or A twice, sends packets back out of where they came in
    #[arg(value_name = "PORT", required = true)]
    ports: Vec<PortName>,
    /// Let destination and source address change places
    #[arg(long, conflicts_with_all = ["dst_mac", "src_mac"])]
    mac_swap: bool,
    /// Write this destination address
    #[arg(long, value_name = "MAC")]
    dst_mac: Option<Mac>,
    /// Write this source address
    #[arg(long, value_name = "MAC")]
    src_mac: Option<Mac>,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    let pairs = pairs(&args.ports)?;
    let read = pairs.iter().filter_map(|(from, _)| file_of(from));
    overwriting::refuse(read, pairs.iter().filter_map(|(_, to)| file_of(to.as_ref()?)))?;
    let names: Vec<PortName> = pairs.iter().flat_map(|(a, b)| std::iter::once(a).chain(b)).cloned().collect();
    let mut reporter = args.report.reporter_for(pairs.iter().filter_map(|(_, to)| to.as_ref()))?;
    let mut open = args.port.open_options(&names, Use::Both)?;
    let partners: Vec<Option<&PortName>> = partners(&pairs).collect();
    set_plain(&partners, &mut open);
    set_places(&pairs, &mut open);
    for warning in names.iter().zip(&partners).filter_map(|(name, partner)| super_segments(name, *partner)) {
        reporter.warning(&warning);
    }
    let setup = set_up(&names, (&args.port, &args.worker), &open, &mut reporter)?;
    let mut ports = setup.ports.into_iter();
    let opened = pairs.iter().filter_map(|(_, second)| {
        let first = ports.next()?;
        Some(if second.is_some() { Pair::Both(first, ports.next()?) } else { Pair::Same(first) })
    });
    let options = Options { edit: edit(&args), batch: args.worker.batch(), workers: args.worker.options() };
    let app = Forward::start(opened.collect(), &options, setup.arena, &setup.stop)?;
    Ok(bywash_apps::run(app, args.report.duration, &setup.stop, &mut reporter))
}

/// For each port, in order, the other one of its pair.
fn partners(pairs: &[(PortName, Option<PortName>)]) -> impl Iterator<Item = Option<&PortName>> {
    pairs.iter().flat_map(|(a, b)| match b {
        Some(b) => [Some(b), Some(a)].into_iter().take(2),
        None => [None, None].into_iter().take(1),
    })
}

/// What comes in must be as on a wire where it goes out as it is: nobody behind such a port would finish it.
fn set_plain(partners: &[Option<&PortName>], options: &mut [OpenOptions]) {
    for (partner, options) in partners.iter().zip(options) {
        options.plain =
            matches!(partner, Some(PortName::Xdp { .. } | PortName::Packet { .. } | PortName::Pcap { .. }));
    }
}

/// With a file, packets go one way: from the first port to the second.
fn set_places(pairs: &[(PortName, Option<PortName>)], options: &mut [OpenOptions]) {
    let mut options = options.iter_mut();
    for (first, second) in pairs {
        let from = options.next();
        let Some(second) = second else { continue };
        let to = options.next();
        if [first, second].iter().any(|name| matches!(name, PortName::Pcap { .. })) {
            from.into_iter().for_each(|options| options.rx_only = true);
            to.into_iter().for_each(|options| options.tx_only = true);
        }
    }
}

/// What to know of a `packet:` port in front of an `xdp:` port: the kernel joins segments before `packet:` sees them.
fn super_segments(name: &PortName, partner: Option<&PortName>) -> Option<String> {
    match (name, partner) {
        (PortName::Packet { interface }, Some(to @ PortName::Xdp { .. })) => Some(format!(
            "{name}: super-segments of TCP can't leave by {to} and are lost; \
             `ethtool -K {interface} gro off lro off tso off gso off` makes none of them here"
        )),
        _ => None,
    }
}

fn edit(args: &Args) -> MacEdit {
    match (args.mac_swap, args.dst_mac, args.src_mac) {
        (true, ..) => MacEdit::Swap,
        (false, None, None) => MacEdit::Keep,
        (false, dst, src) => MacEdit::Set { dst, src },
    }
}

/// The ports by twos; a port with itself is opened once. Two `null:` are two ports all the same.
fn pairs(names: &[PortName]) -> Result<Vec<(PortName, Option<PortName>)>, Failure> {
    if let [only] = names {
        return Ok(vec![(only.clone(), None)]);
    }
    let (twos, rest) = names.as_chunks::<2>();
    if let [odd] = rest {
        return Err(Failure::Usage(format!("{odd} has no partner: name ports by twos, A B C D")));
    }
    let pairs: Vec<_> =
        twos.iter().map(|[a, b]| (a.clone(), (a != b || *a == PortName::Null).then(|| b.clone()))).collect();
    let mut seen = Vec::new();
    for name in
        pairs.iter().flat_map(|(a, b)| std::iter::once(a).chain(b)).filter(|name| **name != PortName::Null)
    {
        if seen.contains(&name) {
            return Err(Failure::Usage(format!("{name} is in two pairs: a packet can go one way only")));
        }
        seen.push(name);
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> (Vec<bool>, usize) {
        let names: Vec<PortName> = words.iter().map(|word| word.parse().unwrap()).collect();
        let pairs = pairs(&names).unwrap();
        let partners: Vec<_> = partners(&pairs).collect();
        let mut options = vec![OpenOptions::default(); partners.len()];
        set_plain(&partners, &mut options);
        let opened: Vec<&PortName> =
            pairs.iter().flat_map(|(a, b)| std::iter::once(a).chain(b.as_ref())).collect();
        let warned = opened.iter().zip(&partners).filter(|(n, p)| super_segments(n, **p).is_some()).count();
        (options.iter().map(|options| options.plain).collect(), warned)
    }

    #[test]
    fn what_leaves_by_a_port_that_finishes_nothing_must_come_in_plain() {
        assert_eq!(asked(&["tap:a", "xdp:b"]), (vec![true, false], 0));
        assert_eq!(asked(&["packet:b", "tap:a"]), (vec![false, true], 0));
        assert_eq!(asked(&["tap:a", "tap:b", "xdp:c", "tap:d"]), (vec![false, false, false, true], 0));
        assert_eq!(asked(&["tap:a"]), (vec![false], 0));
        assert_eq!(
            asked(&["tap:a", "tap:a", "xdp:b", "loop:c"]),
            (vec![false, false, true], 0),
            "one port, a pair"
        );
        assert_eq!(asked(&["packet:a", "xdp:b"]), (vec![true, true], 1));
        assert_eq!(asked(&["packet:a", "packet:b"]), (vec![true, true], 0));
    }
}
