//! How a NIC spreads packets over its queues (RSS), as its driver tells: `struct ethtool_rxfh`, and `struct ethtool_rxnfc` for what is
//! hashed of which packets.

use rustix::io::Errno;
use serde::Serialize;

use super::rules::{DATA, RXNFC, request};
use super::{Ethtool, EthtoolError, header, word};

/// How the NIC spreads packets over its queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rss {
    /// The queue for each remainder of the hash.
    pub table: Vec<u32>,
    /// The hash's key.
    pub key: Vec<u8>,
    /// The hash is Toeplitz's, and nothing is done to its input before (`ethtool -X`'s `hfunc` and `xfrm`).
    pub is_toeplitz: bool,
}

impl Rss {
    /// Of a `struct ethtool_rxfh` with so many entries that the kernel has filled in.
    fn told(told: &[u8], entries: usize) -> Self {
        let (head, rest) = told.split_at(RSS_HEADER);
        let (table, key) = rest.split_at(entries * 4);
        Self {
            table: (0..entries).map(|i| word(table, i)).collect(),
            key: key.to_vec(),
            // Before Linux 6.8 the transformation was a reserved byte, which is 0.
            is_toeplitz: head[HASH_FUNCTION] == ETH_RSS_HASH_TOP && head[INPUT_TRANSFORMATION] == 0,
        }
    }
}

/// Packets that are hashed by the same fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowType {
    /// TCP on IPv4.
    TcpV4,
    /// TCP on IPv6.
    TcpV6,
}

impl FlowType {
    /// `TCP_V4_FLOW` and so on.
    fn number(self) -> u32 {
        match self {
            Self::TcpV4 => 1,
            Self::TcpV6 => 5,
        }
    }
}

impl Ethtool {
    /// Whether both addresses and both ports of such packets are hashed for RSS, and nothing else.
    ///
    /// # Errors
    /// When its driver does not say.
    pub fn hashes_flows(&self, interface: &str, kind: FlowType) -> Result<bool, EthtoolError> {
        let mut request = request(GRXFH, RXNFC);
        request[4..8].copy_from_slice(&kind.number().to_ne_bytes());
        // SAFETY: the kernel reads and writes one struct, which the buffer holds.
        unsafe { self.call(interface, "tell what it hashes", &mut request) }?;
        Ok([word(&request, DATA / 4), word(&request, DATA / 4 + 1)] == [ADDRESSES_AND_PORTS, 0])
    }

    /// How it spreads packets over its queues.
    ///
    /// # Errors
    /// When its driver does not.
    pub fn rss(&self, interface: &str) -> Result<Rss, EthtoolError> {
        let what = "tell its RSS table";
        let mut request = vec![0; RSS_HEADER];
        request[..4].copy_from_slice(&GRSSH.to_ne_bytes());
        // SAFETY: with sizes of 0 the kernel writes the header only, which the buffer holds.
        unsafe { self.call(interface, what, &mut request) }?;
        let (entries, key) = (word(&request, 2) as usize, word(&request, 3) as usize);
        if entries > RSS_MAX || key > RSS_MAX {
            return Err(EthtoolError::Refused {
                interface: interface.into(),
                what: what.into(),
                errno: Errno::RANGE,
            });
        }
        let mut request = vec![0; RSS_HEADER + entries * 4 + key];
        request[..4].copy_from_slice(&GRSSH.to_ne_bytes());
        request[8..12].copy_from_slice(&u32::try_from(entries).unwrap_or_default().to_ne_bytes());
        request[12..16].copy_from_slice(&u32::try_from(key).unwrap_or_default().to_ne_bytes());
        // SAFETY: the kernel writes the header, the table and the key of the sizes in the request, or refuses when
        // they are not its own; the buffer holds all three.
        unsafe { self.call(interface, what, &mut request) }?;
        Ok(Rss::told(&request, entries))
    }

    /// Sets the queue for each remainder of the hash: as many as [`Ethtool::rss`] tells; `None` for what the kernel sets when nobody
    /// has asked for anything, all queues in turn.
    ///
    /// # Errors
    /// When its driver has no table, or not these queues.
    pub fn set_rss_table(&self, interface: &str, table: Option<&[u32]>) -> Result<(), EthtoolError> {
        let table = table.unwrap_or_default();
        let mut request = header(SRXFHINDIR, table.len(), 8);
        request.extend(table.iter().flat_map(|queue| queue.to_ne_bytes()));
        // SAFETY: the kernel reads as many entries behind the header as the request says, which the buffer holds, and
        // writes none.
        unsafe { self.call(interface, "set its RSS table", &mut request) }
    }
}

const SRXFHINDIR: u32 = 0x39;
const GRXFH: u32 = 0x29;
const GRSSH: u32 = 0x46;

/// `struct ethtool_rxfh` without its table and key.
const RSS_HEADER: usize = 24;
/// No NIC's table or key is longer.
const RSS_MAX: usize = 1 << 16;
/// `hfunc`, and what follows it, `input_xfrm`.
const HASH_FUNCTION: usize = 16;
const INPUT_TRANSFORMATION: usize = 17;
/// In the kernel's own `linux/ethtool.h`, not in that of programs, which know it by its name (`toeplitz`).
const ETH_RSS_HASH_TOP: u8 = 1;
/// `RXH_IP_SRC`, `RXH_IP_DST`, `RXH_L4_B_0_1` and `RXH_L4_B_2_3`.
const ADDRESSES_AND_PORTS: u32 = 0xf << 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_answer_is_taken_apart() {
        // GRSSH, context 0, 4 entries, 3 bytes of key; the hash, what is done to its input, reserved; table, key.
        let head = [0x46_u32, 0, 4, 3].map(u32::to_ne_bytes).concat();
        let table = [0_u32, 1, 0, 300].map(u32::to_ne_bytes).concat();
        let told =
            |hash: [u8; 2]| Rss::told(&[&head[..], &hash, &[0; 6], &table, &[0x6d, 0x5a, 0x56]].concat(), 4);
        let toeplitz = Rss { table: vec![0, 1, 0, 300], key: vec![0x6d, 0x5a, 0x56], is_toeplitz: true };
        assert_eq!(told([1, 0]), toeplitz);
        // Unknown; XOR; CRC32; symmetric by XOR, and by OR and XOR.
        for other in [[0, 0], [2, 0], [4, 0], [1, 1], [1, 2]] {
            assert_eq!(told(other), Rss { is_toeplitz: false, ..toeplitz.clone() }, "{other:?}");
        }
    }
}
