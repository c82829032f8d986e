//! Listeners of an instance with two engines: asked for once, and there on both.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_engine::port::Port;
use bywash_engine::stack::frame::Arena;
use bywash_engine::stack::{
    Control, Event, InterfaceId, Listen, ListenerId, SocketState, TcpError, Timestamp,
};
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

/// An instance with two engines that connect to themselves, and how many connections each has accepted.
fn two_engines(
    configure: impl FnOnce(&mut Control),
) -> (Result<Instance, StartError>, [Arc<AtomicUsize>; 2]) {
    let accepted = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let program = &mut |number: usize, _| {
        Box::new(Itself { accepted: accepted[number].clone(), connected: false }) as Box<dyn Program>
    };
    (two_engines_with(configure, program), accepted)
}

fn two_engines_with(
    configure: impl FnOnce(&mut Control),
    program: &mut dyn FnMut(usize, usize) -> Box<dyn Program>,
) -> Result<Instance, StartError> {
    let arena = Arena::new(vec![0; 64 << 20]).unwrap();
    let port: Box<dyn Port> = open(&"null:".parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let configure = Box::new(move |control: &mut Control, _: Timestamp, _: &[InterfaceId]| {
        configure(control);
        Ok(())
    });
    let core = allowed_cores()[0];
    let options = Options { cores: vec![core, core], ..Options::default() };
    Instance::start(vec![port], arena, &options, &Stop::new().unwrap(), configure, program)
}

/// The ports that both engines listen on, once it is so.
fn both_listen_on(handle: &Handle, ports: &[u16]) {
    let until = Instant::now() + Duration::from_secs(60);
    let ports_of = || {
        let of = |socket: bywash_engine::stack::Socket| {
            (socket.state == SocketState::Listening).then_some(socket.local.1)
        };
        handle.stacks(move |stack, _| stack.sockets().filter_map(of).collect::<Vec<u16>>()).unwrap()
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

/// Asks for listeners when it runs, and for an end of the one it gets.
struct Later {
    results: Arc<Mutex<Vec<(u16, bool)>>>,
    is_first: bool,
    unlisten: Arc<AtomicBool>,
    listener: Option<ListenerId>,
}

impl Program for Later {
    fn listens(&self) -> Vec<Listen> {
        vec![on(PORT)]
    }

    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        if self.is_first {
            [PORT, 8].map(on).into_iter().for_each(|listen| io.listen(listen));
        }
        Ok(())
    }

    fn listening(&mut self, listen: Listen, result: Result<ListenerId, TcpError>, io: &mut Io<'_>) {
        assert!(self.is_first, "only who has asked hears of it");
        if let Ok(id) = result {
            assert!(io.stack().snapshot().listeners().contains(&(id, listen)), "it is there by now");
            self.listener = Some(id);
        }
        self.results.lock().unwrap().push((listen.port, result.is_ok()));
    }

    fn turn(&mut self, _: &[Event], io: &mut Io<'_>) {
        if self.unlisten.load(Ordering::Relaxed)
            && let Some(id) = self.listener.take()
        {
            io.unlisten(id);
        }
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.listener.map(|_| Timestamp::ZERO)
    }
}

#[test]
fn a_program_asks_for_listeners_while_it_runs() {
    let (results, unlisten) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let program = &mut |number: usize, _| {
        let (results, unlisten, is_first) = (results.clone(), unlisten.clone(), number == 0);
        Box::new(Later { results, is_first, unlisten, listener: None }) as Box<dyn Program>
    };
    let instance = two_engines_with(|_| (), program).unwrap();
    let handle = instance.handle();
    both_listen_on(&handle, &[PORT, 8]);
    unlisten.store(true, Ordering::Relaxed);
    both_listen_on(&handle, &[PORT]);
    assert_eq!(instance.close().errors, Vec::<String>::new());
    assert_eq!(*results.lock().unwrap(), [(PORT, false), (8, true)]);
}

#[test]
fn an_instance_whose_port_is_taken_does_not_start() {
    let (instance, _) = two_engines(|control| assert!(control.listen(on(PORT)).is_ok()));
    let error = instance.err().unwrap();
    assert!(matches!(error, StartError::Listen(_, TcpError::Taken)), "{error}");
    assert_eq!(error.to_string(), "port 7 can't be listened on: the port is taken");
}
