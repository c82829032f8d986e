//! Every parser of `wire`, on the same bytes, with a length of the wire that need not be theirs.
#![no_main]

use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{
    ArpPacket, EthernetHeader, FragmentHeader, IcmpHeader, Ipv4Header, Ipv6Header, TcpHeader, TcpOptions,
    UdpHeader, VlanTag, checksum,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((len, bytes)) =
        input.split_last_chunk::<2>().map(|(bytes, len)| (u16::from_be_bytes(*len), bytes))
    else {
        return;
    };
    for len in [usize::from(len), bytes.len()] {
        if let Ok(ip) = Ipv4Header::parse(bytes, len) {
            assert!(ip.as_bytes().len() <= bytes.len());
            text(ip);
        }
        if let Some(ip) = Ipv6Header::parse(bytes, len) {
            text(&(ip.source(), ip.destination(), ip.traffic_class()));
        }
        if let Some(udp) = UdpHeader::parse(bytes, len) {
            text(udp);
        }
    }
    if let Some(tcp) = TcpHeader::parse(bytes) {
        text(tcp);
    }
    text(&TcpOptions::parse(bytes));
    if let Some((arp, operation)) = ArpPacket::parse(bytes) {
        text(&(arp, operation));
    }
    let headers = (
        EthernetHeader::ref_from_prefix(bytes).ok(),
        VlanTag::ref_from_prefix(bytes).ok(),
        IcmpHeader::ref_from_prefix(bytes).ok(),
        FragmentHeader::ref_from_prefix(bytes).ok(),
    );
    text(&headers);
    if let Some((fragment, _)) = headers.3 {
        text(&(fragment.offset(), fragment.more()));
    }
    // However it is cut, at even places, a sum is the same.
    let whole = checksum::Sum::new().bytes(bytes).checksum();
    let (front, back) = bytes.split_at(bytes.len() / 4 * 2);
    assert_eq!(checksum::Sum::new().bytes(front).bytes(back).checksum(), whole);
});

/// What it says of itself: a method that a hostile header gets to panic is found.
fn text(what: &impl std::fmt::Debug) {
    std::hint::black_box(format!("{what:?}"));
}
