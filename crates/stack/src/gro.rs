//! Putting together, before TCP sees them, segments of one flow that follow each other in a batch (GRO).
//!
//! What TCP does for a segment it then does for many. A segment joins the one before it in its flow only if one
//! longer segment says exactly the same: what is put together can be cut again into what came. No byte is copied:
//! the payload stays in its frames, which become one packet.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use arrayvec::ArrayVec;
use bywash_frame::{BATCH, Batch, Checksum, MAX_FRAMES, Packet, Pool, Segmentation, SegmentationKind};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{
    DONT_FRAGMENT, ETHERNET_HEADER, EtherType, IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header, Protocol,
    STAMPS, TCP_HEADER, TcpFlags, TcpHeader, VlanTag,
};

use crate::Address;
use crate::packet::sum;

/// Flows of a batch that are looked at: one that comes later starts anew when there are more.
const FLOWS: usize = 8;

/// Packets shorter than this are left alone: requests and acknowledgments, in which there is nothing to gain. To a flow
/// they are like a gap.
const SHORT: usize = 256;

/// Bytes that hold the headers of all that is looked at: of Ethernet with a tag, of IPv6 and of TCP with timestamps. No packet is shorter.
const HEADERS: usize = 96;
const _: () = assert!(TAGGED_HEADER + IPV6_HEADER + TCP_HEADER + STAMPS <= HEADERS && HEADERS <= SHORT);

/// Bytes of an Ethernet header with a VLAN tag (IEEE 802.1Q, 9.3).
const TAGGED_HEADER: usize = ETHERNET_HEADER + size_of::<VlanTag>();

/// What a segment says that matters here.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Where the IP and the TCP header begin, and where the payload does.
    network: usize,
    transport: usize,
    payload: usize,
    length: usize,
    sequence: u32,
    flags: TcpFlags,
    flow: FlowKey,
    says: Says,
}

/// Addresses, ports and tag, in words that are quickly compared.
#[derive(Clone, Copy, Debug)]
struct FlowKey {
    addresses: [u128; 2],
    /// Ports, and above them the tag: one beside the packet plus one, or in its bytes with the type that follows. Which it is, the
    /// link header says.
    ports: u64,
    v4: bool,
}

/// What must be the same in all segments that are put together: the link header; of IP the class, the time to live and
/// the don't-fragment bit, without which numbers would count; of TCP acknowledgment, window, urgent pointer, timestamps.
#[derive(Clone, Copy, Debug)]
struct Says([u64; 6]);

impl FlowKey {
    #[inline]
    fn is(&self, other: &Self) -> bool {
        let [a, b] = self.addresses;
        let [c, d] = other.addresses;
        self.ports == other.ports && (a ^ c) | (b ^ d) == 0 && self.v4 == other.v4
    }

    fn destination(&self) -> Address {
        let [_, to] = self.addresses;
        match u32::try_from(to) {
            Ok(to) if self.v4 => Ipv4Addr::from_bits(to).into(),
            _ => Ipv6Addr::from_bits(to).into(),
        }
    }
}

impl Says {
    #[inline]
    fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl Seen {
    /// The number after its last byte.
    #[inline]
    fn end(&self) -> u32 {
        self.sequence.wrapping_add(u32::try_from(self.length).unwrap_or(u32::MAX))
    }

    /// The sum of its pseudo-header.
    #[inline]
    fn pseudo(&self) -> Sum {
        // No longer than a frame.
        let length = u16::try_from(self.payload - self.transport + self.length).unwrap_or(u16::MAX);
        let start = Sum::new().word(Protocol::TCP.0.into()).word(length);
        // What an IPv4 address is filled up with is zero, and adds nothing.
        self.flow.addresses.iter().fold(start, |sum, address| sum.wide(*address))
    }
}

/// The last segment of a flow, which the next may join.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// Which packet of the batch it is in.
    at: usize,
    first: Seen,
    next: u32,
    size: usize,
    pieces: usize,
    closed: bool,
    /// The bits of its headers that are the same in all that follow.
    same: [u8; HEADERS],
    /// The sum of the pseudo-header of a segment as long as the first.
    pseudo: Sum,
}

