//! Capture files as the tools make and use them: `capture`, `replay`, and the port `pcap:`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod gone;
mod pipes;
mod unmet;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::{Host, Lab, PairOptions, skip};
use bywash_pcap::Reader;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Ordinary pages, so that nothing is said about them.
const QUIET_MEMORY: [&str; 4] = ["--huge-pages", "off", "--memory", "16M"];

const BYWASH: &str = env!("CARGO_BIN_EXE_bywash");

/// A directory that is gone with the test, and the tool run in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(BYWASH);
        command.args(words.split_whitespace()).args(QUIET_MEMORY).current_dir(&self.0);
        command
    }

    /// The summary of a run that met its aim.
    fn met(&self, words: &str) -> Value {
        let output = self.command(words).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words}: {output:?}");
        summary(&output)
    }

    fn read(&self, file: &str) -> Packets {
        packets(&self.bytes(file))
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        fs::read(self.0.path().join(file)).unwrap()
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn summary(output: &Output) -> Value {
    serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
}

/// Of each packet its time, its length on the wire, and its bytes.
type Packets = Vec<(u64, u32, Vec<u8>)>;

/// All packets of a file that must be whole.
fn packets(file: &[u8]) -> Packets {
    let mut reader = Reader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        packets.push((record.time.unwrap(), record.original_len, record.bytes.to_vec()));
    }
    packets
}

/// A pcap file of frames to nobody, so many nanoseconds apart.
fn pcap(gaps: &[u64], len: u32) -> Vec<u8> {
    let format = bywash_pcap::Format::Pcap;
    let mut file = format.file_header(&bywash_pcap::Interface::named("test"));
    let mut time = 1_700_000_000_000_000_000;
    for (number, gap) in gaps.iter().enumerate() {
        time += gap;
        let mut bytes = vec![u8::try_from(number % 256).unwrap(); len as usize];
        bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        file.extend(format.record_head(time, len, len).bytes());
        file.extend(bytes);
    }
    file
}

/// What tcpdump says of a file, a line or two for each packet.
fn tcpdump(file: &Path) -> Result<String, String> {
    let output = Command::new("tcpdump")
        // An unpacked Debian tcpdump has no user of its own to become.
        .args(["-Z", "root", "-envvr"])
        .arg(file)
        .output()
        .map_err(|error| format!("tcpdump can't be run: {error}"))?;
    assert!(output.status.success(), "{output:?}");
    Ok(text(&output.stdout))
}

#[test]
fn what_is_captured_can_be_captured_again_and_cut() {
    let place = Place::new();
    let summary = place.met("capture null: -w a.pcapng -c 500");
    assert_eq!((&summary["written_packets"], &summary["files"]), (&500.into(), &1.into()));
    assert_eq!(
        summary["file_bytes"].as_u64(),
        Some(fs::metadata(place.0.path().join("a.pcapng")).unwrap().len())
    );
    let all = place.read("a.pcapng");
    assert!(all.len() == 500 && all.iter().all(|packet| packet.1 == 64 && packet.2.len() == 64));
    let summary = place.met("capture pcap:a.pcapng -w b.pcap -s 40 udp and port 9");
    assert_eq!((&summary["written_packets"], &summary["cut_packets"]), (&500.into(), &500.into()));
    let cut: Packets = all.iter().map(|(time, len, bytes)| (*time, *len, bytes[..40].to_vec())).collect();
    assert_eq!(place.read("b.pcap"), cut);
    let summary = place.met("capture pcap:a.pcapng -w none.pcap tcp");
    assert_eq!((&summary["written_packets"], &summary["unmatched_packets"]), (&0.into(), &500.into()));
    assert!(place.read("none.pcap").is_empty());
}

/// A pcap file of packets of which it has these bytes, the last one 0, and which were so long.
fn cut_pcap(packets: &[(u64, u32, u32)]) -> Vec<u8> {
    let format = bywash_pcap::Format::Pcap;
    let mut file = format.file_header(&bywash_pcap::Interface::named("test"));
    for &(time, captured, original) in packets {
        file.extend(format.record_head(time, captured, original).bytes());
        let mut bytes: Vec<u8> = (0..captured).map(|n| u8::try_from(n % 251 + 1).unwrap()).collect();
        *bytes.last_mut().unwrap() = 0;
        file.extend(bytes);
    }
    file
}

