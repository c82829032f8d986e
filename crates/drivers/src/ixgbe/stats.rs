//! What the NIC counts. Its counters stick at their end, so they are read before the first of them gets there: at full rate those
//! of bytes do after 55 seconds.

use bywash_hw::ixgbe::regs::{self, FDIRFSTAT, FDIRUSTAT};

use crate::intel::{Statistic, Statistics};

/// Bytes and packets that come in a second at most: the shortest packets take 84 bytes of 10 Gb/s, with preamble and gap.
const RATE: (u64, u64) = (10_000_000_000 / 8, 10_000_000_000 / 8 / 84);

// Bytes are counted in 36 bits, packets in 32. In the 50 s that `Settings::watch` gives whoever looks by himself neither sticks.
const _: () = assert!(50 * RATE.0 < 1 << 36 && 50 * RATE.1 < 1 << 32);

/// All of it.
pub(super) const STATISTICS: Statistics = Statistics {
    own: &OWN,
    shared: &[
        (
            &FDIRUSTAT,
            &[("flow_director_added", FDIRUSTAT::ADD), ("flow_director_removed", FDIRUSTAT::REMOVE)],
        ),
        (
            &FDIRFSTAT,
            &[
                ("flow_director_not_added", FDIRFSTAT::FADD),
                ("flow_director_not_removed", FDIRFSTAT::FREMOVE),
            ],
        ),
    ],
    // Linux's ixgbe takes them off, too (`ixgbe_update_stats`), and leaves the bytes as they are.
    twice: &[("rx_good_packets", "rx_no_buffer_space")],
};

/// What has a register for itself.
const OWN: [Statistic; 46] = [
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
    ("rx_no_descriptor", &regs::QPRDC, None),
    ("rx_crc_errors", &regs::CRCERRS, None),
    ("rx_illegal_bytes", &regs::ILLERRC, None),
    ("rx_error_bytes", &regs::ERRBC, None),
    ("rx_mac_short", &regs::MSPDC, None),
    ("rx_length_errors", &regs::RLEC, None),
    ("rx_undersize", &regs::RUC, None),
    ("rx_fragments", &regs::RFC, None),
    ("rx_oversize", &regs::ROC, None),
    ("rx_jabber", &regs::RJC, None),
    ("rx_checksum_errors", &regs::XEC, None),
    ("rx_management", &regs::MNGPRC, None),
    ("rx_management_dropped", &regs::MNGPDC, None),
    ("rx_xon", &regs::LXONRXCNT, None),
    ("rx_xoff", &regs::LXOFFRXCNT, None),
    ("flow_director_matches", &regs::FDIRMATCH, None),
    ("flow_director_misses", &regs::FDIRMISS, None),
    ("local_faults", &regs::MLFC, None),
    ("remote_faults", &regs::MRFC, None),
    ("tx_good_packets", &regs::GPTC, None),
    ("tx_good_bytes", &regs::GOTCL, Some(&regs::GOTCH)),
    ("tx_all_packets", &regs::TPT, None),
    ("tx_broadcast", &regs::BPTC, None),
    ("tx_multicast", &regs::MPTC, None),
    ("tx_64", &regs::PTC64, None),
    ("tx_65_to_127", &regs::PTC127, None),
    ("tx_128_to_255", &regs::PTC255, None),
    ("tx_256_to_511", &regs::PTC511, None),
    ("tx_512_to_1023", &regs::PTC1023, None),
    ("tx_1024_and_more", &regs::PTC1522, None),
    ("tx_management", &regs::MNGPTC, None),
    ("tx_xon", &regs::LXONTXC, None),
    ("tx_xoff", &regs::LXOFFTXC, None),
];
