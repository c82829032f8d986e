//! What the stack does with packets as memory: long ones are put together frame by frame.

use bywash_frame::{NoRoom, Packet, Pool};
use bywash_wire::checksum::Sum;

/// Appends bytes `from..from + len` of another packet.
pub(crate) fn append_range(
    packet: &mut Packet,
    other: &Packet,
    range: std::ops::Range<usize>,
    pool: &mut Pool,
) -> Result<(), NoRoom> {
    slices(other, range).try_for_each(|slice| packet.append(slice, pool))
}

/// Bytes `range` of a packet, frame by frame.
pub(crate) fn slices(packet: &Packet, range: std::ops::Range<usize>) -> impl Iterator<Item = &[u8]> {
    let (mut skip, mut left) = (range.start, range.len());
    packet.slices().filter_map(move |bytes| {
        let from = skip.min(bytes.len());
        let until = (from + left).min(bytes.len());
        skip -= from;
        left -= until - from;
        (until > from).then(|| &bytes[from..until])
    })
}

/// Adds bytes `range` of a packet to a sum.
#[inline(always)]
pub(crate) fn sum(start: Sum, packet: &Packet, range: std::ops::Range<usize>) -> Sum {
    if packet.frames() == 1 {
        // A range beyond the packet is no packet we made or checked; it sums as wrong.
        return start.bytes(packet.head().get(range).unwrap_or_default());
    }
    sum_slices(start, packet, range)
}

#[inline(never)]
fn sum_slices(start: Sum, packet: &Packet, range: std::ops::Range<usize>) -> Sum {
    slices(packet, range).fold(start, Sum::bytes)
}

#[cfg(test)]
mod tests {
    use bywash_frame::Arena;

    use super::*;

    #[test]
    fn long_packets_are_put_together_and_read_back() {
        let mut pool = Arena::new(vec![0; 1 << 20]).unwrap().pool(100).unwrap();
        let bytes: Vec<u8> = (0..20_000u32).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
        let mut packet = Packet::new(pool.take().unwrap());
        for part in bytes.chunks(777) {
            packet.append(part, &mut pool).unwrap();
        }
        assert_eq!(slices(&packet, 0..20_000).collect::<Vec<_>>().concat(), bytes);
        assert_eq!(slices(&packet, 3000..9001).collect::<Vec<_>>().concat(), bytes[3000..9001]);
        assert_eq!(
            sum(Sum::new(), &packet, 1..19_999).checksum(),
            Sum::new().bytes(&bytes[1..19_999]).checksum()
        );
        let mut copy = Packet::new(pool.take().unwrap());
        append_range(&mut copy, &packet, 100..5000, &mut pool).unwrap();
        assert_eq!(slices(&copy, 0..copy.len()).collect::<Vec<_>>().concat(), bytes[100..5000]);
        let mut whole = Packet::new(pool.take().unwrap());
        assert_eq!(whole.append(&vec![0; 90_000], &mut pool), Err(NoRoom), "34 frames are the end");
        for packet in [packet, copy, whole] {
            pool.give_packet(packet);
        }
        assert_eq!(pool.free(), 100);
    }
}
