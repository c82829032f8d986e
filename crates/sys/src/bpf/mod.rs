//! A thin layer over bpf(2): maps, programs and links that own their file descriptors.
//!
//! Only what Bywash uses is here. Programs come as instructions made at run time, so there is no ELF, no BTF of
//! their own and nothing to install. Layouts are those of Linux's `include/uapi/linux/bpf.h`.
#![expect(unsafe_code, reason = "the one call of bpf(2), whose attributes carry pointers")]

mod link;
mod map;
mod program;
mod ring;
mod trampoline;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What the names of our XDP programs begin with, by which they are told from others'.
pub const OUR_PROGRAM: &str = "bywash";

pub use link::{Attached, Link, TcxDirection, XdpMode, link_ids};
pub use map::{Map, MapKind, MapSpec, loaded_maps, possible_cpus};
pub use program::{
    LoadError, Program, ProgramInfo, ProgramKind, ProgramSpec, TestInput, TestOutput, program_ids,
};
pub use ring::RingReader;
pub use trampoline::InTrampoline;

/// What a bpf(2) call failed at, and what to do where we know.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}{}", cure(source))]
pub struct BpfError {
    /// What was tried.
    pub what: String,
    /// What the kernel said.
    pub source: io::Error,
}

impl BpfError {
    fn new(what: impl Into<String>, source: io::Error) -> Self {
        Self { what: what.into(), source }
    }

    /// Whether the kernel answered with this errno.
    pub fn is(&self, errno: i32) -> bool {
        self.source.raw_os_error() == Some(errno)
    }
}

/// Rights are what is usually missing; the kernel's own words do not name them.
fn cure(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => ": needs CAP_BPF and CAP_NET_ADMIN (or root)",
        Some(libc::ENOSYS) => ": this kernel has no bpf(2)",
        _ => "",
    }
}

/// How many of the kernel's ticks (`bpf_jiffies64`) pass in `time`, rounded up. The coarse clock moves once per tick,
/// so its resolution is a tick's length.
pub fn jiffies(time: Duration) -> u64 {
    let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    let nanos = u128::try_from(tick.tv_nsec).unwrap_or_default().max(1);
    u64::try_from(time.as_nanos().div_ceil(nanos)).unwrap_or(u64::MAX)
}

/// What the kernel says of its own types and functions, in the BPF Type Format; `None` where it says nothing.
pub fn kernel_types() -> Option<Vec<u8>> {
    std::fs::read("/sys/kernel/btf/vmlinux").ok()
}

/// bpf(2)'s commands, by their numbers in `enum bpf_cmd`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgramLoad = 5,
    ObjectPin = 6,
    ProgramTestRun = 10,
    ProgramNextId = 11,
    MapNextId = 12,
    ProgramFdById = 13,
    MapFdById = 14,
    ObjectInfo = 15,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkFdById = 30,
    LinkNextId = 31,
    LinkDetach = 34,
}

/// Bytes of an object's name, its ending zero included (`BPF_OBJ_NAME_LEN`).
const NAME_LEN: usize = 16;

/// Calls bpf(2).
///
/// # Safety
/// Each pointer in `attributes` must be valid for what `command` does with it, for the length given beside it.
unsafe fn bpf<A: IntoBytes + FromBytes + Immutable>(command: Command, attributes: &mut A) -> io::Result<i32> {
    let bytes = attributes.as_mut_bytes();
    // SAFETY: the attributes are `bytes.len()` initialised bytes that the kernel may write back to; what they point
    // to is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as i32, bytes.as_mut_ptr(), bytes.len()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(result).map_err(io::Error::other) }
}

/// Takes the file descriptor that a creating command returned.
fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: only called on what a command that opens a descriptor has just returned: nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// An object's name as the kernel takes it: letters, digits, `_` and `.`, cut to 15 bytes.
fn object_name(name: &str) -> [u8; NAME_LEN] {
    let mut bytes = [0; NAME_LEN];
    for (to, from) in bytes[..NAME_LEN - 1].iter_mut().zip(name.bytes()) {
        *to = if from.is_ascii_alphanumeric() || matches!(from, b'_' | b'.') { from } else { b'_' };
    }
    bytes
}

#[derive(Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct IdAttributes {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[derive(IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct InfoAttributes {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The numbers of all loaded objects that `next` goes through.
fn ids(next: Command) -> io::Result<Vec<u32>> {
    let (mut ids, mut last) = (Vec::new(), 0);
    loop {
        let mut attributes = IdAttributes { id: last, ..IdAttributes::default() };
        // SAFETY: these attributes carry no pointer.
        match unsafe { bpf(next, &mut attributes) } {
            Ok(_) => {
                last = attributes.next_id;
                ids.push(last);
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
            Err(error) => return Err(error),
        }
    }
}

/// Opens the loaded object with this number.
fn by_id(open: Command, id: u32) -> io::Result<OwnedFd> {
    let mut attributes = IdAttributes { id, ..IdAttributes::default() };
    // SAFETY: these attributes carry no pointer.
    unsafe { bpf(open, &mut attributes) }.map(own)
}

/// What the kernel tells of an object, as far as `T` has room.
fn info<T: Default + IntoBytes + FromBytes + Immutable>(fd: &impl std::os::fd::AsRawFd) -> io::Result<T> {
    let mut info = T::default();
    let mut attributes = InfoAttributes {
        bpf_fd: raw(fd),
        info_len: u32::try_from(size_of::<T>()).unwrap_or_default(),
        info: address(std::ptr::from_mut(&mut info)),
    };
    // SAFETY: `info` is as long as `info_len` says and lives through the call; all pointers in it are zero.
    unsafe { bpf(Command::ObjectInfo, &mut attributes) }?;
    Ok(info)
}

/// A name as the kernel keeps it.
fn kept_name(name: [u8; NAME_LEN]) -> String {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// The file descriptor as the attributes carry it.
#[expect(clippy::cast_sign_loss, reason = "an open descriptor is never negative")]
fn raw(fd: &impl std::os::fd::AsRawFd) -> u32 {
    fd.as_raw_fd() as u32
}

/// An address as the attributes carry it.
fn address<T>(pointer: *const T) -> u64 {
    pointer.addr() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_what_the_kernel_takes() {
        assert_eq!(&object_name("bywash"), b"bywash\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&object_name("a b-c/a-very-long-name"), b"a_b_c_a_very_lo\0");
    }

    #[test]
    fn a_second_has_as_many_ticks_as_kernels_are_built_with() {
        assert!([100, 250, 300, 1000].contains(&jiffies(Duration::from_secs(1))));
        assert_eq!(jiffies(Duration::from_nanos(1)), 1);
    }

    #[test]
    fn a_missing_right_is_named() {
        let error = BpfError::new("making map 'x'", io::Error::from_raw_os_error(libc::EPERM));
        assert!(error.to_string().contains("CAP_BPF"), "{error}");
        assert!(error.is(libc::EPERM));
    }
}
