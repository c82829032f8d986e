//! What users of tcpdump expect beside the meaning of each primitive: the spellings of values, and which expressions are
//! refused.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod oracle;
#[expect(dead_code, reason = "not all of it is used by this test")]
mod random;

use bywash_filter::{Expression, NoNames, Options};
use bywash_lab::skip;
use oracle::Oracle;
use random::packet::packet;
use random::{MACS, Random};

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