impl Open {
    fn new(at: usize, first: Seen, pseudo: Sum) -> Self {
        let Seen { network, transport, payload, length, .. } = first;
        let mut same = [0; HEADERS];
        same[..payload].fill(0xff);
        if first.flow.v4 {
            // The number, which nothing hangs on, and the checksum, which is looked at by itself.
            same[network + 4..network + 6].fill(0);
            same[network + 10..network + 12].fill(0);
        }
        // The sequence number, PSH and the checksum.
        same[transport + 4..transport + 8].fill(0);
        same[transport + 13] = !TcpFlags::PSH.0;
        same[transport + 16..transport + 18].fill(0);
        Self { at, first, next: first.end(), size: length, pieces: 1, closed: false, same, pseudo }
    }

    /// Whether a segment is as long as the first one, is the next and says nothing new. Most are told by comparing bytes: what
    /// they say need not be taken apart.
    #[inline]
    fn goes_on_with(&self, first: &Packet, packet: &Packet) -> bool {
        let Seen { network, transport, payload, .. } = self.first;
        let (ours, theirs) = (first.head().first_chunk::<HEADERS>(), packet.head().first_chunk::<HEADERS>());
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return false };
        if self.closed
            || packet.head().len() != payload + self.size
            || packet.frames() > 1
            || packet.offload.segmentation().is_some()
            || packet.offload.vlan() != first.offload.vlan()
            || !self.has_room_for(self.size)
        {
            return false;
        }
        let bytes = ours.iter().zip(theirs).zip(&self.same);
        let differ = bytes.fold(0, |differ, ((a, b), same)| differ | (a ^ b) & same);
        let sequence = theirs[transport + 4..].first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let sealed = !self.first.flow.v4
            || Ipv4Header::ref_from_prefix(&theirs[network..]).is_ok_and(|(ip, _)| ip.is_sealed());
        differ == 0 && sequence == Some(self.next) && sealed
    }

    /// Whether a packet can hold so many bytes more.
    #[inline]
    fn has_room_for(&self, length: usize) -> bool {
        let header = self.first.payload - self.first.transport;
        self.pieces < MAX_FRAMES - 1
            && header + self.pieces * self.size + length + IPV6_HEADER <= usize::from(u16::MAX)
    }
}

/// Puts together what can be, in a batch whose packets begin with an Ethernet header (`ethernet`) or with an IP header: of what goes
/// to the addresses that are `ours`.
#[inline]
pub(crate) fn coalesce(batch: &mut Batch, ethernet: bool, ours: impl Fn(Address) -> bool, pool: &mut Pool) {
    if batch.iter().filter(|packet| packet.len() >= SHORT).count() < 2 {
        return;
    }
    let mut out: ArrayVec<Packet, BATCH> = ArrayVec::new();
    let mut flows: ArrayVec<Open, FLOWS> = ArrayVec::new();
    // The one that had the last segment, if it is there.
    let mut last = 0;
    batch.take_each(|mut packet, _| {
        if let Some(open) = flows.get_mut(last)
            && open.goes_on_with(&out[open.at], &packet)
            && is_right(&packet, open.first.transport, open.pseudo)
        {
            let pushed = packet.head()[open.first.transport + 13] & TcpFlags::PSH.0 != 0;
            return join(open, &mut out, packet, (open.size, pushed), pool);
        }
        // Looked at where it was put: moving it costs as much as reading the headers.
        let seen = &look(&packet, ethernet);
        let Some(seen) = seen else { return out.push(packet) };
        let found = flows.iter().position(|open| open.first.flow.is(&seen.flow));
        if let Some(i) = found {
            if fits(&flows[i], seen) && is_right(&packet, seen.transport, seen.pseudo()) {
                last = i;
                let pushed = seen.flags.has(TcpFlags::PSH);
                return join(&mut flows[i], &mut out, packet, (seen.length, pushed), pool);
            }
            let open = flows.remove(i);
            finish(&mut out[open.at], &open);
        }
        // One without payload, or that begins or ends something, is taken as it is.
        let pseudo = seen.pseudo();
        if seen.length > 0
            && seen.flags == TcpFlags::ACK
            && ours(seen.flow.destination())
            && is_right(&packet, seen.transport, pseudo)
        {
            packet.offload.set_checksum(Checksum::Valid);
            if flows.is_full() {
                let oldest = flows.remove(0);
                finish(&mut out[oldest.at], &oldest);
            }
            last = flows.len();
            flows.push(Open::new(out.len(), *seen, pseudo));
        }
        out.push(packet);
    });
    for open in &flows {
        finish(&mut out[open.at], open);
    }
    batch.extend(out.into_iter());
}

