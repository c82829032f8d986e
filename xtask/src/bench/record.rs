//! The two files a benchmark leaves: everything it saw, and what came of it.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::machine;
use crate::process::{self, Interrupt};
use crate::project::{self, Problem, about};

/// `benchmarks/runs/DATE-HOST/NAME.txt`, while it is written: until it is whole it has another name, since an earlier run's may be
/// there, beside its summary.
pub(crate) struct Record {
    name: &'static str,
    folder: PathBuf,
    raw: File,
    machine: String,
}

/// What the name of a file ends with that is not whole.
const UNFINISHED: &str = ".part";

impl Record {
    /// Begins the file, with what is known of the machine.
    ///
    /// # Errors
    /// When the label is no file name, or the file cannot be written.
    pub(crate) fn new(name: &'static str, label: Option<&str>) -> Result<Self, Problem> {
        let label = label.map_or_else(machine::host, str::to_owned);
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if label.is_empty() || !label.chars().all(plain) {
            let cure = "give one of letters, digits, - _ and . by --label";
            return Err(Problem(format!("`{label}` cannot be part of a folder's name: {cure}")));
        }
        let folder = project::root().join("benchmarks/runs").join(format!("{}-{label}", machine::today()));
        fs::create_dir_all(&folder).map_err(about(folder.display()))?;
        Self::begin(name, folder, machine::describe())
    }

    fn begin(name: &'static str, folder: PathBuf, machine: String) -> Result<Self, Problem> {
        let path = folder.join(format!("{name}.txt{UNFINISHED}"));
        let raw = File::create(&path).map_err(about(path.display()))?;
        let mut record = Self { name, folder, raw, machine };
        let text = format!("{name}\n\n{}", record.machine);
        record.note(&text)?;
        Ok(record)
    }

    /// Runs a program for at most `limit` and keeps its command line and all it printed.
    ///
    /// # Errors
    /// When it cannot be started, or fails.
    pub(crate) fn run(&mut self, command: &mut Command, limit: Duration) -> Result<String, Problem> {
        self.run_until(command, limit, None)
    }

    /// As [`Record::run`], whatever exit code the program ends with.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn run_to_the_end(
        &mut self,
        command: &mut Command,
        limit: Duration,
    ) -> Result<String, Problem> {
        let line = process::typed(command);
        let done = process::run(command, limit, |_| {})?;
        self.note(&format!("$ {line}\n{}[{}]", done.output, done.ending()))?;
        Ok(done.output)
    }

    /// As [`Record::run`], for a program that goes on until it is interrupted.
    ///
    /// # Errors
    /// When it cannot be started, or fails.
    pub(crate) fn run_until(
        &mut self,
        command: &mut Command,
        limit: Duration,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<String, Problem> {
        let line = process::typed(command);
        let done = process::run_until(command, limit, |_| {}, interrupt)?;
        self.note(&format!("$ {line}\n{}[{}]", done.output, done.ending()))?;
        if done.success() {
            return Ok(done.output);
        }
        Err(Problem(format!("{}$ {line}\n{}", done.output, done.ending())))
    }

    /// Appends a remark.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn note(&mut self, text: &str) -> Result<(), Problem> {
        writeln!(self.raw, "{}\n", tidy(text).trim_end()).map_err(about(self.folder.display()))
    }

    /// Writes a picture beside the summary, and returns the line that shows it there.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn picture(&self, title: &str, svg: &str) -> Result<String, Problem> {
        let path = self.folder.join(format!("{}.svg", self.name));
        fs::write(&path, svg).map_err(about(path.display()))?;
        Ok(format!("![{title}]({}.svg)\n", self.name))
    }

    /// Writes and prints the summary.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn finish(mut self, sentence: &str, summary: &str) -> Result<(), Problem> {
        self.note(summary)?;
        let machine: String = self.machine.lines().map(|line| format!("    {line}\n")).collect();
        let text = format!(
            "# {}\n\n{sentence} Raw output: [{0}.txt]({0}.txt).\n\n{}\n\n{machine}",
            self.name,
            summary.trim_end()
        );
        let whole = self.folder.join(format!("{}.txt", self.name));
        fs::rename(self.folder.join(format!("{}.txt{UNFINISHED}", self.name)), &whole)
            .map_err(about(whole.display()))?;
        let path = self.folder.join(format!("{}.md", self.name));
        fs::write(&path, text).map_err(about(path.display()))?;
        let shown = path.strip_prefix(project::root()).unwrap_or(&path).display();
        println!("{}\n\nwritten to {shown}", summary.trim_end());
        Ok(())
    }
}

/// Without what is nobody's business, where the project and the user's files lie, and without testpmd's orders to clear
/// the screen before each second's figures.
fn tidy(text: &str) -> String {
    let mut text = text.replace("\u{1b}[2J", "").replace("\u{1b}[1;1H", "");
    text = text.replace(&format!("{}/", project::root().display()), "");
    match std::env::var("HOME") {
        Ok(home) if home.len() > 1 => text.replace(&format!("{home}/"), "~/"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_does_not_say_where_the_project_lies() {
        let line = format!("$ {}/target/release/bywash \u{1b}[2J\u{1b}[1;1Hx", project::root().display());
        assert_eq!(tidy(&line), "$ target/release/bywash x");
    }

    #[test]
    fn a_run_that_breaks_off_leaves_the_files_of_the_one_before() {
        let folder = std::env::temp_dir().join(format!("bywash-record-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let run = |remark: &str| {
            let mut record = Record::begin("x", folder.clone(), "a machine".into()).unwrap();
            record.note(remark).unwrap();
            record
        };
        run("first").finish("A sentence.", "one").unwrap();
        drop(run("second"));
        let [raw, summary] = ["x.txt", "x.md"].map(|name| fs::read_to_string(folder.join(name)).unwrap());
        run("third").finish("A sentence.", "three").unwrap();
        let names = fs::read_dir(&folder).unwrap().count();
        fs::remove_dir_all(&folder).unwrap();
        assert!(raw.contains("first") && summary.contains("one"), "{raw}{summary}");
        assert_eq!(names, 2, "nothing is left that is not whole");
    }
}
