//! A process that outlives its parent for a moment: should that be killed, the guard ends the function's DMA, and only then are
//! the pages anybody else's that the function may be writing to.
//!
//! It is a fork that waits at one end of a socket. The other end is closed when the parent ends, however it does. Meanwhile the
//! files of the function's memory lie in the socket, as messages that nobody reads: as long as the guard has the socket, the
//! kernel keeps their pages.
#![expect(unsafe_code, reason = "fork(2), and what its child must do before it waits")]

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::pci::Config;

/// What ps(1) calls it: 15 bytes at most.
const NAME: &std::ffi::CStr = c"bywash-guard";

/// A guard. When it is dropped it ends the function's DMA as well, and has ended by then.
#[derive(Debug)]
pub(super) struct Guard {
    /// Closed before the guard is waited for.
    socket: Option<OwnedFd>,
    process: Option<Pid>,
}

impl Guard {
    /// Starts it for the function with this configuration space.
    pub(super) fn start(config: &Config) -> io::Result<Self> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(kind.0, kind.1, kind.2, None)?;
        // SAFETY: the child has no other threads, whose locks it might wait for: until it ends, it only makes system calls.
        match unsafe { libc::fork() } {
            0 => watch(&theirs, config),
            child if child < 0 => Err(io::Error::last_os_error()),
            child => Ok(Self { socket: Some(ours), process: Pid::from_raw(child) }),
        }
    }

    /// Has the guard keep the pages of a file.
    pub(super) fn keep(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.socket = None;
        let wait = || waitpid(self.process, WaitOptions::empty());
        while self.process.is_some() && matches!(wait(), Err(Errno::INTR)) {}
    }
}

/// What the guard does: it waits until the other end is closed, ends the DMA, and is gone.
fn watch(socket: &OwnedFd, config: &Config) -> ! {
    // What ends the parent by its process group, or at its terminal, must not end the guard first.
    // SAFETY: plain system calls; the set of signals is made by sigfillset before it is read, and the name is a C string.
    unsafe {
        let mut all = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        libc::setsid();
    }
    close_others([socket.as_fd(), config.as_fd()]);
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    // Nothing is asked for: it only ends by what is always told, that the other end is closed.
    while poll(&mut polled, None) == Err(Errno::INTR) {}
    let code = i32::from(config.forbid_dma().is_err());
    // SAFETY: nothing of the parent's is run at this end: no destructor, nothing that is to be done at exit.
    unsafe { libc::_exit(code) }
}

/// Closes all files but two: what the parent had open must end with it.
fn close_others(kept: [BorrowedFd<'_>; 2]) {
    let [a, b] = kept.map(|file| file.as_raw_fd().unsigned_abs());
    let (first, second) = (a.min(b), a.max(b));
    for (from, before) in [(0, first), (first + 1, second), (second + 1, u32::MAX)] {
        if from < before {
            // SAFETY: the child is about to do nothing else; nobody in it uses another file again.
            unsafe { libc::syscall(libc::SYS_close_range, from, before - 1, 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::event::Timespec;

    use super::*;
    use crate::pci::{COMMAND, Device};

    /// A function whose configuration space is a file, with bus mastering on.
    fn config(folder: &std::path::Path) -> (std::path::PathBuf, Config) {
        let directory = folder.join("devices/0000:01:00.0");
        fs::create_dir_all(&directory).unwrap();
        let mut space = [0xff; 64];
        space[usize::try_from(COMMAND).unwrap()..][..2].copy_from_slice(&0x0406_u16.to_le_bytes());
        fs::write(directory.join("config"), space).unwrap();
        let device = Device::all_on(folder).remove(0);
        (directory.join("config"), Config::open(&device).unwrap())
    }

    #[test]
    fn a_guard_ends_dma_and_lets_go_of_the_function() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ours) = config(folder.path());
        assert!(ours.lock().unwrap());
        let guard = Guard::start(&ours).unwrap();
        drop(ours);
        let other = Config::open(&Device::all_on(folder.path()).remove(0)).unwrap();
        assert!(!other.lock().unwrap(), "the guard has it");
        assert_eq!(fs::read(&path).unwrap()[4..6], [6, 4]);
        drop(guard);
        assert_eq!(fs::read(&path).unwrap()[..6], [0xff, 0xff, 0xff, 0xff, 2, 4]);
        assert!(other.lock().unwrap());
    }

    #[test]
    fn a_guard_keeps_files_open() {
        let folder = tempfile::tempdir().unwrap();
        let (_, config) = config(folder.path());
        let guard = Guard::start(&config).unwrap();
        let (reader, writer) = io::pipe().unwrap();
        guard.keep(writer.as_fd()).unwrap();
        drop(writer);
        let mut polled = [PollFd::new(&reader, PollFlags::empty())];
        let ended =
            |polled: &mut [PollFd<'_>]| poll(polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        assert_eq!(ended(&mut polled), 0, "its writing end is open");
        drop(guard);
        assert_eq!(ended(&mut polled), 1);
    }
}