#[test]
fn packets_that_were_cut_before_keep_their_length_and_time() {
    let place = Place::new();
    let file = cut_pcap(&[(0, 64, 1514), (7, 64, 206), (9, 60, 60)]);
    fs::write(place.0.path().join("snap.pcap"), &file).unwrap();
    let summary = place.met("capture pcap:snap.pcap -w all.pcap");
    assert_eq!((&summary["written_packets"], &summary["cut_packets"]), (&3.into(), &2.into()));
    assert_eq!(place.read("all.pcap"), packets(&file));
    place.met("forward pcap:snap.pcap pcap:on.pcapng");
    assert_eq!(place.read("on.pcapng"), packets(&file));
    for (expression, matching) in [("greater 1000", 1), ("len > 60", 2), ("len = 206", 1), ("less 64", 1)] {
        let summary = place.met(&format!("capture pcap:snap.pcap -w some.pcap {expression}"));
        assert_eq!(summary["written_packets"], matching, "{expression}");
    }
}

#[test]
fn an_expression_sees_all_bytes_of_a_long_packet() {
    let place = Place::new();
    let file = cut_pcap(&[(1, 9014, 9014), (2, 60, 60), (3, 2500, 9014)]);
    fs::write(place.0.path().join("long.pcap"), &file).unwrap();
    // The fourth asks for what the second packet never had, and the last for what of the third one is not there.
    let cases =
        [("ether[2499] >= 0", 2), ("ether[8000] = 220", 1), ("ether[len - 1] = 0", 2), ("ether[60] >= 0", 2)];
    for (expression, matching) in cases.into_iter().chain([("not ether[2500] = 1", 1)]) {
        let mut command = place.command("capture pcap:long.pcap -w some.pcap --json");
        let output = command.arg(expression).output().unwrap();
        assert_eq!(summary(&output)["written_packets"], matching, "{expression}");
    }
}

#[test]
fn a_capture_to_standard_output_says_everything_else_beside_it() {
    let place = Place::new();
    let output = place.command("capture null: -w - -c 100").output().unwrap();
    assert_eq!((output.status.code(), packets(&output.stdout).len()), (Some(0), 100));
    assert!(text(&output.stderr).contains("captured 100 packets"), "{output:?}");
    // Who reads it may have seen enough.
    let mut child =
        place.command("capture null: -w -").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut [0; 100]).unwrap();
    assert_eq!(end(&mut child), 0);
}

#[test]
fn packets_that_are_sent_to_standard_output_have_it_for_themselves() {
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 3], 60)).unwrap();
    for words in
        ["generate pcap:- --count 3", "replay a.pcap pcap:- --rate max", "forward pcap:a.pcap pcap:-"]
    {
        for style in [&[][..], &["--json"]] {
            let output = place.command(words).args(style).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{words}: {output:?}");
            assert_eq!(packets(&output.stdout).len(), 3, "{words}");
            assert!(text(&output.stderr).lines().count() > 1, "{words}: {output:?}");
        }
    }
    let output = place.command("generate pcap:- --count 3 --tui").output().unwrap();
    assert!(text(&output.stderr).contains("--tui needs standard output") && output.stdout.is_empty());
}

#[test]
fn a_ring_keeps_the_last_files_and_none_is_longer_than_asked() {
    let place = Place::new();
    place.met("capture null: -w ring.pcap -c 20000 -C 200K -W 3");
    let files = place.files();
    let lengths: Vec<usize> =
        files.iter().map(|file| fs::read(place.0.path().join(file)).unwrap().len()).collect();
    let packets: Vec<usize> = files.iter().map(|file| place.read(file).len()).collect();
    // 204776 of 204800 bytes are 2559 records of 80 bytes.
    assert_eq!(packets, [2559, 2559, 20_000 - 7 * 2559], "{files:?}");
    assert!(files[2].starts_with("ring-00008-") && lengths.iter().all(|len| *len <= 204_800), "{files:?}");
}

