//! Names that DNS queries ask for: what a rule file says of them, and one search for all rules.
//!
//! The names of all rules are a tree of labels, read from the root. A query's name is followed from its last label to its
//! first, for as long as there is a branch: a name that nobody has written down mostly ends at the first or second one.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use bywash_wire::dns::{MOST_LABEL, MOST_NAME, Name};

/// Names: one, or all below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    name: Name,
    /// All names below it, at any depth, and not itself.
    is_wildcard: bool,
}

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct NamePatternError {
    /// The byte of the text where it goes wrong.
    pub at: usize,
    /// What is wrong, and what to write instead.
    pub what: String,
}

impl FromStr for NamePattern {
    type Err = NamePatternError;

    /// Reads `example.org`, `*.example.org`, `*` (all names but the root) or `.` (the root). A dot at the end changes nothing.
    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        let fail = |at: usize, what: String| Err(NamePatternError { at, what });
        let mut name = Name::ROOT;
        if text == "." {
            return Ok(Self { name, is_wildcard: false });
        }
        let whole = text.strip_suffix('.').unwrap_or(text);
        let (is_wildcard, mut at) = match whole.strip_prefix('*') {
            Some("") => return Ok(Self { name, is_wildcard: true }),
            Some(rest) if rest.starts_with('.') => (true, 2),
            _ => (false, 0),
        };
        for label in whole[at..].split('.') {
            let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '*' | '\\' | '"');
            if let Some((behind, odd)) = label.char_indices().find(|(_, c)| !is_plain(*c)) {
                let cure = match odd {
                    '*' => "a * stands alone, as the first label: *.example.org",
                    _ if !odd.is_ascii() => "write the name as it is on the wire, with xn--",
                    _ => "letters, digits and signs of ASCII only",
                };
                return fail(at + behind, format!("'{}' can't be in a name: {cure}", odd.escape_default()));
            }
            if label.is_empty() {
                return fail(at, "an empty label: write one dot between labels".into());
            }
            if label.len() > MOST_LABEL {
                return fail(at, format!("a label of {} bytes: at most {MOST_LABEL}", label.len()));
            }
            if name.push(label.as_bytes()).is_none() {
                return fail(at, format!("a name has at most {MOST_NAME} bytes on the wire"));
            }
            at += label.len() + 1;
        }
        Ok(Self { name, is_wildcard })
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_wildcard, self.name == Name::ROOT) {
            (true, true) => f.write_str("*"),
            (true, false) => write!(f, "*.{}", self.name),
            (false, _) => self.name.fmt(f),
        }
    }
}

/// The lists of names of all rules.
#[derive(Debug)]
pub(super) struct NameTree {
    nodes: Vec<Node>,
    /// Nodes by the hash of their label and what it is below; a power of two of them, at most half in use.
    table: Vec<u32>,
}

/// A name that has been written down, or the end of one.
#[derive(Debug, Default)]
struct Node {
    above: u32,
    label: Box<[u8]>,
    /// Lists that have this name.
    exact: Vec<u32>,
    /// Lists that have all names below this one.
    below: Vec<u32>,
}

const ROOT: u32 = 0;

/// A place in the table where there is no node.
const FREE: u32 = u32::MAX;

impl NameTree {
    /// Of lists, each with the number that it is known by.
    pub(super) fn new<'a>(lists: impl Iterator<Item = (u32, &'a [NamePattern])>) -> Self {
        let mut nodes = vec![Node::default()];
        let mut children: HashMap<(u32, Box<[u8]>), u32> = HashMap::new();
        for (list, patterns) in lists {
            for pattern in patterns {
                let mut node = ROOT;
                let _ = pattern.name.each_from_root::<()>(|label| {
                    let above = node;
                    node = *children.entry((above, label.into())).or_insert_with(|| {
                        nodes.push(Node { above, label: label.into(), ..Node::default() });
                        u32::try_from(nodes.len() - 1).unwrap_or(ROOT)
                    });
                    ControlFlow::Continue(())
                });
                let Node { exact, below, .. } = &mut nodes[node as usize];
                let lists = if pattern.is_wildcard { below } else { exact };
                if !lists.contains(&list) {
                    lists.push(list);
                }
            }
        }
        let mut table = vec![FREE; (2 * nodes.len()).next_power_of_two()];
        for (number, node) in (0..).zip(&nodes).skip(1) {
            let mut place = hash(node.above, &node.label);
            while table[place % table.len()] != FREE {
                place += 1;
            }
            let size = table.len();
            table[place % size] = number;
        }
        Self { nodes, table }
    }

    /// Calls `each` with the lists that a name is in; with one that has it more than once, more than once.
    #[inline]
    pub(super) fn find(&self, name: &Name, mut each: impl FnMut(u32)) {
        let mut node = ROOT;
        let end = name.each_from_root(|label| {
            self.nodes[node as usize].below.iter().for_each(|list| each(*list));
            match self.child(node, label) {
                Some(child) => node = child,
                None => return ControlFlow::Break(()),
            }
            ControlFlow::Continue(())
        });
        if end.is_continue() {
            self.nodes[node as usize].exact.iter().for_each(|list| each(*list));
        }
    }

    #[inline]
    fn child(&self, above: u32, label: &[u8]) -> Option<u32> {
        let mut place = hash(above, label);
        loop {
            // There is a free place in the table.
            let number = self.table[place & (self.table.len() - 1)];
            let node = self.nodes.get(number as usize)?;
            if node.above == above && *node.label == *label {
                return Some(number);
            }
            place += 1;
        }
    }
}

