//! The words behind `bywash addr`, `route`, `neigh`, `sockets` and `stats`, as iproute2 has them.

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

/// Those of routes and neighbours, in the order in which they are told.
pub(super) const ALL: [Verb; 7] =
    [Verb::Show, Verb::Get, Verb::Add, Verb::Replace, Verb::Change, Verb::Delete, Verb::Flush];

/// As iproute2 has them: the first that begins as the word is meant, so `s`, `sh`, `l`, `ls` and `lst` all show.
const VERBS: [(&str, Verb); 10] = [
    ("list", Verb::Show),
    ("show", Verb::Show),
    ("lst", Verb::Show),
    ("get", Verb::Get),
    ("add", Verb::Add),
    ("change", Verb::Change),
    ("chg", Verb::Change),
    ("replace", Verb::Replace),
    ("delete", Verb::Delete),
    ("flush", Verb::Flush),
];

/// Words of iproute2 that mean nothing here, or not behind each verb. Of two that stand alone, such a one is to blame; alone, one may
/// be the name of an interface.
const UNSUPPORTED: &[&str] = &[
    "scope",
    "label",
    "up",
    "master",
    "type",
    "peer",
    "broadcast",
    "brd",
    "anycast",
    "home",
    "nodad",
    "noprefixroute",
    "valid_lft",
    "preferred_lft",
    "blackhole",
    "unreachable",
    "prohibit",
    "throw",
    "unicast",
    "local",
    "multicast",
    "nat",
    "src",
    "table",
    "onlink",
    "mtu",
    "advmss",
    "nexthop",
    "nhid",
    "pref",
    "proxy",
    "router",
    "unused",
    "dev",
    "to",
    "via",
    "metric",
    "proto",
    "protocol",
    "nud",
    "lladdr",
    "dad",
    "from",
    "iif",
    "oif",
    "vrf",
    "root",
    "match",
    "exact",
];

impl Verb {
    /// The verb, which is one of those that `may` be, and what follows it. There may be none.
    pub(super) fn of<'a>(words: &'a [String], may: &[Self]) -> Result<(Self, &'a [String]), Failure> {
        let Some((first, rest)) = words.split_first() else { return Ok((Self::Show, words)) };
        let verb = Self::meant(first).filter(|verb| may.contains(verb)).ok_or_else(|| {
            let names: Vec<&str> = may.iter().map(|verb| verb.name()).collect();
            Failure::Usage(match names.split_last() {
                Some((last, others)) if !others.is_empty() => {
                    format!("'{first}' is not known: write {} or {last}", others.join(", "))
                }
                _ => format!("'{first}' is not known: write {}", names.concat()),
            })
        })?;
        Ok((verb, rest))
    }

    /// What is behind `show`, where nothing else can be done: all, if it is not there.
    pub(super) fn behind_show(words: &[String]) -> &[String] {
        match words {
            [first, rest @ ..] if Self::meant(first) == Some(Self::Show) => rest,
            _ => words,
        }
    }

    fn meant(word: &str) -> Option<Self> {
        let meant = VERBS.iter().find(|(verb, _)| !word.is_empty() && verb.starts_with(word));
        meant.map(|(_, verb)| *verb)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Show => "show",
            Self::Get => "get",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Change => "change",
            Self::Delete => "del",
            Self::Flush => "flush",
        }
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
        let names = || {
            let known = [known, flags].concat();
            if known.is_empty() { "nothing behind it".into() } else { known.join(", ") }
        };
        while let Some(word) = words.next() {
            let word = spelled(word, known);
            if flags.contains(&word) {
                all.flags.push(word);
            } else if known.contains(&word) {
                let value =
                    words.next().ok_or_else(|| Failure::Usage(format!("nothing follows '{word}'")))?;
                if all.value(word).is_some() {
                    return Err(Failure::Usage(format!("'{word}' is there twice")));
                }
                // `to` may be followed by what the prefix is to be: `to root 10.0.0.0/8`.
                if word == "to" && UNSUPPORTED.contains(&value) {
                    return Err(Failure::Usage(format!("'{value}' is not supported: write {}", names())));
                }
                all.pairs.push((word, value));
            } else if let Some(before) = all.bare.replace(word) {
                let known = names();
                let unsupported = [before, word].into_iter().find(|word| UNSUPPORTED.contains(word));
                return Err(Failure::Usage(match unsupported {
                    Some(word) => format!("'{word}' is not supported: write {known}"),
                    None => format!("'{word}' is not known: write {known}"),
                }));
            }
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
    pub(super) fn object(&self) -> Result<Option<&'a str>, Failure> {
        let to = self.value("to");
        if self.bare.is_some() && to.is_some() {
            return Err(Failure::Usage("'to' names what is there already".into()));
        }
        Ok(self.bare.or(to))
    }

    /// The same, where it must be there.
    pub(super) fn needed(&self) -> Result<&'a str, Failure> {
        self.object()?.ok_or_else(|| Failure::Usage("an address must follow".into()))
    }

    /// What is to be flushed must be said, as iproute2 wants it.
    pub(super) fn check_flush(&self) -> Result<(), Failure> {
        if self.bare.is_none() && self.pairs.is_empty() {
            return Err(Failure::Usage("flush what? Say which: dev eth1".into()));
        }
        Ok(())
    }
}

