//! Names that DNS queries ask for: what a rule file says of them, and one search for all rules.
//!
//! The names of all rules are a tree of labels, read from the root. A query's name is followed from its last label to its
//! first, for as long as there is a branch. That is only done for a name that may end like one of those that were written down:
//! most names are known not to by a few bytes of each end.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use bywash_wire::dns::{Label, Labels, MOST_LABEL, MOST_NAME, Name};

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
    /// What all names end with that any list has.
    ends: Ends,
    nodes: Vec<Node>,
    /// Nodes by the hash of their label and what it is below; a power of two of them, at most half in use.
    table: Vec<Place>,
}

/// A name that has been written down, or the end of one.
#[derive(Debug, Default)]
struct Node {
    above: u32,
    /// Of its first label, all words but the first.
    later: Box<[u64]>,
    /// Lists that have this name, in order.
    exact: Vec<u32>,
    /// Lists that have all names below this one, in order.
    below: Vec<u32>,
    /// Some list has all names below this one, or below one that this one is below.
    is_wild: bool,
}

/// Where a node is found: all that tells most labels apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    /// The first word of the label, in lower case.
    first: u64,
    len: u32,
    above: u32,
    node: u32,
}

/// How far a name can be followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    node: u32,
    /// To its end: else it is below that node.
    is_whole: bool,
}

/// What names in lists, and names that are below some in lists, end with: a bit by the hash of how long such an end is, and how
/// it begins.
#[derive(Debug)]
struct Ends {
    /// A power of two of them, of which few are set.
    bits: Box<[u64]>,
    /// Some list has all names.
    is_all: bool,
}

const ROOT: u32 = 0;

/// Odd, and its bits look random.
pub(super) const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// A place in the table where there is no node: no label is empty.
const FREE: Place = Place { first: 0, len: 0, above: 0, node: ROOT };

impl NameTree {
    /// Of lists, each with the number that it is known by.
    pub(super) fn new<'a>(lists: impl Iterator<Item = (u32, &'a [NamePattern])>) -> Self {
        let lists: Vec<_> = lists.collect();
        let ends = Ends::new(lists.iter().flat_map(|(_, patterns)| *patterns));
        let (mut nodes, mut places) = (vec![Node::default()], Vec::new());
        let mut children = HashMap::new();
        for (list, patterns) in lists {
            for pattern in patterns {
                let mut node = ROOT;
                let _ = pattern.name.labels().each_from_root::<()>(|label| {
                    let (above, number) = (node, u32::try_from(nodes.len()).unwrap_or(ROOT));
                    let place = Place::of(above, &label);
                    let later: Box<[u64]> = label.later_words().map(lower).collect();
                    node = *children.entry((place, later.clone())).or_insert_with(|| {
                        places.push((Place { node: number, ..place }, hash(&place, &label)));
                        nodes.push(Node { above, later, ..Node::default() });
                        number
                    });
                    ControlFlow::Continue(())
                });
                let Node { exact, below, .. } = &mut nodes[node as usize];
                let lists = if pattern.is_wildcard { below } else { exact };
                if lists.last() != Some(&list) {
                    lists.push(list);
                }
            }
        }
        for number in 0..nodes.len() {
            // What is above came before.
            let above = nodes[number].above as usize;
            nodes[number].is_wild = !nodes[number].below.is_empty() || nodes[above].is_wild;
        }
        let mut table = vec![FREE; (2 * nodes.len()).next_power_of_two()];
        let last = table.len() - 1;
        for (place, mut at) in places {
            while table[at & last] != FREE {
                at += 1;
            }
            table[at & last] = place;
        }
        Self { ends, nodes, table }
    }

    /// Follows a name; `None` when no list has it.
    #[inline]
    pub(super) fn follow(&self, name: Labels<'_>) -> Option<Followed> {
        if self.ends.may_have(name) { self.follow_all(name) } else { None }
    }

    #[inline(never)]
    fn follow_all(&self, name: Labels<'_>) -> Option<Followed> {
        let mut node = ROOT;
        let end = name.each_from_root(|label| match self.child(node, &label) {
            Some(child) => {
                node = child;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        });
        let followed = Followed { node, is_whole: end.is_continue() };
        let last = &self.nodes[node as usize];
        let is_listed = if followed.is_whole {
            !last.exact.is_empty() || node != ROOT && self.nodes[last.above as usize].is_wild
        } else {
            last.is_wild
        };
        is_listed.then_some(followed)
    }

    /// Whether a list has a name that was followed so far.
    pub(super) fn has(&self, list: u32, name: Followed) -> bool {
        let is_in = |lists: &[u32]| lists.binary_search(&list).is_ok();
        let above = |node: &u32| (*node != ROOT).then(|| self.nodes[*node as usize].above);
        let mut ends = std::iter::successors(Some(name.node), above).skip(usize::from(name.is_whole));
        name.is_whole && is_in(&self.nodes[name.node as usize].exact)
            || ends.any(|end| is_in(&self.nodes[end as usize].below))
    }

    #[inline]
    fn child(&self, above: u32, label: &Label<'_>) -> Option<u32> {
        let wanted = Place::of(above, label);
        let mut at = hash(&wanted, label);
        loop {
            // There is a free place in the table.
            let place = self.table[at & (self.table.len() - 1)];
            if place.len == 0 {
                return None;
            }
            if (Place { node: ROOT, ..place }) == wanted && self.is_rest_of(label, place.node) {
                return Some(place.node);
            }
            at += 1;
        }
    }

    /// Whether a label goes on as a node's does.
    #[inline]
    fn is_rest_of(&self, label: &Label<'_>, node: u32) -> bool {
        label.len() <= 8
            || self
                .nodes
                .get(node as usize)
                .is_some_and(|node| label.later_words().map(lower).eq(node.later.iter().copied()))
    }
}

