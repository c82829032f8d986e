//! Which processes are this test's: what others on the machine do meanwhile is not the test's fault.

use std::fs;

/// The environment variable that marks the programs a [`Host`](crate::Host) starts, and what they start, even when
/// they become daemons: the number of the process that started them.
pub(crate) const MARK: &str = "BYWASH_LAB";

/// Entries of a directory by name; none when it can't be read.
pub(crate) fn entries(directory: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// The numbers of all processes, and whether each is ours: this one, one of its process group, or a marked one.
pub(crate) fn processes() -> impl Iterator<Item = (String, bool)> {
    let group = group("self");
    let mark = format!("{MARK}={}", std::process::id());
    let all = entries("/proc").filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    all.map(move |process| {
        let ours = group.is_some() && self::group(&process) == group || has(&process, &mark);
        (process, ours)
    })
}

/// A process's group, the third field of proc_pid_stat(5) behind its name.
fn group(process: &str) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(2)?.parse().ok()
}

fn has(process: &str, variable: &str) -> bool {
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes())
}

/// Whether a process that is not ours holds a BPF program (`prog_id`), or a link of one, or a map (`map_id`) by a file
/// descriptor.
pub(crate) fn held_by_others(what: &str, id: u32) -> bool {
    let line = format!("{what}:\t{id}");
    processes().filter(|(_, ours)| !ours).any(|(process, _)| {
        entries(&format!("/proc/{process}/fdinfo")).any(|fd| {
            let info = fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).unwrap_or_default();
            info.lines().any(|found| found == line)
        })
    })
}
