//! An echo server on a TAP interface: `echo TAP ADDRESS/LENGTH`, then `nc ADDRESS 7` from the machine itself.
#![expect(clippy::print_stdout, reason = "it is a program")]

use std::collections::HashSet;
use std::error::Error;
use std::time::Duration;

use bywash_drivers::{OpenOptions, open};
use bywash_engine::stack::{ConnectionId, Control, Event, Prefix, TcpError, frame::Arena};
use bywash_engine::sys::{signals::stop_on_signals, worker::Stop};
use bywash_engine::{Instance, Io, Options, Program};

/// The connections whose peers have said all.
#[derive(Default)]
struct Echo(HashSet<ConnectionId>);

impl Program for Echo {
    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        io.listen(None, 7, 1024).map(drop).map_err(|error| error.to_string())
    }

    fn turn(&mut self, events: &[Event], io: &mut Io<'_>) {
        for event in events {
            // A connection that is gone in between has nothing to echo.
            let _ = match *event {
                Event::Readable(id) | Event::Writable(id) => self.echo(id, io),
                Event::PeerClosed(id) => {
                    self.0.insert(id);
                    self.echo(id, io)
                }
                Event::Closed(id, _) => io.close(id),
                _ => Ok(()),
            };
        }
    }
}

impl Echo {
    fn echo(&mut self, id: ConnectionId, io: &mut Io<'_>) -> Result<(), TcpError> {
        let (mut bytes, room) = (Vec::new(), io.send_room(id)?);
        io.read(id, |piece| {
            let n = piece.len().min(room - bytes.len());
            bytes.extend_from_slice(&piece[..n]);
            n
        })?;
        io.send(id, &bytes)?;
        let said_all = io.stack().readable_bytes(id)? == 0 && self.0.remove(&id);
        if said_all { io.close(id) } else { Ok(()) }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [tap, address] = &words[..] else { return Err("usage: echo TAP ADDRESS/LENGTH".into()) };
    let (arena, stop) = (Arena::new(vec![0; 64 << 20])?, Stop::new()?);
    stop_on_signals(stop.clone())?;
    let port = open(&format!("tap:{tap}").parse()?, &OpenOptions::default(), arena)?.port;
    let address: Prefix = address.parse()?;
    let configure =
        Box::new(move |control: &mut Control, now, ids: &[_]| control.add_address(now, ids[0], address));
    let instance = Instance::start(vec![port], arena, &Options::default(), &stop, configure, &mut |_, _| {
        Box::new(Echo::default())
    })?;
    println!("echoing on {address}, port 7; Ctrl-C ends it");
    while !instance.wait(Duration::from_secs(1)) {}
    let errors = instance.close().errors;
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ").into()) }
}
