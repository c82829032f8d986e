//! Answers to what this machine has asked come in under a flood, and the flood's own packets establish nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::Duration;

use bywash_lab::{Host, Pair, PairOptions, Snapshot};
use bywash_port::filter::ebpf::{Assembler, Register};
use bywash_sys::bpf::{Link, Program, ProgramKind, ProgramSpec, TcxDirection};
use bywash_sys::route::Gateway;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::bed::{BYWASH, Filter, arguments, flood, is_all, of_rule, sent, summary, two_families, unchanged};

const PATIENCE: Duration = Duration::from_secs(5);

/// Rules behind which nothing comes in but answers; `rest` says more of the last one.
fn rules(rest: &str) -> String {
    format!(
        r#"
[established]
flows = 4096
except = ["udp src port 7"]
[[rule]]
name = "answers"
established = true
idle_seconds = 60
action = "pass"
[[rule]]
name = "rest"
match = ""
action = "drop"
{rest}
"#
    )
}

/// Two hosts, of which the second is to be filtered, and its rule file.
struct Cable {
    // In the order in which they go.
    hosts: [Host; 2],
    pair: Pair,
    folder: tempfile::TempDir,
}

impl Cable {
    fn new(options: &PairOptions) -> Self {
        let (hosts, pair) = two_families(options);
        Self { hosts, pair, folder: tempfile::tempdir().unwrap() }
    }

    fn filter(&self, text: &str) -> Filter {
        self.filter_at("auto", text)
    }

    fn filter_at(&self, attach: &str, text: &str) -> Filter {
        Filter::on(&self.hosts[1], &format!("--attach {attach} --rules {}", self.write(text)))
    }

    fn write(&self, text: &str) -> String {
        let [path, fresh] = ["rules.toml", "fresh.toml"].map(|name| self.folder.path().join(name));
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, &path).unwrap();
        path.display().to_string()
    }

    /// Has other rules take the place of the old ones.
    fn change(&self, filter: &Filter, text: &str) {
        self.write(text);
        filter.signal(Signal::HUP);
        std::thread::sleep(Duration::from_millis(500));
    }

    fn udp(&self, host: usize, address: &str) -> UdpSocket {
        let socket = self.hosts[host].enter(|| UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    }

    /// A connection that the filtered host has opened, its end first.
    fn connect(&self, address: &str) -> [TcpStream; 2] {
        let listener = self.hosts[0].enter(|| TcpListener::bind(address)).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let ours = self.hosts[1].enter(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap().unwrap();
        let ends = [ours, listener.accept().unwrap().0];
        ends.iter().for_each(|end| end.set_read_timeout(Some(PATIENCE)).unwrap());
        ends
    }
}

/// Whether what one sends arrives at the other.
fn arrives(from: &UdpSocket, to: &UdpSocket) -> bool {
    from.send_to(b"text", to.local_addr().unwrap()).unwrap();
    to.recv(&mut [0; 4]).is_ok()
}

fn says(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"text").unwrap();
    let mut heard = [0; 4];
    to.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"text");
}

/// What the port has counted.
fn of_port(told: &Value, name: &str) -> u64 {
    told["port"]["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {told}"))
}

