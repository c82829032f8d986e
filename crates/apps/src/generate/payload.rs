//! What the packets carry behind their headers.

use std::str::FromStr;

use super::series;
use crate::probe;

/// What the packets carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// Stream, sequence number, time and check, and a filler: what `receive` judges.
    #[default]
    Probe,
    /// Nothing; what lacks to the frame's size is Ethernet's padding.
    Nothing,
    /// These bytes over and over, once at least; must not be empty.
    Pattern(Vec<u8>),
    /// 0, 1, 2 ... 255, and again.
    Counting,
    /// Bytes without a pattern, the same in every packet, of which a seed decides.
    Random(u64),
    /// The template's own, and zeros when the frame is longer.
    Template,
}

/// The text is no payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no payload: write probe, none, zeros, counting, random, random:SEED, hex:DEADBEEF, text:HELLO, or \
     template"
)]
pub struct PayloadError(String);

impl FromStr for Payload {
    type Err = PayloadError;

    fn from_str(text: &str) -> Result<Self, PayloadError> {
        let wrong = || PayloadError(text.into());
        Ok(match text.split_once(':').unwrap_or((text, "")) {
            ("probe", "") => Self::Probe,
            ("none", "") => Self::Nothing,
            ("zeros", "") => Self::Pattern(vec![0]),
            ("counting", "") => Self::Counting,
            ("template", "") => Self::Template,
            ("random", "") => Self::Random(1),
            ("random", seed) => Self::Random(seed.parse().map_err(|_| wrong())?),
            ("hex", digits) => Self::Pattern(bytes_of_hex(digits).ok_or_else(wrong)?),
            ("text", words) if !words.is_empty() => Self::Pattern(words.into()),
            _ => return Err(wrong()),
        })
    }
}

/// Hex digits in pairs; blanks and colons between them are left out. `None` when there is no pair, or half of one.
pub fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text
        .chars()
        .filter(|c| !c.is_whitespace() && *c != ':')
        .map(|c| c.to_digit(16))
        .collect::<Option<_>>()?;
    let pairs = digits.as_chunks::<2>();
    let whole = !pairs.0.is_empty() && pairs.1.is_empty();
    #[expect(clippy::cast_possible_truncation, reason = "two digits")]
    whole.then(|| pairs.0.iter().map(|[high, low]| (high * 16 + low) as u8).collect())
}

impl Payload {
    /// Bytes of which none may be missing.
    pub(super) fn shortest(&self) -> usize {
        match self {
            Self::Probe => probe::PROBE,
            Self::Pattern(pattern) => pattern.len(),
            Self::Nothing | Self::Counting | Self::Random(_) | Self::Template => 0,
        }
    }

    /// Writes the payload to `to`; `own` is the template's. The bytes do not depend on how long `to` is.
    pub(super) fn write(&self, own: &[u8], to: &mut [u8]) {
        match self {
            Self::Nothing => to.fill(0),
            Self::Probe => {
                if let Some(filler) = to.get_mut(probe::PROBE..) {
                    probe::fill(filler);
                }
            }
            Self::Pattern(pattern) => {
                to.iter_mut().zip(pattern.iter().cycle()).for_each(|(to, byte)| *to = *byte)
            }
            Self::Counting => to.iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(to, byte)| *to = byte),
            Self::Random(seed) => {
                let mut state = *seed;
                for chunk in to.chunks_mut(8) {
                    chunk.copy_from_slice(&series::mixed(&mut state).to_be_bytes()[..chunk.len()]);
                }
            }
            Self::Template => {
                let n = own.len().min(to.len());
                to[..n].copy_from_slice(&own[..n]);
                to[n..].fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_written_as_words() {
        let payload = |text: &str| text.parse::<Payload>().unwrap();
        assert_eq!(payload("probe"), Payload::Probe);
        assert_eq!(payload("zeros"), Payload::Pattern(vec![0]));
        assert_eq!(payload("random:9"), Payload::Random(9));
        assert_eq!(payload("hex:de AD:be ef"), Payload::Pattern(vec![0xde, 0xad, 0xbe, 0xef]));
        assert_eq!(payload("text:a:b"), Payload::Pattern(b"a:b".to_vec()));
        for text in ["", "hex:", "hex:abc", "hex:zz", "text:", "random:x", "probe:1", "file:x"] {
            assert!(text.parse::<Payload>().unwrap_err().to_string().contains("is no payload"), "{text}");
        }
    }

    #[test]
    fn a_longer_payload_begins_as_a_shorter_one() {
        for text in ["probe", "none", "zeros", "counting", "random", "hex:0102", "text:abc", "template"] {
            let payload: Payload = text.parse().unwrap();
            let bytes = |len: usize| {
                let mut bytes = vec![0; len];
                payload.write(b"own bytes", &mut bytes);
                bytes
            };
            assert_eq!(bytes(300)[..77], bytes(77), "{text}");
        }
        let mut bytes = [0xee; 12];
        Payload::Template.write(b"own bytes", &mut bytes);
        assert_eq!(&bytes, b"own bytes\0\0\0");
        Payload::Pattern(vec![1, 2, 3]).write(&[], &mut bytes[..7]);
        assert_eq!(bytes[..7], [1, 2, 3, 1, 2, 3, 1]);
    }
}
