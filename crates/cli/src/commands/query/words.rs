//! The words behind `bywash addr`, `route` and `neigh`, as iproute2 has them.

use crate::failure::Failure;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Show,
    Get,
    Add,
    Replace,
    Change,
    Delete,
    Flush,
}

impl Verb {
    /// The verb, and what follows it. There may be none.
    pub(super) fn of(words: &[String]) -> Result<(Self, &[String]), Failure> {
        let Some((first, rest)) = words.split_first() else { return Ok((Self::Show, words)) };
        let verb = match first.as_str() {
            "show" | "list" | "ls" => Self::Show,
            "get" => Self::Get,
            "add" => Self::Add,
            "replace" => Self::Replace,
            "change" => Self::Change,
            "del" | "delete" => Self::Delete,
            "flush" => Self::Flush,
            word => {
                let all = "show, add, replace, change, del, flush or get";
                return Err(Failure::Usage(format!("'{word}' is not known: write {all}")));
            }
        };
        Ok((verb, rest))
    }
}

/// What follows a verb, in any order: words by pairs, words that stand alone, and one that is in no list, its object.
pub(super) struct Words<'a> {
    bare: Option<&'a str>,
    pairs: Vec<(&'a str, &'a str)>,
    flags: Vec<&'a str>,
}

impl<'a> Words<'a> {
    /// `known` names the pairs that there may be, `flags` the words that may stand alone.
    pub(super) fn parse(words: &'a [String], known: &[&str], flags: &[&str]) -> Result<Self, Failure> {
        let mut words = words.iter().map(String::as_str);
        let mut all = Self { bare: None, pairs: Vec::new(), flags: Vec::new() };
        while let Some(word) = words.next() {
            if flags.contains(&word) {
                all.flags.push(word);
            } else if known.contains(&word) {
                let value =
                    words.next().ok_or_else(|| Failure::Usage(format!("nothing follows '{word}'")))?;
                if all.value(word).is_some() {
                    return Err(Failure::Usage(format!("'{word}' is there twice")));
                }
                all.pairs.push((word, value));
            } else if all.bare.replace(word).is_some() {
                let known = [known, flags].concat();
                let known = if known.is_empty() { "nothing behind it".into() } else { known.join(", ") };
                return Err(Failure::Usage(format!("'{word}' is not known: write {known}")));
            }
        }
        if all.bare.is_some() && all.value("to").is_some() {
            return Err(Failure::Usage("'to' names what is there already".into()));
        }
        Ok(all)
    }

    pub(super) fn value(&self, name: &str) -> Option<&'a str> {
        self.pairs.iter().find(|(word, _)| *word == name).map(|(_, value)| *value)
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// The word that stands alone.
    pub(super) fn bare(&self) -> Option<&'a str> {
        self.bare
    }

    /// What it is about, with or without `to` before it.
    pub(super) fn object(&self) -> Option<&'a str> {
        self.bare.or_else(|| self.value("to"))
    }

    /// The same, where it must be there.
    pub(super) fn needed(&self) -> Result<&'a str, Failure> {
        self.object().ok_or_else(|| Failure::Usage("an address must follow".into()))
    }

    /// What is to be flushed must be said, as iproute2 wants it.
    pub(super) fn check_flush(&self) -> Result<(), Failure> {
        if self.bare.is_none() && self.pairs.is_empty() {
            return Err(Failure::Usage("flush what? Say which: dev eth1".into()));
        }
        Ok(())
    }
}

/// A name of a list, or `all`.
pub(super) fn one_of<'a>(
    word: &str,
    value: Option<&'a str>,
    known: &[&str],
) -> Result<Option<&'a str>, Failure> {
    match value {
        Some(value) if value != "all" && !known.contains(&value) => {
            Err(Failure::Usage(format!("'{word} {value}' is not known: write {}, all", known.join(", "))))
        }
        value => Ok(value.filter(|value| *value != "all")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_in_any_order() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        for text in ["10.0.0.9 dev eth1 dad", "dev eth1 10.0.0.9 dad", "dad dev eth1 to 10.0.0.9"] {
            let words = words(text);
            let words = Words::parse(&words, &["dev", "to"], &["dad"]).unwrap();
            assert_eq!((words.object(), words.value("dev")), (Some("10.0.0.9"), Some("eth1")), "{text}");
            assert!(words.has("dad"));
        }
        for text in ["10.0.0.9 10.0.0.8", "10.0.0.9 to 10.0.0.8", "dev", "dev a dev b"] {
            assert!(Words::parse(&words(text), &["dev", "to"], &[]).is_err(), "{text}");
        }
    }
}
