//! Rule files: TOML, checked as a whole before anything is made of it, with line and column of what is wrong.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bywash_port::filter::Expression;
use bywash_port::filter::rules::{FlowOptions, MOST_FLOWS, PrefixError, SynProxy};
use bywash_port::filter::xdp::NeverTake;
use bywash_port::{Action, Limit, Per, Prefix, Rule, RuleSet, Rules, SteerError};
use serde::Deserialize;
use toml::Spanned;
use toml::value::{Datetime, Offset};

mod condition;
mod idle;
mod read;
#[cfg(test)]
mod tests;

use super::watched::Watched;
use crate::text;
use condition::{RawPayload, RawPorts, expression};
use read::text_of;

/// One sample in so many packets, at most: random numbers of 32 bits say how many there are between two.
const MOST_RARE: u32 = 1_000_000_000;

/// Packets per second of a limit, at most: what is kept of a key is when its next packet is due, in nanoseconds.
const MOST_RATE: u32 = 1_000_000_000;

/// What is wrong with a rule file. It prints as `FILE:LINE:COLUMN: what`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {what}", shown(*.line, *.column))]
pub struct RuleFileError {
    /// The file; one that it names, perhaps.
    pub file: String,
    /// The line, from 1 on; 0 where the file can't be read.
    pub line: usize,
    /// The column, from 1 on.
    pub column: usize,
    /// What is wrong, and what to write instead.
    pub what: String,
}

/// `:LINE:COLUMN`, where there is a line.
fn shown(line: usize, column: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}:{column}") }
}

/// A rule file that can't be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// What is wrong.
    pub error: RuleFileError,
    /// The file itself and those that it names, up to where it is wrong: what puts it right is a change of one of these.
    pub files: Vec<Watched>,
}

/// A rule file that was read.
#[derive(Clone, Debug)]
pub struct RuleFile {
    /// All its rules, in order.
    pub rules: Vec<Rule>,
    /// What is never dropped.
    pub never: Vec<Expression>,
    /// What is kept of established flows.
    pub flows: FlowOptions,
    /// The file itself and those that it names.
    pub files: Vec<Watched>,
    /// What is dropped by no rule, as far as that is known.
    pub spared: NeverTake,
    /// Whether somebody keeps samples; else no rule draws any.
    pub keeps_samples: bool,
    /// Where in the text the first begins that is never dropped, what is said of established flows, and the first that establishes
    /// nothing.
    never_at: Option<usize>,
    established_at: Option<usize>,
    except_at: Option<usize>,
    /// Where in the text each rule's parts are.
    places: Vec<RulePlaces>,
    /// Lines are counted in it for what is told of, and only then: in a long file that takes time.
    text: Arc<str>,
}

/// Where the parts of a rule begin that something can be said of.
#[derive(Clone, Copy, Debug)]
struct RulePlaces {
    name: usize,
    action: usize,
    expression: Option<usize>,
    expires: Option<usize>,
    sample: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    never_drop: Vec<Spanned<String>>,
    established: Option<Spanned<RawEstablished>>,
    #[serde(default)]
    rule: Vec<Spanned<RawRule>>,
}

/// What rules with `established = true` go by.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEstablished {
    flows: Option<Spanned<usize>>,
    #[serde(default)]
    except: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    name: Spanned<String>,
    action: Spanned<String>,
    #[serde(rename = "match")]
    expression: Option<Spanned<String>>,
    from: Option<Spanned<Vec<Spanned<String>>>>,
    to: Option<Spanned<Vec<Spanned<String>>>>,
    from_file: Option<Spanned<PathBuf>>,
    to_file: Option<Spanned<PathBuf>>,
    from_ports: Option<Spanned<Vec<Spanned<RawPorts>>>>,
    to_ports: Option<Spanned<Vec<Spanned<RawPorts>>>>,
    names: Option<Spanned<Vec<Spanned<String>>>>,
    names_file: Option<Spanned<PathBuf>>,
    payload: Option<Spanned<Vec<Spanned<RawPayload>>>>,
    established: Option<Spanned<bool>>,
    idle_seconds: Option<Spanned<u32>>,
    sample: Option<Spanned<u32>>,
    expires: Option<Spanned<Datetime>>,
    #[serde(default)]
    dry_run: bool,
    rate: Option<Spanned<u32>>,
    burst: Option<Spanned<u32>>,
    per: Option<Spanned<String>>,
    block_seconds: Option<Spanned<u32>>,
    queue: Option<Spanned<u16>>,
    mss: Option<Spanned<u16>>,
    wscale: Option<Spanned<u8>>,
}

