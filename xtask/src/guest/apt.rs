//! An apt of our own: lists, cache and sources in a folder that is removed afterwards, mirror and proxy from the machine's.
//!
//! It knows one Debian release and its backports, whatever the machine runs, and believes nothing to be installed: so
//! whatever a program needs is in its plan, the C library too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::install::{planned, tail};
use crate::process::{self, Finished};
use crate::project::{Problem, about};

/// The release; where its backports have a newer version, that is taken: QEMU's `vfio-user-pci` works from 10.1.1 on.
pub(super) const RELEASE: &str = "trixie";

/// Debian's own keys, which come with apt.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt with a folder of its own.
pub(super) struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Makes the folder, below `parent`, and gets the release's lists.
    ///
    /// # Errors
    /// When there is no apt, no mirror, or no way to it.
    pub(super) fn new(parent: &Path) -> Result<Self, Problem> {
        let apt = Self { folder: parent.join("apt") };
        let mirror = mirror()?;
        for folder in ["lists/partial", "cache/archives/partial", "downloads"] {
            let path = apt.folder.join(folder);
            fs::create_dir_all(&path).map_err(about(path.display()))?;
        }
        let sources = format!(
            "Types: deb\nURIs: {mirror}\nSuites: {RELEASE} {RELEASE}-backports\nComponents: main\nSigned-By: {KEYS}\n"
        );
        for (name, text) in
            [("debian.sources", sources), ("status", String::new()), ("conf", apt.configuration())]
        {
            let path = apt.folder.join(name);
            fs::write(&path, text).map_err(about(path.display()))?;
        }
        apt.run(apt.get().arg("update"), "the lists cannot be had")?;
        Ok(apt)
    }

    /// What differs from the machine's configuration. Hooks would touch the machine's own caches.
    fn configuration(&self) -> String {
        let at = |path: &str| self.folder.join(path).display().to_string();
        format!(
            "Dir::State::lists \"{}\";\nDir::State::status \"{}\";\nDir::Cache \"{}\";\nDir::Etc::sourcelist \"{}\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\nDir::Etc::preferences \"/dev/null\";\n\
             Dir::Etc::preferencesparts \"/dev/null\";\nAPT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; }};\n\
             APT::Install-Recommends \"0\";\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n\
             Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
             #clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n\
             #clear DPkg::Post-Invoke;\n",
            at("lists"),
            at("status"),
            at("cache"),
            at("debian.sources"),
        )
    }

    fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.arg("-c").arg(self.folder.join("conf")).arg("-q");
        command.envs([("LC_ALL", "C"), ("DEBIAN_FRONTEND", "noninteractive")]);
        command
    }

    fn run(&self, command: &mut Command, problem: &str) -> Result<Finished, Problem> {
        let done = process::run(command, Duration::from_secs(900), |_| {})?;
        if done.success() { Ok(done) } else { Err(Problem(format!("{problem}: {}", tail(&done.output)))) }
    }

    /// Unpacks `packages` and those of what they need that are wanted to `root`. How many those were, and how many bytes.
    ///
    /// # Errors
    /// When there is no such package, or one cannot be had or unpacked.
    pub(super) fn unpack(
        self,
        packages: &[&str],
        wanted: impl Fn(&str) -> bool,
        root: &Path,
    ) -> Result<(usize, u64), Problem> {
        let mut simulate = self.get();
        simulate.args(["--simulate", "-t"]).arg(format!("{RELEASE}-backports")).arg("install").args(packages);
        let plan = planned(&self.run(&mut simulate, "apt does not know how to get it")?.output);
        let names =
            plan.iter().filter(|(name, _)| wanted(name)).map(|(name, version)| format!("{name}={version}"));
        let names: Vec<_> = names.collect();
        let downloads = self.folder.join("downloads");
        let mut download = self.get();
        download.arg("download").args(&names).current_dir(&downloads);
        self.run(&mut download, "the packages cannot be downloaded")?;
        let mut bytes = 0;
        for entry in fs::read_dir(&downloads).map_err(about(downloads.display()))?.flatten() {
            bytes += entry.metadata().map_or(0, |file| file.len());
            let mut extract = Command::new("dpkg");
            self.run(extract.arg("-x").arg(entry.path()).arg(root), "dpkg cannot unpack a package")?;
        }
        fs::remove_dir_all(&self.folder).map_err(about(self.folder.display()))?;
        Ok((names.len(), bytes))
    }
}

/// The mirror that the machine itself uses for Debian, as apt would ask it for lists.
fn mirror() -> Result<String, Problem> {
    let mut command = Command::new("apt-get");
    command.args(["--print-uris", "update"]).env("LC_ALL", "C");
    let done = process::run(&mut command, Duration::from_secs(60), |_| {})
        .map_err(|_| Problem("there is no apt here: guests are made of Debian packages".into()))?;
    mirror_in(&done.output).ok_or_else(|| {
        Problem("apt's configuration names no mirror of Debian (an address that ends in /debian)".into())
    })
}

/// The first address of a `'ADDRESS/dists/SUITE/InRelease' ...` line that ends in `/debian`, or names a file of such, as Debian's images
/// for clouds do (apt-transport-mirror(1)).
fn mirror_in(output: &str) -> Option<String> {
    let address = |line: &str| Some(line.strip_prefix('\'')?.split_once("/dists/")?.0.to_owned());
    let is_debian = |address: &String| {
        address.trim_end_matches('/').ends_with("/debian")
            || (address.starts_with("mirror+") && address.ends_with("/debian.list"))
    };
    output.lines().filter_map(address).find(is_debian)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_of_debian_itself() {
        let lines = "'http://security.example/debian-security/dists/bookworm-security/InRelease' a 0 \n\
                     'https://mirror.example/pub/debian/dists/bookworm/InRelease' b 0 \n\
                     'https://other.example/debian/dists/bookworm-updates/InRelease' c 0 \n";
        assert_eq!(mirror_in(lines).as_deref(), Some("https://mirror.example/pub/debian"));
        assert_eq!(mirror_in("'http://archive.ubuntu.com/ubuntu/dists/noble/InRelease' u 0\n"), None);
        let listed = "'mirror+file:/etc/apt/mirrors/debian-security.list/dists/bookworm-security/InRelease' s 0 \n\
                      'mirror+file:/etc/apt/mirrors/debian.list/dists/bookworm/InRelease' d 0 \n";
        assert_eq!(mirror_in(listed).as_deref(), Some("mirror+file:/etc/apt/mirrors/debian.list"));
        assert_eq!(mirror_in(""), None);
    }
}
