//! Standard output, written by a thread of its own: whoever is slow to read it, or stops, keeps nobody but the peer waiting.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

/// Bytes that wait to be written at most.
const ROOM: usize = 1 << 20;

/// What is written to. Dropped, it takes no more; what it has taken is still written.
#[derive(Debug)]
pub(crate) struct Output(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Bytes of the piece that is being written.
    writing: usize,
    /// Nothing more can be written, and why, until that was asked for.
    broken: bool,
    failure: Option<io::Error>,
    over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what comes until nothing more will.
    fn write(&self, mut file: File) {
        let mut piece = Vec::new();
        loop {
            let waits = |waiting: &mut Waiting| waiting.bytes.is_empty() && !waiting.over;
            let waiting = self.changed.wait_while(self.lock(), waits);
            let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut waiting.bytes, &mut piece);
            waiting.writing = piece.len();
            drop(waiting);
            if piece.is_empty() {
                return;
            }
            let written = write_all(&mut file, &piece);
            piece.clear();
            let mut waiting = self.lock();
            waiting.writing = 0;
            if let Err(error) = written {
                (waiting.broken, waiting.failure) = (true, Some(error));
                waiting.bytes.clear();
            }
            drop(waiting);
            self.changed.notify_all();
        }
    }
}

/// Writes all of it, also where another process has made the file one that does not wait.
fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                retry_on_intr(|| poll(&mut [PollFd::new(&*file, PollFlags::OUT)], None))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Output {
    /// Standard output.
    ///
    /// # Errors
    /// No descriptor or no thread for it.
    pub(crate) fn stdout() -> io::Result<Self> {
        Self::new(io::stdout().as_fd().try_clone_to_owned()?.into())
    }

    /// This file.
    ///
    /// # Errors
    /// No thread for it.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writes = shared.clone();
        std::thread::Builder::new().name("output".into()).spawn(move || writes.write(file))?;
        Ok(Self(shared))
    }

    /// Takes as many of the bytes as there is room for, and says how many. What can't be written is taken, and forgotten.
    pub(crate) fn put(&self, bytes: &[u8]) -> usize {
        let mut waiting = self.0.lock();
        if waiting.broken {
            return bytes.len();
        }
        let taken = bytes.len().min(ROOM - waiting.bytes.len() - waiting.writing);
        waiting.bytes.extend_from_slice(&bytes[..taken]);
        drop(waiting);
        self.0.changed.notify_all();
        taken
    }

    /// Bytes that are not written yet.
    pub(crate) fn waiting(&self) -> usize {
        let waiting = self.0.lock();
        waiting.bytes.len() + waiting.writing
    }

    /// Whether nothing more can be written.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.lock().broken
    }

    /// Why nothing more can be written: said once.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        self.0.lock().failure.take()
    }

    /// Waits until all is written, but no longer than that.
    pub(crate) fn settle(&self, patience: Duration) {
        let waits = |waiting: &mut Waiting| waiting.bytes.len() + waiting.writing > 0;
        drop(self.0.changed.wait_timeout_while(self.0.lock(), patience, waits));
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn output() -> (Output, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        (Output::new(std::os::fd::OwnedFd::from(writer).into()).unwrap(), reader)
    }

    #[test]
    fn a_reader_that_stops_costs_room_and_no_time() {
        let (output, mut reader) = output();
        let sent: Vec<u8> = (0..3 * ROOM).map(|i| i.to_le_bytes()[1]).collect();
        let mut taken = 0;
        // A pipe holds a part of the piece that is being written, and none of the room of the rest.
        while let n @ 1.. = output.put(&sent[taken..]) {
            taken += n;
        }
        assert_eq!((taken, output.waiting()), (ROOM, ROOM), "as much as there is room for");
        output.settle(Duration::from_millis(10));
        let mut got = vec![0; ROOM];
        reader.read_exact(&mut got).unwrap();
        output.settle(Duration::from_secs(10));
        assert_eq!((output.waiting(), output.put(&sent[taken..])), (0, ROOM));
        drop(output);
        reader.read_to_end(&mut got).unwrap();
        assert!(got == sent[..2 * ROOM], "{} bytes", got.len());
    }

    #[test]
    fn what_cannot_be_written_is_told_once() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = Output::new(full).unwrap();
        assert_eq!(output.put(b"much"), 4);
        output.settle(Duration::from_secs(10));
        assert_eq!(output.failure().unwrap().kind(), ErrorKind::StorageFull);
        assert!(output.failure().is_none() && output.is_broken());
        assert_eq!((output.put(b"more"), output.waiting()), (4, 0));
    }
}