/// The names in the tree are the operator's, so that nobody else can make it slow.
#[inline]
fn hash(above: u32, label: &[u8]) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = u64::from(above) ^ (label.len() as u64) << 32;
    let mut mix = |word: u64| state = (state ^ word).wrapping_mul(SPREAD).rotate_left(29);
    let (words, rest) = label.as_chunks::<8>();
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    mix(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    usize::try_from(state ^ state >> 32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> NamePattern {
        text.parse().unwrap()
    }

    fn name(text: &str) -> Name {
        pattern(text).name
    }

    fn found(lists: &[Vec<NamePattern>], name: &Name) -> BTreeSet<u32> {
        let tree = NameTree::new((0..).zip(lists.iter().map(Vec::as_slice)));
        let mut found = BTreeSet::new();
        tree.find(name, |list| {
            found.insert(list);
        });
        found
    }

    #[test]
    fn a_wildcard_is_all_names_below_and_not_the_name() {
        let lists = ["example.org", "*.example.org", "*", ".", "*.a.example.org", "www.Example.ORG."];
        let lists: Vec<Vec<NamePattern>> = lists.map(|text| vec![pattern(text)]).into();
        let of = |text: &str| found(&lists, &name(text)).into_iter().collect::<Vec<_>>();
        assert_eq!(of("example.org"), [0, 2]);
        assert_eq!(of("www.example.org"), [1, 2, 5]);
        assert_eq!(of("x.a.example.org"), [1, 2, 4]);
        assert_eq!(of("a.example.org"), [1, 2]);
        assert_eq!(of("notexample.org"), [2]);
        assert_eq!(of("org"), [2]);
        assert_eq!(of("."), [3]);
    }

    #[test]
    fn what_is_no_name_is_refused_where_it_goes_wrong() {
        for (text, at, what) in [
            ("", 0, "an empty label"),
            ("a..org", 2, "an empty label"),
            (".org", 0, "an empty label"),
            ("www.*.org", 4, "a * stands alone"),
            ("*www.org", 0, "a * stands alone"),
            ("ex ample.org", 2, "' ' can't be in a name"),
            ("b\u{fc}ro.example", 1, "with xn--"),
            ("a\\.b", 1, "can't be in a name"),
        ] {
            let error = text.parse::<NamePattern>().unwrap_err();
            assert_eq!(error.at, at, "{text}: {error}");
            assert!(error.what.contains(what), "{text}: {error}");
        }
        let long = "a".repeat(64);
        assert!(long.parse::<NamePattern>().unwrap_err().what.contains("at most 63"));
        let all = vec!["a".repeat(63); 4].join(".");
        assert_eq!(all.parse::<NamePattern>().unwrap_err().at, 192);
        for text in ["example.org.", "*.example.org.", "*", "."] {
            assert_eq!(pattern(text).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn the_tree_says_what_the_names_say(
            lists in prop::collection::vec(prop::collection::vec(("(\\*\\.)?", "[ab](\\.[abc]){0,3}"), 1..5), 1..6),
            asked in "[ab](\\.[abcd]){0,4}",
        ) {
            let texts: Vec<Vec<String>> =
                lists.iter().map(|list| list.iter().map(|(star, name)| format!("{star}{name}")).collect()).collect();
            let patterns: Vec<Vec<NamePattern>> =
                texts.iter().map(|list| list.iter().map(|text| pattern(text)).collect()).collect();
            let is_in = |text: &String| match text.strip_prefix('*') {
                Some(end) => asked.ends_with(end),
                None => asked == *text,
            };
            let right = (0..).zip(&texts).filter(|(_, list)| list.iter().any(is_in)).map(|(n, _)| n);
            prop_assert_eq!(found(&patterns, &name(&asked)), right.collect::<BTreeSet<u32>>());
        }
    }
}
