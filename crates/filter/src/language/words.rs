//! The words of the language: keywords with their spellings, and names that stand for numbers.

/// Every keyword as `(spelling, canonical spelling)`. Spellings that mean one thing share the second.
pub(super) const KEYWORDS: &[(&str, &str)] = &[
    ("dst", "dst"),
    ("src", "src"),
    ("link", "ether"),
    ("ether", "ether"),
    ("ppp", "ether"),
    ("slip", "ether"),
    ("fddi", "ether"),
    ("tr", "ether"),
    ("wlan", "ether"),
    ("arp", "arp"),
    ("rarp", "rarp"),
    ("ip", "ip"),
    ("sctp", "sctp"),
    ("tcp", "tcp"),
    ("udp", "udp"),
    ("icmp", "icmp"),
    ("igmp", "igmp"),
    ("igrp", "igrp"),
    ("pim", "pim"),
    ("vrrp", "vrrp"),
    ("carp", "carp"),
    ("radio", "radio"),
    ("ip6", "ip6"),
    ("icmp6", "icmp6"),
    ("ah", "ah"),
    ("esp", "esp"),
    ("atalk", "atalk"),
    ("aarp", "aarp"),
    ("decnet", "decnet"),
    ("lat", "lat"),
    ("sca", "sca"),
    ("moprc", "moprc"),
    ("mopdl", "mopdl"),
    ("iso", "iso"),
    ("esis", "esis"),
    ("es-is", "esis"),
    ("isis", "isis"),
    ("is-is", "isis"),
    ("l1", "l1"),
    ("l2", "l2"),
    ("iih", "iih"),
    ("lsp", "lsp"),
    ("snp", "snp"),
    ("csnp", "csnp"),
    ("psnp", "psnp"),
    ("clnp", "clnp"),
    ("stp", "stp"),
    ("ipx", "ipx"),
    ("netbeui", "netbeui"),
    ("host", "host"),
    ("net", "net"),
    ("mask", "mask"),
    ("port", "port"),
    ("portrange", "portrange"),
    ("proto", "proto"),
    ("protochain", "protochain"),
    ("gateway", "gateway"),
    ("type", "type"),
    ("subtype", "subtype"),
    ("direction", "dir"),
    ("dir", "dir"),
    ("address1", "addr1"),
    ("addr1", "addr1"),
    ("address2", "addr2"),
    ("addr2", "addr2"),
    ("address3", "addr3"),
    ("addr3", "addr3"),
    ("address4", "addr4"),
    ("addr4", "addr4"),
    ("ra", "ra"),
    ("ta", "ta"),
    ("less", "less"),
    ("greater", "greater"),
    ("byte", "byte"),
    ("broadcast", "broadcast"),
    ("multicast", "multicast"),
    ("and", "and"),
    ("or", "or"),
    ("not", "not"),
    ("len", "len"),
    ("length", "len"),
    ("inbound", "inbound"),
    ("outbound", "outbound"),
    ("ifindex", "ifindex"),
    ("vlan", "vlan"),
    ("mpls", "mpls"),
    ("pppoed", "pppoed"),
    ("pppoes", "pppoes"),
    ("geneve", "geneve"),
    ("llc", "llc"),
    ("lane", "lane"),
    ("metac", "metac"),
    ("bcc", "bcc"),
    ("oamf4", "oamf4"),
    ("oamf4ec", "oamf4"),
    ("oamf4sc", "oamf4"),
    ("oam", "oam"),
    ("ilmic", "ilmic"),
    ("vpi", "vpi"),
    ("vci", "vci"),
    ("connectmsg", "connectmsg"),
    ("metaconnect", "metaconnect"),
    ("on", "on"),
    ("ifname", "on"),
    ("rset", "rset"),
    ("ruleset", "rset"),
    ("rnr", "rnr"),
    ("rulenum", "rnr"),
    ("srnr", "srnr"),
    ("subrulenum", "srnr"),
    ("reason", "reason"),
    ("action", "action"),
    // Ours, not tcpdump's.
    ("anyvlan", "anyvlan"),
    ("l4", "l4"),
    ("fragment", "fragment"),
];

