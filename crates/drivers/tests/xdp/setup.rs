//! What the tests of `xdp:` ports share: a cable, ports on its ends, and packets that can be told apart.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bywash_drivers::xdp::{self, Options, XdpPort};
use bywash_frame::{Arena, Batch, Kept, Packet, Pool, Segment};
use bywash_lab::{Host, Lab, PairOptions, Untouched};
use bywash_port::{Counter, OpenError, Port, QueueChoice, QueuePair, RxQueue, TxQueue};
use bywash_sys::memory::{HugePages, allocate};

/// Two hosts and a cable: `right` on the first, `left` on the second.
pub(crate) struct Cable {
    pub(crate) lab: Lab,
    _guard: Untouched,
}

pub(crate) fn cable(options: &PairOptions) -> Option<Cable> {
    row(2, options)
}

pub(crate) fn row(hosts: u8, options: &PairOptions) -> Option<Cable> {
    let guard = bywash_lab::lock()?;
    Some(Cable { lab: Lab::row(hosts, options).unwrap(), _guard: guard })
}

impl Cable {
    pub(crate) fn near(&self) -> &Host {
        &self.lab.hosts[0]
    }

    pub(crate) fn far(&self) -> &Host {
        &self.lab.hosts[1]
    }
}

/// Ordinary pages: nothing of the machine's is used up.
pub(crate) fn arena(frames: usize) -> &'static Arena {
    let bytes = bywash_frame::Stride::Packed.memory_for(frames);
    Arena::new(allocate(bytes, HugePages::Off, None).unwrap().memory).unwrap()
}

/// All packets, small rings.
pub(crate) fn options() -> Options {
    Options { ring_size: 512, force: true, ..Options::default() }
}

pub(crate) fn try_open(
    host: &Host,
    interface: &str,
    options: &Options,
    arena: &'static Arena,
) -> Result<XdpPort, OpenError> {
    host.enter(|| xdp::open(interface, QueueChoice::default(), options, arena)).unwrap()
}

pub(crate) fn open(host: &Host, interface: &str, options: &Options, arena: &'static Arena) -> Box<XdpPort> {
    Box::new(try_open(host, interface, options, arena).unwrap())
}

/// The only queue of a port.
pub(crate) fn halves(port: &mut XdpPort) -> (Box<dyn RxQueue>, Box<dyn TxQueue>) {
    let mut queues = port.queues();
    assert_eq!(queues.len(), 1);
    let QueuePair { rx, tx } = queues.remove(0);
    (rx.unwrap(), tx.unwrap())
}

/// A port on either end of a cable, each with one queue, and the pool that serves both.
pub(crate) struct Line {
    pub(crate) near: Box<XdpPort>,
    pub(crate) far: Box<XdpPort>,
    near_rx: Box<dyn RxQueue>,
    far_tx: Box<dyn TxQueue>,
    /// The near one's sending half.
    pub(crate) tx: Box<dyn TxQueue>,
    /// The far one's receiving half.
    pub(crate) rx: Box<dyn RxQueue>,
    pub(crate) pool: Pool,
}

impl Line {
    /// Opens both ends with all packets and small rings, on an arena of its own; the pool starts with `frames`.
    pub(crate) fn open(cable: &Cable, frames: usize) -> Self {
        Self::open_with(cable, frames, [&options(), &options()])
    }

    pub(crate) fn open_with(cable: &Cable, frames: usize, [near, far]: [&Options; 2]) -> Self {
        let arena = arena(8192);
        let pool = arena.pool(frames).unwrap();
        let mut near = open(cable.near(), "right", near, arena);
        let mut far = open(cable.far(), "left", far, arena);
        let ((near_rx, tx), (rx, far_tx)) = (halves(&mut near), halves(&mut far));
        Self { near, far, near_rx, far_tx, tx, rx, pool }
    }

    /// A packet whose frames are as full as can be.
    pub(crate) fn packet(&mut self, bytes: &[u8]) -> Packet {
        packet(&mut self.pool, bytes, 2048)
    }

    /// As [`send`], from the near end.
    pub(crate) fn send(&mut self, batch: &mut Batch) {
        send(self.tx.as_mut(), &mut self.pool, batch);
    }

    /// As [`receive`], at the far end.
    pub(crate) fn receive(&mut self, wanted: usize) -> Vec<Vec<u8>> {
        receive(self.rx.as_mut(), &mut self.pool, wanted)
    }

    /// Closes everything; every frame must be back then, and none dropped on the way.
    pub(crate) fn close(mut self) {
        close(self.near, self.near_rx, self.tx, &mut self.pool);
        close(self.far, self.rx, self.far_tx, &mut self.pool);
        let arena = self.pool.arena();
        assert_eq!((self.pool.free() + arena.unused(), arena.orphaned()), (arena.frames(), 0));
    }
}