#[test]
fn a_file_is_forwarded_in_both_formats_and_received_as_it_was_sent() {
    let place = Place::new();
    place.met("generate pcap:a.pcap --count 300 --sources 10");
    place.met("forward pcap:a.pcap pcap:b.pcapng");
    assert_eq!(place.read("a.pcap"), place.read("b.pcapng"));
    let summary = place.met("receive pcap:b.pcapng --count 300 --flows 4");
    assert_eq!((&summary["right_packets"], &summary["lost_packets"]), (&300.into(), &0.into()));
    // Ten sources: the four that are shown and the others.
    let flows = summary["flows"].as_array().unwrap();
    let packets: Vec<_> = flows.iter().map(|flow| flow["packets"].as_u64().unwrap()).collect();
    assert_eq!((packets, &flows[4]["flow"]), (vec![30, 30, 30, 30, 180], &"others".into()), "{summary}");
    assert!(flows.iter().all(|flow| flow["lost_packets"] == 0), "{summary}");
    let output = place.command("forward pcap:a.pcap").output().unwrap();
    assert!(text(&output.stderr).contains("give it a partner") && output.status.code() == Some(2));
}

#[test]
fn what_a_flow_has_lost_is_told_of_that_flow() {
    let place = Place::new();
    for size in ["", "--size imix"] {
        place.met(&format!("generate pcap:a.pcap --count 3000 --flows 30 {size}"));
        // Behind the UDP header: magic, stream, number. One flow ends in the middle, another never begins, of a
        // third one is lost, and of two more one comes again.
        let kept = "not (src port 10004 and udp[12:4] >= 1500) and not src port 10009 and udp[12:4] != 605";
        let mut command = place.command("capture pcap:a.pcap -w b.pcap");
        assert!(command.arg(kept).output().unwrap().status.success());
        let mut late = place.command("capture pcap:a.pcap -w late.pcap");
        assert!(late.arg("udp[12:4] = 606 or udp[12:4] = 611").output().unwrap().status.success());
        let (b, late) = (place.bytes("b.pcap"), place.bytes("late.pcap"));
        fs::write(place.0.path().join("c.pcap"), [&b[..], &late[24..]].concat()).unwrap();
        let output = place.command("receive pcap:c.pcap --flows 4 --json").output().unwrap();
        let summary = summary(&output);
        let flows = summary["flows"].as_array().unwrap();
        let figures: Vec<String> = flows
            .iter()
            .map(|flow| {
                let [lost, again] =
                    ["lost_packets", "duplicate_packets"].map(|name| flow[name].as_u64().unwrap());
                format!("{}: {lost} {again}", flow["flow"].as_str().unwrap())
            })
            .collect();
        let flow =
            |n: u32, rest: &str| format!("UDP 192.168.0.{}:{} > 198.18.0.1:9: {rest}", n + 1, 10_000 + n);
        assert_eq!(
            figures,
            [flow(4, "50 0"), flow(6, "0 1"), flow(11, "0 1"), flow(5, "1 0"), "others: 100 0".to_owned()],
            "{summary}"
        );
        assert_eq!(summary["lost_packets"], 151);
    }
}

#[test]
fn a_replay_keeps_to_the_times_in_the_file_or_to_others() {
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[2_000_000; 51], 60)).unwrap();
    // 100 ms, half of that, and the same with a break of a minute taken out of it. A file's times are those of sending.
    for (words, least) in [("", 100), ("--speed 2", 50), ("--rate 1k", 50), ("--rate 512kbps", 50)] {
        let summary = replay(&place, &format!("a.pcap pcap:out.pcap {words}"));
        let out = place.read("out.pcap");
        assert_eq!(summary["tx_packets"], 51);
        let took = out[50].0 - out[0].0;
        assert!(took > (least - 10) * 1_000_000, "{words}: {took}");
        assert!(summary["gap_error"]["count"].as_u64() == Some(50), "{summary}");
    }
    let mut gaps = [1000; 51];
    gaps[20] = 60_000_000_000;
    fs::write(place.0.path().join("b.pcap"), pcap(&gaps, 60)).unwrap();
    let summary = replay(&place, "b.pcap pcap:out.pcap --max-gap 50ms");
    assert_eq!(
        (&summary["tx_packets"], &summary["files"][0]["duration_ns"]),
        (&51.into(), &50_049_000.into())
    );
}

/// A replay's summary, whether or not a busy machine let it keep its timing.
fn replay(place: &Place, words: &str) -> Value {
    let output = place.command(&format!("replay {words}")).arg("--json").output().unwrap();
    let summary = summary(&output);
    let told = |reason: &Value| reason.as_str().unwrap().starts_with("the timing was not kept");
    assert!(summary["unmet"].as_array().unwrap().iter().all(told), "{words}: {summary}");
    summary
}

