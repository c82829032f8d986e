//! Random expressions from a grammar that has every primitive of the language.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::{LABELS, MACS, PORTS, PROTOCOLS, Random, SESSIONS, V4, V6, VLANS, VNIS};

/// How often each primitive was used.
pub(crate) type Used = BTreeMap<&'static str, usize>;

type Maker = fn(&mut Random) -> String;

/// Every primitive of tcpdump's language that has a meaning on Ethernet, by a name for the count.
pub(crate) const PRIMITIVES: &[(&str, Maker)] = &[
    ("protocol", protocol),
    ("protocol", protocol),
    ("rare protocol", rare_protocol),
    ("host", host),
    ("host", host),
    ("host6", host6),
    ("net", net),
    ("net6", net6),
    ("port", port),
    ("port", port),
    ("port", port),
    ("portrange", portrange),
    ("ether host", ether_host),
    ("ether proto", ether_proto),
    ("ip proto", ip_proto),
    ("iso proto", iso_proto),
    ("protochain", protochain),
    ("broadcast", |random| format!("{}broadcast", random.pick(&["", "ether ", "ip "]))),
    ("multicast", |random| format!("{}multicast", random.pick(&["", "ether ", "ip ", "ip6 "]))),
    ("less", |random| format!("less {}", random.below(120))),
    ("greater", |random| format!("greater {}", random.below(120))),
    ("byte", |random| {
        format!("byte {} {} {}", random.below(60), random.pick(&["=", "<", ">"]), random.below(256))
    }),
    ("vlan", |random| format!("vlan{}", maybe(random, &VLANS))),
    ("mpls", |random| format!("mpls{}", maybe(random, &LABELS))),
    ("pppoed", |_| "pppoed".into()),
    ("pppoes", |random| format!("pppoes{}", maybe(random, &SESSIONS))),
    ("llc", |random| format!("llc{}", random.pick(LLC))),
    ("decnet host", decnet_host),
    ("relation", relation),
    ("relation", relation),
    ("flags", flags),
    ("carried", carried),
    ("list", list),
    ("list", list),
    ("empty chain of not", |random| format!("not not {}", protocol(random))),
];

const LLC: &[&str] = &[
    "", " i", " s", " u", " rr", " rnr", " rej", " ui", " ua", " disc", " dm", " sabme", " test", " xid",
    " frmr",
];

/// An expression. Primitives that move offsets come in front, as users write them, or anywhere.
pub(crate) fn expression(random: &mut Random, used: &mut Used) -> String {
    let mut text = String::new();
    if random.once_in(4) {
        let (name, moves): (&'static str, String) = match random.below(8) {
            0..3 => ("vlan", format!("vlan{}", maybe(random, &VLANS))),
            3 => ("vlan", format!("vlan and vlan{}", maybe(random, &VLANS))),
            4 => ("mpls", format!("mpls{}", maybe(random, &LABELS))),
            5 => ("pppoes", format!("pppoes{}", maybe(random, &SESSIONS))),
            6 => ("geneve", format!("geneve{}", maybe(random, &VNIS))),
            _ => ("vlan", "vlan and mpls".into()),
        };
        *used.entry(name).or_default() += 1;
        text = format!("{moves} and ");
    }
    let depth = random.pick(&[0, 0, 1, 1, 2, 3]);
    text + &group(random, used, depth)
}

fn group(random: &mut Random, used: &mut Used, depth: usize) -> String {
    if depth == 0 {
        let (name, make) = random.pick(PRIMITIVES);
        *used.entry(name).or_default() += 1;
        return make(random);
    }
    match random.below(8) {
        0 => format!("not {}", in_parentheses(&group(random, used, depth - 1))),
        1 => format!("! {}", in_parentheses(&group(random, used, depth - 1))),
        _ => {
            let mut text = part(random, used, depth);
            for _ in 0..=random.below(3) {
                let connective = random.pick(&["and", "or", "or", "&&", "||"]);
                text = format!("{text} {connective} {}", part(random, used, depth));
            }
            text
        }
    }
}

fn part(random: &mut Random, used: &mut Used, depth: usize) -> String {
    let inner = group(random, used, depth - 1);
    if depth > 1 { in_parentheses(&inner) } else { inner }
}

fn in_parentheses(text: &str) -> String {
    format!("({text})")
}

fn maybe<T: Clone + ToString>(random: &mut Random, values: &[T]) -> String {
    if random.once_in(2) { format!(" {}", random.pick(values).to_string()) } else { String::new() }
}

fn direction(random: &mut Random) -> &'static str {
    random.pick(&["", "", "src ", "dst ", "src or dst ", "src and dst ", "dst and src "])
}

fn protocol(random: &mut Random) -> String {
    random.pick(&["ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6"]).into()
}

const RARE: &[&str] = &[
    "igmp", "igrp", "pim", "vrrp", "carp", "ah", "esp", "atalk", "aarp", "decnet", "lat", "sca", "moprc",
    "mopdl", "stp", "ipx", "netbeui", "iso", "esis", "es-is", "isis", "is-is", "clnp", "l1", "l2", "iih",
    "lsp", "snp", "csnp", "psnp",
];

