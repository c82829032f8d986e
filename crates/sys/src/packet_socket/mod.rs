//! Packet sockets (AF_PACKET): a copy of every packet that an interface receives or sends.
//!
//! Packets come through a ring that is mapped ([`RxRing`], `TPACKET_V3`), without a system call each, and go by
//! sendmmsg(2) ([`Messages`]). Both carry a [`VirtioHeader`](crate::virtio_header::VirtioHeader) in front
//! (`PACKET_VNET_HDR`), so that super-segments and missing checksums are known for what they are. The socket and all it
//! asked of the interface, promiscuous mode too, go away with its file. Facts: packet(7),
//! `Documentation/networking/packet_mmap.rst`, `linux/if_packet.h`.

#![expect(unsafe_code, reason = "socket options and addresses that are structs of the kernel's")]

mod messages;
mod ring;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

pub use messages::{Filling, Messages};
pub use ring::{Captured, Damaged, RxRing};

/// Why there is no packet socket.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// It may not be made.
    #[error("a packet socket needs root or CAP_NET_RAW")]
    Right,
    /// The kernel has none.
    #[error("this kernel has no packet sockets (CONFIG_PACKET)")]
    Missing,
    /// The ring's memory could not be had.
    #[error("no memory for a ring of {0} bytes: make it smaller")]
    Memory(usize),
    /// The kernel refused for another reason.
    #[error("can't {what}: {errno}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The error number.
        errno: Errno,
    },
}

/// A ring to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    /// Bytes in a block: a power of two from [`RingSize::MIN_BLOCK`] on. The kernel hands over a block at a time.
    pub block_bytes: u32,
    /// Blocks in the ring.
    pub blocks: u32,
    /// After how many milliseconds at most the kernel hands over a block that is not full: what a packet waits at most.
    pub retire_ms: u32,
}

impl RingSize {
    /// A block takes any packet that Ethernet or segmentation offload (64 KiB) can make.
    pub const MIN_BLOCK: u32 = 128 << 10;

    /// Bytes in the ring.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.block_bytes as usize * self.blocks as usize
    }
}

/// What the kernel has counted for a socket since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets that did not fit into the ring.
    pub drops: u32,
    /// Times the ring was full.
    pub freezes: u32,
}

