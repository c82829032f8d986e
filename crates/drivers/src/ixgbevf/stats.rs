//! What the function counts, in 32 or 36 bits.

use bywash_hw::ixgbe::vf::{VFGORC_LSB, VFGORC_MSB, VFGOTC_LSB, VFGOTC_MSB, VFGPRC, VFGPTC, VFMPRC};

use crate::intel::Statistic;

/// All of it.
pub(super) const STATISTICS: [Statistic; 5] = [
    ("rx_good_packets", &VFGPRC, None),
    ("rx_good_bytes", &VFGORC_LSB, Some(&VFGORC_MSB)),
    ("rx_multicast", &VFMPRC, None),
    ("tx_good_packets", &VFGPTC, None),
    ("tx_good_bytes", &VFGOTC_LSB, Some(&VFGOTC_MSB)),
];
