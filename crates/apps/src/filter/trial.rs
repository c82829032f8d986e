//! Rules held against a capture before they go live: what each would have done.

use std::fmt::{self, Display};
use std::io::Read;
use std::time::SystemTime;

use bywash_pcap::{Link, ReadError, Reader};
use bywash_port::Rule;
use serde::Serialize;

use super::judge::{Counted, Judge};
use super::{RuleFile, RuleFileError};

/// What rules would have done.
#[derive(Debug, Serialize)]
pub struct Trial {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that would have gone on to the kernel.
    pub passed_packets: u64,
    /// Packets that would have been dropped.
    pub dropped_packets: u64,
    /// Packets that are never dropped, whatever the rules say.
    pub never_packets: u64,
    /// Records that are no Ethernet packets, which were left out.
    pub foreign_packets: u64,
    /// What each rule would have done, in order.
    pub rules: Vec<TrialRule>,
}

/// What one rule would have done.
#[derive(Debug, Serialize)]
pub struct TrialRule {
    /// Its name.
    pub rule: String,
    /// Its action.
    pub action: &'static str,
    /// It only counts.
    pub dry_run: bool,
    /// Packets that it is about.
    pub packets: u64,
    /// Their bytes, as they were on the wire.
    pub bytes: u64,
    /// Those that it drops, or would if it were no dry run.
    pub dropped_packets: u64,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The capture is broken.
    #[error(transparent)]
    Capture(#[from] ReadError),
    /// The rules can't be a set.
    #[error("{0}")]
    Rules(String),
    /// The rule file is wrong.
    #[error(transparent)]
    File(#[from] RuleFileError),
}

/// Holds the rules of a file against a capture. Its own times are the clock, for limits.
///
/// # Errors
/// [`TrialError`]
pub fn try_rules<R: Read>(file: &RuleFile, capture: R) -> Result<Trial, TrialError> {
    let rules = file.live(SystemTime::now()).map_err(TrialError::Rules)?;
    let mut judge = Judge::new(&rules.set, None);
    let mut reader = Reader::new(capture)?;
    let mut trial = Trial {
        packets: 0,
        passed_packets: 0,
        dropped_packets: 0,
        never_packets: 0,
        foreign_packets: 0,
        rules: Vec::new(),
    };
    let mut now = 0;
    while let Some(record) = reader.next_record()? {
        if record.link != Link::ETHERNET {
            trial.foreign_packets += 1;
            continue;
        }
        trial.packets += 1;
        let packet = (record.bytes, record.original_len as usize);
        if rules.never.iter().any(|never| never.matches_len(packet.0, packet.1)) {
            trial.never_packets += 1;
            continue;
        }
        // A clock that was set back does not run backwards here.
        now = record.time.unwrap_or(now).max(now);
        match judge.judge(&rules.set, packet, now, true).is_dropped {
            true => trial.dropped_packets += 1,
            false => trial.passed_packets += 1,
        }
    }
    let of = |(rule, counted): (&Rule, &Counted)| TrialRule {
        rule: rule.name.clone(),
        action: rule.action.name(),
        dry_run: rule.dry_run,
        packets: counted.about.packets,
        bytes: counted.about.bytes,
        dropped_packets: counted.dropped,
    };
    trial.rules = rules.set.rules().iter().zip(judge.counted()).map(of).collect();
    Ok(trial)
}

impl Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, passed_packets, dropped_packets, never_packets, .. } = self;
        write!(
            f,
            "{packets} packets: {dropped_packets} dropped, {passed_packets} passed, {never_packets} never dropped"
        )?;
        if self.foreign_packets > 0 {
            write!(f, "; {} others are not Ethernet", self.foreign_packets)?;
        }
        for rule in &self.rules {
            let TrialRule { rule: name, action, packets, bytes, dropped_packets, dry_run } = rule;
            write!(f, "\n  {name} ({action}): {packets} packets, {bytes} bytes, {dropped_packets} ")?;
            f.write_str(if *dry_run { "would be dropped: a dry run" } else { "dropped" })?;
        }
        Ok(())
    }
}
