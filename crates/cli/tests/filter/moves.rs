//! Rules that move from TCX to XDP while they hold, since new ones need user space: nothing is missed, forgotten or left.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bywash_drivers::xdp::{self, Options, XdpPort};
use bywash_lab::{Host, Snapshot};
use bywash_port::filter::rules::{FlowOptions, MOST_RULES};
use bywash_port::filter::xdp::pass_program;
use bywash_port::frame::{Arena, Batch, Pool, Stride};
use bywash_port::{
    Action, Condition, Limit, LoadedRules, Per, Port, QueueChoice, Rule, RuleSet, Rules, RxQueue, TxQueue,
};
use bywash_sys::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use bywash_sys::interface::worker_cores;
use bywash_sys::memory::{HugePages, allocate};
use bywash_sys::route::Gateway;
use bywash_sys::worker::allowed_cores;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bed::{BYWASH, Bed, Filter, SERVER, Untouched, is_all, of_rule, sent, summary, unchanged};
use crate::pinned::workers;
use crate::samples::comments;

const FLOOD: &str = "[[rule]]\nname = \"flood\"\nto_ports = [9]\naction = \"drop\"\n";
const ASKED: &str = "[[rule]]\nname = \"asked\"\nto_ports = [7]\naction = \"count\"\n";
const LIMIT: &str =
    "[[rule]]\nname = \"rate\"\nto_ports = [8]\naction = \"limit\"\nrate = 100\nper = \"rule\"\n";

/// A filter that begins at TCX, and its audit log.
struct Moving<'a> {
    bed: &'a Bed,
    filter: Filter,
    audit: PathBuf,
}

impl<'a> Moving<'a> {
    fn start(bed: &'a Bed, rules: &str, words: &str) -> Self {
        let (audit, rules) = (bed.folder.path().join("audit.log"), bed.rules(rules));
        std::fs::remove_file(&audit).ok();
        let words = format!("--rules {} --audit {} {words}", rules.display(), audit.display());
        let moving = Self { bed, filter: Filter::start(bed, &words), audit };
        assert_eq!(moving.noted("start", 1)["mode"], json!(["TCX"]));
        moving
    }

