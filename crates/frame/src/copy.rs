//! Copying payload: long, and rarely in the first-level cache, from where or to where it goes.
//!
//! The C library's copy is made for all that programs copy. Of rows as long as packets the plainest loop over vectors is quicker from
//! one place in the second-level cache to another, and from two thousand bytes on the C library may have the processor copy
//! by one instruction (`rep movsb`), which on a Zen 3 is slower than vectors.
#![expect(unsafe_code, reason = "processors with AVX2 are given whole vectors")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};

/// Bytes from which that is so.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 256;

/// Bytes of two vectors.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 64;

/// Copies bytes to the front of a place that is as long, or longer.
///
/// # Panics
/// When it is shorter.
#[inline]
pub fn copy(bytes: &[u8], to: &mut [u8]) {
    let to = &mut to[..bytes.len()];
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= LONG && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor was just found to have AVX2.
        return unsafe { copy_in_vectors(bytes, to) };
    }
    to.copy_from_slice(bytes);
}

/// Copies at least a block of bytes to a place that is as long.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline(never)]
fn copy_in_vectors(bytes: &[u8], to: &mut [u8]) {
    // Vectors that are written across two lines of the cache cost more than those that are read so. The first block reaches to where
    // a line of what is written begins, or beyond.
    if let (Some(block), Some(place)) = (bytes.first_chunk(), to.first_chunk_mut()) {
        copy_block(block, place);
    }
    let skew = to.as_ptr().align_offset(BLOCK).min(BLOCK);
    let (blocks, _) = bytes[skew..].as_chunks::<BLOCK>();
    let (places, _) = to[skew..].as_chunks_mut::<BLOCK>();
    for (block, place) in blocks.iter().zip(places) {
        copy_block(block, place);
    }
    // The last block ends where the bytes end, and may begin in the one before it.
    if let (Some(block), Some(place)) = (bytes.last_chunk(), to.last_chunk_mut()) {
        copy_block(block, place);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn copy_block(block: &[u8; BLOCK], to: &mut [u8; BLOCK]) {
    let (from, to) = (block.as_ptr().cast::<__m256i>(), to.as_mut_ptr().cast::<__m256i>());
    // SAFETY: both have the bytes of two vectors, which need not be aligned.
    unsafe {
        let (front, back) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
        _mm256_storeu_si256(to, front);
        _mm256_storeu_si256(to.add(1), back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_whole_and_nothing_behind_it_is_touched() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * i % 251).to_le_bytes()[0]).collect();
        for len in (0..700).chain([1448, 2047, 2048, 2049, 5000 - 3]) {
            for (at, place) in [(0, 0), (1, 0), (2, 1), (0, 32), (1, 63)] {
                let mut to = vec![0xaa; place + len + 70];
                copy(&bytes[at..at + len], &mut to[place..]);
                assert_eq!(
                    to[place..place + len],
                    bytes[at..at + len],
                    "{len} bytes from {at} to {place} on"
                );
                let around = [&to[..place], &to[place + len..]].concat();
                assert!(around.iter().all(|byte| *byte == 0xaa), "{len} bytes from {at} to {place} on");
            }
        }
    }

    #[test]
    #[should_panic(expected = "range end index 1000")]
    fn a_place_that_is_shorter_is_refused() {
        copy(&[1; 1000], &mut [0; 999]);
    }
}
