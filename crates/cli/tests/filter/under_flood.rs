//! What becomes of a flood and of those who are served while the rules change, and while the filter hangs, dies, or loses
//! its interface.

use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bywash_lab::Snapshot;
use bywash_sys::route::Gateway;
use rustix::process::Signal;
use serde_json::Value;

use crate::bed::{Bed, Filter, SERVER, Untouched, alike, is_all, of_rule, sent, summary, unchanged};

/// How long what becomes true again may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// A flood to both ports, until it is ended: from addresses for which the kernel has a way back.
fn flood(bed: &Bed, ports: &str) -> Filter {
    let words = "generate --inject right --dst-mac 02:00:00:00:00:02 --dst 10.0.0.2 --src 10.0.0.16/28";
    let rest = "--payload 'text:one attack' --rate 20k";
    Filter::tool(&bed.lab.hosts[0], &format!("{words} --dport {ports} {rest}"))
}

/// A socket of the kernel to which the flood is sent.
fn flooded(bed: &Bed, port: u16) -> UdpSocket {
    let socket = bed.lab.hosts[1].enter(|| UdpSocket::bind(("10.0.0.2", port))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// How many packets wait in a socket.
fn waiting(socket: &UdpSocket) -> u64 {
    socket.set_nonblocking(true).unwrap();
    let mut count = 0;
    while socket.recv(&mut [0; 64]).is_ok() {
        count += 1;
    }
    socket.set_nonblocking(false).unwrap();
    count
}

/// In one of them XDP drops what goes to port 9, and user space what goes to port 10; in the other one it is the other way
/// round, and the rules stand in another order. What goes to port 7 comes back from user space with both.
fn text(turn: u32) -> String {
    let is_first = turn.is_multiple_of(2);
    let (in_kernel, in_user_space) = if is_first { (9, 10) } else { (10, 9) };
    let mut rules = [
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
    rules.map(|rule| format!("[[rule]]\n{rule}\n")).concat()
}

const NAMES: [&str; 4] = ["kernel", "some", "payload", "names"];

#[test]
fn a_flood_that_both_rule_files_drop_is_dropped_while_one_takes_the_place_of_the_other() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let audit = bed.folder.path().join("audit.log");
    let changes = || std::fs::read_to_string(&audit).unwrap().matches("\"reload\"").count();
    let targets = [9, 10].map(|port| flooded(&bed, port));
    let words = format!("--rules {} --audit {}", bed.rules(&text(0)).display(), audit.display());
    let filter = Filter::start(&bed, &words);
    let flood = flood(&bed, "9,10");
    let (started, mut turns, mut asked, mut answered) = (Instant::now(), 0_u32, 0_u32, 0_u32);
    while started.elapsed() < Duration::from_secs(10) || turns < 50 {
        turns += 1;
        bed.rules(&text(turns));
        filter.signal(Signal::HUP);
        filter.signal(Signal::USR1);
        let until = Instant::now() + PATIENCE;
        while changes() < turns as usize {
            assert!(Instant::now() < until, "the rules were not read");
            asked += 1;
            answered += bed.ask(1);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let (_, flood) = flood.end_anyhow();
    let sent = summary(&flood)["tx_packets"].as_u64().unwrap();
    let told = filter.end();
    let summary = summary(&told);
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
    assert!(stands.len() >= 20, "it was asked how it stands");
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
    let flood = flood(&bed, "9");
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

/// Has the server answer so many questions: each is asked until it is answered, since the kernel may lose one in a flood.
fn serve(bed: &Bed, when: &str) {
    for number in 0..20_u32 {
        let until = Instant::now() + PATIENCE;
        while exchange(bed, number).is_err() {
            assert!(Instant::now() < until, "{when}: {number} is not answered");
        }
    }
}

fn exchange(bed: &Bed, number: u32) -> io::Result<()> {
    // What came too late for a question before this one may still wait.
    let (number, mut bytes) = (number.to_be_bytes(), [0xff; 4]);
    bed.client.send_to(&number, SERVER)?;
    while bytes != number {
        let (_, from) = bed.server.recv_from(&mut bytes)?;
        bed.server.send_to(&bytes, from)?;
    }
    bytes = [0xff; 4];
    while bytes != number {
        bed.client.recv(&mut bytes)?;
    }
    Ok(())
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
    for limit in [limit, ""] {
        through_it_all(limit);
    }
    unchanged(&before);
}

fn through_it_all(limit: &str) {
    let bed = Bed::new(1);
    for socket in [&bed.server, &bed.client] {
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    }
    let target = flooded(&bed, 9);
    let rules = bed.rules(&format!("[[rule]]\nname = 'flood'\nto_ports = [9]\naction = 'drop'\n{limit}"));
    let (host, link) = (&bed.lab.hosts[1], bed.lab.pairs[0].far.index);
    let untouched = Untouched::now(host);
    let mut filter = Filter::start(&bed, &format!("--rules {}", rules.display()));
    let mut flood = flood(&bed, "9");
    is_dropped(&mut filter, &target, "at first");
    serve(&bed, "at first");

    bed.rules("[[rule]]\nname = 'flood'\nto_ports = [9]\naction = 'dorp'\n");
    let is_refusal = |event: &Value| {
        event["message"].as_str().is_some_and(|text| text.contains("rules.toml:4:10: 'dorp'"))
    };
    filter.wait_for("refusal", |event| event["event"] == "warning" && is_refusal(event));
    is_dropped(&mut filter, &target, "with a wrong rule file");
    serve(&bed, "with a wrong rule file");
    let now = filter.report();
    assert_eq!((&now["reloads"], &now["refused_reloads"]), (&0.into(), &1.into()), "{now}");

    filter.signal(Signal::STOP);
    serve(&bed, "as soon as it hangs");
    arrives(&target, "it hangs");
    serve(&bed, "it hangs");
    filter.signal(Signal::CONT);
    serve(&bed, "as soon as it goes on");
    is_dropped(&mut filter, &target, "it goes on");
    serve(&bed, "it goes on");

    host.route().set_up(link, false).unwrap();
    host.route().set_up(link, true).unwrap();
    host.wait_until_running("left").unwrap();
    // The lab's route went with it.
    host.add_route(bed.lab.pairs[0].far.addresses[0], Gateway { index: link, address: None }).unwrap();
    is_dropped(&mut filter, &target, "after down and up");
    serve(&bed, "after down and up");

    filter.signal(Signal::KILL);
    serve(&bed, "as soon as it is dead");
    filter.child.wait().unwrap();
    arrives(&target, "it is dead");
    serve(&bed, "it is dead");
    assert!(flood.child.try_wait().unwrap().is_none(), "there was no flood any more");
    flood.end_anyhow();
    untouched.check();
}
