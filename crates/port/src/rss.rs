//! How a NIC spreads flows over its queues (RSS), so that who has the queues can say beforehand which one gets a flow.

use std::net::IpAddr;

/// Key and table by which a NIC finds the queue of each packet of IP, by the Toeplitz hash ([Microsoft's
/// description](https://learn.microsoft.com/en-us/windows-hardware/drivers/network/rss-hashing-functions)): of both addresses
/// and both ports where TCP is right behind the IP header, of both addresses for fragments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssSpread {
    /// The hash's key.
    pub key: [u8; 40],
    /// Queue for each value of the hash's low seven bits.
    pub table: [u8; 128],
    /// Whether UDP's ports are hashed as TCP's are. Else it is not known what is hashed of UDP.
    pub udp_ports: bool,
}

/// Bytes that are hashed at most: two IPv6 addresses and two ports.
const INPUT: usize = 36;

impl RssSpread {
    /// The queue of packets from the first address to the second, and from the first port to the second; without ports, of
    /// their fragments.
    pub fn queue(&self, addresses: (IpAddr, IpAddr), ports: Option<(u16, u16)>) -> usize {
        usize::from(self.table[(self.hash(addresses, ports) & 0x7f) as usize])
    }

    fn hash(&self, (source, destination): (IpAddr, IpAddr), ports: Option<(u16, u16)>) -> u32 {
        let (mut input, mut length) = ([0; INPUT], 0);
        let mut put = |bytes: &[u8]| {
            input[length..length + bytes.len()].copy_from_slice(bytes);
            length += bytes.len();
        };
        for address in [source, destination] {
            match address {
                IpAddr::V4(v4) => put(&v4.octets()),
                IpAddr::V6(v6) => put(&v6.octets()),
            }
        }
        if let Some((source, destination)) = ports {
            put(&source.to_be_bytes());
            put(&destination.to_be_bytes());
        }
        toeplitz(&self.key, &input[..length])
    }
}

/// For each bit of the input that is set, the 32 bits of the key from there on, added without carry.
fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (window, byte) in key.windows(5).zip(input) {
        let window = window.iter().fold(0, |window, byte| window << 8 | u64::from(*byte));
        for bit in (0..8).filter(|bit| byte & 0x80 >> bit != 0) {
            hash ^= window >> (8 - bit);
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "above are the bits of the key in front of those 32")]
    let hash = hash as u32;
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and hashes that Microsoft publishes for verifying an implementation.
    #[test]
    fn the_published_hashes() {
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let table = std::array::from_fn(|i| u8::try_from(i % 16).unwrap());
        let spread = RssSpread { key, table, udp_ports: true };
        for (source, destination, ports, with_ports, alone) in [
            ("66.9.149.187", "161.142.100.80", (2794, 1766), 0x51cc_c178, 0x323e_8fc2),
            ("199.92.111.2", "65.69.140.83", (14230, 4739), 0xc626_b0ea, 0xd718_262a),
            ("24.19.198.95", "12.22.207.184", (12898, 38024), 0x5c2b_394a, 0xd2d0_a5de),
            ("38.27.205.30", "209.142.163.6", (48228, 2217), 0xafc7_327f, 0x8298_9176),
            ("153.39.163.191", "202.188.127.2", (44251, 1303), 0x10e8_28a2, 0x5d18_09c5),
            ("3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1", (2794, 1766), 0x4020_7d3d, 0x2cc1_8cd5),
            ("3ffe:501:8::260:97ff:fe40:efab", "ff02::1", (14230, 4739), 0xdde5_1bbf, 0x0f0c_461c),
            (
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                "fe80::200:f8ff:fe21:67cf",
                (44251, 38024),
                0x02d1_feef,
                0x4b61_e985,
            ),
        ] {
            let addresses = (source.parse().unwrap(), destination.parse().unwrap());
            for (ports, hash) in [(Some(ports), with_ports), (None, alone)] {
                assert_eq!(spread.hash(addresses, ports), hash, "{source} {ports:?}");
                assert_eq!(spread.queue(addresses, ports), hash as usize % 16, "{source} {ports:?}");
            }
        }
    }
}
