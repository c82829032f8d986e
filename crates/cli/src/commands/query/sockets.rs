//! `bywash sockets`: which sockets are shown, in the words of `ss`, and how.

use bywash_engine::SocketInfo;
use bywash_engine::request::{
    Families, MemoryRow, Request, SocketDetails, SocketRow, SocketSummary, TimerRow,
};
use bywash_engine::scoped::{ScopedAddress, ScopedPrefix};

use super::words::Verb;
use super::{FamilyArgs, SHOW_EXAMPLES, ShowArgs, answered, rows, show, table, understood};
use crate::failure::{self, Failure};

/// What is shown of which sockets.
#[derive(clap::Args, Debug)]
#[command(after_help = SHOW_EXAMPLES)]
pub(crate) struct Args {
    /// Those of TCP
    #[arg(long, short)]
    tcp: bool,
    /// Those of UDP
    #[arg(long, short)]
    udp: bool,
    /// Those alone that listen
    #[arg(long, short)]
    listening: bool,
    /// All, which is so anyway
    #[arg(long, short, conflicts_with = "listening")]
    all: bool,
    /// Numbers in place of names, which is so anyway
    #[arg(long, short)]
    numeric: bool,
    /// Whose they are, which is the instance's own program and has nothing to show
    #[arg(long, short)]
    processes: bool,
    /// Who owns them, which is who runs the instance and has nothing to show
    #[arg(long, short)]
    extended: bool,
    /// Names in place of numbers, of which there are none
    #[arg(long, short)]
    resolve: bool,
    /// No line above them, which is so anyway
    #[arg(long, short = 'H')]
    no_header: bool,
    /// Of connections also what TCP knows of them: round trip, windows, losses
    #[arg(long, short)]
    info: bool,
    /// Also the packet memory of each
    #[arg(long, short)]
    memory: bool,
    /// Also the timer that comes next
    #[arg(long, short = 'o')]
    options: bool,
    /// How many there are of each kind, and nothing else
    #[arg(long, short, conflicts_with_all = ["tcp", "udp", "listening", "info", "memory", "options", "ipv4", "ipv6"])]
    summary: bool,
    /// show, which may be left out, and which, as ss writes it: state established, exclude time-wait, sport = :80, dport ge 1024, src 10.0.0.0/8, dst = 10.0.0.1, src :80; 'or' between them
    #[arg(value_name = "FILTER", allow_hyphen_values = false)]
    filter: Vec<String>,
    #[command(flatten)]
    family: FamilyArgs,
    #[command(flatten)]
    show: ShowArgs,
}

/// Shows them.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    let words = Verb::behind_show(&args.filter);
    if args.summary {
        return match words.first() {
            Some(word) => Err(Failure::Usage(format!("--summary counts all: leave '{word}' out"))),
            None => summary(&args.show),
        };
    }
    let filter = Filter::parse(words).map_err(Failure::Usage)?;
    let wanted = |row: &SocketRow| {
        let protocol = match row.protocol.as_str() {
            "tcp" => args.tcp || !args.udp,
            _ => args.udp || !args.tcp,
        };
        let listens = row.state == "LISTEN" || row.state == "UNCONN";
        protocol && args.family.wants(&row.local) && (listens || !args.listening) && filter.holds(row)
    };
    let details = SocketDetails { info: args.info, timer: args.options, memory: args.memory };
    let request = Request::Sockets(details);
    if args.show.json || !(args.info || args.memory) {
        return show(&args.show, &request, wanted, line);
    }
    let rows: Vec<SocketRow> = rows(&args.show, &request, wanted)?;
    let lines = table(&rows.iter().map(line).collect::<Vec<_>>());
    for (line, row) in lines.lines().zip(&rows) {
        failure::print(&format!("{line}\n"));
        let more = [row.memory.as_ref().map(memory), row.info.as_ref().map(SocketInfo::line)];
        let more: Vec<String> = more.into_iter().flatten().collect();
        if !more.is_empty() {
            failure::print(&format!("      {}\n", more.join(" ")));
        }
    }
    Ok(true)
}

