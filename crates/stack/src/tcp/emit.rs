//! Segments as packets: header, options, checksum, payload, and the way to the neighbour.

use bywash_frame::{Checksum, FRAME_DATA, HEADROOM, Packet, Segmentation, SegmentationKind};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{Protocol, TCP_CHECKSUM_OFFSET, TCP_HEADER, TcpFlags, TcpHeader, TcpOptions};

use super::connection::Connection;
use super::receive_buffer::length;
use super::seq::Seq;
use crate::Flow;
use crate::ip::{Fields, pseudo, put_header};
use crate::snapshot::{Path, Reach};
use crate::stack::Context;

/// "This packet may be marked instead of dropped" (RFC 3168, 5).
const ECT0: u8 = 2;

/// A segment without payload.
#[derive(Clone, Debug)]
pub(super) struct Bare {
    pub(super) flow: Flow,
    pub(super) seq: Seq,
    pub(super) ack: Seq,
    pub(super) flags: TcpFlags,
    pub(super) window: u16,
    pub(super) options: TcpOptions,
}

impl Bare {
    fn header(&self) -> (TcpHeader, arrayvec::ArrayVec<u8, 40>) {
        let options = self.options.write();
        let ports = (self.flow.local_port, self.flow.remote_port);
        #[expect(clippy::cast_possible_truncation, reason = "at most 40")]
        let bytes = options.len() as u8;
        (TcpHeader::new(ports, self.seq.0, self.ack.0, self.flags, self.window, bytes), options)
    }

    /// Sends it by its route, as for a flow that nobody has a connection for.
    pub(super) fn send(&self, cx: &mut Context<'_>) {
        self.send_marked(0, cx);
    }

    /// Sends it by its route, with a DiffServ field.
    pub(super) fn send_marked(&self, class: u8, cx: &mut Context<'_>) {
        let Some(path) = cx.out.snapshot.path(self.flow.remote) else { return };
        let Some(frame) = cx.pool.take() else {
            cx.counters.no_memory += 1;
            return;
        };
        let mut packet = Packet::new(frame);
        let (header, options) = self.header();
        // 60 bytes fit a new frame.
        let built =
            packet.extend_from_slice(header.as_bytes()).and_then(|()| packet.extend_from_slice(&options));
        finish(&mut packet, &self.flow, cx.out.snapshot.interface(path.interface).offloads.checksum);
        if built.is_ok() && put_header(&mut packet, &fields(&self.flow, path, class & !3, cx)) {
            cx.out.send(packet, path, cx.pool);
        } else {
            cx.pool.give_packet(packet);
        }
    }
}

