//! Benchmark `generate-cost`: how many instructions a generated packet costs, by what varies in it.
//!
//! Sent to a port that costs next to nothing; the port's own share is in all figures.

use std::process::Command;
use std::time::Duration;

use super::record::Record;
use super::{Options, callgrind, ours};
use crate::project::Problem;

/// Packets of the two runs whose instructions are counted. Their difference leaves out the start and the end.
const COUNTED: [u64; 2] = [200_000, 1_200_000];

/// What varies, and the options that make it so.
const CASES: &[(&str, &[&str])] = &[
    ("nothing", &["--payload", "zeros"]),
    (
        "three counters: addresses and a port",
        &[
            "--payload",
            "zeros",
            "--src-ip",
            "10.0.0.0/8",
            "--dst-ip",
            "10.0.0.1-10.0.0.9",
            "--src-port",
            "1024+",
        ],
    ),
    (
        "three random fields: addresses and a port",
        &[
            "--payload",
            "zeros",
            "--src-ip",
            "10.0.0.0/8 random",
            "--dst-ip",
            "10.0.0.0/16 random",
            "--src-port",
            "any random",
        ],
    ),
    ("the probe", &[]),
    ("the probe, a source address and a port", &["--sources", "1000"]),
    ("the probe and a mix of three sizes", &["--size", "imix"]),
    (
        "three counters of 1000 flows, IPv6",
        &[
            "--payload",
            "zeros",
            "--flows",
            "1000",
            "--src-ip",
            "fd00::/64",
            "--dst-ip",
            "fd01::1-fd01::9",
            "--src-port",
            "1024+",
        ],
    ),
];

/// One row per case.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let mut table = "| what varies | instructions per packet |\n|---|---:|\n".to_owned();
    for (what, arguments) in CASES {
        let mut count = |packets: u64| {
            let mut command = Command::new(&binary);
            command.args(["generate", "null:", "--huge-pages", "off", "--idle", "spin", "--json"]);
            command.args(["--count", &packets.to_string()]).args(*arguments).args(&options.arguments);
            let (instructions, _) =
                callgrind::instructions(record, &command, None, Duration::from_secs(120))?;
            Ok::<_, Problem>(instructions as f64)
        };
        let [few, many] = COUNTED;
        let each = (count(many)? - count(few)?) / (many - few) as f64;
        table.push_str(&format!("| {what} | {each:.1} |\n"));
    }
    Ok(table)
}
