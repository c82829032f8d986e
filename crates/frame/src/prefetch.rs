//! Asking for memory some time before it is needed.
#![expect(unsafe_code, reason = "the processor's instruction takes a pointer")]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for the cache lines of the first `bytes` bytes of a value, or of all of it when it is shorter. It changes nothing but
/// when they are there.
#[inline]
pub fn prefetch<T>(value: &T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes.min(size_of::<T>())).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::from_ref(value).cast::<i8>();
        // SAFETY: the offset is within the value; a prefetch reads nothing and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.add(offset)) }
    }
}
