//! BPF links: a program's place on an interface. The place is given up when the link's last holder is gone, so a
//! process that is killed leaves nothing attached.
#![expect(unsafe_code, reason = "the calls of bpf(2) that make and change links")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::program::ATTACH_XDP;
use super::{BpfError, Command, Program, bpf, own, raw};

/// Where on an interface an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel has made a packet of its own of it.
    Native,
    /// In the kernel's stack, for drivers without XDP: an order slower.
    Generic,
}

/// On which way through an interface a TCX program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TcxDirection {
    /// What comes in (`BPF_TCX_INGRESS`).
    Ingress = 46,
    /// What goes out (`BPF_TCX_EGRESS`).
    Egress = 47,
}

/// Where a link is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The link's number, while it lives.
    pub link_id: u32,
    /// The number of the program it runs now.
    pub program_id: u32,
    /// The interface's number; 0 when the interface is gone, or the program was detached.
    pub interface: u32,
}

/// A program's place on an interface; dropping it detaches.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

/// The numbers of all links.
///
/// # Errors
/// What the kernel says; a missing right is named.
pub fn link_ids() -> Result<Vec<u32>, BpfError> {
    super::ids(Command::LinkNextId).map_err(|error| BpfError::new("listing links", error))
}

/// `XDP_FLAGS_SKB_MODE`.
const SKB_MODE: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE`.
const DRV_MODE: u32 = 1 << 2;
/// `BPF_F_BEFORE`: before what is named, and before all when nothing is.
const BEFORE: u32 = 1 << 3;

#[derive(Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct CreateAttributes {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    /// TCX: what to attach relative to, and the expected revision; all zero is "after the others", or before them ([`BEFORE`]).
    relative: u64,
    revision: u64,
}

#[derive(Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct UpdateAttributes {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

#[derive(Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct DetachAttributes {
    link_fd: u32,
}

#[derive(IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct InfoAttributes {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The first part of `struct bpf_link_info`.
#[derive(Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct RawInfo {
    kind: u32,
    id: u32,
    prog_id: u32,
    _pad: u32,
    /// XDP and TCX: `ifindex`.
    interface: u32,
    _rest: u32,
}

impl Link {
    /// Attaches an XDP program to the interface with this number.
    ///
    /// # Errors
    /// What the kernel says: `EBUSY` or `EEXIST` when another program is there ([`BpfError::is`]), `EOPNOTSUPP` when
    /// the driver has no native XDP.
    pub fn xdp(program: &Program, interface: u32, mode: XdpMode) -> Result<Self, BpfError> {
        let flags = match mode {
            XdpMode::Native => DRV_MODE,
            XdpMode::Generic => SKB_MODE,
        };
        Self::create(program, interface, ATTACH_XDP, flags).map_err(|error| {
            BpfError::new(format!("attaching an XDP program to interface {interface}"), error)
        })
    }

    /// Attaches a traffic control program to the interface with this number, after those that are there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn tcx(program: &Program, interface: u32, direction: TcxDirection) -> Result<Self, BpfError> {
        Self::create_tcx(program, interface, direction, 0)
    }

    /// The same, before those that are there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn tcx_first(program: &Program, interface: u32, direction: TcxDirection) -> Result<Self, BpfError> {
        Self::create_tcx(program, interface, direction, BEFORE)
    }

    /// Opens the link with this number, whoever has made it. Its program stays attached as long as anybody has it.
    ///
    /// # Errors
    /// What the kernel says: `ENOENT` when it is gone.
    pub fn by_id(id: u32) -> Result<Self, BpfError> {
        let opened = super::by_id(Command::LinkFdById, id);
        let fd = opened.map_err(|error| BpfError::new(format!("opening link {id}"), error))?;
        Ok(Self { fd })
    }

    fn create_tcx(
        program: &Program,
        interface: u32,
        direction: TcxDirection,
        flags: u32,
    ) -> Result<Self, BpfError> {
        Self::create(program, interface, direction as u32, flags).map_err(|error| {
            BpfError::new(format!("attaching a TCX program to interface {interface}"), error)
        })
    }

    fn create(program: &Program, interface: u32, attach_type: u32, flags: u32) -> io::Result<Self> {
        let mut attributes = CreateAttributes {
            prog_fd: raw(program),
            target_ifindex: interface,
            attach_type,
            flags,
            ..CreateAttributes::default()
        };
        // SAFETY: these attributes carry no pointer.
        let fd = unsafe { bpf(Command::LinkCreate, &mut attributes) }?;
        Ok(Self { fd: own(fd) })
    }

    /// Puts another program in this one's place; no packet passes between the two.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn update(&self, program: &Program) -> Result<(), BpfError> {
        let mut attributes = UpdateAttributes {
            link_fd: raw(&self.fd),
            new_prog_fd: raw(program),
            ..UpdateAttributes::default()
        };
        // SAFETY: these attributes carry no pointer.
        unsafe { bpf(Command::LinkUpdate, &mut attributes) }
            .map(drop)
            .map_err(|error| BpfError::new("replacing an attached program", error))
    }

    /// Detaches now, also when the link is held elsewhere (by a child, say). Dropping it is enough otherwise.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn detach(&self) -> Result<(), BpfError> {
        let mut attributes = DetachAttributes { link_fd: raw(&self.fd) };
        // SAFETY: these attributes carry no pointer.
        unsafe { bpf(Command::LinkDetach, &mut attributes) }
            .map(drop)
            .map_err(|error| BpfError::new("detaching a program", error))
    }

    /// Its number, its program's and its interface's.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn info(&self) -> Result<Attached, BpfError> {
        let mut info = RawInfo::default();
        let mut attributes = InfoAttributes {
            bpf_fd: raw(&self.fd),
            info_len: u32::try_from(size_of::<RawInfo>()).unwrap_or_default(),
            info: std::ptr::from_mut(&mut info).addr() as u64,
        };
        // SAFETY: `info` is as long as `info_len` says and lives through the call; it holds no pointer.
        unsafe { bpf(Command::ObjectInfo, &mut attributes) }
            .map_err(|error| BpfError::new("asking about an attached program", error))?;
        Ok(Attached { link_id: info.id, program_id: info.prog_id, interface: info.interface })
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