impl RulePlaces {
    fn of(raw: &RawRule) -> Self {
        Self {
            name: raw.name.span().start,
            action: raw.action.span().start,
            expression: raw.expression.as_ref().map(|expression| expression.span().start),
            expires: raw.expires.as_ref().map(|expires| expires.span().start),
            sample: raw.sample.as_ref().map(|sample| sample.span().start),
        }
    }
}

/// What is wrong, and where in the text.
struct Fault {
    at: Range<usize>,
    /// A string is there, and it is wrong at this byte of what it says.
    within: Option<usize>,
    what: String,
}

fn fault<T>(at: &Spanned<T>, what: impl Display) -> Fault {
    Fault { at: at.span(), within: None, what: what.to_string() }
}

/// Where a name can be understood only together with the file that it stands in.
enum Wrong {
    Here(Fault),
    Elsewhere(RuleFileError),
}

impl From<Fault> for Wrong {
    fn from(fault: Fault) -> Self {
        Self::Here(fault)
    }
}

impl RuleFile {
    /// Reads a rule file.
    ///
    /// # Errors
    /// [`RuleFileError`]
    pub fn read(path: &Path) -> Result<Self, RuleFileError> {
        Self::read_or_refuse(path).map_err(|refused| refused.error)
    }

    fn read_or_refuse(path: &Path) -> Result<Self, Refused> {
        let file = Watched::now(path);
        match text_of(path) {
            Ok(text) => Self::parse_of(&text, file),
            Err(error) => Err(Refused { error, files: vec![file] }),
        }
    }

    /// Reads it again, for the same machine and the same keeper of samples.
    ///
    /// # Errors
    /// [`Refused`]
    pub fn read_again(&self) -> Result<Self, Refused> {
        let (spared, keeps_samples) = (self.spared.clone(), self.keeps_samples);
        Ok(Self { spared, keeps_samples, ..Self::read_or_refuse(&self.files[0].path)? })
    }

    /// Whether there is not one byte in it.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The same of its text; `path` says what it is called, and where the files are that it names.
    ///
    /// # Errors
    /// [`RuleFileError`]
    pub fn parse(text: &str, path: &Path) -> Result<Self, RuleFileError> {
        Self::parse_of(text, Watched::now(path)).map_err(|refused| refused.error)
    }

    fn parse_of(text: &str, file: Watched) -> Result<Self, Refused> {
        let mut file = Self {
            rules: Vec::new(),
            never: Vec::new(),
            flows: FlowOptions::default(),
            files: vec![file],
            spared: NeverTake::default(),
            keeps_samples: true,
            never_at: None,
            established_at: None,
            except_at: None,
            places: Vec::new(),
            text: text.into(),
        };
        match file.take_in(text) {
            Ok(()) => Ok(file),
            Err(error) => Err(Refused { error, files: file.files }),
        }
    }