#[test]
fn a_replay_sends_every_packet_so_many_times_from_memory_or_from_the_disk() {
    let place = Place::new();
    let file = pcap(&[0; 3000], 1500);
    fs::write(place.0.path().join("a.pcap"), &file).unwrap();
    let once: Vec<Vec<u8>> = packets(&file).into_iter().map(|packet| packet.2).collect();
    for words in [
        "",
        "--preload 0",
        "--loops 4 --preload 0",
        "--loops 4",
        "--loops 0 --count 7000",
        "--loops 0 --count 6000",
        "--loops 0 --count 6000 --preload 0",
    ] {
        let summary = place.met(&format!("replay a.pcap pcap:out.pcap --rate max {words}"));
        let expected = match words {
            "" | "--preload 0" => 3000,
            "--loops 0 --count 7000" => 7000,
            "--loops 0 --count 6000" | "--loops 0 --count 6000 --preload 0" => 6000,
            _ => 12_000,
        };
        assert_eq!(summary["tx_packets"], expected, "{words}");
        assert_eq!(summary["loops"], expected / 3000, "{words}");
        let sent = place.read("out.pcap");
        assert!(sent.iter().map(|packet| &packet.2).eq(once.iter().cycle().take(expected)), "{words}");
    }
    let mut child =
        place.command("replay - pcap:out.pcap --rate max -q").stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&file).unwrap();
    assert_eq!((end(&mut child), place.read("out.pcap").len()), (0, 3000));
}

#[test]
fn addresses_are_rewritten_and_tcpdump_finds_every_checksum_right() {
    let place = Place::new();
    place.met("generate pcap:a.pcap --count 20 --sources 5 --src-ip 192.168.7.1");
    place.met("generate pcap:b.pcap --count 20 --src-ip 2001:db8::1 --dst-ip 2001:db8::2 --size 90");
    for (file, words, says) in [
        ("a.pcap", "--map-ip 192.168.0.0/16=10.7.0.0/16", "10.7.7.5."),
        ("a.pcap", "--map-src-ip 192.168.7.0/24=1.2.3.0/24 --vlan 77 --map-port 9=4242", "vlan 77"),
        ("b.pcap", "--map-dst-ip 2001:db8::2=fd00::5 --fix-checksums", "fd00::5.9"),
        ("b.pcap", "--dst-mac 06:00:00:00:00:09 --map-ip 2001:db8::/32=fd00:1::/32", "06:00:00:00:00:09"),
    ] {
        place.met(&format!("replay {file} pcap:out.pcap --rate max {words}"));
        let told = match tcpdump(&place.0.path().join("out.pcap")) {
            Ok(told) => told,
            Err(reason) => return skip(&reason),
        };
        assert!(told.contains(says) && told.contains("udp sum ok"), "{words}: {told}");
        assert!(!told.contains("bad"), "{words}: {told}");
    }
}

#[test]
fn what_can_not_be_replayed_whole_is_said_with_its_place() {
    let place = Place::new();
    let file = pcap(&[1000; 10], 60);
    fs::write(place.0.path().join("cut.pcap"), &file[..file.len() - 5]).unwrap();
    for words in ["", "--preload 0"] {
        let output =
            place.command(&format!("replay cut.pcap pcap:out.pcap {words} --quiet")).output().unwrap();
        let complaint = text(&output.stderr);
        assert!(complaint.contains("broken at byte 708: a packet of 76 bytes begins there"), "{complaint}");
        assert_eq!((output.status.code(), place.read("out.pcap").len()), (Some(1), 9), "{words}");
    }
    // A port that takes 69632 bytes, and a packet of 70000.
    fs::write(
        place.0.path().join("long.pcap"),
        [pcap(&[0; 2], 60), pcap(&[0], 70000)[24..].to_vec()].concat(),
    )
    .unwrap();
    let output = place.command("replay long.pcap null: --rate max --preload 0 --json").output().unwrap();
    let told = summary(&output);
    assert_eq!((&told["tx_packets"], &told["loops"]), (&2.into(), &0.into()), "{told}");
    let [reason] = &told["unmet"].as_array().unwrap()[..] else { panic!("{told}") };
    assert!(reason.as_str().unwrap().contains("packet 3 has 70000 bytes"), "{told}");
    assert_eq!(output.status.code(), Some(1));
    let summary = place.met("replay long.pcap null: --rate max --too-long skip");
    assert_eq!((&summary["tx_packets"], &summary["files"][0]["too_long_packets"]), (&2.into(), &1.into()));
    let told = place.command("replay long.pcap null: --rate max --too-long skip").output().unwrap();
    assert!(text(&told.stdout).contains("1 longer than the port takes"), "{told:?}");
    let summary = place.met("replay long.pcap null: --rate max --too-long cut");
    assert_eq!((&summary["tx_packets"], &summary["tx_bytes"]), (&3.into(), &(60 + 60 + 69632).into()));
}

