//! `packet:` and `tap:`, against themselves and against the kernel, in network namespaces of the tests' own.
#![expect(unsafe_code, reason = "an allocator that counts is unsafe by its trait")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "patterns of bytes")]

mod end;
mod packet;
mod tap;
