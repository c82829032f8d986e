//! What a load generator says, and how it tells that an answer is whole: HTTP/1.1 (RFC 9112), redis (RESP), and
//! memcached's text protocol.

use crate::answer::Answer;

/// Bytes of a line at most.
const LINE: usize = 16 << 10;

/// A language, and the one thing that is said in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `GET` of a path.
    Http {
        /// The path.
        path: String,
        /// The value of `Host`.
        host: String,
    },
    /// `SET` of a value, or `GET` of one.
    Redis {
        /// The value's length, for `SET`.
        set: Option<usize>,
    },
    /// `set` of a value, or `get` of one.
    Memcached {
        /// The value's length, for `set`.
        set: Option<usize>,
    },
}

/// The key that all requests are about.
const KEY: &str = "bywash:0";

/// An answer that is not all there yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reader {
    line: Vec<u8>,
    /// Bytes of a body that are still to come.
    body: u64,
    /// After the body another line ends the answer.
    tail: bool,
    /// The last answer was that there is no such value.
    missed: bool,
    /// One of HTTP.
    answer: Answer,
}

impl Reader {
    /// Nothing more may be asked on this connection.
    pub(crate) fn closes(&self) -> bool {
        self.answer.closes()
    }

    /// Whether the last answer was that there is no such value. Told once.
    pub(crate) fn missed(&mut self) -> bool {
        std::mem::take(&mut self.missed)
    }

    /// The peer has said its last: whether that makes an answer whole.
    pub(crate) fn ended(&mut self) -> bool {
        self.answer.ended()
    }
}

