//! Changes to the machine come back: when they are dropped, when their process is killed, and when several processes
//! change the same thing. The "machine" is a file in a temporary directory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers, too")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash_sys::state::{State, StateError, Undo, Undone};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// A directory with state files and one file of the machine.
struct Machine {
    directory: tempfile::TempDir,
    state: Arc<State>,
    file: PathBuf,
}

impl Machine {
    fn holding(value: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("setting");
        fs::write(&file, format!("{value}\n")).unwrap();
        Self { state: State::at(directory.path()).unwrap(), directory, file }
    }

    fn value(&self) -> String {
        fs::read_to_string(&self.file).unwrap().trim().to_owned()
    }

    fn state_files(&self) -> usize {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        entries
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "json"))
            .count()
    }

    /// Another process that makes changes, by one word per line: see `other_process`.
    fn other(&self) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["other_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(OTHER, self.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Other { child, answers }
    }
}

struct Other {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Other {
    fn begins(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    fn does(&mut self, command: &str) {
        self.begins(command);
        let mut line = String::new();
        while self.answers.read_line(&mut line).unwrap() > 0 {
            if line.trim_end().ends_with("done") {
                return;
            }
            line.clear();
        }
        panic!("the other process ended at '{command}'");
    }

    /// As `kill -9`. It is left a zombie: its parent need not have waited for it.
    fn is_killed(&mut self) {
        self.child.kill().unwrap();
        let id = rustix::process::Pid::from_child(&self.child);
        waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

const OTHER: &str = "BYWASH_TEST_OTHER_PROCESS";

/// Not a test of its own, but the other process of the tests below when they start this binary again.
#[test]
fn other_process() {
    let Some(directory) = std::env::var_os(OTHER) else { return };
    let state = State::at(&directory).unwrap();
    let file = Path::new(&directory).join("setting");
    let mut undo: Vec<Undo> = Vec::new();
    for line in std::io::stdin().lines() {
        match line.unwrap().split_once(' ') {
            Some(("set", value)) => undo.push(state.set_file(&file, value).unwrap()),
            Some(("keep", value)) => state.set_file(&file, value).unwrap().keep().unwrap(),
            Some(("add", value)) => undo.push(state.add_to_file(&file, value.parse().unwrap()).unwrap()),
            _ => drop(undo.pop().unwrap()),
        }
        println!("done");
    }
}

#[test]
fn a_change_is_undone_when_dropped() {
    let machine = Machine::holding("0");
    let undo = machine.state.set_file(&machine.file, "200").unwrap();
    assert_eq!((machine.value().as_str(), machine.state_files()), ("200", 1));
    drop(undo);
    assert_eq!((machine.value().as_str(), machine.state_files()), ("0", 0));
}

#[test]
fn nothing_is_recorded_where_nothing_changes() {
    let machine = Machine::holding("2");
    let undo = machine.state.set_file(&machine.file, "2").unwrap();
    assert_eq!(machine.state_files(), 0);
    undo.undo().unwrap();
    let missing = machine.state.set_file(machine.directory.path().join("none"), "1").unwrap_err();
    assert!(matches!(missing, StateError::Read { .. }), "{missing}");
    assert_eq!((machine.value().as_str(), machine.state_files()), ("2", 0));
}

#[test]
fn what_a_killed_process_changed_is_put_back_once() {
    let machine = Machine::holding("10");
    let mut other = machine.other();
    other.does("set 20");
    other.does("add 5");
    assert_eq!(machine.value(), "25");
    let report = machine.state.cleanup().unwrap();
    assert!(report.undone.is_empty() && report.left_alone.len() == 1, "it lives: {report:?}");
    assert_eq!(machine.value(), "25");

    other.is_killed();
    let report = machine.state.cleanup().unwrap();
    assert_eq!((report.undone.len(), report.left_alone.len(), report.failed.len()), (2, 0, 0), "{report:?}");
    assert_eq!((machine.value().as_str(), machine.state_files()), ("10", 0));
    assert!(machine.state.cleanup().unwrap().is_empty(), "nothing is left to do");
}

#[test]
fn what_somebody_else_has_changed_since_is_left_alone() {
    let machine = Machine::holding("0");
    let undo = machine.state.set_file(&machine.file, "200").unwrap();
    fs::write(&machine.file, "7").unwrap();
    let Undone::LeftAlone(why) = undo.undo().unwrap() else { panic!("overwritten") };
    assert!(why.contains("holds '7' by now"), "{why}");
    assert_eq!((machine.value().as_str(), machine.state_files()), ("7", 0));

    let undo = machine.state.set_file(&machine.file, "200").unwrap();
    fs::remove_file(&machine.file).unwrap();
    assert!(matches!(undo.undo().unwrap(), Undone::LeftAlone(why) if why.ends_with("is gone")));
    assert_eq!(machine.state_files(), 0);
}

#[test]
fn two_processes_that_set_the_same_end_where_they_began() {
    for (ours, theirs) in [("2", "2"), ("2", "3")] {
        for we_end_first in [true, false] {
            for theirs_is_killed in [true, false] {
                let machine = Machine::holding("0");
                let undo = machine.state.set_file(&machine.file, ours).unwrap();
                let mut other = machine.other();
                other.does(&format!("set {theirs}"));
                let end_theirs = |other: &mut Other| {
                    if theirs_is_killed {
                        other.is_killed();
                        machine.state.cleanup().unwrap();
                    } else {
                        other.does("undo");
                    }
                };
                let case =
                    format!("{ours} and {theirs}, we first: {we_end_first}, killed: {theirs_is_killed}");
                if we_end_first {
                    undo.undo().unwrap();
                    assert_eq!(machine.value(), theirs, "{case}: theirs still holds");
                    end_theirs(&mut other);
                } else {
                    end_theirs(&mut other);
                    assert_eq!(machine.value(), ours, "{case}: ours still holds");
                    undo.undo().unwrap();
                }
                assert_eq!((machine.value().as_str(), machine.state_files()), ("0", 0), "{case}");
            }
        }
    }
}

#[test]
fn what_was_to_stay_stays_when_others_that_set_the_same_end() {
    for theirs in ["5", "7"] {
        let machine = Machine::holding("0");
        let mut other = machine.other();
        other.does("keep 5");
        other.is_killed();
        // As `bywash receive pci:` of a NIC that `bywash bind` has bound.
        let undo = machine.state.set_file(&machine.file, theirs).unwrap();
        undo.undo().unwrap();
        assert_eq!((machine.value().as_str(), machine.state_files()), ("5", 1), "after {theirs}");
        let mut third = machine.other();
        third.does(&format!("set {theirs}"));
        third.is_killed();
        let report = machine.state.cleanup().unwrap();
        assert!(report.failed.is_empty(), "{report:?}");
        assert_eq!((machine.value().as_str(), machine.state_files()), ("0", 0), "after {theirs}: {report:?}");
    }
}

#[test]
fn two_killed_processes_leave_what_was_there_at_first() {
    let machine = Machine::holding("0");
    let (mut first, mut second) = (machine.other(), machine.other());
    first.does("set 5");
    second.does("set 7");
    first.does("set 9");
    first.is_killed();
    second.is_killed();
    let report = machine.state.cleanup().unwrap();
    assert!(report.failed.is_empty(), "{report:?}");
    assert_eq!((machine.value().as_str(), machine.state_files()), ("0", 0), "{report:?}");
}

#[test]
fn a_number_that_two_have_raised_is_lowered_by_each() {
    for we_end_first in [true, false] {
        let machine = Machine::holding("3");
        let undo = machine.state.add_to_file(&machine.file, 10).unwrap();
        assert_eq!(undo.added(), 10);
        let mut other = machine.other();
        other.does("add 20");
        assert_eq!(machine.value(), "33");
        if we_end_first {
            undo.undo().unwrap();
            assert_eq!(machine.value(), "23");
            other.is_killed();
            machine.state.cleanup().unwrap();
        } else {
            other.is_killed();
            machine.state.cleanup().unwrap();
            assert_eq!(machine.value(), "13");
            undo.undo().unwrap();
        }
        assert_eq!((machine.value().as_str(), machine.state_files()), ("3", 0));
    }
}

/// As `kill -9` while the kernel looks for huge pages: a pipe that nobody reads holds up who writes to it.
#[test]
fn a_number_that_was_being_raised_when_its_process_was_killed_comes_back() {
    for (found, with_a_later, left) in
        [("10", "15", "10"), ("17", "22", "10"), ("30", "35", "10"), ("31", "36", "31")]
    {
        for later in [false, true] {
            let machine = Machine::holding("10");
            fs::remove_file(&machine.file).unwrap();
            mknodat(CWD, &machine.file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            let mut other = machine.other();
            other.begins("add 20");
            fs::write(&machine.file, "10").unwrap();
            let start = Instant::now();
            while machine.state_files() == 0 {
                assert!(start.elapsed() < Duration::from_secs(60), "nothing was written down");
                std::thread::sleep(Duration::from_millis(2));
            }
            other.is_killed();
            fs::remove_file(&machine.file).unwrap();
            fs::write(&machine.file, found).unwrap();
            let undo = later.then(|| machine.state.add_to_file(&machine.file, 5).unwrap());
            assert_eq!(machine.value(), if later { with_a_later } else { found });
            let report = machine.state.cleanup().unwrap();
            assert!(report.failed.is_empty(), "{report:?}");
            drop(undo);
            assert_eq!((machine.value().as_str(), machine.state_files()), (left, 0), "{found}: {report:?}");
        }
    }
}

/// The kernel takes no page from a program: of a pool that has shrunk those in use are shown in it, and counted as surplus.
#[test]
fn huge_pages_that_two_give_back_while_they_are_in_use_are_not_kept() {
    let machine = Machine::holding("0");
    let pool = machine.directory.path().join("nr_hugepages");
    let surplus = machine.directory.path().join("surplus_hugepages");
    fs::write(&pool, "0").unwrap();
    fs::write(&surplus, "0").unwrap();
    let first = machine.state.add_to_file(&pool, 64).unwrap();
    let second = machine.state.add_to_file(&pool, 64).unwrap();
    assert_eq!(fs::read_to_string(&pool).unwrap(), "128");
    first.undo().unwrap();
    assert_eq!(fs::read_to_string(&pool).unwrap(), "64");
    fs::write(&pool, "128").unwrap();
    fs::write(&surplus, "64").unwrap();
    second.undo().unwrap();
    assert_eq!(fs::read_to_string(&pool).unwrap(), "0");
}

#[test]
fn a_damaged_state_file_is_named_and_kept_and_the_others_are_undone() {
    let machine = Machine::holding("0");
    let mut other = machine.other();
    other.does("set 5");
    other.is_killed();
    for content in [
        "{\"changes\": [{\"id\": 1",
        "",
        "{\"changes\":[{\"id\":1,\"at\":1,\"change\":{\"kind\":\"later\"}}]}",
    ] {
        let damaged = machine.directory.path().join("4194305-1.json"); // no process has this number
        fs::write(&damaged, content).unwrap();
        let report = machine.state.cleanup().unwrap();
        assert_eq!(report.failed.len(), 1, "{report:?}");
        assert!(report.failed[0].contains("4194305-1.json is damaged"), "{}", report.failed[0]);
        assert_eq!(fs::read_to_string(&damaged).unwrap(), content);
        assert_eq!(machine.value(), "0");
    }
}

#[test]
fn what_cannot_be_undone_is_kept_for_the_next_time() {
    let machine = Machine::holding("0");
    let mut other = machine.other();
    other.does("set 5");
    other.is_killed();
    // A directory in the file's place can be neither read nor written, not even by root.
    fs::remove_file(&machine.file).unwrap();
    fs::create_dir(&machine.file).unwrap();
    let report = machine.state.cleanup().unwrap();
    assert_eq!((report.failed.len(), machine.state_files()), (1, 1), "{report:?}");
    fs::remove_dir(&machine.file).unwrap();
    fs::write(&machine.file, "5").unwrap();
    assert_eq!(machine.state.cleanup().unwrap().undone.len(), 1);
    assert_eq!((machine.value().as_str(), machine.state_files()), ("0", 0));
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let machine = Machine::holding("0");
    fs::set_permissions(machine.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = State::at(machine.directory.path()).unwrap_err().to_string();
    assert!(error.contains("others may write to it"), "{error}");
}