/// As `ss -s` writes it.
fn summary(show: &ShowArgs) -> Result<bool, Failure> {
    let value = answered(show, &Request::SocketSummary {})?;
    if show.json {
        failure::print(&format!("{value}\n"));
        return Ok(true);
    }
    let SocketSummary { established, listening, syn_received, orphaned, time_wait, tcp, udp } =
        understood(value)?;
    failure::print(&format!(
        "Total: {}\nTCP:   {} (estab {established}, listen {listening}, synrecv {syn_received}, orphaned {orphaned}, timewait {time_wait})\n\n",
        tcp.total + udp.total,
        tcp.total
    ));
    let row = |name: &str, of: [String; 3]| std::iter::once(name.to_owned()).chain(of).collect::<Vec<_>>();
    let counts = |of: Families| [of.total, of.ipv4, of.ipv6].map(|count| count.to_string());
    let title = ["Total", "IP", "IPv6"].map(String::from);
    failure::print(&table(&[row("Transport", title), row("UDP", counts(udp)), row("TCP", counts(tcp))]));
    Ok(true)
}

/// As `ss -m` writes it, of what there is here.
fn memory(of: &MemoryRow) -> String {
    format!("skmem:(r{},rb{},w{},tb{})", of.rmem, of.rcvbuf, of.wmem, of.sndbuf)
}

/// As `ss -o` writes it.
fn timer(of: &TimerRow) -> String {
    format!("timer:({},{},{})", of.name, time_left(of.expires_us / 1000), of.retrans)
}

/// A time as ss has it: `12sec`, `1.200ms`, `119min`.
fn time_left(ms: u64) -> String {
    let (minutes, seconds, ms) = (ms / 60_000, ms / 1000 % 60, ms % 1000);
    match (minutes, seconds) {
        (0, 0) => format!("{ms:03}ms"),
        (0, 1..=9) if ms > 0 => format!("{seconds}.{ms:03}ms"),
        (0, _) => format!("{seconds}sec"),
        (10.., _) | (_, 0) => format!("{minutes}min"),
        _ => format!("{minutes}min{seconds}sec"),
    }
}

fn line(row: &SocketRow) -> Vec<String> {
    vec![
        row.protocol.clone(),
        row.state.clone(),
        row.receive_queue.to_string(),
        row.send_queue.to_string(),
        row.local.clone(),
        row.remote.clone(),
        row.engine.map_or_else(|| "all engines".into(), |engine| format!("engine {engine}")),
        row.timer.as_ref().map_or_else(String::new, timer),
    ]
}

/// What must hold: one of the states, and none of those excluded, and of what is parted by `or`, one in all its parts.
#[derive(Debug)]
struct Filter {
    states: Vec<&'static [&'static str]>,
    excluded: Vec<&'static [&'static str]>,
    ends: Vec<Vec<(End, Test)>>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Local,
    Remote,
}

#[derive(Debug)]
enum Test {
    Port(fn(&u16, &u16) -> bool, u16),
    /// A prefix, and a port, if there is one.
    Host(ScopedPrefix, Option<u16>),
    Not(Box<Self>),
}

/// The names of states, as ss(8) has them, and what `bywash sockets` shows.
const STATES: [(&str, &[&str]); 20] = [
    ("established", &["ESTAB"]),
    ("estab", &["ESTAB"]),
    ("syn-sent", &["SYN-SENT"]),
    ("syn-recv", &["SYN-RECV"]),
    ("syn-rcv", &["SYN-RECV"]),
    ("fin-wait-1", &["FIN-WAIT-1"]),
    ("fin-wait-2", &["FIN-WAIT-2"]),
    ("time-wait", &["TIME-WAIT"]),
    ("closed", &["CLOSED", "UNCONN"]),
    ("close", &["CLOSED", "UNCONN"]),
    ("unconnected", &["UNCONN"]),
    ("close-wait", &["CLOSE-WAIT"]),
    ("last-ack", &["LAST-ACK"]),
    ("closing", &["CLOSING"]),
    ("listening", &["LISTEN"]),
    ("listen", &["LISTEN"]),
    ("connected", ALL.split_at(9).0),
    ("synchronized", ALL.split_at(8).0),
    ("bucket", ALL.split_at(2).0),
    ("big", ALL.split_at(2).1),
];

