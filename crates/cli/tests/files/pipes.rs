//! Capture files that come and go through pipes: nobody waits for what has not come, and nothing is lost to who is slow.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Place, end, packets, pcap, summary, text};

/// Longer than anything takes that is done at once, on a machine that has much else to do.
const SOON: Duration = Duration::from_secs(10);

fn fifo(place: &Place, name: &str) -> PathBuf {
    let path = place.0.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    path
}

fn start(place: &Place, words: &str) -> Child {
    let mut command = place.command(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a file has so many bytes.
fn grown(place: &Place, name: &str, len: usize) {
    let until = Instant::now() + SOON;
    let has = || fs::metadata(place.0.path().join(name)).map_or(0, |file| file.len());
    while has() < len as u64 {
        assert!(Instant::now() < until, "{name} has {} of {len} bytes", has());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads a pipe to its end, but not for as long.
fn read_after(pause: Duration, path: PathBuf) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut pipe = File::open(path).unwrap();
        std::thread::sleep(pause);
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

#[test]
fn packets_of_a_pipe_go_on_when_they_have_come_and_not_when_there_are_many() {
    let place = Place::new();
    let file = pcap(&[1; 3], 60);
    for words in ["capture pcap:- -w out.pcap", "forward pcap:- pcap:out.pcap"] {
        let mut child = start(&place, words);
        let mut pipe = child.stdin.take().unwrap();
        // The last packet is not whole.
        for part in [&file[..10], &file[10..50], &file[50..180]] {
            pipe.write_all(part).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        grown(&place, "out.pcap", 24 + 2 * 76);
        pipe.write_all(&file[180..]).unwrap();
        grown(&place, "out.pcap", file.len());
        drop(pipe);
        assert_eq!((end(&mut child), place.bytes("out.pcap") == file), (0, true), "{words}");
        fs::remove_file(place.0.path().join("out.pcap")).unwrap();
    }
}

#[test]
fn a_pipe_that_is_silent_keeps_no_run_from_its_end() {
    let place = Place::new();
    let path = fifo(&place, "in");
    let file = pcap(&[1; 3], 60);
    for words in ["receive pcap:in", "capture pcap:in -w out.pcap", "forward pcap:in null:"] {
        // Nobody writes to it, or somebody has begun to.
        for begun in [&[][..], &file[..24], &file[..150]] {
            for by_time in [true, false] {
                let duration = if by_time { "--duration 300ms" } else { "" };
                let mut child = start(&place, &format!("{words} {duration}"));
                let mut pipe = None;
                if !begun.is_empty() {
                    let mut opened = File::options().read(true).write(true).open(&path).unwrap();
                    opened.write_all(begun).unwrap();
                    pipe = Some(opened);
                }
                std::thread::sleep(Duration::from_millis(500));
                let asked = Instant::now();
                if !by_time {
                    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
                }
                assert_eq!(end(&mut child), 0, "{words} {duration} {}", begun.len());
                assert!(asked.elapsed() < SOON, "{words} {duration} {}", begun.len());
                drop(pipe);
            }
        }
    }
}

#[test]
fn of_a_pipe_nothing_is_lost_to_a_look_at_what_it_is() {
    let place = Place::new();
    let path = fifo(&place, "in");
    let file = pcap(&[1; 3000], 600);
    for port in ["pcap:in", "pcap:/dev/stdin"] {
        let mut child = start(&place, &format!("forward {port} pcap:out.pcap"));
        let mut pipe: Box<dyn Write> = if port == "pcap:in" {
            Box::new(File::options().write(true).open(&path).unwrap())
        } else {
            Box::new(child.stdin.take().unwrap())
        };
        pipe.write_all(&file).unwrap();
        drop(pipe);
        assert_eq!((end(&mut child), place.bytes("out.pcap") == file), (0, true), "{port}");
    }
    let mut child = start(&place, "capture pcap:in -w out.pcap");
    File::options().write(true).open(&path).unwrap().write_all(b"no capture file at all").unwrap();
    let code = end(&mut child);
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(code > 0 && complaint.contains("this is no pcap or pcapng file"), "{complaint}");
    assert!(!complaint.contains("stands before"), "{complaint}");
}

#[test]
fn what_goes_to_a_slow_reader_is_waited_for() {
    let place = Place::new();
    let path = fifo(&place, "out");
    // More than the pipe takes.
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 3000], 600)).unwrap();
    for words in
        ["generate pcap:out --count 20k", "replay a.pcap pcap:out --rate max", "forward pcap:a.pcap pcap:out"]
    {
        let read = read_after(Duration::from_millis(1500), path.clone());
        let output = place.command(words).arg("--json").output().unwrap();
        let told = summary(&output);
        assert_eq!(output.status.code(), Some(0), "{words}: {told}");
        let count = if words.starts_with("generate") { 20_000 } else { 3000 };
        let sent = if words.starts_with("forward") { &told["directions"][0] } else { &told };
        assert_eq!(sent["tx_packets"], count, "{words}: {told}");
        assert_eq!(packets(&read.join().unwrap()).len(), count, "{words}");
    }
}

#[test]
fn a_reader_that_has_gone_ends_what_is_sent_to_it_and_is_no_failure() {
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 3000], 600)).unwrap();
    for words in [
        "generate pcap:-",
        "generate pcap:- --count 100M --size 1518",
        "replay a.pcap pcap:- --rate max --loops 0",
        "replay a.pcap pcap:- --rate max --loops 1M",
        "forward pcap:a.pcap pcap:-",
    ] {
        let mut child = start(&place, &format!("{words} -q"));
        child.stdout.take().unwrap().read_exact(&mut [0; 100]).unwrap();
        let code = end(&mut child);
        let told = text(&child.wait_with_output().unwrap().stderr);
        assert_eq!(code, 0, "{words}: {told}");
        assert!(!told.contains("not met"), "{words}: {told}");
    }
}

