//! Reading the table of crates in ARCHITECTURE.md.

/// One row: a crate, what it may use, and its policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The row's line in the file, from 1.
    pub(super) line: usize,
    /// The crate's folder.
    pub(super) name: String,
    /// Folders of the crates it depends on.
    pub(super) depends_on: Vec<String>,
    pub(super) policy: Policy,
}

/// Where unsafe code may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Nowhere, and the crate's root says so for good.
    Forbid,
    /// Nowhere: no file opts in.
    Deny,
    /// In these files of `src`.
    Files(Vec<String>),
    /// In any file that opts in.
    Yes,
}

/// The rows below the header `| crate | ... | depends on | unsafe |`, and what cannot be read, one line each.
pub(super) fn parse(text: &str) -> (Vec<Row>, Vec<String>) {
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let header = ["crate", "depends on", "unsafe"];
    if !lines.any(|(_, line)| header == pick(&cells(line))) {
        return (
            Vec::new(),
            vec![format!("ARCHITECTURE.md: no table with the columns {}", header.join(", "))],
        );
    }
    let mut rows = Vec::new();
    let mut findings = Vec::new();
    for (number, line) in lines.take_while(|(_, line)| line.starts_with('|')) {
        let cells = cells(line);
        if cells.iter().all(|cell| cell.chars().all(|c| c == '-' || c == ':')) {
            continue;
        }
        let [name, depends_on, policy] = pick(&cells);
        match (cells.len(), self::policy(policy)) {
            (4, Some(policy)) => rows.push(Row {
                line: number,
                name: name.trim_matches('`').to_owned(),
                depends_on: names(depends_on),
                policy,
            }),
            (4, None) => findings.push(format!(
                "ARCHITECTURE.md:{number}: `{policy}` is no policy for unsafe code: write forbid, deny, yes or `FILE` only"
            )),
            (n, _) => findings.push(format!("ARCHITECTURE.md:{number}: {n} columns, not 4")),
        }
    }
    (rows, findings)
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// The columns that are compared: crate, depends on, unsafe.
fn pick<'a>(cells: &[&'a str]) -> [&'a str; 3] {
    [0, 2, 3].map(|i| cells.get(i).copied().unwrap_or(""))
}

fn names(cell: &str) -> Vec<String> {
    let words = cell.split(',').map(|word| word.trim().trim_matches('`'));
    words.filter(|word| !word.is_empty() && *word != "–" && *word != "-").map(str::to_owned).collect()
}

fn policy(cell: &str) -> Option<Policy> {
    // What follows the first comma or bracket is for the reader.
    let word = cell.split([',', '(']).next().unwrap_or("").trim();
    match word {
        "forbid" => Some(Policy::Forbid),
        "deny" => Some(Policy::Deny),
        "yes" => Some(Policy::Yes),
        _ => {
            let files: Vec<_> = cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            (!files.is_empty() && cell.ends_with("only")).then_some(Policy::Files(files))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Architecture\n\n| what | else |\n|---|---|\n| a | b |\n\n\
        | crate | one sentence | depends on | unsafe |\n|---|---|---|---|\n\
        | `wire` | Bytes. | – | deny |\n\
        | `sys` | Linux. | – | yes, the only large place |\n\
        | `frame` | Memory. | – | `arena.rs`, `pool.rs` only |\n\
        | `port` | Words. | frame, `filter` | forbid |\n\nMore text.\n| x | y | z | forbid |\n";

    #[test]
    fn rows_are_read_with_their_lines() {
        let (rows, findings) = parse(TEXT);
        assert!(findings.is_empty(), "{findings:?}");
        let row = |line, name: &str, depends_on: &[&str], policy| Row {
            line,
            name: name.into(),
            depends_on: depends_on.iter().map(ToString::to_string).collect(),
            policy,
        };
        assert_eq!(
            rows,
            [
                row(9, "wire", &[], Policy::Deny),
                row(10, "sys", &[], Policy::Yes),
                row(11, "frame", &[], Policy::Files(vec!["arena.rs".into(), "pool.rs".into()])),
                row(12, "port", &["frame", "filter"], Policy::Forbid),
            ]
        );
    }

    #[test]
    fn what_cannot_be_read_is_named_by_its_line() {
        let (_, findings) = parse(&TEXT.replace("| deny |", "| maybe |"));
        assert!(
            matches!(&findings[..], [one] if one.starts_with("ARCHITECTURE.md:9: `maybe`")),
            "{findings:?}"
        );
        let (_, findings) = parse(&TEXT.replace("| Bytes. |", "|"));
        assert!(matches!(&findings[..], [one] if one.starts_with("ARCHITECTURE.md:9:")), "{findings:?}");
        let (rows, findings) = parse("no table");
        assert!(rows.is_empty() && findings.len() == 1);
    }
}
