//! Segments as packets: header, options, checksum, payload, and the way to the neighbour.

use std::num::NonZeroU8;

use bywash_frame::{
    Checksum, FRAME_DATA, FRAME_SIZE, Frame, HEADROOM, Kept, Packet, Segment, Segmentation, SegmentationKind,
};
use bywash_wire::checksum::Sum;
use bywash_wire::{
    STAMPS, TCP_CHECKSUM_OFFSET, TCP_HEADER, TCP_OPTIONS, TcpFlags, TcpHeader, TcpOptions, put_stamps,
};

use super::Limits;
use super::connection::Connection;
use super::facts::{
    ACK_NOW, ANSWERS, ECHOES_MARK, ECN, ECT, HAS_RECORDS, MORE_FOLLOWS, SACK, SQUEEZED, TELLS_SLOWED,
    TIMESTAMPS, URGES,
};
use super::listen::offered_segment;
use super::receive_buffer::length;
use super::send_buffer::{FRONT, SendBuffer};
use super::seq::Seq;
use super::way::{HEADERS, Way};
use crate::Flow;
use crate::outbox::Outbox;
use crate::stack::Context;

/// "This packet may be marked instead of dropped" (RFC 3168, 5).
const ECT0: u8 = 2;

/// Most bytes that blocks add to a segment's options (RFC 2018, 3): four without timestamps, and two of padding.
const MOST_BLOCKS: u32 = 36;

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
    /// The reset that answers a segment for nobody, and that its sender believes (RFC 9293, 3.10.7.1). It echoes the segment's
    /// clock and tells none (RFC 7323, 5.2). None for a reset.
    pub(super) fn reset(flow: Flow, segment: &super::segment::Segment) -> Option<Self> {
        if segment.has(TcpFlags::RST) {
            return None;
        }
        let (seq, ack, flags) = if segment.has(TcpFlags::ACK) {
            (segment.ack, Seq(0), TcpFlags::RST)
        } else {
            (Seq(0), segment.end(), TcpFlags::RST.with(TcpFlags::ACK))
        };
        let timestamps = segment.options.timestamps.map(|(value, _)| (0, value));
        let options = TcpOptions { timestamps, ..TcpOptions::default() };
        Some(Self { flow, seq, ack, flags, window: 0, options })
    }

    fn header(&self) -> (TcpHeader, arrayvec::ArrayVec<u8, 40>) {
        let options = self.options.write();
        let ports = (self.flow.local_port, self.flow.remote_port);
        #[expect(clippy::cast_possible_truncation, reason = "at most 40")]
        let bytes = options.len() as u8;
        (TcpHeader::new(ports, self.seq.0, self.ack.0, self.flags, self.window, bytes), options)
    }

    /// Sends it by its route, as for a flow that nobody has a connection for.
    pub(super) fn send(&self, cx: &mut Context<'_>) {
        self.send_marked((0, None), cx);
    }

    /// Sends it by its route, with the DiffServ field and the time to live of a connection, or of what becomes one.
    pub(super) fn send_as(&self, limits: &Limits, cx: &mut Context<'_>) {
        self.send_marked((limits.traffic_class, limits.hop_limit), cx);
    }

    /// The same, where no more is left of a connection than these.
    pub(super) fn send_marked(&self, (class, hop_limit): (u8, Option<NonZeroU8>), cx: &mut Context<'_>) {
        let Some(mut way) = Way::find(&self.flow, cx.out) else { return };
        if let Some(limit) = hop_limit {
            way = way.with_hop_limit(limit);
        }
        let Some(mut frame) = cx.pool.take() else {
            cx.counters.no_memory += 1;
            return;
        };
        cx.counters.tcp_sent += 1;
        cx.counters.tcp_resets_sent += u64::from(self.flags.has(TcpFlags::RST));
        let (before, after) = split(headers_of(frame.bytes_mut()));
        let (header, options) = self.header();
        let length = TCP_HEADER + options.len();
        after[TCP_HEADER..length].copy_from_slice(&options);
        #[expect(clippy::cast_possible_truncation, reason = "at most 60")]
        let said = length as u16;
        let sum = put(&header, after, way.pseudo(said).bytes(&options));
        way.put(before, class & !3, said);
        let (offload, partial) = (way.offloads.checksum, way.pseudo(said).partial());
        put_checksum(after, if offload { partial } else { sum.checksum() });
        let packet = single(frame, way.transport(), length, offload);
        match way.place(cx.out) {
            Some(place) => place.put(packet),
            None => way.send(packet, self.flow.remote, cx.out, cx.pool),
        }
    }
}

