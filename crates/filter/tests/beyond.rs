//! Primitives of our own, which libpcap can't judge: by hand-made packets, and the matcher against eBPF.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[expect(dead_code, reason = "not all of it is used by this test")]
mod random;

use bywash_filter::xdp::{NeverTake, verdict_program};
use bywash_filter::{Expression, NoNames, Options};
use bywash_lab::skip;
use bywash_sys::bpf::{Program, ProgramKind, ProgramSpec, TestInput};
use random::{Random, packet::packet};

fn read(text: &str) -> Expression {
    Expression::new(text, &Options { names: &NoNames, netmask: None })
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A frame: addresses, then what is given.
fn frame(rest: &[&[u8]]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], rest.concat().as_slice()].concat()
}

const TAG: &[u8] = &[0x81, 0, 0, 5];
const SERVICE_TAG: &[u8] = &[0x88, 0xa8, 0, 9];
const IS_V4: &[u8] = &[8, 0];
const IS_V6: &[u8] = &[0x86, 0xdd];

fn v4(protocol: u8, fragment: u16) -> Vec<u8> {
    let [high, low] = fragment.to_be_bytes();
    vec![0x45, 0, 0, 60, 0, 0, high, low, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]
}

/// An IPv6 header and extension headers, each given by its number.
fn v6(chain: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0, 0, 60, chain[0], 64];
    bytes.extend([0xfd; 32]);
    for pair in chain.windows(2) {
        match pair[0] {
            44 => bytes.extend([pair[1], 0, 0, 0, 0, 0, 0, 7]),
            51 => bytes.extend([pair[1], 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]),
            _ => bytes.extend([pair[1], 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        }
    }
    bytes
}

/// Ports 1000 and 53, and some bytes.
const PORTS: &[u8] = &[3, 232, 0, 53, 0, 20, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

#[test]
fn anyvlan_looks_behind_any_number_of_tags() {
    let expression = read("anyvlan and udp dst port 53");
    let plain = read("udp dst port 53");
    for depth in 0..=16 {
        let tags: Vec<u8> = [TAG, SERVICE_TAG].into_iter().cycle().take(depth).flatten().copied().collect();
        let tagged = frame(&[&tags, IS_V4, &v4(17, 0), PORTS]);
        assert!(expression.matches(&tagged), "{depth} tags");
        assert_eq!(plain.matches(&tagged), depth == 0);
    }
    let too_deep = frame(&[&TAG.repeat(17), IS_V4, &v4(17, 0), PORTS]);
    assert!(!expression.matches(&too_deep));
    assert!(!read("not (anyvlan and arp)").matches(&too_deep), "what can't be read does not match");
    let two = frame(&[TAG, TAG, &[8, 6], &[0; 28]]);
    assert!(read("vlan 5 and anyvlan and arp").matches(&two));
    assert!(read("anyvlan and arp and ether src 2:0:0:0:0:2").matches(&two));
    assert!(read("anyvlan and arp[27] = 0").matches(&two));
    assert!(!read("anyvlan and arp[28] = 0").matches(&two));
}

#[test]
fn l4_looks_behind_extension_headers() {
    let expression = read("l4 udp dst port 53");
    for chain in [&[17][..], &[0, 17], &[60, 43, 17], &[0, 60, 43, 44, 51, 60, 17], &[135, 139, 140, 17]] {
        let packet = frame(&[IS_V6, &v6(chain), PORTS]);
        assert!(expression.matches(&packet), "{chain:?}");
        assert!(
            read("l4 src port 1000 and l4 proto 17 and l4 portrange 50-60").matches(&packet),
            "{chain:?}"
        );
        assert!(!read("l4 tcp port 53").matches(&packet), "{chain:?}");
        assert!(!read("l4 src port 53 or l4 proto 6 or fragment").matches(&packet), "{chain:?}");
        assert_eq!(read("udp port 53").matches(&packet), chain.len() == 1, "as tcpdump has it");
        let tagged = frame(&[TAG, SERVICE_TAG, IS_V6, &v6(chain), PORTS]);
        assert!(read("anyvlan and l4 dst port 53").matches(&tagged), "{chain:?}");
        for length in 0..packet.len() - 14 {
            assert!(!expression.matches(&packet[..length]), "cut to {length}: {chain:?}");
        }
    }
    let v4_behind_ah = frame(&[IS_V4, &v4(51, 0), &[17, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1], PORTS]);
    assert!(expression.matches(&v4_behind_ah));
    assert!(read("l4 proto 50").matches(&frame(&[IS_V6, &v6(&[0, 50]), PORTS])));
    assert!(read("l4 proto 59").matches(&frame(&[IS_V6, &v6(&[59])])));
    let endless = frame(&[IS_V6, &v6(&[0; 80]), PORTS]);
    assert!(!read("l4 proto 0 or not l4 proto 0").matches(&endless), "what can't be read does not match");
}

#[test]
fn fragments_are_told_apart() {
    let names = ["fragment", "fragment first", "fragment later", "l4 udp port 53", "l4 proto 17"];
    let judge = |packet: &[u8]| names.map(|name| read(name).matches(packet));
    let over_v4 = |field| judge(&frame(&[IS_V4, &v4(17, field), PORTS]));
    assert_eq!(over_v4(0x0000), [false, false, false, true, true]);
    assert_eq!(over_v4(0x4000), [false, false, false, true, true]);
    assert_eq!(over_v4(0x2000), [true, true, false, true, true]);
    assert_eq!(over_v4(0x2005), [true, false, true, false, true]);
    assert_eq!(over_v4(0x0005), [true, false, true, false, true]);
    let over_v6 = |field: u16| {
        let mut headers = v6(&[0, 44, 17]);
        let at = headers.len() - 6;
        headers[at..at + 2].copy_from_slice(&field.to_be_bytes());
        judge(&frame(&[IS_V6, &headers, PORTS]))
    };
    assert_eq!(over_v6(0x0000), [false, false, false, true, true], "whole in spite of its header");
    assert_eq!(over_v6(0x0001), [true, true, false, true, true]);
    assert_eq!(over_v6(0x0029), [true, false, true, false, true]);
    assert_eq!(over_v6(0x0028), [true, false, true, false, true]);
    assert!(!read("fragment").matches(&frame(&[&[8, 6], &[0xff; 28]])));
}

#[test]
fn the_never_take_list_saves_what_a_machine_lives_by() {
    let list = NeverTake {
        gateways: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        operator: Some(("10.0.0.9:22".parse().unwrap(), "192.0.2.7:50000".parse().unwrap())),
        sessions: [
            ("192.0.2.8:3", "10.0.0.9:22"),
            ("192.0.2.9:4", "10.0.0.9:22"),
            ("[fd00::7]:5", "[fd00::2]:22"),
        ]
        .map(|(client, server)| (client.parse().unwrap(), server.parse().unwrap()))
        .into(),
    };
    let list = list.expression();
    let from_to = |from: [u8; 4], to: [u8; 4], protocol| {
        let mut header = v4(protocol, 0);
        header[12..16].copy_from_slice(&from);
        header[16..20].copy_from_slice(&to);
        header
    };
    let from_to_v6 = |from: u8, to: u8| {
        let mut header = v6(&[6]);
        for (at, last) in [(8, from), (24, to)] {
            header[at..at + 16].copy_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        header
    };
    let icmp6 = |hop_limit: u8| {
        let mut header = v6(&[58]);
        header[7] = hop_limit;
        header
    };
    let ssh = |from, to, ports: [u8; 4]| frame(&[IS_V4, &from_to(from, to, 6), &ports, &[0; 16]]);
    let (here, there) = ([10, 0, 0, 9], [192, 0, 2, 7]);
    for (kept, packet) in [
        (true, frame(&[&[8, 6], &[0; 28]])),
        (true, frame(&[TAG, SERVICE_TAG, &[8, 6], &[0; 28]])),
        (true, frame(&[IS_V6, &icmp6(255), &[133, 0, 0, 0]])),
        (true, frame(&[TAG, IS_V6, &icmp6(255), &[137, 0, 0, 0]])),
        (false, frame(&[IS_V6, &icmp6(254), &[133, 0, 0, 0]])),
        (false, frame(&[IS_V6, &icmp6(255), &[128, 0, 0, 0]])),
        (false, frame(&[IS_V6, &icmp6(255), &[138, 0, 0, 0]])),
        (true, frame(&[IS_V4, &from_to([10, 0, 0, 1], [10, 0, 0, 9], 17), PORTS])),
        (true, frame(&[IS_V4, &from_to([10, 0, 0, 9], [10, 0, 0, 1], 17), PORTS])),
        (false, frame(&[IS_V4, &from_to([10, 0, 0, 2], [10, 0, 0, 9], 17), PORTS])),
        (true, ssh(here, there, [0, 22, 0xc3, 0x50])),
        (true, ssh(there, here, [0xc3, 0x50, 0, 22])),
        (false, ssh(there, here, [0xc3, 0x51, 0, 22])),
        (false, ssh(there, [10, 0, 0, 8], [0xc3, 0x50, 0, 22])),
        (true, ssh([192, 0, 2, 8], here, [0, 3, 0, 22])),
        (true, ssh([192, 0, 2, 9], here, [0, 4, 0, 22])),
        (false, ssh([192, 0, 2, 9], here, [0, 3, 0, 22])),
        (false, ssh([192, 0, 2, 8], [10, 0, 0, 8], [0, 3, 0, 22])),
        (false, ssh([192, 0, 2, 8], here, [0, 3, 0, 23])),
        (true, frame(&[IS_V6, &from_to_v6(7, 2), &[0, 5, 0, 22], &[0; 16]])),
        (false, frame(&[IS_V6, &from_to_v6(8, 2), &[0, 5, 0, 22], &[0; 16]])),
    ] {
        assert_eq!(list.matches(&packet), kept, "{packet:02x?}");
    }
    assert!(!NeverTake::default().expression().matches(&frame(&[IS_V4, &v4(6, 0), PORTS])));
}

/// An expression for the matcher and for the kernel.
struct Both {
    text: String,
    expression: Expression,
    program: Program,
}

impl Both {
    fn new(text: String) -> Self {
        let expression = read(&text);
        let program = verdict_program(&expression, 1, 2).unwrap().to_words();
        let spec = ProgramSpec { kind: ProgramKind::XdpFrags, name: "beyond", instructions: &program };
        let program = Program::load(&spec).unwrap_or_else(|error| panic!("{text}\n{error}"));
        Self { text, expression, program }
    }

    /// Whether both say that a packet matches.
    fn match_both(&self, packet: &[u8]) -> bool {
        let output = self.program.test_run(&TestInput { packet, ..TestInput::default() }).unwrap();
        assert_eq!(output.verdict == 1, self.expression.matches(packet), "{}\n{packet:02x?}", self.text);
        output.verdict == 1
    }
}

#[test]
fn the_longest_chains_mean_the_same_to_the_matcher_and_to_the_kernel() {
    if !rustix::process::geteuid().is_root() {
        return skip("bpf(2) needs root");
    }
    let [any, later] = ["l4 proto 17", "fragment later"].map(|text| Both::new(text.into()));
    for (before, field, is_any) in
        [(62, 0, true), (63, 0, false), (62, 8, true), (63, 8, true), (64, 8, false), (63, 1, false)]
    {
        let chain = [vec![60; before], vec![44, 17]].concat();
        let mut headers = v6(&chain);
        let at = headers.len() - 5;
        headers[at] = field;
        let packet = frame(&[IS_V6, &headers, PORTS]);
        assert_eq!(any.match_both(&packet), is_any, "{field} behind {before}");
        assert_eq!(later.match_both(&packet), is_any && field == 8, "{field} behind {before}");
    }
}

#[test]
fn ours_mean_the_same_to_the_matcher_and_to_the_kernel() {
    if !rustix::process::geteuid().is_root() {
        return skip("bpf(2) needs root");
    }
    let mut random = Random::new(3);
    let (mut pairs, mut matched) = (0, 0);
    for _ in 0..120 {
        let both = Both::new(random::expression::ours(&mut random));
        for _ in 0..200 {
            let packet = packet(&mut random);
            if packet.len() >= 14 {
                pairs += 1;
                matched += usize::from(both.match_both(&packet));
            }
        }
    }
    assert!(matched * 5 > pairs, "{matched} of {pairs} match");
}
