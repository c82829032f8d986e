//! BPF maps: what a program and user space share.
#![expect(unsafe_code, reason = "keys and values are passed to the kernel by address")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{BpfError, Command, NAME_LEN, address, bpf, object_name, own, raw};
use crate::shared::Mapping;

/// What kind of map, by `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// Values by any key.
    Hash = 1,
    /// Values by index from 0.
    Array = 2,
    /// One value per CPU and index, so that a program counts without atomics.
    PerCpuArray = 6,
    /// As [`MapKind::Hash`]; makes room by forgetting what was used least recently.
    LruHash = 9,
    /// Values by longest matching prefix.
    LpmTrie = 11,
    /// Interfaces by index: where `bpf_redirect_map` sends packets. A value is an interface's number.
    DevMap = 14,
    /// AF_XDP sockets by index: where `bpf_redirect_map` sends packets.
    XskMap = 17,
    /// Records that programs write and one reader reads, see [`RingReader`](super::RingReader). It has no keys, and as many
    /// entries as bytes, a power of two and whole pages.
    RingBuf = 27,
}

/// A map to be made.
#[derive(Clone, Copy, Debug)]
pub struct MapSpec<'a> {
    /// Its kind.
    pub kind: MapKind,
    /// Its name, for `bpftool`; 15 bytes of it are kept.
    pub name: &'a str,
    /// Bytes in a key; 4 for arrays.
    pub key_size: u32,
    /// Bytes in a value.
    pub value_size: u32,
    /// Entries at most; for arrays: exactly.
    pub entries: u32,
    /// User space may map it ([`Map::map_memory`]); for [`MapKind::Array`] only.
    pub mappable: bool,
}

/// A map; it goes away when neither this nor a loaded program holds it.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    name: String,
    kind: MapKind,
    key_size: usize,
    value_size: usize,
    entries: u32,
}

/// `BPF_F_NO_PREALLOC`: what the kernel demands of an LPM trie.
const NO_PREALLOC: u32 = 1 << 0;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;

#[derive(Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct CreateAttributes {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; NAME_LEN],
}

#[derive(IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct ElementAttributes {
    map_fd: u32,
    _pad: u32,
    key: u64,
    /// The value, or where the next key goes.
    value: u64,
    flags: u64,
}

impl Map {
    /// Makes a map, all its values zero.
    ///
    /// # Errors
    /// What the kernel says; a missing right is named.
    pub fn create(spec: &MapSpec<'_>) -> Result<Self, BpfError> {
        let mut flags = 0;
        if spec.mappable {
            flags |= MMAPABLE;
        }
        if spec.kind == MapKind::LpmTrie {
            flags |= NO_PREALLOC;
        }
        let mut attributes = CreateAttributes {
            map_type: spec.kind as u32,
            key_size: spec.key_size,
            value_size: spec.value_size,
            max_entries: spec.entries,
            map_flags: flags,
            name: object_name(spec.name),
            ..CreateAttributes::default()
        };
        // SAFETY: these attributes carry no pointer.
        let fd = unsafe { bpf(Command::MapCreate, &mut attributes) }
            .map_err(|error| BpfError::new(format!("making the map '{}'", spec.name), error))?;
        Ok(Self {
            fd: own(fd),
            name: spec.name.into(),
            kind: spec.kind,
            key_size: spec.key_size as usize,
            value_size: spec.value_size as usize,
            entries: spec.entries,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Entries at most; for arrays: exactly.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Bytes that a lookup writes: one value, or one rounded up to 8 for each possible CPU.
    pub fn lookup_size(&self) -> usize {
        match self.kind {
            MapKind::PerCpuArray => self.value_size.next_multiple_of(8) * possible_cpus(),
            _ => self.value_size,
        }
    }

    /// Sets the value of `key`, made when it is not there.
    ///
    /// # Errors
    /// What the kernel says: `E2BIG` when the map is full or the index too high; `EINVAL` for wrong lengths.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), BpfError> {
        self.check(key, value.len())?;
        self.element(Command::MapUpdate, key, address(value.as_ptr()))
            .map_err(|error| self.error("setting", error))
    }

    /// Puts a socket, program or map at `index`.
    ///
    /// # Errors
    /// As [`Map::update`].
    pub fn update_fd(&self, index: u32, fd: BorrowedFd<'_>) -> Result<(), BpfError> {
        self.update(&index.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes())
    }

    /// Copies the value of `key` to `value`, [`Map::lookup_size`] bytes; false when there is no such key.
    ///
    /// # Errors
    /// What the kernel says; `EINVAL` for wrong lengths.
    pub fn lookup(&self, key: &[u8], value: &mut [u8]) -> Result<bool, BpfError> {
        self.check(key, value.len())?;
        found(self.element(Command::MapLookup, key, address(value.as_mut_ptr())))
            .map_err(|error| self.error("reading", error))
    }

    /// The sum over all CPUs of the value at `index`, word by word: how a per-CPU array's counters are read.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn sum<const WORDS: usize>(&self, index: u32) -> Result<[u64; WORDS], BpfError> {
        let mut values = vec![0; self.lookup_size()];
        let mut sum = [0_u64; WORDS];
        if self.lookup(&index.to_ne_bytes(), &mut values)? {
            for value in values.chunks_exact(self.value_size.next_multiple_of(8)) {
                for (total, word) in sum.iter_mut().zip(value.as_chunks().0) {
                    *total = total.wrapping_add(u64::from_ne_bytes(*word));
                }
            }
        }
        Ok(sum)
    }

    /// Removes `key`; false when it was not there.
    ///
    /// # Errors
    /// What the kernel says: arrays refuse it.
    pub fn delete(&self, key: &[u8]) -> Result<bool, BpfError> {
        self.check(key, self.lookup_size())?;
        found(self.element(Command::MapDelete, key, 0)).map_err(|error| self.error("removing from", error))
    }

    /// The key after `key`, in no particular order; the first one for `None`; `None` after the last.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>, BpfError> {
        if let Some(key) = key {
            self.check(key, self.lookup_size())?;
        }
        let mut next = vec![0; self.key_size];
        let there =
            found(self.element(Command::MapNextKey, key.unwrap_or_default(), address(next.as_mut_ptr())))
                .map_err(|error| self.error("walking", error))?;
        Ok(there.then_some(next))
    }

