//! Benchmark `match-cost`: what matching a packet costs, by kind and number of expressions joined by `or`.
//!
//! The matcher and libpcap's interpreter are compared in instructions. What a program in the kernel costs can only be
//! timed: alternating with an empty program, and without that one's time.

use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

use super::record::Record;
use super::{Options, callgrind, ours};
use crate::project::Problem;
use crate::tools;

/// Packets in the two runs whose instructions are counted: their difference leaves out the start and the end.
const COUNTED: [u64; 2] = [1600, 17_600];

/// How many expressions are joined.
const NUMBERS: [&str; 3] = ["1", "10", "100"];

/// A row for each kind and number.
pub(super) fn run(record: &mut Record, _: &Options) -> Result<String, Problem> {
    let program = ours::build_bench(record, "bywash-filter", "match_cost")?;
    let limit = Duration::from_secs(600);
    let kinds = record.run(Command::new(&program).arg("cases"), limit)?;
    let in_kernel = record.run(Command::new(&program).arg("kernel"), limit)?;
    let record = RefCell::new(record);
    let each = |who: &str, kind: &str, number: &str| {
        let count = |packets: u64| {
            let mut command = Command::new(&program);
            command.args([who, kind, number, &packets.to_string()]);
            command.envs(tools::environment());
            let (instructions, _) = callgrind::instructions(&mut record.borrow_mut(), &command, None, limit)?;
            Ok::<_, Problem>(instructions as f64)
        };
        let [few, many] = COUNTED;
        Ok::<_, Problem>((count(many)? - count(few)?) / (many - few) as f64)
    };
    let mut table = "| expressions, joined by `or` | number | matcher, instructions | libpcap, instructions \
                     | eBPF, ns | eBPF, length |\n|---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for (kind, example) in kinds.lines().filter_map(|line| line.split_once('\t')) {
        for number in NUMBERS {
            let nothing = each("nothing", kind, number)?;
            let [ours, theirs] = [each("ours", kind, number)?, each("libpcap", kind, number)?];
            let kernel = timed(&in_kernel, kind, number)
                .ok_or_else(|| Problem(format!("no time for {number} of {kind} in:\n{in_kernel}")))?;
            table.push_str(&format!(
                "| `{example}` ... | {number} | {:.0} | {:.0} | {} ({} to {}) | {} |\n",
                ours - nothing,
                theirs - nothing,
                kernel.median,
                kernel.low,
                kernel.high,
                kernel.length
            ));
        }
    }
    table.push_str(
        "\nFor each packet, the mean over sixteen, of which at most two match. Without what going through them costs. \
         libpcap's program is optimized. eBPF: the time beyond an empty program's, median and quartiles of alternating \
         runs by BPF_PROG_TEST_RUN; its length in instructions.\n",
    );
    Ok(table)
}

/// What the kernel took, as the program printed it.
struct Timed<'a> {
    median: &'a str,
    low: &'a str,
    high: &'a str,
    length: &'a str,
}

fn timed<'a>(output: &'a str, kind: &str, number: &str) -> Option<Timed<'a>> {
    output.lines().find_map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
        [of, joined, median, low, high, length] if (of, joined) == (kind, number) => {
            Some(Timed { median, low, high, length })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_line_is_read() {
        let output = "host\t1\t1.5\t1.0\t2.0\t40\nhost\t10\t3.5\t3.0\t4.0\t50\n";
        assert_eq!(timed(output, "host", "10").map(|timed| timed.median), Some("3.5"));
        assert!(timed(output, "port", "1").is_none());
    }
}
