//! `cargo xtask guest`: what QEMU guests need, in the user's cache directory: QEMU, a kernel, its modules and a root folder.
//!
//! All of it comes from one Debian release, newer than most machines: its programs run by their own dynamic linker, so that
//! nothing of it has to fit the machine. Guests boot an initramfs of a page of shell, mount the root folder read-only over 9p
//! and then do what they are told over a serial port; `lab::guest` is the other end.

mod apt;
mod initramfs;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::process;
use crate::project::{self, Problem, about};
use apt::Apt;

/// Debian packages: QEMU, the kernel, and what guests run.
const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "qemu-system-common",
    "qemu-system-data",
    "seabios",
    "linux-image-amd64",
    // The guest's shell, and everything that has no row here.
    "dash",
    "busybox-static",
    "kmod",
    "zlib1g",
    "iproute2",
    "ethtool",
    "iputils-ping",
    "iperf3",
    // testpmd and its drivers.
    "dpdk-dev",
    "ibverbs-providers",
    "librte-bus-pci25",
    "librte-net-ixgbe25",
    "librte-net-e1000-25",
    "librte-mempool-ring25",
];

/// Packages whose names change with their version: the parts of the kernel.
const KERNEL_PARTS: [&str; 3] = ["linux-base-", "linux-binary-", "linux-modules-"];

/// Folders of kernel modules that guests have; the others are most of the kernel's 160 MB.
const MODULES: &[&str] = &[
    "arch",
    "crypto",
    "drivers/dca",
    "drivers/i2c/algos",
    "drivers/iommu",
    "drivers/net/ethernet/intel",
    "drivers/net/mdio",
    "drivers/net/phy",
    "drivers/pps",
    "drivers/ptp",
    "drivers/uio",
    "drivers/vfio",
    "drivers/virtio",
    "fs/9p",
    "fs/netfs",
    "fs/overlayfs",
    "lib",
    "net",
    "virt",
];

/// Single modules besides.
const MODULE_FILES: &[&str] = &[
    "drivers/net/mdio",
    "drivers/net/tun",
    "drivers/net/veth",
    "drivers/net/virtio_net",
    "drivers/net/net_failover",
];

/// The script that guests run as their first program, once they have their root.
const AGENT: &str = include_str!("agent.sh");

/// The folder of what is prepared; `None` without a cache directory.
pub(crate) fn folder() -> Option<PathBuf> {
    project::cache().ok().map(|cache| cache.join("guest"))
}

/// The command: prepares what is missing.
///
/// # Errors
/// As [`prepare`].
pub(crate) fn run() -> Result<ExitCode, Problem> {
    prepare()?;
    println!("guests: {}", folder().unwrap_or_default().display());
    Ok(ExitCode::SUCCESS)
}

