//! Benchmark `receive-cost`: instructions that judging a packet costs the receiver. What is run is a bench target of the
//! apps crate.

use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

use super::record::Record;
use super::{Options, callgrind, ours};
use crate::project::Problem;

/// Packets in the two runs whose instructions are counted: their difference leaves out the start and the end.
const COUNTED: [u64; 2] = [256_000, 1_280_000];

/// Judging, and counting only.
pub(super) fn run(record: &mut Record, _: &Options) -> Result<String, Problem> {
    let program = ours::build_bench(record, "bywash-apps", "receive_cost")?;
    let record = RefCell::new(record);
    let each = |mode: &str| {
        let count = |packets: u64| {
            let mut command = Command::new(&program);
            command.args([mode, &packets.to_string()]);
            let limit = Duration::from_secs(600);
            let (instructions, _) = callgrind::instructions(&mut record.borrow_mut(), &command, None, limit)?;
            Ok::<_, Problem>(instructions as f64)
        };
        let [few, many] = COUNTED;
        Ok::<_, Problem>((count(many)? - count(few)?) / (many - few) as f64)
    };
    let (judged, flows, dropped) = (each("judge")?, each("flows")?, each("drop")?);
    Ok(format!(
        "| instructions per packet | |\n|---|---:|\n| make it and drop it | {dropped:.1} |\n\
         | make it and judge it | {judged:.1} |\n| judging alone | {:.1} |\n\
         | its flow besides (`--flows`) | {:.1} |\n\n\
         Packets of 64 bytes from one stream in order; judged are: headers and their checksum, the probe's check, loss, \
         order, copies, latency, jitter.\n",
        judged - dropped,
        flows - judged
    ))
}
