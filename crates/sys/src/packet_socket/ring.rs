//! The mapped ring of received packets (`TPACKET_V3`): blocks of packets that the kernel and we own in turn.
//!
//! A block is the kernel's or ours by its status word. What the kernel wrote in ours is copied out by the one
//! abstraction for shared memory, and every offset in it is checked against the block before it is followed.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::RingSize;
use crate::shared::{Mapping, Word};
use crate::virtio_header::VirtioHeader;

/// What the kernel wrote in the ring makes no sense: the rest of its block is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring names bytes outside its block")]
pub struct Damaged;

/// `struct tpacket_block_desc` up to `blk_len`.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Block {
    _version: u32,
    _offset_to_priv: u32,
    _status: u32,
    packets: u32,
    first: u32,
    _len: u32,
}

/// Where the block's status lies in it.
const STATUS: usize = 8;

/// `struct tpacket3_hdr`, without its padding.
#[derive(Clone, Copy, Default, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    next: u32,
    seconds: u32,
    nanoseconds: u32,
    captured: u32,
    len: u32,
    status: u32,
    mac: u16,
    _net: u16,
    _hash: u32,
    vlan_tci: u32,
    vlan_tpid: u16,
    _padding: u16,
}

/// The ring of one socket.
#[derive(Debug)]
pub struct RxRing {
    mapping: Arc<Mapping>,
    /// Who has each block.
    status: Box<[Word<AtomicU32>]>,
    block_bytes: usize,
    /// The block we read, or wait for.
    block: usize,
    /// Packets in it that are still to be read; 0 when it is not known to be ours.
    left: u32,
    /// Where in it the next one lies.
    at: usize,
}

impl RxRing {
    pub(super) fn map(socket: BorrowedFd<'_>, size: RingSize) -> io::Result<Self> {
        Self::over(Mapping::of_file(socket, 0, size.bytes())?, size)
    }

    fn over(mapping: Arc<Mapping>, size: RingSize) -> io::Result<Self> {
        let block_bytes = size.block_bytes as usize;
        let status = (0..size.blocks as usize).map(|n| Word::u32_at(&mapping, n * block_bytes + STATUS));
        let status = status.collect::<io::Result<_>>()?;
        Ok(Self { mapping, status, block_bytes, block: 0, left: 0, at: 0 })
    }

    /// Whether a packet is there.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.left > 0
            || self
                .status
                .get(self.block)
                .is_some_and(|s| s.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0)
    }

    /// The packet that is next, or `None` when there is none. [`RxRing::advance`] goes on to the one after it.
    ///
    /// # Errors
    /// [`Damaged`] when what the kernel wrote makes no sense; the next call looks at the next block.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Captured<'_>>, Damaged> {
        // A block without a packet is not expected; at most one turn around the ring.
        for _ in 0..self.status.len() {
            if self.left > 0 {
                break;
            }
            if !self.is_ready() {
                return Ok(None);
            }
            let block: Block = self.read(0).unwrap_or(Block { packets: 0, first: 0, ..BLOCK });
            (self.left, self.at) = (block.packets, block.first as usize);
            if self.left == 0 {
                self.release();
            }
        }
        if self.left == 0 {
            return Ok(None);
        }
        match self.packet() {
            Some((header, virtio)) => Ok(Some(Captured { ring: self, header, virtio })),
            None => {
                self.release();
                Err(Damaged)
            }
        }
    }

    /// Goes on to the next packet; the block goes back to the kernel after its last one.
    #[inline]
    pub fn advance(&mut self) {
        self.left = self.left.saturating_sub(1);
        let next = self.read::<Header>(self.at).map_or(0, |header| header.next as usize);
        self.at += next;
        if self.left == 0 || next == 0 {
            self.release();
        }
    }

    /// The headers of the packet at `at`, when it lies within the block.
    #[inline]
    fn packet(&self) -> Option<(Header, VirtioHeader)> {
        let header: Header = self.read(self.at)?;
        let data = self.at + usize::from(header.mac);
        let virtio = self.read(data.checked_sub(size_of::<VirtioHeader>())?)?;
        (data + header.captured as usize <= self.block_bytes).then_some((header, virtio))
    }

    /// A copy of what lies at an offset of our block.
    #[inline]
    fn read<T: FromBytes + Copy>(&self, at: usize) -> Option<T> {
        let inside = at.checked_add(size_of::<T>()).is_some_and(|end| end <= self.block_bytes);
        inside.then(|| self.mapping.read(self.block * self.block_bytes + at)).flatten()
    }

    /// Gives our block to the kernel.
    fn release(&mut self) {
        if let Some(status) = self.status.get(self.block) {
            // Release: all that was read of the block was read before.
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.left = 0;
        self.block = if self.block + 1 == self.status.len() { 0 } else { self.block + 1 };
    }
}

const BLOCK: Block = Block { _version: 0, _offset_to_priv: 0, _status: 0, packets: 0, first: 0, _len: 0 };

/// A packet in the ring.
pub struct Captured<'a> {
    ring: &'a RxRing,
    header: Header,
    virtio: VirtioHeader,
}

