//! What the user sees of a run: a live line or a page, a summary, JSON lines for a program, metrics for Prometheus.
//!
//! All of them show the same [`Snapshot`], which says once what is counted and under which name.
//!
//! Results go to one stream (standard output), everything about them to another (standard error), so that results can
//! be piped. A reader that goes away (`| head`) is no error: the run stops. Results that can't be written (a full disk) are one.

use std::fmt::Display;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bywash_sys::terminal;
use bywash_sys::worker::Stop;
use serde::Serialize;

mod asking;
mod hdr;
mod http;
mod json;
mod keys;
mod outlet;
mod page;
mod prometheus;
#[cfg(test)]
mod samples;
mod screen;
mod snapshot;
mod text;
mod times;

pub use snapshot::{Column, Distribution, Interval, Kind, Label, Metric, Rates, Row, Snapshot, Table};
pub use times::{Dial, Percentiles, Stopwatch, Times};

use asking::Asking;
use hdr::TimesLog;
use http::Server;
use keys::Wish;
use outlet::{Backlog, Outlet};
use page::Page;
use screen::Screen;

/// How soon a key or a signal is answered.
const KEY_PATIENCE: Duration = Duration::from_millis(50);

/// How to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text for people.
    Human {
        /// Show a line that changes each second; for terminals.
        live: bool,
    },
    /// One JSON object per line: `start`, `interval` each second, `report` when asked, `warning`, and `summary` as the last one.
    Json,
    /// Only why the aim was not met.
    Quiet,
}

/// Where reports go.
pub struct Reporter {
    style: Style,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    /// What whoever reads has not taken yet.
    backlog: Arc<Backlog>,
    /// The live line is on the screen.
    is_live: bool,
    gone: bool,
    /// What was shown last.
    last: Option<Snapshot>,
    page: Option<(Screen, Page)>,
    asking: Option<Asking>,
    server: Option<Server>,
    times_log: Option<TimesLog>,
    failures: Vec<String>,
    /// Warnings for when it starts.
    at_start: Vec<String>,
    /// Which rules NICs were given, for when it starts.
    steered: Vec<String>,
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

#[derive(Serialize)]
struct Metrics {
    address: SocketAddr,
}

impl Reporter {
    /// Results to `out`, the rest to `err`.
    pub fn new(style: Style, out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        Self {
            style,
            out,
            err,
            backlog: Arc::default(),
            is_live: false,
            gone: false,
            last: None,
            page: None,
            asking: None,
            server: None,
            times_log: None,
            failures: Vec::new(),
            at_start: Vec::new(),
            steered: Vec::new(),
        }
    }

    /// Standard output and standard error.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub fn stdio(style: Style) -> io::Result<Self> {
        Self::beside(style, io::stdout().as_fd())
    }

