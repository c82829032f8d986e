//! Where an answer of HTTP/1.1 ends (RFC 9112, 6), and whether its connection ends with it.
//!
//! Lines are read where they are; only one that comes in pieces is kept. What a body says is nobody's matter here.

use crate::dialect::shown;

/// Bytes of a line at most.
const LINE: usize = 64 << 10;
/// Bytes of a head, or of a trailer, at most.
const HEAD: usize = 256 << 10;

/// An answer that is not all there yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    place: Place,
    /// A line's beginning.
    line: Vec<u8>,
    head: Head,
    closes: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Status,
    Fields,
    /// So many bytes of a body, more than 0.
    Body(u64),
    /// A body that ends with the connection.
    ToClose,
    ChunkSize,
    /// So many bytes of a chunk, more than 0.
    Chunk(u64),
    /// The end of a chunk's line.
    ChunkEnd,
    Trailer,
}

/// What a head says of its answer's framing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Head {
    status: u16,
    /// The version is 1.0: the connection ends unless it is said to be kept.
    old: bool,
    keeps: bool,
    closes: bool,
    length: Option<u64>,
    /// There is a transfer coding; whether the last one is `chunked`.
    coding: Option<bool>,
    bytes: usize,
}

impl Answer {
    /// Reads on. How much of the bytes it has taken, and whether an answer is whole.
    ///
    /// # Errors
    /// It is no answer, no good one, or nobody can tell where it ends: what shows it.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<(usize, bool), String> {
        match &mut self.place {
            Place::ToClose => return Ok((bytes.len(), false)),
            Place::Body(left) | Place::Chunk(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                return Ok((taken, *left == 0 && self.after_bytes()));
            }
            _ => {}
        }
        let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let taken = end.unwrap_or(bytes.len());
        if self.line.len() + taken > LINE {
            self.line.extend_from_slice(&bytes[..taken]);
            return Err(shown(&self.line));
        }
        if end.is_none() {
            self.line.extend_from_slice(bytes);
            return Ok((taken, false));
        }
        if self.line.is_empty() {
            return Ok((taken, self.take_line(&bytes[..taken])?));
        }
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(&bytes[..taken]);
        Ok((taken, self.take_line(&line)?))
    }

    /// Nothing more may be asked on its connection (RFC 9112, 9.6). Known once its head is there, until the next answer.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// Whether HTTP calls the last answer successful (RFC 9110, 15.3).
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.head.status)
    }

    /// The peer has said its last: whether that makes the answer whole.
    pub(crate) fn ended(&mut self) -> bool {
        let whole = self.place == Place::ToClose;
        if whole {
            self.place = Place::Status;
        }
        whole
    }

    /// A body or chunk is over; whether the answer is.
    fn after_bytes(&mut self) -> bool {
        let whole = matches!(self.place, Place::Body(_));
        self.place = if whole { Place::Status } else { Place::ChunkEnd };
        whole
    }

    /// A line is there; whether the answer is whole with it.
    fn take_line(&mut self, line: &[u8]) -> Result<bool, String> {
        // A line may end without a CR (RFC 9112, 2.2).
        let text = line.strip_suffix(b"\n").map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line));
        match self.place {
            Place::Status => {
                self.head = Head::begin(text).ok_or_else(|| shown(text))?;
                (self.place, self.closes) = (Place::Fields, false);
            }
            Place::Fields if text.is_empty() => return self.begin_body(),
            Place::Fields => {
                self.count(line)?;
                self.head.field(text).ok_or_else(|| shown(text))?;
            }
            Place::ChunkSize => {
                self.place =
                    match chunk_size(text).ok_or_else(|| format!("no chunk's size: {}", shown(text)))? {
                        0 => Place::Trailer,
                        size => Place::Chunk(size),
                    };
            }
            Place::ChunkEnd if text.is_empty() => self.place = Place::ChunkSize,
            Place::ChunkEnd => return Err(format!("no chunk's end: {}", shown(text))),
            Place::Trailer if text.is_empty() => {
                self.place = Place::Status;
                return Ok(true);
            }
            Place::Trailer => self.count(line)?,
            Place::Body(_) | Place::Chunk(_) | Place::ToClose => {}
        }
        Ok(false)
    }

    fn count(&mut self, line: &[u8]) -> Result<(), String> {
        self.head.bytes += line.len();
        if self.head.bytes > HEAD { Err(format!("a head of more than {HEAD} bytes")) } else { Ok(()) }
    }

    /// A head is whole; whether the answer is with it. The rules have an order (RFC 9112, 6.3).
    fn begin_body(&mut self) -> Result<bool, String> {
        let Head { status, old, keeps, closes, length, coding, .. } = self.head;
        self.head.bytes = 0;
        let place = match (status, coding, length) {
            // Others follow, and only the last is the answer (RFC 9110, 15.2).
            (100..200, ..) => {
                self.place = Place::Status;
                return Ok(false);
            }
            (204 | 304, ..) | (_, None, Some(0)) => Place::Status,
            (_, Some(true), _) => Place::ChunkSize,
            (_, None, Some(length)) => Place::Body(length),
            (_, Some(false), _) | (_, None, None) => Place::ToClose,
        };
        // Who has both may have been cheated about where the answer ends (RFC 9112, 6.3).
        let in_doubt = coding.is_some() && (length.is_some() || old);
        self.closes = closes || (old && !keeps) || in_doubt || place == Place::ToClose;
        self.place = place;
        Ok(place == Place::Status)
    }
}

