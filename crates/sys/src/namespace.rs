//! Network namespaces without a name.
//!
//! A namespace of ours is held by a file descriptor and nothing else: when the process ends, however it ends, the
//! kernel deletes the namespace and every interface in it. There is nothing to clean up and no name to clash.

#![expect(unsafe_code, reason = "unshare(2), and setns(2) between fork and exec")]

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Why a network namespace could not be used.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// It could not be made.
    #[error("can't make a network namespace: {errno}{}", right(errno))]
    Make {
        /// The error number.
        errno: Errno,
    },
    /// It could not be entered.
    #[error("can't enter a network namespace: {errno}{}", right(errno))]
    Enter {
        /// The error number.
        errno: Errno,
    },
    /// No file descriptor of it could be had.
    #[error("can't open a network namespace: {0}")]
    Open(std::io::Error),
    /// No thread could be started.
    #[error("can't start a thread: {0}")]
    Thread(std::io::Error),
}

/// What is missing, when it is a right.
fn right(errno: &Errno) -> &'static str {
    if *errno == Errno::PERM { ": it needs root or CAP_SYS_ADMIN" } else { "" }
}

/// A network namespace, held open.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Makes a namespace. It has a loopback interface that is down, and nothing else.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or when there are too many.
    pub fn new() -> Result<Self, NamespaceError> {
        // Only the helper thread moves; it ends here, the namespace stays open by its file.
        on_a_thread(|| {
            // SAFETY: CLONE_NEWNET unshares no memory, files or signal handlers, only which interfaces this thread
            // sees; so no descriptor of any thread becomes invalid.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|errno| NamespaceError::Make { errno })?;
            Self::current()
        })?
    }

    /// The calling thread's namespace.
    ///
    /// # Errors
    /// When `/proc` is not there, or this process has too many files open.
    pub fn current() -> Result<Self, NamespaceError> {
        let file = File::open("/proc/thread-self/ns/net").map_err(NamespaceError::Open)?;
        Ok(Self { file })
    }

    /// Runs `work` inside, on a thread of its own, and returns what it returned. Sockets opened there stay of this
    /// namespace wherever they go. Panics go through.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN; `work` did not run.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        on_a_thread(|| {
            move_into_link_name_space(self.fd(), Some(LinkNameSpaceType::Network))
                .map_err(|errno| NamespaceError::Enter { errno })?;
            Ok(work())
        })?
    }

    /// A program that will start inside. It sees the interfaces of this namespace everywhere but in `/sys`, which
    /// shows those of the namespace it was mounted in.
    ///
    /// # Errors
    /// When this process has too many files open.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command, NamespaceError> {
        let fd: OwnedFd = self.file.try_clone().map_err(NamespaceError::Open)?.into();
        let mut command = Command::new(program);
        // SAFETY: between fork and exec the closure makes one system call by rustix, which allocates nothing and
        // takes no lock; the descriptor is owned by the closure and so open for as long as the command.
        unsafe {
            command.pre_exec(move || {
                Ok(move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))?)
            });
        }
        Ok(command)
    }

    /// Its file descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Its number: what `readlink /proc/PID/ns/net` shows in brackets.
    ///
    /// # Errors
    /// Never in practice: fstat(2) on an open file.
    pub fn number(&self) -> Result<u64, NamespaceError> {
        Ok(self.file.metadata().map_err(NamespaceError::Open)?.ino())
    }
}

/// A thread's namespace is its own: a helper can move without moving the caller.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
    thread::scope(|scope| {
        // Tests are known by their thread's name.
        let builder = thread::Builder::new().name(thread::current().name().unwrap_or("namespace").to_owned());
        let thread = builder.spawn_scoped(scope, work).map_err(NamespaceError::Thread)?;
        thread.join().map_or_else(|panic| std::panic::resume_unwind(panic), Ok)
    })
}
