//! Benchmark `flood`: what clients of a web and of a DNS server still get while a flood comes in by the same interface, by
//! who drops it.
//!
//! The flood comes out of the kernel's live test runs on core 0; servers and clients share core 1. The bound is the same
//! flood sent to another interface, where nobody hears it: what is missing of that is the filter's doing. How many packets
//! of a flood flat out die is shown as well, without clients: the filters work on the sender's core, so the dearer a
//! filter is, the less flood there is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::pairs::Spread;
use super::record::Record;
use super::{Options, inject, ours};
use crate::project::{Problem, about};
use crate::tools;

/// Packets per second of the flood: what the slowest of the filters can take here, so that it is the same flood for all.
const RATE: &str = "500k";

/// How long a scene may take beyond its clients': `xdp-filter` is started once for each of ten thousand addresses, 3 ms each here.
/// The scene itself waits for a filter half as long.
const SET_UP: Duration = Duration::from_secs(240);

/// What is run in a namespace of its own.
const SCENE: &str = include_str!("flood/scene.sh");

/// Who drops the flood, as the scene knows them. The first is the bound. The second is the same with an XDP program on the
/// clients' interface that passes all of theirs: what XDP itself costs on a veth, which copies each packet for it. The third
/// is no filter at all. Ours is at TCX here, since that is a veth, unless it is told to be in XDP.
const FILTERS: [&str; 11] = [
    "other link",
    "other link, XDP",
    UNFILTERED,
    OURS,
    "bywash filter, XDP",
    TOOLS[0],
    TOOLS[1],
    TOOLS[2],
    TOOLS[3],
    "one compare, XDP",
    "one compare, TCX",
];

/// Who drops nothing.
const UNFILTERED: &str = "nothing";

/// Ours, where it is by itself.
const OURS: &str = "bywash filter";

/// What an operator could have in its place.
const TOOLS: [&str; 4] = ["xdp-filter", "nftables", "iptables", "tc cls_bpf"];

/// What must be left to the web server's clients, of the bound.
const AIM: f64 = 0.95;

/// A set of rules and a flood of which every packet is for one of them.
struct Rules {
    number: usize,
    name: &'static str,
    /// Ports and sources of the flood, as `generate` takes them.
    ports: &'static str,
    sources: &'static str,
    /// Those that can't say it.
    without: &'static [&'static str],
}

const RULES: [Rules; 3] = [
    Rules {
        number: 1,
        name: "One rule: a UDP port",
        ports: "7000",
        sources: "172.16.0.0/12 random",
        without: &[],
    },
    Rules {
        number: 100,
        name: "A hundred rules: a UDP port each",
        ports: "7000-7099",
        sources: "172.16.0.0/12 random",
        without: &["one compare, XDP", "one compare, TCX"],
    },
    Rules {
        number: 10_000,
        name: "Ten thousand rules: a source prefix each",
        ports: "7000",
        sources: "20.0.0.1-20.78.30.1 step 512",
        without: &[],
    },
];

/// What one run has shown.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shown {
    /// Answers of the web server in a second.
    requests: f64,
    /// Milliseconds that 99 of 100 of them took at most.
    late: f64,
    /// Answers of the DNS server in a second.
    answers: f64,
    /// Milliseconds that 99 of 100 of them took at most.
    answers_late: f64,
    /// Per cent of the DNS queries that had no answer.
    lost: f64,
}

pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let drop = inject::build_drop(record)?;
    let folder = std::env::temp_dir().join(format!("bywash-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(about(folder.display()))?;
    let measured = measure(record, options, [&binary, &drop], &folder);
    // What is left in the temporary directory does no harm.
    let _ = fs::remove_dir_all(&folder);
    measured
}

fn measure(
    record: &mut Record,
    options: &Options,
    programs: [&PathBuf; 2],
    folder: &Path,
) -> Result<String, Problem> {
    let mut text = format!(
        "The flood is {RATE} packets/s of 64 bytes on core 0, its sources and ports changing. Servers and clients are on core 1: 16 \
         connections that ask for a short page, 2000 DNS queries a second; each core has a queue of the interface. {} runs of {} s each, all filters in turn; \
         the bound is the same flood to another interface; `other link, XDP`: the same, with a program on the clients' interface that \
         passes all of theirs. `bywash filter` is at TCX, as it chooses on a veth. Ten thousand rules are so many of its rules and of iptables', each \
         with a counter of its own, and one set of nftables'. `xdp-filter` knows no prefixes: it is told the one address \
         in each of them that the flood comes from. `tc cls_bpf` runs classic BPF for 1 and 100 rules; the 4096 instructions that may have \
         do not hold 10 000, for which it runs an eBPF program that looks sources up in an LPM trie. Flat out: packets/s that die when \
         nothing holds the sender back, without clients.\n",
        options.pairs, options.seconds
    );
    for rules in &RULES {
        let folder = &folder.join(rules.number.to_string());
        fs::create_dir_all(folder).map_err(about(folder.display()))?;
        for (name, text) in written(rules) {
            fs::write(folder.join(name), text).map_err(about(folder.join(name).display()))?;
        }
        let filters: Vec<_> = FILTERS.into_iter().filter(|filter| !rules.without.contains(filter)).collect();
        let mut scene = |filter: &str, rate: &str| {
            let mut command = Command::new("unshare");
            command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
            command.args(["sh", "-c", SCENE, "sh", filter]).arg(folder).args([
                rate,
                rules.ports,
                rules.sources,
            ]);
            command.arg(options.seconds.to_string()).args(programs).envs(tools::environment());
            let output = record.run(&mut command, Duration::from_secs(options.seconds.into()) + SET_UP)?;
            // One that could not be set up would be compared for dropping nothing.
            let (sent, through) =
                (ours::number(&ours::summary_in(&output)?, "/tx_packets")?, came_through(&output));
            match through {
                Some(through) if (filter == UNFILTERED) == (through > sent / 100.0) => Ok(output),
                _ => {
                    Err(Problem(format!("of {sent} packets {filter} has let {through:?} through:\n{output}")))
                }
            }
        };
        let mut shown = vec![Vec::new(); filters.len()];
        for _ in 0..options.pairs {
            for (filter, all) in filters.iter().zip(&mut shown) {
                let output = scene(filter, RATE)?;
                let one =
                    read(&output).ok_or_else(|| Problem(format!("{filter} has shown nothing:\n{output}")))?;
                all.push(one);
            }
        }
        let mut rates = Vec::new();
        for filter in &filters {
            let summary = ours::summary_in(&scene(filter, "max")?)?;
            rates.push(died(&summary)? / 1e6);
        }
        text.push_str(&table(rules, &filters, &shown, &rates));
    }
    Ok(text)
}

/// Packets of the flood that the server's kernel has looked for a socket for.
fn came_through(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix("came through:"))?.trim().parse().ok()
}

/// Packets/s that were taken by the other end, dropped by it or not.
fn died(summary: &Value) -> Result<f64, Problem> {
    Ok(ours::number(summary, "/tx_packets")? / ours::number(summary, "/duration_s")?)
}

fn table(rules: &Rules, filters: &[&str], shown: &[Vec<Shown>], rates: &[f64]) -> String {
    let mut text = format!(
        "\n{}\n\n| who drops | requests/s | of the bound | p99, ms | DNS answers/s | DNS p99, ms | DNS lost, % | flat out, Mpps |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
        rules.name
    );
    let figures = |all: &[Shown], of: fn(&Shown) -> f64| Spread::of(&all.iter().map(of).collect::<Vec<_>>());
    for ((filter, all), rate) in filters.iter().zip(shown).zip(rates) {
        let ratios: Vec<_> =
            all.iter().zip(&shown[0]).map(|(one, bound)| one.requests / bound.requests).collect();
        let (requests, ratio) = (figures(all, |one| one.requests), Spread::of(&ratios));
        let (late, lost) = (figures(all, |one| one.late), figures(all, |one| one.lost));
        let (answers, answers_late) = (figures(all, |one| one.answers), figures(all, |one| one.answers_late));
        text.push_str(&format!(
            "| {filter} | {:.0} ({:.0} to {:.0}) | {:.2} ({:.2} to {:.2}) | {:.1} ({:.1} to {:.1}) | {:.0} ({:.0} to {:.0}) | {:.2} ({:.2} to {:.2}) | {:.2} | \
             {rate:.2} |\n",
            requests.median,
            requests.min,
            requests.max,
            ratio.median,
            ratio.min,
            ratio.max,
            late.median,
            late.min,
            late.max,
            answers.median,
            answers.min,
            answers.max,
            answers_late.median,
            answers_late.min,
            answers_late.max,
            lost.median,
        ));
    }
    text.push_str(&verdict(filters, shown));
    text
}