/// A packet socket, which does not receive before [`PacketSocket::listen`].
#[derive(Debug)]
pub struct PacketSocket {
    file: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`PacketError::Right`] without CAP_NET_RAW.
    pub fn open() -> Result<Self, PacketError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol: from the first moment, it would receive what other interfaces do.
        let file = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(
            |errno| match errno {
                Errno::PERM | Errno::ACCESS => PacketError::Right,
                Errno::AFNOSUPPORT => PacketError::Missing,
                errno => PacketError::Refused { what: "open a packet socket", errno },
            },
        )?;
        let socket = Self { file };
        socket.set(
            libc::PACKET_VNET_HDR,
            &1,
            "have checksums and segmentation with packets (PACKET_VNET_HDR)",
        )?;
        Ok(socket)
    }

    /// Sends past the interface's queueing discipline: faster, but what the driver has no room for is lost, and other
    /// packet sockets do not see it.
    ///
    /// # Errors
    /// When the kernel is older than 3.14.
    pub fn bypass_qdisc(&self) -> Result<(), PacketError> {
        self.set(libc::PACKET_QDISC_BYPASS, &1, "bypass the queueing discipline (PACKET_QDISC_BYPASS)")
    }

    /// Binds the socket to an interface for sending; it receives nothing.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn bind(&self, index: u32) -> Result<(), PacketError> {
        self.bind_to(index, 0)
    }

    /// Makes the ring and begins to receive from the interface: everything, or nothing before
    /// [`PacketSocket::let_through`] when `held`, which is for sockets that are still to share their packets.
    ///
    /// # Errors
    /// When there is no memory, or no such interface.
    pub fn listen(&self, index: u32, size: RingSize, held: bool) -> Result<RxRing, PacketError> {
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        self.set(libc::PACKET_VERSION, &version, "use TPACKET_V3")?;
        let request = libc::tpacket_req3 {
            tp_block_size: size.block_bytes,
            tp_block_nr: size.blocks,
            // Only the product counts for V3, where frames have no fixed size.
            tp_frame_size: size.block_bytes,
            tp_frame_nr: size.blocks,
            tp_retire_blk_tov: size.retire_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        let memory = |error| match error {
            PacketError::Refused { errno: Errno::NOMEM, .. } => PacketError::Memory(size.bytes()),
            error => error,
        };
        self.set(libc::PACKET_RX_RING, &request, "make a ring (PACKET_RX_RING)").map_err(memory)?;
        let ring = RxRing::map(self.as_fd(), size).map_err(|error| PacketError::Refused {
            what: "map the ring",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::NOMEM),
        })?;
        if held {
            self.hold()?;
        }
        self.bind_to(index, libc::ETH_P_ALL)?;
        Ok(ring)
    }

    /// Shares the packets with other sockets of the same interface, each flow, both directions of it, to one of them.
    /// The first socket gives no `group` and gets a new one's number; the others give that.
    ///
    /// # Errors
    /// When the group is full.
    pub fn share(&self, group: Option<u16>) -> Result<u16, PacketError> {
        let kind = libc::PACKET_FANOUT_HASH | group.map_or(libc::PACKET_FANOUT_FLAG_UNIQUEID, |_| 0);
        let request = kind << 16 | u32::from(group.unwrap_or(0));
        self.set(libc::PACKET_FANOUT, &request, "share packets between queues (PACKET_FANOUT)")?;
        let granted: u32 = self
            .ask(libc::PACKET_FANOUT)
            .map_err(|errno| PacketError::Refused { what: "learn the number of a fanout group", errno })?;
        Ok(u16::from_ne_bytes(low_half(granted)))
    }

    /// Sees packets to other addresses than the interface's, until the socket is closed.
    ///
    /// # Errors
    /// When the interface refuses.
    pub fn be_promiscuous(&self, index: u32) -> Result<(), PacketError> {
        let request = libc::packet_mreq {
            mr_ifindex: index.cast_signed(),
            mr_type: u16::try_from(libc::PACKET_MR_PROMISC).unwrap_or_default(),
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::PACKET_ADD_MEMBERSHIP, &request, "set the interface promiscuous")
    }

    /// Ends what `held` began.
    ///
    /// # Errors
    /// Never in practice.
    pub fn let_through(&self) -> Result<(), PacketError> {
        let none: libc::c_int = 0;
        self.set_at(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &none, "take the first filter off")
    }

    /// The same, but for what comes in only: on a loopback interface all that goes out comes in again at once, and would
    /// be there twice. It is a filter, not `PACKET_IGNORE_OUTGOING`, which sockets that share their packets do not heed.
    ///
    /// # Errors
    /// When there is no memory for a filter.
    pub fn let_incoming_through(&self) -> Result<(), PacketError> {
        self.filter(&mut [
            instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, PACKET_TYPE),
            libc::sock_filter {
                jf: 1,
                ..instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, PACKET_OUTGOING)
            },
            instruction(libc::BPF_RET | libc::BPF_K, 0),
            instruction(libc::BPF_RET | libc::BPF_K, u32::MAX),
        ])
    }

    /// What the kernel has counted since the last call.
    pub fn statistics(&self) -> Statistics {
        // tp_packets, tp_drops, tp_freeze_q_cnt
        let [_, drops, freezes] = self.ask(libc::PACKET_STATISTICS).unwrap_or([0_u32; 3]);
        Statistics { drops, freezes }
    }

    /// Takes the error that waits at the socket, such as `NETDOWN`, so that it no longer counts as readable.
    pub fn take_error(&self) -> Option<Errno> {
        rustix::net::sockopt::socket_error(&self.file).ok().and_then(Result::err)
    }

    /// Whether the interface has been deleted. The socket is then good for nothing.
    pub fn is_orphan(&self) -> bool {
        // SAFETY: sockaddr_ll is integers and bytes: zeroes are a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut len = length::<libc::sockaddr_ll>();
        let to = (&raw mut address).cast::<libc::sockaddr>();
        // SAFETY: `to` is a sockaddr_ll of `len` bytes, and the kernel writes no more than that.
        let done = unsafe { libc::getsockname(self.file.as_raw_fd(), to, &raw mut len) };
        done == 0 && address.sll_ifindex < 0
    }

    /// Drops every packet that comes.
    fn hold(&self) -> Result<(), PacketError> {
        self.filter(&mut [instruction(libc::BPF_RET | libc::BPF_K, 0)])
    }

    /// Sets a filter, in place of the one before: what it returns is how many bytes of the packet are kept.
    fn filter(&self, instructions: &mut [libc::sock_filter]) -> Result<(), PacketError> {
        let len = u16::try_from(instructions.len()).unwrap_or(u16::MAX);
        let program = libc::sock_fprog { len, filter: instructions.as_mut_ptr() };
        self.set_at(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program, "set a filter (SO_ATTACH_FILTER)")
    }

    fn bind_to(&self, index: u32, protocol: libc::c_int) -> Result<(), PacketError> {
        // SAFETY: as in `is_orphan`.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or_default();
        address.sll_protocol = u16::try_from(protocol).unwrap_or_default().to_be();
        address.sll_ifindex = index.cast_signed();
        let (from, len) = ((&raw const address).cast::<libc::sockaddr>(), length::<libc::sockaddr_ll>());
        // SAFETY: `from` is a sockaddr_ll of `len` bytes.
        let done = unsafe { libc::bind(self.file.as_raw_fd(), from, len) };
        outcome(done).map_err(|errno| PacketError::Refused { what: "bind a packet socket", errno })
    }

    fn set<T>(&self, option: libc::c_int, value: &T, what: &'static str) -> Result<(), PacketError> {
        self.set_at(libc::SOL_PACKET, option, value, what)
    }

    fn set_at<T>(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: &T,
        what: &'static str,
    ) -> Result<(), PacketError> {
        let (from, len) = (std::ptr::from_ref(value).cast::<libc::c_void>(), length::<T>());
        // SAFETY: the kernel reads at most `len` bytes, which are the value's.
        let done = unsafe { libc::setsockopt(self.file.as_raw_fd(), level, option, from, len) };
        outcome(done).map_err(|errno| PacketError::Refused { what, errno })
    }

    fn ask<T: zerocopy::FromZeros + zerocopy::FromBytes>(&self, option: libc::c_int) -> Result<T, Errno> {
        let mut value = T::new_zeroed();
        let mut len = length::<T>();
        let to = (&raw mut value).cast::<libc::c_void>();
        // SAFETY: the kernel writes at most `len` bytes, and any bytes are a `T: FromBytes`.
        let done =
            unsafe { libc::getsockopt(self.file.as_raw_fd(), libc::SOL_PACKET, option, to, &raw mut len) };
        outcome(done).map(|()| value)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Where a filter finds in which direction a packet goes (`linux/filter.h`).
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();

/// A packet that goes out.
const PACKET_OUTGOING: u32 = libc::PACKET_OUTGOING as u32;

/// An instruction of a filter that goes on to the one after it, or ends.
fn instruction(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt: 0, jf: 0, k }
}

/// The number of a fanout group, out of what `PACKET_FANOUT` says.
fn low_half(word: u32) -> [u8; 2] {
    let [low @ .., _, _] = word.to_le_bytes();
    u16::from_le_bytes(low).to_ne_bytes()
}

fn length<T>() -> libc::socklen_t {
    const { assert!(size_of::<T>() <= 0xffff) };
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

fn outcome(done: libc::c_int) -> Result<(), Errno> {
    if done == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
