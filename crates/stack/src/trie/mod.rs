//! The longest prefix in a few memory accesses: a table of the first 16 bits, and nodes and paths for the bits that
//! follow.
//!
//! A look-up reads one entry of 4 bytes at each level until it leads no further: one for a prefix of 16 bits, two for
//! IPv4's /24, three for its longest. Every entry says what its addresses' longest prefix is, so nothing is ever
//! searched twice.
//!
//! Nodes for the bits up to 32 are wide, of 8 bits: IPv4's prefixes fill them, and so do those that IPv6's networks are given.
//! Longer prefixes of IPv6 do not: nodes for further bits have 4, one cache line, and where only one prefix, or one node, differs
//! from everything around it, a path of half a line leads there across all the bits between. A /48 among many takes four steps,
//! or five.
//!
//! What is read is immutable for who reads it and cheap to change for who owns it: nodes and paths lie in pages of 64
//! KiB, and a change copies the pages that it touches, if someone still reads them. How it looks depends on which
//! prefixes there are, and not on those that there were.

mod read;

use std::sync::Arc;

pub(crate) use read::{HOPS, Table};
use read::{
    Kind, Path, ROOT_BITS, depth_of_node, is_wide, kind, leaf, leaf_length, stride, to_node, to_path,
};

/// The table and what its owner needs to change it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trie<const PATHS: bool> {
    table: Table<PATHS>,
    wide: Numbers,
    narrow: Numbers,
    paths: Numbers,
}

/// Numbers that are in use, from 0 on.
#[derive(Clone, Debug, Default)]
struct Numbers {
    /// Those that were, and are not now.
    free: Vec<u32>,
    /// The first that never was.
    next: u32,
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// Which entries of a node that `depth` bits lead to a longer prefix has: from which one on, and how many.
fn places(key: u128, length: u32, depth: u32) -> (usize, usize) {
    let below = depth + stride(depth);
    ((key >> (128 - below)) as usize & ((1 << stride(depth)) - 1), 1 << below.saturating_sub(length))
}

/// What becomes of the leaves of one prefix.
struct Change {
    key: u128,
    length: u32,
    /// What becomes new: leaves of this length or more, up to the prefix's own.
    least: u32,
    new: u32,
}

impl Change {
    fn of(&self, leaf: u32) -> u32 {
        if (self.least..=self.length).contains(&leaf_length(leaf)) { self.new } else { leaf }
    }
}

impl<const PATHS: bool> Trie<PATHS> {
    /// What readers get.
    pub(crate) fn table(&self) -> Table<PATHS> {
        self.table.clone()
    }

    /// Enters a prefix, whose other bits are zero, or changes its hop.
    pub(crate) fn insert(&mut self, key: u128, length: u8, hop: u32) {
        self.update(&Change { key, length: length.into(), least: 0, new: leaf(length, hop) });
    }

    /// Takes a prefix out. What it held belongs to the next shorter prefix, which the caller knows: its length and
    /// hop, or 0 and 0.
    pub(crate) fn remove(&mut self, key: u128, length: u8, shorter: (u8, u32)) {
        let new = leaf(shorter.0, shorter.1);
        self.update(&Change { key, length: length.into(), least: length.into(), new });
    }

    fn update(&mut self, change: &Change) {
        let first = (change.key >> (128 - ROOT_BITS)) as usize;
        let count = 1usize << ROOT_BITS.saturating_sub(change.length);
        for at in first..(first + count).min(1 << ROOT_BITS) {
            let old = self.table.root[at];
            let new = self.changed(old, ROOT_BITS, change);
            if new != old {
                Arc::make_mut(&mut self.table.root)[at] = new;
            }
        }
    }

    /// What an entry becomes that `depth` bits lead to.
    fn changed(&mut self, entry: u32, depth: u32, change: &Change) -> u32 {
        match kind(entry) {
            Kind::Leaf => self.leaf_changed(entry, depth, change),
            Kind::Node(node) => self.node_changed(node, depth, change),
            Kind::Path(path) => self.path_changed(path, depth, change),
        }
    }

    fn leaf_changed(&mut self, leaf: u32, depth: u32, change: &Change) -> u32 {
        let new = change.of(leaf);
        if change.length <= depth || new == leaf {
            new
        } else if PATHS {
            self.path_of(Path { key: change.key, end: change.length, inside: new, outside: leaf })
        } else {
            let node = self.node_of(leaf, depth);
            self.node_changed(node, depth, change)
        }
    }

    fn node_changed(&mut self, node: u32, depth: u32, change: &Change) -> u32 {
        let below = depth + stride(depth);
        let whole = change.length <= depth;
        let (first, count) =
            if whole { (0, 1 << stride(depth)) } else { places(change.key, change.length, depth) };
        for at in first..first + count {
            let old = *self.table.entry(node, depth, at);
            let new = self.changed(old, below, change);
            if new != old {
                self.table.entries(node, depth)[at] = new;
            }
        }
        // A shorter prefix changes nothing but the leaf that longer ones differ from.
        if whole { to_node(node) } else { self.simplest(node, depth, change.key) }
    }

