//! `bywash man` and `bywash completions`: for those who package Bywash, both from the definition that `--help` has.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold};

use super::Cli;
use crate::failure::{self, Failure};

const MAN_EXAMPLES: &str = "\
Examples:
  bywash man /usr/local/share/man/man1         then: man bywash-receive

Exit codes: 0 they were written; 2 they could not be";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  bywash completions bash > /usr/share/bash-completion/completions/bywash
  bywash completions zsh > /usr/share/zsh/site-functions/_bywash
  bywash completions fish > /usr/share/fish/vendor_completions.d/bywash.fish

Exit codes: 0 it was written; 2 wrong input";

/// Write the manual pages into a directory: bywash.1, and one for each command.
#[derive(clap::Args, Debug)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Where to
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Write the completions for a shell to standard output.
#[derive(clap::Args, Debug)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// For which one
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Writes the pages.
pub(crate) fn pages(args: &ManArgs) -> Result<bool, Failure> {
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    let failed = |path: &Path, error: io::Error| Failure::Usage(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(&args.directory).map_err(|error| failed(&args.directory, error))?;
    for command in std::iter::once(&cli).chain(cli.get_subcommands()) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).replace(' ', "-");
        let path = args.directory.join(format!("{name}.1"));
        let text = page(command, &name).map_err(|error| failed(&path, error))?;
        std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(true)
}

/// Writes the completions.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<bool, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "bywash", &mut text);
    failure::print(&String::from_utf8_lossy(&text));
    Ok(true)
}

/// One page. What stands below the options in `--help` is laid out by hand: it keeps its lines here too, in sections of
/// its own.
fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let below = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let man = Man::new(command.clone())
        .title(name)
        .section("1")
        .source(format!("bywash {}", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if name == "bywash" {
        man.render_subcommands_section(&mut text)?;
    } else if command.has_subcommands() {
        parts(command).to_writer(&mut text)?;
    }
    for part in below.split("\n\n").filter(|part| !part.trim().is_empty()) {
        below_the_options(part).to_writer(&mut text)?;
    }
    let mut see_also = Roff::new();
    see_also.control("SH", ["SEE ALSO"]);
    if name == "bywash" {
        see_also.text(["The pages of the commands. Each command shows its own with --help.".into()]);
    } else {
        see_also.text([bold("bywash"), "(1)".into()]);
    }
    see_also.to_writer(&mut text)?;
    Ok(text)
}

/// The parts of a command that has some: they have no pages of their own.
fn parts(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for part in command.get_subcommands().filter(|part| part.get_name() != "help") {
        roff.control("TP", []);
        roff.text([bold(part.get_name())]);
        roff.text([part.get_about().map(ToString::to_string).unwrap_or_default().into()]);
    }
    roff
}

/// A paragraph that begins with `Examples:`, `Exit codes:` or the like has that for a heading.
fn below_the_options(part: &str) -> Roff {
    let (title, rest) = match part.split_once(':') {
        Some((title @ ("Examples" | "Exit codes" | "Ports"), rest)) => (title, rest),
        _ => ("Notes", part),
    };
    let mut roff = Roff::new();
    roff.control("SH", [title.to_uppercase().as_str()]);
    // As they are typed.
    let is_typed = title == "Examples";
    if is_typed {
        roff.control("nf", []);
    }
    // They are indented by as much as a section is.
    let lines: Vec<&str> =
        rest.trim_matches('\n').lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    roff.text([lines.join("\n").trim_start().into()]);
    if is_typed {
        roff.control("fi", []);
    }
    roff
}