    /// That event of its kind, from 1 on, that the audit log has, waited for.
    fn noted(&self, what: &str, number: usize) -> Value {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let log = std::fs::read_to_string(&self.audit).unwrap();
            let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            if let Some(event) = events.filter(|event| event["event"] == what).nth(number - 1) {
                return event;
            }
            assert!(Instant::now() < until, "no {what}: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Has it read other rules, which it finds by itself, and waits until these hold.
    fn reload(&self, rules: &str) -> Value {
        self.bed.rules(rules);
        self.noted("reload", 1)
    }
}

fn is_at_xdp(event: &Value) -> bool {
    event["mode"].as_array().unwrap().contains(&json!("native XDP"))
}

#[test]
fn under_a_flood_each_packet_is_decided_by_the_rules_before_or_by_those_after() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let limited = bed.lab.hosts[1].enter(|| UdpSocket::bind("10.0.0.2:8")).unwrap().unwrap();
        limited.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let untouched = bed.lab.hosts[1].enter(Snapshot::take).unwrap();
        let moving = Moving::start(&bed, &format!("{FLOOD}{ASKED}"), "");
        let over = AtomicBool::new(false);
        let (sent, (asked, answered), reload, passed) = std::thread::scope(|scope| {
            let flood = scope.spawn(|| bed.flood("--dport 9 --src 10.1.0.0/24 --rate 20k --duration 5s"));
            let asking = scope.spawn(|| {
                let (mut asked, mut answered) = (0, 0);
                while !over.load(Ordering::Relaxed) {
                    answered += bed.ask(10);
                    asked += 10;
                }
                (asked, answered)
            });
            std::thread::sleep(Duration::from_millis(1500));
            let reload = moving.reload(&format!("{LIMIT}{FLOOD}{ASKED}"));
            let client = bed.lab.hosts[0].enter(|| UdpSocket::bind("10.0.0.1:0")).unwrap().unwrap();
            for number in 0..2000 {
                client.send_to(b"many", "10.0.0.2:8").unwrap();
                if number % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            let mut passed = 0;
            while limited.recv(&mut [0; 4]).is_ok() {
                passed += 1;
            }
            let sent = sent(flood.join().unwrap());
            over.store(true, Ordering::Relaxed);
            (sent, asking.join().unwrap(), reload, passed)
        });
        assert!(is_at_xdp(&reload), "{reload}");
        let places: Vec<&Value> =
            reload["places"].as_array().unwrap().iter().map(|place| &place["place"]).collect();
        assert_eq!(places, ["user_space", "xdp", "xdp"], "{reload}");
        let told = moving.filter.end();
        let summary = summary(&told);
        assert!(is_at_xdp(&summary["port"]), "{summary}");
        assert_eq!(asked, answered, "whoever is served stays served: {summary}");
        is_all(of_rule(summary, "flood", "dropped_packets"), sent, summary);
        // What passes is counted by both for some milliseconds.
        let counted = of_rule(summary, "asked", "packets");
        let asked = u64::from(asked);
        assert!((asked..asked + asked / 5).contains(&counted), "{asked} were sent: {summary}");
        // A second's worth, and what comes in the time that sending takes.
        assert!((90..500).contains(&passed), "{passed} passed: {summary}");
        assert_eq!(of_rule(summary, "rate", "packets"), 2000, "{summary}");
        assert_eq!(of_rule(summary, "rate", "dropped_packets"), 2000 - passed, "{summary}");
        let count = |name: &str| summary[name].as_u64().unwrap();
        assert_eq!((count("taken_packets"), count("given_back_packets")), (2000, passed), "{summary}");
        assert_eq!((count("reloads"), count("lost_packets"), count("refused_reloads")), (1, 0, 0));
        let intervals: Vec<&Value> = told.iter().filter(|event| event["event"] == "interval").collect();
        for of in [
            |event: &Value| of_rule(event, "flood", "packets"),
            |event: &Value| of_rule(event, "asked", "packets"),
            |event: &Value| event["dropped_packets"].as_u64().unwrap(),
            |event: &Value| event["ports"][0]["left"].as_u64().unwrap(),
        ] {
            let counts: Vec<u64> = intervals.iter().map(|event| of(event)).collect();
            assert!(counts.is_sorted() && counts.len() >= 4, "{counts:?}");
        }
        bed.lab.hosts[1].enter(|| unchanged(&untouched)).unwrap();
    }
    unchanged(&before);
}

#[test]
fn what_was_known_at_tcx_is_known_in_xdp() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let rules = |more: &str| {
        format!(
            "[[rule]]\nname = \"answers\"\nestablished = true\naction = \"pass\"\n\
             [[rule]]\nname = \"drawn\"\nmatch = \"udp dst port 10\"\naction = \"drop\"\nsample = 1\n\
             {more}\
             [[rule]]\nname = \"others\"\nto_ports = [\"6000-6010\"]\naction = \"drop\"\n"
        )
    };
    let bed = Bed::new(2);
    let [client, server] = [("10.0.0.1:6001", 0), ("10.0.0.2:6000", 1)].map(|(address, host)| {
        let socket = bed.lab.hosts[host].enter(|| UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket
    });
    let samples = bed.folder.path().join("samples.pcapng");
    let moving = Moving::start(&bed, &rules(""), &format!("--samples {}", samples.display()));
    let draw = || {
        for _ in 0..20 {
            bed.client.send_to(b"draw", "10.0.0.2:10").unwrap();
        }
    };
    let is_answered = || {
        client.send_to(b"here", "10.0.0.2:6000").unwrap();
        server.recv(&mut [0; 4]).is_ok()
    };
    assert!(!is_answered(), "a stranger");
    server.send_to(b"ask", "10.0.0.1:6001").unwrap();
    client.recv(&mut [0; 4]).unwrap();
    assert!(is_answered());
    draw();
    // That packets are as long as on the wire needs XDP as well.
    let long = "[[rule]]\nname = \"long\"\nmatch = \"udp dst port 11 and len > 500\"\naction = \"drop\"\n";
    let reload = moving.reload(&rules(long));
    assert!(is_at_xdp(&reload), "{reload}");
    assert!(is_answered());
    draw();
    let told = moving.filter.end();
    let summary = summary(&told);
    assert_eq!(of_rule(summary, "drawn", "dropped_packets"), 40, "{summary}");
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert_eq!((count("sampled_packets"), count("lost_samples"), count("taken_packets")), (40, 0, 0));
    assert_eq!(comments(&samples), [("drawn".to_owned(), 40)].into());
    assert_eq!(summary["port"]["counters"]["flows_noted"], 1, "{summary}");
}

#[test]
fn the_worker_is_free_to_move_at_tcx_and_stays_on_a_core_from_when_packets_come_to_it() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(2);
    let allowed = allowed_cores();
    let moving = Moving::start(&bed, FLOOD, "");
    assert_eq!(workers(&moving.filter), std::slice::from_ref(&allowed));
    assert!(is_at_xdp(&moving.reload(&format!("{LIMIT}{FLOOD}"))));
    let cores = workers(&moving.filter);
    assert!(cores.len() == 1 && cores[0].len() == 1, "it is free to move: {cores:?}");
    assert!(allowed.contains(&cores[0][0]), "{cores:?}");
    moving.bed.rules(&format!("{LIMIT}{ASKED}"));
    moving.noted("reload", 2);
    assert_eq!(workers(&moving.filter), cores, "when rules are read anew");
    moving.filter.end();
    // Another one, where there is one, stays what was asked for.
    let core = allowed.iter().find(|core| **core != cores[0][0]).unwrap_or(&allowed[0]);
    let moving = Moving::start(&bed, FLOOD, &format!("--cores {core}"));
    assert!(is_at_xdp(&moving.reload(&format!("{LIMIT}{FLOOD}"))));
    assert_eq!(workers(&moving.filter), [[*core]], "by --cores");
    moving.filter.end();
}