impl Head {
    /// Of a status line; `None` if it is none, or that of no good answer.
    fn begin(line: &[u8]) -> Option<Self> {
        let [version, b' ', status @ ..] = line.strip_prefix(b"HTTP/1.")? else { return None };
        let (digits, rest) = status.split_at_checked(3)?;
        if !version.is_ascii_digit() || !matches!(rest, [] | [b' ', ..]) {
            return None;
        }
        let status = u16::try_from(number(digits)?).ok()?;
        // 101 is for those who have asked for another protocol.
        let good = matches!(status, 100 | 102..300 | 304);
        good.then(|| Self { status, old: *version == b'0', ..Self::default() })
    }

    /// Of a field's line; `None` if nobody can tell from it how long the body is.
    fn field(&mut self, line: &[u8]) -> Option<()> {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = (&line[..colon], line.get(colon + 1..).unwrap_or_default());
        let mut words = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        if name.eq_ignore_ascii_case(b"content-length") {
            for word in words {
                // The same several times is that once (RFC 9112, 6.3).
                let length =
                    number(word).filter(|length| self.length.is_none_or(|before| before == *length))?;
                self.length = Some(length);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            // Empty elements of a list are none (RFC 9110, 5.6.1.2).
            if let Some(last) = words.rfind(|word| !word.is_empty()) {
                self.coding = Some(last.eq_ignore_ascii_case(b"chunked"));
            }
        } else if name.eq_ignore_ascii_case(b"connection") {
            for word in words {
                self.closes |= word.eq_ignore_ascii_case(b"close");
                self.keeps |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        Some(())
    }
}

/// Digits and nothing else.
fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// Of a chunk's line, which may go on with extensions (RFC 9112, 7.1.1).
fn chunk_size(line: &[u8]) -> Option<u64> {
    let size = line.split(|byte| *byte == b';').next()?.trim_ascii();
    let digits = !size.is_empty() && size.iter().all(u8::is_ascii_hexdigit);
    std::str::from_utf8(size).ok().filter(|_| digits).and_then(|size| u64::from_str_radix(size, 16).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers in `bytes`, cut in pieces, and whether the last one closes its connection.
    fn answers(bytes: &[u8], piece: usize) -> Result<(usize, bool), String> {
        let (mut answer, mut whole) = (Answer::default(), 0);
        for mut rest in bytes.chunks(piece) {
            while !rest.is_empty() {
                let (taken, is_whole) = answer.read(rest)?;
                whole += usize::from(is_whole);
                rest = &rest[taken..];
            }
        }
        whole += usize::from(answer.ended());
        assert_eq!((answer.place, answer.line.len()), (Place::Status, 0), "nothing is left over");
        Ok((whole, answer.closes()))
    }

    #[test]
    fn answers_end_where_their_framing_says() {
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 1\r\n\r\na", "y".repeat(20_000));
        for (bytes, expected) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200\r\ncontent-length:0\r\n\r\n",
                (2, false),
            ),
            ("HTTP/1.1 200 OK\nContent-Length: 3, 3\nContent-Length: 3\n\nabc", (1, false)),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n",
                (1, false),
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\ntransfer-encoding: Chunked\r\n\r\n0\r\nX: y\r\n\r\n",
                (1, false),
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, \r\n\r\n0\r\n\r\n", (1, false)),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n",
                (1, false),
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked,,gzip,\r\n\r\nto the end", (1, true)),
            // Whoever has both ends the connection.
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                (1, true),
            ),
            (
                "HTTP/1.1 103 Hints\r\nContent-Length: 5\r\n\r\nHTTP/1.1 100 Go\r\n\r\nHTTP/1.1 204 No\r\nContent-Length: 4\r\n\r\n",
                (1, false),
            ),
            ("HTTP/1.1 304 Same\r\nContent-Length: 400\r\n\r\nHTTP/1.1 204 No\r\n\r\n", (2, false)),
            ("HTTP/1.1 200 OK\r\n\r\nto the end\r\n\r\n", (1, true)),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nto the end", (1, true)),
            ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 1\r\n\r\na", (1, true)),
            ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", (1, true)),
            ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\na", (1, false)),
            (&*long, (1, false)),
        ] {
            for piece in [1, 2, 3, 7, 1000, bytes.len()] {
                assert_eq!(answers(bytes.as_bytes(), piece), Ok(expected), "{bytes:?} by {piece}");
            }
        }
        assert_eq!(answers(b"HTTP/1.1 200 \xe4\r\nX: \xff\r\nContent-Length: 0\r\n\r\n", 5), Ok((1, false)));
    }

    #[test]
    fn what_has_no_end_that_can_be_told_is_an_error() {
        for (bytes, says) in [
            ("HTTP/1.1 500 No\r\n", "HTTP/1.1 500 No"),
            ("HTTP/1.1 101 Switching\r\n", "HTTP/1.1 101 Switching"),
            ("HTTP/2.0 200 OK\r\n", "HTTP/2.0 200 OK"),
            ("HTTP/1.1 2000\r\n", "HTTP/1.1 2000"),
            ("SSH-2.0-x\r\n", "SSH-2.0-x"),
            ("HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\n", "Content-Length: +3"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3, 4\r\n\r\n", "Content-Length: 3, 4"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "no chunk's size: -1"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "no chunk's end: b"),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n",
                "no chunk's size: 10000000000000000",
            ),
        ] {
            assert_eq!(answers(bytes.as_bytes(), 4), Err(says.into()), "{bytes:?}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\n{}", "a: b\r\n".repeat(50_000));
        assert_eq!(answers(endless.as_bytes(), 1000), Err("a head of more than 262144 bytes".into()));
        let endless = "x".repeat(100_000);
        assert_eq!(answers(endless.as_bytes(), 1000), Err("x".repeat(80)));
    }
}
