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
    let mut table = rows(&output)?;
    table.push_str(
        "\nThe mean over sixteen packets that are all dropped, spread over the rules; the time beyond an empty program's, \
         median and quartiles of runs by BPF_PROG_TEST_RUN, all programs in turn. The heartbeat, the list of what is never \
         dropped and the counter are included. A packet is run many times in a row, so its entries are in the cache. \
         xdp-filter has no prefixes: its hundred rules are ports and addresses. `established`: one rule behind another that \
         passes established flows, of which the packets are none. `sampled`: what is drawn is copied to a ring, which is \
         read between the runs; `no room`: nearly all find it full.\n",
    );
    Ok(table)
}

/// The output as a table. Each aim has its row.
fn rows(output: &str) -> Result<String, Problem> {
    let mut table =
        "| rules | ns | quartiles | aim | program, instructions |\n|---|---:|---:|---:|---:|\n".to_owned();
    let mut names = Vec::new();
    for line in output.lines() {
        let [name, median, low, high, length] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(Problem(format!("not a line of results: {line}")));
        };
        let aim = AIMS.iter().find(|(of, _)| *of == name).map_or("", |(_, aim)| aim);
        table.push_str(&format!("| {name} | {median} | {low} to {high} | {aim} | {length} |\n"));
        names.push(name);
    }
    match AIMS.iter().find(|(name, _)| !names.contains(name)) {
        Some((name, aim)) => Err(Problem(format!("no row '{name}', of which the aim is {aim} ns"))),
        None => Ok(table),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_called_otherwise_does_not_lose_its_aim() {
        let output = "1 rule\t5.0\t4.0\t6.0\t234\n100 rules\t9.0\t8.0\t9.5\t2608\n\
                      xdp-filter, 1 port\t57.0\t44.0\t80.0\t\n10000 prefixes\t7.0\t6.0\t8.0\t422\n";
        let table = rows(output).unwrap_or_else(|Problem(why)| panic!("{why}"));
        assert!(table.contains("| 1 rule | 5.0 | 4.0 to 6.0 | 4 | 234 |\n"), "{table}");
        assert!(table.contains("| xdp-filter, 1 port | 57.0 | 44.0 to 80.0 |  |  |\n"), "{table}");
        let renamed = rows(&output.replace("100 rules", "a hundred rules"));
        assert!(renamed.is_err_and(|Problem(why)| why.contains("'100 rules'")));
    }
}
