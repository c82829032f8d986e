//! A client by hand: what is typed is sent, what comes is shown.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use bywash_engine::stack::Timestamp;

use crate::counters::{Counted, Counters};
use crate::sockets::{Ended, Happened, Service, Sockets};

/// How often it is looked whether something was typed.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes read of the input at once, and pieces that wait to be sent.
const PIECE: usize = 16 << 10;
const PIECES: usize = 16;

/// The client. It is done when the server has said all.
#[derive(Debug)]
pub struct Connect<Id> {
    to: Option<SocketAddr>,
    id: Option<Id>,
    open: bool,
    typed: Receiver<Vec<u8>>,
    pending: Vec<u8>,
    /// Nothing more will be typed, and the peer was told.
    input_ended: bool,
    shut: bool,
    done: bool,
    /// Something that came could not be written: that is told once.
    unwritten: bool,
    look_at: Timestamp,
    counters: Counters,
}

impl<Id: Copy + Eq> Connect<Id> {
    /// One that has not begun; without a server, one that has nothing to do.
    pub fn new(to: Option<SocketAddr>, counters: Counters) -> Self {
        Self {
            to,
            id: None,
            open: false,
            typed: sync_channel(0).1,
            pending: Vec::new(),
            input_ended: false,
            shut: false,
            done: to.is_none(),
            unwritten: false,
            look_at: Timestamp::ZERO,
            counters,
        }
    }

    fn send<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) {
        loop {
            let sent = sockets.send(id, &self.pending);
            self.pending.drain(..sent);
            self.counters.add(Counted { sent: sent as u64, ..Counted::default() });
            if !self.pending.is_empty() {
                return;
            }
            match self.typed.try_recv() {
                Ok(piece) => self.pending = piece,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.input_ended = true;
                    if !std::mem::replace(&mut self.shut, true) {
                        sockets.shutdown(id);
                    }
                    return;
                }
            }
        }
    }

    fn show<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) {
        let mut output = std::io::stdout().lock();
        let mut written = Ok(());
        let received = sockets.read(id, &mut |bytes| {
            if written.is_ok() {
                written = output.write_all(bytes);
            }
            bytes.len()
        });
        self.counters.add(Counted { received: received as u64, ..Counted::default() });
        // Whoever reads no more wants to see no more.
        if let Err(error) = written.and_then(|()| output.flush())
            && error.kind() != ErrorKind::BrokenPipe
            && !std::mem::replace(&mut self.unwritten, true)
        {
            self.counters.unwritten(format!("standard output can't be written: {error}"));
        }
    }
}

impl<Id: Copy + Eq + Send + 'static> Service<Id> for Connect<Id> {
    fn start<S: Sockets<Id = Id>>(&mut self, sockets: &mut S) -> Result<(), String> {
        let Some(to) = self.to else { return Ok(()) };
        let (tell, typed) = sync_channel(PIECES);
        self.typed = typed;
        // It ends with its input, or when nobody listens any more.
        let read = move || {
            let mut buffer = vec![0; PIECE];
            while let Ok(n @ 1..) = std::io::stdin().read(&mut buffer) {
                if tell.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("input".into()).spawn(read);
        thread.map_err(|error| format!("no thread to read standard input: {error}"))?;
        self.id = Some(sockets.connect(to)?);
        Ok(())
    }

    fn turn<S: Sockets<Id = Id>>(&mut self, happened: &[Happened<Id>], sockets: &mut S) {
        let Some(id) = self.id else { return };
        for what in happened {
            match *what {
                Happened::Connected(_) => {
                    self.open = true;
                    self.counters.add(Counted { connections: 1, ..Counted::default() });
                }
                Happened::PeerClosed(_) => {
                    self.show(id, sockets);
                    sockets.close(id);
                    self.done = true;
                }
                Happened::Closed(_, ended) => {
                    self.show(id, sockets);
                    sockets.close(id);
                    self.counters.add(Counted::lost(ended, u64::from(ended != Ended::InOrder)));
                    self.done = true;
                }
                _ => {}
            }
        }
        if !self.done {
            self.show(id, sockets);
            if self.open {
                self.send(id, sockets);
            }
        }
        self.look_at = sockets.now() + LOOK;
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        (self.open && !self.input_ended && !self.done && self.pending.is_empty()).then_some(self.look_at)
    }

    fn is_done(&self) -> bool {
        self.done
    }
}
