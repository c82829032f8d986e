//! The control socket: a Unix socket on which an instance is asked, one JSON object per line each way.
//!
//! Only the user whose instance it is, and root, are heard. Requests are answered one after the other, as they are whole: who
//! says nothing, or does not listen, keeps nobody waiting for long, and makes room when there are too many.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bywash_sys::folder_lock::{FolderLockError, lock_folder};
use bywash_sys::worker::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::answer::answer;
use crate::instance::Handle;
use crate::request::{Answer, Request};

/// Bytes of a request at most.
const REQUEST: usize = 64 << 10;
/// Bytes that are read of what is longer, before its sender is told.
const TOO_LONG: usize = 1 << 20;
/// Those who are heard at once.
const CLIENTS: usize = 256;
/// How long one may be still, asking or reading the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same where there are too many: one more takes the place of who has been still for longest, or waits for it.
const GRACE: Duration = Duration::from_secs(1);
/// How soon those who wait are let in again when the kernel did not let them: we may be out of descriptors.
const AGAIN: Duration = Duration::from_millis(100);
/// How long an instance may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Bytes of a name at most.
const LONGEST: usize = 64;

/// What to do where the socket can't be made, if that is known.
fn cure(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::PermissionDenied => "; run it as root, or set XDG_RUNTIME_DIR to a folder of your own",
        _ => "",
    }
}

/// Why there is no control socket, or no answer by it.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The name cannot be a file's.
    #[error("'{0}' is no name for an instance: use letters, digits, - and _, {LONGEST} of them at most")]
    Name(String),
    /// Another instance has the name.
    #[error("an instance named {0} is running; choose another name (--name)")]
    Taken(String),
    /// The socket can't be made.
    #[error("can't make the control socket {}: {source}{}", .path.display(), cure(.source))]
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
    /// It is somebody else's.
    #[error("{} is another user's, or in a folder of another user ({source}): whoever runs an instance may ask it, and root", .path.display())]
    Forbidden {
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
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(plain) {
        return Err(SocketError::Name(name.into()));
    }
    Ok(folder().join(format!("{name}.sock")))
}

/// Where the sockets of all instances are.
fn folder() -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    folder.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("bywash")
}

/// Removes the sockets of instances that were killed: those that nobody listens on. Says of each in a sentence that it is gone, or
/// could not be removed.
///
/// # Errors
/// The folder can't be looked at.
pub fn remove_abandoned() -> io::Result<(Vec<String>, Vec<String>)> {
    remove_abandoned_in(&folder())
}

fn remove_abandoned_in(folder: &Path) -> io::Result<(Vec<String>, Vec<String>)> {
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    if !folder.exists() {
        return Ok((removed, failed));
    }
    // One that begins must not find its own socket gone.
    let _lock = locked(folder)?;
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let is_abandoned = path.extension().is_some_and(|end| end == "sock")
            && try_connect(&path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            && fs::symlink_metadata(&path).is_ok_and(|file| file.file_type().is_socket());
        if is_abandoned {
            match fs::remove_file(&path) {
                Ok(()) => {
                    removed.push(format!("{}: nobody listened there, so it was removed", path.display()))
                }
                Err(error) => failed.push(format!("{}: nobody listens there: {error}", path.display())),
            }
        }
    }
    Ok((removed, failed))
}

/// A control socket that is open.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
    /// Its file. Another one may have the name by the time it ends.
    file: FileId,
}

/// Which file it is: its device and inode.
type FileId = (u64, u64);

