//! The one binary, `bywash`: what was typed becomes options, what came of it becomes an exit code.

#![forbid(unsafe_code)]

mod commands;
mod failure;
mod help;
mod options;
mod overwriting;
mod setup;
mod values;

use std::ffi::OsString;
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
    let matches = command.try_get_matches_from_mut(behind_the_command(std::env::args_os().collect()))?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Puts what iproute2 has before its object, as in `ip -4 -j addr`, behind the command that it is for.
fn behind_the_command(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_flag = |word: &&OsString| ["-4", "-6", "-j", "--json"].iter().any(|flag| **word == *flag);
    let flags = words.iter().skip(1).take_while(is_flag).count();
    if let Some(words) = words.get_mut(1..flags + 2) {
        words.rotate_left(flags);
    }
    words
}

fn main() -> ExitCode {
    // Without it such a file ends us, as it does others.
    let _ = bywash_sys::signals::outlive_full_files();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_iproute2_may_stand_before_the_command() {
        for (typed, understood) in [
            ("bywash -4 addr show", "bywash addr -4 show"),
            ("bywash -6 --json route", "bywash route -6 --json"),
            ("bywash -j sockets -t", "bywash sockets -j -t"),
            ("bywash addr -4", "bywash addr -4"),
            ("bywash --name x addr", "bywash --name x addr"),
            ("bywash -4", "bywash -4"),
            ("bywash", "bywash"),
        ] {
            let words = behind_the_command(typed.split(' ').map(OsString::from).collect());
            assert_eq!(words.join(" ".as_ref()), understood);
        }
    }
}
