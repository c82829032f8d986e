//! `bywash addr`, `route`, `neigh`, `sockets` and `stats`: what iproute2 and ss are to the kernel, to an instance.

mod addresses;
mod neighbours;
mod routes;
pub(super) mod sockets;
mod words;

use bywash_engine::request::{AUTO6, Answer, Request, Stats};
use bywash_engine::socket::ask;

pub(super) use addresses::addresses;
pub(super) use neighbours::neighbours;
pub(super) use routes::routes;

use super::serve::DEFAULT_NAME;
use crate::failure::{self, Failure};
use words::Verb;

const EXAMPLES: &str = "\
Examples:
  bywash addr                                       show the addresses of the instance `default`
  bywash addr add 10.0.0.3/24 dev eth1 --name web   give another one to eth1 of the instance `web`
  bywash addr add 10.0.0.4/24 dad                   if no other station has it: IPv6 always looks (see RFC 5227)
  bywash addr del 10.0.0.3
  bywash addr add auto6 dev eth1                    IPv6 as the routers of eth1's link say
  bywash addr del auto6 dev eth1                    no more, and without what they have said
  bywash addr show dev eth1
  bywash -4 addr                                    -4, -6, -j may stand in front, as with iproute2
  bywash route add 10.1.0.0/16 via 10.0.0.1 metric 5
  bywash route replace 10.1.0.0/16 via 10.0.0.7 metric 5
  bywash route add default via 10.0.0.1 src 10.0.0.5   what is bound to no address comes from 10.0.0.5
  bywash route del default
  bywash route flush via 10.0.0.7                   all that go by this router
  bywash route show default
  bywash route get 192.0.2.7                        which way packets go there
  bywash route get 192.0.2.7 dev eth2               and which by eth2
  bywash neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev eth1
  bywash neigh --json

Exit codes: 0 done; 2 the instance refuses, or there is none";

/// The words of those that can be neither got nor changed.
pub(super) const ADDRESS_WORDS: &str = "show, add, replace, del or flush, and what, as iproute2 writes it";

/// Below the options of what only shows.
pub(super) const SHOW_EXAMPLES: &str = "\
Examples:
  bywash sockets -ti state established   what is connected, with round trips, windows and losses
  bywash sockets -o -m              with the timer of each that comes next, and its memory
  bywash sockets -s                 how many there are of each kind
  bywash sockets                    what listens and what is connected in the instance `default`
  bywash stats --name web --json    all that the instance `web` counts
  bywash stats show                 `show` may be there, as with addr: s, sh, l, ls, lst and list are the same

Exit codes: 0 done; 2 there is no such instance, or it is another user's";

/// Show or change something of a running instance.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// show, get, add, replace, change, del or flush, and what, as iproute2 writes it
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
    #[command(flatten)]
    family: FamilyArgs,
    #[command(flatten)]
    show: ShowArgs,
}

/// Of which instance, and how.
#[derive(clap::Args, Debug)]
pub(crate) struct ShowArgs {
    /// The instance
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    name: String,
    /// One JSON value
    #[arg(long, short)]
    json: bool,
}

/// `bywash stats`: nothing can be chosen of it.
#[derive(clap::Args, Debug)]
#[command(after_help = SHOW_EXAMPLES)]
pub(crate) struct StatsArgs {
    /// show, which may be left out
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Of which family: with both, as without one, of either.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct FamilyArgs {
    /// IPv4 alone
    #[arg(short = '4')]
    ipv4: bool,
    /// IPv6 alone
    #[arg(short = '6')]
    ipv6: bool,
}

impl FamilyArgs {
    /// Whether it is wanted, or of no family: `default`, `*:80`.
    fn wants(self, address: &str) -> bool {
        let is_v6 = address.matches(':').count() > 1 || matches!(address, AUTO6 | "default6");
        match (self.ipv4, self.ipv6) {
            (true, false) => !is_v6,
            (false, true) => is_v6 || !address.contains('.'),
            _ => true,
        }
    }

    /// Whether IPv6 alone is wanted: it is what `default` means then.
    fn is_v6(self) -> bool {
        self.ipv6 && !self.ipv4
    }

