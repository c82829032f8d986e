//! Benchmark `demo`: the rates that the demo shows, and what a worker without work costs.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use super::pairs::Spread;
use super::record::Record;
use super::{Options, ours};
use crate::project::Problem;

/// How long the idle receiver is watched.
const IDLE_SECONDS: u32 = 10;

/// The user without rights, for whom the demo runs in memory.
const NOBODY: u32 = 65534;

/// The rate of each path, flat out, as often as pairs were asked for.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    // Where nobody may run it, too.
    let open = std::env::temp_dir().join(format!("bywash-bench-{}", std::process::id()));
    fs::copy(&binary, &open).map_err(|error| Problem(format!("{}: {error}", open.display())))?;
    let mut rates = [const { Vec::new() }; 4];
    let (mut failures, mut again) = (0, 0);
    for _ in 0..options.pairs {
        for (user, rates) in [0, NOBODY].into_iter().zip(rates.chunks_exact_mut(2)) {
            // A loss is no error here: how often it happened is part of the result.
            let mut command = Command::new("sh");
            command
                .args(["-c", "\"$0\" demo || echo failed"])
                .arg(&open)
                .current_dir("/")
                .uid(user)
                .gid(user);
            let output = record.run(&mut command, Duration::from_secs(60))?;
            failures += usize::from(output.contains("failed"));
            again += output.matches("measured again").count();
            for (rate, rates) in flat_out(&output).into_iter().zip(rates) {
                rates.push(rate);
            }
        }
    }
    let idle = idle(record, &open)?;
    // What is left in the temporary directory does no harm.
    let _ = fs::remove_file(&open);
    let names = ["AF_XDP", "AF_XDP, through a forwarder", "in memory", "in memory, through a forwarder"];
    let mut text = String::from("| packets/s flat out | median | min | max |\n|---|---:|---:|---:|\n");
    for (name, rates) in names.iter().zip(&rates) {
        let Spread { median, min, max } = Spread::of(rates);
        text.push_str(&format!("| {name} | {median:.0} | {min:.0} | {max:.0} |\n"));
    }
    let runs = 2 * options.pairs;
    Ok(format!(
        "{text}\n{failures} of {runs} runs failed; {again} times a path was measured again, since it had become slower.\n\n\
         A receiver without packets took {idle:.2} % of a core over {IDLE_SECONDS} s (`--idle adaptive`).\n"
    ))
}

/// The rates of the lines `flat out 5.24 Mpps received`, in packets per second.
fn flat_out(output: &str) -> Vec<f64> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix("flat out"));
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let number: f64 = words.next()?.parse().ok()?;
            let unit = match words.next()? {
                "Mpps" => 1e6,
                "kpps" => 1e3,
                "pps" => 1.0,
                _ => return None,
            };
            Some(number * unit)
        })
        .collect()
}

/// Per cent of a core that a receiver takes while nothing comes.
fn idle(record: &mut Record, binary: &std::path::Path) -> Result<f64, Problem> {
    let before = super::xdp_send::cpu_seconds()?;
    let mut command = Command::new(binary);
    command.args(["receive", "loop:idle", "--memory", "4M", "--duration", &IDLE_SECONDS.to_string()]);
    record.run(&mut command, Duration::from_secs(u64::from(IDLE_SECONDS) + 20))?;
    Ok((super::xdp_send::cpu_seconds()? - before) / f64::from(IDLE_SECONDS) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_their_units() {
        let output = "generator -> receiver\n  flat out      5.24 Mpps received, 64-byte packets\n  at 85 %  1 Mpps\n\
                      x\n  flat out      950.5 kpps received\n";
        assert_eq!(flat_out(output), [5.24e6, 950.5e3]);
    }
}
