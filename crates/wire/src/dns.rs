//! The question of a DNS query: which name is asked for (RFC 1035).

use std::fmt;
use std::ops::ControlFlow;

/// Most bytes of a name, the lengths of its labels and the root included.
pub const MOST_NAME: usize = 255;

/// Most bytes of a label.
pub const MOST_LABEL: usize = 63;

/// Bytes in front of the first question.
const HEADER: usize = 12;

/// The bit that tells a response from a query, in the third byte.
const RESPONSE: u8 = 0x80;

/// Bytes of type and class behind a name.
const TYPE_AND_CLASS: usize = 4;

/// A name, its labels one after the other as they are on the wire, letters of ASCII in lower case.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    bytes: [u8; MOST_NAME],
    /// Bytes in use, without the root's zero.
    len: u8,
}

/// Why there is no name to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionError {
    /// The message ends before the question does.
    Truncated,
    /// It is a response.
    Response,
    /// It has no question, or several: the number of them.
    Questions(u16),
    /// A length is above 63: a pointer to an earlier name, which no question can have, or a label of unknown kind.
    Label(u8),
    /// The name is longer than a name can be.
    Long,
}

/// The labels of a name where they lie, as they are on the wire, letters of either case.
#[derive(Clone, Copy)]
pub struct Labels<'a> {
    /// Each behind its length, and whatever comes behind the last one.
    bytes: &'a [u8],
    /// Bytes of the labels, without the root's zero; at most [`MOST_NAME`] with that.
    len: usize,
}

/// A label where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Label<'a> {
    /// Its bytes, and whatever comes behind them.
    rest: &'a [u8],
    /// How many are its own: 1 to [`MOST_LABEL`].
    len: usize,
}

impl<'a> Labels<'a> {
    /// Those of the name that a query asks for. `message` begins with the header, behind that of UDP.
    ///
    /// # Errors
    /// [`QuestionError`]
    #[inline]
    pub fn asked(message: &'a [u8]) -> Result<Self, QuestionError> {
        let header: &[u8; HEADER] = message.first_chunk().ok_or(QuestionError::Truncated)?;
        if header[2] & RESPONSE != 0 {
            return Err(QuestionError::Response);
        }
        let questions = u16::from_be_bytes([header[4], header[5]]);
        if questions != 1 {
            return Err(QuestionError::Questions(questions));
        }
        let rest = &message[HEADER..];
        let mut len = 0;
        loop {
            let length = *rest.get(len).ok_or(QuestionError::Truncated)?;
            if length == 0 {
                break;
            }
            if usize::from(length) > MOST_LABEL {
                return Err(QuestionError::Label(length));
            }
            len += 1 + usize::from(length);
            if rest.len() < len {
                return Err(QuestionError::Truncated);
            }
            // The root's zero needs a byte as well.
            if len >= MOST_NAME {
                return Err(QuestionError::Long);
            }
        }
        if rest.len() < len + 1 + TYPE_AND_CLASS {
            return Err(QuestionError::Truncated);
        }
        Ok(Self { bytes: rest, len })
    }

    /// From the first to the one below the root.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = &self.bytes[..self.len];
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first()?;
            let (label, behind) = behind.split_at_checked(usize::from(*length))?;
            rest = behind;
            Some(label)
        })
    }

    /// Whether there is none.
    #[inline]
    pub fn is_root(&self) -> bool {
        self.len == 0
    }

    /// The ends of the name that begin with a label, the whole name first: of each how many bytes its labels have on the wire, and
    /// the bytes from there on, with whatever comes behind the name.
    #[inline]
    pub fn ends(self) -> impl Iterator<Item = (usize, &'a [u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let end = self.bytes.get(at..).filter(|_| at < self.len)?;
            let left = self.len - at;
            at += 1 + usize::from(*end.first()?);
            Some((left, end))
        })
    }

    /// Calls `each` with them, from the one below the root to the first, until one breaks it off.
    #[inline]
    pub fn each_from_root<B>(self, mut each: impl FnMut(Label<'a>) -> ControlFlow<B>) -> ControlFlow<B> {
        // Where each begins. A name has at most 127 of them.
        let mut starts = [0_u8; MOST_NAME / 2];
        let (mut count, mut at) = (0, 0_u8);
        while usize::from(at) < self.len
            && let Some(start) = starts.get_mut(count)
        {
            *start = at;
            at += 1 + self.bytes[usize::from(at)];
            count += 1;
        }
        for start in starts[..count].iter().rev() {
            if let Some((len, rest)) = self.bytes.get(usize::from(*start)..).and_then(<[u8]>::split_first) {
                each(Label { rest, len: usize::from(*len) })?;
            }
        }
        ControlFlow::Continue(())
    }
}

impl PartialEq for Labels<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes[..self.len] == other.bytes[..other.len]
    }
}

impl Eq for Labels<'_> {}