#[test]
fn a_reader_that_has_gone_before_anything_is_written_is_no_failure() {
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 3], 60)).unwrap();
    for words in ["capture null: -w -", "generate pcap:-", "forward pcap:a.pcap pcap:-"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.command(&format!("{words} -q"));
        let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let code = end(&mut child);
        assert_eq!(code, 0, "{words}: {}", text(&child.wait_with_output().unwrap().stderr));
    }
}

#[test]
fn a_replay_of_a_pipe_begins_with_its_first_packet_and_sends_what_is_there() {
    let place = Place::new();
    let file = pcap(&[1000; 3], 60);
    let mut child = start(&place, "replay - pcap:out.pcap --json");
    let mut pipe = child.stdin.take().unwrap();
    for part in [&file[..24], &file[24..]] {
        pipe.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(800));
    }
    grown(&place, "out.pcap", file.len());
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let told = summary(&output);
    assert_eq!((&told["tx_packets"], &told["put_off_ns"]), (&3.into(), &0.into()), "{told}");
    assert_eq!(output.status.code(), Some(0), "{told}");
    // Nor does one that never begins keep it.
    let mut child = start(&place, "replay - pcap:out.pcap");
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(end(&mut child), 1);
}

#[test]
fn a_replay_of_a_pipe_ends_with_its_count_whatever_may_still_come() {
    let place = Place::new();
    let mut child = start(&place, "replay - pcap:out.pcap --rate max --count 3");
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&pcap(&[0; 3], 60)).unwrap();
    assert_eq!((end(&mut child), place.read("out.pcap").len()), (0, 3));
    drop(pipe);
}

#[test]
fn a_file_that_may_not_get_longer_is_as_one_on_a_full_disk() {
    let place = Place::new();
    // Blocks of 512 bytes, and more than packet memory has: that is under the same limit.
    let words = "ulimit -f 40000; exec \"$0\" capture null: -w a.pcap -q --huge-pages off --memory 16M";
    let mut command = std::process::Command::new("sh");
    let output = command.args(["-c", words, super::BYWASH]).current_dir(&place.0).output().unwrap();
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(complaint.contains("not met: a.pcap may not get longer"), "{complaint}");
    assert_eq!(place.read("a.pcap").len(), (40_000 * 512 - 24) / 80);
}

#[test]
fn a_replay_that_its_time_ends_does_not_say_that_the_file_had_no_more() {
    let place = Place::new();
    fs::write(place.0.path().join("a.pcap"), pcap(&[0; 5], 60)).unwrap();
    for (words, says) in [
        ("--count 50k --loops 0 --rate 1k --duration 300ms", " of 50000 packets were sent\n"),
        ("--count 7 --rate max --duration 20s", "5 of 7 packets were sent: the file has no more (--loops)\n"),
    ] {
        let output = place.command(&format!("replay a.pcap null: -q {words}")).output().unwrap();
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}: {complaint}");
        assert!(complaint.contains(says), "{words}: {complaint}");
    }
}