#[test]
fn only_answers_come_in_and_they_stay_known_when_rules_change() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    for attach in ["auto", "xdp"] {
        let cable = Cable::new(&PairOptions::default());
        let filter = cable.filter_at(attach, &rules(""));
        let mut connections = Vec::new();
        for [ours, theirs] in [["10.0.0.2", "10.0.0.1"], ["[fd00::2]", "[fd00::1]"]] {
            let [asker, served] = [4000, 7].map(|port| cable.udp(1, &format!("{ours}:{port}")));
            let other = cable.udp(0, &format!("{theirs}:5000"));
            assert!(!arrives(&other, &asker), "nobody has asked");
            assert!(arrives(&asker, &other));
            assert!(arrives(&other, &asker), "an answer");
            assert!(!arrives(&other, &served), "another flow");
            assert!(arrives(&served, &other));
            assert!(!arrives(&other, &served), "what is excepted establishes nothing");
            let [mut client, mut server] = cable.connect(&format!("{theirs}:80"));
            says(&mut client, &mut server);
            says(&mut server, &mut client);
            connections.push([client, server]);
        }
        let mut dropped = 0;
        for words in ["--proto tcp --flags syn --dport 80", "--proto tcp --flags ack --dport 80", "--dport 7"]
        {
            for way in ["--dst 10.0.0.2 --src 10.9.0.0/16", "--dst fd00::2 --src fd00:9::/64"] {
                dropped +=
                    sent(flood(&cable.hosts[0], &format!("{words} {way} --sport 1024-65535 --count 2000")));
            }
        }
        // Once with room for as many flows, once for more.
        for rest in ["# more", "# again"] {
            let text = rules(rest);
            cable.change(&filter, &if rest == "# more" { text } else { text.replace("4096", "8192") });
            for [client, server] in &mut connections {
                // What this side sent before is still known.
                says(server, client);
            }
        }
        let told = filter.end();
        let summary = summary(&told);
        // UDP in vain: two of each family before, with a flow of another kind now and then.
        is_all(dropped.min(of_rule(summary, "rest", "dropped_packets")), dropped, summary);
        assert!(of_rule(summary, "answers", "packets") >= 10, "{summary}");
        assert_eq!(of_rule(summary, "answers", "dropped_packets"), 0, "{summary}");
        // A question and a connection for each family. ICMP of the kernel's own establishes nothing.
        assert_eq!(
            (of_port(summary, "flows_noted"), of_port(summary, "flows_forgotten")),
            (4, 0),
            "{summary}"
        );
    }
    unchanged(&before);
}

#[test]
fn what_this_machine_answers_a_flood_with_establishes_nothing() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let cable = Cable::new(&PairOptions::default());
    // Everything comes in, and the kernel answers it: to nobody, who has a route.
    for (to, by) in [("10.9.0.0/16", "10.0.0.1"), ("fd00:9::/64", "fd00::1")] {
        let way = Gateway { index: cable.pair.far.index, address: Some(by.parse().unwrap()) };
        cable.hosts[1].add_route(to.parse().unwrap(), way).unwrap();
    }
    let filter = cable.filter(&rules("dry_run = true"));
    let bind = |address: &str| cable.hosts[1].enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let _listeners = ["10.0.0.2:80", "[fd00::2]:80"].map(bind);
    let floods = [
        "--proto tcp --flags syn --dport 80 --sport 5000",
        "--proto tcp --flags syn --dport 81 --sport 5000",
        // By the flows of SYNs that the listener has queued, as well.
        "--proto tcp --flags ack --dport 80 --sport 5000",
        "--dport 9 --sport 5000",
        "--proto icmp",
    ];
    for words in floods {
        for way in ["--dst 10.0.0.2 --src 10.9.0.0/24", "--dst fd00::2 --src fd00:9::/120"] {
            flood(&cable.hosts[0], &format!("{words} {way} --count 500"));
        }
    }
    let told = filter.end();
    let summary = summary(&told);
    assert!(of_rule(summary, "rest", "packets") >= 1000, "{summary}");
    assert_eq!(
        (of_rule(summary, "answers", "packets"), of_port(summary, "flows_noted")),
        (0, 0),
        "{summary}"
    );
}

