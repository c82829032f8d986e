//! A rule's condition, as rule files say it: an expression and lists, some of them in files of their own.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bywash_port::filter::Expression;
use bywash_port::filter::rules::{NamePattern, NamePatternError, PayloadPattern, PayloadPlace};
use bywash_port::{Condition, Prefix};
use serde::Deserialize;
use toml::Spanned;

use super::{Fault, RawRule, RuleFile, RuleFileError, Watched, Wrong, fault, text_of};

#[derive(Deserialize)]
#[serde(untagged, expecting = "a port is a number, or a range: \"1000-2000\"")]
pub(super) enum RawPorts {
    One(i64),
    Range(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPayload {
    text: Option<Spanned<String>>,
    bytes: Option<Spanned<String>>,
    at: Option<Spanned<i64>>,
    within: Option<Spanned<i64>>,
}

impl RuleFile {
    pub(super) fn condition(&mut self, raw: &RawRule, path: &Path) -> Result<Condition, Wrong> {
        let mut condition = Condition {
            expression: raw.expression.as_ref().map(expression).transpose()?,
            from: list(raw.from.as_ref(), prefix)?,
            to: list(raw.to.as_ref(), prefix)?,
            from_ports: list(raw.from_ports.as_ref(), ports)?,
            to_ports: list(raw.to_ports.as_ref(), ports)?,
            names: list(raw.names.as_ref(), name)?,
            payload: list(raw.payload.as_ref(), payload)?,
            established: established(raw)?,
        };
        self.add_file(&mut condition.from, raw.from_file.as_ref(), path, "prefix")?;
        self.add_file(&mut condition.to, raw.to_file.as_ref(), path, "prefix")?;
        self.add_file(&mut condition.names, raw.names_file.as_ref(), path, "name")?;
        if condition == Condition::default() {
            let what = format!(
                "'{}' says not which packets: give it match, from, to, from_ports, to_ports, names, payload or established (match = \"\" is all)",
                raw.name.get_ref()
            );
            return Err(fault(&raw.name, what).into());
        }
        Ok(condition)
    }

    /// Adds what stands in a file that a rule names.
    fn add_file<T: FromStr<Err: Display>>(
        &mut self,
        list: &mut Vec<T>,
        named: Option<&Spanned<PathBuf>>,
        path: &Path,
        kind: &str,
    ) -> Result<(), Wrong> {
        let Some(named) = named else { return Ok(()) };
        let path = path.parent().unwrap_or(Path::new(".")).join(named.get_ref());
        self.files.push(Watched::now(&path));
        let more = lines(&path).map_err(|error| match error.line {
            // It has no line of its own: who names it has.
            0 => fault(named, error).into(),
            _ => Wrong::Elsewhere(error),
        })?;
        if more.is_empty() {
            let why = if list.is_empty() { "a list without any would match all" } else { "leave it out" };
            let what = format!("this file has no {kind}: {why}");
            return Err(fault(named, what).into());
        }
        list.extend(more);
        Ok(())
    }
}

pub(super) fn expression(text: &Spanned<String>) -> Result<Expression, Fault> {
    text.get_ref().parse::<Expression>().map_err(|error| {
        let cure = error.cure().map_or_else(String::new, |cure| format!(" ({cure})"));
        within(text, error.at(), format!("expression: {}{cure}", error.what()))
    })
}

/// What stands in a list, if there is one.
fn list<R, T>(
    raw: Option<&Spanned<Vec<Spanned<R>>>>,
    of: impl Fn(&Spanned<R>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    match raw {
        Some(raw) if raw.get_ref().is_empty() => {
            Err(fault(raw, "there is nothing in this list: leave it out"))
        }
        Some(raw) => raw.get_ref().iter().map(of).collect(),
        None => Ok(Vec::new()),
    }
}

fn prefix(text: &Spanned<String>) -> Result<Prefix, Fault> {
    text.get_ref().parse().map_err(|error| fault(text, error))
}

fn ports(ports: &Spanned<RawPorts>) -> Result<RangeInclusive<u16>, Fault> {
    let read = |text: &str| {
        let (from, to) = text.split_once('-')?;
        let range = from.trim().parse().ok()?..=to.trim().parse().ok()?;
        (!range.is_empty()).then_some(range)
    };
    match ports.get_ref() {
        RawPorts::One(port) => match u16::try_from(*port) {
            Ok(port) => Ok(port..=port),
            Err(_) => Err(fault(ports, format!("{port} is no port: they go from 0 to 65535"))),
        },
        RawPorts::Range(text) => read(text)
            .ok_or_else(|| fault(ports, format!("'{text}' is no range of ports: write \"1000-2000\""))),
    }
}

fn name(text: &Spanned<String>) -> Result<NamePattern, Fault> {
    text.get_ref().parse().map_err(|error: NamePatternError| within(text, error.at, error))
}

/// How long ago this machine may have sent something of a packet's flow.
fn established(raw: &RawRule) -> Result<Option<Duration>, Fault> {
    const USUAL: u32 = 300;
    const MOST: u32 = 365 * 24 * 60 * 60;
    if let Some(no) = raw.established.as_ref().filter(|yes| !*yes.get_ref()) {
        return Err(fault(no, "leave it out: without established a rule is about all flows"));
    }
    let seconds = match &raw.idle_seconds {
        None => USUAL,
        Some(seconds) if raw.established.is_none() => {
            return Err(fault(seconds, "this is for established = true"));
        }
        Some(seconds) if (1..=MOST).contains(seconds.get_ref()) => *seconds.get_ref(),
        Some(seconds) => return Err(fault(seconds, format!("write 1 to {MOST}, in seconds"))),
    };
    Ok(raw.established.as_ref().map(|_| Duration::from_secs(seconds.into())))
}

fn payload(raw: &Spanned<RawPayload>) -> Result<PayloadPattern, Fault> {
    const MOST: usize = 65_535;
    let RawPayload { text, bytes, at, within } = raw.get_ref();
    let bytes = match (text, bytes) {
        (Some(text), None) => text.get_ref().as_bytes().to_vec(),
        (None, Some(text)) => hex(text)?,
        _ => {
            return Err(fault(
                raw,
                "say what to look for, either text = \"GET /\" or bytes = \"de ad be ef\"",
            ));
        }
    };
    if bytes.is_empty() {
        return Err(fault(raw, "nothing to look for: write at least one byte"));
    }
    let number = |number: &Spanned<i64>, what: &str| match usize::try_from(*number.get_ref()) {
        Ok(found) if found <= MOST => Ok(found),
        _ => Err(fault(number, format!("{} is no {what}: they go from 0 to {MOST}", number.get_ref()))),
    };
    let place = match (at, within) {
        (Some(at), None) => PayloadPlace::At(number(at, "offset")?),
        (None, Some(within)) => {
            let depth = number(within, "number of bytes")?;
            if depth < bytes.len() {
                let what = format!("{} bytes do not lie within {depth}: write at least {0}", bytes.len());
                return Err(fault(within, what));
            }
            PayloadPlace::Within(depth)
        }
        _ => {
            return Err(fault(raw, "say where, either at = 0 (its offset) or within = 64 (the first bytes)"));
        }
    };
    Ok(PayloadPattern { bytes, place })
}

/// Pairs of hexadecimal digits; blanks between pairs are passed.
fn hex(text: &Spanned<String>) -> Result<Vec<u8>, Fault> {
    let all = text.get_ref().as_bytes();
    let (mut bytes, mut at) = (Vec::new(), 0);
    while let Some(byte) = all.get(at) {
        if *byte == b' ' {
            at += 1;
            continue;
        }
        let digit = |at: usize| all.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let pair = digit(at).zip(digit(at + 1)).and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        bytes.push(pair.ok_or_else(|| within(text, at, "no two hexadecimal digits: write \"de ad be ef\""))?);
        at += 2;
    }
    Ok(bytes)
}

/// A fault at a byte of a text. A text with escapes is shown a little too far left.
fn within(text: &Spanned<String>, at: usize, what: impl Display) -> Fault {
    Fault { within: Some(at), ..fault(text, what) }
}

/// An entry on each line; `#` begins a comment.
fn lines<T: FromStr<Err: Display>>(path: &Path) -> Result<Vec<T>, RuleFileError> {
    let text = text_of(path)?;
    let lines = text.lines().zip(1..).map(|(line, number)| {
        let entry = line.split('#').next().unwrap_or_default();
        let column = 1 + entry.len() - entry.trim_start().len();
        (entry.trim(), number, column)
    });
    let of = |(entry, line, column): (&str, usize, usize)| {
        let wrong = |error: T::Err| RuleFileError {
            file: path.display().to_string(),
            line,
            column,
            what: error.to_string(),
        };
        entry.parse().map_err(wrong)
    };
    lines.filter(|(entry, ..)| !entry.is_empty()).map(of).collect()
}
