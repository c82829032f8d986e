//! Files of every kind, whole, cut, mutated and hostile.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Read};

use bywash_pcap::{Broken, Comment, Format, Interface, Link, MAX_INTERFACES, ReadError, Reader, Statistics};
use proptest::prelude::*;

/// A number's bytes, in one of the two orders.
fn number<const N: usize>(big: bool, little_endian: [u8; N]) -> [u8; N] {
    let mut bytes = little_endian;
    if big {
        bytes.reverse();
    }
    bytes
}

fn u16s(big: bool, values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|value| number(big, value.to_le_bytes())).collect()
}

fn u32s(big: bool, values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| number(big, value.to_le_bytes())).collect()
}

fn pcap_header(big: bool, magic: u32, version: [u16; 2], network: u32) -> Vec<u8> {
    [u32s(big, &[magic]), u16s(big, &version), u32s(big, &[0, 0, 65_535, network])].concat()
}

fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let length = u32::try_from(body.len() + 12).unwrap();
    [u32s(big, &[kind, length]), body, u32s(big, &[length])].concat()
}

fn section(big: bool) -> Vec<u8> {
    let body = [u32s(big, &[0x1a2b_3c4d]), u16s(big, &[1, 0]), vec![0xff; 8]].concat();
    block(big, 0x0a0d_0d0a, &body)
}

fn option(big: bool, code: u16, value: &[u8]) -> Vec<u8> {
    let mut out = [u16s(big, &[code, u16::try_from(value.len()).unwrap()]), value.to_vec()].concat();
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn interface(big: bool, link: u16, snap: u32, options: &[u8]) -> Vec<u8> {
    block(big, 1, &[u16s(big, &[link, 0]), u32s(big, &[snap]), options.to_vec()].concat())
}

fn packet(big: bool, interface: u32, ticks: u64, original: u32, bytes: &[u8]) -> Vec<u8> {
    let (high, low) = (u32::try_from(ticks >> 32).unwrap(), u32::try_from(ticks & 0xffff_ffff).unwrap());
    let captured = u32::try_from(bytes.len()).unwrap();
    block(big, 6, &[u32s(big, &[interface, high, low, captured, original]), bytes.to_vec()].concat())
}

/// A packet, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    time: Option<u64>,
    link: u16,
    original: u32,
    bytes: Vec<u8>,
}

fn owned(time: impl Into<Option<u64>>, link: u16, original: u32, bytes: &[u8]) -> Owned {
    Owned { time: time.into(), link, original, bytes: bytes.to_vec() }
}

/// Gives some bytes now and some later.
struct Drops<'a> {
    rest: &'a [u8],
    most: usize,
    is_dry: bool,
}

impl Read for Drops<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.is_dry = !self.is_dry;
        if self.is_dry {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let most = self.most.min(into.len());
        self.rest.read(&mut into[..most])
    }
}

/// All packets before the end or the break, which are the same when the file comes in pieces.
fn read(file: &[u8]) -> (Vec<Owned>, Option<ReadError>) {
    let (packets, error) = read_from(file);
    // Of a long file not byte by byte.
    for most in [1, 7, 1000, 1 << 16].into_iter().filter(|most| file.len() / most < 5000) {
        let again = read_from(Drops { rest: file, most, is_dry: false });
        assert_eq!(again.0, packets, "in pieces of {most} bytes");
        assert_eq!(
            again.1.map(|error| error.to_string()),
            error.as_ref().map(ToString::to_string),
            "in pieces of {most} bytes"
        );
    }
    (packets, error)
}

fn read_from(file: impl Read) -> (Vec<Owned>, Option<ReadError>) {
    let mut reader = match Reader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut packets = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(record)) => {
                packets.push(owned(record.time, record.link.0, record.original_len, record.bytes));
            }
            Ok(None) => return (packets, None),
            Err(error) if error.is_for_later() => {}
            Err(error) => {
                assert!(reader.next_record().unwrap().is_none(), "nothing follows a break");
                return (packets, Some(error));
            }
        }
    }
}

