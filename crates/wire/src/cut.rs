//! Cutting a super-segment: which headers its pieces have.
//!
//! A super-segment is one TCP segment or UDP datagram that stands for many: all pieces have its headers, with their own
//! lengths, numbers, flags and checksums. Here are the headers; who moves the payload knows about memory.

use std::ops::Range;

use zerocopy::FromBytes;

use crate::checksum::Sum;
use crate::{
    IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header, Protocol, TcpFlags, TcpHeader, UDP_HEADER, UdpHeader,
};

/// Bytes of all headers together at most: Ethernet with two tags, IPv4 with all options, which is longer than IPv6, and
/// TCP with all of its own.
pub const HEADERS: usize = 22 + 60 + 60;

/// What is to be cut.
#[derive(Clone, Copy, Debug)]
pub struct Super<'a> {
    /// The packet's first bytes: all its headers.
    pub headers: &'a [u8],
    /// Where the IP header begins.
    pub network: usize,
    /// Where the TCP or UDP header begins.
    pub transport: usize,
    /// Bytes of the whole packet.
    pub length: usize,
    /// Bytes of payload in each piece but the last.
    pub size: usize,
    /// Whether TCP's flag CWR is each piece's, as a bit of AccECN's counter (RFC 9768), and not the first one's alone (RFC
    /// 3168, 6.1.2).
    pub cwr_on_each: bool,
}

/// A super-segment that can be cut.
#[derive(Clone, Debug)]
pub struct Cutter<'a> {
    of: Super<'a>,
    tcp: bool,
    /// Bytes of all headers.
    front: usize,
}

/// One piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its headers; the first `front` bytes count. The checksum is that of the pseudo-header alone.
    pub headers: [u8; HEADERS],
    /// Bytes of headers.
    pub front: usize,
    /// Which bytes of the packet are its payload.
    pub payload: Range<usize>,
}

impl<'a> Cutter<'a> {
    /// Looks at the headers; `None` when they are not those of TCP or UDP over IP without extension headers, or
    /// contradict the packet.
    pub fn new(of: Super<'a>) -> Option<Self> {
        let network = of.headers.get(of.network..)?;
        let (protocol, start, end) = match network.first()? >> 4 {
            4 => {
                let (ip, _) = Ipv4Header::ref_from_prefix(network).ok()?;
                (ip.protocol, ip.header_length(), usize::from(ip.total_length.get()))
            }
            6 => {
                let (ip, _) = Ipv6Header::ref_from_prefix(network).ok()?;
                (ip.next_header, IPV6_HEADER, IPV6_HEADER + usize::from(ip.payload_length.get()))
            }
            _ => return None,
        };
        let transport = of.headers.get(of.transport..)?;
        let (tcp, header) = match Protocol(protocol) {
            Protocol::TCP => (true, TcpHeader::parse(transport)?.header_length()),
            Protocol::UDP => (false, UdpHeader::ref_from_prefix(transport).map(|_| UDP_HEADER).ok()?),
            _ => return None,
        };
        let front = of.transport + header;
        // What the IP header leaves out would be padding, which no super-segment has.
        let right = start >= IPV4_HEADER
            && of.network + start == of.transport
            && of.network + end == of.length
            && front <= of.headers.len().min(HEADERS)
            && front <= of.length
            && of.size > 0;
        right.then_some(Self { of, tcp, front })
    }

    /// How many pieces there are: one at least.
    pub fn pieces(&self) -> usize {
        (self.of.length - self.front).div_ceil(self.of.size).max(1)
    }

    /// Where the checksum's sum begins, and how much later its place is.
    pub fn checksum(&self) -> (usize, usize) {
        let offset = if self.tcp { usize::from(crate::TCP_CHECKSUM_OFFSET) } else { 6 };
        (self.of.transport, offset)
    }

