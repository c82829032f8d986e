//! A server and what clients say to it.

use std::net::SocketAddr;

use bywash_engine::stack::Timestamp;

use super::*;

/// The head of an answer, and its body where that is short.
fn said(http: &Http, head: &str) -> String {
    String::from_utf8(http.answer(parse(head.as_bytes()).as_ref().map_err(|refused| *refused)).head).unwrap()
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
        (b"a", "/+5", "404"),
        (b"a", "/%35", "200"),
        (b"100%", "/100%", "400"),
        (b"a", "/%6", "400"),
        (b"a", "/%+6", "400"),
        (b"a", "/%\u{e9}", "400"),
    ] {
        let file = File { name: name.into(), bytes: b"here".as_slice().into(), modified: None };
        let answer = said(&Http::new(&[file]), &format!("GET {path} HTTP/1.1\r\nHost: a"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        assert!(answer.contains("\r\nConnection: keep-alive\r\n"), "{path}: {answer}");
        assert_eq!(answer.ends_with("here"), status == "200" && name != b"a", "{path}: {answer}");
    }
}

#[test]
fn a_part_of_a_file_is_told_as_such_and_what_the_client_has_is_not_sent_again() {
    let modified = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").ok();
    let bytes: Vec<u8> = (0..5000).map(|n| b'a' + u8::try_from(n % 26).unwrap()).collect();
    let file = |name: &str, bytes: &[u8]| File { name: name.into(), bytes: bytes.into(), modified };
    let mut http = Http::new(&[file("x.txt", &bytes), file("y", b"other")]);
    const KIND: &str = "Content-Type: text/plain\r\nAccept-Ranges: bytes\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    for (asked, status, fields, body) in [
        ("GET /x.txt", "200 OK", format!("{KIND}Content-Length: 5000\r\n"), &bytes[..]),
        (
            "GET /x.txt\r\nRange: bytes=26-28",
            "206 Partial Content",
            format!("{KIND}Content-Range: bytes 26-28/5000\r\nContent-Length: 3\r\n"),
            b"abc",
        ),
        (
            "GET /x.txt\r\nRange: bytes=1-4998",
            "206 Partial Content",
            format!("{KIND}Content-Range: bytes 1-4998/5000\r\nContent-Length: 4998\r\n"),
            &bytes[1..4999],
        ),
        (
            "GET /x.txt\r\nrange: bytes=5000-",
            "416 Range Not Satisfiable",
            "Content-Range: bytes */5000\r\nContent-Length: 0\r\n".into(),
            b"",
        ),
        ("HEAD /x.txt\r\nRange: bytes=1-2", "200 OK", format!("{KIND}Content-Length: 5000\r\n"), b""),
        (
            "GET /x.txt\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
            "304 Not Modified",
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n".into(),
            b"",
        ),
        ("GET /x.txt\r\nIf-Match: \"a\"", "412 Precondition Failed", "Content-Length: 0\r\n".into(), b""),
        (
            "GET /y\r\nRange: bytes=-2",
            "206 Partial Content",
            "Content-Type: application/octet-stream\r\n".into(),
            b"er",
        ),
        (
            "GET /3\r\nRange: bytes=1-1\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
            "200 OK",
            "Content-Type: application/octet-stream\r\nContent-Length: 3\r\n".into(),
            b"abc",
        ),
        ("GET /3\r\nIf-None-Match: *", "304 Not Modified", "Connection: keep-alive\r\n".into(), b""),
        ("GET /z", "404 Not Found", "Content-Length: 0\r\n".into(), b""),
    ] {
        let (line, more) = asked.split_once("\r\n").unwrap_or((asked, "X: y"));
        let said = format!("{line} HTTP/1.1\r\nHost: a\r\n{more}\r\n\r\n");
        let mut sockets = Said(said.clone().into(), Vec::new());
        http.work((), &mut Conversation::default(), false, &mut sockets);
        let told = String::from_utf8(sockets.1).unwrap();
        let (head, told) = told.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{said}{head}");
        assert!(format!("{head}\r\n").contains(&*fields), "{said}{head}");
        assert_eq!(head.contains("Content-Length"), !status.starts_with("304"), "{said}{head}");
        assert_eq!(told.as_bytes(), body, "{said}{head}");
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
        let (mut http, mut sockets) = (Http::new(&[]), Said(said.into(), Vec::new()));
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
    let http = Http::new(&[]);
    let told = |head: &str| said(&http, head);
    for (head, status, end) in [
        ("POST /5 HTTP/1.1\r\nHost: a", "405 Method Not Allowed\r\nAllow: GET, HEAD", "keep-alive"),
        ("POST /5 HTTP/1.1\r\nHost: a\r\nContent-Length: 1", "405 Method Not Allowed", "close"),
        ("GET /5 HTTP/1.1\r\nHost: a\r\nContent-Length: 1", "400 Bad Request", "close"),
        ("GET /x HTTP/1.1\r\nHost: a", "404 Not Found", "keep-alive"),
        ("OPTIONS * HTTP/1.1\r\nHost: a", "405 Method Not Allowed\r\nAllow: GET, HEAD", "keep-alive"),
        ("BREW / HTTP/1.1\r\nHost: a", "501 Not Implemented", "close"),
        ("GET / HTTP/2.0\r\nHost: a", "505 HTTP Version Not Supported", "close"),
    ] {
        let answer = told(head);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{head}: {answer}");
        assert!(answer.contains(&format!("Connection: {end}\r\n")), "{head}: {answer}");
    }
}

#[test]
fn empty_lines_before_a_request_are_nothing_and_a_head_without_end_is_too_large() {
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(HEAD));
    let twice = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2);
    for (said, requests, status) in [
        (&*twice, 2, "200 OK"),
        (&*long, 1, "431 "),
        ("\r\n\n\r\n", 0, ""),
        ("GET / HTTP/1.1\r\nHost: a\n\r\nGET / HTTP/1.1\nHost: a\r\n\n", 2, "200 OK"),
    ] {
        let (mut http, mut sockets) = (Http::new(&[]), Said(said.into(), Vec::new()));
        let worked = http.work((), &mut Conversation::default(), false, &mut sockets);
        let answers = String::from_utf8(sockets.1).unwrap();
        assert_eq!(worked.counted.requests, requests, "{answers}");
        assert_eq!(answers.matches(&format!("HTTP/1.1 {status}")).count() as u64, requests, "{answers}");
    }
}
