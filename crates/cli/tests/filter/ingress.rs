//! Rules at TCX ingress: they mean what they mean in XDP, and what passes is as it came.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use bywash_lab::{Host, Lab, PairOptions, Snapshot};
use bywash_port::filter::TCX_NEXT;
use bywash_port::filter::ebpf::{Assembler, Operation, Register, Width};
use bywash_sys::bpf::{Link, Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec, TcxDirection};
use rustix::process::Signal;
use serde_json::Value;

use super::bed::{BYWASH, Bed, Filter, SERVER, Untouched, arguments, of_rule, summary, unchanged};

/// What another program sees of a packet, by its offset in `struct __sk_buff`: its length, whether there is a tag beside it, the
/// tag and its protocol, and the packet's protocol.
const FIELDS: [i16; 5] = [0, 20, 24, 28, 16];

/// That, and how many bytes lie in front.
type Seen = [u64; FIELDS.len() + 1];

/// Where these begin and end.
const DATA: i16 = 76;
const DATA_END: i16 = 80;

/// A program of somebody else's at TCX: it notes what the last packet was like, and counts them.
struct Witness {
    map: Map,
    _link: Link,
}

impl Witness {
    fn on(host: &Host, interface: u32) -> Self {
        let spec = MapSpec {
            kind: MapKind::Array,
            name: "witness",
            key_size: 4,
            value_size: u32::try_from(8 + size_of::<Seen>()).unwrap(),
            entries: 1,
            mappable: true,
        };
        let map = Map::create(&spec).unwrap();
        let (context, seen) = (Register::R6, Register::R7);
        let mut assembler = Assembler::new();
        assembler.mov(context, Register::R1);
        assembler.map_value(seen, map.as_raw_fd(), 0);
        assembler.load(Width::Double, Register::R1, seen, 0);
        assembler.operate(Operation::Add, Register::R1, 1);
        assembler.store(Width::Double, seen, 0, Register::R1);
        for (to, field) in (1..).zip(FIELDS) {
            assembler.load(Width::Word, Register::R1, context, field);
            assembler.store(Width::Double, seen, 8 * to, Register::R1);
        }
        assembler.load(Width::Word, Register::R1, context, DATA);
        assembler.load(Width::Word, Register::R2, context, DATA_END);
        assembler.operate(Operation::Subtract, Register::R2, Register::R1);
        assembler.store(Width::Double, seen, i16::try_from(size_of::<Seen>()).unwrap(), Register::R2);
        assembler.mov(Register::R0, TCX_NEXT);
        assembler.exit();
        let instructions = assembler.finish().unwrap().to_words();
        let spec = ProgramSpec { kind: ProgramKind::SchedCls, name: "witness", instructions: &instructions };
        let program = Program::load(&spec).unwrap();
        let link = host.enter(|| Link::tcx(&program, interface, TcxDirection::Ingress)).unwrap().unwrap();
        Self { map, _link: link }
    }

    /// How many packets it has seen, and what the last one was like.
    fn seen(&self) -> (u64, Seen) {
        let mut value = [0; 8 + size_of::<Seen>()];
        assert!(self.map.lookup(&[0; 4], &mut value).unwrap());
        let mut words = value.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        (words.next().unwrap(), std::array::from_fn(|_| words.next().unwrap()))
    }
}

