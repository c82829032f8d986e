//! N-tuple rules of anybody's, as their driver tells them: kept whole, so that it can be given them again.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::rules::{
    COUNT, EXT, FLOW_EXT, FLOW_TYPE, LOCATION, RX_CLS_FLOW_DISC, RX_CLS_LOC_ANY, Rule, UNION,
};
use super::{Ethtool, EthtoolError, word};

/// A rule with all its fields: `struct ethtool_rx_flow_spec`. Its text is what `ethtool -N` calls it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FlowSpec {
    /// The struct, and behind it the RSS context, 0 where the rule has none.
    bytes: Vec<u8>,
}

impl FlowSpec {
    /// Of a `struct ethtool_rxnfc` that the kernel has filled in.
    fn told(told: &[u8]) -> Self {
        let mut spec = Self { bytes: told[FLOW_TYPE..COUNT + 4].to_vec() };
        if spec.flow_type() & FLOW_RSS == 0 {
            spec.bytes[CONTEXT..].fill(0);
        }
        spec
    }

    /// Its place in the table.
    #[must_use]
    pub fn location(&self) -> u32 {
        word(&self.bytes, PLACE / 4)
    }

    /// Whether another rule does the same, wherever in the table it is.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        self.bytes[..PLACE] == other.bytes[..PLACE] && self.bytes[CONTEXT..] == other.bytes[CONTEXT..]
    }

    /// Whether it is this rule: at its place, or anywhere when it has none.
    #[must_use]
    pub fn is(&self, rule: &Rule) -> bool {
        let told = [&[0; FLOW_TYPE][..], &self.bytes].concat();
        rule.location.is_none_or(|place| place == self.location()) && rule.is(&told)
    }

    fn flow_type(&self) -> u32 {
        word(&self.bytes, 0)
    }

    /// What packets it names, and its fields: where they are, and what `ethtool -N` calls them.
    fn fields(&self) -> (&'static str, &'static [(&'static str, Range<usize>)]) {
        const IP4: [(&str, Range<usize>); 4] =
            [("src-ip", 0..4), ("dst-ip", 4..8), ("src-port", 8..10), ("dst-port", 10..12)];
        const IP6: [(&str, Range<usize>); 4] =
            [("src-ip", 0..16), ("dst-ip", 16..32), ("src-port", 32..34), ("dst-port", 34..36)];
        match self.flow_type() & !(FLOW_EXT | FLOW_MAC_EXT | FLOW_RSS) {
            0x01 => ("tcp4", &IP4),
            0x02 => ("udp4", &IP4),
            0x03 => ("sctp4", &IP4),
            0x05 => ("tcp6", &IP6),
            0x06 => ("udp6", &IP6),
            0x07 => ("sctp6", &IP6),
            0x0d => ("ip4", &[("src-ip", 0..4), ("dst-ip", 4..8), ("l4proto", 14..15)]),
            0x0e => ("ip6", &[("src-ip", 0..16), ("dst-ip", 16..32), ("l4proto", 37..38)]),
            0x12 => ("ether", &[("proto", 12..14)]),
            _ => ("packets", &[]),
        }
    }
}

impl fmt::Display for FlowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, mask) = (&self.bytes[4..4 + COMPARED], &self.bytes[4 + COMPARED..4 + 2 * COMPARED]);
        let (kind, fields) = self.fields();
        f.write_str(kind)?;
        let mut more = mask.to_vec();
        for (name, at) in fields.iter().chain(&[("vlan", VLAN)]) {
            if mask[at.clone()].iter().any(|&byte| byte != 0) {
                write!(f, " {name} {}", said(&value[at.clone()], &mask[at.clone()]))?;
                more[at.clone()].fill(0);
            }
        }
        if more.iter().any(|&byte| byte != 0) {
            f.write_str(" and more")?;
        }
        let cookie =
            u64::from(word(&self.bytes, COOKIE / 4 + 1)) << 32 | u64::from(word(&self.bytes, COOKIE / 4));
        match cookie {
            RX_CLS_FLOW_DISC => f.write_str(" drop"),
            RX_CLS_FLOW_WAKE => f.write_str(" wake"),
            _ if self.flow_type() & FLOW_RSS != 0 => write!(f, " context {}", word(&self.bytes, CONTEXT / 4)),
            queue => write!(f, " queue {queue}"),
        }
    }
}

/// A field as people write it: an address with its prefix, a number; otherwise with the mask.
fn said(value: &[u8], mask: &[u8]) -> String {
    let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    let (text, is_address) = match value {
        &[a, b, c, d] => (Ipv4Addr::from([a, b, c, d]).to_string(), true),
        value => match <[u8; 16]>::try_from(value) {
            Ok(address) => (Ipv6Addr::from(address).to_string(), true),
            Err(_) => (number(value).to_string(), false),
        },
    };
    let (bits, ones) = (mask.len() * 8, number(mask).count_ones());
    let leading = (number(mask) << (128 - bits)).leading_ones();
    if ones as usize == bits {
        text
    } else if is_address && leading == ones {
        format!("{text}/{ones}")
    } else {
        let digits: String = mask.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{text} mask 0x{digits}")
    }
}

