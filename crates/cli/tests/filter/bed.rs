//! Hosts of the tests' own on a cable, a filter in front of one of them, and what it tells.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bywash_lab::{Host, HostOptions, Lab, Pair, PairOptions, Snapshot};
use bywash_sys::route::Prefix;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A server behind a cable, a filter in front of it, and a client.
pub(crate) struct Bed {
    // In the order in which they go.
    pub(crate) server: UdpSocket,
    pub(crate) client: UdpSocket,
    pub(crate) lab: Lab,
    pub(crate) folder: tempfile::TempDir,
}

pub(crate) const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 7);

impl Bed {
    pub(crate) fn new(queues: u32) -> Self {
        let lab = Lab::row(2, &PairOptions { queues, ..PairOptions::default() }).unwrap();
        let bind = |host: &Host, address: &str| host.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
        let (server, client) = (bind(&lab.hosts[1], "10.0.0.2:7"), bind(&lab.hosts[0], "10.0.0.1:5000"));
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(Duration::from_millis(1000))).unwrap();
        }
        let bed = Self { server, client, lab, folder: tempfile::tempdir().unwrap() };
        take_injected(&bed.lab.hosts[1]);
        bed.check_sources(true);
        bed
    }

    /// Has the server refuse what comes in by another interface than where the way back to its source begins.
    pub(crate) fn check_sources(&self, on: bool) {
        for interface in ["all", "left"] {
            let name = format!("net.ipv4.conf.{interface}.rp_filter");
            self.lab.hosts[1].sysctl(&name, if on { "1" } else { "0" }).unwrap();
        }
    }

    pub(crate) fn rules(&self, text: &str) -> PathBuf {
        let path = self.folder.path().join("rules.toml");
        // In one step: a file that is half written would be half read.
        let fresh = self.folder.path().join("fresh.toml");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, &path).unwrap();
        path
    }

    /// Sends numbers to the server, and counts those that arrive, in order.
    pub(crate) fn ask(&self, count: u32) -> u32 {
        let mut last = None;
        let mut arrived = 0;
        for number in 0..count {
            self.client.send_to(&number.to_be_bytes(), SERVER).unwrap();
            let mut bytes = [0; 4];
            if self.server.recv(&mut bytes).is_ok() {
                let number = u32::from_be_bytes(bytes);
                assert!(last.is_none_or(|last| last < number), "out of order");
                last = Some(number);
                arrived += 1;
            }
        }
        arrived
    }

    pub(crate) fn flood(&self, words: &str) -> Output {
        flood(&self.lab.hosts[0], &format!("--dst 10.0.0.2 {words}"))
    }
}

pub(crate) fn flood(host: &Host, words: &str) -> Output {
    let all = format!("generate --inject right --dst-mac 02:00:00:00:00:02 {words} --json");
    let output = host.command(BYWASH).unwrap().args(arguments(&all)).output().unwrap();
    // A machine that is busy may miss the rate.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    output
}

/// Has a host's interface take what `generate --inject` sends it, also without an XDP program.
fn take_injected(host: &Host) {
    host.ethtool().set_features("left", &["rx-gro"], true).unwrap();
}

/// A pipe in place of a file, and its end, from which nobody reads.
pub(crate) fn fifo(bed: &Bed, name: &str) -> (PathBuf, File) {
    let path = bed.folder.path().join(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let pipe = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap();
    (path, pipe)
}

/// How many packets a flood had.
pub(crate) fn sent(flood: Output) -> u64 {
    let text = String::from_utf8(flood.stdout).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    last["tx_packets"].as_u64().unwrap()
}

pub(crate) const BYWASH: &str = env!("CARGO_BIN_EXE_bywash");

/// Words, of which those in quotation marks are one.
pub(crate) fn arguments(words: &str) -> Vec<String> {
    let parts = words.split('\'').enumerate();
    let of = |(n, part): (usize, &str)| match n % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
        _ => vec![part.to_owned()],
    };
    parts.flat_map(of).collect()
}

/// A tool that nobody ends ends after that.
pub(crate) const MOST: Duration = Duration::from_secs(600);

/// A running filter, or another tool.
pub(crate) struct Filter {
    pub(crate) child: Child,
    /// What it tells, read as soon as it is told: a full pipe would stop it.
    lines: Receiver<String>,
    /// What has been looked at so far.
    told: Vec<Value>,
}

impl Filter {
    pub(crate) fn start(bed: &Bed, words: &str) -> Self {
        Self::on(&bed.lab.hosts[1], words)
    }

    pub(crate) fn on(host: &Host, words: &str) -> Self {
        Self::on_port(host, "xdp:left", words)
    }

    pub(crate) fn on_port(host: &Host, port: &str, words: &str) -> Self {
        Self::tool(host, &format!("filter {port} {words} --huge-pages off --memory 32M"))
    }

    /// Any tool that goes on until it is told to end.
    pub(crate) fn tool(host: &Host, words: &str) -> Self {
        Self::by(host.command(BYWASH).unwrap(), words)
    }

