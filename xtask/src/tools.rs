//! Programs of others that tests and benchmarks run: which there are, and where they are on this machine.
//!
//! A program on PATH is used as it is. `--install` unpacks the others below the user's cache directory and writes a
//! small shell script for each, which sets what the program needs to run from there. So whoever starts a program sees
//! no difference: the folder of these scripts stands at the end of PATH while tests and benchmarks run.

use std::path::{Path, PathBuf};

use crate::{guest, project};

/// A program and how to get it from Debian.
#[derive(Debug)]
pub(crate) struct Program {
    /// What is typed.
    pub(crate) name: &'static str,
    /// Debian packages: the program's, and those it does without but we do not.
    pub(crate) packages: &'static [&'static str],
    /// What needs it; printed when it is missing.
    pub(crate) needed_for: &'static str,
    /// Whether a test needs it, or benchmarks only.
    pub(crate) by_tests: bool,
    /// Environment variables that tell it where its parts are: name, and path below the folder it was unpacked in.
    /// `@` stands for the machine's multiarch triple.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// Options in front of all others, for what no variable can say; `@` as above, `$root` is the folder.
    pub(crate) options: &'static str,
}

/// Every program. To add one is to add a row.
pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "tcpdump",
        packages: &["tcpdump"],
        needed_for: "comparing filter expressions and capture files with tcpdump's",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "ethtool",
        packages: &["ethtool"],
        needed_for: "comparing what `bywash ports` says with ethtool",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "ip",
        packages: &["iproute2"],
        needed_for: "looking at links and XDP programs from outside",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "ss",
        packages: &["iproute2"],
        needed_for: "what the kernel knows of its TCP connections",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "tc",
        packages: &["iproute2"],
        needed_for: "its classifier beside the flood filter",
        by_tests: false,
        environment: &[],
        options: "",
    },
    Program {
        name: "ping",
        packages: &["iputils-ping"],
        needed_for: "traffic of the kernel's own",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "curl",
        packages: &["curl"],
        needed_for: "HTTP to Bywash's own stack",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "wget",
        packages: &["wget"],
        needed_for: "a large file from Bywash's own stack",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        // Debian's alternatives make the plain name of it.
        name: "traceroute.db",
        packages: &["traceroute"],
        needed_for: "finding Bywash as a router",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        // Debian's alternatives make the plain name of it.
        name: "nc.openbsd",
        packages: &["netcat-openbsd"],
        needed_for: "talking to Bywash's servers as people do",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "redis-server",
        packages: &["redis-server"],
        needed_for: "a server for `bywash tcp load redis`",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "memcached",
        packages: &["memcached"],
        needed_for: "a server for `bywash tcp load memcached`",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "xdp-loader",
        packages: &["xdp-tools"],
        needed_for: "finding XDP programs of others on an interface",
        by_tests: true,
        environment: &[("LIBXDP_OBJECT_PATH", "usr/lib/@/bpf")],
        options: "",
    },
    Program {
        name: "xdp-filter",
        packages: &["xdp-tools"],
        needed_for: "its cost of a dropped packet beside ours",
        by_tests: false,
        environment: &[("LIBXDP_OBJECT_PATH", "usr/lib/@/bpf")],
        options: "",
    },
    Program {
        name: "nft",
        packages: &["nftables"],
        needed_for: "what the kernel sees of packets that the flood filter gives back, and nftables beside it",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        // `iptables` itself is a link that only an installed package has.
        name: "iptables-nft-restore",
        packages: &["iptables"],
        needed_for: "iptables beside the flood filter",
        by_tests: false,
        environment: &[("XTABLES_LIBDIR", "usr/lib/@/xtables")],
        options: "",
    },
    Program {
        name: "nginx",
        packages: &["nginx"],
        needed_for: "a web server behind the flood filter",
        by_tests: false,
        environment: &[],
        options: "",
    },
    Program {
        name: "wrk",
        packages: &["wrk"],
        needed_for: "the clients of that server, and of Bywash's",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "ab",
        packages: &["apache2-utils"],
        needed_for: "clients of Bywash's web server that open a connection for each request",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "dig",
        packages: &["bind9-dnsutils"],
        needed_for: "asking a DNS server through Bywash as a router",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "nsd",
        packages: &["nsd"],
        needed_for: "a DNS server behind the flood filter, and behind Bywash as a router",
        by_tests: true,
        environment: &[],
        options: "",
    },
    Program {
        name: "dnsperf",
        packages: &["dnsperf"],
        needed_for: "the clients of that server",
        by_tests: false,
        environment: &[],
        options: "",
    },
    Program {
        name: "valgrind",
        packages: &["valgrind"],
        needed_for: "instruction counts",
        by_tests: false,
        environment: &[("VALGRIND_LIB", "usr/libexec/valgrind")],
        options: "",
    },
    Program {
        name: "perf",
        packages: &["linux-perf"],
        needed_for: "where the time goes where Bywash is slower",
        by_tests: false,
        environment: &[],
        options: "",
    },
    Program {
        name: "dpdk-testpmd",
        // Debian's drivers are plug-ins in packages of their own.
        packages: &["dpdk-dev", "librte-net-null23", "librte-net-af-xdp23", "librte-mempool-ring23"],
        needed_for: "DPDK's figures beside ours",
        by_tests: false,
        // AF_XDP ports load an XDP program of libxdp's.
        environment: &[("LIBXDP_OBJECT_PATH", "usr/lib/@/bpf")],
        // The path that is compiled in lies in /usr/lib.
        options: "-d \"$root/usr/lib/@/dpdk/pmds-23.0\"",
    },
    Program {
        name: "dpdk-test-fib",
        packages: &["dpdk-dev", "librte-mempool-ring23"],
        needed_for: "DPDK's look-ups of routes beside ours",
        by_tests: false,
        environment: &[],
        // Nothing else of what may lie beside it is needed, nor what that depends on.
        options: "-d \"$root/usr/lib/@/dpdk/pmds-23.0/librte_mempool_ring.so\"",
    },
];

