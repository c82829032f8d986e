//! AF_XDP sockets: packet memory registered with the kernel, four rings, and the few calls that move them along.
//!
//! Layouts and numbers are those of Linux's `include/uapi/linux/if_xdp.h`. Nothing here knows whose frames the
//! addresses name: a [`Socket`] hands out rings of numbers, and who uses them keeps the ledger.
#![expect(unsafe_code, reason = "socket options and calls take addresses of structures and of packet memory")]

mod probe;
mod ring;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::memory;
use crate::shared::Mapping;

pub use probe::Probe;
pub use ring::{Consumer, Descriptor, Producer, RingOffsets, offset};

/// Chunks of one packet at most: Linux's `MAX_SKB_FRAGS`, 17, and the head.
pub const MAX_CHUNKS: u32 = 18;

/// How the registered memory is cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// Of 4096 bytes, each at a multiple of that.
    Aligned,
    /// Of so many bytes, anywhere (`XDP_UMEM_UNALIGNED_CHUNK_FLAG`).
    Unaligned(u32),
}

/// Entries in each ring: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Free chunks for the kernel to receive into. The kernel wants this ring also of who only sends.
    pub fill: u32,
    /// Sent chunks that come back. The kernel wants this ring also of who only receives.
    pub completion: u32,
    /// Received packets; 0 for a socket that only sends.
    pub rx: u32,
    /// Packets to be sent; 0 for a socket that only receives.
    pub tx: u32,
}

/// Our ends of a socket's rings. They keep the socket alive: drop them before the [`Socket`].
#[derive(Debug)]
pub struct Rings {
    /// Where free chunks go.
    pub fill: Producer<u64>,
    /// Where sent chunks come back.
    pub completion: Consumer<u64>,
    /// Received packets.
    pub rx: Option<Consumer<Descriptor>>,
    /// Packets to be sent.
    pub tx: Option<Producer<Descriptor>>,
}

/// Whether packets are copied between the driver's memory and ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero-copy where the driver can, else copy.
    #[default]
    Auto,
    /// Copy, whatever the driver can.
    Copy,
    /// Zero-copy, or not at all.
    ZeroCopy,
}

/// What to bind to and how.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The interface's number.
    pub interface: u32,
    /// Its queue.
    pub queue: u32,
    /// Copy or not.
    pub mode: CopyMode,
    /// Packets may have several descriptors (`XDP_USE_SG`).
    pub multi_buffer: bool,
}

/// What the kernel counted of a socket (`struct xdp_statistics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Statistics {
    /// Packets for this socket that were lost for other reasons than those below.
    pub rx_dropped: u64,
    /// Chunks in the FILL ring that lie outside the memory.
    pub rx_invalid_descriptors: u64,
    /// Descriptors in the TX ring that name no bytes of the memory.
    pub tx_invalid_descriptors: u64,
    /// Packets lost because the RX ring was full.
    pub rx_ring_full: u64,
    /// Times the FILL ring was found empty when a packet came.
    pub rx_fill_ring_empty: u64,
    /// Times the TX ring was found empty.
    pub tx_ring_empty: u64,
}

/// What became of a call that asks the kernel to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// It has seen all there was.
    Done,
    /// It stopped before the end: its budget, its memory, or the interface is used up for now. Ask again later.
    Again,
    /// The interface dropped a packet, which comes back as if it were sent, and the kernel stopped there (copy mode).
    Dropped,
    /// The interface is down or has gone; nothing is sent.
    Down,
}

/// `struct xdp_mmap_offsets`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct MmapOffsets {
    rx: RingOffsets,
    tx: RingOffsets,
    fill: RingOffsets,
    completion: RingOffsets,
}

/// `struct xdp_umem_reg`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct UmemRegistration {
    address: u64,
    len: u64,
    chunk_size: u32,
    headroom: u32,
    flags: u32,
    tx_metadata_len: u32,
}