impl From<FlowSpec> for String {
    fn from(spec: FlowSpec) -> Self {
        spec.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for FlowSpec {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
        let bytes = bytes.filter(|bytes| bytes.len() == CONTEXT + 4).ok_or("it is no n-tuple rule")?;
        Ok(Self { bytes })
    }
}

impl Ethtool {
    /// All n-tuple rules, by their place in the table.
    ///
    /// # Errors
    /// [`EthtoolError::Unsupported`] when the driver has none.
    pub fn specs(&self, interface: &str) -> Result<Vec<FlowSpec>, EthtoolError> {
        let mut specs = Vec::new();
        for place in self.rule_table(interface)?.used {
            // One may have gone meanwhile.
            specs.extend(self.rule_at(interface, place)?.map(|told| FlowSpec::told(&told)));
        }
        Ok(specs)
    }

    /// Adds a rule to its own place, or to one that the driver chooses.
    ///
    /// # Errors
    /// When the driver has no such rules, or no room.
    pub fn add_spec(&self, interface: &str, spec: &FlowSpec, chooses: bool) -> Result<(), EthtoolError> {
        let mut request = [&[0; FLOW_TYPE][..], &spec.bytes].concat();
        if chooses {
            request[LOCATION..LOCATION + 4].copy_from_slice(&RX_CLS_LOC_ANY.to_ne_bytes());
        }
        self.insert(interface, request).map(drop)
    }
}

/// Value and mask have as many bytes each: a union, and `struct ethtool_flow_ext` with the VLAN's tag.
const COMPARED: usize = UNION + EXT;
const VLAN: Range<usize> = UNION + 10..UNION + 12;
const COOKIE: usize = 152;
const PLACE: usize = LOCATION - FLOW_TYPE;
const CONTEXT: usize = COUNT - FLOW_TYPE;

const FLOW_MAC_EXT: u32 = 0x4000_0000;
const FLOW_RSS: u32 = 0x2000_0000;
const RX_CLS_FLOW_WAKE: u64 = u64::MAX - 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule of a type with fields: where they stand in the union and what follows it, their value, their mask.
    fn spec(kind: u32, fields: &[(usize, &[u8], &[u8])], cookie: u64) -> FlowSpec {
        let mut told = vec![0; 192];
        told[16..20].copy_from_slice(&kind.to_ne_bytes());
        for (at, value, mask) in fields {
            told[20 + at..][..value.len()].copy_from_slice(value);
            told[92 + at..][..mask.len()].copy_from_slice(mask);
        }
        told[168..176].copy_from_slice(&cookie.to_ne_bytes());
        told[176] = 7;
        told[184] = 5;
        FlowSpec::told(&told)
    }

    #[test]
    fn a_rule_is_said_in_ethtools_words() {
        let queries = (10, &[0, 53][..], &[255; 2][..]);
        let source = (0, &[10, 1, 0, 0][..], &[255, 255, 0, 0][..]);
        let host = (16, &[0xfd; 16][..], &[0xff; 16][..]);
        for (kind, fields, cookie, says) in [
            (2, &[queries][..], 3, "udp4 dst-port 53 queue 3"),
            (1, &[source, queries], u64::MAX, "tcp4 src-ip 10.1.0.0/16 dst-port 53 drop"),
            (
                0x8000_0002,
                &[queries, (62, &[0, 9], &[0xf, 0xff])],
                0,
                "udp4 dst-port 53 vlan 9 mask 0x0fff queue 0",
            ),
            (5, &[host], 1, "tcp6 dst-ip fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd queue 1"),
            (0x0d, &[(14, &[47], &[255])], 1 << 32, "ip4 l4proto 47 queue 4294967296"),
            (0x0d, &[(0, &[1, 2, 3, 4], &[255, 0, 255, 0])], 1, "ip4 src-ip 1.2.3.4 mask 0xff00ff00 queue 1"),
            (0x2000_0001, &[(12, &[1], &[1])], 0, "tcp4 and more context 5"),
            (0x12, &[(12, &[0x88, 0xcc], &[255; 2])], u64::MAX - 1, "ether proto 35020 wake"),
            (0x0a, &[], 2, "packets queue 2"),
        ] {
            assert_eq!(spec(kind, fields, cookie).to_string(), says);
        }
    }

    #[test]
    fn a_rule_comes_back_from_the_state_file_as_it_was() {
        let rule = spec(2, &[(10, &[0, 53], &[255; 2])], 3);
        assert_eq!(rule.location(), 7);
        let text = serde_json::to_string(&rule).unwrap();
        assert_eq!(serde_json::from_str::<FlowSpec>(&text).unwrap(), rule);
        let longer = text.replacen('"', "\"00", 1);
        for bad in ["\"\"", "\"zz\"", "\"0é\"", &longer] {
            assert!(serde_json::from_str::<FlowSpec>(bad).is_err(), "{bad}");
        }
        let mut elsewhere = rule.clone();
        elsewhere.bytes[PLACE] = 8;
        assert!(elsewhere != rule && elsewhere.is_alike(&rule));
        // What is behind a rule without RSS context is how many rules there are.
        assert_eq!(rule.bytes[CONTEXT], 0);
        assert!(!spec(2, &[(10, &[0, 54], &[255; 2])], 3).is_alike(&rule));
    }
}
