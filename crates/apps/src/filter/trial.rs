//! Rules held against a capture before they go live: what each would have done.
//!
//! When it is known which side of the capture is ours, what that side has sent establishes flows and is not judged: no
//! filter sees it. Else all packets have come in.

use std::fmt::{self, Display};
use std::io::Read;
use std::slice;
use std::time::SystemTime;

use bywash_pcap::{Link, ReadError, Reader};
use bywash_port::filter::Expression;
use bywash_port::filter::rules::{
    Established, Flow, FlowLayout, FlowMap, FlowTable, Headers, RuleProgram, Way, time,
};
use bywash_port::{Action, Prefix, Rule, Rules};
use bywash_sys::clock::SECOND;
use serde::Serialize;

use super::judge::{Blocked, Counted, Judge};
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
    /// Packets that this side has sent, which were not judged.
    pub outgoing_packets: u64,
    /// Records that are no Ethernet packets, which were left out.
    pub foreign_packets: u64,
    /// Packets of which the capture has not all bytes: to rules that look farther they are shorter than they were.
    pub cut_packets: u64,
    /// Packets of which the capture has no time: for limits and established flows they came at once with the one before.
    pub untimed_packets: u64,
    /// What each rule would have done, in order.
    pub rules: Vec<TrialRule>,
    /// A rule asks when packets came.
    #[serde(skip)]
    pub asks_time: bool,
    /// Why the capture could be read no farther.
    #[serde(skip)]
    pub broken: Option<ReadError>,
}

/// What one rule would have done.
#[derive(Debug, Serialize)]
pub struct TrialRule {
    /// Its name.
    pub rule: String,
    /// Its action.
    pub action: &'static str,
    /// It answers SYNs.
    #[serde(skip)]
    pub answers_syns: bool,
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
    /// The rules can't be a set, or no program can be made of them.
    #[error("{0}")]
    Rules(String),
    /// The rule file is wrong.
    #[error(transparent)]
    File(#[from] RuleFileError),
    /// A rule asks for what only this side's packets tell.
    #[error(
        "the rule '{0}' is about established flows: say which addresses of the capture are this side's \
         (--ours 192.0.2.1,2001:db8::/64)"
    )]
    Ours(String),
}

/// Holds the rules of a file against a capture, as far as it can be read. Its own times are the clock, for limits and flows. What comes from `ours`
/// is what this side has sent.
///
/// # Errors
/// [`TrialError`]
pub fn try_rules<R: Read>(file: &RuleFile, ours: &[Prefix], capture: R) -> Result<Trial, TrialError> {
    let refused = |why: String| TrialError::Rules(file.located(&why));
    let rules = file.live(SystemTime::now()).map_err(refused)?;
    let spared = file.spared.expression();
    fit(&rules, &spared).map_err(refused)?;
    let asks = |rule: &&Rule| rule.condition.established.is_some();
    if let Some(rule) = rules.set.rules().iter().find(asks).filter(|_| ours.is_empty()) {
        return Err(TrialError::Ours(rule.name.clone()));
    }
    let mut flows = FlowTable::new(FlowLayout::new(rules.flows.most, NO_SECRET));
    let (mut judge, mut blocked) = (Judge::new(&rules.set, None), Blocked::new());
    let mut reader = Reader::new(capture)?;
    let mut trial = Trial {
        packets: 0,
        passed_packets: 0,
        dropped_packets: 0,
        never_packets: 0,
        outgoing_packets: 0,
        foreign_packets: 0,
        cut_packets: 0,
        untimed_packets: 0,
        asks_time: rules
            .set
            .rules()
            .iter()
            .any(|rule| asks(&rule) || matches!(rule.action, Action::Limit(_))),
        rules: Vec::new(),
        broken: None,
    };
    let mut clock = Clock::default();
    loop {
        let record = match reader.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(error) => {
                trial.broken = Some(error);
                break;
            }
        };
        if record.link != Link::ETHERNET {
            trial.foreign_packets += 1;
            continue;
        }
        trial.packets += 1;
        trial.cut_packets += u64::from(record.is_cut());
        let packet = (record.bytes, record.original_len as usize);
        trial.untimed_packets += u64::from(record.time.is_none());
        let now = clock.at(record.time);
        let source = Headers::of(packet.0).source();
        if source.is_some_and(|source| ours.iter().any(|prefix| prefix.contains(source))) {
            trial.outgoing_packets += 1;
            let is_except = rules.flows.except.iter().any(|except| except.matches_len(packet.0, packet.1));
            if let Some(flow) = Flow::of(packet.0, Way::Out).filter(|_| !is_except) {
                flows.note(&flow, time(now));
            }
            continue;
        }
        let mut never = std::iter::once(&spared).chain(&rules.never);
        if never.any(|never| never.matches_len(packet.0, packet.1)) {
            trial.never_packets += 1;
            continue;
        }
        let seen = Established { flows: Some(&flows), now };
        match judge.judge_alone(&rules.set, packet, seen, &mut blocked).is_dropped {
            true => trial.dropped_packets += 1,
            false => trial.passed_packets += 1,
        }
    }
    let of = |(rule, counted): (&Rule, &Counted)| TrialRule {
        rule: rule.name.clone(),
        action: rule.action_name(),
        answers_syns: rule.action.answers_syns(),
        dry_run: rule.dry_run,
        packets: counted.about.packets,
        bytes: counted.about.bytes,
        dropped_packets: counted.dropped,
    };
    trial.rules = rules.set.rules().iter().zip(judge.counted()).map(of).collect();
    Ok(trial)
}

