//! What becomes of a flood and of those who are served while the rules change, and while the filter hangs, dies, or loses
//! its interface.

use std::collections::VecDeque;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bywash_lab::Snapshot;
use bywash_sys::route::Gateway;
use rustix::process::Signal;
use serde_json::Value;

use crate::bed::{Bed, Filter, Untouched, alike, is_all, of_rule, sent, summary, unchanged};

/// How long what becomes true again may take on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A flood to ports, until it is ended. The addresses that it is from are to be some for which the kernel has a way back.
pub(crate) fn flood(bed: &Bed, from: &str, ports: &str, rate: &str) -> Filter {
    let words = "generate --inject right --dst-mac 02:00:00:00:00:02 --dst 10.0.0.2";
    let rest = format!("--src {from} --dport {ports} --payload 'text:one attack' --rate {rate}");
    Filter::tool(&bed.lab.hosts[0], &format!("{words} {rest}"))
}

/// From where a flood comes that rules drop.
const FLOOD: &str = "10.0.0.16/28";

/// A socket of the kernel to which the flood is sent.
pub(crate) fn flooded(bed: &Bed, port: u16) -> UdpSocket {
    let socket = bed.lab.hosts[1].enter(|| UdpSocket::bind(("10.0.0.2", port))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// How many packets wait in a socket.
pub(crate) fn waiting(socket: &UdpSocket) -> u64 {
    socket.set_nonblocking(true).unwrap();
    let mut count = 0;
    while socket.recv(&mut [0; 64]).is_ok() {
        count += 1;
    }
    socket.set_nonblocking(false).unwrap();
    count
}

/// In one of them XDP drops what goes to port 9, and user space what goes to port 10; in the other one it is the other way
/// round, and the rules stand in another order. What goes to port 7 comes back from user space with both. What is spared may go to
/// port 11: the one drops what others send there, and never that; the other one has a limit there, far above it, and spares nobody.
fn text(turn: u32) -> String {
    let is_first = turn.is_multiple_of(2);
    let (in_kernel, in_user_space) = if is_first { (9, 10) } else { (10, 9) };
    let (never, of_spared) = if is_first {
        (format!("never_drop = ['{SPARED}']\n"), "name = 'others'\nto_ports = [11]\naction = 'drop'")
    } else {
        (String::new(), "name = 'all'\nto_ports = [11]\naction = 'limit'\nrate = 1000000000")
    };
    let mut rules = [
        of_spared.to_owned(),
        format!("name = 'kernel'\nto_ports = [{in_kernel}]\naction = 'drop'"),
        format!("name = 'some'\nto_ports = [7, {in_user_space}]\naction = 'limit'\nrate = 1000000000"),
        format!(
            "name = 'payload'\nto_ports = [{in_user_space}]\npayload = [{{ text = 'attack', within = 20 }}]\n\
             action = 'drop'"
        ),
        "name = 'names'\nto_ports = [7]\nnames = ['*.flood.example']\naction = 'drop'".to_owned(),
    ];
    if !is_first {
        rules.reverse();
    }
    never + &rules.map(|rule| format!("[[rule]]\n{rule}\n")).concat()
}

/// From where a flood comes that no rules drop.
const SPARED: &str = "10.0.0.128/28";

const NAMES: [&str; 4] = ["kernel", "some", "payload", "names"];

/// Says what was measured, to who asks for it (`--nocapture`) or has the test fail.
#[expect(clippy::print_stderr, reason = "that is where a test tells of itself")]
fn tell(what: &str) {
    eprintln!("{what}");
}

/// So many filters have their files change at a time: each change mostly waits for its filter.
const AT_ONCE: u32 = 3;

/// How often the files change of each, at most: a thousand times in all.
const RELOADS: u32 = 334;

/// For how long, at most: a filter looks each 50 ms whether it is to read them, and a machine that is busy takes its time.
const TURNS: Duration = Duration::from_secs(40);

#[test]
fn a_flood_that_both_rule_files_drop_is_dropped_while_one_takes_the_place_of_the_other() {
    let Some(_guard) = bywash_lab::lock() else { return };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(take_turns);
        }
    });
}