/// Reads the headers of a TCP segment that could be part of a longer one: no options or extension headers of IP, no
/// piece, no padding, nothing put together already.
#[inline]
fn look(packet: &Packet, ethernet: bool) -> Option<Seen> {
    if packet.len() < SHORT || packet.frames() > 1 || packet.offload.segmentation().is_some() {
        return None;
    }
    let head = packet.head();
    let mut link = [0; 2];
    let mut network = 0;
    let mut tag = packet.offload.vlan().map_or(0, |tag| u64::from(tag) + 1);
    if ethernet {
        let header = head.first_chunk::<ETHERNET_HEADER>()?;
        let kind = EtherType(u16::from_be_bytes([header[12], header[13]]));
        network = ETHERNET_HEADER;
        match kind {
            EtherType::IPV4 | EtherType::IPV6 => {}
            EtherType::VLAN if tag == 0 => {
                let inner: &[u8; 4] = head[ETHERNET_HEADER..].first_chunk()?;
                let kind = EtherType(u16::from_be_bytes([inner[2], inner[3]]));
                matches!(kind, EtherType::IPV4 | EtherType::IPV6).then_some(())?;
                tag = u32::from_be_bytes(*inner).into();
                network = TAGGED_HEADER;
            }
            _ => return None,
        }
        // The two words share two bytes.
        link = [word(header), word(&header[6..])];
    }
    let bytes = head.get(network..)?;
    let (v4, addresses, ip, header, length) = if bytes.first()? >> 4 == 4 {
        let (ip, _) = Ipv4Header::ref_from_prefix(bytes).ok()?;
        let plain = ip.has_no_options() && ip.protocol == Protocol::TCP.0 && ip.is_sealed();
        (plain && ip.fragment.get() == DONT_FRAGMENT).then_some(())?;
        let addresses = [ip.source().to_bits().into(), ip.destination().to_bits().into()];
        let says = u64::from(ip.traffic_class) << 8 | u64::from(ip.time_to_live);
        (true, addresses, says, IPV4_HEADER, usize::from(ip.total_length.get()))
    } else {
        let ip = Ipv6Header::parse(bytes, bytes.len())?;
        (ip.next_header == Protocol::TCP.0).then_some(())?;
        let addresses = [ip.source().to_bits(), ip.destination().to_bits()];
        let says = u64::from(u32::from_be_bytes(*bytes.first_chunk()?)) << 8 | u64::from(ip.hop_limit);
        (false, addresses, says, IPV6_HEADER, IPV6_HEADER + usize::from(ip.payload_length.get()))
    };
    let transport = network + header;
    let tcp = (network + length == head.len()).then(|| TcpHeader::parse(head.get(transport..)?))??;
    let payload = transport + tcp.header_length();
    let options = match tcp.header_length() - TCP_HEADER {
        0 => [0, 0],
        // The two words share four bytes. What begins with a filler is not zero.
        STAMPS => [word(&head[payload - STAMPS..]), word(&head[payload - 8..])],
        // Segments with other options are left alone.
        _ => return None,
    };
    let window = u64::from(tcp.window.get()) << 16 | u64::from(tcp.urgent.get());
    let ports = u64::from(tcp.source_port.get()) << 16 | u64::from(tcp.destination_port.get());
    Some(Seen {
        network,
        transport,
        payload,
        length: head.len() - payload,
        sequence: tcp.sequence.get(),
        flags: tcp.flags,
        flow: FlowKey { addresses, ports: tag << 32 | ports, v4 },
        says: Says([
            link[0],
            link[1],
            // The length of the header, and bits that nobody knows yet.
            u64::from(head[transport + 12]) << 48 | ip,
            u64::from(tcp.acknowledgment.get()) << 32 | window,
            options[0],
            options[1],
        ]),
    })
}

