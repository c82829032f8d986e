//! Benchmark `xdp-send`: sending over AF_XDP on a veth, beside DPDK doing the same.
//!
//! Each run has a network namespace of its own, which vanishes with the program: nothing of the machine's is touched and
//! nothing is left. Nearly all of the time is the kernel's, so both rates are nearly the same; our own share is shown
//! as user time per packet.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::huge_pages::HugePages;
use super::pairs::{Spread, pairs};
use super::record::Record;
use super::{Options, ours, testpmd};
use crate::project::{Problem, about};
use crate::tools;

/// Huge pages for our own side.
const OUR_PAGES: u64 = 64;

/// The end of the cable that packets are sent on.
pub(super) const INTERFACE: &str = "bywash0";

/// The other end.
pub(super) const PEER: &str = "bywash1";

/// The kernel at the other end gets packets for somebody else's address and drops them.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let _pages = HugePages::with_free(testpmd::HUGE_PAGES + OUR_PAGES)?;
    let ip = tools::find("ip").ok_or_else(|| Problem("ip is missing: add --install".into()))?;
    let namespace = namespace(&ip);
    let record = RefCell::new(record);
    let mut user_ns = Vec::new();

    let ours = || {
        let mut command = Command::new("unshare");
        command.args(&namespace).arg(&binary).args([
            "generate",
            &format!("xdp:{INTERFACE}"),
            "--size",
            "64",
            // With the sequence and the time, three fields that vary, and their checksums.
            "--sources",
            "256",
            "--json",
        ]);
        command.args(["--duration", &options.seconds.to_string()]).args(&options.arguments);
        let limit = Duration::from_secs(u64::from(options.seconds) + 30);
        let before = user_seconds()?;
        let summary = ours::summary(&mut record.borrow_mut(), &mut command, limit)?;
        let packets = ours::number(&summary, "/tx_packets")?;
        user_ns.push((user_seconds()? - before) / packets * 1e9);
        Ok(packets / ours::number(&summary, "/duration_s")? / 1e6)
    };
    let theirs = || {
        let vdev = format!("--vdev=net_af_xdp0,iface={INTERFACE}");
        let mut runner = vec!["unshare".to_owned()];
        runner.extend(namespace.iter().cloned());
        let application = ["--forward-mode=txonly", "--txpkts=64"];
        let rates = testpmd::run(&mut record.borrow_mut(), &runner, &[&vdev], &application, options.seconds)?;
        Ok(rates.iter().map(|rate| rate.tx).sum::<f64>() / 1e6)
    };
    let measured = pairs(options.pairs, ours, theirs)?;
    let tables = measured.tables(["bywash", "testpmd"], "Mpps");
    let Spread { median, min, max } = Spread::of(&user_ns);
    let user = format!("User time of bywash per packet: median {median:.0} ns, {min:.0} to {max:.0}");
    Ok(format!("{tables}\n{user} (counted by the kernel in hundredths of a second, the start included).\n"))
}

/// What follows `unshare` to run a program in a namespace with a cable. Both ends lie in it.
pub(super) fn namespace(ip: &Path) -> Vec<String> {
    let ip = ip.display();
    let script = format!(
        "set -e; mount -t sysfs sysfs /sys; mount -t bpf bpf /sys/fs/bpf; \
         ! test -e /proc/sys/net/ipv6 || echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; \
         '{ip}' link add {INTERFACE} type veth peer name {PEER}; \
         '{ip}' link set {INTERFACE} up; '{ip}' link set {PEER} up; exec \"$@\""
    );
    ["--net", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
}

/// User time of all programs that we have waited for.
fn user_seconds() -> Result<f64, Problem> {
    let path = "/proc/self/stat";
    let stat = fs::read_to_string(path).map_err(about(path))?;
    user_seconds_in(&stat).ok_or_else(|| Problem(format!("{path} has not its usual form: {stat}")))
}

/// User and system time of all programs that we have waited for.
pub(super) fn cpu_seconds() -> Result<f64, Problem> {
    let path = "/proc/self/stat";
    let stat = fs::read_to_string(path).map_err(about(path))?;
    let wrong = || Problem(format!("{path} has not its usual form: {stat}"));
    Ok(ticks(&stat, 16).ok_or_else(wrong)? + ticks(&stat, 17).ok_or_else(wrong)?)
}

/// Field 16 of proc(5)'s stat.
fn user_seconds_in(stat: &str) -> Option<f64> {
    ticks(stat, 16)
}

/// A field of proc(5)'s stat that counts the 1/100 s that the kernel shows to programs, in seconds. Field 2 is a name in
/// brackets, which may hold blanks and brackets itself.
fn ticks(stat: &str, field: usize) -> Option<f64> {
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(field - 3)?.parse().ok()?;
    Some(ticks / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_time_of_children_is_field_16() {
        let stat = "77 (a) b) S 1 77 77 0 -1 4194304 100 200 0 0 11 12 250 14 20 0 1 0 99 0 0";
        assert_eq!(user_seconds_in(stat), Some(2.5));
        assert_eq!(user_seconds_in("77 (sh"), None);
    }

    #[test]
    fn our_own_file_can_be_read() {
        assert!(user_seconds().unwrap() >= 0.0);
    }
}
