//! `bywash filter test`: what is dropped, what no filter drops, and rules that can do nothing.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use bywash_lab::Host;
use serde_json::Value;

use crate::bed::{BYWASH, Bed, alike, arguments};

/// A capture file of these frames.
pub(crate) fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for frame in frames {
        let len = u32::try_from(frame.len()).unwrap();
        file.extend(words(&[1, 0, len, len]));
        file.extend(frame);
    }
    file
}

/// An Ethernet frame.
fn frame(kind: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend(kind.to_be_bytes());
    frame.extend(rest);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A packet of IPv4, and the first bytes of what it carries: its ports.
fn ip([source, target]: [[u8; 4]; 2], protocol: u8, ports: [u16; 2]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 46, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend([source, target].concat());
    packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    frame(0x0800, &packet)
}

/// A neighbour solicitation.
fn solicitation() -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 24, 58, 255];
    packet.extend([[0xfd; 16], [0xff; 16]].concat());
    packet.push(135);
    frame(0x86dd, &packet)
}

const US: [u8; 4] = [10, 0, 0, 2];

fn rules(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("rules.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// `bywash filter test` of a capture that it is given by standard input.
fn try_out(rules: &Path, capture: &[u8], words: &str) -> Output {
    let mut command = Host::here().unwrap().command(BYWASH).unwrap();
    command.args(arguments(&format!("filter test --rules {} --pcap - --json {words}", rules.display())));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Who refuses does not read.
    drop(child.stdin.take().unwrap().write_all(capture));
    child.wait_with_output().unwrap()
}

/// So many packets, dropped ones, and those that are never dropped.
fn figures(output: &Output) -> [u64; 3] {
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    ["packets", "dropped_packets", "never_packets"].map(|name| told[name].as_u64().unwrap())
}

#[test]
fn what_a_filter_never_drops_a_trial_does_not_drop_either() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let rules = rules(folder.path(), "[[rule]]\nname = \"all\"\nmatch = \"\"\naction = \"drop\"\n");
    let (gateway, friend) = ([10, 0, 0, 254], [198, 51, 100, 7]);
    let capture = pcap(&[
        frame(0x0806, &[0, 1, 8, 0, 6, 4, 0, 1]),
        solicitation(),
        ip([gateway, US], 17, [7, 7]),
        ip([friend, US], 6, [51_234, 22]),
        ip([friend, US], 6, [51_235, 22]),
    ]);
    let told = try_out(&rules, &capture, "");
    assert_eq!((told.status.code(), figures(&told)), (Some(0), [5, 3, 2]), "{told:?}");
    let told = try_out(&rules, &capture, "--gateway 10.0.0.254 --ssh '198.51.100.7 51234 10.0.0.2 22'");
    assert_eq!((told.status.code(), figures(&told)), (Some(0), [5, 1, 4]), "{told:?}");
    let refused = try_out(&rules, &capture, "--ssh 198.51.100.7");
    let why = String::from_utf8(refused.stderr.clone()).unwrap();
    assert_eq!((refused.status.code(), why.contains("CLIENT PORT SERVER PORT")), (Some(2), true), "{why}");
}

/// What `docs/flood-filter.md` gives for a rule in front of one that drops everything else.
#[test]
fn errors_about_flows_and_queries_for_groups_are_let_in_by_the_rules_that_are_told() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let told = include_str!("../../../../docs/flood-filter.md").replace('\n', " ");
    let given = [
        "icmp[icmptype] = icmp-unreach or (icmp6 and ip6[40] = 2)",
        "igmp or (ip6[6] = 0 and ip6[40] = 58 and ip6[48] = 130)",
    ];
    // The first bytes behind the addresses, and what says what they are.
    let ip6 = |next: u8, rest: &[u8]| {
        let head = [0x60, 0, 0, 0, 0, 32, next, 1];
        frame(0x86dd, &[&head[..], &[0xfe; 16], &[0xff; 16], rest].concat())
    };
    let of = |protocol: u8, kind: u8| ip([[10, 0, 0, 9], US], protocol, [u16::from(kind) << 8, 0]);
    let in_options = |kind: u8| ip6(0, &[58, 0, 5, 2, 0, 0, 1, 0, kind]);
    let others =
        [of(1, 8), of(17, 3), ip6(58, &[128]), in_options(135), ip6(0, &[17, 0, 5, 2, 0, 0, 1, 0, 130])];
    let wanted = [[of(1, 3), ip6(58, &[2])], [of(2, 0x11), in_options(130)]];
    for (text, wanted) in given.into_iter().zip(wanted) {
        assert!(told.contains(text), "{text}");
        let both = format!(
            "[[rule]]\nname = 'in'\nmatch = '{text}'\naction = 'pass'\n\
             [[rule]]\nname = 'all'\nmatch = ''\naction = 'drop'\n"
        );
        let output = try_out(&rules(folder.path(), &both), &pcap(&[&wanted[..], &others].concat()), "");
        assert_eq!(figures(&output), [7, 5, 0], "{text}: {output:?}");
    }
}

