//! What a packet asks the NIC to do before it is sent, in the words of a context and of data descriptors.
//!
//! The NIC knows nothing of headers but their lengths: they are found here, in the packet's first frame. What it cannot do
//! software does: a checksum that is neither TCP's nor UDP's, or behind headers of a length that the NIC does not take.

use bywash_frame::{Checksum, Packet, Segmentation, SegmentationKind};
use bywash_hw::ixgbe::desc::{context, tx};

/// Ethernet addresses, and the EtherType that follows.
const ETHERNET: u32 = 14;
/// EtherTypes of VLAN tags, four bytes each.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const TAG: usize = 4;
/// Headers have fewer bytes, all together, where the NIC is to make a checksum or segments (82598 manual, 3.5.3.3).
const HEADERS_END: usize = 512;
/// Where the checksum lies in TCP's header, and in UDP's.
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;
const TCP: u8 = 6;

/// A context: what data descriptors need to know of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context([u32; 4]);

impl Context {
    /// As it lies in memory.
    pub(super) fn words(self) -> [u64; 2] {
        let [a, b, c, d] = self.0.map(u64::from);
        [a | b << 32, c | d << 32]
    }
}

/// How a packet's descriptors are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// What the NIC must know.
    pub(super) context: Option<Context>,
    /// Bits of the third word.
    pub(super) command: u32,
    /// The fourth word.
    pub(super) olinfo: u32,
    /// It is cut into segments, each no longer than the longest packet.
    pub(super) cuts: bool,
}

/// Where headers begin, in bytes from the packet's first.
#[derive(Clone, Copy, Debug)]
struct Layout {
    ip: usize,
    l4: usize,
    ipv4: bool,
}

/// A context that asks for nothing and says where an Ethernet header without tags ends.
pub(super) fn plain() -> Context {
    finished([context::MACLEN.with(ETHERNET), 0, 0, 0])
}

/// What is to be done with a packet of which no piece may be longer than `max_len`; `None` when what it asks for can't be.
/// Its checksum fields are made what the NIC expects.
pub(super) fn plan(packet: &mut Packet, max_len: usize) -> Option<Work> {
    if let Some(segmentation) = packet.offload.segmentation() {
        return cut(packet, segmentation, max_len);
    }
    let mut words = [0; 4];
    let (mut command, mut options) = (0, 0);
    if let Checksum::Partial { start, offset } = packet.offload.checksum() {
        let kind = match offset {
            TCP_CHECKSUM => Some(context::L4T_TCP),
            UDP_CHECKSUM => Some(context::L4T_UDP),
            _ => None,
        };
        match kind.zip(headers_to(packet.head(), usize::from(start))) {
            Some((kind, lengths)) if packet.len() >= usize::from(start) + usize::from(offset) + 2 => {
                words = lengths;
                words[2] |= context::L4T.with(kind);
                options |= tx::TXSM.mask;
            }
            _ => packet.complete_checksum().ok()?,
        }
    }
    if let Some(tag) = packet.offload.vlan() {
        if words[0] == 0 {
            words[0] = context::MACLEN.with(ETHERNET);
        }
        words[0] |= context::VLAN.with(u32::from(tag));
        command |= tx::VLE.mask;
    }
    let context = (words != [0; 4]).then(|| finished(words));
    let olinfo = tx::PAYLEN.with(number(packet.len())?) | options;
    Some(Work { context, command, olinfo, cuts: false })
}

/// A super-segment: the NIC cuts it, and makes lengths and checksums of each piece.
fn cut(packet: &mut Packet, segmentation: Segmentation, max_len: usize) -> Option<Work> {
    let Segmentation { kind, size } = segmentation;
    let (length, vlan) = (packet.len(), packet.offload.vlan());
    let head = packet.head_mut();
    let layout = match kind {
        SegmentationKind::Tcp4 => tcp4(head)?,
        SegmentationKind::Tcp6 => tcp6(head)?,
        // The 82599 cuts TCP alone.
        SegmentationKind::Udp => return None,
    };
    let l4_header = usize::from(head.get(layout.l4 + 12)? >> 4) * 4;
    let payload = layout.l4 + l4_header;
    if l4_header < 20 || head.len() < payload || length <= payload {
        return None;
    }
    if payload + usize::from(size.get()) > max_len {
        return None;
    }
    // Without the lengths, which differ from piece to piece.
    let seed = pseudo(&head[..layout.l4], layout)?;
    head[layout.l4 + 16..layout.l4 + 18].copy_from_slice(&seed.to_be_bytes());
    if layout.ipv4 {
        head[layout.ip + 2..layout.ip + 4].fill(0);
        head[layout.ip + 10..layout.ip + 12].fill(0);
    } else {
        head[layout.ip + 4..layout.ip + 6].fill(0);
    }
    let mut words = headers(layout, l4_header)?;
    words[2] |= context::L4T.with(context::L4T_TCP);
    words[3] |= context::MSS.with(u32::from(size.get()));
    let mut command = tx::TSE.mask;
    if let Some(tag) = vlan {
        words[0] |= context::VLAN.with(u32::from(tag));
        command |= tx::VLE.mask;
    }
    let options = tx::TXSM.mask | if layout.ipv4 { tx::IXSM.mask } else { 0 };
    let olinfo = tx::PAYLEN.with(number(length - payload)?) | options;
    Some(Work { context: Some(finished(words)), command, olinfo, cuts: true })
}

