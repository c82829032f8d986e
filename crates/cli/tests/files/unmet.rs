//! What is not read of a file, not written to one or not sent on: exit code 1, and a line that says why.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use bywash_lab::{Lab, PairOptions};
use rustix::process::{Pid, Signal, kill_process};

use super::{Place, end, in_host, pcap, text};

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
