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

/// The bytes of the name that a query asks for, without the root's.
fn asked(message: &[u8]) -> Result<&[u8], QuestionError> {
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
    Ok(&rest[..len])
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

    /// Makes it the name that a query asks for, in place: it is long. `message` begins with the header, behind that of UDP.
    ///
    /// # Errors
    /// [`QuestionError`]: it is as it was.
    #[inline]
    pub fn read(&mut self, message: &[u8]) -> Result<(), QuestionError> {
        let name = asked(message)?;
        self.len = u8::try_from(name.len()).map_err(|_| QuestionError::Long)?;
        let (bytes, rest) = self.bytes.split_at_mut(name.len());
        bytes.copy_from_slice(name);
        rest.fill(0);
        // Lengths of labels are no letters.
        bytes.make_ascii_lowercase();
        Ok(())
    }

    /// Its labels, from the first to the one below the root.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..usize::from(self.len)];
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first()?;
            let (label, behind) = behind.split_at_checked(usize::from(*length))?;
            rest = behind;
            Some(label)
        })
    }

    /// Calls `each` with its labels, from the one below the root to the first, until one breaks it off.
    #[inline]
    pub fn each_from_root<B>(&self, mut each: impl FnMut(&[u8]) -> ControlFlow<B>) -> ControlFlow<B> {
        // Where each begins. A name has at most 127 of them.
        let mut starts = [0_u8; MOST_NAME / 2];
        let (mut count, mut at) = (0, 0);
        while let Some(start) = starts.get_mut(count).filter(|_| at < self.len) {
            *start = at;
            at += 1 + self.bytes[usize::from(at)];
            count += 1;
        }
        for start in starts[..count].iter().rev() {
            let label = self.bytes[usize::from(*start)..].split_first();
            let label = label.and_then(|(length, behind)| behind.get(..usize::from(*length)));
            each(label.unwrap_or_default())?;
        }
        ControlFlow::Continue(())
    }
}

impl fmt::Display for Name {
    /// Labels with a dot behind each; bytes that are no letters, digits, `-` or `_` as `\DDD`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for label in self.labels() {
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

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(message: &[u8]) -> Result<Name, QuestionError> {
        // Nothing of what it was is left.
        let mut name = Name { bytes: [b'x'; MOST_NAME], len: 255 };
        let read = name.read(message).map(|()| name);
        assert!(read.is_ok() || name.len == 255);
        read
    }

    fn query(flags: u8, questions: u8, rest: &[u8]) -> Vec<u8> {
        [&[0x12, 0x34, flags, 0, 0, questions, 0, 0, 0, 0, 0, 0], rest].concat()
    }

    fn asked(rest: &[u8]) -> Result<String, QuestionError> {
        question(&query(1, 1, rest)).map(|name| name.to_string())
    }

    #[test]
    fn the_name_is_read_in_lower_case() {
        assert_eq!(asked(b"\x03wWw\x07Example\x03ORG\0\0\x01\0\x01").unwrap(), "www.example.org.");
        assert_eq!(asked(b"\0\0\x02\0\x01").unwrap(), ".");
        // What comes behind the question does not matter.
        assert_eq!(asked(b"\x02a.\0\0\x01\0\x01\0\0\x29").unwrap(), "a\\046.");
    }

    #[test]
    fn what_is_no_question_is_told_by_its_reason() {
        let whole = query(1, 1, b"\x03www\x07example\0\0\x01\0\x01");
        for end in 0..whole.len() {
            assert_eq!(question(&whole[..end]), Err(QuestionError::Truncated), "{end}");
        }
        assert!(question(&whole).is_ok());
        assert_eq!(question(&query(0x81, 1, b"\0\0\x01\0\x01")), Err(QuestionError::Response));
        assert_eq!(question(&query(1, 0, b"\0\0\x01\0\x01")), Err(QuestionError::Questions(0)));
        assert_eq!(question(&query(1, 2, b"\0\0\x01\0\x01")), Err(QuestionError::Questions(2)));
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
