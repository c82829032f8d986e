//! The control socket: a Unix socket on which an instance is asked, one JSON object per line each way.
//!
//! Only the user whose instance it is, and root, are heard. Requests are answered one after the other: who says nothing,
//! or does not listen, keeps the others waiting for a second and no longer.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use bywash_sys::worker::Stop;
use rustix::event::{PollFd, PollFlags, poll};

use crate::answer::answer;
use crate::instance::Handle;
use crate::request::{Answer, Request};

/// Bytes of a request at most.
const REQUEST: u64 = 64 << 10;
/// How long one who asks may take to do so, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(1);
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
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(make(error)),
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
        while !stop.is_set() {
            let mut fds = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            ];
            if poll(&mut fds, None).is_err() {
                continue;
            }
            if let Ok((stream, _)) = self.listener.accept() {
                // Whoever goes away before the answer does not want it.
                let _ = attend(&stream, handle);
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Gone already: so much the better.
        let _ = fs::remove_file(&self.path);
    }
}

/// Answers the requests of one connection.
fn attend(stream: &UnixStream, handle: &Handle) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        return write(stream, &Answer::Error("only the user who runs the instance may ask it".into()));
    }
    let mut line = Vec::new();
    BufReader::new(stream.take(REQUEST)).read_until(b'\n', &mut line)?;
    let answered = match serde_json::from_slice::<Request>(&line) {
        Ok(request) => answer(handle, request),
        Err(error) => Answer::Error(format!("no request: {error}")),
    };
    write(stream, &answered)
}

fn write(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    stream.write_all(&text)
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
    let mut line = serde_json::to_vec(request).map_err(|error| silent(&error))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(|error| silent(&error))?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).map_err(|error| silent(&error))?;
    serde_json::from_slice(&text).map_err(|error| silent(&error))
}