    /// The same, by a command that becomes the tool.
    pub(crate) fn by(mut command: Command, words: &str) -> Self {
        command.args(arguments(&format!("{words} --json --duration {}s", MOST.as_secs())));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(r#""event":"start""#)), "it did not start: {words}");
        let (tell, told) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, lines: told, told: Vec::new() }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it tells of such an event.
    pub(crate) fn wait_for(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> &Value {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let line = self.lines.recv_timeout(until.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|_| panic!("no {what}: {:?}", self.told));
            self.told.push(serde_json::from_str(&line).unwrap());
            if self.told.last().is_some_and(&is_it) {
                break;
            }
        }
        summary(&self.told)
    }

    /// How it stands.
    pub(crate) fn report(&mut self) -> &Value {
        self.signal(Signal::USR1);
        self.wait_for("report", |event| event["event"] == "report")
    }

    /// All that it has told since it began, the summary last.
    pub(crate) fn end(self) -> Vec<Value> {
        let (code, lines) = self.end_anyhow();
        assert_eq!(code, Some(0), "{lines:?}");
        lines
    }

    /// The same, and its exit code.
    pub(crate) fn end_anyhow(self) -> (Option<i32>, Vec<Value>) {
        self.signal(Signal::INT);
        self.ended()
    }

    /// Its exit code and all that it has told, once it has ended by itself.
    pub(crate) fn ended(mut self) -> (Option<i32>, Vec<Value>) {
        self.told.extend(self.lines.iter().map(|line| serde_json::from_str::<Value>(&line).unwrap()));
        (self.child.wait().unwrap().code(), self.told)
    }
}

pub(crate) fn summary(told: &[Value]) -> &Value {
    told.last().unwrap()
}

/// A number of the rule with this name.
pub(crate) fn of_rule(event: &Value, name: &str, number: &str) -> u64 {
    let rules = event["rules"].as_array().unwrap();
    let rule =
        rules.iter().find(|rule| rule["rule"] == name).unwrap_or_else(|| panic!("no '{name}' in {event}"));
    rule[number].as_u64().unwrap()
}

/// All that was sent was dropped, but for what a worker left to the kernel that had no CPU for half a second.
pub(crate) fn is_all(dropped: u64, sent: u64, summary: &Value) {
    let hung = summary["port"]["counters"]["hung"].as_u64().unwrap();
    assert!(dropped <= sent && dropped + hung >= sent, "{dropped} of {sent}: {summary}");
}

/// The kernel gives back what a process had in the background.
pub(crate) fn unchanged(before: &Snapshot) {
    let until = Instant::now() + Duration::from_secs(10);
    while !before.difference().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(before.difference(), Vec::<String>::new());
}

/// A host as it was before a filter: its links with their programs, taps among them, BPF programs and maps, offloads, RSS
/// table and n-tuple rules, and the firewall.
pub(crate) struct Untouched<'a> {
    host: &'a Host,
    snapshot: Snapshot,
    told: [String; 4],
}

impl<'a> Untouched<'a> {
    pub(crate) fn now(host: &'a Host) -> Self {
        Self { host, snapshot: host.enter(Snapshot::take).unwrap(), told: told(host) }
    }

    /// Still, or again.
    pub(crate) fn check(&self) {
        self.host.enter(|| unchanged(&self.snapshot)).unwrap();
        assert_eq!(told(self.host), self.told);
    }
}

fn told(host: &Host) -> [String; 4] {
    let ethtool = host.ethtool();
    // Where there is no nft nobody has rules either.
    let firewall = host.command("nft").unwrap().args(["-s", "list", "ruleset"]).output();
    [
        format!("{:?}", ethtool.features("left").unwrap()),
        format!("{:?}", ethtool.rss("left")),
        format!("{:?}", ethtool.specs("left")),
        firewall.map(|output| String::from_utf8(output.stdout).unwrap()).unwrap_or_default(),
    ]
}

/// Two hosts on a cable, with addresses of both families: `fd00::1` and `fd00::2` beside the usual ones.
pub(crate) fn two_families(row: &PairOptions) -> ([Host; 2], Pair) {
    let options = HostOptions { ipv6: true, ..HostOptions::default() };
    let hosts = [(); 2].map(|()| Host::with(&options).unwrap());
    let mut addresses = row.addresses.clone();
    for (address, text) in addresses.iter_mut().zip(["fd00::1", "fd00::2"]) {
        address.push(Prefix { address: text.parse().unwrap(), length: 64 });
    }
    let pair = Pair::between(&hosts[0], &hosts[1], &PairOptions { addresses, ..row.clone() }).unwrap();
    take_injected(&hosts[1]);
    (hosts, pair)
}

/// The moment so many seconds from now, as rule files have it.
pub(crate) fn moment_in(seconds: u32) -> String {
    let date = ["-u", "-d", &format!("now + {seconds} seconds"), "+%FT%TZ"];
    String::from_utf8(Command::new("date").args(date).output().unwrap().stdout).unwrap()
}

/// Two rules: one drops for so many seconds from now, one blocks for a second who sends too much.
pub(crate) fn for_a_time(seconds: u32) -> String {
    let end = moment_in(seconds);
    format!(
        r#"
[[rule]]
name = "a while"
to_ports = [7]
action = "drop"
expires = {end}
[[rule]]
name = "rate"
to_ports = [8]
action = "limit"
rate = 1000
per = "source/24"
block_seconds = 1
"#
    )
}

/// Rules that are alike, each of which walks along a packet's headers; the verifier has the more to do with them as there is one that
/// joins lists.
pub(crate) fn alike(count: u32) -> String {
    let joins =
        "[[rule]]\nname = 'both'\nfrom = ['10.1.0.0/16']\nto_ports = [7]\naction = 'drop'\n".to_owned();
    let rule = |number: u32| {
        let port = 100 + number;
        format!(
            "[[rule]]\nname = 'alike {number}'\nmatch = 'anyvlan and l4 udp port {port}'\naction = 'drop'\n"
        )
    };
    joins + &(0..count).map(rule).collect::<String>()
}
