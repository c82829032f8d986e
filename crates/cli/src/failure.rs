//! Why a command did not begin, in one line: what, why, what to do.

use std::ffi::OsString;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

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
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::commands::Cli;

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
    /// There is nothing to report by.
    #[error("no descriptor for standard output: {0}")]
    Output(std::io::Error),
}

impl From<clap::Error> for Failure {
    fn from(mut error: clap::Error) -> Self {
        suggest_names(&mut error, &words(std::env::args_os().skip(1)));
        let text = error.render().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Self::Help(text),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                let typed = words(std::env::args_os().skip(1));
                Self::Usage(format!("no command given; `{} --help` lists them", command(&typed)))
            }
            _ => Self::Usage(of_numbers(&error).unwrap_or_else(|| one_line(&text))),
        }
    }
}

/// What clap takes for an option or for one argument too many, and is a number below 0, or the unit of a number.
fn of_numbers(error: &clap::Error) -> Option<String> {
    let (ContextValue::String(wrong), ErrorKind::UnknownArgument | ErrorKind::InvalidValue) =
        (error.get(ContextKind::InvalidArg).or(error.get(ContextKind::InvalidValue))?, error.kind())
    else {
        return None;
    };
    about_numbers(wrong, &words(std::env::args_os()))
}

/// What was typed, to be looked at or shown: what is no UTF-8 is not left out, and ends nothing.
fn words(typed: impl Iterator<Item = OsString>) -> Vec<String> {
    typed.map(|word| word.to_string_lossy().into_owned()).collect()
}

fn about_numbers(wrong: &str, typed: &[String]) -> Option<String> {
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let is_option = |text: &str| text.strip_prefix('-').is_some_and(|rest| !is_number(rest));
    if wrong.strip_prefix('-').is_some_and(is_number) {
        // Of `-5k` clap names `-5`.
        let [option, word] = typed.array_windows().find(|[_, word]| word.starts_with(wrong))?;
        return is_option(option).then(|| {
            format!("{option} {word}: it can't be less than 0; leave out the '-' before {}", &word[1..])
        });
    }
    // It may be the word behind the unit that is one too many.
    typed
        .array_windows()
        .find(|[option, number, unit]| is_option(option) && number.parse::<f64>().is_ok() && is_unit(unit))
        .map(|[option, number, unit]| {
            format!("{option} {number} {unit}: a number and its unit are one word; write {number}{unit}")
        })
}

/// Whether this is a unit of a rate, a time or a size, alone.
fn is_unit(word: &str) -> bool {
    const UNITS: [&str; 14] =
        ["", "pps", "bps", "bpsL1", "bpsL2", "bit/s", "B", "iB", "us", "ms", "s", "min", "h", "%"];
    let scaled = word.strip_prefix(['k', 'K', 'm', 'M', 'g', 'G']).unwrap_or(word);
    !word.is_empty() && UNITS.iter().any(|unit| [word, scaled].contains(unit))
}

/// clap explains over several lines; the usage, which `--help` shows too, is left out.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let told: Vec<&str> = lines
        .filter(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .collect();
    let told = in_our_words(&told.join(" ").replace(" tip:", "; tip:"));
    let typed = words(std::env::args_os().skip(1));
    format!("{} (see `{} --help`)", told.strip_prefix("error: ").unwrap_or(&told), command(&typed))
}

/// Of the commands that clap suggests leaves what they are called: it has each way to cut one short beside it.
fn suggest_names(error: &mut clap::Error, typed: &[String]) {
    let Some(ContextValue::Strings(suggested)) = error.get(ContextKind::SuggestedSubcommand) else { return };
    let (_, above) = commands(typed);
    let found = |word: &String| above.find_subcommand(word).map(|found| found.get_name().to_owned());
    let mut names: Vec<String> =
        suggested.iter().map(|word| found(word).unwrap_or_else(|| word.clone())).collect();
    names.dedup();
    error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
}

/// The command that was typed, and the one below it: clap tells which it is only of some errors.
fn command(typed: &[String]) -> String {
    commands(typed).0
}

/// The same, with the last of them.
fn commands(typed: &[String]) -> (String, clap::Command) {
    let (mut name, mut found) = ("bywash".to_owned(), Cli::command());
    for word in typed {
        let Some(below) = found.find_subcommand(word).cloned() else { break };
        name = format!("{name} {}", below.get_name());
        found = below;
    }
    (name, found)
}

