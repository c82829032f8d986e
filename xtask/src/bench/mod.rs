//! `cargo xtask bench`: measurements, side by side with the best alternative where there is one.
//!
//! This machine's absolute figures mean little elsewhere, and on a shared one little even here. So what is claimed is a
//! ratio of two programs that ran in turn, or a count of instructions; the figures stay, with all they depend on.

mod builds;
mod callgrind;
mod capture;
mod demo;
mod filter_cost;
mod filter_judge;
mod flood;
mod forward_ixgbe;
mod forward_l3;
mod forward_loop;
mod forward_null;
mod generate_cost;
mod geometry;
mod huge_pages;
mod inject;
mod link;
mod machine;
mod match_cost;
mod ours;
mod pace;
mod pairs;
mod plot;
mod profile;
mod rate_exactness;
mod receive_cost;
mod record;
mod replay;
mod revision;
mod stack_veth;
mod tcp_core;
mod testpmd;
mod vfio_user;
mod way_back;
mod xdp_send;

use std::process::ExitCode;

use clap::Args;

use crate::install;
use crate::project::Problem;
use crate::tools::{self, PROGRAMS};
pub(crate) use record::Record;

/// What `cargo xtask bench` is told.
#[derive(Args)]
pub(crate) struct Options {
    /// Which benchmark; see --list
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Show all benchmarks, each with one sentence
    #[arg(long)]
    list: bool,
    /// How many pairs of measurements, ours and theirs in turn
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// How long each measurement of a pair takes
    #[arg(long, default_value_t = 3, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: u32,
    /// The revision to compare with, as git names it, for `revision`
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Name of the machine in the results' folder, instead of the host's
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// First fetch the programs that are missing into the user's cache directory
    #[arg(long)]
    install: bool,
    /// Options for our own program, after --
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// One benchmark.
struct Bench {
    name: &'static str,
    /// What it shows.
    sentence: &'static str,
    /// What it runs.
    runs: &'static str,
    /// Programs of others it needs, from the table in `tools`.
    programs: &'static [&'static str],
    root: bool,
    /// Measures, noting everything in the record, and returns the summary.
    run: fn(&mut Record, &Options) -> Result<String, Problem>,
}

