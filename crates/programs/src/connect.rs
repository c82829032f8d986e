//! A client by hand: what is typed is sent, what comes is shown. Neither waits for the other.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use bywash_engine::stack::Timestamp;

use crate::counters::{Counted, Counters};
use crate::input::{Input, Piece};
use crate::output::Output;
use crate::sockets::{Ended, Happened, Service, Sockets};

/// How soon it is looked whether there is room again for what has come.
const SOON: Duration = Duration::from_millis(1);
/// How long what has come may take to be written at the end.
const PATIENCE: Duration = Duration::from_millis(100);

/// The client. It is done when both ends have said all. A server that has may still listen: what is typed is sent on.
#[derive(Debug)]
pub struct Connect<Id> {
    to: Option<SocketAddr>,
    id: Option<Id>,
    open: bool,
    input: Option<Input>,
    pending: Vec<u8>,
    /// Bytes handed to the connection.
    sent: u64,
    /// Nothing more will be typed, and the peer was told.
    shut: bool,
    output: Option<Output>,
    /// The output had no room for all that has come.
    stalled: bool,
    /// How the connection has ended; what came before may still wait for room.
    ended: Option<Ended>,
    done: bool,
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
            input: None,
            pending: Vec::new(),
            sent: 0,
            shut: false,
            output: None,
            stalled: false,
            ended: None,
            done: to.is_none(),
            look_at: Timestamp::ZERO,
            counters,
        }
    }

    fn send<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) {
        loop {
            let sent = sockets.send(id, &self.pending);
            self.pending.drain(..sent);
            self.sent += sent as u64;
            self.counters.add(Counted { sent: sent as u64, ..Counted::default() });
            if !self.pending.is_empty() {
                return;
            }
            match self.input.as_ref().map_or(Piece::None, Input::take) {
                Piece::Read(piece) => self.pending = piece,
                Piece::None => return,
                Piece::Failed(error) => {
                    // A FIN would say that this was all.
                    self.counters.unsent(format!("standard input can't be read: {error}"));
                    sockets.abort(id);
                    self.finish();
                    return;
                }
                Piece::End => {
                    if !std::mem::replace(&mut self.shut, true) {
                        sockets.shutdown(id);
                    }
                    return;
                }
            }
        }
    }

    /// Takes of what has come as much as the output has room for, and says whether there was nothing. The rest waits in the
    /// connection, whose window says so.
    fn show<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) -> bool {
        let Some(output) = &self.output else { return true };
        let mut stalled = false;
        let received = sockets.read(id, &mut |bytes| {
            let taken = output.put(bytes);
            stalled |= taken < bytes.len();
            taken
        });
        self.stalled = stalled;
        self.counters.add(Counted { received: received as u64, ..Counted::default() });
        self.complain();
        received == 0 && !stalled
    }

    /// Tells why nothing can be written. Whoever reads no more wants to see no more.
    fn complain(&self) {
        if let Some(error) = self.output.as_ref().and_then(Output::failure)
            && error.kind() != ErrorKind::BrokenPipe
        {
            self.counters.unwritten(format!("standard output can't be written: {error}"));
        }
    }

    fn unwritten(&self) -> usize {
        self.output.as_ref().map_or(0, Output::waiting)
    }

    /// Notes how the connection has ended.
    fn note<S: Sockets<Id = Id>>(&mut self, id: Id, ended: Ended, sockets: &S) {
        // A peer may break off what it has closed before (RFC 9293, 3.10.7.4): that is an end in order if it had all.
        let lost = sockets.acknowledged(id).is_some_and(|bytes| bytes < self.sent);
        self.ended = Some(if ended == Ended::InOrder && lost { Ended::Reset } else { ended });
    }

    fn count(&self, ended: Ended) {
        self.counters.add(Counted::lost(ended, u64::from(ended != Ended::InOrder)));
    }

    fn end_with<S: Sockets<Id = Id>>(&mut self, id: Id, ended: Ended, sockets: &mut S) {
        sockets.close(id);
        self.count(ended);
        self.complain();
        self.finish();
    }

    fn finish(&mut self) {
        self.done = true;
        self.counters.ends();
    }
}

