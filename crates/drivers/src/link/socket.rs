//! The socket's file: which of two processes listens, and what is done about one that was left behind.
//!
//! Whoever finds nobody at the other end of the path listens there. A process that was killed leaves a file that nobody
//! listens at; it is removed. Both happen under a lock on the directory, or two processes that start at once could each
//! remove the other's.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bywash_sys::folder_lock::{FolderLockError, lock_folder};
use rustix::fs::{FileType, Mode, fchmod, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Who may connect: the owner.
const MODE: u32 = 0o600;

/// Connections that wait to be taken.
const BACKLOG: i32 = 8;

/// Which part is ours.
pub(super) enum Part {
    /// Nobody was there: we listen.
    First(Listener),
    /// Somebody listens: a connection to it.
    Second(OwnedFd),
}

/// A socket that listens, and its file, removed when it is dropped if it is still ours.
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    path: PathBuf,
    file: (u64, u64),
}

impl Listener {
    /// Whether whoever opens the path still comes to us.
    pub(super) fn is_reachable(&self) -> bool {
        identity(&self.path).is_some_and(|file| file == self.file)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Without the lock the file stays: the next process to open it finds nobody there and removes it.
        if let Ok(_lock) = lock(&self.path)
            && self.is_reachable()
        {
            let _ = unlink(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    lstat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Connects to whoever listens at `path`, or listens there.
///
/// # Errors
/// In one line what was wrong, why, and what to do.
pub(super) fn meet(path: &Path) -> Result<Part, String> {
    let address = SocketAddrUnix::new(path)
        .map_err(|_| "a socket's path has at most 107 bytes: name a shorter one".to_owned())?;
    let _lock = lock(path)?;
    match lstat(path) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            return Err("a file is there that is no socket: name another path, or remove it".into());
        }
        Ok(_) => {
            let socket = new_socket()?;
            match connect(&socket, &address) {
                Ok(()) => return Ok(Part::Second(socket)),
                // Nobody listens: a process was killed and left it.
                Err(Errno::CONNREFUSED) => {
                    unlink(path).map_err(|errno| {
                        format!("a socket that nobody uses can't be removed: {errno}: remove it, or name another path")
                    })?;
                }
                // Somebody removed it meanwhile.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(no_connection(errno)),
            }
        }
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(format!("can't look at it: {errno}: name a path that can be reached")),
    }
    let socket = new_socket()?;
    let failed = |errno: Errno| match errno {
        Errno::ACCESS | Errno::PERM => {
            format!("no socket can be made there: {errno}: name a directory that you may write to")
        }
        errno => format!("no socket can be made there: {errno}"),
    };
    // Before it has a name: nobody connects in between. The mode of the socket becomes that of its file.
    fchmod(&socket, Mode::from_raw_mode(MODE)).map_err(failed)?;
    bind(&socket, &address).map_err(failed)?;
    listen(&socket, BACKLOG).map_err(failed)?;
    let file = identity(path).ok_or("its socket was removed while it was opened: try again")?;
    Ok(Part::First(Listener { socket, path: path.into(), file }))
}

fn no_connection(errno: Errno) -> String {
    match errno {
        Errno::ACCESS | Errno::PERM => "it belongs to another user: run as that user, or as root".into(),
        Errno::PROTOTYPE => "another program listens there: name another path".into(),
        Errno::AGAIN => "too many processes want to connect: try again".into(),
        errno => format!("can't connect to whoever listens there: {errno}"),
    }
}

/// Whole messages, in order, and an end that is noticed. It does not block.
fn new_socket() -> Result<OwnedFd, String> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| format!("no socket: {errno}"))
}

/// Holds the lock of the path's directory until it is closed.
fn lock(path: &Path) -> Result<OwnedFd, String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    lock_folder(parent).map_err(|error| match error {
        FolderLockError::Open(Errno::NOENT) => {
            format!("there is no directory '{}': make it first", parent.display())
        }
        FolderLockError::Open(Errno::NOTDIR) => {
            format!("'{}' is no directory: name a path in one", parent.display())
        }
        FolderLockError::Open(errno) => format!("can't open the directory '{}': {errno}", parent.display()),
        FolderLockError::Held => {
            format!(
                "another process holds a lock on the directory '{}': name a path in another one",
                parent.display()
            )
        }
        FolderLockError::Lock(errno) => format!("can't lock the directory '{}': {errno}", parent.display()),
    })
}
