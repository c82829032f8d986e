//! Ethernet addresses, and how users write them.

use std::fmt;
use std::str::FromStr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An Ethernet address: six bytes in the order of the wire.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

/// A text is no Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacError(String);

impl Mac {
    /// Everyone on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it names a group of stations: the lowest bit of the first byte. Broadcast is one.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether it was not given by a vendor: the second-lowest bit of the first byte.
    pub fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = MacError;

    /// Six groups of one or two hex digits between `:`, between `-` or between `.`, or three of four between `.`, or
    /// twelve hex digits.
    fn from_str(text: &str) -> Result<Self, MacError> {
        let wrong = || MacError(text.into());
        let Some(separator) = text.chars().find(|c| !c.is_ascii_hexdigit()) else {
            let number = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 12).ok_or_else(wrong)?;
            let [_, _, bytes @ ..] = number.to_be_bytes();
            return Ok(Self(bytes));
        };
        if !matches!(separator, ':' | '-' | '.') {
            return Err(wrong());
        }
        let groups: Vec<&str> = text.split(separator).collect();
        let number = |group: &str, longest: usize| {
            let digits =
                !group.is_empty() && group.len() <= longest && group.bytes().all(|b| b.is_ascii_hexdigit());
            if digits { u16::from_str_radix(group, 16).map_err(|_| wrong()) } else { Err(wrong()) }
        };
        let mut bytes = [0; 6];
        if groups.len() == 6 {
            for (byte, group) in bytes.iter_mut().zip(&groups) {
                *byte = number(group, 2)?.to_be_bytes()[1];
            }
        } else if groups.len() == 3 && separator == '.' && groups.iter().all(|group| group.len() == 4) {
            for (pair, group) in bytes.chunks_exact_mut(2).zip(&groups) {
                pair.copy_from_slice(&number(group, 4)?.to_be_bytes());
            }
        } else {
            return Err(wrong());
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for MacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is no Ethernet address: write 02:00:00:00:00:01, say", self.0)
    }
}

impl std::error::Error for MacError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_ways_of_writing_give_one_address() {
        for text in [
            "0:1b:2c:3d:4e:05",
            "00:1B:2C:3D:4E:05",
            "00-1b-2c-3d-4e-05",
            "0.1b.2c.3d.4e.5",
            "001b.2c3d.4e05",
            "001B2c3d4e05",
        ] {
            assert_eq!(text.parse::<Mac>().unwrap().to_string(), "00:1b:2c:3d:4e:05", "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_and_quoted() {
        for text in [
            "",
            "00",
            "0:1:2:3:4",
            "0:1:2:3:4:5:6",
            "0:1:2:3:4:123",
            "0:1-2:3:4:5",
            "x:1:2:3:4:5",
            "1b.2c3d.4e05",
            "01b2c3d4e05",
            "0001b2c3d4e05",
            "+1b2c3d4e05f",
            "+1:1:2:3:4:5",
            "é:1:2:3:4:5",
        ] {
            assert!(text.parse::<Mac>().unwrap_err().to_string().contains(&format!("'{text}'")), "{text}");
        }
    }

    #[test]
    fn the_first_byte_says_group_and_local() {
        assert!(Mac::BROADCAST.is_multicast());
        assert!(!Mac([2, 0, 0, 0, 0, 1]).is_multicast());
        assert!(Mac([2, 0, 0, 0, 0, 1]).is_local());
        assert!(!Mac([0, 0, 0, 0, 0, 1]).is_local());
    }
}
