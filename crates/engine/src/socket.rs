//! The control socket: a Unix socket on which an instance is asked, one JSON object per line each way.
//!
//! Only the user whose instance it is, and root, are heard. Requests are answered one after the other, as they are whole: who
//! says nothing, or does not listen, keeps nobody waiting, and makes room when there are too many.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bywash_sys::worker::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::answer::answer;
use crate::instance::Handle;
use crate::request::{Answer, Request};

/// Bytes of a request at most.
const REQUEST: usize = 64 << 10;
/// Those who are heard at once. One more takes the place of who has been still for longest.
const CLIENTS: usize = 64;
/// How long one may be still, asking or reading the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an instance may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Why there is no control socket, or no answer by it.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The name cannot be a file's.
    #[error("'{0}' is no name for an instance: use letters, digits, - and _")]
    Name(String),
    /// Another instance has the name.
    #[error("an instance named {0} is running; choose another name (--name)")]
    Taken(String),
    /// The socket can't be made.
    #[error("can't make the control socket {}: {source}", .path.display())]
    Make {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nobody is there.
    #[error("no instance is running at {}: {source}; start one with `bywash serve`, or name it with --name", .path.display())]
    Absent {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not answer as it should.
    #[error("the instance gives no answer: {0}")]
    Silent(String),
}

/// Where the socket of an instance is: in `$XDG_RUNTIME_DIR/bywash`, else in `/run/bywash`.
///
/// # Errors
/// [`SocketError::Name`].
pub fn path(name: &str) -> Result<PathBuf, SocketError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err(SocketError::Name(name.into()));
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("bywash");
    Ok(folder.join(format!("{name}.sock")))
}

/// A control socket that is open.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl ControlSocket {
    /// Opens the socket of an instance of this name.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn open(name: &str) -> Result<Self, SocketError> {
        let path = path(name)?;
        let make = |source| SocketError::Make { path: path.clone(), source };
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(make)?;
        }
        if UnixStream::connect(&path).is_ok() {
            return Err(SocketError::Taken(name.into()));
        }
        // Left behind by one that was killed.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(make(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(make)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(make)?;
        listener.set_nonblocking(true).map_err(make)?;
        Ok(Self { path, listener })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answers what is asked of an instance, on a thread of its own, until `stop` is set.
    ///
    /// # Errors
    /// The kernel gave no thread.
    pub fn serve(self, handle: Handle, stop: Stop) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("control socket".into()).spawn(move || self.run(&handle, &stop))
    }

    fn run(&self, handle: &Handle, stop: &Stop) {
        let mut clients: Vec<Client> = Vec::new();
        while !stop.is_set() {
            let mut fds = vec![
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            fds.extend(clients.iter().map(Client::waits_for));
            let still = clients.iter().map(|client| client.moved).min();
            let patience = still.map(|since| PATIENCE.saturating_sub(since.elapsed()));
            // No number of seconds is too long here.
            let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
            if poll(&mut fds, patience.as_ref()).is_err() {
                continue;
            }
            let ready: Vec<bool> = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut ready = ready.into_iter();
            clients.retain_mut(|client| match ready.next() {
                // Whoever goes away before the answer does not want it.
                Some(true) => client.go_on(handle).is_ok_and(|over| !over),
                _ => client.moved.elapsed() < PATIENCE,
            });
            self.accept(&mut clients);
        }
    }

    fn accept(&self, clients: &mut Vec<Client>) {
        while let Ok((stream, _)) = self.listener.accept() {
            let Ok(client) = Client::new(stream) else { continue };
            if clients.len() >= CLIENTS
                && let Some((stillest, _)) = clients.iter().enumerate().min_by_key(|(_, client)| client.moved)
            {
                clients.remove(stillest);
            }
            clients.push(client);
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Gone already: so much the better.
        let _ = fs::remove_file(&self.path);
    }
}

/// One who asks.
struct Client {
    stream: UnixStream,
    request: Vec<u8>,
    /// The answer, and how much of it was taken.
    answer: Option<(Vec<u8>, usize)>,
    /// When it said or took something last.
    moved: Instant,
}

impl Client {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid;
        let is_heard = peer.is_root() || peer == rustix::process::geteuid();
        let refused = || Answer::Error("only the user who runs the instance may ask it".into());
        let answer = if is_heard { None } else { Some((line(&refused())?, 0)) };
        Ok(Self { stream, request: Vec::new(), answer, moved: Instant::now() })
    }

    fn waits_for(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN })
    }

    /// Reads the request and writes the answer, as far as that goes without waiting; says whether it is over.
    fn go_on(&mut self, handle: &Handle) -> io::Result<bool> {
        loop {
            let moved = match &mut self.answer {
                Some((text, taken)) => (&self.stream).write(&text[*taken..]).map(|n| {
                    *taken += n;
                    *taken == text.len()
                }),
                None => self.read(handle),
            };
            match moved {
                Ok(false) => self.moved = Instant::now(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                over => return over,
            }
        }
    }

    /// Reads on, and answers when the request is whole; says whether there is none.
    fn read(&mut self, handle: &Handle) -> io::Result<bool> {
        let mut piece = [0; 4096];
        let n = (&self.stream).read(&mut piece)?;
        let ends = piece[..n].iter().position(|byte| *byte == b'\n');
        self.request.extend_from_slice(&piece[..ends.unwrap_or(n)]);
        if n == 0 && self.request.is_empty() {
            return Ok(true);
        }
        if n == 0 || ends.is_some() || self.request.len() >= REQUEST {
            let answered = match serde_json::from_slice::<Request>(&self.request) {
                Ok(request) => answer(handle, request),
                Err(error) => Answer::Error(format!("no request: {error}")),
            };
            self.answer = Some((line(&answered)?, 0));
        }
        Ok(false)
    }
}

/// One JSON object, and the end of its line.
fn line(of: &impl serde::Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(of)?;
    text.push(b'\n');
    Ok(text)
}

/// Asks an instance by its name.
///
/// # Errors
/// [`SocketError`]. What the instance refuses is an [`Answer`].
pub fn ask(name: &str, request: &Request) -> Result<Answer, SocketError> {
    let path = path(name)?;
    let mut stream =
        UnixStream::connect(&path).map_err(|source| SocketError::Absent { path: path.clone(), source })?;
    let silent = |error: &dyn std::fmt::Display| SocketError::Silent(error.to_string());
    stream.set_read_timeout(Some(ANSWER)).map_err(|error| silent(&error))?;
    let asked = line(request).map_err(|error| silent(&error))?;
    stream.write_all(&asked).map_err(|error| silent(&error))?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).map_err(|error| silent(&error))?;
    serde_json::from_slice(&text).map_err(|error| silent(&error))
}
