//! Listeners of an instance with two engines: asked for once, and there on both.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_engine::port::Port;
use bywash_engine::stack::frame::Arena;
use bywash_engine::stack::{Control, Event, InterfaceId, Listen, SocketState, TcpError, Timestamp};
use bywash_engine::sys::worker::{Stop, allowed_cores};
use bywash_engine::{Handle, Instance, Io, Options, Program, StartError};

const PORT: u16 = 7;

fn on(port: u16) -> Listen {
    Listen { local: None, port, backlog: 10 }
}

/// Connects to itself, by the loopback of its own engine.
struct Itself {
    accepted: Arc<AtomicUsize>,
    connected: bool,
}

impl Program for Itself {
    fn listens(&self) -> Vec<Listen> {
        vec![on(PORT)]
    }

    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        let to = (Ipv4Addr::LOCALHOST.into(), PORT);
        io.connect((None, 0), to, None).map(drop).map_err(|error| error.to_string())
    }

    fn turn(&mut self, events: &[Event], io: &mut Io<'_>) {
        for event in events {
            match *event {
                Event::Accepted { listener, .. } => {
                    assert_eq!(io.stack().snapshot().listeners(), [(listener, on(PORT))]);
                    self.accepted.fetch_add(1, Ordering::Relaxed);
                }
                Event::Connected(_) => self.connected = true,
                _ => {}
            }
        }
    }

    fn is_done(&self) -> bool {
        self.connected && self.accepted.load(Ordering::Relaxed) > 0
    }
}

/// An instance with two engines, and how many connections each has accepted.
fn two_engines(
    configure: impl FnOnce(&mut Control),
) -> (Result<Instance, StartError>, [Arc<AtomicUsize>; 2]) {
    let arena = Arena::new(vec![0; 64 << 20]).unwrap();
    let port: Box<dyn Port> = open(&"null:".parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let accepted = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let program = &mut |number: usize, _| {
        Box::new(Itself { accepted: accepted[number].clone(), connected: false }) as Box<dyn Program>
    };
    let configure = Box::new(move |control: &mut Control, _: Timestamp, _: &[InterfaceId]| {
        configure(control);
        Ok(())
    });
    let core = allowed_cores()[0];
    let options = Options { cores: vec![core, core], ..Options::default() };
    let started = Instance::start(vec![port], arena, &options, &Stop::new().unwrap(), configure, program);
    (started, accepted)
}

/// The ports that both engines listen on, once it is so.
fn both_listen_on(handle: &Handle, ports: &[u16]) {
    let until = Instant::now() + Duration::from_secs(60);
    let ports_of = || {
        let of = |socket: &bywash_engine::stack::Socket| {
            (socket.state == SocketState::Listening).then_some(socket.local.1)
        };
        handle.stacks(move |stack, _| stack.sockets(100).iter().filter_map(of).collect::<Vec<u16>>()).unwrap()
    };
    while ports_of() != [ports, ports] {
        assert!(Instant::now() < until, "{:?} instead of {ports:?}", ports_of());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_listener_is_there_on_all_engines_and_nobody_has_its_port_again() {
    let (instance, accepted) = two_engines(|_| ());
    let instance = instance.unwrap();
    let handle = instance.handle();
    assert!(instance.wait(Duration::from_secs(60)), "both have connected");
    assert_eq!(accepted.map(|count| count.load(Ordering::Relaxed)), [1, 1]);
    both_listen_on(&handle, &[PORT]);
    assert_eq!(handle.control(|control, _| control.listen(on(PORT))), Ok(Err(TcpError::Taken)));
    let other = handle.control(|control, _| control.listen(on(8))).unwrap().unwrap();
    both_listen_on(&handle, &[PORT, 8]);
    assert_eq!(handle.control(move |control, _| control.unlisten(other)), Ok(true));
    both_listen_on(&handle, &[PORT]);
    assert_eq!(instance.close().errors, Vec::<String>::new());
}

#[test]
fn an_instance_whose_port_is_taken_does_not_start() {
    let (instance, _) = two_engines(|control| assert!(control.listen(on(PORT)).is_ok()));
    let error = instance.err().unwrap();
    assert!(matches!(error, StartError::Listen(_, TcpError::Taken)), "{error}");
    assert_eq!(error.to_string(), "port 7 can't be listened on: the port is taken");
}
