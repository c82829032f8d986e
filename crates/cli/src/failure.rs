//! Why a command did not begin, in one line: what, why, what to do.

use std::io::Write;

use bywash_apps::StartError;
use bywash_apps::filter::RuleFileError;
use bywash_drivers::registers::RegistersError;
use bywash_engine::socket::SocketError;
use bywash_port::OpenError;
use bywash_port::filter::ParseError;
use bywash_port::frame::ArenaError;
use bywash_sys::interface::InterfaceError;
use bywash_sys::memory::MemoryError;
use bywash_sys::netlink::NetlinkError;
use bywash_sys::pci::SriovError;
use bywash_sys::state::StateError;
use clap::error::ErrorKind;

/// Why a command did not begin. Nothing was changed on the machine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// No failure: what was wanted is a text.
    #[error("{0}")]
    Help(String),
    /// What was typed makes no sense.
    #[error("{0}")]
    Usage(String),
    /// An expression is none. It takes three lines to point at where.
    #[error(transparent)]
    Expression(#[from] ParseError),
    /// A port would not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No packet memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Too little packet memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The app found that what was asked does not go with the port.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The kernel does not tell of its interfaces, or there is no such one.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Registers can't be shown.
    #[error(transparent)]
    Registers(#[from] RegistersError),
    /// A rule file is wrong.
    #[error(transparent)]
    Rules(#[from] RuleFileError),
    /// What was changed on the machine could not be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// Virtual functions can't be made, or must stay.
    #[error(transparent)]
    Sriov(#[from] SriovError),
    /// The kernel did not say, or refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// An instance could not begin.
    #[error(transparent)]
    Instance(#[from] bywash_engine::StartError),
    /// A control socket, or what is behind it.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Ctrl-C could not be caught.
    #[error("signals can't be caught: {0}")]
    Signals(std::io::Error),
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Self::Help(text),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                Self::Usage("no command given; `bywash --help` lists them".into())
            }
            _ => Self::Usage(one_line(&text)),
        }
    }
}

/// clap explains over several lines; the usage, which `--help` shows too, is left out.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let (usage, told): (Vec<&str>, Vec<&str>) =
        lines.partition(|line| line.starts_with("Usage:") || line.starts_with("For more information"));
    // The program's own name, which the user may have changed, is the first word.
    let usage =
        usage.iter().find_map(|line| line.strip_prefix("Usage: ")).and_then(|usage| usage.split_once(' '));
    let command =
        usage.and_then(|(_, rest)| rest.split([' ', '[', '<']).next()).filter(|name| !name.is_empty());
    let help = command.map_or("bywash --help".into(), |name| format!("bywash {name} --help"));
    let told = told.join(" ").replace(" tip:", "; tip:");
    format!("{} (see `{help}`)", told.strip_prefix("error: ").unwrap_or(&told))
}

/// Writes what the user asked to read.
pub(crate) fn print(text: &str) {
    // A reader that went away has read enough.
    let _ = write!(std::io::stdout(), "{text}");
}

/// Writes why nothing began.
pub(crate) fn complain(failure: &Failure) {
    warn(&failure.to_string());
}

/// Writes one line about what is being done.
pub(crate) fn tell(sentence: &str) {
    write(&format!("{sentence}\n"));
}

/// Writes to standard error, a line or a part of one.
pub(crate) fn write(text: &str) {
    // There is nowhere to complain about standard error.
    let _ = write!(std::io::stderr(), "{text}");
}

/// Writes one line about something that went wrong.
pub(crate) fn warn(sentence: &str) {
    write(&format!("bywash: {sentence}\n"));
}