impl Label<'_> {
    /// Bytes in it.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no label is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its first eight bytes, the first one lowest; zero where it has fewer.
    #[inline]
    pub fn first_word(&self) -> u64 {
        self.word(0)
    }

    /// The words of eight bytes that follow, in the same way.
    #[inline]
    pub fn later_words(&self) -> impl Iterator<Item = u64> {
        (8..self.len).step_by(8).map(|at| self.word(at))
    }

    /// The eight bytes from an offset within it on.
    #[inline]
    fn word(&self, at: usize) -> u64 {
        let rest = &self.rest[at..];
        // Behind a query's name there are mostly enough bytes to read a whole word.
        let word = rest.first_chunk().map_or_else(|| short(rest), |word| u64::from_le_bytes(*word));
        word & u64::MAX >> (64 - 8 * (self.len - at).min(8))
    }
}

/// Fewer than eight bytes as a word.
#[cold]
fn short(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

impl Name {
    /// The root, which has no label.
    pub const ROOT: Self = Self { bytes: [0; MOST_NAME], len: 0 };

    /// Adds a label at the end; `None` when it is empty or longer than a label can be, or the name would be too long.
    #[inline]
    pub fn push(&mut self, label: &[u8]) -> Option<()> {
        let at = usize::from(self.len);
        let end = at + 1 + label.len();
        // The root's zero needs a byte as well.
        if label.is_empty() || label.len() > MOST_LABEL || end >= MOST_NAME {
            return None;
        }
        self.bytes[at] = u8::try_from(label.len()).ok()?;
        for (to, byte) in self.bytes[at + 1..end].iter_mut().zip(label) {
            *to = byte.to_ascii_lowercase();
        }
        self.len = u8::try_from(end).ok()?;
        Some(())
    }

    /// Its labels.
    pub fn labels(&self) -> Labels<'_> {
        Labels { bytes: &self.bytes, len: self.len.into() }
    }
}

impl fmt::Display for Labels<'_> {
    /// With a dot behind each; bytes that are no letters, digits, `-` or `_` as `\DDD`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for label in self.iter() {
            for byte in label {
                match byte {
                    b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                        write!(f, "{}", char::from(*byte))?
                    }
                    other => write!(f, "\\{other:03}")?,
                }
            }
            f.write_str(".")?;
        }
        if self.len == 0 { f.write_str(".") } else { Ok(()) }
    }
}

impl fmt::Debug for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Labels({self})")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.labels().fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(flags: u8, questions: u8, rest: &[u8]) -> Vec<u8> {
        [&[0x12, 0x34, flags, 0, 0, questions, 0, 0, 0, 0, 0, 0], rest].concat()
    }

    fn asked(rest: &[u8]) -> Result<String, QuestionError> {
        Labels::asked(&query(1, 1, rest)).map(|labels| labels.to_string())
    }

    #[test]
    fn the_name_is_read_as_it_is_there() {
        assert_eq!(asked(b"\x03wWw\x07Example\x03ORG\0\0\x01\0\x01").unwrap(), "wWw.Example.ORG.");
        assert_eq!(asked(b"\0\0\x02\0\x01").unwrap(), ".");
        // What comes behind the question does not matter.
        assert_eq!(asked(b"\x02a.\0\0\x01\0\x01\0\0\x29").unwrap(), "a\\046.");
    }

    #[test]
    fn what_is_no_question_is_told_by_its_reason() {
        let whole = query(1, 1, b"\x03www\x07example\0\0\x01\0\x01");
        for end in 0..whole.len() {
            assert_eq!(Labels::asked(&whole[..end]), Err(QuestionError::Truncated), "{end}");
        }
        assert!(Labels::asked(&whole).is_ok());
        assert_eq!(Labels::asked(&query(0x81, 1, b"\0\0\x01\0\x01")), Err(QuestionError::Response));
        assert_eq!(Labels::asked(&query(1, 0, b"\0\0\x01\0\x01")), Err(QuestionError::Questions(0)));
        assert_eq!(Labels::asked(&query(1, 2, b"\0\0\x01\0\x01")), Err(QuestionError::Questions(2)));
        // A pointer to itself, and behind a label; labels of 64 bytes.
        assert_eq!(asked(b"\xc0\x0c\0\x01\0\x01"), Err(QuestionError::Label(0xc0)));
        assert_eq!(asked(b"\x01a\xc0\x0c\0\x01\0\x01"), Err(QuestionError::Label(0xc0)));
        assert_eq!(asked(&[&[64; 65][..], b"\0\0\x01\0\x01"].concat()), Err(QuestionError::Label(64)));
    }

    #[test]
    fn a_name_has_at_most_255_bytes() {
        let name = |last: u8| {
            let label = |length: u8| [&[length][..], &vec![b'a'; length.into()]].concat();
            [label(63).repeat(3), label(last), b"\0\0\x01\0\x01".to_vec()].concat()
        };
        assert_eq!(asked(&name(61)).unwrap().len(), 254);
        assert_eq!(asked(&name(62)), Err(QuestionError::Long));
        assert_eq!(Name::ROOT.clone().push(b""), None);
    }
}
