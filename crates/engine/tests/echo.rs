//! The echo server of the example: with a client beside it, by the loopback, and all of it, with the kernel as its client.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/echo.rs"]
mod echo;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Child;
use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_engine::stack::frame::Arena;
use bywash_engine::stack::{ConnectionId, Control, Event, Listen};
use bywash_engine::sys::worker::Stop;
use bywash_engine::{Instance, Io, Options, Program};
use bywash_lab::{Host, lock};
use rustix::process::{Pid, Signal, kill_process};

/// More than any buffer on the way holds.
const BYTES: usize = 3_000_000;

fn byte(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]
}

/// Says so many bytes and that it is done, and wants them back.
#[derive(Default)]
struct Client {
    id: Option<ConnectionId>,
    said: usize,
    heard: usize,
    done: bool,
}

impl Program for Client {
    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        let server = (std::net::Ipv4Addr::LOCALHOST.into(), 7);
        self.id = Some(io.connect((None, 0), server, None).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn turn(&mut self, _: &[Event], io: &mut Io<'_>) {
        let Some(id) = self.id else { return };
        let heard = &mut self.heard;
        io.read(id, |piece| {
            assert!(piece.iter().zip(*heard..).all(|(got, at)| *got == byte(at)));
            *heard += piece.len();
            piece.len()
        })
        .unwrap();
        while self.said < BYTES {
            let piece: Vec<u8> = (self.said..BYTES.min(self.said + 20_000)).map(byte).collect();
            let sent = io.send(id, &piece).unwrap();
            self.said += sent;
            if sent < piece.len() {
                return;
            }
        }
        io.shutdown(id).unwrap();
        self.done = io.is_at_end(id);
        assert!(!self.done || self.heard == BYTES, "the server ends when it has said all: {}", self.heard);
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

/// Both on one engine: the client is told of its own connection, and the server of all others.
#[derive(Default)]
struct Both(Client);

impl Program for Both {
    fn listens(&self) -> Vec<Listen> {
        echo::Echo.listens()
    }

    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        self.0.start(io)
    }

    fn turn(&mut self, events: &[Event], io: &mut Io<'_>) {
        let (own, others): (Vec<Event>, Vec<_>) =
            events.iter().partition(|event| event.connection() == self.0.id);
        echo::Echo.turn(&others, io);
        if !own.is_empty() {
            self.0.turn(&own, io);
        }
    }

    fn is_done(&self) -> bool {
        self.0.done
    }
}

#[test]
fn what_is_said_comes_back_and_then_the_end() {
    let arena = Arena::new(vec![0; 64 << 20]).unwrap();
    let stop = Stop::new().unwrap();
    let port = open(&"null:".parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let program = &mut |_, _| Box::new(Both::default()) as Box<dyn Program>;
    // One that has nothing to say to anybody outside: what comes in by it is nobody's.
    let configure = Box::new(|_: &mut Control, _, _: &[_]| Ok(()));
    let instance =
        Instance::start(vec![port], arena, &Options::default(), &stop, configure, program).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !instance.wait(Duration::from_millis(100)) && Instant::now() < until {}
    let done = instance.handle().is_done();
    stop.set();
    instance.run().unwrap();
    assert!(done, "the client has heard all");
}

/// What the example is called with, in a process of its own that begins as this one does: the test runner takes both words for names of
/// tests, of which the first is a part of this one's.
const CALLED: [&str; 2] = ["of_the_kernel", "10.9.0.2/24"];

struct Called(Child);

impl Drop for Called {
    fn drop(&mut self) {
        // It has ended already, unless the test fails.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_client_of_the_kernel_hears_its_echo_by_a_tap() {
    if std::env::args().skip(1).eq(CALLED) {
        return echo::main().unwrap();
    }
    let Some(_guard) = lock() else { return };
    let host = Host::new().unwrap();
    let server = host.command(std::env::current_exe().unwrap()).unwrap().args(CALLED).spawn().unwrap();
    let mut server = Called(server);
    let until = Instant::now() + Duration::from_secs(60);
    while host.link(CALLED[0]).is_err() {
        assert!(
            server.0.try_wait().unwrap().is_none() && Instant::now() < until,
            "it makes no TAP interface"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    host.wait_until_running(CALLED[0]).unwrap();
    let index = host.link(CALLED[0]).unwrap().index;
    host.add_address(index, "10.9.0.1/24".parse().unwrap()).unwrap();
    let said: Vec<u8> = (0..BYTES).map(byte).collect();
    let mut heard = Vec::new();
    let stream = host.enter(|| TcpStream::connect(("10.9.0.2", 7))).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&stream).write_all(&said).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        (&stream).read_to_end(&mut heard).unwrap();
    });
    assert!(heard == said, "{} of {BYTES} bytes", heard.len());
    kill_process(Pid::from_child(&server.0), Signal::INT).unwrap();
    assert!(server.0.wait().unwrap().success(), "it ends in order");
}