/// Bytes of TCP header at most.
const LONGEST: usize = TCP_HEADER + TCP_OPTIONS;

impl Connection {
    /// Its way, found anew if the snapshot has changed, or as long as there is no neighbour; `None` when there is none.
    #[inline]
    pub(super) fn current_way(&mut self, out: &mut Outbox) -> Option<&Way> {
        if !self.way.as_ref().is_some_and(|way| way.is_current(out)) {
            self.find_way(out);
        }
        self.way.as_ref()
    }

    #[cold]
    fn find_way(&mut self, out: &mut Outbox) {
        let way = Way::find(&self.flow, out);
        self.way = match self.limits.hop_limit {
            Some(limit) => way.map(|way| way.with_hop_limit(limit)),
            None => way,
        };
    }

    /// Sends a segment with `len` bytes of the send buffer from `seq` on; `false` when it could not go: frames have run out. Every
    /// segment acknowledges what has come (MUST-58), and carries the window.
    pub(super) fn emit(&mut self, seq: Seq, len: u32, flags: TcpFlags, cx: &mut Context<'_>) -> bool {
        if self.current_way(cx.out).is_none() {
            return true;
        }
        let Some(frame) = cx.pool.take() else {
            cx.counters.no_memory += 1;
            return false;
        };
        let mut flags = self.mark(seq, len, flags);
        if self.facts.any(URGES) {
            flags = self.urge(seq, flags);
        }
        // Data beside our SYN is the first there is.
        let from = if len > 0 && !flags.has(TcpFlags::SYN) { seq - self.base() } else { 0 };
        let sent = self.emit_marked(frame, (seq, from, len, flags), cx);
        if sent && flags.has(TcpFlags::CWR) {
            self.facts.remove(TELLS_SLOWED);
        }
        sent
    }

    /// [`Connection::emit`] of new data with no other flags than these: what is known of them is not asked.
    #[inline(always)]
    pub(super) fn emit_message(&mut self, len: u32, flags: TcpFlags, cx: &mut Context<'_>) -> bool {
        if self.current_way(cx.out).is_none() {
            return true;
        }
        // The longer way counts what is wanting.
        let Some(frame) = cx.pool.take() else { return false };
        // A frame in which a message has waited to be acknowledged was written long ago, and may be in no near cache any more.
        if let [soon, ..] = cx.pool.upcoming(4) {
            soon.prefetch_to_write();
        }
        let from = self.nxt - self.base();
        self.emit_marked(frame, (self.nxt, from, len, flags), cx)
    }

