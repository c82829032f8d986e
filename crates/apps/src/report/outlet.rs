//! Where a run's reports are written, standard output and standard error above all: what nobody reads is kept while the run
//! goes on, which waits for nobody.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bywash_sys::worker::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};

/// What a pipe takes at once if it takes anything: PIPE_BUF.
const PIECE: usize = 4096;
/// Bytes that are kept; what comes then is missed as a whole.
const ROOM: usize = 1 << 20;
/// How long whoever reads may take for the next piece once the run is to end.
const PATIENCE: Duration = Duration::from_millis(100);

/// What nobody has taken yet, of all that is written for a run.
#[derive(Default)]
pub(super) struct Backlog {
    bytes: AtomicUsize,
    stop: OnceLock<Stop>,
}

impl Backlog {
    /// From when on `stop` is set, whoever reads is waited for, and not for long.
    pub(super) fn heed(&self, stop: &Stop) {
        // There is one for a run.
        let _ = self.stop.set(stop.clone());
    }

    /// There is none.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// Whether more may be written.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < ROOM || self.ends()
    }

    fn ends(&self) -> bool {
        self.stop.get().is_some_and(Stop::is_set)
    }
}

/// One of them.
pub(super) struct Outlet {
    file: File,
    kept: VecDeque<u8>,
    backlog: Arc<Backlog>,
    /// Nobody has read in time: what comes now is not waited for.
    given_up: bool,
}

impl Outlet {
    /// One whose backlog is a part of `backlog`.
    pub(super) fn new(fd: OwnedFd, backlog: Arc<Backlog>) -> Self {
        Self { file: unwaiting(fd).into(), kept: VecDeque::new(), backlog, given_up: false }
    }

    /// Writes what is kept, as far as it is taken. When the run `ends`, that is waited for, and what is not taken is missed.
    fn push(&mut self, ends: bool) -> io::Result<()> {
        let patience = if ends && !self.given_up { PATIENCE } else { Duration::ZERO };
        let mut until = Instant::now() + patience;
        while !self.kept.is_empty() {
            match self.write_piece(until) {
                Ok(n) => {
                    self.forget(n);
                    until = Instant::now() + patience;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Others write there, too.
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !ends => return Ok(()),
                Err(error) => {
                    self.forget(self.kept.len());
                    if error.kind() != ErrorKind::WouldBlock {
                        return Err(error);
                    }
                    return Err(self.give_up());
                }
            }
        }
        Ok(())
    }

    /// From now on nobody is waited for. Says why.
    pub(super) fn give_up(&mut self) -> io::Error {
        self.given_up = true;
        io::Error::new(ErrorKind::TimedOut, "nobody reads them")
    }

    /// Writes a piece if one is taken by then.
    fn write_piece(&mut self, until: Instant) -> io::Result<usize> {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        // A reader that has gone is told of by the write.
        if poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(&left))? == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (piece, _) = self.kept.as_slices();
        match self.file.write(&piece[..piece.len().min(PIECE)])? {
            0 => Err(ErrorKind::WriteZero.into()),
            n => Ok(n),
        }
    }

    fn forget(&mut self, bytes: usize) {
        self.kept.drain(..bytes);
        self.backlog.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A way to write there that does not wait, as others who write there may have to. A pipe that takes a piece takes it whole, but a
/// terminal says that it takes some while it has any room, and then keeps who writes more until that is read: so it is opened
/// once more. It may be another user's; then a reader that stops can keep us.
fn unwaiting(fd: OwnedFd) -> OwnedFd {
    if !fd.is_terminal() {
        return fd;
    }
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).unwrap_or(fd)
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.kept.extend(bytes);
        self.backlog.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        self.push(self.backlog.ends())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push(self.backlog.ends())
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        // There is nowhere to complain.
        let _ = self.push(true);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    #[test]
    fn who_does_not_read_keeps_a_run_from_ending_for_a_moment_only() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (stop, backlog) = (Stop::new().unwrap(), Arc::new(Backlog::default()));
        backlog.heed(&stop);
        let mut outlet = Outlet::new(writer.into(), backlog.clone());
        let told: Vec<u8> = (0..2 * ROOM).map(|i| i.to_le_bytes()[1]).collect();
        outlet.write_all(&told).unwrap();
        assert!(!backlog.has_room() && !backlog.is_empty(), "it is kept while the run goes on");
        // What is read is followed by the rest.
        let mut got = vec![0; ROOM];
        for piece in got.chunks_mut(PIECE) {
            reader.read_exact(piece).unwrap();
            outlet.flush().unwrap();
        }
        assert!(got == told[..ROOM] && backlog.has_room());
        stop.set();
        let began = Instant::now();
        assert_eq!(outlet.flush().unwrap_err().kind(), ErrorKind::TimedOut);
        assert!((0..100).all(|_| outlet.write(b"more").is_err()));
        assert!(began.elapsed() < Duration::from_secs(1), "once it has given up");
        assert!(backlog.is_empty());
        let mut rest = vec![0; 1 << 16];
        assert!(reader.read(&mut rest).unwrap() > 0);
        outlet.write_all(b"the end").unwrap();
    }

    #[test]
    fn a_terminal_whose_reader_stops_keeps_nobody() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let backlog = Arc::new(Backlog::default());
        let mut outlet = Outlet::new(slave.into(), backlog.clone());
        let began = Instant::now();
        for line in 0..10_000 {
            outlet.write_all(format!("line {line}\n").as_bytes()).unwrap();
        }
        assert!(!backlog.is_empty() && began.elapsed() < Duration::from_secs(10));
        // No run has begun, and none will.
        drop(outlet);
        assert!(backlog.is_empty());
        let mut shown = [0; 14];
        File::from(master).read_exact(&mut shown).unwrap();
        assert_eq!(&shown, b"line 0\r\nline 1");
    }
}
