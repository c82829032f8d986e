//! Super-segments for ports that do not cut them, and packets without checksums for ports that do not sum them.

use bywash_frame::{Checksum, Packet, Pool};
use bywash_wire::cut::{Cutter, Super};
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{TcpFlags, TcpHeader};

use crate::packet::append_range;

/// Cuts a super-segment that begins with its link header of `network` bytes into the packets it stands for, and hands
/// them to `send`. Their checksums are finished if `sum` says so. Any other packet is handed on, summed likewise.
///
/// Returns `false`, and gives the packet back, when it is no super-segment that can be cut, or frames have run out:
/// then the pieces that were sent are the first ones.
pub(crate) fn cut(
    mut packet: Packet,
    network: usize,
    sum: bool,
    pool: &mut Pool,
    mut send: impl FnMut(Packet, &mut Pool),
) -> bool {
    let Some(segmentation) = packet.offload.segmentation() else {
        let done = !sum || packet.complete_checksum().is_ok();
        if done {
            send(packet, pool);
        } else {
            pool.give_packet(packet);
        }
        return done;
    };
    let done = cut_up(&packet, network, usize::from(segmentation.size.get()), sum, pool, &mut send);
    pool.give_packet(packet);
    done.is_some()
}

/// Whether a super-segment whose transport header begins at `start` has CWR, and on each of its pieces: no port cuts it so.
#[inline]
pub(crate) fn has_cwr_on_each(packet: &Packet, start: u16) -> bool {
    let header = || TcpHeader::ref_from_prefix(packet.head().get(usize::from(start)..)?).ok();
    packet.offload.cwr_on_each() && header().is_some_and(|(tcp, _)| tcp.flags.has(TcpFlags::CWR))
}

fn cut_up(
    packet: &Packet,
    network: usize,
    size: usize,
    sum: bool,
    pool: &mut Pool,
    send: &mut impl FnMut(Packet, &mut Pool),
) -> Option<()> {
    // Where a checksum is to be finished is where the transport header begins; what has one that is right was put
    // together from pieces, and has plain headers.
    let transport = match packet.offload.checksum() {
        Checksum::Partial { start, .. } => usize::from(start),
        _ => network + crate::ip::network_length(packet.head().get(network..)?)?,
    };
    let cwr_on_each = packet.offload.cwr_on_each();
    let (headers, length) = (packet.head(), packet.len());
    let cutter = Cutter::new(Super { headers, network, transport, length, size, cwr_on_each })?;
    let (start, offset) = cutter.checksum();
    let partial =
        Checksum::Partial { start: u16::try_from(start).ok()?, offset: u16::try_from(offset).ok()? };
    for number in 0..cutter.pieces() {
        let piece = cutter.piece(number);
        let mut cut = Packet::new(pool.take()?);
        cut.offload.set_vlan(packet.offload.vlan());
        cut.offload.set_checksum(partial);
        let built = cut
            .append(&piece.headers[..piece.front], pool)
            .and_then(|()| append_range(&mut cut, packet, piece.payload, pool));
        if built.is_err() || (sum && cut.complete_checksum().is_err()) {
            pool.give_packet(cut);
            return None;
        }
        send(cut, pool);
    }
    Some(())
}