    /// A piece, by its number from 0 on.
    pub fn piece(&self, number: usize) -> Piece {
        let start = self.front + number * self.of.size;
        let payload = start.min(self.of.length)..(start + self.of.size).min(self.of.length);
        let mut headers = [0; HEADERS];
        headers[..self.front].copy_from_slice(&self.of.headers[..self.front]);
        let (link, transport) = headers.split_at_mut(self.of.transport);
        let transport = &mut transport[..self.front - self.of.transport];
        let length = transport.len() + payload.len();
        let pseudo = network_header(&mut link[self.of.network..], length, number, self.tcp);
        if self.tcp {
            let has_cwr = number == 0 || self.of.cwr_on_each;
            tcp_header(transport, number * self.of.size, has_cwr, number + 1 == self.pieces());
        } else if let Ok((udp, _)) = UdpHeader::mut_from_prefix(transport) {
            udp.length = u16::try_from(length).unwrap_or(u16::MAX).into();
        }
        let (_, offset) = self.checksum();
        transport[offset..offset + 2].copy_from_slice(&pseudo.partial().to_be_bytes());
        Piece { headers, front: self.front, payload }
    }
}

/// Sets lengths and numbers, and returns the sum of the pseudo-header.
fn network_header(bytes: &mut [u8], length: usize, number: usize, tcp: bool) -> Sum {
    let protocol = if tcp { Protocol::TCP } else { Protocol::UDP };
    let whole = u32::try_from(length).unwrap_or(u32::MAX);
    let short = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
    if bytes[0] >> 4 == 6 {
        let Ok((ip, _)) = Ipv6Header::mut_from_prefix(bytes) else { return Sum::new() };
        ip.payload_length = short(length).into();
        return Sum::pseudo(&ip.source().octets(), &ip.destination().octets(), protocol.0, whole);
    }
    let header = bytes.len();
    let Ok((ip, _)) = Ipv4Header::mut_from_prefix(bytes) else { return Sum::new() };
    ip.total_length = short(header + length).into();
    // Each is a datagram of its own (RFC 6864).
    ip.identification = ip.identification.get().wrapping_add(short(number)).into();
    ip.checksum = 0.into();
    let pseudo = Sum::pseudo(&ip.source().octets(), &ip.destination().octets(), protocol.0, whole);
    let checksum = Sum::new().bytes(bytes).checksum();
    if let Ok((ip, _)) = Ipv4Header::mut_from_prefix(bytes) {
        ip.checksum = checksum.into();
    }
    pseudo
}

