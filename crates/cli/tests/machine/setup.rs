//! What the tests of the binary share: running it in a host of the lab, and reading what it says, but not for ever.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bywash_lab::Host;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Nothing that is waited for takes longer, on the busiest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Little packet memory, in ordinary pages, so that nothing is said about them.
const QUIET_MEMORY: [&str; 4] = ["--huge-pages", "off", "--memory", "16M"];

/// `bywash` in a host.
pub(crate) fn bywash(host: &Host, words: &str) -> Command {
    let mut command = host.command(env!("CARGO_BIN_EXE_bywash")).unwrap();
    command.args(words_of(words)).args(QUIET_MEMORY);
    command
}

/// Words between blanks; what stands between single quotes is one word.
pub(crate) fn words_of(words: &str) -> Vec<String> {
    let parts = words.split('\'').enumerate();
    let parts = parts.flat_map(|(number, part)| match number % 2 {
        0 => part.split_whitespace().map(String::from).collect(),
        _ => vec![part.to_owned()],
    });
    parts.collect()
}

/// A running tool; killed when dropped.
pub(crate) struct Tool {
    child: Child,
    /// Lines of its standard output.
    lines: Receiver<String>,
}

impl Tool {
    /// Starts a command with `--json` and waits until it has begun.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines(child.stdout.take().unwrap());
        let mut tool = Self { child, lines };
        if let Err(why) = await_line(&tool.lines, r#""event":"start""#) {
            tool.child.kill().unwrap();
            panic!("{why}: {:?}", tool.end());
        }
        tool
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end: exit code (none of one that was killed) and standard error.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let status = wait(&mut self.child);
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut said).unwrap();
        }
        (status, said)
    }

    /// Ends it as Ctrl-C does; its summary.
    pub(crate) fn summary(mut self) -> Value {
        self.signal(Signal::INT);
        let (code, said) = self.end();
        let last = self.lines.iter().last().unwrap_or_default();
        assert!(matches!(code, Some(0 | 1)), "{code:?}: {said}");
        let summary: Value = serde_json::from_str(&last).unwrap();
        assert_eq!(summary["event"], "summary", "{said}");
        summary
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // It has ended already, as a rule.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Lines that come, read by a thread of its own.
pub(crate) fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (to, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Waits for a line with these words; why it did not come otherwise.
pub(crate) fn await_line(lines: &Receiver<String>, words: &str) -> Result<String, String> {
    let until = Instant::now() + PATIENCE;
    let mut last = String::new();
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) if line.contains(words) => return Ok(line),
            Ok(line) => last = line,
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("'{words}' did not come in time after '{last}'"));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("it ended and did not say '{words}' after '{last}'"));
            }
        }
    }
}

/// Waits for a process's end; its exit code.
pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("it did not end");
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The binary where nobody in particular may run it: the project may lie in a directory that is closed to others.
pub(crate) struct OpenToAll(PathBuf);

impl OpenToAll {
    pub(crate) fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("bywash-machine-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let copied = Self(directory);
        std::fs::set_permissions(&copied.0, Permissions::from_mode(0o755)).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_bywash"), copied.binary()).unwrap();
        copied
    }

    pub(crate) fn binary(&self) -> PathBuf {
        self.0.join("bywash")
    }
}

impl Drop for OpenToAll {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
