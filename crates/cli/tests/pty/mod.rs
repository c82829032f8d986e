//! A terminal of the tests' own.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// How long a run may take to show what is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Its rows and columns.
pub(crate) const SIZE: (u16, u16) = (40, 100);

/// A terminal, and both its ends.
pub(crate) struct Pty {
    pub(crate) master: File,
    pub(crate) slave: OwnedFd,
}

impl Pty {
    pub(crate) fn open() -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let (ws_row, ws_col) = SIZE;
        tcsetwinsize(&slave, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        Self { master: master.into(), slave: slave.into() }
    }

    /// Starts a command in it, which is told that pages can be shown there.
    pub(crate) fn run(&self, command: &mut Command) -> Child {
        let end = || Stdio::from(self.slave.try_clone().unwrap());
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
    }
}

/// Reads what is shown until it is as `wanted`, which `what` names.
pub(crate) fn read_until_it(master: &mut File, what: &str, wanted: impl Fn(&str) -> bool) -> String {
    let (mut shown, mut buffer, until) = (Vec::new(), [0; 4096], Instant::now() + PATIENCE);
    loop {
        let n = master.read(&mut buffer).unwrap();
        shown.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&shown);
        if wanted(&text) {
            return text.into_owned();
        }
        assert!(Instant::now() < until, "{what:?} is not in {text:?}");
    }
}