    /// A node that the first bits of a key lead to, or whatever is less and says the same.
    fn simplest(&mut self, node: u32, depth: u32, key: u128) -> u32 {
        let same = to_node(node);
        let (width, below) = (1 << stride(depth), depth + stride(depth));
        let entry = |at| *self.table.entry(node, depth, at);
        let is_outside = |entry| kind(entry) == Kind::Leaf && leaf_length(entry) <= depth;
        // All of these are the same leaf.
        let Some(outside) = (0..width).map(entry).find(|entry| is_outside(*entry)) else { return same };
        let Some(at) = (0..width).find(|at| entry(*at) != outside) else {
            self.numbers(depth).free.push(node);
            return outside;
        };
        if !PATHS {
            return same;
        }
        let inside = entry(at);
        let mut others = (at + 1..width).map(entry).filter(|entry| *entry != outside);
        let end = match kind(inside) {
            // A prefix alone has as many entries as its length says, and all that there are.
            Kind::Leaf => {
                let end = leaf_length(inside);
                let count = 1 + others.clone().count();
                if count << (end - depth) != width || others.any(|other| other != inside) {
                    return same;
                }
                end
            }
            _ if others.next().is_some() => return same,
            Kind::Node(_) => below,
            Kind::Path(path) if self.table.path(path).outside == outside => {
                self.numbers(depth).free.push(node);
                return inside;
            }
            Kind::Path(_) => return same,
        };
        self.numbers(depth).free.push(node);
        let above = key >> (128 - depth) << stride(depth) | at as u128;
        self.path_of(Path { key: above << (128 - below), end, inside, outside })
    }

    fn path_changed(&mut self, path: u32, depth: u32, change: &Change) -> u32 {
        let old = *self.table.path(path);
        let shorter = old.end.min(change.length);
        let common = (old.key ^ change.key).leading_zeros().min(shorter);
        let ends_in_node = kind(old.inside) != Kind::Leaf;
        let new = if change.length <= depth {
            let inside = self.changed(old.inside, old.end, change);
            Path { inside, outside: change.of(old.outside), ..old }
        } else if common == old.end && (change.length == old.end || ends_in_node) {
            Path { inside: self.changed(old.inside, old.end, change), ..old }
        } else {
            let leaf = if common == old.end { old.inside } else { old.outside };
            if change.of(leaf) == leaf {
                return to_path(path);
            }
            // Two prefixes, neither of which holds the other, part at their first bit that differs. One that holds the other
            // differs from what is around it, at its last bit.
            let parting = if common == shorter { common - 1 } else { common };
            let end = depth_of_node(parting);
            let node = self.node_above(path, end);
            let inside = self.node_changed(node, end, change);
            return self.led_to(depth, Path { key: change.key, end, inside, outside: old.outside });
        };
        if (new.inside, new.outside) == (old.inside, old.outside) {
            return to_path(path);
        }
        self.paths.free.push(path);
        self.led_to(depth, new)
    }

    /// A node from which a path that began above goes on.
    fn node_above(&mut self, path: u32, depth: u32) -> u32 {
        let old = *self.table.path(path);
        let node = self.node_of(old.outside, depth);
        let (first, count) = places(old.key, old.end, depth);
        let goes_on = old.end > depth + stride(depth);
        let entry = if goes_on { to_path(path) } else { old.inside };
        self.table.entries(node, depth)[first..first + count].fill(entry);
        if !goes_on {
            self.paths.free.push(path);
        }
        node
    }

    /// What leads from a depth to the end of a path, whatever is there by now.
    fn led_to(&mut self, depth: u32, path: Path) -> u32 {
        if path.end == depth || path.inside == path.outside {
            return path.inside;
        }
        let Kind::Path(next) = kind(path.inside) else { return self.path_of(path) };
        let next = *self.table.path(next);
        if next.outside == path.outside {
            return path.inside;
        }
        // What is around the second is not what is around the first: that takes a node between them.
        let end = depth_of_node(path.end - 1);
        let node = self.node_of(path.outside, end);
        self.table.entries(node, end)[places(path.key, path.end, end).0] = path.inside;
        self.led_to(depth, Path { end, inside: to_node(node), ..path })
    }

    fn path_of(&mut self, path: Path) -> u32 {
        let number = self.paths.take();
        self.table.set_path(number, path);
        to_path(number)
    }

    /// A new node that `depth` bits lead to, all of whose entries are the leaf.
    fn node_of(&mut self, leaf: u32, depth: u32) -> u32 {
        let node = self.numbers(depth).take();
        self.table.entries(node, depth).fill(leaf);
        node
    }

    /// The numbers of nodes that `depth` bits lead to.
    fn numbers(&mut self, depth: u32) -> &mut Numbers {
        if is_wide(depth) { &mut self.wide } else { &mut self.narrow }
    }