/// How much of the bound is left with ours, and which tools leave more in each run than ours in any.
fn verdict(filters: &[&str], shown: &[Vec<Shown>]) -> String {
    let of_bound = |filter: &str| {
        let at = filters.iter().position(|other| *other == filter)?;
        let ratios = shown[at].iter().zip(&shown[0]).map(|(one, bound)| one.requests / bound.requests);
        Some(Spread::of(&ratios.collect::<Vec<_>>()))
    };
    let Some(ours) = of_bound(OURS) else { return String::new() };
    let better = |tool: &&str| of_bound(tool).is_some_and(|theirs| theirs.min > ours.max);
    let better: Vec<_> = TOOLS.into_iter().filter(better).collect();
    let verdict = if ours.median >= AIM && better.is_empty() { "reached" } else { "not reached" };
    let better = if better.is_empty() { "none".to_owned() } else { better.join(", ") };
    format!(
        "\nAt least {AIM} of the bound, and no tool that leaves more by more than the spread (better in its worst run than ours in its \
         best: {better}): {verdict}, with {:.3}.\n",
        ours.median
    )
}

/// The rules in each filter's language: names of files, and what is in them.
fn written(rules: &Rules) -> Vec<(&'static str, String)> {
    let ports: Vec<_> = (7000..7000 + rules.number.min(100)).collect();
    let ingress = |lines: &str| format!("table netdev flood {{\n{lines}\n}}\n");
    let chain = "chain ingress {\ntype filter hook ingress device far priority 0;\n";
    let iptables = |lines: String| format!("*raw\n{lines}COMMIT\n");
    let xdp_filter =
        |features: &str, lines: String| format!("xdp-filter load far -f {features} -p allow\n{lines}");
    if rules.number <= ports.len() {
        let each = |line: fn(&usize) -> String| ports.iter().map(line).collect::<String>();
        let ours = |port: &usize| {
            format!("[[rule]]\nname = \"{port}\"\nmatch = \"udp\"\nto_ports = [{port}]\naction = \"drop\"\n")
        };
        return vec![
            ("bywash.toml", each(ours)),
            (
                "xdp-filter.sh",
                xdp_filter("udp", each(|port| format!("xdp-filter port {port} -m dst -p udp\n"))),
            ),
            ("nft", ingress(&format!("{chain}{}}}", each(|port| format!("udp dport {port} drop\n"))))),
            ("iptables", iptables(each(|port| format!("-A PREROUTING -p udp --dport {port} -j DROP\n")))),
            ("classic-bpf", classic_bpf(&ports)),
        ];
    }
    let prefixes = sources(rules.number, "0/24");
    let set = format!(
        "set bad {{\ntype ipv4_addr; flags interval;\nelements = {{ {} }}\n}}\n",
        prefixes.join(", ")
    );
    let each = |of: &[String], line: fn(&String) -> String| of.iter().map(line).collect::<String>();
    let addresses = each(&sources(rules.number, "1"), |address| format!("xdp-filter ip {address} -m src\n"));
    let ours = each(&prefixes, |prefix| {
        format!("[[rule]]\nname = \"{prefix}\"\nfrom = [\"{prefix}\"]\naction = \"drop\"\n")
    });
    let drops = each(&prefixes, |prefix| format!("-A PREROUTING -s {prefix} -j DROP\n"));
    vec![
        ("prefixes.txt", prefixes.join("\n") + "\n"),
        ("bywash.toml", ours),
        ("xdp-filter.sh", xdp_filter("ipv4", addresses)),
        ("nft", ingress(&format!("{set}{chain}ip saddr @bad drop\n}}"))),
        ("iptables", iptables(drops)),
    ]
}

/// A program for tc's classifier `bpf` that has UDP datagrams over IPv4 to the ports dropped: classic BPF, as `tc filter ... bpf
/// bytecode-file` reads it, that says itself what is done with the packet.
fn classic_bpf(ports: &[usize]) -> String {
    // Codes as in <linux/bpf_common.h>: loads of two and of one byte, the header's length, a load behind it, comparisons.
    let (half, byte, length, behind) = ((0x28, 0, 0), (0x30, 0, 0), (0xb1, 0, 0), (0x48, 0, 0));
    let (count, equal, any, end) = (ports.len(), 0x15, 0x45, 0x06);
    let mut program = vec![
        (half, 12),
        ((equal, 0, count + 6), 0x800),
        (byte, 23),
        ((equal, 0, count + 4), 17),
        (half, 20),
        ((any, count + 2, 0), 0x1fff),
        (length, 14),
        (behind, 16),
    ];
    program.extend(ports.iter().enumerate().map(|(at, port)| ((equal, count - at, 0), *port)));
    // TC_ACT_OK and TC_ACT_SHOT of <linux/pkt_cls.h>.
    program.extend([((end, 0, 0), 0), ((end, 0, 0), 2)]);
    let lines: Vec<_> =
        program.iter().map(|((code, yes, no), operand)| format!("{code} {yes} {no} {operand}")).collect();
    format!("{},{}", lines.len(), lines.join(","))
}

