//! What users of tcpdump expect beside the meaning of each primitive: the spellings of values, and which expressions are
//! refused.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod oracle;
#[expect(dead_code, reason = "not all of it is used by this test")]
mod random;

use std::net::Ipv4Addr;

use bywash_filter::{Expression, NoNames, Options};
use bywash_lab::skip;
use oracle::Oracle;
use random::expression::Used;
use random::packet::packet;
use random::{MACS, Random};

const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);

fn read(text: &str) -> Expression {
    Expression::new(text, &Options { names: &NoNames, netmask: None })
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Every way to write an Ethernet address that libpcap takes.
fn spellings(mac: [u8; 6]) -> Vec<String> {
    let joined = |bytes: &[String], separator: &str| bytes.join(separator);
    let two = mac.map(|byte| format!("{byte:02x}"));
    let short = mac.map(|byte| format!("{byte:x}"));
    let four: Vec<String> = two.chunks(2).map(<[String]>::concat).collect();
    let mut all = vec![two.concat(), four.join(".")];
    for separator in [":", "-", "."] {
        all.extend([joined(&two, separator), joined(&short, separator)]);
    }
    let upper: Vec<String> = all.iter().map(|text| text.to_uppercase()).collect();
    [all, upper].concat()
}

#[test]
fn an_ethernet_address_is_written_as_tcpdump_takes_it() {
    let oracle = match Oracle::open() {
        Ok(oracle) => oracle,
        Err(reason) => return skip(&reason),
    };
    let mut random = Random::new(3);
    let packets: Vec<Vec<u8>> = (0..200).map(|_| packet(&mut random)).collect();
    for mac in MACS {
        let mut matched = 0;
        for spelling in spellings(mac) {
            let text = format!("ether host {spelling}");
            let (theirs, ours) = (oracle.compile(&text, false, None).unwrap(), read(&text));
            for packet in &packets {
                let expected = oracle.matches(&theirs, packet, packet.len());
                assert_eq!(ours.matches(packet), expected, "{text}\n{packet:02x?}");
                matched += usize::from(expected);
            }
        }
        assert!(matched > 0, "no packet has {mac:02x?}");
    }
}

#[test]
fn what_tcpdump_takes_for_no_ethernet_address_is_none_here() {
    let oracle = match Oracle::open() {
        Ok(oracle) => oracle,
        Err(reason) => return skip(&reason),
    };
    for text in [
        "ether host 2:0:0-0:0:1",
        "ether host 2:0:0:0:0",
        "ether host 02:00:00:00:00:gg",
        "ether host 0200.0000",
        "ether host 02000000001",
        "host 020000000001",
        "host 0200.0000.0001",
        "port 000000000080",
        "len = 000000000080",
    ] {
        assert!(oracle.compile(text, false, None).is_err(), "libpcap reads '{text}'");
        let options = Options { names: &NoNames, netmask: None };
        assert!(Expression::new(text, &options).is_err(), "read: '{text}'");
    }
}

/// What libpcap says of an expression that no packet can match.
const THEIR_WORDS: &str = "expression rejects all packets";

#[test]
fn what_is_refused_since_no_packet_can_match_matches_none() {
    let oracle = match Oracle::open() {
        Ok(oracle) => oracle,
        Err(reason) => return skip(&reason),
    };
    let mut random = Random::new(4);
    let (mut refused, mut refused_by_both, mut refused_by_them) = (0, 0, 0);
    for _ in 0..6000 {
        let text = random::expression::expression(&mut random, &mut Used::new());
        // What libpcap makes of these may never end, or looks at memory that it has not written.
        if text.contains("protochain") || text.contains("geneve") {
            continue;
        }
        let Ok(plain) = oracle.compile(&text, false, Some(NETMASK.to_bits())) else { continue };
        let theirs = oracle.compile(&text, true, Some(NETMASK.to_bits()));
        let they_refuse = theirs.is_err_and(|error| error == THEIR_WORDS);
        let options = Options { names: &NoNames, netmask: Some(NETMASK) };
        let ours = Expression::possible(&text, &options);
        refused_by_them += usize::from(they_refuse);
        if ours.is_err() {
            refused += 1;
            refused_by_both += usize::from(they_refuse);
            for _ in 0..200 {
                let packet = packet(&mut random);
                assert!(!oracle.matches(&plain, &packet, packet.len()), "{text}\n{packet:02x?}");
            }
        }
    }
    eprintln!("{refused} refused, {refused_by_them} by libpcap, {refused_by_both} by both");
    assert!(refused > 100, "only {refused} could be judged");
    assert!(refused_by_both * 10 >= refused_by_them * 9, "{refused_by_both} of {refused_by_them}");
}
