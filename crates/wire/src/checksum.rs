//! The Internet checksum (RFC 1071): the ones' complement sum of 16-bit words.
#![expect(unsafe_code, reason = "processors with AVX2 are given whole vectors")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm_add_epi32, _mm_cvtsi128_si32, _mm_shuffle_epi32, _mm256_add_epi32, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi16, _mm256_setzero_si256,
    _mm256_storeu_si256, _mm256_xor_si256,
};

/// A sum that grows part by part. Parts may have any length: a part after an odd number of bytes is summed as if the
/// bytes stood in one row.
///
/// The words are added as the machine reads them and swapped once at the end: RFC 1071, 2 (B), the sum does not mind
/// the byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    sum: u64,
    odd: bool,
}

impl Sum {
    /// The sum of nothing.
    pub const fn new() -> Self {
        Self { sum: 0, odd: false }
    }

    /// Adds bytes.
    #[inline(always)]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.part(sum_words(bytes), bytes.len())
    }

    /// Adds the sum of `len` bytes.
    #[inline]
    fn part(mut self, part: u64, len: usize) -> Self {
        self.sum += if self.odd { turned(part) } else { part };
        self.odd ^= !len.is_multiple_of(2);
        self
    }

    /// Adds bytes while they are copied to `to`: long ones are read once for both.
    ///
    /// # Panics
    /// When `to` is not as long.
    #[inline(always)]
    #[must_use]
    pub fn copied(self, bytes: &[u8], to: &mut [u8]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if bytes.len() >= LONG && std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor was just found to have AVX2.
            let part = unsafe { copy_in_vectors(bytes, to) };
            return self.part(part, bytes.len());
        }
        to.copy_from_slice(bytes);
        self.bytes(bytes)
    }

    /// Adds one 16-bit number in host byte order.
    #[inline]
    #[must_use]
    pub fn word(mut self, word: u16) -> Self {
        self.sum += u64::from(word.to_be());
        self
    }

    /// Adds one 64-bit number in host byte order: four words that follow each other.
    #[inline]
    #[must_use]
    pub fn quad(mut self, quad: u64) -> Self {
        let quad = quad.to_be();
        self.sum += (quad >> 32) + (quad & 0xffff_ffff);
        self
    }

    /// Adds one 128-bit number in host byte order: eight words that follow each other.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    pub fn wide(self, number: u128) -> Self {
        self.quad((number >> 64) as u64).quad(number as u64)
    }

    /// Adds what follows an even number of bytes, and was summed by itself.
    #[inline]
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, odd: other.odd }
    }

    /// The sum, in host byte order, not complemented: what `CHECKSUM_PARTIAL` wants in the checksum field.
    #[inline]
    pub fn partial(self) -> u16 {
        u16::from_be(fold(self.sum))
    }

    /// The checksum, in host byte order: the complement of the sum. Over bytes that hold their checksum it is zero
    /// when the checksum is right.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.partial()
    }

    /// Starts a TCP, UDP or ICMPv6 sum with the pseudo-header: addresses of four bytes (RFC 9293, 3.1) or of
    /// sixteen (RFC 8200, 8.1), protocol number and length.
    #[inline]
    pub fn pseudo(source: &[u8], destination: &[u8], protocol: u8, length: u32) -> Self {
        let mut sum = Self::new().bytes(source).bytes(destination);
        // One after the other, so that a length above 65535 (a super-segment, a jumbogram) keeps its upper half.
        sum.sum += u64::from(length.to_be()) + u64::from(u16::from(protocol).to_be());
        sum
    }
}

/// The checksum after one 16-bit word under it changed from `old` to `new` (RFC 1624, equation 3).
#[inline]
pub fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    !fold(u64::from(sum))
}

/// Bytes from which vectors are quicker, where there are any.
const LONG: usize = 256;

/// The ones' complement sum of the bytes, with some carries left above 32 bits.
#[inline(always)]
fn sum_words(bytes: &[u8]) -> u64 {
    if bytes.len() < LONG { sum_short(bytes) } else { sum_long(bytes) }
}

/// Apart, so that headers and messages do not pay for what only this needs.
#[inline(never)]
fn sum_long(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor was just found to have AVX2.
        return unsafe { sum_in_vectors(bytes) };
    }
    sum_with_carry(bytes)
}

/// The sum by 16-bit words, each less 32768: for such words there is an instruction that adds pairs of them.
///
/// A vector has eight sums of 32 bits: longer rows than those hold are summed in parts.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_in_vectors(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let sum_of = |blocks: &[[u8; BLOCK]]| {
        let mut sums = [_mm256_setzero_si256(); 2];
        for block in blocks {
            add_block(&mut sums, load(block));
        }
        total(sums, blocks.len())
    };
    blocks.chunks(MOST_BLOCKS).map(sum_of).sum::<u64>() + sum_short(rest)
}

