//! Addresses by their last byte: the few that are looked for in every packet, and those that packets have which are only passed
//! on. For nearly all one or two bytes tell.

use std::net::Ipv4Addr;

use crate::Address;

/// A few addresses of a family that nearly no packet has, as numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept<A> {
    /// A bit for the last byte of each: who has none of these needs no search.
    last_bytes: [u64; 4],
    sorted: Vec<A>,
}

impl<A: Copy + Ord + Into<u128>> Kept<A> {
    pub(crate) fn of(addresses: impl Iterator<Item = A>) -> Self {
        let mut sorted: Vec<A> = addresses.collect();
        sorted.sort_unstable();
        let mut last_bytes = [0; 4];
        for address in &sorted {
            let last = last_of(*address);
            last_bytes[usize::from(last >> 6)] |= 1 << (last & 63);
        }
        Self { last_bytes, sorted }
    }

    #[inline]
    pub(crate) fn holds(&self, address: A) -> bool {
        let last = last_of(address);
        let perhaps = self.last_bytes[usize::from(last >> 6)] >> (last & 63) & 1 != 0;
        perhaps && self.sorted.binary_search(&address).is_ok()
    }
}

/// The last byte of an address.
#[inline]
fn last_of(address: impl Into<u128>) -> u8 {
    let [.., last] = address.into().to_be_bytes();
    last
}

/// Addresses of a family that packets have which are only passed on: those of one host that mean the same everywhere, but for
/// ours and those of everyone on our links. Of IPv6 those that are given out today: others are left to the long way.
#[derive(Clone, Debug)]
pub(crate) struct Passing<A> {
    /// Whether an address is none of them, or perhaps none, by its first byte and by its last. One access for each of the two is
    /// what nearly every packet takes.
    doubt: [[bool; 256]; 2],
    kept: Kept<A>,
}

impl<A: Copy + Ord + Into<u128>> Passing<A> {
    fn new(doubtful: impl Fn(u8) -> bool, kept: Kept<A>) -> Self {
        let mut doubt = [[false; 256]; 2];
        for first in 0..=u8::MAX {
            doubt[0][usize::from(first)] = doubtful(first);
        }
        for address in &kept.sorted {
            doubt[1][usize::from(last_of(*address))] = true;
        }
        Self { doubt, kept }
    }

    #[inline]
    fn is_in_doubt(&self, first: u8, last: u8) -> bool {
        self.doubt[0][usize::from(first)] | self.doubt[1][usize::from(last)]
    }
}

impl Default for Passing<u32> {
    fn default() -> Self {
        Self::but_for(std::iter::empty())
    }
}

impl Passing<u32> {
    pub(crate) fn but_for(kept: impl Iterator<Item = u32>) -> Self {
        Self::new(|first| matches!(first, 0 | 127 | 169 | 224..=239 | 255), Kept::of(kept))
    }

    #[inline]
    pub(crate) fn holds(&self, address: u32) -> bool {
        let [first, .., last] = address.to_be_bytes();
        !self.is_in_doubt(first, last) || self.holds_after_all(address)
    }

    /// Whether it holds both addresses of a packet.
    #[inline]
    pub(crate) fn holds_both(&self, source: [u8; 4], destination: [u8; 4]) -> bool {
        let doubt = |[first, .., last]: [u8; 4]| self.is_in_doubt(first, last);
        !(doubt(source) | doubt(destination)) || self.holds_both_after_all(source, destination)
    }

    // One call: the fewer there are, the fewer registers a packet's way needs that calls keep.
    #[inline(never)]
    fn holds_both_after_all(&self, source: [u8; 4], destination: [u8; 4]) -> bool {
        [source, destination].into_iter().all(|end| self.holds_after_all(u32::from_be_bytes(end)))
    }

    #[inline(never)]
    fn holds_after_all(&self, bits: u32) -> bool {
        let address = Address::from(Ipv4Addr::from_bits(bits));
        let one_host = address.is_host() && !address.is_loopback() && !address.is_link_local_v4();
        one_host && !self.kept.holds(bits)
    }
}

impl Default for Passing<u128> {
    fn default() -> Self {
        Self::but_for(std::iter::empty())
    }
}