impl Ends {
    /// Of names that lists have.
    fn new<'a>(patterns: impl Iterator<Item = &'a NamePattern> + Clone) -> Self {
        let words = (patterns.clone().count() / 2).next_power_of_two();
        let mut ends = Self { bits: vec![0; words].into(), is_all: false };
        for NamePattern { name, .. } in patterns {
            match name.labels().ends().next().and_then(|(len, end)| ends.place(len, end)) {
                Some((word, bit)) => ends.bits[word] |= bit,
                // The root, or too long to be told.
                None => ends.is_all = true,
            }
        }
        ends
    }

    /// Whether a name may be in a list.
    #[inline]
    fn may_have(&self, name: Labels<'_>) -> bool {
        let is_there = |(len, end): (usize, &[u8])| {
            self.place(len, end).is_none_or(|(word, bit)| self.bits[word] & bit != 0)
        };
        self.is_all || name.ends().any(is_there)
    }

    /// The word and the bit of an end of a name: by its length, and its first three bytes in lower case, or nearly so. It has as
    /// many, its length and the root's zero included; a fourth one, which is read as well, is behind each name in a query.
    #[inline]
    fn place(&self, len: usize, end: &[u8]) -> Option<(usize, u64)> {
        let begin = u32::from_le_bytes(*end.first_chunk()?) & 0xff_ffff | 0x20_2020;
        let hash = (u64::from(begin) ^ (len as u64) << 24).wrapping_mul(FACTOR);
        let word = usize::try_from(hash >> 38).unwrap_or(0) & (self.bits.len() - 1);
        Some((word, 1 << (hash >> 32 & 63)))
    }
}

impl Place {
    /// For a label below a node; of no node yet.
    #[inline]
    fn of(above: u32, label: &Label<'_>) -> Self {
        let len = u32::try_from(label.len()).unwrap_or(0);
        Self { first: lower(label.first_word()), len, above, node: ROOT }
    }
}

/// Eight letters of ASCII in lower case, at once; other bytes as they are.
#[inline]
fn lower(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // The upper bit of each byte: from which letter on, with the upper bit left out of what is added to.
    let from = |letter: u8| (word & (0x7f * EACH)) + u64::from(0x80 - letter) * EACH;
    let is_upper = from(b'A') & !from(b'Z' + 1) & !word & (0x80 * EACH);
    word | is_upper >> 2
}

