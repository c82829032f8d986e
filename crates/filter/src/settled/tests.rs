//! Outcomes by a table, and by packets made by chance.

use super::*;
use crate::{NoNames, Options};

fn expression(text: &str) -> Expression {
    Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap()
}

/// The only IPv4 flow of an expression.
fn flow(text: &str) -> Flow {
    let mut flows = expression(text).flows().flows;
    flows.retain(|flow| !flow.ipv6);
    assert_eq!(flows.len(), 1, "{text}");
    flows.remove(0)
}

/// Whether an expression can match and can fail, in packets with no tag and with one.
fn settled(text: &str, of: &str) -> [(bool, bool); 2] {
    [0, 1].map(|tags| {
        let Settled { can_match, can_fail } = expression(text).settled(&flow(of), tags);
        (can_match, can_fail)
    })
}

#[test]
fn what_a_flow_names_decides_an_expression() {
    const ALL: (bool, bool) = (true, false);
    const NONE: (bool, bool) = (false, true);
    const SOME: (bool, bool) = (true, true);
    for (text, of, outcomes) in [
        // Tags are seen only by who asks.
        ("udp dst port 53", "udp dst port 53", [ALL, NONE]),
        ("anyvlan and udp dst port 53", "udp dst port 53", [ALL, ALL]),
        ("anyvlan and ip and udp", "udp dst port 53", [ALL, ALL]),
        ("anyvlan and src net 10.1.0.0/16", "src net 10.1.0.0/16", [ALL, ALL]),
        ("anyvlan and net 10.0.0.0/8", "src net 10.1.0.0/16", [ALL, ALL]),
        ("anyvlan and portrange 50-60", "udp dst port 53", [ALL, ALL]),
        ("anyvlan and not tcp", "udp dst port 53", [ALL, ALL]),
        ("", "udp", [ALL, ALL]),
        ("vlan 7 and udp", "udp", [NONE, SOME]),
        // Later fragments have no ports, but a protocol.
        ("anyvlan and ip proto 17", "udp", [ALL, ALL]),
        ("anyvlan and ip[6:2] & 0x1fff = 0", "udp", [SOME, SOME]),
        ("anyvlan and ip[6] & 0x1f = 0", "udp", [SOME, SOME]),
        ("anyvlan and ip[6:2] & 0x1fff = 0", "udp dst port 53", [ALL, ALL]),
        ("anyvlan and ip[6:2] & 0x1fff != 0", "udp dst port 53", [NONE, NONE]),
        // What no flow says.
        ("anyvlan and udp dst port 53 and len > 100", "udp dst port 53", [SOME, SOME]),
        ("anyvlan and udp[4:2] > 0", "udp dst port 53", [SOME, SOME]),
        ("anyvlan and udp dst port 53 and src net 10.0.0.0/8", "udp dst port 53", [SOME, SOME]),
        ("anyvlan and l4 udp dst port 53", "udp dst port 53", [SOME, SOME]),
        ("ip[0] & 0xf > 5", "udp dst port 53", [SOME, NONE]),
        // What can't be.
        ("anyvlan and arp", "udp", [NONE, NONE]),
        ("anyvlan and tcp port 22", "udp", [NONE, NONE]),
        ("anyvlan and tcp port 22", "tcp dst port 80 and src port 99", [NONE, NONE]),
        ("anyvlan and tcp port 22", "tcp dst port 80", [SOME, SOME]),
        ("anyvlan and host 192.0.2.1", "src host 192.0.2.2 and dst host 192.0.2.3", [NONE, NONE]),
        ("anyvlan and host 192.0.2.1", "src host 192.0.2.2", [SOME, SOME]),
        ("ip6", "udp", [NONE, NONE]),
    ] {
        assert_eq!(settled(text, of), outcomes, "'{text}' of '{of}'");
    }
}

/// Numbers by chance, the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)).try_into().unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.below(256).try_into().unwrap()
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len().try_into().unwrap()) as usize]
    }
}

/// A packet that a NIC may take for one of the flow's.
fn packet(flow: &Flow, tags: u32, chance: &mut Chance) -> Vec<u8> {
    let mut packet = vec![2; 12];
    for _ in 0..tags {
        packet.extend(chance.one_of(&[[0x81, 0x00], [0x88, 0xa8]]));
        packet.extend([chance.byte(), chance.byte()]);
    }
    let words = 5 + chance.below(3);
    packet.extend([8, 0, 0x40 | u8::try_from(words).unwrap()]);
    let mut header: Vec<u8> = (1..4 * words).map(|_| chance.byte()).collect();
    let fragment = if flow.has_ports() { [0, 0, 0x20, 0] } else { [0, 0, 0x20, 0x01] };
    (header[5], header[6]) = (chance.one_of(&fragment), chance.one_of(&fragment[..2]));
    if !flow.has_ports() {
        header[6] = chance.byte();
    }
    header[8] = flow.protocol.unwrap_or(chance.one_of(&[6, 17, 47]));
    let few = chance.byte();
    let mut named: Vec<u8> = (0..12).map(|_| chance.one_of(&[0, few, 53])).collect();
    for (byte, (value, mask)) in named.iter_mut().zip(flow.value.iter().zip(&flow.mask)) {
        *byte = *byte & !mask | value;
    }
    header[11..19].copy_from_slice(&named[..8]);
    packet.extend(header);
    packet.extend(&named[8..]);
    packet.extend((0..chance.below(40)).map(|_| chance.one_of(&[0, 1, 53])));
    packet
}

/// It may say that something is possible that is not, never the other way.
#[test]
fn no_packet_is_what_it_was_said_not_to_be() {
    let texts = [
        "udp dst port 53",
        "anyvlan and udp dst port 53",
        "anyvlan and (tcp or udp) and portrange 40-60",
        "anyvlan and src net 10.0.0.0/8 and not dst port 53",
        "anyvlan and (host 10.53.0.0 or src net 10.0.0.0/9) and not icmp",
        "anyvlan and ip[6:2] & 0x3fff != 0",
        "anyvlan and ip[6] & 0x1f = 0",
        "vlan and udp and len > 60",
        "anyvlan and ip[2:2] > 1000 or tcp[13] & 2 != 0",
        "anyvlan and l4 udp dst port 53",
        "anyvlan and ip[16:4] & 0xff0000ff = 0x0a000035 or ip[9] * 2 = 34",
        "ip and (src port 53 or dst net 53.0.0.0/8)",
        "",
    ];
    let flows = [
        "udp dst port 53",
        "udp",
        "tcp src port 1024",
        "src net 10.53.0.0/16",
        "udp dst portrange 48-55 and src host 10.53.0.0",
        "tcp and dst net 53.0.0.0/8",
    ];
    let (mut chance, mut certain) = (Chance(1), 0);
    for text in texts {
        let expression = expression(text);
        for of in flows {
            let flow = flow(of);
            for tags in 0..=MOST_TAGS {
                let Settled { can_match, can_fail } = expression.settled(&flow, tags);
                certain += u32::from(can_match != can_fail);
                for _ in 0..200 {
                    let packet = packet(&flow, tags, &mut chance);
                    let is_possible = if expression.matches(&packet) { can_match } else { can_fail };
                    assert!(is_possible, "'{text}' of '{of}', {tags} tags: {packet:02x?}");
                }
            }
        }
    }
    assert!(certain > 60, "{certain} of {} are decided", texts.len() * flows.len() * 3);
}
