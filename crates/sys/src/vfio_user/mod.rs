//! A PCI function behind a Unix socket, by the vfio-user protocol: `vfio-user:SOCKET`.
//!
//! Registers are messages: reads wait for their answer, writes are posted, and both arrive in their order. Pages that the
//! device lets us map are written by plain stores; they are still read by messages, which the device answers when it has
//! done what was stored before, because a mapped register could not clear itself by being read. Memory is given as files,
//! interrupts come as eventfds. When the other side does not answer any more, registers read as ones, as on PCI.

mod connection;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::function::{DeviceAddresses, DmaMemory, Function, FunctionError, Registers};
use crate::shared::{Mapping, Word};
use connection::{Command, Connection};

// Numbers of vfio (linux/vfio.h), which this protocol shares.
const BAR0: u32 = 0;
const CONFIG: u32 = 7;
const MSIX: u32 = 2;
const DEVICE_IS_PCI: u32 = 1 << 1;
const REGION_MAPS: u32 = 1 << 2;
const SPARSE_AREAS: u16 = 1;
const DATA_NONE: u32 = 1 << 0;
const DATA_EVENTFD: u32 = 1 << 2;
const TRIGGER: u32 = 1 << 5;
const READ_WRITE: u32 = 3;

/// Bytes of a region's description without what may follow it.
const REGION_INFO: usize = 32;

/// Addresses that the device is given begin here, and are multiples of a huge page.
const FIRST_ADDRESS: u64 = 1 << 32;
const HUGE_PAGE: u64 = 2 << 20;

/// Most areas of a BAR that are mapped: nobody has more than a few.
const MOST_AREAS: usize = 16;

/// Why a device could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody is there, or nobody who speaks the protocol.
    #[error(
        "{source}; is a device being served at this socket? (cargo run --release -p bywash-models -- ixgbe SOCKET)"
    )]
    Connect {
        /// What failed.
        source: io::Error,
    },
    /// It is no PCI function with registers in BAR 0.
    #[error("the device behind the socket is no PCI function with registers in BAR 0")]
    NotPci,
}

/// A function behind a socket.
#[derive(Debug)]
pub struct VfioUser {
    name: String,
    registers: SocketRegisters,
    /// What is mapped: address and bytes.
    maps: Vec<(u64, u64)>,
    next: u64,
    vectors: u32,
    /// It was told more than to read its registers.
    used: bool,
}

/// Its registers.
#[derive(Clone, Debug)]
pub struct SocketRegisters {
    connection: Arc<Mutex<Connection>>,
    areas: Arc<[Area]>,
}

/// A mapped part of BAR 0.
#[derive(Debug)]
struct Area {
    offsets: Range<u32>,
    words: Box<[Word<AtomicU32>]>,
}

impl VfioUser {
    /// Connects to the device at `path`; `name` is what the user calls it.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(path: &Path, name: &str) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Connect { source };
        let mut connection = Connection::new(path).map_err(failed)?;
        let mut ask = [16_u32, 0, 0, 0].map(u32::to_le_bytes).concat();
        let (info, _) = connection.call(Command::DeviceInfo, &ask, None).map_err(failed)?;
        if word(&info, 4) & DEVICE_IS_PCI == 0 || word(&info, 8) <= CONFIG || word(&info, 12) <= MSIX {
            return Err(ConnectError::NotPci);
        }
        ask = [16_u32, 0, MSIX, 0].map(u32::to_le_bytes).concat();
        let (irqs, _) = connection.call(Command::IrqInfo, &ask, None).map_err(failed)?;
        let vectors = word(&irqs, 12);
        let areas = areas(&mut connection).map_err(failed)?.ok_or(ConnectError::NotPci)?;
        let registers = SocketRegisters { connection: Arc::new(Mutex::new(connection)), areas: areas.into() };
        Ok(Self { name: name.into(), registers, maps: Vec::new(), next: FIRST_ADDRESS, vectors, used: false })
    }

    /// Whether queues' registers are mapped, so that telling the device of packets is no message.
    pub fn is_mapped(&self) -> bool {
        !self.registers.areas.is_empty()
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.registers.lock()
    }

    fn unmap_range(&self, address: u64, bytes: u64) -> io::Result<()> {
        let mut body = [24_u32, 0].map(u32::to_le_bytes).concat();
        body.extend([address, bytes].map(u64::to_le_bytes).concat());
        self.connection().call(Command::DmaUnmap, &body, None).map(|_| ())
    }

    /// Sets the vectors from `start` on: one with a file, or all off.
    fn set_vector(&self, flags: u32, start: u32, count: u32, file: Option<&OwnedFd>) -> io::Result<()> {
        let body = [20, flags | TRIGGER, MSIX, start, count].map(u32::to_le_bytes).concat();
        self.connection().call(Command::SetIrqs, &body, file.map(AsFd::as_fd)).map(|_| ())
    }

    fn set_vectors(&self, count: u16) -> io::Result<Vec<OwnedFd>> {
        if u32::from(count) > self.vectors {
            return Err(io::Error::other(format!("the device has {}", self.vectors)));
        }
        self.set_vector(DATA_NONE, 0, 0, None)?;
        let make = |vector: u16| {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // One by one: servers need not take more than one file with a message.
            self.set_vector(DATA_EVENTFD, vector.into(), 1, Some(&bell))?;
            Ok(bell)
        };
        (0..count).map(make).collect()
    }
}

