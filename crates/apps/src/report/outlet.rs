//! Standard output and standard error as a run has them: while nobody reads what was written it waits, and can be stopped.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use bywash_sys::worker::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a pipe takes at once if it takes anything: PIPE_BUF.
const PIECE: usize = 4096;
/// How long whoever reads may take for the next piece once the run is to end.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// One of them. It does not buffer.
pub(super) struct Outlet {
    file: File,
    stop: Arc<OnceLock<Stop>>,
    /// Nobody has read in time: what comes now is not waited for.
    given_up: bool,
}

impl Outlet {
    /// One that waits until `stop` is there, and set.
    pub(super) fn new(fd: OwnedFd, stop: Arc<OnceLock<Stop>>) -> Self {
        Self { file: fd.into(), stop, given_up: false }
    }

    /// Waits until something can be written.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            let stop = self.stop.get();
            let ends = stop.is_some_and(Stop::is_set);
            let patience = match (ends, self.given_up) {
                (false, _) => None,
                (true, false) => Some(PATIENCE),
                (true, true) => Some(Timespec::default()),
            };
            let mut fds = vec![PollFd::new(&self.file, PollFlags::OUT)];
            fds.extend(
                stop.filter(|_| !ends).map(|stop| PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)),
            );
            match poll(&mut fds, patience.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                // A reader that has gone is told of by the write.
                Ok(_) if !fds[0].revents().is_empty() => return Ok(()),
                Ok(_) if ends => {
                    self.given_up = true;
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "nobody reads them"));
                }
                Ok(_) => {}
            }
        }
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.wait()?;
            match self.file.write(&bytes[..bytes.len().min(PIECE)]) {
                // Others write there, too.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn who_does_not_read_keeps_a_run_from_ending_for_a_moment_only() {
        let (mut reader, writer) = io::pipe().unwrap();
        let stop = Stop::new().unwrap();
        let mut outlet = Outlet::new(writer.into(), Arc::new(OnceLock::from(stop.clone())));
        let told = vec![b'!'; 1 << 20];
        let wrote = std::thread::scope(|scope| {
            let wrote = scope.spawn(|| outlet.write_all(&told));
            let mut first = vec![0; 1 << 19];
            reader.read_exact(&mut first).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            assert!(!wrote.is_finished(), "it waits while the run goes on");
            stop.set();
            wrote.join().unwrap()
        });
        assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let began = Instant::now();
        assert!((0..100).all(|_| outlet.write(b"more").is_err()));
        assert!(began.elapsed() < Duration::from_secs(1), "once it has given up");
        let mut rest = vec![0; 1 << 16];
        assert!(reader.read(&mut rest).unwrap() > 0);
        outlet.write_all(b"the end").unwrap();
    }
}
