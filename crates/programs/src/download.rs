//! A client that downloads by parallel streams: whatever a server sends, or one path of an HTTP server.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;

use bywash_engine::stack::Timestamp;

use crate::answer::Answer;
use crate::counters::{Counted, Counters};
use crate::sockets::{Ended, Happened, Service, Sockets};

/// What is to be downloaded, by one service.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The server.
    pub from: SocketAddr,
    /// What to ask first, of an HTTP server; nothing of a server that sends unasked.
    pub request: Vec<u8>,
    /// Streams.
    pub streams: usize,
}

/// The client. It is done when all servers have said all.
#[derive(Debug)]
pub struct Download<Id> {
    wanted: Wanted,
    counters: Counters,
    streams: HashMap<Id, Stream>,
}

/// One of them.
#[derive(Debug)]
struct Stream {
    number: usize,
    is_open: bool,
    /// How much of the request is sent.
    asked: usize,
    /// How far the answer is, where one was asked for.
    answer: Answer,
}

impl<Id: Copy + Eq + Hash> Download<Id> {
    /// One that has not begun.
    pub fn new(wanted: Wanted, counters: Counters) -> Self {
        Self { wanted, counters, streams: HashMap::new() }
    }

    /// Sends what is left of the request, as far as there is room.
    fn ask<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let left = &self.wanted.request[stream.asked..];
        if left.is_empty() {
            return;
        }
        let sent = sockets.send(id, left);
        stream.asked += sent;
        self.counters.add(Counted { sent: sent as u64, ..Counted::default() });
    }

    /// Takes what is there, and looks in it for the end of the answer if one was asked for.
    fn read<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) {
        let Some(Stream { number, answer, .. }) = self.streams.get_mut(&id) else { return };
        let (number, mut answer) = (*number, (!self.wanted.request.is_empty()).then_some(answer));
        let mut said = None;
        let received = sockets.read(id, &mut |bytes| {
            if let (Some(answer), None) = (&mut answer, &said) {
                said = read_on(answer, bytes);
            }
            bytes.len()
        });
        self.counters.add(Counted { received: received as u64, ..Counted::default() });
        self.counters.add_to_stream(number, received as u64);
        if let Some(said) = said {
            self.streams.remove(&id);
            sockets.close(id);
            said.unwrap_or_else(|wrong| self.counters.wrong(wrong, 1));
        }
    }

    fn end<S: Sockets<Id = Id>>(&mut self, id: Id, ended: Ended, sockets: &mut S) {
        let Some(Stream { mut answer, .. }) = self.streams.remove(&id) else { return };
        sockets.close(id);
        // Of an answer whose length is not told the end of its connection is the end, if it comes in order (RFC 9112, 8).
        let whole = self.wanted.request.is_empty() || answer.ended();
        let in_order = ended == Ended::InOrder && whole;
        let failed = if in_order { Counted::default() } else { Counted::lost(ended, 1) };
        let ran_out = in_order && self.wanted.request.is_empty();
        self.counters.add(Counted { ran_out: u64::from(ran_out), ..failed });
    }
}

/// Reads on in an answer. `None` if it is not whole yet; otherwise whether it is what was asked for, or what is wrong with it.
fn read_on(answer: &mut Answer, mut bytes: &[u8]) -> Option<Result<(), String>> {
    while !bytes.is_empty() {
        match answer.read(bytes) {
            Ok((taken, false)) => bytes = &bytes[taken..],
            Ok((_, true)) if answer.is_success() => return Some(Ok(())),
            Ok((_, true)) => return Some(Err("an answer that has nothing to download".into())),
            Err(wrong) => return Some(Err(wrong)),
        }
    }
    None
}

