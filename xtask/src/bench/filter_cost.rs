//! Benchmark `filter-cost`: what a packet costs that the flood filter drops, beyond an empty program, beside xdp-filter.

use std::process::Command;
use std::time::Duration;

use super::record::Record;
use super::{Options, ours};
use crate::project::Problem;
use crate::tools;

/// What is aimed at, in nanoseconds, by the names that the program prints; the other rows have no aim.
const AIMS: [(&str, &str); 3] = [("1 rule", "4"), ("100 rules", "15"), ("10000 prefixes", "40")];

/// A row for each program and set of rules.
pub(super) fn run(record: &mut Record, _: &Options) -> Result<String, Problem> {
    let program = ours::build_bench(record, "bywash-filter", "filter_cost")?;
    let mut command = Command::new(&program);
    command.envs(tools::environment());
    let output = record.run(&mut command, Duration::from_secs(600))?;
    let mut table =
        "| rules | ns | quartiles | aim | program, instructions |\n|---|---:|---:|---:|---:|\n".to_owned();
    for line in output.lines() {
        let [name, median, low, high, length] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(Problem(format!("not a line of results: {line}")));
        };
        let aim = AIMS.iter().find(|(of, _)| *of == name).map_or("", |(_, aim)| aim);
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
