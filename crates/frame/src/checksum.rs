//! Completing a checksum in software, for ports that cannot.

use bywash_wire::checksum::Sum;
use crc::{CRC_32_ISCSI, Crc};

use crate::{Checksum, Packet};

/// A packet's [`Checksum::Partial`] names bytes that the packet does not have. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the checksum's place lies outside the packet")]
pub struct NoPlace;

/// Where SCTP has its checksum (RFC 9260, 3.1); nothing else that the kernel leaves open lies there (TCP's is at 16, UDP's at 6).
const OF_SCTP: u16 = 8;

/// SCTP's sum (RFC 9260, 6.8), which has nothing in front of the header, and stands in the packet with its lowest byte first.
static CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

impl Packet {
    /// Does what [`Checksum::Partial`] asks for, over all frames, and leaves [`Checksum::Unknown`]: the bytes can go as
    /// they are. Any other state stays as it is.
    ///
    /// It is for whoever sends a packet by a port without checksum offload. A sum of 0 is written as 0xffff, as RFC 768
    /// wants it for UDP; for TCP the two mean the same (RFC 1071). SCTP gets its CRC32c.
    ///
    /// # Errors
    /// [`NoPlace`] when the packet is shorter than the offsets say, or the place lies behind its own frames.
    pub fn complete_checksum(&mut self) -> Result<(), NoPlace> {
        let Checksum::Partial { start, offset } = self.offload.checksum() else { return Ok(()) };
        let (start, place) = (usize::from(start), usize::from(start) + usize::from(offset));
        if self.asks_for_crc() {
            self.put(place, [0; 4])?;
            let crc = self.crc_from(start);
            self.put(place, crc.to_le_bytes())?;
        } else {
            let sum = match !self.sum_from(start) {
                0 => 0xffff_u16,
                sum => sum,
            };
            self.put(place, sum.to_be_bytes())?;
        }
        self.offload.set_checksum(Checksum::Unknown);
        Ok(())
    }

    /// Whether what [`Checksum::Partial`] asks for is SCTP's CRC32c, which no port of ours fills in: to them the
    /// state means a sum of 16-bit words.
    #[inline]
    pub fn asks_for_crc(&self) -> bool {
        matches!(self.offload.checksum(), Checksum::Partial { offset: OF_SCTP, .. })
    }

    /// Writes bytes, which may lie in several frames, if they are the packet's own.
    fn put<const N: usize>(&mut self, place: usize, bytes: [u8; N]) -> Result<(), NoPlace> {
        let own: usize = self.own_segments_mut().map(|segment| segment.bytes_mut().len()).sum();
        if place + N > own {
            return Err(NoPlace);
        }
        let mut at = 0;
        for segment in self.own_segments_mut() {
            let there = segment.bytes_mut();
            for (place, byte) in (place..).zip(bytes) {
                if let Some(to) = place.checked_sub(at).and_then(|i| there.get_mut(i)) {
                    *to = byte;
                }
            }
            at += there.len();
        }
        Ok(())
    }

    /// The bytes from `start` to the end.
    fn pieces_from(&self, start: usize) -> impl Iterator<Item = &[u8]> {
        let mut skip = start;
        self.slices().map(move |bytes| {
            let wanted = &bytes[skip.min(bytes.len())..];
            skip -= bytes.len() - wanted.len();
            wanted
        })
    }

    /// CRC32c from `start` to the end.
    #[cold]
    fn crc_from(&self, start: usize) -> u32 {
        let mut digest = CRC32C.digest();
        self.pieces_from(start).for_each(|bytes| digest.update(bytes));
        digest.finalize()
    }

    /// Ones' complement sum of the 16-bit words from `start` to the end.
    fn sum_from(&self, start: usize) -> u16 {
        self.pieces_from(start).fold(Sum::new(), Sum::bytes).partial()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Arena, FRAME_SIZE, Pool, Segment};

    fn pool() -> Pool {
        Arena::new(vec![0; 64 * FRAME_SIZE]).unwrap().pool(60).unwrap()
    }

