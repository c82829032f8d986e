//! `--steer` on QEMU's 82576, which has EtherType filters that choose no queue, and no five-tuple filters: what it has is kept and
//! does no harm, and what it has not is refused before a packet was received.

use std::fmt::Write as _;

use bywash_lab::guest::{Guest, GuestError};

use crate::end::WORDS;
use crate::lines_say;
use crate::program::frame;

/// Packets that are sent.
const PACKETS: u64 = 300;

/// With the other NIC in `peer`, as [`crate::end::checks`] leaves it.
pub(crate) fn checks(guest: &mut Guest) -> Result<(), GuestError> {
    let mut run = |script: &str| guest.run(&format!("{WORDS}\n{script}"));
    let refused = run("name=$(ls $nic/net); ip addr flush dev $name; ip link set dev $name down
        /host/bywash receive pci:0000:01:00.0 --queues 4 --duration 1s $memory \\
            --steer 'ether proto 0x88b5 queue 2' --steer 'ip and udp dst port 53 queue 1' 2>&1 || echo code $?
        driver
        /host/bywash receive pci:0000:01:00.0/fdir=2k --duration 1s $memory 2>&1 || echo code $?
        driver")?;
    let wanted = [
        "'ip and udp dst port 53 queue 1' can't be steered: FTQF[0] is 0x00000000 after 0xe0018111 was written",
        "code 2",
        "igb",
        "this NIC has no flow director: leave /fdir= out",
        "code 2",
        "igb",
    ];
    lines_say(&refused, &wanted);

    let output = run(&format!(
        "printf '{}' > /run/one.pcap
        tool receive pci:0000:01:00.0 --queues 4 --drop --count {PACKETS} --duration 120s --json \\
            --steer 'ether proto 0x88b5 queue 2'
        # It says so by its exit code when emulation is too slow for the rate.
        peer /host/bywash replay /run/one.pcap packet:peer --loops {PACKETS} --rate 1k --quiet --memory 8M --huge-pages off || true
        ended; cat /run/tool.out; driver",
        // A broadcast of an EtherType for experiments.
        escaped(&capture(&[frame([0xff; 6], None, 0x88b5)]))
    ))?;
    assert!(output.contains("'ether proto 0x88b5 queue 2' is EtherType filter 0"), "{output}");
    let summary = output.lines().rev().find(|line| line.starts_with('{')).unwrap();
    let report: serde_json::Value = serde_json::from_str(summary).unwrap();
    let packets = report["queues"].as_array().unwrap().iter().map(|row| row["packets"].as_u64().unwrap());
    assert!(packets.sum::<u64>() >= PACKETS, "a filter that matches loses nothing: {output}");
    assert_eq!(output.lines().last(), Some("igb"), "{output}");
    Ok(())
}

/// A capture file with these packets, a millisecond after each other.
pub(crate) fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    let mut put = |words: &[u32], frame: &[u8]| {
        file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        file.extend(frame);
    };
    // No time zone; packets of up to 65535 bytes; Ethernet.
    put(&[0, 0, 0xffff, 1], &[]);
    for (number, frame) in (0..).zip(frames) {
        let length = u32::try_from(frame.len()).unwrap();
        put(&[0, number * 1000, length, length], frame);
    }
    file
}

/// As `printf` of a shell wants it.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "\\{byte:03o}");
        text
    })
}
