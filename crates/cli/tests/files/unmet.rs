//! What is not read of a file, not written to one or not sent on: exit code 1, and a line that says why.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bywash_lab::{Lab, PairOptions, skip};
use rustix::process::{Pid, Signal, kill_process};

use super::{BYWASH, Place, end, in_host, pcap, summary, text};

#[test]
fn what_of_a_file_is_not_read_is_told_and_is_exit_code_1() {
    let place = Place::new();
    let whole = pcap(&[0; 3], 60);
    let write = |name: &str, bytes: Vec<u8>| fs::write(place.0.path().join(name), bytes).unwrap();
    write("broken.pcap", whole[..whole.len() - 5].to_vec());
    let (long, short) = (pcap(&[0], 80_000), pcap(&[0], 14));
    let cut = [&short[24..32], &[13, 0, 0, 0, 13, 0, 0, 0], &short[40..53]].concat();
    write("odd.pcap", [&whole[..], &long[24..], &cut[..]].concat());
    let broken = "pcap:broken.pcap: broken at byte 176: a packet of 76 bytes begins there";
    let odd = "pcap:odd.pcap: 2 packets were left out: 1 no Ethernet packets, 1 longer than 69632 bytes";
    for (file, packets, says) in [("broken", 2, broken), ("odd", 3, odd)] {
        for words in
            ["capture pcap:F.pcap -w out.pcap", "receive pcap:F.pcap", "forward pcap:F.pcap pcap:out.pcap"]
        {
            let words = words.replace('F', file);
            let output = place.command(&words).arg("-q").output().unwrap();
            let complaint = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{words}: {complaint}");
            assert!(complaint.contains(&format!("not met: {says}")), "{words}: {complaint}");
            if !words.starts_with("receive") {
                assert_eq!(place.read("out.pcap").len(), packets, "{words}");
            }
        }
    }
}

/// Runs `words` in a place where `small` is a disk of a megabyte, which is gone with the last process that sees it. What is
/// on it in the end is copied.
fn on_a_small_disk(place: &Place, words: &str) -> Output {
    let script = "mkdir -p small && mount -t tmpfs -o size=1M none small && \
                  { \"$0\" $1 --huge-pages off --memory 16M; code=$?; } ; cp small/* . && exit $code";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, BYWASH, words]).current_dir(&place.0).output().unwrap()
}

#[test]
fn a_full_disk_is_no_success_of_whoever_writes_to_a_file() {
    if let Err(reason) = bywash_lab::root() {
        return skip(&reason);
    }
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 2000], 1500)).unwrap();
    for words in [
        "forward pcap:a.pcap pcap:small/out.pcap",
        "generate pcap:small/out.pcap --count 100000",
        "replay a.pcap pcap:small/out.pcap --rate max",
        // They would go on for a minute.
        "generate pcap:small/out.pcap --duration 60s",
        "replay a.pcap pcap:small/out.pcap --rate max --loops 0 --duration 60s",
    ] {
        let began = Instant::now();
        let output = on_a_small_disk(&place, &format!("{words} -q"));
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}: {complaint}");
        let says =
            "not met: pcap:small/out.pcap: no space left: small/out.pcap ends with the last whole packet";
        assert!(complaint.contains(says), "{words}: {complaint}");
        assert!(began.elapsed() < Duration::from_secs(30), "{words}: {:?}", began.elapsed());
        assert!(place.read("out.pcap").len() > 500, "{words}");
    }
}

#[test]
fn a_full_disk_ends_a_capture_with_a_readable_file_and_figures_that_add_up() {
    if let Err(reason) = bywash_lab::root() {
        return skip(&reason);
    }
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 2000], 1500)).unwrap();
    for (port, len) in [("null:", 64), ("pcap:a.pcap", 1500)] {
        for (name, around) in [("full.pcapng", 32), ("full.pcap", 16)] {
            let output = on_a_small_disk(&place, &format!("capture {port} -w small/{name} --json"));
            let told = summary(&output);
            assert_eq!(output.status.code(), Some(1), "{told}");
            let kept = place.read(name).len();
            let most = (1 << 20) / (len + around);
            assert!((most - 45..=most).contains(&kept), "{kept} of {most}");
            let count = |figure: &str| told[figure].as_u64().unwrap();
            let unwritten = count("unwritten_packets");
            assert_eq!((count("written_packets"), count("captured_packets")), (kept as u64, kept as u64));
            assert_eq!(count("rx_packets"), kept as u64 + unwritten + count("lost_packets"), "{told}");
            let says = format!("no space left: small/{name} ends with the last whole packet after ");
            let reason = told["unmet"][0].as_str().unwrap();
            assert!(reason.starts_with(&says), "{told}");
            assert!(
                reason.ends_with(&format!("; {unwritten} packets that came before it was known are lost"))
            );
            // What cut a long packet off has room for the statistics.
            if name.ends_with("ng") && len == 1500 {
                let system = unwritten + count("lost_packets");
                let all = count("rx_packets");
                assert_eq!(
                    statistics(&place.bytes(name)),
                    [(4, all), (6, all), (7, system), (8, kept as u64)]
                );
            }
        }
    }
}

