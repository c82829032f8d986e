//! BPF programs: loading them, running them on given packets, asking what is loaded.
#![expect(unsafe_code, reason = "instructions and buffers are passed to the kernel by address")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{BpfError, Command, NAME_LEN, address, bpf, object_name, own, raw};

/// What a program is run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// Packets as an interface's driver gives them, packets of several buffers included (`BPF_F_XDP_HAS_FRAGS`).
    XdpFrags,
    /// Packets as the traffic control layer sees them.
    SchedCls,
}

/// A program to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct ProgramSpec<'a> {
    /// What it is run on.
    pub kind: ProgramKind,
    /// Its name, for `bpftool` and for who finds it attached; 15 bytes of it are kept.
    pub name: &'a str,
    /// The instructions, each 8 bytes as `struct bpf_insn` lies in memory. Maps they name must be open.
    pub instructions: &'a [u64],
}

/// Why a program could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The verifier refused it: our fault, and its log says where.
    #[error("the kernel's verifier refuses the program '{name}' ({source}); its log:\n{log}")]
    Verifier {
        /// The program.
        name: String,
        /// What the kernel said.
        source: io::Error,
        /// The verifier's log, its last part when it is long.
        log: String,
    },
    /// The verifier has given up: there are more ways through the program than it follows.
    #[error("the program '{name}' is too large for the kernel's verifier")]
    TooLarge {
        /// The program.
        name: String,
    },
    /// It computes where in a packet it reads, which the kernel's guards against speculation allow to few.
    #[error(
        "loading the program '{name}' needs CAP_PERFMON as well, which this process lacks: run it as root"
    )]
    Right {
        /// The program.
        name: String,
    },
    /// Anything else.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// A loaded program; it goes away when neither this nor a link nor a [pin](Program::pin) holds it.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    name: String,
}

/// What the kernel tells of a loaded program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Its number, while it is loaded.
    pub id: u32,
    /// Its name, as far as the kernel keeps it.
    pub name: String,
    /// Its kind, by `enum bpf_prog_type` (6 is XDP).
    pub kind: u32,
}

/// What to run a program on.
#[derive(Clone, Copy, Debug, Default)]
pub struct TestInput<'a> {
    /// The packet; at least 14 bytes for XDP.
    pub packet: &'a [u8],
    /// The program's context (`struct xdp_md` for XDP), when not the kernel's own default.
    pub context: &'a [u8],
    /// How often to run it; 0 is once.
    pub repeat: u32,
    /// Let the verdicts happen, on real packets (`BPF_F_TEST_XDP_LIVE_FRAMES`): nothing comes back then.
    pub live: bool,
    /// Packets at once in a live run; 0 is the kernel's 64.
    pub batch: u32,
}

/// What a test run gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestOutput {
    /// What the program returned the last time: 2 is `XDP_PASS`, 4 is `XDP_REDIRECT`.
    pub verdict: u32,
    /// Time of one run, the mean of all.
    pub duration: Duration,
    /// The packet as the program left it; empty for a live run.
    pub packet: Vec<u8>,
}

/// `BPF_F_XDP_HAS_FRAGS`.
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// `BPF_F_TEST_XDP_LIVE_FRAMES`.
const LIVE_FRAMES: u32 = 1 << 1;
/// `BPF_PROG_TYPE_SCHED_CLS`.
const TYPE_SCHED_CLS: u32 = 3;
/// `BPF_PROG_TYPE_XDP`.
const TYPE_XDP: u32 = 6;
/// `BPF_XDP` of `enum bpf_attach_type`.
pub(super) const ATTACH_XDP: u32 = 37;

/// How often a program is loaded: the verifier gives up (`EAGAIN`) when a signal comes meanwhile.
const ATTEMPTS: u32 = 5;

/// First and last size of the verifier's log.
const LOG_SIZES: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];
/// Bytes of the log's end that an error shows: the refusal stands there.
const LOG_SHOWN: usize = 8 << 10;

