//! The binary as a user runs it: a table of commands and how they must end.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Context, Outcome};
use crate::project::{self, Problem, about};
use crate::{process, tools};

/// Who runs a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    /// Whoever runs the tests.
    Any,
    /// Root, or it is skipped.
    Root,
    /// Somebody without rights; only root can take that part.
    Nobody,
}

/// One command.
struct Row {
    name: &'static str,
    /// Commands that run before it, in the same directory: what follows `bywash` in each. They must end with 0.
    before: &'static [&'static [&'static str]],
    /// What follows `bywash`.
    arguments: &'static [&'static str],
    user: User,
    /// The exit code it must end with.
    code: i32,
    /// Words that its output must contain.
    says: &'static str,
    /// How often it may be tried. Once, but for what a pause of the whole machine can spoil: packets that overflow their
    /// rings meanwhile are lost.
    tries: u32,
}

/// What a row that is not out of the ordinary looks like.
const USUAL: Row =
    Row { name: "", before: &[], arguments: &[], user: User::Any, code: 0, says: "", tries: 1 };

/// To add a command is to add a row.
const ROWS: &[Row] = &[
    Row { name: "demo", arguments: &["demo"], user: User::Root, says: "over AF_XDP", tries: 3, ..USUAL },
    Row {
        name: "demo without rights",
        arguments: &["demo"],
        user: User::Nobody,
        says: "over ports in memory",
        ..USUAL
    },
    Row { name: "help", arguments: &["--help"], says: "Exit codes", ..USUAL },
    Row { name: "ports", arguments: &["ports"], says: "ZERO-COPY", ..USUAL },
    Row { name: "ports as JSON", arguments: &["ports", "--json"], says: "\"interfaces\"", ..USUAL },
    Row { name: "cleanup", arguments: &["cleanup"], ..USUAL },
    Row {
        name: "forward in memory",
        arguments: &["forward", "null:", "null:", "--mac-swap", "--duration", "1s"],
        says: "Mpps",
        ..USUAL
    },
    Row {
        name: "generate at a rate",
        arguments: &["generate", "null:", "--rate", "10k", "--count", "5000", "--json"],
        says: "\"tx_packets\":5000",
        tries: 3,
        ..USUAL
    },
    Row {
        name: "injecting without an interface",
        arguments: &["generate", "--inject", "bw-absent", "--count", "1"],
        user: User::Root,
        code: 2,
        says: "there is no interface 'bw-absent'",
        ..USUAL
    },
    Row {
        name: "capture to a file",
        arguments: &["capture", "null:", "-w", "/dev/null", "-c", "5000", "udp", "port", "9"],
        says: "captured 5000 packets",
        ..USUAL
    },
    Row {
        name: "replay of what is no capture",
        arguments: &["replay", "/bin/sh", "null:"],
        code: 2,
        says: "no pcap or pcapng file",
        ..USUAL
    },
    Row {
        name: "receive and drop",
        arguments: &["receive", "null:", "--drop", "--count", "100k", "--json"],
        says: "\"met\":true",
        ..USUAL
    },
    Row {
        name: "a page without a terminal",
        arguments: &["receive", "null:", "--tui", "--duration", "1s"],
        code: 2,
        says: "no terminal",
        ..USUAL
    },
    Row { name: "completions", arguments: &["completions", "bash"], says: "_bywash", ..USUAL },
    Row {
        name: "generate a mix of flows",
        arguments: &[
            "generate",
            "null:",
            "--count",
            "5000",
            "--size",
            "imix",
            "--flows",
            "100",
            "--src",
            "10.0.0.0/8 random",
            "--vlan",
            "1-4",
            "--payload",
            "zeros",
        ],
        says: "sent 5000 packets of 362 bytes (with FCS) on the average of 3 sizes",
        ..USUAL
    },
    Row {
        name: "loss by flow",
        before: &[
            &["generate", "pcap:sent.pcap", "--flows", "50", "--count", "5000"],
            // Of the flow from port 10007 those with the numbers 1000 to 1999, and one of another.
            &[
                "capture",
                "pcap:sent.pcap",
                "-w",
                "came.pcap",
                "not (src port 10007 and udp[12:4] >= 1000 and udp[12:4] < 2000) and udp[12:4] != 4000",
            ],
        ],
        arguments: &["receive", "pcap:came.pcap", "--flows", "1"],
        code: 1,
        says: "flow UDP 192.168.0.8:10007 > 198.18.0.1:9: 80 packets",
        ..USUAL
    },
    Row {
        name: "an impossible field",
        arguments: &["generate", "null:", "--field", "tcp.seq=1-9"],
        code: 2,
        says: "the packet has no TCP header",
        ..USUAL
    },
    Row {
        name: "an absent interface",
        arguments: &["receive", "xdp:bw-absent"],
        user: User::Root,
        code: 2,
        says: "there is no interface 'bw-absent'",
        ..USUAL
    },
    Row {
        name: "a missing right",
        arguments: &["receive", "packet:lo"],
        user: User::Nobody,
        code: 2,
        says: "CAP_NET_RAW",
        ..USUAL
    },
    Row {
        name: "a wrong expression",
        arguments: &["receive", "xdp:lo", "--only", "udp prt 53"],
        code: 2,
        says: "filter expression",
        ..USUAL
    },
    Row {
        name: "a wrong flag",
        arguments: &["forward", "null:", "--mac-swop"],
        code: 2,
        says: "'--mac-swap'",
        ..USUAL
    },
    Row {
        name: "too few huge pages",
        arguments: &["forward", "null:", "--memory", "4000G", "--huge-pages", "require"],
        code: 2,
        says: "huge pages of 2 MiB are needed",
        ..USUAL
    },
];