impl Dialect {
    /// Appends a request.
    pub fn request(&self, to: &mut Vec<u8>) {
        let (text, value) = match self {
            Self::Http { path, host } => (format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"), None),
            Self::Redis { set: None } => (format!("*2\r\n$3\r\nGET\r\n${}\r\n{KEY}\r\n", KEY.len()), None),
            Self::Redis { set: Some(n) } => {
                (format!("*3\r\n$3\r\nSET\r\n${}\r\n{KEY}\r\n${n}\r\n", KEY.len()), Some(*n))
            }
            Self::Memcached { set: None } => (format!("get {KEY}\r\n"), None),
            Self::Memcached { set: Some(n) } => (format!("set {KEY} 0 0 {n}\r\n"), Some(*n)),
        };
        to.extend_from_slice(text.as_bytes());
        if let Some(length) = value {
            to.resize(to.len() + length, b'x');
            to.extend_from_slice(b"\r\n");
        }
    }

    /// Reads on. How much of the bytes it has taken, and whether an answer is whole.
    ///
    /// # Errors
    /// The answer is none of this language, or says that something is wrong: the line that shows it.
    pub(crate) fn read(&self, reader: &mut Reader, bytes: &[u8]) -> Result<(usize, bool), String> {
        if matches!(self, Self::Http { .. }) {
            return reader.answer.read(bytes);
        }
        if reader.body > 0 {
            let n = usize::try_from(reader.body).unwrap_or(usize::MAX).min(bytes.len());
            reader.body -= n as u64;
            return Ok((n, reader.body == 0 && !reader.tail));
        }
        let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let taken = end.unwrap_or(bytes.len());
        reader.line.extend_from_slice(&bytes[..taken]);
        if reader.line.len() > LINE {
            return Err(shown(&reader.line));
        }
        if end.is_none() {
            return Ok((taken, false));
        }
        let line = std::mem::take(&mut reader.line);
        let text = std::str::from_utf8(&line).map_err(|_| shown(&line))?;
        let whole = match self {
            Self::Memcached { .. } => memcached_line(text.trim_end(), reader),
            _ => redis_line(text.trim_end(), reader),
        };
        Ok((taken, whole.ok_or_else(|| shown(&line))?))
    }
}

/// The first line of an answer, or as much of it as people need to see.
pub(crate) fn shown(answer: &[u8]) -> String {
    /// Characters of it at most.
    const SHOWN: usize = 80;
    let first = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(first).trim_end().escape_debug().take(SHOWN).collect()
}

fn redis_line(line: &str, reader: &mut Reader) -> Option<bool> {
    match line.split_at_checked(1)? {
        ("+" | ":", _) => Some(true),
        ("$", "-1") => {
            reader.missed = true;
            Some(true)
        }
        ("$", length) => {
            reader.body = length.parse::<u64>().ok()?.checked_add(2)?;
            Some(false)
        }
        _ => None,
    }
}

fn memcached_line(line: &str, reader: &mut Reader) -> Option<bool> {
    let mut words = line.split(' ');
    match words.next() {
        Some("END") => {
            // After a value it ends the answer.
            reader.missed = !std::mem::take(&mut reader.tail);
            Some(true)
        }
        Some("STORED") => Some(true),
        Some("VALUE") => {
            let length: u64 = words.nth(2).and_then(|word| word.parse().ok())?;
            reader.body = length.checked_add(2)?;
            reader.tail = true;
            Some(false)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http() -> Dialect {
        Dialect::Http { path: "/".into(), host: "a".into() }
    }

    /// Answers in `bytes`, however they are cut, and how many of them tell that there is no such value.
    fn answers(dialect: &Dialect, bytes: &[u8], piece: usize) -> Result<(usize, usize), String> {
        let (mut reader, mut whole, mut missed) = (Reader::default(), 0, 0);
        for mut rest in bytes.chunks(piece) {
            while !rest.is_empty() {
                let (taken, is_whole) = dialect.read(&mut reader, rest)?;
                whole += usize::from(is_whole);
                missed += usize::from(is_whole && reader.missed());
                rest = &rest[taken..];
            }
        }
        assert_eq!(reader, Reader::default(), "nothing is left over");
        Ok((whole, missed))
    }

    #[test]
    fn answers_are_counted_however_they_are_cut() {
        let get = (Dialect::Redis { set: None }, Dialect::Memcached { set: None });
        for (dialect, bytes, expected) in [
            (get.0.clone(), "$3\r\na\r\n\r\n$-1\r\n+OK\r\n:5\r\n$0\r\n\r\n", (5, 1)),
            (get.1.clone(), "VALUE k 0 4\r\nEND\r\r\nEND\r\nEND\r\nSTORED\r\n", (3, 1)),
        ] {
            for piece in 1..bytes.len() {
                assert_eq!(answers(&dialect, bytes.as_bytes(), piece), Ok(expected), "{bytes:?} by {piece}");
            }
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        assert_eq!(shown(b"\x1b[2J\xff\r\nmore"), "\\u{1b}[2J\u{fffd}", "nothing that a terminal would obey");
        for (dialect, bytes) in [
            (http(), "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
            (http(), "SSH-2.0-x\r\n\r\n"),
            (Dialect::Redis { set: None }, "-ERR no\r\n"),
            (Dialect::Redis { set: None }, "$18446744073709551615\r\n"),
            (Dialect::Memcached { set: None }, "ERROR\r\n"),
            (Dialect::Memcached { set: None }, "VALUE k 0\r\n"),
        ] {
            let first = bytes.lines().next().unwrap_or_default();
            assert_eq!(answers(&dialect, bytes.as_bytes(), 7), Err(first.into()), "the line that shows it");
        }
    }

    #[test]
    fn requests_are_what_the_languages_say() {
        let said = |dialect: &Dialect| {
            let mut to = Vec::new();
            dialect.request(&mut to);
            String::from_utf8(to).unwrap()
        };
        assert_eq!(said(&http()), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(
            said(&Dialect::Redis { set: Some(3) }),
            "*3\r\n$3\r\nSET\r\n$8\r\nbywash:0\r\n$3\r\nxxx\r\n"
        );
        assert_eq!(said(&Dialect::Memcached { set: Some(3) }), "set bywash:0 0 0 3\r\nxxx\r\n");
        // Longer than a format's width may be.
        for dialect in [Dialect::Redis { set: Some(1 << 17) }, Dialect::Memcached { set: Some(1 << 17) }] {
            let said = said(&dialect);
            assert!(said.contains("131072\r\nxxx") && said.ends_with("xxx\r\n"), "{dialect:?}");
            assert_eq!(said.matches('x').count(), 1 << 17, "{dialect:?}");
        }
    }
}
