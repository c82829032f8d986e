//! Numbers of datagrams that may be cut (RFC 791, 3.2; RFC 8200, 4.5): not one twice in a long time, and none that a stranger
//! can foresee.

use crate::flow::Purpose;
use crate::{Address, Flow, Secret};

/// Counters that pairs of addresses are dealt out to (RFC 7739, 5.3): what one destination sees says little of the others.
const COUNTERS: usize = 32;

/// What all the datagrams of a stack, or of the control, have been numbered with.
#[derive(Debug, Default)]
pub(crate) struct Identifications([u64; COUNTERS]);

impl Identifications {
    /// The next number of a datagram between two addresses. Of those who share our addresses and do not ask each other, who is
    /// number `k` of `n` has every `n`-th.
    pub(crate) fn next(
        &mut self,
        secret: &Secret,
        (local, remote): (Address, Address),
        (k, n): (usize, usize),
    ) -> u32 {
        let hash = secret.hash(Purpose::Fragment, &Flow { local, remote, ..Flow::default() });
        let (which, start) = (hash >> 32, hash & u64::from(u32::MAX));
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is small")]
        let counter = &mut self.0[which as usize % COUNTERS];
        *counter += 1;
        let all = 1u64 << if remote.is_v4() { 16 } else { 32 };
        let (k, n) = (k as u64, n as u64);
        // Whole rounds only: what is left over behind them would be others' when it begins again.
        let turn = (start + *counter) % (all / n).max(1);
        u32::try_from((turn * n + k) % all).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::Ipv4Addr;

    use super::*;

    fn pair(last: u8) -> (Address, Address) {
        (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 1, last).into())
    }

    #[test]
    fn three_stacks_use_all_numbers_before_one_comes_twice() {
        let mut seen = HashSet::new();
        for stack in 0..3u8 {
            let (mut all, secret) = (Identifications::default(), Secret::new([stack; 16]));
            for _ in 0..65_536 / 3 {
                assert!(seen.insert(all.next(&secret, pair(2), (stack.into(), 3))), "stack {stack}");
            }
        }
        assert!(seen.iter().all(|number| *number < 65_536));
    }

    #[test]
    fn who_sees_one_pair_does_not_know_where_another_is() {
        let (mut all, secret) = (Identifications::default(), Secret::new([7; 16]));
        let first: HashSet<u32> = (0..=255).map(|last| all.next(&secret, pair(last), (0, 1)) >> 8).collect();
        assert!((140..180).contains(&first.len()), "by chance 63 % of 256 sixteenths: {}", first.len());
        let other: Vec<u32> = (0..8).map(|last| all.next(&secret, pair(last), (0, 1))).collect();
        let mut all = Identifications::default();
        let third = Secret::new([8; 16]);
        assert!((0..8).all(|last| all.next(&third, pair(last), (0, 1)) != other[usize::from(last)]));
    }
}