impl ControlSocket {
    /// Opens the socket of an instance of this name.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn open(name: &str) -> Result<Self, SocketError> {
        let path = path(name)?;
        Self::open_at(&path, name)
    }

    fn open_at(path: &Path, name: &str) -> Result<Self, SocketError> {
        let make = |source| SocketError::Make { path: path.into(), source };
        // Two that begin at once must not both find the file of one that was killed: the second would remove the first's.
        let lock = path.parent().map(|folder| {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            locked(folder)
        });
        let lock = lock.transpose().map_err(make)?;
        match try_connect(path) {
            Ok(()) => return Err(SocketError::Taken(name.into())),
            // Left behind by one that was killed.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(make)?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // Somebody may well listen there: it may be us who are out of descriptors.
            Err(error) => return Err(make(error)),
        }
        let listener = UnixListener::bind(path).map_err(make)?;
        let file = file_at(path).map_err(make)?;
        drop(lock);
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(make)?;
        listener.set_nonblocking(true).map_err(make)?;
        Ok(Self { path: path.into(), listener, file })
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
        std::thread::Builder::new().name("control socket".into()).spawn(move || {
            self.run(&|request| answer(&handle, request), &stop);
        })
    }

    /// `does` what is asked.
    fn run(&self, does: &dyn Fn(Request) -> Answer, stop: &Stop) {
        let mut clients: Vec<Client> = Vec::new();
        let mut lets_in_at = None;
        while !stop.is_set() {
            let now = Instant::now();
            let still = clients.iter().map(|client| client.moved).min();
            let has_room_at = still.filter(|_| clients.len() >= CLIENTS).map(|since| since + GRACE);
            let closed = [has_room_at, lets_in_at].into_iter().flatten().filter(|at| *at > now).max();
            let mut fds = vec![PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
            fds.extend(clients.iter().map(Client::waits_for));
            // Polled while nobody is let in, it would tell of them again and again.
            fds.extend(closed.is_none().then(|| PollFd::new(&self.listener, PollFlags::IN)));
            let until = still.map(|since| since + PATIENCE).into_iter().chain(closed).min();
            let patience = until.map(|until| until.saturating_duration_since(now));
            // No number of seconds is too long here.
            let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
            if poll(&mut fds, patience.as_ref()).is_err() {
                continue;
            }
            let mut ready =
                fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
            clients.retain_mut(|client| match ready.next() {
                Some(true) => client.go_on(does).is_ok_and(|over| !over),
                _ => client.moved.elapsed() < PATIENCE,
            });
            if closed.is_none() {
                lets_in_at = self.accept(&mut clients).err().map(|_| Instant::now() + AGAIN);
            }
        }
    }

    /// Lets those in who wait, as far as there is room.
    fn accept(&self, clients: &mut Vec<Client>) -> io::Result<()> {
        loop {
            let stillest = clients.iter().enumerate().min_by_key(|(_, client)| client.moved);
            let stillest = stillest.filter(|_| clients.len() >= CLIENTS);
            if stillest.is_some_and(|(_, client)| client.moved.elapsed() < GRACE) {
                return Ok(());
            }
            let leaves = stillest.map(|(number, _)| number);
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Some(number) = leaves {
                        clients.remove(number);
                    }
                    clients.extend(Client::new(stream).ok());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Gone already: so much the better.
        if file_at(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_at(path: &Path) -> io::Result<FileId> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Whether somebody listens, without waiting for one who takes nobody in: that is one who listens, too.
fn try_connect(path: &Path) -> io::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::AGAIN) => Ok(()),
        done => Ok(done?),
    }
}

/// A folder's lock until it is closed. Some file systems have none.
fn locked(folder: &Path) -> io::Result<Option<OwnedFd>> {
    match lock_folder(folder) {
        Ok(lock) => Ok(Some(lock)),
        Err(FolderLockError::Lock(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS)) => Ok(None),
        Err(FolderLockError::Open(errno) | FolderLockError::Lock(errno)) => Err(errno.into()),
        Err(FolderLockError::Held) => Err(io::Error::other("another process holds a lock on its folder")),
    }
}

/// One who asks.
struct Client {
    stream: UnixStream,
    is_heard: bool,
    /// The request, and how many bytes of it have come: more than are kept where it is too long.
    request: Vec<u8>,
    said: usize,
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
        Ok(Self { stream, is_heard, request: Vec::new(), said: 0, answer: None, moved: Instant::now() })
    }

    fn waits_for(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN })
    }

    /// Reads the request and writes the answer, as far as that goes without waiting; says whether it is over.
    fn go_on(&mut self, does: &dyn Fn(Request) -> Answer) -> io::Result<bool> {
        loop {
            let moved = match &mut self.answer {
                Some((text, taken)) => (&self.stream).write(&text[*taken..]).map(|n| {
                    *taken += n;
                    *taken == text.len()
                }),
                None => self.read(does),
            };
            match moved {
                Ok(false) => self.moved = Instant::now(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                over => return over,
            }
        }
    }

    /// Reads on, and answers when the request is whole; says whether there is none. What will be refused is read as well: the kernel
    /// resets a connection that ends with something unread, and its peer would have no answer.
    ///
    /// Whoever has gone by then has given up, and told that it failed: nothing is done of what it left behind.
    fn read(&mut self, does: &dyn Fn(Request) -> Answer) -> io::Result<bool> {
        let mut piece = [0; 4096];
        let n = (&self.stream).read(&mut piece)?;
        let ends = piece[..n].iter().position(|byte| *byte == b'\n');
        let piece = &piece[..ends.unwrap_or(n)];
        self.said += piece.len();
        if self.said <= REQUEST {
            self.request.extend_from_slice(piece);
        }
        if n == 0 && self.said == 0 {
            return Ok(true);
        }
        if n == 0 || ends.is_some() || self.said >= TOO_LONG {
            if self.has_gone()? {
                return Ok(true);
            }
            self.answer = Some((line(&self.answered(does))?, 0));
        }
        Ok(false)
    }

    /// Whether its end is closed: one who only says no more still listens.
    fn has_gone(&self) -> io::Result<bool> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // That it has gone is told unasked.
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        retry_on_intr(|| poll(&mut fds, Some(&none)))?;
        Ok(fds[0].revents().contains(PollFlags::HUP))
    }

    fn answered(&self, does: &dyn Fn(Request) -> Answer) -> Answer {
        if !self.is_heard {
            return Answer::Error("only the user who runs the instance may ask it".into());
        }
        if self.said > REQUEST {
            return Answer::Error(format!("a request has {REQUEST} bytes at most"));
        }
        match serde_json::from_slice::<Request>(&self.request) {
            Ok(request) => does(request),
            Err(error) => Answer::Error(format!("no request: {error}")),
        }
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
    let mut stream = UnixStream::connect(&path).map_err(|source| unreached(path, source))?;
    let silent = |error: &dyn std::fmt::Display| SocketError::Silent(error.to_string());
    stream.set_read_timeout(Some(ANSWER)).map_err(|error| silent(&error))?;
    let asked = line(request).map_err(|error| silent(&error))?;
    stream.write_all(&asked).map_err(|error| silent(&error))?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => {
            SocketError::Silent(format!("none in {ANSWER:?}: it is starting, or has too much to do"))
        }
        _ => silent(&error),
    })?;
    if text.is_empty() {
        return Err(SocketError::Silent("it has ended, or too many ask it".into()));
    }
    serde_json::from_slice(&text).map_err(|error| silent(&error))
}

