//! What operators are told in numbers: each is counted where it happens, and nowhere else.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use bywash_frame::BATCH;
use bywash_stack::{ConnectionId, ControlCounters, Counters, Limits, Offloads};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{ArpOperation, ArpPacket, Ipv4Header, Mac, TcpFlags, TcpHeader};

use crate::wire::trace::Trace;
use crate::wire::{PORT, Pair, address};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What is counted differently now: `passive_opens +1, half_open -1`. Of names that begin with `of`, which is left out.
fn changes(
    of: &str,
    before: impl Iterator<Item = (&'static str, u64)>,
    now: impl Iterator<Item = (&'static str, u64)>,
) -> String {
    let all = before.zip(now).filter_map(|((name, before), (_, now))| {
        let change = now.cast_signed() - before.cast_signed();
        let name = name.strip_prefix(of).filter(|_| change != 0)?;
        Some(format!("{name} {change:+}"))
    });
    all.collect::<Vec<_>>().join(", ")
}

/// A peer that a test plays, and what was counted when it last looked.
struct Watched {
    t: Trace,
    seen: Counters,
}

impl Watched {
    fn new() -> Self {
        Self::over(Trace::new())
    }

    fn over(t: Trace) -> Self {
        Self { seen: t.host.stack.counters(), t }
    }

    /// A connection the peer has opened, with SACK.
    fn accepted(options: &str, clock: &str) -> (Self, ConnectionId) {
        let mut t = Trace::new();
        let id = t.accept(30_000, options, clock);
        (Self::over(t), id)
    }

    /// What TCP has counted since this was last called is exactly this, but for segments that came and went.
    #[track_caller]
    fn counts(&mut self, expected: &str) {
        let mut now = self.t.host.stack.counters();
        (self.seen.tcp_received, self.seen.tcp_sent) = (now.tcp_received, now.tcp_sent);
        std::mem::swap(&mut now, &mut self.seen);
        assert_eq!(changes("tcp_", now.named(), self.seen.named()), expected);
    }

    /// The peer sends a segment: exactly this is counted.
    #[track_caller]
    fn peer(&mut self, segment: &str, expected: &str) {
        self.t.peer(segment);
        self.t.output();
        self.counts(expected);
    }

    fn connect(&mut self) -> ConnectionId {
        self.t.ports.1 = 80;
        let to = (address("10.0.0.2"), 80);
        let id = self.t.host.stack.connect(self.t.now, (None, 0), to, &mut self.t.pool).unwrap();
        self.t.output();
        id
    }

    fn close(&mut self, id: ConnectionId) {
        self.t.host.stack.close(self.t.now, id, &mut self.t.pool).unwrap();
        self.t.output();
    }

    /// Time passes, deadline by deadline, for at least so long.
    fn pass(&mut self, time: Duration) {
        let end = self.t.now + time;
        while let Some(next) = self.t.host.next_deadline().filter(|next| *next < end) {
            self.t.now = next.max(self.t.now + Duration::from_nanos(1));
            self.t.output();
        }
        self.t.now = end;
        self.t.output();
    }
}

#[test]
fn opening_and_closing() {
    let mut w = Watched::new();
    w.t.host.stack.listen(None, 80, 4).unwrap();
    w.peer("S 0:0(0) win 30000 <mss 1000>", "half_open +1");
    w.peer(". 1:1(0) ack 1 win 30000", "passive_opens +1, established +1, half_open -1");
    let bywash_stack::Event::Accepted { connection: id, .. } = w.t.events()[0] else { panic!("accepted") };
    w.peer("F. 1:1(0) ack 1 win 30000", "");
    w.close(id);
    w.counts("established -1");
    w.peer(". 2:2(0) ack 2 win 30000", "");
    let id = w.connect();
    w.counts("active_opens +1");
    w.peer("S. 0:0(0) ack 1 win 30000 <mss 1000>", "established +1");
    w.close(id);
    w.counts("established -1");
    w.peer("F. 1:1(0) ack 2 win 30000", "time_wait +1");
    w.pass(Duration::from_secs(61));
    w.counts("time_wait -1");
}

#[test]
fn attempts_that_fail() {
    let mut w = Watched::new();
    w.connect();
    w.counts("active_opens +1");
    w.peer("R. 0:0(0) ack 1 win 0", "attempts_failed +1, resets_received +1");
    let id = w.connect();
    w.close(id);
    w.counts("active_opens +1, attempts_failed +1");
    w.connect();
    w.peer("S. 0:0(0) ack 99 win 5000", "active_opens +1, resets_sent +1");
    w.pass(Duration::from_secs(260));
    w.counts("attempts_failed +1, timed_out +1, retransmitted +7, timeouts +7");
    w.t.host.stack.listen(None, 80, 4).unwrap();
    w.t.ports = (80, 5000);
    w.peer("S 0:0(0) win 30000 <mss 1000>", "half_open +1");
    w.peer("S 0:0(0) win 30000 <mss 1000>", "retransmitted +1");
    w.peer("S 0:0(0) win 30000 <mss 1000>", "");
    w.peer(". 1:1(0) ack 77 win 30000", "resets_sent +1");
    w.peer("R 1:1(0) win 0", "attempts_failed +1, resets_received +1, half_open -1");
    w.peer("S 0:0(0) win 30000 <mss 1000>", "half_open +1");
    w.pass(Duration::from_secs(70));
    w.counts("attempts_failed +1, half_open -1, retransmitted +5");
}

#[test]
fn resets_and_challenges() {
    let reset = "established_resets +1, resets_received +1, established -1";
    let (mut w, _) = Watched::accepted("mss 1000", "");
    w.peer("R 100:100(0) win 0", "challenge_acks +1");
    w.peer("R 200:200(0) win 0", "challenge_acks_limited +1");
    w.peer("R 99999:99999(0) win 0", "out_of_window +1");
    w.t.pass(ms(600));
    w.peer("S 50:50(0) win 1000", "challenge_acks +1");
    w.t.pass(ms(600));
    w.peer("P. 1:11(10) ack 500 win 1000", "challenge_acks +1");
    w.peer("R 1:1(0) win 0", reset);
    w.peer(". 1:1(0) ack 1 win 1000", "resets_sent +1");
    let (mut w, id) = Watched::accepted("mss 1000", "");
    w.peer("F. 1:1(0) ack 1 win 30000", "");
    w.peer("R 2:2(0) win 0", reset);
    w.t.host.stack.close(w.t.now, id, &mut w.t.pool).unwrap();
    w.counts("");
    let (mut w, id) = Watched::accepted("mss 1000", "");
    w.t.host.stack.abort(w.t.now, id, &mut w.t.pool).unwrap();
    w.counts("established_resets +1, resets_sent +1, established -1");
    let (mut w, id) = Watched::accepted("mss 1000", "");
    w.close(id);
    w.counts("established -1");
    w.peer("P. 1:11(10) ack 2 win 30000", "resets_sent +1");
    // Strangers in a handshake, and in TIME-WAIT.
    w.peer("S 0:0(0) win 30000 <mss 1000>", "half_open +1");
    w.peer("R 100:100(0) win 0", "challenge_acks +1");
    w.peer("R 200:200(0) win 0", "challenge_acks_limited +1");
    w.peer(". 70000:70000(0) ack 1 win 30000", "out_of_window +1, challenge_acks_limited +1");
    let (mut w, id) = Watched::accepted("mss 1000", "");
    w.close(id);
    w.peer("F. 1:1(0) ack 2 win 30000", "established -1, time_wait +1");
    w.peer(". 90000:90000(0) ack 2 win 30000", "challenge_acks +1");
    w.peer(". 90000:90000(0) ack 2 win 30000", "challenge_acks_limited +1");
}

#[test]
fn losses_and_what_is_done_about_them() {
    let (mut w, id) = Watched::accepted("mss 1000,sackOK", "");
    w.t.send(id, 10_000);
    w.t.output();
    w.t.pass(ms(20));
    w.peer(". 1:1(0) ack 1001 win 30000 <sack 2001:5001>", "retransmitted +1, recoveries +1");
    w.t.pass(ms(20));
    w.peer(". 1:1(0) ack 10001 win 30000 <sack 1001:2001>", "recoveries_undone +1, dsacks_received +1");
    // One segment may only be late, until the reordering timer says that it is lost.
    w.t.send(id, 3000);
    w.t.output();
    w.t.pass(ms(20));
    w.peer(". 1:1(0) ack 10001 win 30000 <sack 11001:12001>", "");
    w.pass(ms(25));
    w.counts("retransmitted +1, recoveries +1");
    // Without SACK by duplicates.
    let (mut w, id) = Watched::accepted("mss 1000", "");
    w.t.send(id, 10_000);
    w.t.output();
    for expected in ["", "", "retransmitted +1, recoveries +1", ""] {
        w.peer(". 1:1(0) ack 1 win 30000", expected);
    }
    // A silent tail.
    let (mut w, id) = Watched::accepted("mss 1000,sackOK", "");
    w.t.send(id, 3000);
    w.t.output();
    w.pass(ms(50));
    w.counts("retransmitted +1, loss_probes +1");
    w.pass(ms(300));
    w.counts("retransmitted +1, timeouts +1");
    let user_timeout = Limits::default().user_timeout;
    let (mut w, id) = Watched::accepted("mss 1000,sackOK", "");
    w.t.send(id, 11_000);
    w.t.output();
    w.pass(ms(50));
    w.counts("loss_probes +1");
    w.pass(user_timeout * 2);
    let counted = w.t.host.stack.counters();
    assert_eq!((counted.tcp_timed_out, counted.tcp_established_resets, counted.tcp_established), (1, 1, 0));
    // The probe has repaired it.
    let (mut w, id) = Watched::accepted("mss 1000,sackOK", "");
    w.t.send(id, 3000);
    w.t.output();
    w.pass(ms(50));
    w.counts("retransmitted +1, loss_probes +1");
    w.peer(". 1:1(0) ack 3001 win 30000", "");
    w.t.send(id, 1000);
    w.t.output();
    w.peer(". 1:1(0) ack 4001 win 30000", "loss_probe_recoveries +1");
}

#[test]
fn what_comes_early_late_twice_or_does_not_fit() {
    let (mut w, _) = Watched::accepted("mss 1000,sackOK", "");
    w.peer(". 1001:2001(1000) ack 1 win 30000", "out_of_order +1");
    w.peer(". 1001:2001(1000) ack 1 win 30000", "duplicates +1");
    w.peer(". 1501:2501(1000) ack 1 win 30000", "out_of_order +1, duplicates +1");
    w.peer(". 1:1001(1000) ack 1 win 30000", "");
    w.peer(". 1:1001(1000) ack 1 win 30000", "duplicates +1");
    w.peer(". 2001:3001(1000) ack 1 win 30000", "duplicates +1");
    w.peer(". 90001:90002(1) ack 1 win 30000", "out_of_window +1");
    w.peer(". 3000:3000(0) ack 1 win 30000", "out_of_window +1, challenge_acks +1");
    w.peer(". 65001:66001(1000) ack 1 win 30000", "out_of_order +1");
    w.peer(". 68001:69001(1000) ack 1 win 30000", "out_of_order +1, out_of_window +1");
    // No more than a quarter of all frames, nor more gaps than there are places for.
    for (frames, kept) in [(400, 100), (4000, 256)] {
        let mut t = Trace::with_frames(frames);
        t.host.stack.set_limits(Limits { receive_initial: 1 << 20, ..Limits::default() });
        t.accept(30_000, "mss 1000,sackOK", "");
        for gap in 1..400 {
            t.peer(&format!(". {}:{}(1) ack 1 win 30000", 2 * gap, 2 * gap + 1));
            t.output();
        }
        let counted = t.host.stack.counters();
        assert_eq!((counted.tcp_out_of_order, counted.tcp_out_of_order_dropped), (kept, 399 - kept));
    }
    // Old clocks, and none.
    let (mut w, _) = Watched::accepted("mss 1000,TS 100", "<TS 101>");
    w.peer("P. 1:11(10) ack 1 win 30000 <TS 99>", "paws +1");
    w.peer(". 1:1(0) ack 1 win 30000 <TS 99>", "paws +1, challenge_acks +1");
    w.peer("P. 1:11(10) ack 1 win 30000", "paws +1");
    let mut w = Watched::new();
    w.t.host.stack.listen(None, 80, 4).unwrap();
    w.peer("S 0:0(0) win 30000 <mss 1000,TS 100>", "half_open +1");
    w.peer(". 1:1(0) ack 1 win 30000 <TS 99>", "paws +1, challenge_acks +1");
    w.peer(". 1:1(0) ack 1 win 30000", "paws +1");
}

#[test]
fn probes_of_the_silent() {
    let (mut w, id) = Watched::accepted("mss 1000", "");
    w.peer(". 1:1(0) ack 1 win 0", "");
    w.t.send(id, 500);
    let rto = w.t.host.stack.tcp_info(w.t.now, id).unwrap().rto;
    w.pass(rto + ms(10));
    w.counts("window_probes +1");
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { keepalive: true, ..Limits::default() });
    t.accept(30_000, "mss 1000", "");
    let mut w = Watched::over(t);
    w.pass(Duration::from_secs(7201));
    w.counts("keepalives +1");
    w.pass(Duration::from_secs(75 * 9));
    let end = "established_resets +1, resets_sent +1, timed_out +1, established -1, keepalives +8";
    w.counts(end);
}

#[test]
fn cookies() {
    let mut w = Watched::new();
    w.t.host.stack.listen(None, 80, 0).unwrap();
    w.peer(". 1:1(0) ack 2 win 300", "resets_sent +1");
    w.peer("S 0:0(0) win 30000 <mss 1400>", "cookies_sent +1");
    w.peer(". 1:1(0) ack 2 win 300", "resets_sent +1, cookies_failed +1");
    w.peer(". 1:1(0) ack 1 win 300", "passive_opens +1, established +1, cookies_accepted +1");
}

#[test]
fn congestion_marks() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { ecn: true, ..Limits::default() });
    let mut w = Watched::over(t);
    let id = w.connect();
    w.peer("S.E 0:0(0) ack 1 win 30000 <mss 1000>", "active_opens +1, established +1");
    w.peer("P. [ce] 1:11(10) ack 1 win 30000", "ecn_marked +1");
    w.peer("P. 11:21(10) ack 1 win 30000", "");
    w.t.send(id, 10_000);
    w.t.output();
    w.peer(".E 21:21(0) ack 1001 win 30000", "ecn_slowed +1");
    w.peer(".E 21:21(0) ack 2001 win 30000", "");
}