    /// Makes rules of its text.
    fn take_in(&mut self, text: &str) -> Result<(), RuleFileError> {
        let path = &self.files[0].path.clone();
        let at = |fault: Fault| located(path, text, fault);
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let what = match toml::from_str::<toml::Table>(text) {
                Ok(table) if table.get("rule").is_some_and(toml::Value::is_table) => {
                    "there may be several rules: write [[rule]], with two brackets, above each".into()
                }
                _ => error.message().lines().collect::<Vec<_>>().join(" "),
            };
            at(Fault { at: error.span().unwrap_or_default(), within: None, what })
        })?;
        if let Some(established) = &raw.established {
            self.flows = flows(established.get_ref()).map_err(at)?;
            self.established_at = Some(established.span().start);
            self.except_at = established.get_ref().except.first().map(|except| except.span().start);
        }
        self.never = never_drop(&raw.never_drop).map_err(at)?;
        self.never_at = raw.never_drop.first().map(|never| never.span().start);
        let mut names = HashSet::new();
        for raw in &raw.rule {
            let rule = self.rule(raw.get_ref(), path).map_err(|wrong| match wrong {
                Wrong::Here(fault) => at(fault),
                Wrong::Elsewhere(error) => error,
            })?;
            if !names.insert(raw.get_ref().name.get_ref()) {
                let twice = format!("the name '{}' is there twice: counters are known by it", rule.name);
                return Err(at(fault(&raw.get_ref().name, twice)));
            }
            self.rules.push(rule);
            self.places.push(RulePlaces::of(raw.get_ref()));
        }
        let refused = |why: String| self.named(&why).unwrap_or_else(|| self.at(0, why));
        self.live(SystemTime::UNIX_EPOCH).map_err(refused)?;
        Ok(())
    }

    /// The rules, if ports can steer by them, which `check` says.
    ///
    /// # Errors
    /// [`RuleFileError`], with the place of the first by which they can't, or of what else has no meaning there.
    pub fn for_steer(
        self,
        check: impl Fn(&Rule) -> Result<(), SteerError>,
    ) -> Result<Vec<Rule>, RuleFileError> {
        let strays = [
            (self.never_at, "--steer has no such list: leave never_drop out, and name what is to be dropped"),
            (self.established_at, "--steer keeps nothing of flows: leave [established] out"),
        ];
        if let Some((at, what)) = strays.into_iter().find_map(|(at, what)| Some((at?, what))) {
            return Err(self.at(at, what.into()));
        }
        for (rule, places) in self.rules.iter().zip(&self.places) {
            if let Err(error) = check(rule) {
                return Err(
                    self.at(places.action, format!("'{}' is no rule for --steer: {error}", rule.name))
                );
            }
        }
        Ok(self.rules)
    }

    /// Why rules were refused, with the place of the rule that is named there first, `the rule 'NAME'`, or of `never_drop` or `(except)`.
    pub fn located(&self, why: &str) -> String {
        self.named(why).map_or_else(|| why.into(), |error| error.to_string())
    }

    fn named(&self, why: &str) -> Option<RuleFileError> {
        // It begins with the rule that is wrong, and others may come behind; of names that begin alike the whole one is meant.
        let named = self.rules.iter().zip(&self.places).filter_map(|(rule, places)| {
            let begin = why.find(&format!("the rule '{}'", rule.name))?;
            Some((begin, Reverse(rule.name.len()), places.action))
        });
        let rule = named.min().map(|(.., action)| action);
        let never = || self.never_at.filter(|_| why.contains("never_drop"));
        let except = || self.except_at.filter(|_| why.contains("(except)"));
        Some(self.at(rule.or_else(never).or_else(except)?, why.into()))
    }

    /// What there is to be said of a place in the text.
    fn at(&self, at: usize, what: String) -> RuleFileError {
        let path = self.files.first().map_or(Path::new(""), |file| &file.path);
        located(path, &self.text, Fault { at: at..at, within: None, what })
    }

    /// The rules that have not expired.
    ///
    /// # Errors
    /// Why they can't be a set.
    pub fn live(&self, now: SystemTime) -> Result<Rules, String> {
        let live = self.rules.iter().filter(|rule| rule.expires.is_none_or(|end| end > now));
        let drawn = |rule: &Rule| Rule { sample: rule.sample.filter(|_| self.keeps_samples), ..rule.clone() };
        let set = RuleSet::new(live.map(drawn).collect()).map_err(|error| error.to_string())?;
        Ok(Rules { set: Arc::new(set), never: self.never.clone(), flows: self.flows.clone() })
    }

    /// When the next rule expires.
    pub fn next_expiry(&self, now: SystemTime) -> Option<SystemTime> {
        self.rules.iter().filter_map(|rule| rule.expires).filter(|end| *end > now).min()
    }

    /// Whether a rule has not expired now that had at another time, later than this.
    pub(super) fn revives(&self, now: SystemTime, later: SystemTime) -> bool {
        self.rules.iter().filter_map(|rule| rule.expires).any(|end| end > now && end <= later)
    }

    fn rule(&mut self, raw: &RawRule, path: &Path) -> Result<Rule, Wrong> {
        let name = raw.name.get_ref();
        if name.trim().is_empty() {
            return Err(fault(&raw.name, "a rule needs a name: counters are known by it").into());
        }
        if name.contains(char::is_control) {
            let what =
                "a control character is in the name, which terminals and logs would obey: leave it out";
            return Err(fault(&raw.name, what).into());
        }
        let condition = self.condition(raw, path)?;
        let sample = match &raw.sample {
            None => None,
            Some(sample) if *sample.get_ref() > MOST_RARE => {
                return Err(fault(sample, format!("one in so many: at most {MOST_RARE}")).into());
            }
            Some(sample) => Some(
                NonZeroU32::new(*sample.get_ref())
                    .ok_or_else(|| fault(sample, "one in 0: write 1 for all"))?,
            ),
        };
        let expires = raw.expires.as_ref().map(moment).transpose()?;
        let action = action(raw)?;
        let in_user_space = !condition.names.is_empty() || !condition.payload.is_empty();
        if action.answers_syns() && (in_user_space || sample.is_some() || raw.dry_run) {
            let what = "SYNs are answered in XDP: no names, payload, sample or dry_run here, put them in another rule";
            return Err(fault(&raw.action, what).into());
        }
        Ok(Rule { name: name.clone(), condition, action, sample, expires, dry_run: raw.dry_run })
    }
}