/// What the standard library says of a number's text, and clap hands on, does not say what to write.
fn in_our_words(told: &str) -> String {
    ["invalid digit found in string", "cannot parse integer from empty string"]
        .iter()
        .fold(told.to_owned(), |told, theirs| told.replace(theirs, "write a whole number, in digits"))
}

/// Whether something that the user asked to read could not be written.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Writes what the user asked to read. What can't be written is said at once, and [`is_lost`] from then on.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout();
    let written = write!(out, "{text}").and_then(|()| out.flush());
    // A reader that went away has read enough.
    if let Err(error) = written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        warn(&format!("standard output can't be written: {error}"));
        IS_LOST.store(true, Ordering::Relaxed);
    }
}

/// Whether a result is not where the user wanted it.
pub(crate) fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
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

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn what_is_no_utf8_is_shown_as_far_as_it_is() {
        let typed = [b"bywash".to_vec(), b"rec\xffive".to_vec()].map(OsString::from_vec);
        assert_eq!(words(typed.into_iter()), ["bywash", "rec\u{fffd}ive"]);
    }

    #[test]
    fn wrong_numbers_say_what_to_write() {
        for (line, says) in [
            (
                ["generate", "null:", "--sources", "x"],
                "'x' for '--sources <N>': write a whole number, in digits",
            ),
            (
                ["generate", "null:", "--sources", ""],
                "'' for '--sources <N>': write a whole number, in digits",
            ),
            (["generate", "null:", "--sources", "99999999999"], "99999999999 is not in 0..=4294967295"),
            (
                ["capture", "null:", "--snap", "1k"],
                "'1k' for '--snap <BYTES>': write a whole number, in digits",
            ),
        ] {
            let error = Cli::command().try_get_matches_from(["bywash"].into_iter().chain(line)).unwrap_err();
            let told = Failure::from(error).to_string();
            assert!(told.contains(says), "{told}");
        }
    }

    #[test]
    fn commands_are_suggested_by_their_names() {
        for (typed, expected) in
            [("neighbours", &["neigh"][..]), ("addrs", &["addr"]), ("tcp conect", &["connect"])]
        {
            let typed: Vec<String> = typed.split(' ').map(String::from).collect();
            let words = ["bywash".to_owned()].into_iter().chain(typed.clone());
            let mut error = Cli::command().try_get_matches_from(words).unwrap_err();
            suggest_names(&mut error, &typed);
            let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand) else {
                panic!("{error}");
            };
            assert_eq!(names, expected, "{error}");
        }
    }

    #[test]
    fn help_is_that_of_the_command_that_was_typed() {
        for (typed, expected) in [
            ("", "bywash"),
            ("--nonsense tcp", "bywash"),
            ("receive null: tcp", "bywash receive"),
            ("tcp http --listen x", "bywash tcp http"),
            ("tcp --listen x http", "bywash tcp"),
        ] {
            let typed: Vec<String> = typed.split_whitespace().map(String::from).collect();
            assert_eq!(command(&typed), expected);
        }
    }

    #[test]
    fn numbers_below_0_and_lonely_units_are_told_from_options() {
        let about = |wrong: &str, line: &str| {
            let typed: Vec<String> = line.split(' ').map(String::from).collect();
            about_numbers(wrong, &typed)
        };
        for (wrong, line, says) in [
            ("-5", "bywash generate null: --rate -5", "--rate -5: it can't be less than 0"),
            ("-5", "bywash generate null: --rate -5kpps", "before 5kpps"),
            ("-1", "bywash receive null: -c -1", "-c -1: "),
            (
                "kpps",
                "bywash generate --rate 5 kpps null:",
                "--rate 5 kpps: a number and its unit are one word",
            ),
            ("s", "bywash receive null: --duration 1.5 s", "write 1.5s"),
        ] {
            assert!(about(wrong, line).is_some_and(|told| told.contains(says)), "{line}");
        }
        for (wrong, line) in [
            ("-5", "bywash generate -5 null:"),
            ("--count", "bywash receive null: --batch 5 --count"),
            ("null:", "bywash generate null: null:"),
            ("eth1", "bywash forward null: eth1"),
            ("lan", "bywash forward null: --batch 5 lan"),
            ("x", "bywash receive"),
        ] {
            assert_eq!(about(wrong, line), None, "{line}");
        }
    }
}
