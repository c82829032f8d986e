//! The head of a request: what is asked for, or why that is not answered (RFC 9112, 2 and 3).

use std::net::Ipv6Addr;

use super::file::Conditions;
use super::is_served;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    /// Of what is served.
    pub(super) path: &'a str,
    /// The client wants the connection to stay open.
    pub(super) stays: bool,
    /// It has a body.
    pub(super) has_body: bool,
    pub(super) conditions: Conditions<'a>,
}

/// Why a request is not answered. Its connection ends: what follows it may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is none.
    Bad,
    /// Its head does not end in time.
    TooLarge,
    /// No server has to know its method.
    Method,
    /// It is of another major version.
    Version,
}

impl Refused {
    /// What is said of it (RFC 9110, 15; RFC 6585, 5).
    pub(super) fn status(self) -> &'static str {
        match self {
            Self::Bad => "400 Bad Request",
            Self::TooLarge => "431 Request Header Fields Too Large",
            Self::Method => "501 Not Implemented",
            Self::Version => "505 HTTP Version Not Supported",
        }
    }
}

/// Reads a head, without the empty line at its end. What a field says may be any bytes (RFC 9110, 5.5): only what is used
/// of it is text.
///
/// # Errors
/// It is none, or nothing that is answered here.
pub(super) fn parse(head: &[u8]) -> Result<Asked<'_>, Refused> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let line = std::str::from_utf8(lines.next().unwrap_or_default()).map_err(|_| Refused::Bad)?;
    // RFC 9112, 2.2: a CR alone makes it none, and no target has another of these (RFC 3986, 2).
    if line.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(Refused::Bad);
    }
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refused::Bad);
    };
    let newer = is_newer(version)?;
    if method.is_empty() || !method.bytes().all(is_token) {
        return Err(Refused::Bad);
    }
    let fields = fields(lines, newer).ok_or(Refused::Bad)?;
    if !METHODS.contains(&method) {
        return Err(Refused::Method);
    }
    let Fields { keeps, closes, has_body, conditions } = fields;
    let is_served = is_served(method);
    // Nobody here reads a body, nor what stands behind it. That of another method is told of the method.
    if has_body && is_served {
        return Err(Refused::Bad);
    }
    // Other methods have targets of other forms, `*` and `host:port` (RFC 9112, 3.2).
    let path = if is_served { origin_form(target).ok_or(Refused::Bad)? } else { "" };
    Ok(Asked { method, path, stays: keeps && !closes && !has_body, has_body, conditions })
}

/// Those of RFC 9110, 9, and RFC 5789.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Whether a version is 1.1 or later, as what it is treated (RFC 9110, 2.5), or 1.0.
fn is_newer(version: &str) -> Result<bool, Refused> {
    match version.strip_prefix("HTTP/").map(str::as_bytes) {
        Some([b'1', b'.', minor @ b'0'..=b'9']) => Ok(*minor > b'0'),
        Some([b'0'..=b'9', b'.', b'0'..=b'9']) => Err(Refused::Version),
        _ => Err(Refused::Bad),
    }
}

/// RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What the fields of a head say.
struct Fields<'a> {
    keeps: bool,
    closes: bool,
    has_body: bool,
    conditions: Conditions<'a>,
}

/// Reads the lines of a head's fields, of a client that is of 1.1 or later or not.
fn fields<'a>(lines: impl Iterator<Item = &'a [u8]>, newer: bool) -> Option<Fields<'a>> {
    let (mut keeps, mut closes, mut hosts, mut has_body) = (newer, false, 0, false);
    let mut conditions = Conditions::default();
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], trimmed(&line[colon + 1..]));
        // A blank before the colon, or a line that goes on the one before: others may read a length there (RFC 9112, 5.1 and 5.2).
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return None;
        }
        // RFC 9110, 5.5: it may have been cut there by somebody before.
        if value.iter().any(|byte| matches!(byte, b'\0' | b'\r')) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"connection") {
            // Several lines are one list (RFC 9110, 5.3), in which the order says nothing.
            let has = |word: &str| {
                let mut words = value.split(|byte| *byte == b',').map(trimmed);
                words.any(|other| other.eq_ignore_ascii_case(word.as_bytes()))
            };
            (keeps, closes) = (keeps || has("keep-alive"), closes || has("close"));
        } else if name.eq_ignore_ascii_case(b"host") {
            if !std::str::from_utf8(value).is_ok_and(is_host) {
                return None;
            }
            hosts += 1;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            // RFC 9112, 6.3: where it is no number, nobody knows where the next request begins.
            if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
                return None;
            }
            has_body |= value.iter().any(|digit| *digit != b'0');
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            has_body = true;
        } else if let Some(condition) = conditions.field(name) {
            // Bytes that are no text are no date and no range, and no tag that is known here.
            *condition = Some(std::str::from_utf8(value).unwrap_or("?"));
        }
    }
    // RFC 9112, 3.2: one of them, and since 1.1 not without.
    (hosts == 1 || (hosts == 0 && !newer)).then_some(Fields { keeps, closes, has_body, conditions })
}