/// Of a label and what it is below. The names in the tree are the operator's, so that nobody else can make it slow.
#[inline]
fn hash(place: &Place, label: &Label<'_>) -> usize {
    let begin = u64::from(place.above) ^ u64::from(place.len) << 32;
    let and = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut hash = and(begin, place.first);
    if label.len() > 8 {
        hash = label.later_words().map(lower).fold(hash, and);
    }
    usize::try_from(hash ^ hash >> 32).unwrap_or(0)
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

    fn found(lists: &[Vec<NamePattern>], name: Labels<'_>) -> BTreeSet<u32> {
        let tree = NameTree::new((0..).zip(lists.iter().map(Vec::as_slice)));
        let followed = tree.follow(name);
        let all = (0..).take(lists.len());
        let found: BTreeSet<u32> =
            all.filter(|list| followed.is_some_and(|name| tree.has(*list, name))).collect();
        assert_eq!(followed.is_some(), !found.is_empty());
        found
    }

    #[test]
    fn a_wildcard_is_all_names_below_and_not_the_name() {
        let lists = ["example.org", "*.example.org", "*", ".", "*.a.example.org", "www.Example.ORG."];
        let lists: Vec<Vec<NamePattern>> = lists.map(|text| vec![pattern(text)]).into();
        let of = |text: &str| found(&lists, name(text).labels()).into_iter().collect::<Vec<_>>();
        assert_eq!(of("example.org"), [0, 2]);
        assert_eq!(of("www.example.org"), [1, 2, 5]);
        assert_eq!(of("x.a.example.org"), [1, 2, 4]);
        assert_eq!(of("a.example.org"), [1, 2]);
        assert_eq!(of("notexample.org"), [2]);
        assert_eq!(of("org"), [2]);
        assert_eq!(of("."), [3]);
    }

    #[test]
    fn letters_of_either_case_are_the_same_and_nothing_else_is() {
        for byte in 0..=u8::MAX {
            // What is in one byte does not reach into the next.
            let bytes = [byte, b'A', byte, b'z', 0xff, byte, 0, byte];
            assert_eq!(
                lower(u64::from_le_bytes(bytes)).to_le_bytes(),
                bytes.map(|byte| byte.to_ascii_lowercase())
            );
        }
        let texts: Vec<String> = (1..=20).map(|len| "x".repeat(len)).collect();
        let lists: Vec<_> = texts.iter().map(|text| vec![pattern(text)]).collect();
        let of = |label: &str| {
            let mut message = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, u8::try_from(label.len()).unwrap()];
            message.extend(label.bytes().chain([0, 0, 1, 0, 1]));
            found(&lists, Labels::asked(&message).unwrap())
        };
        for (list, text) in (0..).zip(&texts) {
            assert_eq!(of(&text.to_uppercase()), [list].into());
            for at in 0..text.len() {
                let mut other = text.clone();
                other.replace_range(at..=at, "y");
                assert_eq!(of(&other), BTreeSet::new(), "{other}");
            }
        }
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

    /// In front of one letter, some that are always the same.
    fn long_label() -> impl Strategy<Value = String> {
        (0_usize..30, "[e-h]").prop_map(|(len, last)| "z".repeat(len) + &last)
    }

    proptest! {
        #[test]
        fn the_tree_says_what_the_names_say(
            lists in prop::collection::vec(prop::collection::vec(("(\\*\\.)?", "[ab](\\.[abc]){0,3}"), 1..5), 1..6),
            asked in "[ab](\\.[abcd]){0,4}",
            (b, c) in (long_label(), long_label()),
        ) {
            prop_assume!(b != c);
            // Labels of all lengths, that begin alike.
            let longer = |text: &str| text.replace('b', &b).replace('c', &c);
            let lists: Vec<Vec<_>> =
                lists.iter().map(|list| list.iter().map(|(star, name)| (star, longer(name))).collect()).collect();
            let asked = longer(&asked);
            let texts: Vec<Vec<String>> =
                lists.iter().map(|list| list.iter().map(|(star, name)| format!("{star}{name}")).collect()).collect();
            let patterns: Vec<Vec<NamePattern>> =
                texts.iter().map(|list| list.iter().map(|text| pattern(text)).collect()).collect();
            let is_in = |text: &String| match text.strip_prefix('*') {
                Some(end) => asked.ends_with(end),
                None => asked == *text,
            };
            let right = (0..).zip(&texts).filter(|(_, list)| list.iter().any(is_in)).map(|(n, _)| n);
            // As a query has it: in letters of either case, with hardly anything behind.
            let upper: Vec<u8> = name(&asked).labels().iter().flat_map(|label| {
                [&[u8::try_from(label.len()).unwrap()], &label.to_ascii_uppercase()[..]].concat()
            }).collect();
            let query = [&[0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &upper, &[0, 0, 1, 0, 1]].concat();
            let right: BTreeSet<u32> = right.collect();
            prop_assert_eq!(&found(&patterns, Labels::asked(&query).unwrap()), &right);
            prop_assert_eq!(found(&patterns, name(&asked).labels()), right);
        }
    }
}
