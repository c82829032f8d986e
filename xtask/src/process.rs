//! Running a program to its end: output as one stream of lines, and a limit in time.
//!
//! What runs too long is killed with everything it started, so that a test that hangs leaves nothing behind.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::project::{Problem, about};

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// `None` when it was killed at its time limit.
    pub(crate) status: Option<ExitStatus>,
    /// Standard output and standard error, as they came.
    pub(crate) output: String,
}

impl Finished {
    /// Whether it ended by itself with code 0.
    pub(crate) fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The end in words.
    pub(crate) fn ending(&self) -> String {
        self.status.map_or_else(|| "killed: it ran too long".into(), |status| status.to_string())
    }
}

/// Runs `command` without input for at most `limit`, handing each line of its output to `on_line` as it comes.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn run(
    command: &mut Command,
    limit: Duration,
    on_line: impl FnMut(&str),
) -> Result<Finished, Problem> {
    run_until(command, limit, on_line, None)
}

/// When to ask a program to end, for one that goes on until it is interrupted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupt<'a> {
    /// Words in a line that it prints when it has started.
    pub(crate) started: &'a str,
    /// So long after that line.
    pub(crate) after: Duration,
}

/// As [`run`], for a program that is then asked to end by SIGINT, as by Ctrl-C.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn run_until(
    command: &mut Command,
    limit: Duration,
    mut on_line: impl FnMut(&str),
    mut interrupt: Option<Interrupt<'_>>,
) -> Result<Finished, Problem> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (reader, writer) = std::io::pipe().map_err(about("a pipe"))?;
    let second = writer.try_clone().map_err(about("a pipe"))?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    let child = command.spawn();
    // The command still holds the pipe's writing end: as long as it does, reading never comes to an end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.map_err(about(format!("{name} cannot be started")))?;

    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });

    let start = Instant::now();
    let mut output = String::new();
    let (mut started_at, mut ended_at) = (None, None);
    loop {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => {
                on_line(&line);
                if interrupt.is_some_and(|interrupt| line.contains(interrupt.started)) {
                    started_at.get_or_insert_with(Instant::now);
                }
                output.push_str(&line);
                output.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // A grandchild in the background may keep the pipe open after the program's end.
            Err(RecvTimeoutError::Timeout) if matches!(child.try_wait(), Ok(Some(_))) => {
                if ended_at.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(1) {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let (Some(Interrupt { after, .. }), Some(at)) = (interrupt, started_at)
            && at.elapsed() > after
        {
            interrupt = None;
            signal("INT", &[child.id()]);
        }
        if start.elapsed() > limit {
            kill_tree(&mut child);
            return Ok(Finished { status: None, output });
        }
    }
    let status = child.wait().map_err(about(name))?;
    Ok(Finished { status: Some(status), output })
}

/// A command as it would be typed, for reports.
pub(crate) fn typed(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = words.map(|word| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn kill_tree(child: &mut Child) {
    // Stopped first: one that lives on would begin another as soon as its child is gone, which nobody would know of.
    let mut all = vec![child.id()];
    loop {
        signal("STOP", &all);
        let new: Vec<_> = descendants(child.id()).into_iter().filter(|pid| !all.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        all.extend(new);
    }
    signal("KILL", &all);
    // It fails only when it has ended already.
    child.wait().ok();
}

/// Every process below `ancestor`, from /proc.
fn descendants(ancestor: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // PID (NAME) STATE PARENT ...; the name may contain blanks and brackets.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if let Some(parent) = parent.and_then(|word| word.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![ancestor];
    while let Some(pid) = open.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        found.extend(&below);
        open.extend(below);
    }
    found
}

/// Sends a signal, through the shell's own `kill`: std can only send SIGKILL, to a child.
fn signal(name: &str, pids: &[u32]) {
    if pids.is_empty() {
        return;
    }
    let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("kill -{name} {}", pids.join(" "))]).stderr(Stdio::null());
    // A process that has ended meanwhile needs no signal.
    shell.status().ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_come_as_lines() {
        let mut lines = Vec::new();
        let done = run(&mut shell("echo one; echo two >&2; printf three"), Duration::from_secs(20), |line| {
            lines.push(line.to_owned());
        });
        assert_eq!(lines, ["one", "two", "three"]);
        assert_eq!(done.unwrap().output, "one\ntwo\nthree\n");
    }

    #[test]
    fn what_runs_too_long_is_killed_with_its_children() {
        let start = Instant::now();
        let script = "sleep 77 & echo $!; wait";
        let done = run(&mut shell(script), Duration::from_millis(300), |_| {}).unwrap();
        assert!(done.status.is_none() && start.elapsed() < Duration::from_secs(20));
        let pid: u32 = done.output.trim().parse().unwrap();
        let gone =
            || !fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("sleep"));
        let within_a_second = (0..20).any(|_| {
            thread::sleep(Duration::from_millis(50));
            gone()
        });
        assert!(within_a_second, "process {pid} is still there");
    }

    #[test]
    fn who_begins_others_as_soon_as_they_are_killed_leaves_none_behind() {
        // No two tests have this time, by which they are found.
        let words = format!("sleep 77.{}", std::process::id());
        for _ in 0..5 {
            let script = format!("while :; do {words}; done");
            assert!(run(&mut shell(&script), Duration::from_millis(100), |_| {}).unwrap().status.is_none());
            thread::sleep(Duration::from_millis(100));
            let typed = |pid: &std::path::Path| fs::read_to_string(pid.join("cmdline")).unwrap_or_default();
            let left = fs::read_dir("/proc")
                .unwrap()
                .flatten()
                .filter(|entry| typed(&entry.path()).trim_end_matches('\0').split('\0').eq(words.split(' ')));
            assert_eq!(left.count(), 0, "{words} is still there");
        }
    }

    #[test]
    fn an_interrupt_asks_to_end() {
        let script = "trap 'echo asked; exit 3' INT; echo ready; while :; do sleep 0.1; done";
        let interrupt = |started| Some(Interrupt { started, after: Duration::from_millis(100) });
        let end = |started, limit| run_until(&mut shell(script), limit, |_| {}, interrupt(started)).unwrap();
        let done = end("ready", Duration::from_secs(20));
        assert_eq!((done.status.and_then(|s| s.code()), done.output.as_str()), (Some(3), "ready\nasked\n"));
        assert!(end("never printed", Duration::from_secs(1)).status.is_none());
    }

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("echo");
        command.args(["a b", "it's", "--x=1,2", ""]);
        assert_eq!(typed(&command), r"echo 'a b' 'it'\''s' --x=1,2 ''");
    }
}
