//! N-tuple rules: the NIC gives packets that are alike in addresses and ports to one queue, or drops them, by the kernel's driver.
//!
//! They have no netlink interface. Layouts: `struct ethtool_rxnfc` and `struct ethtool_rx_flow_spec` of `linux/ethtool.h`.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Ethtool, EthtoolError, word};

/// Packets that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flow {
    /// IPv6, else IPv4.
    pub ipv6: bool,
    /// The protocol behind IP; any when `None`.
    pub protocol: Option<u8>,
    /// Source address, destination address, source port, destination port, as they stand in packets: 12 bytes, or 36 of IPv6.
    /// Ports are those of TCP, UDP and SCTP; of others they are not looked at.
    pub value: Vec<u8>,
    /// The bits of `value` that count: as many bytes.
    pub mask: Vec<u8>,
}

/// A rule: what becomes of packets that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The packets.
    pub flow: Flow,
    /// What becomes of them.
    #[serde(rename = "queue")]
    pub fate: Fate,
    /// Its place in the table; `None` before the driver has chosen one.
    pub location: Option<u32>,
}

/// What becomes of packets. State files have the queue's number, or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Option<u32>", into = "Option<u32>")]
pub enum Fate {
    /// They go to this queue.
    Queue(u32),
    /// They are gone.
    Drop,
}

impl From<Option<u32>> for Fate {
    fn from(queue: Option<u32>) -> Self {
        queue.map_or(Self::Drop, Self::Queue)
    }
}

impl From<Fate> for Option<u32> {
    fn from(fate: Fate) -> Self {
        match fate {
            Fate::Queue(queue) => Some(queue),
            Fate::Drop => None,
        }
    }
}

impl Fate {
    /// As `ring_cookie`.
    fn cookie(self) -> u64 {
        match self {
            Self::Queue(queue) => queue.into(),
            Self::Drop => RX_CLS_FLOW_DISC,
        }
    }
}

/// The table of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// How many rules it can hold; 0 when the driver does not say.
    pub size: u32,
    /// Places in use, in order.
    pub used: Vec<u32>,
    /// The driver chooses the place of a rule.
    pub chooses: bool,
}

