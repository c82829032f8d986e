//! Extension headers of IPv6 (RFC 8200, 4): from the IPv6 header to what it carries, or to what is wrong on the way.

use zerocopy::FromBytes;

use crate::{FRAGMENT_HEADER, FragmentHeader, IPV6_HEADER, Ipv6Header, Protocol, icmpv6};

/// Headers that may stand in a row. RFC 8504, 5.3 lets a host set such a limit: nobody honest comes near it, and
/// every one is work.
const HEADERS: usize = 8;
/// Options of one header that are not padding, and bytes of padding in a row (RFC 8504, 5.3).
const OPTIONS: usize = 8;
const PADDING: usize = 7;
/// Options (RFC 8200, 4.2; RFC 2711, 2.1).
const PAD1: u8 = 0;
const PAD_N: u8 = 1;
const ROUTER_ALERT: u8 = 5;

/// A header in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it is; see [`Protocol`].
    pub protocol: u8,
    /// Its first byte.
    pub start: usize,
    /// The byte that says what it is: the next-header field of the header before.
    pub named_at: usize,
}

/// Where a row of extension headers ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At what the packet carries.
    Upper(Place),
    /// At a fragment header: the rest makes sense when all pieces are there.
    Fragment(Place),
}

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionError {
    /// Cut short, or too long a row.
    Malformed,
    /// Nothing follows, or an option says that it is to be dropped in silence.
    Silent,
    /// A field that its sender should hear of, by an ICMP parameter problem.
    Problem {
        /// The message's code.
        code: u8,
        /// The byte that is wrong.
        pointer: usize,
        /// Also when the packet was for many.
        always: bool,
    },
}

impl Place {
    /// What follows the IPv6 header itself; it must have been parsed before.
    #[inline]
    pub fn first(packet: &[u8]) -> Option<Self> {
        let (header, _) = Ipv6Header::ref_from_prefix(packet).ok()?;
        Some(Self { protocol: header.next_header, start: IPV6_HEADER, named_at: 6 })
    }

    /// Follows the row of headers from here on. `packet` begins with the IPv6 header and ends where its first frame
    /// or its payload ends.
    ///
    /// # Errors
    /// [`ExtensionError`], by RFC 8200, 4.
    #[inline]
    pub fn follow(self, packet: &[u8]) -> Result<Next, ExtensionError> {
        match Protocol(self.protocol) {
            Protocol::TCP | Protocol::UDP | Protocol::ICMPV6 => Ok(Next::Upper(self)),
            _ => self.follow_row(packet),
        }
    }

    /// Skips the row of headers from here on by their lengths alone, whatever is wrong with what they hold, to what a packet, or a
    /// first piece, carries: for who must know what that is before anything is said of the packet (RFC 4443, 2.4 (e.1)). `None`
    /// where that cannot be seen: the packet is a later piece, or ends before.
    pub fn skip(mut self, packet: &[u8]) -> Option<Self> {
        loop {
            let protocol = Protocol(self.protocol);
            let known = matches!(
                protocol,
                Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DESTINATION_OPTIONS | Protocol::FRAGMENT
            );
            if !known {
                return Some(self);
            }
            let header = packet.get(self.start..self.start + FRAGMENT_HEADER)?;
            let mut length = (usize::from(header[1]) + 1) * 8;
            if protocol == Protocol::FRAGMENT {
                let (fragment, _) = FragmentHeader::ref_from_prefix(header).ok()?;
                if fragment.offset() != 0 {
                    return None;
                }
                length = FRAGMENT_HEADER;
            }
            self = Self { protocol: header[0], start: self.start + length, named_at: self.start };
        }
    }