fn rare_protocol(random: &mut Random) -> String {
    random.pick(RARE).into()
}

fn address(random: &mut Random) -> String {
    Ipv4Addr::from(random.pick(&V4)).to_string()
}

fn host(random: &mut Random) -> String {
    let layer = random.pick(&["", "", "ip ", "arp ", "rarp "]);
    let direction = direction(random);
    let word = if direction.is_empty() { "host " } else { random.pick(&["host ", ""]) };
    let value = if random.once_in(6) {
        random.pick(&["10.1", "10.0.0", "167772161"]).into()
    } else {
        address(random)
    };
    format!("{layer}{direction}{word}{value}")
}

fn host6(random: &mut Random) -> String {
    format!("{}{}host {}", random.pick(&["", "ip6 "]), direction(random), random.pick(&V6))
}

fn net(random: &mut Random) -> String {
    let value = random.pick(&[
        "10.0.0.0/8",
        "10.0.0.0/24",
        "10.1",
        "10",
        "192.168",
        "0.0.0.0/0",
        "10.1.2.2/31",
        "10.0.0.0 mask 255.0.0.0",
        "224.0.0.0/4",
        "10.0.0.1/32",
        "192.168.1",
        "2560",
    ]);
    format!("{}{}net {value}", random.pick(&["", "", "ip ", "arp ", "rarp "]), direction(random))
}

fn net6(random: &mut Random) -> String {
    let value = random.pick(&[
        "2001:db8::/32",
        "fe80::/10",
        "::/0",
        "2001:db8::/48",
        "ff02::1/128",
        "2001:db8:0:1::/64",
    ]);
    format!("{}{}net {value}", random.pick(&["", "ip6 "]), direction(random))
}

fn port(random: &mut Random) -> String {
    format!(
        "{}{}port {}",
        random.pick(&["", "", "tcp ", "udp ", "sctp "]),
        direction(random),
        random.pick(&PORTS)
    )
}

fn portrange(random: &mut Random) -> String {
    let range = random.pick(&["22-80", "0-65535", "443-53", "53-53", "81-442"]);
    format!("{}{}portrange {range}", random.pick(&["", "tcp ", "udp ", "sctp "]), direction(random))
}

fn mac(random: &mut Random) -> String {
    let separator = random.pick(&[":", "-"]);
    random.pick(&MACS).map(|byte| format!("{byte:02x}")).join(separator)
}

fn ether_host(random: &mut Random) -> String {
    let direction = direction(random);
    let word = if direction.is_empty() { "host " } else { random.pick(&["host ", ""]) };
    format!("ether {direction}{word}{}", mac(random))
}

fn ether_proto(random: &mut Random) -> String {
    let value = random.pick(&[
        "0x0800", "\\ip6", "\\arp", "0x42", "0xfe", "0xf0", "0xe0", "0x8847", "1500", "1501", "0x04",
        "\\atalk",
    ]);
    format!("ether proto {value}")
}

fn ip_proto(random: &mut Random) -> String {
    format!("{}proto {}", random.pick(&["", "ip ", "ip6 "]), random.pick(&PROTOCOLS))
}

fn iso_proto(random: &mut Random) -> String {
    random
        .pick(&["iso proto 0x83", "iso proto \\clnp", "iso proto \\esis", "isis proto 18", "isis proto 27"])
        .into()
}

fn protochain(random: &mut Random) -> String {
    format!("{}protochain {}", random.pick(&["", "ip ", "ip6 "]), random.pick(&PROTOCOLS))
}

fn decnet_host(random: &mut Random) -> String {
    format!("decnet {}host 1.{}", random.pick(&["", "src ", "dst "]), random.pick(&[1, 2]))
}

const LOADS: &[&str] = &[
    "ether", "ip", "ip6", "arp", "rarp", "tcp", "udp", "icmp", "icmp6", "sctp", "igmp", "igrp", "pim",
    "vrrp", "carp", "decnet", "atalk", "lat", "sca", "moprc", "mopdl",
];

fn load(random: &mut Random, depth: usize) -> String {
    let layer = if random.once_in(3) { random.pick(LOADS) } else { random.pick(&LOADS[..10]) };
    let index = match random.below(12) {
        0 if depth > 0 => arithmetic(random, depth - 1),
        1 => random
            .pick(&["-1", "-2", "0xfffffff0", "65534", "65536", "40000", "2147483648", "0x7fffffff"])
            .into(),
        _ => random.below(24).to_string(),
    };
    format!("{layer}[{index}{}]", random.pick(&["", "", ":1", ":2", ":2", ":4"]))
}

