//! The flow director: filters for flows, as many as packet memory is set aside for. Perfect filters compare a packet's fields,
//! for IPv4 only; signature filters are two hashes of them, so that other packets may match as well.

use std::collections::HashMap;

use bywash_hw::ixgbe::desc::rx;
use bywash_hw::ixgbe::regs::{self, FDIRCMD, FDIRCTRL, FDIRFREE, FDIRHASH, RXPBSIZE};

use super::faults::Faults;
use super::file::File;
use super::flow_key::Key;
use super::parse::{Addresses, Parsed};
use super::strict::{Rule, Violations};

/// A perfect filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filter {
    /// Hash and index, by which software names it.
    name: u32,
    command: u32,
    key: Key,
}

/// What a filter that matches says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// The queue; `None` is to drop.
    pub(super) queue: Option<u32>,
    /// What the descriptor says instead of an RSS hash: the filter's hash and index.
    pub(super) report: Option<u32>,
}

/// All filters.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowDirector {
    /// Perfect filters.
    filters: Vec<Filter>,
    /// Commands of signature filters, by bucket and signature.
    signatures: HashMap<(u32, u32), u32>,
}

/// Values of FDIRCMD.CMD.
const ADD: u32 = 1;
const REMOVE: u32 = 2;
const QUERY: u32 = 3;

/// Filters that the memory set aside holds; a signature filter takes a quarter of a perfect one's.
fn capacity(fdirctrl: u32) -> u32 {
    match FDIRCTRL::PBALLOC.of(fdirctrl) {
        0 => 0,
        _ => buckets(fdirctrl) - 2,
    }
}

/// Buckets are as many as filters.
fn buckets(fdirctrl: u32) -> u32 {
    let perfect = 1024 << FDIRCTRL::PBALLOC.of(fdirctrl);
    if FDIRCTRL::PERFECT_MATCH.is_set(fdirctrl) { perfect } else { perfect * 4 }
}

/// KiB of receive memory that filters take.
fn memory(fdirctrl: u32) -> u32 {
    match FDIRCTRL::PBALLOC.of(fdirctrl) {
        0 => 0,
        allocation => 32 << allocation,
    }
}

impl FlowDirector {
    /// FDIRCTRL was written: the tables are made anew, in memory that packet buffers and filters share, in KiB.
    pub(super) fn initialise(
        &mut self,
        file: &mut File,
        memory_kib: u32,
        faults: &Faults,
        violations: &mut Violations,
    ) {
        *self = Self::default();
        let taken = memory(file.one(&FDIRCTRL));
        let buffers = (0..RXPBSIZE.count()).map(|i| RXPBSIZE::SIZE.of(file.get(&RXPBSIZE, i))).sum();
        if taken > 0 && buffers + taken > memory_kib {
            violations.add("FDIRCTRL", 0, Rule::PacketMemory(buffers, taken, memory_kib));
        }
        let ready = u32::from(!faults.flow_director_hangs);
        let fdirctrl = FDIRCTRL::INIT_DONE.put(file.one(&FDIRCTRL), ready);
        file.put(&FDIRCTRL, fdirctrl);
        self.show_free(file);
    }

    /// FDIRCMD was written.
    pub(super) fn command(&mut self, file: &mut File, faults: &Faults, violations: &mut Violations) {
        let command = file.one(&FDIRCMD);
        let mut result = command & !(FDIRCMD::CMD.mask | FDIRCMD::FILTER_VALID.mask);
        let perfect = FDIRCTRL::PERFECT_MATCH.is_set(file.one(&FDIRCTRL));
        let name = file.one(&FDIRHASH) & (FDIRHASH::HASH.mask | FDIRHASH::INDEX.mask);
        let at = self.filters.iter().position(|filter| filter.name == name);
        let signature = Self::place(file, FDIRHASH::HASH.of(name), FDIRHASH::INDEX.of(name));
        match FDIRCMD::CMD.of(command) {
            ADD if faults.flow_director_forgets => file.count(&regs::FDIRFSTAT, 0, 1),
            ADD if perfect => self.add(file, command, name, at, violations),
            ADD => self.add_signature(file, command, signature),
            REMOVE => {
                let removed = if perfect {
                    at.map(|at| self.filters.remove(at)).is_some()
                } else {
                    self.signatures.remove(&signature).is_some()
                };
                let (counter, by) =
                    if removed { (&regs::FDIRUSTAT, 1 << 16) } else { (&regs::FDIRFSTAT, 1 << 8) };
                file.count(counter, 0, by);
            }
            QUERY => {
                let valid = if perfect { at.is_some() } else { self.signatures.contains_key(&signature) };
                result |= FDIRCMD::FILTER_VALID.with(u32::from(valid));
            }
            _ => {}
        }
        if FDIRCMD::CLEARHT.is_set(command) {
            *self = Self::default();
        }
        file.put(&FDIRCMD, result);
        self.show_free(file);
    }

