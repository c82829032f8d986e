//! What became of packets: one number for every way out.

/// Packets and segments by what became of them, since the stack was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets taken from ports and from ourselves.
    pub received: u64,
    /// Dropped: no IPv4, IPv6 or ARP, or for another VLAN or station.
    pub not_for_us: u64,
    /// Dropped: headers that are cut short or contradict themselves.
    pub malformed: u64,
    /// Dropped: a wrong checksum of IP, UDP or TCP.
    pub checksum: u64,
    /// Dropped: an address that cannot be there (RFC 1122, 3.2.1.3).
    pub martian: u64,
    /// Dropped: a source route, which nobody may ask of us.
    pub source_route: u64,
    /// Passed on to another host.
    pub forwarded: u64,
    /// Answered: no route leads there.
    pub no_route: u64,
    /// Answered: no such protocol, or port.
    pub refused: u64,
    /// Fragments taken.
    pub fragments: u64,
    /// Datagrams put together from fragments.
    pub reassembled: u64,
    /// Datagrams given up: they overlapped, were too long, too many, or too late.
    pub fragments_dropped: u64,
    /// Segments of TCP whose checksum was right.
    pub tcp_received: u64,
    /// UDP datagrams given to a socket.
    pub udp_received: u64,
    /// Dropped: the socket had no room.
    pub udp_full: u64,
    /// UDP datagrams sent.
    pub udp_sent: u64,
    /// Dropped: no frame, or a queue was full.
    pub no_memory: u64,
}