    /// Does that in a frame, by the way that there is.
    #[inline(always)]
    fn emit_marked(
        &mut self,
        mut frame: Frame,
        (seq, from, len, flags): (Seq, u32, u32, TcpFlags),
        cx: &mut Context<'_>,
    ) -> bool {
        let (before, after) = split(headers_of(frame.bytes_mut()));
        let (header, options, sum) = self.header(after, seq, len, flags, cx);
        let headers = TCP_HEADER + usize::from(options);
        let length = headers + len as usize;
        let Some(way) = self.way.as_ref().filter(|way| length <= way.longest()) else {
            // What does not go is not to count as sent.
            cx.pool.give(frame);
            return false;
        };
        #[expect(clippy::cast_possible_truncation, reason = "what IP can say, see above")]
        let said = length as u16;
        let mut sum = put(&header, after, way.pseudo(said).with(sum));
        if flags.has(TcpFlags::URG) {
            sum = self.put_urgent(seq, after, sum);
        }
        // RFC 3168, 6.1.1, 6.1.4 and 6.1.5: not on SYNs, acknowledgments and copies.
        let ect = if self.facts.any(ECT) && len > 0 && !seq.before(self.nxt) { ECT0 } else { 0 };
        way.put(before, self.limits.traffic_class & !3 | ect, said);
        let (from, front) = (from as usize, way.transport());
        if length <= FRAME_DATA && len <= self.window.mss() {
            let bytes = &mut frame.bytes_mut()[HEADROOM..][..length];
            let (partial, offload) = (way.pseudo(said), way.offloads.checksum);
            let sum = copy(&self.send, from, &mut bytes[headers..], sum, offload);
            put_checksum(bytes, if offload { partial.partial() } else { sum.checksum() });
            match way.place(cx.out) {
                Some(place) => place.put(single(frame, front, length, offload)),
                None => {
                    let packet = single(frame, front, length, offload);
                    way.send(packet, self.flow.remote, cx.out, cx.pool);
                }
            }
        } else if !self.emit_long(frame, (headers, from, len), cx) {
            return false;
        }
        self.sent(1, len, flags, cx);
        true
    }

    /// Sends a segment that takes several frames, or that the port is to cut. Its headers, of `headers` bytes from TCP's on, are
    /// in `frame`; its payload are `len` bytes from `from` on. `false` when frames have run out.
    fn emit_long(
        &mut self,
        frame: Frame,
        (headers, from, len): (usize, usize, u32),
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(way) = &self.way else { return true };
        let front = way.transport();
        let mut packet = headed(frame, front, headers);
        // A super-segment is always left to the port: the checksum of each piece is its own. What no port cuts may have as many
        // frames as its bytes fill, and no more: AF_XDP and NICs have limits.
        let cut = len > self.window.mss();
        let appended = if cut {
            self.send.append_to(&mut packet, from, len as usize, cx.pool)
        } else {
            let mut slices = self.send.slices(from, len as usize);
            slices.try_for_each(|slice| packet.append(slice, cx.pool))
        };
        if appended.is_err() {
            cx.counters.no_memory += 1;
            cx.pool.give_packet(packet);
            return false;
        }
        let length = u16::try_from(packet.len() - front).unwrap_or(u16::MAX);
        finish(&mut packet, front, way.pseudo(length), way.offloads.checksum || cut);
        if cut {
            let size = u16::try_from(self.window.mss()).ok().and_then(std::num::NonZeroU16::new);
            let v4 = self.flow.remote.is_v4();
            let kind = if v4 { SegmentationKind::Tcp4 } else { SegmentationKind::Tcp6 };
            packet.offload.set_segmentation(size.map(|size| Segmentation { kind, size }));
            // What it is cut into counts; `sent` counts one.
            let more = len.div_ceil(self.window.mss().max(1)) - 1;
            self.tally.segments_out += more;
            self.tally.data_segments_out += more;
            cx.counters.tcp_sent += u64::from(more);
        }
        // Nothing is left to do but what the port does: a port that cuts sums what it cuts, whether or not it sums others.
        // One whose length was chosen for another port than the one that its way leads to by now may have to be cut for it.
        match way.place(cx.out).filter(|_| !cut || way.offloads.segmentation) {
            Some(place) => place.put(packet),
            None => way.send(packet, self.flow.remote, cx.out, cx.pool),
        }
        true
    }

