//! The thread that holds the socket: it greets whoever comes, notices who goes, and tells the queues.
//!
//! It sleeps nearly always. When the other end goes, whoever listens goes on listening, and whoever does not either finds
//! the other end again or listens itself: so either side can be restarted, in any order.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use bywash_sys::worker::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};

use super::handshake::{self, Terms};
use super::layout::Layout;
use super::session::{Agreement, Alarm, Counts, News, QueueShared};
use super::socket::{Listener, Part, meet};

/// How often one who listens looks whether the socket's file is still there.
const LOOK: Duration = Duration::from_secs(1);

/// How long to wait after what went wrong, before it is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// A running keeper; dropped, it ends, and removes the socket's file if that is its own.
pub(super) struct Keeper {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts with `part`.
    pub(super) fn start(keeping: Keeping, stop: Stop, part: Start) -> io::Result<Self> {
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || keeping.keep(part))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            // It has no result; that it panicked was printed.
            let _ = thread.join();
        }
    }
}

/// How it begins.
pub(super) enum Start {
    /// We listen.
    Listening(Listener),
    /// We are connected, and the queues have their session.
    Connected(OwnedFd, Alarm),
}

/// What it needs to know.
pub(super) struct Keeping {
    pub(super) path: PathBuf,
    pub(super) terms: Terms,
    pub(super) layout: Layout,
    /// Whether we send.
    pub(super) sends: bool,
    pub(super) queues: Vec<Arc<QueueShared>>,
    pub(super) counts: Arc<Counts>,
    pub(super) stop: Stop,
}

/// A connection to the other end.
struct Connection {
    socket: OwnedFd,
    alarm: Alarm,
}

impl Keeping {
    fn keep(self, start: Start) {
        let (mut listener, mut connection) = match start {
            Start::Listening(listener) => (Some(listener), None),
            Start::Connected(socket, alarm) => (None, Some(Connection { socket, alarm })),
        };
        while !self.stop.is_set() {
            if let Some(held) = connection.take() {
                self.hold(&held, listener.as_ref());
                continue;
            }
            match listener.take_if(|listener| !listener.is_reachable()) {
                Some(lost) => drop(lost),
                None => {
                    if let Some(listener) = &listener {
                        connection = self.listen(listener);
                        continue;
                    }
                }
            }
            match meet(&self.path) {
                Ok(Part::First(first)) => listener = Some(first),
                Ok(Part::Second(socket)) => {
                    match handshake::visit(&socket, self.terms, self.stop.as_fd()) {
                        Ok(agreement) => connection = self.begin(socket, &agreement),
                        // The other end is somebody else's now, or broken: perhaps not for ever.
                        Err(_) => self.pause(),
                    }
                }
                Err(_) => self.pause(),
            }
        }
    }

    /// Waits for somebody to connect, for a while.
    fn listen(&self, listener: &Listener) -> Option<Connection> {
        if !self.wait(&[listener.socket.as_fd()], LOOK)[0] {
            return None;
        }
        let socket = self.accept(listener)?;
        match handshake::host(&socket, self.terms, self.layout, self.stop.as_fd()) {
            Ok(agreement) => self.begin(socket, &agreement),
            Err(_) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Hands a session out.
    fn begin(&self, socket: OwnedFd, agreement: &Agreement) -> Option<Connection> {
        match self.hand_out(agreement) {
            Ok(()) => Some(Connection { socket, alarm: agreement.alarm.clone() }),
            // There is no reason for it; if there is one all the same, it is not tried without end.
            Err(_) => {
                self.pause();
                None
            }
        }
    }

    /// Gives each queue its part of a session.
    pub(super) fn hand_out(&self, agreement: &Agreement) -> io::Result<()> {
        let numbers = 0..self.queues.len();
        let halves = numbers.map(|number| agreement.halves(number)).collect::<io::Result<Vec<_>>>()?;
        for (queue, (rx, tx)) in self.queues.iter().zip(halves) {
            // A half that nobody turns would keep them.
            if self.terms.receives {
                queue.rx.post(News::Session(rx));
            }
            if self.sends {
                queue.tx.post(News::Session(tx));
            }
            queue.wake();
        }
        self.counts.connections.fetch_add(1, Ordering::Relaxed);
        self.counts.connected.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Holds a connection until it ends, and sends others away meanwhile.
    fn hold(&self, held: &Connection, listener: Option<&Listener>) {
        loop {
            let mut fds = vec![held.socket.as_fd(), held.alarm.as_fd()];
            fds.extend(listener.map(|listener| listener.socket.as_fd()));
            let ready = self.wait(&fds, Duration::MAX);
            if self.stop.is_set() {
                return;
            }
            // After the greetings nothing is said: what can be read is the end, or nonsense.
            let gone = ready[0]
                && !matches!(recv(&held.socket, &mut [0_u8; 1], RecvFlags::DONTWAIT), Err(Errno::AGAIN));
            if gone || held.alarm.is_set() {
                break;
            }
            if ready.get(2) == Some(&true)
                && let Some(other) = listener.and_then(|listener| self.accept(listener))
            {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                handshake::send_away(&other, handshake::process(&held.socket));
            }
        }
        self.counts.connected.store(false, Ordering::Relaxed);
        for queue in &self.queues {
            queue.rx.post(News::Gone);
            queue.tx.post(News::Gone);
            queue.wake();
        }
        if held.alarm.is_set() {
            self.counts.faults.fetch_add(1, Ordering::Relaxed);
            self.pause();
        }
    }

    /// Whoever has connected may be gone again. Who can't be taken, as no descriptor is free, waits: he is looked for again after a
    /// while, and not without end.
    fn accept(&self, listener: &Listener) -> Option<OwnedFd> {
        match accept_with(&listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Some(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            Err(_) => {
                self.pause();
                None
            }
        }
    }

    fn pause(&self) {
        self.wait(&[], PAUSE);
    }

    /// Which of `fds` can be read, at the latest after so long; none when it is time to stop.
    fn wait(&self, fds: &[BorrowedFd<'_>], timeout: Duration) -> Vec<bool> {
        let all = fds.iter().copied().chain([self.stop.as_fd()]);
        let mut polled: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = i64::try_from(timeout.as_nanos())
            .ok()
            .map(|n| Timespec { tv_sec: n / 1_000_000_000, tv_nsec: n % 1_000_000_000 });
        // An error means that nothing is known: nothing is ready then.
        let _ = poll(&mut polled, timeout.as_ref());
        polled[..fds.len()].iter().map(|fd| !fd.revents().is_empty()).collect()
    }
}