#[test]
fn rules_that_can_not_move_are_refused_and_the_old_ones_stay_where_they_were() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let host = &bed.lab.hosts[1];
        let drop_7 = FLOOD.replace('9', "7");
        let moving = Moving::start(&bed, &drop_7, "");
        let instructions = pass_program().to_words();
        let spec = ProgramSpec { kind: ProgramKind::XdpFrags, name: "other", instructions: &instructions };
        let other = Program::load(&spec).unwrap();
        let attach = || Link::xdp(&other, bed.lab.pairs[0].far.index, XdpMode::Native);
        let at_tcx = host.enter(Snapshot::take).unwrap();
        let link = host.enter(attach).unwrap().unwrap();
        bed.rules(&format!("{LIMIT}{FLOOD}"));
        let why = moving.noted("refused", 1)["why"].as_str().unwrap().to_owned();
        let because = "the rule 'rate' has a limit, which user space keeps, and a program at TCX decides alone; at XDP: ";
        assert!(why.contains(because) && why.contains("XDP program"), "{why}");
        assert_eq!(bed.ask(2), 0, "{SERVER} is not reached, as before");
        // What the verifier or the kernel's settings refuse at XDP is refused as well.
        drop(link);
        let cookie = "[[rule]]\nname = \"web\"\nto_ports = [80]\naction = \"syncookie\"\n";
        host.sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
        bed.rules(&format!("{cookie}{FLOOD}"));
        let why = moving.noted("refused", 2)["why"].as_str().unwrap().to_owned();
        assert!(why.contains("needs the kernel's own SYN cookies"), "{why}");
        host.enter(|| unchanged(&at_tcx)).unwrap();
        assert_eq!(bed.ask(2), 0);
        // Now they can.
        let reload = moving.reload(&format!("{LIMIT}{FLOOD}"));
        assert!(is_at_xdp(&reload), "{reload}");
        assert_eq!(bed.ask(10), 10);
        // And they stay there.
        bed.rules(&drop_7);
        assert!(is_at_xdp(&moving.noted("reload", 2)));
        assert_eq!(bed.ask(2), 0);
        // Gateways are looked after as before.
        let gateway = Gateway { index: bed.lab.pairs[0].far.index, address: Some([10, 0, 0, 1].into()) };
        host.add_route("0.0.0.0/0".parse().unwrap(), gateway).unwrap();
        moving.noted("gateways", 1);
        assert_eq!(bed.ask(10), 10, "what comes from the gateway is never dropped");
        let told = moving.filter.end();
        let summary = summary(&told);
        assert!(is_at_xdp(&summary["port"]), "{summary}");
        assert_eq!(summary["refused_reloads"], 2, "{summary}");
    }
    unchanged(&before);
}

