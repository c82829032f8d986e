//! Random packets: nearly all of them well formed, some of them cut short.

use std::net::Ipv6Addr;

use super::{LABELS, MACS, PORTS, PROTOCOLS, Random, SESSIONS, V4, V6, VLANS, VNIS};

pub(crate) fn packet(random: &mut Random) -> Vec<u8> {
    let mut packet = Vec::new();
    ethernet(random, &mut packet, 0);
    // No AH by accident: libpcap follows it wrongly, which the comparison must leave out.
    for _ in 0..random.below(40) {
        packet.push(random.pick(&[0, 1, 2, 5, 6, 17, 44, 0x45, 0x60, 80, 255]));
    }
    if random.once_in(6) {
        packet.truncate(random.below(packet.len() + 1));
    }
    if random.once_in(8) && !packet.is_empty() {
        let at = random.below(packet.len());
        packet[at] = random.byte();
    }
    packet
}

fn ethernet(random: &mut Random, packet: &mut Vec<u8>, depth: usize) {
    packet.extend(random.pick(&MACS));
    packet.extend(random.pick(&MACS));
    for _ in 0..random.pick(&[0, 0, 0, 1, 1, 2, 3]) {
        packet.extend(random.pick(&[0x8100_u16, 0x8100, 0x88a8, 0x9100]).to_be_bytes());
        packet.extend((random.pick(&VLANS) | random.pick(&[0, 0x2000])).to_be_bytes());
    }
    match random.below(24) {
        0..10 => typed(random, packet, 0x0800, |random, packet| ipv4(random, packet, depth)),
        10..15 => typed(random, packet, 0x86dd, |random, packet| ipv6(random, packet, depth)),
        15 => typed(random, packet, 0x0806, arp),
        16 => typed(random, packet, 0x8035, arp),
        17 => typed(random, packet, 0x8847, |random, packet| mpls(random, packet, depth)),
        18 | 19 => typed(random, packet, 0x8864, |random, packet| pppoe(random, packet, depth)),
        20 => decnet(random, packet),
        21 | 22 => llc(random, packet),
        _ => {
            let kind = random
                .pick(&[0x8863_u16, 0x809b, 0x80f3, 0x6004, 0x6007, 0x6002, 0x6001, 0x8137, 0x8848, 0x9000]);
            packet.extend(kind.to_be_bytes());
            packet.extend([0; 30]);
        }
    }
}

fn typed(
    random: &mut Random,
    packet: &mut Vec<u8>,
    kind: u16,
    payload: impl FnOnce(&mut Random, &mut Vec<u8>),
) {
    packet.extend(kind.to_be_bytes());
    payload(random, packet);
}

