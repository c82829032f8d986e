//! A running `bywash serve` or `bywash tcp`, and what it is asked.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use bywash_lab::{Host, HostOptions, Pair, PairOptions, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub(crate) const BYWASH: &str = env!("CARGO_BIN_EXE_bywash");

/// Runs until it is dropped, or ended.
pub(crate) struct Instance {
    child: Child,
    /// Where its control socket is: no test meets an instance of the machine's own.
    folder: tempfile::TempDir,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

pub(crate) fn host() -> Host {
    Host::with(&HostOptions { ipv6: true, ..HostOptions::default() }).unwrap()
}

/// A host with the kernel's stack and one for ours, with a cable between; ours is the far one.
pub(crate) fn pair(addresses: &[&str]) -> (Host, Host, Pair) {
    // The far kernel has nothing to say: the cable's end there is ours.
    let (near, far) = (host(), Host::new().unwrap());
    let mut options = PairOptions { neighbours: false, ..PairOptions::default() };
    options.addresses = [addresses.iter().map(|text| text.parse().unwrap()).collect(), Vec::new()];
    let pair = Pair::between(&near, &far, &options).unwrap();
    (near, far, pair)
}

/// An instance that passes packets on between a network on the left, 10.9.1.0/24, and one on the right, 10.9.2.0/24. It is host 1
/// of both, and each has a host 2 with the kernel's stack.
pub(crate) struct Router {
    pub(crate) instance: Instance,
    pub(crate) left: Host,
    pub(crate) right: Host,
    pub(crate) middle: Host,
    _cables: [Pair; 2],
}

impl Router {
    pub(crate) fn start() -> Self {
        let (left, middle, right) = (host(), Host::new().unwrap(), host());
        let cables = [(&left, ["a", "ra"], 1), (&right, ["b", "rb"], 2)].map(|(near, names, network)| {
            let mut options = PairOptions { neighbours: false, ..PairOptions::default() };
            options.names = names.map(String::from);
            options.addresses = [vec![format!("10.9.{network}.2/24").parse().unwrap()], Vec::new()];
            let pair = Pair::between(near, &middle, &options).unwrap();
            let address = Some(format!("10.9.{network}.1").parse().unwrap());
            let way = bywash_lab::sys::route::Gateway { index: pair.near.index, address };
            near.add_route("0.0.0.0/0".parse().unwrap(), way).unwrap();
            pair
        });
        let config = tempfile::NamedTempFile::new().unwrap();
        let text = "name = 'router'\nforward = true\n[[port]]\nport = 'xdp:ra'\naddresses = ['10.9.1.1/24']\n\
                    [[port]]\nport = 'xdp:rb'\naddresses = ['10.9.2.1/24']\n";
        std::fs::write(config.path(), text).unwrap();
        let instance = Instance::start(&middle, &format!("serve|--config|{}", config.path().display()));
        Self { instance, left, right, middle, _cables: cables }
    }
}

impl Instance {
    /// Starts it on a host and waits until its addresses are in use. Words are parted by `|`.
    pub(crate) fn start(host: &Host, words: &str) -> Self {
        Self::start_by(host.command(BYWASH).unwrap(), words)
    }

    /// The same by another program, which is to become this one.
    pub(crate) fn start_by(mut command: Command, words: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = command
            .args(words.split('|'))
            .args(little_memory(words))
            .args(["--json", "--duration", "120s"])
            .env("XDG_RUNTIME_DIR", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.find(|line| line.as_ref().unwrap().contains(r#""event":"start""#));
        assert!(first.is_some(), "it did not start: {words}");
        Self { child, folder, lines }
    }

    /// Asks it, as `bywash addr` does.
    pub(crate) fn ask(&self, words: &str) -> Output {
        let mut command = Command::new(BYWASH);
        command.args(words.split(' ')).env("XDG_RUNTIME_DIR", self.folder.path()).output().unwrap()
    }

    /// Asks it something that it must not refuse; JSON, if it answers.
    pub(crate) fn told(&self, words: &str) -> Value {
        let output = self.ask(words);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        if output.stdout.is_empty() { Value::Null } else { serde_json::from_slice(&output.stdout).unwrap() }
    }

    /// Asks it something that it must not refuse; what it answers for people, with one blank between words.
    pub(crate) fn text(&self, words: &str) -> String {
        let output = self.ask(words);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Asks it something that it must refuse, and say why.
    pub(crate) fn refuses(&self, words: &str, says: &str) {
        let output = self.ask(words);
        let why = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}: {why}");
        assert!(why.contains(says), "{words}: {why}");
    }

    /// Where it can be asked by hand.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("bywash/default.sock")
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until it warns of something, and returns what it says.
    pub(crate) fn warning(&mut self) -> String {
        let mut events =
            self.lines.by_ref().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        let warning = events.find(|event| event["event"] == "warning").unwrap();
        warning["message"].as_str().unwrap().to_owned()
    }

    /// Ends it, and returns its summary.
    pub(crate) fn end(self) -> Value {
        kill_process(self.pid(), Signal::INT).unwrap();
        let (code, summary) = self.ended();
        assert_eq!(code, Some(0), "{summary}");
        summary
    }

    /// Waits until it has ended by itself, and returns its exit code and summary.
    pub(crate) fn ended(mut self) -> (Option<i32>, Value) {
        let last = self.lines.by_ref().map(Result::unwrap).last().unwrap();
        (self.child.wait().unwrap().code(), serde_json::from_str(&last).unwrap())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Only after a failed test: `end` has waited for it otherwise.
        if self.child.try_wait().unwrap().is_none() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

/// Packet memory for a test, where there is any.
pub(crate) fn little_memory(words: &str) -> &'static [&'static str] {
    let on_kernel = words.split('|').any(|word| word == "--kernel");
    if on_kernel { &[] } else { &["--huge-pages", "off", "--memory", "48M"] }
}

/// Runs a client until its end, and returns its exit code and summary.
pub(crate) fn client(host: &Host, words: &str) -> (Option<i32>, Value) {
    let folder = tempfile::tempdir().unwrap();
    let output = host
        .command(BYWASH)
        .unwrap()
        .args(words.split('|'))
        .args(little_memory(words))
        .arg("--json")
        .env("XDG_RUNTIME_DIR", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or_else(|| panic!("{words}: {complaint}"));
    (output.status.code(), serde_json::from_str(last).unwrap())
}

/// Bytes that don't repeat for long.
pub(crate) fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
}

/// Runs one of Linux's own programs on a host and returns what it prints; `None` where this machine has none.
pub(crate) fn run(host: &Host, program: &str, words: &str) -> Option<String> {
    let output = match host.command(program).unwrap().args(words.split(' ')).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{program}: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {text}{complaint}");
    Some(text)
}

/// Pings an address three times, and all are answered; where this machine has no ping, that is told.
pub(crate) fn is_pinged(host: &Host, address: &str) {
    match run(host, "ping", &format!("-c 3 -i 0.1 -w 10 {address}")) {
        Some(text) => assert!(text.contains("3 received"), "{text}"),
        None => skip("ping is not installed"),
    }
}

/// Who has answered a traceroute with one question per hop, and at which hop: lines as ` 1  10.9.1.1  0.061 ms`, and not as ` 1  *`.
pub(crate) fn hops(traced: &str) -> Vec<(u8, &str)> {
    let hop = |line| match str::split_whitespace(line).collect::<Vec<_>>()[..] {
        [number, address, time, "ms"] if time.parse::<f64>().is_ok() => Some((number.parse().ok()?, address)),
        _ => None,
    };
    traced.lines().filter_map(hop).collect()
}