/// The user id that means nobody.
const NOBODY: u32 = 65534;

/// The slowest command, the demo, promises to be done within 20 s; a busy machine gets three times that.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs every row with the release-built binary.
pub(super) fn run(context: &mut Context) -> Result<Outcome, Problem> {
    let binary = project::target().join("release/bywash");
    if !binary.is_file() {
        return Ok(Outcome::Failed(format!("{} is missing: the release build failed", binary.display())));
    }
    // Where nobody in particular may run it, too: the project may lie in a directory that is closed to others.
    let open = std::env::temp_dir().join(format!("bywash-{}", std::process::id()));
    let copy = copy(&binary, &open)?;
    let failed = all(context, &copy, ROWS);
    // What is left in the temporary directory does no harm.
    let _ = fs::remove_dir_all(&open);
    Ok(match failed {
        0 => Outcome::Passed,
        failed => Outcome::Failed(format!("{failed} of {} failed", ROWS.len())),
    })
}

/// Copies the program into a new folder, where somebody without rights can run it, too, whatever the umask.
fn copy(binary: &Path, open: &Path) -> Result<PathBuf, Problem> {
    let copy = open.join("bywash");
    fs::create_dir(open).map_err(about(open.display()))?;
    fs::copy(binary, &copy).map_err(about(copy.display()))?;
    for path in [open, &copy] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(about(path.display()))?;
    }
    Ok(copy)
}

fn all(context: &mut Context, binary: &Path, rows: &[Row]) -> u32 {
    // One that cannot be started is one that failed.
    let command = |row| command(binary, row).unwrap_or_else(|problem| Outcome::Failed(problem.to_string()));
    let mut failed = 0;
    for row in rows {
        let start = Instant::now();
        let mut outcome = command(row);
        for _ in 1..row.tries {
            if !matches!(outcome, Outcome::Failed(_)) {
                break;
            }
            outcome = command(row);
        }
        failed += u32::from(matches!(outcome, Outcome::Failed(_)));
        context.tally.close(row.name, outcome, start);
    }
    failed
}

fn command(binary: &Path, row: &Row) -> Result<Outcome, Problem> {
    if row.user != User::Any && !project::is_root() {
        return Ok(Outcome::Skipped("needs root".into()));
    }
    let bywash = |arguments: &[&str]| {
        let mut command = Command::new(binary);
        command.args(arguments).envs(tools::environment());
        command.current_dir(binary.parent().unwrap_or(Path::new("/")));
        if row.user == User::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    for arguments in row.before {
        let mut command = bywash(arguments);
        let done = process::run(&mut command, LIMIT, |_| {})?;
        if !done.success() {
            let line = format!("{}: {}", process::typed(&command), done.ending());
            return Ok(Outcome::Failed(format!("{}{line}", done.output)));
        }
    }
    let mut command = bywash(row.arguments);
    let done = process::run(&mut command, LIMIT, |_| {})?;
    let code = done.status.and_then(|status| status.code());
    if code == Some(row.code) && done.output.contains(row.says) {
        return Ok(Outcome::Passed);
    }
    let wanted = if row.says.is_empty() { String::new() } else { format!(" and to say `{}`", row.says) };
    let line = format!(
        "{}: {}; expected to exit with {}{wanted}",
        process::typed(&command),
        done.ending(),
        row.code
    );
    Ok(Outcome::Failed(format!("{}{line}", done.output)))
}

#[cfg(test)]
mod tests {
    use super::super::{Skips, Tally};
    use super::*;

    #[test]
    fn a_command_that_cannot_be_started_fails_and_ends_nothing() {
        let mut context = Context { tally: Tally::default(), skips: Skips::new().unwrap(), release: None };
        let rows = [USUAL, USUAL];
        assert_eq!(all(&mut context, Path::new("/nowhere/bywash"), &rows), 2);
        assert_eq!(context.tally.failed, 2);
    }

    #[test]
    fn somebody_without_rights_can_run_the_copy() {
        let folder = std::env::temp_dir().join(format!("bywash-copy-{}", std::process::id()));
        let secret = folder.join("secret");
        fs::create_dir(&folder).unwrap();
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o700)).unwrap();
        let open = folder.join("open");
        let copy = copy(&secret, &open).unwrap();
        let modes = [open, copy].map(|path| fs::metadata(path).unwrap().permissions().mode() & 0o777);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(modes, [0o755; 2]);
    }
}