#[test]
fn wrong_input_is_one_line_and_exit_code_2() {
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 3], 70000)).unwrap();
    let mut raw = pcap(&[0; 3], 60);
    raw[20] = 101;
    fs::write(place.0.path().join("raw.pcap"), raw).unwrap();
    fs::write(place.0.path().join("empty.pcap"), pcap(&[], 60)).unwrap();
    fs::write(place.0.path().join("a.gz"), [0x1f, 0x8b, 8, 0, 0, 0]).unwrap();
    for (words, says) in [
        ("capture null:", "--write <FILE>"),
        ("capture null: -w /nowhere/a.pcap", "/nowhere/a.pcap can't be written"),
        ("capture null: -w /dev/full", "/dev/full can't be written"),
        ("capture null: -w a -W 3", "--files counts files that -C or -G makes"),
        ("capture null: -w - -C 3", "standard output is one stream"),
        ("capture null: -w - --tui", "--tui needs standard output"),
        ("capture null: -w a -s 300000", "at most 262144 bytes"),
        ("capture null: -w a -C 0", "longer than nothing"),
        ("capture null: -w a port", "filter expression"),
        ("capture pcap:nowhere.pcap -w a", "it can't be read"),
        ("capture bw-absent-interface -w a", "can't be an interface"),
        ("replay a.pcap", "required arguments"),
        ("replay nowhere.pcap null:", "nowhere.pcap can't be read"),
        ("replay a.pcap null:", "packet 1 has 70000 bytes and the port takes at most 69632"),
        ("replay raw.pcap null:", "raw IP (link type 101), and only Ethernet can be sent"),
        ("replay empty.pcap null:", "no packet that can be sent"),
        ("replay a.gz null:", "compressed: unpack it first, with gunzip"),
        ("replay /dev/null null:", "the file is empty"),
        ("replay a.pcap null: --speed 0", "between 0.000001 and 1000000"),
        ("replay a.pcap null: --speed 2 --rate max", "cannot be used with"),
        ("replay a.pcap null: --rate fast", "or max"),
        ("replay a.pcap null: --rate 50%", "link of unknown speed"),
        ("replay a.pcap null: --map-ip 10.0.0.0/8", "write OLD=NEW"),
        ("replay a.pcap null: --vlan 4095", "0 to 4094, or none"),
        ("replay - null: --loops 2", "can be read once only"),
        ("replay a.pcap pcap:a.pcap --queues 0", "0 is not in 1..=65535"),
        ("forward pcap:raw.pcap null:", "only Ethernet can be sent"),
        ("forward pcap:a.pcap null: --ring 64", "a file has no ring"),
        ("receive pcap:", "names no file"),
    ] {
        let output = place.command(words).stdin(Stdio::null()).output().unwrap();
        let complaint = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{words}: {complaint}");
        assert!(complaint.contains(says), "{words}: {complaint}");
        assert!(complaint.starts_with("bywash: "), "{words}: {complaint}");
        if !words.ends_with("port") {
            assert_eq!(complaint.lines().count(), 1, "{words}: {complaint}");
        }
    }
}

#[test]
fn help_has_examples_and_exit_codes() {
    for tool in ["capture", "replay"] {
        let output = Command::new(BYWASH).args([tool, "--help"]).output().unwrap();
        let help = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0));
        assert!(help.contains(&format!("bywash {tool} ")) && help.contains("Exit codes: 0"), "{help}");
    }
}

#[test]
fn help_names_the_primitives_that_are_not_tcpdump_s() {
    let help = text(&Command::new(BYWASH).args(["capture", "--help"]).output().unwrap().stdout);
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 3], 60)).unwrap();
    for (named, used) in [
        ("anyvlan", "anyvlan and ether proto 0x88b5"),
        ("l4 udp", "l4 udp port 53"),
        ("fragment [first|later]", "fragment later"),
    ] {
        assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains(named), "{named}: {help}");
        let summary = place.met(&format!("capture pcap:a.pcap -w out.pcap {used}"));
        let matching = if named == "anyvlan" { 3 } else { 0 };
        assert_eq!(summary["written_packets"], matching, "{used}");
    }
}

