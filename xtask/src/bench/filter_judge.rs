//! Benchmark `filter-judge`: what the flood filter's user space costs for a packet that no rule drops. What is run is a bench
//! target of the apps crate.

use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

use super::record::Record;
use super::{Options, callgrind, ours};
use crate::project::Problem;
use crate::tools;

/// Nanoseconds for all that is done to a packet of the mix, of which the last row tells.
const AIM: f64 = 60.0;

/// Packets in the two runs whose instructions are counted: their difference leaves out the start and the end.
const COUNTED: [u64; 2] = [100_000, 400_000];

pub(super) fn run(record: &mut Record, _: &Options) -> Result<String, Problem> {
    let program = ours::build_bench(record, "bywash-apps", "filter_judge")?;
    let mut command = Command::new(&program);
    command.envs(tools::environment());
    let output = record.run(&mut command, Duration::from_secs(600))?;
    let mut text = "| packets | ns | quartiles | with one rule | quartiles | difference | quartiles |\n\
                    |---|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    let mut last = f64::NAN;
    for line in output.lines() {
        let (row, total) = row(line)?;
        text.push_str(&row);
        last = total;
    }
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
    let (many, one) = (each("many")?, each("one")?);
    text.push_str(&format!(
        "\nInstructions for each of these three in turn: {many:.0}, and {one:.0} with one rule ({:.0} more).\n\n\
         At most {AIM} ns for a packet of the last row: {}. That is held against all that is done to it (the first column), \
         not against what the many rules add.\n\n\
         The rules: 60 of prefixes, ports and both, 20 limits by source, 10 with a name and 10 with payload. The packets, in \
         memory, come from 10000 sources, meet one limit each and all that names or payload ask for but these, and nothing \
         drops them. The one rule gives everything back. Median and quartiles of runs with the many and with the one in turn; \
         a packet's time begins with the copy that the port makes of it and ends when the port has it back, and has its share of \
         the filter's start and end, which is small in a run of five million.\n",
        many - one,
        if last <= AIM { "reached" } else { "not reached" }
    ));
    Ok(text)
}

/// A line of results as a row, and its first median.
fn row(line: &str) -> Result<(String, f64), Problem> {
    let wrong = || Problem(format!("not a line of results: {line}"));
    let [name, figures @ ..] = &line.split('\t').collect::<Vec<_>>()[..] else { return Err(wrong()) };
    let (columns, []) = figures.as_chunks::<3>() else { return Err(wrong()) };
    let [[total, ..], _, _] = columns else { return Err(wrong()) };
    let number = total.parse().map_err(|_| wrong())?;
    let cells = columns.iter().map(|[median, low, high]| format!(" {median} | {low} to {high} |"));
    Ok((format!("| {name} |{}\n", cells.collect::<String>()), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_results_is_a_row() {
        let line = "TCP: neither\t71.5\t70.0\t73.0\t40.0\t39.0\t41.0\t31.5\t30.0\t33.0";
        let (text, total) = row(line).unwrap_or_else(|Problem(why)| panic!("{why}"));
        let cells = "| TCP: neither | 71.5 | 70.0 to 73.0 | 40.0 | 39.0 to 41.0 | 31.5 | 30.0 to 33.0 |\n";
        assert_eq!((text.as_str(), total), (cells, 71.5));
        assert!(row("TCP: neither\t31.5\t30.0\t33.0").is_err() && row("a\tb\tc\td").is_err());
    }
}
