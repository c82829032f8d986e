//! What the NIC does to a packet before it sends it: VLAN tag, checksums, segments.

use bywash_hw::ixgbe::desc::{context, tx};
use bywash_hw::ixgbe::regs::{DTXTCPFLGH, DTXTCPFLGL};
use bywash_wire::checksum::Sum;

use super::file::File;
use super::parse::UDP;

/// A packet's first data descriptor and the context it names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) data: [u32; 4],
    pub(super) context: [u32; 4],
}

/// Where a packet's headers begin and end, in bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    ip: usize,
    l4: usize,
    payload: usize,
}

impl Order {
    fn wants(&self, field: bywash_hw::reg::Field) -> bool {
        field.is_set(self.data[3])
    }

    fn layout(&self) -> Layout {
        let ip = context::MACLEN.of(self.context[0]) as usize;
        let l4 = ip + context::IPLEN.of(self.context[0]) as usize;
        Layout { ip, l4, payload: l4 + context::L4LEN.of(self.context[3]) as usize }
    }

    /// Does all that the descriptors ask for. Appends the frames to send, to none.
    ///
    /// # Errors
    /// What about the descriptors makes no sense.
    pub(super) fn carry_out(
        &self,
        file: &File,
        mut packet: Vec<u8>,
        frames: &mut Vec<Vec<u8>>,
    ) -> Result<(), &'static str> {
        let segment = tx::TSE.is_set(self.data[2]);
        let layout = self.layout();
        if segment || self.wants(tx::TXSM) || self.wants(tx::IXSM) {
            self.check_lengths(layout)?;
        }
        let payload = tx::PAYLEN.of(self.data[3]) as usize;
        if segment {
            if packet.len() != layout.payload + payload {
                return Err("PAYLEN is not the packet's length without headers");
            }
            if context::L4T.of(self.context[2]) != context::L4T_TCP || layout.payload < layout.l4 + 20 {
                return Err("only TCP is cut into segments, with a header of 20 bytes at least");
            }
        } else if payload != packet.len() {
            return Err("PAYLEN is not the packet's length");
        }
        if segment {
            self.segments(file, &packet, layout, frames)?;
        } else {
            if self.wants(tx::TXSM) {
                self.insert_l4(&mut packet, layout)?;
            }
            if self.wants(tx::IXSM) {
                insert_ipv4(&mut packet, layout)?;
            }
            frames.push(packet);
        }
        if tx::VLE.is_set(self.data[2]) {
            let [high, low] = u16::try_from(context::VLAN.of(self.context[0])).unwrap_or(0).to_be_bytes();
            frames.iter_mut().for_each(|frame| insert_tag(frame, [high, low]));
        }
        Ok(())
    }

    /// The lengths of headers that any offload wants (82598 manual, 3.5.3.3, where a tag to be put in counts, and the transport
    /// header's length in segmentation alone).
    fn check_lengths(&self, layout: Layout) -> Result<(), &'static str> {
        let tag = if tx::VLE.is_set(self.data[2]) { 4 } else { 0 };
        let end = if tx::TSE.is_set(self.data[2]) { layout.payload } else { layout.l4 };
        if layout.ip < 14 || layout.l4 < layout.ip + 6 {
            return Err("MACLEN of less than 14 bytes or IPLEN of less than 6, with an offload");
        }
        if end + tag >= 512 {
            return Err("headers of 512 bytes or more, with an offload");
        }
        Ok(())
    }

    fn insert_l4(&self, packet: &mut [u8], layout: Layout) -> Result<(), &'static str> {
        let offset = match context::L4T.of(self.context[2]) {
            context::L4T_TCP => 16,
            context::L4T_UDP => 6,
            context::L4T_SCTP => {
                let segment = packet.get_mut(layout.l4..).filter(|segment| segment.len() >= 12);
                let segment = segment.ok_or("no SCTP header where the context says")?;
                segment[8..12].fill(0);
                let crc = crc32c(segment).to_le_bytes();
                segment[8..12].copy_from_slice(&crc);
                return Ok(());
            }
            _ => return Err("L4T is reserved"),
        };
        let segment = packet.get_mut(layout.l4..).filter(|segment| segment.len() >= offset + 2);
        let segment = segment.ok_or("no transport header where the context says")?;
        // The field holds the pseudo-header's sum already.
        let mut checksum = Sum::new().bytes(segment).checksum();
        if checksum == 0 && offset == 6 {
            checksum = 0xffff;
        }
        segment[offset..offset + 2].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }

    fn segments(
        &self,
        file: &File,
        packet: &[u8],
        layout: Layout,
        frames: &mut Vec<Vec<u8>>,
    ) -> Result<(), &'static str> {
        let mss = context::MSS.of(self.context[3]) as usize;
        if mss == 0 || packet.len() <= layout.payload {
            return Err("segments of no bytes");
        }
        let headers = packet.get(..layout.payload).ok_or("headers are longer than the packet")?;
        let ipv4 = context::IPV4.is_set(self.context[2]);
        let count = (packet.len() - layout.payload).div_ceil(mss);
        for (i, payload) in packet[layout.payload..].chunks(mss).enumerate() {
            let mut frame = [headers, payload].concat();
            let length = frame.len() - layout.l4;
            let whole = frame.len() - layout.ip;
            if ipv4 {
                if layout.l4 < layout.ip + 20 {
                    return Err("an IPv4 header of less than 20 bytes");
                }
                put(&mut frame, layout.ip + 2, whole);
                let id = usize::from(u16::from_be_bytes([frame[layout.ip + 4], frame[layout.ip + 5]]));
                put(&mut frame, layout.ip + 4, id + i);
            } else {
                if layout.l4 < layout.ip + 40 {
                    return Err("an IPv6 header of less than 40 bytes");
                }
                put(&mut frame, layout.ip + 4, whole - 40);
            }
            let tcp = &mut frame[layout.l4..];
            let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
            let ahead = u32::try_from(i * mss).unwrap_or(0);
            tcp[4..8].copy_from_slice(&sequence.wrapping_add(ahead).to_be_bytes());
            let keep = match i {
                _ if i + 1 == count => DTXTCPFLGH::LAST.of(file.one(&DTXTCPFLGH)),
                0 => DTXTCPFLGL::FIRST.of(file.one(&DTXTCPFLGL)),
                _ => DTXTCPFLGL::MIDDLE.of(file.one(&DTXTCPFLGL)),
            };
            let keep = u16::try_from(keep | 0xf000).unwrap_or(u16::MAX);
            let flags = u16::from_be_bytes([tcp[12], tcp[13]]) & keep;
            tcp[12..14].copy_from_slice(&flags.to_be_bytes());
            // The pseudo-header's sum in the field is without the length.
            let length = u16::try_from(length).map_err(|_| "segments of more than 65535 bytes")?;
            let checksum = Sum::new().word(length).bytes(tcp).checksum();
            tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
            if ipv4 {
                insert_ipv4(&mut frame, layout)?;
            }
            frames.push(frame);
        }
        Ok(())
    }
}

