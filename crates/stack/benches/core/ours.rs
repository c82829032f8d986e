//! What is measured of this stack.

use std::time::{Duration, Instant};

use bywash_frame::{Arena, Batch, Pool};
use bywash_stack::{ConnectionId, Event, Host, Interface, Medium, Offloads, PortId, Timestamp};
use bywash_wire::Mac;

const PORT: PortId = PortId(0);
const SERVER: u16 = 80;

/// How bulk data is moved.
#[derive(Clone, Copy)]
pub(crate) struct Bulk {
    pub(crate) streams: usize,
    pub(crate) in_place: bool,
    /// The wire takes super-segments and unfinished checksums, as a veth does.
    pub(crate) offload: bool,
}

impl Default for Bulk {
    fn default() -> Self {
        Self { streams: 1, in_place: false, offload: false }
    }
}

struct Joined {
    a: Host,
    b: Host,
    pool: Pool,
    batch: Batch,
    start: Instant,
    now: Timestamp,
}

impl Joined {
    fn new(offload: bool, clients: u8) -> Self {
        let mut pool = Arena::new(vec![0; 48 << 20]).unwrap().pool(20_000).unwrap();
        let host = |number: u8, pool: &mut Pool| {
            let mut host = Host::new([number; 16], pool);
            let interface = Interface {
                name: "wire".into(),
                port: PORT,
                medium: Medium::Ethernet { mac: Mac([2, 0, 0, 0, 0, number]), vlan: None },
                mtu: 1500,
                offloads: Offloads { checksum: offload, segmentation: offload },
            };
            let id = host.control.add_interface(interface).unwrap();
            let addresses = if number == 1 { clients } else { 1 };
            for i in 0..addresses {
                let prefix = format!("10.0.{number}.{}/16", i + 1).parse().unwrap();
                host.control.add_address(Timestamp::ZERO, id, prefix).unwrap();
            }
            host.advance(Timestamp::ZERO, pool);
            host
        };
        let (a, b) = (host(1, &mut pool), host(2, &mut pool));
        Self { a, b, pool, batch: Batch::new(), start: Instant::now(), now: Timestamp::from_nanos(1) }
    }

    fn tick(&mut self) {
        self.now = Timestamp::from_nanos(1 + u64::try_from(self.start.elapsed().as_nanos()).unwrap());
    }

    /// Moves what one end has to send to the other, batch by batch.
    fn carry(&mut self, from_a: bool) -> bool {
        let (from, to) = if from_a { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
        let mut moved = false;
        loop {
            // What waits for the port's queue to empty comes with the next round.
            from.advance(self.now, &mut self.pool);
            from.transmit(PORT, &mut self.batch);
            if self.batch.is_empty() {
                return moved;
            }
            moved = true;
            to.receive(self.now, PORT, &mut self.batch, &mut self.pool);
        }
    }

    fn connect(&mut self, n: usize) -> Vec<(ConnectionId, ConnectionId)> {
        self.b.stack.listen(None, SERVER, n).unwrap();
        let remote = (std::net::Ipv4Addr::new(10, 0, 2, 1).into(), SERVER);
        let mut pairs = Vec::new();
        for _ in 0..n {
            let client = self.a.stack.connect(self.now, (None, 0), remote, &mut self.pool).unwrap();
            while self.carry(true) | self.carry(false) {}
            self.a.stack.events().for_each(drop);
            let server = self.b.stack.events().find_map(|event| match event {
                Event::Accepted { connection, .. } => Some(connection),
                _ => None,
            });
            pairs.push((client, server.expect("accepted")));
        }
        pairs
    }
}

/// Gigabits of payload each second.
pub(crate) fn bulk(time: Duration, kind: &Bulk) -> f64 {
    let mut joined = Joined::new(kind.offload, 1);
    let pairs = joined.connect(kind.streams);
    let source = vec![0x5a; 64 << 10];
    let mut sink = vec![0; 64 << 10];
    let (start, mut bytes) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        joined.tick();
        for (client, _) in &pairs {
            joined.a.stack.send(joined.now, *client, &source, &mut joined.pool).unwrap();
        }
        joined.carry(true);
        joined.b.stack.events().for_each(drop);
        for (_, server) in &pairs {
            loop {
                let n = if kind.in_place {
                    let n = joined.b.stack.readable(*server).unwrap().map(<[u8]>::len).sum();
                    joined.b.stack.consume(joined.now, *server, n, &mut joined.pool).unwrap();
                    n
                } else {
                    joined.b.stack.receive_copy(joined.now, *server, &mut sink, &mut joined.pool).unwrap()
                };
                bytes += n as u64;
                if n == 0 {
                    break;
                }
            }
        }
        joined.carry(false);
        joined.a.stack.events().for_each(drop);
    }
    bytes as f64 * 8e-9 / start.elapsed().as_secs_f64()
}

