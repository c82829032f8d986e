//! What a program asks of a connection that exists, accepted ones among them: a server and its client on one engine, by the
//! loopback.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use bywash_drivers::{OpenOptions, open};
use bywash_engine::stack::frame::Arena;
use bywash_engine::stack::{ConnectionId, Control, Event, Limits, Listen, Timestamp};
use bywash_engine::sys::worker::Stop;
use bywash_engine::{Instance, Io, Options, Program};

const PORT: u16 = 7;
/// How long a program waits until it looks again.
const PAUSE: Duration = Duration::from_millis(1);

/// Both ends of one connection.
#[derive(Clone, Copy)]
struct Ends {
    client: ConnectionId,
    server: ConnectionId,
}

/// What is done with them, and what that tells.
trait Trial: Send + 'static {
    type Found: Send;

    /// Once, when both are there.
    fn begin(&mut self, ends: Ends, io: &mut Io<'_>);

    /// Again and again, until something is found.
    fn look(&mut self, ends: Ends, io: &mut Io<'_>) -> Option<Self::Found>;
}

struct Both<T: Trial> {
    trial: T,
    client: Option<ConnectionId>,
    server: Option<ConnectionId>,
    next: Option<Timestamp>,
    found: Sender<T::Found>,
    done: bool,
}

impl<T: Trial> Program for Both<T> {
    fn listens(&self) -> Vec<Listen> {
        vec![Listen { local: None, port: PORT, backlog: 10 }]
    }

    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        let to = (Ipv4Addr::LOCALHOST.into(), PORT);
        self.client = Some(io.connect((None, 0), to, None).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn turn(&mut self, events: &[Event], io: &mut Io<'_>) {
        for event in events {
            if let Event::Accepted { connection, .. } = *event {
                self.server = Some(connection);
                self.trial.begin(Ends { client: self.client.unwrap(), server: connection }, io);
            }
        }
        let (Some(client), Some(server)) = (self.client, self.server) else { return };
        self.next = Some(io.now() + PAUSE);
        if let Some(found) = self.trial.look(Ends { client, server }, io)
            && !self.done
        {
            self.found.send(found).unwrap();
            (self.done, self.next) = (true, None);
        }
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.next
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

/// What a trial finds.
fn run<T: Trial>(trial: T) -> T::Found {
    let arena = Arena::new(vec![0; 16 << 20]).unwrap();
    let stop = Stop::new().unwrap();
    let port = open(&"null:".parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let configure = Box::new(|_: &mut Control, _, _: &[_]| Ok(()));
    let (found, all) = channel();
    let mut program = Some(Both { trial, client: None, server: None, next: None, found, done: false });
    let instance = Instance::start(vec![port], arena, &Options::default(), &stop, configure, &mut |_, _| {
        Box::new(program.take().unwrap())
    })
    .unwrap();
    assert!(instance.wait(Duration::from_secs(60)), "nothing is found");
    assert_eq!(instance.close().errors, Vec::<String>::new());
    all.recv().unwrap()
}

/// How the first half of an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Plain,
    Part,
    Cork,
}

/// An answer in two halves, which are not ready together.
struct Halves {
    how: How,
    begun: Timestamp,
    ended: bool,
}

impl Trial for Halves {
    type Found = (Vec<u8>, Duration);

    fn begin(&mut self, Ends { server, .. }: Ends, io: &mut Io<'_>) {
        self.begun = io.now();
        if self.how == How::Cork {
            io.set_cork(server, true).unwrap();
        }
        let half = if self.how == How::Part { Io::send_part } else { Io::send };
        assert_eq!(half(io, server, b"head"), Ok(4));
    }

    /// What the client reads first, and how long that took.
    fn look(&mut self, Ends { client, server }: Ends, io: &mut Io<'_>) -> Option<(Vec<u8>, Duration)> {
        let waited = io.now().since(self.begun);
        if waited >= 5 * PAUSE && !self.ended {
            self.ended = true;
            io.send(server, b"body").unwrap();
            if self.how == How::Cork {
                io.set_cork(server, false).unwrap();
            }
        }
        let mut read = Vec::new();
        io.read(client, |piece| {
            read.extend_from_slice(piece);
            piece.len()
        })
        .unwrap();
        (!read.is_empty()).then_some((read, waited))
    }
}

#[test]
fn what_is_to_go_together_waits_for_the_rest() {
    for (how, first) in [(How::Plain, "head"), (How::Part, "headbody"), (How::Cork, "headbody")] {
        // What waits goes after 200 ms: where a machine stood still for so long it is tried again.
        let mut tries = (0..20).map(|_| run(Halves { how, begun: Timestamp::ZERO, ended: false }));
        let (read, _) = tries.find(|(_, waited)| *waited < Duration::from_millis(150)).unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), first, "{how:?}");
    }
}

/// A server that wants to know whether its silent client is still there.
struct Watched;

impl Trial for Watched {
    type Found = [bool; 2];

    fn begin(&mut self, Ends { server, .. }: Ends, io: &mut Io<'_>) {
        let soon = Duration::from_millis(20);
        let limits = io.stack().connection_limits(server).unwrap();
        assert!(!limits.keepalive);
        let limits = Limits { keepalive: true, keepalive_idle: soon, keepalive_interval: soon, ..limits };
        io.set_connection_limits(server, limits).unwrap();
    }

    fn look(&mut self, Ends { client, server }: Ends, io: &mut Io<'_>) -> Option<[bool; 2]> {
        let keeps = |id| io.stack().connection_limits(id).unwrap().keepalive;
        (io.stack().counters().tcp_keepalives >= 3).then(|| [client, server].map(keeps))
    }
}

#[test]
fn a_connection_that_was_accepted_is_kept_alive_where_its_program_wants_that() {
    assert_eq!(run(Watched), [false, true]);
}

/// A client that waits for the acknowledgment of one byte.
struct Acknowledged {
    quick: bool,
    begun: Timestamp,
}

impl Trial for Acknowledged {
    type Found = Duration;

    fn begin(&mut self, Ends { client, server }: Ends, io: &mut Io<'_>) {
        io.set_quick_ack(server, self.quick).unwrap();
        self.begun = io.now();
        assert_eq!(io.send(client, b"x"), Ok(1));
    }

    fn look(&mut self, Ends { client, .. }: Ends, io: &mut Io<'_>) -> Option<Duration> {
        let info = io.stack().tcp_info(io.now(), client).unwrap();
        (info.bytes_sent > 0 && info.unacked_bytes == 0).then(|| io.now().since(self.begun))
    }
}

#[test]
fn bytes_are_acknowledged_at_once_or_after_a_while() {
    let waits = |quick| run(Acknowledged { quick, begun: Timestamp::ZERO });
    // It may always take longer.
    assert!((0..20).any(|_| waits(true) < Duration::from_millis(20)));
    assert!(waits(false) > Duration::from_millis(30));
}