/// Eight bytes as one number; zero when there are fewer.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Whether a segment continues what is open and says nothing else that is new.
#[inline]
fn fits(open: &Open, b: &Seen) -> bool {
    let a = &open.first;
    !open.closed
        && b.sequence == open.next
        && b.length > 0
        && b.length <= open.size
        && open.has_room_for(b.length)
        && b.flags.without(TcpFlags::PSH) == a.flags
        && a.says.is(&b.says)
}

/// Whether a segment's checksum is right: what is put together counts as summed.
#[inline]
fn is_right(packet: &Packet, transport: usize, pseudo: Sum) -> bool {
    match packet.offload.checksum() {
        Checksum::Valid => true,
        Checksum::Unknown => sum(pseudo, packet, transport..packet.len()).checksum() == 0,
        Checksum::Bad | Checksum::Partial { .. } => false,
    }
}

/// Appends a segment's payload to what is open. What says the same has headers as long.
#[inline(always)]
fn join(
    open: &mut Open,
    out: &mut [Packet],
    packet: Packet,
    (length, pushed): (usize, bool),
    pool: &mut Pool,
) {
    let first = &mut out[open.at];
    if let Err(packet) = first.append_rest(packet, open.first.payload, pool) {
        return pool.give_packet(packet);
    }
    open.pieces += 1;
    open.next = open.next.wrapping_add(u32::try_from(length).unwrap_or(u32::MAX));
    // A shorter one is the last, and so is one that is to be pushed to the program.
    open.closed |= length < open.size || pushed;
    if pushed && let Ok((tcp, _)) = TcpHeader::mut_from_prefix(&mut first.head_mut()[open.first.transport..])
    {
        tcp.flags = tcp.flags.with(TcpFlags::PSH);
    }
}

/// Makes the headers those of the whole.
fn finish(packet: &mut Packet, open: &Open) {
    if open.pieces == 1 {
        return;
    }
    let length = packet.len() - open.first.network;
    let (network, v4) = (open.first.network, open.first.flow.v4);
    let bytes = &mut packet.head_mut()[network..];
    if v4 {
        if let Ok((ip, _)) = Ipv4Header::mut_from_prefix(bytes) {
            ip.total_length = u16::try_from(length).unwrap_or(u16::MAX).into();
            ip.seal();
        }
    } else if let Ok((ip, _)) = Ipv6Header::mut_from_prefix(bytes) {
        ip.payload_length = u16::try_from(length - IPV6_HEADER).unwrap_or(u16::MAX).into();
    }
    let kind = if v4 { SegmentationKind::Tcp4 } else { SegmentationKind::Tcp6 };
    let size = u16::try_from(open.size).ok().and_then(NonZeroU16::new);
    packet.offload.set_segmentation(size.map(|size| Segmentation { kind, size }));
    packet.offload.set_checksum(Checksum::Valid);
}

#[cfg(test)]
mod tests {
    use bywash_frame::Arena;
    use bywash_wire::zerocopy::IntoBytes;

    use super::*;