impl Table {
    /// The free place that counts last, so that rules of others still come first; `None` when there is none.
    #[must_use]
    pub fn last_free(&self) -> Option<u32> {
        (0..self.size).rev().find(|place| !self.used.contains(place))
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

impl Flow {
    /// `TCP_V4_FLOW` and so on, and where in the union that goes with it a protocol stands that has no type of its own.
    fn kind(&self) -> (u32, Option<usize>) {
        match (self.ipv6, self.protocol) {
            (false, Some(TCP)) => (1, None),
            (false, Some(UDP)) => (2, None),
            (false, Some(SCTP)) => (3, None),
            (true, Some(TCP)) => (5, None),
            (true, Some(UDP)) => (6, None),
            (true, Some(SCTP)) => (7, None),
            (false, _) => (0x0d, Some(14)),
            (true, _) => (0x0e, Some(37)),
        }
    }

    /// How many bytes of value and mask the union has in front of other fields.
    fn compared(&self) -> usize {
        let (addresses, has_ports) = (if self.ipv6 { 32 } else { 8 }, self.kind().1.is_none());
        if has_ports { addresses + 4 } else { addresses }
    }
}

impl Rule {
    /// As `struct ethtool_rxnfc`.
    fn request(&self, command: u32) -> Vec<u8> {
        let mut request = request(command, RXNFC);
        let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
        let (kind, protocol_at) = self.flow.kind();
        put(FLOW_TYPE, &kind.to_ne_bytes());
        let compared = self.flow.compared();
        for (at, bytes) in [(VALUE, &self.flow.value), (MASK, &self.flow.mask)] {
            put(at, &bytes[..compared.min(bytes.len())]);
        }
        if let (Some(at), Some(protocol)) = (protocol_at, self.flow.protocol) {
            put(VALUE + at, &[protocol]);
            put(MASK + at, &[0xff]);
        }
        if protocol_at.is_some() && !self.flow.ipv6 {
            put(VALUE + IP_VERSION, &[ETH_RX_NFC_IP4]);
        }
        put(COOKIE, &self.fate.cookie().to_ne_bytes());
        put(LOCATION, &self.location.unwrap_or(RX_CLS_LOC_ANY).to_ne_bytes());
        request
    }

    /// Whether what a driver tells of a rule is this one. Drivers add fields that nobody has asked for (a VLAN that does not
    /// count).
    pub(super) fn is(&self, told: &[u8]) -> bool {
        let asked = self.request(0);
        let bytes = |at: usize| at..at + UNION;
        let counts = |(value, mask): (&u8, &u8)| value & mask;
        let compared = |of: &[u8]| -> Vec<u8> {
            let pairs = of[bytes(VALUE)].iter().zip(&asked[bytes(MASK)]);
            pairs.map(counts).collect()
        };
        word(told, FLOW_TYPE / 4) & !FLOW_EXT == word(&asked, FLOW_TYPE / 4)
            && told[COOKIE..COOKIE + 8] == asked[COOKIE..COOKIE + 8]
            && compared(told) == compared(&asked)
            && told[bytes(MASK)] == asked[bytes(MASK)]
    }
}

impl Ethtool {
    /// The table of n-tuple rules.
    ///
    /// # Errors
    /// [`EthtoolError::Unsupported`] when the driver has none.
    pub fn rule_table(&self, interface: &str) -> Result<Table, EthtoolError> {
        let what = "tell its n-tuple rules";
        let mut count = request(GRXCLSRLCNT, RXNFC);
        // SAFETY: the kernel reads and writes one struct, which the buffer holds.
        unsafe { self.call(interface, what, &mut count) }?;
        let rules = word(&count, COUNT / 4).min(MOST_RULES);
        let chooses = word(&count, DATA / 4) & RX_CLS_LOC_SPECIAL != 0;
        let mut all = request(GRXCLSRLALL, RXNFC + rules as usize * 4);
        all[COUNT..COUNT + 4].copy_from_slice(&rules.to_ne_bytes());
        // SAFETY: the kernel writes the struct and at most as many places behind it as the request has room for.
        unsafe { self.call(interface, what, &mut all) }?;
        let found = word(&all, COUNT / 4).min(rules) as usize;
        let mut used: Vec<u32> = (0..found).map(|i| word(&all, PLACES / 4 + i)).collect();
        used.sort_unstable();
        Ok(Table { size: word(&all, DATA / 4) & !RX_CLS_LOC_SPECIAL, used, chooses })
    }

    /// Adds a rule, and returns its place in the table.
    ///
    /// # Errors
    /// [`EthtoolError::Taken`] when one is at its place: some drivers (Linux's ixgbe) would have the new one instead. When the driver has
    /// no such rules, or no room.
    pub fn add_rule(&self, interface: &str, rule: &Rule) -> Result<u32, EthtoolError> {
        if let Some(location) = rule.location
            && self.rule_at(interface, location)?.is_some()
        {
            return Err(EthtoolError::Taken { interface: interface.into(), location });
        }
        self.insert(interface, rule.request(SRXCLSRLINS))
    }

    /// Removes the rule at a place in the table.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove_rule(&self, interface: &str, location: u32) -> Result<(), EthtoolError> {
        let mut request = request(SRXCLSRLDEL, RXNFC);
        request[LOCATION..LOCATION + 4].copy_from_slice(&location.to_ne_bytes());
        // SAFETY: the kernel reads one struct, which the buffer holds, and writes none.
        unsafe { self.call(interface, "remove an n-tuple rule", &mut request) }
    }

    /// Where this rule is: at its place, or anywhere when it has none. `None` when it is not there.
    ///
    /// # Errors
    /// When the driver has no such rules.
    pub fn find_rule(&self, interface: &str, rule: &Rule) -> Result<Option<u32>, EthtoolError> {
        let places = rule.location.map_or_else(|| Ok(self.rule_table(interface)?.used), |at| Ok(vec![at]))?;
        for place in places {
            if self.rule_at(interface, place)?.is_some_and(|told| rule.is(&told)) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// What the driver tells of the rule at a place, as `struct ethtool_rxnfc`; `None` when there is none.
    pub(super) fn rule_at(&self, interface: &str, place: u32) -> Result<Option<Vec<u8>>, EthtoolError> {
        let mut request = request(GRXCLSRULE, RXNFC);
        request[LOCATION..LOCATION + 4].copy_from_slice(&place.to_ne_bytes());
        // SAFETY: the kernel reads and writes one struct, which the buffer holds.
        match unsafe { self.call(interface, "tell an n-tuple rule", &mut request) } {
            Ok(()) => Ok(Some(request)),
            // Drivers have several numbers for a place without a rule.
            Err(EthtoolError::Refused { errno: Errno::INVAL | Errno::NOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds a rule that is laid out as `struct ethtool_rxnfc`.
    pub(super) fn insert(&self, interface: &str, mut request: Vec<u8>) -> Result<u32, EthtoolError> {
        request.resize(RXNFC, 0);
        request[..4].copy_from_slice(&SRXCLSRLINS.to_ne_bytes());
        // SAFETY: the kernel reads and writes one struct, which the buffer holds.
        unsafe { self.call(interface, "add this n-tuple rule", &mut request) }?;
        Ok(word(&request, LOCATION / 4))
    }
}

pub(super) fn request(command: u32, size: usize) -> Vec<u8> {
    let mut request = vec![0; size];
    request[..4].copy_from_slice(&command.to_ne_bytes());
    request
}

const GRXCLSRLCNT: u32 = 0x2e;
const GRXCLSRULE: u32 = 0x2f;
const GRXCLSRLALL: u32 = 0x30;
const SRXCLSRLDEL: u32 = 0x31;
const SRXCLSRLINS: u32 = 0x32;

/// `sizeof(struct ethtool_rxnfc)`, which begins with the command, a flow type for other commands, and 64 bits.
pub(super) const RXNFC: usize = 192;
pub(super) const DATA: usize = 8;
/// `rule_cnt`, and behind it `rule_locs`, which begin inside what `sizeof` counts.
pub(super) const COUNT: usize = 184;
const PLACES: usize = 188;
/// `fs`: its fields.
pub(super) const FLOW_TYPE: usize = 16;
const VALUE: usize = FLOW_TYPE + 4;
const MASK: usize = VALUE + UNION + EXT;
const COOKIE: usize = FLOW_TYPE + 152;
pub(super) const LOCATION: usize = FLOW_TYPE + 160;
/// `union ethtool_flow_union` and `struct ethtool_flow_ext`.
pub(super) const UNION: usize = 52;
pub(super) const EXT: usize = 20;
/// Within `struct ethtool_usrip4_spec`.
const IP_VERSION: usize = 13;

const ETH_RX_NFC_IP4: u8 = 1;
pub(super) const FLOW_EXT: u32 = 0x8000_0000;
const RX_CLS_LOC_SPECIAL: u32 = 0x8000_0000;
pub(super) const RX_CLS_LOC_ANY: u32 = 0xffff_ffff;
pub(super) const RX_CLS_FLOW_DISC: u64 = u64::MAX;
/// No NIC has more.
const MOST_RULES: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn queries() -> Rule {
        let flow = Flow {
            ipv6: false,
            protocol: Some(UDP),
            value: vec![0, 0, 0, 0, 192, 0, 2, 1, 0, 0, 0, 53],
            mask: vec![0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 255, 255],
        };
        Rule { flow, fate: Fate::Queue(3), location: Some(7) }
    }

    /// Where the fields stand on a 64-bit machine, counted by hand.
    #[test]
    fn a_rule_is_laid_out_as_the_kernel_has_it() {
        let request = queries().request(SRXCLSRLINS);
        assert_eq!(request.len(), 192);
        let set: Vec<(usize, u8)> =
            request.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect();
        let udp4_to_an_address = [
            (0, 0x32),
            (16, 2),
            (24, 192),
            (26, 2),
            (27, 1),
            (31, 53),
            (96, 255),
            (97, 255),
            (98, 255),
            (99, 255),
            (102, 255),
            (103, 255),
            (168, 3),
            (176, 7),
        ];
        assert_eq!(set, udp4_to_an_address);
        let mut other = queries();
        (other.flow.protocol, other.location) = (Some(47), None);
        let request = other.request(SRXCLSRLINS);
        assert_eq!((request[16], request[33], request[34], request[106]), (0x0d, 1, 47, 0xff));
        assert_eq!((request[31], request[103]), (0, 0), "it has no ports");
        assert_eq!(request[176..180], [0xff; 4]);
        other.flow = Flow { ipv6: true, value: vec![0xfd; 36], mask: vec![0xff; 36], ..other.flow };
        let request = other.request(SRXCLSRLINS);
        assert_eq!((request[16], request[20 + 37], request[92 + 37]), (0x0e, 47, 0xff));
        assert_eq!((request[51], request[52]), (0xfd, 0));
    }

    #[test]
    fn a_rule_is_known_by_what_was_asked_for() {
        let rule = queries();
        let told = rule.request(GRXCLSRULE);
        assert!(rule.is(&told));
        let differs = |at: usize, byte: u8| {
            let mut told = told.clone();
            told[at] = byte;
            rule.is(&told)
        };
        // What does not count, a VLAN's fields, and that they are there.
        assert!(differs(20, 9) && differs(82, 1) && differs(19, 0x80));
        for (at, byte) in [(16, 1), (31, 54), (92, 255), (103, 0), (168, 2), (170, 1)] {
            assert!(!differs(at, byte), "byte {at}");
        }
    }

    #[test]
    fn a_rule_that_drops_has_no_queue() {
        let to_queue = queries();
        let drop = Rule { fate: Fate::Drop, ..queries() };
        let request = drop.request(SRXCLSRLINS);
        // `ring_cookie` is RX_CLS_FLOW_DISC, and nothing else differs.
        assert_eq!(request[168..176], [0xff; 8]);
        assert_eq!(request[..168], to_queue.request(SRXCLSRLINS)[..168]);
        assert!(drop.is(&request) && !to_queue.is(&request) && !drop.is(&to_queue.request(0)));
        for (rule, written) in [(drop, "\"queue\":null"), (to_queue, "\"queue\":3")] {
            let text = serde_json::to_string(&rule).unwrap();
            assert!(text.contains(written), "{text}");
            assert_eq!(serde_json::from_str::<Rule>(&text).unwrap(), rule);
        }
    }

    #[test]
    fn others_rules_come_first() {
        let table = |size, used: &[u32]| Table { size, used: used.to_vec(), chooses: false };
        assert_eq!(table(8, &[]).last_free(), Some(7));
        assert_eq!(table(8, &[2, 6, 7]).last_free(), Some(5));
        assert_eq!(table(2, &[0, 1]).last_free(), None);
        assert_eq!(table(0, &[]).last_free(), None);
    }
}
