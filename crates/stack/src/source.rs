//! Which of our addresses a packet comes from, when nobody has said (RFC 6724 for IPv6).

use std::cmp::Reverse;

use crate::Address;
use crate::snapshot::Local;

/// The address for packets to a destination. Candidates are those of the interface it is sent by, which RFC 6724, 4
/// recommends, and demands for groups and link-local destinations; those of all where none of them reaches the destination.
///
/// IPv4: that of the longest prefix which holds the next hop, as a route would have it, else the first.
pub(crate) fn choose<'a>(
    ours: impl Iterator<Item = &'a Local>,
    next_hop: Address,
    destination: Address,
) -> Option<Address> {
    let same_family = ours.filter(|local| local.prefix.address().is_v4() == destination.is_v4());
    // Of equals the first is taken.
    let best = same_family.enumerate().max_by_key(|(at, local)| {
        let rank = if destination.is_v4() {
            let length = local.prefix.contains(next_hop).then(|| u32::from(local.prefix.length()) + 1);
            Rank { prefix: length.unwrap_or(0), ..Rank::default() }
        } else {
            rank(local, destination)
        };
        (rank, Reverse(*at))
    });
    best.map(|(_, local)| local.prefix.address())
}

/// Whether who is at the destination can answer to one of our addresses: RFC 6724, 5, rule 2.
pub(crate) fn reaches(ours: Address, destination: Address) -> bool {
    destination.is_v4() || scope(ours) >= scope(destination)
}

/// How well an address fits, the most important rule first: RFC 6724, 5. Rules 4 (mobility), 5 (all candidates are of
/// the outgoing interface) and 7 (temporary addresses) have nothing to decide here; 5.5 needs to know which router has
/// advertised a prefix, which is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Rule 1.
    same: bool,
    /// Rule 2: the smallest scope that reaches the destination; of those too small, the largest.
    scope: (bool, i8),
    /// Rule 3.
    preferred: bool,
    /// Rule 6.
    label: bool,
    /// Rule 8: how many leading bits are the destination's.
    prefix: u32,
}

fn rank(local: &Local, destination: Address) -> Rank {
    let ours = local.prefix.address();
    let (scope, reaches) = (scope(ours), reaches(ours, destination));
    let common = (ours.wire() ^ destination.wire()).leading_zeros();
    Rank {
        same: ours == destination,
        scope: (reaches, if reaches { -scope } else { scope }),
        preferred: !local.deprecated,
        label: label(ours) == label(destination),
        // 2.2: not more than our prefix says.
        prefix: common.min(local.prefix.length().into()),
    }
}

/// RFC 4291, 2.7 numbers the scopes of groups; RFC 6724, 3.1 those of addresses likewise.
fn scope(address: Address) -> i8 {
    const LINK: i8 = 2;
    const SITE: i8 = 5;
    const GLOBAL: i8 = 14;
    if address.bits() >> 120 == 0xff {
        (address.bits() >> 112 & 0xf) as i8
    } else if address.is_link_local() || address.is_loopback() {
        LINK
    } else if address.bits() >> 118 == 0x3fb {
        SITE
    } else {
        GLOBAL
    }
}

/// The default policy table (RFC 6724, 2.1): what has the same label belongs together.
fn label(address: Address) -> u8 {
    // Prefix, its length, label; the longest first.
    const TABLE: [(u128, u8, u8); 9] = [
        (1, 128, 0),
        (0xffff << 32, 96, 4),
        (0, 96, 3),
        (0x2001 << 112, 32, 5),
        (0x2002 << 112, 16, 2),
        (0x3ffe << 112, 16, 12),
        (0xfec0 << 112, 10, 11),
        (0xfc00 << 112, 7, 13),
        (0, 0, 1),
    ];
    let bits = address.wire();
    let holds = |&&(prefix, length, _): &&(u128, u8, u8)| (bits ^ prefix) & crate::address::mask(length) == 0;
    TABLE.iter().find(holds).map_or(1, |(_, _, label)| *label)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::InterfaceId;

    fn pick(ours: &[&str], destination: &str) -> String {
        let link = InterfaceId(1);
        let locals: Vec<Local> = ours
            .iter()
            .map(|text| {
                let (prefix, deprecated) = text.strip_suffix('!').map_or((*text, false), |p| (p, true));
                Local {
                    prefix: prefix.parse::<crate::Prefix>().unwrap().with_zone(link),
                    interface: link,
                    deprecated,
                }
            })
            .collect();
        let destination = Address::from(destination.parse::<IpAddr>().unwrap()).with_zone(link);
        choose(locals.iter(), destination, destination)
            .map_or(String::new(), |address| address.ip().to_string())
    }

    #[test]
    fn the_examples_of_the_rfc() {
        // RFC 6724, 10.1, in its order, as far as they say something about one interface.
        for (ours, destination, expected) in [
            (&["2001:db8:3::1/64", "fe80::1/64"][..], "2001:db8:1::1", "2001:db8:3::1"),
            (&["2001:db8:3::1/64", "fe80::1/64"], "ff05::1", "2001:db8:3::1"),
            (&["2001:db8:1::1/64!", "2001:db8:2::1/64"], "2001:db8:1::1", "2001:db8:1::1"),
            (&["fe80::1/64", "2001:db8:2::1/64"], "fe80::9", "fe80::1"),
            (&["2001:db8:1::2/64", "2001:db8:3::2/64"], "2001:db8:1::1", "2001:db8:1::2"),
            (&["2002:c633:6401::1/64", "2001:db8:1::2/64"], "2002:c633:6401::9", "2002:c633:6401::1"),
            (&["fd00::1/64", "2001:db8::1/64"], "fd00:9::1", "fd00::1"),
            (&["2001:db8:2::1/64!", "2001:db8:3::1/64"], "2001:db8:2::9", "2001:db8:3::1"),
            (&["2001:db8:7::1/64"], "fe80::9", "2001:db8:7::1"),
            (&["10.0.0.1/24"], "2001:db8::1", ""),
        ] {
            assert_eq!(pick(ours, destination), expected, "{ours:?} to {destination}");
        }
    }

    #[test]
    fn ipv4_takes_the_one_whose_prefix_holds_the_next_hop() {
        assert_eq!(pick(&["10.0.0.1/24", "10.1.0.1/24"], "10.1.0.9"), "10.1.0.1");
        assert_eq!(pick(&["10.0.0.1/24", "10.1.0.1/24"], "8.8.8.8"), "10.0.0.1");
        // As a route would: by the longest prefix, of equals by the first.
        assert_eq!(pick(&["10.0.0.1/8", "10.1.0.1/16", "10.1.0.2/16"], "10.1.0.9"), "10.1.0.1");
        assert_eq!(pick(&["10.1.0.1/32", "10.0.0.1/0"], "10.1.0.9"), "10.0.0.1");
    }
}
