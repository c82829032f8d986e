//! The one binary, `bywash`: what was typed becomes options, what came of it becomes an exit code.

#![forbid(unsafe_code)]

mod commands;
mod failure;
mod help;
mod options;
mod overwriting;
mod setup;
mod values;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use commands::Cli;
use failure::Failure;

/// Exit code when the aim was met.
const MET: u8 = 0;
/// Exit code when everything worked and the aim was still not met.
const UNMET: u8 = 1;
/// Exit code when there was nothing to begin with: wrong input, a missing right, an absent interface.
const UNUSABLE: u8 = 2;

fn typed() -> Result<Cli, clap::Error> {
    let mut command = help::laid_out(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn main() -> ExitCode {
    let outcome = typed().map_err(Failure::from).and_then(|cli| cli.command.run());
    let code = match outcome {
        Ok(true) => MET,
        Ok(false) => UNMET,
        Err(Failure::Help(text)) => {
            failure::print(&text);
            MET
        }
        Err(failure) => {
            failure::complain(&failure);
            UNUSABLE
        }
    };
    ExitCode::from(if code == MET && failure::is_lost() { UNMET } else { code })
}
