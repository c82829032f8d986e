//! `bywash cleanup`: undoes what processes that were killed have left behind.

use std::fmt::Write;

use bywash_engine::socket;
use bywash_sys::state;
use clap::Args as ClapArgs;

use crate::failure::{self, Failure};

const EXAMPLES: &str = "\
What ends with its process needs no cleanup: XDP programs, sockets, namespaces. What does not (numbers of huge pages,
NAPI settings, RSS tables, n-tuple rules, offloads, drivers of NICs, virtual functions, modules) is written down before it is
changed, and put back by the process itself or by this command; what `bind`, `vf create` and `setup` have left, too. What a
running process has changed, what somebody else has changed since, and what is in use, is left alone. Control sockets of
instances that were killed (in $XDG_RUNTIME_DIR/bywash, else in /run/bywash) are removed.

Examples:
  bywash cleanup && bywash ports

Exit codes: 0 nothing is left to undo; 1 something could not be undone; 2 it can't be known";

/// How it is done.
#[derive(ClapArgs, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// One JSON object with what was undone, left alone and not possible
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Say only what could not be undone
    #[arg(long, short)]
    quiet: bool,
}

/// Undoes what it can. The aim is met when nothing failed.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    let sockets = socket::remove_abandoned();
    let mut report = state::cleanup()?;
    match sockets {
        Ok((removed, failed)) => {
            report.undone.extend(removed);
            report.failed.extend(failed);
        }
        Err(error) => report.failed.push(format!("control sockets of killed instances: {error}")),
    }
    if state::root_left_something() {
        return Err(Failure::Usage(format!(
            "{}: what root's processes have changed only root can put back: run it as root",
            state::directory_of_root().display()
        )));
    }
    if args.json {
        let text = serde_json::to_string(&report).map_err(|error| Failure::Usage(error.to_string()))?;
        failure::print(&format!("{text}\n"));
        return Ok(report.failed.is_empty());
    }
    let mut text = String::new();
    if !args.quiet {
        if report.is_empty() {
            text += "nothing to clean up\n";
        }
        for (what, sentences) in [("put back", &report.undone), ("left alone", &report.left_alone)] {
            for sentence in sentences {
                // Writing to a string can't fail.
                let _ = writeln!(text, "{what}: {sentence}");
            }
        }
    }
    failure::print(&text);
    for sentence in &report.failed {
        failure::warn(&format!("not put back: {sentence}"));
    }
    Ok(report.failed.is_empty())
}