/// In each second /24 of 20.0.0.0/8, so that no two make one prefix, what ends with this: the prefix or an address.
fn sources(number: usize, end: &str) -> Vec<String> {
    (0..number).map(|n| format!("20.{}.{}.{end}", n / 128, n % 128 * 2)).collect()
}

/// What wrk and dnsperf have printed, and the scene of dnsperf's answers.
fn read(output: &str) -> Option<Shown> {
    let behind = |label: &str| output.lines().find_map(|line| line.trim().strip_prefix(label)).map(str::trim);
    let requests = behind("Requests/sec:")?.parse().ok()?;
    let late = milliseconds(behind("99%")?)?;
    let lost = behind("Queries lost:")?.split_once('(')?.1.split_once('%')?.0.parse().ok()?;
    let [answers, answers_late] = [behind("DNS answers/s:")?, behind("DNS p99, ms:")?].map(str::parse);
    Some(Shown { requests, late, answers: answers.ok()?, answers_late: answers_late.ok()?, lost })
}

/// A time as wrk prints it.
fn milliseconds(text: &str) -> Option<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        "m" => 6e4,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn what_the_clients_print_is_read() {
        let output = "  Latency Distribution\n     50%  409.00us\n     99%    1.95ms\nRequests/sec:  38691.53\n\
                      Statistics:\n\n  Queries sent:         6000\n  Queries lost:         3 (0.05%)\n\
                      DNS answers/s: 1999.0\nDNS p99, ms: 0.731\n";
        let shown =
            Shown { requests: 38691.53, late: 1.95, answers: 1999.0, answers_late: 0.731, lost: 0.05 };
        assert_eq!(read(output), Some(shown));
        assert_eq!(read("Requests/sec: 1.0\n"), None);
        assert_eq!((came_through("a\ncame through: 12\n"), came_through(output)), (Some(12.0), None));
        assert_eq!(
            ["12.50us", "2.00s", "1.00m", "7"].map(milliseconds),
            [Some(0.0125), Some(2000.0), Some(60_000.0), None]
        );
    }

    #[test]
    fn a_tool_is_better_when_its_worst_run_is_better_than_our_best() {
        let runs = |requests: [f64; 2]| {
            let one = |requests| Shown { requests, late: 0.0, answers: 0.0, answers_late: 0.0, lost: 0.0 };
            requests.map(one).to_vec()
        };
        let told = |ours, theirs| {
            verdict(&["other link", OURS, TOOLS[1]], &[runs([100.0, 100.0]), runs(ours), runs(theirs)])
        };
        for (ours, theirs, end) in [
            ([96.0, 98.0], [97.0, 99.0], "best: none): reached, with 0.970.\n"),
            ([96.0, 98.0], [99.0, 99.0], "best: nftables): not reached, with 0.970.\n"),
            ([94.0, 94.0], [0.0, 1.0], "best: none): not reached, with 0.940.\n"),
        ] {
            let text = told(ours, theirs);
            assert!(text.ends_with(end), "{text}");
        }
    }

    #[test]
    fn the_flood_comes_from_one_address_of_each_prefix() {
        let rules = &RULES[2];
        let (range, step) = rules.sources.split_once(" step ").unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let [first, last] = [first, last].map(|end| end.parse::<Ipv4Addr>().unwrap().to_bits());
        let flood: Vec<_> = (first..=last)
            .step_by(step.parse().unwrap())
            .map(|source| Ipv4Addr::from_bits(source).to_string())
            .collect();
        assert_eq!(flood, sources(rules.number, "1"), "what xdp-filter is told");
        let networks = flood.iter().map(|source| source.rsplit_once('.').unwrap().0);
        let prefixes: Vec<_> = networks.map(|network| format!("{network}.0/24")).collect();
        assert_eq!(prefixes, sources(rules.number, "0/24"), "what the others are told");
    }

    #[test]
    fn each_filter_is_told_every_rule() {
        for rules in &RULES {
            let files = written(rules);
            let count = |name: &str, each: &str| {
                files.iter().find(|(file, _)| *file == name).map(|(_, text)| text.matches(each).count())
            };
            let all = Some(rules.number);
            assert_eq!(count("iptables", "-j DROP"), all);
            assert_eq!(count("bywash.toml", "[[rule]]"), all);
            assert_eq!(
                count("xdp-filter.sh", "-m dst -p udp\n").max(count("xdp-filter.sh", "-m src\n")),
                all
            );
            // The scene has tc run the one where there is no list, else what looks in that.
            assert_eq!(count("classic-bpf", ",").is_none(), count("prefixes.txt", "/24\n") == all);
        }
    }
}
