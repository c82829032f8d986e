//! Counting instructions with callgrind: the one figure of speed that does not depend on who else uses the machine.

use std::process::Command;
use std::time::Duration;

use super::record::Record;
use crate::project::Problem;
use crate::tools;

/// Runs a program under callgrind; returns the instructions it executed, and its output.
///
/// With `symbol`, only those from entering the function of that name until leaving it count (`*` stands for any text).
///
/// # Errors
/// When the program or valgrind fails, or nothing was counted.
pub(super) fn instructions(
    record: &mut Record,
    program: &Command,
    symbol: Option<&str>,
    limit: Duration,
) -> Result<(u64, String), Problem> {
    let valgrind =
        tools::find("valgrind").ok_or_else(|| Problem("valgrind is missing: add --install".into()))?;
    let mut command = Command::new(valgrind);
    // The file says which function and line; the total, which is all we want, is in the output.
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.args(symbol.map(|name| format!("--toggle-collect={name}")));
    command.arg(program.get_program()).args(program.get_args());
    command.envs(program.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
    let output = record.run(&mut command, limit)?;
    let count = collected(&output);
    let count =
        count.ok_or_else(|| Problem("callgrind counted nothing: is the function's name right?".into()))?;
    Ok((count, output))
}

/// `==123== Collected : 456`: the count, when it is above 0.
fn collected(output: &str) -> Option<u64> {
    let line =
        output.lines().filter(|line| line.starts_with("==")).find_map(|line| line.split_once("Collected :"));
    line?.1.trim().replace(',', "").parse().ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        let output = "==4242== Callgrind, a call-graph generating cache profiler\nCollected : 1\n==4242== \n\
                      ==4242== Events    : Ir\n==4242== Collected : 70356\n==4242== \n";
        assert_eq!(collected(output), Some(70_356));
        assert_eq!(collected("==1== Collected : 0\n"), None);
        assert_eq!(collected("killed"), None);
    }
}
