//! Asking for memory some time before it is needed.
#![expect(unsafe_code, reason = "the processor's instruction takes a pointer")]

use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for the cache lines of those bytes of a value that it has of a range. It changes nothing but when they are there.
#[inline]
pub fn prefetch<T>(value: &T, bytes: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    for offset in (bytes.start..bytes.end.min(size_of::<T>())).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::from_ref(value).cast::<i8>();
        // SAFETY: the offset is within the value; a prefetch reads nothing and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.add(offset)) }
    }
}