/// To add a benchmark is to add a row.
const BENCHES: &[Bench] = &[
    Bench {
        name: "forward-null",
        sentence: "Forwarding with MAC swap between two ports that cost nothing, on one core, beside DPDK.",
        runs: "bywash forward null: null: --mac-swap; dpdk-testpmd --forward-mode=macswap on two net_null; callgrind",
        programs: &["dpdk-testpmd", "valgrind"],
        root: true,
        run: forward_null::run,
    },
    Bench {
        name: "forward-loop",
        sentence: "Forwarding with MAC swap between two wires in memory, on one core, beside DPDK.",
        runs: "cargo bench --package bywash-apps --bench forward_loop; dpdk-testpmd --forward-mode=macswap on two net_ring",
        programs: &["dpdk-testpmd"],
        root: true,
        run: forward_loop::run,
    },
    Bench {
        name: "forward-ixgbe",
        sentence: "Forwarding with MAC swap on our 82599 driver, by size of batch, the model's own work left out.",
        runs: "cargo bench --package bywash-apps --bench forward_ixgbe; callgrind",
        programs: &["valgrind"],
        root: false,
        run: forward_ixgbe::run,
    },
    Bench {
        name: "vfio-user",
        sentence: "Forwarding with MAC swap on our 82599 driver, the modelled NIC behind a socket with its tails mapped, beside \
                   the model in the same process.",
        runs: "cargo bench --package bywash-apps --bench vfio_user, with and without bywash-models; callgrind",
        programs: &["valgrind"],
        root: false,
        run: vfio_user::run,
    },
    Bench {
        name: "forward-l3",
        sentence: "IPv4 and IPv6 passed on between two ports with many routes, by size; look-ups beside DPDK's.",
        runs: "cargo bench --package bywash-stack --bench forward; the same under callgrind; dpdk-test-fib",
        programs: &["dpdk-test-fib", "valgrind"],
        root: true,
        run: forward_l3::run,
    },
    Bench {
        name: "receive-cost",
        sentence: "Instructions that judging a generator's packet costs the receiver: faults, latency, jitter.",
        runs: "cargo bench --package bywash-apps --bench receive_cost under callgrind",
        programs: &["valgrind"],
        root: false,
        run: receive_cost::run,
    },
    Bench {
        name: "link",
        sentence: "Packets of 64 bytes from one process to another, beside a wire within one process.",
        runs: "cargo bench --package bywash-drivers --bench link -- link, and -- loop",
        programs: &[],
        root: false,
        run: link::run,
    },
    Bench {
        name: "filter-cost",
        sentence: "What a packet costs that the flood filter drops in XDP, by its rules, beside xdp-filter.",
        runs: "cargo bench --package bywash-filter --bench filter_cost; xdp-filter on a veth",
        programs: &["xdp-filter"],
        root: true,
        run: filter_cost::run,
    },
    Bench {
        name: "filter-judge",
        sentence: "What the flood filter's user space costs for a packet that none of a hundred rules drops.",
        runs: "cargo bench --package bywash-apps --bench filter_judge; the same under callgrind",
        programs: &["valgrind"],
        root: false,
        run: filter_judge::run,
    },
    Bench {
        name: "way-back",
        sentence: "How many packets a second come through user space and back into the kernel, and in which order.",
        runs: "bywash filter xdp:VETH without rules, generate --inject at the other end, nftables and conntrack behind it",
        programs: &["nft", "ethtool", "ip"],
        root: true,
        run: way_back::run,
    },
    Bench {
        name: "flood",
        sentence: "What a web and a DNS server still do under a flood, by who drops it and by how many rules.",
        runs: "generate --inject into a veth, nginx and nsd behind it, wrk and dnsperf; bywash filter, xdp-filter, \
               nftables, iptables, tc, hand-written programs in XDP and at TCX",
        programs: &[
            "xdp-filter",
            "nft",
            "iptables-nft-restore",
            "tc",
            "nginx",
            "wrk",
            "nsd",
            "dnsperf",
            "ethtool",
            "ip",
        ],
        root: true,
        run: flood::run,
    },
    Bench {
        name: "match-cost",
        sentence: "What it costs to match 1, 10 and 100 typical expressions, here and in the kernel, beside libpcap.",
        runs: "cargo bench --package bywash-filter --bench match_cost under callgrind, and with BPF_PROG_TEST_RUN",
        programs: &["valgrind", "tcpdump"],
        root: true,
        run: match_cost::run,
    },
    Bench {
        name: "demo",
        sentence: "The rates of the demo, over AF_XDP and in memory, and what an idle worker costs.",
        runs: "bywash demo, as root and as nobody; bywash receive loop:idle",
        programs: &[],
        root: true,
        run: demo::run,
    },
    Bench {
        name: "xdp-send",
        sentence: "Sending 64-byte frames over AF_XDP on a veth from one core, beside DPDK.",
        runs: "bywash generate xdp:VETH; dpdk-testpmd --forward-mode=txonly on net_af_xdp",
        programs: &["dpdk-testpmd", "ip"],
        root: true,
        run: xdp_send::run,
    },
    Bench {
        name: "inject",
        sentence: "Sending 64-byte frames by the kernel's live test runs into a veth from one core.",
        runs: "bywash generate --inject VETH; an XDP program at the other end drops and its interface counts",
        programs: &["ip"],
        root: true,
        run: inject::run,
    },
    Bench {
        name: "generate-cost",
        sentence: "Instructions that a generated packet costs, by what varies in it.",
        runs: "bywash generate null: under callgrind",
        programs: &["valgrind"],
        root: false,
        run: generate_cost::run,
    },
    Bench {
        name: "rate-exactness",
        sentence: "How exactly rates are kept on a veth, up to nine tenths of what it can do, and how even the gaps are.",
        runs: "bywash generate xdp:VETH --rate; the same with --inject VETH; bywash replay FILE xdp:VETH --rate",
        programs: &["ip"],
        root: true,
        run: rate_exactness::run,
    },
    Bench {
        name: "capture",
        sentence: "Half a million 64-byte packets a second, copied from a veth into a file, beside tcpdump.",
        runs: "bywash capture VETH; tcpdump -B 65536; bywash generate xdp:VETH --rate 500k",
        programs: &["tcpdump", "ip"],
        root: true,
        run: capture::run,
    },
    Bench {
        name: "replay",
        sentence: "Replaying a capture on a veth: how well its timing is kept, and how fast it goes beside generating.",
        runs: "bywash replay FILE xdp:VETH; the same with --rate max, and bywash generate xdp:VETH",
        programs: &["ip"],
        root: true,
        run: replay::run,
    },
    Bench {
        name: "geometry",
        sentence: "How far apart frames should lie: MAC swap by stride, headroom, number of frames and kind of page.",
        runs: "cargo bench --package bywash-frame --bench geometry",
        programs: &[],
        root: true,
        run: geometry::run,
    },
    Bench {
        name: "tcp-core",
        sentence: "TCP with two stacks joined in memory on one core, beside smoltcp: bulk, exchanges, connections.",
        runs: "cargo bench --package bywash-stack --bench core; the same under callgrind",
        programs: &["valgrind"],
        root: false,
        run: tcp_core::run,
    },
    Bench {
        name: "revision",
        sentence: "The stack's bulk, exchanges, connections and forwarding beside those of another revision.",
        runs: "cargo bench --package bywash-stack --bench core, and --bench forward, of now and of --against REV",
        programs: &[],
        root: false,
        run: revision::run,
    },
    Bench {
        name: "profile",
        sentence: "What the stack gains when the compiler has seen in a profile what it does most.",
        runs: "cargo bench --package bywash-stack --bench core, and --bench forward, as always and by a profile of them",
        programs: &[],
        root: false,
        run: profile::run,
    },
    Bench {
        name: "stack-veth",
        sentence: "The same server on Bywash and on the kernel, nginx beside it, Linux's clients at the other end of a veth.",
        runs: "bywash tcp http, sink and upload on xdp:VETH; the same with --kernel; nginx; wrk, ab, dd; perf where we lose",
        programs: &["wrk", "ab", "nginx", "ethtool", "ip", "perf"],
        root: true,
        run: stack_veth::run,
    },
];