/// Sends packets as AF_PACKET does: of long ones only the Ethernet header lies in front.
fn send(host: &Host, words: &str) {
    let all =
        format!("generate packet:right --dst-mac 02:00:00:00:00:02 --dst 10.0.0.2 {words} --huge-pages off");
    let output = host.command(BYWASH).unwrap().args(arguments(&all)).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Rules that see tags in different ways; the last one drops.
const TAGS: &str = r#"
[[rule]]
name = "vlan 7"
match = "vlan 7"
action = "count"
[[rule]]
name = "vlan 7 behind another"
match = "vlan and vlan 7"
action = "count"
[[rule]]
name = "untagged"
match = "udp dst port 9"
action = "count"
[[rule]]
name = "any"
match = "anyvlan and udp dst port 9"
action = "count"
[[rule]]
name = "listed"
to_ports = [9]
action = "count"
[[rule]]
name = "dropped"
match = "vlan and vlan and vlan"
action = "drop"
"#;

#[test]
fn a_tag_is_seen_as_in_xdp_and_is_where_it_was_for_who_comes_behind() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(1);
        let [client, server] = &bed.lab.hosts[..] else { panic!() };
        let witness = Witness::on(server, bed.lab.pairs[0].far.index);
        let sent =
            ["", "--vlan 7", "--vlan 100 --vlan 7", "--vlan 1 --vlan 2 --vlan 7", "--vlan 4095 --vlan 7"];
        // Packets of the kernel's own come in, too, now and then.
        let seen_of = |tags: &str| {
            let before = witness.seen().0;
            send(client, &format!("{tags} --dport 9 --src 10.0.0.1 --size 200 --count 1"));
            let (count, fields) = witness.seen();
            (count - before, fields)
        };
        let unfiltered = sent.map(seen_of);
        let rules = bed.rules(TAGS);
        let mut counted = Vec::new();
        for attach in ["xdp", "tcx"] {
            let filter = Filter::start(&bed, &format!("--rules {} --attach {attach}", rules.display()));
            let seen = sent.map(seen_of);
            for ((tags, seen), was) in sent.iter().zip(seen).zip(unfiltered) {
                match tags.matches("--vlan").count() {
                    3.. => assert_eq!(seen.0, 0, "{attach}: {tags} is dropped before the other program"),
                    _ => assert_eq!(seen, was, "{attach}: {tags}"),
                }
            }
            let told = filter.end();
            let names = ["vlan 7", "vlan 7 behind another", "untagged", "any", "listed", "dropped"];
            let figures = |name| ["packets", "bytes"].map(|figure| of_rule(summary(&told), name, figure));
            counted.push(names.map(figures));
        }
        assert_eq!(counted[0], counted[1]);
        let packets = counted[1].map(|[packets, _]| packets);
        assert_eq!(packets, [1, 2, 1, 5, 4, 1], "{counted:?}");
        assert_eq!(counted[1][0], [1, 196], "with the tag, without FCS");
    }
    unchanged(&before);
}

#[test]
fn what_does_not_lie_in_front_is_found_as_well() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions { mtu: 9000, offloads: true, ..PairOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.toml");
    let text = r#"
[[rule]]
name = "deep"
match = "udp[1000] = 0 and udp[8:2] >= 0 and udp dst port 9"
action = "count"
[[rule]]
name = "listed"
to_ports = [9]
from = ["10.0.0.0/8", "fd00::/8"]
action = "drop"
"#;
    std::fs::write(&path, text).unwrap();
    let witness = Witness::on(&lab.hosts[1], lab.pairs[0].far.index);
    let filter = Filter::on(&lab.hosts[1], &format!("--rules {} --attach tcx", path.display()));
    for tags in ["", "--vlan 7"] {
        let before = witness.seen().0;
        for size in [100, 1500, 8000] {
            send(
                &lab.hosts[0],
                &format!("{tags} --payload zeros --dport 9 --src 10.0.0.1 --size {size} --count 10"),
            );
        }
        assert_eq!(witness.seen().0, before, "all are dropped");
    }
    let told = filter.end();
    let summary = summary(&told);
    assert_eq!(of_rule(summary, "listed", "dropped_packets"), 60, "{summary}");
    assert_eq!(of_rule(summary, "listed", "bytes"), 2 * 10 * (96 + 1496 + 7996), "{summary}");
    assert_eq!(of_rule(summary, "deep", "packets"), 20, "untagged, of 1500 bytes and of 8000: {summary}");
}

#[test]
fn tcp_is_left_where_it_lies() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions { offloads: true, ..PairOptions::default() }).unwrap();
    let [client, server] = &lab.hosts[..] else { panic!() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.toml");
    let witness = Witness::on(server, lab.pairs[0].far.index);
    let listener = server.enter(|| TcpListener::bind("10.0.0.2:80")).unwrap().unwrap();
    let mut ours = client.enter(|| TcpStream::connect("10.0.0.2:80")).unwrap().unwrap();
    let mut theirs = listener.accept().unwrap().0;
    let mut in_front = || {
        ours.write_all(&[1; 500]).unwrap();
        theirs.read_exact(&mut [0; 500]).unwrap();
        let (_, [len, .., in_front]) = witness.seen();
        assert!(len > 500, "the last packet carries that: {len}");
        in_front
    };
    let unfiltered = in_front();
    assert!(unfiltered < 100, "its headers alone lie in front");
    let rules = "never_drop = [\"tcp port 179\"]\n[[rule]]\nname = \"a\"\nestablished = true\naction = \"pass\"\n\
                 [[rule]]\nname = \"b\"\nmatch = \"tcp[tcpflags] & tcp-syn != 0\"\naction = \"drop\"\n\
                 [[rule]]\nname = \"c\"\nfrom = [\"10.9.0.0/16\"]\nto_ports = [80]\naction = \"drop\"\n";
    std::fs::write(&path, rules).unwrap();
    let filter = Filter::on(server, &format!("--rules {}", path.display()));
    assert_eq!(in_front(), unfiltered);
    filter.end();
}