    /// Nodes and paths in use.
    #[cfg(test)]
    fn used(&self) -> [usize; 3] {
        [&self.wide, &self.narrow, &self.paths].map(|all| all.next as usize - all.free.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn mask(length: u8) -> u128 {
        if length == 0 { 0 } else { u128::MAX << (128 - length) }
    }

    /// Prefixes in a plain map, searched from the longest to the shortest.
    #[derive(Default)]
    struct Model(BTreeMap<(u8, u128), u32>);

    impl Model {
        fn find(&self, key: u128, below: u8) -> (u8, u32) {
            (0..below)
                .rev()
                .find_map(|length| self.0.get(&(length, key & mask(length))).map(|hop| (length, *hop)))
                .unwrap_or((0, 0))
        }
    }

    fn check<const PATHS: bool>(bits: u8, steps: Vec<(u128, u8, u32)>) {
        let (mut trie, mut model) = (Trie::<PATHS>::default(), Model::default());
        let mut keys = vec![0, u128::MAX];
        for (key, length, hop) in steps {
            let length = length % (bits + 1);
            let key = key & mask(length);
            keys.extend([
                key,
                key | !mask(length),
                key.wrapping_sub(1),
                (key | !mask(length)).wrapping_add(1),
            ]);
            if hop == 0 {
                let taken = model.0.keys().nth(usize::from(length) % model.0.len().max(1)).copied();
                if let Some((length, key)) = taken {
                    model.0.remove(&(length, key));
                    trie.remove(key, length, model.find(key, length));
                }
            } else {
                model.0.insert((length, key), hop);
                trie.insert(key, length, hop);
            }
            let before = trie.table();
            for &key in &keys {
                assert_eq!(before.find(key), model.find(key, bits + 1).1, "{key:032x}");
            }
        }
        let mut fresh = Trie::<PATHS>::default();
        for ((length, key), hop) in &model.0 {
            fresh.insert(*key, *length, *hop);
        }
        assert_eq!(trie.used(), fresh.used(), "nothing is left of what was taken out");
        let old = trie.table();
        let expected: Vec<u32> = keys.iter().map(|key| model.find(*key, bits + 1).1).collect();
        while let Some(((length, key), _)) = model.0.pop_last() {
            trie.remove(key, length, model.find(key, length));
        }
        assert!(keys.iter().all(|key| trie.table().find(*key) == 0));
        assert_eq!(trie.used(), [0; 3], "every node and path is free again");
        let mut many = vec![0; keys.len()];
        old.find_many(&keys, &mut many);
        assert_eq!(many, expected, "all at once");
        let still: Vec<u32> = keys.iter().map(|key| old.find(*key)).collect();
        assert_eq!(still, expected, "who reads an old table sees no change");
    }

    fn steps(bases: Vec<u128>) -> impl Strategy<Value = Vec<(u128, u8, u32)>> {
        // Few different ones, so that prefixes hold each other, and some beside them; a hop of 0 takes one out.
        let near =
            (prop::sample::select(bases), any::<u128>(), prop::sample::select(vec![0, 18, 33, 64, 120, 127]));
        let keys = near.prop_map(|(base, other, from)| if from == 0 { base } else { base ^ other >> from });
        prop::collection::vec((keys, any::<u8>(), 0u32..5), 1..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn ipv4_finds_the_longest(
            steps in steps(vec![0u128, 0x0a01_0203 << 96, 0x0a01_ff00 << 96, u128::MAX << 96]),
        ) {
            check::<false>(32, steps);
        }

        #[test]
        fn ipv6_finds_the_longest(
            steps in steps(vec![0u128, 0xfd << 120, 0xfd00_0001 << 96, 1, u128::MAX]),
        ) {
            check::<true>(128, steps);
        }

        #[test]
        fn one_prefix_needs_no_node(key: u128, length in 17u8..=128) {
            let mut trie = Trie::<true>::default();
            let key = key & mask(length);
            trie.insert(key, length, 3);
            let mut hops = [9; 3];
            trie.table().find_many(&[key, key | !mask(length), key ^ 1 << (128 - length)], &mut hops);
            prop_assert_eq!((trie.used(), hops), ([0, 0, 1], [3, 3, 0]));
        }

        #[test]
        fn the_short_cut_for_ipv4_finds_the_same(address: u32, routes in prop::collection::vec((any::<u32>(), 0u8..33), 0..20)) {
            let mut trie = Trie::<false>::default();
            for (hop, (route, length)) in (1..).zip(routes) {
                // Half of them hold the address.
                let near = if hop % 2 == 0 { address } else { route };
                trie.insert(u128::from(near) << 96 & mask(length), length, hop);
            }
            let table = trie.table();
            prop_assert_eq!(table.find_v4(address), table.find(u128::from(address) << 96));
            let others = [address, !address, address ^ 1, address ^ 0x0100_0000];
            let mut hops = [0; 4];
            table.find_many_v4(&others, &mut hops);
            prop_assert_eq!(hops, others.map(|other| table.find(u128::from(other) << 96)));
        }
    }
}