/// In an order in which those that have a name together stand together.
const ALL: &[&str] = &[
    "TIME-WAIT",
    "SYN-RECV",
    "ESTAB",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "CLOSE-WAIT",
    "LAST-ACK",
    "CLOSING",
    "SYN-SENT",
    "LISTEN",
    "CLOSED",
    "UNCONN",
];

impl Filter {
    fn parse(words: &[String]) -> Result<Self, String> {
        let (mut states, mut excluded, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut all = Vec::new();
        let mut words = words.iter().flat_map(|words| words.split_whitespace()).peekable();
        while let Some(word) = words.next() {
            let mut next = |what: &str| words.next().ok_or(format!("nothing follows '{word}': write {what}"));
            match word {
                "and" | "&" | "&&" => {}
                "or" | "|" | "||" if all.is_empty() => {
                    return Err(format!(
                        "nothing stands before '{word}': write sport = :80 or sport = :81, say"
                    ));
                }
                "or" | "|" | "||" => ends.push(std::mem::take(&mut all)),
                "state" | "exclude" => {
                    let name = next(&format!("{word} established, say"))?.to_lowercase();
                    if word == "state" && name == "all" {
                        continue;
                    }
                    let known = STATES.iter().find(|(known, _)| *known == name);
                    let names = || STATES.map(|(name, _)| name).join(", ");
                    let (_, known) =
                        known.ok_or_else(|| format!("'{name}' is no state: write {}", names()))?;
                    if word == "state" { &mut states } else { &mut excluded }.push(*known);
                }
                "sport" | "dport" => {
                    let end = if word == "sport" { End::Local } else { End::Remote };
                    let mut text = next("sport = :80, say")?;
                    let compare = compared(text);
                    if compare.is_some() {
                        text = next("sport = :80, say")?;
                    }
                    let port = port(text.trim_start_matches(':'));
                    let port = port.ok_or_else(|| format!("'{text}' is no port: write {word} = :80, say"))?;
                    all.push((end, Test::Port(compare.unwrap_or(u16::eq), port)));
                }
                "src" | "dst" => {
                    let end = if word == "src" { End::Local } else { End::Remote };
                    let mut text = next("src 10.0.0.0/8, say")?;
                    let differs = matches!(text, "!=" | "ne" | "neq");
                    if differs || matches!(text, "=" | "==" | "eq") {
                        text = next("src = 10.0.0.0/8, say")?;
                    }
                    let host = host(text).ok_or(format!(
                        "'{text}' is no address: write {word} 10.0.0.1, 10.0.0.0/8:80 or :80, say"
                    ))?;
                    all.push((end, if differs { Test::Not(Box::new(host)) } else { host }));
                }
                _ => {
                    return Err(format!(
                        "'{word}' is not known: write state, exclude, sport, dport, src or dst, and 'or' between them"
                    ));
                }
            }
        }
        if all.is_empty() && !ends.is_empty() {
            return Err("nothing follows 'or': write sport = :80 or sport = :81, say".into());
        }
        ends.push(all);
        Ok(Self { states, excluded, ends })
    }

    fn holds(&self, row: &SocketRow) -> bool {
        let is_in = |states: &[&[&str]]| states.iter().any(|of| of.contains(&row.state.as_str()));
        let state = (self.states.is_empty() || is_in(&self.states)) && !is_in(&self.excluded);
        state && self.ends.iter().any(|all| all.iter().all(|(end, test)| test.holds(*end, row)))
    }
}

impl Test {
    fn holds(&self, end: End, row: &SocketRow) -> bool {
        let text = match end {
            End::Local => &row.local,
            End::Remote => &row.remote,
        };
        // A listener has no port at the other end, which is 0, as with ss.
        let (address, port) = text.rsplit_once(':').unwrap_or((text, ""));
        let (address, port) =
            (ScopedAddress::of(address.trim_matches(['[', ']'])), port.parse().unwrap_or(0));
        match self {
            Self::Port(compare, wanted) => compare(&port, wanted),
            Self::Host(prefix, wanted) => {
                wanted.is_none_or(|wanted| port == wanted)
                    && address.is_ok_and(|address| prefix.contains(&address))
            }
            Self::Not(test) => !test.holds(end, row),
        }
    }
}

/// A port by its number, or by the name that services(5) has for it.
fn port(text: &str) -> Option<u16> {
    let by_name = || service(text, &std::fs::read_to_string("/etc/services").unwrap_or_default());
    text.parse().ok().or_else(by_name)
}

/// The port of a service in a file as services(5) has it. Of the same name TCP and UDP have the same.
fn service(name: &str, services: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (first, port) = (words.next()?, words.next()?.split('/').next()?);
        let is_it = first == name || words.any(|alias| alias == name);
        port.parse().ok().filter(|_| is_it)
    })
}

