//! What tells one connection from another, and the keyed hash of it.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::Address;

/// One conversation's two ends, seen from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
    /// SipHash-1-3 is keyed and cannot be steered by who chooses addresses and ports; two words of IPv4 cost about
    /// as much as one cache hit.
    #[inline]
    pub(crate) fn hash(&self, purpose: Purpose, flow: &Flow) -> u64 {
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
