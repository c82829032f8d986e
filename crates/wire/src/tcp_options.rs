//! The TCP options that both ends of a connection speak of: RFC 9293 (MSS), 7323 (scale, timestamps), 2018 (SACK).

use arrayvec::ArrayVec;

use crate::checksum::Sum;
use crate::tcp::TCP_OPTIONS;

/// Bytes of timestamps with their fillers.
pub const STAMPS: usize = 12;

/// SACK blocks that fit a segment.
pub const SACK_BLOCKS: usize = 4;

/// The options of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// The largest payload the sender takes, in bytes, options not counted.
    pub mss: Option<u16>,
    /// By how many bits the sender's windows are to be shifted.
    pub window_scale: Option<u8>,
    /// Whether the sender understands SACK.
    pub sack_permitted: bool,
    /// The sender's clock and the echo of ours.
    pub timestamps: Option<(u32, u32)>,
    /// What the sender has received out of order: first number, and the number after the last.
    pub sack: ArrayVec<(u32, u32), SACK_BLOCKS>,
}

const END: u8 = 0;
const NOTHING: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// What stands in front of timestamps that are the only option.
const STAMPS_HEAD: [u8; 4] = [NOTHING, NOTHING, TIMESTAMPS, 10];

impl TcpOptions {
    /// Reads options. What is unknown is passed over; what follows a wrong length is not looked at (RFC 9293, 3.1:
    /// MUST-7).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut options = Self::default();
        options.read(bytes);
        options
    }

    /// [`TcpOptions::parse`] into options that are empty, where they are: with every segment, moving them would cost more than
    /// reading them.
    #[inline(always)]
    pub fn read(&mut self, bytes: &[u8]) {
        // Nearly every segment of a connection has exactly this: two fillers and timestamps (RFC 7323, appendix A).
        if let Ok([head, clock, echo]) = <&[[u8; 4]; 3]>::try_from(bytes.as_chunks().0)
            && (bytes.len(), *head) == (STAMPS, STAMPS_HEAD)
        {
            self.timestamps = Some((u32::from_be_bytes(*clock), u32::from_be_bytes(*echo)));
        } else if !bytes.is_empty() {
            *self = Self::parse_others(bytes);
        }
    }

    fn parse_others(bytes: &[u8]) -> Self {
        // Nearly every SYN has this, as Linux has it, and this stack.
        if let [
            MSS,
            4,
            i,
            j,
            SACK_PERMITTED,
            2,
            TIMESTAMPS,
            10,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            NOTHING,
            WINDOW_SCALE,
            3,
            shift,
        ] = *bytes
        {
            return Self {
                mss: Some(u16::from_be_bytes([i, j])),
                window_scale: Some(shift),
                sack_permitted: true,
                timestamps: Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))),
                sack: ArrayVec::new(),
            };
        }
        let mut options = Self::default();
        options.parse_each(bytes);
        options
    }

    fn parse_each(&mut self, mut bytes: &[u8]) {
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => return,
                NOTHING => bytes = rest,
                kind => {
                    let Some(length) = rest.first().map(|l| usize::from(*l)).filter(|l| *l >= 2) else {
                        return;
                    };
                    let Some(value) = bytes.get(2..length) else { return };
                    self.take(kind, value);
                    bytes = &bytes[length..];
                }
            }
        }
    }

    fn take(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                self.timestamps = Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
            }
            (SACK, blocks) => {
                let (pairs, _) = blocks.as_chunks::<8>();
                self.sack = pairs
                    .iter()
                    .take(SACK_BLOCKS)
                    .map(|&[a, b, c, d, e, f, g, h]| {
                        (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
                    })
                    .collect();
            }
            _ => {}
        }
    }

    /// Writes the options as bytes, each padded so that numbers lie on multiples of four. SACK blocks that do not
    /// fit beside the others are left out, the last first.
    #[inline]
    pub fn write(&self) -> ArrayVec<u8, TCP_OPTIONS> {
        let mut bytes = ArrayVec::new();
        if let (None, None, false, Some((value, echo)), []) =
            (self.mss, self.window_scale, self.sack_permitted, self.timestamps, &self.sack[..])
        {
            let mut all = [0; STAMPS];
            put_stamps(&mut all, (value, echo), Sum::new());
            push(&mut bytes, &all);
            return bytes;
        }
        if let Some(mss) = self.mss {
            push(&mut bytes, &[MSS, 4]);
            push(&mut bytes, &mss.to_be_bytes());
        }
        // The two bytes of "SACK permitted" align timestamps as well as fillers do (as Linux has it).
        let filler = if self.sack_permitted { [SACK_PERMITTED, 2] } else { [NOTHING; 2] };
        if self.sack_permitted && self.timestamps.is_none() {
            push(&mut bytes, &[NOTHING, NOTHING, SACK_PERMITTED, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            push(&mut bytes, &[filler[0], filler[1], TIMESTAMPS, 10]);
            push(&mut bytes, &value.to_be_bytes());
            push(&mut bytes, &echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            push(&mut bytes, &[NOTHING, WINDOW_SCALE, 3, shift]);
        }
        let room = bytes.remaining_capacity().saturating_sub(4) / 8;
        let blocks = self.sack.len().min(room);
        if blocks > 0 {
            #[expect(clippy::cast_possible_truncation, reason = "at most four blocks")]
            push(&mut bytes, &[NOTHING, NOTHING, SACK, 2 + 8 * blocks as u8]);
            for (left, right) in &self.sack[..blocks] {
                push(&mut bytes, &left.to_be_bytes());
                push(&mut bytes, &right.to_be_bytes());
            }
        }
        bytes
    }
}

/// Writes timestamps alone, with their fillers: all the options that nearly every segment of a connection has (RFC 7323,
/// appendix A). It is done in whole words, and they are added to a sum.
#[inline(always)]
pub fn put_stamps(to: &mut [u8; STAMPS], (value, echo): (u32, u32), sum: Sum) -> Sum {
    let front = u64::from(u32::from_be_bytes(STAMPS_HEAD)) << 32 | u64::from(value);
    to[..8].copy_from_slice(&front.to_be_bytes());
    to[8..].copy_from_slice(&echo.to_be_bytes());
    sum.quad(front).quad(echo.into())
}

#[inline]
fn push(bytes: &mut ArrayVec<u8, TCP_OPTIONS>, more: &[u8]) {
    // All options without SACK have 24 bytes, and SACK blocks are counted: there is always room.
    let room = bytes.remaining_capacity().min(more.len());
    bytes.try_extend_from_slice(&more[..room]).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_options_read_back() {
        let mut options = TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some((1, 2)),
            ..TcpOptions::default()
        };
        assert_eq!(TcpOptions::parse(&options.write()), options);
        options = TcpOptions { timestamps: Some((7, 9)), ..TcpOptions::default() };
        options.sack.extend([(10, 20), (30, 40), (50, 60), (70, 80)]);
        let read = TcpOptions::parse(&options.write());
        assert_eq!(read.sack.as_slice(), &[(10, 20), (30, 40), (50, 60)], "three fit beside timestamps");
        assert_eq!(options.write().len(), 40);
    }

    #[test]
    fn timestamps_are_summed_as_they_are_written() {
        let mut bytes = [7; STAMPS];
        let sum = put_stamps(&mut bytes, (0xfedc_ba98, 0x8000_ffff), Sum::new().word(3));
        assert_eq!(TcpOptions::parse(&bytes).timestamps, Some((0xfedc_ba98, 0x8000_ffff)));
        assert_eq!(sum.checksum(), Sum::new().word(3).bytes(&bytes).checksum());
    }

    #[test]
    fn broken_options_end_the_list_and_nothing_else() {
        for bytes in [&[2][..], &[2, 0], &[2, 1, 5], &[2, 4, 5], &[8, 10, 1], &[5, 3, 1]] {
            assert_eq!(TcpOptions::parse(bytes), TcpOptions::default(), "{bytes:?}");
        }
        assert_eq!(
            TcpOptions::parse(&[77, 4, 0, 0, 3, 3, 9]).window_scale,
            Some(9),
            "unknown ones are passed over"
        );
        assert_eq!(TcpOptions::parse(&[0, 3, 3, 9]).window_scale, None, "nothing counts after the end");
    }
}