/// Socket options at level `SOL_XDP`.
mod option {
    pub(super) const MMAP_OFFSETS: libc::c_int = 1;
    pub(super) const RX_RING: libc::c_int = 2;
    pub(super) const TX_RING: libc::c_int = 3;
    pub(super) const UMEM_REG: libc::c_int = 4;
    pub(super) const UMEM_FILL_RING: libc::c_int = 5;
    pub(super) const UMEM_COMPLETION_RING: libc::c_int = 6;
    pub(super) const STATISTICS: libc::c_int = 7;
    pub(super) const OPTIONS: libc::c_int = 8;
    pub(super) const MAX_TX_SKB_BUDGET: libc::c_int = 9;
}

/// Offsets at which the rings are mapped.
mod place {
    pub(super) const RX: u64 = 0;
    pub(super) const TX: u64 = 0x8000_0000;
    pub(super) const FILL: u64 = 0x1_0000_0000;
    pub(super) const COMPLETION: u64 = 0x1_8000_0000;
}

/// Flags of bind(2).
mod bind_flag {
    pub(super) const SHARED_UMEM: u16 = 1 << 0;
    pub(super) const COPY: u16 = 1 << 1;
    pub(super) const ZEROCOPY: u16 = 1 << 2;
    pub(super) const USE_NEED_WAKEUP: u16 = 1 << 3;
    pub(super) const USE_SG: u16 = 1 << 4;
}

const SOL_XDP: libc::c_int = 283;
const UNALIGNED_CHUNKS: u32 = 1 << 0;
const OPTION_ZEROCOPY: u32 = 1 << 0;
/// Bytes that the kernel charges for a packet in flight in copy mode, with room to spare.
const CHARGED_PER_PACKET: u32 = 8192;

/// An AF_XDP socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

