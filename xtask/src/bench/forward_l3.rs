//! Benchmark `forward-l3`: IPv4 and IPv6 passed on between two `null:` ports with many routes on one core, by size of packet, and
//! look-ups beside DPDK's of the same routes and addresses. The measuring itself is a bench target of the stack crate.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::huge_pages::HugePages;
use super::pairs::{Pairs, pairs};
use super::record::Record;
use super::{Options, callgrind, ours};
use crate::project::{Problem, about};
use crate::tools;

/// Routes of IPv4, and of IPv6: DPDK's trie sets nodes aside for the worst case, and takes no million of its prefixes.
const ROUTES: [&str; 2] = ["1000000", "250000"];
/// Look-ups of one measurement; DPDK's program looks each address up once.
const LOOK_UPS: &str = "10485760";
/// Packets of the two runs whose instructions are counted, and routes in them: their difference leaves out the start.
const COUNTED: [&str; 2] = ["64000", "128000"];
const COUNTED_ROUTES: &str = "10000";
/// MiB that DPDK is given, and huge pages for that and a little more: it wants its largest table, of 1 GiB, in one piece beside
/// a million routes and their nodes.
const DPDK_MIB: &str = "3072";
const DPDK_PAGES: u64 = 1600;
/// What has glibc (from 2.35 on, see its NEWS) ask the kernel for huge pages for what it gives, as docs/stack.md says: DPDK's tables
/// are in such pages. Heaps of threads beside the first are not.
const IN_HUGE_PAGES: &str = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1";
/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(300);

/// A table of sizes, instructions, and look-ups of both families.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let program = ours::build_bench(record, "bywash-stack", "forward")?;
    let mut command = Command::new(&program);
    let sizes = record.run(command.args(&options.arguments), LIMIT)?;
    let mut command = Command::new("env");
    let huge = record.run(command.arg(IN_HUGE_PAGES).arg(&program).args(&options.arguments), LIMIT)?;
    let four = instructions(record, &program, "4")?;
    let six = instructions(record, &program, "6")?;
    let text = format!(
        "Packets go from the queue of one port, through the stack, to the queue of the other. What it costs to write a new \
         destination into each, as senders would, is left out.\n\n{}\n\
         Instructions that forwarding a packet takes, by callgrind: {four:.1} for IPv4, {six:.1} for IPv6\n\n\
         ## The same with routes in huge pages: {IN_HUGE_PAGES}\n\n{}\n",
        sizes.trim_end(),
        huge.trim_end()
    );
    let folder = std::env::temp_dir().join(format!("bywash-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(about(folder.display()))?;
    let pages = HugePages::with_free(DPDK_PAGES);
    let compared = pages.and_then(|_pages| compare(record, options, &program, &folder));
    fs::remove_dir_all(&folder).map_err(about(folder.display()))?;
    Ok(text + &compared?)
}

/// Look-ups of both families, with what is written for DPDK in a folder.
fn compare(record: &mut Record, options: &Options, program: &Path, folder: &Path) -> Result<String, Problem> {
    let mut text = String::new();
    for ((family, name), routes) in [("4", "IPv4"), ("6", "IPv6")].into_iter().zip(ROUTES) {
        let measured = look_ups(record, options, program, folder, [family, routes])?;
        let ratio = measured.ratio().median;
        text += &format!(
            "\n## {name}: {routes} routes, a million random addresses, 64 at once\n\nBywash takes {ratio:.2} times as long \
             as rte_fib (DIR-24-8 for IPv4, its trie for IPv6; the fastest function that it finds for this CPU).\n\n{}",
            measured.tables(["bywash", "dpdk-test-fib"], "ns a look-up")
        );
    }
    Ok(text)
}

/// What forwarding one packet of 64 bytes takes beyond moving it.
fn instructions(record: &mut Record, program: &Path, family: &str) -> Result<f64, Problem> {
    let mut count = |what: &str, packets: &str| {
        let mut command = Command::new(program);
        command.args([what, family, packets, COUNTED_ROUTES, "64"]);
        callgrind::instructions(record, &command, None, LIMIT).map(|(count, _)| count as f64)
    };
    let [few, many] = COUNTED;
    let mut between = |what: &str| Ok::<_, Problem>(count(what, many)? - count(what, few)?);
    let packets = many.parse::<f64>().unwrap_or_default() - few.parse::<f64>().unwrap_or_default();
    Ok((between("forward")? - between("aim")?) / packets)
}

fn look_ups(
    record: &mut Record,
    options: &Options,
    program: &Path,
    folder: &Path,
    [family, routes]: [&str; 2],
) -> Result<Pairs, Problem> {
    let mut write = Command::new(program);
    record.run(write.args(["write", family, routes]).arg(folder), LIMIT)?;
    let theirs = tools::find("dpdk-test-fib")
        .ok_or_else(|| Problem("dpdk-test-fib is missing: add --install".into()))?;
    let record = RefCell::new(record);
    let ours = || {
        let mut command = Command::new(program);
        let output = record.borrow_mut().run(command.args(["look-up", family, LOOK_UPS, routes]), LIMIT)?;
        number(&output, "ns: ")
    };
    let theirs = || {
        let mut command = Command::new(&theirs);
        // --in-memory: no files in hugetlbfs, nothing to remove afterwards. Its clock's rate is in what it says of itself.
        command.args(["-l", "0", "-m", DPDK_MIB, "--no-pci", "--no-telemetry", "--in-memory"]);
        command.args(["--log-level=lib.eal:debug", "--force-max-simd-bitwidth=512", "--"]);
        command.arg("-f").arg(folder.join("routes")).arg("-t").arg(folder.join("addresses"));
        // Room for the nodes below the first 24 bits, of which an IPv6 prefix needs up to three; next hops of 4 bytes, as ours.
        let nodes = if family == "6" { "1048576" } else { "262144" };
        command.args(["-g", nodes, "-e", "4"]).args((family == "6").then_some("-6"));
        let output = record.borrow_mut().run(&mut command, LIMIT)?;
        let khz = number(&output, "TSC frequency is ~")?;
        Ok(number(&output, "AVG FIB lookup ")? * 1e6 / khz)
    };
    pairs(options.pairs, ours, theirs)
}

/// The number behind `name`.
fn number(output: &str, name: &str) -> Result<f64, Problem> {
    let found = output.split_once(name).and_then(|(_, rest)| rest.split_whitespace().next());
    let number = found.and_then(|word| word.parse().ok());
    number.ok_or_else(|| Problem(format!("there is no '{name}' in the output:\n{output}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_the_programs_say() {
        let output = "EAL: TSC frequency is ~2000000 KHz\nRandom lookup ips: 0\nAVG FIB lookup 34.1\n";
        assert_eq!(number(output, "TSC frequency is ~").unwrap(), 2_000_000.0);
        assert_eq!(number(output, "AVG FIB lookup ").unwrap(), 34.1);
        assert!(number(output, "ns: ").is_err());
    }
}
