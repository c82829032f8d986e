//! The flow director: perfect filters for IPv4 flows, as many as packet memory is set aside for.
//!
//! Signature filters are taken and counted but match nothing: what they steer is a matter of the hash alone, and a NIC
//! may always miss. The bucket hash that software computes is only a part of a filter's name here; filters are compared
//! by their contents.

use bywash_hw::ixgbe::regs::{self, FDIRCMD, FDIRCTRL, FDIRFREE, FDIRHASH, FDIRM, FDIRVLAN};

use super::file::File;
use super::parse::{Addresses, Parsed, SCTP, TCP, UDP};

/// A perfect filter, as the registers held it when it was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filter {
    name: u32,
    command: u32,
    source: u32,
    destination: u32,
    ports: u32,
    vlan: u32,
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
    filters: Vec<Filter>,
    signatures: u32,
}

/// Values of FDIRCMD.CMD.
const ADD: u32 = 1;
const REMOVE: u32 = 2;
const QUERY: u32 = 3;

/// Filters that the memory set aside holds.
fn capacity(fdirctrl: u32) -> u32 {
    match FDIRCTRL::PBALLOC.of(fdirctrl) {
        0 => 0,
        allocation => (1024 << allocation) - 2,
    }
}

/// KiB of receive memory that filters take.
pub(super) fn memory(fdirctrl: u32) -> u32 {
    match FDIRCTRL::PBALLOC.of(fdirctrl) {
        0 => 0,
        allocation => 32 << allocation,
    }
}

impl FlowDirector {
    /// FDIRCTRL was written: the tables are made anew.
    pub(super) fn initialise(&mut self, file: &mut File, hangs: bool) {
        *self = Self::default();
        let fdirctrl = FDIRCTRL::INIT_DONE.put(file.one(&FDIRCTRL), u32::from(!hangs));
        file.put(&FDIRCTRL, fdirctrl);
        self.show_free(file);
    }

    /// FDIRCMD was written.
    pub(super) fn command(&mut self, file: &mut File) {
        let command = file.one(&FDIRCMD);
        let name = file.one(&FDIRHASH) & (FDIRHASH::HASH.mask | FDIRHASH::INDEX.mask);
        let at = self.filters.iter().position(|filter| filter.name == name);
        let mut result = command & !(FDIRCMD::CMD.mask | FDIRCMD::FILTER_VALID.mask);
        match FDIRCMD::CMD.of(command) {
            ADD => self.add(file, command, name, at),
            REMOVE => match at {
                Some(at) => {
                    self.filters.remove(at);
                    file.count(&regs::FDIRUSTAT, 0, 1 << 16);
                }
                None => file.count(&regs::FDIRFSTAT, 0, 1 << 8),
            },
            QUERY => result |= FDIRCMD::FILTER_VALID.with(u32::from(at.is_some())),
            _ => {}
        }
        if FDIRCMD::CLEARHT.is_set(command) {
            *self = Self::default();
        }
        file.put(&FDIRCMD, result);
        self.show_free(file);
    }

    fn add(&mut self, file: &mut File, command: u32, name: u32, at: Option<usize>) {
        let fdirctrl = file.one(&FDIRCTRL);
        let full = self.filters.len() >= capacity(fdirctrl) as usize;
        if !FDIRCTRL::PERFECT_MATCH.is_set(fdirctrl) {
            self.signatures = (self.signatures + 1).min(capacity(fdirctrl));
            file.count(&regs::FDIRUSTAT, 0, 1);
            return;
        }
        let filter = Filter {
            name,
            command,
            source: file.one(&regs::FDIRIPSA),
            destination: file.one(&regs::FDIRIPDA),
            ports: file.one(&regs::FDIRPORT),
            vlan: file.one(&FDIRVLAN),
        };
        match at {
            Some(at) if FDIRCMD::FILTER_UPDATE.is_set(command) => self.filters[at] = filter,
            None if !full => {
                self.filters.push(filter);
                file.count(&regs::FDIRUSTAT, 0, 1);
            }
            _ => file.count(&regs::FDIRFSTAT, 0, 1),
        }
    }

    fn show_free(&self, file: &mut File) {
        let used = u32::try_from(self.filters.len()).unwrap_or(u32::MAX).saturating_add(self.signatures);
        let free = capacity(file.one(&FDIRCTRL)).saturating_sub(used);
        file.put(&FDIRFREE, FDIRFREE::FREE.with(free));
    }

    /// What the filters say of a packet. Counts matches and misses.
    pub(super) fn steer(&self, file: &mut File, parsed: &Parsed) -> Option<Match> {
        let fdirctrl = file.one(&FDIRCTRL);
        let Some(Addresses::V4 { source, destination }) = parsed.ip else { return None };
        if FDIRCTRL::PBALLOC.of(fdirctrl) == 0 {
            return None;
        }
        let found = self.filters.iter().find(|filter| matches(file, filter, source, destination, parsed));
        let Some(filter) = found else {
            file.count(&regs::FDIRMISS, 0, 1);
            return None;
        };
        file.count(&regs::FDIRMATCH, 0, 1);
        let dropped = FDIRCMD::DROP.is_set(filter.command);
        let queue =
            if dropped { FDIRCTRL::DROP_QUEUE.of(fdirctrl) } else { FDIRCMD::RX_QUEUE.of(filter.command) };
        let report =
            FDIRCTRL::REPORT_STATUS.is_set(fdirctrl) || FDIRCTRL::REPORT_STATUS_ALWAYS.is_set(fdirctrl);
        let name = FDIRHASH::HASH.of(filter.name) | FDIRHASH::INDEX.of(filter.name) << 16;
        Some(Match { queue: (!dropped).then_some(queue), report: report.then_some(name) })
    }
}

fn matches(file: &File, filter: &Filter, source: [u8; 4], destination: [u8; 4], parsed: &Parsed) -> bool {
    // Addresses lie in the registers as in the packet, ports as numbers. A bit of a mask says not to compare.
    let differ = |mask, a: [u8; 4], b: u32| (u32::from_le_bytes(a) ^ b) & !file.one(mask) != 0;
    if differ(&regs::FDIRSIP4M, source, filter.source)
        || differ(&regs::FDIRDIP4M, destination, filter.destination)
    {
        return false;
    }
    let fdirm = file.one(&FDIRM);
    let vlan = u32::from(parsed.vlan.unwrap_or(0)) ^ FDIRVLAN::VLAN.of(filter.vlan);
    if !FDIRM::VLANID.is_set(fdirm) && vlan & 0xfff != 0 || !FDIRM::VLANP.is_set(fdirm) && vlan & 0xe000 != 0
    {
        return false;
    }
    let kind = match parsed.transport {
        Some((UDP, _)) => 1,
        Some((TCP, _)) => 2,
        Some((SCTP, _)) => 3,
        _ => 0,
    };
    if FDIRM::L4P.is_set(fdirm) {
        return true;
    }
    if FDIRCMD::L4TYPE.of(filter.command) != kind {
        return false;
    }
    let mask = match kind {
        1 => file.one(&regs::FDIRUDPM),
        2 => file.one(&regs::FDIRTCPM),
        _ => return true,
    };
    let Some((from, to)) = parsed.ports else { return false };
    // The port masks alone lie with their bits in reverse, in each half.
    let differ = |port: u16, filter: u32, mask: u32| {
        let mask = u16::try_from(mask & 0xffff).unwrap_or(0).reverse_bits();
        (u32::from(port) ^ filter) & 0xffff & !u32::from(mask) != 0
    };
    !differ(from, filter.ports, mask) && !differ(to, filter.ports >> 16, mask >> 16)
}