impl Captured<'_> {
    /// Bytes that are in the ring.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no packet is empty")]
    pub fn len(&self) -> usize {
        self.header.captured as usize
    }

    /// Whether the packet was longer than a block.
    #[inline]
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.header.captured < self.header.len
    }

    /// What is known of its checksum and segmentation; offsets are those of the bytes here, without the VLAN tag.
    #[inline]
    #[must_use]
    pub fn virtio_header(&self) -> VirtioHeader {
        self.virtio
    }

    /// The VLAN tag that the kernel took out behind the two addresses: protocol (0x8100, 0x88a8) and control information.
    #[inline]
    #[must_use]
    pub fn vlan(&self) -> Option<(u16, u16)> {
        if self.header.status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let named = self.header.status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let protocol = if named { self.header.vlan_tpid } else { ETH_P_8021Q };
        Some((protocol, u16::try_from(self.header.vlan_tci & 0xffff).unwrap_or(0)))
    }

    /// When it was received, in nanoseconds of `CLOCK_REALTIME`.
    #[inline]
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        u64::from(self.header.seconds) * 1_000_000_000 + u64::from(self.header.nanoseconds)
    }

    /// Copies bytes out, from byte `from` on; those that the ring does not have are left as they are.
    #[inline]
    pub fn copy_to(&self, from: usize, to: &mut [u8]) {
        let n = to.len().min(self.len().saturating_sub(from));
        let ring = self.ring;
        let at = ring.block * ring.block_bytes + ring.at + usize::from(self.header.mac) + from;
        // `packet` has checked that all `len` bytes lie in the block.
        ring.mapping.copy_out(at, &mut to[..n]);
    }
}

const ETH_P_8021Q: u16 = 0x8100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Slots;

    const SIZE: RingSize = RingSize { block_bytes: 4096, blocks: 2, retire_ms: 1 };

    /// A ring whose other side is the test: 32-bit words of the host's order.
    fn ring() -> (RxRing, Slots<u32>) {
        let mapping = Mapping::anonymous(SIZE.bytes()).unwrap();
        let words = Slots::new(&mapping, 0, 2048).unwrap();
        (RxRing::over(mapping, SIZE).unwrap(), words)
    }

    /// Hands a block over that says it has `packets`, the first at byte `first`.
    fn hand_over(words: &mut Slots<u32>, block: u32, packets: u32, first: u32) {
        let at = block * 1024;
        words.write(at + 3, packets);
        words.write(at + 4, first);
        words.write(at + 2, libc::TP_STATUS_USER);
    }

    /// Writes the header of a packet at byte `at`: `next`, and `len` bytes of data at byte 80 of it.
    fn put(words: &mut Slots<u32>, at: u32, next: u32, len: u32) {
        let status = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        let addresses =
            u32::from_ne_bytes([80_u16.to_ne_bytes(), 94_u16.to_ne_bytes()].concat().try_into().unwrap());
        let tpid = u32::from_ne_bytes([0x88a8_u16.to_ne_bytes(), [0; 2]].concat().try_into().unwrap());
        let header = [next, 3, 5, len, len, status, addresses, 0, 0x1_2003, tpid];
        for (word, value) in (at / 4..).zip(header) {
            words.write(word, value);
        }
        words.write(at / 4 + 20, 0x0102_0304 + at);
    }

    #[test]
    fn packets_are_read_in_order_and_blocks_go_back() {
        let (mut ring, mut words) = ring();
        assert!(!ring.is_ready() && ring.peek().unwrap().is_none());
        for turn in 0..3 {
            for block in 0..2 {
                let base = block * 4096;
                put(&mut words, base + 48, 160, 60);
                put(&mut words, base + 208, 0, 61);
                hand_over(&mut words, block, 2, 48);
                for (at, len) in [(48, 60), (208, 61)] {
                    assert!(ring.is_ready());
                    let captured = ring.peek().unwrap().unwrap();
                    assert_eq!((captured.len(), captured.is_cut()), (len, false), "turn {turn}");
                    assert_eq!(
                        (captured.timestamp(), captured.vlan()),
                        (3_000_000_005, Some((0x88a8, 0x2003)))
                    );
                    let mut bytes = [0xee; 64];
                    captured.copy_to(0, &mut bytes);
                    assert_eq!(bytes[..4], (0x0102_0304 + base + at).to_ne_bytes());
                    assert_eq!(bytes[len..], [0xee; 64][len..], "no byte behind the packet");
                    ring.advance();
                }
                assert_eq!(words.read(block * 1024 + 2), libc::TP_STATUS_KERNEL);
                assert!(!ring.is_ready());
            }
        }
    }

    #[test]
    fn what_lies_outside_its_block_is_damage_and_the_block_goes_back() {
        type Put = fn(&mut Slots<u32>);
        let damaged: [(u32, Put); 5] = [
            (4090, |_| ()),
            (u32::MAX, |_| ()),
            (48, |words| put(words, 48, 0, 4096 - 48 - 79)),
            (48, |words| put(words, 48, 0, u32::MAX)),
            // The data begins before the header that must be in front of it.
            (0, |words| words.write(6, 0)),
        ];
        for (first, put) in damaged {
            let (mut ring, mut words) = ring();
            put(&mut words);
            hand_over(&mut words, 0, 1, first);
            assert_eq!(ring.peek().map(|_| ()), Err(Damaged), "a packet at {first}");
            assert_eq!(words.read(2), libc::TP_STATUS_KERNEL);
            assert!(ring.peek().unwrap().is_none(), "it waits for the next block");
        }
    }

    #[test]
    fn a_count_that_promises_more_packets_than_there_are_ends() {
        let (mut ring, mut words) = ring();
        put(&mut words, 48, 0, 60);
        hand_over(&mut words, 0, u32::MAX, 48);
        assert!(ring.peek().unwrap().is_some());
        ring.advance();
        assert_eq!((words.read(2), ring.is_ready()), (libc::TP_STATUS_KERNEL, false));
        // Blocks without packets: at most one turn around the ring.
        hand_over(&mut words, 0, 0, 48);
        hand_over(&mut words, 1, 0, 48);
        assert!(ring.peek().unwrap().is_none());
    }
}
