//! A small server of HTTP/1.1 (RFC 9112): `GET` and `HEAD` of one file, and of `/N`, which is N bytes.
//!
//! Connections stay open unless the client says otherwise, and requests may be sent before the last one is answered.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::counters::Counted;
use crate::date::Date;
use crate::server::{Course, Serve, Worked};
use crate::sockets::Sockets;

/// Bytes of a request's head at most.
const HEAD: usize = 16 << 10;
/// Requests that may wait for their answers; the rest waits unread.
const WAITING: usize = 64;
/// Bytes of a body that goes out with its head, in one call: the kernel would make two packets of two calls.
const SHORT: u64 = 1024;
/// Bytes of `/N` at most, and what they are made of.
const LARGEST: u64 = 1 << 40;
const PIECE: usize = 64 << 10;

/// A file that is served, by its name.
#[derive(Clone, Debug)]
pub struct File {
    /// `/` and this is where it is, bytes of which no URL has as they are by their numbers (`%20`).
    pub name: Vec<u8>,
    /// What is in it.
    pub bytes: Arc<[u8]>,
}

/// Serves HTTP.
#[derive(Debug)]
pub struct Http {
    file: Option<File>,
    piece: Arc<[u8]>,
    date: Date,
}

/// What is known of one connection.
#[derive(Debug, Default)]
pub struct Conversation {
    /// A request that is not all there yet.
    head: Vec<u8>,
    /// What is to be sent, in order.
    answers: VecDeque<Answer>,
    /// No more requests are taken: the last answer ends the connection.
    last: bool,
    /// The client may be sending still what nobody reads: a body, or what stands behind a request that was none.
    sends_on: bool,
}

/// What is still to be sent of an answer.
#[derive(Debug)]
struct Answer {
    /// With the body, when that is short.
    head: Vec<u8>,
    head_sent: usize,
    body: Body,
    left: u64,
}

#[derive(Debug)]
enum Body {
    File(Arc<[u8]>),
    /// The same bytes again and again.
    Made(Arc<[u8]>),
}

impl Body {
    /// What comes next when so many bytes are left, or the beginning of it.
    fn rest(&self, left: u64) -> &[u8] {
        match self {
            Self::File(bytes) => &bytes[bytes.len().saturating_sub(to_usize(left))..],
            Self::Made(bytes) => &bytes[..bytes.len().min(to_usize(left))],
        }
    }
}

impl Answer {
    /// Sends as much as there is room for; whether that was all.
    fn send<S: Sockets>(&mut self, id: S::Id, sockets: &mut S, sent: &mut u64) -> bool {
        while self.head_sent < self.head.len() {
            let n = sockets.send(id, &self.head[self.head_sent..]);
            (self.head_sent, *sent) = (self.head_sent + n, *sent + n as u64);
            if n == 0 {
                return false;
            }
        }
        while self.left > 0 {
            let n = sockets.send(id, self.body.rest(self.left));
            (self.left, *sent) = (self.left - n as u64, *sent + n as u64);
            if n == 0 {
                return false;
            }
        }
        true
    }
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    method: &'a str,
    path: &'a str,
    /// The client wants the connection to stay open.
    stays: bool,
    /// It has a body.
    has_body: bool,
}

/// Reads a head, without the empty line at its end; `None` when it is none, or nothing that is answered here.
fn parse(head: &[u8]) -> Option<Asked<'_>> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let mut words = lines.next()?.split(' ');
    let (method, path, version) = (words.next()?, words.next()?, words.next()?);
    let newer = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        _ => return None,
    };
    let path = origin_form(path)?;
    if words.next().is_some() {
        return None;
    }
    let (mut keeps, mut closes, mut hosts, mut has_body) = (newer, false, 0, false);
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("connection") {
            // Several lines are one list (RFC 9110, 5.3), in which the order says nothing.
            let has = |word: &str| value.split(',').any(|other| other.trim().eq_ignore_ascii_case(word));
            (keeps, closes) = (keeps || has("keep-alive"), closes || has("close"));
        } else if name.eq_ignore_ascii_case("host") {
            hosts += 1;
        } else if (name.eq_ignore_ascii_case("content-length") && value != "0")
            || name.eq_ignore_ascii_case("transfer-encoding")
        {
            has_body = true;
        }
    }
    // Nobody here reads a body, nor what stands behind it. That of another method is told of the method.
    if has_body && is_known(method) {
        return None;
    }
    let stays = keeps && !closes && !has_body;
    // RFC 9112, 3.2: one of them, and since 1.1 not without.
    (hosts == 1 || (hosts == 0 && !newer)).then_some(Asked { method, path, stays, has_body })
}

