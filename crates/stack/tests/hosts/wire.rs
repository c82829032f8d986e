//! Hosts joined by wires in memory, under a virtual clock.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use bywash_frame::{Arena, Batch, FRAME_DATA, Packet, Pool, Segment};
use bywash_stack::{Address, Host, Interface, InterfaceId, Medium, Offloads, PortId, Timestamp};
use bywash_wire::Mac;

pub(crate) mod network;
pub(crate) mod seeds;
pub(crate) mod trace;

pub(crate) const PORT: PortId = PortId(0);

/// One host with its memory.
pub(crate) struct Node {
    pub(crate) host: Host,
    pub(crate) pool: Pool,
    pub(crate) batch: Batch,
}

pub(crate) fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

thread_local! {
    /// Packet memory stays for ever: what a test has left, the next one takes.
    static ARENAS: RefCell<Vec<(usize, &'static Arena)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn pool(frames: usize) -> Pool {
    ARENAS.with_borrow_mut(|arenas| {
        let free =
            |(size, arena): &&(usize, &'static Arena)| *size == frames && arena.unused() == arena.frames();
        let known = arenas.iter().find(free).map(|(_, arena)| *arena);
        let arena = known.unwrap_or_else(|| {
            let arena = Arena::new(vec![0; frames * 2304]).unwrap();
            arenas.push((frames, arena));
            arena
        });
        arena.pool(frames - 8).unwrap()
    })
}

impl Node {
    pub(crate) fn new(number: u8) -> Self {
        Self::with_frames(number, 2000)
    }

    pub(crate) fn with_frames(number: u8, frames: usize) -> Self {
        let mut pool = pool(frames);
        Self { host: Host::new([number; 16], &mut pool), pool, batch: Batch::new() }
    }

    pub(crate) fn with_interface(
        mut self,
        port: u16,
        mac: u8,
        vlan: Option<u16>,
        mtu: u16,
        prefix: &str,
    ) -> Self {
        let id = self
            .host
            .control
            .add_interface(Interface {
                name: format!("port{port}"),
                port: PortId(port),
                medium: Medium::Ethernet { mac: Mac([2, 0, 0, 0, 0, mac]), vlan },
                mtu,
                offloads: Offloads::default(),
            })
            .unwrap();
        self.host.control.add_address(Timestamp::ZERO, id, prefix.parse().unwrap()).unwrap();
        self.host.advance(Timestamp::ZERO, &mut self.pool);
        self
    }

    pub(crate) fn with_route(mut self, prefix: &str, gateway: &str, interface: InterfaceId) -> Self {
        let route = bywash_stack::Route {
            prefix: prefix.parse().unwrap(),
            gateway: Some(address(gateway)),
            interface,
            metric: 0,
            source: None,
        };
        self.host.control.add_route(route).unwrap();
        self.host.advance(Timestamp::ZERO, &mut self.pool);
        self
    }

    pub(crate) fn interface(&self, number: usize) -> InterfaceId {
        self.host.control.interfaces().nth(number).unwrap().0
    }

    /// The number of the snapshot that its stack has: how many there were before.
    pub(crate) fn generation(&self) -> u32 {
        let text = format!("{:?}", self.host.stack.snapshot());
        let number = text.split("generation: ").nth(1).and_then(|rest| rest.split(',').next());
        number.unwrap().parse().unwrap()
    }

    /// Takes packets off a port, as bytes.
    pub(crate) fn take(&mut self, now: Timestamp, port: PortId) -> Vec<Vec<u8>> {
        self.host.advance(now, &mut self.pool);
        let mut packets = Vec::new();
        loop {
            self.host.transmit(port, &mut self.batch);
            if self.batch.is_empty() {
                return packets;
            }
            for packet in self.batch.drain() {
                let mut bytes = vec![0; packet.len()];
                packet.copy_to(&mut bytes);
                packets.push(bytes);
                self.pool.give_packet(packet);
            }
        }
    }

    /// Gives a port bytes as a packet.
    pub(crate) fn put(&mut self, now: Timestamp, port: PortId, bytes: &[u8]) {
        let mut pieces = bytes.chunks(FRAME_DATA);
        let mut packet = Packet::new(self.pool.take().expect("frames"));
        packet.extend_from_slice(pieces.next().expect("no empty packet")).expect("it fits");
        for piece in pieces {
            let segment = Segment::new(self.pool.take().expect("frames"), 0, 0).expect("in the frame");
            packet.push_segment(segment, &mut self.pool).expect("64 KiB at most");
            packet.extend_from_slice(piece).expect("it fits");
        }
        self.batch.push(packet);
        self.host.receive(now, port, &mut self.batch, &mut self.pool);
        self.host.advance(now, &mut self.pool);
    }

    /// Checks that nothing holds a frame any more.
    pub(crate) fn assert_nothing_leaked(&self) {
        assert_eq!(
            self.pool.free() + self.pool.arena().unused(),
            self.pool.arena().frames(),
            "frames are held somewhere"
        );
    }
}

/// Two hosts on one link.
pub(crate) struct Pair {
    pub(crate) now: Timestamp,
    pub(crate) a: Node,
    pub(crate) b: Node,
    /// Every packet that went over the link, oldest first; `true`: from a to b.
    pub(crate) trace: VecDeque<(bool, Vec<u8>)>,
}

impl Pair {
    pub(crate) fn new(mtu: u16) -> Self {
        Self {
            now: Timestamp::from_nanos(1_000_000_000),
            a: Node::new(1).with_interface(0, 1, None, mtu, "10.0.0.1/24"),
            b: Node::new(2).with_interface(0, 2, None, mtu, "10.0.0.2/24"),
            trace: VecDeque::new(),
        }
    }

    /// Moves packets until both are silent.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1000 {
            let (from_a, from_b) = (self.a.take(self.now, PORT), self.b.take(self.now, PORT));
            if from_a.is_empty() && from_b.is_empty() {
                return;
            }
            for bytes in from_a {
                self.b.put(self.now, PORT, &bytes);
                self.trace.push_back((true, bytes));
            }
            for bytes in from_b {
                self.a.put(self.now, PORT, &bytes);
                self.trace.push_back((false, bytes));
            }
        }
        panic!("the two never fall silent");
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.settle();
    }
}
