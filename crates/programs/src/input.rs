//! Standard input, read by a thread of its own, which wakes whoever sends it on: one that looked at times would send no more
//! than what waits at each, however fast the rest is.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

/// Bytes read at once, and pieces that wait to be sent.
const PIECE: usize = 64 << 10;
const PIECES: usize = 16;

/// What is read from. Dropped, nothing more is read than what is being waited for.
#[derive(Debug)]
pub(crate) struct Input {
    pieces: Receiver<io::Result<Vec<u8>>>,
    /// There is a piece, or the end, that nobody has looked for yet.
    news: Arc<AtomicBool>,
}

/// What there is of it.
#[derive(Debug)]
pub(crate) enum Piece {
    Read(Vec<u8>),
    /// Nothing more can be read: that was not its end.
    Failed(io::Error),
    /// Nothing yet.
    None,
    /// Nothing more.
    End,
}

impl Input {
    /// Standard input. `wake` is called when there is something.
    ///
    /// # Errors
    /// No descriptor or no thread for it.
    pub(crate) fn stdin(wake: impl Fn() + Send + 'static) -> io::Result<Self> {
        Self::new(io::stdin().as_fd().try_clone_to_owned()?.into(), wake)
    }

    /// This file.
    ///
    /// # Errors
    /// No thread for it.
    pub(crate) fn new(mut file: File, wake: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (tell, pieces) = sync_channel(PIECES);
        let news = Arc::new(AtomicBool::new(false));
        let told = news.clone();
        // It ends with its input, or when nobody listens any more.
        let read_on = move || {
            let mut buffer = vec![0; PIECE];
            let say = || {
                told.store(true, Ordering::Release);
                wake();
            };
            loop {
                let piece = match read(&mut file, &mut buffer) {
                    Ok(0) => break,
                    read => read.map(|n| buffer[..n].to_vec()),
                };
                let is_last = piece.is_err();
                if tell.send(piece).is_err() {
                    return;
                }
                if is_last {
                    break;
                }
                say();
            }
            drop(tell);
            say();
        };
        std::thread::Builder::new().name("input".into()).spawn(read_on)?;
        Ok(Self { pieces, news })
    }

    /// Whether there is something that [`Self::take`] has not been asked for.
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    /// The next piece. Until it says [`Piece::None`] there may be more.
    pub(crate) fn take(&self) -> Piece {
        // First: what comes after the look is news again.
        self.news.swap(false, Ordering::AcqRel);
        match self.pieces.try_recv() {
            Ok(Ok(piece)) => Piece::Read(piece),
            Ok(Err(error)) => Piece::Failed(error),
            Err(TryRecvError::Empty) => Piece::None,
            Err(TryRecvError::Disconnected) => Piece::End,
        }
    }
}

/// Reads what there is, also where another process has made the file one that does not wait.
fn read(input: &mut (impl Read + AsFd), buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                retry_on_intr(|| poll(&mut [PollFd::new(&*input, PollFlags::IN)], None))?;
            }
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn input(tell: Sender<()>) -> (Input, io::PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        let wake = move || {
            let _ = tell.send(());
        };
        (Input::new(OwnedFd::from(reader).into(), wake).unwrap(), writer)
    }

    #[test]
    fn who_waits_is_woken_for_each_piece_and_for_the_end() {
        let (tell, woken) = channel();
        let (input, mut writer) = input(tell);
        assert!(!input.has_news() && matches!(input.take(), Piece::None));
        for text in [&b"first"[..], b"second"] {
            writer.write_all(text).unwrap();
            woken.recv_timeout(PATIENCE).unwrap();
            assert!(input.has_news());
            assert!(matches!(input.take(), Piece::Read(piece) if piece == text));
            assert!(matches!(input.take(), Piece::None) && !input.has_news());
        }
        drop(writer);
        woken.recv_timeout(PATIENCE).unwrap();
        assert!(input.has_news() && matches!(input.take(), Piece::End));
    }

    #[test]
    fn what_cannot_be_read_is_not_the_end() {
        let (tell, woken) = channel();
        let folder = File::open("/").unwrap();
        let input = Input::new(folder, move || _ = tell.send(())).unwrap();
        woken.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(input.take(), Piece::Failed(error) if error.kind() == ErrorKind::IsADirectory));
        assert!(matches!(input.take(), Piece::End));
    }

    #[test]
    fn input_that_does_not_wait_is_waited_for() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let mut buffer = [0; 16];
        std::thread::scope(|scope| {
            let read = scope.spawn(|| read(&mut reader, &mut buffer).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!read.is_finished());
            writer.write_all(b"typed").unwrap();
            assert_eq!(read.join().unwrap(), 5);
        });
        drop(writer);
        assert_eq!(read(&mut reader, &mut buffer).unwrap(), 0, "the end");
    }
}
