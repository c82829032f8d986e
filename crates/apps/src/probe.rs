//! The eighteen bytes at the front of a generated packet's payload, by which a receiver knows what was lost, changed
//! places, came twice, was damaged, and how long it took.
//!
//! ```text
//!     0      2        4          8             14        18
//!     magic  stream   sequence   time sent     check     filler to the packet's end
//! ```
//!
//! All in network byte order. Eighteen bytes is what the shortest Ethernet frame has room for, so numbers are cut to
//! their lower bits and the receiver finds the others by what it expects: sequence numbers to 32 bits, nanoseconds of
//! `CLOCK_REALTIME` to 48 (78 hours). The check is over everything: the fourteen bytes before it, mixed, and the CRC-32
//! of the filler, which does not change from packet to packet and so costs the sender nothing.

/// Bytes of a probe.
pub const PROBE: usize = 18;

const MAGIC: u16 = 0xb7a5;

/// Bits of the time that are sent.
const TIME_BITS: u32 = 48;

/// What one packet says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Which sender's queue it comes from; chosen anew for each run.
    pub stream: u16,
    /// Its number in the stream: the lower 32 bits.
    pub sequence: u32,
    /// When it was sent, in nanoseconds of `CLOCK_REALTIME`: the lower 48 bits.
    pub time: u64,
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
        let mut bytes = [0; PROBE];
        bytes[0..2].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.stream.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..14].copy_from_slice(&self.time.to_be_bytes()[2..]);
        let check = check(&bytes) ^ filler_crc;
        bytes[14..18].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    /// Whether a payload begins as a probe does.
    pub(crate) fn is_at(payload: &[u8]) -> bool {
        payload.starts_with(&MAGIC.to_be_bytes())
    }

    /// Reads a probe; `filler_crc` is asked for when it looks like one.
    ///
    /// # Errors
    /// [`ProbeError`].
    #[inline]
    pub fn read(bytes: &[u8; PROBE], filler_crc: impl FnOnce() -> u32) -> Result<Self, ProbeError> {
        let [m0, m1, s0, s1, n0, n1, n2, n3, t0, t1, t2, t3, t4, t5, c0, c1, c2, c3] = *bytes;
        if u16::from_be_bytes([m0, m1]) != MAGIC {
            return Err(ProbeError::Foreign);
        }
        if u32::from_be_bytes([c0, c1, c2, c3]) != check(bytes) ^ filler_crc() {
            return Err(ProbeError::Damaged);
        }
        Ok(Self {
            stream: u16::from_be_bytes([s0, s1]),
            sequence: u32::from_be_bytes([n0, n1, n2, n3]),
            time: u64::from_be_bytes([0, 0, t0, t1, t2, t3, t4, t5]),
        })
    }

    /// Nanoseconds from when it was sent until `now`, a whole `CLOCK_REALTIME`; negative when the clocks disagree.
    #[inline]
    pub fn age(self, now: u64) -> i64 {
        let shift = 64 - TIME_BITS;
        // The difference of 48-bit numbers, with its sign in the top bit.
        (now.wrapping_sub(self.time) << shift).cast_signed() >> shift
    }
}

/// The mixed first fourteen bytes. Each of its steps can be undone, so that no single change of bits goes unseen
/// before the lower half is dropped.
#[inline]
fn check(bytes: &[u8; PROBE]) -> u32 {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, ..] = *bytes;
    let first = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    let second = u64::from_be_bytes([g, h, i, j, k, l, m, n]);
    let mixed = first.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ second.rotate_left(29);
    (mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32) as u32
}

/// Writes the filler of a packet and returns its CRC: bytes without a pattern, the same in every packet.
pub(crate) fn fill(filler: &mut [u8]) -> u32 {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for byte in filler.iter_mut() {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state.to_be_bytes()[0];
    }
    crc32fast::hash(filler)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Probe = Probe { stream: 77, sequence: 0xfedc_ba98, time: 0x1234_5678_9abc };

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
    fn the_age_is_right_over_the_wrap_of_48_bits_and_has_a_sign() {
        let sent = (1 << 48) - 10;
        let probe = Probe { time: sent & ((1 << 48) - 1), ..SENT };
        assert_eq!([probe.age(sent + 30), probe.age(sent), probe.age(sent - 7)], [30, 0, -7]);
        let now = 0x17f0_0000_0000_0000;
        assert_eq!(Probe { time: (now - 5) & ((1 << 48) - 1), ..SENT }.age(now), 5);
    }
}
