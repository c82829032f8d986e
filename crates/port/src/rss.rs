//! How a NIC spreads flows over its queues (RSS), so that who has the queues can say beforehand which one gets a flow.

use std::fmt;
use std::net::IpAddr;

/// Key and table by which a NIC finds the queue of each packet of IP, by the Toeplitz hash ([Microsoft's
/// description](https://learn.microsoft.com/en-us/windows-hardware/drivers/network/rss-hashing-functions)): of both addresses
/// and both ports where TCP is right behind the IP header, of both addresses for fragments.
#[derive(Clone, PartialEq, Eq)]
pub struct RssSpread {
    key: [u8; KEY],
    table: Box<[u16]>,
    certain: Certain,
    rows: Box<Rows>,
}

/// Of which packets it is certain that they come by the queue that the hash says, for as long as the port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certain {
    /// TCP and UDP right behind an IP header without options.
    TcpAndUdp,
    /// TCP right behind an IP header without options.
    Tcp,
    /// Of none, though most of TCP does: somebody else has the NIC, and can have it spread packets otherwise.
    Nothing,
}

/// Bytes of the key: as many as the longest input and the hash need.
const KEY: usize = INPUT + 4;

/// Bytes that are hashed at most: two IPv6 addresses and two ports.
const INPUT: usize = 36;

/// What each value of the upper and of the lower four bits of each byte of the input adds to the hash.
type Rows = [[[u32; 16]; 2]; INPUT];

impl RssSpread {
    /// By a key, and the queue for each value of the hash's low bits. `None` where there are not as many queues as that many bits
    /// have values, a power of two.
    pub fn new(key: [u8; 40], table: impl Into<Box<[u16]>>, certain: Certain) -> Option<Self> {
        let table = table.into();
        table.len().is_power_of_two().then(|| Self { rows: rows(&key), key, table, certain })
    }

    /// The hash's key.
    pub fn key(&self) -> &[u8; 40] {
        &self.key
    }

    /// The queue for each value of the hash's low bits.
    pub fn table(&self) -> &[u16] {
        &self.table
    }

    /// Of which packets this is certain.
    pub fn certain(&self) -> Certain {
        self.certain
    }

    /// The queue of packets from the first address to the second, and from the first port to the second; without ports, of
    /// their fragments.
    #[inline]
    pub fn queue(&self, addresses: (IpAddr, IpAddr), ports: Option<(u16, u16)>) -> usize {
        let place = self.hash(addresses, ports) as usize & (self.table.len() - 1);
        usize::from(self.table[place])
    }

    #[inline]
    fn hash(&self, addresses: (IpAddr, IpAddr), ports: Option<(u16, u16)>) -> u32 {
        let (addresses, end) = match addresses {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                (self.part(0, source.octets()) ^ self.part(4, destination.octets()), 8)
            }
            (source, destination) => {
                let [source, destination] = [source, destination].map(v6);
                (self.part(0, source) ^ self.part(16, destination), 32)
            }
        };
        let ports = ports.map_or(0, |(source, destination)| {
            self.part(end, source.to_be_bytes()) ^ self.part(end + 2, destination.to_be_bytes())
        });
        addresses ^ ports
    }

    /// What these bytes of the input, from `at` on, add to the hash.
    #[inline]
    fn part<const N: usize>(&self, at: usize, bytes: [u8; N]) -> u32 {
        let of_byte = |([upper, lower], byte): (&[[u32; 16]; 2], u8)| {
            upper[usize::from(byte >> 4)] ^ lower[usize::from(byte & 0xf)]
        };
        self.rows[at..].iter().zip(bytes).map(of_byte).fold(0, |hash, part| hash ^ part)
    }
}

impl fmt::Debug for RssSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, table, certain, rows: _ } = self;
        f.debug_struct("RssSpread").field("key", key).field("table", table).field("certain", certain).finish()
    }
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The hash is, for each bit of the input that is set, the 32 bits of the key from there on, added without carry: so it is the sum of
/// what four bits each add, which are looked up. Four and not eight: 24 lookups in 1.5 KiB for a flow of IPv4, not 12 in 12 KiB, which
/// packets need as well.
fn rows(key: &[u8; KEY]) -> Box<Rows> {
    let mut rows = Box::new([[[0; 16]; 2]; INPUT]);
    for (row, window) in rows.iter_mut().zip(key.windows(5)) {
        let window = window.iter().fold(0, |window, byte| window << 8 | u64::from(*byte));
        for (half, values) in row.iter_mut().enumerate() {
            for (value, sum) in values.iter_mut().enumerate() {
                for bit in (0..4).filter(|bit| value & 8 >> bit != 0) {
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "above are the bits of the key in front of those 32"
                    )]
                    let part = (window >> (8 - half * 4 - bit)) as u32;
                    *sum ^= part;
                }
            }
        }
    }
    rows
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
        // As many entries as NICs have of them: the 82599, the X550; one that has fewer.
        let tables = [128, 512, 16].map(|entries: u16| (0..entries).map(|i| i * 3).collect::<Vec<_>>());
        let spreads = tables.map(|table| RssSpread::new(key, table, Certain::Tcp).unwrap());
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
                for spread in &spreads {
                    assert_eq!(spread.hash(addresses, ports), hash, "{source} {ports:?}");
                    let place = hash as usize % spread.table().len();
                    assert_eq!(spread.queue(addresses, ports), place * 3, "{source} {ports:?}");
                }
            }
        }
    }

    #[test]
    fn a_table_has_an_entry_for_each_value_of_some_bits() {
        let entries = |entries| RssSpread::new([1; 40], vec![0; entries], Certain::Nothing);
        assert!([0, 3, 100, 511].map(entries).iter().all(Option::is_none));
        assert!([1, 2, 64, 512, 4096].map(entries).iter().all(Option::is_some));
    }
}