fn take_turns() {
    let bed = Bed::new(1);
    let audit = bed.folder.path().join("audit.log");
    let changes = || std::fs::read_to_string(&audit).unwrap().matches("\"reload\"").count();
    let targets = [9, 10].map(|port| flooded(&bed, port));
    let words = format!("--rules {} --audit {}", bed.rules(&text(0)).display(), audit.display());
    let mut filter = Filter::start(&bed, &words);
    let spared = flood(&bed, SPARED, "11", "4k");
    let flood = flood(&bed, FLOOD, "9,10", "8k");
    let (started, mut turns, mut asked, mut answered) = (Instant::now(), 0_u32, 0_u32, 0_u32);
    while turns < RELOADS && (turns < 50 || started.elapsed() < TURNS) {
        turns += 1;
        bed.rules(&text(turns));
        filter.signal(Signal::HUP);
        filter.signal(Signal::USR1);
        let until = Instant::now() + PATIENCE * 3;
        while changes() < turns as usize {
            assert!(Instant::now() < until, "the rules were not read");
            asked += 1;
            answered += bed.ask(1);
            std::thread::sleep(Duration::from_millis(2));
        }
        filter.wait_for("report", |event| event["event"] == "report");
    }
    tell(&format!("{turns} reloads in {:?}", started.elapsed()));
    let (_, flood) = flood.end_anyhow();
    spared.end_anyhow();
    let sent = summary(&flood)["tx_packets"].as_u64().unwrap();
    let told = filter.end();
    let summary = summary(&told);
    assert!(of_rule(summary, "all", "packets") > 1000, "user space has seen what is spared: {summary}");
    let wrongly = ["others", "all"].map(|name| of_rule(summary, name, "dropped_packets"));
    assert_eq!(wrongly, [0; 2], "neither file drops it: {summary}");
    let counted = |name: &str| summary["port"]["counters"][name].as_u64().unwrap();
    let full = counted("rx_dropped") + counted("rx_ring_full");
    // A worker that has no CPU for half a second leaves all to the kernel.
    let left = counted("hung") + counted("no_socket");
    // What came late.
    answered += u32::try_from(waiting(&bed.server)).unwrap();
    let through: u64 = targets.iter().map(waiting).sum();
    assert!(through <= left, "{through} of {sent} came through: {summary}");
    let dropped = ["kernel", "payload"].map(|name| of_rule(summary, name, "dropped_packets"));
    let all: u64 = dropped.iter().sum();
    let cable = &bed.lab.pairs[0].near;
    // Of all that the cable has no room for `generate` says that it was not sent, whosever it was.
    let unsent = bed.lab.hosts[0].route().counters(cable.index).unwrap().unwrap().tx_dropped;
    assert!(all <= sent + unsent && all + left + full >= sent, "{dropped:?} of {sent}: {summary}");
    assert!(dropped.iter().all(|count| *count > 1000), "{dropped:?} of {sent}: {summary}");
    let full = full + unsent;
    let lost = full + summary["lost_packets"].as_u64().unwrap();
    assert!(u64::from(asked.saturating_sub(answered)) <= lost, "{answered} of {asked} arrived: {summary}");
    assert!(asked >= turns, "{turns} times other rules, {asked} packets");
    // Once each, or twice: a file that changes is seen also by who has not asked yet.
    assert!(summary["reloads"].as_u64() >= Some(turns.into()), "{summary}");
    let stands: Vec<_> = told.iter().filter(|event| event["rules"].is_array()).collect();
    assert!(stands.len() > turns as usize, "it was asked each time how it stands");
    for name in NAMES {
        for number in ["packets", "bytes", "dropped_packets"] {
            let counts: Vec<_> = stands.iter().map(|event| of_rule(event, name, number)).collect();
            assert!(counts.is_sorted(), "{number} of '{name}': {counts:?}");
        }
    }
}

#[test]
fn rules_that_are_too_large_for_the_verifier_are_refused_by_name_while_the_old_ones_go_on() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let old = "[[rule]]\nname = 'old'\nto_ports = [9]\naction = 'drop'\n";
    let target = flooded(&bed, 9);
    let mut filter = Filter::start(&bed, &format!("--attach xdp --rules {}", bed.rules(old).display()));
    let flood = flood(&bed, FLOOD, "9", "20k");
    let reloads = |filter: &mut Filter| filter.report()["reloads"].as_u64().unwrap();
    bed.rules(&(old.to_owned() + &alike(6)));
    let until = Instant::now() + PATIENCE * 3;
    while reloads(&mut filter) == 0 {
        assert!(Instant::now() < until, "what fits is taken");
        std::thread::sleep(Duration::from_millis(50));
    }
    bed.rules(&(old.to_owned() + &alike(60)));
    let began = Instant::now();
    let refused = |event: &Value| {
        event["event"] == "warning" && event["message"].as_str().unwrap().contains("verifier")
    };
    let why = filter.wait_for("warning", refused)["message"].as_str().unwrap().to_owned();
    let took = began.elapsed();
    assert!(why.contains("rules.toml:13:10: ") && why.contains("the rule 'alike 0' most of all"), "{why}");
    assert!(!why.contains('\n') && why.contains("the rules stay as they were"), "{why}");
    let (_, flood) = flood.end_anyhow();
    let sent = summary(&flood)["tx_packets"].as_u64().unwrap();
    let told = filter.end();
    is_all(of_rule(summary(&told), "old", "dropped_packets"), sent, summary(&told));
    assert_eq!(waiting(&target), 0, "in {took:?}");
}