/// Puts the low 16 bits of a number into a frame, in network byte order.
fn put(frame: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value & 0xffff).unwrap_or(0);
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn insert_ipv4(packet: &mut [u8], layout: Layout) -> Result<(), &'static str> {
    let header = packet.get_mut(layout.ip..layout.l4).filter(|header| header.len() >= 20);
    let header = header.ok_or("no IPv4 header where the context says")?;
    header[10..12].fill(0);
    let checksum = Sum::new().bytes(header).checksum();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// Puts an 802.1Q tag behind the addresses.
pub(super) fn insert_tag(frame: &mut Vec<u8>, tag: [u8; 2]) {
    if frame.len() >= 12 {
        frame.splice(12..12, [0x81, 0, tag[0], tag[1]]);
    }
}

/// What a legacy descriptor's IC asks for: the sum from `start` to the end, put at `offset`.
pub(super) fn insert_legacy(packet: &mut [u8], start: usize, offset: usize) -> Result<(), &'static str> {
    if start >= packet.len() || offset + 2 > packet.len() {
        return Err("CSS or CSO lies outside the packet");
    }
    let checksum = Sum::new().bytes(&packet[start..]).checksum();
    let udp = packet.get(23) == Some(&UDP);
    let checksum = if checksum == 0 && udp { 0xffff } else { checksum };
    packet[offset..offset + 2].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// SCTP's checksum (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_nine_digits() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