#[test]
fn a_capture_that_is_cut_is_judged_up_to_there() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let rules = rules(folder.path(), "[[rule]]\nname = \"a\"\nmatch = \"udp\"\naction = \"drop\"\n");
    let capture = pcap(&[ip([US, US], 17, [7, 7]), ip([US, US], 17, [7, 7])]);
    let told = try_out(&rules, &capture[..capture.len() - 5], "");
    let why = String::from_utf8(told.stderr.clone()).unwrap();
    assert_eq!(
        (told.status.code(), figures(&told), why.lines().count()),
        (Some(1), [1, 1, 0], 1),
        "{told:?}"
    );
    assert!(why.starts_with("bywash: -: ") && why.contains("what stands before was judged"), "{why}");
}

#[test]
fn results_that_can_not_be_written_are_told_of() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rules = bed.rules("[[rule]]\nname = \"a\"\nmatch = \"udp\"\naction = \"drop\"\n");
    let capture = bed.folder.path().join("a.pcap");
    std::fs::write(&capture, pcap(&[ip([US, US], 17, [7, 7])])).unwrap();
    let trial = format!("filter test --rules {} --pcap {}", rules.display(), capture.display());
    let live = format!(
        "filter xdp:left --rules {} --json --huge-pages off --memory 32M --duration 60s",
        rules.display()
    );
    for words in [trial.clone(), format!("{trial} --json"), live] {
        let mut command = bed.lab.hosts[1].command(BYWASH).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command.args(arguments(&words)).stdout(full).output().unwrap();
        let why = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!((output.status.code(), why.lines().count()), (Some(1), 1), "{words}: {output:?}");
        assert!(why.contains("can't be written: No space left on device"), "{why}");
        // Who reads no more has read enough.
        let mut command = bed.lab.hosts[1].command(BYWASH).unwrap();
        let (reader, pipe) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.args(arguments(&words)).stdout(pipe).output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()), "{words}");
    }
}

#[test]
fn rules_that_no_port_would_take_are_refused_as_there() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rule = |n| {
        format!(
            "[[rule]]\nname = \"{n}\"\nmatch = \"udp dst port {n} and udp[8:2] = {n}\"\naction = \"drop\"\n"
        )
    };
    let text: String = (1..=3000).map(rule).collect();
    let rules = bed.rules(&text);
    let words = format!("filter xdp:left --rules {} --huge-pages off --memory 32M", rules.display());
    let live = bed.lab.hosts[1].command(BYWASH).unwrap().args(arguments(&words)).output().unwrap();
    for output in [live, try_out(&rules, &pcap(&[]), "")] {
        let why = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!((output.status.code(), why.lines().count()), (Some(2), 1), "{output:?}");
        let place = why.split(": the rule '").next().unwrap();
        let line = place.rsplit(':').nth(1).unwrap().parse::<u32>();
        assert!(line.is_ok_and(|line| line > 4 && line % 4 == 0) && place.ends_with(":10"), "{why}");
        assert!(why.contains("put rules that are alike into lists"), "{why}");
    }
}

