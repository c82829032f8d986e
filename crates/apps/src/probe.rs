//! The eighteen bytes at the front of a generated packet's payload, by which a receiver knows what was lost, changed
//! places, came twice, was damaged, and how long it took.
//!
//! ```text
//!     0      2        4          8           13      15      18
//!     magic  stream   sequence   time sent   flows   check   filler to the packet's end
//! ```
//!
//! All in network byte order. Eighteen bytes is what the shortest Ethernet frame has room for, so numbers are cut to
//! their lower bits and the receiver finds the others by what it expects: sequence numbers to 32 bits, nanoseconds of
//! `CLOCK_REALTIME` to 40 (18 minutes). The check is over everything: the fifteen bytes before it and the CRC-32 of the
//! filler, which does not change from packet to packet and so costs the sender nothing.
//!
//! A packet has no number in its flow. Where a stream's flows take turns, that they are so many says it all: each packet
//! of a flow has a number of the stream that is so much higher than the one before, and a number that is missing names
//! the flow it was of. So the sender need not remember its flows, and the shortest frame has room for it.

/// Bytes of a probe.
pub const PROBE: usize = 18;

pub(crate) const MAGIC: u16 = 0xb7a5;

/// Bits of the time that are sent.
pub(crate) const TIME_BITS: u32 = 40;

/// Bits of the check that lie in the second eight bytes: the number of flows stands before them.
pub(crate) const CHECK_HERE: u32 = 8;

/// The check's bits in the second eight bytes.
pub(crate) const CHECKED: u64 = (1 << CHECK_HERE) - 1;

/// What one packet says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Which sender's queue it comes from; chosen anew for each run.
    pub stream: u16,
    /// Its number in the stream: the lower 32 bits.
    pub sequence: u32,
    /// When it was sent, in nanoseconds of `CLOCK_REALTIME`: the lower 40 bits.
    pub time: u64,
    /// Flows (protocol, addresses, ports) whose turn comes in the stream, each once before the first one's again; 0 where
    /// it is not so.
    pub flows: u16,
}

/// Why a payload is no right probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// Somebody else's packet.
    Foreign,
    /// Ours, and not as it was sent.
    Damaged,
}

impl Probe {
    /// Its bytes, in front of a filler with this CRC.
    #[inline]
    pub fn to_bytes(self, filler_crc: u32) -> [u8; PROBE] {
        let (first, second, last) = self.words(filler_crc);
        let mut bytes = [0; PROBE];
        bytes[0..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..16].copy_from_slice(&second.to_be_bytes());
        bytes[16..18].copy_from_slice(&last.to_be_bytes());
        bytes
    }

    /// Its bytes as numbers that stand in a row, of eight, eight and two bytes: they can be written, and added to a
    /// checksum, without a detour through memory.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half of the check")]
    pub(crate) fn words(self, filler_crc: u32) -> (u64, u64, u16) {
        let first = u64::from(MAGIC) << 48 | u64::from(self.stream) << 32 | u64::from(self.sequence);
        let second = self.time << (64 - TIME_BITS) | u64::from(self.flows) << CHECK_HERE;
        let check = check(first, second, filler_crc);
        (first, second | u64::from(check >> 16), check as u16)
    }

    /// Whether a payload begins as a probe does.
    pub(crate) fn is_at(payload: &[u8]) -> bool {
        payload.starts_with(&MAGIC.to_be_bytes())
    }

    /// The stream that a probe says it is of, whether or not it is right.
    #[inline]
    pub(crate) fn stream_of(bytes: &[u8; PROBE]) -> u16 {
        u16::from_be_bytes([bytes[2], bytes[3]])
    }

    /// Reads a probe; `filler_crc` is asked for when it looks like one.
    ///
    /// # Errors
    /// [`ProbeError`].
    #[inline]
    pub fn read(bytes: &[u8; PROBE], filler_crc: impl FnOnce() -> u32) -> Result<Self, ProbeError> {
        // Whole words, as `words` writes them: bytes that are picked one by one are also read one by one.
        let [m0, m1, s0, s1, n0, n1, n2, n3, t0, t1, t2, t3, t4, f0, f1, c0, c1, c2] = *bytes;
        let first = u64::from_be_bytes([m0, m1, s0, s1, n0, n1, n2, n3]);
        let second = u64::from_be_bytes([t0, t1, t2, t3, t4, f0, f1, c0]);
        let last = u16::from_be_bytes([c1, c2]);
        if first >> 48 != u64::from(MAGIC) {
            return Err(ProbeError::Foreign);
        }
        let claimed = second << 16 & (CHECKED << 16) | u64::from(last);
        let second = second & !CHECKED;
        if claimed != u64::from(check(first, second, filler_crc())) {
            return Err(ProbeError::Damaged);
        }
        #[expect(clippy::cast_possible_truncation, reason = "the parts of the words")]
        let (stream, sequence, flows) = ((first >> 32) as u16, first as u32, (second >> CHECK_HERE) as u16);
        Ok(Self { stream, sequence, time: second >> (64 - TIME_BITS), flows })
    }