    fn follow_row(mut self, packet: &[u8]) -> Result<Next, ExtensionError> {
        for _ in 0..HEADERS {
            let header = || packet.get(self.start..self.start + 8).ok_or(ExtensionError::Malformed);
            match Protocol(self.protocol) {
                // 4.3: it comes first, or it is as unknown as any other.
                Protocol::HOP_BY_HOP if self.start == IPV6_HEADER => self.check_options(packet)?,
                Protocol::DESTINATION_OPTIONS => self.check_options(packet)?,
                Protocol::ROUTING => {
                    // 4.4: no type is known here. RFC 5095: type 0 is as unknown as the others.
                    if header()?[3] != 0 {
                        return Err(problem(icmpv6::FIELD, self.start + 2));
                    }
                }
                Protocol::FRAGMENT => {
                    header()?;
                    return Ok(Next::Fragment(self));
                }
                Protocol::NO_NEXT_HEADER => return Err(ExtensionError::Silent),
                Protocol::HOP_BY_HOP => return Err(problem(icmpv6::NEXT_HEADER, self.named_at)),
                _ => return Ok(Next::Upper(self)),
            }
            let header = header()?;
            let length = (usize::from(header[1]) + 1) * 8;
            if packet.len() < self.start + length {
                return Err(ExtensionError::Malformed);
            }
            self = Self { protocol: header[0], start: self.start + length, named_at: self.start };
        }
        Err(ExtensionError::Malformed)
    }

    /// 4.2: no option is known but padding; each unknown one says by its upper two bits what is to be done.
    fn check_options(&self, packet: &[u8]) -> Result<(), ExtensionError> {
        let malformed = ExtensionError::Malformed;
        let length = packet.get(self.start + 1).map(|l| (usize::from(*l) + 1) * 8).ok_or(malformed)?;
        let (mut at, end) = (self.start + 2, self.start + length);
        if packet.len() < end {
            return Err(malformed);
        }
        let (mut count, mut padding) = (0, 0);
        while at < end {
            let kind = packet[at];
            let size = match kind {
                PAD1 => 1,
                _ if at + 1 < end => 2 + usize::from(packet[at + 1]),
                _ => return Err(malformed),
            };
            if at + size > end {
                return Err(malformed);
            }
            if matches!(kind, PAD1 | PAD_N) {
                padding += size;
            } else {
                (count, padding) = (count + 1, 0);
            }
            if count > OPTIONS || padding > PADDING {
                return Err(malformed);
            }
            match kind >> 6 {
                0 => at += size,
                1 => return Err(ExtensionError::Silent),
                action => {
                    let always = action == 2;
                    return Err(ExtensionError::Problem { code: icmpv6::OPTION, pointer: at, always });
                }
            }
        }
        Ok(())
    }
}

/// Whether there is a router alert among a packet's hop-by-hop options, of any value. What else they are is not looked at.
pub fn has_router_alert(packet: &[u8]) -> bool {
    let first = Place::first(packet).filter(|first| first.protocol == Protocol::HOP_BY_HOP.0);
    let Some([_, length, rest @ ..]) = first.and_then(|first| packet.get(first.start..)) else {
        return false;
    };
    let mut options = rest.get(..(usize::from(*length) + 1) * 8 - 2).unwrap_or_default();
    while let [kind, rest @ ..] = options {
        options = match (*kind, rest) {
            (PAD1, _) => rest,
            (ROUTER_ALERT, [2, _, _, ..]) => return true,
            (_, [length, rest @ ..]) => rest.get(usize::from(*length)..).unwrap_or_default(),
            (_, []) => return false,
        };
    }
    false
}

