//! A function's configuration space, as sysfs has it; and who has the function without VFIO: whoever has a lock on it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use super::Device;

/// Offset of the command register.
pub(crate) const COMMAND: u64 = 4;
/// Its bit for DMA.
pub(crate) const BUS_MASTER: u16 = 1 << 2;

/// How long whoever has ended may take to let go.
const PATIENCE: Duration = Duration::from_secs(2);

/// Configuration space.
#[derive(Debug)]
pub(crate) struct Config(File);

impl Config {
    /// That of a device, for reading and writing. Only root reads more than its first 64 bytes.
    pub(crate) fn open(device: &Device) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(device.directory().join("config"))?;
        Ok(Self(file))
    }

    /// Takes the function: false when another program has it. It is free again when this, and each process that has got it by a
    /// fork, is gone.
    pub(crate) fn lock(&self) -> io::Result<bool> {
        match self.0.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// As [`Config::lock`], but waits for those that are about to end.
    pub(crate) fn lock_soon(&self) -> io::Result<bool> {
        let begun = Instant::now();
        while !self.lock()? {
            if begun.elapsed() > PATIENCE {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }

    /// Copies bytes from `offset` on.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(to, offset)
    }

    /// Writes bytes from `offset` on.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_all_at(from, offset)
    }

    /// Writes the command register as it is: so a kernel that lets nobody write there says so before anything is changed.
    pub(crate) fn try_to_write(&self) -> io::Result<()> {
        self.write(COMMAND, &self.command()?.to_le_bytes())
    }

    /// No DMA from here on. Nothing is allocated for it.
    pub(crate) fn forbid_dma(&self) -> io::Result<()> {
        let command = self.command()?;
        if command & BUS_MASTER == 0 {
            return Ok(());
        }
        self.write(COMMAND, &(command & !BUS_MASTER).to_le_bytes())
    }

    fn command(&self) -> io::Result<u16> {
        let mut command = [0; 2];
        self.read(COMMAND, &mut command)?;
        Ok(u16::from_le_bytes(command))
    }
}

impl AsFd for Config {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