#[test]
fn rules_move_where_their_interface_has_another_name_and_another_one_has_its_own_by_now() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let host = &bed.lab.hosts[1];
        let moving = Moving::start(&bed, &FLOOD.replace('9', "7"), "");
        let far = &bed.lab.pairs[0].far;
        let name = &far.name;
        // The cores of workers go by the index.
        let other = far.index + 1001;
        for words in [
            format!("link set dev {name} name old"),
            format!("link add {name} index {other} type veth peer name new"),
            format!("link set dev {name} up"),
            "link set dev new up".to_owned(),
        ] {
            let status = host.command("ip").unwrap().args(words.split(' ')).status().unwrap();
            assert!(status.success(), "{words}");
        }
        let reload = moving.reload(&format!("{LIMIT}{FLOOD}"));
        assert!(is_at_xdp(&reload), "{reload}");
        let shown = host.command("ip").unwrap().args(["link", "show", "dev", name]).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains(name) && !shown.contains("xdp"), "{shown}");
        assert_eq!(bed.ask(10), 10, "{SERVER} is reached by the new rules");
        let own = host.enter(|| worker_cores(far.index, 0, 1)).unwrap();
        assert_eq!(workers(&moving.filter), [own], "not as interface {other}");
        moving.filter.end();
    }
    unchanged(&before);
}

fn rule(name: &str, expression: &str, action: Action) -> Rule {
    Rule {
        name: name.into(),
        condition: Condition { expression: Some(expression.parse().unwrap()), ..Condition::default() },
        action,
        sample: None,
        expires: None,
        dry_run: false,
    }
}

fn all(rules: Vec<Rule>) -> Rules {
    Rules { set: Arc::new(RuleSet::new(rules).unwrap()), never: Vec::new(), flows: FlowOptions::default() }
}

/// Drops what matches; and if that is wanted, a limit that a program at TCX can't keep.
fn rules(expression: &str, limit: bool) -> Rules {
    let limit = limit.then_some(Action::Limit(Limit { rate: 1, burst: 1, per: Per::Rule, block: None }));
    let limit = limit.map(|limit| rule("limit", "udp dst port 8", limit));
    all([rule("drop", expression, Action::Drop)].into_iter().chain(limit).collect())
}

/// Memory for a port that has moved, whose queues the test calls.
fn memory() -> &'static Arena {
    Arena::new(allocate(Stride::Packed.memory_for(8192), HugePages::Off, None).unwrap().memory).unwrap()
}

/// A port at TCX, and the halves of its queue.
fn at_tcx(host: &Host, rules: Rules, arena: &'static Arena) -> (Box<XdpPort>, Halves) {
    let options = Options { rules: Some(rules), ..Options::default() };
    let open = || xdp::open("left", QueueChoice::default(), &options, arena).unwrap();
    let mut port = Box::new(host.enter(open).unwrap());
    assert!(port.is_in_kernel() && port.has_moved());
    let queue = port.queues().remove(0);
    (port, (queue.rx.unwrap(), queue.tx.unwrap()))
}

type Halves = (Box<dyn RxQueue>, Box<dyn TxQueue>);

/// Loads rules that can't be at TCX.
fn load(host: &Host, port: &mut XdpPort, rules: &Rules) -> LoadedRules {
    let load = port.load_rules(rules).unwrap();
    assert!(load.moves());
    host.enter(|| load.load()).unwrap().unwrap()
}

/// The queues of a port that moves by rules that were loaded.
fn begin(port: &mut XdpPort, loaded: LoadedRules) -> Vec<Halves> {
    let moved = port.set_rules(loaded, &[]).unwrap().unwrap();
    moved.queues.into_iter().map(|queue| (queue.rx.unwrap(), queue.tx.unwrap())).collect()
}

/// Waits until a port has moved all of whose queues have been called.
fn wait(port: &mut XdpPort) {
    let until = Instant::now() + Duration::from_secs(1);
    while !port.has_moved() {
        assert!(Instant::now() < until, "all queues have workers");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!port.is_in_kernel());
}

fn close(port: Box<XdpPort>, queues: impl IntoIterator<Item = Halves>, pool: &mut Pool) {
    for (rx, tx) in queues {
        tx.close(pool);
        rx.close(pool);
    }
    port.close().unwrap();
}

