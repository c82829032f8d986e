//! Samples that no file takes any more, since the disk is full or nobody reads the pipe: it is told at once, they count as lost, and the
//! filter ends all the same.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bywash_lab::Snapshot;
use bywash_pcap::Reader;
use rustix::process::Signal;
use serde_json::Value;

use crate::bed::{BYWASH, Bed, Filter, Untouched, arguments, fifo, summary, unchanged};

/// All packets of a flood are samples.
const RULES: &str = "[[rule]]\nname = \"flood\"\nto_ports = [9]\naction = \"drop\"\nsample = 1\n";

/// More of them than a pipe takes.
const FLOOD: &str = "--dport 9 --src 10.1.0.0/24 --rate 10k --count 5000";

fn warns(event: &Value, of: &str) -> bool {
    event["event"] == "warning" && event["message"].as_str().unwrap().contains(of)
}

/// Each packet that was drawn is in the file or counted as lost. Returns how many are in it.
fn all_accounted_for(summary: &Value) -> u64 {
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert_eq!(count("sampled_packets") + count("lost_samples"), count("dropped_packets"), "{summary}");
    assert!(count("lost_samples") > 1000, "{summary}");
    count("sampled_packets")
}

#[test]
fn a_full_disk_is_told_of_at_once_and_samples_that_are_not_on_it_count_as_lost() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let rules = bed.rules(RULES);
    // A disk that is gone with the last process that sees it.
    let small = bed.folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mut command = bed.lab.hosts[1].command("unshare").unwrap();
    let script = "mount -t tmpfs -o size=100k none \"$0\" && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(&small).arg(BYWASH);
    let file = small.join("s.pcapng");
    let words = format!("filter xdp:left --rules {} --samples {}", rules.display(), file.display());
    let mut filter = Filter::by(command, &format!("{words} --huge-pages off --memory 32M"));
    bed.flood(FLOOD);
    let says = "samples are kept no longer: no space left";
    filter.wait_for("warning", |event| warns(event, says));
    bed.flood(FLOOD);
    let seen = PathBuf::from(format!("/proc/{}/root", filter.child.id()));
    let seen = std::fs::File::open(seen.join(file.strip_prefix("/").unwrap())).unwrap();
    let mut reader = Reader::new(seen).unwrap();
    let in_file = std::iter::from_fn(|| reader.next_record().unwrap().map(drop)).count() as u64;
    assert_eq!(filter.report()["sampled_packets"], in_file);
    let (code, told) = filter.end_anyhow();
    let summary = summary(&told);
    assert_eq!(all_accounted_for(summary), in_file);
    assert_eq!(told.iter().filter(|event| warns(event, says)).count(), 1, "{told:?}");
    assert_eq!(code, Some(1));
    assert!(summary["unmet"][0].as_str().unwrap().starts_with("no space left"), "{summary}");
}

#[test]
fn a_pipe_whose_reader_has_gone_is_told_of_at_once_and_is_no_failure() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let (path, reader) = fifo(&bed, "samples");
    let mut filter =
        Filter::start(&bed, &format!("--rules {} --samples {}", bed.rules(RULES).display(), path.display()));
    drop(reader);
    bed.flood(FLOOD);
    let says = "samples are kept no longer: nobody reads";
    filter.wait_for("warning", |event| warns(event, says));
    let told = filter.end();
    assert_eq!(all_accounted_for(summary(&told)), 0);
    assert_eq!(told.iter().filter(|event| warns(event, says)).count(), 1, "{told:?}");
}

#[test]
fn a_file_that_takes_nothing_does_not_keep_the_machine_as_it_is_nor_the_filter_from_its_end() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let before = Snapshot::take();
    {
        let bed = Bed::new(1);
        let untouched = Untouched::now(&bed.lab.hosts[1]);
        let (path, _pipe) = fifo(&bed, "samples");
        let words = format!("--rules {} --samples {}", bed.rules(RULES).display(), path.display());
        let mut filter = Filter::start(&bed, &words);
        bed.flood(FLOOD);
        let asked = Instant::now();
        filter.signal(Signal::INT);
        untouched.check();
        assert!(filter.child.try_wait().unwrap().is_none(), "it waits for the file when all else is done");
        let (code, told) = filter.ended();
        assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
        assert_eq!(code, Some(0), "{told:?}");
        assert!(told.iter().any(|event| warns(event, "'writer'")), "{told:?}");
        all_accounted_for(summary(&told));
    }
    unchanged(&before);
}

#[test]
fn a_pipe_that_nobody_reads_is_refused_at_the_start() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(1);
    let untouched = Untouched::now(&bed.lab.hosts[1]);
    let (path, reader) = fifo(&bed, "pipe");
    drop(reader);
    let says = "can't be written: it is a pipe that nobody reads: begin to read it first";
    for output in ["--samples", "--audit"] {
        let words = format!(
            "20 {BYWASH} filter xdp:left --rules {} {output} {} --huge-pages off --memory 16M",
            bed.rules(RULES).display(),
            path.display()
        );
        let output = bed.lab.hosts[1].command("timeout").unwrap().args(arguments(&words)).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        let is_told = told.contains(says) && told.contains(&path.display().to_string());
        assert!(output.status.code() == Some(2) && is_told, "{:?}: {told}", output.status);
    }
    untouched.check();
}
