//! The longest prefix in a few memory accesses: a table of the first 16 bits, and nodes for the bits that follow.
//!
//! A look-up reads one entry of 4 bytes at each level until it is no node: one for a prefix of 16 bits, two for
//! IPv4's /24, three for its longest; with the narrower nodes of IPv6, nine for a /48. Every entry says what its
//! addresses' longest prefix is, so nothing is ever searched twice.
//!
//! The table is immutable for who reads it and cheap to change for who owns it: nodes lie in pages of 64 KiB, and a
//! change copies the pages that it touches, if someone still reads them. Nodes are as wide as `STRIDE` bits: wide ones
//! (8) for IPv4, whose prefixes fill them; narrow ones (4, one cache line) for IPv6, whose do not.

use std::sync::Arc;

/// Entries of a page.
const PAGE: usize = 1 << PAGE_BITS;
const PAGE_BITS: u32 = 14;
const ROOT_BITS: u32 = 16;

/// An entry that names a node; the others are leaves: a prefix length and a hop.
const NODE: u32 = 1 << 31;
const LENGTH_SHIFT: u32 = 23;
/// Hops are numbers below this.
pub(crate) const HOPS: u32 = 1 << LENGTH_SHIFT;

type Page = [u32; PAGE];

/// What is read: hop numbers by prefix. 0 is no hop.
#[derive(Clone, Debug)]
pub(crate) struct Table<const STRIDE: u32> {
    root: Arc<[u32]>,
    pages: Vec<Arc<Page>>,
}

/// The table and what its owner needs to change it.
#[derive(Clone, Debug)]
pub(crate) struct Trie<const STRIDE: u32> {
    table: Table<STRIDE>,
    /// Nodes that are not in use.
    free: Vec<u32>,
    /// Nodes that were ever in use.
    nodes: u32,
}

/// A leaf.
const fn leaf(length: u8, hop: u32) -> u32 {
    (length as u32) << LENGTH_SHIFT | hop
}

const fn leaf_length(entry: u32) -> u32 {
    entry >> LENGTH_SHIFT
}

impl<const STRIDE: u32> Default for Table<STRIDE> {
    fn default() -> Self {
        Self { root: vec![0; 1 << ROOT_BITS].into(), pages: Vec::new() }
    }
}

impl<const STRIDE: u32> Table<STRIDE> {
    /// The hop of the longest prefix that holds the key, whose first bit is the most significant one.
    #[inline]
    pub(crate) fn find(&self, key: u128) -> u32 {
        let mut entry = self.root[(key >> (128 - ROOT_BITS)) as usize];
        let mut rest = key << ROOT_BITS;
        while entry & NODE != 0 {
            entry = self.entry(entry & !NODE, (rest >> (128 - STRIDE)) as usize);
            rest <<= STRIDE;
        }
        entry & (HOPS - 1)
    }

    #[inline]
    fn entry(&self, node: u32, at: usize) -> u32 {
        let (page, at) = place::<STRIDE>(node, at);
        self.pages[page][at]
    }

    fn set(&mut self, node: u32, at: usize, entry: u32) {
        let (page, at) = place::<STRIDE>(node, at);
        Arc::make_mut(&mut self.pages[page])[at] = entry;
    }
}

impl<const STRIDE: u32> Table<STRIDE> {
    /// The hops of many keys: level by level, so that the memory accesses of all of them overlap.
    #[inline]
    pub(crate) fn find_many(&self, keys: &[u128], hops: &mut [u32]) {
        for (entry, key) in hops.iter_mut().zip(keys) {
            *entry = self.root[(key >> (128 - ROOT_BITS)) as usize];
        }
        let mut below = 128 - ROOT_BITS;
        while hops.iter().fold(0, |any, entry| any | entry) & NODE != 0 && below >= STRIDE {
            below -= STRIDE;
            for (entry, key) in hops.iter_mut().zip(keys) {
                if *entry & NODE != 0 {
                    let at = (key >> below) as usize & ((1 << STRIDE) - 1);
                    *entry = self.entry(*entry & !NODE, at);
                }
            }
        }
        hops.iter_mut().for_each(|entry| *entry &= HOPS - 1);
    }
}

impl Table<8> {
    /// The hop of an IPv4 address.
    #[inline]
    pub(crate) fn find_v4(&self, address: u32) -> u32 {
        let mut hop = [0];
        self.find_many_v4(&[address], &mut hop);
        hop[0]
    }

    /// The hops of many IPv4 addresses.
    #[inline]
    pub(crate) fn find_many_v4(&self, addresses: &[u32], hops: &mut [u32]) {
        for (entry, address) in hops.iter_mut().zip(addresses) {
            *entry = self.root[(address >> 16) as usize];
        }
        for below in [8, 0] {
            for (entry, address) in hops.iter_mut().zip(addresses) {
                if *entry & NODE != 0 {
                    *entry = self.entry(*entry & !NODE, (address >> below & 0xff) as usize);
                }
            }
        }
        hops.iter_mut().for_each(|entry| *entry &= HOPS - 1);
    }
}

/// In which page a node's entry lies, and where there.
#[inline]
fn place<const STRIDE: u32>(node: u32, at: usize) -> (usize, usize) {
    let index = (node as usize) << STRIDE | at;
    (index >> PAGE_BITS, index & (PAGE - 1))
}

impl<const STRIDE: u32> Default for Trie<STRIDE> {
    fn default() -> Self {
        Self { table: Table::default(), free: Vec::new(), nodes: 0 }
    }
}

