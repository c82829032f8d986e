//! Samples of what rules are about: also of what the kernel drops, with the names of the rules, in one file or one after the other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywash_pcap::Reader;
use bywash_sys::clock::realtime;

use crate::bed::{BYWASH, Bed, Filter, arguments, is_all, of_rule, summary};

/// Block type of packets in pcapng, and where the packet begins in such a block.
const PACKET: u32 = 6;
const PACKET_AT: usize = 28;

/// How many packets of a pcapng file that we wrote have which comment.
pub(crate) fn comments(file: &Path) -> BTreeMap<String, u64> {
    commented_ports(file).into_iter().fold(BTreeMap::new(), |mut counts, (comment, _)| {
        *counts.entry(comment).or_insert(0) += 1;
        counts
    })
}

/// The comments of such a file's packets, each with where the packet went to.
fn commented_ports(file: &Path) -> Vec<(String, u16)> {
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut all, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let (kind, length) = (word(at), word(at + 4) as usize);
        if kind == PACKET {
            let option = at + PACKET_AT + (word(at + 20) as usize).next_multiple_of(4);
            let [code, len] = [option, option + 2].map(|at| u16::from_le_bytes([bytes[at], bytes[at + 1]]));
            assert_eq!(code, 1, "a comment");
            let text = String::from_utf8(bytes[option + 4..][..len.into()].to_vec()).unwrap();
            all.push((text, u16::from_be_bytes([bytes[at + PACKET_AT + 36], bytes[at + PACKET_AT + 37]])));
        }
        at += length;
    }
    all
}

/// The packets of a file, whole as it must be, with their times.
fn packets(file: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut reader = Reader::new(std::fs::File::open(file).unwrap()).unwrap();
    let next = || reader.next_record().unwrap().map(|record| (record.time.unwrap(), record.bytes.to_vec()));
    std::iter::from_fn(next).collect()
}

#[test]
fn samples_of_what_the_kernel_decides_have_their_rules_name_and_hold_nothing_up() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for attach in ["xdp", "tcx"] {
        let bed = Bed::new(1);
        let rules = bed.rules(
            "[[rule]]\nname = \"flood\"\nto_ports = [9]\naction = \"drop\"\nsample = 20\n\
             [[rule]]\nname = \"another one\"\nmatch = \"udp dst port 10\"\naction = \"drop\"\nsample = 5\n\
             [[rule]]\nname = \"seen\"\nto_ports = [7]\naction = \"count\"\nsample = 1\n",
        );
        let file = bed.folder.path().join("samples.pcapng");
        let words = format!("--rules {} --samples {} --attach {attach}", rules.display(), file.display());
        let filter = Filter::start(&bed, &words);
        let began = realtime();
        bed.flood("--dport 9 --src 10.1.0.0/24 --rate 20k --count 20000");
        bed.flood("--dport 10 --src 10.1.0.0/24 --rate 20k --count 2000");
        assert_eq!(bed.ask(30), 30);
        let told = filter.end();
        let summary = summary(&told);
        is_all(of_rule(summary, "flood", "dropped_packets"), 20_000, summary);
        is_all(of_rule(summary, "another one", "dropped_packets"), 2000, summary);
        let comments = comments(&file);
        let named = |name: &str| comments.get(name).copied().unwrap_or(0);
        // The kernel draws by chance: the deviation is 18 in the first, 10 in the second.
        assert!((850..1150).contains(&named("flood")), "{comments:?} {summary}");
        assert!((320..480).contains(&named("another one")), "{comments:?} {summary}");
        assert_eq!((named("seen"), comments.len()), (30, 3), "{comments:?} {summary}");
        let count = |name: &str| summary[name].as_u64().unwrap();
        assert_eq!(comments.values().sum::<u64>(), count("sampled_packets"));
        assert_eq!((count("lost_samples"), count("taken_packets")), (0, 0), "they were copied: {summary}");
        let action = |index: usize| &summary["rules"][index]["action"];
        assert_eq!([action(0), action(2)], ["drop", "sample"]);
        let packets = packets(&file);
        let ports = packets.iter().fold(BTreeMap::new(), |mut ports, (_, packet)| {
            *ports.entry(u16::from_be_bytes([packet[36], packet[37]])).or_insert(0) += 1;
            ports
        });
        assert_eq!(ports, [(7, 30), (9, named("flood")), (10, named("another one"))].into());
        let times: Vec<u64> = packets.iter().map(|(time, _)| *time).collect();
        assert!(times.iter().all(|time| (began..realtime()).contains(time)), "{began} {times:?}");
    }
}