impl Connection {
    /// Sends a segment with `len` bytes of the send buffer from `seq` on; `false` when frames have run out. Every
    /// segment acknowledges what has come (MUST-58), and carries the window.
    pub(super) fn emit(&mut self, seq: Seq, len: u32, flags: TcpFlags, cx: &mut Context<'_>) -> bool {
        if !self.find_link(cx) {
            return true;
        }
        let Some(frame) = cx.pool.take() else {
            cx.counters.no_memory += 1;
            return false;
        };
        let flags = self.mark(seq, len, flags);
        let bare = self.bare(seq, flags, len, cx);
        let (header, options) = bare.header();
        let interface = self.link.as_ref().map_or(self.path.interface, |(_, link)| link.interface);
        let offloads = cx.out.snapshot.interface(interface).offloads;
        let mut packet = Packet::new(frame);
        let total = TCP_HEADER + options.len() + len as usize;
        let from = if len > 0 { (seq - self.base()) as usize } else { 0 };
        if packet.set_len(total).is_ok() && total <= FRAME_DATA {
            let head = packet.head_mut();
            head[..TCP_HEADER].copy_from_slice(header.as_bytes());
            let mut at = TCP_HEADER + options.len();
            head[TCP_HEADER..at].copy_from_slice(&options);
            for slice in self.send.slices(from, len as usize) {
                head[at..at + slice.len()].copy_from_slice(slice);
                at += slice.len();
            }
        } else {
            let built = packet
                .set_len(0)
                .and_then(|()| packet.append(header.as_bytes(), cx.pool))
                .and_then(|()| packet.append(&options, cx.pool))
                .and_then(|()| {
                    let mut slices = self.send.slices(from, len as usize);
                    slices.try_for_each(|slice| packet.append(slice, cx.pool))
                });
            if built.is_err() {
                cx.counters.no_memory += 1;
                cx.pool.give_packet(packet);
                return false;
            }
        }
        // A super-segment is always left to the port: the checksum of each piece is its own.
        let cut = len > self.window.mss;
        finish(&mut packet, &self.flow, offloads.checksum || cut);
        if cut {
            let size = u16::try_from(self.window.mss).ok().and_then(std::num::NonZeroU16::new);
            let v4 = self.flow.remote.is_v4();
            let kind = if v4 { SegmentationKind::Tcp4 } else { SegmentationKind::Tcp6 };
            packet.offload.set_segmentation(size.map(|size| Segmentation { kind, size }));
        }
        // RFC 3168, 6.1.4 and 6.1.5: not on acknowledgments, SYNs and copies.
        let ect = if self.ecn && len > 0 && !seq.before(self.nxt) { ECT0 } else { 0 };
        let class = self.limits.traffic_class & !3 | ect;
        if !put_header(&mut packet, &fields(&self.flow, self.path, class, cx)) {
            cx.pool.give_packet(packet);
            return true;
        }
        self.acknowledged_by(&bare);
        self.tally.segments_out += 1;
        if len > 0 {
            self.tally.data_segments_out += 1;
            self.tally.bytes_sent += u64::from(len);
            // Data soon after data: an answer. Acknowledgments can wait for the next one to carry them.
            self.answers |= cx.now.since(self.last_received) < super::arrive::DELAYED_ACK;
            self.last_data_sent = cx.now;
        }
        self.last_sent = cx.now;
        match &self.link {
            Some((_, link)) => cx.out.send_link(packet, link, cx.pool),
            None => cx.out.send(packet, self.path, cx.pool),
        }
        true
    }

    /// The bits of RFC 3168, 6.1: the request, the answer to it, the echo of a mark, the word that we have slowed down.
    #[inline]
    fn mark(&mut self, seq: Seq, len: u32, flags: TcpFlags) -> TcpFlags {
        if flags.has(TcpFlags::SYN) {
            let both = TcpFlags::ECE.with(TcpFlags::CWR);
            return match (flags.has(TcpFlags::ACK), self.ecn, self.limits.ecn && self.rtt.backoff() == 0) {
                (true, true, _) => flags.with(TcpFlags::ECE),
                // 6.1.1.1: a SYN that got lost may have been dropped for its bits.
                (false, _, true) => flags.with(both),
                _ => flags,
            };
        }
        let mut flags = flags;
        if self.echo {
            flags = flags.with(TcpFlags::ECE);
        }
        if self.slowed && len > 0 && !seq.before(self.nxt) {
            self.slowed = false;
            flags = flags.with(TcpFlags::CWR);
        }
        flags
    }

    /// Finds the way to the peer once for each snapshot; `false` when there is none.
    #[inline]
    fn find_link(&mut self, cx: &mut Context<'_>) -> bool {
        let generation = cx.out.snapshot.generation;
        if self.link.as_ref().is_some_and(|(of, _)| *of == generation) {
            return true;
        }
        let Some(path) = cx.out.snapshot.path(self.flow.remote) else { return false };
        self.path = path;
        self.link = match cx.out.reach(path) {
            Reach::Ready { link, .. } => Some((generation, link)),
            Reach::Unresolved | Reach::Absent => None,
        };
        true
    }

