//! `bywash cleanup` after a process that could not undo what it had changed.

use std::path::PathBuf;
use std::process::{Command, Output};

use bywash_lab::Untouched;
use bywash_lab::sys::state;
use rustix::process::Signal;
use serde_json::Value;

use crate::setup::{Tool, eventually};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

fn pages() -> u64 {
    std::fs::read_to_string(POOL).unwrap().trim().parse().unwrap()
}

fn tool(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
    command.args(words.split_whitespace());
    command
}

fn cleanup(words: &str) -> Output {
    let output = tool(&format!("cleanup {words}")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    output
}

/// The lab, on a machine without what a process that was killed before these tests has left: it would be undone amid them.
fn tidy_lab() -> Option<Untouched> {
    bywash_lab::lock_then(|| drop(cleanup("")))
}

/// The state files of a process.
fn state_files(process: u32) -> Vec<PathBuf> {
    let files = std::fs::read_dir(state::directory()).unwrap().map(|file| file.unwrap());
    let of_it = format!("{process}-");
    files
        .filter(|file| file.file_name().to_string_lossy().starts_with(&of_it))
        .map(|file| file.path())
        .collect()
}

#[test]
fn huge_pages_of_a_killed_process_are_given_back() {
    let Some(_guard) = tidy_lab() else { return };
    let before = pages();
    // More than are free, so that some must be asked for.
    let memory = format!("{}M", 2 * before + 16);
    let words = format!("receive loop:nobody --huge-pages reserve --memory {memory} --json");
    let mut victim = Tool::start(&mut tool(&words));
    let process = victim.process();
    let grown = pages();
    assert!(grown > before, "{grown} huge pages, {before} before");
    assert_eq!(state_files(process).len(), 1);

    victim.signal(Signal::KILL);
    assert_eq!(victim.end().0, None);
    assert_eq!(pages(), grown, "nobody has given them back");
    let left: Value = serde_json::from_slice(&cleanup("--json").stdout).unwrap();
    assert_eq!(pages(), before, "{left}");
    let undone = left["undone"].as_array().unwrap();
    assert!(undone.iter().any(|line| line.as_str().unwrap().contains(POOL)), "{left}");
    assert_eq!(state_files(process), [] as [PathBuf; 0]);
    // Processes of others may live, which it tells.
    eventually("nothing to clean up", || cleanup("").stdout == b"nothing to clean up\n");
    assert_eq!(pages(), before);
}

#[test]
fn huge_pages_that_were_given_back_while_in_use_are_not_kept_for_ever() {
    let Some(_guard) = tidy_lab() else { return };
    let before = pages();
    let memory = format!("{}M", 2 * before + 16);
    let receive = |port: &str, pages: &str| {
        Tool::start(&mut tool(&format!("receive loop:{port} --huge-pages {pages} --memory {memory} --json")))
    };
    let mut victim = receive("first", "reserve");
    victim.signal(Signal::KILL);
    victim.end();
    let grown = pages();
    let user = receive("second", "require");
    cleanup("");
    assert_eq!(pages(), grown, "they are in use");
    // What it asks for is beside these.
    let last = receive("third", "reserve");
    assert!(pages() > grown, "{} huge pages, {grown} before", pages());
    last.summary();
    user.summary();
    eventually("all undoing", || pages() == before);
}

#[test]
fn a_living_process_keeps_its_huge_pages_and_gives_them_back_itself() {
    let Some(_guard) = tidy_lab() else { return };
    let before = pages();
    let memory = format!("{}M", 2 * before + 16);
    let words = format!("receive loop:nobody --huge-pages reserve --memory {memory} --json");
    let tool = Tool::start(&mut tool(&words));
    let (process, grown) = (tool.process(), pages());
    let said = String::from_utf8(cleanup("").stdout).unwrap();
    assert!(said.contains(&format!("left alone: process {process} lives")), "{said}");
    assert_eq!(pages(), grown);
    tool.summary();
    eventually("its own undoing", || pages() == before);
    assert_eq!(state_files(process), [] as [PathBuf; 0]);
}