/// Segments as they are on the wire: what a port cuts counts as its pieces.
#[test]
fn all_that_is_sent() {
    for segmentation in [false, true] {
        let mut t = Trace::over(Offloads { segmentation, ..Offloads::default() });
        let id = t.accept(30_000, "mss 1000", "");
        // The answer to the SYN.
        let mut packets = 1;
        for segment in ["P. 1:11(10) ack 1 win 30000", "R 15:15(0) win 0"] {
            t.peer(segment);
            packets += t.peers_of_output().len();
        }
        assert_eq!(packets, 3);
        t.send(id, 9500);
        packets += t.peers_of_output().len();
        t.peer(". 11:11(0) ack 9001 win 30000");
        packets += t.peers_of_output().len();
        let info = t.host.stack.tcp_info(t.now, id).unwrap();
        assert_eq!((info.data_segs_out, info.segs_out), (10, 12));
        t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
        packets += t.peers_of_output().len();
        let counted = t.host.stack.counters();
        assert_eq!((counted.tcp_sent, counted.tcp_received), (14, 5));
        assert_eq!(packets, if segmentation { 10 } else { 14 });
    }
}

#[test]
fn what_is_broken_or_for_nobody() {
    let mut t = Trace::new();
    let (from, to) = ([10, 0, 0, 2], [10, 0, 0, 1]);
    let mut put = |protocol: u8, transport: &[u8]| {
        let before = t.host.stack.counters();
        let mut ip =
            Ipv4Header::new(from.into(), to.into(), protocol, u16::try_from(transport.len()).unwrap());
        ip.seal();
        t.raw(&[ip.as_bytes(), transport].concat());
        t.peers_of_output();
        changes("", before.named(), t.host.stack.counters().named())
    };
    let mut tcp = TcpHeader::new((5000, 80), 1, 0, TcpFlags::SYN, 1000, 0);
    tcp.checksum = 1.into();
    assert_eq!(put(6, tcp.as_bytes()), "received +1, checksum +1, tcp_errors +1");
    assert_eq!(put(6, &tcp.as_bytes()[..19]), "received +1, malformed +1, tcp_errors +1");
    tcp.checksum = 0.into();
    tcp.checksum = Sum::pseudo(&from, &to, 6, 20).bytes(tcp.as_bytes()).checksum().into();
    let refused = "received +1, refused +1, tcp_received +1, tcp_sent +1, tcp_resets_sent +1";
    assert_eq!(put(6, tcp.as_bytes()), refused);
    assert_eq!(put(17, &[0, 7, 0, 9, 0, 8, 0, 1]), "received +1, checksum +1, udp_errors +1");
    assert_eq!(put(17, &[0, 7, 0, 9, 0, 9, 0, 0]), "received +1, malformed +1, udp_errors +1");
    assert_eq!(put(17, &[0, 7, 0, 9, 0, 8, 0, 0]), "received +1, refused +1, udp_no_port +1");
    assert_eq!(put(99, &[0; 8]), "received +1, refused +1");
}

