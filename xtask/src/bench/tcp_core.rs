//! Benchmark `tcp-core`: two stacks joined in memory on one core, beside smoltcp on the same kind of wire. The measuring
//! itself is a bench target of the stack crate; here its instructions are counted, too.

use std::process::Command;
use std::time::Duration;

use super::record::Record;
use super::{Options, callgrind, ours};
use crate::project::Problem;

/// Rounds of each of the bench target's cases under callgrind, a second or two; the last is smoltcp.
const ROUNDS: [u32; 9] = [200, 200, 12, 12, 200, 400, 150, 400, 200];

/// The function in which everything that counts happens.
const SYMBOL: &str = "*measured*";

/// Times as the bench target prints them, and a table of instructions.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let program = ours::build_bench(record, "bywash-stack", "core")?;
    let mut command = Command::new(&program);
    let times = record.run(command.args(&options.arguments), Duration::from_secs(600))?;
    let mut table = String::from(
        "| case | instructions per packet | per byte, exchange or connection |\n|---|---|---|\n",
    );
    for (case, rounds) in ROUNDS.iter().enumerate() {
        let mut command = Command::new(&program);
        command.args(["--rounds", &case.to_string(), &rounds.to_string()]);
        let limit = Duration::from_secs(600);
        let (instructions, output) = callgrind::instructions(record, &command, Some(SYMBOL), limit)?;
        let (name, amount, packets) = done(&output)
            .ok_or_else(|| Problem(format!("the benchmark did not say what it did:\n{output}")))?;
        let each = |n: f64| instructions as f64 / n;
        table += &format!("| {name} | {:.0} | {:.2} |\n", each(packets), each(amount));
    }
    Ok(format!(
        "One core does both ends' work. Times are only worth comparing with each other.\n\n```text\n{}\n```\n\n\
         Packets are counted once, with both ends' work: sending and receiving.\n\n{table}",
        times.trim_end()
    ))
}

/// `NAME: amount N packets N`
pub(super) fn done(output: &str) -> Option<(&str, f64, f64)> {
    let (name, rest) = output.lines().find_map(|line| line.split_once(": amount "))?;
    let (amount, packets) = rest.split_once(" packets ")?;
    Some((name, amount.parse().ok()?, packets.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_read() {
        let output = "==7== Callgrind\nbulk, copied: amount 1460 packets 2\n==7== Collected : 9\n";
        assert_eq!(done(output), Some(("bulk, copied", 1460.0, 2.0)));
        assert_eq!(done("bulk: 7"), None);
    }
}