    /// Standard error for both, where standard output is for something else.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub fn stderr(style: Style) -> io::Result<Self> {
        Self::beside(style, io::stderr().as_fd())
    }

    fn beside(style: Style, out: BorrowedFd<'_>) -> io::Result<Self> {
        let backlog = Arc::<Backlog>::default();
        let out = BufWriter::new(Outlet::new(out.try_clone_to_owned()?, backlog.clone()));
        let err = Outlet::new(io::stderr().as_fd().try_clone_to_owned()?, backlog.clone());
        let mut reporter = Self::new(style, Box::new(out), Box::new(err));
        reporter.backlog = backlog;
        Ok(reporter)
    }

    /// Serves the last snapshot to Prometheus at `address`, until the reporter is dropped, and says where.
    ///
    /// # Errors
    /// When the address can't be bound.
    pub fn serve_metrics(&mut self, address: SocketAddr) -> io::Result<()> {
        let server = Server::start(address)?;
        let address = server.address();
        match self.style {
            Style::Human { .. } => self.say(&format!("metrics at http://{address}/metrics")),
            Style::Json => self.json("metrics", &Metrics { address }),
            Style::Quiet => {}
        }
        self.server = Some(server);
        Ok(())
    }

    /// Writes the distributions of each second to a file that HdrHistogram's tools read.
    ///
    /// # Errors
    /// When the file can't be made.
    pub fn log_times(&mut self, path: &Path) -> io::Result<()> {
        self.times_log = Some(TimesLog::create(path)?);
        Ok(())
    }

    /// Takes the terminal for a page, from the start of the run to its summary.
    ///
    /// # Errors
    /// When standard input or output is no terminal, or one that shows lines alone.
    pub fn show_page(&mut self) -> io::Result<()> {
        self.page = Some((Screen::take()?, Page::default()));
        Ok(())
    }

    /// Says how the run stands whenever the process gets SIGUSR1, and with `keys` also when Enter is typed at the terminal: what
    /// has happened since it was said last. A page says that anyway.
    ///
    /// # Errors
    /// The process may have no more handlers of signals.
    pub fn answer(&mut self, keys: bool) -> io::Result<()> {
        self.asking = Some(Asking::new(keys && self.page.is_none())?);
        Ok(())
    }

    /// Whether nobody reads the results any more.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether anybody would see an interval.
    pub(crate) fn shows_intervals(&self) -> bool {
        let is_shown = matches!(self.style, Style::Json | Style::Human { live: true });
        is_shown || self.page.is_some() || self.server.is_some() || self.times_log.is_some()
    }

    /// How long the reporter may be left alone; `None` for any time.
    pub(crate) fn patience(&self) -> Option<Duration> {
        (self.page.is_some() || self.asking.is_some()).then_some(KEY_PATIENCE)
    }

    /// Writes on what nobody has taken yet.
    pub(crate) fn catch_up(&mut self) {
        if !self.backlog.is_empty() {
            // There is nowhere to complain about standard error.
            let _ = self.err.flush();
            let written = self.out.flush();
            self.note(written);
        }
        self.log(TimesLog::catch_up);
    }

    /// Says how it stands, if somebody has asked.
    pub(crate) fn answer_if_asked(&mut self, now: impl FnOnce() -> Snapshot) {
        let Some(mut asking) = self.asking.take_if(|asking| asking.has_asked()) else { return };
        if self.page.is_none() {
            let now = now();
            let event = now.since(asking.told.as_ref());
            match self.style {
                Style::Json => self.json("report", &event),
                Style::Human { .. } | Style::Quiet => self.result(&event),
            }
            asking.told = Some(now);
        }
        self.asking = Some(asking);
    }

    /// Answers what was typed; sets `stop` when that was for an end.
    pub(crate) fn attend(&mut self, stop: &Stop) {
        let Some((screen, page)) = &mut self.page else { return };
        let Ok(wishes) = screen.wishes() else {
            // The terminal is gone.
            self.gone = true;
            return;
        };
        for wish in &wishes {
            match wish {
                Wish::End => stop.set(),
                Wish::Scroll(rows) => page.scroll(*rows),
                Wish::Pause => terminal::ask_to_stop(),
                Wish::Redraw => {}
            }
        }
        if !wishes.is_empty() {
            self.gone |= screen.draw(page).is_err();
        }
    }

    /// A warning that matters only if there is a start: who is refused gets the reason, and nothing else.
    pub fn warn_at_start(&mut self, message: String) {
        self.at_start.push(message);
    }

    /// A rule that a NIC steers packets by, and where in it the rule is: said at the start.
    pub fn steered(&mut self, message: String) {
        self.steered.push(message);
    }

    /// What is about to happen, until `stop` is set: then whoever reads is waited for, and not for long.
    pub fn start(&mut self, event: &(impl Serialize + Display), stop: &Stop) {
        self.backlog.heed(stop);
        if let Some(log) = &self.times_log {
            log.heed(stop);
        }
        for warning in std::mem::take(&mut self.at_start) {
            self.warning(&warning);
        }
        for message in std::mem::take(&mut self.steered) {
            match self.style {
                Style::Human { .. } => self.say(&message),
                Style::Json => self.json("steered", &Message { message: &message }),
                Style::Quiet => {}
            }
        }
        match self.style {
            Style::Human { .. } => self.say(&event.to_string()),
            Style::Json => self.json("start", event),
            Style::Quiet => {}
        }
        self.title(event);
    }

    /// What is being done, for a page.
    pub(crate) fn title(&mut self, event: &impl Display) {
        if let Some((_, page)) = &mut self.page {
            page.title = event.to_string();
        }
    }

    /// How it stands when it has just begun: for those who would otherwise show nothing for a second.
    pub(crate) fn begin(&mut self, now: impl FnOnce() -> Snapshot) {
        if self.page.is_none() && self.server.is_none() {
            return;
        }
        let now = now();
        if let Some(server) = &self.server {
            server.publish(prometheus::exposition(&now));
        }
        if let Some((screen, page)) = &mut self.page {
            page.add(now);
            self.gone |= screen.draw(page).is_err();
        }
    }

    /// What has happened since the last call, or since the start. Whoever has not taken what was said before misses it.
    pub fn interval(&mut self, now: Snapshot) {
        let last = self.last.take();
        let event = &now.since(last.as_ref());
        match self.style {
            _ if self.page.is_some() || !self.backlog.is_empty() => {}
            Style::Human { live: true } => {
                // Nothing is lost when the terminal does not take a line that the next one replaces.
                let _ = self.err.write_all(format!("\r{event}\x1b[K").as_bytes());
                let _ = self.err.flush();
                self.is_live = true;
            }
            Style::Json => self.json("interval", event),
            Style::Human { live: false } | Style::Quiet => {}
        }
        self.log(|log| log.write(event));
        if let Some(server) = &self.server {
            server.publish(prometheus::exposition(&now));
        }
        if let Some((screen, page)) = &mut self.page {
            page.add(now.clone());
            self.gone |= screen.draw(page).is_err();
        }
        self.last = Some(now);
    }

    /// What has happened between the last interval and the end.
    pub(crate) fn end(&mut self, now: &Snapshot) {
        let last = self.last.take();
        self.log(|log| log.write(&now.since(last.as_ref())));
        self.times_log = None;
    }

    /// Reports that could not be written to their end.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Something that is worse than it could be, and the cure.
    pub fn warning(&mut self, message: &str) {
        match self.style {
            Style::Human { .. } => self.say(&format!("warning: {message}")),
            Style::Json => self.json("warning", &Message { message }),
            Style::Quiet => {}
        }
    }

    /// What has changed, and is as it was meant.
    pub fn news(&mut self, message: &str) {
        match self.style {
            Style::Human { .. } => self.say(message),
            Style::Json => self.json("news", &Message { message }),
            Style::Quiet => {}
        }
    }

    /// What came of it all. The terminal is given back first.
    pub fn summary(&mut self, event: &(impl Serialize + Display)) {
        self.leave_page();
        match self.style {
            Style::Human { .. } => self.result(event),
            Style::Json => self.json("summary", event),
            Style::Quiet => {}
        }
    }

    /// Why the aim was not met: said in every style.
    pub fn unmet(&mut self, reason: &str) {
        self.say(&format!("not met: {reason}"));
    }

    /// Gives the terminal back and says there what was only said on the page.
    fn leave_page(&mut self) {
        if let Some((screen, page)) = self.page.take() {
            drop(screen);
            page.messages.iter().for_each(|message| self.say(message));
        }
    }

    fn log(&mut self, write: impl FnOnce(&mut TimesLog) -> io::Result<()>) {
        if let Some(Err(error)) = self.times_log.as_mut().map(write) {
            self.times_log = None;
            self.failures.push(format!("the file of delays ends early: {error}"));
        }
    }

    fn say(&mut self, line: &str) {
        if let Some((_, page)) = &mut self.page {
            page.messages.push(line.to_owned());
            return;
        }
        if !self.backlog.has_room() {
            return;
        }
        self.clear_live();
        // There is nowhere to complain about standard error.
        let _ = self.err.write_all(format!("{line}\n").as_bytes());
    }

    fn result(&mut self, event: &impl Display) {
        if !self.backlog.has_room() {
            return;
        }
        self.clear_live();
        let written = writeln!(self.out, "{event}").and_then(|()| self.out.flush());
        self.note(written);
    }

    fn clear_live(&mut self) {
        if std::mem::take(&mut self.is_live) {
            let _ = write!(self.err, "\r\x1b[K");
        }
    }

    fn json<T: Serialize>(&mut self, event: &'static str, body: &T) {
        if !self.backlog.has_room() {
            return;
        }
        let written = serde_json::to_writer(&mut self.out, &Line { event, body })
            .map_err(io::Error::from)
            .and_then(|()| writeln!(self.out))
            .and_then(|()| self.out.flush());
        self.note(written);
    }

    fn note(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        // A reader that went away has read enough; any other wanted what is lost here.
        if error.kind() != io::ErrorKind::BrokenPipe && !self.gone {
            self.failures.push(format!("results can't be written: {error}"));
        }
        self.gone = true;
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        // A run that did not start has no summary; what was said on the page is said again.
        self.leave_page();
    }
}
