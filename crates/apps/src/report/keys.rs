//! What a user wants who types at the page: read of the terminal as bytes, since keys do not wait for a line while it is ours.
//!
//! crossterm's own reader (0.29) reads until nothing is there, and on a terminal that is gone each read says at once that this is
//! its end: it would not return.

use std::io::{self, ErrorKind, stdin};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{read, retry_on_intr};

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// An end.
    End,
    /// Other rows: so many further down.
    Scroll(isize),
    /// A new picture.
    Redraw,
    /// That all of the job stops until it is continued.
    Pause,
}

const ESCAPE: u8 = 0x1b;

/// What has been typed at standard input since the last call, as far as it is there in one piece. Does not wait.
///
/// # Errors
/// When the terminal is gone. A read says so each time: whoever reads until nothing is there never ends.
pub(super) fn typed() -> io::Result<Vec<Wish>> {
    let stdin = stdin();
    let mut bytes = [0; 1024];
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))? == 0 {
        return Ok(Vec::new());
    }
    match retry_on_intr(|| read(&stdin, &mut bytes))? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        n => Ok(wishes(&bytes[..n])),
    }
}

fn wishes(mut bytes: &[u8]) -> Vec<Wish> {
    let mut wishes = Vec::new();
    while let [first, rest @ ..] = bytes {
        let (wish, rest) = if *first == ESCAPE { escaped(rest) } else { (plain(*first), rest) };
        wishes.extend(wish);
        bytes = rest;
    }
    wishes
}

fn plain(key: u8) -> Option<Wish> {
    Some(match key {
        // The terminal does not make signals of Ctrl-C, Ctrl-D, Ctrl-\ and Ctrl-Z while it is ours.
        b'q' | 0x03 | 0x04 | 0x1c => Wish::End,
        0x1a => Wish::Pause,
        b'k' => Wish::Scroll(-1),
        b'j' => Wish::Scroll(1),
        // Ctrl-L.
        0x0c => Wish::Redraw,
        _ => return None,
    })
}

/// What follows the escape that a key sends in front of others, or alone; and what comes then.
fn escaped(bytes: &[u8]) -> (Option<Wish>, &[u8]) {
    match bytes {
        // The key of that name.
        [] | [ESCAPE, ..] => (Some(Wish::End), bytes),
        [b'[', rest @ ..] => {
            let parameters = rest.iter().take_while(|byte| !(0x40..0x7f).contains(*byte)).count();
            let (parameters, end) = rest.split_at(parameters);
            let Some((end, rest)) = end.split_first() else { return (None, end) };
            (named(parameters, *end), rest)
        }
        // A terminal may send arrows like this, too.
        [b'O', end, rest @ ..] => (named(b"", *end), rest),
        // A key together with Alt.
        [_, rest @ ..] => (None, rest),
    }
}

fn named(parameters: &[u8], end: u8) -> Option<Wish> {
    Some(Wish::Scroll(match (parameters, end) {
        (_, b'A') => -1,
        (_, b'B') => 1,
        ([b'5', ..], b'~') => -10,
        ([b'6', ..], b'~') => 10,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_wishes() {
        assert_eq!(wishes(b"c\x03q\x1b"), [Wish::End; 3]);
        assert_eq!(wishes(b"\x1a"), [Wish::Pause]);
        assert_eq!(wishes(b"j\x1b[A\x1bOB\x1b[1;5Ak"), [1, -1, 1, -1, -1].map(Wish::Scroll));
        assert_eq!(wishes(b"\x1b[5~\x1b[6~\x0c"), [Wish::Scroll(-10), Wish::Scroll(10), Wish::Redraw]);
        assert!(wishes(b"\x1bq\x1b[3~\x1b[\xc3\xb6x").is_empty(), "Alt-q, Del, and what is no key");
        assert_eq!(wishes(b"\x1b\x1b[B"), [Wish::End, Wish::Scroll(1)]);
    }
}
