//! What leaves an instance where more is to leave than its queues and its frames hold.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_engine::port::{QueuePair, RxQueue, TxQueue};
use bywash_engine::stack::frame::{Arena, Batch, Pool};
use bywash_engine::stack::wire::Mac;
use bywash_engine::stack::{
    CloseReason, ConnectionId, Control, Event, Host, Interface, InterfaceId, Listen, Medium, Offloads,
    PortId, Prefix, Timestamp,
};
use bywash_engine::sys::worker::Stop;
use bywash_engine::{Handle, Instance, Io, Options, Program};

/// Waits until the instance has sent so many packets.
fn has_sent(handle: &Handle, packets: u64) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let sent: u64 = handle.figures().iter().map(|engine| engine.ports[0].1.packets).sum();
        if sent >= packets {
            return;
        }
        assert!(Instant::now() < until, "{sent} packets instead of {packets}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn more_addresses_than_the_control_has_frames_are_announced_all_of_them() {
    const ADDRESSES: u32 = 400;
    let arena = Arena::new(vec![0; 64 << 20]).unwrap();
    let port = open(&"null:".parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let configure = Box::new(|control: &mut Control, now: Timestamp, ids: &[InterfaceId]| {
        for n in 1..=ADDRESSES {
            let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + n);
            control.add_address(now, ids[0], Prefix::new(address, 8).unwrap())?;
        }
        Ok(())
    });
    let (options, stop) = (Options::default(), Stop::new().unwrap());
    let instance =
        Instance::start(vec![port], arena, &options, &stop, configure, &mut |_, _| Box::new(())).unwrap();
    // Each is announced twice (RFC 5227, 2.3), without anything that would bring the control a frame.
    has_sent(&instance.handle(), u64::from(2 * ADDRESSES));
    let lost = instance.handle().control(|control, _| control.counters().no_memory).unwrap();
    assert_eq!((lost, instance.close().errors), (0, Vec::new()));
}

/// Accepts all, and says nothing.
struct Silent;

impl Program for Silent {
    fn listens(&self) -> Vec<Listen> {
        vec![Listen { local: None, port: 7, backlog: 1 << 16 }]
    }

    fn turn(&mut self, _: &[Event], _: &mut Io<'_>) {}
}

/// A host at the other end of a wire in memory.
struct Peer {
    host: Host,
    pool: Pool,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    start: Instant,
}

impl Peer {
    fn new(rx: Box<dyn RxQueue>, tx: Box<dyn TxQueue>, mut pool: Pool) -> Self {
        let mut host = Host::new([7; 16], &mut pool);
        let interface = Interface {
            name: "peer".into(),
            port: PortId(0),
            medium: Medium::Ethernet { mac: Mac([2, 0, 0, 0, 0, 9]), vlan: None },
            mtu: 1500,
            offloads: Offloads::default(),
        };
        let id = host.control.add_interface(interface).unwrap();
        host.control.add_address(Timestamp::ZERO, id, "10.0.0.2/24".parse().unwrap()).unwrap();
        host.advance(Timestamp::ZERO, &mut pool);
        Self { host, pool, rx, tx, start: Instant::now() }
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.start.elapsed()
    }

    fn connect(&mut self) {
        let to = (std::net::Ipv4Addr::new(10, 0, 0, 1).into(), 7);
        self.host.stack.connect(self.now(), (None, 0), to, &mut self.pool).unwrap();
    }

    /// Goes on until so many of these have happened, or for so long.
    fn run(&mut self, count: usize, patience: Duration, wanted: impl Fn(&Event) -> bool) -> usize {
        let (until, mut seen, mut batch) = (Instant::now() + patience, 0, Batch::new());
        while seen < count && Instant::now() < until {
            self.turn(&mut batch, |event| seen += usize::from(wanted(&event)));
        }
        seen
    }

