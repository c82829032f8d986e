//! A peer whose every segment is written down, in the manner of packetdrill: `P. 1:101(100) ack 1 win 1000`.
//!
//! Numbers are relative to each side's first. Flags stand in the order `FSRPU.EW`, the dot being ACK; `urg` is the urgent pointer; `[ect0]`
//! and `[ce]` behind them are the marks of IP, and `[ttl 7]` is a time to live that is not 64.

use std::fmt::Write;
use std::time::Duration;

use bywash_frame::{Batch, Packet, Pool};
use bywash_stack::{ConnectionId, Event, Host, Interface, Medium, Offloads, Timestamp};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{
    FastOpen, FastOpenCookie, ICMP_HEADER, IcmpHeader, Ipv4Header, TcpFlags, TcpHeader, TcpOptions, icmpv4,
};

use super::{PORT, pool};

const PEER_FIRST: u32 = 1000;
const FLAGS: [(char, TcpFlags); 8] = [
    ('F', TcpFlags::FIN),
    ('S', TcpFlags::SYN),
    ('R', TcpFlags::RST),
    ('P', TcpFlags::PSH),
    ('U', TcpFlags::URG),
    ('.', TcpFlags::ACK),
    ('E', TcpFlags::ECE),
    ('W', TcpFlags::CWR),
];

/// What IP's two bits of congestion say.
const CODEPOINTS: [&str; 4] = ["", " [ect1]", " [ect0]", " [ce]"];

