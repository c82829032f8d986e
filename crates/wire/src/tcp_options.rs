//! The TCP options that both ends of a connection speak of: RFC 9293 (MSS), 7323 (scale, timestamps), 2018 (SACK), 7413 (Fast Open).

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
    /// A Fast Open cookie, or that one is asked for. It means something on segments with SYN only.
    pub fast_open: Option<FastOpen>,
}

/// The Fast Open option (RFC 7413, 4.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpen {
    /// None: the sender asks for one.
    pub cookie: Option<FastOpenCookie>,
    /// In the form that was used before the option had a number of its own: an experimental option (RFC 6994) of kind 254, with
    /// 0xF989 in front of the cookie (RFC 7413, 9).
    pub experimental: bool,
}

/// What shows a server that a client was told it at its address: 4 to 16 bytes, an even number of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FastOpenCookie {
    len: u8,
    bytes: [u8; LONGEST_COOKIE],
}

impl FastOpenCookie {
    /// A cookie of these bytes; `None` when they are too few, too many or an odd number (RFC 7413, 4.1.1).
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len =
            u8::try_from(bytes.len()).ok().filter(|len| COOKIE_LENGTHS.contains(len) && len % 2 == 0)?;
        let mut cookie = Self { len, bytes: [0; LONGEST_COOKIE] };
        cookie.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(cookie)
    }

    /// Its bytes, in the order of the wire.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for FastOpenCookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

const LONGEST_COOKIE: usize = 16;
const COOKIE_LENGTHS: std::ops::RangeInclusive<u8> = 4..=16;

const END: u8 = 0;
const NOTHING: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const FAST_OPEN: u8 = 34;
const EXPERIMENT: u8 = 254;

/// What stands in front of an experimental Fast Open option.
const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];

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
                fast_open: None,
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
            (FAST_OPEN, value) => self.take_fast_open(value, false),
            (EXPERIMENT, [a, b, value @ ..]) if [*a, *b] == FAST_OPEN_MAGIC => {
                self.take_fast_open(value, true)
            }
            _ => {}
        }
    }

    /// Of several the last counts that is one.
    fn take_fast_open(&mut self, value: &[u8], experimental: bool) {
        let cookie = FastOpenCookie::new(value);
        if cookie.is_some() || value.is_empty() {
            self.fast_open = Some(FastOpen { cookie, experimental });
        }
    }

    /// Writes the options as bytes, each padded so that numbers lie on multiples of four. SACK blocks that do not
    /// fit beside the others are left out, the last first.
    #[inline]
    pub fn write(&self) -> ArrayVec<u8, TCP_OPTIONS> {
        let mut bytes = ArrayVec::new();
        if let (None, None, false, Some((value, echo)), [], None) = (
            self.mss,
            self.window_scale,
            self.sack_permitted,
            self.timestamps,
            &self.sack[..],
            self.fast_open,
        ) {
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
        if let Some(fast_open) = self.fast_open {
            push_fast_open(&mut bytes, &fast_open);
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

/// Appends the option and its fillers. The longest and all before it fit exactly.
fn push_fast_open(bytes: &mut ArrayVec<u8, TCP_OPTIONS>, fast_open: &FastOpen) {
    let cookie = fast_open.cookie.as_ref().map_or(&[][..], FastOpenCookie::bytes);
    #[expect(clippy::cast_possible_truncation, reason = "at most 16")]
    let length = cookie.len() as u8;
    if fast_open.experimental {
        push(bytes, &[EXPERIMENT, 4 + length, FAST_OPEN_MAGIC[0], FAST_OPEN_MAGIC[1]]);
    } else {
        push(bytes, &[FAST_OPEN, 2 + length]);
    }
    push(bytes, cookie);
    if !bytes.len().is_multiple_of(4) {
        push(bytes, &[NOTHING, NOTHING]);
    }
}

#[inline]
fn push(bytes: &mut ArrayVec<u8, TCP_OPTIONS>, more: &[u8]) {
    // All options without SACK have 40 bytes, and SACK blocks are counted: there is always room.
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
    fn cookies_and_requests_for_them_read_back_in_both_forms() {
        let syn = TcpOptions {
            mss: Some(1460),
            window_scale: Some(8),
            sack_permitted: true,
            timestamps: Some((1, 2)),
            ..TcpOptions::default()
        };
        for experimental in [false, true] {
            for cookie in [&[][..], &[1, 2, 3, 4], &[0; 6], &[7; 8], &[9; 16]] {
                let option = FastOpen { cookie: FastOpenCookie::new(cookie), experimental };
                for others in [&TcpOptions::default(), &syn] {
                    let options = TcpOptions { fast_open: Some(option), ..others.clone() };
                    let bytes = options.write();
                    assert!(bytes.len().is_multiple_of(4), "{bytes:?}");
                    assert_eq!(TcpOptions::parse(&bytes), options);
                }
            }
        }
        let both = [34, 6, 1, 2, 3, 4, 254, 8, 0xf9, 0x89, 5, 6, 7, 8];
        let last = FastOpen { cookie: FastOpenCookie::new(&[5, 6, 7, 8]), experimental: true };
        assert_eq!(TcpOptions::parse(&both).fast_open, Some(last));
    }

    #[test]
    fn a_cookie_of_a_wrong_length_or_another_experiment_is_no_fast_open() {
        for bytes in [
            &[34, 4, 1, 2][..],
            &[34, 7, 1, 2, 3, 4, 5],
            &[34, 20, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
            &[254, 8, 0xf9, 0x88, 1, 2, 3, 4],
            &[254, 3, 0xf9],
            &[254, 2],
        ] {
            assert_eq!(TcpOptions::parse(bytes), TcpOptions::default(), "{bytes:?}");
        }
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
