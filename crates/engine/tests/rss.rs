//! An instance on a NIC with a queue for each of its engines: the NIC has given each packet to the right one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bywash_drivers::ixgbe::{self, Settings};
use bywash_engine::port::{Port, PortName};
use bywash_engine::stack::frame::{Arena, Stride};
use bywash_engine::stack::{
    ConnectionId, Control, ControlError, Event, Listen, SocketState, Stack, UdpError, UdpId,
};
use bywash_engine::sys::memory::{HugePages, allocate};
use bywash_engine::sys::worker::Stop;
use bywash_engine::{Instance, Io, Options, Program};
use bywash_models::cable::Impairment;
use bywash_models::function::InProcess;
use bywash_models::ixgbe::Board;
use bywash_models::world::Shared;

const ECHO: u16 = 7;
const WORDS: &[u8] = b"the same again";
/// Connections that each engine opens to each address of the other instance.
const EACH: usize = 20;

/// Echoes, and wants its own words echoed by the other side.
struct Talk {
    to: [IpAddr; 2],
    /// The other side is there when this one begins, and echoes datagrams, too.
    second: bool,
    /// To whom each of our own connections is, and how much it has heard.
    ours: HashMap<ConnectionId, (IpAddr, usize)>,
    /// Where datagrams are echoed, and our own sockets, which want an echo.
    echo: Option<UdpId>,
    asking: Vec<UdpId>,
    accepted: Arc<AtomicUsize>,
    /// Connections and sockets of both instances that have not heard all yet.
    left: Arc<AtomicUsize>,
}

impl Talk {
    fn connect(&mut self, to: IpAddr, io: &mut Io<'_>) -> Result<(), String> {
        let id = io.connect((None, 0), (to.into(), ECHO), None).map_err(|error| error.to_string())?;
        self.ours.insert(id, (to, 0));
        Ok(())
    }

    /// Asks by a datagram what is asked by a connection that is open, so that the neighbour is known.
    fn ask(&mut self, to: IpAddr, io: &mut Io<'_>) {
        let id = io.udp_connect((None, 0), (to.into(), ECHO)).unwrap();
        io.udp_send(id, None, WORDS).unwrap();
        self.asking.push(id);
    }

    fn hear(&mut self, id: UdpId, io: &mut Io<'_>) {
        while let Some(datagram) = io.udp_receive(id).unwrap() {
            let words: Vec<u8> = datagram.slices().flatten().copied().collect();
            let from = datagram.source;
            io.udp_release(datagram);
            if Some(id) == self.echo {
                io.udp_send(id, Some(from), &words).unwrap();
                continue;
            }
            assert_eq!(words, WORDS);
            self.asking.retain(|other| *other != id);
            self.left.fetch_sub(1, Ordering::Relaxed);
            io.udp_close(id);
            assert_eq!(io.udp_receive(id).err(), Some(UdpError::Closed));
            return;
        }
    }
}

impl Program for Talk {
    fn listens(&self) -> Vec<Listen> {
        vec![Listen { local: None, port: ECHO, backlog: 1024 }]
    }

    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        self.echo = Some(io.udp_bind(None, ECHO).map_err(|error| error.to_string())?);
        for to in self.to {
            for _ in 0..EACH {
                self.connect(to, io)?;
            }
        }
        Ok(())
    }

    fn turn(&mut self, events: &[Event], io: &mut Io<'_>) {
        for event in events {
            match *event {
                Event::Accepted { .. } => {
                    self.accepted.fetch_add(1, Ordering::Relaxed);
                }
                Event::Connected(id) => {
                    assert_eq!(io.send(id, WORDS), Ok(WORDS.len()));
                    if self.second {
                        self.ask(self.ours[&id].0, io);
                    }
                }
                Event::UdpReadable(id) => self.hear(id, io),
                Event::Closed(id, why) => {
                    let _ = io.close(id);
                    if let Some((to, _)) = self.ours.remove(&id) {
                        assert!(!self.second, "{why:?}");
                        self.connect(to, io).unwrap();
                    }
                }
                _ => {}
            }
            let Some(id) = event.connection() else { continue };
            if let Some((_, heard)) = self.ours.get_mut(&id) {
                *heard += io.read(id, <[u8]>::len).unwrap();
                if *heard == WORDS.len() {
                    self.ours.remove(&id);
                    self.left.fetch_sub(1, Ordering::Relaxed);
                    io.close(id).unwrap();
                }
            } else if io.pass(id, id).is_ok() && io.is_at_end(id) {
                let _ = io.close(id);
            }
        }
    }
}