/// A host on a wire without Ethernet, and the peer 10.0.0.2 that a test plays.
pub(crate) struct Trace {
    pub(crate) host: Host,
    pub(crate) pool: Pool,
    pub(crate) now: Timestamp,
    batch: Batch,
    /// Our first sequence number, when it was seen.
    first: Option<u32>,
    /// Our clock as it was last seen, which the peer echoes.
    pub(crate) clock: u32,
    /// Ours, the peer's.
    pub(crate) ports: (u16, u16),
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self::over(Offloads::default())
    }

    /// By a port that can do so much.
    pub(crate) fn over(offloads: Offloads) -> Self {
        Self::with(500, 1500, offloads)
    }

    /// By a port that can do so much, with such an MTU.
    pub(crate) fn over_mtu(mtu: u16, offloads: Offloads) -> Self {
        Self::with(500, mtu, offloads)
    }

    /// With so much memory.
    pub(crate) fn with_frames(frames: usize) -> Self {
        Self::with(frames, 1500, Offloads::default())
    }

    fn with(frames: usize, mtu: u16, offloads: Offloads) -> Self {
        let mut pool = pool(frames);
        let mut host = Host::new([5; 16], &mut pool);
        let interface = Interface { name: "test".into(), port: PORT, medium: Medium::Ip, mtu, offloads };
        let id = host.control.add_interface(interface).unwrap();
        let now = Timestamp::from_nanos(10_000_000_000);
        host.control.add_address(now, id, "10.0.0.1/24".parse().unwrap()).unwrap();
        host.advance(now, &mut pool);
        Self { host, pool, now, batch: Batch::new(), first: None, clock: 0, ports: (80, 5000) }
    }

    /// A connection the peer opens to port 80, in a round trip of 20 ms. `clock`: what its acknowledgment has of options.
    pub(crate) fn accept(&mut self, window: u16, options: &str, clock: &str) -> ConnectionId {
        self.host.stack.listen(None, 80, 4).unwrap();
        self.peer(&format!("S 0:0(0) win {window} <{options}>"));
        assert_eq!(self.output().len(), 1);
        self.pass(Duration::from_millis(20));
        self.peer(&format!(". 1:1(0) ack 1 win {window} {clock}"));
        self.sends(&[]);
        let events = self.events();
        let [Event::Accepted { connection, .. }] = events[..] else { panic!("{events:?}") };
        connection
    }

    /// The program writes `n` bytes.
    pub(crate) fn send(&mut self, id: ConnectionId, n: usize) {
        assert_eq!(self.host.stack.send(self.now, id, &vec![7; n], &mut self.pool).unwrap(), n);
    }

    /// The peer sends a segment.
    pub(crate) fn peer(&mut self, text: &str) {
        let packet = self.build(text);
        self.raw(&packet);
    }

    /// The peer sends segments that arrive at once: those in a row are put together.
    pub(crate) fn peer_together(&mut self, texts: &[String]) {
        for text in texts {
            let mut packet = Packet::new(self.pool.take().unwrap());
            packet.extend_from_slice(&self.build(text)).unwrap();
            self.batch.push(packet);
        }
        self.host.receive(self.now, PORT, &mut self.batch, &mut self.pool);
    }

    /// Bytes arrive.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        let mut packet = Packet::new(self.pool.take().unwrap());
        packet.extend_from_slice(bytes).unwrap();
        self.batch.push(packet);
        self.host.receive(self.now, PORT, &mut self.batch, &mut self.pool);
    }

    /// A router says by ICMP that a segment of ours with that number got no further: the code, and the rest of its header.
    pub(crate) fn unreachable(&mut self, id: ConnectionId, code: u8, rest: u32, seq: u32) {
        let flow = self.host.stack.flow(id).unwrap();
        let mut quoted =
            Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 1020).as_bytes().to_vec();
        quoted.extend(flow.local_port.to_be_bytes());
        quoted.extend(flow.remote_port.to_be_bytes());
        quoted.extend(self.absolute(seq).to_be_bytes());
        let mut icmp = IcmpHeader { kind: icmpv4::UNREACHABLE, code, checksum: 0.into(), rest: rest.into() };
        icmp.checksum = Sum::new().bytes(icmp.as_bytes()).bytes(&quoted).checksum().into();
        let length = u16::try_from(ICMP_HEADER + quoted.len()).unwrap();
        let ip = Ipv4Header::new([10, 0, 0, 9].into(), [10, 0, 0, 1].into(), 1, length);
        self.raw(&[ip.as_bytes(), icmp.as_bytes(), &quoted].concat());
    }

    /// What we send now is exactly this.
    #[track_caller]
    pub(crate) fn sends(&mut self, expected: &[&str]) {
        assert_eq!(self.output(), expected);
    }

    /// Nothing is sent for a time, and then exactly this, within two milliseconds.
    #[track_caller]
    pub(crate) fn after(&mut self, time: Duration, expected: &[&str]) {
        self.sends(&[]);
        let end = self.now + time;
        while let Some(next) = self.host.next_deadline().filter(|next| *next < end - Duration::from_millis(1))
        {
            self.now = next.max(self.now + Duration::from_nanos(1));
            self.sends(&[]);
        }
        self.now = end + Duration::from_millis(1);
        self.sends(expected);
    }

    /// Our first number, when it was seen.
    pub(crate) fn first(&self) -> Option<u32> {
        self.first
    }

    /// One of our numbers as it is on the wire.
    pub(crate) fn absolute(&self, seq: u32) -> u32 {
        self.first.unwrap().wrapping_add(seq)
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.host.stack.events().collect()
    }

    /// Everything we send now.
    pub(crate) fn output(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        self.host.advance(self.now, &mut self.pool);
        self.host.transmit(PORT, &mut self.batch);
        for packet in self.batch.drain().collect::<Vec<_>>() {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(&mut bytes);
            self.pool.give_packet(packet);
            lines.push(self.render(&bytes));
        }
        lines
    }

    /// To which of the peer's ports each segment goes that we send now.
    pub(crate) fn peers_of_output(&mut self) -> Vec<u16> {
        self.host.advance(self.now, &mut self.pool);
        self.host.transmit(PORT, &mut self.batch);
        let mut ports = Vec::new();
        for packet in self.batch.drain() {
            ports.push(u16::from_be_bytes([packet.head()[22], packet.head()[23]]));
            self.pool.give_packet(packet);
        }
        ports
    }

    fn render(&mut self, bytes: &[u8]) -> String {
        let ip = Ipv4Header::parse(bytes, bytes.len()).expect("our header is right");
        let segment = &bytes[ip.header_length()..];
        let pseudo = Sum::pseudo(
            &ip.source().octets(),
            &ip.destination().octets(),
            6,
            u32::try_from(segment.len()).unwrap(),
        );
        assert_eq!(pseudo.bytes(segment).checksum(), 0, "our checksum is right");
        let tcp = TcpHeader::parse(segment).expect("our header is right");
        let options = TcpOptions::parse(&segment[20..tcp.header_length()]);
        self.ports.0 = tcp.source_port.get();
        let reset = tcp.flags.has(TcpFlags::RST);
        if tcp.flags.has(TcpFlags::SYN) {
            self.first = Some(tcp.sequence.get());
        }
        let mut line: String =
            FLAGS.iter().filter(|(_, flag)| tcp.flags.has(*flag)).map(|(c, _)| *c).collect();
        line += CODEPOINTS[usize::from(ip.traffic_class & 3)];
        if ip.time_to_live != 64 {
            write!(line, " [ttl {}]", ip.time_to_live).unwrap();
        }
        let seq = tcp.sequence.get().wrapping_sub(self.first.unwrap_or(0));
        let len = u32::try_from(segment.len() - tcp.header_length()).unwrap();
        write!(line, " {seq}:{}({len})", seq.wrapping_add(len)).unwrap();
        if tcp.flags.has(TcpFlags::ACK) {
            write!(line, " ack {}", tcp.acknowledgment.get().wrapping_sub(PEER_FIRST)).unwrap();
        }
        if !reset {
            write!(line, " win {}", tcp.window.get()).unwrap();
        }
        if tcp.flags.has(TcpFlags::URG) {
            write!(line, " urg {}", tcp.urgent.get()).unwrap();
        }
        let mut words = Vec::new();
        words.extend(options.mss.map(|mss| format!("mss {mss}")));
        words.extend(options.sack_permitted.then(|| "sackOK".into()));
        if let Some((clock, echo)) = options.timestamps {
            self.clock = if reset { self.clock } else { clock };
            words.push(format!("TS ecr {echo}"));
        }
        words.extend(options.window_scale.map(|scale| format!("wscale {scale}")));
        let block = |n: u32| n.wrapping_sub(PEER_FIRST);
        words.extend(options.fast_open.map(|FastOpen { cookie, experimental }| {
            let name = if experimental { "FOEXP" } else { "FO" };
            cookie.map_or(name.to_owned(), |cookie| format!("{name} {cookie:?}"))
        }));
        words.extend(options.sack.iter().map(|(from, to)| format!("sack {}:{}", block(*from), block(*to))));
        if !words.is_empty() {
            write!(line, " <{}>", words.join(",")).unwrap();
        }
        line
    }

    fn build(&self, text: &str) -> Vec<u8> {
        let (text, mark) = match CODEPOINTS.iter().position(|name| !name.is_empty() && text.contains(name)) {
            Some(mark) => (&text.replace(CODEPOINTS[mark], ""), mark),
            None => (&text.to_owned(), 0),
        };
        let (main, options) = text.split_once(" <").unwrap_or((text, ">"));
        let mut words = main.split(' ');
        let flags = words.next().unwrap().chars().fold(TcpFlags::default(), |flags, c| {
            flags.with(FLAGS.iter().find(|(name, _)| *name == c).expect("a flag").1)
        });
        let (seq, rest) = words.next().unwrap().split_once(':').unwrap();
        let len: usize = rest.split_once('(').unwrap().1.trim_end_matches(')').parse().unwrap();
        let (mut ack, mut window, mut urgent) = (0u32, 0u16, 0u16);
        while let (Some(word), Some(value)) = (words.next(), words.next()) {
            match word {
                "ack" => {
                    ack = self.first.unwrap_or(0).wrapping_add(value.parse::<i32>().unwrap().cast_unsigned())
                }
                "win" => window = value.parse().unwrap(),
                "urg" => urgent = value.parse().unwrap(),
                _ => panic!("what is {word}?"),
            }
        }
        let options = self.options(options.trim_end_matches('>')).write();
        let seq = PEER_FIRST.wrapping_add(seq.parse::<i32>().unwrap().cast_unsigned());
        let ports = (self.ports.1, self.ports.0);
        let mut tcp = TcpHeader::new(ports, seq, ack, flags, window, u8::try_from(options.len()).unwrap());
        tcp.urgent = urgent.into();
        let payload: Vec<u8> = (0..len).map(|i| (seq as usize + i).to_le_bytes()[0]).collect();
        let (from, to) = ([10, 0, 0, 2], [10, 0, 0, 1]);
        let length = u32::try_from(20 + options.len() + len).unwrap();
        let sum = Sum::pseudo(&from, &to, 6, length).bytes(tcp.as_bytes()).bytes(&options).bytes(&payload);
        tcp.checksum = sum.checksum().into();
        let mut ip = Ipv4Header::new(from.into(), to.into(), 6, u16::try_from(length).unwrap());
        ip.traffic_class = u8::try_from(mark).unwrap();
        ip.seal();
        [ip.as_bytes(), tcp.as_bytes(), &options, &payload].concat()
    }

    fn options(&self, text: &str) -> TcpOptions {
        let mut options = TcpOptions::default();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once(' ').unwrap_or((option, ""));
            match name {
                "mss" => options.mss = Some(value.parse().unwrap()),
                "sackOK" => options.sack_permitted = true,
                "wscale" => options.window_scale = Some(value.parse().unwrap()),
                // The echo is what we last sent.
                "TS" => options.timestamps = Some((value.parse().unwrap(), self.clock)),
                "FO" | "FOEXP" => {
                    let cookie = hex(value).and_then(|bytes| FastOpenCookie::new(&bytes));
                    options.fast_open = Some(FastOpen { cookie, experimental: name == "FOEXP" });
                }
                "sack" => {
                    let (from, to) = value.split_once(':').unwrap();
                    let ours = |n: &str| self.first.unwrap().wrapping_add(n.parse().unwrap());
                    options.sack.push((ours(from), ours(to)));
                }
                _ => panic!("what is {name}?"),
            }
        }
        options
    }
}

/// The bytes that a cookie is written as.
fn hex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok()).collect()
}