fn ipv4(random: &mut Random, packet: &mut Vec<u8>, depth: usize) {
    let rare = random.pick(&PROTOCOLS);
    let protocol = random.pick(&[6, 6, 6, 17, 17, 17, 1, 132, rare]);
    let words = random.pick(&[5_u8, 5, 5, 5, 5, 5, 6, 6, 15, 0, 4]);
    let fragment = random.pick(&[0_u16, 0, 0, 0x4000, 0x2000, 0x2001, 0x00b9]);
    packet.extend([0x40 | words, random.pick(&[0, 0xb8]), 0, random.byte(), 0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([random.pick(&[1, 64]), protocol, 0, 0]);
    packet.extend(random.pick(&V4));
    packet.extend(random.pick(&V4));
    packet.extend(vec![1; usize::from(words.saturating_sub(5)) * 4]);
    transport(random, packet, protocol, depth);
}

fn ipv6(random: &mut Random, packet: &mut Vec<u8>, depth: usize) {
    let rare = random.pick(&PROTOCOLS);
    let last = random.pick(&[6, 6, 17, 17, 58, 58, 132, rare]);
    let mut chain: Vec<u8> =
        (0..random.pick(&[0, 0, 0, 1, 1, 2, 3])).map(|_| random.pick(&[0, 43, 44, 60, 44])).collect();
    chain.push(last);
    packet.extend([0x60, 0, 0, 0, 0, random.byte(), chain[0], 64]);
    for _ in 0..2 {
        packet.extend(random.pick(&V6).parse::<Ipv6Addr>().unwrap().octets());
    }
    for pair in chain.windows(2) {
        let length = if pair[0] == 44 { 0 } else { random.pick(&[0_u8, 0, 1]) };
        packet.extend([pair[1], length, 0, random.pick(&[0, 1, 8])]);
        packet.extend(vec![0; usize::from(length) * 8 + 4]);
    }
    transport(random, packet, last, depth);
}

fn transport(random: &mut Random, packet: &mut Vec<u8>, protocol: u8, depth: usize) {
    let [source, destination] = [(); 2].map(|()| {
        let beside = random.pick(&[0, 0, 0, 0, 0, 1, u16::MAX]);
        random.pick(&PORTS).wrapping_add(beside).to_be_bytes()
    });
    match protocol {
        6 => {
            packet.extend(source);
            packet.extend(destination);
            packet.extend([
                0,
                0,
                0,
                1,
                0,
                0,
                0,
                2,
                0x50,
                random.pick(&[0x02, 0x12, 0x10, 0x18, 0x11, 0x04]),
                0x20,
                0,
            ]);
            packet.extend([0; 4]);
        }
        17 => {
            packet.extend(source);
            packet.extend(if depth == 0 && random.once_in(4) { 6081_u16.to_be_bytes() } else { destination });
            packet.extend([0, random.byte(), 0, 0]);
            if depth == 0 && packet[packet.len() - 6..packet.len() - 4] == [0x17, 0xc1] {
                geneve(random, packet);
            }
        }
        132 => {
            packet.extend(source);
            packet.extend(destination);
            packet.extend([0; 8]);
        }
        1 => packet.extend([random.pick(&[0, 3, 8, 11]), random.pick(&[0, 1]), 0, 0, 0, 1, 0, 1]),
        58 => packet.extend([random.pick(&[128, 129, 133, 134, 135, 136, 137]), 0, 0, 0, 0, 1, 0, 1]),
        _ => packet.extend([0; 12]),
    }
}

fn geneve(random: &mut Random, packet: &mut Vec<u8>) {
    let options = random.pick(&[0_u8, 0, 1, 3]);
    let version = if random.once_in(8) { 0x40 } else { 0 };
    let kind = random.pick(&[0x6558_u16, 0x6558, 0x0800, 0x86dd]);
    packet.extend([version | options, 0]);
    packet.extend(kind.to_be_bytes());
    packet.extend((random.pick(&VNIS) << 8).to_be_bytes());
    packet.extend(vec![0; usize::from(options) * 4]);
    match kind {
        0x6558 => ethernet(random, packet, 1),
        0x0800 => ipv4(random, packet, 1),
        _ => ipv6(random, packet, 1),
    }
}

fn arp(random: &mut Random, packet: &mut Vec<u8>) {
    packet.extend([0, 1, 8, 0, 6, 4, 0, random.pick(&[1, 2])]);
    for _ in 0..2 {
        packet.extend(random.pick(&MACS));
        packet.extend(random.pick(&V4));
    }
}

fn mpls(random: &mut Random, packet: &mut Vec<u8>, depth: usize) {
    let labels = random.pick(&[1, 1, 2, 3]);
    for index in 1..=labels {
        let bottom = u32::from(index == labels);
        packet.extend((random.pick(&LABELS) << 12 | bottom << 8 | 64).to_be_bytes());
    }
    if random.once_in(2) { ipv4(random, packet, depth) } else { ipv6(random, packet, depth) }
}

fn pppoe(random: &mut Random, packet: &mut Vec<u8>, depth: usize) {
    packet.extend([0x11, 0]);
    packet.extend(random.pick(&SESSIONS).to_be_bytes());
    packet.extend([0, 40]);
    match random.below(4) {
        0 | 1 => typed(random, packet, 0x0021, |random, packet| ipv4(random, packet, depth)),
        2 => typed(random, packet, 0x0057, |random, packet| ipv6(random, packet, depth)),
        _ => {
            let kind = random.pick(&[0x0281_u16, 0x0023, 0x0027, 0x0029, 0x002b, 0x0031, 0xc021]);
            typed(random, packet, kind, |random, packet| mpls(random, packet, depth));
        }
    }
}

fn decnet(random: &mut Random, packet: &mut Vec<u8>) {
    packet.extend(0x6003_u16.to_be_bytes());
    packet.extend([20, 0]);
    if random.once_in(2) {
        packet.push(0x81);
    }
    let node = [0x02, 0x04];
    if random.once_in(2) {
        packet.push(0x02);
        packet.extend([node, node].concat());
    } else {
        packet.push(0x06);
        packet.extend([0, 0, 0xaa, 0, 4, 0]);
        packet.extend(node);
        packet.extend([0, 0, 0xaa, 0, 4, 0]);
        packet.extend(node);
    }
    packet.extend([0; 16]);
}

fn llc(random: &mut Random, packet: &mut Vec<u8>) {
    packet.extend(random.pick(&[60_u16, 100, 1500]).to_be_bytes());
    match random.below(6) {
        0 | 1 => {
            packet.extend([0xfe, 0xfe, 0x03, random.pick(&[0x81, 0x82, 0x83, 0x83, 0x83]), 0, 0, 0]);
            packet.push(random.pick(&[15, 16, 17, 18, 20, 24, 25, 26, 27]));
        }
        2 => packet.extend([0x42, 0x42, 0x03, 0]),
        3 => {
            let organisation = random.pick(&[[0, 0, 0], [8, 0, 7]]);
            packet.extend([0xaa, 0xaa, 0x03]);
            packet.extend(organisation);
            packet.extend(random.pick(&[0x809b_u16, 0x80f3, 0x8137, 0x0800]).to_be_bytes());
        }
        4 => packet.extend(random.pick(&[[0xe0, 0xe0, 3, 0], [0xff, 0xff, 0, 34], [0xf0, 0xf0, 3, 0]])),
        _ => packet.extend([
            0x04,
            0x04,
            random.pick(&[0x00, 0x01, 0x05, 0x09, 0x03, 0x63, 0x43, 0x0f, 0x6f, 0xe3, 0xaf, 0x87]),
            0,
        ]),
    }
    packet.extend([0; 30]);
}