/// What a control has counted since; and looks anew.
fn control(pair: &Pair, seen: &mut ControlCounters) -> String {
    let before = std::mem::replace(seen, pair.a.host.control.counters());
    changes("", before.named(), seen.named())
}

#[test]
fn neighbours_and_icmp() {
    let mut pair = Pair::new(1500);
    pair.pass(Duration::from_secs(5));
    let mut seen = ControlCounters::default();
    assert_eq!(control(&pair, &mut seen), "arp_requests_sent +2", "announcements");
    // We ask b, which nobody there takes the datagram of.
    let client = pair.a.host.stack.udp_bind(None, 40_000).unwrap();
    let ask = |pair: &mut Pair, to: &str| {
        let to = Some((address(to), 7));
        pair.a.host.stack.udp_send(pair.now, client, to, b"?", &mut pair.a.pool).unwrap();
        pair.settle();
    };
    ask(&mut pair, "10.0.0.2");
    let refused = "icmp_received +1, icmp_error_messages_received +1, arp_requests_sent +1";
    assert_eq!(control(&pair, &mut seen), refused);
    ask(&mut pair, "10.0.0.9");
    pair.pass(Duration::from_secs(1));
    pair.pass(Duration::from_secs(1));
    assert_eq!(control(&pair, &mut seen), "arp_requests_sent +3");
    pair.pass(Duration::from_secs(1));
    assert_eq!(control(&pair, &mut seen), "neighbours_failed +1");
    pair.pass(Duration::from_secs(4));
    assert_eq!(control(&pair, &mut seen), "arp_replies_sent +1", "b makes sure of us");
    // And b asks us.
    let to = Some((address("10.0.0.1"), 7));
    let other = pair.b.host.stack.udp_bind(None, 0).unwrap();
    pair.b.host.stack.udp_send(pair.now, other, to, b"?", &mut pair.b.pool).unwrap();
    pair.settle();
    assert_eq!(control(&pair, &mut seen), "icmp_error_messages_sent +1");
}

