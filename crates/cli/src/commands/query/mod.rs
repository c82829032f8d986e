//! `bywash addr`, `route`, `neigh`, `sockets` and `stats`: what iproute2 and ss are to the kernel, to an instance.

pub(super) mod sockets;

use bywash_engine::request::{
    AddressRow, Answer, NeighbourRow, Request, RouteRow, RouteWords, Stats, WayRow,
};
use bywash_engine::socket::ask;
use bywash_engine::stack::Prefix;

use super::serve::DEFAULT_NAME;
use crate::failure::{self, Failure};

const EXAMPLES: &str = "\
Examples:
  bywash addr                                       show the addresses of the instance `default`
  bywash addr add 10.0.0.3/24 dev eth1 --name web   give another one to eth1 of the instance `web`
  bywash addr add 10.0.0.4/24 dad                   if no other station has it: IPv6 always looks (see RFC 5227)
  bywash addr del 10.0.0.3
  bywash addr add auto6 dev eth1                    IPv6 as the routers of eth1's link say
  bywash addr show dev eth1
  bywash route add 10.1.0.0/16 via 10.0.0.1 metric 5
  bywash route del default
  bywash route show default
  bywash route get 192.0.2.7                        which way packets go there
  bywash neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev eth1
  bywash neigh --json

Exit codes: 0 done; 2 the instance refuses, or there is none";

/// Below the options of what only shows.
pub(super) const SHOW_EXAMPLES: &str = "\
Examples:
  bywash sockets -ti state established   what is connected, with round trips, windows and losses
  bywash sockets                    what listens and what is connected in the instance `default`
  bywash stats --name web --json    all that the instance `web` counts

Exit codes: 0 done; 2 there is no such instance, or it is another user's";

/// Show or change something of a running instance.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// show, add or del, and what, as iproute2 writes it
    #[arg(value_name = "WORDS")]
    words: Vec<String>,
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
    #[arg(long)]
    json: bool,
}