    fn add(
        &mut self,
        file: &mut File,
        command: u32,
        name: u32,
        at: Option<usize>,
        violations: &mut Violations,
    ) {
        let full = self.filters.len() >= capacity(file.one(&FDIRCTRL)) as usize;
        let key = Key::of_registers(file);
        let (is, should) = (FDIRHASH::HASH.of(name), key.bucket(file));
        if !(is ^ should).is_multiple_of(buckets(file.one(&FDIRCTRL))) {
            violations.add("FDIRHASH", 0, Rule::WrongBucket(is, should));
        }
        let filter = Filter { name, command, key };
        match at {
            Some(at) if FDIRCMD::FILTER_UPDATE.is_set(command) => self.filters[at] = filter,
            None if !full => {
                self.filters.push(filter);
                file.count(&regs::FDIRUSTAT, 0, 1);
            }
            _ => file.count(&regs::FDIRFSTAT, 0, 1),
        }
    }

    fn add_signature(&mut self, file: &mut File, command: u32, place: (u32, u32)) {
        let known = self.signatures.contains_key(&place);
        if !known && self.signatures.len() >= capacity(file.one(&FDIRCTRL)) as usize
            || known && !FDIRCMD::FILTER_UPDATE.is_set(command)
        {
            file.count(&regs::FDIRFSTAT, 0, 1);
            return;
        }
        self.signatures.insert(place, command);
        file.count(&regs::FDIRUSTAT, 0, u32::from(!known));
    }

    /// The bucket of a hash, and the signature.
    fn place(file: &File, hash: u32, signature: u32) -> (u32, u32) {
        (hash % buckets(file.one(&FDIRCTRL)), signature & 0x7fff)
    }

    fn show_free(&self, file: &mut File) {
        let used = u32::try_from(self.filters.len() + self.signatures.len()).unwrap_or(u32::MAX);
        let free = capacity(file.one(&FDIRCTRL)).saturating_sub(used);
        file.put(&FDIRFREE, FDIRFREE::FREE.with(free));
    }

    /// What the filters say of a packet. Counts matches and misses.
    pub(super) fn steer(&self, file: &mut File, frame: &[u8], parsed: &Parsed) -> Option<Match> {
        let fdirctrl = file.one(&FDIRCTRL);
        if FDIRCTRL::PBALLOC.of(fdirctrl) == 0 {
            return None;
        }
        let perfect = FDIRCTRL::PERFECT_MATCH.is_set(fdirctrl);
        let key = Key::of_packet(file, frame, parsed)
            .filter(|_| !perfect || matches!(parsed.ip, Some(Addresses::V4 { .. })))?;
        // Most of the time there is nothing to find, and no need for hashes.
        let found = if self.filters.is_empty() && self.signatures.is_empty() {
            None
        } else if perfect {
            let bucket = key.bucket(file);
            let same = |name: u32| (FDIRHASH::HASH.of(name) ^ bucket).is_multiple_of(buckets(fdirctrl));
            let found = self.filters.iter().find(|filter| filter.key == key && same(filter.name));
            found.map(|filter| (filter.name, filter.command))
        } else {
            let (bucket, signature) = Self::place(file, key.bucket(file), key.signature(file));
            let name = FDIRHASH::HASH.with(bucket) | FDIRHASH::INDEX.with(signature);
            self.signatures.get(&(bucket, signature)).map(|command| (name, *command))
        };
        let Some((name, command)) = found else {
            file.count(&regs::FDIRMISS, 0, 1);
            return None;
        };
        file.count(&regs::FDIRMATCH, 0, 1);
        let dropped = FDIRCMD::DROP.is_set(command);
        let queue = if dropped { FDIRCTRL::DROP_QUEUE.of(fdirctrl) } else { FDIRCMD::RX_QUEUE.of(command) };
        let report =
            FDIRCTRL::REPORT_STATUS.is_set(fdirctrl) || FDIRCTRL::REPORT_STATUS_ALWAYS.is_set(fdirctrl);
        let name =
            rx::FILTER_HASH.with(FDIRHASH::HASH.of(name)) | rx::FILTER_INDEX.with(FDIRHASH::INDEX.of(name));
        Some(Match { queue: (!dropped).then_some(queue), report: report.then_some(name) })
    }
}