#[test]
fn arp_and_conflicts() {
    let mut pair = Pair::new(1500);
    pair.pass(Duration::from_secs(5));
    let mut seen = pair.a.host.control.counters();
    let mut put = |arp: &ArpPacket| {
        let link = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 6];
        pair.a.put(pair.now, PORT, &[&link, arp.as_bytes()].concat());
        pair.a.take(pair.now, PORT);
        control(&pair, &mut seen)
    };
    let (ours, theirs) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 9));
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    let asks = ArpPacket::new(ArpOperation::Request, (mac, theirs), (Mac::default(), ours));
    assert_eq!(put(&asks), "arp_replies_sent +1");
    let claims = ArpPacket::new(ArpOperation::Request, (mac, ours), (Mac::default(), ours));
    assert_eq!(put(&claims), "arp_requests_sent +1, address_conflicts +1");
}

/// From b to a, on the wire.
fn frame(protocol: u8, transport: &[u8]) -> Vec<u8> {
    let length = u16::try_from(transport.len()).unwrap();
    let mut ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), protocol, length);
    ip.seal();
    let link = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    [&link, ip.as_bytes(), transport].concat()
}

#[test]
fn echoes_and_limits() {
    let mut pair = Pair::new(1500);
    pair.pass(Duration::from_secs(5));
    // We know where b is: it has asked us.
    let other = pair.b.host.stack.udp_bind(None, 0).unwrap();
    let to = Some((address("10.0.0.1"), 7));
    pair.b.host.stack.udp_send(pair.now, other, to, b"?", &mut pair.b.pool).unwrap();
    pair.pass(Duration::from_secs(1));
    let mut seen = pair.a.host.control.counters();
    let mut put = |bytes: &[u8]| {
        pair.a.put(pair.now, PORT, bytes);
        pair.a.take(pair.now, PORT);
        control(&pair, &mut seen)
    };
    let replied = "icmp_received +1, icmp_echo_replies +1";
    for _ in 0..50 {
        assert_eq!(put(&frame(1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0])), replied);
    }
    let limited = "icmp_received +1, icmp_echo_limited +1";
    assert_eq!(put(&frame(1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0])), limited);
    assert_eq!(put(&frame(1, &[8, 0, 0, 0, 0, 0, 0, 0])), "icmp_errors +1");
    // Each takes one of fifty on average.
    for _ in 0..150 {
        put(&frame(17, &[0, 7, 0, 9, 0, 8, 0, 0]));
    }
    assert_eq!(put(&frame(17, &[0, 7, 0, 9, 0, 8, 0, 0])), "icmp_error_messages_limited +1");
    let sent = pair.a.host.control.counters().icmp_error_messages_sent;
    assert!((25..=100).contains(&sent), "{sent}");
}

