//! The packet that is generated: built once, patched for each.
//!
//! The headers and the probe, 60 or 80 bytes, are written each time: two or three cache lines that must be touched
//! anyway. The filler behind them is in the frames already and is left alone. Checksums start from the sum over what
//! never changes and add what does (RFC 1071, RFC 1624), so they are always right.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bywash_wire::checksum::Sum;
use bywash_wire::line::FCS;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{
    ETHERNET_HEADER, EtherType, EthernetHeader, IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header, Mac,
    Protocol, UDP_HEADER, UdpHeader,
};

use crate::probe::{self, PROBE, Probe};

/// Headers and probe over IPv4: just the shortest Ethernet frame.
pub(super) const HEAD4: usize = ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER + PROBE;

/// Headers and probe over IPv6.
pub(super) const HEAD6: usize = ETHERNET_HEADER + IPV6_HEADER + UDP_HEADER + PROBE;

/// Most sources: as many as the last two bytes of an address tell apart.
pub const MOST_SOURCES: u32 = 1 << 16;

/// What the packets look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes of the frame with its FCS, as RFC 2544 counts: 64 is the shortest.
    pub size: usize,
    /// Ethernet destination.
    pub dst_mac: Mac,
    /// Ethernet source; the port's own when `None`.
    pub src_mac: Option<Mac>,
    /// Source address; the last two bytes count up from here.
    pub src_ip: IpAddr,
    /// Destination address.
    pub dst_ip: IpAddr,
    /// Source port; counts up from here, and begins anew after 65535.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// How many sources there are: each packet is the next one's.
    pub sources: u32,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            size: 64,
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src_mac: None,
            src_ip: Ipv4Addr::new(192, 168, 0, 1).into(),
            // The network that RFC 2544 set aside for measurements.
            dst_ip: Ipv4Addr::new(198, 18, 0, 1).into(),
            src_port: 10_000,
            // Discard (RFC 863).
            dst_port: 9,
            sources: 1,
        }
    }
}

impl Frame {
    /// Checks what can be checked before a port is opened.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn check(&self) -> Result<(), String> {
        if self.src_ip.is_ipv4() != self.dst_ip.is_ipv4() {
            return Err(format!(
                "--src-ip {} and --dst-ip {} are of two versions of IP",
                self.src_ip, self.dst_ip
            ));
        }
        let smallest = self.head() + FCS as usize;
        if self.size < smallest {
            let version = if self.src_ip.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(format!(
                "--size {} (with FCS): headers and the probe need {smallest} over {version}; ask for {smallest} or more",
                self.size
            ));
        }
        if !(1..=MOST_SOURCES).contains(&self.sources) {
            return Err(format!("--sources {}: it must be 1 to {MOST_SOURCES}", self.sources));
        }
        if self.src_port == 0 || self.dst_port == 0 {
            return Err("port 0 can't be sent to or from (--src-port, --dst-port)".into());
        }
        Ok(())
    }

    /// Bytes without FCS.
    pub(super) fn len(&self) -> usize {
        self.size - FCS as usize
    }

    fn head(&self) -> usize {
        if self.src_ip.is_ipv4() { HEAD4 } else { HEAD6 }
    }
}

/// What differs from packet to packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    /// Number of the source, counted from 0.
    pub(super) source: u16,
    pub(super) src_port: u16,
    pub(super) probe: Probe,
}

/// A packet of which the varying fields, and both checksums, are 0.
#[derive(Clone, Debug)]
pub(super) struct Template {
    head: Box<[u8]>,
    filler: Box<[u8]>,
    filler_crc: u32,
    /// Last two bytes of the first source address.
    first_source: u16,
    ip_sum: Sum,
    udp_sum: Sum,
}