fn is_known(method: &str) -> bool {
    matches!(method, "GET" | "HEAD")
}

/// The path of a request's target and what follows it. Of one with a scheme and a host, as proxies are asked, the rest (RFC 9112, 3.2.2:
/// a server must take these, too); which host that is makes no difference here.
fn origin_form(target: &str) -> Option<&str> {
    if target.starts_with('/') {
        return Some(target);
    }
    let (scheme, rest) = target.split_once("://")?;
    let path = rest.find(['/', '?']).unwrap_or(rest.len());
    let is_http = ["http", "https"].iter().any(|name| scheme.eq_ignore_ascii_case(name));
    let path = is_http.then(|| rest.split_at(path)).filter(|(host, _)| !host.is_empty())?.1;
    // RFC 9110, 4.2.3: an empty path is "/".
    Some(if path.starts_with('/') { path } else { "/" })
}

/// The bytes that a path's numbers mean (RFC 3986, 2.1); `None` if they are no numbers.
fn decoded(path: &str) -> Option<Cow<'_, [u8]>> {
    let mut parts = path.split('%');
    let first = parts.next().unwrap_or_default();
    let mut bytes = Cow::Borrowed(first.as_bytes());
    for part in parts {
        let (digits, rest) = part.as_bytes().split_at_checked(2)?;
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        bytes.to_mut().push(u8::try_from(digit(0)? * 16 + digit(1)?).ok()?);
        bytes.to_mut().extend_from_slice(rest);
    }
    Some(bytes)
}

impl Http {
    /// One file, if any, and what is made.
    pub fn new(file: Option<File>) -> Self {
        let piece = (0..PIECE).map(|i| b'a' + u8::try_from(i % 26).unwrap_or(0)).collect();
        Self { file, piece, date: Date::default() }
    }

    fn answer(&self, asked: Option<&Asked<'_>>) -> Answer {
        let (body, length, status) = match asked {
            None => (Body::Made(self.piece.clone()), 0, "400 Bad Request"),
            Some(Asked { method, .. }) if !is_known(method) => {
                // RFC 9110, 15.5.6: it says which methods there are.
                (Body::Made(self.piece.clone()), 0, "405 Method Not Allowed\r\nAllow: GET, HEAD")
            }
            Some(asked) => self.find(asked.path),
        };
        let stays = asked.is_some_and(|asked| asked.stays);
        let (end, date) = (if stays { "keep-alive" } else { "close" }, self.date.text());
        let head = format!(
            "HTTP/1.1 {status}\r\nServer: bywash\r\nDate: {date}\r\nContent-Type: application/octet-stream\r\n\
             Content-Length: {length}\r\nConnection: {end}\r\n\r\n"
        );
        let (mut head, mut left) = (head.into_bytes(), length);
        if asked.is_some_and(|asked| asked.method == "HEAD") {
            left = 0;
        } else if left <= SHORT {
            head.extend_from_slice(body.rest(left));
            left = 0;
        }
        Answer { head, head_sent: 0, body, left }
    }

    fn find(&self, path: &str) -> (Body, u64, &'static str) {
        // What follows a question mark says nothing to us.
        let name = path[1..].split('?').next().unwrap_or_default();
        let Some(name) = decoded(name) else {
            return (Body::Made(self.piece.clone()), 0, "400 Bad Request");
        };
        if let Some(file) = self.file.as_ref().filter(|file| file.name == *name) {
            return (Body::File(file.bytes.clone()), file.bytes.len() as u64, "200 OK");
        }
        let number = |name: &[u8]| std::str::from_utf8(name).ok()?.parse().ok();
        let length = if name.is_empty() { Some(64) } else { number(&name) };
        match length.filter(|length| *length <= LARGEST) {
            Some(length) => (Body::Made(self.piece.clone()), length, "200 OK"),
            None => (Body::Made(self.piece.clone()), 0, "404 Not Found"),
        }
    }

