//! Rules that every source file keeps: how it begins, how long it is, what it must not contain, where unsafe code is.

use std::fs;
use std::path::Path;

use super::table::{Policy, Row};
use crate::project::{self, Problem, about};

/// A Rust file of ours.
#[derive(Debug)]
pub(super) struct File {
    /// From the workspace's folder.
    pub(super) path: String,
    pub(super) text: String,
}

/// A file with more lines than this does two jobs.
const LONGEST: usize = 800;

/// Files that may be longer, and why. Tests may as well.
const LONG: &[(&str, &str)] = &[];

/// What no finished source contains. In two parts, so that this file keeps the rule.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("to", "do!("), "finish it"),
    (concat!("unimple", "mented!("), "finish it"),
    (concat!("db", "g!("), "take it out"),
    (concat!("TO", "DO"), "finish it, or open an issue"),
    (concat!("FIX", "ME"), "finish it, or open an issue"),
    (
        concat!("#[all", "ow("),
        "use #[expect(..., reason = \"...\")], which tells when it is no longer needed",
    ),
    (
        concat!("#![all", "ow("),
        "use #![expect(..., reason = \"...\")], which tells when it is no longer needed",
    ),
];

/// Every Rust file in the workspace's crates.
///
/// # Errors
/// When a folder or file cannot be read.
pub(super) fn files() -> Result<Vec<File>, Problem> {
    let mut found = Vec::new();
    for folder in ["crates", "xtask"] {
        collect(&project::root().join(folder), &mut found)?;
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn collect(folder: &Path, found: &mut Vec<File>) -> Result<(), Problem> {
    for entry in fs::read_dir(folder).map_err(about(folder.display()))? {
        let path = entry.map_err(about(folder.display()))?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).map_err(about(path.display()))?;
            let path = path.strip_prefix(project::root()).unwrap_or(&path).to_string_lossy().into_owned();
            found.push(File { path, text });
        }
    }
    Ok(())
}

/// What is wrong in `files`, one line each.
pub(super) fn check(rows: &[Row], files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files {
        findings.extend(head(file));
        findings.extend(length(file, LONG));
        findings.extend(words(file));
    }
    findings.extend(rows.iter().flat_map(|row| unsafe_code(row, files)));
    for (path, _reason) in LONG {
        if !files.iter().any(|file| file.path == *path && file.text.lines().count() > LONGEST) {
            findings.push(format!("{path}: no longer over {LONGEST} lines: take it off the list in xtask"));
        }
    }
    findings
}

/// Tests that the last column of a document's tables names and that no file has. What is named there otherwise has no
/// `_`.
pub(super) fn missing_tests(path: &str, text: &str, files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(cell) = line.strip_suffix('|').and_then(|line| line.rsplit('|').next()) else { continue };
        let names =
            cell.split('`').skip(1).step_by(2).filter(|name| name.contains('_') && !name.contains(' '));
        for name in names {
            let test = format!("fn {name}(");
            if !files.iter().any(|file| file.text.contains(&test)) {
                findings.push(format!("{path}:{}: there is no test {name}", number + 1));
            }
        }
    }
    findings
}

fn head(file: &File) -> Option<String> {
    let ok = file.text.starts_with("//! ");
    (!ok).then(|| format!("{}:1: the file does not begin with `//!` and the one job it has", file.path))
}

fn length(file: &File, allowed: &[(&str, &str)]) -> Option<String> {
    let lines = file.text.lines().count();
    let test = file.path.ends_with("/tests.rs") || file.path.contains("/tests/");
    let free = test || allowed.iter().any(|(path, _)| *path == file.path);
    (lines > LONGEST && !free).then(|| format!("{}: {lines} lines, over {LONGEST}: split it", file.path))
}

fn words(file: &File) -> Vec<String> {
    let find = |(word, cure): &(&str, &str)| {
        let line = file.text.lines().position(|line| line.contains(word))?;
        Some(format!("{}:{}: contains `{word}`: {cure}", file.path, line + 1))
    };
    FORBIDDEN.iter().filter_map(find).collect()
}

