//! NICs on a cable, opened by the driver, and what tests do with them.

use std::time::{Duration, Instant};

use bywash_drivers::ixgbe::{self, PhysicalFunction, Settings};
use bywash_drivers::port::frame::{Arena, Batch, Kept, Packet, Pool, Segment, Stride};
use bywash_drivers::port::{Port, PortName, RxQueue, TxQueue};
use bywash_models::cable::Impairment;
use bywash_models::function::InProcess;
use bywash_models::ixgbe::{Board, Faults, Observed};
use bywash_models::world::Shared;
use bywash_sys::memory::{HugePages, allocate};

/// Longest time anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Settings that make runs repeatable: nothing looks at the NIC by itself.
pub(crate) fn quiet() -> Settings {
    Settings { watch: None, ..Settings::default() }
}

/// Packet memory of a test, and its pool.
pub(crate) fn memory(frames: usize) -> (&'static Arena, Pool) {
    let memory = allocate(Stride::Packed.memory_for(frames), HugePages::Off, None).unwrap().memory;
    let arena = Arena::new(memory).unwrap();
    (arena, arena.pool(frames).unwrap())
}

/// A world of one NIC, or two on a cable.
pub(crate) fn world(nics: usize) -> Shared {
    let boards = [1, 2].map(|last| Board { mac: [2, 0, 0, 0, 0, last], ..Board::default() });
    Shared::new(&boards[..nics], Impairment::default())
}

/// A NIC that is open, with all its queues.
pub(crate) struct End<P: Port = PhysicalFunction<InProcess>> {
    pub(crate) port: P,
    pub(crate) rx: Vec<Box<dyn RxQueue>>,
    pub(crate) tx: Vec<Box<dyn TxQueue>>,
    world: Shared,
    index: usize,
}

/// Opens NIC `index` of a world and waits for its link.
pub(crate) fn end(world: &Shared, index: usize, settings: &Settings, arena: &'static Arena) -> End {
    let function = InProcess::new(world, index);
    let mut port = ixgbe::open(function, PortName::Null, settings, arena).unwrap();
    port.wait_for_link(PATIENCE).unwrap();
    End::new(port, world, index)
}

impl<P: Port> End<P> {
    /// A port to NIC `index` of a world.
    pub(crate) fn new(mut port: P, world: &Shared, index: usize) -> Self {
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for queue in port.queues() {
            rx.extend(queue.rx);
            tx.extend(queue.tx);
        }
        Self { port, rx, tx, world: world.clone(), index }
    }

    /// Sends packets by queue 0, at once.
    pub(crate) fn send(&mut self, packets: impl IntoIterator<Item = Packet>, pool: &mut Pool) {
        let mut batch = Batch::new();
        for packet in packets {
            batch.push(packet);
            if batch.room() == 0 {
                self.send_batch(&mut batch, pool);
            }
        }
        self.send_batch(&mut batch, pool);
    }

    fn send_batch(&mut self, batch: &mut Batch, pool: &mut Pool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.tx[0].tx(pool, batch);
            self.tx[0].flush(pool);
            if batch.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "the ring takes no more");
        }
    }

    /// All that queue `queue` has, up to a bound.
    pub(crate) fn receive(&mut self, queue: usize, pool: &mut Pool) -> Vec<Packet> {
        let mut all = Vec::new();
        let mut batch = Batch::new();
        while self.rx[queue].rx(pool, &mut batch) > 0 && all.len() < 10_000 {
            all.extend(batch.drain());
        }
        all
    }

    /// The bytes of all packets of queue 0, whose frames go back.
    pub(crate) fn received(&mut self, pool: &mut Pool) -> Vec<Vec<u8>> {
        let packets = self.receive(0, pool);
        packets.into_iter().map(|packet| bytes(packet, pool)).collect()
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.world.with(self.index, |device| device.nic.faults = faults);
    }

    pub(crate) fn observed(&self) -> Observed {
        self.world.with(self.index, |device| device.nic.observed())
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.port.counters().iter().find(|counter| counter.name == name).unwrap().value
    }

    /// Closes queues and port.
    pub(crate) fn close(self, pool: &mut Pool) -> Result<(), Vec<String>> {
        self.tx.into_iter().for_each(|tx| tx.close(pool));
        self.rx.into_iter().for_each(|rx| rx.close(pool));
        Box::new(self.port).close()
    }
}

