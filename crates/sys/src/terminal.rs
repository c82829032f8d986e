//! The terminal that a user types at while a program runs.

use std::io::{IsTerminal, stdin};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

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
