//! Which sources the port drops everything of, by which rule, and until when.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::top::Blocked;

/// All of them, for the thread that blocks and for whoever tells of them.
#[derive(Clone, Default)]
pub(super) struct Blocks(Arc<Mutex<HashMap<Key, Block>>>);

/// A limit's rule, and a source as it tells them apart.
pub(super) type Key = (String, IpAddr);

#[derive(Clone, Copy)]
struct Block {
    bits: u8,
    since: Instant,
    until: Instant,
}

impl Blocks {
    pub(super) fn has(&self, key: &Key) -> bool {
        self.with(|blocks| blocks.contains_key(key))
    }

    pub(super) fn count(&self) -> u64 {
        self.with(|blocks| blocks.len() as u64)
    }

    /// From now on, for so long. `bits` of the source count.
    pub(super) fn add(&self, key: Key, bits: u8, time: Duration) {
        let since = Instant::now();
        self.with(|blocks| blocks.insert(key, Block { bits, since, until: since + time }));
    }

    /// Those whose time is over, and how many bits of each count.
    pub(super) fn over(&self) -> Vec<(Key, u8)> {
        let now = Instant::now();
        self.with(|blocks| {
            let over = blocks.iter().filter(|(_, block)| block.until <= now);
            over.map(|(key, block)| (key.clone(), block.bits)).collect()
        })
    }

    pub(super) fn remove(&self, key: &Key) {
        self.with(|blocks| blocks.remove(key));
    }

    /// Those of which that is so.
    pub(super) fn those(&self, is_so: impl Fn(&Key) -> bool) -> Vec<Key> {
        self.with(|blocks| blocks.keys().filter(|key| is_so(key)).cloned().collect())
    }

    /// Keeps those that stay blocked. Returns the others, and how many bits of each count.
    pub(super) fn retain(&self, stays: impl Fn(&Key) -> bool) -> Vec<(Key, u8)> {
        let taken = |blocks: &mut HashMap<Key, Block>| {
            blocks.extract_if(|key, _| !stays(key)).map(|(key, block)| (key, block.bits)).collect()
        };
        self.with(taken)
    }

    /// As they are now.
    pub(super) fn now(&self) -> Vec<Blocked> {
        let now = Instant::now();
        let blocked = |((rule, source), block): (&Key, &Block)| Blocked {
            rule: rule.clone(),
            source: *source,
            bits: block.bits,
            been: now.saturating_duration_since(block.since),
            left: block.until.saturating_duration_since(now),
        };
        self.with(|blocks| blocks.iter().map(blocked).collect())
    }

    fn with<T>(&self, what: impl FnOnce(&mut HashMap<Key, Block>) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