    /// What is to be changed must be of the family that was asked for.
    fn check(self, address: &str) -> Result<(), Failure> {
        let family = if self.ipv4 { "IPv4" } else { "IPv6" };
        if self.wants(address) { Ok(()) } else { Err(Failure::Usage(format!("{address} is not {family}"))) }
    }
}

/// `bywash stats`.
pub(crate) fn stats(args: &StatsArgs) -> Result<bool, Failure> {
    let (_, behind) = Verb::of(&args.words, &[Verb::Show])?;
    if let Some(word) = behind.first() {
        return Err(Failure::Usage(format!("'{word}' is not known: write nothing behind 'show'")));
    }
    let args = &args.show;
    let value = answered(args, &Request::Stats {})?;
    if args.json {
        failure::print(&format!("{value}\n"));
        return Ok(true);
    }
    let stats: Stats = understood(value)?;
    let mut rows = Vec::new();
    let engines = stats.engines.into_iter().enumerate();
    let engines = engines.map(|(number, counted)| (format!("engine {number}"), counted));
    let control = [("control".to_owned(), stats.control)];
    for (what, counted) in stats.ports.into_iter().chain(control).chain(engines) {
        let counted = counted.into_iter().filter(|(_, count)| *count > 0);
        rows.extend(counted.map(|(name, count)| vec![what.clone(), name, count.to_string()]));
    }
    failure::print(&table(&rows));
    Ok(true)
}

fn answered(args: &ShowArgs, request: &Request) -> Result<serde_json::Value, Failure> {
    match ask(&args.name, request)? {
        Answer::Ok(value) => Ok(value),
        Answer::Error(why) => Err(Failure::Usage(why)),
    }
}

fn understood<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Result<T, Failure> {
    serde_json::from_value(value)
        .map_err(|error| Failure::Usage(format!("the instance is of another version: {error}")))
}

fn change(args: &ShowArgs, request: &Request) -> Result<bool, Failure> {
    answered(args, request).map(|_| true)
}

/// Takes each away that is there and wanted. What has gone in the meantime is as good as taken away; where one is still there, the
/// instance has said why, of which the first is told.
fn flush<T: serde::de::DeserializeOwned>(
    args: &ShowArgs,
    request: &Request,
    wanted: impl Fn(&T) -> bool,
    removal: impl Fn(T) -> Request,
) -> Result<bool, Failure> {
    let removals = || rows(args, request, &wanted).map(|rows| rows.into_iter().map(&removal));
    let mut refused = None;
    for removal in removals()? {
        if let Answer::Error(why) = ask(&args.name, &removal)?
            && removals()?.any(|left| left == removal)
        {
            refused.get_or_insert(why);
        }
    }
    refused.map_or(Ok(true), |why| Err(Failure::Usage(why)))
}

/// What is there and wanted.
fn rows<T: serde::de::DeserializeOwned>(
    args: &ShowArgs,
    request: &Request,
    wanted: impl Fn(&T) -> bool,
) -> Result<Vec<T>, Failure> {
    let mut rows: Vec<T> = understood(answered(args, request)?)?;
    rows.retain(wanted);
    Ok(rows)
}

fn show<T: serde::Serialize + serde::de::DeserializeOwned>(
    args: &ShowArgs,
    request: &Request,
    wanted: impl Fn(&T) -> bool,
    row: impl Fn(&T) -> Vec<String>,
) -> Result<bool, Failure> {
    let rows: Vec<T> = rows(args, request, wanted)?;
    if args.json {
        let text = serde_json::to_string(&rows).map_err(|error| Failure::Usage(error.to_string()))?;
        failure::print(&format!("{text}\n"));
        return Ok(true);
    }
    failure::print(&table(&rows.iter().map(row).collect::<Vec<_>>()));
    Ok(true)
}

/// Columns as wide as their widest cell, but for those that are empty.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.len()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).filter(|(_, width)| **width > 0);
        let cells = cells.map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        family: FamilyArgs,
    }

    #[test]
    fn both_families_are_as_none() {
        for (typed, v4, v6) in
            [("t", true, true), ("t -4", true, false), ("t -6", false, true), ("t -46", true, true)]
        {
            let family = Typed::try_parse_from(typed.split(' ')).unwrap().family;
            assert_eq!((family.wants("10.0.0.1"), family.wants("fd00::1")), (v4, v6), "{typed}");
            assert_eq!(family.check("10.0.0.1").is_ok(), v4, "{typed}");
            assert_eq!(family.is_v6(), !v4, "{typed}");
        }
    }
}