    /// Takes what the batch holds, and answers.
    fn turn(&mut self, batch: &mut Batch, each: impl FnMut(Event)) {
        let now = self.now();
        self.rx.rx(&mut self.pool, batch);
        self.host.receive(now, PortId(0), batch, &mut self.pool);
        self.host.advance(now, &mut self.pool);
        self.host.stack.events().for_each(each);
        self.host.transmit(PortId(0), batch);
        while !batch.is_empty() {
            self.tx.tx(&mut self.pool, batch);
            self.tx.flush(&mut self.pool);
            std::thread::yield_now();
        }
    }
}

#[test]
fn at_the_end_more_connections_are_reset_than_a_queue_holds() {
    all_are_reset("loop:resets", Vec::new());
}

#[test]
fn an_engine_that_has_no_queue_hands_its_resets_over_before_it_ends() {
    all_are_reset("loop:handed", vec![0, 0]);
}

#[test]
fn an_end_does_not_wait_for_long_for_what_cannot_leave() {
    for (port, cores) in [("loop:still", Vec::new()), ("loop:still-handed", vec![0, 0])] {
        let (instance, peer) = connected(port, cores);
        let began = Instant::now();
        // More resets than the wire holds, and nobody takes one.
        let summary = instance.close();
        assert_eq!(summary.errors, Vec::<String>::new());
        assert!(began.elapsed() < Duration::from_millis(1100), "{port}: {:?}", began.elapsed());
        drop(peer);
    }
}

/// Connections that are open when an instance ends.
const CONNECTIONS: usize = 6000;

/// An instance of engines on these cores, of which the first alone has the port's queue, while many connections are open.
fn connected(port: &str, cores: Vec<usize>) -> (Instance, Peer) {
    let arena = Arena::new(vec![0; 64 << 20]).unwrap();
    let open_end = || open(&port.parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let (ours, mut theirs) = (open_end(), open_end());
    let Some(QueuePair { rx: Some(rx), tx: Some(tx) }) = theirs.queues().pop() else { panic!("both ways") };
    let mut peer = Peer::new(rx, tx, arena.pool(8000).unwrap());
    let configure = Box::new(|control: &mut Control, now: Timestamp, ids: &[InterfaceId]| {
        control.add_address(now, ids[0], "10.0.0.1/24".parse().unwrap())
    });
    let (options, stop) = (Options { cores, ..Options::default() }, Stop::new().unwrap());
    let instance =
        Instance::start(vec![ours], arena, &options, &stop, configure, &mut |_, _| Box::new(Silent)).unwrap();
    for _ in 0..CONNECTIONS / 100 {
        (0..100).for_each(|_| peer.connect());
        let connected = peer.run(100, Duration::from_secs(30), |event| matches!(event, Event::Connected(_)));
        assert_eq!(connected, 100);
    }
    // The last acknowledgments may still be on their way.
    let until = Instant::now() + Duration::from_secs(30);
    let established = || instance.handle().figures().iter().map(|of| of.stack.tcp_established).sum::<u64>();
    while established() < CONNECTIONS as u64 {
        assert!(Instant::now() < until, "{} are established", established());
        peer.run(1, Duration::from_millis(5), |_| false);
    }
    (instance, peer)
}

fn all_are_reset(port: &str, cores: Vec<usize>) {
    let (instance, mut peer) = connected(port, cores);
    let closing = std::thread::spawn(move || instance.close());
    let reset = |event: &Event| matches!(event, Event::Closed(_, CloseReason::Reset));
    assert_eq!(peer.run(CONNECTIONS, Duration::from_secs(20), reset), CONNECTIONS);
    let summary = closing.join().unwrap();
    let lost =
        summary.figures.iter().map(|figures| figures.stack.no_memory + figures.engine.ring_full).sum::<u64>();
    assert_eq!((summary.errors, lost), (Vec::new(), 0));
}

/// Connections that each engine sends on: as many on each, however the hash spreads those that are open.
const BULK: usize = 8;
/// Connections that are open then: an engine has fewer than [`BULK`] of them once in a million runs.
const SPREAD: usize = 48;

/// Sends its engine's number without end.
struct Bulk {
    number: u8,
    connections: Vec<ConnectionId>,
    again: Option<Timestamp>,
}

impl Program for Bulk {
    fn listens(&self) -> Vec<Listen> {
        vec![Listen { local: None, port: 7, backlog: 1 << 10 }]
    }

    fn turn(&mut self, events: &[Event], io: &mut Io<'_>) {
        self.connections.extend(events.iter().filter_map(|event| match event {
            Event::Accepted { connection, .. } => Some(*connection),
            _ => None,
        }));
        self.connections.truncate(BULK);
        for id in &self.connections {
            io.send(*id, &[self.number; 60_000]).unwrap();
        }
        self.again = Some(io.now() + Duration::from_millis(1));
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.again
    }
}

#[test]
fn an_engine_without_a_queue_waits_for_a_full_wire_and_has_its_share_of_it() {
    let arena = Arena::new(vec![0; 128 << 20]).unwrap();
    let options = OpenOptions { ring: Some(256), ..OpenOptions::default() };
    let open_end = || open(&"loop:shared".parse().unwrap(), &options, arena).unwrap().port;
    let (ours, mut theirs) = (open_end(), open_end());
    let Some(QueuePair { rx: Some(rx), tx: Some(tx) }) = theirs.queues().pop() else { panic!("both ways") };
    let mut peer = Peer::new(rx, tx, arena.pool(8000).unwrap());
    let configure = Box::new(|control: &mut Control, now: Timestamp, ids: &[InterfaceId]| {
        control.set_mtu(ids[0], 1500)?;
        control.add_address(now, ids[0], "10.0.0.1/24".parse().unwrap())
    });
    let (options, stop) = (Options { cores: vec![0, 0], ..Options::default() }, Stop::new().unwrap());
    let instance = Instance::start(vec![ours], arena, &options, &stop, configure, &mut |number, _| {
        Box::new(Bulk { number: u8::try_from(number).unwrap(), connections: Vec::new(), again: None })
    })
    .unwrap();
    (0..SPREAD).for_each(|_| peer.connect());
    let (mut ids, mut bytes, mut read) = (Vec::new(), [0_usize; 2], vec![0; 1 << 16]);
    while peer.start.elapsed() < Duration::from_secs(3) {
        // The wire takes eight packets a millisecond, at most.
        std::thread::sleep(Duration::from_millis(1));
        peer.turn(&mut Batch::with_limit(8), |event| {
            if let Event::Connected(id) = event {
                ids.push(id);
            }
        });
        for id in &ids {
            let (now, stack) = (peer.now(), &mut peer.host.stack);
            while let Ok(count @ 1..) = stack.receive_copy(now, *id, &mut read, &mut peer.pool) {
                bytes[usize::from(read[0])] += count;
            }
        }
    }
    let lost: u64 = instance.handle().figures().iter().map(|figures| figures.engine.ring_full).sum();
    assert_eq!((ids.len(), lost), (SPREAD, 0));
    let [most, least] = [bytes.iter().max(), bytes.iter().min()].map(Option::unwrap);
    // The wire takes as many packets of each; what is in one is the connections' own.
    assert!(most / 3 < *least, "{bytes:?}");
    assert_eq!(instance.close().errors, Vec::<String>::new());
}

/// One of several that has no port left to connect from, say.
struct NotAll(usize);

impl Program for NotAll {
    fn start(&mut self, _: &mut Io<'_>) -> Result<(), String> {
        if self.0 == 1 { Err("no port".into()) } else { Ok(()) }
    }

    fn turn(&mut self, _: &[Event], _: &mut Io<'_>) {}
}

#[test]
fn where_one_program_cannot_begin_the_others_do_not_go_on_without_end() {
    let arena = Arena::new(vec![0; 64 << 20]).unwrap();
    let port = open(&"null:".parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let options = Options { cores: vec![0, 0, 0], ..Options::default() };
    let nothing = Box::new(|_: &mut Control, _: Timestamp, _: &[InterfaceId]| Ok(()));
    let stop = Stop::new().unwrap();
    let instance = Instance::start(vec![port], arena, &options, &stop, nothing, &mut |number, _| {
        Box::new(NotAll(number))
    })
    .unwrap();
    assert!(instance.wait(Duration::from_secs(60)));
    let errors = instance.close().errors;
    assert!(errors.len() == 1 && errors[0].contains("no port"), "{errors:?}");
}
