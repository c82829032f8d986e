//! Random numbers of the kernel: for keys that nobody outside may guess.

use rustix::rand::{GetRandomFlags, getrandom};

/// Sixteen random bytes.
///
/// # Errors
/// The kernel has no getrandom(2).
pub fn bytes() -> std::io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // Requests of up to 256 bytes are never cut short, getrandom(2) says; only a signal before the kernel has
    // gathered enough at boot interrupts them.
    rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_are_alike() {
        assert_ne!(super::bytes().unwrap(), super::bytes().unwrap());
    }
}
