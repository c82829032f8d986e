//! TCP Fast Open (RFC 7413), what is outside of connections: keys and cookies of servers.

use std::hash::Hasher;

use bywash_wire::FastOpenCookie;
use siphasher::sip::SipHasher24;

use crate::Address;
use crate::flow::{Purpose, Secret};

/// How a listener takes Fast Open (RFC 7413): data that comes with a SYN is given to the program at once, and it may answer before
/// the handshake is over. Such data may come twice, when the network doubles a SYN (RFC 7413, 6.1). By default no listener does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenServer {
    /// Connections that may be there before their handshake is over, at most (PendingFastOpenRequests; the value of Linux's
    /// `TCP_FASTOPEN`). Beyond that, and with 0 always, SYNs get an ordinary handshake. One that the peer has reset counts for another
    /// minute: who uses another's address could go on and on with that one's resets (RFC 7413, 5.1).
    pub pending: usize,
    /// With what cookies are made; the stack's own, which it has made of its randomness, when `None`. Servers whose clients may find
    /// another one the next time must all have the same, and so must the stacks of one address.
    pub keys: Option<FastOpenKeys>,
    /// Whether data is taken without a cookie, too (RFC 7413, 4.1.2 and 5): for networks in which nobody uses another's address, or
    /// programs to which that does no harm.
    pub cookieless: bool,
}

/// Keys that cookies are made with, as Linux makes them: all servers that have them know each other's. A cookie is SipHash-2-4 of the
/// client's and the server's address, in the order of the wire, its eight bytes in little-endian order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FastOpenKeys {
    /// Makes new cookies, and knows them again.
    pub primary: [u8; 16],
    /// Knows older cookies: a client that has one is told a new one with its connection. So keys change without a loss.
    pub backup: Option<[u8; 16]>,
}

impl std::fmt::Debug for FastOpenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FastOpenKeys(..)")
    }
}

/// What a cookie that came is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// One that is told now.
    Current,
    /// One of the key before.
    Former,
    /// None of ours.
    Not,
}

impl FastOpenKeys {
    /// A stack's own.
    pub(crate) fn own(secret: &Secret) -> Self {
        let [front, back] = [0, 1].map(|half| secret.number(Purpose::FastOpen, half).to_ne_bytes());
        let mut primary = [0; 16];
        primary[..8].copy_from_slice(&front);
        primary[8..].copy_from_slice(&back);
        Self { primary, backup: None }
    }

    /// The cookie of a client.
    pub(crate) fn cookie(&self, client: Address, server: Address) -> Option<FastOpenCookie> {
        make(&self.primary, client, server)
    }

    pub(crate) fn knows(&self, cookie: FastOpenCookie, client: Address, server: Address) -> Known {
        if self.cookie(client, server) == Some(cookie) {
            return Known::Current;
        }
        let former = self.backup.and_then(|key| make(&key, client, server));
        if former == Some(cookie) { Known::Former } else { Known::Not }
    }
}

fn make(key: &[u8; 16], client: Address, server: Address) -> Option<FastOpenCookie> {
    let mut hasher = SipHasher24::new_with_key(key);
    match (client.v4(), server.v4()) {
        (Some(client), Some(server)) => hasher.write(&[client.octets(), server.octets()].concat()),
        _ => hasher.write(&[client.bits().to_be_bytes(), server.bits().to_be_bytes()].concat()),
    }
    FastOpenCookie::new(&hasher.finish().to_le_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// Linux's key a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4: each word in little-endian order.
    const KEY: [u8; 16] =
        [0xa1, 0xa1, 0xa1, 0xa1, 0xb2, 0xb2, 0xb2, 0xb2, 0xc3, 0xc3, 0xc3, 0xc3, 0xd4, 0xd4, 0xd4, 0xd4];

    fn address(text: &str) -> Address {
        text.parse::<IpAddr>().unwrap().into()
    }

    /// Cookies as Linux's own tests have them.
    #[test]
    fn cookies_are_linux_s() {
        // a0bf63f7-ed803d81-cd641d30-cebc4a90
        let other = *b"\xf7\x63\xbf\xa0\x81\x3d\x80\xed\x30\x1d\x64\xcd\x90\x4a\xbc\xce";
        for (key, client, server, cookie) in [
            (KEY, "192.0.2.1", "192.168.0.1", "3021b9d889017eeb"),
            (other, "10.248.0.2", "192.168.0.2", "00abaaabe8e954c2"),
            (other, "10.248.0.3", "192.168.0.2", "1313a2da994a0951"),
            (other, "10.248.0.3", "192.168.0.3", "76d2c1c530f51f79"),
            ([0; 16], "10.248.0.2", "192.168.0.2", "93b7aa4f550f8a1a"),
        ] {
            let keys = FastOpenKeys { primary: key, backup: None };
            let made = keys.cookie(address(client), address(server));
            assert_eq!(format!("{:?}", made.unwrap()), cookie, "{client} {server}");
        }
    }

    #[test]
    fn a_key_that_has_been_replaced_knows_its_cookies() {
        let (client, server) = (address("fd00::1"), address("fd00::2"));
        let old = FastOpenKeys { primary: KEY, backup: None };
        let new = FastOpenKeys { primary: [7; 16], backup: Some(KEY) };
        let cookies = [old, new].map(|keys| keys.cookie(client, server).unwrap());
        assert_eq!(cookies.map(|cookie| new.knows(cookie, client, server)), [Known::Former, Known::Current]);
        assert_eq!(cookies.map(|cookie| new.knows(cookie, server, client)), [Known::Not; 2]);
        assert_eq!(format!("{new:?}"), "FastOpenKeys(..)", "a secret is not printed");
    }
}
