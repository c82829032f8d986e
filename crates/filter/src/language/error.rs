//! What is wrong with an expression, shown under the expression itself.

use std::fmt;

/// Why a text is no filter expression. It prints as three lines: what is wrong, the expression, and a caret under the
/// first wrong character with what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    text: String,
    fault: Fault,
}

/// A fault and where in the text it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Offset of the first wrong byte.
    pub(crate) at: usize,
    pub(crate) what: String,
    pub(crate) cure: Option<String>,
}

impl Fault {
    pub(crate) fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into(), cure: None }
    }

    pub(crate) fn cure(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }

    pub(crate) fn of(self, text: &str) -> ParseError {
        ParseError { text: text.into(), fault: self }
    }
}

impl ParseError {
    /// Offset in bytes of the first wrong character.
    pub fn at(&self) -> usize {
        self.fault.at
    }

    /// What is wrong, in a few words.
    pub fn what(&self) -> &str {
        &self.fault.what
    }

    /// What to write instead, where that can be guessed.
    pub fn cure(&self) -> Option<&str> {
        self.fault.cure.as_deref()
    }
}

/// How much of a long expression is shown on either side of the fault.
const SHOWN: usize = 50;

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "filter expression: {}", self.fault.what)?;
        let (before, after) = self.text.split_at_checked(self.fault.at).unwrap_or((&self.text, ""));
        let cut_before = before.chars().count().saturating_sub(SHOWN);
        let before: String = if cut_before == 0 { String::new() } else { "...".into() }
            + &before.chars().skip(cut_before).collect::<String>();
        let cut_after = after.chars().count() > SHOWN;
        let after: String =
            after.chars().take(SHOWN).collect::<String>() + if cut_after { "..." } else { "" };
        let blank = |c: char| if c.is_control() { ' ' } else { c };
        writeln!(
            f,
            "    {}{}",
            before.chars().map(blank).collect::<String>(),
            after.chars().map(blank).collect::<String>()
        )?;
        write!(f, "    {}^", " ".repeat(before.chars().count()))?;
        match &self.fault.cure {
            Some(cure) => write!(f, " {cure}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ParseError {}