    /// The values of a mappable array as memory: entry `i` at `i` times the value's size rounded up to 8.
    ///
    /// # Errors
    /// What mmap(2) says: `EPERM` or `EINVAL` for a map not made mappable.
    pub fn map_memory(&self) -> Result<Arc<Mapping>, BpfError> {
        let len = self.value_size.next_multiple_of(8) * self.entries as usize;
        Mapping::of_file(self.fd.as_fd(), 0, len).map_err(|error| self.error("mapping", error))
    }

    /// One element command; an empty `key` is no key.
    fn element(&self, command: Command, key: &[u8], value: u64) -> io::Result<()> {
        let key = if key.is_empty() { 0 } else { address(key.as_ptr()) };
        let mut attributes = ElementAttributes { map_fd: raw(&self.fd), _pad: 0, key, value, flags: 0 };
        // SAFETY: the callers checked that the key has the map's key size and that `value` has the size this map's
        // lookup writes or update reads (`check`); `next_key` gives a key's size; deleting takes no value.
        unsafe { bpf(command, &mut attributes) }.map(drop)
    }

    /// The kernel reads and writes by the map's own sizes: slices of other lengths must not get there.
    fn check(&self, key: &[u8], value_len: usize) -> Result<(), BpfError> {
        if key.len() == self.key_size && value_len == self.lookup_size() {
            return Ok(());
        }
        let (key_size, value_size) = (self.key_size, self.lookup_size());
        let why =
            format!("a key has {key_size} bytes, not {}; a value {value_size}, not {value_len}", key.len());
        Err(self.error("using", io::Error::new(io::ErrorKind::InvalidInput, why)))
    }

    fn error(&self, what: &str, error: io::Error) -> BpfError {
        BpfError::new(format!("{what} the map '{}'", self.name), error)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Map {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// The first part of `struct bpf_map_info`; the kernel fills as much as it is given room for.
#[derive(Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct RawInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    name: [u8; NAME_LEN],
}

/// The numbers of all maps that there are, and their names as far as the kernel keeps them.
///
/// # Errors
/// What the kernel says; a missing right is named.
pub fn loaded_maps() -> Result<Vec<(u32, String)>, BpfError> {
    let error = |error| BpfError::new("listing maps", error);
    let mut maps = Vec::new();
    for id in super::ids(Command::MapNextId).map_err(error)? {
        // One that has gone since it was listed is not there.
        let Ok(fd) = super::by_id(Command::MapFdById, id) else { continue };
        let info: RawInfo = super::info(&fd).map_err(error)?;
        maps.push((id, super::kept_name(info.name)));
    }
    Ok(maps)
}

/// CPUs that may ever come online: a per-CPU map has a value for each. The kernel knows at its start; we ask once, not for each
/// counter.
pub fn possible_cpus() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        count_cpus(&list).unwrap_or(MAX_CPUS)
    })
}

/// What the kernel is built for at most on the machines we run on: too many only wastes bytes, too few would let it
/// write past a buffer's end.
const MAX_CPUS: usize = 8192;

/// How many CPUs a list such as `0-3,8` spans: never fewer than the kernel has values for.
fn count_cpus(list: &str) -> Option<usize> {
    list.trim().rsplit([',', '-']).next()?.parse::<usize>().ok()?.checked_add(1).filter(|n| *n <= MAX_CPUS)
}

/// Turns the errno of a missing key into false.
fn found(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_spans_up_to_its_highest() {
        assert_eq!(count_cpus("0\n"), Some(1));
        assert_eq!(count_cpus("0-1\n"), Some(2));
        assert_eq!(count_cpus("0,2-5"), Some(6));
        assert_eq!(count_cpus(""), None);
        assert_eq!(count_cpus("0-99999999"), None);
        assert!(possible_cpus() >= 1);
    }
}