fn tcp_header(bytes: &mut [u8], offset: usize, has_cwr: bool, last: bool) {
    let Ok((tcp, _)) = TcpHeader::mut_from_prefix(bytes) else { return };
    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
    let sequence = tcp.sequence.get().wrapping_add(offset as u32);
    tcp.sequence = sequence.into();
    // What ends the data stands in the last one.
    if !last {
        tcp.flags = TcpFlags(tcp.flags.0 & !(TcpFlags::FIN.0 | TcpFlags::PSH.0));
    }
    if !has_cwr {
        tcp.flags = TcpFlags(tcp.flags.0 & !TcpFlags::CWR.0);
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn tcp4(payload: usize) -> Vec<u8> {
        let flags = TcpFlags::ACK.with(TcpFlags::FIN).with(TcpFlags::PSH).with(TcpFlags::CWR);
        let tcp = TcpHeader::new((1, 2), 1000, 5, flags, 100, 12);
        let length = u16::try_from(32 + payload).unwrap();
        let ip = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, length);
        [&[7; 14][..], ip.as_bytes(), tcp.as_bytes(), &[1; 12], &vec![9; payload]].concat()
    }

    fn of(bytes: &[u8], size: usize) -> Super<'_> {
        Super {
            headers: &bytes[..bytes.len().min(90)],
            network: 14,
            transport: 34,
            length: bytes.len(),
            size,
            cwr_on_each: false,
        }
    }

    #[test]
    fn pieces_have_lengths_numbers_and_flags_of_their_own() {
        let bytes = tcp4(2500);
        let cutter = Cutter::new(of(&bytes, 1000)).unwrap();
        assert_eq!((cutter.pieces(), cutter.checksum()), (3, (34, 16)));
        for (number, len, flags) in [
            (0, 1000, TcpFlags::ACK.with(TcpFlags::CWR)),
            (1, 1000, TcpFlags::ACK),
            (2, 500, TcpFlags::ACK.with(TcpFlags::FIN).with(TcpFlags::PSH)),
        ] {
            let piece = cutter.piece(number);
            assert_eq!((piece.front, piece.payload.len()), (66, len));
            assert_eq!(piece.payload.start, 66 + number * 1000);
            let whole = [&piece.headers[..66], &bytes[piece.payload.clone()]].concat();
            let ip = Ipv4Header::parse(&whole[14..], whole.len() - 14).unwrap();
            assert_eq!(usize::from(ip.total_length.get()), 52 + len);
            let tcp = TcpHeader::parse(&whole[34..]).unwrap();
            assert_eq!(
                (tcp.sequence.get(), tcp.flags),
                (1000 + u32::try_from(number).unwrap() * 1000, flags)
            );
            let pseudo = Sum::pseudo(&[10, 0, 0, 1], &[10, 0, 0, 2], 6, u32::try_from(32 + len).unwrap());
            assert_eq!(tcp.checksum.get(), pseudo.partial());
        }
    }

    #[test]
    fn a_bit_of_a_counter_is_on_each_piece() {
        let bytes = tcp4(2500);
        for (cwr_on_each, expected) in [(false, [true, false, false]), (true, [true; 3])] {
            let cutter = Cutter::new(Super { cwr_on_each, ..of(&bytes, 1000) }).unwrap();
            let pieces = [0, 1, 2].map(|number| cutter.piece(number));
            let has =
                |piece: &Piece| TcpHeader::parse(&piece.headers[34..]).unwrap().flags.has(TcpFlags::CWR);
            assert_eq!(pieces.each_ref().map(has), expected);
        }
    }

    #[test]
    fn datagrams_are_cut_over_ipv6() {
        let udp = UdpHeader {
            source_port: 1.into(),
            destination_port: 2.into(),
            length: 1508.into(),
            checksum: 0.into(),
        };
        let (from, to) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let ip = Ipv6Header::new(from, to, 17, 1508);
        let bytes = [ip.as_bytes(), udp.as_bytes(), &[3; 1500]].concat();
        let of = Super { network: 0, transport: 40, headers: &bytes, ..of(&bytes, 1400) };
        let cutter = Cutter::new(of).unwrap();
        let lengths: Vec<_> = (0..cutter.pieces())
            .map(|i| {
                let piece = cutter.piece(i);
                let udp = UdpHeader::ref_from_prefix(&piece.headers[40..]).unwrap().0;
                let ip = Ipv6Header::ref_from_prefix(&piece.headers).unwrap().0;
                assert_eq!(ip.payload_length, udp.length);
                (usize::from(udp.length.get()), piece.payload.len())
            })
            .collect();
        assert_eq!(lengths, [(1408, 1400), (108, 100)]);
    }

    #[test]
    fn what_contradicts_itself_is_not_cut() {
        let bytes = tcp4(100);
        let good = of(&bytes, 50);
        assert!(Cutter::new(good).is_some());
        assert!(Cutter::new(Super { transport: 38, ..good }).is_none());
        assert!(Cutter::new(Super { network: 0, ..good }).is_none());
        assert!(Cutter::new(Super { length: 120, ..good }).is_none());
        assert!(Cutter::new(Super { size: 0, ..good }).is_none());
        assert!(Cutter::new(Super { headers: &bytes[..60], ..good }).is_none());
        let mut icmp = bytes.clone();
        icmp[23] = 1;
        assert!(Cutter::new(of(&icmp, 50)).is_none());
        assert_eq!(Cutter::new(of(&tcp4(0), 50)).unwrap().pieces(), 1);
    }
}