#[test]
fn under_a_flood_and_reloads_each_packet_that_is_dropped_is_kept_by_its_rules_name_or_counted_as_lost() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for attach in ["xdp", "tcx"] {
        let bed = Bed::new(1);
        let drawn = |name: &str, port: u16| {
            format!(
                "[[rule]]\nname = \"{name}\"\nmatch = \"udp dst port {port}\"\naction = \"drop\"\nsample = 1\n"
            )
        };
        let sets = [
            [drawn("nine", 9), drawn("ten", 10)].concat(),
            [drawn("also ten", 10), drawn("nine", 9)].concat(),
            "[[rule]]\nname = \"nine and ten\"\nto_ports = [9, 10]\naction = \"drop\"\nsample = 1\n".into(),
        ];
        let rules = bed.rules(&sets[0]);
        let file = bed.folder.path().join("samples.pcapng");
        let words = format!("--rules {} --samples {} --attach {attach}", rules.display(), file.display());
        let mut filter = Filter::start(&bed, &words);
        let words = "generate --inject right --dst-mac 02:00:00:00:00:02 --dst 10.0.0.2 --dport 9,10 --src 10.1.0.0/24 --rate 10k";
        let flood = Filter::tool(&bed.lab.hosts[0], words);
        for (reloads, set) in (1..).zip(sets.iter().cycle().skip(1).take(5)) {
            bed.rules(set);
            let until = Instant::now() + Duration::from_secs(60);
            while filter.report()["reloads"] != reloads {
                assert!(Instant::now() < until, "{}", filter.report());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        bed.rules("[[rule]]\nname = \"none\"\naction = \"nothing\"\n");
        filter.wait_for("a rule file that is refused", |event| event["event"] == "warning");
        // It goes on while the filter ends.
        let (_, told) = filter.end_anyhow();
        flood.end_anyhow();
        let summary = summary(&told);
        let count = |name: &str| summary[name].as_u64().unwrap();
        let comments = comments(&file);
        assert_eq!(comments.values().sum::<u64>(), count("sampled_packets"));
        assert_eq!(count("sampled_packets") + count("lost_samples"), count("dropped_packets"), "{summary}");
        assert!(count("dropped_packets") > 1000, "{summary}");
        let names: Vec<&str> = comments.keys().map(String::as_str).collect();
        assert_eq!(names, ["also ten", "nine", "nine and ten", "ten"]);
        for (comment, port) in commented_ports(&file) {
            let is_its = match &comment[..] {
                "nine" => port == 9,
                "ten" | "also ten" => port == 10,
                _ => true,
            };
            assert!(is_its, "{comment} {port}");
        }
    }
}

#[test]
fn without_a_file_for_them_no_samples_are_drawn_and_that_is_told() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rules = bed
        .rules("[[rule]]\nname = \"seen\"\nto_ports = [7]\naction = \"sample\"\nsample = 1\n")
        .display()
        .to_string();
    let filter = Filter::start(&bed, &format!("--rules {rules} --attach xdp"));
    assert_eq!(bed.ask(30), 30);
    let told = filter.end();
    let summary = summary(&told);
    assert_eq!((of_rule(summary, "seen", "packets"), summary["taken_packets"].as_u64()), (30, Some(0)));
    let words = format!(
        "filter xdp:left --rules {rules} --attach xdp --huge-pages off --memory 16M --duration 100ms"
    );
    let told = bed.lab.hosts[1].command(BYWASH).unwrap().args(arguments(&words)).output().unwrap();
    let lines = String::from_utf8(told.stderr).unwrap();
    let right =
        format!("{rules}:5:10: the rule 'seen' draws no samples: without --samples nobody keeps them");
    assert!(lines.contains(&right), "{lines}");
}

#[test]
fn samples_go_on_in_another_file_before_one_is_too_long_and_the_last_are_kept() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rules = bed.rules(
        "[[rule]]\nname = \"flood\"\nto_ports = [9]\naction = \"limit\"\nrate = 1\nsample = 1\nper = \"source/24\"\n",
    );
    let samples = bed.folder.path().join("s.pcapng");
    let words =
        format!("--rules {} --samples {} --rotate-size 4K --files 3", rules.display(), samples.display());
    let mut filter = Filter::start(&bed, &words);
    bed.flood("--dport 9 --src 10.1.0.0/24 --rate 10k --count 1000");
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let report = filter.report();
        // What a worker was too busy for is no sample.
        let lost =
            ["hung", "rx_dropped", "rx_ring_full"].map(|name| report["ports"][0][name].as_u64().unwrap());
        if report["sampled_packets"].as_u64().unwrap() + lost.iter().sum::<u64>() >= 1000 {
            break;
        }
        assert!(Instant::now() < until, "not all are sampled: {report}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let told = filter.end();
    let sampled = summary(&told)["sampled_packets"].as_u64().unwrap();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(bed.folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pcapng"));
    files.sort();
    assert_eq!(files.len(), 3, "{files:?}");
    let lengths: Vec<u64> = files.iter().map(|file| file.metadata().unwrap().len()).collect();
    assert!(lengths.iter().all(|length| *length <= 4096), "{lengths:?}");
    assert!(lengths[..2].iter().all(|length| *length > 3900), "they are filled: {lengths:?}");
    let number = |file: &PathBuf| -> u64 {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.strip_prefix("s-").unwrap()[..5].parse().unwrap()
    };
    let numbers: Vec<u64> = files.iter().map(number).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    // Whole files, so each before the last has as many packets as the first that is still here.
    let counts: Vec<u64> = files.iter().map(|file| packets(file).len() as u64).collect();
    assert_eq!(counts[0] * (numbers[2] - 1) + counts[2], sampled, "{counts:?} {numbers:?}");
}
