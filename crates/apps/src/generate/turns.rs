//! Which flows a generator's packets are of, where these take turns: so that a receiver knows of each number that is
//! missing which flow it was of.
//!
//! A flow is what [`receive`](crate::receive) calls one: protocol, addresses and ports. Other fields may vary as they
//! like.

use std::collections::HashSet;
use std::ops::Range;

use super::layers::{Layers, Transport, Version};
use super::plan::Patch;
use super::series::Series;

/// Flows whose packets come in turn, each once before the first one's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turns {
    /// How many they are.
    pub(super) flows: u16,
}

impl Turns {
    /// The turns of packets with these patches, which all begin anew after `circle` packets. `None` when a flow comes more
    /// than once in a turn, or the flows are too many to be told.
    pub(super) fn of(patches: &[Patch], layers: &Layers, circle: Option<u64>) -> Option<Self> {
        let (version, at) = layers.ip?;
        let (addresses, len) = layers.addresses()?;
        let says_what_they_are = |bit| bit >= at * 8 && kind(version).contains(&(bit / 8 - at));
        if patches.iter().any(|patch| bits(patch).any(says_what_they_are)) {
            return None;
        }
        let has_ports = matches!(layers.transport, Some(Transport::Udp | Transport::Tcp));
        let places =
            [addresses..addresses + 2 * len, layers.inside..layers.inside + if has_ports { 4 } else { 0 }];
        let is_of_it = |bit: usize| places.iter().any(|place| place.contains(&(bit / 8)));
        let parts: Vec<&Patch> = patches.iter().filter(|patch| bits(patch).any(is_of_it)).collect();
        let own = period(parts.iter().map(|patch| &patch.series));
        let flows = match circle {
            Some(circle) if !u128::from(circle).is_multiple_of(own) => circle.into(),
            _ => own,
        };
        let flows = u16::try_from(flows).ok()?;
        let mut seen = HashSet::new();
        let values = |n| parts.iter().map(|part| part.series.value(n) & part.mask).collect::<Vec<u64>>();
        (0..flows).all(|n| seen.insert(values(n.into()))).then_some(Self { flows })
    }

    /// Flows that take turns in the packets of one of `workers`, who take turns with the packets, when that one begins
    /// anew after `circle` of its own. 0 when they do not.
    pub(super) fn of_worker(self, workers: u64, circle: u64) -> u16 {
        let shared = gcd(self.flows.into(), workers.into());
        let flows = self.flows / u16::try_from(shared).unwrap_or(1);
        match u16::try_from(circle) {
            Ok(circle) if circle < flows => circle,
            _ if circle == u64::MAX || circle.is_multiple_of(flows.into()) => flows,
            _ => 0,
        }
    }
}

/// Bytes of an IP header that decide what the others are: where addresses and ports lie, and whether there are any.
fn kind(version: Version) -> &'static [usize] {
    match version {
        // Version and length, fragments, protocol.
        Version::V4 => &[0, 6, 7, 9],
        // Version, next header.
        Version::V6 => &[0, 6],
    }
}

/// The bits of a packet that a patch changes.
fn bits(patch: &Patch) -> Range<usize> {
    let end = (patch.at + patch.width) * 8 - patch.shift as usize;
    end - patch.mask.count_ones() as usize..end
}

/// How many packets it takes until all of these are back at their first values.
pub(super) fn period<'a>(all: impl Iterator<Item = &'a Series>) -> u128 {
    let periods = all.map(|series| {
        let count = if series.count == 0 { 1 << 64 } else { u128::from(series.count) };
        if count == 1 { 1 } else { count.saturating_mul(u128::from(series.every)) }
    });
    periods.fold(1, |all, period| (all / gcd(all, period)).saturating_mul(period))
}

pub(super) fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::plan::Plan;
    use crate::generate::{Field, Frame, Payload};

    fn frame(fields: &[&str], flows: Option<u64>) -> Frame {
        let fields: Vec<Field> = fields.iter().map(|field| field.parse().unwrap()).collect();
        Frame { fields, flows, ..Frame::default() }
    }

    fn turns(frame: &Frame) -> Option<u16> {
        Plan::new(frame, None).unwrap().turns.map(|turns| turns.flows)
    }

    #[test]
    fn flows_that_take_turns_are_counted() {
        let of = |fields: &[&str], flows| turns(&frame(fields, flows));
        assert_eq!(of(&[], None), Some(1));
        assert_eq!(of(&["ipv4.id=0+", "eth.src=any", "ipv4.ttl=1-9 every 3"], None), Some(1), "one 5-tuple");
        assert_eq!(of(&["udp.src=1-6"], None), Some(6));
        assert_eq!(of(&["udp.src=1-6", "ipv4.src=10.0.0.1-10.0.0.4", "ipv4.id=0+"], None), Some(12));
        assert_eq!(of(&["udp.src=any random"], None), Some(65_535));
        assert_eq!(of(&["udp.src=65534+"], None), Some(65_535), "no port is 0");
        assert_eq!(of(&[], Some(1000)), Some(1000));
        assert_eq!(of(&["ipv4.src=10.0.0.0/8 random"], Some(1000)), Some(1000));
        assert_eq!(
            of(&["udp.src=1-5", "ipv4.id=0+"], Some(1000)),
            Some(5),
            "all begin anew, and so do the ports"
        );
        assert_eq!(turns(&Frame { sources: 300, ..Frame::default() }), Some(300));
        let six = |fields: &[&str]| Frame {
            src_ip: "fd00::1".parse().unwrap(),
            dst_ip: "fd00::2".parse().unwrap(),
            ..frame(fields, None)
        };
        assert_eq!(turns(&six(&["ipv6.src=fd00::/120 random", "udp.dst=7,9"])), Some(256));
    }

    #[test]
    fn flows_that_do_not_take_turns_are_none() {
        let of = |fields: &[&str], flows| turns(&frame(fields, flows));
        assert_eq!(of(&["udp.src=1-6 every 2"], None), None, "a flow twice in a row");
        assert_eq!(of(&["udp.src=1,2,1"], None), None, "a flow twice in a turn");
        assert_eq!(of(&["udp.src=1-5", "ipv4.id=0+"], Some(7)), None, "the first two come once more");
        assert_eq!(of(&["ipv4.src=10.0.0.0/8 random"], None), None, "too many");
        assert_eq!(of(&["ipv4.df=0-1"], None), None, "what makes it a fragment varies beside");
        assert_eq!(turns(&Frame { payload: Some(Payload::Nothing), ..frame(&["udp.src=1-6"], None) }), None);
    }

    #[test]
    fn workers_have_their_part_of_the_flows() {
        let of = |flows, workers, circle| Turns { flows }.of_worker(workers, circle);
        assert_eq!([of(6, 1, u64::MAX), of(6, 4, u64::MAX), of(6, 5, u64::MAX)], [6, 3, 6]);
        assert_eq!([of(1000, 2, 500), of(10, 3, 4), of(10, 3, 3), of(2, 4, 1)], [500, 4, 3, 1]);
        assert_eq!([of(5, 1, 1000), of(10, 3, 334)], [5, 0]);
    }
}