/// Whether a value names a host, and a port if it likes (RFC 9112, 3.2; RFC 3986, 3.2.2). It may be empty: not every target has one.
fn is_host(value: &str) -> bool {
    let (is_name, port) = match value.strip_prefix('[').map(|literal| literal.split_once(']')) {
        Some(Some((literal, port))) => (literal.parse::<Ipv6Addr>().is_ok() || is_future(literal), port),
        Some(None) => return false,
        None => {
            let (name, port) = value.split_at(value.find(':').unwrap_or(value.len()));
            (is_registered(name.as_bytes()), port)
        }
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    is_name && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// The bytes of a name that stand for themselves: `unreserved` and `sub-delims` of RFC 3986.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

/// `reg-name`, which an IPv4 address is, too.
fn is_registered(mut name: &[u8]) -> bool {
    loop {
        name = match name {
            [] => return true,
            [b'%', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => rest,
            [byte, rest @ ..] if is_plain(*byte) => rest,
            _ => return false,
        };
    }
}

/// `IPvFuture`.
fn is_future(literal: &str) -> bool {
    literal.strip_prefix(['v', 'V']).and_then(|rest| rest.split_once('.')).is_some_and(
        |(version, address)| {
            let is_version = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_version && !address.is_empty() && address.bytes().all(|byte| is_plain(byte) || byte == b':')
        },
    )
}

/// A value without the blanks around it.
fn trimmed(value: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let first = value.iter().position(|byte| !is_blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !is_blank(byte)).map_or(first, |last| last + 1);
    &value[first..end]
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

#[cfg(test)]
mod tests {
    use super::Refused::{Bad, Method, Version};
    use super::*;

    #[test]
    fn what_a_field_says_may_be_any_bytes() {
        let asked = |head: &'static [u8]| parse(head).map(|asked| (asked.path, asked.stays));
        assert_eq!(asked(b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: caf\xe9"), Ok(("/", true)));
        assert_eq!(asked(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: \xff, close"), Ok(("/", false)));
        assert_eq!(asked(b"GET /\xff HTTP/1.1\r\nHost: a"), Err(Bad));
        assert_eq!(asked(b"GET / HTTP/1.1\r\nHost: a\r\nX\xff: a"), Err(Bad));
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nIf-Match: \"\xff\"\r\nRange: bytes=0-\xff";
        let conditions = parse(head).map(|asked| asked.conditions);
        assert_eq!(
            conditions.map(|it| it.part(9, None, true)),
            Ok(super::super::file::Part::ConditionFailed)
        );
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
        for host in
            ["", "a", "a_b.c-d:80", "a:", "192.0.2.1:8080", "[2001:db8::1]", "[::1]:80", "%41b", "[v1.a:b]"]
        {
            assert!(is_host(host), "{host}");
        }
        for host in [
            "a b", "a, b", "a/b", "a@b", "a:x", "a:80:90", "a:+8", "größe", "a%4", "a%zz", "[::1", "[::1]80",
            "[a]", "::1", "[v.a]",
        ] {
            assert!(!is_host(host), "{host}");
            assert_eq!(parse(format!("GET / HTTP/1.1\r\nHost: {host}").as_bytes()), Err(Bad), "{host}");
        }
    }

    #[test]
    fn a_head_says_what_is_asked_for_and_whether_the_connection_stays() {
        let asked = |text: &'static str| parse(text.as_bytes()).map(|asked| (asked.path, asked.stays));
        for (head, expected) in [
            ("GET / HTTP/1.1\r\nHost: a", Ok(("/", true))),
            ("GET /9 HTTP/1.0\r\nHost: a", Ok(("/9", false))),
            ("GET /9 HTTP/1.0\r\nConnection: Keep-Alive", Ok(("/9", true))),
            ("HEAD /a HTTP/1.1\nConnection: foo, close\nhost: a", Ok(("/a", false))),
            ("GET /9 HTTP/1.0", Ok(("/9", false))),
            ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nConnection: keep-alive", Ok(("/", false))),
            ("GET / HTTP/1.1\r\nConnection: keep-alive\r\nHost: a\r\nConnection: close", Ok(("/", false))),
            ("GET /9 HTTP/1.0\r\nConnection: foo\r\nConnection: keep-alive, foo", Ok(("/9", true))),
            ("GET / HTTP/1.1\r\nAccept: a", Err(Bad)),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: a", Err(Bad)),
            ("GET / HTTP/2", Err(Bad)),
            ("GET / HTTP/1.11\r\nHost: a", Err(Bad)),
            ("GET / http/1.1\r\nHost: a", Err(Bad)),
            ("GET /9 HTTP/1.2\r\nHost: a", Ok(("/9", true))),
            ("GET /9 HTTP/1.9", Err(Bad)),
            ("PRI * HTTP/2.0", Err(Version)),
            ("GET / HTTP/0.9", Err(Version)),
            ("GET / HTTP/3.0\r\nHost: a", Err(Version)),
            ("BREW /pot HTTP/1.1\r\nHost: a", Err(Method)),
            ("get / HTTP/1.1\r\nHost: a", Err(Method)),
            ("BREW / HTTP/1.1", Err(Bad)),
            ("G(T / HTTP/1.1\r\nHost: a", Err(Bad)),
            ("OPTIONS * HTTP/1.1\r\nHost: a", Ok(("", true))),
            ("CONNECT a:80 HTTP/1.1\r\nHost: a", Ok(("", true))),
            ("GET * HTTP/1.1\r\nHost: a", Err(Bad)),
            ("GET  / HTTP/1.1\r\nHost: a", Err(Bad)),
            ("GET http://a/ HTTP/1.1\r\nHost: a", Ok(("/", true))),
            ("GET HTTP://a:80/9?x HTTP/1.1\r\nHost: a", Ok(("/9?x", true))),
            ("GET http://a HTTP/1.1\r\nHost: a", Ok(("/", true))),
            ("GET http://a?x HTTP/1.1\r\nHost: a", Ok(("/", true))),
            ("GET http:///9 HTTP/1.1\r\nHost: a", Err(Bad)),
            ("GET ftp://a/9 HTTP/1.1\r\nHost: a", Err(Bad)),
            ("GET a/9 HTTP/1.1\r\nHost: a", Err(Bad)),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0", Ok(("", true))),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3", Ok(("", false))),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 00", Ok(("/", true))),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5", Err(Bad)),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:", Err(Bad)),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b", Err(Bad)),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\rb: c", Err(Bad)),
            ("GET / HTTP/1.1\r\nHost: a\r\r\nX: a", Err(Bad)),
            ("GET /a\rb HTTP/1.1\r\nHost: a", Err(Bad)),
            ("GET /a\0b HTTP/1.1\r\nHost: a", Err(Bad)),
            ("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a", Ok(("", false))),
            ("POST / HTTP/1.1\r\nContent-Length: 3", Err(Bad)),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3", Err(Bad)),
            ("HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", Err(Bad)),
            ("GET / HTTP/1.1\r\nHost: a\r\nnonsense", Err(Bad)),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5", Err(Bad)),
            ("POST / HTTP/1.1\r\nHost: a\r\n Content-Length: 5", Err(Bad)),
            ("POST / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tTransfer-Encoding: chunked", Err(Bad)),
            ("GET / HTTP/1.1\r\n Host: a\r\nHost: a", Err(Bad)),
            ("GET / HTTP/1.1\r\nHost: a\r\n: a", Err(Bad)),
            ("GET / HTTP/1.1\r\nHost: a\r\nX(y): a", Err(Bad)),
            ("GET / HTTP/1.1\r\nHost:a\r\nX_y.z:\ta:b", Ok(("/", true))),
            ("", Err(Bad)),
        ] {
            assert_eq!(asked(head), expected, "{head}");
        }
    }
}