/// The same while they are copied.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn copy_in_vectors(bytes: &[u8], to: &mut [u8]) -> u64 {
    assert_eq!(bytes.len(), to.len(), "both have one length");
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let (places, _) = to.as_chunks_mut::<BLOCK>();
    let mut all = 0;
    for (blocks, places) in blocks.chunks(MOST_BLOCKS).zip(places.chunks_mut(MOST_BLOCKS)) {
        let mut sums = [_mm256_setzero_si256(); 2];
        let (pairs, single) = blocks.as_chunks::<2>();
        let (pairs_to, single_to) = places.as_chunks_mut::<2>();
        for ([one, two], [to_one, to_two]) in pairs.iter().zip(pairs_to) {
            copy_block(&mut sums, one, to_one);
            copy_block(&mut sums, two, to_two);
        }
        for (block, to) in single.iter().zip(single_to) {
            copy_block(&mut sums, block, to);
        }
        all += total(sums, blocks.len());
    }
    match (bytes.last_chunk::<BLOCK>(), to.last_chunk_mut()) {
        // The last of what was copied once more with it: a block whose length is known needs no call.
        (Some(block), Some(place)) => *place = *block,
        _ => to.copy_from_slice(bytes),
    }
    all + sum_short(rest)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn copy_block(sums: &mut [__m256i; 2], block: &[u8; BLOCK], to: &mut [u8; BLOCK]) {
    let vectors = load(block);
    let (front, back) = to.split_at_mut(BLOCK / 2);
    // SAFETY: both halves of a block have the 32 bytes of a vector; they need not be aligned.
    unsafe {
        _mm256_storeu_si256(front.as_mut_ptr().cast(), vectors[0]);
        _mm256_storeu_si256(back.as_mut_ptr().cast(), vectors[1]);
    }
    add_block(sums, vectors);
}

/// Bytes of two vectors.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 64;

/// Blocks whose words, less 32768 each, fit a sum of 32 bits together.
#[cfg(target_arch = "x86_64")]
const MOST_BLOCKS: usize = (1 << 16) / (BLOCK / 2);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn load(block: &[u8; BLOCK]) -> [__m256i; 2] {
    let (front, back) = block.split_at(BLOCK / 2);
    // SAFETY: both halves of a block have the 32 bytes of a vector; they need not be aligned.
    unsafe { [_mm256_loadu_si256(front.as_ptr().cast()), _mm256_loadu_si256(back.as_ptr().cast())] }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn add_block(sums: &mut [__m256i; 2], vectors: [__m256i; 2]) {
    let (least, one) = (_mm256_set1_epi16(i16::MIN), _mm256_set1_epi16(1));
    for (sum, vector) in sums.iter_mut().zip(vectors) {
        // With the top bit turned, a word counts as itself less 32768.
        let pairs = _mm256_madd_epi16(_mm256_xor_si256(vector, least), one);
        *sum = _mm256_add_epi32(*sum, pairs);
    }
}

/// What the sums of so many blocks come to, with the 32768 of each word.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn total([a, b]: [__m256i; 2], blocks: usize) -> u64 {
    let sum = _mm256_add_epi32(a, b);
    let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0b0100_1110));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0b0000_0001));
    i64::from(_mm_cvtsi128_si32(sum)).cast_unsigned().wrapping_add(0x8000 * (BLOCK / 2 * blocks) as u64)
}

/// Eight bytes at a time with the carry of one addition going into the next (RFC 1071, 2 (C)): a quarter of the work of
/// adding halves of words, and less than vectors of them are without AVX2.
#[inline]
fn sum_with_carry(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<LONG>();
    let mut sum = 0u64;
    for block in blocks {
        sum = sum_block(sum, block);
    }
    halves(sum) + sum_short(rest)
}

/// The sum of headers and short payloads, in fours of words, then one by one.
#[inline(always)]
fn sum_short(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut sum = 0u64;
    for block in blocks {
        sum = sum_block(sum, block);
    }
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        let (more, carry) = sum.overflowing_add(u64::from_ne_bytes(*word));
        sum = more + u64::from(carry);
    }
    let sum = halves(sum);
    if rest.is_empty() { sum } else { sum + halves(last_word(bytes, rest.len())) }
}

/// The last `n` bytes, one to seven, as a word that zeros fill up. Of more than a word, a word is read and what is before them
/// left out.
#[inline]
fn last_word(bytes: &[u8], n: usize) -> u64 {
    let word = bytes.last_chunk::<8>().map(|last| u64::from_le_bytes(*last) >> (64 - 8 * n));
    let each = || bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    word.unwrap_or_else(each).to_le()
}

/// The same sum with less above 32 bits.
#[inline]
fn halves(sum: u64) -> u64 {
    (sum >> 32) + (sum & 0xffff_ffff)
}

