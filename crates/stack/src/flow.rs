//! What tells one connection from another, and the keyed hash of it.

use std::hash::Hasher;

use bywash_wire::TcpHeader;
use siphasher::sip::SipHasher13;

use crate::Address;

/// One conversation's two ends, seen from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Flow {
    /// Our address.
    pub local: Address,
    /// Theirs.
    pub remote: Address,
    /// Our port.
    pub local_port: u16,
    /// Theirs.
    pub remote_port: u16,
}

impl Flow {
    /// The flow of a segment with this header, which came from a `remote` address to one of ours.
    #[inline]
    pub(crate) fn of(tcp: &TcpHeader, local: Address, remote: Address) -> Self {
        Self { local, remote, local_port: tcp.destination_port.get(), remote_port: tcp.source_port.get() }
    }
}

/// Keys that nobody outside may know: with them, sequence numbers, ports and hash buckets cannot be foreseen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A secret from 16 random bytes.
    pub fn new(random: [u8; 16]) -> Self {
        let bits = u128::from_ne_bytes(random);
        #[expect(clippy::cast_possible_truncation, reason = "split in two halves")]
        Self([bits as u64, (bits >> 64) as u64])
    }

    /// The secret's own number for each purpose and number.
    pub(crate) fn number(&self, purpose: Purpose, number: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1] ^ purpose as u64);
        hasher.write_u64(number);
        hasher.finish()
    }

    /// The secret's own number for each purpose and flow.
    ///
    /// SipHash-1-3 is keyed and cannot be steered by who chooses addresses and ports. For the table, where nobody sees
    /// the hash and each packet needs one, [`Secret::place`] does.
    #[inline]
    pub(crate) fn hash(&self, purpose: Purpose, flow: &Flow) -> u64 {
        if matches!(purpose, Purpose::Table) {
            return self.place(flow);
        }
        let mut hasher = SipHasher13::new_with_keys(self.0[0] ^ purpose as u64, self.0[1]);
        let ports = u64::from(flow.local_port) << 16 | u64::from(flow.remote_port);
        match (flow.local.v4(), flow.remote.v4()) {
            (Some(local), Some(remote)) => {
                hasher.write_u64(u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits()));
                hasher.write_u64(ports);
            }
            _ => {
                hasher.write_u128(flow.local.bits());
                hasher.write_u128(flow.remote.bits());
                hasher.write_u64(ports);
            }
        }
        hasher.finish()
    }
}

impl Secret {
    /// The hash of a flow for finding it again: a product of sums with the keys, its halves mixed once more so that each
    /// bit depends on all. Two multiplications, a tenth of SipHash. Who does not know the keys cannot choose flows that
    /// meet, and the hash itself is never seen outside.
    #[inline]
    fn place(&self, flow: &Flow) -> u64 {
        let [one, two] = self.0;
        let ports = u64::from(flow.local_port) << 16 | u64::from(flow.remote_port);
        let mixed = match (flow.local.v4(), flow.remote.v4()) {
            (Some(local), Some(remote)) => {
                let addresses = u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits());
                product(addresses.wrapping_add(one), ports.wrapping_add(two))
            }
            _ => {
                let (local, remote) = (flow.local.bits(), flow.remote.bits());
                let ((a, b), (c, d)) = (halves(local), halves(remote));
                product(a.wrapping_add(one), b.wrapping_add(two))
                    .wrapping_add(product(
                        c.wrapping_add(two.rotate_left(32)),
                        d.wrapping_add(one.rotate_left(32)),
                    ))
                    .wrapping_add(u128::from(ports.wrapping_mul(one | 1)))
            }
        };
        let (high, low) = halves(mixed);
        let (high, low) = halves(product(high ^ one, low ^ two));
        high ^ low
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
fn halves(bits: u128) -> (u64, u64) {
    ((bits >> 64) as u64, bits as u64)
}

#[inline]
fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

/// What a hash is for: hashes for different purposes say nothing of each other.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum Purpose {
    /// Finding a connection.
    Table = 1,
    /// The initial sequence number (RFC 6528).
    Sequence,
    /// The offset of the timestamp clock.
    Clock,
    /// Where the search for a port begins (RFC 6056).
    Port,
    /// SYN cookies.
    Cookie,
    /// Where the numbers of fragmented datagrams begin (RFC 7739).
    Fragment,
    /// Remembering where large datagrams and echo replies went.
    Datagram,
    /// The key of Fast Open's cookies (RFC 7413).
    FastOpen,
    /// How much of their limit errors of ICMP take.
    Error,
    /// What our own probes are known by (RFC 7527).
    Probe,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbouring addresses and ports, as one client or one network has them, spread evenly over a table.
    #[test]
    fn flows_that_are_alike_do_not_meet() {
        for base in ["10.0.0.1", "fd00::1"] {
            let address: std::net::IpAddr = base.parse().unwrap();
            let flow = Flow { local: address.into(), remote: address.into(), local_port: 80, remote_port: 0 };
            let mut buckets = vec![0u8; 1 << 16];
            for remote_port in 0..=u16::MAX {
                let hash = Secret::new([7; 16]).hash(Purpose::Table, &Flow { remote_port, ..flow });
                buckets[(hash & 0xffff) as usize] += 1;
            }
            // By chance, 36.8 % of them are empty, and hardly any has more than 8.
            let empty = buckets.iter().filter(|n| **n == 0).count();
            assert!((23_500..24_800).contains(&empty), "{base}: {empty} empty");
            assert!(buckets.iter().all(|n| *n <= 12), "{base}");
        }
    }

    #[test]
    fn purposes_keys_and_flows_all_change_the_hash() {
        let secret = Secret::new([7; 16]);
        let flow = Flow { local_port: 80, remote_port: 1000, ..Flow::default() };
        let base = secret.hash(Purpose::Table, &flow);
        assert_eq!(base, secret.hash(Purpose::Table, &flow));
        assert_ne!(base, secret.hash(Purpose::Sequence, &flow));
        assert_ne!(base, Secret::new([8; 16]).hash(Purpose::Table, &flow));
        assert_ne!(base, secret.hash(Purpose::Table, &Flow { remote_port: 1001, ..flow }));
        assert_eq!(format!("{secret:?}"), "Secret(..)", "a secret is not printed");
    }
}