/// Where tcpdump, ethtool and ip may lie; not on the PATH of Debian's ordinary users.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The file to run for `name`: the one on PATH, else the one `--install` fetched.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    on_path(name).or_else(|| folder().map(|folder| folder.join(name)).filter(|file| file.is_file()))
}

/// The file to run for `name` that does not come from us.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let ours = folder();
    let system = SYSTEM.map(PathBuf::from);
    let mut folders =
        std::env::split_paths(&path).chain(system).filter(|folder| Some(folder) != ours.as_ref());
    folders.find_map(|folder| Some(folder.join(name)).filter(|file| file.is_file()))
}

/// The folder of the scripts that `--install` writes; `None` without a cache directory.
pub(crate) fn folder() -> Option<PathBuf> {
    project::cache().ok().map(|cache| cache.join("bin"))
}

/// What tests and benchmarks are started with: PATH with [`folder`] at its end, the folder as `BYWASH_TOOLS`, and the one
/// of what guests need as `BYWASH_GUEST`.
pub(crate) fn environment() -> Vec<(&'static str, std::ffi::OsString)> {
    let Some(folder) = folder() else { return Vec::new() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path).chain(SYSTEM.map(PathBuf::from)).chain([folder.clone()]);
    let mut variables = vec![("BYWASH_TOOLS", folder.into_os_string())];
    variables.extend(guest::folder().map(|folder| ("BYWASH_GUEST", folder.into_os_string())));
    // Fails only when a folder's name contains a colon: then the tests look in BYWASH_TOOLS.
    variables.extend(std::env::join_paths(all).ok().map(|joined| ("PATH", joined)));
    variables
}

impl Program {
    /// The shell script that runs the program at `file`, unpacked below `root`.
    pub(crate) fn script(&self, root: &Path, file: &Path) -> String {
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        let mut text = format!(
            "#!/bin/sh\n# {} from Debian's package {}, unpacked for this user only.\nroot='{}'\n\
             export LD_LIBRARY_PATH=\"$root/usr/lib/{triple}:$root/lib/{triple}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"\n",
            self.name,
            self.packages.first().unwrap_or(&""),
            root.display(),
        );
        for (variable, path) in self.environment {
            text.push_str(&format!("export {variable}=\"$root/{}\"\n", path.replace('@', &triple)));
        }
        let options = self.options.replace('@', &triple);
        text.push_str(&format!("exec '{}' {options} \"$@\"\n", file.display()));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_listed_once_with_a_package_and_a_reason() {
        for (i, program) in PROGRAMS.iter().enumerate() {
            assert!(!program.packages.is_empty() && !program.needed_for.is_empty(), "{program:?}");
            assert!(PROGRAMS[..i].iter().all(|other| other.name != program.name), "{program:?}");
        }
    }

    #[test]
    fn a_script_sets_what_the_program_needs() {
        let testpmd = PROGRAMS.iter().find(|p| p.name == "dpdk-testpmd").unwrap();
        let text = testpmd.script(Path::new("/c/debian"), Path::new("/c/debian/usr/bin/dpdk-testpmd"));
        assert!(text.starts_with("#!/bin/sh\n") && text.contains("root='/c/debian'"));
        assert!(text.contains("exec '/c/debian/usr/bin/dpdk-testpmd' -d \"$root/usr/lib/"), "{text}");
        assert!(!text.contains('@') || text.contains("\"$@\""));
    }

    #[test]
    fn a_shell_is_found_and_nonsense_is_not() {
        assert!(find("sh").is_some());
        assert!(find("no program has this name").is_none());
    }
}