/// Adds a block of whole words.
#[inline]
fn sum_block<const N: usize>(mut sum: u64, block: &[u8; N]) -> u64 {
    let (words, _) = block.as_chunks::<8>();
    let mut carry = false;
    for word in words {
        (sum, carry) = sum.carrying_add(u64::from_ne_bytes(*word), carry);
    }
    // A sum that has wrapped is less than its largest: this cannot wrap again.
    sum + u64::from(carry)
}

/// The same sum in 16 bits. A number and itself with its halves exchanged, added, have the sum of the halves in the upper one,
/// with the carry that came out of them (RFC 1071, 2 (A)).
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// A sum as it is one byte further (RFC 1071, 2 (B)).
#[cold]
fn turned(sum: u64) -> u64 {
    fold(sum).swap_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::new().bytes(&bytes).partial(), 0xddf2);
    }

    #[test]
    fn parts_of_any_length_sum_as_one_row() {
        let bytes: Vec<u8> = (0..=254).map(|i: u8| i.wrapping_mul(37) ^ 0x5a).collect();
        for cut in 0..bytes.len() {
            for second in [cut, (cut + 3).min(bytes.len()), bytes.len()] {
                let sum = Sum::new().bytes(&bytes[..cut]).bytes(&bytes[cut..second]).bytes(&bytes[second..]);
                assert_eq!(sum.checksum(), plain(&bytes), "cut at {cut} and {second}");
            }
        }
    }

    #[test]
    fn an_update_equals_a_new_sum() {
        let mut bytes = *b"\x45\x00\x00\x54\x12\x34\x40\x00\x40\x01";
        let before = Sum::new().bytes(&bytes).checksum();
        bytes[8] = 0x3f;
        assert_eq!(updated(before, 0x4001, 0x3f01), Sum::new().bytes(&bytes).checksum());
    }

    #[test]
    fn every_length_and_every_carry_sums_as_plain_words() {
        let bytes: Vec<u8> =
            (0..400u32).map(|i| if i % 3 == 0 { 0xff } else { i.to_le_bytes()[0] }).collect();
        for len in 0..bytes.len() {
            assert_eq!(Sum::new().bytes(&bytes[..len]).checksum(), plain(&bytes[..len]), "{len} bytes");
            let ones = vec![0xff; len];
            assert_eq!(Sum::new().bytes(&ones).checksum(), plain(&ones), "{len} times 255");
            // What a processor without vectors does with all of them.
            for bytes in [&bytes[..len], &ones] {
                assert_eq!(fold(sum_with_carry(bytes)), fold(sum_words(bytes)), "{len} bytes");
            }
        }
    }

    #[test]
    fn what_is_copied_is_summed() {
        let bytes: Vec<u8> = (0..2000u32).map(|i| (i * i).to_le_bytes()[0]).collect();
        for (from, to) in [(0, 0), (0, 1), (0, 99), (1, 257), (3, 258), (2, 1450), (7, 2000), (0, 2000)] {
            for start in [Sum::new(), Sum::new().bytes(&[0x17])] {
                let mut copy = vec![0; to - from];
                let sum = start.copied(&bytes[from..to], &mut copy);
                assert_eq!(copy, &bytes[from..to]);
                assert_eq!(sum.checksum(), start.bytes(&bytes[from..to]).checksum(), "{from}..{to}");
            }
        }
    }

    #[test]
    fn long_rows_of_the_least_and_of_the_largest_words_sum_as_plain_words() {
        for byte in [0, 0x7f, 0x80, 0xff] {
            let bytes = vec![byte; (1 << 20) + 77];
            assert_eq!(fold(sum_words(&bytes)), fold(sum_with_carry(&bytes)), "{byte}");
            let mut copy = vec![1; bytes.len()];
            assert_eq!(Sum::new().copied(&bytes, &mut copy).checksum(), Sum::new().bytes(&bytes).checksum());
            assert_eq!(copy, bytes);
        }
    }

    #[test]
    fn a_quad_is_four_words() {
        let quad = 0x1234_ffff_0001_fedc_u64;
        assert_eq!(Sum::new().quad(quad).checksum(), Sum::new().bytes(&quad.to_be_bytes()).checksum());
        let twice = Sum::new().quad(u64::MAX).quad(u64::MAX);
        assert_eq!(twice.checksum(), Sum::new().bytes(&[0xff; 16]).checksum());
    }

    #[test]
    fn a_long_length_counts_whole() {
        let short = Sum::pseudo(&[10, 0, 0, 1], &[10, 0, 0, 2], 6, 0x0002_0001);
        let by_hand = Sum::new().bytes(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 2, 0, 1, 0, 6]);
        assert_eq!(short.partial(), by_hand.partial());
    }
}