    /// Nanoseconds from when it was sent until `now`, a whole `CLOCK_REALTIME`; negative when the clocks disagree.
    #[inline]
    pub fn age(self, now: u64) -> i64 {
        let shift = 64 - TIME_BITS;
        // The difference of 40-bit numbers, with its sign in the top bit.
        (now.wrapping_sub(self.time) << shift).cast_signed() >> shift
    }
}

/// What [`check`] multiplies by, first and then.
pub(crate) const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

/// How far [`check`] turns the second eight bytes to the left.
pub(crate) const TURN: u32 = 29;

/// Bits of the mixed bytes that are dropped: 24 are left.
pub(crate) const DROPPED: u32 = 40;

/// The first fifteen bytes, as eight and eight of which the last is 0, mixed with the filler's CRC. Each of its steps can
/// be undone, so that no single change of bits goes unseen before the lower part is dropped.
#[inline]
fn check(first: u64, second: u64, filler_crc: u32) -> u32 {
    let mixed = first.wrapping_mul(FACTORS[0]) ^ second.rotate_left(TURN) ^ u64::from(filler_crc);
    (mixed.wrapping_mul(FACTORS[1]) >> DROPPED) as u32
}

/// The filler of a packet, without end: bytes without a pattern, the same in every packet.
struct Filler(u64);

impl Filler {
    fn new() -> Self {
        Self(0x2545_f491_4f6c_dd1d)
    }
}

impl Iterator for Filler {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        // Marsaglia's xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some(self.0.to_be_bytes()[0])
    }
}

/// Writes the filler of a packet.
pub(crate) fn fill(filler: &mut [u8]) {
    filler.iter_mut().zip(Filler::new()).for_each(|(to, byte)| *to = byte);
}

/// The CRC that a filler of `len` bytes has when it is sent.
pub(crate) fn filler_crc(len: usize) -> u32 {
    let (mut filler, mut part, mut left) = (Filler::new(), [0; 256], len);
    let mut crc = crc32fast::Hasher::new();
    while left > 0 {
        let n = left.min(part.len());
        part[..n].iter_mut().zip(&mut filler).for_each(|(to, byte)| *to = byte);
        crc.update(&part[..n]);
        left -= n;
    }
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Probe = Probe { stream: 77, sequence: 0xfedc_ba98, time: 0x56_789a_bcde, flows: 0x1234 };

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(Probe::read(&SENT.to_bytes(5), || 5), Ok(SENT));
    }

    #[test]
    fn every_changed_bit_is_seen() {
        let bytes = SENT.to_bytes(5);
        for bit in 0..PROBE * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 16 { ProbeError::Foreign } else { ProbeError::Damaged };
            assert_eq!(Probe::read(&changed, || 5), Err(expected), "bit {bit}");
        }
        assert_eq!(Probe::read(&bytes, || 4), Err(ProbeError::Damaged), "a changed filler");
    }

    #[test]
    fn the_crc_of_a_filler_is_that_of_its_bytes() {
        for len in [0, 1, 255, 256, 257, 9000] {
            let mut filler = vec![0; len];
            fill(&mut filler);
            assert_eq!(filler_crc(len), crc32fast::hash(&filler), "{len}");
        }
    }

    #[test]
    fn the_age_is_right_over_the_wrap_of_40_bits_and_has_a_sign() {
        let sent = (1 << 40) - 10;
        let probe = Probe { time: sent & ((1 << 40) - 1), ..SENT };
        assert_eq!([probe.age(sent + 30), probe.age(sent), probe.age(sent - 7)], [30, 0, -7]);
        let now = 0x17f0_0000_0000_0000;
        assert_eq!(Probe { time: (now - 5) & ((1 << 40) - 1), ..SENT }.age(now), 5);
    }
}