/// The parts of BAR 0 that may be mapped; `None` when there are no registers there.
fn areas(connection: &mut Connection) -> io::Result<Option<Vec<Area>>> {
    // The description, with what may follow it.
    let mut ask = [4096_u32, 0, BAR0, 0].map(u32::to_le_bytes).concat();
    ask.extend([0; 16]);
    let (info, file) = connection.call(Command::RegionInfo, &ask, None)?;
    let (flags, size, base) = (word(&info, 4), long(&info, 16), long(&info, 24));
    if size == 0 {
        return Ok(None);
    }
    let Some(file) = file.filter(|_| flags & REGION_MAPS != 0) else { return Ok(Some(Vec::new())) };
    let file_bytes = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
    let mut areas = Vec::new();
    for (offset, bytes) in sparse_areas(&info) {
        // What lies beyond the file's end would be a fault when it is touched.
        let end = base.checked_add(offset).and_then(|at| at.checked_add(bytes));
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= size) && bytes % 4 == 0;
        let (Ok(from), Ok(to)) = (u32::try_from(offset), u32::try_from(offset.saturating_add(bytes))) else {
            continue;
        };
        if !inside || end.is_none_or(|end| end > file_bytes) || areas.len() == MOST_AREAS {
            continue;
        }
        let mapping = Mapping::of_file(file.as_fd(), base + offset, (to - from) as usize)?;
        let words = (0..(to - from) as usize).step_by(4).map(|at| Word::u32_at(&mapping, at));
        areas.push(Area { offsets: from..to, words: words.collect::<io::Result<_>>()? });
    }
    Ok(Some(areas))
}

/// Offsets and sizes of the areas in a region's list of capabilities.
fn sparse_areas(info: &[u8]) -> Vec<(u64, u64)> {
    let mut at = word(info, 12) as usize;
    // The list goes forward, so it ends.
    while at >= REGION_INFO && at + 16 <= info.len() {
        let (id, next) = (word(info, at) & 0xffff, word(info, at + 4) as usize);
        if id == u32::from(SPARSE_AREAS) {
            let count = (word(info, at + 8) as usize).min((info.len() - at - 16) / 16);
            return (0..count)
                .map(|i| at + 16 + 16 * i)
                .map(|at| (long(info, at), long(info, at + 8)))
                .collect();
        }
        if next <= at {
            break;
        }
        at = next;
    }
    Vec::new()
}

/// A 32-bit number in a reply; 0 where it is too short.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

/// A 64-bit number in a reply; 0 where it is too short.
fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |eight| u64::from_le_bytes(*eight))
}

/// What an access to a region begins with: offset, region, and how many bytes.
fn access(offset: u64, region: u32, bytes: usize) -> io::Result<[u8; 16]> {
    let count = u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut body = [0; 16];
    body[..8].copy_from_slice(&offset.to_le_bytes());
    body[8..12].copy_from_slice(&region.to_le_bytes());
    body[12..].copy_from_slice(&count.to_le_bytes());
    Ok(body)
}