/// The time of a capture as it goes by: what stamps say is a clock that may be set, and one of them may be wrong.
#[derive(Default)]
struct Clock {
    /// Nanoseconds since the first packet.
    now: u64,
    /// The stamp that this was at.
    stamp: Option<u64>,
}

/// Packets of several cores or interfaces may stand in another order than they came. What is farther back is a clock that was set.
const DISORDER: u64 = SECOND;

/// More than that is no time that went by between two packets, in nanoseconds: a day.
const LONGEST: u64 = 24 * 60 * 60 * SECOND;

impl Clock {
    /// When a packet of this stamp came.
    fn at(&mut self, stamp: Option<u64>) -> u64 {
        let Some(stamp) = stamp else { return self.now };
        let before = self.stamp.unwrap_or(stamp);
        if stamp >= before || before - stamp > DISORDER {
            self.now = self.now.saturating_add(stamp.saturating_sub(before).min(LONGEST));
            self.stamp = Some(stamp);
        }
        self.now
    }
}

/// Nobody plays against a capture: no secret is needed.
const NO_SECRET: [u64; 2] = [1, 0x9e37_79b9_7f4a_7c15];

/// Whether a port could make a program of these rules, which has its bounds.
fn fit(rules: &Rules, spared: &Expression) -> Result<(), String> {
    let slots: Vec<u32> = (0..).take(rules.set.rules().len()).collect();
    let never = [slice::from_ref(spared), &rules.never[..]].concat();
    // It is only made, and not loaded: no map has to be there.
    let program = RuleProgram {
        flows: Some(FlowMap { table: -1, layout: FlowLayout::new(rules.flows.most, NO_SECRET) }),
        ..RuleProgram::on_trial(&rules.set, &slots, &never)
    };
    program.program().map(drop).map_err(|error| error.to_string())
}

impl Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, passed_packets, dropped_packets, never_packets, .. } = self;
        write!(
            f,
            "{packets} packets: {dropped_packets} dropped, {passed_packets} passed, {never_packets} never dropped"
        )?;
        if self.outgoing_packets > 0 {
            write!(f, ", {} sent by this side", self.outgoing_packets)?;
        }
        if self.foreign_packets > 0 {
            write!(f, "; {} others are not Ethernet", self.foreign_packets)?;
        }
        for rule in &self.rules {
            let TrialRule { rule: name, action, packets, bytes, dropped_packets, dry_run, .. } = rule;
            write!(f, "\n  {name} ({action}): {packets} packets, {bytes} bytes, {dropped_packets} ")?;
            f.write_str(if *dry_run { "would be dropped: a dry run" } else { "dropped" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captures_time_goes_on_whatever_its_clock_was_set_to() {
        const DAY: u64 = 86_400_000;
        let mut clock = Clock::default();
        // Milliseconds: a stamp, and the time at it.
        let stamps = [
            (1_000_000, 0),
            (1_002_000, 2000),
            // Out of order.
            (1_001_500, 2000),
            (1_003_000, 3000),
            // Set back, and to the right time again.
            (10_000, 3000),
            (11_000, 4000),
            (1_004_000, 997_000),
            // A year ahead, for one packet.
            (1_004_000 + 365 * DAY, 997_000 + DAY),
            (1_005_000, 997_000 + DAY),
            (1_006_000, 998_000 + DAY),
        ];
        for (stamp, time) in stamps {
            assert_eq!(clock.at(Some(stamp * 1_000_000)), time * 1_000_000, "{stamp}");
        }
        assert_eq!(clock.at(None), clock.now, "it came at once with the one before");
    }
}