    fn read<S: Sockets>(&self, id: S::Id, connection: &mut Conversation, sockets: &mut S) -> u64 {
        let read = sockets.read(id, &mut |bytes| {
            for (at, byte) in bytes.iter().enumerate() {
                if connection.last || connection.answers.len() >= WAITING {
                    return at;
                }
                connection.head.push(*byte);
                let whole = *byte == b'\n'
                    && (connection.head.ends_with(b"\r\n\r\n") || connection.head.ends_with(b"\n\n"));
                if whole || connection.head.len() > HEAD {
                    let asked = whole.then(|| parse(connection.head.trim_ascii())).flatten();
                    connection.answers.push_back(self.answer(asked.as_ref()));
                    connection.last = !asked.as_ref().is_some_and(|asked| asked.stays);
                    connection.sends_on = asked.is_none_or(|asked| asked.has_body);
                    connection.head.clear();
                }
            }
            bytes.len()
        });
        read as u64
    }
}

impl Serve for Http {
    type Connection = Conversation;

    fn work<S: Sockets>(
        &mut self,
        id: S::Id,
        connection: &mut Conversation,
        peer_closed: bool,
        sockets: &mut S,
    ) -> Worked {
        let mut counted = Counted::default();
        self.date.tell(sockets.now());
        loop {
            while let Some(answer) = connection.answers.front_mut() {
                if !answer.send(id, sockets, &mut counted.sent) {
                    return Worked { counted, course: Course::Open };
                }
                counted.requests += 1;
                connection.answers.pop_front();
            }
            if connection.last {
                // What else the client may have sent is not wanted; unread, it would reset the connection.
                let read = sockets.read(id, &mut |bytes| bytes.len());
                counted.received += read as u64;
                let lingers = !peer_closed && (connection.sends_on || read > 0);
                return Worked { counted, course: if lingers { Course::Lingers } else { Course::Over } };
            }
            let read = self.read(id, connection, sockets);
            counted.received += read;
            if read == 0 {
                return Worked { counted, course: if peer_closed { Course::Over } else { Course::Open } };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use bywash_engine::stack::Timestamp;

    use super::*;

    #[test]
    fn a_head_says_what_is_asked_for_and_whether_the_connection_stays() {
        let asked = |text: &'static str| parse(text.as_bytes()).map(|asked| (asked.path, asked.stays));
        for (head, expected) in [
            ("GET / HTTP/1.1\r\nHost: a", Some(("/", true))),
            ("GET /9 HTTP/1.0\r\nHost: a", Some(("/9", false))),
            ("GET /9 HTTP/1.0\r\nConnection: Keep-Alive", Some(("/9", true))),
            ("HEAD /a HTTP/1.1\nConnection: foo, close\nhost: a", Some(("/a", false))),
            ("GET /9 HTTP/1.0", Some(("/9", false))),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nConnection: keep-alive", Some(("/", false))),
            ("GET / HTTP/1.1\r\nConnection: keep-alive\r\nHost: a\r\nConnection: close", Some(("/", false))),
            ("GET /9 HTTP/1.0\r\nConnection: foo\r\nConnection: keep-alive, foo", Some(("/9", true))),
            ("GET / HTTP/1.1\r\nAccept: a", None),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: a", None),
            ("GET / HTTP/2", None),
            ("GET  / HTTP/1.1\r\nHost: a", None),
            ("GET http://a/ HTTP/1.1\r\nHost: a", Some(("/", true))),
            ("GET HTTP://a:80/9?x HTTP/1.1\r\nHost: a", Some(("/9?x", true))),
            ("GET http://a HTTP/1.1\r\nHost: a", Some(("/", true))),
            ("GET http://a?x HTTP/1.1\r\nHost: a", Some(("/", true))),
            ("GET http:///9 HTTP/1.1\r\nHost: a", None),
            ("GET ftp://a/9 HTTP/1.1\r\nHost: a", None),
            ("GET a/9 HTTP/1.1\r\nHost: a", None),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0", Some(("/", true))),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3", Some(("/", false))),
            ("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a", Some(("/", false))),
            ("POST / HTTP/1.1\r\nContent-Length: 3", None),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3", None),
            ("HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", None),
            ("GET / HTTP/1.1\r\nHost: a\r\nnonsense", None),
            ("", None),
        ] {
            assert_eq!(asked(head), expected, "{head}");
        }
    }

    /// The head of an answer, and its body where that is short.
    fn said(http: &Http, head: &str) -> String {
        String::from_utf8(http.answer(parse(head.as_bytes()).as_ref()).head).unwrap()
    }

    #[test]
    fn a_name_is_meant_by_the_numbers_of_its_bytes() {
        for (name, path, status) in [
            (&b"a b"[..], "/a%20b", "200"),
            (b"a b", "/a%20c", "404"),
            (b"100%", "/100%25?x=%zz", "200"),
            ("größe".as_bytes(), "/gr%c3%B6%C3%9fe", "200"),
            ("größe".as_bytes(), "/größe", "200"),
            (b"\xff?", "/%ff%3F", "200"),
            (b"a+b", "/a+b", "200"),
            (b"a", "/%35", "200"),
            (b"100%", "/100%", "400"),
            (b"a", "/%6", "400"),
            (b"a", "/%+6", "400"),
            (b"a", "/%\u{e9}", "400"),
        ] {
            let file = File { name: name.into(), bytes: b"here".as_slice().into() };
            let answer = said(&Http::new(Some(file)), &format!("GET {path} HTTP/1.1\r\nHost: a"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
            assert!(answer.contains("\r\nConnection: keep-alive\r\n"), "{path}: {answer}");
            assert_eq!(answer.ends_with("here"), status == "200" && name != b"a", "{path}: {answer}");
        }
    }

    /// A client that has said this, and takes any answer.
    struct Said(Vec<u8>, Vec<u8>);

    impl Sockets for Said {
        type Id = ();

        fn now(&self) -> Timestamp {
            Timestamp::ZERO
        }

        fn connect(&mut self, _: SocketAddr) -> Result<(), String> {
            Ok(())
        }

        fn send(&mut self, (): (), bytes: &[u8]) -> usize {
            self.1.extend_from_slice(bytes);
            bytes.len()
        }

        fn read(&mut self, (): (), take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
            let taken = if self.0.is_empty() { 0 } else { take(&self.0) };
            self.0.drain(..taken);
            taken
        }

        fn shutdown(&mut self, (): ()) {}

        fn close(&mut self, (): ()) {}

        fn abort(&mut self, (): ()) {}
    }

    #[test]
    fn a_connection_lingers_where_the_client_may_be_sending_still() {
        const LAST: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let more = format!("{LAST}more");
        for (said, peer_closed, course) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, Course::Open),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true, Course::Over),
            (LAST, false, Course::Over),
            (&*more, false, Course::Lingers),
            (&*more, true, Course::Over),
            ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", false, Course::Lingers),
            ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", true, Course::Over),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", false, Course::Lingers),
            ("nonsense\r\n\r\n", false, Course::Lingers),
        ] {
            let (mut http, mut sockets) = (Http::new(None), Said(said.into(), Vec::new()));
            let worked = http.work((), &mut Conversation::default(), peer_closed, &mut sockets);
            assert_eq!((worked.course, worked.counted.requests), (course, 1), "{said}");
            assert_eq!(worked.counted.received, said.len() as u64, "{said}");
            let answer = String::from_utf8(sockets.1).unwrap();
            let date = answer.lines().find_map(|line| line.strip_prefix("Date: ")).unwrap();
            assert!(date.len() == 29 && date.ends_with(" GMT"), "{answer}");
        }
    }

    #[test]
    fn who_asks_for_what_there_is_not_is_told_what_is_wrong() {
        let http = Http::new(None);
        let told = |head: &str| said(&http, head);
        for (head, status, end) in [
            ("POST /5 HTTP/1.1\r\nHost: a", "405 Method Not Allowed\r\nAllow: GET, HEAD", "keep-alive"),
            ("POST /5 HTTP/1.1\r\nHost: a\r\nContent-Length: 1", "405 Method Not Allowed", "close"),
            ("GET /5 HTTP/1.1\r\nHost: a\r\nContent-Length: 1", "400 Bad Request", "close"),
            ("GET /x HTTP/1.1\r\nHost: a", "404 Not Found", "keep-alive"),
        ] {
            let answer = told(head);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{head}: {answer}");
            assert!(answer.contains(&format!("Connection: {end}\r\n")), "{head}: {answer}");
        }
    }
}