fn compared(word: &str) -> Option<fn(&u16, &u16) -> bool> {
    match word {
        "=" | "==" | "eq" => Some(u16::eq),
        "!=" | "ne" | "neq" => Some(u16::ne),
        "<" | "lt" => Some(u16::lt),
        ">" | "gt" => Some(u16::gt),
        "<=" | "le" | "leq" => Some(u16::le),
        ">=" | "ge" | "geq" => Some(u16::ge),
        _ => None,
    }
}

/// `10.0.0.1`, `10.0.0.0/8`, either with `:80`, IPv6's in brackets then; link-local ones with their interface or without; `:80` and
/// `*:80` are of any address.
fn host(text: &str) -> Option<Test> {
    if let Some(name) = text.strip_prefix('*').unwrap_or(text).strip_prefix(':')
        && let Some(port) = port(name)
    {
        return Some(Test::Port(u16::eq, port));
    }
    let prefix = |text: &str| ScopedPrefix::of(text.trim_matches(['[', ']'])).ok();
    if let Some(prefix) = prefix(text) {
        return Some(Test::Host(prefix, None));
    }
    let (address, name) = text.rsplit_once(':')?;
    Some(Test::Host(prefix(address)?, Some(port(name)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(filter: &str) -> Vec<usize> {
        let rows = [
            ("LISTEN", "*:80", "*"),
            ("ESTAB", "10.0.0.2:80", "10.0.0.1:40000"),
            ("ESTAB", "[fd00::2]:40001", "[fd00::1]:443"),
            ("TIME-WAIT", "10.0.0.2:80", "10.9.0.1:40002"),
            ("SYN-SENT", "10.0.0.2:40003", "10.0.0.1:22"),
            ("FIN-WAIT-2", "[fe80::2%eth1]:40004", "[fe80::1%eth1]:443"),
        ];
        let filter = Filter::parse(&[filter.to_owned()]).unwrap();
        let fits = |(state, local, remote): (&str, &str, &str)| {
            filter.holds(&SocketRow {
                protocol: "tcp".into(),
                state: state.into(),
                receive_queue: 0,
                send_queue: 0,
                local: local.into(),
                remote: remote.into(),
                engine: Some(0),
                info: None,
                timer: None,
                memory: None,
            })
        };
        (0..rows.len()).filter(|at| fits(rows[*at])).collect()
    }

    #[test]
    fn times_are_written_as_ss_does() {
        for (ms, written) in [
            (0, "000ms"),
            (199, "199ms"),
            (1200, "1.200ms"),
            (9000, "9sec"),
            (12_345, "12sec"),
            (60_000, "1min"),
            (125_000, "2min5sec"),
            (7_199_000, "119min"),
        ] {
            assert_eq!(time_left(ms), written);
        }
    }

    #[test]
    fn services_have_names() {
        let file = "# a comment\nhttp\t\t80/tcp\t\twww # more\nssh 22/tcp\ndomain 53/udp\nbad\nworse x/tcp\n";
        for (name, port) in
            [("http", Some(80)), ("www", Some(80)), ("ssh", Some(22)), ("domain", Some(53)), ("more", None)]
        {
            assert_eq!(service(name, file), port, "{name}");
        }
        assert!(["bad", "worse", "#", ""].iter().all(|name| service(name, file).is_none()));
        assert_eq!((port("443"), port("no-service")), (Some(443), None));
    }

    #[test]
    fn filters_are_those_of_ss() {
        for (filter, expected) in [
            ("", &[0, 1, 2, 3, 4, 5][..]),
            ("state established", &[1, 2]),
            ("state listening state time-wait", &[0, 3]),
            ("state connected", &[1, 2, 3, 4, 5]),
            ("state synchronized", &[1, 2, 3, 5]),
            ("state big", &[0, 1, 2, 4, 5]),
            ("state bucket", &[3]),
            ("exclude listening", &[1, 2, 3, 4, 5]),
            ("state connected exclude established exclude time-wait", &[4, 5]),
            ("exclude bucket sport = :80", &[0, 1]),
            ("sport = :80", &[0, 1, 3]),
            ("sport :80 and dport gt 40000", &[3]),
            ("dport = 443", &[2, 5]),
            ("dport le 443", &[0, 2, 4, 5]),
            ("dport != :22", &[0, 1, 2, 3, 5]),
            ("dport = :0", &[0]),
            ("dst ne :443", &[0, 1, 3, 4]),
            ("src 10.0.0.2 dst 10.0.0.0/24", &[1, 4]),
            ("dst [fd00::1]:443", &[2]),
            ("dst 10.0.0.1:22", &[4]),
            ("dst [fe80::1%eth1]:443", &[5]),
            ("dst fe80::%eth1/64 src fe80::2", &[5]),
            ("dst [fe80::1%eth2]:443", &[]),
            ("src fd00::/64", &[2]),
            ("src :80", &[0, 1, 3]),
            ("src = *:80 dst = 10.0.0.1", &[1]),
            ("dst eq 10.0.0.1:22", &[4]),
            ("dst != 10.0.0.0/8", &[0, 2, 5]),
            ("src ne :80", &[2, 4, 5]),
            ("src ::1", &[]),
            ("dport = :443 or dport = :22", &[2, 4, 5]),
            ("sport = :80 dst 10.9.0.1 or src fd00::2 and dport = :443", &[2, 3]),
            ("state established sport = :80 or dport = :443 or dport = :22", &[1, 2]),
        ] {
            assert_eq!(shown(filter), expected, "{filter}");
        }
        for (filter, says) in [
            ("state open", "'open' is no state"),
            ("sport", "nothing follows 'sport'"),
            ("exclude all", "'all' is no state"),
            ("sport = :no-service", "':no-service' is no port"),
            ("dst 10.0.0.1:no-service", "'10.0.0.1:no-service' is no address"),
            ("src eth1", "'eth1' is no address"),
            ("dst > :80", "'>' is no address"),
            ("dst =", "nothing follows 'dst'"),
            ("sport = :80 or", "nothing follows 'or'"),
            ("state listening or sport = :80", "nothing stands before 'or'"),
            ("sport = :80 but sport = :81", "'but' is not known"),
        ] {
            let why = Filter::parse(&[filter.to_owned()]).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
