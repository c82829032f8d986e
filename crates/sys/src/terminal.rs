//! The terminal that a user types at while a program runs, and of one that is taken what signals must not do with it.

#![expect(unsafe_code, reason = "sigaction(2) is not in rustix")]

use std::io::{self, IsTerminal, stdin};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpgrp, kill_current_process_group};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGCONT, SIGQUIT, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::signals::is_ignored;

/// What is done for whoever has taken the terminal.
static GUARDED: OnceLock<Guarded> = OnceLock::new();
/// SIGTSTP came while it was taken.
static TO_STOP: AtomicBool = AtomicBool::new(false);
/// SIGCONT came.
static CONTINUED: AtomicBool = AtomicBool::new(false);

/// A terminal that a program takes for itself.
#[derive(Clone, Copy, Debug)]
pub struct Guarded {
    /// Whether it is taken now.
    pub is_taken: fn() -> bool,
    /// Gives it back if it is. It must wait for no other thread, since that may hang.
    pub give_back: fn(),
}

/// From now on the terminal is given back before SIGQUIT, or a late one of [`stop_on_signals`](crate::signals::stop_on_signals), ends
/// the process at once; and while it is taken SIGTSTP does not stop the process, but is told by [`is_to_stop`]. A second call does
/// nothing.
///
/// # Errors
/// The process may have no more threads or handlers.
pub fn guard(terminal: Guarded) -> io::Result<()> {
    if GUARDED.set(terminal).is_err() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGCONT])?;
    for signal in [SIGQUIT, SIGTSTP].into_iter().filter(|signal| !is_ignored(*signal)) {
        signals.add_signal(signal)?;
    }
    std::thread::Builder::new().name("terminal".into()).spawn(move || {
        for signal in signals.forever() {
            match signal {
                SIGCONT => CONTINUED.store(true, Ordering::Relaxed),
                SIGTSTP if (terminal.is_taken)() => TO_STOP.store(true, Ordering::Relaxed),
                SIGTSTP => stop(),
                _ => {
                    (terminal.give_back)();
                    // There is nobody to tell when the process goes on.
                    let _ = emulate_default_handler(signal);
                }
            }
        }
    })?;
    Ok(())
}

/// Gives the terminal back, where somebody has taken it.
pub(crate) fn give_back() {
    GUARDED.get().into_iter().for_each(|terminal| (terminal.give_back)());
}

/// Asks all of the job to stop, as the terminal does by Ctrl-Z while it is nobody's.
pub fn ask_to_stop() {
    // Who may not signal itself does not go on to be asked.
    let _ = kill_current_process_group(Signal::TSTP);
}

/// Whether the process was asked to stop since the last call, and is to [`stop`] when it has given the terminal back.
pub fn is_to_stop() -> bool {
    TO_STOP.swap(false, Ordering::Relaxed)
}

/// Whether the process was continued since the last call. Who has continued it may have set the terminal as it likes it.
pub fn has_continued() -> bool {
    CONTINUED.swap(false, Ordering::Relaxed)
}

/// Stops the process as SIGTSTP does by itself, until it is continued: not at all where there is no shell that could do that, where
/// SIGSTOP, which signal-hook's own takes for this, would stop it for ever.
pub fn stop() {
    // SAFETY: all zeros are the default action, without flags or a mask, which sigaction(2) takes; both places are valid while it runs.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        let mut ours = default;
        if libc::sigaction(SIGTSTP, &raw const default, &raw mut ours) == 0 {
            // To this thread: so it is in effect when the call returns.
            libc::raise(SIGTSTP);
            libc::sigaction(SIGTSTP, &raw const ours, std::ptr::null_mut());
        }
    }
}

/// Whether the terminal is this job's, and not that of a shell or of another job.
///
/// # Errors
/// When the terminal is gone.
pub fn is_ours() -> io::Result<bool> {
    match tcgetpgrp(stdin()) {
        Ok(foreground) => Ok(foreground == getpgrp()),
        // One that controls no session has no jobs.
        Err(Errno::NOTTY) => Ok(true),
        Err(error) => Err(error.into()),
    }
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
