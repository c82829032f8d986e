//! TCP Fast Open (RFC 7413), what is outside of connections: keys and cookies of servers, what clients know of servers.

use std::collections::HashMap;
use std::hash::Hasher;
use std::time::Duration;

use bywash_wire::{FastOpen, FastOpenCookie};
use siphasher::sip::SipHasher24;

use crate::flow::{Purpose, Secret};
use crate::{Address, Flow, Timestamp};

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

/// How a connection of ours begins with Fast Open. Its SYN carries data if a cookie of the server is known, and asks for one
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenClient<'a> {
    /// The program's first bytes. They may come to the server's program twice (RFC 7413, 6.1).
    pub data: &'a [u8],
    /// Whether the data goes out without a cookie, to a server that wants none (RFC 7413, 4.1.3; Linux's `TCP_FASTOPEN_NO_COOKIE`).
    pub cookieless: bool,
}

/// Why data did not arrive with our SYN: Linux's `tcpi_fastopen_client_fail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FastOpenFailure {
    /// No cookie was known, or none was to be used.
    NoCookie = 1,
    /// The server has acknowledged the SYN alone, or not all of the data.
    NotAcknowledged,
    /// The SYN was sent again, without data.
    Repeated,
}

/// Servers that are remembered, at most.
const SERVERS: usize = 1024;
/// After two SYNs in a row whose data got lost, and may have been what they got lost for, there is none for four of these, after
/// three for eight, and so on (RFC 7413, 4.1.3.1; the times are those that Linux had).
const SHUNNED: Duration = Duration::from_secs(60);
const MOST_DOUBLED: u8 = 6;

/// What is known of a server, at one of our addresses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Server {
    pub(crate) cookie: Option<FastOpenCookie>,
    /// The largest segment it has asked for.
    pub(crate) mss: Option<u16>,
    /// In which form the option is to be sent.
    pub(crate) experimental: bool,
    /// It did not answer a request in the experimental form, either.
    knows_none: bool,
    /// SYNs in a row whose data got lost, and when the last did.
    losses: u8,
    lost_at: Timestamp,
    heard_at: Timestamp,
}

impl Server {
    /// Whether it gets ordinary SYNs for now.
    pub(crate) fn is_shunned(&self, now: Timestamp) -> bool {
        self.losses > 1 && now.since(self.lost_at) < SHUNNED * (1 << self.losses.min(MOST_DOUBLED))
    }

    /// A SYN got lost that had data.
    pub(crate) fn lost(&mut self, now: Timestamp) {
        (self.losses, self.lost_at) = (self.losses.saturating_add(1), now);
    }

    /// It has answered as it should.
    pub(crate) fn found(&mut self) {
        self.losses = 0;
    }

    /// It has told a cookie.
    pub(crate) fn told(&mut self, FastOpen { cookie, experimental }: FastOpen) {
        (self.cookie, self.experimental) = (cookie, experimental);
    }

    /// It has not, though it was asked: next time in the other form, and once only.
    pub(crate) fn told_nothing(&mut self) {
        if self.cookie.is_none() {
            self.knows_none |= self.experimental;
            self.experimental = !self.experimental && !self.knows_none;
        }
    }
}

/// Servers by our address and theirs (RFC 7413, 4.1.3).
#[derive(Debug, Default)]
pub(crate) struct Servers(HashMap<(Address, Address), Server>);

impl Servers {
    pub(crate) fn find(&self, flow: &Flow) -> Server {
        self.0.get(&(flow.local, flow.remote)).copied().unwrap_or_default()
    }

    /// The entry of a server of which something was learnt now. The one that was silent for longest makes room.
    pub(crate) fn entry(&mut self, flow: &Flow, now: Timestamp) -> &mut Server {
        let key = (flow.local, flow.remote);
        if self.0.len() >= SERVERS && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(of, server)| (server.heard_at, **of)).map(|(of, _)| *of);
            oldest.map(|of| self.0.remove(&of));
        }
        let server = self.0.entry(key).or_default();
        server.heard_at = now;
        server
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
    fn a_server_that_was_silent_for_longest_makes_room() {
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        let flow = |i: u32| Flow { remote: std::net::Ipv4Addr::from_bits(i).into(), ..Flow::default() };
        let mut all = Servers::default();
        (0..2 * 1024).for_each(|i| all.entry(&flow(i), at(i.into())).mss = Some(1000));
        assert_eq!(all.0.len(), SERVERS);
        assert_eq!((all.find(&flow(1023)).mss, all.find(&flow(1024)).mss), (None, Some(1000)));
    }

    #[test]
    fn a_server_is_shunned_longer_with_each_loss_and_not_for_the_first() {
        let at = |minutes: u64| Timestamp::from_nanos(minutes * 60_000_000_000);
        let mut server = Server::default();
        server.lost(at(0));
        assert!(!server.is_shunned(at(0)));
        server.lost(at(1));
        assert_eq!([at(1), at(4), at(5)].map(|now| server.is_shunned(now)), [true, true, false]);
        server.lost(at(5));
        assert_eq!([at(12), at(13)].map(|now| server.is_shunned(now)), [true, false]);
        server.found();
        assert!(!server.is_shunned(at(5)));
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
