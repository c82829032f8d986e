//! An echo server on a TAP interface: `echo TAP ADDRESS/LENGTH`, then `nc ADDRESS 7` from the machine itself.

use bywash_drivers::{OpenOptions, open};
use bywash_engine::stack::{Control, Event, Listen, Prefix, frame::Arena};
use bywash_engine::sys::{signals::stop_on_signals, worker::Stop};
use bywash_engine::{Instance, Io, Options, Program};

pub(crate) struct Echo;

impl Program for Echo {
    fn listens(&self) -> Vec<Listen> {
        vec![Listen { local: None, port: 7, backlog: 1024 }]
    }

    fn turn(&mut self, events: &[Event], io: &mut Io<'_>) {
        for id in events.iter().filter_map(Event::connection) {
            // What a broken connection can't send back is let go of with it.
            let broken = io.pass(id, id).is_err();
            if broken || io.is_at_end(id) {
                let _ = io.close(id);
            }
        }
    }
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [tap, address] = &words[..] else { return Err("usage: echo TAP ADDRESS/LENGTH".into()) };
    let (arena, stop) = (Arena::new(vec![0; 64 << 20])?, Stop::new()?);
    stop_on_signals(stop.clone())?;
    let port = open(&format!("tap:{tap}").parse()?, &OpenOptions::default(), arena)?.port;
    let address: Prefix = address.parse()?;
    let configure =
        Box::new(move |control: &mut Control, now, ids: &[_]| control.add_address(now, ids[0], address));
    let program = &mut |_, _| Box::new(Echo) as Box<dyn Program>;
    Instance::start(vec![port], arena, &Options::default(), &stop, configure, program)?.run()?;
    Ok(())
}
