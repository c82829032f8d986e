//! What a figure depends on: the machine, as far as it can be read without asking.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::pace;
use crate::process;
use crate::project;

/// The machine, the kernel and the commit, one fact a line.
pub(super) fn describe() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    let flags = field("flags");
    let has = |flag: &str| if flags.split(' ').any(|word| word == flag) { "yes" } else { "no" };
    let (step, line) = pace::measure();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let facts = [
        ("date", command("date", &["--iso-8601=seconds"])),
        ("commit", commit()),
        ("compiler", command("rustc", &["--version"])),
        ("cpu", field("model name")),
        ("cores", cores.to_string()),
        ("virtual machine", has("hypervisor").into()),
        ("clock of the cpu", format!("{} MHz as cpuinfo says", field("cpu MHz"))),
        (
            "pace",
            format!(
                "a shift, an exclusive or and a multiplication, one after the other, take {step:.2} ns; a cache line from another core {line:.1} ns, of many at once"
            ),
        ),
        ("governor", file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        ("time stamp counter", format!("constant {}, nonstop {}", has("constant_tsc"), has("nonstop_tsc"))),
        ("clock source", file("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        ("kernel", file("/proc/sys/kernel/osrelease")),
        ("memory", first_line("/proc/meminfo")),
        ("huge pages", format!("{} of 2 MiB before the run", file(super::huge_pages::POOL))),
        ("load", format!("{} before the run", file("/proc/loadavg"))),
    ];
    facts.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}

/// The host's name.
pub(super) fn host() -> String {
    file("/proc/sys/kernel/hostname")
}

/// Today, as YYYY-MM-DD.
pub(super) fn today() -> String {
    command("date", &["+%F"])
}

fn commit() -> String {
    let id = command("git", &["rev-parse", "HEAD"]);
    let changed = !command("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    if changed { format!("{id} and changes that are not committed") } else { id }
}

fn command(name: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(name);
    command.args(arguments).current_dir(project::root());
    match process::run(&mut command, Duration::from_secs(20), |_| {}) {
        Ok(done) if done.success() => done.output.trim().to_owned(),
        _ => "unknown".into(),
    }
}

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(path)).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

fn first_line(path: &str) -> String {
    file(path).lines().next().unwrap_or("unknown").to_owned()
}
