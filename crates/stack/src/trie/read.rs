//! What is read of a trie: the longest prefix of one key, or of many at once.

use std::sync::Arc;

use bywash_frame::prefetch;

pub(super) const ROOT_BITS: u32 = 16;

/// An entry that leads on, to a node or to a path; the others are leaves: a prefix length and a hop.
const INNER: u32 = 1 << 31;
/// Of those that lead on, one to a path.
const TO_PATH: u32 = 1 << 30;
const NUMBER: u32 = TO_PATH - 1;

const LENGTH_SHIFT: u32 = 23;
/// Hops are numbers below this.
pub(crate) const HOPS: u32 = 1 << LENGTH_SHIFT;

/// Keys that are looked up together.
const TOGETHER: usize = 64;

/// Bits of an IPv4 address that are left when its first, and when its second node has been read.
const BELOW: [u32; 2] = [8, 0];

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All keys have this longest prefix.
    Leaf,
    Node(u32),
    Path(u32),
}

#[inline]
pub(super) const fn kind(entry: u32) -> Kind {
    match (entry & INNER != 0, entry & TO_PATH != 0) {
        (false, _) => Kind::Leaf,
        (true, false) => Kind::Node(entry & NUMBER),
        (true, true) => Kind::Path(entry & NUMBER),
    }
}

pub(super) const fn leaf(length: u8, hop: u32) -> u32 {
    (length as u32) << LENGTH_SHIFT | hop
}

/// How long the prefix of a leaf is.
pub(super) const fn leaf_length(leaf: u32) -> u32 {
    leaf >> LENGTH_SHIFT
}

pub(super) const fn to_node(number: u32) -> u32 {
    INNER | number
}

pub(super) const fn to_path(number: u32) -> u32 {
    INNER | TO_PATH | number
}

/// The only place below an entry where anything differs from the rest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    /// Where it is: the first `end` bits.
    pub(super) key: u128,
    pub(super) end: u32,
    /// What is there: a leaf of that length, or a node.
    pub(super) inside: u32,
    /// The leaf of everything else.
    pub(super) outside: u32,
}

// None lies across two cache lines.
const _: () = assert!(size_of::<Path>() == 32);

/// Things in pages of `N`. A copy shares those that nobody has changed since.
#[derive(Clone, Debug)]
struct Pages<T, const N: usize>(Vec<Arc<Page<T, N>>>);

/// It begins with a cache line, as does each node.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Page<T, const N: usize>([T; N]);

impl<T: Copy + Default, const N: usize> Pages<T, N> {
    #[inline]
    fn at(&self, at: usize) -> &T {
        &self.0[at / N].0[at % N]
    }

    /// The places of `count` within one page: a new one if they lie behind the last.
    fn places(&mut self, at: usize, count: usize) -> &mut [T] {
        if at / N == self.0.len() {
            self.0.push(Arc::new(Page([T::default(); N])));
        }
        &mut Arc::make_mut(&mut self.0[at / N]).0[at % N..][..count]
    }
}

/// What is read: hop numbers by prefix. 0 is no hop.
#[derive(Clone, Debug)]
pub(crate) struct Table<const STRIDE: u32> {
    pub(super) root: Arc<[u32]>,
    /// The entries of all nodes, each node's beside each other; 64 KiB a page, as of the paths.
    nodes: Pages<u32, { 1 << 14 }>,
    paths: Pages<Path, { 1 << 11 }>,
}

impl<const STRIDE: u32> Default for Table<STRIDE> {
    fn default() -> Self {
        Self { root: vec![0; 1 << ROOT_BITS].into(), nodes: Pages(Vec::new()), paths: Pages(Vec::new()) }
    }
}

impl<const STRIDE: u32> Table<STRIDE> {
    /// The hop of the longest prefix that holds the key, whose first bit is the most significant one.
    #[inline]
    pub(crate) fn find(&self, key: u128) -> u32 {
        let (mut entry, mut depth) = (self.first(key), ROOT_BITS);
        loop {
            (entry, depth) = match kind(entry) {
                Kind::Leaf => return entry & (HOPS - 1),
                Kind::Node(node) => self.at_node(node, key, depth),
                Kind::Path(path) => self.at_path(path, key),
            }
        }
    }

    /// The hops of many keys: a step of each before the next step of any, so that the memory accesses of all overlap.
    pub(crate) fn find_many(&self, keys: &[u128], hops: &mut [u32]) {
        for (keys, hops) in keys.chunks(TOGETHER).zip(hops.chunks_mut(TOGETHER)) {
            self.find_together(keys, hops);
        }
    }

    fn find_together(&self, keys: &[u128], hops: &mut [u32]) {
        let (mut entries, mut depths) = ([0; TOGETHER], [ROOT_BITS; TOGETHER]);
        let (mut nodes, mut paths) = (Standing::default(), Standing::default());
        for (i, key) in keys.iter().enumerate() {
            entries[i] = self.first(*key);
            nodes.add(i, matches!(kind(entries[i]), Kind::Node(_)));
            paths.add(i, matches!(kind(entries[i]), Kind::Path(_)));
        }
        while nodes.count + paths.count > 0 {
            // All of it is on its way before any of it is waited for.
            (0..nodes.count).for_each(|at| self.prefetch_node(entries[nodes.at(at)] & NUMBER));
            (0..paths.count)
                .for_each(|at| prefetch(self.path(entries[paths.at(at)] & NUMBER), size_of::<Path>()));
            for at in 0..std::mem::take(&mut nodes.count) {
                let i = nodes.at(at);
                (entries[i], depths[i]) = self.at_node(entries[i] & NUMBER, keys[i], depths[i]);
                nodes.add(i, matches!(kind(entries[i]), Kind::Node(_)));
                paths.add(i, matches!(kind(entries[i]), Kind::Path(_)));
            }
            for at in 0..std::mem::take(&mut paths.count) {
                let i = paths.at(at);
                (entries[i], depths[i]) = self.at_path(entries[i] & NUMBER, keys[i]);
                nodes.add(i, matches!(kind(entries[i]), Kind::Node(_)));
            }
        }
        for (hop, entry) in hops.iter_mut().zip(entries) {
            *hop = entry & (HOPS - 1);
        }
    }