/// What is to be done.
enum Verb<'a> {
    /// All, or what fits a word.
    Show(Option<&'a str>),
    /// Which way packets to an address go.
    Get(&'a str),
    Add(&'a str),
    Delete(&'a str),
}

/// A verb, its object, and what follows: words by pairs, and words alone.
struct Words<'a> {
    verb: Verb<'a>,
    pairs: Vec<(&'a str, &'a str)>,
    flags: Vec<&'a str>,
}

impl<'a> Words<'a> {
    /// `known` names the pairs that there may be, `flags` the words that may stand alone behind `add`.
    fn parse(words: &'a [String], known: &[&str], flags: &[&str]) -> Result<Self, Failure> {
        let mut words = words.iter().map(String::as_str).peekable();
        let verb = match words.next() {
            None => Verb::Show(None),
            Some("show" | "list" | "ls") => Verb::Show(words.next_if(|word| !known.contains(word))),
            Some("get") => Verb::Get(
                words.next().ok_or_else(|| Failure::Usage("get what? An address must follow".into()))?,
            ),
            Some(verb @ ("add" | "del" | "delete")) => {
                let object = words.next();
                let object =
                    object.ok_or_else(|| Failure::Usage(format!("{verb} what? An address must follow")))?;
                if verb == "add" { Verb::Add(object) } else { Verb::Delete(object) }
            }
            Some(word) => {
                return Err(Failure::Usage(format!("'{word}' is not known: write show, add or del")));
            }
        };
        let known = if matches!(verb, Verb::Get(_)) { &[] } else { known };
        let flags = if matches!(verb, Verb::Add(_)) { flags } else { &[] };
        let (mut pairs, mut alone) = (Vec::new(), Vec::new());
        while let Some(word) = words.next() {
            if flags.contains(&word) {
                alone.push(word);
                continue;
            }
            if !known.contains(&word) {
                let all = [known, flags].concat();
                let all = if all.is_empty() { "nothing behind it".into() } else { all.join(", ") };
                return Err(Failure::Usage(format!("'{word}' is not known: write {all}")));
            }
            let value = words.next().ok_or_else(|| Failure::Usage(format!("nothing follows '{word}'")))?;
            pairs.push((word, value));
        }
        Ok(Self { verb, pairs, flags: alone })
    }

    fn value(&self, name: &str) -> Option<String> {
        self.pairs.iter().find(|(word, _)| *word == name).map(|(_, value)| (*value).to_owned())
    }
}

/// `bywash addr`.
pub(crate) fn addresses(args: &Args) -> Result<bool, Failure> {
    let words = Words::parse(&args.words, &["dev"], &["dad"])?;
    let interface = words.value("dev");
    let request = match words.verb {
        Verb::Show(word) => {
            // A bare word is an interface, as `ip addr show eth1` has it.
            let request = Request::Addresses { interface: interface.or(word.map(Into::into)) };
            return show(&args.show, &request, |_| true, address_line);
        }
        Verb::Get(_) => return Err(Failure::Usage("'get' is for route: write show, add or del".into())),
        Verb::Add(address) => {
            let dad = words.flags.contains(&"dad");
            Request::AddAddress { address: address.into(), interface, dad }
        }
        Verb::Delete(address) => Request::RemoveAddress { address: address.into(), interface },
    };
    change(&args.show, &request)
}

fn address_line(row: &AddressRow) -> Vec<String> {
    let lasts = |seconds: Option<u64>| seconds.map_or_else(|| "forever".into(), |left| format!("{left}sec"));
    let (valid, preferred) = (lasts(row.valid_life_time), lasts(row.preferred_life_time));
    vec![
        row.interface.clone(),
        row.address.clone(),
        row.state.clone(),
        row.mac.clone().unwrap_or_default(),
        format!("mtu {}", row.mtu),
        if row.dynamic {
            format!("dynamic valid_lft {valid} preferred_lft {preferred}")
        } else {
            String::new()
        },
        claims(row),
    ]
}

/// Who else says that an address is theirs.
fn claims(row: &AddressRow) -> String {
    match (row.claims, &row.claimed_by) {
        (0, _) => String::new(),
        (count, None) => format!("claimed {count}"),
        (count, Some(mac)) => format!("claimed {count} by {mac}"),
    }
}

/// `bywash route`.
pub(crate) fn routes(args: &Args) -> Result<bool, Failure> {
    let words = Words::parse(&args.words, &["via", "dev", "metric", "proto"], &[])?;
    let metric = words.value("metric").map(|text| {
        text.parse().map_err(|_| Failure::Usage(format!("'{text}' is no metric: write a number from 0")))
    });
    let metric = metric.transpose()?;
    let route = |prefix: &str| RouteWords {
        prefix: prefix.into(),
        gateway: words.value("via"),
        interface: words.value("dev"),
        metric,
    };
    let request = match words.verb {
        Verb::Show(word) => {
            let prefixes = word.map(prefixes).transpose()?;
            let (via, proto) = (words.value("via"), words.value("proto"));
            let wanted = |row: &RouteRow| {
                prefixes.as_ref().is_none_or(|prefixes| prefixes.contains(&row.prefix))
                    && via.as_ref().is_none_or(|via| row.gateway.as_ref() == Some(via))
                    && proto.as_ref().is_none_or(|proto| row.protocol == *proto)
                    && metric.is_none_or(|metric| row.metric == metric)
            };
            let request = Request::Routes { interface: words.value("dev") };
            return show(&args.show, &request, wanted, route_line);
        }
        Verb::Get(address) => return way(&args.show, address),
        _ if words.value("proto").is_some() => {
            return Err(Failure::Usage("'proto' is for show: what is added is static".into()));
        }
        Verb::Add(prefix) => Request::AddRoute(route(prefix)),
        Verb::Delete(prefix) => Request::RemoveRoute(route(prefix)),
    };
    change(&args.show, &request)
}

/// What `default` or a prefix is called in a [`RouteRow`]; an address alone is a prefix of all its bits.
fn prefixes(word: &str) -> Result<Vec<String>, Failure> {
    match word {
        "default" => return Ok(vec!["0.0.0.0/0".into(), "::/0".into()]),
        "default6" => return Ok(vec!["::/0".into()]),
        _ => {}
    }
    let whole = match word.parse() {
        Ok(std::net::IpAddr::V4(_)) => format!("{word}/32"),
        Ok(std::net::IpAddr::V6(_)) => format!("{word}/128"),
        Err(_) => word.into(),
    };
    let prefix: Prefix = whole.parse().map_err(|error| Failure::Usage(format!("{error}")))?;
    let network = prefix.network();
    Ok(vec![format!("{}/{}", network.address().ip(), network.length())])
}

fn route_line(row: &RouteRow) -> Vec<String> {
    let expires = row.expires.map_or_else(String::new, |seconds| format!("expires {seconds}sec"));
    vec![
        row.prefix.clone(),
        row.gateway.as_ref().map_or_else(String::new, |gateway| format!("via {gateway}")),
        format!("dev {}", row.interface),
        format!("proto {}", row.protocol),
        format!("metric {}", row.metric),
        expires,
    ]
}

/// `bywash route get`.
fn way(args: &ShowArgs, address: &str) -> Result<bool, Failure> {
    let value = answered(args, &Request::Way { address: address.into() })?;
    if args.json {
        failure::print(&format!("{value}\n"));
        return Ok(true);
    }
    let WayRow { destination, gateway, interface, source } = understood(value)?;
    let via = gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
    let source = source.map_or_else(String::new, |source| format!(" src {source}"));
    failure::print(&format!("{destination}{via} dev {interface}{source}\n"));
    Ok(true)
}

/// `bywash neigh`.
pub(crate) fn neighbours(args: &Args) -> Result<bool, Failure> {
    let words = Words::parse(&args.words, &["lladdr", "dev", "nud"], &[])?;
    let interface = words.value("dev");
    let request = match words.verb {
        Verb::Show(word) => {
            let nud = words.value("nud");
            let wanted = |row: &NeighbourRow| {
                word.is_none_or(|address| row.address == address)
                    && nud.as_ref().is_none_or(|state| row.state == *state)
            };
            return show(&args.show, &Request::Neighbours { interface }, wanted, |row: &NeighbourRow| {
                vec![
                    row.address.clone(),
                    format!("dev {}", row.interface),
                    row.mac.clone().unwrap_or_default(),
                    row.state.clone(),
                ]
            });
        }
        Verb::Get(_) => return Err(Failure::Usage("'get' is for route: write show, add or del".into())),
        _ if words.value("nud").is_some() => {
            return Err(Failure::Usage("'nud' is for show: what is added is permanent".into()));
        }
        Verb::Add(address) => {
            let mac = words.value("lladdr");
            let mac =
                mac.ok_or_else(|| Failure::Usage("its Ethernet address must follow: lladdr MAC".into()))?;
            Request::AddNeighbour { address: address.into(), mac, interface }
        }
        Verb::Delete(address) => Request::RemoveNeighbour { address: address.into(), interface },
    };
    change(&args.show, &request)
}

/// `bywash stats`.
pub(crate) fn stats(args: &ShowArgs) -> Result<bool, Failure> {
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

/// Columns as wide as their widest cell.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.len()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
