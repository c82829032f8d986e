//! Benchmark `filter-cost`: what a packet costs that the flood filter drops, beyond an empty program, beside xdp-filter.

use std::process::Command;
use std::time::Duration;

use super::record::Record;
use super::{Options, ours};
use crate::project::Problem;
use crate::tools;

/// What is aimed at, in nanoseconds, in the order in which the program prints; xdp-filter and the rows behind the aims
/// have none.
const AIMS: [&str; 6] = ["4", "", "15", "", "40", ""];

/// A row for each program and set of rules.
pub(super) fn run(record: &mut Record, _: &Options) -> Result<String, Problem> {
    let program = ours::build_bench(record, "bywash-filter", "filter_cost")?;
    let mut command = Command::new(&program);
    command.envs(tools::environment());
    let output = record.run(&mut command, Duration::from_secs(600))?;
    let mut table =
        "| rules | ns | quartiles | aim | program, instructions |\n|---|---:|---:|---:|---:|\n".to_owned();
    for (line, aim) in output.lines().zip(AIMS) {
        let [name, median, low, high, length] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(Problem(format!("not a line of results: {line}")));
        };
        table.push_str(&format!("| {name} | {median} | {low} to {high} | {aim} | {length} |\n"));
    }
    table.push_str(
        "\nThe mean over sixteen packets that are all dropped, spread over the rules; the time beyond an empty program's, \
         median and quartiles of runs by BPF_PROG_TEST_RUN, all programs in turn. The heartbeat, the list of what is never \
         dropped and the counter are included. A packet is run many times in a row, so its entries are in the cache. \
         xdp-filter has no prefixes: its hundred rules are ports and addresses. `established`: one rule behind another that \
         passes established flows, of which the packets are none.\n",
    );
    Ok(table)
}