impl Template {
    /// The packet that `frame` describes, sent from `src_mac`. `frame` must have been checked.
    pub(super) fn new(frame: &Frame, src_mac: Mac) -> Self {
        let head = frame.head();
        let mut filler = vec![0; frame.len() - head];
        let filler_crc = probe::fill(&mut filler);
        let datagram = u16::try_from(UDP_HEADER + PROBE + filler.len()).unwrap_or(u16::MAX);
        let kind = if head == HEAD4 { EtherType::IPV4 } else { EtherType::IPV6 };
        let ethernet = EthernetHeader { destination: frame.dst_mac, source: src_mac, kind: kind.0.into() };
        let udp = UdpHeader {
            source_port: 0.into(),
            destination_port: frame.dst_port.into(),
            length: datagram.into(),
            checksum: 0.into(),
        };
        let mut bytes = ethernet.as_bytes().to_vec();
        let (first_source, ip_sum, addresses) = match (frame.src_ip, frame.dst_ip) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let [a, b, c, d] = src.octets();
                let fixed = Ipv4Addr::new(a, b, 0, 0);
                let mut ip = Ipv4Header::new(fixed, dst, Protocol::UDP.0, datagram);
                ip.checksum = 0.into();
                bytes.extend_from_slice(ip.as_bytes());
                let sum = Sum::pseudo(&fixed.octets(), &dst.octets(), Protocol::UDP.0, datagram.into());
                (u16::from_be_bytes([c, d]), Sum::new().bytes(ip.as_bytes()), sum)
            }
            (src, dst) => {
                let (src, dst) = (as_v6(src), as_v6(dst));
                let [.., low] = src.segments();
                let mut fixed = src.segments();
                fixed[7] = 0;
                let fixed = Ipv6Addr::from(fixed);
                bytes.extend_from_slice(Ipv6Header::new(fixed, dst, Protocol::UDP.0, datagram).as_bytes());
                let sum = Sum::pseudo(&fixed.octets(), &dst.octets(), Protocol::UDP.0, datagram.into());
                (low, Sum::new(), sum)
            }
        };
        bytes.extend_from_slice(udp.as_bytes());
        bytes.resize(head, 0);
        Self {
            head: bytes.into(),
            // As one word, so that an odd filler does not shift what is added later.
            udp_sum: addresses.bytes(udp.as_bytes()).word(Sum::new().bytes(&filler).partial()),
            filler: filler.into(),
            filler_crc,
            first_source,
            ip_sum,
        }
    }

    /// Bytes of the packet, without FCS.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.filler.len()
    }

    /// Whether there is anything behind the headers and the probe.
    pub(super) fn has_filler(&self) -> bool {
        !self.filler.is_empty()
    }

    /// Writes what does not change behind the headers; `packet` is the whole packet.
    #[inline]
    pub(super) fn write_filler(&self, packet: &mut [u8]) {
        if let Some(to) = packet.get_mut(self.head.len()..self.len()) {
            to.copy_from_slice(&self.filler);
        }
    }

    /// Writes headers and probe; `packet` is the whole packet.
    #[inline]
    pub(super) fn write_head(&self, packet: &mut [u8], fields: Fields) {
        if self.head.len() == HEAD4 {
            self.write::<HEAD4>(packet, fields);
        } else {
            self.write::<HEAD6>(packet, fields);
        }
    }

    /// With the length known, so are all offsets, and no bounds are left to be checked.
    #[inline]
    fn write<const HEAD: usize>(&self, packet: &mut [u8], fields: Fields) {
        let udp = HEAD - PROBE - UDP_HEADER;
        let source_low = if HEAD == HEAD4 { ETHERNET_HEADER + 14 } else { ETHERNET_HEADER + 22 };
        let (Some(to), Some(head)) = (packet.first_chunk_mut::<HEAD>(), self.head.first_chunk::<HEAD>())
        else {
            return;
        };
        let source = self.first_source.wrapping_add(fields.source);
        let probe = fields.probe.to_bytes(self.filler_crc);
        let udp_sum = self.udp_sum.word(source).word(fields.src_port).bytes(&probe);
        // A sum of 0 would mean that there is none (RFC 768, RFC 8200 section 8.1).
        let udp_checksum = if udp_sum.checksum() == 0 { 0xffff } else { udp_sum.checksum() };
        *to = *head;
        to[source_low..source_low + 2].copy_from_slice(&source.to_be_bytes());
        if HEAD == HEAD4 {
            let ip_checksum = self.ip_sum.word(source).checksum();
            to[ETHERNET_HEADER + 10..ETHERNET_HEADER + 12].copy_from_slice(&ip_checksum.to_be_bytes());
        }
        to[udp..udp + 2].copy_from_slice(&fields.src_port.to_be_bytes());
        to[udp + 6..udp + 8].copy_from_slice(&udp_checksum.to_be_bytes());
        to[HEAD - PROBE..].copy_from_slice(&probe);
    }
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(frame: &Frame, fields: Fields) -> Vec<u8> {
        frame.check().unwrap();
        let template = Template::new(frame, Mac([2, 0, 0, 0, 0, 1]));
        let mut bytes = vec![0xee; frame.len()];
        template.write_filler(&mut bytes);
        template.write_head(&mut bytes, fields);
        bytes
    }

    fn fields(n: u16) -> Fields {
        let probe =
            Probe { stream: n.rotate_left(3), sequence: u32::from(n) * 65_521, time: u64::from(n) << 31 };
        Fields { source: n, src_port: n | 1, probe }
    }

    #[test]
    fn checksums_are_right_whatever_varies() {
        let v6 = ("fd00::ffff:9".parse().unwrap(), "fd00::2".parse().unwrap());
        for (src_ip, dst_ip) in [(Frame::default().src_ip, Frame::default().dst_ip), v6] {
            for size in [84, 85, 128, 1518] {
                let frame = Frame { size, src_ip, dst_ip, ..Frame::default() };
                for n in (0..=u16::MAX).step_by(251) {
                    let bytes = packet(&frame, fields(n));
                    let ip = &bytes[ETHERNET_HEADER..];
                    let (udp, pseudo) = if src_ip.is_ipv4() {
                        let header = Ipv4Header::parse(ip, ip.len()).unwrap();
                        (&ip[20..], [&header.source().octets()[..], &header.destination().octets()].concat())
                    } else {
                        Ipv6Header::parse(ip, ip.len()).unwrap();
                        (&ip[40..], ip[8..40].to_vec())
                    };
                    let (source, destination) = pseudo.split_at(pseudo.len() / 2);
                    let length = u32::try_from(udp.len()).unwrap();
                    let sum = Sum::pseudo(source, destination, Protocol::UDP.0, length).bytes(udp);
                    assert_eq!(sum.checksum(), 0, "{src_ip} {size} {n}");
                    assert_ne!(udp[6..8], [0, 0]);
                }
            }
        }
    }

    #[test]
    fn a_packet_holds_what_was_asked() {
        let bytes =
            packet(&Frame { dst_port: 5000, ..Frame::default() }, Fields { source: 300, ..fields(7) });
        assert_eq!(bytes.len(), 60);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[26..34], [192, 168, 1, 45, 198, 18, 0, 1]);
        assert_eq!(bytes[34..40], [0, 7, 5000_u16.to_be_bytes()[0], 5000_u16.to_be_bytes()[1], 0, 26]);
        let probe = bytes.last_chunk::<PROBE>().unwrap();
        assert_eq!(Probe::read(probe, || crc32fast::hash(&[])), Ok(fields(7).probe));
    }

    #[test]
    fn what_cannot_be_is_refused_in_one_line() {
        let refused = |frame: Frame, part: &str| {
            let reason = frame.check().unwrap_err();
            assert!(reason.contains(part) && !reason.contains('\n'), "{reason}");
        };
        let good = Frame::default();
        let v6: IpAddr = "fd00::1".parse().unwrap();
        refused(Frame { size: 63, ..good }, "need 64 over IPv4");
        refused(Frame { size: 83, src_ip: v6, dst_ip: v6, ..good }, "need 84 over IPv6");
        refused(Frame { src_ip: v6, ..good }, "two versions");
        refused(Frame { sources: 0, ..good }, "1 to 65536");
        refused(Frame { sources: 65_537, ..good }, "1 to 65536");
        refused(Frame { dst_port: 0, ..good }, "port 0");
    }
}