    /// Sends up to `count` full segments of new data, and says how many: what they have in common is made once. None when
    /// something about them is not common, or frames have run out: then [`Connection::emit`] knows what to do.
    pub(super) fn emit_run(&mut self, count: u32, cx: &mut Context<'_>) -> u32 {
        let found = self.current_way(cx.out).is_some();
        if !found || self.facts.any(TELLS_SLOWED.with(URGES).with(HAS_RECORDS)) {
            return 0;
        }
        let (mss, seq, end) = (self.window.mss(), self.nxt, self.data_end());
        let flags = self.mark(seq, mss, TcpFlags::ACK);
        let mut template = [0; HEADERS + LONGEST];
        let (before, after) = split(&mut template);
        let (mut header, options, sum) = self.header(after, seq, mss, flags, cx);
        let headers = TCP_HEADER + usize::from(options);
        let length = headers + mss as usize;
        let Some(way) = &self.way else { return 0 };
        let Some(said) = u16::try_from(length).ok().filter(|_| length <= FRAME_DATA) else { return 0 };
        let ect = if self.facts.any(ECT) { ECT0 } else { 0 };
        way.put(before, self.limits.traffic_class & !3 | ect, said);
        let (front, offload, pseudo) = (way.transport(), way.offloads.checksum, way.pseudo(said));
        let (common, mut from, mut sent) = (pseudo.with(sum), (seq - self.base()) as usize, 0);
        let (together, whole) = (self.together(), self.send.first_whole(from, mss as usize));
        let mut place = 0;
        while sent < count {
            let at = seq + sent * mss;
            header.sequence = at.0.into();
            place += 1;
            let last = place == together || sent + 1 == count;
            let pushed = if at + mss == end { !self.facts.any(MORE_FOLLOWS) } else { last && place > 1 };
            header.flags = if pushed { flags.with(TcpFlags::PSH) } else { flags };
            if last {
                place = 0;
            }
            // A frame of the send buffer that has the segment alone is sent as it is, with headers in front.
            if let Some(number) = whole
                && let Some((frame, known)) = self.send.whole_frame(number + sent as usize)
            {
                let payload = match known {
                    _ if offload => Sum::new(),
                    Some(sum) => sum,
                    None => Sum::new().bytes(&frame.bytes()[..mss as usize]),
                };
                let tcp = fill_front(frame, &template, headers);
                let sum = put(&header, tcp, common).with(payload);
                put_checksum(tcp, if offload { pseudo.partial() } else { sum.checksum() });
                match way.place(cx.out) {
                    Some(place) => {
                        place.put(lent(frame, front + headers, mss as usize, offload.then_some(front)))
                    }
                    None => {
                        let packet = lent(frame, front + headers, mss as usize, offload.then_some(front));
                        way.send(packet, self.flow.remote, cx.out, cx.pool);
                    }
                }
            } else {
                let Some(mut frame) = cx.pool.take() else { break };
                let place_of_headers = headers_of(frame.bytes_mut());
                // In one piece: two copies would be made in many more.
                *place_of_headers = template;
                let (_, tcp) = split(place_of_headers);
                let sum = put(&header, tcp, common);
                let bytes = &mut frame.bytes_mut()[HEADROOM..][..length];
                let sum = copy(&self.send, from, &mut bytes[headers..], sum, offload);
                put_checksum(bytes, if offload { pseudo.partial() } else { sum.checksum() });
                match way.place(cx.out) {
                    Some(place) => place.put(single(frame, front, length, offload)),
                    None => {
                        let packet = single(frame, front, length, offload);
                        way.send(packet, self.flow.remote, cx.out, cx.pool);
                    }
                }
            }
            (from, sent) = (from + mss as usize, sent + 1);
        }
        if sent > 0 {
            self.sent(sent, sent * mss, flags, cx);
        }
        sent
    }

    /// Notes what was sent: segments, and bytes in them. What a segment has acknowledged needs no acknowledgment of its own.
    #[inline(always)]
    fn sent(&mut self, segments: u32, bytes: u32, flags: TcpFlags, cx: &mut Context<'_>) {
        cx.counters.tcp_sent += u64::from(segments);
        if flags.has(TcpFlags::ACK) {
            self.last_ack_sent = self.rcv_nxt;
            self.quick = self.quick.saturating_sub(u8::try_from(segments).unwrap_or(u8::MAX));
            self.facts.remove(ACK_NOW);
            self.ack_at = super::connection::NEVER;
        }
        self.tally.segments_out += segments;
        if bytes > 0 {
            self.tally.data_segments_out += segments;
            self.tally.bytes_sent += u64::from(bytes);
            // Data soon after data: an answer. Acknowledgments can wait for the next one to carry them.
            let soon = cx.now.span(self.last_received) < super::arrive::DELAYED_ACK;
            self.facts.add_if(ANSWERS, soon);
            self.last_data_sent = cx.now;
        }
    }

