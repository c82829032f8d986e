//! TAP interfaces: Ethernet interfaces of the kernel whose other end is a file of ours (`/dev/net/tun`).
//!
//! Never persistent: an interface that [`Tap::create`] made is removed by the kernel when its last file is closed,
//! however the process ends. One read or write is one packet, with a [`VirtioHeaderMergeable`] in front; there is no
//! call for several. Facts: `Documentation/networking/tuntap.rst`, `linux/if_tun.h`.

#![expect(unsafe_code, reason = "ioctl(2) takes a struct or a number by its request")]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::virtio_header::VirtioHeaderMergeable;

/// The most queues of one interface (`MAX_TAP_QUEUES`).
pub const MAX_QUEUES: u16 = 256;

const DEVICE: &str = "/dev/net/tun";

/// Why there is no TAP interface.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The device could not be opened.
    #[error("can't open {DEVICE}: {}{}", .0, device_cure(*.0))]
    Device(Errno),
    /// There is an interface of that name.
    #[error("there is an interface '{0}' already")]
    Exists(String),
    /// It may not be made or attached to.
    #[error("making a TAP interface needs root or CAP_NET_ADMIN; one that exists, the right of its owner")]
    Right,
    /// Another program has it.
    #[error("'{0}' is in use by another program, or its queues are all taken")]
    Busy(String),
    /// The name is of another sort of interface, or it was made with another number of queues in mind.
    #[error(
        "the interface '{0}' is not a TAP interface, or it was made {1} several queues (multi_queue): a name that no \
         interface has yet makes a new one; to use a NIC or a veth, name it as xdp:{0} or packet:{0}"
    )]
    Mismatch(String, &'static str),
    /// The kernel refused for another reason.
    #[error("can't {what}: {errno}")]
    Refused {
        /// What was asked for.
        what: String,
        /// The error number.
        errno: Errno,
    },
}

fn device_cure(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            ": load the kernel module tun (modprobe tun), or give the container this device"
        }
        Errno::ACCESS | Errno::PERM => ": it needs root or the right to write to this file",
        _ => "",
    }
}

/// One queue of a TAP interface.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
}

impl Tap {
    /// Makes an interface, which is down, and is its first queue. It is of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`TunError::Exists`] when there is one of that name.
    pub fn create(name: &str, multi_queue: bool) -> Result<Self, TunError> {
        Self::open(name, flags(multi_queue) | libc::IFF_TUN_EXCL).map_err(|error| match error {
            Refusal::Device(error) => error,
            Refusal::Kernel(Errno::BUSY) => TunError::Exists(name.into()),
            Refusal::Kernel(Errno::PERM) => TunError::Right,
            Refusal::Kernel(errno) => {
                TunError::Refused { what: format!("make a TAP interface '{name}'"), errno }
            }
        })
    }

    /// Becomes a queue of an interface that exists: its only one, or with `multi_queue` one more.
    ///
    /// # Errors
    /// [`TunError::Mismatch`] when it is no TAP interface, or not made for as many queues.
    pub fn attach(name: &str, multi_queue: bool) -> Result<Self, TunError> {
        Self::open(name, flags(multi_queue)).map_err(|error| match error {
            Refusal::Device(error) => error,
            Refusal::Kernel(Errno::BUSY | Errno::TOOBIG) => TunError::Busy(name.into()),
            Refusal::Kernel(Errno::PERM) => TunError::Right,
            Refusal::Kernel(Errno::INVAL) => {
                TunError::Mismatch(name.into(), if multi_queue { "without" } else { "with" })
            }
            Refusal::Kernel(errno) => TunError::Refused { what: format!("attach to '{name}'"), errno },
        })
    }