#[test]
fn who_ends_a_filter_while_it_verifies_rules_waits_for_nothing_and_keeps_the_counters() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let old = "[[rule]]\nname = 'old'\nto_ports = [9]\naction = 'drop'\n";
    let audit = bed.folder.path().join("audit.log");
    let words = format!("--attach xdp --rules {} --audit {}", bed.rules(old).display(), audit.display());
    let filter = Filter::start(&bed, &words);
    let sent = sent(bed.flood("--dport 9 --src 10.0.0.16/28 --rate 20k --count 4000"));
    bed.rules(&(old.to_owned() + &alike(60)));
    let until = Instant::now() + PATIENCE;
    while !has_thread(&filter, "filter load") {
        assert!(Instant::now() < until, "nothing is loaded");
        std::thread::sleep(Duration::from_millis(2));
    }
    let began = Instant::now();
    let told = filter.end();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    is_all(of_rule(summary(&told), "old", "dropped_packets"), sent, summary(&told));
    assert_eq!(summary(&told)["warnings"].as_array().map_or(0, Vec::len), 0, "{told:?}");
    let log = std::fs::read_to_string(audit).unwrap();
    assert_eq!((log.matches("refused").count(), log.matches("stop").count()), (0, 1), "{log}");
}

/// Whether the filter has a thread of that name.
fn has_thread(filter: &Filter, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", filter.child.id())).unwrap();
    // One that ends meanwhile has no name any more.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.into_iter().any(|known| known.trim_end() == name)
}

/// How often a server is asked.
const EACH: Duration = Duration::from_millis(20);

/// What is answered later than that is not answered.
const LATE: Duration = Duration::from_millis(200);

/// For how long at most a server may not answer about whose packets there is no rule, whatever becomes of the filter. They never wait for
/// it; the rest is for a machine that is busy.
const APART: Duration = Duration::from_millis(500);

/// The same where user space has them: a worker counts as hung when it has been silent for half a second.
const THROUGH: Duration = Duration::from_millis(1500);

/// A server of the kernel's that is asked all the time.
struct Asked {
    what: &'static str,
    /// For so long at most it may not answer.
    at_most: Duration,
    stop: Arc<AtomicBool>,
    /// Questions in a row that had no answer, the most since that was looked at last. Those that were not sent in time do not count: then
    /// the machine stood still, not the server.
    most: Arc<AtomicU32>,
    threads: Vec<JoinHandle<()>>,
}

impl Asked {
    fn begin(what: &'static str, at_most: Duration, server: UdpSocket, client: UdpSocket) -> Self {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        client.connect(server.local_addr().unwrap()).unwrap();
        server.set_read_timeout(Some(LATE)).unwrap();
        let (stop_server, stop_client, longest) = (Arc::clone(&stop), Arc::clone(&stop), Arc::clone(&most));
        let answer = move || {
            let mut bytes = [0; 4];
            while !stop_server.load(Ordering::Relaxed) {
                if let Ok((_, from)) = server.recv_from(&mut bytes) {
                    // Without the interface there is no way back.
                    server.send_to(&bytes, from).ok();
                }
            }
        };
        let ask = move || {
            let mut open = VecDeque::<(u32, Instant)>::new();
            let (mut last_missed, mut in_a_row) = (0, 0);
            for number in 1_u32.. {
                if stop_client.load(Ordering::Relaxed) {
                    break;
                }
                let now = Instant::now();
                client.send(&number.to_be_bytes()).ok();
                open.push_back((number, now));
                while let Some(left) = EACH.checked_sub(now.elapsed()).filter(|left| !left.is_zero()) {
                    let mut bytes = [0; 4];
                    client.set_read_timeout(Some(left)).unwrap();
                    if client.recv(&mut bytes).is_ok() {
                        open.retain(|(asked, _)| asked.to_be_bytes() != bytes);
                    }
                }
                while let Some((missed, _)) = open.pop_front_if(|(_, since)| since.elapsed() > LATE) {
                    in_a_row = if missed == last_missed + 1 { in_a_row + 1 } else { 1 };
                    last_missed = missed;
                    longest.fetch_max(in_a_row, Ordering::Relaxed);
                }
            }
        };
        let threads = vec![std::thread::spawn(answer), std::thread::spawn(ask)];
        Self { what, at_most, stop, most, threads }
    }

    /// For how long it has not answered at a time, since that was looked at last.
    fn silence(&self) -> Duration {
        EACH * self.most.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // What it has to say it has said.
            thread.join().ok();
        }
    }
}