impl<Id: Copy + Eq + Hash + Send + 'static> Service<Id> for Download<Id> {
    fn start<S: Sockets<Id = Id>>(&mut self, sockets: &mut S) -> Result<(), String> {
        self.counters.has_streams(self.wanted.streams);
        for number in 0..self.wanted.streams {
            let stream = Stream { number, is_open: false, asked: 0, answer: Answer::default() };
            self.streams.insert(sockets.connect(self.wanted.from)?, stream);
        }
        Ok(())
    }

    fn turn<S: Sockets<Id = Id>>(&mut self, happened: &[Happened<Id>], sockets: &mut S) {
        for what in happened {
            let id = match *what {
                Happened::Connected(id) => {
                    if let Some(stream) = self.streams.get_mut(&id) {
                        stream.is_open = true;
                    }
                    self.counters.begins();
                    self.counters.add(Counted { connections: 1, ..Counted::default() });
                    self.ask(id, sockets);
                    id
                }
                Happened::Writable(id) => {
                    self.ask(id, sockets);
                    id
                }
                Happened::Accepted(id)
                | Happened::Readable(id)
                | Happened::PeerClosed(id)
                | Happened::Closed(id, _) => id,
            };
            self.read(id, sockets);
            match *what {
                Happened::PeerClosed(id) => self.end(id, Ended::InOrder, sockets),
                Happened::Closed(id, ended) => self.end(id, ended, sockets),
                _ => {}
            }
        }
        if self.is_done() {
            self.counters.ends();
        }
    }

    fn end(&mut self, _: Timestamp) {
        self.counters.ends();
        let never_opened = self.streams.values().filter(|stream| !stream.is_open).count() as u64;
        self.counters.add(Counted { left: self.streams.len() as u64, never_opened, ..Counted::default() });
    }

    fn is_done(&self) -> bool {
        self.streams.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that has said what it says, and takes so many bytes of a request at once.
    struct Said(&'static [u8], usize);

    impl Sockets for Said {
        type Id = usize;

        fn now(&self) -> Timestamp {
            Timestamp::ZERO
        }

        fn connect(&mut self, _: SocketAddr) -> Result<usize, String> {
            Ok(0)
        }

        fn send(&mut self, _: usize, bytes: &[u8]) -> usize {
            bytes.len().min(self.1)
        }

        fn read(&mut self, _: usize, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
            let said = std::mem::take(&mut self.0);
            said.chunks(5).map(take).sum()
        }

        fn shutdown(&mut self, _: usize) {}

        fn close(&mut self, _: usize) {}

        fn abort(&mut self, _: usize) {}
    }

    /// Which figures are not 0 at the end, of a stream that ends so.
    fn failed(request: &[u8], said: &'static str, ended: Ended) -> [u64; 3] {
        let (counters, mut sockets) = (Counters::default(), Said(said.as_bytes(), usize::MAX));
        let wanted = Wanted { from: ([10, 0, 0, 2], 80).into(), request: request.into(), streams: 1 };
        let mut download = Download::new(wanted, counters.clone());
        download.start(&mut sockets).unwrap();
        download.turn(&[Happened::Connected(0), Happened::Readable(0)], &mut sockets);
        download.turn(&[Happened::Closed(0, ended)], &mut sockets);
        assert!(download.is_done());
        let counted = counters.read();
        assert_eq!(counted.received, said.len() as u64);
        [counted.cut_short, counted.reset, counted.wrong]
    }

    #[test]
    fn only_what_succeeds_and_is_whole_is_a_success() {
        let asked = |said, ended| failed(b"GET / HTTP/1.1\r\n\r\n", said, ended);
        for (said, in_order, reset) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour", [0, 0, 0], [0, 0, 0]),
            ("HTTP/1.0 200 OK\r\n\r\nto the end", [0, 0, 0], [0, 1, 0]),
            ("HTTP/1.1 204 No\r\n\r\n", [0, 0, 0], [0, 0, 0]),
            ("HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\nfour", [1, 0, 0], [0, 1, 0]),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n", [1, 0, 0], [0, 1, 0]),
            ("HTTP/1.1 200 OK\r\nContent-Le", [1, 0, 0], [0, 1, 0]),
            ("HTTP/1.1 103 Hints\r\n\r\n", [1, 0, 0], [0, 1, 0]),
            ("", [1, 0, 0], [0, 1, 0]),
            ("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", [0, 0, 1], [0, 0, 1]),
            ("HTTP/1.1 304 Same\r\n\r\n", [0, 0, 1], [0, 0, 1]),
            ("HTTP/2.0 200 OK\r\n\r\n", [0, 0, 1], [0, 0, 1]),
        ] {
            assert_eq!(asked(said, Ended::InOrder), in_order, "{said}");
            assert_eq!(asked(said, Ended::Reset), reset, "{said}");
        }
        // Who was asked nothing says what it likes.
        assert_eq!(failed(b"", "HTTP/1.1 404 No\r\n", Ended::InOrder), [0, 0, 0]);
        assert_eq!(failed(b"", "", Ended::Reset), [0, 1, 0]);
    }

    /// Whoever measures for a time wants to know that there was nothing left to measure.
    #[test]
    fn streams_that_nobody_asked_for_are_told_apart_from_whole_answers() {
        for (request, said, ran_out) in [
            (&b""[..], "unasked", 1),
            (b"GET /", "HTTP/1.0 200 OK\r\n\r\nto the end", 0),
            (b"GET /", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour", 0),
        ] {
            let (counters, mut sockets) = (Counters::default(), Said(said.as_bytes(), usize::MAX));
            let wanted = Wanted { from: ([10, 0, 0, 2], 80).into(), request: request.into(), streams: 1 };
            let mut download = Download::new(wanted, counters.clone());
            download.start(&mut sockets).unwrap();
            download.turn(&[Happened::Connected(0), Happened::PeerClosed(0)], &mut sockets);
            Service::<usize>::end(&mut download, Timestamp::ZERO);
            let counted = counters.read();
            assert_eq!((counted.ran_out, counted.left, counted.errors()), (ran_out, 0, 0), "{said}");
        }
    }

    #[test]
    fn streams_that_never_open_are_told_of() {
        /// Opens as many as one likes.
        struct Opens(usize);

        impl Sockets for Opens {
            type Id = usize;

            fn now(&self) -> Timestamp {
                Timestamp::ZERO
            }

            fn connect(&mut self, _: SocketAddr) -> Result<usize, String> {
                self.0 += 1;
                Ok(self.0)
            }

            fn send(&mut self, _: usize, bytes: &[u8]) -> usize {
                bytes.len()
            }

            fn read(&mut self, _: usize, _: &mut dyn FnMut(&[u8]) -> usize) -> usize {
                0
            }

            fn shutdown(&mut self, _: usize) {}

            fn close(&mut self, _: usize) {}

            fn abort(&mut self, _: usize) {}
        }

        let (counters, mut sockets) = (Counters::default(), Opens(0));
        let wanted = Wanted { from: ([10, 0, 0, 2], 19).into(), request: Vec::new(), streams: 4 };
        let mut download = Download::new(wanted, counters.clone());
        download.start(&mut sockets).unwrap();
        download.turn(&[Happened::Connected(1), Happened::Connected(2)], &mut sockets);
        download.turn(&[Happened::PeerClosed(2), Happened::Closed(4, Ended::Refused)], &mut sockets);
        Service::<usize>::end(&mut download, Timestamp::ZERO);
        let counted = counters.read();
        assert_eq!((counted.never_opened, counted.left, counted.refused), (1, 2, 1), "{counted:?}");
    }

    #[test]
    fn a_request_that_has_no_room_at_once_is_sent_when_there_is_some() {
        let (counters, mut sockets) = (Counters::default(), Said(b"", 10));
        let request = b"GET /of/some/length HTTP/1.1\r\n\r\n";
        let wanted = Wanted { from: ([10, 0, 0, 2], 80).into(), request: request.to_vec(), streams: 1 };
        let mut download = Download::new(wanted, counters.clone());
        download.start(&mut sockets).unwrap();
        download.turn(&[Happened::Connected(0)], &mut sockets);
        assert_eq!(counters.read().sent, 10);
        for _ in 0..5 {
            download.turn(&[Happened::Writable(0)], &mut sockets);
        }
        assert_eq!(counters.read().sent, request.len() as u64, "all of it, once");
    }
}