    /// The bits of RFC 3168, 6.1: the request, the answer to it, the echo of a mark, the word that we have slowed down.
    #[inline]
    fn mark(&self, seq: Seq, len: u32, flags: TcpFlags) -> TcpFlags {
        if flags.has(TcpFlags::SYN) {
            let both = TcpFlags::ECE.with(TcpFlags::CWR);
            return match (
                flags.has(TcpFlags::ACK),
                self.facts.any(ECN),
                self.limits.ecn && self.rtt.backoff() == 0,
            ) {
                (true, true, _) => flags.with(TcpFlags::ECE),
                // 6.1.1.1: a SYN that got lost may have been dropped for its bits.
                (false, _, true) => flags.with(both),
                _ => flags,
            };
        }
        let mut flags = flags;
        if self.facts.any(ECHOES_MARK) {
            flags = flags.with(TcpFlags::ECE);
        }
        if self.facts.any(TELLS_SLOWED) && len > 0 && !seq.before(self.nxt) {
            flags = flags.with(TcpFlags::CWR);
        }
        flags
    }

    /// The header of a segment as things are now; its options are written behind its place. Returned with it: how many bytes
    /// they are, and what they sum to.
    #[inline(always)]
    fn header(
        &mut self,
        to: &mut [u8; LONGEST],
        seq: Seq,
        len: u32,
        flags: TcpFlags,
        cx: &Context<'_>,
    ) -> (TcpHeader, u8, Sum) {
        let (bytes, sum) = self.write_options(to, flags, len, cx);
        let ack = if flags.has(TcpFlags::ACK) { self.rcv_nxt } else { Seq(0) };
        let window = self.advertise(flags.has(TcpFlags::SYN));
        let ports = (self.flow.local_port, self.flow.remote_port);
        (TcpHeader::new(ports, seq.0, ack.0, flags, window, bytes), bytes, sum)
    }

    /// Writes the options as they are now behind the place of a header, and says how many bytes they are, and their sum.
    #[inline(always)]
    fn write_options(
        &mut self,
        to: &mut [u8; LONGEST],
        flags: TcpFlags,
        len: u32,
        cx: &Context<'_>,
    ) -> (u8, Sum) {
        let syn = flags.has(TcpFlags::SYN);
        let blocks = self.facts.any(SACK)
            && (self.receive.has_gap() || self.duplicate().is_some())
            && (len == 0 || len + MOST_BLOCKS <= self.window.mss());
        let (_, to) = to.split_at_mut(TCP_HEADER);
        if !syn && !blocks {
            let stamps = if self.facts.any(TIMESTAMPS) { to.first_chunk_mut::<STAMPS>() } else { None };
            let Some(stamps) = stamps else { return (0, Sum::new()) };
            #[expect(clippy::cast_possible_truncation, reason = "12")]
            return (STAMPS as u8, put_stamps(stamps, (self.clock(cx.now), self.ts_recent), Sum::new()));
        }
        let written = self.rare_options(flags, cx).write();
        to[..written.len()].copy_from_slice(&written);
        #[expect(clippy::cast_possible_truncation, reason = "at most 40")]
        let bytes = written.len() as u8;
        (bytes, Sum::new().bytes(&written))
    }