    /// A packet with `bytes` in frames that are cut at `cuts`.
    fn packet(bytes: &[u8], cuts: &[usize], pool: &mut Pool) -> Packet {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % bytes.len()).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut pieces = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]);
        let mut packet = Packet::new(pool.take().unwrap());
        packet.extend_from_slice(pieces.next().unwrap()).unwrap();
        for piece in pieces {
            packet.push_segment(Segment::new(pool.take().unwrap(), 7, 0).unwrap(), pool).unwrap();
            packet.extend_from_slice(piece).unwrap();
        }
        packet
    }

    #[test]
    fn a_known_datagram_gets_its_known_checksum() {
        // UDP 10.0.0.1:1 -> 10.0.0.2:2, "abc", by hand: pseudo-header 1417 (hex), and 0001 0002 000b 6162 6300.
        let mut pool = pool();
        let mut packet = packet(&[0, 1, 0, 2, 0, 11, 0x14, 0x1f, b'a', b'b', b'c'], &[], &mut pool);
        packet.offload.set_checksum(Checksum::Partial { start: 0, offset: 6 });
        packet.complete_checksum().unwrap();
        let sum: u32 = [0x0001, 0x0002, 0x000b, 0x141f, 0x6162, 0x6300].iter().sum();
        let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        assert_eq!(packet.head()[6..8], sum.to_be_bytes());
        assert_eq!(packet.offload.checksum(), Checksum::Unknown);
        pool.give_packet(packet);
    }

    #[test]
    fn a_sum_of_nothing_but_ones_is_written_as_all_ones() {
        let mut pool = pool();
        let mut packet = packet(&[0xff, 0xff, 0, 0], &[], &mut pool);
        packet.offload.set_checksum(Checksum::Partial { start: 0, offset: 2 });
        packet.complete_checksum().unwrap();
        assert_eq!(packet.head(), [0xff; 4]);
        pool.give_packet(packet);
    }

    #[test]
    fn an_sctp_packet_gets_a_crc_over_all_its_frames() {
        let mut pool = pool();
        for cuts in [&[][..], &[14 + 10][..], &[3, 14 + 9, 14 + 11, 40]] {
            let mut bytes = [0; 14 + 32];
            bytes[..14].fill(0xee);
            // What stands there already is no part of it.
            bytes[14 + 8..14 + 12].fill(0x55);
            let mut packet = packet(&bytes, cuts, &mut pool);
            packet.offload.set_checksum(Checksum::Partial { start: 14, offset: 8 });
            packet.complete_checksum().unwrap();
            assert_eq!(packet.offload.checksum(), Checksum::Unknown);
            // RFC 3720, B.4: the CRC of 32 bytes of zeroes, as it stands in a packet.
            bytes[14 + 8..14 + 12].copy_from_slice(&[0xaa, 0x36, 0x91, 0x8a]);
            let mut whole = [0; 14 + 32];
            packet.copy_to(&mut whole);
            assert_eq!(whole, bytes, "{cuts:?}");
            pool.give_packet(packet);
        }
    }

    #[test]
    fn a_place_outside_is_refused_and_other_states_are_left_alone() {
        let mut pool = pool();
        let mut packet = packet(&[1; 40], &[20], &mut pool);
        for (start, offset) in [(0, 39), (39, 0), (40, 0), (29, 8), (u16::MAX, u16::MAX)] {
            packet.offload.set_checksum(Checksum::Partial { start, offset });
            assert_eq!(packet.complete_checksum(), Err(NoPlace));
        }
        packet.offload.set_checksum(Checksum::Valid);
        packet.complete_checksum().unwrap();
        assert_eq!(packet.offload.checksum(), Checksum::Valid);
        assert!(packet.slices().all(|bytes| bytes == [1; 20]));
        pool.give_packet(packet);
    }

    proptest! {
        /// However the bytes are spread over frames, what a receiver sums, the pseudo-header included, is all ones.
        #[test]
        fn the_sum_holds_for_every_cut(
            bytes in prop::collection::vec(any::<u8>(), 2..200),
            cuts in prop::collection::vec(any::<usize>(), 0..5),
            start in any::<usize>(),
            offset in any::<usize>(),
        ) {
            let mut pool = pool();
            let start = start % (bytes.len() - 1);
            // The place lies on a word's first byte, as it does in every protocol.
            let offset = offset % (bytes.len() - 1 - start) / 2 * 2;
            // SCTP's is no sum of words.
            prop_assume!(offset != usize::from(OF_SCTP));
            let mut packet = packet(&bytes, &cuts, &mut pool);
            packet.offload.set_checksum(Checksum::Partial {
                start: u16::try_from(start).unwrap(),
                offset: u16::try_from(offset).unwrap(),
            });
            packet.complete_checksum().unwrap();
            let mut whole = vec![0; bytes.len()];
            packet.copy_to(&mut whole);
            pool.give_packet(packet);
            let place = start + offset;
            let pseudo_header = &bytes[place..place + 2];
            let sum: u32 = whole[start..]
                .chunks(2)
                .chain([pseudo_header])
                .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low)))
                .sum();
            prop_assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
            prop_assert_eq!(&whole[..place], &bytes[..place]);
            prop_assert_eq!(&whole[place + 2..], &bytes[place + 2..]);
        }
    }
}