    #[inline]
    pub(super) fn entry(&self, node: u32, at: usize) -> u32 {
        *self.nodes.at((node as usize) << STRIDE | at)
    }

    /// All entries of a node, to be changed.
    pub(super) fn entries(&mut self, node: u32) -> &mut [u32] {
        self.nodes.places((node as usize) << STRIDE, 1 << STRIDE)
    }

    #[inline]
    pub(super) fn path(&self, path: u32) -> &Path {
        self.paths.at(path as usize)
    }

    pub(super) fn set_path(&mut self, number: u32, path: Path) {
        self.paths.places(number as usize, 1)[0] = path;
    }

    #[inline]
    fn prefetch_node(&self, node: u32) {
        prefetch(self.nodes.at((node as usize) << STRIDE), 1);
    }

    #[inline]
    fn first(&self, key: u128) -> u32 {
        self.root[(key >> (128 - ROOT_BITS)) as usize]
    }

    /// The entry that a node has for a key, and how many bits have led to it.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "half of the key is wanted, and a few bits of that")]
    fn at_node(&self, node: u32, key: u128, depth: u32) -> (u32, u32) {
        // No node lies across the middle of the key.
        let half = if depth < 64 { key >> 64 } else { key } as u64;
        (self.entry(node, (half << (depth % 64) >> (64 - STRIDE)) as usize), depth + STRIDE)
    }

    /// Where a path leads a key, and how many bits have led there; at a leaf it does not matter.
    #[inline]
    fn at_path(&self, path: u32, key: u128) -> (u32, u32) {
        let path = self.path(path);
        // No path ends within the first 16 bits.
        let inside = (path.key ^ key) >> (128 - path.end) == 0;
        (if inside { path.inside } else { path.outside }, path.end)
    }
}

impl Table<8> {
    /// The hop of an IPv4 address.
    #[inline]
    pub(crate) fn find_v4(&self, address: u32) -> u32 {
        let mut entry = self.root[(address >> 16) as usize];
        for below in BELOW {
            if entry & INNER != 0 {
                entry = *self.below(entry, address, below);
            }
        }
        entry & (HOPS - 1)
    }

    /// The hops of many IPv4 addresses.
    #[inline]
    pub(crate) fn find_many_v4(&self, addresses: &[u32], hops: &mut [u32]) {
        for (addresses, hops) in addresses.chunks(TOGETHER).zip(hops.chunks_mut(TOGETHER)) {
            self.find_together_v4(addresses, hops);
        }
    }

    /// A step of each address before the next step of any. A read that waits keeps the processor from those far behind it: what
    /// is read is asked for before, and there is little between one read and the next.
    #[inline]
    fn find_together_v4(&self, addresses: &[u32], entries: &mut [u32]) {
        for (entry, address) in entries.iter_mut().zip(addresses) {
            *entry = self.root[(address >> 16) as usize];
        }
        let mut next = [&self.root[0]; TOGETHER];
        for below in BELOW {
            if entries.iter().fold(0, |any, entry| any | entry) & INNER == 0 {
                break;
            }
            for ((next, entry), address) in next.iter_mut().zip(&*entries).zip(addresses) {
                // Nobody can foresee who goes on: those who don't ask for the first node.
                let from = if *entry & INNER != 0 { *entry } else { INNER };
                *next = self.below(from, *address, below);
                prefetch(*next, 1);
            }
            for (entry, next) in entries.iter_mut().zip(next) {
                *entry = if *entry & INNER != 0 { *next } else { *entry };
            }
        }
        entries.iter_mut().for_each(|entry| *entry &= HOPS - 1);
    }

    /// What an entry that leads on leads an address to, whose bits from `below` on count there.
    #[inline]
    fn below(&self, entry: u32, address: u32, below: u32) -> &u32 {
        self.nodes.at(((entry & NUMBER) << 8 | address >> below & 0xff) as usize)
    }
}

/// Keys that have come to the same kind of place. Nobody can foresee who does: they are listed without a branch.
struct Standing {
    keys: [u8; TOGETHER],
    count: usize,
}

impl Default for Standing {
    fn default() -> Self {
        Self { keys: [0; TOGETHER], count: 0 }
    }
}

impl Standing {
    #[inline]
    fn at(&self, at: usize) -> usize {
        usize::from(self.keys[at]) % TOGETHER
    }

    /// Adds a key if it stands there. Each is in one list at most, so there is room for one more.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "below TOGETHER")]
    fn add(&mut self, key: usize, stands: bool) {
        self.keys[self.count % TOGETHER] = key as u8;
        self.count += usize::from(stands);
    }
}