    /// A segment with a right checksum, and perhaps a change to its bytes afterwards.
    fn segment(v4: bool, port: u16, sequence: u32, flags: TcpFlags, payload: usize) -> Vec<u8> {
        let mut tcp = TcpHeader::new((port, 80), sequence, 77, flags, 500, 0);
        let data: Vec<u8> = (0..payload).map(|i| (sequence as usize + i).to_le_bytes()[0]).collect();
        let length = u16::try_from(20 + payload).unwrap();
        let (a, b) = ("fd00::1".parse::<Ipv6Addr>().unwrap(), "fd00::2".parse().unwrap());
        let start = if v4 {
            Sum::pseudo(&[10, 0, 0, 1], &[10, 0, 0, 2], 6, length.into())
        } else {
            Sum::pseudo(&a.octets(), &Ipv6Addr::octets(&b), 6, length.into())
        };
        tcp.checksum = start.bytes(tcp.as_bytes()).bytes(&data).checksum().into();
        let ip4 = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, length);
        let ip6 = Ipv6Header::new(a, b, 6, length);
        let ip = if v4 { ip4.as_bytes() } else { ip6.as_bytes() };
        [ip, tcp.as_bytes(), &data].concat()
    }

    /// What a batch of packets becomes: lengths, with the size of the pieces.
    fn merged(packets: &[Vec<u8>]) -> Vec<(usize, u16)> {
        merged_if(packets, |bytes| {
            let right = match bytes[0] >> 4 {
                4 => Ipv4Header::parse(bytes, bytes.len()).is_ok(),
                _ => Ipv6Header::parse(bytes, bytes.len()).is_some(),
            };
            assert!(right, "{bytes:x?}");
        })
    }

    /// The same; each of what comes out is looked at.
    fn merged_if(packets: &[Vec<u8>], look: impl Fn(&[u8])) -> Vec<(usize, u16)> {
        let mut pool = Arena::new(vec![0; 1 << 20]).unwrap().pool(200).unwrap();
        let mut batch = Batch::new();
        for bytes in packets {
            let mut packet = Packet::new(pool.take().unwrap());
            packet.extend_from_slice(bytes).unwrap();
            batch.push(packet);
        }
        coalesce(&mut batch, false, |_| true, &mut pool);
        let seen =
            batch.iter().map(|p| (p.len(), p.offload.segmentation().map_or(0, |s| s.size.get()))).collect();
        for packet in batch.iter() {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(&mut bytes);
            look(&bytes);
        }
        pool.give_batch(&mut batch);
        assert_eq!(pool.free(), 200, "frames are lost");
        seen
    }

    const ACK: TcpFlags = TcpFlags::ACK;

    #[test]
    fn what_follows_is_put_together_flow_by_flow() {
        for v4 in [true, false] {
            let h = if v4 { 40 } else { 60 };
            let s = |port, sequence, payload| segment(v4, port, sequence, ACK, payload);
            assert_eq!(merged(&[s(1, 0, 1000), s(1, 1000, 1000), s(1, 2000, 400)]), [(h + 2400, 1000)]);
            let two = [s(1, 0, 1000), s(2, 0, 500), s(1, 1000, 1000), s(2, 500, 500), s(2, 1000, 500)];
            assert_eq!(merged(&two), [(h + 2000, 1000), (h + 1500, 500)]);
            let pushed =
                [s(1, 0, 1000), segment(v4, 1, 1000, ACK.with(TcpFlags::PSH), 1000), s(1, 2000, 1000)];
            assert_eq!(merged(&pushed), [(h + 2000, 1000), (h + 1000, 0)]);
            let many: Vec<_> = (0..60).map(|i| s(1, i * 1400, 1400)).collect();
            assert_eq!(merged(&many), [(h + 33 * 1400, 1400), (h + 27 * 1400, 1400)]);
        }
    }

    #[test]
    fn what_says_something_else_stays_alone() {
        let s = |sequence, payload| segment(true, 1, sequence, ACK, payload);
        let alone = |second: Vec<u8>| {
            let lengths = merged(&[s(0, 1000), second]);
            assert_eq!(lengths.iter().map(|(_, size)| *size).collect::<Vec<_>>(), [0, 0]);
        };
        alone(s(1001, 1000));
        alone(s(0, 1000));
        alone(s(1000, 1001));
        alone(s(1000, 0));
        alone(s(1000, 200));
        alone(segment(true, 1, 1000, ACK.with(TcpFlags::FIN), 1000));
        alone(segment(true, 1, 1000, ACK.with(TcpFlags::ECE), 1000));
        let changed = |at: usize, by: u8| {
            let mut bytes = s(1000, 1000);
            bytes[at] ^= by;
            if let Ok((ip, _)) = Ipv4Header::mut_from_prefix(&mut bytes) {
                ip.seal();
            }
            bytes
        };
        // Class, don't-fragment, time to live; acknowledgment, window; a payload that does not fit its checksum.
        for (at, by) in [(1, 3), (6, 0x40), (8, 1), (28, 1), (34, 1), (500, 1)] {
            alone(changed(at, by));
        }
        let padded = [s(1000, 1000), vec![0; 6]].concat();
        alone(padded);
    }

    /// A segment of a flow in an Ethernet frame: the tag beside it, and what stands behind the addresses in its bytes.
    fn frame(sequence: u32, beside: Option<u16>, inside: &[u8]) -> (Option<u16>, Vec<u8>) {
        let ip = segment(inside.ends_with(&[8, 0]), 1, sequence, ACK, 1000);
        (beside, [&[2; 12], inside, &ip].concat())
    }

    #[test]
    fn a_tag_is_stepped_over_and_keeps_links_apart() {
        let sizes = |frames: &[(Option<u16>, Vec<u8>)]| {
            let mut pool = Arena::new(vec![0; 1 << 20]).unwrap().pool(20).unwrap();
            let mut batch = Batch::new();
            for (tag, bytes) in frames {
                let mut packet = Packet::new(pool.take().unwrap());
                packet.extend_from_slice(bytes).unwrap();
                packet.offload.set_vlan(*tag);
                batch.push(packet);
            }
            coalesce(&mut batch, true, |_| true, &mut pool);
            let seen: Vec<_> =
                batch.iter().map(|p| p.offload.segmentation().map_or(0, |s| s.size.get())).collect();
            pool.give_batch(&mut batch);
            seen
        };
        let in_bytes = |tag: u8, kind: [u8; 2]| [0x81, 0, 0, tag, kind[0], kind[1]];
        let (v4, v6) = ([8, 0], [0x86, 0xdd]);
        for kind in [v4, v6] {
            let (seven, eight) = (in_bytes(7, kind), in_bytes(8, kind));
            let of = |sequence, inside: &[u8]| frame(sequence, None, inside);
            assert_eq!(sizes(&[of(0, &seven), of(1000, &seven), of(2000, &seven)]), [1000]);
            assert_eq!(sizes(&[of(0, &seven), of(1000, &eight)]), [0, 0]);
            // Another flow between them, and one in the same batch whose tag is beside it.
            let mixed = [
                of(0, &seven),
                of(0, &eight),
                of(1000, &seven),
                frame(2000, Some(7), &kind),
                of(1000, &eight),
            ];
            assert_eq!(sizes(&mixed), [1000, 1000, 0]);
            let mut urgent = seven;
            urgent[2] = 0x20;
            assert_eq!(sizes(&[of(0, &seven), of(1000, &urgent)]), [0, 0], "a priority");
            assert_eq!(sizes(&[of(0, &seven), of(1000, &kind)]), [0, 0], "none");
            let two = [frame(0, Some(7), &seven), frame(1000, Some(7), &seven)];
            assert_eq!(sizes(&two), [0, 0], "two");
        }
        // What the type says and what follows are two things.
        let mut wrong = frame(1000, None, &in_bytes(7, v4));
        wrong.1[16..18].copy_from_slice(&v6);
        assert_eq!(sizes(&[frame(0, None, &in_bytes(7, v4)), wrong]), [0, 0]);
    }

    /// Both checksums are right again.
    fn with_bit_turned(v4: bool, bit: usize) -> Vec<u8> {
        let mut bytes = segment(v4, 1, 1000, ACK, 1000);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if v4 && let Ok((ip, _)) = Ipv4Header::mut_from_prefix(&mut bytes) {
            ip.seal();
        }
        let (ip, addresses) = if v4 { (IPV4_HEADER, 12..20) } else { (IPV6_HEADER, 8..40) };
        bytes[ip + 16..ip + 18].fill(0);
        let (source, destination) = bytes[addresses.clone()].split_at(addresses.len() / 2);
        let start = Sum::pseudo(source, destination, 6, 1020);
        let checksum = start.bytes(&bytes[ip..]).checksum();
        bytes[ip + 16..ip + 18].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    #[test]
    fn every_bit_of_the_headers_counts_but_those_of_number_checksums_and_psh() {
        for v4 in [true, false] {
            let ip = if v4 { IPV4_HEADER } else { IPV6_HEADER };
            for bit in 0..(ip + TCP_HEADER) * 8 {
                let sizes: Vec<_> =
                    merged_if(&[segment(v4, 1, 0, ACK, 1000), with_bit_turned(v4, bit)], |_| {})
                        .iter()
                        .map(|(_, size)| *size)
                        .collect();
                let joins = match bit / 8 {
                    4 | 5 | 10 | 11 if v4 => true,
                    at if at == ip + 13 => bit % 8 == 3,
                    at => (ip + 16..ip + 18).contains(&at),
                };
                let expected: &[u16] = if joins { &[1000] } else { &[0, 0] };
                assert_eq!(
                    sizes,
                    expected,
                    "IPv{}: byte {}, bit {}",
                    if v4 { 4 } else { 6 },
                    bit / 8,
                    bit % 8
                );
            }
        }
    }
}