/// All of them answer, and have since that was looked at last.
fn serve(asked: &[Asked], when: &str) {
    // Until it is known of what was asked by now.
    std::thread::sleep(LATE + EACH * 5);
    for one in asked {
        let silence = one.silence();
        tell(&format!("{when}: {} did not answer for {silence:?} at most", one.what));
        assert!(silence <= one.at_most, "{when}: {} did not answer for {silence:?}", one.what);
        assert!(
            !one.threads.iter().any(JoinHandle::is_finished),
            "{when}: {} is not asked any more",
            one.what
        );
    }
}

/// Waits until nothing of the flood arrives and the filter counts what it drops.
fn is_dropped(filter: &mut Filter, target: &UdpSocket, when: &str) {
    let until = Instant::now() + PATIENCE;
    while waiting(target) > 0 || target.recv(&mut [0; 64]).is_ok() {
        assert!(Instant::now() < until, "{when}: the flood arrives");
    }
    let mut dropped = || of_rule(filter.report(), "flood", "dropped_packets");
    let first = dropped();
    while dropped() < first + 100 {
        assert!(Instant::now() < until, "{when}: nothing more is dropped");
    }
}

/// Waits until the kernel gets the flood as well.
fn arrives(target: &UdpSocket, when: &str) {
    waiting(target);
    let until = Instant::now() + PATIENCE;
    while target.recv(&mut [0; 64]).is_err() {
        assert!(Instant::now() < until, "{when}: the flood is still dropped");
    }
}

#[test]
fn whatever_becomes_of_it_under_a_flood_the_kernel_is_served() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    // With it all that is served goes through user space; without it the program is at TCX.
    let limit = "[[rule]]\nname = 'some'\nto_ports = [7]\naction = 'limit'\nrate = 1000000000\n";
    for (limit, at_most) in [(limit, THROUGH), ("", APART)] {
        through_it_all(limit, at_most);
    }
    unchanged(&before);
}

fn through_it_all(limit: &str, at_most: Duration) {
    let bed = Bed::new(1);
    let client = bed.lab.hosts[0].enter(|| UdpSocket::bind("10.0.0.1:5001")).unwrap().unwrap();
    let asked = [
        Asked::begin("port 7", at_most, bed.server.try_clone().unwrap(), bed.client.try_clone().unwrap()),
        Asked::begin("port 8", APART, flooded(&bed, 8), client),
    ];
    let target = flooded(&bed, 9);
    let rules = bed.rules(&format!("[[rule]]\nname = 'flood'\nto_ports = [9]\naction = 'drop'\n{limit}"));
    let (host, link) = (&bed.lab.hosts[1], bed.lab.pairs[0].far.index);
    let untouched = Untouched::now(host);
    let mut filter = Filter::start(&bed, &format!("--rules {}", rules.display()));
    let mut flood = flood(&bed, FLOOD, "9", "20k");
    is_dropped(&mut filter, &target, "at first");
    serve(&asked, "at first");

    bed.rules("[[rule]]\nname = 'flood'\nto_ports = [9]\naction = 'dorp'\n");
    let is_refusal = |event: &Value| {
        event["message"].as_str().is_some_and(|text| text.contains("rules.toml:4:10: 'dorp'"))
    };
    filter.wait_for("refusal", |event| event["event"] == "warning" && is_refusal(event));
    is_dropped(&mut filter, &target, "with a wrong rule file");
    serve(&asked, "with a wrong rule file");
    let now = filter.report();
    assert_eq!((&now["reloads"], &now["refused_reloads"]), (&0.into(), &1.into()), "{now}");

    filter.signal(Signal::STOP);
    serve(&asked, "as soon as it hangs");
    arrives(&target, "it hangs");
    serve(&asked, "it hangs");
    filter.signal(Signal::CONT);
    serve(&asked, "as soon as it goes on");
    is_dropped(&mut filter, &target, "it goes on");
    serve(&asked, "it goes on");

    host.route().set_up(link, false).unwrap();
    host.route().set_up(link, true).unwrap();
    host.wait_until_running("left").unwrap();
    // The lab's route went with it.
    host.add_route(bed.lab.pairs[0].far.addresses[0], Gateway { index: link, address: None }).unwrap();
    is_dropped(&mut filter, &target, "after down and up");
    // Of the time when there was no interface nothing is promised.
    std::thread::sleep(LATE + EACH * 5);
    for one in &asked {
        tell(&format!("down and up: {} did not answer for {:?} at most", one.what, one.silence()));
    }
    serve(&asked, "after down and up");

    filter.signal(Signal::KILL);
    serve(&asked, "as soon as it is dead");
    filter.child.wait().unwrap();
    arrives(&target, "it is dead");
    serve(&asked, "it is dead");
    assert!(flood.child.try_wait().unwrap().is_none(), "there was no flood any more");
    flood.end_anyhow();
    untouched.check();
}