#[test]
fn packets_that_are_cut_are_told_of() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let rules = rules(folder.path(), "[[rule]]\nname = \"a\"\nmatch = \"udp\"\naction = \"drop\"\n");
    let whole = ip([US, US], 17, [7, 7]);
    let mut capture = pcap(&[whole.clone(), whole.clone(), whole]);
    // How long the second one was.
    let at = 24 + (16 + 60) + 12;
    capture[at..at + 4].copy_from_slice(&1400_u32.to_le_bytes());
    let told = try_out(&rules, &capture, "");
    let why = String::from_utf8(told.stderr.clone()).unwrap();
    assert_eq!((told.status.code(), figures(&told)), (Some(0), [3, 3, 0]), "{told:?}");
    assert!(why.starts_with("bywash: -: 1 of 3 packets are cut: ") && why.lines().count() == 1, "{why}");
    let json: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(json["cut_packets"], 1);
}

/// A rule that lets one packet a second through.
const ONE_A_SECOND: &str =
    "[[rule]]\nname = \"one\"\nmatch = \"udp\"\naction = \"limit\"\nrate = 1\nburst = 1\n";

#[test]
fn a_limit_goes_on_when_the_clock_of_the_capture_was_set_back() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let rules = rules(folder.path(), ONE_A_SECOND);
    // One far ahead, then half a minute of one packet in two seconds.
    let stamps = std::iter::once(2_000_000_000).chain((0..15).map(|n| 1_000_000_000 + 2 * n));
    let mut capture = pcap(&vec![ip([US, US], 17, [7, 7]); 16]);
    for (n, stamp) in stamps.enumerate() {
        let at = 24 + n * (16 + 60);
        capture[at..at + 4].copy_from_slice(&u32::to_le_bytes(stamp));
    }
    let told = try_out(&rules, &capture, "");
    // The second one came at once with the first, as far as anybody knows.
    assert_eq!((told.status.code(), figures(&told)), (Some(0), [16, 1, 0]), "{told:?}");
}

#[test]
fn a_burst_that_a_limit_allows_is_no_flood_where_a_capture_begins_either() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let limit = "match = \"udp\"\naction = \"limit\"\nrate = 200\nburst = 400\nblock_seconds = 30\n";
    let rules = rules(folder.path(), &format!("[[rule]]\nname = \"limited\"\n{limit}"));
    // One packet more than the burst at once, then one a second.
    let mut capture = pcap(&vec![ip([US, US], 17, [7, 7]); 401 + 20]);
    for n in 401..421 {
        let at = 24 + n * (16 + 60);
        capture[at..at + 4].copy_from_slice(&u32::try_from(n - 399).unwrap().to_le_bytes());
    }
    let told = try_out(&rules, &capture, "");
    assert_eq!((told.status.code(), figures(&told)), (Some(0), [421, 1, 0]), "{told:?}");
}

#[test]
fn packets_without_a_time_are_told_of_where_a_rule_asks_for_it() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    // A section, an interface of Ethernet, and two Simple Packet Blocks.
    let mut capture = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28]);
    capture.extend(words(&[1, 20, 1, 0, 20]));
    for _ in 0..2 {
        capture.extend(words(&[3, 16 + 60, 60]));
        capture.extend(ip([US, US], 17, [7, 7]));
        capture.extend(words(&[16 + 60]));
    }
    for (text, is_told) in
        [(ONE_A_SECOND, true), ("[[rule]]\nname = \"all\"\nmatch = \"udp\"\naction = \"drop\"\n", false)]
    {
        let told = try_out(&rules(folder.path(), text), &capture, "");
        let why = String::from_utf8(told.stderr.clone()).unwrap();
        assert_eq!((told.status.code(), figures(&told)[0]), (Some(0), 2), "{told:?}");
        let says = why.starts_with("bywash: -: 2 of 2 packets have no time") && why.lines().count() == 1;
        assert_eq!((says, why.is_empty()), (is_told, !is_told), "{why}");
        let json: Value = serde_json::from_slice(&told.stdout).unwrap();
        assert_eq!(json["untimed_packets"], 2);
    }
}