    /// The header's fields and the options as they are now.
    fn bare(&mut self, seq: Seq, flags: TcpFlags, len: u32, cx: &Context<'_>) -> Bare {
        let syn = flags.has(TcpFlags::SYN);
        let mut options = TcpOptions::default();
        if syn {
            // RFC 9293, MUST-65: MSS only here; RFC 7323, 2.2: so is the scale, and the window is not scaled.
            options.mss = Some(self.offered_mss);
            let asks = !flags.has(TcpFlags::ACK);
            options.window_scale =
                (self.rcv_scale > 0 || (asks && self.limits.window_scaling)).then_some(self.limits.scale());
            options.sack_permitted = self.sack || (asks && self.limits.sack);
        } else if self.sack && len == 0 {
            // Beside payload there is no room: `output` sends them by themselves.
            let blocks = self.duplicate.take().into_iter().chain(self.receive.blocks());
            options.sack = blocks.take(4).map(|(start, end)| (start.0, end.0)).collect();
        }
        if self.timestamps || (syn && !flags.has(TcpFlags::ACK) && self.limits.timestamps) {
            options.timestamps = Some((self.clock(cx.now), self.ts_recent));
        }
        let ack = if flags.has(TcpFlags::ACK) { self.rcv_nxt } else { Seq(0) };
        Bare { flow: self.flow, seq, ack, flags, window: self.advertise(syn), options }
    }

    /// The window to be told. Its right edge never moves left (SHLD-14), and moves right only by enough to be worth
    /// a segment (RFC 9293, 3.8.6.2.2, MUST-39).
    fn advertise(&mut self, syn: bool) -> u16 {
        let free = self.rcv_limit.saturating_sub(length(self.receive.readable()));
        let wanted = self.rcv_nxt + free;
        let enough = (self.rcv_limit / 2).min(self.window.mss.max(1));
        if wanted.after(self.edge) && wanted - self.edge >= enough {
            self.edge = wanted;
        }
        let scale = if syn { 0 } else { self.rcv_scale };
        let window = if self.edge.after(self.rcv_nxt) { self.edge - self.rcv_nxt } else { 0 };
        // Rounded up, or the edge would move left by what is cut off.
        let field = u16::try_from((window + (1 << scale) - 1) >> scale).unwrap_or(u16::MAX);
        self.edge = if syn {
            self.rcv_nxt + u32::from(field)
        } else {
            self.edge.max(self.rcv_nxt + (u32::from(field) << scale))
        };
        field
    }

    /// What a segment that is sent has acknowledged needs no acknowledgment of its own.
    fn acknowledged_by(&mut self, bare: &Bare) {
        if bare.flags.has(TcpFlags::ACK) {
            self.last_ack_sent = self.rcv_nxt;
            self.unacknowledged = 0;
            self.quick = self.quick.saturating_sub(1);
            self.ack_now = false;
            self.ack_at = super::connection::NEVER;
        }
    }
}

/// What the IP header of a segment says.
#[inline]
fn fields(flow: &Flow, path: Path, class: u8, cx: &Context<'_>) -> Fields {
    Fields {
        source: flow.local,
        destination: flow.remote,
        protocol: Protocol::TCP.0,
        class,
        hop_limit: cx.out.snapshot.hop_limit(path),
        identification: None,
    }
}

/// Puts the checksum in, or leaves it to the port.
#[inline]
fn finish(packet: &mut Packet, flow: &Flow, offload: bool) {
    let length = packet.len();
    let start = pseudo(flow.local, flow.remote, Protocol::TCP.0, length);
    let checksum = if offload {
        packet.offload.set_checksum(Checksum::Partial { start: 0, offset: TCP_CHECKSUM_OFFSET });
        start.partial()
    } else if packet.is_single() {
        start.bytes(packet.head()).checksum()
    } else {
        packet.segments().map(bywash_frame::Segment::bytes).fold(start, Sum::bytes).checksum()
    };
    let at = usize::from(TCP_CHECKSUM_OFFSET);
    if let Some(place) = packet.head_mut().get_mut(at..at + 2) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
}

const _: () = assert!(HEADROOM >= 128, "link, IP and TCP headers fit in front");