    /// Those of a SYN, and of an acknowledgment that tells of gaps.
    #[cold]
    fn rare_options(&mut self, flags: TcpFlags, cx: &Context<'_>) -> TcpOptions {
        let syn = flags.has(TcpFlags::SYN);
        let mut options = TcpOptions::default();
        if syn {
            // RFC 9293, MUST-65: MSS only here; RFC 7323, 2.2: so is the scale, and the window is not scaled.
            options.mss = Some(offered_segment(&self.flow, &self.limits, cx.out));
            let asks = !flags.has(TcpFlags::ACK);
            let scales = if asks { self.limits.window_scaling } else { self.scaled };
            options.window_scale = scales.then_some(self.rcv_scale);
            if self.opening.is_some() {
                self.add_opening(&mut options);
            }
            options.sack_permitted = self.facts.any(SACK) || (asks && self.limits.sack);
        } else {
            // Beside a full segment's payload there is no room: `output` sends them by themselves.
            let blocks = self.duplicate().into_iter().chain(self.receive.blocks());
            options.sack = blocks.take(4).map(|(start, end)| (start.0, end.0)).collect();
            self.set_duplicate(None);
        }
        if self.facts.any(TIMESTAMPS) || (syn && !flags.has(TcpFlags::ACK) && self.limits.timestamps) {
            options.timestamps = Some((self.clock(cx.now), self.ts_recent));
        }
        options
    }

    /// The window to be told. Its right edge never moves left (SHLD-14), and moves right only by enough to be worth
    /// a segment (RFC 9293, 3.8.6.2.2, MUST-39).
    #[inline(always)]
    fn advertise(&mut self, syn: bool) -> u16 {
        if self.facts.any(SQUEEZED) {
            return 0;
        }
        let free = self.rcv_limit.saturating_sub(length(self.receive.readable()));
        let wanted = self.rcv_nxt + free;
        let enough = (self.rcv_limit / 2).min(self.window.mss().max(1));
        if wanted.after(self.edge) && wanted - self.edge >= enough {
            self.edge = wanted;
        }
        let scale = if syn { 0 } else { self.rcv_scale };
        let window = if self.edge.after(self.rcv_nxt) { self.edge - self.rcv_nxt } else { 0 };
        // What the field cannot say has not been told.
        let window = window.min(u32::from(u16::MAX) << scale);
        // Rounded up, or the edge would move left by what is cut off; but not beyond what is free, or it would move right with each
        // small segment that nobody reads.
        let cut_off = (1 << scale) - 1;
        let up = |bytes: u32| (bytes + cut_off) & !cut_off;
        let told = if up(window) <= up(free) { up(window) } else { window & !cut_off };
        self.edge = self.rcv_nxt + window.max(told);
        #[expect(clippy::cast_possible_truncation, reason = "the window is at most what fits")]
        let field = (told >> scale) as u16;
        field
    }
}

/// Where in a new frame all headers are.
#[inline]
fn headers_of(bytes: &mut [u8; FRAME_SIZE]) -> &mut [u8; HEADERS + LONGEST] {
    match bytes[HEADROOM - HEADERS..].first_chunk_mut() {
        Some(headers) => headers,
        None => unreachable!("a frame has room for all headers"),
    }
}

/// The headers in front of TCP, and TCP's.
#[inline]
fn split(headers: &mut [u8; HEADERS + LONGEST]) -> (&mut [u8; HEADERS], &mut [u8; LONGEST]) {
    let (before, after) = headers.split_at_mut(HEADERS);
    match (before.first_chunk_mut(), after.first_chunk_mut()) {
        (Some(before), Some(after)) => (before, after),
        _ => unreachable!("both have their length"),
    }
}

/// Puts all headers in front of the bytes of a frame that may be a packet, and returns the place of the last `tcp` bytes of them, which
/// are TCP's.
#[inline]
fn fill_front<'a>(frame: &'a mut Kept, headers: &[u8; HEADERS + LONGEST], tcp: usize) -> &'a mut [u8] {
    const PLAIN: usize = HEADERS + TCP_HEADER;
    const STAMPED: usize = PLAIN + STAMPS;
    let Some(front) = frame.front_mut().first_chunk_mut::<FRONT>() else {
        unreachable!("it has been looked at")
    };
    // Those of most segments in one piece.
    match HEADERS + tcp {
        PLAIN => copy_array::<PLAIN>(headers, front),
        STAMPED => copy_array::<STAMPED>(headers, front),
        all => front[FRONT - all..].copy_from_slice(&headers[..all]),
    }
    &mut front[FRONT - tcp..]
}