/// Millions of 64-byte requests with their 64-byte answers each second, over 1000 connections.
pub(crate) fn exchanges(time: Duration) -> f64 {
    let mut joined = Joined::new(false, 1);
    let pairs = joined.connect(1000);
    let message = [7; 64];
    let mut buffer = [0; 64];
    for (client, _) in &pairs {
        joined.a.stack.send(joined.now, *client, &message, &mut joined.pool).unwrap();
    }
    let (start, mut count) = (Instant::now(), 0u64);
    let mut events = Vec::new();
    while start.elapsed() < time {
        joined.tick();
        joined.carry(true);
        events.extend(joined.b.stack.events());
        for event in events.drain(..) {
            if let Event::Readable(id) = event {
                joined.b.stack.receive_copy(joined.now, id, &mut buffer, &mut joined.pool).unwrap();
                joined.b.stack.send(joined.now, id, &buffer, &mut joined.pool).unwrap();
            }
        }
        joined.carry(false);
        events.extend(joined.a.stack.events());
        for event in events.drain(..) {
            if let Event::Readable(id) = event {
                joined.a.stack.receive_copy(joined.now, id, &mut buffer, &mut joined.pool).unwrap();
                joined.a.stack.send(joined.now, id, &buffer, &mut joined.pool).unwrap();
                count += 1;
            }
        }
    }
    count as f64 * 1e-6 / start.elapsed().as_secs_f64()
}

/// Millions of connections each second that are opened, used for one 64-byte exchange and closed by both ends.
pub(crate) fn connections(time: Duration) -> f64 {
    const CLIENTS: u8 = 32;
    const AT_ONCE: u64 = 64;
    let client = |n: u64| u8::try_from(1 + n % u64::from(CLIENTS)).unwrap();
    let mut joined = Joined::new(false, CLIENTS);
    joined.b.stack.listen(None, SERVER, 1000).unwrap();
    let remote = (std::net::Ipv4Addr::new(10, 0, 2, 1).into(), SERVER);
    let message = [7; 64];
    let mut buffer = [0; 64];
    let (start, mut opened, mut done) = (Instant::now(), 0u64, 0u64);
    let mut events = Vec::new();
    while start.elapsed() < time {
        joined.tick();
        while opened < done + AT_ONCE {
            let local = std::net::Ipv4Addr::new(10, 0, 1, client(opened)).into();
            // Ports come round again: TIME-WAIT gives way to who is newer.
            let port = u16::try_from(1024 + opened / u64::from(CLIENTS) % 60_000).unwrap();
            joined.a.stack.connect(joined.now, (Some(local), port), remote, &mut joined.pool).unwrap();
            opened += 1;
        }
        joined.carry(true);
        events.extend(joined.b.stack.events());
        for event in events.drain(..) {
            match event {
                Event::Readable(id) => {
                    joined.b.stack.receive_copy(joined.now, id, &mut buffer, &mut joined.pool).unwrap();
                    joined.b.stack.send(joined.now, id, &buffer, &mut joined.pool).unwrap();
                }
                Event::PeerClosed(id) => joined.b.stack.close(joined.now, id, &mut joined.pool).unwrap(),
                _ => {}
            }
        }
        joined.carry(false);
        events.extend(joined.a.stack.events());
        for event in events.drain(..) {
            match event {
                Event::Connected(id) => {
                    joined.a.stack.send(joined.now, id, &message, &mut joined.pool).unwrap();
                }
                Event::Readable(id) => {
                    joined.a.stack.receive_copy(joined.now, id, &mut buffer, &mut joined.pool).unwrap();
                    joined.a.stack.close(joined.now, id, &mut joined.pool).unwrap();
                    done += 1;
                }
                _ => {}
            }
        }
    }
    done as f64 * 1e-6 / start.elapsed().as_secs_f64()
}
