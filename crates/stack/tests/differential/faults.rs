//! What lies between the stack and its port: packets are lost, kept back, repeated and changed, as each seed has drawn.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bywash_stack::Timestamp;

use crate::draw::{Case, Chances, seed_of};
use crate::random::Random;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    ToKernel,
    FromKernel,
}

/// What was done to packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) passed: u64,
    pub(crate) lost: u64,
    pub(crate) reordered: u64,
    pub(crate) duplicated: u64,
    pub(crate) corrupted: u64,
}

impl Done {
    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// By number in the group.
    seeds: BTreeMap<usize, [(Chances, Random); 2]>,
    due: [VecDeque<Vec<u8>>; 2],
    /// Kept back, by when they go on; the number keeps two of one time apart.
    held: [BTreeMap<(Timestamp, u64), Vec<u8>>; 2],
    number: u64,
    pub(crate) done: Done,
}

impl Faults {
    pub(crate) fn of(cases: &[Case]) -> Self {
        let seeds = cases.iter().filter_map(|case| {
            let ways = [(case.to_kernel, 2), (case.from_kernel, 3)];
            Some((
                seed_of(case.port())?,
                ways.map(|(chances, way)| (chances, Random::new(case.seed << 2 | way))),
            ))
        });
        Self { seeds: seeds.collect(), ..Self::default() }
    }

    /// Takes a packet, Ethernet header first.
    pub(crate) fn take(&mut self, now: Timestamp, direction: Direction, mut packet: Vec<u8>) {
        let way = direction as usize;
        self.done.passed += 1;
        let ways = tcp_ports(&packet).into_iter().flatten().find_map(seed_of);
        let Some((chances, random)) =
            ways.and_then(|seed| self.seeds.get_mut(&seed)).map(|ways| &mut ways[way])
        else {
            self.due[way].push_back(packet);
            return;
        };
        let [lost, kept_back, twice, changed] =
            [chances.loss, chances.reorder, chances.duplicate, chances.corrupt]
                .map(|one| random.happens(one));
        let delays = [0; 2].map(|_| Duration::from_micros(200 + random.next() % 3000));
        if lost {
            self.done.lost += 1;
            return;
        }
        if twice {
            self.done.duplicated += 1;
            self.held[way].insert((now + delays[0], self.number), packet.clone());
        }
        if changed {
            // Behind the Ethernet header, which has a checksum of its own on a real wire.
            let at = ETHERNET + random.below(packet.len() - ETHERNET);
            packet[at] ^= 1 << random.below(8);
            self.done.corrupted += 1;
        }
        if kept_back {
            self.done.reordered += 1;
            self.held[way].insert((now + delays[1], self.number + 1), packet);
        } else {
            self.due[way].push_back(packet);
        }
        self.number += 2;
    }

    /// The next packet that goes on.
    pub(crate) fn next(&mut self, now: Timestamp, direction: Direction) -> Option<Vec<u8>> {
        let way = direction as usize;
        let kept_back = self.held[way].first_entry().filter(|first| first.key().0 <= now);
        kept_back.map(|first| first.remove()).or_else(|| self.due[way].pop_front())
    }

    /// Whether some are kept back.
    pub(crate) fn is_holding(&self) -> bool {
        self.held.iter().any(|held| !held.is_empty())
    }
}

const ETHERNET: usize = 14;

/// Both ports of a TCP segment. Nothing else suffers: ARP has no checksum.
fn tcp_ports(packet: &[u8]) -> Option<[u16; 2]> {
    let tcp = match *packet.get(12..14)? {
        [0x08, 0x00] if *packet.get(23)? == 6 => ETHERNET + usize::from(packet[ETHERNET] & 15) * 4,
        [0x86, 0xdd] if *packet.get(20)? == 6 => ETHERNET + 40,
        _ => return None,
    };
    let ports = packet.get(tcp..tcp + 4)?;
    Some([[ports[0], ports[1]], [ports[2], ports[3]]].map(u16::from_be_bytes))
}