#[derive(Clone, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct LoadAttributes {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    name: [u8; NAME_LEN],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[derive(IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct PinAttributes {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

#[derive(Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct TestAttributes {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _pad: u32,
}

/// The first part of `struct bpf_prog_info`; the kernel fills as much as it is given room for.
#[derive(Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct RawInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    xlated_len: u32,
    jited: u64,
    xlated: u64,
    load_time: u64,
    uid: u32,
    map_count: u32,
    map_ids: u64,
    name: [u8; NAME_LEN],
}

impl Program {
    /// Loads a program, licensed `Dual MIT/GPL` so that all of the kernel's helpers are open to it.
    ///
    /// # Errors
    /// [`LoadError::TooLarge`], [`LoadError::Right`]; [`LoadError::Verifier`] with its log; else what the kernel says.
    pub fn load(spec: &ProgramSpec<'_>) -> Result<Self, LoadError> {
        let (prog_type, prog_flags, expected_attach_type) = match spec.kind {
            ProgramKind::XdpFrags => (TYPE_XDP, XDP_HAS_FRAGS, ATTACH_XDP),
            ProgramKind::SchedCls => (TYPE_SCHED_CLS, 0, 0),
        };
        let what = || format!("loading the program '{}'", spec.name);
        let count = u32::try_from(spec.instructions.len())
            .map_err(|_| BpfError::new(what(), io::ErrorKind::InvalidInput.into()))?;
        let attributes = LoadAttributes {
            prog_type,
            insn_cnt: count,
            insns: address(spec.instructions.as_ptr()),
            license: address(c"Dual MIT/GPL".as_ptr()),
            prog_flags,
            name: object_name(spec.name),
            expected_attach_type,
            ..LoadAttributes::default()
        };
        // SAFETY: `insns` and its count are the slice's own, the licence is a C string, and there is no log.
        let load = || unsafe { bpf(Command::ProgramLoad, &mut attributes.clone()) };
        let mut loaded = load();
        for _ in 1..ATTEMPTS {
            if !matches!(&loaded, Err(error) if error.raw_os_error() == Some(libc::EAGAIN)) {
                break;
            }
            loaded = load();
        }
        match loaded {
            Ok(fd) => Ok(Self { fd: own(fd), name: spec.name.into() }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                Err(BpfError::new(what(), error).into())
            }
            // Its log would take as long once more and end anywhere.
            Err(error) if error.raw_os_error() == Some(libc::E2BIG) => {
                Err(LoadError::TooLarge { name: spec.name.into() })
            }
            Err(error) => match verifier_log(&attributes) {
                // So the verifier says it when it has too many branches before it, as EFAULT, and as ENOMEM since Linux 6.17.
                log if log.contains("jumps is too complex") => {
                    Err(LoadError::TooLarge { name: spec.name.into() })
                }
                log if log.is_empty() || error.raw_os_error() == Some(libc::ENOMEM) => {
                    Err(BpfError::new(what(), error).into())
                }
                // So it says where only who has the right may (`kernel/bpf/verifier.c`).
                log if log.contains("prohibited for !root") => {
                    Err(LoadError::Right { name: spec.name.into() })
                }
                log => Err(LoadError::Verifier { name: spec.name.into(), source: error, log }),
            },
        }
    }

    /// Opens the loaded program with this number.
    ///
    /// # Errors
    /// What the kernel says: `ENOENT` when it is gone.
    pub fn by_id(id: u32) -> Result<Self, BpfError> {
        let opened = super::by_id(Command::ProgramFdById, id);
        let fd = opened.map_err(|error| BpfError::new(format!("opening program {id}"), error))?;
        Ok(Self { fd, name: format!("id {id}") })
    }

