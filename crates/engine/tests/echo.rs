//! The echo server of the example and a client beside it, by the loopback: what is said comes back, all of it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "only its program is wanted")]
#[path = "../examples/echo.rs"]
mod echo;

use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_engine::stack::frame::Arena;
use bywash_engine::stack::{ConnectionId, Control, Event, Listen};
use bywash_engine::sys::worker::Stop;
use bywash_engine::{Instance, Io, Options, Program};

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
