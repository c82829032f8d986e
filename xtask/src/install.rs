//! Fetching what is missing, into the user's cache directory only.
//!
//! Debian's packages are downloaded by apt with the machine's own configuration and unpacked by dpkg: no package is
//! installed, so no service starts, no configuration changes and no right is needed. cargo-deny is built by cargo.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process;
use crate::project::{self, Problem, about};
use crate::tools::{self, PROGRAMS, Program};

/// cargo-deny's version: fixed, so that its opinion changes only when we say so. Builds with rustc 1.88 and later.
const CARGO_DENY: &str = "0.20.2";

/// What apt is told each time: nothing beyond what a package needs, and no other user for the download, who could not
/// write to the cache directory.
const APT: [&str; 4] = ["-o", "APT::Install-Recommends=0", "-o", "APT::Sandbox::User=root"];

/// Fetches the programs that are missing and pass `wanted`. What cannot be had is returned, one line each.
pub(crate) fn programs(wanted: impl Fn(&Program) -> bool) -> Vec<String> {
    let missing = |program: &&Program| wanted(program) && tools::on_path(program.name).is_none();
    let mut apt = Apt::default();
    let mut problems = Vec::new();
    for program in PROGRAMS.iter().filter(missing) {
        if let Err(problem) = apt.program(program) {
            problems.push(format!("{}: {problem}", program.name));
        }
    }
    problems
}

/// Where cargo-deny is, if it is.
pub(crate) fn cargo_deny() -> Option<PathBuf> {
    tools::on_path("cargo-deny").or_else(|| {
        let ours = project::cache().ok()?.join("cargo/bin/cargo-deny");
        ours.is_file().then_some(ours)
    })
}

/// Builds cargo-deny when it is missing.
///
/// # Errors
/// When it cannot be built: no network, for example.
pub(crate) fn build_cargo_deny() -> Result<(), Problem> {
    if cargo_deny().is_some() {
        return Ok(());
    }
    println!("building cargo-deny {CARGO_DENY}, once (a minute or two)");
    let mut command = project::cargo();
    command.args([
        "install",
        "--locked",
        "--quiet",
        "--debug",
        "--version",
        CARGO_DENY,
        "cargo-deny",
        "--root",
    ]);
    command.arg(project::cache()?.join("cargo"));
    // It looks at a few hundred crates once a run: the quickest build is the best.
    command.envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_PROFILE_DEV_STRIP", "true")]);
    // Our own target folder and flags are not meant for it.
    command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    let done = process::run(&mut command, Duration::from_secs(20 * 60), |_| {})?;
    if done.success() {
        Ok(())
    } else {
        Err(Problem(format!("cargo-deny cannot be built: {}", tail(&done.output))))
    }
}

/// What apt has told so far.
#[derive(Default)]
struct Apt {
    /// Its lists have been brought up to date: not a second time.
    updated: bool,
    /// Packages unpacked in this run.
    unpacked: HashSet<String>,
}

