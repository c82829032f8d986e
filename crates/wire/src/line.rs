//! What a packet costs on an Ethernet link, and how many fit in a second (IEEE 802.3).
//!
//! A frame's length is given as programs see it: from the destination address to the payload's end, without the four
//! bytes of frame check sequence (FCS). Rates that forget a part of what is on the wire are the usual error here, so
//! this is the only place that knows the parts.

/// Shortest frame, without FCS: what is shorter is padded.
pub const MIN_FRAME: u32 = 60;

/// Frame check sequence.
pub const FCS: u32 = 4;

/// Preamble and start delimiter (8 bytes) and the shortest gap between frames (12).
pub const PREAMBLE_AND_GAP: u32 = 20;

/// Bytes of the link that a frame takes: padding, FCS, preamble and gap included.
pub const fn wire_bytes(frame: u32) -> u32 {
    let padded = if frame < MIN_FRAME { MIN_FRAME } else { frame };
    padded + FCS + PREAMBLE_AND_GAP
}

/// Frames of this length that a link carries in a second.
pub fn packets_per_second(link_bits: u64, frame: u32) -> f64 {
    link_bits as f64 / l1_bits(frame)
}

/// Bits of the link that a frame takes: what a rate in L1 bit/s counts.
pub fn l1_bits(frame: u32) -> f64 {
    f64::from(wire_bytes(frame)) * 8.0
}

/// Bits of a frame with its padding and FCS: what a rate in L2 bit/s counts.
pub fn l2_bits(frame: u32) -> f64 {
    f64::from(wire_bytes(frame) - PREAMBLE_AND_GAP) * 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_takes_more_than_its_bytes() {
        assert_eq!([0, 59, 60, 61, 1514].map(wire_bytes), [84, 84, 84, 85, 1538]);
        assert_eq!((l1_bits(60), l2_bits(60)), (672.0, 512.0));
    }

    #[test]
    fn known_rates_of_ten_gigabit() {
        for (frame, rate) in [(60, 14_880_952.0), (74, 12_755_102.0), (142, 7_530_120.0), (1514, 812_743.0)] {
            let computed = packets_per_second(10_000_000_000, frame);
            assert_eq!(computed.floor(), rate, "{frame}");
        }
        let hundred = packets_per_second(100_000_000_000, 60) / packets_per_second(10_000_000_000, 60);
        assert!((hundred - 10.0).abs() < 1e-9);
    }
}