/// Copies the first `N` bytes to the end of the place.
#[inline(always)]
fn copy_array<const N: usize>(headers: &[u8; HEADERS + LONGEST], front: &mut [u8; FRONT]) {
    if let (Some(from), Some(to)) = (headers.first_chunk::<N>(), front.last_chunk_mut()) {
        *to = *from;
    }
}

/// A whole segment as a packet, which the port sums or nobody has to.
#[inline(always)]
fn single(frame: Frame, front: usize, length: usize, offload: bool) -> Packet {
    let mut packet = headed(frame, front, length);
    if offload {
        packet.offload.set_checksum(left_to_port(front));
    }
    packet
}

/// The same of a frame of the send buffer, which may be one.
#[inline(always)]
fn lent(frame: &mut Kept, headers: usize, len: usize, front: Option<usize>) -> Packet {
    let packet = frame.packet(headers, len);
    let mut packet =
        packet.unwrap_or_else(|| unreachable!("it has room in front, and has not been a packet"));
    if let Some(front) = front {
        packet.offload.set_checksum(left_to_port(front));
    }
    packet
}

/// A packet of `front` bytes before the end of the headroom, and `length` after it.
#[inline(always)]
fn headed(frame: Frame, front: usize, length: usize) -> Packet {
    let segment = Segment::new(frame, HEADROOM - front, front + length);
    Packet::from_segment(segment.unwrap_or_else(|_| unreachable!("both ends are in the frame")))
}

/// Writes TCP's header in its place, and adds it to a sum.
#[inline(always)]
fn put(header: &TcpHeader, place: &mut [u8], sum: Sum) -> Sum {
    match place.first_chunk_mut() {
        Some(place) => header.put(place, sum),
        None => unreachable!("no header is shorter"),
    }
}

/// Copies bytes of the send buffer from `from` on, and adds them to a sum unless the port makes it.
#[inline(always)]
fn copy(send: &SendBuffer, from: usize, to: &mut [u8], mut sum: Sum, offload: bool) -> Sum {
    if let Some(bytes) = send.in_one_frame(from, to.len()).filter(|_| !offload) {
        return sum.copied(bytes, to);
    }
    let mut at = 0;
    for slice in send.slices(from, to.len()) {
        let place = &mut to[at..at + slice.len()];
        if offload {
            bywash_frame::copy(slice, place);
        } else {
            sum = sum.copied(slice, place);
        }
        at += slice.len();
    }
    sum
}

/// Puts the checksum of a segment in that begins at `front`, or leaves it to the port. `start` is the pseudo-header's sum.
fn finish(packet: &mut Packet, front: usize, start: Sum, offload: bool) {
    let checksum = if offload {
        packet.offload.set_checksum(left_to_port(front));
        start.partial()
    } else {
        crate::packet::sum(start, packet, front..packet.len()).checksum()
    };
    put_checksum(&mut packet.head_mut()[front..], checksum);
}

/// That the port sums a segment which begins at `front`.
#[inline]
fn left_to_port(front: usize) -> Checksum {
    #[expect(clippy::cast_possible_truncation, reason = "link and IP headers, below 100")]
    Checksum::Partial { start: front as u16, offset: TCP_CHECKSUM_OFFSET }
}

#[inline(always)]
fn put_checksum(segment: &mut [u8], checksum: u16) {
    let at = usize::from(TCP_CHECKSUM_OFFSET);
    if let Some(place) = segment.get_mut(at..at + 2) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
}

const _: () = assert!(FRONT >= HEADERS + LONGEST, "all headers fit in front of what is kept");
const _: () = assert!(HEADROOM >= HEADERS, "link and IP headers fit in front");
const _: () = assert!(FRAME_DATA >= LONGEST, "TCP's header fits in a frame");