#[test]
fn a_file_that_is_read_is_not_written_by_any_name() {
    let place = Place::new();
    let path = |name: &str| place.0.path().join(name);
    let file = pcap(&[0; 3], 60);
    fs::write(path("a.pcap"), &file).unwrap();
    fs::hard_link(path("a.pcap"), path("hard.pcap")).unwrap();
    std::os::unix::fs::symlink("a.pcap", path("soft.pcap")).unwrap();
    for other in ["a.pcap", "./a.pcap", "hard.pcap", "soft.pcap"] {
        for words in [
            "capture pcap:a.pcap -w OTHER",
            "capture pcap:- -w OTHER",
            "replay a.pcap pcap:OTHER",
            "replay - pcap:OTHER",
            "generate pcap:OTHER --template a.pcap --count 1",
            "generate pcap:OTHER --template a.pcap#2 --count 1",
            "forward pcap:a.pcap pcap:OTHER",
            "receive pcap:a.pcap --hdr OTHER",
        ] {
            let words = words.replace("OTHER", other);
            let stdin = fs::File::open(path("a.pcap")).unwrap();
            let output = place.command(&words).stdin(stdin).output().unwrap();
            let complaint = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{words}: {complaint}");
            assert!(place.bytes("a.pcap") == file, "{words}");
        }
    }
    let output = place.command("replay a.pcap pcap:hard.pcap").output().unwrap();
    assert!(text(&output.stderr).contains("hard.pcap is read in this run"), "{output:?}");
    // A device is no file that could be lost.
    place.met("capture pcap:a.pcap -w /dev/null");
}

#[test]
fn an_interface_by_its_name_gives_a_copy_and_an_xdp_port_the_packets_themselves() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let (near, far) = (&lab.pairs[0].near.name, &lab.pairs[0].far.name);
    let place = Place::new();
    let start = |port: &str, says: &str| {
        let words = format!("capture {port} -w seen.pcapng -c 1000 --duration 30s ether proto 0x88b5");
        let mut child = in_host(&lab.hosts[1], &place, &words)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains(says) {
            line.clear();
            let n = std::io::BufRead::read_line(&mut told, &mut line).unwrap();
            assert!(n > 0, "it ended without saying '{says}'");
        }
        (child, told)
    };
    fs::write(place.0.path().join("a.pcap"), pcap(&[20_000; 1000], 60)).unwrap();
    let sent: Vec<Vec<u8>> = place.read("a.pcap").into_iter().map(|packet| packet.2).collect();
    for (port, says) in
        [(far.clone(), "capturing on packet:"), (format!("xdp:{far}"), "takes a copy instead")]
    {
        let (mut capture, told) = start(&port, says);
        // The start is told when the workers run; their sockets are open before.
        let words = format!("replay a.pcap packet:{near} --quiet");
        let output = in_host(&lab.hosts[0], &place, &words).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        let asked = Instant::now();
        let code = end(&mut capture);
        assert!(asked.elapsed() < Duration::from_secs(10), "it ends with the last packet it was to capture");
        let told: Vec<String> = std::io::BufRead::lines(told).map(Result::unwrap).collect();
        assert_eq!(code, 0, "{told:?}");
        let seen = place.read("seen.pcapng");
        assert!(seen.iter().map(|packet| &packet.2).eq(&sent), "{port}: {} packets", seen.len());
        assert!(seen.is_sorted_by_key(|packet| packet.0));
    }
}

#[test]
fn ctrl_c_ends_a_capture_with_all_that_came() {
    let place = Place::new();
    let mut child = place
        .command("capture loop:nobody -w a.pcapng --json")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.next().unwrap().unwrap().contains(r#""event":"start""#));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(end(&mut child), 0);
    assert!(place.read("a.pcapng").is_empty());
}

fn in_host(host: &Host, place: &Place, words: &str) -> Command {
    let mut command = host.command(BYWASH).unwrap();
    command.args(words.split_whitespace()).args(QUIET_MEMORY).current_dir(&place.0);
    command
}

/// Waits for the end, but not for ever.
fn end(child: &mut std::process::Child) -> i32 {
    let until = Instant::now() + Duration::from_secs(40);
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("it did not end");
}
