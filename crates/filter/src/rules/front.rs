//! What the program does at TCX beside deciding: it decides by bytes that it can read.
//!
//! Of many packets only the headers are where a program can read them, the rest lies elsewhere. To have more brought there
//! costs a copy, and for packets that share their memory (TCP's, on a veth) another one, so it is done where it must be: when
//! what the rules look at of such a packet, which is known here, is not all there. For plain packets that is hardly more than
//! their headers.

use super::program::Coder;
use crate::Expression;
use crate::ebpf::Label;
use crate::extent::extent;
use crate::hook::{Hook, bring_to_front, unless_in_front};
use crate::plain::{NETWORK, Plain};

/// Bytes that are brought at most, and so the most that expressions look at here: as many as a driver's first buffer has for
/// an XDP program.
const MOST: u64 = 2048;

/// Bytes that are always there: the Ethernet header.
const ALWAYS: u64 = NETWORK as u64;

/// Bytes that lists and flows look at: two tags, the longest IPv4 header and the first of what is behind it.
const HEADERS: u64 = ALWAYS + 8 + 60 + 8;

impl Coder<'_> {
    /// All that becomes of packets, once for each of these kinds and once for all others.
    pub(super) fn decide_in_front(&mut self, plains: &[Plain]) {
        let [bring, other] = [(); 2].map(|()| self.assembler.label());
        // What is not brought here is told apart again.
        let mut labels = || Plain::ALL.map(|plain| (plain, self.assembler.label()));
        let (first, ready) = (labels(), labels());
        let looked_at = Plain::ALL.map(|plain| self.looked_at(Some(plain)));
        let others = self.looked_at(None);
        let most = looked_at.into_iter().fold(others, u32::max);
        self.tell_apart(&first);
        self.unless_in_front(others, ALWAYS, bring);
        self.assembler.place(other);
        // Once more, so that the verifier need not tell the ways here apart.
        Hook::Tcx.find_packet(&mut self.assembler);
        self.decide_all();
        for (((plain, first), (_, ready)), bytes) in first.into_iter().zip(ready).zip(looked_at) {
            self.assembler.place(first);
            self.unless_in_front(bytes, plain.len().into(), bring);
            if plains.contains(&plain) {
                self.decide_plain(plain, ready);
            } else {
                self.assembler.place(ready);
                self.assembler.jump(other);
            }
        }
        self.assembler.place(bring);
        // Where there is no memory for that, they are decided by what is there.
        bring_to_front(&mut self.assembler, most);
        self.tell_apart(&ready);
        self.assembler.jump(other);
    }

    /// Goes on when so many first bytes can be read, of which `known` can for sure.
    fn unless_in_front(&mut self, bytes: u32, known: u64, otherwise: Label) {
        if u64::from(bytes) > known {
            unless_in_front(&mut self.assembler, bytes, otherwise);
        }
    }

    /// How many first bytes of such packets decide what becomes of them.
    fn looked_at(&self, plain: Option<Plain>) -> u32 {
        let set = self.rules.rules;
        let of_rules = set.rules().iter().filter_map(|rule| rule.condition.expression.as_ref());
        let all = of_rules.chain(self.rules.only).chain(self.rules.never);
        let of = |expression: &Expression| {
            let whole = expression.graph();
            plain.map_or_else(|| extent(whole), |plain| extent(&plain.rest(whole)))
        };
        let headers = match plain {
            Some(plain) => plain.len().into(),
            None if set.tables().is_used() || set.longest_idle().is_some() => HEADERS,
            None => ALWAYS,
        };
        let most = all.map(of).fold(headers, u64::max).min(MOST);
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}