/// The counters of the statistics that a pcapng file ends with: of each the option's number and its value.
fn statistics(file: &[u8]) -> Vec<(u16, u64)> {
    let len = u32::from_le_bytes(*file.last_chunk().unwrap()) as usize;
    let block = &file[file.len() - len..];
    assert_eq!(block[..4], 5_u32.to_le_bytes(), "an Interface Statistics Block");
    let (mut options, mut found) = (&block[20..len - 4], Vec::new());
    while let [a, b, len, _, rest @ ..] = options {
        let (code, len) = (u16::from_le_bytes([*a, *b]), usize::from(*len));
        if code >= 4 {
            found.push((code, u64::from_le_bytes(*rest.first_chunk().unwrap())));
        }
        options = &rest[len.next_multiple_of(4)..];
    }
    found
}

#[test]
fn a_disk_that_gets_full_between_two_files_leaves_whole_ones() {
    if let Err(reason) = bywash_lab::root() {
        return skip(&reason);
    }
    let place = Place::new();
    // Files of a whole number of pages, so that the last of them ends where the disk does, or nearly so.
    let output = on_a_small_disk(&place, "capture null: -w small/ring.pcap -C 131064 --json");
    let told = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let files = place.files().into_iter().filter(|name| name.ends_with(".pcap"));
    let kept: usize = files.map(|name| place.read(&name).len()).sum();
    assert_eq!(told["written_packets"], kept, "{told}");
}

#[test]
fn what_the_kernel_drops_in_front_of_a_capture_is_told() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let (near, far) = (&lab.pairs[0].near.name, &lab.pairs[0].far.name);
    let place = Place::new();
    let words = format!("capture {far} -w seen.pcap --ring 64 --duration 60s");
    let mut capture =
        in_host(&lab.hosts[1], &place, &words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(capture.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("capturing on packet:") {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "it ended");
    }
    let pid = Pid::from_child(&capture);
    kill_process(pid, Signal::STOP).unwrap();
    let sent = in_host(&lab.hosts[0], &place, &format!("generate packet:{near} --count 5000 -q")).output();
    kill_process(pid, Signal::CONT).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(sent.unwrap().status.code(), Some(0));
    assert_eq!(end(&mut capture), 1);
    let mut complaint = String::new();
    told.read_to_string(&mut complaint).unwrap();
    let says = format!(" packets were lost by packet:{far} before they reached us");
    assert!(complaint.contains("not met: ") && complaint.contains(&says), "{complaint}");
}

#[test]
fn what_is_not_sent_on_is_told() {
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 5000], 60)).unwrap();
    // Nobody takes packets out of it.
    let output = place.command("forward pcap:a.pcap loop:nobody -q").output().unwrap();
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    let says = "packets of pcap:a.pcap were dropped: loop:nobody took no more";
    assert!(complaint.starts_with("not met: ") && complaint.contains(says), "{complaint}");
}

#[test]
fn what_came_damaged_is_lost_only_where_nobody_can_tell_what_it_was() {
    let place = Place::new();
    place.met("generate pcap:a.pcap --count 10 --size 300 --flows 2");
    let mut file = place.bytes("a.pcap");
    // Of each packet a byte: of the filler, of the time in the probe, of the UDP checksum, and IP's time to live.
    for (packet, at) in [(3, 100), (5, 52), (6, 40), (7, 22)] {
        file[24 + packet * (16 + 296) + 16 + at] ^= 1;
    }
    fs::write(place.0.path().join("a.pcap"), file).unwrap();
    for flows in ["", "--flows 4"] {
        let output = place.command(&format!("receive pcap:a.pcap --json {flows}")).output().unwrap();
        let told = summary(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        let figures = ["right_packets", "lost_packets", "damaged_packets", "unnumbered_packets"];
        assert_eq!(figures.map(|figure| told[figure].as_u64().unwrap()), [7, 1, 3, 1], "{told}");
        assert_eq!((&told["streams"][0]["packets"], &told["reordered_packets"]), (&9.into(), &0.into()));
        assert_eq!(told["unmet"][0], "1 packets lost", "{told}");
        let of_flows = |figure: &str| -> Vec<u64> {
            let flows = told["flows"].as_array().into_iter().flatten();
            flows.map(|flow| flow[figure].as_u64().unwrap()).collect()
        };
        if !flows.is_empty() {
            // All are of the second flow; of which the one is that has no number, its addresses tell.
            assert_eq!(of_flows("lost_packets"), [1, 0], "{told}");
            assert_eq!(of_flows("damaged_packets"), [3, 0], "{told}");
        }
    }
}