impl<Id: Copy + Eq + Send + 'static> Service<Id> for Connect<Id> {
    fn start<S: Sockets<Id = Id>>(&mut self, sockets: &mut S) -> Result<(), String> {
        let Some(to) = self.to else { return Ok(()) };
        let input = Input::stdin(sockets.waker())
            .map_err(|error| format!("no thread to read standard input: {error}"))?;
        self.input = Some(input);
        let output =
            Output::stdout().map_err(|error| format!("no thread to write standard output: {error}"))?;
        self.output = Some(output);
        self.id = Some(sockets.connect(to)?);
        Ok(())
    }

    fn turn<S: Sockets<Id = Id>>(&mut self, happened: &[Happened<Id>], sockets: &mut S) {
        let Some(id) = self.id.filter(|_| !self.done) else { return };
        for what in happened {
            match *what {
                Happened::Connected(_) => {
                    self.open = true;
                    self.counters.begins();
                    self.counters.add(Counted { connections: 1, ..Counted::default() });
                }
                Happened::Closed(_, ended) => self.note(id, ended, sockets),
                _ => {}
            }
        }
        let is_shown = self.show(id, sockets);
        if self.output.as_ref().is_some_and(Output::is_broken) {
            // Nobody will see what comes.
            sockets.abort(id);
            self.ended.into_iter().for_each(|ended| self.count(ended));
            self.finish();
            return;
        }
        match self.ended {
            None if self.open => self.send(id, sockets),
            Some(ended) if is_shown && self.unwritten() == 0 => self.end_with(id, ended, sockets),
            _ => {}
        }
        self.look_at = sockets.now() + SOON;
    }

    fn end(&mut self, _: Timestamp) {
        let Some(output) = self.output.as_ref().filter(|_| !self.done) else { return };
        self.counters.ends();
        output.settle(PATIENCE);
        self.complain();
        let left = output.waiting();
        if left > 0 || self.stalled {
            self.counters.unwritten("standard output did not take all that had come".into());
        }
        let is_left = self.input.as_ref().is_some_and(|input| matches!(input.take(), Piece::Read(_)));
        if self.open && self.ended.is_none() && (!self.pending.is_empty() || is_left) {
            self.counters.unsent("the run has ended before standard input was sent".into());
        }
        // It was to be told when all had been shown.
        self.ended.into_iter().for_each(|ended| self.count(ended));
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        let waits = (self.stalled || self.ended.is_some()).then_some(self.look_at);
        let listens = self.open && self.ended.is_none() && !self.shut && self.pending.is_empty();
        let typed = listens && self.input.as_ref().is_some_and(Input::has_news);
        waits.into_iter().chain(typed.then_some(Timestamp::ZERO)).min().filter(|_| !self.done)
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::OwnedFd;

    use super::*;

    /// A connection by which more comes than anybody shows.
    struct Endless;

    impl Sockets for Endless {
        type Id = ();

        fn now(&self) -> Timestamp {
            Timestamp::ZERO
        }

        fn connect(&mut self, _to: SocketAddr) -> Result<(), String> {
            Ok(())
        }

        fn send(&mut self, (): (), _bytes: &[u8]) -> usize {
            0
        }

        fn read(&mut self, (): (), take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
            let piece = vec![b'!'; 1 << 16];
            let mut read = 0;
            // More than the output has room for.
            for _ in 0..64 {
                let taken = take(&piece);
                read += taken;
                if taken < piece.len() {
                    break;
                }
            }
            read
        }

        fn shutdown(&mut self, (): ()) {}

        fn close(&mut self, (): ()) {}

        fn abort(&mut self, (): ()) {}
    }

    /// A client that is connected, and its counters.
    fn connected(output: File, input: Option<File>) -> (Connect<()>, Counters) {
        let counters = Counters::default();
        let mut connect = Connect::new(Some("10.0.0.2:7".parse().unwrap()), counters.clone());
        connect.id = Some(());
        connect.output = Some(Output::new(output).unwrap());
        connect.input = input.map(|file| Input::new(file, || ()).unwrap());
        while connect.input.as_ref().is_some_and(|input| !input.has_news()) {
            std::thread::yield_now();
        }
        connect.turn(&[Happened::Connected(())], &mut Endless);
        (connect, counters)
    }

    #[test]
    fn where_nothing_more_can_be_shown_the_run_ends() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let full = File::options().write(true).open("/dev/full").unwrap();
        for (output, unwritten) in [(OwnedFd::from(writer).into(), 0), (full, 1)] {
            let (mut connect, counters) = connected(output, None);
            connect.output.as_ref().unwrap().settle(Duration::from_secs(10));
            connect.turn(&[], &mut Endless);
            assert!(connect.is_done());
            assert_eq!((counters.read().errors(), counters.read().unwritten), (unwritten, unwritten));
        }
    }

    #[test]
    fn what_was_to_be_sent_and_was_not_is_told_of() {
        let output = || File::options().write(true).open("/dev/null").unwrap();
        let (connect, counters) = connected(output(), File::open("/").ok());
        assert_eq!((connect.is_done(), counters.read().unsent), (true, 1));
        assert!(counters.unsent_because().unwrap().starts_with("standard input can't be read: "));

        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"typed").unwrap();
        let (mut connect, counters) = connected(output(), Some(OwnedFd::from(reader).into()));
        connect.end(Timestamp::ZERO);
        assert_eq!(counters.read().unsent, 1);
        let (mut connect, counters) = connected(output(), None);
        connect.end(Timestamp::ZERO);
        assert_eq!(counters.read().unsent, 0, "nothing was typed");
    }

    #[test]
    fn what_is_measured_is_from_the_connection_to_where_it_was_done_or_made_to_end() {
        let null = || File::options().write(true).open("/dev/null").unwrap();
        let (mut connect, counters) = connected(null(), None);
        assert!(matches!(counters.measured(), Some((_, None))), "it goes on");
        connect.end(Timestamp::ZERO);
        assert!(matches!(counters.measured(), Some((began, Some(ended))) if ended >= began));
        // Its input fails, its output does.
        let (connect, counters) = connected(null(), File::open("/").ok());
        assert!(connect.is_done() && matches!(counters.measured(), Some((_, Some(_)))));
        let (mut connect, counters) = connected(File::options().write(true).open("/dev/full").unwrap(), None);
        connect.output.as_ref().unwrap().settle(Duration::from_secs(10));
        connect.turn(&[], &mut Endless);
        assert!(connect.is_done() && matches!(counters.measured(), Some((_, Some(_)))));
    }

    #[test]
    fn a_reset_is_told_of_though_the_run_ends_before_all_is_shown() {
        for (ended, errors) in [(Ended::Reset, 2), (Ended::InOrder, 1)] {
            let (_reader, writer) = io::pipe().unwrap();
            let counters = Counters::default();
            let mut connect = Connect::new(Some("10.0.0.2:7".parse().unwrap()), counters.clone());
            connect.id = Some(());
            connect.output = Some(Output::new(OwnedFd::from(writer).into()).unwrap());
            connect.turn(&[Happened::Connected(()), Happened::Closed((), ended)], &mut Endless);
            assert!(!connect.is_done() && counters.read().errors() == 0, "it waits for who reads");
            connect.end(Timestamp::ZERO);
            let counted = counters.read();
            assert_eq!((counted.errors(), counted.unwritten), (errors, 1), "{ended:?}");
            assert_eq!(counted.reset, errors - 1);
        }
    }
}