/// An Ethernet frame of `len` bytes to everybody, of a type nobody has (RFC 5342's for experiments), with a number and a
/// pattern that depends on it.
pub(crate) fn bytes(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    bytes.extend(number.to_be_bytes());
    bytes.extend(
        (bytes.len()..len).map(|i| (i as u64).wrapping_mul(31).wrapping_add(number).to_le_bytes()[0]),
    );
    bytes.truncate(len);
    bytes
}

/// As many frames as it takes, `per_frame` bytes in each. Each second one behind the first is a part of a frame that somebody else has
/// kept, and of every other length so is the first one, behind headers.
pub(crate) fn packet(pool: &mut Pool, bytes: &[u8], per_frame: usize) -> Packet {
    let mut parts = bytes.chunks(per_frame);
    let mut packet = first(pool, parts.next().unwrap());
    for (i, part) in parts.enumerate() {
        let mut frame = pool.take().unwrap();
        frame.bytes_mut()[256..256 + part.len()].copy_from_slice(part);
        if i % 2 == 0 {
            packet.push_segment(Segment::new(frame, 256, part.len()).unwrap(), pool).unwrap();
        } else {
            let mut kept = Kept::new(frame);
            packet.push_part(kept.part(256, part.len()).unwrap(), pool).unwrap();
            pool.give_kept(kept);
        }
    }
    packet
}

fn first(pool: &mut Pool, bytes: &[u8]) -> Packet {
    if bytes.len().is_multiple_of(2) || bytes.len() > 1900 {
        let mut packet = Packet::new(pool.take().unwrap());
        packet.extend_from_slice(bytes).unwrap();
        return packet;
    }
    let (headers, rest) = bytes.split_at(bytes.len().min(64));
    let mut kept = Kept::behind(pool.take().unwrap(), 320);
    kept.bytes_mut(0)[..rest.len()].copy_from_slice(rest);
    let mut packet = kept.packet(headers.len(), rest.len()).unwrap();
    packet.head_mut().copy_from_slice(headers);
    pool.give_kept(kept);
    packet
}

pub(crate) fn whole(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    assert_eq!(packet.copy_to(&mut bytes), bytes.len());
    bytes
}

/// Queues all of `batch` and flushes until everything is completed.
pub(crate) fn send(tx: &mut dyn TxQueue, pool: &mut Pool, batch: &mut Batch) {
    let start = Instant::now();
    while !batch.is_empty() || tx.in_flight() > 0 {
        tx.tx(pool, batch);
        tx.flush(pool);
        assert!(start.elapsed() < PATIENCE, "{} in flight", tx.in_flight());
    }
}

/// Receives until there are `wanted` packets or a second has passed without one.
pub(crate) fn receive(rx: &mut dyn RxQueue, pool: &mut Pool, wanted: usize) -> Vec<Vec<u8>> {
    let (mut got, mut batch, mut last) = (Vec::new(), Batch::new(), Instant::now());
    while got.len() < wanted && last.elapsed() < Duration::from_secs(1) {
        if rx.rx(pool, &mut batch) > 0 {
            last = Instant::now();
        }
        got.extend(batch.iter().map(whole));
        pool.give_batch(&mut batch);
    }
    got
}

pub(crate) fn counter(port: &XdpPort, name: &str) -> u64 {
    let counters = port.counters();
    let found = counters.iter().find(|counter: &&Counter| counter.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {counters:?}")).value
}

/// Nothing here takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A UDP datagram from the first host to the second's port 5353, in Ethernet; its checksum is left out, as UDP allows.
pub(crate) fn udp(cable: &Cable, payload: &[u8]) -> Vec<u8> {
    let pair = &cable.lab.pairs[0];
    let mut bytes = [pair.far.mac.0, pair.near.mac.0].concat();
    let udp_len = u16::try_from(8 + payload.len()).unwrap();
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum: u32 = ip.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend([8, 0]);
    bytes.extend(ip);
    bytes.extend([5353_u16, UDP_PORT, udp_len, 0].iter().flat_map(|field| field.to_be_bytes()));
    bytes.extend(payload);
    bytes
}

pub(crate) const UDP_PORT: u16 = 5353;

/// A socket of the kernel's on the second host, where what is left to the kernel arrives.
pub(crate) fn kernel_socket(host: &Host) -> UdpSocket {
    let socket = host.enter(|| UdpSocket::bind(("10.0.0.2", UDP_PORT))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// What has arrived there.
pub(crate) fn arrived(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 2048];
    let len = socket.recv(&mut bytes).ok()?;
    bytes.truncate(len);
    Some(bytes)
}

/// Closes both halves of both ports and the ports; every frame must be back then.
pub(crate) fn close(port: Box<XdpPort>, rx: Box<dyn RxQueue>, tx: Box<dyn TxQueue>, pool: &mut Pool) {
    rx.close(pool);
    tx.close(pool);
    assert_eq!(counter(&port, "abandoned_frames"), 0);
    port.close().unwrap();
}