/// What an error on the way to an instance says of it.
fn unreached(path: PathBuf, source: io::Error) -> SocketError {
    match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => SocketError::Absent { path, source },
        ErrorKind::PermissionDenied => SocketError::Forbidden { path, source },
        // It may well be running: the one who asks may be out of descriptors.
        _ => SocketError::Silent(format!("{}: {source}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(_: Request) -> Answer {
        Answer::Ok("done".into())
    }

    fn heard(stream: &mut UnixStream) -> String {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn more_askers_at_once_than_are_heard_at_once_are_all_answered() {
        let path = left_behind("askers");
        let stop = Stop::new().unwrap();
        let socket = ControlSocket::open_at(&path, "askers").unwrap();
        let ends = stop.clone();
        let thread = std::thread::spawn(move || socket.run(&done, &ends));
        let askers = (0..CLIENTS + 44).map(|_| UnixStream::connect(&path).unwrap());
        let mut askers: Vec<UnixStream> = askers.collect();
        for asker in askers.iter_mut().rev() {
            asker.write_all(b"{\"request\":\"stats\"}\n").unwrap();
        }
        for asker in &mut askers {
            assert_eq!(heard(asker), "{\"ok\":\"done\"}\n");
        }
        stop.set();
        thread.join().unwrap();
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_asked_by_one_who_has_gone_is_not_done() {
        let path = left_behind("gone");
        let stop = Stop::new().unwrap();
        let socket = ControlSocket::open_at(&path, "gone").unwrap();
        let asked = std::cell::RefCell::new(Vec::new());
        let asker = |request: &[u8]| {
            let mut asker = UnixStream::connect(&path).unwrap();
            asker.write_all(request).unwrap();
            asker
        };
        // Before there is anybody to hear them; they are heard in this order.
        drop(asker(b"{\"request\":\"stats\"}\n"));
        drop(asker(b"{\"request\":\"socket-summary\"}"));
        let mut stays = asker(b"{\"request\":\"routes\"}");
        stays.shutdown(std::net::Shutdown::Write).unwrap();
        let ends = stop.clone();
        let thread = std::thread::spawn(move || {
            let heard = heard(&mut stays);
            ends.set();
            heard
        });
        let does = |request| {
            asked.borrow_mut().push(request);
            Answer::Ok("done".into())
        };
        socket.run(&does, &stop);
        assert_eq!(thread.join().unwrap(), "{\"ok\":\"done\"}\n");
        assert_eq!(asked.into_inner(), [Request::Routes { interface: None }]);
        drop(socket);
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    /// The path of a socket in a folder of its own, and what is there once its instance was killed.
    fn left_behind(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("bywash-test-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("x.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        path
    }

    #[test]
    fn of_several_that_begin_at_once_one_has_the_name() {
        for _ in 0..50 {
            let path = left_behind("at-once");
            let opened: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> =
                    (0..8).map(|_| scope.spawn(|| ControlSocket::open_at(&path, "x"))).collect();
                all.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let (first, others): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
            assert_eq!((first.len(), others.len()), (1, 7));
            assert!(others.iter().all(|error| matches!(error, Err(SocketError::Taken(_)))), "{others:?}");
            UnixStream::connect(&path).unwrap();
            drop(first);
            assert!(!path.exists());
            fs::remove_dir(path.parent().unwrap()).unwrap();
        }
    }

    #[test]
    fn sockets_are_removed_that_nobody_listens_on_and_no_others() {
        let path = left_behind("abandoned");
        let folder = path.parent().unwrap();
        let [lives, file, other] = ["lives.sock", "file.sock", "other"].map(|name| folder.join(name));
        let living = ControlSocket::open_at(&lives, "lives").unwrap();
        fs::write(&file, "no socket").unwrap();
        drop(UnixListener::bind(&other).unwrap());
        let (removed, failed) = remove_abandoned_in(folder).unwrap();
        assert_eq!((removed.len(), failed.len()), (1, 0), "{removed:?}");
        assert!(removed[0].starts_with(&path.display().to_string()), "{removed:?}");
        assert!(!path.exists() && lives.exists() && file.exists() && other.exists());
        assert_eq!(remove_abandoned_in(folder).unwrap(), (vec![], vec![]));
        drop(living);
        fs::remove_dir_all(folder).unwrap();
        assert_eq!(remove_abandoned_in(folder).unwrap(), (vec![], vec![]), "there was never one");
    }

    #[test]
    fn only_its_own_file_is_taken_away() {
        let path = left_behind("own-file");
        let first = ControlSocket::open_at(&path, "x").unwrap();
        fs::remove_file(&path).unwrap();
        let second = ControlSocket::open_at(&path, "x").unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
        drop(second);
        assert!(!path.exists());
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_folder_that_stays_locked_is_told() {
        let path = left_behind("locked");
        let _lock = locked(path.parent().unwrap()).unwrap();
        let why = ControlSocket::open_at(&path, "x").unwrap_err().to_string();
        assert!(why.ends_with("another process holds a lock on its folder"), "{why}");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn only_where_nobody_listens_there_is_no_instance() {
        for (errno, says) in [
            (Errno::NOENT, "no instance is running at /run/x.sock: No such file"),
            (Errno::CONNREFUSED, "no instance is running at /run/x.sock: Connection refused"),
            (
                Errno::ACCESS,
                "/run/x.sock is another user's, or in a folder of another user (Permission denied",
            ),
            (Errno::MFILE, "the instance gives no answer: /run/x.sock: Too many open files"),
        ] {
            let told = unreached("/run/x.sock".into(), errno.into()).to_string();
            assert!(told.starts_with(says), "{told}");
        }
    }

    #[test]
    fn who_is_refused_hears_why() {
        let long = format!("{}\n", "[".repeat(REQUEST + 1));
        for (is_heard, request, why) in [
            (false, "{\"request\":\"stats\"}\n", "only the user who runs the instance may ask it"),
            (true, &*long, "a request has 65536 bytes at most"),
            (true, &"[".repeat(TOO_LONG), "a request has 65536 bytes at most"),
            (true, "[1\n", "no request: "),
        ] {
            let (stream, mut peer) = UnixStream::pair().unwrap();
            let mut client = Client { is_heard, ..Client::new(stream).unwrap() };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !client.go_on(&done).unwrap() {
                        std::thread::yield_now();
                    }
                    drop(client);
                });
                peer.write_all(request.as_bytes()).unwrap();
                let answer = heard(&mut peer);
                assert!(answer.starts_with(&format!("{{\"error\":\"{why}")), "{answer}");
            });
        }
    }
}