    fn open(name: &str, flags: libc::c_int) -> Result<Self, Refusal> {
        let how = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(DEVICE, how, Mode::empty())
            .map_err(|errno| Refusal::Device(TunError::Device(errno)))?;
        // SAFETY: ifreq is integers, bytes and a union of such: zeroes are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // One byte is left for the final zero; a longer name is no interface's.
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            return Err(Refusal::Kernel(Errno::INVAL));
        }
        for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = byte.cast_signed();
        }
        request.ifr_ifru.ifru_flags =
            i16::from_ne_bytes([flags.to_ne_bytes()[LOW], flags.to_ne_bytes()[LOW + 1]]);
        // SAFETY: TUNSETIFF reads and writes an ifreq, which `request` is, for the time of the call.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if done < 0 { Err(Refusal::Kernel(last_error())) } else { Ok(Self { file }) }
    }

    /// Makes the interface, all its queues, put a [`VirtioHeaderMergeable`] in front of packets, and says what its
    /// packets may be: with `on`, the kernel gives packets whose checksum is missing and super-segments of TCP. Returns
    /// whether it gives those of UDP too, which it does since Linux 6.2.
    ///
    /// # Errors
    /// When the kernel refuses, as it does not do.
    pub fn set_offloads(&self, on: bool) -> Result<bool, TunError> {
        self.set_header_len(size_of::<VirtioHeaderMergeable>())?;
        // Not TUN_F_TSO_ECN: the kernel itself cuts what has CWR, which a port that these are sent by might leave on each piece.
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        if on && self.offer(tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6).is_ok() {
            return Ok(true);
        }
        self.offer(if on { tcp } else { 0 }).map(|()| false)
    }

    /// Bytes of the header in front of packets: the interface's, which outlasts who has set it.
    ///
    /// # Errors
    /// When the kernel refuses, as it does not do.
    pub fn header_len(&self) -> Result<usize, TunError> {
        let mut len: libc::c_int = 0;
        // SAFETY: TUNGETVNETHDRSZ writes an int.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNGETVNETHDRSZ, &raw mut len) };
        self.checked(done, "read the header of")?;
        Ok(usize::try_from(len).unwrap_or_default())
    }

    /// Sets that length.
    ///
    /// # Errors
    /// When the kernel refuses: it is shorter than a header.
    pub fn set_header_len(&self, len: usize) -> Result<(), TunError> {
        let len = libc::c_int::try_from(len).unwrap_or(libc::c_int::MAX);
        // SAFETY: TUNSETVNETHDRSZ reads an int.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) };
        self.checked(done, "set the header of")
    }

    fn offer(&self, offloads: libc::c_uint) -> Result<(), TunError> {
        // SAFETY: TUNSETOFFLOAD takes its argument by value, an unsigned long.
        let done =
            unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) };
        self.checked(done, "set the offloads of")
    }

    fn checked(&self, done: libc::c_int, what: &str) -> Result<(), TunError> {
        if done < 0 {
            return Err(TunError::Refused { what: format!("{what} a TAP interface"), errno: last_error() });
        }
        Ok(())
    }

    /// Reads one packet, header first, into `parts`, one after the other, and returns its bytes, the header's too. What
    /// does not fit is lost without a word.
    ///
    /// # Errors
    /// `AGAIN` when there is none; `BADFD` when the interface has been deleted.
    pub fn read(&self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        rustix::io::readv(&self.file, parts)
    }

    /// Writes one packet, header first.
    ///
    /// # Errors
    /// `AGAIN` when there is no room now; `IO` when the interface is down; `BADFD` when it has been deleted; `INVAL`
    /// when the header is wrong.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::writev(&self.file, parts).map(drop)
    }

    /// Whether a packet is there, or an error.
    pub fn readable(&self) -> bool {
        let mut one = [PollFd::new(&self.file, PollFlags::IN)];
        matches!(poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Where the low half of an int is.
const LOW: usize = if cfg!(target_endian = "little") { 0 } else { 2 };

fn flags(multi_queue: bool) -> libc::c_int {
    let queues = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queues
}

enum Refusal {
    Device(TunError),
    Kernel(Errno),
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