#[test]
fn rules_that_can_do_nothing_are_told_with_their_place() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let told = |text: &str, words: &str| {
        let path = rules(folder.path(), text);
        let output = try_out(&path, &pcap(&[]), words);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).unwrap().replace(&format!("bywash: {}:", path.display()), "")
    };
    let rule = |name: &str, more: &str| format!("[[rule]]\nname = \"{name}\"\n{more}\n");
    let text = [
        rule("old", "match = \"udp\"\naction = \"drop\"\nexpires = 2020-01-01T00:00:00Z"),
        rule("arp", "match = \"arp or icmp6 and ip6[40] = 135 and ip6[7] = 255\"\naction = \"drop\""),
        rule("gateway", "from = [\"10.0.0.254\"]\nto_ports = [9]\naction = \"count\""),
        rule("gateway's net", "from = [\"10.0.0.254\", \"10.0.0.0/24\"]\naction = \"count\""),
        rule("some", "match = \"\"\nto_ports = [9]\naction = \"drop\""),
        rule("dry", "match = \"\"\naction = \"drop\"\ndry_run = true"),
        rule("all", "match = \"\"\naction = \"drop\""),
        rule("late", "match = \"udp\"\naction = \"count\""),
    ];
    let lines = told(&text.concat(), "--gateway 10.0.0.254");
    let right = [
        "5:11: the rule 'old' has expired: it does nothing",
        "7:8: the rule 'arp' is about packets alone that are never dropped: it does nothing",
        "11:8: the rule 'gateway' is about packets alone that are never dropped: it does nothing",
        "34:8: the rule 'late' stands behind 'all', which decides on every packet: it does nothing",
    ];
    assert_eq!(lines.lines().collect::<Vec<_>>(), right);
    assert_eq!(told("", ""), "1:1: there is no rule: nothing is dropped\n");
    assert_eq!(told(&rule("a", "match = \"arp or udp\"\naction = \"drop\""), ""), "");
    let many: String = (0..20).map(|n| rule(&n.to_string(), "match = \"arp\"\naction = \"drop\"")).collect();
    let lines = told(&many, "");
    assert_eq!((lines.lines().count(), lines.ends_with("4 more such rules\n")), (17, true), "{lines}");
}

#[test]
fn rules_that_the_kernels_verifier_does_not_take_are_refused_by_a_trial_with_their_place() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let capture = pcap(&[ip([US, US], 17, [7, 7])]);
    let fits = rules(folder.path(), &alike(10));
    let told = try_out(&fits, &capture, "");
    assert_eq!((told.status.code(), String::from_utf8_lossy(&told.stderr).as_ref()), (Some(0), ""));
    let beyond = rules(folder.path(), &alike(60));
    let refused = try_out(&beyond, &capture, "");
    let why = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), why.lines().count()), (Some(2), 1), "{why}");
    assert!(why.contains("rules.toml:9:10: ") && why.contains("the rule 'alike 0' most of all"), "{why}");
}

#[test]
fn that_a_capture_does_not_tell_who_listens_is_told() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let rule = |action: &str| format!("[[rule]]\nname = \"web\"\nto_ports = [80]\naction = \"{action}\"\n");
    let capture = pcap(&[ip([[10, 0, 0, 7], US], 6, [5000, 80])]);
    for (action, is_told) in [("syncookie", true), ("count", false)] {
        let output = try_out(&rules(folder.path(), &rule(action)), &capture, "");
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), told.contains("a capture does not tell")),
            (Some(0), is_told),
            "{told}"
        );
    }
}

