//! Classes of IPv4 addresses: a table by the first 16 bits, and blocks of 256 for those where longer prefixes begin.
//!
//! An address costs one load, two where there are prefixes longer than /16, three where there are some longer than /24,
//! however many there are. (The kernel's own trie costs a comparison for each bit, and a call.)

use std::net::IpAddr;

use super::Rule;
use super::prefix::mask32;

/// Set in an entry that leads to a block.
pub(super) const INNER: u32 = 1 << 31;

/// Entries of the first table.
pub(super) const ROOT: usize = 1 << 16;

/// Entries of a block.
pub(super) const BLOCK: usize = 256;

/// Most blocks; a block has 1 KiB.
pub(super) const MOST_BLOCKS: usize = 1 << 18;

/// The first rule with a prefix that there is no room for.
pub(super) fn beyond_room(rules: &[Rule]) -> Option<&str> {
    let mut tries = [Trie::new(), Trie::new()];
    let mut has_room = |rule: &Rule| {
        let lists = [&rule.condition.from, &rule.condition.to];
        tries.iter_mut().zip(lists).all(|(trie, list)| {
            list.iter().all(|prefix| match prefix.address() {
                IpAddr::V4(address) => trie.paint(address.to_bits(), prefix.bits(), |class| class).is_some(),
                IpAddr::V6(_) => true,
            })
        })
    };
    rules.iter().find(|rule| !has_room(rule)).map(|rule| &*rule.name)
}

/// A class for each IPv4 address; 0 for those in no prefix.
#[derive(Debug)]
pub(super) struct Trie {
    pub(super) root: Box<[u32; ROOT]>,
    pub(super) blocks: Vec<[u32; BLOCK]>,
}

impl Trie {
    pub(super) fn new() -> Self {
        Self { root: Box::new([0; ROOT]), blocks: Vec::new() }
    }

    /// Changes the class of all addresses of a prefix by `change`. Shorter prefixes come before longer ones. `None` when
    /// there would be too many blocks.
    pub(super) fn paint(&mut self, address: u32, bits: u8, mut change: impl FnMut(u32) -> u32) -> Option<()> {
        let [a, b, c, d] = (address & mask32(bits)).to_be_bytes();
        let top = usize::from(u16::from_be_bytes([a, b]));
        let cells = |bits: u8, of: u8| 1_usize << (of - bits);
        if bits <= 16 {
            self.root[top..top + cells(bits, 16)].iter_mut().for_each(|cell| *cell = change(*cell));
            return Some(());
        }
        let second = Self::block_at(&mut self.blocks, &mut self.root[top])?;
        let (c, d) = (usize::from(c), usize::from(d));
        if bits <= 24 {
            let cells = &mut self.blocks[second][c..c + cells(bits, 24)];
            cells.iter_mut().for_each(|cell| *cell = change(*cell));
            return Some(());
        }
        let mut cell = self.blocks[second][c];
        let third = Self::block_at(&mut self.blocks, &mut cell)?;
        self.blocks[second][c] = cell;
        let cells = &mut self.blocks[third][d..d + cells(bits, 32)];
        cells.iter_mut().for_each(|cell| *cell = change(*cell));
        Some(())
    }

    /// The block that an entry leads to, made when there is none.
    fn block_at(blocks: &mut Vec<[u32; BLOCK]>, entry: &mut u32) -> Option<usize> {
        if *entry & INNER != 0 {
            return Some((*entry & !INNER) as usize);
        }
        if blocks.len() == MOST_BLOCKS {
            return None;
        }
        blocks.push([*entry; BLOCK]);
        let index = blocks.len() - 1;
        *entry = INNER | u32::try_from(index).ok()?;
        Some(index)
    }

    /// The class of an address.
    #[inline]
    pub(super) fn find(&self, address: u32) -> u32 {
        let [a, b, c, d] = address.to_be_bytes();
        let mut entry = self.root[usize::from(u16::from_be_bytes([a, b]))];
        for byte in [c, d] {
            if entry & INNER == 0 {
                return entry;
            }
            entry = self.blocks[(entry & !INNER) as usize][usize::from(byte)];
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Condition, Prefix, RuleError, RuleSet};
    use super::*;

    #[test]
    fn the_first_rule_whose_prefixes_there_is_no_room_for_is_named() {
        let rule = |name: &str, addresses: std::ops::Range<usize>| {
            let address = |n: usize| u32::try_from(n << 8).unwrap().into();
            let from = addresses.map(|n| Prefix::new(IpAddr::V4(address(n)), 32).unwrap()).collect();
            let condition = Condition { from, ..Condition::default() };
            Rule {
                name: name.into(),
                condition,
                action: Action::Drop,
                sample: None,
                expires: None,
                dry_run: false,
            }
        };
        let rules = vec![rule("few", 0..256), rule("many", 256..MOST_BLOCKS), rule("more", 0..256)];
        assert_eq!(RuleSet::new(rules).unwrap_err(), RuleError::Prefixes("many".into()));
    }
}