/// Whether an IPv6 address that begins with this byte is one host's and means the same everywhere, as nearly all are: 2000::/3, of
/// which all global addresses are given out so far, and fc00::/7 (RFC 4193).
fn is_global(first: u8) -> bool {
    matches!(first, 0x20..=0x3f | 0xfc | 0xfd)
}

impl Passing<u128> {
    pub(crate) fn but_for(kept: impl Iterator<Item = u128>) -> Self {
        Self::new(|first| !is_global(first), Kept::of(kept))
    }

    /// Whether it holds both addresses of a packet.
    #[inline]
    pub(crate) fn holds_both(&self, source: [u8; 16], destination: [u8; 16]) -> bool {
        let doubt = |[first, .., last]: [u8; 16]| self.is_in_doubt(first, last);
        !(doubt(source) | doubt(destination)) || self.holds_both_after_all(source, destination)
    }

    #[inline(never)]
    fn holds_both_after_all(&self, source: [u8; 16], destination: [u8; 16]) -> bool {
        let holds = |end: [u8; 16]| is_global(end[0]) && !self.kept.holds(u128::from_be_bytes(end));
        holds(source) && holds(destination)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn v4(text: &str) -> [u8; 4] {
        text.parse::<Ipv4Addr>().unwrap().octets()
    }

    fn v6(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    #[test]
    fn what_two_bytes_leave_in_doubt_is_looked_at_whole() {
        let ours = ["10.0.0.1", "10.0.0.255", "192.0.2.1"].map(|own| u32::from_be_bytes(v4(own)));
        let passing = Passing::<u32>::but_for(ours.into_iter());
        let other = "203.0.113.9";
        let both = |ends: [&str; 2]| passing.holds_both(v4(ends[0]), v4(ends[1]));
        let in_doubt = |[first, .., last]: [u8; 4]| passing.is_in_doubt(first, last);
        for (passed, doubt) in [
            (other, false),
            ("10.0.0.2", false),
            ("1.0.0.0", false),
            ("223.255.255.254", false),
            ("240.0.0.9", false),
            ("10.0.1.1", true),
            ("10.0.1.255", true),
            ("169.253.0.9", true),
            ("169.255.0.9", true),
        ] {
            assert!(passing.holds(u32::from_be_bytes(v4(passed))), "{passed}");
            assert!(both([passed, other]) && both([other, passed]), "{passed}");
            assert_eq!(in_doubt(v4(passed)), doubt, "{passed}");
        }
        for kept in [
            "10.0.0.1",
            "10.0.0.255",
            "192.0.2.1",
            "0.0.0.9",
            "127.0.0.9",
            "169.254.3.9",
            "224.0.0.9",
            "239.9.9.9",
            "255.255.255.255",
        ] {
            assert!(!passing.holds(u32::from_be_bytes(v4(kept))), "{kept}");
            assert!(!both([kept, other]) && !both([other, kept]), "{kept}");
        }
    }

    #[test]
    fn of_ipv6_what_is_given_out_today_is_passed_on() {
        let ours = ["fd00::1", "2001:db8::1", "2001:db8::7"].map(|own| u128::from_be_bytes(v6(own)));
        let passing = Passing::<u128>::but_for(ours.into_iter());
        let other = "fd00::9";
        let both = |ends: [&str; 2]| passing.holds_both(v6(ends[0]), v6(ends[1]));
        let in_doubt = |bytes: [u8; 16]| passing.is_in_doubt(bytes[0], bytes[15]);
        for (passed, doubt) in [
            (other, false),
            ("2001:db8::2", false),
            ("2000::", false),
            ("fdff::2", false),
            ("3fff::1", true),
            ("2001:db8:1::7", true),
        ] {
            assert!(both([passed, other]) && both([other, passed]), "{passed}");
            assert_eq!(in_doubt(v6(passed)), doubt, "{passed}");
        }
        for kept in [
            "fd00::1",
            "2001:db8::1",
            "2001:db8::7",
            "::",
            "::1",
            "::ffff:10.0.0.9",
            "1fff::9",
            "4000::9",
            "fb00::9",
            "fe80::9",
            "ff02::9",
        ] {
            assert!(!both([kept, other]) && !both([other, kept]), "{kept}");
        }
    }
}
