//! What is measured of this stack.

use std::time::{Duration, Instant};

use bywash_frame::{Arena, Batch, Pool, Stride};
use bywash_lab::sys::memory::{HugePages, allocate};
use bywash_lab::sys::state::Undo;
use bywash_stack::{
    Address, ConnectionId, Event, Host, Interface, Limits, Medium, Offloads, PortId, Timestamp,
};
use bywash_wire::Mac;

const PORT: PortId = PortId(0);
const SERVER: u16 = 80;

/// How bulk data is moved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bulk {
    pub(crate) streams: usize,
    pub(crate) in_place: bool,
    /// The wire takes super-segments and unfinished checksums, as a veth does.
    pub(crate) offload: bool,
}

/// How much is measured: for a time, or a number of rounds for who counts instructions.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Time(Duration),
    Rounds(u64),
}

/// What was done, and how long it took.
#[derive(Clone, Copy, Default)]
pub(crate) struct Done {
    /// Bytes, exchanges or connections.
    pub(crate) amount: u64,
    /// Packets that went over the wire, both ways.
    pub(crate) packets: u64,
    pub(crate) time: Duration,
}

impl Done {
    /// So many of them in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.amount as f64 / self.time.as_secs_f64()
    }
}

/// Packet memory as workers have it, of huge pages where that is allowed, once for all worlds.
#[derive(Clone, Copy)]
pub(crate) struct Memory(&'static Arena);

impl Memory {
    /// Frames of a world.
    const FRAMES: usize = 20_000;

    /// Enough for `worlds` at a time. What is returned as well takes the huge pages off the kernel's pool again.
    pub(crate) fn new(worlds: usize) -> (Self, Option<Undo>) {
        let bytes = Stride::Packed.memory_for(worlds * Self::FRAMES);
        let reserved = allocate(bytes, HugePages::Reserve, None);
        let all = reserved.or_else(|_| allocate(bytes, HugePages::Auto, None)).unwrap();
        all.warning.iter().for_each(|warning| eprintln!("{warning}"));
        (Self(Arena::new(all.memory).unwrap()), all.reservation)
    }

    fn pool(self) -> Pool {
        self.0.pool(Self::FRAMES).unwrap()
    }
}

struct Joined {
    a: Host,
    b: Host,
    pool: Pool,
    batch: Batch,
    now: Timestamp,
    packets: u64,
}

impl Joined {
    fn new(memory: Memory, offload: bool, clients: u8) -> Self {
        let mut pool = memory.pool();
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
        Self { a, b, pool, batch: Batch::new(), now: Timestamp::from_nanos(1), packets: 0 }
    }

    /// Repeats `round`, which returns how much it did. Everything inside is what is measured: the name is what a
    /// profiler is told.
    ///
    /// Under an instruction counter everything is slower than in earnest, and timers would go off too often: there the
    /// clock goes on by what packets take at the speed aimed at.
    #[inline(never)]
    fn measured(&mut self, until: Until, mut round: impl FnMut(&mut Self) -> u64) -> Done {
        const PACKET: u64 = 250;
        let (start, begun, mut amount, mut rounds) = (Instant::now(), self.now, 0, 0);
        self.packets = 0;
        loop {
            let elapsed = start.elapsed();
            let (over, passed) = match until {
                Until::Time(time) => (elapsed >= time, elapsed),
                Until::Rounds(all) => (rounds >= all, Duration::from_nanos(self.packets * PACKET)),
            };
            if over {
                return Done { amount, packets: self.packets, time: elapsed };
            }
            self.now = begun + passed;
            amount += round(self);
            rounds += 1;
        }
    }

    /// Moves what one end has to send to the other, batch by batch.
    fn carry(&mut self, from_a: bool) -> bool {
        let mut moved = false;
        while self.step(from_a) {
            moved = true;
        }
        moved
    }

    /// Moves one batch.
    fn step(&mut self, from_a: bool) -> bool {
        let (from, to) = if from_a { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
        from.advance(self.now, &mut self.pool);
        from.transmit(PORT, &mut self.batch);
        self.packets += self.batch.len() as u64;
        let moved = !self.batch.is_empty();
        to.receive(self.now, PORT, &mut self.batch, &mut self.pool);
        moved
    }

    /// Sends as much as `source` has, copied from there or made where it waits to be sent.
    fn write(&mut self, id: ConnectionId, in_place: bool, source: &[u8]) {
        let stack = &mut self.a.stack;
        if !in_place {
            stack.send(self.now, id, source, &mut self.pool).unwrap();
            return;
        }
        let mut left = source.len();
        let make = |place: &mut [u8]| {
            let n = place.len().min(left);
            left -= n;
            n
        };
        stack.send_in_place(self.now, id, make, &mut self.pool).unwrap();
    }

    /// Reads all there is at the server.
    fn read(&mut self, id: ConnectionId, in_place: bool, sink: &mut [u8]) -> u64 {
        let stack = &mut self.b.stack;
        if in_place {
            let n = stack.readable(id).unwrap().map(<[u8]>::len).sum();
            stack.consume(self.now, id, n, &mut self.pool).unwrap();
            return n as u64;
        }
        let mut bytes = 0;
        loop {
            let n = stack.receive_copy(self.now, id, sink, &mut self.pool).unwrap();
            bytes += n as u64;
            if n < sink.len() {
                return bytes;
            }
        }
    }

    fn connect(&mut self, n: usize, clients: u8) -> Vec<(ConnectionId, ConnectionId)> {
        self.b.stack.listen(None, SERVER, n.max(1000)).unwrap();
        let remote = (std::net::Ipv4Addr::new(10, 0, 2, 1).into(), SERVER);
        let mut pairs = Vec::new();
        for i in 0..n {
            let local = local(i as u64, clients, 60_000);
            let client = self.a.stack.connect(self.now, local, remote, &mut self.pool).unwrap();
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

/// Bytes of payload, from one end to the other. Streams are served in turn, and what has come is read batch by batch, as
/// programs on a worker do.
pub(crate) fn bulk(memory: Memory, until: Until, kind: &Bulk) -> Done {
    let mut joined = Joined::new(memory, kind.offload, 1);
    let pairs = joined.connect(kind.streams, 1);
    let source = vec![0x5a; 64 << 10];
    let mut sink = vec![0; 64 << 10];
    let mut turns = pairs.iter().cycle();
    let mut events = Vec::new();
    joined.measured(until, |joined| {
        let mut bytes = 0;
        let Some((client, _)) = turns.next() else { return 0 };
        joined.write(*client, kind.in_place, &source);
        while joined.step(true) {
            events.extend(joined.b.stack.events());
            for event in events.drain(..) {
                let Event::Readable(id) = event else { continue };
                bytes += joined.read(id, kind.in_place, &mut sink);
            }
            joined.step(false);
        }
        joined.a.stack.events().for_each(drop);
        bytes
    })
}

/// Connections of which so many exchange messages, and all have a timer.
pub(crate) struct Exchanges(Joined);

/// Addresses of clients: more than enough for the ports of a million connections.
const CLIENTS: u8 = 32;

/// Where client number `n` of all comes from, by turns of all their ports.
fn local(n: u64, clients: u8, ports: u64) -> (Option<Address>, u16) {
    let client = u8::try_from(1 + n % u64::from(clients)).unwrap();
    let port = u16::try_from(1024 + n / u64::from(clients) % ports).unwrap();
    (Some(std::net::Ipv4Addr::new(10, 0, 1, client).into()), port)
}

impl Exchanges {
    pub(crate) fn new(memory: Memory, active: usize, all: usize) -> Self {
        let mut joined = Joined::new(memory, false, CLIENTS);
        for stack in [&mut joined.a.stack, &mut joined.b.stack] {
            stack.set_limits(Limits { keepalive: true, ..stack.limits() });
        }
        let pairs = joined.connect(all, CLIENTS);
        for (client, _) in &pairs[..active] {
            joined.a.stack.send(joined.now, *client, &[7; 64], &mut joined.pool).unwrap();
        }
        Self(joined)
    }

    /// 64-byte requests with their 64-byte answers. What has come is answered batch by batch, as programs on a worker do.
    pub(crate) fn run(&mut self, until: Until) -> Done {
        let (mut buffer, mut events) = ([0; 64], Vec::new());
        self.0.measured(until, |joined| {
            let mut count = 0;
            joined.step(true);
            events.extend(joined.b.stack.events());
            for event in events.drain(..) {
                if let Event::Readable(id) = event {
                    joined.b.stack.receive_copy(joined.now, id, &mut buffer, &mut joined.pool).unwrap();
                    joined.b.stack.send(joined.now, id, &buffer, &mut joined.pool).unwrap();
                }
            }
            joined.step(false);
            events.extend(joined.a.stack.events());
            for event in events.drain(..) {
                if let Event::Readable(id) = event {
                    joined.a.stack.receive_copy(joined.now, id, &mut buffer, &mut joined.pool).unwrap();
                    joined.a.stack.send(joined.now, id, &buffer, &mut joined.pool).unwrap();
                    count += 1;
                }
            }
            count
        })
    }
}

/// Connections that are opened, used for one 64-byte exchange and closed by both ends, first by the server, as HTTP has it.
pub(crate) struct Connections {
    joined: Joined,
    work: Work,
}

/// What clients and server do.
#[derive(Default)]
struct Work {
    opened: u64,
    done: u64,
    events: Vec<Event>,
}

/// Ports of each client: all flows come round ten times a second, and find the server in TIME-WAIT, which gives way to who is
/// newer (RFC 6191).
const PORTS: u64 = 2048;

impl Connections {
    /// The server is in TIME-WAIT with every flow.
    pub(crate) fn new(memory: Memory) -> Self {
        let mut joined = Joined::new(memory, false, CLIENTS);
        // The first packet asks for the neighbour, and others would wait for the answer.
        for (client, server) in joined.connect(1, CLIENTS) {
            joined.b.stack.close(joined.now, server, &mut joined.pool).unwrap();
            while joined.carry(true) | joined.carry(false) {}
            joined.a.stack.close(joined.now, client, &mut joined.pool).unwrap();
        }
        joined.a.stack.events().for_each(drop);
        let mut work = Work { opened: 1, done: 1, ..Work::default() };
        while work.done < PORTS * u64::from(CLIENTS) {
            joined.now = joined.now + Duration::from_micros(100);
            work.round(&mut joined);
        }
        let (.., kept) = joined.b.stack.connections();
        assert!(kept as u64 + 64 >= PORTS * u64::from(CLIENTS), "TIME-WAIT of {kept} flows");
        Self { joined, work }
    }

    pub(crate) fn run(&mut self, until: Until) -> Done {
        let Self { joined, work } = self;
        joined.measured(until, |joined| work.round(joined))
    }
}

impl Work {
    /// Opens connections, and takes all that are there a step on. Returns how many have ended.
    fn round(&mut self, joined: &mut Joined) -> u64 {
        const AT_ONCE: u64 = 64;
        let (message, mut buffer, before) = ([7; 64], [0; 64], self.done);
        let remote = (std::net::Ipv4Addr::new(10, 0, 2, 1).into(), SERVER);
        while self.opened < self.done + AT_ONCE {
            let local = local(self.opened, CLIENTS, PORTS);
            joined.a.stack.connect(joined.now, local, remote, &mut joined.pool).unwrap();
            self.opened += 1;
        }
        joined.carry(true);
        self.events.extend(joined.b.stack.events());
        for event in self.events.drain(..) {
            let (stack, now, pool) = (&mut joined.b.stack, joined.now, &mut joined.pool);
            if let Event::Readable(id) = event {
                stack.receive_copy(now, id, &mut buffer, pool).unwrap();
                stack.send(now, id, &buffer, pool).unwrap();
                stack.close(now, id, pool).unwrap();
            }
        }
        joined.carry(false);
        self.events.extend(joined.a.stack.events());
        for event in self.events.drain(..) {
            let (stack, now, pool) = (&mut joined.a.stack, joined.now, &mut joined.pool);
            match event {
                Event::Connected(id) => {
                    stack.send(now, id, &message, pool).unwrap();
                }
                Event::Readable(id) => {
                    stack.receive_copy(now, id, &mut buffer, pool).unwrap();
                }
                Event::PeerClosed(id) => {
                    stack.close(now, id, pool).unwrap();
                    self.done += 1;
                }
                _ => {}
            }
        }
        self.done - before
    }
}