impl Apt {
    fn program(&mut self, program: &Program) -> Result<(), Problem> {
        let start = Instant::now();
        let root = project::cache()?.join("debian");
        let (mut count, mut done) = (0, self.unpack(program, &root));
        if done.is_err() && self.update() {
            // The lists were missing, or older than the archive.
            done = self.unpack(program, &root);
        }
        count += done?;
        let places = ["usr/bin", "usr/sbin", "bin", "sbin"];
        let file = places.iter().map(|place| root.join(place).join(program.name)).find(|file| file.is_file());
        let file = file.ok_or_else(|| Problem(format!("not in Debian's {}", program.packages.join(", "))))?;
        let folder = project::cache()?.join("bin");
        let script = folder.join(program.name);
        fs::create_dir_all(&folder).map_err(about(folder.display()))?;
        fs::write(&script, program.script(&root, &file)).map_err(about(script.display()))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(about(script.display()))?;
        if count > 0 {
            println!("{}: {count} packages unpacked in {:.1} s", program.name, start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Unpacks what the program needs and has not got; returns how many packages that were.
    fn unpack(&mut self, program: &Program, root: &Path) -> Result<usize, Problem> {
        let mut simulate = apt_get();
        simulate.args(["--simulate", "install"]).args(program.packages);
        let plan = process::run(&mut simulate, Duration::from_secs(120), |_| {})?;
        if !plan.success() {
            return Err(Problem(format!("apt does not know how to get it: {}", tail(&plan.output))));
        }
        let have = |name: &str, version: &str| {
            root.join(".unpacked").join(format!("{name}_{}", version.replace('/', "_")))
        };
        // The C library is left out: one beside the machine's own dynamic linker would not run.
        let wanted: Vec<_> = planned(&plan.output)
            .into_iter()
            .filter(|(name, _)| name != "libc6" && !self.unpacked.contains(name))
            .filter(|(name, version)| !have(name, version).exists())
            .collect();
        if wanted.is_empty() {
            return Ok(0);
        }
        let downloads = root.join("downloads");
        fs::create_dir_all(&downloads).map_err(about(downloads.display()))?;
        let mut download = apt_get();
        download.arg("download").args(wanted.iter().map(|(name, version)| format!("{name}={version}")));
        let got = process::run(download.current_dir(&downloads), Duration::from_secs(600), |_| {})?;
        if !got.success() {
            return Err(Problem(format!("apt cannot download it: {}", tail(&got.output))));
        }
        for entry in fs::read_dir(&downloads).map_err(about(downloads.display()))?.flatten() {
            let mut extract = Command::new("dpkg");
            extract.arg("-x").arg(entry.path()).arg(root);
            let done = process::run(&mut extract, Duration::from_secs(120), |_| {})?;
            if !done.success() {
                return Err(Problem(format!("dpkg cannot unpack it: {}", tail(&done.output))));
            }
        }
        fs::remove_dir_all(&downloads).map_err(about(downloads.display()))?;
        for (name, version) in &wanted {
            let mark = have(name, version);
            fs::create_dir_all(root.join(".unpacked")).map_err(about(root.display()))?;
            fs::write(&mark, "").map_err(about(mark.display()))?;
            self.unpacked.insert(name.clone());
        }
        Ok(wanted.len())
    }

    /// Brings apt's lists up to date, once and as root only; whether that was done.
    fn update(&mut self) -> bool {
        if self.updated || !project::is_root() {
            return false;
        }
        self.updated = true;
        println!("apt-get update");
        process::run(apt_get().arg("update"), Duration::from_secs(300), |_| {})
            .is_ok_and(|done| done.success())
    }
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.args(APT).envs([("LC_ALL", "C"), ("DEBIAN_FRONTEND", "noninteractive")]);
    command
}

/// Name and version of each package that `apt-get --simulate install` would install.
pub(crate) fn planned(output: &str) -> Vec<(String, String)> {
    let one = |line: &str| {
        // Inst NAME [INSTALLED VERSION] (VERSION ORIGIN [ARCHITECTURE])
        let rest = line.strip_prefix("Inst ")?;
        let (name, rest) = rest.split_once(' ')?;
        let version = rest.split_once('(')?.1.split_whitespace().next()?;
        Some((name.to_owned(), version.to_owned()))
    };
    output.lines().filter_map(one).collect()
}

/// The last line that says something: the reason, most of the time.
pub(crate) fn tail(output: &str) -> String {
    output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_from_apts_simulation() {
        let output = "NOTE: This is only a simulation!\nReading package lists...\n\
                      Inst pci.ids (0.0~2023.04.11-1 Debian:12.15/oldstable [all])\n\
                      Inst libc6 [2.36-9+deb12u9] (2.36-9+deb12u14 Debian:12.15/oldstable [amd64])\n\
                      Inst libpcap0.8 [1.10.2-1] (1.10.3-1 Debian:12.15/oldstable [amd64]) []\n\
                      Conf pci.ids (0.0~2023.04.11-1 Debian:12.15/oldstable [all])\n";
        let plan = planned(output);
        let plan: Vec<_> = plan.iter().map(|(name, version)| (name.as_str(), version.as_str())).collect();
        let expected =
            [("pci.ids", "0.0~2023.04.11-1"), ("libc6", "2.36-9+deb12u14"), ("libpcap0.8", "1.10.3-1")];
        assert_eq!(plan, expected);
    }

    #[test]
    fn the_reason_is_the_last_line_with_text() {
        assert_eq!(
            tail("Reading\nE: Unable to locate package nosuch\n\n"),
            "E: Unable to locate package nosuch"
        );
        assert_eq!(tail(""), "no reason given");
    }
}