/// An instance on a NIC, with so many engines; and how many connections each of them has accepted.
fn instance(
    world: &Shared,
    (nic, engines): (usize, u16),
    left: &Arc<AtomicUsize>,
    stop: &Stop,
) -> (Instance, Vec<Arc<AtomicUsize>>) {
    let memory = allocate(Stride::Packed.memory_for(8192), HugePages::Off, None).unwrap().memory;
    let arena = Arena::new(memory).unwrap();
    let settings = Settings { queues: engines, ring: 512, max_len: 1518, ..Settings::default() };
    let mut port = ixgbe::open(InProcess::new(world, nic), PortName::Null, &settings, arena).unwrap();
    port.wait_for_link(Duration::from_secs(60)).unwrap();
    let configure = Box::new(move |control: &mut Control, now, ids: &[_]| -> Result<(), ControlError> {
        control.add_address(now, ids[0], format!("10.0.0.{}/24", nic + 1).parse().unwrap())?;
        control.add_address(now, ids[0], format!("fd00::{}/64", nic + 1).parse().unwrap())
    });
    let accepted: Vec<_> = (0..engines).map(|_| Arc::new(AtomicUsize::new(0))).collect();
    let program = &mut |number: usize, _| {
        let to = [format!("10.0.0.{}", 2 - nic), format!("fd00::{}", 2 - nic)];
        Box::new(Talk {
            to: to.map(|text| text.parse().unwrap()),
            second: nic == 1,
            ours: HashMap::new(),
            echo: None,
            asking: Vec::new(),
            accepted: accepted[number].clone(),
            left: left.clone(),
        }) as Box<dyn Program>
    };
    let ports: Vec<Box<dyn Port>> = vec![Box::new(port)];
    let instance = Instance::start(ports, arena, &Options::default(), stop, configure, program).unwrap();
    (instance, accepted)
}

#[test]
fn a_nic_with_a_queue_for_each_engine_leaves_nothing_to_hand_over() {
    let boards = [1, 2].map(|last| Board { mac: [2, 0, 0, 0, 0, last], ..Board::default() });
    let world = Shared::new(&boards, Impairment::default());
    let over = Arc::new(AtomicBool::new(false));
    let time = std::thread::spawn({
        let (world, over) = (world.clone(), over.clone());
        move || world.run(&over)
    });
    let stop = Stop::new().unwrap();
    let left = Arc::new(AtomicUsize::new((3 + 2) * 2 * EACH));
    let (far, _) = instance(&world, (0, 1), &left, &stop);
    let until = Instant::now() + Duration::from_secs(60);
    let echoes = |stack: &Stack| stack.sockets().any(|socket| socket.state == SocketState::Udp);
    let listens = || far.handle().stacks(move |stack, _| echoes(stack)).unwrap() == [true];
    while !listens() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (two, accepted) = instance(&world, (1, 2), &left, &stop);
    assert!(two.handle().is_spread_by_nic() && !far.handle().is_spread_by_nic());
    let is_done = || left.load(Ordering::Relaxed) == 0;
    while !is_done() && !stop.is_set() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = is_done();
    let (summary, other) = (two.close(), far.close());
    over.store(true, Ordering::Relaxed);
    time.join().unwrap();
    assert_eq!((summary.errors, other.errors), (Vec::new(), Vec::new()));
    assert!(done, "all connections have heard what they said");
    let accepted: Vec<usize> = accepted.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert_eq!(accepted.iter().sum::<usize>(), 2 * EACH);
    for (engine, accepted) in summary.figures.iter().zip(accepted) {
        assert!(accepted > 0 && engine.stack.tcp_received > 0, "both have flows: {accepted}");
        assert_eq!((engine.engine.handed_over, engine.engine.ring_full), (0, 0));
    }
}
