//! The terminal of `--tui`: taken, drawn on, and given back as it was, however the run ends.
//!
//! It is given back when the [`Screen`] is dropped, and by a panic of any thread before its message is written. Signals
//! that ask for an end set the run's stop, so they end it the ordinary way; before one that ends the process at once it is
//! given back by the thread that hears of it. (Nothing can be done about SIGKILL: `reset` helps then.)
//!
//! A job that is stopped gives it back as well, and takes it again when it is continued and the terminal is its own: in the
//! background it goes on without a page.

use std::io::{self, IsTerminal, Stdout, Write};
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use bywash_sys::terminal::{self, Guarded};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Position, Rect, Size};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::keys::{self, Wish};
use super::page::Page;

/// Whether the terminal is ours now. One process has one terminal.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal while it is ours.
pub(super) struct Screen {
    /// Never dropped: it would show the cursor, which giving back does as well, and panic where the terminal is gone.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    /// As it was when it was last asked for wishes.
    size: Size,
    /// It is given back, or to be taken anew, until the terminal is this job's again.
    is_away: bool,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When standard input or output is no terminal, or one that shows lines alone.
    pub(super) fn take() -> io::Result<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(io::Error::other("standard input and output are no terminal"));
        }
        if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
            return Err(io::Error::other("the terminal shows lines alone (TERM=dumb)"));
        }
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                give_back();
                previous(info);
            }));
        });
        terminal::guard(Guarded { is_taken: || TAKEN.load(Ordering::SeqCst), give_back: give_back_at_once })?;
        enter()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).inspect_err(|_| give_back())?;
        let size = terminal.size().inspect_err(|_| give_back())?;
        Ok(Self { terminal: ManuallyDrop::new(terminal), size, is_away: false })
    }

    /// Shows `page`, unless a panic has taken the terminal back.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn draw(&mut self, page: &Page) -> io::Result<()> {
        if TAKEN.load(Ordering::SeqCst) {
            self.terminal.draw(|frame| page.draw(frame))?;
        }
        Ok(())
    }

    /// What has been typed since the last call, and that the terminal has another size now, or is taken again. Waits only while
    /// the job is stopped, where that was asked for.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn wishes(&mut self) -> io::Result<Vec<Wish>> {
        if terminal::is_to_stop() {
            give_back();
            terminal::stop();
            self.is_away = true;
        }
        if terminal::has_continued() && TAKEN.load(Ordering::SeqCst) {
            // By SIGSTOP, before which nothing could be done.
            self.is_away = true;
        }
        if self.is_away && !terminal::is_ours()? {
            TAKEN.store(false, Ordering::SeqCst);
            return Ok(Vec::new());
        }
        let mut wishes = keys::typed()?;
        if std::mem::take(&mut self.is_away) {
            self.take_again()?;
            wishes.push(Wish::Redraw);
        }
        let size = self.terminal.size()?;
        if std::mem::replace(&mut self.size, size) != size {
            wishes.push(Wish::Redraw);
        }
        Ok(wishes)
    }

    /// Takes the terminal as it may be set now, and forgets what was shown there.
    fn take_again(&mut self) -> io::Result<()> {
        // As it was at first; what is kept of that would else be taken for the present.
        disable_raw_mode()?;
        enter()?;
        self.size = self.terminal.size()?;
        self.terminal.resize(Rect::from((Position::ORIGIN, self.size)))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Sets the terminal for a page.
fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    execute!(io::stdout(), EnterAlternateScreen, Hide).inspect_err(|_| give_back())
}

/// Gives the terminal back, once. There is nowhere to complain to.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = leave(io::stdout());
        let _ = disable_raw_mode();
    }
}

/// The same past the lock of standard output: whoever draws may hold it, and hang at a terminal that takes nothing.
fn give_back_at_once() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = disable_raw_mode();
        let (stdout, mut bytes) = (io::stdout(), Vec::new());
        let _ = leave(&mut bytes);
        let mut fds = [PollFd::new(&stdout, PollFlags::OUT)];
        if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready == 1) {
            let _ = rustix::io::write(&stdout, &bytes);
        }
    }
}

fn leave(mut to: impl Write) -> io::Result<()> {
    execute!(to, LeaveAlternateScreen, Show)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

    use super::*;

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_told() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&slave, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = tcgetattr(&slave).unwrap().local_modes;
        let end = || Stdio::from(slave.try_clone().unwrap());
        let test = "report::screen::tests::a_thread_that_panics_below_a_page";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--ignored", "--nocapture"]).env("TERM", "xterm");
        child.stdin(end()).stdout(end()).stderr(end());
        assert!(child.status().unwrap().success());
        assert_eq!(tcgetattr(&slave).unwrap().local_modes, before);
        // What was shown waits in the terminal's buffer; it is far from full.
        let (mut shown, mut buffer) = (String::new(), [0; 4096]);
        let mut master = File::from(master);
        while !shown.contains("test result") {
            let n = master.read(&mut buffer).unwrap();
            shown.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
        let (page, after) = shown.split_once("\x1b[?1049l").unwrap();
        assert!(page.contains("\x1b[?1049h") && after.contains("below the page"), "{shown:?}");
        assert!(!after.contains("\x1b[?1049"), "given back once, and not drawn on again: {after:?}");
    }

    #[test]
    #[ignore = "it is run by the test above"]
    fn a_thread_that_panics_below_a_page() {
        let mut screen = Screen::take().unwrap();
        screen.draw(&Page::default()).unwrap();
        std::thread::spawn(|| panic!("below the page")).join().unwrap_err();
        screen.draw(&Page::default()).unwrap();
    }
}