fn arithmetic(random: &mut Random, depth: usize) -> String {
    if depth == 0 {
        return match random.below(6) {
            0 => "len".into(),
            1 | 2 => random
                .pick(&["0", "1", "2", "4", "7", "0x0f", "0xff", "010", "80", "65535", "0xffffffff"])
                .into(),
            _ => load(random, 0),
        };
    }
    match random.below(8) {
        0 => format!("- {}", arithmetic(random, depth - 1)),
        1 => format!("({})", arithmetic(random, depth - 1)),
        2 => load(random, depth),
        _ => {
            let operator = random.pick(&["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "&", "+"]);
            format!("{} {operator} {}", arithmetic(random, depth - 1), arithmetic(random, depth - 1))
        }
    }
}

fn relation(random: &mut Random) -> String {
    let relation = random.pick(&["=", "==", "!=", "<", "<=", ">", ">="]);
    let [left, right] = [(); 2].map(|()| {
        let depth = random.pick(&[0, 0, 1, 2]);
        arithmetic(random, depth)
    });
    format!("{left} {relation} {right}")
}

fn flags(random: &mut Random) -> String {
    random
        .pick(&[
            "tcp[tcpflags] & tcp-syn != 0",
            "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
            "tcp[13] == 2",
            "icmp[icmptype] = icmp-echo",
            "icmp[icmpcode] != 0",
            "icmp6[icmp6type] = icmp6-neighborsolicit",
            "icmp6[icmp6type] >= icmp6-routersolicit",
            "ip[6:2] & 0x1fff = 0",
            "ip[2:2] - ((ip[0] & 0xf) << 2) - ((tcp[12] & 0xf0) >> 2) != 0",
            "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
            "ether[0] & 1 = 0 and ip[16] >= 224",
        ])
        .into()
}

fn carried(random: &mut Random) -> String {
    let ports = random.pick(&["443", "(80 or 443)", "not 22", "(22 or (53 or not 80))"]);
    let hosts = random.pick(&["10.0.0.2", "not 10.0.0.1", "(10.0.0.1 or 10.1.2.3)", "fe80::1"]);
    match random.below(4) {
        0 => format!("port 80 or {ports}"),
        1 => format!("tcp dst port ({} or 80)", random.pick(&PORTS)),
        2 => format!("host 10.0.0.1 or {hosts}"),
        _ => format!("src net 10.0.0.0/8 or 192.168 and not (tcp port {ports})"),
    }
}

/// Many alternatives of one kind, or of two in turn.
fn list(random: &mut Random) -> String {
    let kinds: &[Maker] = &[
        host,
        host,
        host6,
        net,
        net6,
        port,
        port,
        portrange,
        ether_host,
        ether_proto,
        ip_proto,
        byte_of_many,
    ];
    let makers = [random.pick(kinds), random.pick(kinds)];
    let number = random.pick(&[2, 3, 5, 9, 17]);
    let change = random.once_in(4);
    let parts: Vec<String> = (0..number)
        .map(|index| {
            let part = makers[if change { index % 2 } else { 0 }](random);
            // Numbers that no packet has, so that lists become long.
            if random.once_in(2) {
                part.replace("10.0.0.", "10.77.0.")
                    .replace("port 80", &format!("port {}", random.below(0x1_0000)))
            } else {
                part
            }
        })
        .collect();
    match random.below(5) {
        0 => format!("not ({})", parts.join(" or ")),
        1 => parts.iter().map(|part| format!("not {part}")).collect::<Vec<_>>().join(" and "),
        _ => format!("({})", parts.join(" or ")),
    }
}

fn byte_of_many(random: &mut Random) -> String {
    let layer = random.pick(&["ether", "ip", "tcp", "udp"]);
    let relation = random.pick(&["=", "=", "=", "!=", "<", ">="]);
    let (index, number) = (random.pick(&[0, 1, 3, 13, 19, 40]), random.pick(&[0, 1, 2, 5, 6, 17, 80, 255]));
    format!("{layer}[{index}] {relation} {number}")
}

/// An expression with primitives that are not tcpdump's.
pub(crate) fn ours(random: &mut Random) -> String {
    let mut text = random.pick(&["", "anyvlan and ", "anyvlan and ", "vlan and anyvlan and "]).to_string();
    if random.once_in(8) {
        text += "geneve and ";
    }
    for _ in 0..random.below(3) {
        text += &format!("{} {} ", our_part(random), random.pick(&["and", "or", "or not"]));
    }
    text + &our_part(random)
}

fn our_part(random: &mut Random) -> String {
    let direction = random.pick(&["", "src ", "dst ", "src and dst "]);
    let layer = random.pick(&["", "", "tcp ", "udp ", "sctp "]);
    match random.below(8) {
        0..2 => format!("l4 {layer}{direction}port {}", random.pick(&PORTS)),
        2 => format!("l4 {layer}{direction}portrange {}", random.pick(&["22-80", "0-65535", "81-442"])),
        3 => format!("l4 proto {}", random.pick(&PROTOCOLS)),
        4 => random.pick(&["fragment", "fragment first", "fragment later"]).into(),
        5 => protochain(random),
        6 => flags(random),
        _ => random.pick(&[protocol as Maker, port, host, net6])(random),
    }
}
