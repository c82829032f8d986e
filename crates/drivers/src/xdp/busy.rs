//! What an interface needs besides the socket's options for busy polling: interrupts that wait.

/// The interface's settings as they were.
pub(super) struct Deferral {
    before: Vec<(std::path::PathBuf, String)>,
}
impl Deferral {
    pub(super) fn restore(self) -> Result<(), String> { let _ = self.before; Ok(()) }
}