fn problem(code: u8, pointer: usize) -> ExtensionError {
    ExtensionError::Problem { code, pointer, always: false }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    fn packet(first: Protocol, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap();
        let header = Ipv6Header::new(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, first.0, length);
        [header.as_bytes(), rest].concat()
    }

    fn follow(first: Protocol, rest: &[u8]) -> Result<Next, ExtensionError> {
        let packet = packet(first, rest);
        Place::first(&packet).unwrap().follow(&packet)
    }

    fn upper(protocol: u8, start: usize, named_at: usize) -> Result<Next, ExtensionError> {
        Ok(Next::Upper(Place { protocol, start, named_at }))
    }

    #[test]
    fn a_row_of_headers_leads_to_what_is_carried() {
        assert_eq!(follow(Protocol::TCP, &[]), upper(6, 40, 6));
        // Hop-by-hop with padding, destination options with one to be skipped, routing without segments left, UDP.
        let row =
            [[60, 0, 1, 4, 0, 0, 0, 0], [43, 0, 0x1e, 1, 9, 0, 0, 0], [17, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(follow(Protocol::HOP_BY_HOP, &row), upper(17, 64, 56));
        let piece = Place { protocol: 44, start: 40, named_at: 6 };
        assert_eq!(follow(Protocol::FRAGMENT, &[0; 8]), Ok(Next::Fragment(piece)));
        assert_eq!(follow(Protocol(200), &[]), upper(200, 40, 6), "the caller does not know it");
    }

    #[test]
    fn what_is_wrong_is_said_by_rule() {
        let problem = |code, pointer, always| Err(ExtensionError::Problem { code, pointer, always });
        let option = |kind| follow(Protocol::DESTINATION_OPTIONS, &[6, 0, kind, 4, 0, 0, 0, 0]);
        assert_eq!(option(0x3e), upper(6, 48, 40));
        assert_eq!(option(0x7e), Err(ExtensionError::Silent));
        assert_eq!(option(0xbe), problem(icmpv6::OPTION, 42, true));
        assert_eq!(option(0xfe), problem(icmpv6::OPTION, 42, false));
        for kind in [0, 2, 4] {
            let routing = follow(Protocol::ROUTING, &[6, 0, kind, 1, 0, 0, 0, 0]);
            assert_eq!(routing, problem(icmpv6::FIELD, 42, false), "routing type {kind} with a segment left");
        }
        let late = follow(Protocol::DESTINATION_OPTIONS, &[0, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(late, problem(icmpv6::NEXT_HEADER, 40, false), "hop-by-hop is not first");
        assert_eq!(follow(Protocol::NO_NEXT_HEADER, &[]), Err(ExtensionError::Silent));
        let long = [60, 0, 1, 4, 0, 0, 0, 0].repeat(9);
        assert_eq!(follow(Protocol::DESTINATION_OPTIONS, &long), Err(ExtensionError::Malformed));
        let padded = [6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(follow(Protocol::DESTINATION_OPTIONS, &padded), Err(ExtensionError::Malformed));
        assert_eq!(
            follow(Protocol::DESTINATION_OPTIONS, &[6, 1, 1, 4, 0, 0, 0, 0]),
            Err(ExtensionError::Malformed)
        );
    }

    #[test]
    fn a_router_alert_is_found_among_hop_by_hop_options_only() {
        let alert = |first, rest: &[u8]| has_router_alert(&packet(first, rest));
        assert!(alert(Protocol::HOP_BY_HOP, &[58, 0, 5, 2, 0, 0, 1, 0]));
        assert!(alert(Protocol::HOP_BY_HOP, &[58, 1, 0, 1, 1, 0, 0x3e, 2, 5, 2, 5, 2, 0, 1, 0, 0]));
        assert!(!alert(Protocol::HOP_BY_HOP, &[58, 0, 1, 4, 5, 2, 0, 0]), "padding");
        assert!(!alert(Protocol::HOP_BY_HOP, &[58, 0, 1, 2, 0, 0, 5, 2, 0, 0]), "cut short");
        assert!(!alert(Protocol::DESTINATION_OPTIONS, &[58, 0, 5, 2, 0, 0, 1, 0]));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), first in any::<u8>()) {
            let mut bytes = bytes;
            if let Some(next) = bytes.get_mut(6) {
                *next = [0, 43, 44, 60, first][usize::from(first) % 5];
            }
            has_router_alert(&bytes);
            if let Some(place) = Place::first(&bytes)
                && let Ok(Next::Upper(end) | Next::Fragment(end)) = place.follow(&bytes)
            {
                prop_assert!(end.start <= bytes.len() && end.named_at < end.start);
            }
        }
    }
}