#[test]
fn never_drop_may_have_a_thousand_prefixes_and_more_than_there_is_room_for_are_named() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |count: usize| {
        let prefix = |n: usize| format!("'11.{}.{}.0/24'", n / 128, n % 128 * 2);
        let all: Vec<_> = (0..count).map(prefix).collect();
        let rule = "[[rule]]\nname = 'all'\nmatch = ''\naction = 'drop'\n";
        rules(folder.path(), &format!("never_drop = [{}]\n{rule}", all.join(", ")))
    };
    let spared = [[11, 7, 102, 9], [11, 7, 103, 9]].map(|from| ip([from, US], 17, [7, 7]));
    // Who sends is spared, and not who is sent something.
    let all = [&spared[..], &[ip([US, [11, 7, 102, 9]], 17, [7, 7])]].concat();
    let output = try_out(&file(1000), &pcap(&all), "");
    assert_eq!(figures(&output), [3, 2, 1], "{output:?}");
    let output = try_out(&file(9000), &pcap(&spared), "");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{why}");
    let place = "rules.toml:1:15: there is no room for never_drop";
    assert!(why.contains(place) && why.contains("action = \"pass\"") && why.len() < 600, "{why}");
}

#[test]
fn what_establishes_nothing_is_refused_by_a_trial_when_it_can_not_run() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let folder = tempfile::tempdir().unwrap();
    let nets: Vec<_> = (0..1500).map(|n| format!("net 2001:db8:{n:x}::/48")).collect();
    let text = format!(
        "[established]\nexcept = ['{}']\n[[rule]]\nname = 'a'\nestablished = true\naction = 'pass'\n",
        nets.join(" or ")
    );
    let output = try_out(&rules(folder.path(), &text), &pcap(&[]), "--ours 10.0.0.2");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{why}");
    assert!(why.contains("rules.toml:2:11: what establishes no flow (except)"), "{why}");
}

#[test]
fn what_no_nic_gives_to_a_queue_is_refused_by_a_trial() {
    let folder = tempfile::tempdir().unwrap();
    let file = |more: &str| {
        let text = format!("[[rule]]\nname = 'six'\nmatch = 'ip6'\naction = 'queue'\nqueue = 1\n{more}");
        rules(folder.path(), &text)
    };
    let output = try_out(&file(""), &pcap(&[]), "");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{why}");
    assert!(why.contains("rules.toml:4:10: the rule 'six' can't give its packets to queue 1"), "{why}");
    let output = try_out(&file("dry_run = true\n"), &pcap(&[]), "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn rules_and_lists_are_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let text = "[[rule]]\nname = 'a'\nfrom_file = 'nets.txt'\naction = 'drop'\n";
    let file = rules(folder.path(), text);
    std::fs::write(at("nets.txt"), "10.0.0.0/8\n").unwrap();
    std::os::unix::fs::symlink(at("rules.toml"), at("link")).unwrap();
    for (outputs, why) in [
        (["--samples", "rules.toml", "", ""], "would destroy what it holds"),
        (["--samples", "link", "", ""], "would destroy what it holds"),
        (["--audit", "nets.txt", "", ""], "would destroy what it holds"),
        (["--samples", "new", "--audit", "new"], "named for two outputs"),
    ] {
        let [first, one, second, other] = outputs;
        let mut command = Host::here().unwrap().command(BYWASH).unwrap();
        command.args(["filter", "xdp:absent", "--rules"]).arg(&file).args([first, &at(one)]);
        if !second.is_empty() {
            command.args([second, &at(other)]);
        }
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && told.contains(why), "{outputs:?}: {told}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "{outputs:?}");
        assert_eq!(std::fs::read_to_string(at("nets.txt")).unwrap(), "10.0.0.0/8\n", "{outputs:?}");
    }
}