impl Socket {
    /// A new socket in the network namespace of this thread.
    ///
    /// # Errors
    /// What socket(2) says: `EPERM` without CAP_NET_RAW, `EAFNOSUPPORT` in a kernel without AF_XDP.
    pub fn new() -> io::Result<Self> {
        // SAFETY: socket(2) takes no address.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and nobody else has it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Registers the `len` bytes at `address` as the memory its packets lie in; in each netdev once, further queues
    /// share it ([`Socket::bind_shared`]).
    ///
    /// # Errors
    /// `EINVAL` for memory that is not (part of) a living [`memory::PacketMemory`], `ENOBUFS` when more memory would be
    /// pinned than RLIMIT_MEMLOCK allows, and what else the kernel says.
    pub fn register(&self, address: usize, len: usize, chunks: Chunks) -> io::Result<()> {
        if !memory::is_packet_memory(address, len) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.register_unchecked(address, len, chunks)
    }

    /// As [`Socket::register`], for memory that the caller knows to outlive the kernel's use of it.
    fn register_unchecked(&self, address: usize, len: usize, chunks: Chunks) -> io::Result<()> {
        let (chunk_size, flags) = match chunks {
            Chunks::Aligned => (4096, 0),
            Chunks::Unaligned(size) => (size, UNALIGNED_CHUNKS),
        };
        let registration = UmemRegistration {
            address: address as u64,
            len: len as u64,
            chunk_size,
            headroom: 0,
            flags,
            tx_metadata_len: 0,
        };
        self.set(SOL_XDP, option::UMEM_REG, &registration)
    }

    /// Makes the rings and maps them.
    ///
    /// # Errors
    /// What the kernel says: `EINVAL` for sizes that are no powers of two.
    pub fn rings(&self, sizes: &RingSizes) -> io::Result<Rings> {
        self.set(SOL_XDP, option::UMEM_FILL_RING, &sizes.fill)?;
        self.set(SOL_XDP, option::UMEM_COMPLETION_RING, &sizes.completion)?;
        if sizes.rx > 0 {
            self.set(SOL_XDP, option::RX_RING, &sizes.rx)?;
        }
        if sizes.tx > 0 {
            self.set(SOL_XDP, option::TX_RING, &sizes.tx)?;
        }
        let offsets: MmapOffsets = self.read(SOL_XDP, option::MMAP_OFFSETS)?;
        let fill = self.map::<u64>(place::FILL, &offsets.fill, sizes.fill)?;
        let completion = self.map::<u64>(place::COMPLETION, &offsets.completion, sizes.completion)?;
        let rx = (sizes.rx > 0)
            .then(|| {
                Consumer::new(
                    &self.map::<Descriptor>(place::RX, &offsets.rx, sizes.rx)?,
                    &offsets.rx,
                    sizes.rx,
                )
            })
            .transpose()?;
        let tx = (sizes.tx > 0)
            .then(|| {
                Producer::new(
                    &self.map::<Descriptor>(place::TX, &offsets.tx, sizes.tx)?,
                    &offsets.tx,
                    sizes.tx,
                )
            })
            .transpose()?;
        Ok(Rings {
            fill: Producer::new(&fill, &offsets.fill, sizes.fill)?,
            completion: Consumer::new(&completion, &offsets.completion, sizes.completion)?,
            rx,
            tx,
        })
    }

    fn map<T>(&self, place: u64, offsets: &RingOffsets, count: u32) -> io::Result<std::sync::Arc<Mapping>> {
        let len = offsets.mapping_len::<T>(count).ok_or(io::ErrorKind::InvalidData)?;
        Mapping::of_file(self.fd.as_fd(), place, len)
    }

    /// Binds to a queue. While the kernel is still busy releasing the queue's last user it tries again, for `patience`.
    ///
    /// # Errors
    /// What bind(2) says: `EBUSY` when another socket has the queue, `EOPNOTSUPP` when the driver can't what was asked
    /// for, `EINVAL` for a queue that is not there.
    pub fn bind(&self, to: &Bind, patience: Duration) -> io::Result<()> {
        let mut flags = bind_flag::USE_NEED_WAKEUP;
        flags |= match to.mode {
            CopyMode::Auto => 0,
            CopyMode::Copy => bind_flag::COPY,
            CopyMode::ZeroCopy => bind_flag::ZEROCOPY,
        };
        if to.multi_buffer {
            flags |= bind_flag::USE_SG;
        }
        self.bind_raw(to.interface, to.queue, flags, 0, patience)
    }

    /// Binds to a further queue, with the memory of `first` and in its mode: the kernel takes no flag of our own then.
    ///
    /// # Errors
    /// As [`Socket::bind`].
    pub fn bind_shared(
        &self,
        interface: u32,
        queue: u32,
        first: &Self,
        patience: Duration,
    ) -> io::Result<()> {
        self.bind_raw(interface, queue, bind_flag::SHARED_UMEM, first.fd.as_raw_fd(), patience)
    }

    #[expect(clippy::cast_sign_loss, reason = "an open descriptor is never negative")]
    fn bind_raw(
        &self,
        interface: u32,
        queue: u32,
        flags: u16,
        shared: RawFd,
        patience: Duration,
    ) -> io::Result<()> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the number of an address family and of bytes in it"
        )]
        const FAMILY_AND_LEN: (u16, u32) = (libc::AF_XDP as u16, size_of::<libc::sockaddr_xdp>() as u32);
        let (family, len) = FAMILY_AND_LEN;
        let address = libc::sockaddr_xdp {
            sxdp_family: family,
            sxdp_flags: flags,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared as u32,
        };
        let deadline = Instant::now() + patience;
        loop {
            // SAFETY: the address is a living `sockaddr_xdp` of the length given.
            let result = unsafe { libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) };
            if result == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() >= deadline {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks the kernel to send what the TX ring has, as far as one call does.
    ///
    /// # Errors
    /// What sendto(2) says beyond what [`Kick`] knows.
    #[inline]
    pub fn kick_tx(&self) -> io::Result<Kick> {
        // SAFETY: no buffer and no address are given. Without MSG_DONTWAIT the kernel refuses the call.
        let result = unsafe {
            libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        if result >= 0 { Ok(Kick::Done) } else { outcome(io::Error::last_os_error()) }
    }

    /// Asks the kernel to look at the FILL ring, or to receive when it is to be polled.
    ///
    /// # Errors
    /// What recvfrom(2) says beyond what [`Kick`] knows.
    #[inline]
    pub fn kick_rx(&self) -> io::Result<Kick> {
        // SAFETY: no buffer and no address are given.
        let result = unsafe {
            let none = std::ptr::null_mut();
            libc::recvfrom(
                self.fd.as_raw_fd(),
                none,
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                none.cast(),
            )
        };
        if result >= 0 { Ok(Kick::Done) } else { outcome(io::Error::last_os_error()) }
    }

    /// Lets one [`Socket::kick_tx`] in copy mode send up to `packets` instead of the kernel's 32, and lets as many be
    /// in flight. False when this kernel is too old for it (before 6.17).
    ///
    /// # Errors
    /// What setsockopt(2) says.
    pub fn raise_tx_budget(&self, packets: u32) -> io::Result<bool> {
        let bytes = packets.saturating_mul(CHARGED_PER_PACKET).min(i32::MAX as u32 / 2);
        // The forced form needs CAP_NET_ADMIN and goes beyond net.core.wmem_max; the other one does what it may.
        if self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes).is_err() {
            self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes)?;
        }
        match self.set(SOL_XDP, option::MAX_TX_SKB_BUDGET, &packets) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Has the driver run in our own calls instead of by interrupt, for `micros` at most and `budget` packets at once.
    ///
    /// # Errors
    /// What setsockopt(2) says: `EPERM` without CAP_NET_ADMIN, whatever the budget is.
    pub fn prefer_busy_poll(&self, micros: u32, budget: u32) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1_u32)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &budget)
    }

    /// Undoes [`prefer_busy_poll`](Self::prefer_busy_poll).
    ///
    /// # Errors
    /// What setsockopt(2) says.
    pub fn leave_busy_poll(&self) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &0_u32)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, &0_u32)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &0_u32)
    }

    /// The number of the driver's instance that serves the bound queue. While it is 0 busy polling silently does
    /// nothing; many kernels learn it with the first packet only, and in copy mode some never do.
    ///
    /// # Errors
    /// What getsockopt(2) says.
    pub fn napi_id(&self) -> io::Result<u32> {
        self.read(libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID)
    }

    /// Whether it was bound without copies.
    ///
    /// # Errors
    /// What getsockopt(2) says.
    pub fn is_zero_copy(&self) -> io::Result<bool> {
        Ok(self.read::<u32>(SOL_XDP, option::OPTIONS)? & OPTION_ZEROCOPY != 0)
    }

    /// What the kernel has counted. Kernels before 5.9 know the first three only; the others stay 0.
    ///
    /// # Errors
    /// What getsockopt(2) says.
    pub fn statistics(&self) -> io::Result<Statistics> {
        self.read(SOL_XDP, option::STATISTICS)
    }

    fn set<T: IntoBytes + Immutable>(
        &self,
        level: libc::c_int,
        name: libc::c_int,
        value: &T,
    ) -> io::Result<()> {
        let bytes = value.as_bytes();
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        // SAFETY: value and length are one slice's own. An address inside a UMEM registration is what `register`
        // answers for.
        let result =
            unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, name, bytes.as_ptr().cast(), len) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn read<T: FromBytes + IntoBytes>(&self, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
        let mut value = T::new_zeroed();
        let bytes = value.as_mut_bytes();
        let mut len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `len` bytes to a slice of that length, and any bytes make a `T`.
        let result = unsafe {
            libc::getsockopt(self.fd.as_raw_fd(), level, name, bytes.as_mut_ptr().cast(), &mut len)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What an errno of a call that only asks for work means; most of them are no failure.
fn outcome(error: io::Error) -> io::Result<Kick> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(Kick::Again),
        Some(libc::EBUSY) => Ok(Kick::Dropped),
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Ok(Kick::Down),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_only_mean_not_now_are_no_errors() {
        let of = |errno| outcome(io::Error::from_raw_os_error(errno)).ok();
        assert_eq!(of(libc::EAGAIN), Some(Kick::Again));
        assert_eq!(of(libc::ENOBUFS), Some(Kick::Again));
        assert_eq!(of(libc::EBUSY), Some(Kick::Dropped));
        assert_eq!(of(libc::ENETDOWN), Some(Kick::Down));
        assert_eq!(of(libc::ENXIO), Some(Kick::Down));
        assert_eq!(of(libc::EINVAL), None);
        assert_eq!(of(libc::EOPNOTSUPP), None);
    }
}