/// Prepares guests, unless that was done before with the same contents.
///
/// # Errors
/// When this is no machine for it, or something cannot be had or written.
pub(crate) fn prepare() -> Result<(), Problem> {
    let folder = project::cache()?.join("guest");
    if fs::read_to_string(folder.join("prepared")).is_ok_and(|text| text == contents()) {
        return Ok(());
    }
    if std::env::consts::ARCH != "x86_64" {
        return Err(Problem("guests need an x86-64 machine: QEMU is fetched for that only".into()));
    }
    let start = Instant::now();
    remove_left_behind(&project::cache()?);
    let new = project::cache()?.join(format!("guest.{}", std::process::id()));
    let done = build(&new).and_then(|()| put(&new, &folder));
    // Whatever is left of it is of no use, and is not there when all went well.
    fs::remove_dir_all(&new).ok();
    done?;
    println!("guests prepared in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Removes what was begun by a process that was killed since.
fn remove_left_behind(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix("guest.")?.split('.').next());
        if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            // What cannot be removed is in nobody's way.
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// What decides whether a prepared folder is still right: everything that it is made from.
fn contents() -> String {
    let lists = [PACKAGES, MODULES, MODULE_FILES, &[apt::RELEASE, AGENT, initramfs::INIT]];
    lists.map(|list| list.join("\n")).join("\n")
}

fn build(new: &Path) -> Result<(), Problem> {
    let root = new.join("root");
    let unpacked = new.join("unpacked");
    fs::create_dir_all(&unpacked).map_err(about(unpacked.display()))?;
    let start = Instant::now();
    let (count, bytes) = Apt::new(new)?.unpack(PACKAGES, is_wanted, &unpacked)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("guests: {count} packages, {} MB, fetched and unpacked in {seconds:.0} s", bytes >> 20);
    for (from, to) in [("usr/bin", "bin"), ("usr/sbin", "sbin"), ("usr/lib", "lib"), ("usr/lib64", "lib64")] {
        symlink(from, unpacked.join(to)).map_err(about(to))?;
    }
    // What the guest mounts something on.
    for mount in ["dev", "host", "mnt", "proc", "run", "sys", "tmp", "var"] {
        fs::create_dir_all(unpacked.join(mount)).map_err(about(mount))?;
    }
    program(&unpacked.join("usr/lib/agent"), AGENT)?;
    fs::rename(&unpacked, &root).map_err(about(root.display()))?;
    let modules = kernel(new, &root)?;
    let image = initramfs::image(&root, &modules)?;
    fs::write(new.join("initramfs"), image).map_err(about("initramfs"))?;
    program(&new.join("qemu"), QEMU)?;
    fs::write(new.join("prepared"), contents()).map_err(about("prepared"))
}

/// Writes a script that can be run.
fn program(path: &Path, text: &str) -> Result<(), Problem> {
    fs::write(path, text).map_err(about(path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(about(path.display()))
}

/// Starts QEMU by the dynamic linker that came with it. `$0` may lie anywhere.
const QEMU: &str = r#"#!/bin/sh
root=$(dirname "$0")/root
libraries="$root/usr/lib/x86_64-linux-gnu"
export QEMU_MODULE_DIR="$libraries/qemu"
exec "$root/lib64/ld-linux-x86-64.so.2" --library-path "$libraries" "$root/usr/bin/qemu-system-x86_64" \
    -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
"#;

/// Whether a package that apt would install is unpacked: what was asked for, libraries, and parts of the kernel. A guest has
/// no use for all that manages users, services and packages.
fn is_wanted(name: &str) -> bool {
    let library = name.starts_with("lib") && !name.ends_with("-dev") && !name.starts_with("libpython");
    PACKAGES.contains(&name) || library || KERNEL_PARTS.iter().any(|part| name.starts_with(part))
}

/// Puts the kernel in its place, and takes away the modules that nobody needs. Returns the folder of the others.
fn kernel(new: &Path, root: &Path) -> Result<PathBuf, Problem> {
    let all = root.join("usr/lib/modules");
    let version = fs::read_dir(&all).map_err(about(all.display()))?.flatten().next();
    let version = version.ok_or_else(|| Problem("no kernel was unpacked".into()))?.file_name();
    let folder = all.join(&version);
    let image = folder.join("vmlinuz");
    fs::rename(&image, new.join("vmlinuz")).map_err(about(image.display()))?;
    let (kernel, rest) = (folder.join("kernel"), new.join("modules"));
    fs::rename(&kernel, &rest).map_err(about(kernel.display()))?;
    let files = MODULE_FILES.iter().map(|file| format!("{file}.ko.xz"));
    for part in MODULES.iter().map(|&part| part.to_owned()).chain(files) {
        let (from, to) = (rest.join(&part), kernel.join(&part));
        if from.exists() {
            fs::create_dir_all(to.parent().unwrap_or(&kernel)).map_err(about(to.display()))?;
            fs::rename(&from, &to).map_err(about(to.display()))?;
        }
    }
    fs::remove_dir_all(&rest).map_err(about(rest.display()))?;
    let mut depmod = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
    depmod.arg("--library-path").arg(root.join("usr/lib/x86_64-linux-gnu"));
    depmod.args(["--argv0", "depmod"]).arg(root.join("usr/bin/kmod")).arg("-b").arg(root).arg(&version);
    let done = process::run(&mut depmod, Duration::from_secs(120), |_| {})?;
    if !done.success() {
        return Err(Problem(format!("depmod: {}", done.output)));
    }
    Ok(folder)
}

/// Replaces the old folder by the new one.
fn put(new: &Path, folder: &Path) -> Result<(), Problem> {
    let old = new.with_added_extension("old");
    if folder.exists() {
        fs::rename(folder, &old).map_err(about(folder.display()))?;
    }
    fs::rename(new, folder).map_err(about(folder.display()))?;
    // A guest that is running may still read from it; what cannot be removed is in nobody's way.
    fs::remove_dir_all(&old).ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_apt_would_install_only_programs_libraries_and_the_kernel_are_taken() {
        for name in [
            "dash",
            "libc6",
            "zlib1g",
            "librte-eal25",
            "linux-modules-7.2.12+deb13-amd64",
            "linux-image-amd64",
        ] {
            assert!(is_wanted(name), "{name}");
        }
        for name in ["systemd", "libc6-dev", "libpython3.13-stdlib", "perl-base", "initramfs-tools"] {
            assert!(!is_wanted(name), "{name}");
        }
    }

    #[test]
    fn only_folders_of_processes_that_are_gone_are_removed() {
        let cache = std::env::temp_dir().join(format!("bywash-xtask-{}", std::process::id()));
        let ours = format!("guest.{}", std::process::id());
        for name in ["guest", "guest.4194305", "guest.4194305.old", &ours] {
            fs::create_dir_all(cache.join(name)).unwrap();
        }
        remove_left_behind(&cache);
        let mut left: Vec<_> =
            fs::read_dir(&cache).unwrap().flatten().map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, ["guest", ours.as_str()]);
        fs::remove_dir_all(&cache).unwrap();
    }

    #[test]
    fn a_folder_made_from_other_lists_is_not_taken_for_this_one() {
        assert!(contents().contains("\nbusybox-static\n") && contents().contains(AGENT));
        assert!(contents().contains(apt::RELEASE) && contents().contains("drivers/vfio"));
    }
}