#[test]
fn a_segment_that_was_changed_on_its_way_to_a_connection() {
    let mut pair = Pair::new(1500);
    pair.b.host.stack.listen(None, 80, 4).unwrap();
    let to = (address("10.0.0.2"), 80);
    let id = pair.a.host.stack.connect(pair.now, (None, 0), to, &mut pair.a.pool).unwrap();
    pair.settle();
    pair.a.host.stack.send(pair.now, id, b"some", &mut pair.a.pool).unwrap();
    let mut packet = pair.a.take(pair.now, PORT).remove(0);
    let before = pair.b.host.stack.counters();
    *packet.last_mut().unwrap() ^= 1;
    pair.b.put(pair.now, PORT, &packet);
    let counted = changes("", before.named(), pair.b.host.stack.counters().named());
    assert_eq!(counted, "received +1, checksum +1, tcp_errors +1");
}

#[test]
fn what_the_control_has_no_frame_or_no_place_for() {
    let mut pair = Pair::new(1500);
    pair.pass(Duration::from_secs(5));
    let mut seen = pair.a.host.control.counters();
    // Pings of one whose place nobody knows, one more than may wait for it where so few frames are free.
    let mut held: Vec<_> = std::iter::from_fn(|| pair.a.pool.take()).collect();
    // Beyond those that are left for what must come and go.
    held.drain(..2 * BATCH + 6).for_each(|frame| pair.a.pool.give(frame));
    for _ in 0..3 {
        pair.a.put(pair.now, PORT, &frame(1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]));
    }
    let waits = "icmp_received +3, icmp_echo_replies +3, arp_requests_sent +1, no_memory +1";
    assert_eq!(control(&pair, &mut seen), waits);
    pair.a.take(pair.now, PORT);
    held.extend(std::iter::from_fn(|| pair.a.pool.take()));
    let id = pair.a.interface(1);
    // An announcement, and probes of it and of the link-local address, wait for a frame; a report of both groups is tried.
    for (address, delay, expected) in [("10.0.0.7/24", 0, ""), ("fd00::7/64", 999, "no_memory +1")] {
        pair.a.host.control.add_address(pair.now, id, address.parse().unwrap()).unwrap();
        pair.now = pair.now + Duration::from_millis(delay);
        pair.a.take(pair.now, PORT);
        assert_eq!(control(&pair, &mut seen), expected, "{address}");
    }
    held.pop().into_iter().for_each(|frame| pair.a.pool.give(frame));
    pair.a.put(pair.now, PORT, &frame(17, &[0, 7, 0, 9, 0, 8, 0, 0]));
    assert_eq!(control(&pair, &mut seen), "no_memory +1");
}