fn action(raw: &RawRule) -> Result<Action, Fault> {
    let action = match raw.action.get_ref().as_str() {
        "drop" => Action::Drop,
        "pass" => Action::Pass,
        "count" => Action::Count,
        "sample" if raw.sample.is_some() => Action::Count,
        "sample" => return Err(fault(&raw.action, "say how many: sample = 1000 keeps one in a thousand")),
        "limit" => Action::Limit(limit(raw)?),
        "syncookie" => Action::SynCookie,
        "synproxy" => Action::SynProxy(syn_proxy(raw)?),
        "queue" => {
            let queue = raw.queue.as_ref().map(|queue| *queue.get_ref());
            let queue = queue.ok_or_else(|| fault(&raw.action, "say which, from 0 on: queue = 3"))?;
            Action::Steer(queue)
        }
        other => {
            let what = format!(
                "'{other}' is no action: write drop, pass, count, sample, limit, syncookie, synproxy or queue"
            );
            return Err(fault(&raw.action, what));
        }
    };
    let parts = [
        (raw.queue.as_ref().map(Spanned::span), "queue"),
        (raw.rate.as_ref().map(Spanned::span), "limit"),
        (raw.burst.as_ref().map(Spanned::span), "limit"),
        (raw.per.as_ref().map(Spanned::span), "limit"),
        (raw.block_seconds.as_ref().map(Spanned::span), "limit"),
        (raw.mss.as_ref().map(Spanned::span), "synproxy"),
        (raw.wscale.as_ref().map(Spanned::span), "synproxy"),
    ];
    let stray = parts.into_iter().find_map(|(at, of)| Some((at?, of)).filter(|_| of != action.name()));
    match stray {
        Some((at, of)) => Err(Fault { at, within: None, what: format!("this is for action = \"{of}\"") }),
        None => Ok(action),
    }
}

fn syn_proxy(raw: &RawRule) -> Result<SynProxy, Fault> {
    let wanting = |what| fault(&raw.action, format!("say what SYNPROXY says for the servers: {what}"));
    let mss = raw.mss.as_ref().ok_or_else(|| wanting("mss = 1460"))?;
    let window_scale = raw.wscale.as_ref().ok_or_else(|| wanting("wscale = 7"))?;
    if *mss.get_ref() == 0 {
        return Err(fault(mss, "segments of 0 bytes carry nothing"));
    }
    // RFC 7323, 2.3
    if *window_scale.get_ref() > 14 {
        return Err(fault(window_scale, "a window scale is 14 at most"));
    }
    Ok(SynProxy { mss: *mss.get_ref(), window_scale: *window_scale.get_ref() })
}

fn limit(raw: &RawRule) -> Result<Limit, Fault> {
    let rate =
        raw.rate.as_ref().ok_or_else(|| fault(&raw.action, "a limit needs a rate, in packets per second"))?;
    let above_0 = |value: &Spanned<u32>, what| match *value.get_ref() {
        0 => Err(fault(value, what)),
        value => Ok(value),
    };
    let positive =
        |value: &Spanned<u32>| above_0(value, "0 lets nothing through: write action = \"drop\" for that");
    if let Some(rate) = Some(rate).filter(|rate| *rate.get_ref() > MOST_RATE) {
        return Err(fault(rate, format!("packets are told apart by nanoseconds: at most {MOST_RATE}")));
    }
    let burst = raw.burst.as_ref().map_or(Ok(*rate.get_ref()), positive)?;
    let per = raw.per.as_ref().map_or(Ok(Per::Source { v4: 32, v6: 64 }), per)?;
    let block = raw.block_seconds.as_ref();
    if let Some(block) = block.filter(|_| !matches!(per, Per::Source { .. })) {
        return Err(fault(block, "only sources can be blocked: leave it out, or write per = \"source\""));
    }
    let block = block.map(|block| above_0(block, "0 s block nobody: leave it out, or write 1 or more"));
    let block = block.transpose()?.map(|seconds| Duration::from_secs(seconds.into()));
    Ok(Limit { rate: positive(rate)?, burst, per, block })
}

