//! Everything that is done to the project: its tests, its benchmarks, its checks.
//!
//! It is a program of the workspace and no script, so that it is checked like the rest and needs nothing but cargo. It
//! has few dependencies on purpose: `cargo xtask` must answer seconds after a clone.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a program for the terminal: what it finds is printed")]

mod arch;
mod bench;
mod fuzz;
mod guest;
mod install;
mod process;
mod project;
mod soak;
mod test;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tests, measures and checks Bywash.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check and every test; the last line says how many passed, failed and were skipped
    ///
    /// A failing step does not stop the others. What cannot run here is skipped, with one line that says why.
    #[command(after_help = "Examples:\n  cargo xtask test            with what is on this machine\n  \
                            cargo xtask test --install  first fetch what is missing, into the user's cache directory\n  \
                            sudo -E env PATH=\"$PATH\" cargo xtask test   also what needs network namespaces")]
    Test {
        /// First fetch what is missing into the user's cache directory: programs from Debian packages, and cargo-deny
        ///
        /// Nothing is installed system-wide and no service is started.
        #[arg(long)]
        install: bool,
    },
    /// Compare the sources with ARCHITECTURE.md: arrows between crates, unsafe code, file heads and sizes
    #[command(after_help = "Example:\n  cargo xtask arch")]
    Arch,
    /// Prepare what QEMU guests need, in the user's cache directory: about 220 MB from the machine's Debian mirror, once
    ///
    /// Tests that boot guests use it, and are skipped without it. `test --install` does this too.
    #[command(after_help = "Example:\n  cargo xtask guest")]
    Guest,
    /// Measure, side by side with the best alternative where there is one
    ///
    /// Writes raw output and a summary to benchmarks/runs/DATE-HOST/.
    #[command(after_help = "Examples:\n  cargo xtask bench --list\n  \
                            cargo xtask bench geometry\n  \
                            cargo xtask bench forward-null --install --pairs 10 --label epyc\n  \
                            cargo xtask bench forward-null -- --batch 32   options after -- go to bywash")]
    Bench(bench::Options),
    /// Try input by chance on everything that reads what others wrote
    ///
    /// Each target runs for so long, or until it falls: then its input is kept below target/fuzz/artifacts. Figures go to
    /// benchmarks/runs/DATE-HOST/fuzz.md. With BYWASH_CAPTURES, a folder of capture files, it begins with those too.
    #[command(
        after_help = "Examples:\n  cargo xtask fuzz                       all targets, 10 minutes each\n  \
                            cargo xtask fuzz pcap --seconds 60"
    )]
    Fuzz(fuzz::Options),
    /// Thousands of TCP connections by chance: with Linux's TCP, with smoltcp, or between two of ours
    ///
    /// Each seed decides what an end does and what the network does to packets; one that fails is printed. Figures go to
    /// benchmarks/runs/DATE-HOST/.
    #[command(
        after_help = "Examples:\n  sudo -E env PATH=\"$PATH\" cargo xtask soak kernel   10 000 seeds\n  \
                            cargo xtask soak smoltcp --seeds 17..18          one"
    )]
    Soak(soak::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Test { install } => test::run(install),
        Command::Arch => arch::run(),
        Command::Guest => guest::run(),
        Command::Bench(options) => bench::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Soak(options) => soak::run(&options),
    };
    match done {
        Ok(code) => code,
        Err(problem) => {
            println!("error: {problem}");
            ExitCode::from(2)
        }
    }
}