/// The word of those that are known for which iproute2 has several.
fn spelled<'a>(word: &'a str, known: &[&str]) -> &'a str {
    match word {
        "priority" | "preference" if known.contains(&"metric") => "metric",
        word => word,
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
            let object = words.object().unwrap();
            assert_eq!((object, words.value("dev")), (Some("10.0.0.9"), Some("eth1")), "{text}");
            assert!(words.has("dad"));
        }
        for text in ["10.0.0.0/8 metric 5", "priority 5 10.0.0.0/8", "10.0.0.0/8 preference 5"] {
            let words = words(text);
            let words = Words::parse(&words, &["metric"], &[]).unwrap();
            let object = words.object().unwrap();
            assert_eq!((object, words.value("metric")), (Some("10.0.0.0/8"), Some("5")), "{text}");
        }
        assert!(Words::parse(&words("metric 5 priority 6"), &["metric"], &[]).is_err());
        for text in ["10.0.0.9 10.0.0.8", "10.0.0.9 to 10.0.0.8", "dev", "dev a dev b"] {
            let words = words(text);
            let object = Words::parse(&words, &["dev", "to"], &[]).and_then(|words| words.object().map(drop));
            assert!(object.is_err(), "{text}");
        }
        // Where a word that stands alone is an interface there may be a prefix beside it.
        for text in ["eth1 to 10.0.0.0/8", "to 10.0.0.0/8 eth1"] {
            let words = words(text);
            let words = Words::parse(&words, &["dev", "to"], &[]).unwrap();
            assert_eq!((words.bare(), words.value("to")), (Some("eth1"), Some("10.0.0.0/8")), "{text}");
        }
    }

    #[test]
    fn verbs_are_cut_short_as_iproute2_takes_them() {
        let verb = |word: &str| Verb::of(&[word.to_owned()], &ALL).map(|(verb, _)| verb);
        for (words, meant) in [
            ("s sh show l li list ls lst", Verb::Show),
            ("g get", Verb::Get),
            ("a add", Verb::Add),
            ("r replace", Verb::Replace),
            ("c ch change chg", Verb::Change),
            ("d del delete", Verb::Delete),
            ("f flush", Verb::Flush),
        ] {
            words.split(' ').for_each(|word| assert_eq!(verb(word).unwrap(), meant, "{word}"));
        }
        for word in ["", "shown", "append", "to", "lsx"] {
            let why = verb(word).unwrap_err().to_string();
            assert!(why.starts_with(&format!("'{word}' is not known")), "{why}");
        }
        // What a command does not have is not offered.
        for word in ["get", "c", "nothing"] {
            let why = Verb::of(&[word.to_owned()], &[Verb::Show, Verb::Add, Verb::Delete]).unwrap_err();
            assert_eq!(why.to_string(), format!("'{word}' is not known: write show, add or del"));
            let why = Verb::of(&[word.to_owned()], &[Verb::Show]).unwrap_err();
            assert_eq!(why.to_string(), format!("'{word}' is not known: write show"));
        }
    }

    #[test]
    fn the_word_that_is_wrong_is_blamed() {
        for (text, known, blamed) in [
            ("scope global", &["dev", "to"][..], "'scope' is not supported: write dev, to"),
            ("blackhole 10.7.0.0/16", &["via"], "'blackhole' is not supported: write via"),
            ("10.7.0.0/16 via 10.0.0.1 table 5", &["via"], "'table' is not supported: write via"),
            ("10.0.0.9/24 noprefixroute", &[], "'noprefixroute' is not supported: write nothing behind it"),
            ("to root 10.0.0.0/8", &["dev", "to"], "'root' is not supported: write dev, to"),
            ("eth1 eth2", &["dev"], "'eth2' is not known: write dev"),
        ] {
            let words: Vec<String> = text.split(' ').map(String::from).collect();
            let why = Words::parse(&words, known, &[]).err().unwrap().to_string();
            assert_eq!(why, blamed, "{text}");
        }
        for name in ["router", "local", "up", "home"] {
            let words = [name.to_owned()];
            assert_eq!(Words::parse(&words, &["dev", "to"], &[]).unwrap().bare(), Some(name), "an interface");
        }
    }
}
