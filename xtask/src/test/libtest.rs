//! Reading what `cargo test` prints.
//!
//! libtest's machine-readable output needs a nightly toolchain; its lines for people have not changed in years.

/// What all test programs of a run have counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests marked `#[ignore]`, with the reason where one is given.
    pub(crate) ignored: Vec<String>,
}

/// Reads the output line by line.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) counts: Counts,
    suite: String,
}

impl Reader {
    /// Takes the next line. Returns a line to print when a test program has ended.
    pub(crate) fn line(&mut self, line: &str) -> Option<String> {
        if let Some(suite) = suite(line) {
            self.suite = suite;
        } else if let Some((passed, failed)) = result(line) {
            self.counts.passed += passed;
            self.counts.failed += failed;
            let bad = if failed > 0 { format!(", {failed} FAILED") } else { String::new() };
            return (passed + failed > 0).then(|| format!("{}: {passed} passed{bad}", self.suite));
        } else if let Some(test) = ignored(line) {
            self.counts.ignored.push(format!("{}: {test}", self.suite));
        }
        None
    }
}

/// `Running unittests src/lib.rs (target/debug/deps/bywash_frame-0123)` and `Doc-tests bywash_frame`: the program.
fn suite(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name} (documentation)"));
    }
    let (source, program) = line.strip_prefix("Running ")?.strip_suffix(')')?.split_once(" (")?;
    let file = program.rsplit('/').next()?;
    let name = file.rsplit_once('-').map_or(file, |(name, _hash)| name);
    Some(match source.strip_prefix("unittests ") {
        Some(_) => name.to_owned(),
        None => source.to_owned(),
    })
}

/// `test result: ok. 3 passed; 0 failed; ...`: passed and failed. What a test writes without a newline stands in front.
fn result(line: &str) -> Option<(u64, u64)> {
    let counts = line.split_once("test result: ")?.1.split_once(". ")?.1;
    let count = |word: &str| {
        let part = counts.split("; ").find(|part| part.ends_with(word))?;
        part.split_whitespace().next()?.parse().ok()
    };
    Some((count(" passed")?, count(" failed")?))
}

/// `test name ... ignored, reason`: name and reason.
fn ignored(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let reason = rest.strip_prefix("ignored")?;
    Some(format!("{name}: {}", reason.strip_prefix(", ").unwrap_or("ignored")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> (Counts, Vec<String>) {
        let mut reader = Reader::default();
        let printed = output.lines().filter_map(|line| reader.line(line)).collect();
        (reader.counts, printed)
    }

    #[test]
    fn unit_integration_and_doc_tests_are_counted() {
        let (counts, printed) = read(
            "   Compiling bywash-frame v0.1.0\n     Running unittests src/lib.rs (target/debug/deps/bywash_frame-5e0d)\n\
             \nrunning 2 tests\ntest arena::tests::one ... ok\ntest arena::tests::slow ... ignored, takes an hour\n\n\
             test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n\
                  Running tests/ownership.rs (target/debug/deps/ownership-77)\n\
             test result: FAILED. 6 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n\
                Doc-tests bywash_frame\n\
             test crates/frame/src/lib.rs - (line 9) ... ignored\n\
             test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.31s\n",
        );
        assert_eq!((counts.passed, counts.failed), (11, 2));
        assert_eq!(
            counts.ignored,
            [
                "bywash_frame: arena::tests::slow: takes an hour",
                "bywash_frame (documentation): crates/frame/src/lib.rs - (line 9): ignored"
            ]
        );
        assert_eq!(
            printed,
            [
                "bywash_frame: 1 passed",
                "tests/ownership.rs: 6 passed, 2 FAILED",
                "bywash_frame (documentation): 4 passed"
            ]
        );
    }

    #[test]
    fn a_result_is_seen_behind_what_a_test_wrote() {
        let (counts, _) =
            read("rate 3test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(counts.passed, 5);
    }

    #[test]
    fn other_lines_count_nothing() {
        let (counts, printed) =
            read("test result\ntest result: \nRunning away\ntest one ... ok\n     Running (x)\n");
        assert_eq!((counts, printed), (Counts::default(), vec![]));
    }
}