/// Names that stand for a number anywhere in an expression.
pub(super) const NUMBERS: &[(&str, u32)] = &[
    ("icmptype", 0),
    ("icmpcode", 1),
    ("icmp-echoreply", 0),
    ("icmp-unreach", 3),
    ("icmp-sourcequench", 4),
    ("icmp-redirect", 5),
    ("icmp-echo", 8),
    ("icmp-routeradvert", 9),
    ("icmp-routersolicit", 10),
    ("icmp-timxceed", 11),
    ("icmp-paramprob", 12),
    ("icmp-tstamp", 13),
    ("icmp-tstampreply", 14),
    ("icmp-ireq", 15),
    ("icmp-ireqreply", 16),
    ("icmp-maskreq", 17),
    ("icmp-maskreply", 18),
    ("icmp6type", 0),
    ("icmp6code", 1),
    ("icmp6-destinationunreach", 1),
    ("icmp6-packettoobig", 2),
    ("icmp6-timeexceeded", 3),
    ("icmp6-parameterproblem", 4),
    ("icmp6-echo", 128),
    ("icmp6-echoreply", 129),
    ("icmp6-multicastlistenerquery", 130),
    ("icmp6-multicastlistenerreportv1", 131),
    ("icmp6-multicastlistenerdone", 132),
    ("icmp6-routersolicit", 133),
    ("icmp6-routeradvert", 134),
    ("icmp6-neighborsolicit", 135),
    ("icmp6-neighboradvert", 136),
    ("icmp6-redirect", 137),
    ("icmp6-routerrenum", 138),
    ("icmp6-nodeinformationquery", 139),
    ("icmp6-nodeinformationresponse", 140),
    ("icmp6-ineighbordiscoverysolicit", 141),
    ("icmp6-ineighbordiscoveryadvert", 142),
    ("icmp6-multicastlistenerreportv2", 143),
    ("icmp6-homeagentdiscoveryrequest", 144),
    ("icmp6-homeagentdiscoveryreply", 145),
    ("icmp6-mobileprefixsolicit", 146),
    ("icmp6-mobileprefixadvert", 147),
    ("icmp6-certpathsolicit", 148),
    ("icmp6-certpathadvert", 149),
    ("icmp6-multicastrouteradvert", 151),
    ("icmp6-multicastroutersolicit", 152),
    ("icmp6-multicastrouterterm", 153),
    ("tcpflags", 13),
    ("tcp-fin", 0x01),
    ("tcp-syn", 0x02),
    ("tcp-rst", 0x04),
    ("tcp-push", 0x08),
    ("tcp-ack", 0x10),
    ("tcp-urg", 0x20),
    ("tcp-ece", 0x40),
    ("tcp-cwr", 0x80),
];

/// Why a keyword of tcpdump's has no meaning here, and what to write instead, where that is known.
pub(super) fn foreign(word: &str) -> Option<(&'static str, &'static str)> {
    Some(match word {
        "gateway" => (
            "is not supported: it needs a table of the gateways' Ethernet addresses",
            "write 'ether host MAC and not host IP'",
        ),
        "inbound" => (
            "is not supported: which way a packet went stands in no packet",
            "write 'not ether src MAC' with the interface's own address",
        ),
        "outbound" => (
            "is not supported: which way a packet went stands in no packet",
            "write 'ether src MAC' with the interface's own address",
        ),
        "ifindex" => (
            "is not supported: which interface saw a packet stands in no packet",
            "leave it out: packets come from the port that the command names",
        ),
        "type" => (
            "is for 802.11 frames; this is Ethernet",
            "the type of ICMP is asked for as in 'icmp[icmptype] = icmp-echo'",
        ),
        "radio" | "subtype" | "dir" | "addr1" | "addr2" | "addr3" | "addr4" | "ra" | "ta" => {
            ("is for 802.11 frames; this is Ethernet", "")
        }
        "lane" | "metac" | "bcc" | "oamf4" | "oam" | "ilmic" | "vpi" | "vci" | "connectmsg"
        | "metaconnect" => ("is for ATM cells; this is Ethernet", ""),
        "on" => (
            "is for OpenBSD's pflog; this is Ethernet",
            "leave it out: packets come from the port that the command names",
        ),
        "rset" | "rnr" | "srnr" | "reason" | "action" => ("is for OpenBSD's pflog; this is Ethernet", ""),
        _ => return None,
    })
}

/// The keyword or number's name that a user most likely meant by `text`.
pub(super) fn meant(text: &str) -> Option<&'static str> {
    nearest(text, KEYWORDS.iter().map(|(word, _)| *word).chain(NUMBERS.iter().map(|(word, _)| *word)))
}

/// The word that a user most likely meant by `text`: the nearest by edits, when it is near.
pub(crate) fn nearest<'a>(text: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, word) =
        words.map(|word| (edits(text, word), word)).min_by_key(|(distance, _)| *distance)?;
    let tolerated = match text.len() {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    };
    (distance <= tolerated && word != text).then_some(word)
}

/// Insertions, deletions, substitutions and swaps of neighbours between two words; saturates for long ones.
fn edits(from: &str, to: &str) -> usize {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    if from.len().abs_diff(to.len()) > 2 || from.len() > 40 {
        return usize::MAX;
    }
    let mut two_ago: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let mut best =
                (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + usize::from(from[i - 1] != to[j - 1]));
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(two_ago[j - 2] + 1);
            }
            row.push(best);
        }
        two_ago = last;
        last = row;
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spelling_stands_twice() {
        let mut spellings: Vec<&str> =
            KEYWORDS.iter().map(|(word, _)| *word).chain(NUMBERS.iter().map(|(word, _)| *word)).collect();
        spellings.sort_unstable();
        let count = spellings.len();
        spellings.dedup();
        assert_eq!(spellings.len(), count);
    }

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        for (slip, word) in [
            ("prot", "port"),
            ("hots", "host"),
            ("tpc", "tcp"),
            ("portrage", "portrange"),
            ("tcp-sny", "tcp-syn"),
        ] {
            assert_eq!(meant(slip), Some(word), "{slip}");
        }
        assert_eq!(meant("example.com"), None);
        assert_eq!(meant("a"), None);
    }
}
