//! Which seeds a long run is of.

use std::io::Write;

/// The seeds of a long run: all below `usual`, or what `BYWASH_SEEDS` says: how many, or `FROM..TO`.
pub(crate) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("BYWASH_SEEDS") else { return 0..usual };
    let (from, to) = text.split_once("..").unwrap_or(("0", &text));
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// Says what a run was of when it ends by a panic, whatever panics.
pub(crate) struct Told(pub(crate) String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // There is nowhere to complain about standard error.
            let _ = writeln!(std::io::stderr(), "failed: {}", self.0);
        }
    }
}