/// Whether a crate's sources follow its policy. Tests, benchmarks and examples are programs of their own, for which the
/// workspace's lint is enough.
fn unsafe_code(row: &Row, files: &[File]) -> Vec<String> {
    let folder = format!("crates/{}/src/", row.name);
    let own = || files.iter().filter_map(|file| Some((file.path.strip_prefix(&folder)?, file)));
    let mut findings = Vec::new();
    if row.policy == Policy::Forbid {
        for (name, file) in own().filter(|(name, _)| matches!(*name, "lib.rs" | "main.rs")) {
            if !file.text.lines().any(|line| line == "#![forbid(unsafe_code)]") {
                findings.push(format!(
                    "{folder}{name}: no `#![forbid(unsafe_code)]`; ARCHITECTURE.md:{} says so",
                    row.line
                ));
            }
        }
    }
    for (name, file) in own() {
        let allowed = match &row.policy {
            Policy::Yes => true,
            Policy::Files(names) => names.iter().any(|listed| listed == name),
            Policy::Forbid | Policy::Deny => false,
        };
        if let (Some(line), false) = (opts_in(&file.text), allowed) {
            let listed = row.line;
            findings.push(format!(
                "{folder}{name}:{line}: unsafe code, which ARCHITECTURE.md:{listed} does not allow here"
            ));
        }
    }
    if let Policy::Files(names) = &row.policy {
        for listed in names {
            if !own().any(|(name, file)| name == listed && opts_in(&file.text).is_some()) {
                findings.push(format!(
                    "ARCHITECTURE.md:{}: {folder}{listed} has no unsafe code: take it out",
                    row.line
                ));
            }
        }
    }
    findings
}

/// The line, from 1, on which a file lifts the ban on unsafe code.
fn opts_in(text: &str) -> Option<usize> {
    let lifts = |line: &str| {
        let line = line.trim_start();
        !line.starts_with("//")
            && line.contains("unsafe_code")
            && !line.contains("forbid(unsafe_code)")
            && !line.contains("deny(unsafe_code)")
    };
    text.lines().position(lifts).map(|line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    fn row(policy: Policy) -> Row {
        Row { line: 9, name: "frame".into(), depends_on: vec![], policy }
    }

    const OPT_IN: &str = "//! x\n#![expect(\n    unsafe_code,\n    reason = \"why\"\n)]\n";

    #[test]
    fn a_file_begins_with_its_job() {
        assert!(head(&file("a.rs", "//! One job.\n")).is_none());
        assert!(head(&file("a.rs", "use std::fs;\n//! late\n")).is_some());
    }

    #[test]
    fn long_files_are_found_except_tests_and_listed_ones() {
        let long = "//! x\n".repeat(LONGEST + 1);
        assert!(length(&file("crates/a/src/b.rs", &long), &[]).is_some());
        assert!(length(&file("crates/a/src/b.rs", &long), &[("crates/a/src/b.rs", "a table")]).is_none());
        assert!(length(&file("crates/a/tests/b.rs", &long), &[]).is_none());
        assert!(length(&file("crates/a/src/b/tests.rs", &long), &[]).is_none());
        assert!(length(&file("crates/a/src/b.rs", "//! x\n"), &[]).is_none());
    }

    #[test]
    fn forbidden_words_are_named_by_line() {
        for (word, _) in FORBIDDEN {
            let findings = words(&file("a.rs", &format!("//! x\n    {word}\n")));
            assert!(findings.iter().any(|f| f.starts_with("a.rs:2: ") && f.contains(word)), "{findings:?}");
        }
        assert!(words(&file("a.rs", "//! nothing to see\n")).is_empty());
    }

    #[test]
    fn forbid_must_stand_in_the_crates_root() {
        let root = "crates/frame/src/lib.rs";
        assert_eq!(
            unsafe_code(&row(Policy::Forbid), &[file(root, "//! x\n#![forbid(unsafe_code)]\n")]),
            [""; 0]
        );
        assert_eq!(
            unsafe_code(&row(Policy::Forbid), &[file(root, "//! x\n// #![forbid(unsafe_code)]\n")]).len(),
            1
        );
    }

    #[test]
    fn opting_in_is_allowed_where_the_table_says_so() {
        let files = [file("crates/frame/src/lib.rs", "//! x\n"), file("crates/frame/src/arena.rs", OPT_IN)];
        let findings = |policy| unsafe_code(&row(policy), &files);
        assert_eq!(findings(Policy::Yes), [""; 0]);
        assert_eq!(findings(Policy::Files(vec!["arena.rs".into()])), [""; 0]);
        assert!(findings(Policy::Deny)[0].starts_with("crates/frame/src/arena.rs:3: unsafe code"));
        let other = findings(Policy::Files(vec!["pool.rs".into()]));
        assert_eq!(other.len(), 2, "arena.rs may not, pool.rs does not: {other:?}");
    }
}