/// Packets that come to the first host while `during` runs, of those that match.
fn counted_while(cable: &Cable, only: &str, during: impl FnOnce()) -> u64 {
    let words = format!(
        "receive xdp:right --force --only '{only}' --huge-pages off --memory 16M --json --duration 60s"
    );
    let mut command = cable.hosts[0].command(BYWASH).unwrap();
    let mut child = command.args(arguments(&words)).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(r#""event":"start""#)));
    during();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let last: Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
    child.wait().unwrap();
    last["rx_packets"].as_u64().unwrap()
}

/// Whether the kernel is one that was seen to tell that an ACK is a listener's: 6.18, and those after it.
fn tells_whose_answers_are() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

#[test]
fn what_a_listener_answers_a_second_syn_with_establishes_nothing() {
    let Some(_guard) = bywash_lab::lock() else { return };
    if !tells_whose_answers_are() {
        return bywash_lab::skip("before Linux 6.18 a listener's ACKs are not known to be its own");
    }
    let ways = [
        ("10.9.0.1", 32, "10.0.0.1", "10.0.0.2", "tcp[13] = 16"),
        ("fd00:9::1", 128, "fd00::1", "fd00::2", "ip6[6] = 6 and ip6[53] = 16"),
    ];
    let cable = Cable::new(&PairOptions::default());
    let bind = |address: &str| cable.hosts[1].enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let _listeners = ["10.0.0.2:80", "[fd00::2]:80"].map(bind);
    let filter = cable.filter(&rules("dry_run = true"));
    for (from, bits, by, to, ack) in ways {
        let way = Gateway { index: cable.pair.far.index, address: Some(by.parse().unwrap()) };
        cable.hosts[1].add_route(format!("{from}/{bits}").parse().unwrap(), way).unwrap();
        let syns = |sequence: u32| {
            let words = "--proto tcp --flags syn --dport 80 --sport 5000-5019 --count 20";
            let field = format!("--field tcp.seq={sequence}");
            flood(&cable.hosts[0], &format!("{words} --dst {to} --src {from} {field}"));
        };
        syns(1);
        // Of another connection, as it seems: the listener says by an ACK what it waits for.
        let answers = counted_while(&cable, ack, || {
            syns(1_000_000_000);
            std::thread::sleep(Duration::from_millis(500));
        });
        assert!(answers > 0, "the kernel has not answered {to}");
    }
    let told = filter.end();
    let summary = summary(&told);
    assert_eq!(of_rule(summary, "answers", "packets"), 0, "{summary}");
    assert_eq!(of_port(summary, "flows_noted"), 0, "{summary}");
}

#[test]
fn user_space_judges_by_flows_as_well_and_a_filter_that_is_killed_leaves_nothing() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let cable = Cable::new(&PairOptions::default());
        let [asker, other] = [cable.udp(1, "10.0.0.2:4000"), cable.udp(0, "10.0.0.1:5000")];
        let attack = "[[rule]]\nname = \"attack\"\nmatch = \"udp\"\npayload = [{ text = \"attack\", at = 0 }]\n\
                      action = \"drop\"\n[[rule]]";
        let with_attack = |text: &str| text.replacen("[[rule]]", attack, 1);
        let filter = cable.filter(&with_attack(&rules("")));
        assert!(!arrives(&other, &asker), "dropped by the last rule");
        assert!(arrives(&asker, &other));
        assert!(arrives(&other, &asker), "an answer, which user space was asked about by the first rule");
        other.send_to(b"attack", asker.local_addr().unwrap()).unwrap();
        assert!(asker.recv(&mut [0; 8]).is_err(), "dropped by that");
        let limit = rules("").replace("\"pass\"", "\"limit\"\nrate = 3").replace("\"drop\"", "\"count\"");
        cable.change(&filter, &with_attack(&limit));
        for _ in 0..20 {
            other.send_to(b"text", asker.local_addr().unwrap()).unwrap();
        }
        let came = std::iter::from_fn(|| asker.recv(&mut [0; 4]).ok()).count();
        assert!((1..20).contains(&came), "{came} of 20");
        filter.signal(Signal::KILL);
        let mut child = filter.child;
        child.wait().unwrap();
    }
    unchanged(&before);
}