/// No NIC of the world was used as the datasheet forbids.
pub(crate) fn no_violations(world: &Shared, nics: usize) {
    for index in 0..nics {
        let broken = world.with(index, |device| device.nic.violations());
        let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "NIC {index}: {broken:#?}");
    }
}

/// A packet's bytes; its frames go back.
pub(crate) fn bytes(packet: Packet, pool: &mut Pool) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.copy_to(&mut bytes);
    pool.give_packet(packet);
    bytes
}

/// A packet of these bytes, in as many frames of `piece` bytes as it takes. Each second one behind the first is a part of a frame
/// that somebody else has kept.
pub(crate) fn packet(bytes: &[u8], piece: usize, pool: &mut Pool) -> Packet {
    let mut pieces = bytes.chunks(piece);
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(pieces.next().unwrap()).unwrap();
    for (i, piece) in pieces.enumerate() {
        let mut segment = Segment::new(pool.take().unwrap(), 256, piece.len()).unwrap();
        segment.bytes_mut().copy_from_slice(piece);
        if i % 2 == 0 {
            packet.push_segment(segment, pool).unwrap();
        } else {
            let mut kept = Kept::new(segment.into_frame());
            packet.push_part(kept.part(256, piece.len()).unwrap(), pool).unwrap();
            pool.give_kept(kept);
        }
    }
    packet
}

/// A frame of `len` bytes between local addresses, each byte after the header its number and `seed`.
pub(crate) fn frame(seed: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend((14..len).map(|i| (i as u8).wrapping_add(seed)));
    frame
}

/// Ones' complement sum of big-endian 16-bit words.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// What a transport header says of itself.
pub(crate) struct Transport {
    pub(crate) protocol: u8,
    pub(crate) ports: (u16, u16),
    pub(crate) payload: Vec<u8>,
}

/// An IPv4 packet in an Ethernet frame, its checksums right.
pub(crate) fn ipv4(source: [u8; 4], destination: [u8; 4], transport: &Transport) -> Vec<u8> {
    let mut frame = frame(0, 14);
    frame[12..14].copy_from_slice(&[8, 0]);
    let l4 = l4(transport);
    let total = (20 + l4.len()) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, transport.protocol, 0, 0];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip.extend(source.into_iter().chain(destination));
    let check = !sum(&ip);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let pseudo =
        [&source[..], &destination, &[0, transport.protocol], &(l4.len() as u16).to_be_bytes()].concat();
    frame.extend(ip);
    frame.extend(checked(l4, &pseudo, transport.protocol));
    frame
}

/// An IPv6 packet in an Ethernet frame, its checksum right.
pub(crate) fn ipv6(source: [u8; 16], destination: [u8; 16], transport: &Transport) -> Vec<u8> {
    let mut frame = frame(0, 14);
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    let l4 = l4(transport);
    let length = (l4.len() as u16).to_be_bytes();
    frame.extend([0x60, 0, 0, 0, length[0], length[1], transport.protocol, 64]);
    frame.extend(source.into_iter().chain(destination));
    let pseudo = [&source[..], &destination, &[0, 0], &length, &[0, 0, 0, transport.protocol]].concat();
    frame.extend(checked(l4, &pseudo, transport.protocol));
    frame
}

fn l4(transport: &Transport) -> Vec<u8> {
    let mut l4 = [transport.ports.0.to_be_bytes(), transport.ports.1.to_be_bytes()].concat();
    match transport.protocol {
        6 => l4.extend([0, 0, 0x10, 0, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]),
        17 => {
            let length = (8 + transport.payload.len()) as u16;
            l4.extend(length.to_be_bytes().into_iter().chain([0, 0]));
        }
        _ => {}
    }
    l4.extend(&transport.payload);
    l4
}

fn checked(mut l4: Vec<u8>, pseudo: &[u8], protocol: u8) -> Vec<u8> {
    let at = match protocol {
        6 => 16,
        17 => 6,
        _ => return l4,
    };
    let mut all = pseudo.to_vec();
    all.extend(&l4);
    l4[at..at + 2].copy_from_slice(&(!sum(&all)).to_be_bytes());
    l4
}
