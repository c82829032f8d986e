//! Benchmark `capture`: a rate that a disk can take, and what of it gets into the file, beside tcpdump.
//!
//! Each run has a network namespace of its own, which vanishes with the programs. Both write the same format, in which
//! each packet takes the same room: what is in a file is told by its length.

use std::cell::RefCell;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::pairs::{Spread, pairs};
use super::record::Record;
use super::xdp_send::{INTERFACE, PEER, namespace};
use super::{Options, ours};
use crate::project::{Problem, about};
use crate::tools;

/// Packets per second: the rate at which nothing is to be lost.
const RATE: &str = "500k";

/// Bytes of a pcap file's header.
const HEADER: u64 = 24;

/// Bytes of a packet in it: 64 with FCS.
const RECORD: u64 = 16 + 60;

/// Runs the capture `$3...`, then the generator, then ends the capture, which must end with `$2` at most. `$0` is our binary, `$1`
/// how long in seconds.
const SCRIPT: &str = "seconds=$1; most=$2; shift 2; \"$@\" & capture=$!; sleep 1; \
                      \"$0\" generate xdp:INTERFACE --size 64 --rate RATE --duration ${seconds}s --json; \
                      sleep 0.5; kill -INT $capture; wait $capture; [ $? -le $most ]";

/// The share of what was sent that is in the file, in per cent.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let find =
        |name: &str| tools::find(name).ok_or_else(|| Problem(format!("{name} is missing: add --install")));
    let (ip, tcpdump) = (find("ip")?, find("tcpdump")?);
    let file = std::env::temp_dir().join(format!("bywash-bench-{}.pcap", std::process::id()));
    let record = RefCell::new(record);
    let mut sent = Vec::new();

    let mut share = |most: u8, capture: &mut dyn FnMut(&mut Command)| {
        // What an earlier run has left must not be taken for this one's.
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(about(file.display())(error)),
            _ => {}
        }
        let script = SCRIPT.replace("INTERFACE", INTERFACE).replace("RATE", RATE);
        let mut command = Command::new("unshare");
        command
            .args(namespace(&ip))
            .args(["sh", "-c", &script])
            .arg(&binary)
            .args([options.seconds.to_string(), most.to_string()]);
        capture(&mut command);
        let limit = Duration::from_secs(u64::from(options.seconds) + 60);
        let output = record.borrow_mut().run(&mut command, limit)?;
        let packets = generated(&output)?;
        sent.push(packets / f64::from(options.seconds));
        Ok(kept(&file)? / packets * 100.0)
    };
    let share = RefCell::new(&mut share);
    let ours = || {
        // 1: packets were lost, which is what is measured.
        (share.borrow_mut())(1, &mut |command| {
            command.arg(&binary).args(["capture", PEER, "-q", "-w"]).arg(&file).args(&options.arguments);
        })
    };
    let theirs = || {
        (share.borrow_mut())(0, &mut |command| {
            // The same room in the kernel as ours, in KiB. An unpacked tcpdump has no user of its own to become.
            command.arg(&tcpdump).args(["-Z", "root", "-n", "-B", "65536", "-i", PEER, "-w"]).arg(&file);
        })
    };
    let measured = pairs(options.pairs, ours, theirs);
    // What is left in the temporary directory does no harm.
    let _ = fs::remove_file(&file);
    let tables = measured?.tables(["bywash", "tcpdump"], "% of what was sent");
    let Spread { median, min, max } = Spread::of(&sent);
    Ok(format!(
        "{tables}\nPackets/s sent, where {RATE} were asked for: median {median:.0}, {min:.0} to {max:.0}.\n"
    ))
}

/// Packets that the generator says it has sent.
fn generated(output: &str) -> Result<f64, Problem> {
    ours::number(&ours::summary_in(output)?, "/tx_packets")
}

/// Packets in a file.
fn kept(file: &Path) -> Result<f64, Problem> {
    let len = fs::metadata(file).map_err(about(file.display()))?.len();
    packets(len)
        .ok_or_else(|| Problem(format!("{} has {len} bytes: it holds other packets too", file.display())))
}

#[expect(clippy::cast_precision_loss, reason = "some millions")]
fn packets(len: u64) -> Option<f64> {
    let bytes = len.checked_sub(HEADER)?;
    bytes.is_multiple_of(RECORD).then_some((bytes / RECORD) as f64)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_capture_that_dies_fails_the_run() {
        let run = |most: &str, status: &str| {
            // In the generator's place one that sends nothing.
            let line = ["-c", SCRIPT, "true", "0", most, "sh", "-c", status];
            Command::new("sh").args(line).stderr(Stdio::null()).status().unwrap().success()
        };
        assert!(run("1", "exit 1"), "it says that it has lost some");
        assert!(!run("0", "exit 1") && !run("1", "exit 3"));
    }

    #[test]
    fn a_file_s_length_tells_its_packets() {
        assert_eq!(packets(24 + 76 * 5), Some(5.0));
        assert_eq!((packets(24 + 77), packets(3)), (None, None));
    }
}