#[test]
fn headers_that_do_not_lie_in_front_are_found_as_well() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let cable = Cable::new(&PairOptions { mtu: 9000, ..PairOptions::default() });
    let filter = cable.filter(&rules(""));
    // Of packets longer than a page, AF_PACKET puts only the Ethernet header in front.
    let words = "generate packet:left --dst-mac 02:00:00:00:00:01 --src 10.0.0.2 --sport 4000 --dst 10.0.0.1 \
                 --dport 5000 --size 8000 --count 3 --huge-pages off";
    let output = cable.hosts[1].command(BYWASH).unwrap().args(arguments(words)).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let [asker, other] = [cable.udp(1, "10.0.0.2:4000"), cable.udp(0, "10.0.0.1:5000")];
    assert!(arrives(&other, &asker));
    let told = filter.end();
    assert_eq!(of_port(summary(&told), "flows_noted"), 1);
}

/// `TC_ACT_OK`: the packet leaves, and no program behind is asked.
const TC_ACT_OK: i32 = 0;

#[test]
fn flows_are_noted_before_a_program_of_others_that_asks_nobody_behind_it() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let cable = Cable::new(&PairOptions::default());
    let mut assembler = Assembler::new();
    assembler.mov(Register::R0, TC_ACT_OK);
    assembler.exit();
    let instructions = assembler.finish().unwrap().to_words();
    let spec = ProgramSpec { kind: ProgramKind::SchedCls, name: "lets_leave", instructions: &instructions };
    let program = Program::load(&spec).unwrap();
    let interface = cable.pair.far.index;
    let attach = || Link::tcx(&program, interface, TcxDirection::Egress);
    let _others = cable.hosts[1].enter(attach).unwrap().unwrap();
    let filter = cable.filter(&rules(""));
    let [asker, other] = [cable.udp(1, "10.0.0.2:4000"), cable.udp(0, "10.0.0.1:5000")];
    assert!(arrives(&asker, &other));
    assert!(arrives(&other, &asker), "an answer");
    // The program that comes with other rules is there before it as well.
    cable.change(&filter, &rules("# again").replace("4096", "8192"));
    let [asker, other] = [cable.udp(1, "10.0.0.2:4001"), cable.udp(0, "10.0.0.1:5001")];
    assert!(arrives(&asker, &other));
    assert!(arrives(&other, &asker), "an answer");
    filter.end();
}

#[test]
fn a_trial_learns_from_what_this_side_has_sent_and_asks_which_side_that_is() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let here = Host::here().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [path, capture] = ["rules.toml", "both.pcapng"].map(|name| folder.path().join(name));
    std::fs::write(&path, rules("")).unwrap();
    let run = |words: &str| here.command(BYWASH).unwrap().args(arguments(words)).output().unwrap();
    // The addresses take turns: what leaves by 10.0.0.2:5 comes from there as from any other.
    let made =
        "--src 10.0.0.2,10.0.0.1 --dst 10.0.0.1,10.0.0.2 --sport 5 --dport 5 --src-mac 02:00:00:00:00:01";
    let made = run(&format!("generate pcap:{} {made} --count 100 --huge-pages off", capture.display()));
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let words = format!("filter test --rules {} --pcap {} --json", path.display(), capture.display());
    let refused = run(&words);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert_eq!((refused.status.code(), why.lines().count()), (Some(2), 1), "{refused:?}");
    assert!(why.contains("'answers'") && why.contains("--ours"), "{why}");
    let told: Value =
        serde_json::from_slice(&run(&format!("{words} --ours 10.0.0.2,fd00::/8")).stdout).unwrap();
    let count = |name: &str| told[name].as_u64().unwrap();
    let [all, ours, passed, dropped] =
        ["packets", "outgoing_packets", "passed_packets", "dropped_packets"].map(count);
    assert_eq!((all, ours + passed + dropped), (100, 100), "{told}");
    assert_eq!(of_rule(&told, "answers", "packets"), passed, "{told}");
    assert!(ours > 0 && passed > 0, "{told}");
    let elsewhere: Value = serde_json::from_slice(&run(&format!("{words} --ours 10.0.0.9")).stdout).unwrap();
    assert_eq!(elsewhere["dropped_packets"], 100, "{elsewhere}");
}