fn read_region(connection: &mut Connection, region: u32, offset: u64, to: &mut [u8]) -> io::Result<()> {
    let (reply, _) = connection.call(Command::RegionRead, &access(offset, region, to.len())?, None)?;
    let data = reply.get(16..).filter(|data| data.len() == to.len());
    to.copy_from_slice(
        data.ok_or_else(|| io::Error::other("the device sent fewer bytes than were asked for"))?,
    );
    Ok(())
}

impl SocketRegisters {
    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registers for SocketRegisters {
    fn read32(&self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        match read_region(&mut self.lock(), BAR0, offset.into(), &mut bytes) {
            Ok(()) => u32::from_le_bytes(bytes),
            Err(_) => u32::MAX,
        }
    }

    fn write32(&self, offset: u32, value: u32) {
        if let Some(area) = self.areas.iter().find(|area| area.offsets.contains(&offset))
            && let Some(word) = area.words.get(((offset - area.offsets.start) / 4) as usize)
        {
            // After all that was written to memory before.
            word.store(value, Release);
            return;
        }
        let mut body = [0; 20];
        let Ok(head) = access(offset.into(), BAR0, 4) else { return };
        body[..16].copy_from_slice(&head);
        body[16..].copy_from_slice(&value.to_le_bytes());
        // When it fails the device is gone, as the next read says; a posted write on PCI tells nothing either.
        self.lock().post(Command::RegionWrite, &body).ok();
    }
}

impl Function for VfioUser {
    type Registers = SocketRegisters;

    fn name(&self) -> &str {
        &self.name
    }

    fn registers(&self) -> SocketRegisters {
        self.registers.clone()
    }

    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError> {
        let result = read_region(&mut self.connection(), CONFIG, offset, to);
        result.map_err(|source| FunctionError::Config { function: self.name.clone(), offset, source })
    }

    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), FunctionError> {
        self.used = true;
        let result = access(offset, CONFIG, from.len()).and_then(|head| {
            let body = [&head[..], from].concat();
            self.connection().call(Command::RegionWrite, &body, None)
        });
        result.map(|_| ()).map_err(|source| FunctionError::Config {
            function: self.name.clone(),
            offset,
            source,
        })
    }

    fn map(&mut self, memory: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError> {
        self.used = true;
        let (address, bytes) = (self.next, memory.bytes as u64);
        let mut body = [32, READ_WRITE].map(u32::to_le_bytes).concat();
        body.extend([memory.offset, address, bytes].map(u64::to_le_bytes).concat());
        let result = self.connection().call(Command::DmaMap, &body, Some(memory.file));
        result.map_err(|source| FunctionError::Map {
            function: self.name.clone(),
            bytes: memory.bytes,
            source,
        })?;
        self.maps.push((address, bytes));
        self.next = (address + bytes).next_multiple_of(HUGE_PAGE);
        Ok(DeviceAddresses::Linear(address))
    }

    fn unmap(&mut self, address: u64) -> Result<(), FunctionError> {
        let at = self.maps.iter().position(|(first, _)| *first == address);
        let (bytes, result) = match at.map(|at| self.maps.swap_remove(at)) {
            Some((address, bytes)) => (bytes, self.unmap_range(address, bytes)),
            None => (0, Err(io::ErrorKind::NotFound.into())),
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        result.map_err(|source| FunctionError::Map { function: self.name.clone(), bytes, source })
    }

    fn interrupts(&mut self, count: u16) -> Result<Vec<OwnedFd>, FunctionError> {
        self.used = true;
        self.set_vectors(count).map_err(|source| FunctionError::Interrupts {
            function: self.name.clone(),
            wanted: count,
            source,
        })
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        let result = self.connection().call(Command::DeviceReset, &[], None);
        result.map(|_| ()).map_err(|source| FunctionError::Reset { function: self.name.clone(), source })
    }
}

impl Drop for VfioUser {
    /// The device is reset and forgets our memory, also when handles to its registers live on. One that was only looked at
    /// stays as it is.
    fn drop(&mut self) {
        if self.used && self.reset().is_ok() {
            for (address, bytes) in std::mem::take(&mut self.maps) {
                self.unmap_range(address, bytes).ok();
            }
        }
    }
}
