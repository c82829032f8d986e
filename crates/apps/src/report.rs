//! What the user sees of a run: a live line, a summary, or JSON lines for a program.
//!
//! Results go to one stream (standard output), everything about them to another (standard error), so that results can
//! be piped. A reader that goes away (`| head`) is no error: the run stops.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

/// How to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text for people.
    Human {
        /// Show a line that changes each second; for terminals.
        live: bool,
    },
    /// One JSON object per line: `start`, `interval` each second, `warning`, and `summary` as the last one.
    Json,
    /// Only why the aim was not met.
    Quiet,
}

/// Where reports go.
pub struct Reporter {
    style: Style,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    /// The live line is on the screen.
    is_live: bool,
    gone: bool,
}

#[derive(Serialize)]
struct Line<'a, T: Serialize> {
    event: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Serialize)]
struct Message<'a> {
    message: &'a str,
}

impl Reporter {
    /// Results to `out`, the rest to `err`.
    pub fn new(style: Style, out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        Self { style, out, err, is_live: false, gone: false }
    }

    /// Standard output and standard error.
    pub fn stdio(style: Style) -> Self {
        Self::new(style, Box::new(io::stdout()), Box::new(io::stderr()))
    }

    /// Whether nobody reads the results any more.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether anybody would see an interval.
    pub(crate) fn shows_intervals(&self) -> bool {
        matches!(self.style, Style::Json | Style::Human { live: true })
    }

    /// What is about to happen.
    pub fn start(&mut self, event: &(impl Serialize + Display)) {
        match self.style {
            Style::Human { .. } => self.say(&event.to_string()),
            Style::Json => self.json("start", event),
            Style::Quiet => {}
        }
    }

    /// What happened in the last second.
    pub fn interval(&mut self, event: &(impl Serialize + Display)) {
        match self.style {
            Style::Human { live: true } => {
                // Nothing is lost when the terminal does not take a line that the next one replaces.
                let _ = write!(self.err, "\r{event}\x1b[K");
                let _ = self.err.flush();
                self.is_live = true;
            }
            Style::Json => self.json("interval", event),
            Style::Human { live: false } | Style::Quiet => {}
        }
    }

    /// Something that is worse than it could be, and the cure.
    pub fn warning(&mut self, message: &str) {
        match self.style {
            Style::Human { .. } => self.say(&format!("warning: {message}")),
            Style::Json => self.json("warning", &Message { message }),
            Style::Quiet => {}
        }
    }

    /// What came of it all.
    pub fn summary(&mut self, event: &(impl Serialize + Display)) {
        match self.style {
            Style::Human { .. } => {
                self.clear_live();
                let written = writeln!(self.out, "{event}").and_then(|()| self.out.flush());
                self.note(written);
            }
            Style::Json => self.json("summary", event),
            Style::Quiet => {}
        }
    }

    /// Why the aim was not met: said in every style.
    pub fn unmet(&mut self, reason: &str) {
        self.say(&format!("not met: {reason}"));
    }

    fn say(&mut self, line: &str) {
        self.clear_live();
        // There is nowhere to complain about standard error.
        let _ = writeln!(self.err, "{line}");
    }

    fn clear_live(&mut self) {
        if std::mem::take(&mut self.is_live) {
            let _ = write!(self.err, "\r\x1b[K");
        }
    }

    fn json<T: Serialize>(&mut self, event: &'static str, body: &T) {
        let written = serde_json::to_writer(&mut self.out, &Line { event, body })
            .map_err(io::Error::from)
            .and_then(|()| writeln!(self.out))
            .and_then(|()| self.out.flush());
        self.note(written);
    }

    fn note(&mut self, written: io::Result<()>) {
        self.gone |= written.is_err();
    }
}