/// The lengths of headers, as a context has them; `None` when the NIC takes no such. That of the transport header counts where
/// segments are made, and is 0 elsewhere. A tag that the NIC puts in is a header, too: there may be one.
fn headers(layout: Layout, l4_header: usize) -> Option<[u32; 4]> {
    let Layout { ip: mac, l4, ipv4 } = layout;
    let ip = l4.checked_sub(mac)?;
    let (least, family) = if ipv4 { (20, context::IPV4.mask) } else { (40, 0) };
    let longest = context::MACLEN.of(u32::MAX);
    if ip < least || number(mac)? > longest || mac + TAG + ip + l4_header >= HEADERS_END {
        return None;
    }
    let lengths = context::MACLEN.with(number(mac)?) | context::IPLEN.with(number(ip)?);
    Some([lengths, 0, family, context::L4LEN.with(number(l4_header)?)])
}

fn finished(mut words: [u32; 4]) -> Context {
    words[2] |= tx::DTYP.with(tx::TYPE_CONTEXT) | tx::DEXT.mask;
    Context(words)
}

/// Where the network header begins, behind any VLAN tags, and whether it is IPv4's; `None` when it is no IP.
fn network(head: &[u8]) -> Option<(usize, bool)> {
    let mut at = ETHERNET as usize;
    loop {
        let kind = u16::from_be_bytes([*head.get(at - 2)?, *head.get(at - 1)?]);
        match kind {
            _ if TAGS.contains(&kind) => at += TAG,
            0x0800 => return Some((at, true)),
            0x86dd => return Some((at, false)),
            _ => return None,
        }
    }
}

/// The lengths of headers up to a transport header that begins at `l4`, if a context can tell them.
fn headers_to(head: &[u8], l4: usize) -> Option<[u32; 4]> {
    let (ip, ipv4) = network(head)?;
    headers(Layout { ip, l4, ipv4 }, 0)
}

/// A TCP packet over IPv4.
fn tcp4(head: &[u8]) -> Option<Layout> {
    let (ip, ipv4) = network(head)?;
    let header = head.get(ip..)?;
    let length = usize::from(header.first()? & 0xf) * 4;
    let right = ipv4 && length >= 20 && *header.get(9)? == TCP;
    right.then_some(Layout { ip, l4: ip + length, ipv4 })
}

/// A TCP packet over IPv6, without extension headers.
fn tcp6(head: &[u8]) -> Option<Layout> {
    let (ip, ipv4) = network(head)?;
    let right = !ipv4 && *head.get(ip + 6)? == TCP;
    right.then_some(Layout { ip, l4: ip + 40, ipv4 })
}

/// Ones' complement sum of the pseudo-header without a length: addresses and protocol.
fn pseudo(head: &[u8], layout: Layout) -> Option<u16> {
    let addresses = if layout.ipv4 { 12..20 } else { 8..40 };
    let (words, _) = head.get(layout.ip..)?.get(addresses)?.as_chunks::<2>();
    let sum = words.iter().fold(u32::from(TCP), |sum, word| sum + u32::from(u16::from_be_bytes(*word)));
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).ok()
}

fn number(bytes: usize) -> Option<u32> {
    u32::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use bywash_frame::{Arena, Stride};

    use super::*;

    /// An Ethernet frame with an IP header that names UDP, and zeros up to `len` bytes.
    fn frame(ether_type: u16, first: u8, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[12..14].copy_from_slice(&ether_type.to_be_bytes());
        bytes[14] = first;
        bytes
    }

    /// What is to be done for a checksum of `bytes` at `offset` from `start` on, and the packet's bytes then.
    fn planned(bytes: &[u8], start: u16, offset: u16) -> (Work, Vec<u8>) {
        let arena = Arena::new(vec![0; Stride::Packed.memory_for(4)]).unwrap();
        let mut pool = arena.pool(4).unwrap();
        let mut packet = Packet::new(pool.take().unwrap());
        packet.extend_from_slice(bytes).unwrap();
        packet.offload.set_checksum(Checksum::Partial { start, offset });
        let work = plan(&mut packet, 1514).unwrap();
        let bytes = packet.head().to_vec();
        pool.give_packet(packet);
        (work, bytes)
    }

    #[test]
    fn software_makes_a_checksum_whose_headers_the_nic_does_not_take() {
        let (ipv4, ipv6) = (frame(0x0800, 0x45, 600), frame(0x86dd, 0x60, 600));
        for (bytes, start) in [
            // An IP header of 1 byte, of none, and of less than none; one short of what it has at least.
            (&ipv4, 15),
            (&ipv4, 14),
            (&ipv4, 2),
            (&ipv4, 33),
            (&ipv6, 53),
            // With a tag 512 bytes and more.
            (&ipv6, 508),
            (&ipv6, 14 + 496),
        ] {
            let (work, made) = planned(bytes, start, UDP_CHECKSUM);
            assert_eq!((work.context, work.olinfo & tx::TXSM.mask), (None, 0), "{start}");
            let sum = made[usize::from(start)..]
                .chunks(2)
                .fold(0, |sum, word| sum + u32::from(word[0]) * 256 + u32::from(*word.get(1).unwrap_or(&0)));
            assert!(made != *bytes && sum.is_multiple_of(0xffff), "{start}: {sum:#x}");
        }
        for (bytes, start) in [(&ipv4, 34), (&ipv6, 54), (&ipv6, 14 + 488), (&ipv6, 507)] {
            let (work, made) = planned(bytes, start, UDP_CHECKSUM);
            let [lengths, ..] = work.context.unwrap().0;
            assert_eq!(context::MACLEN.of(lengths), 14);
            assert_eq!(context::IPLEN.of(lengths), u32::from(start) - 14);
            assert!(made == *bytes && work.olinfo & tx::TXSM.mask != 0, "{start}");
        }
    }
}