/// An operator looks them up there.
#[test]
fn the_manual_has_each_counter_and_no_other() {
    let manual = include_str!("../../../../docs/stack.md");
    let (_, rest) = manual.split_once("\n## Counters\n").expect("the section");
    let section = rest.split("\n## ").next().unwrap();
    let mut told = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let names = row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2);
        names.for_each(|name| assert!(told.insert(name) || name == "no_memory", "{name} is there twice"));
    }
    let (stack, control) = (Counters::default(), ControlCounters::default());
    let counted: BTreeSet<_> = stack.named().chain(control.named()).map(|(name, _)| name).collect();
    let of_engines = BTreeSet::from(["handed_over", "ring_full"]);
    assert_eq!(told, &counted | &of_engines);
}

#[test]
fn bytes_are_those_of_programs_and_no_syn_or_fin() {
    let mut t = Trace::new();
    t.ports.1 = 80;
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    let info = |t: &Trace| t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!(t.output().len(), 1);
    t.pass(ms(1010));
    assert_eq!(t.output().len(), 1);
    assert_eq!((info(&t).total_retrans, info(&t).bytes_retrans), (1, 0));
    t.ports.0 = t.host.stack.flow(id).unwrap().local_port;
    t.peer("S. 0:0(0) ack 1 win 30000 <mss 1000>");
    t.output();
    t.send(id, 100);
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    t.sends(&["FP. 1:101(100) ack 1 win 65535"]);
    t.pass(info(&t).rto + ms(10));
    t.sends(&["FP. 1:101(100) ack 1 win 65535"]);
    assert_eq!((info(&t).total_retrans, info(&t).bytes_retrans), (2, 100));
    t.peer(". 1:1(0) ack 102 win 30000");
    assert_eq!((info(&t).bytes_sent, info(&t).bytes_acked), (200, 100));
}