    /// Gives it a name in a BPF file system (bpffs), by which other programs find it, `tc` for one. It stays loaded until
    /// that file is removed or its file system is gone, also when this process has ended.
    ///
    /// # Errors
    /// What the kernel says: `EEXIST` when the name is taken, `EPERM` also when the folder is in no BPF file system.
    pub fn pin(&self, path: &Path) -> Result<(), BpfError> {
        let error = |error| {
            BpfError::new(format!("pinning the program '{}' as {}", self.name, path.display()), error)
        };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| error(io::ErrorKind::InvalidInput.into()))?;
        let mut attributes =
            PinAttributes { pathname: address(name.as_ptr()), bpf_fd: raw(&self.fd), file_flags: 0 };
        // SAFETY: `pathname` is a C string that lives through the call, and the kernel only reads it.
        unsafe { bpf(Command::ObjectPin, &mut attributes) }.map(drop).map_err(error)
    }

    /// What the kernel tells of it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn info(&self) -> Result<ProgramInfo, BpfError> {
        let info: RawInfo = super::info(&self.fd)
            .map_err(|error| BpfError::new(format!("asking about the program '{}'", self.name), error))?;
        Ok(ProgramInfo { id: info.id, kind: info.kind, name: super::kept_name(info.name) })
    }

    /// Runs it on a packet in the kernel, without an interface.
    ///
    /// # Errors
    /// What the kernel says: `EINVAL` for a packet too short or too long.
    pub fn test_run(&self, input: &TestInput<'_>) -> Result<TestOutput, BpfError> {
        let what = || format!("running the program '{}'", self.name);
        let too_long = |_| BpfError::new(what(), io::ErrorKind::InvalidInput.into());
        // A program may make a packet longer, by at most the rest of the page that it is in.
        let mut packet = if input.live { Vec::new() } else { vec![0; input.packet.len() + 4096] };
        let mut attributes = TestAttributes {
            prog_fd: raw(&self.fd),
            data_size_in: u32::try_from(input.packet.len()).map_err(too_long)?,
            data_in: address(input.packet.as_ptr()),
            data_size_out: u32::try_from(packet.len()).map_err(too_long)?,
            data_out: if input.live { 0 } else { address(packet.as_mut_ptr()) },
            repeat: input.repeat,
            ctx_size_in: u32::try_from(input.context.len()).map_err(too_long)?,
            ctx_in: if input.context.is_empty() { 0 } else { address(input.context.as_ptr()) },
            flags: if input.live { LIVE_FRAMES } else { 0 },
            batch_size: input.batch,
            ..TestAttributes::default()
        };
        // SAFETY: each pointer is a slice's own with its own length beside it, or zero with length zero; the output
        // buffer is exclusively ours and the kernel writes at most `data_size_out` bytes.
        unsafe { bpf(Command::ProgramTestRun, &mut attributes) }
            .map_err(|error| BpfError::new(what(), error))?;
        packet.truncate(attributes.data_size_out as usize);
        let duration = Duration::from_nanos(attributes.duration.into());
        Ok(TestOutput { verdict: attributes.retval, duration, packet })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Program {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// The numbers of all loaded programs.
///
/// # Errors
/// What the kernel says; a missing right is named.
pub fn program_ids() -> Result<Vec<u32>, BpfError> {
    super::ids(Command::ProgramNextId).map_err(|error| BpfError::new("listing programs", error))
}

/// Loads once more, for the log: a load that is expected to succeed is not slowed down by writing one.
fn verifier_log(attributes: &LoadAttributes) -> String {
    for size in LOG_SIZES {
        let mut log = vec![0_u8; size];
        let mut attributes = LoadAttributes {
            log_level: 1,
            log_size: u32::try_from(size).unwrap_or_default(),
            log_buf: address(log.as_mut_ptr()),
            ..attributes.clone()
        };
        // SAFETY: as in `load`, where these attributes come from; `log` is ours and as long as `log_size` says.
        match unsafe { bpf(Command::ProgramLoad, &mut attributes) } {
            Ok(fd) => drop(own(fd)),
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => continue,
            Err(_) => {}
        }
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(size);
        let from = end.saturating_sub(LOG_SHOWN);
        return String::from_utf8_lossy(&log[from..end]).trim_end().into();
    }
    String::new()
}