/// Runs the benchmark that was asked for.
///
/// # Errors
/// When there is none of that name, when something it needs is missing, or when a program it runs fails.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Problem> {
    let Some(name) = options.name.as_deref().filter(|_| !options.list) else {
        for bench in BENCHES {
            println!("{:<16}{}\n{:16}runs: {}", bench.name, bench.sentence, "", bench.runs);
        }
        return Ok(ExitCode::SUCCESS);
    };
    let bench = BENCHES.iter().find(|bench| bench.name == name).ok_or_else(|| {
        let names: Vec<_> = BENCHES.iter().map(|bench| bench.name).collect();
        Problem(format!("no benchmark is called {name}: there are {}", names.join(", ")))
    })?;
    if options.against.is_some() && bench.name != "revision" {
        return Err(Problem(format!("{name} compares with no revision: --against is for `revision`")));
    }
    if bench.root && !crate::project::is_root() {
        return Err(Problem(format!("{name} needs root, for huge pages or interfaces: run it with sudo")));
    }
    if options.install {
        for problem in install::programs(|program| bench.programs.contains(&program.name)) {
            println!("not installed: {problem}");
        }
    }
    for program in PROGRAMS.iter().filter(|program| bench.programs.contains(&program.name)) {
        if tools::find(program.name).is_none() {
            let (missing, needed_for) = (program.name, program.needed_for);
            return Err(Problem(format!("{missing} is missing, for {needed_for}: add --install")));
        }
    }
    let mut record = Record::new(bench.name, options.label.as_deref())?;
    let summary = (bench.run)(&mut record, options)?;
    record.finish(bench.sentence, &summary)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_benchmark_is_listed_once_and_needs_programs_we_can_get() {
        for (i, bench) in BENCHES.iter().enumerate() {
            assert!(BENCHES[..i].iter().all(|other| other.name != bench.name), "{}", bench.name);
            for name in bench.programs {
                assert!(PROGRAMS.iter().any(|program| program.name == *name), "{name} is in no package");
            }
        }
    }
}