#[test]
fn the_filter_is_where_its_rules_can_be_and_says_where() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(2);
        let host = &bed.lab.hosts[1];
        let untouched = Untouched::now(host);
        let drop = "[[rule]]\nname = \"drop\"\nto_ports = [9]\naction = \"drop\"\n";
        let with = |more: &str| {
            bed.rules(&format!("{drop}[[rule]]\nname = \"more\"\n{more}\n")).display().to_string()
        };
        let refused = |words: &str| {
            let mut command = host.command(BYWASH).unwrap();
            let output = command.args(arguments(&format!("filter xdp:left {words}"))).output().unwrap();
            let text = String::from_utf8(output.stderr.clone()).unwrap();
            assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{output:?}");
            text
        };
        let audit = bed.folder.path().join("audit.log");
        let mode = |words: &str| {
            std::fs::remove_file(&audit).ok();
            let filter = Filter::start(&bed, &format!("{words} --audit {}", audit.display()));
            filter.end();
            let log = std::fs::read_to_string(&audit).unwrap();
            let start: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
            start["mode"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned()
        };
        for (more, why) in [
            ("to_ports = [7]\naction = \"limit\"\nrate = 1", "the rule 'more' has a limit"),
            ("names = [\"*\"]\naction = \"drop\"", "the rule 'more' asks for names"),
            ("payload = [{ text = \"x\", at = 0 }]\naction = \"pass\"", "the rule 'more' asks for payload"),
            ("match = \"udp\"\naction = \"syncookie\"", "the rule 'more' answers SYNs"),
        ] {
            let text = refused(&format!("--rules {} --attach tcx", with(more)));
            assert!(text.contains(why) && text.contains("--attach xdp"), "{more}: {text}");
        }
        assert_eq!(
            mode(&format!("--rules {}", with("to_ports = [7]\naction = \"limit\"\nrate = 1"))),
            "native XDP"
        );
        let length = with("match = \"udp and len > 400\"\naction = \"drop\"");
        assert_eq!(
            mode(&format!("--rules {length}")),
            "native XDP",
            "where packets are as long as on the wire"
        );
        assert_eq!(mode(&format!("--rules {length} --attach tcx")), "TCX");
        let rules = bed.rules(drop).display().to_string();
        // One worker is enough, whatever was meant for more.
        assert_eq!(mode(&format!("--rules {rules} --cores 0,1")), "TCX");
        assert_eq!(mode(&format!("--rules {rules} --only 'udp'")), "TCX");
        for words in ["--attach xdp", "--xdp native", "--queues 2", "--zero-copy off"] {
            assert_eq!(mode(&format!("--rules {rules} {words}")), "native XDP", "{words}");
        }
        for (words, why) in [
            ("--attach tcx", "for --rules"),
            (&*format!("--rules {rules} --attach tcx --queues 1"), "--queues is for XDP"),
        ] {
            assert!(refused(words).contains(why), "{words}");
        }
        untouched.check();
    }
    unchanged(&before);
}

#[test]
fn rules_that_need_user_space_are_refused_where_tcx_was_asked_for_and_the_old_ones_stay() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let drop = "[[rule]]\nname = \"drop\"\nto_ports = [7]\naction = \"drop\"\n";
    let rules = bed.rules(drop);
    let filter = Filter::start(&bed, &format!("--rules {} --attach tcx", rules.display()));
    assert_eq!(bed.ask(1), 0);
    let limit = "[[rule]]\nname = \"rate\"\nto_ports = [8]\naction = \"limit\"\nrate = 9\n";
    bed.rules(&drop.replace("[7]", "[9]").replacen("[[rule]]", &format!("{limit}[[rule]]"), 1));
    filter.signal(Signal::HUP);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(bed.ask(1), 0, "{SERVER} is still not reached");
    bed.rules(&drop.replace("[7]", "[9]"));
    filter.signal(Signal::HUP);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(bed.ask(10), 10);
    let told = filter.end();
    let warned = told.iter().filter(|event| event["event"] == "warning");
    let texts: Vec<&str> = warned.map(|event| event["message"].as_str().unwrap()).collect();
    let why = "the rule 'rate' has a limit, which user space keeps, and a program at TCX decides alone: start with --attach xdp";
    assert!(texts.iter().any(|text| text.contains(why) && text.contains("stay as they were")), "{told:?}");
    // Once, or twice where the change was seen before the signal.
    let counted = ["refused_reloads", "reloads"].map(|name| summary(&told)[name].as_u64().unwrap());
    assert!(counted.iter().all(|n| (1..=2).contains(n)), "{counted:?}");
    assert_eq!(of_rule(summary(&told), "drop", "packets"), 2);
}