#[test]
fn the_old_rules_decide_until_all_queues_have_workers_and_a_move_that_nobody_wants_is_undone() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let host = &bed.lab.hosts[1];
        let arena = memory();
        let mut pool = arena.pool(0).unwrap();
        let (mut port, mut former) = at_tcx(host, rules("udp dst port 7", false), arena);
        let next = rules("udp dst port 9", true);
        let (before, unused) = (host.enter(Snapshot::take).unwrap(), arena.unused());
        drop(load(host, &mut port, &next));
        host.enter(|| unchanged(&before)).unwrap();
        assert_eq!(arena.unused(), unused, "all frames are back");
        let loaded = load(host, &mut port, &next);
        let mut queues = begin(&mut port, loaded);
        let mut batch = Batch::new();
        let dropped = |port: &XdpPort| port.rule_counts()[0].packets;
        for called in 0..=queues.len() {
            for (rx, _) in &mut queues[..called] {
                rx.rx(&mut pool, &mut batch);
            }
            former.0.rx(&mut pool, &mut batch);
            assert!(!port.has_moved(), "{called} queues have workers");
            if called < queues.len() {
                assert_eq!((bed.ask(1), dropped(&port)), (0, called as u64 + 1), "the old rules");
            }
        }
        wait(&mut port);
        // The worker of what was at TCX may be called until it is closed.
        former.0.rx(&mut pool, &mut batch);
        assert_eq!(bed.ask(1), 1, "the new rules");
        assert!(batch.is_empty());
        close(port, queues.into_iter().chain([former]), &mut pool);
        drop(pool);
        assert_eq!(arena.unused(), arena.frames(), "all frames are back");
    }
    unchanged(&before);
}

#[test]
fn what_the_old_rules_count_while_they_move_is_not_the_new_rules() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let host = &bed.lab.hosts[1];
    let arena = memory();
    let mut pool = arena.pool(0).unwrap();
    // They have all counters that there are: a new rule has that of the first one.
    let listed = |n: u16| Rule {
        condition: Condition { to_ports: vec![7 + n..=7 + n], ..Condition::default() },
        ..rule(&n.to_string(), "", Action::Drop)
    };
    let many = (0..u16::try_from(MOST_RULES).unwrap()).map(listed).collect();
    let (mut port, mut former) = at_tcx(host, all(many), arena);
    let mut is_dropped = |pool: &mut Pool| {
        former.0.rx(pool, &mut Batch::new());
        bed.ask(1) == 0
    };
    assert!(is_dropped(&mut pool));
    let loaded = load(host, &mut port, &rules("udp dst port 9", true));
    assert!(is_dropped(&mut pool), "by the old rules");
    let mut queues = begin(&mut port, loaded);
    assert!(is_dropped(&mut pool), "by the old rules");
    for (rx, _) in &mut queues {
        rx.rx(&mut pool, &mut Batch::new());
    }
    wait(&mut port);
    let past: u64 = port.past_rule_counts().iter().map(|(_, count)| count.packets).sum();
    assert_eq!((port.rule_counts()[0].packets, past), (0, 3));
    bed.client.send_to(b"late", "10.0.0.2:9").unwrap();
    assert_eq!((bed.ask(1), port.rule_counts()[0].packets), (1, 1), "the new rules");
    close(port, queues.into_iter().chain([former]), &mut pool);
}

#[test]
fn however_it_ends_nothing_is_left() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let host = &bed.lab.hosts[1];
        let untouched = Untouched::now(host);
        // From before it moves until after that.
        for millis in [0, 1, 5, 10, 20, 30, 40, 60, 80, 120, 160, 250] {
            let moving = Moving::start(&bed, FLOOD, "");
            bed.rules(&format!("{LIMIT}{FLOOD}"));
            moving.filter.signal(Signal::HUP);
            std::thread::sleep(Duration::from_millis(millis));
            moving.filter.end();
            untouched.check();
        }
        let moving = Moving::start(&bed, FLOOD, "");
        moving.reload(&format!("{LIMIT}{FLOOD}"));
        moving.filter.signal(Signal::KILL);
        let mut child = moving.filter.child;
        child.wait().unwrap();
        let cleanup = host.command(BYWASH).unwrap().arg("cleanup").output().unwrap();
        assert!(cleanup.status.success(), "{cleanup:?}");
        untouched.check();
    }
    unchanged(&before);
}
