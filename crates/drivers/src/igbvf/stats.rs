//! What the function counts, in 32 bits. Those of packets between functions of one NIC (`inside`) QEMU's model leaves at 0.

use bywash_hw::igb::vf::{VFGORC, VFGORLBC, VFGOTC, VFGOTLBC, VFGPRC, VFGPRLBC, VFGPTC, VFGPTLBC, VFMPRC};

use crate::intel::Statistic;

/// All of it.
pub(super) const STATISTICS: [Statistic; 9] = [
    ("rx_good_packets", &VFGPRC, None),
    ("rx_good_bytes", &VFGORC, None),
    ("rx_multicast", &VFMPRC, None),
    ("rx_inside_packets", &VFGPRLBC, None),
    ("rx_inside_bytes", &VFGORLBC, None),
    ("tx_good_packets", &VFGPTC, None),
    ("tx_good_bytes", &VFGOTC, None),
    ("tx_inside_packets", &VFGPTLBC, None),
    ("tx_inside_bytes", &VFGOTLBC, None),
];
