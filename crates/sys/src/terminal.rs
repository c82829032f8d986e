//! The terminal that a user types at while a program runs.

use std::io::{self, IsTerminal, stdin};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use signal_hook::consts::SIGQUIT;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::signals::is_ignored;

static GIVE_BACK: OnceLock<fn()> = OnceLock::new();

/// From now on `give_back` is called before SIGQUIT, or a late one of [`stop_on_signals`](crate::signals::stop_on_signals), ends the
/// process at once: for who has taken the terminal, now or later. It must wait for no other thread, since that may hang. A second call
/// does nothing.
///
/// # Errors
/// The process may have no more threads or handlers.
pub fn guard(give_back: fn()) -> io::Result<()> {
    if GIVE_BACK.set(give_back).is_err() || is_ignored(SIGQUIT) {
        return Ok(());
    }
    let mut signals = Signals::new([SIGQUIT])?;
    std::thread::Builder::new().name("terminal".into()).spawn(move || {
        for signal in signals.forever() {
            give_back();
            // There is nobody to tell when the process goes on.
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

/// Gives the terminal back, where somebody has taken it.
pub(crate) fn give_back() {
    GIVE_BACK.get().into_iter().for_each(|give_back| give_back());
}

/// Takes what has been typed at standard input, and says whether that was a line. Does not wait.
///
/// Nothing is taken from what is no terminal, nor in the background: there the terminal is another program's, and reading would
/// stop us.
pub fn line_was_typed() -> bool {
    let stdin = stdin();
    if !stdin.is_terminal() || tcgetpgrp(&stdin).ok() != Some(getpgrp()) {
        return false;
    }
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let is_there =
        poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::IN);
    let mut line = [0; 4096];
    is_there && rustix::io::read(&stdin, &mut line).is_ok_and(|bytes| line[..bytes].contains(&b'\n'))
}