fn per(text: &Spanned<String>) -> Result<Per, Fault> {
    let wrong = || {
        let what =
            format!("'{}': write source, source/24, source/24/56 (IPv6), flow or rule", text.get_ref());
        fault(text, what)
    };
    let mut parts = text.get_ref().split('/');
    let kind = parts.next().unwrap_or_default();
    let mut bits = |whole: u8, most: u8| match parts.next() {
        None => Ok(whole),
        Some(bits) => bits.parse().ok().filter(|bits| (1..=most).contains(bits)).ok_or_else(wrong),
    };
    let (v4, v6) = (bits(32, 32)?, bits(64, 128)?);
    match (kind, text.get_ref().contains('/'), parts.next()) {
        ("source", _, None) => Ok(Per::Source { v4, v6 }),
        ("flow", false, None) => Ok(Per::Flow),
        ("rule", false, None) => Ok(Per::Rule),
        _ => Err(wrong()),
    }
}

fn flows(raw: &RawEstablished) -> Result<FlowOptions, Fault> {
    let except = raw.except.iter().map(|text| some(text, "no flow would be established: leave it out"));
    let except = except.collect::<Result<_, _>>()?;
    let most = match &raw.flows {
        None => FlowOptions::default().most,
        Some(flows) if (1..=MOST_FLOWS).contains(flows.get_ref()) => *flows.get_ref(),
        Some(flows) => {
            return Err(fault(flows, format!("so many flows can't be kept: write 1 to {MOST_FLOWS}")));
        }
    };
    Ok(FlowOptions { most, except })
}

/// Most prefixes that one expression joins, which has so many bytes at most.
const MOST_JOINED: usize = 1000;

/// Addresses and prefixes, of who sends: were what goes to them spared as well, one's own network would switch all rules off. And
/// expressions. Prefixes of a family are one expression, as long as one may be: that searches
/// for an address once, and not for each.
fn never_drop(texts: &[Spanned<String>]) -> Result<Vec<Expression>, Fault> {
    let (mut never, mut prefixes) = (Vec::new(), [Vec::new(), Vec::new()]);
    for text in texts {
        match text.get_ref().parse::<Prefix>() {
            Ok(prefix) => prefixes[usize::from(prefix.address().is_ipv6())].push((text, prefix)),
            // An address, and something wrong behind it: no expression is meant.
            Err(error @ (PrefixError::Bits(_) | PrefixError::Behind(..))) => return Err(fault(text, error)),
            Err(PrefixError::Address(_)) => {
                never.push(some(text, "no rule would drop anything: leave it out")?);
            }
        }
    }
    for joined in prefixes.iter().flat_map(|family| family.chunks(MOST_JOINED)) {
        let nets: Vec<String> = joined.iter().map(|(_, prefix)| format!("src net {prefix}")).collect();
        let all = format!("anyvlan and ({})", nets.join(" or "));
        never.push(all.parse::<Expression>().map_err(|error| fault(joined[0].0, error.what()))?);
    }
    Ok(never)
}

/// An expression that is not every packet; `why` it must not be.
fn some(text: &Spanned<String>, why: &str) -> Result<Expression, Fault> {
    let read = expression(text)?;
    if read.matches_all() {
        return Err(fault(text, format!("'{}' is every packet, so {why}", text.get_ref())));
    }
    Ok(read)
}

/// A moment with date, time and offset.
fn moment(text: &Spanned<Datetime>) -> Result<SystemTime, Fault> {
    let wrong = || fault(text, "write date, time and offset: 2026-12-01T18:00:00Z");
    let &Datetime { date: Some(date), time: Some(time), offset: Some(offset) } = text.get_ref() else {
        return Err(wrong());
    };
    let minutes = match offset {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    let days = days_since_1970(i64::from(date.year), i64::from(date.month), i64::from(date.day));
    let of_day =
        i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + i64::from(time.second.unwrap_or(0));
    let seconds = days * 86_400 + of_day - minutes * 60;
    let seconds = u64::try_from(seconds).map_err(|_| wrong())?;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Days from the first of January 1970 in the Gregorian calendar: years are counted from March, so that a leap day is the
/// last of its year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let month = (month + 9) % 12;
    let of_year = (153 * month + 2) / 5 + day - 1;
    365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

/// A fault with line and column.
fn located(path: &Path, text: &str, Fault { at, within, what }: Fault) -> RuleFileError {
    let inside = within.map_or(0, |within| opening(text.get(at.clone()).unwrap_or_default()) + within);
    let (line, column) = text::place(text, at.start + inside);
    RuleFileError { file: path.display().to_string(), line, column, what }
}

/// Bytes of a string in TOML before what it says: quotation marks, and behind three of them the end of their line.
fn opening(string: &str) -> usize {
    match ["\"\"\"", "'''"].iter().find_map(|marks| string.strip_prefix(marks)) {
        Some(rest) => {
            3 + ["\n", "\r\n"].iter().find(|end| rest.starts_with(**end)).map_or(0, |end| end.len())
        }
        None => 1,
    }
}