impl<const STRIDE: u32> Trie<STRIDE> {
    const WIDTH: usize = 1 << STRIDE;

    /// What readers get.
    pub(crate) fn table(&self) -> Table<STRIDE> {
        self.table.clone()
    }

    /// Enters a prefix, whose other bits are zero, or changes its hop.
    pub(crate) fn insert(&mut self, key: u128, length: u8, hop: u32) {
        let new = leaf(length, hop);
        self.update(key, length, &|old| if leaf_length(old) <= u32::from(length) { new } else { old });
    }

    /// Takes a prefix out. What it held belongs to the next shorter prefix, which the caller knows: its length and
    /// hop, or 0 and 0.
    pub(crate) fn remove(&mut self, key: u128, length: u8, shorter: (u8, u32)) {
        let new = leaf(shorter.0, shorter.1);
        self.update(key, length, &|old| if leaf_length(old) == u32::from(length) { new } else { old });
    }

    /// Nodes in use.
    #[cfg(test)]
    fn used(&self) -> usize {
        self.nodes as usize - self.free.len()
    }

    /// Changes all leaves of a prefix.
    fn update(&mut self, key: u128, length: u8, change: &impl Fn(u32) -> u32) {
        let length = u32::from(length);
        let first = (key >> (128 - ROOT_BITS)) as usize;
        let count = 1usize << ROOT_BITS.saturating_sub(length);
        for at in first..(first + count).min(1 << ROOT_BITS) {
            let old = self.table.root[at];
            let new = self.changed(old, key, ROOT_BITS, length, change);
            if new != old {
                Arc::make_mut(&mut self.table.root)[at] = new;
            }
        }
    }

    /// What an entry becomes whose prefix has `depth` bits.
    fn changed(
        &mut self,
        entry: u32,
        key: u128,
        depth: u32,
        length: u32,
        change: &impl Fn(u32) -> u32,
    ) -> u32 {
        if entry & NODE == 0 && length <= depth {
            return change(entry);
        }
        let node = if entry & NODE == 0 { self.node_of(entry) } else { entry & !NODE };
        let below = depth + STRIDE;
        let (first, count) = if length <= depth {
            (0, Self::WIDTH)
        } else {
            let first = (key >> (128 - below)) as usize & (Self::WIDTH - 1);
            (first, 1 << below.saturating_sub(length))
        };
        for at in first..first + count {
            let old = self.table.entry(node, at);
            let new = self.changed(old, key, below, length, change);
            if new != old {
                self.table.set(node, at, new);
            }
        }
        self.folded(node, depth)
    }

    /// A node, or the leaf that says the same.
    fn folded(&mut self, node: u32, depth: u32) -> u32 {
        let first = self.table.entry(node, 0);
        let same = first & NODE == 0
            && leaf_length(first) <= depth
            && (1..Self::WIDTH).all(|at| self.table.entry(node, at) == first);
        if same {
            self.free.push(node);
            first
        } else {
            node | NODE
        }
    }

    /// A new node, all of whose entries are the leaf.
    fn node_of(&mut self, leaf: u32) -> u32 {
        let node = self.free.pop().unwrap_or_else(|| {
            self.nodes += 1;
            self.nodes - 1
        });
        let (page, start) = place::<STRIDE>(node, 0);
        if page == self.table.pages.len() {
            self.table.pages.push(Arc::new([0; PAGE]));
        }
        Arc::make_mut(&mut self.table.pages[page])[start..start + Self::WIDTH].fill(leaf);
        node
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

    fn check<const STRIDE: u32>(bits: u8, steps: Vec<(u128, u8, u32)>) {
        let (mut trie, mut model) = (Trie::<STRIDE>::default(), Model::default());
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
                if model.0.remove(&(length, key)).is_some() {
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
        let old = trie.table();
        let expected: Vec<u32> = keys.iter().map(|key| model.find(*key, bits + 1).1).collect();
        while let Some(((length, key), _)) = model.0.pop_last() {
            trie.remove(key, length, model.find(key, length));
        }
        assert!(keys.iter().all(|key| trie.table().find(*key) == 0));
        assert_eq!(trie.used(), 0, "every node is free again");
        let mut many = vec![0; keys.len()];
        old.find_many(&keys, &mut many);
        assert_eq!(many, expected, "all at once");
        let still: Vec<u32> = keys.iter().map(|key| old.find(*key)).collect();
        assert_eq!(still, expected, "who reads an old table sees no change");
    }

    fn steps(first: impl Strategy<Value = u128>) -> impl Strategy<Value = Vec<(u128, u8, u32)>> {
        // Few different ones, so that prefixes hold each other; a hop of 0 takes one out.
        prop::collection::vec((first, any::<u8>(), 0u32..5), 1..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn ipv4_finds_the_longest(
            steps in steps(prop::sample::select(vec![0u128, 0x0a01_0203 << 96, 0x0a01_ff00 << 96, u128::MAX << 96])),
        ) {
            check::<8>(32, steps);
        }

        #[test]
        fn ipv6_finds_the_longest(
            steps in steps(prop::sample::select(vec![0u128, 0xfd << 120, 0xfd00_0001 << 96, 1, u128::MAX])),
        ) {
            check::<4>(128, steps);
        }

        #[test]
        fn the_short_cut_for_ipv4_finds_the_same(address: u32, routes in prop::collection::vec((any::<u32>(), 0u8..33), 0..20)) {
            let mut trie = Trie::<8>::default();
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