fn read_whole(file: &[u8]) -> Vec<Owned> {
    let (packets, error) = read(file);
    assert!(error.is_none(), "{error:?}");
    packets
}

fn broken(file: &[u8]) -> (u64, Broken) {
    match read(file).1 {
        Some(ReadError::Broken { offset, what }) => (offset, what),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_of_pcap_is_read() {
    for big in [false, true] {
        for (magic, extra, time) in [
            (0xa1b2_c3d4, 0, 7_000_003_000),
            (0xa1b2_3c4d, 0, 7_000_000_003),
            (0xa1b2_cd34, 8, 7_000_003_000_u64),
        ] {
            let mut file = pcap_header(big, magic, [2, 4], 113);
            file.extend(u32s(big, &[7, 3, 5, 60]));
            file.extend(vec![0xee; extra]);
            file.extend(b"hello");
            assert_eq!(read_whole(&file), [owned(time, 113, 60, b"hello")], "{magic:x} {big}");
            assert_eq!(Reader::new(file.as_slice()).unwrap().format(), Some(Format::Pcap));
        }
    }
}

#[test]
fn lengths_that_old_versions_swapped_are_put_right() {
    for (minor, [first, second]) in [(2, [60, 5]), (3, [60, 5]), (3, [5, 60]), (4, [5, 60])] {
        let mut file = pcap_header(false, 0xa1b2_c3d4, [2, minor], 1);
        file.extend(u32s(false, &[0, 0, first, second]));
        file.extend(b"hello");
        assert_eq!(read_whole(&file), [owned(0, 1, 60, b"hello")], "2.{minor}");
    }
}

/// A packet that came with an FCS on an interface that says otherwise of others, or nothing.
#[test]
fn what_a_packet_says_of_its_own_fcs_counts_for_more_than_what_its_interface_says() {
    for big in [false, true] {
        // Bits 5 to 8 of the flags; the others say how it came, and what was wrong with it.
        let flags = |fcs: u32| option(big, 2, &u32s(big, &[0xff00_0001 | fcs << 5]));
        let end = option(big, 0, &[]);
        let with = |kind, options: &[u8]| {
            let fields = match kind {
                2 => [u16s(big, &[0, 0]), u32s(big, &[0, 9, 7, 7])].concat(),
                _ => u32s(big, &[0, 0, 9, 7, 7]),
            };
            block(big, kind, &[fields, b"datFCS!\0".to_vec(), options.to_vec()].concat())
        };
        for (of_interface, options, kept) in [
            (vec![], vec![], 7),
            (vec![], [flags(4), end.clone()].concat(), 3),
            (vec![], [option(big, 1, b"a comment"), flags(2)].concat(), 5),
            (option(big, 13, &[4]), [flags(2), end.clone()].concat(), 5),
            (option(big, 13, &[4]), [flags(0), end.clone()].concat(), 3),
            (option(big, 13, &[4]), u16s(big, &[2, 400]), 3),
        ] {
            for kind in [2, 6] {
                let start = [section(big), interface(big, 1, 0, &of_interface)].concat();
                let file = [start, with(kind, &options)].concat();
                let expected = owned(9_000, 1, kept, &b"datFCS!"[..kept as usize]);
                let (packets, error) = read(&file);
                assert!(error.is_none(), "{error:?}");
                assert_eq!(packets, [expected], "{big}, {kind}, {of_interface:?}, {options:?}");
            }
        }
    }
}

#[test]
fn an_fcs_is_not_part_of_the_packet() {
    // Bit 26: there is an FCS; two 16-bit words of it.
    let mut file = pcap_header(false, 0xa1b2_c3d4, [2, 4], 0x2400_0001);
    file.extend([u32s(false, &[0, 0, 8, 8]), b"dataFCS!".to_vec()].concat());
    file.extend([u32s(false, &[0, 0, 6, 8]), b"dataFC".to_vec()].concat());
    file.extend([u32s(false, &[0, 0, 3, 8]), b"dat".to_vec()].concat());
    let expected = [owned(0, 1, 4, b"data"), owned(0, 1, 4, b"data"), owned(0, 1, 4, b"dat")];
    assert_eq!(read_whole(&file), expected);
    let fcs = option(false, 13, &[32]);
    let file = [section(false), interface(false, 1, 0, &fcs), packet(false, 0, 9, 8, b"dataFCS!")].concat();
    assert_eq!(read_whole(&file), [owned(9000, 1, 4, b"data")]);
}

#[test]
fn every_unit_and_offset_of_time_is_understood() {
    let offset = |seconds: i64, big| option(big, 14, &number(big, seconds.to_le_bytes()));
    for big in [false, true] {
        for (options, ticks, expected) in [
            (vec![], 1_700_000_000_000_001, 1_700_000_000_000_001_000),
            (option(big, 9, &[9]), 1_700_000_000_000_000_001, 1_700_000_000_000_000_001),
            (option(big, 9, &[0]), 17, 17_000_000_000),
            (option(big, 9, &[12]), 5_999, 5),
            (option(big, 9, &[0x80 | 10]), 1024 + 512, 1_500_000_000),
            (option(big, 9, &[127]), u64::MAX, 0),
            (option(big, 9, &[0xff]), u64::MAX, 0),
            ([option(big, 9, &[9]), offset(10, big)].concat(), 1, 10_000_000_001),
            ([option(big, 9, &[9]), offset(-10, big)].concat(), 1, 0),
            ([option(big, 9, &[0]), offset(i64::MAX, big)].concat(), u64::MAX, u64::MAX),
            ([option(big, 2, b"eth1"), option(big, 0, &[]), option(big, 9, &[0])].concat(), 17, 17_000),
        ] {
            let file =
                [section(big), interface(big, 1, 0, &options), packet(big, 0, ticks, 1, b"x")].concat();
            assert_eq!(read_whole(&file), [owned(expected, 1, 1, b"x")], "{options:?} {ticks}");
        }
    }
}

#[test]
fn sections_interfaces_and_blocks_of_all_kinds_are_read() {
    let old = |big| [u16s(big, &[1, 0]), u32s(big, &[0, 8, 3, 3]), b"old".to_vec()].concat();
    let simple = |big| [u32s(big, &[9]), b"simp".to_vec()].concat();
    let file = [
        section(true),
        interface(true, 1, 4, &[]),
        interface(true, 101, 0, &option(true, 9, &[9])),
        block(true, 4, &[1; 40]),
        packet(true, 1, 7, 3, b"raw"),
        block(true, 3, &simple(true)),
        block(true, 0x0bad, &[2; 400_000]),
        block(true, 2, &old(true)),
        // Another section, in the other order, knows no interface yet.
        section(false),
        interface(false, 1, 0, &[]),
        packet(false, 0, 7, 1, b"x"),
    ]
    .concat();
    let expected = [
        owned(7, 101, 3, b"raw"),
        owned(None, 1, 9, b"simp"),
        owned(8, 101, 3, b"old"),
        owned(7_000, 1, 1, b"x"),
    ];
    assert_eq!(read_whole(&file), expected);
    assert_eq!(Reader::new(file.as_slice()).unwrap().format(), Some(Format::Pcapng));
}

#[test]
fn each_way_to_be_broken_has_its_place_and_its_reason() {
    let begun = [section(false), interface(false, 1, 0, &[])].concat();
    let at = begun.len() as u64;
    let with = |more: &[u8]| broken(&[&begun, more].concat());
    let mut short = packet(false, 0, 0, 9, b"x");
    short[20] = 5;
    assert_eq!(with(&short), (at, Broken::Inside { length: 36 }));
    assert_eq!(with(&packet(false, 1, 0, 1, b"x")), (at, Broken::Interface(1)));
    assert_eq!(with(&u32s(false, &[6, 13, 0])), (at, Broken::Length(13)));
    assert_eq!(with(&u32s(false, &[6, 8, 0])), (at, Broken::Length(8)));
    assert_eq!(with(&u32s(false, &[6, 0xffff_fff0, 0])), (at, Broken::Length(0xffff_fff0)));
    let trailer = Broken::Trailer { head: 12, tail: 16 };
    assert_eq!(with(&u32s(false, &[4, 12, 16])), (at, trailer));
    assert_eq!(with(&block(false, 1, &[0; 4])), (at, Broken::Inside { length: 16 }));
    // An option that runs beyond its block.
    let long = interface(false, 1, 0, &u16s(false, &[2, 9]));
    assert_eq!(with(&long), (at, Broken::Inside { length: 24 }));
    assert_eq!(with(&u32s(false, &[0x0a0d_0d0a, 28, 7])), (at, Broken::ByteOrder([7, 0, 0, 0])));
    // As many interfaces as are kept, in each of two sections, and one more.
    let most = [section(false), interface(false, 1, 0, &[]).repeat(MAX_INTERFACES)].concat();
    let kept = [most.clone(), most.clone(), packet(false, 0xffff, 0, 1, b"x")].concat();
    assert_eq!(read_whole(&kept).len(), 1);
    let more = [most.clone(), interface(false, 1, 0, &[])].concat();
    assert_eq!(broken(&more), (most.len() as u64, Broken::TooManyInterfaces));
    let short = Broken::Short { what: "a block", wanted: 4000, left: 12 };
    assert_eq!(with(&u32s(false, &[4, 4000, 0])), (at, short));

    let header = pcap_header(false, 0xa1b2_c3d4, [2, 4], 1);
    let hostile = [header, u32s(false, &[0, 0, u32::MAX, u32::MAX])].concat();
    assert_eq!(broken(&hostile), (24, Broken::TooLong(u32::MAX)));
    let (_, error) = read(&hostile);
    assert!(error.unwrap().to_string().starts_with("broken at byte 24: a packet of 4294967295 bytes"));
}

#[test]
fn what_is_no_capture_file_is_said_to_be_none() {
    assert!(matches!(read(b"").1, Some(ReadError::Empty)));
    assert!(matches!(read(b"\x7fELF....").1, Some(ReadError::Unknown(_))));
    assert!(matches!(read(&[0x1f, 0x8b, 8, 0, 0]).1, Some(ReadError::Compressed("gunzip"))));
    let newer = pcap_header(true, 0xa1b2_c3d4, [3, 0], 1);
    assert!(matches!(read(&newer).1, Some(ReadError::Version { major: 3, minor: 0 })));
    let mut newer = section(true);
    newer[13] = 2;
    assert!(matches!(read(&newer).1, Some(ReadError::Version { major: 2, minor: 0 })));
    assert_eq!(Link(101).to_string(), "raw IP (link type 101)");
}

/// A file as we write it, the packets in it, and where each of its parts ends.
fn written(format: Format, packets: &[(u64, Vec<u8>, u32)]) -> (Vec<u8>, Vec<Owned>, Vec<usize>) {
    let mut file = format.file_header(&Interface { filter: Some("udp"), ..Interface::named("eth1") });
    // pcapng's header is two blocks.
    let mut ends = match format {
        Format::Pcap => vec![24],
        Format::Pcapng => {
            let first = format.record_len_at(&file).unwrap();
            vec![first, file.len()]
        }
    };
    let mut expected = Vec::new();
    for (time, bytes, cut) in packets {
        let captured = u32::try_from(bytes.len()).unwrap();
        let original = captured + cut;
        let start = file.len();
        file.extend(format.record_head(*time, captured, original).bytes());
        file.extend(bytes);
        file.extend(format.record_tail(captured).bytes());
        assert_eq!(file.len() - start, format.record_len(captured));
        assert_eq!(format.record_len_at(&file[start..]), Some(file.len() - start));
        ends.push(file.len());
        expected.push(owned(*time, 1, original, bytes));
    }
    (file, expected, ends)
}

fn a_packet() -> impl Strategy<Value = (u64, Vec<u8>, u32)> {
    // pcap has 32 bits for seconds.
    (0..u64::from(u32::MAX) * 1_000_000_000, prop::collection::vec(any::<u8>(), 0..90), 0..2000_u32)
}

fn a_format() -> impl Strategy<Value = Format> {
    prop_oneof![Just(Format::Pcap), Just(Format::Pcapng)]
}

#[test]
fn a_file_cut_at_any_byte_is_read_up_to_there() {
    for format in [Format::Pcap, Format::Pcapng] {
        let packets = [(1, vec![1; 60], 0), (2, vec![2; 61], 9), (3, vec![], 4), (4, vec![4; 3], 0)];
        let (file, expected, ends) = written(format, &packets);
        for cut in 1..file.len() {
            let (packets, error) = read(&file[..cut]);
            let whole = ends.iter().filter(|end| **end <= cut).count();
            let before = ends.len() - expected.len();
            assert_eq!(packets, expected[..whole.saturating_sub(before)], "{format:?} {cut}");
            let start = ends[..whole].last().copied().unwrap_or_default();
            match error {
                None => assert_eq!(start, cut, "{format:?}"),
                Some(ReadError::Broken { offset, what: Broken::Short { wanted, left, .. } }) => {
                    assert_eq!((offset, left), (start as u64, (cut - start) as u64), "{format:?} {cut}");
                    assert!(wanted > left);
                }
                Some(other) => panic!("{format:?} {cut}: {other:?}"),
            }
        }
    }
}

#[test]
fn statistics_are_a_block_that_readers_pass_over() {
    let statistics = Statistics { start: 1, end: 2, received: Some(3), ..Statistics::default() };
    assert!(Format::Pcap.statistics(&statistics).is_empty());
    let (mut file, expected, _) = written(Format::Pcapng, &[(5, vec![1; 5], 0)]);
    let start = file.len();
    file.extend(Format::Pcapng.statistics(&statistics));
    assert_eq!(Format::Pcapng.record_len_at(&file[start..]), Some(file.len() - start));
    assert_eq!(read_whole(&file), expected);
}

#[test]
fn comments_are_behind_packets_that_readers_read_as_ever() {
    let mut file = Format::Pcapng.file_header(&Interface::named("eth1"));
    let comment = Comment::new("flood");
    let mut expected = Vec::new();
    for len in 0..9_u8 {
        let (start, packet) = (file.len(), vec![len; usize::from(len)]);
        comment.write_record(7, &packet, 99, |piece| file.extend(piece));
        assert_eq!(file.len() - start, comment.record_len(len.into()));
        assert_eq!(Format::Pcapng.record_len_at(&file[start..]), Some(file.len() - start));
        // Code and length, the text and its padding, no more options, the block's length.
        assert_eq!(file[file.len() - 20..][..16], *b"\x01\0\x05\0flood\0\0\0\0\0\0\0");
        expected.push(owned(7, 1, 99, &packet));
    }
    assert_eq!(read_whole(&file), expected);
}

proptest! {
    #[test]
    fn what_is_written_is_read(format in a_format(), packets in prop::collection::vec(a_packet(), 0..20)) {
        let (file, expected, _) = written(format, &packets);
        prop_assert_eq!(read_whole(&file), expected);
    }

    /// Whatever is in a file, reading it ends, and names a byte that the file has, or its end.
    #[test]
    fn nonsense_is_survived(
        format in a_format(),
        packets in prop::collection::vec(a_packet(), 0..8),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let (mut file, ..) = written(format, &packets);
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(cut.index(file.len()) + 1);
        let (packets, error) = read(&file);
        prop_assert!(packets.iter().map(|packet| packet.bytes.len()).sum::<usize>() <= file.len());
        if let Some(error) = error {
            prop_assert!(error.offset() <= file.len() as u64, "{}", error);
        }
    }

    #[test]
    fn bytes_that_are_no_file_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), big: bool) {
        let (packets, _) = read(&[section(big), interface(big, 1, 0, &[]), bytes].concat());
        prop_assert!(packets.len() < 20);
    }
}
