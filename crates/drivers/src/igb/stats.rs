//! What the NIC counts.

use bywash_hw::igb::regs;

use crate::intel::{Shared, Statistic};

/// All but what is counted in some bits of a register.
pub(super) const STATISTICS: [Statistic; 43] = [
    ("rx_good_packets", &regs::GPRC, None),
    ("rx_good_bytes", &regs::GORCL, Some(&regs::GORCH)),
    ("rx_all_packets", &regs::TPR, None),
    ("rx_all_bytes", &regs::TORL, Some(&regs::TORH)),
    ("rx_broadcast", &regs::BPRC, None),
    ("rx_multicast", &regs::MPRC, None),
    ("rx_64", &regs::PRC64, None),
    ("rx_65_to_127", &regs::PRC127, None),
    ("rx_128_to_255", &regs::PRC255, None),
    ("rx_256_to_511", &regs::PRC511, None),
    ("rx_512_to_1023", &regs::PRC1023, None),
    ("rx_1024_and_more", &regs::PRC1522, None),
    ("rx_no_buffer_space", &regs::MPC, None),
    ("rx_no_buffer", &regs::RNBC, None),
    ("rx_crc_errors", &regs::CRCERRS, None),
    ("rx_alignment_errors", &regs::ALGNERRC, None),
    ("rx_symbol_errors", &regs::SYMERRS, None),
    ("rx_phy_errors", &regs::RXERRC, None),
    ("rx_length_errors", &regs::RLEC, None),
    ("rx_undersize", &regs::RUC, None),
    ("rx_fragments", &regs::RFC, None),
    ("rx_oversize", &regs::ROC, None),
    ("rx_jabber", &regs::RJC, None),
    ("rx_management", &regs::MGTPRC, None),
    ("rx_management_dropped", &regs::MGTPDC, None),
    ("rx_xon", &regs::XONRXC, None),
    ("rx_xoff", &regs::XOFFRXC, None),
    ("tx_good_packets", &regs::GPTC, None),
    ("tx_good_bytes", &regs::GOTCL, Some(&regs::GOTCH)),
    ("tx_all_packets", &regs::TPT, None),
    ("tx_all_bytes", &regs::TOTL, Some(&regs::TOTH)),
    ("tx_broadcast", &regs::BPTC, None),
    ("tx_multicast", &regs::MPTC, None),
    ("tx_cut", &regs::TSCTC, None),
    ("tx_64", &regs::PTC64, None),
    ("tx_65_to_127", &regs::PTC127, None),
    ("tx_128_to_255", &regs::PTC255, None),
    ("tx_256_to_511", &regs::PTC511, None),
    ("tx_512_to_1023", &regs::PTC1023, None),
    ("tx_1024_and_more", &regs::PTC1522, None),
    ("tx_xon", &regs::XONTXC, None),
    ("tx_xoff", &regs::XOFFTXC, None),
    ("tx_management", &regs::MGTPTC, None),
];

/// Of 12 bits: between two looks of a flood it may have counted more than it can hold. So at least as many packets were dropped.
pub(super) const SHARED: [Shared; 1] = [(&regs::RQDPC, &[("rx_no_descriptor", regs::RQDPC::COUNT)])];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_one_of_what_is_counted_by_queue() {
        let queues =
            ["rx_packets", "rx_bytes", "rx_errors", "rx_no_frame", "tx_packets", "tx_bytes", "tx_errors"];
        let own = STATISTICS
            .iter()
            .map(|(name, ..)| name)
            .chain(SHARED.iter().flat_map(|(_, names)| *names).map(|(name, _)| name));
        let taken: Vec<_> = own.filter(|name| queues.contains(name)).collect();
        assert!(taken.is_empty(), "{taken:?} would stand twice");
    }
}
