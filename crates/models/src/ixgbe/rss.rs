//! Receive side scaling: the Toeplitz hash, and the queue its low bits choose.

use bywash_hw::ixgbe::desc::rss_type;
use bywash_hw::ixgbe::regs::{self, MRQC};

use super::file::File;
use super::parse::{Addresses, Parsed, TCP, UDP};

/// Bytes of the key.
const KEY: usize = 40;

/// Bytes that are hashed at most: two IPv6 addresses and two ports.
const INPUT: usize = 36;

/// What each value of each four bits of the input adds to the hash.
type Rows = [[[u32; 16]; 2]; INPUT];

/// The hash: for each bit that is set, the 32 bits of the key from there on. By table, made when a hash is first wanted after
/// the key was written.
#[derive(Clone, Debug, Default)]
pub(super) struct Toeplitz(Option<Box<Rows>>);

fn rows(key: &[u8; KEY]) -> Box<Rows> {
    let mut rows = Box::new([[[0; 16]; 2]; INPUT]);
    for (row, bytes) in rows.iter_mut().zip(key.windows(5)) {
        let window = bytes.iter().fold(0, |window, byte| window << 8 | u64::from(*byte));
        for (half, values) in (0..).zip(row) {
            // Bit 3 of the value is the first one: the key from there on are the upper 32 of the window's 40 bits.
            let of_bit = |bit: u32| window >> (8 - half * 4 - (3 - bit)) & 0xffff_ffff;
            for (value, entry) in (0..16_u32).zip(values) {
                let sum = (0..4).filter(|bit| value >> bit & 1 != 0).fold(0, |sum, bit| sum ^ of_bit(bit));
                *entry = u32::try_from(sum).unwrap_or(u32::MAX);
            }
        }
    }
    rows
}

/// The hash of input that begins at byte `at`.
#[inline]
fn part(rows: &Rows, at: usize, input: &[u8]) -> u32 {
    let of_byte = |hash, (row, byte): (&[[u32; 16]; 2], &u8)| {
        hash ^ row[0][usize::from(byte >> 4)] ^ row[1][usize::from(byte & 0xf)]
    };
    rows[at..].iter().zip(input).fold(0, of_byte)
}

impl Toeplitz {
    /// The hash of a packet and what it covers, if MRQC asks for one.
    pub(super) fn hash(&mut self, file: &File, parsed: &Parsed) -> Option<(u32, u32)> {
        let (with_ports, kind) = covered(file, parsed)?;
        let rows = self.0.get_or_insert_with(|| rows(&key(file)));
        let (addresses, end) = match parsed.ip? {
            Addresses::V4 { source, destination } => {
                (part(rows, 0, &source) ^ part(rows, 4, &destination), 8)
            }
            Addresses::V6 { source, destination } => {
                (part(rows, 0, &source) ^ part(rows, 16, &destination), 32)
            }
        };
        let ports = parsed.ports.filter(|_| with_ports).map_or(0, |(source, destination)| {
            part(rows, end, &source.to_be_bytes()) ^ part(rows, end + 2, &destination.to_be_bytes())
        });
        Some((addresses ^ ports, kind))
    }
}

/// Whether the hash of a packet covers its ports, and what its descriptor calls that.
fn covered(file: &File, parsed: &Parsed) -> Option<(bool, u32)> {
    let mrqc = file.one(&MRQC);
    // RSS alone, or within pools (32 or 64 of them).
    if !matches!(MRQC::MRQE.of(mrqc), 1 | 4 | 5 | 0xa | 0xb) {
        return None;
    }
    let protocol = parsed.transport.filter(|_| parsed.ports.is_some()).map(|(protocol, _)| protocol);
    Some(match (parsed.ip?, protocol) {
        (Addresses::V4 { .. }, Some(TCP)) if MRQC::RSS_IPV4_TCP.is_set(mrqc) => (true, rss_type::IPV4_TCP),
        (Addresses::V4 { .. }, Some(UDP)) if MRQC::RSS_IPV4_UDP.is_set(mrqc) => (true, rss_type::IPV4_UDP),
        (Addresses::V4 { .. }, _) if MRQC::RSS_IPV4.is_set(mrqc) => (false, rss_type::IPV4),
        (Addresses::V6 { .. }, Some(TCP)) if MRQC::RSS_IPV6_TCP.is_set(mrqc) => (true, rss_type::IPV6_TCP),
        (Addresses::V6 { .. }, Some(UDP)) if MRQC::RSS_IPV6_UDP.is_set(mrqc) => (true, rss_type::IPV6_UDP),
        (Addresses::V6 { .. }, _) if MRQC::RSS_IPV6.is_set(mrqc) => (false, rss_type::IPV6),
        _ => return None,
    })
}

/// The queue that the redirection table has for a hash.
pub(super) fn queue(file: &File, hash: u32) -> u32 {
    let entry = hash & 0x7f;
    file.get(&regs::RETA, entry / 4) >> (entry % 4 * 8) & 0xf
}

fn key(file: &File) -> [u8; KEY] {
    let mut key = [0; KEY];
    for (i, to) in (0..).zip(key.as_chunks_mut::<4>().0) {
        *to = file.get(&regs::RSSRK, i).to_le_bytes();
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and hashes that Microsoft publishes for verifying an implementation.
    const PUBLISHED: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn check(source: &str, destination: &str, ports: (u16, u16), with_ports: u32, alone: u32) {
        let bytes = |address: &str| match address.parse().unwrap() {
            std::net::IpAddr::V4(address) => address.octets().to_vec(),
            std::net::IpAddr::V6(address) => address.octets().to_vec(),
        };
        let addresses = [bytes(source), bytes(destination)].concat();
        let rows = rows(&PUBLISHED);
        assert_eq!(part(&rows, 0, &addresses), alone, "{source}");
        let all = [&addresses[..], &ports.0.to_be_bytes(), &ports.1.to_be_bytes()].concat();
        assert_eq!(part(&rows, 0, &all), with_ports, "{source}, ports");
    }

    #[test]
    fn the_published_hashes() {
        check("66.9.149.187", "161.142.100.80", (2794, 1766), 0x51cc_c178, 0x323e_8fc2);
        check("199.92.111.2", "65.69.140.83", (14230, 4739), 0xc626_b0ea, 0xd718_262a);
        check("24.19.198.95", "12.22.207.184", (12898, 38024), 0x5c2b_394a, 0xd2d0_a5de);
        check("38.27.205.30", "209.142.163.6", (48228, 2217), 0xafc7_327f, 0x8298_9176);
        check("153.39.163.191", "202.188.127.2", (44251, 1303), 0x10e8_28a2, 0x5d18_09c5);
        let (a, b) = ("3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1");
        check(a, b, (2794, 1766), 0x4020_7d3d, 0x2cc1_8cd5);
        check("3ffe:501:8::260:97ff:fe40:efab", "ff02::1", (14230, 4739), 0xdde5_1bbf, 0x0f0c_461c);
        let (a, b) = ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", "fe80::200:f8ff:fe21:67cf");
        check(a, b, (44251, 38024), 0x02d1_feef, 0x4b61_e985);
    }
}
