//! `cargo xtask soak`: the long runs of TCP, thousands of connections by chance, and what they came to.
//!
//! The runs are tests that are ignored otherwise; this builds them for speed, says which seeds, and keeps what they print.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::bench::Record;
use crate::process;
use crate::project::{self, Problem};

/// What `cargo xtask soak` is told.
#[derive(Args)]
pub(crate) struct Options {
    /// Whom the stack speaks with
    #[arg(value_name = "PEER", value_parser = PEERS.map(|peer| peer.name))]
    peer: String,
    /// How many seeds, or which: FROM..TO
    #[arg(long, default_value = "10000", value_name = "N")]
    seeds: String,
    /// Name of the machine in the results' folder, instead of the host's
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
}

struct Peer {
    name: &'static str,
    /// The figures' name.
    record: &'static str,
    target: &'static str,
    test: &'static str,
    sentence: &'static str,
    root: bool,
}

/// To add a run is to add a row.
const PEERS: [Peer; 4] = [
    Peer {
        name: "kernel",
        record: "soak-kernel",
        target: "differential",
        test: "ten_thousand_seeds_with_the_kernel",
        sentence: "Streams between the stack and Linux's TCP, over xdp:, tap: and packet:, under each fault alone and several together.",
        root: true,
    },
    Peer {
        name: "smoltcp",
        record: "soak-smoltcp",
        target: "hosts",
        test: "smol::ten_thousand_seeds_with_smoltcp",
        sentence: "Streams between the stack and smoltcp, in memory, with faults by chance.",
        root: false,
    },
    Peer {
        name: "itself",
        record: "soak-itself",
        target: "hosts",
        test: "streams::ten_thousand_seeds_of_each_fault",
        sentence: "Streams between two stacks, in memory, with faults by chance.",
        root: false,
    },
    Peer {
        name: "programs",
        record: "soak-programs",
        target: "hosts",
        test: "programs::programs_of_ten_thousand_seeds",
        sentence: "Programs by chance on two stacks, in memory, with faults by chance.",
        root: false,
    },
];

/// Most connections need a tenth of a second.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Runs it; the code is 1 when a seed failed.
///
/// # Errors
/// When it cannot be started, or its figures cannot be written.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Problem> {
    let found = PEERS.iter().find(|peer| peer.name == options.peer);
    let peer = found.ok_or_else(|| Problem(format!("there is no peer `{}`", options.peer)))?;
    if peer.root && !project::is_root() {
        return Err(Problem(format!("`{}` makes network namespaces: run it as root", peer.name)));
    }
    let mut record = Record::new(peer.record, options.label.as_deref())?;
    let mut command = project::cargo();
    command.args(["test", "--release", "--locked", "--package", "bywash-stack", "--test", peer.target]);
    command
        .args(["--", "--ignored", "--exact", "--nocapture", peer.test])
        .env("BYWASH_SEEDS", &options.seeds);
    let done = process::run(&mut command, LIMIT, |line| println!("{line}"))?;
    let typed = process::typed(&command);
    record.note(&format!("$ BYWASH_SEEDS={} {typed}\n{}[{}]", options.seeds, done.output, done.ending()))?;
    let told = |line: &&str| line.starts_with("test result:") || line.contains(" connections, ");
    let lines: Vec<&str> = done.output.lines().filter(told).collect();
    record.finish(peer.sentence, &format!("Seeds {}.\n\n    {}\n", options.seeds, lines.join("\n    ")))?;
    Ok(ExitCode::from(u8::from(!done.success())))
}
