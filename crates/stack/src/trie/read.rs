//! What is read of a trie: the longest prefix of one key, or of many at once.

use std::hint::select_unpredictable;
use std::sync::Arc;

use bywash_frame::prefetch;

pub(super) const ROOT_BITS: u32 = 16;
/// Where wide nodes end: those that fewer bits lead to have 8 bits, the others 4.
const WIDE_END: u32 = 32;

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

/// Bits of the first 32 that are left when the first, and when the second wide node below the root has been read.
const BELOW: [u32; 2] = [8, 0];

/// Whether the nodes that `depth` bits lead to are wide.
#[inline]
pub(super) const fn is_wide(depth: u32) -> bool {
    depth < WIDE_END
}

/// Bits that a node is for which `depth` bits lead to.
#[inline]
pub(super) const fn stride(depth: u32) -> u32 {
    if is_wide(depth) { 8 } else { 4 }
}

/// How many bits lead to the node that the next bit belongs to.
pub(super) const fn depth_of_node(bit: u32) -> u32 {
    bit & !(stride(bit) - 1)
}

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

/// Whether it leads to a path.
#[inline]
const fn is_path(entry: u32) -> bool {
    entry >> 30 == (INNER | TO_PATH) >> 30
}

/// The first 32 bits of a key.
#[inline]
const fn front_of(key: u128) -> u32 {
    (key >> 96) as u32
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

/// The entries of nodes, each node's beside each other.
type Entries = Pages<u32, { 1 << 14 }>;

/// What is read: hop numbers by prefix. 0 is no hop. A page, of nodes or paths, has 64 KiB.
#[derive(Clone, Debug)]
pub(crate) struct Table<const PATHS: bool> {
    pub(super) root: Arc<[u32]>,
    wide: Entries,
    narrow: Entries,
    paths: Pages<Path, { 1 << 11 }>,
}

impl<const PATHS: bool> Default for Table<PATHS> {
    fn default() -> Self {
        Self {
            root: vec![0; 1 << ROOT_BITS].into(),
            wide: Pages(Vec::new()),
            narrow: Pages(Vec::new()),
            paths: Pages(Vec::new()),
        }
    }
}

impl<const PATHS: bool> Table<PATHS> {
    /// The hop of the longest prefix that holds the key, whose first bit is the most significant one.
    #[inline]
    pub(crate) fn find(&self, key: u128) -> u32 {
        let (mut entry, mut depth) = (self.first(key), ROOT_BITS);
        loop {
            (entry, depth) = match kind(entry) {
                Kind::Leaf => return entry & (HOPS - 1),
                Kind::Node(node) => (*self.at_node(node, key, depth), depth + stride(depth)),
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

    fn find_together(&self, keys: &[u128], entries: &mut [u32]) {
        let entries = &mut entries[..keys.len()];
        let mut fronts = [0; TOGETHER];
        for (front, key) in fronts.iter_mut().zip(keys) {
            *front = front_of(*key);
        }
        self.step_wide(&fronts[..keys.len()], entries);
        // Whoever is at a node now has passed the wide ones; a path may lead back to one.
        let mut depths = [WIDE_END; TOGETHER];
        let (mut nodes, mut paths) = (Standing::default(), Standing::default());
        for (i, entry) in entries.iter().enumerate() {
            nodes.add(i, Self::is_node(*entry));
            paths.add(i, is_path(*entry));
        }
        while nodes.count + paths.count > 0 {
            // All of it is on its way before any of it is waited for.
            for at in 0..paths.count {
                prefetch(self.path(entries[paths.at(at)] & NUMBER), 0..size_of::<Path>());
            }
            for at in 0..nodes.count {
                let i = nodes.at(at);
                prefetch(self.at_node(entries[i] & NUMBER, keys[i], depths[i]), 0..1);
            }
            let (mut more_nodes, mut more_paths) = (Standing::default(), Standing::default());
            for at in 0..paths.count {
                let i = paths.at(at);
                (entries[i], depths[i]) = self.at_path(entries[i] & NUMBER, keys[i]);
                more_nodes.add(i, Self::is_node(entries[i]));
            }
            for at in 0..nodes.count {
                let i = nodes.at(at);
                entries[i] = *self.at_node(entries[i] & NUMBER, keys[i], depths[i]);
                depths[i] += stride(depths[i]);
                more_nodes.add(i, Self::is_node(entries[i]));
                more_paths.add(i, is_path(entries[i]));
            }
            (nodes, paths) = (more_nodes, more_paths);
        }
        entries.iter_mut().for_each(|entry| *entry &= HOPS - 1);
    }

    /// Goes from the root through the wide nodes, of keys that begin so. A step of each key before the next step of any: a read
    /// that waits keeps the processor from those far behind it, so what is read is asked for before, and there is little between
    /// one read and the next.
    #[inline]
    fn step_wide(&self, fronts: &[u32], entries: &mut [u32]) {
        // That there are so many is looked at here, and not for each key.
        let root = &self.root[..1 << ROOT_BITS];
        for (entry, front) in entries.iter_mut().zip(fronts) {
            *entry = root[(front >> (32 - ROOT_BITS)) as usize];
        }
        let mut next = [&self.root[0]; TOGETHER];
        for below in BELOW {
            if !entries.iter().fold(false, |any, entry| any | Self::is_node(*entry)) {
                break;
            }
            for ((next, entry), front) in next.iter_mut().zip(&*entries).zip(fronts) {
                // Nobody can foresee who goes on: those who don't ask for the first node.
                let from = if Self::is_node(*entry) { *entry } else { INNER };
                *next = self.below(from, *front, below);
                prefetch(*next, 0..1);
            }
            for (entry, next) in entries.iter_mut().zip(&next) {
                let goes_on = Self::is_node(*entry);
                // Whether the root leads on may be as good as chance. The node behind it seldom leads on: a branch is foreseen there,
                // and does not read in vain.
                *entry = if below == BELOW[0] {
                    select_unpredictable(goes_on, **next, *entry)
                } else if goes_on {
                    **next
                } else {
                    *entry
                };
            }
        }
    }

    /// Whether an entry leads to a node.
    #[inline]
    const fn is_node(entry: u32) -> bool {
        entry & INNER != 0 && !(PATHS && is_path(entry))
    }

    /// What an entry that leads to a wide node leads a key to, whose bits of the first 32 from `below` on count there.
    #[inline]
    fn below(&self, entry: u32, front: u32, below: u32) -> &u32 {
        self.wide.at(((entry & NUMBER) << 8 | front >> below & 0xff) as usize)
    }

    /// The entries of nodes that `depth` bits lead to.
    #[inline]
    fn nodes(&self, depth: u32) -> &Entries {
        if is_wide(depth) { &self.wide } else { &self.narrow }
    }

    #[inline]
    pub(super) fn entry(&self, node: u32, depth: u32, at: usize) -> &u32 {
        self.nodes(depth).at((node as usize) << stride(depth) | at)
    }

    /// All entries of a node, to be changed.
    pub(super) fn entries(&mut self, node: u32, depth: u32) -> &mut [u32] {
        let nodes = if is_wide(depth) { &mut self.wide } else { &mut self.narrow };
        nodes.places((node as usize) << stride(depth), 1 << stride(depth))
    }

    #[inline]
    pub(super) fn path(&self, path: u32) -> &Path {
        self.paths.at(path as usize)
    }

    pub(super) fn set_path(&mut self, number: u32, path: Path) {
        self.paths.places(number as usize, 1)[0] = path;
    }

    #[inline]
    fn first(&self, key: u128) -> u32 {
        self.root[(key >> (128 - ROOT_BITS)) as usize]
    }

    /// The entry that a node has for a key.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "half of the key is wanted, and a few bits of that")]
    fn at_node(&self, node: u32, key: u128, depth: u32) -> &u32 {
        // No node lies across the middle of the key.
        let half = if depth < 64 { key >> 64 } else { key } as u64;
        self.entry(node, depth, (half << (depth % 64) >> (64 - stride(depth))) as usize)
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

impl Table<false> {
    /// The hop of an IPv4 address.
    #[inline]
    pub(crate) fn find_v4(&self, address: u32) -> u32 {
        let mut entry = self.root[(address >> (32 - ROOT_BITS)) as usize];
        for below in BELOW {
            if Self::is_node(entry) {
                entry = *self.below(entry, address, below);
            }
        }
        entry & (HOPS - 1)
    }

    /// The hops of many IPv4 addresses.
    #[inline]
    pub(crate) fn find_many_v4(&self, addresses: &[u32], hops: &mut [u32]) {
        for (addresses, hops) in addresses.chunks(TOGETHER).zip(hops.chunks_mut(TOGETHER)) {
            self.step_wide(addresses, hops);
            hops.iter_mut().for_each(|hop| *hop &= HOPS - 1);
        }
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
