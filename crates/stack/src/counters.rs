//! What became of packets and connections: one number for every way out.
//!
//! Each counter is written once, here. Whoever shows them goes through [`Counters::named`] and [`ControlCounters::named`], so that
//! none that is added can be left out; `docs/stack.md` tells operators of each, which a test compares.
//!
//! What happens to every segment has no more than an addition: nearly all are counted where something ends, is lost or is dropped.

/// Numbers, each with its name.
macro_rules! counters {
    ($(#[$about:meta])* $Counters:ident { $($(#[$what:meta])* $name:ident,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $Counters {
            $($(#[$what])* pub $name: u64,)+
        }

        impl $Counters {
            /// All of them by name, in the order in which they stand here.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Packets, segments and connections of one stack by what became of them, since it was made. Three are no counts but say how
    /// many there are now: `tcp_established`, `tcp_half_open`, `tcp_time_wait`.
    Counters {
        /// Packets taken from ports and from ourselves.
        received,
        /// Dropped: no IPv4, IPv6 or ARP, or for another VLAN or station.
        not_for_us,
        /// Dropped: headers that are cut short or contradict themselves.
        malformed,
        /// Dropped: a wrong checksum of IP, UDP or TCP.
        checksum,
        /// Dropped: an address that cannot be there (RFC 1122, 3.2.1.3).
        martian,
        /// Dropped: a source route, which nobody may ask of us.
        source_route,
        /// Of others, with a way to the destination: passed on, or left with a next hop that may not answer (RFC 4293).
        forwarded,
        /// Answered: no route leads there.
        no_route,
        /// Answered: no such protocol, or port.
        refused,
        /// Fragments taken.
        fragments,
        /// Datagrams put together from fragments.
        reassembled,
        /// Datagrams given up: they overlapped, were too long, too many, or too late.
        fragments_dropped,
        /// Segments of TCP whose checksum was right. Those that came together and were made one count once.
        tcp_received,
        /// Segments of TCP sent, copies among them; those that a port cuts count as what they are cut into.
        tcp_sent,
        /// Of `malformed` and `checksum`, segments of TCP.
        tcp_errors,
        /// Connections of our own begun: a SYN was sent.
        tcp_active_opens,
        /// Connections of peers: the handshake is complete.
        tcp_passive_opens,
        /// Connections and handshakes that ended in SYN-SENT or SYN-RECEIVED: refused, reset, given up, or closed by the program.
        tcp_attempts_failed,
        /// Connections that ended from ESTABLISHED or CLOSE-WAIT: by a reset of either end, or without an answer.
        tcp_established_resets,
        /// Resets sent, for connections and for segments that are nobody's.
        tcp_resets_sent,
        /// Resets that ended a connection, an attempt, or a handshake under way. Others are challenged or dropped.
        tcp_resets_received,
        /// Connections given up because the peer did not answer: data, a FIN, a SYN of ours, probes. Peers' handshakes, see
        /// `tcp_attempts_failed`.
        tcp_timed_out,
        /// Connections in ESTABLISHED or CLOSE-WAIT now.
        tcp_established,
        /// Peers' handshakes under way now.
        tcp_half_open,
        /// Entries in TIME-WAIT now.
        tcp_time_wait,
        /// Segments sent again: data, SYNs, FINs, answers to SYNs; probes of a tail by a copy, too.
        tcp_retransmitted,
        /// Times that a connection's retransmission timer ran out.
        tcp_timeouts,
        /// Those that were taken back, several in a row as one: nothing was lost, what was out had taken its time.
        tcp_timeouts_undone,
        /// Times that losses were found by acknowledgments, before a timeout (fast retransmit and recovery).
        tcp_recoveries,
        /// Of them, those that were taken back: what was sent again had only been overtaken.
        tcp_recoveries_undone,
        /// Tail loss probes sent, of new data or copies (RFC 8985, 7.3).
        tcp_loss_probes,
        /// Tail loss probes that repaired a loss.
        tcp_loss_probe_recoveries,
        /// Acknowledgments by which a peer told that something came twice (RFC 2883): a copy was not needed.
        tcp_dsacks_received,
        /// Segments kept though something before them was missing.
        tcp_out_of_order,
        /// Dropped: something before them was missing, and there was no room to keep them.
        tcp_out_of_order_dropped,
        /// Dropped: what came in order, and there was no memory for it, as programs do not read what they have. Peers are told that
        /// the window is shut until there is.
        tcp_receive_dropped,
        /// Segments whose payload had come before, all or a part of it.
        tcp_duplicates,
        /// Dropped, or cut off: what lies outside of the window, and had not come before. Peers' probes of a shut window and their
        /// keep-alive probes are among these.
        tcp_out_of_window,
        /// Dropped: a clock older than the peer's last, or none though clocks were agreed on (RFC 7323, 5.3 and 3.2).
        tcp_paws,
        /// Acknowledgments sent because a segment did not fit, so that an honest peer shows itself (RFC 5961).
        tcp_challenge_acks,
        /// Such acknowledgments that were not sent, for there had just been one.
        tcp_challenge_acks_limited,
        /// Probes of a peer's shut window sent.
        tcp_window_probes,
        /// Keep-alive probes sent.
        tcp_keepalives,
        /// SYNs answered by a cookie, for the listener's backlog was full.
        tcp_cookies_sent,
        /// Connections made of a cookie that came back.
        tcp_cookies_accepted,
        /// Acknowledgments that came back to a listener that sends cookies, and were none of them, or too old.
        tcp_cookies_failed,
        /// Connections of our own whose SYN had data that its answer acknowledged, all of it (Fast Open, RFC 7413).
        tcp_fast_open_active,
        /// Those whose SYN had data that had to be sent again.
        tcp_fast_open_active_failed,
        /// Connections of peers that Fast Open has made of a SYN, before the handshake was over.
        tcp_fast_open_passive,
        /// SYNs with a Fast Open cookie that was none of ours: an ordinary handshake, with a new one.
        tcp_fast_open_passive_failed,
        /// SYNs that asked a listener for a Fast Open cookie, whether or not they got one.
        tcp_fast_open_cookies_asked,
        /// SYNs that might have been more than an ordinary handshake, but that the listener had as many as it may.
        tcp_fast_open_overflows,
        /// Complete handshakes for which there were too many connections; also in `no_memory`. They complete with a later segment,
        /// or are given up.
        tcp_listen_overflows,
        /// Segments with payload that were marked "congestion experienced" on their way to a connection that uses marks (RFC 3168).
        tcp_ecn_marked,
        /// Times that a connection slowed down because its peer told of marks.
        tcp_ecn_slowed,
        /// UDP datagrams given to a socket.
        udp_received,
        /// Dropped: the socket had no room, or all sockets and connections had left too much unread.
        udp_full,
        /// UDP datagrams sent.
        udp_sent,
        /// Of `refused`, UDP datagrams for a port without a socket.
        udp_no_port,
        /// Of `malformed` and `checksum`, UDP datagrams.
        udp_errors,
        /// Dropped: no frame, or a queue was full.
        no_memory,
    }
}

counters! {
    /// What the control has heard and said, for all stacks, since it was made.
    ControlCounters {
        /// ICMP and ICMPv6 messages for us whose checksum was right, neighbour discovery among them.
        icmp_received,
        /// Dropped: ICMP messages that are cut short, or whose checksum is wrong.
        icmp_errors,
        /// Errors that came: something is unreachable, too big, took too long, or was not understood.
        icmp_error_messages_received,
        /// Errors sent about packets of others.
        icmp_error_messages_sent,
        /// Errors not sent, for there were too many.
        icmp_error_messages_limited,
        /// Replies to echo requests sent.
        icmp_echo_replies,
        /// Echo requests not answered, for there were too many.
        icmp_echo_limited,
        /// ARP requests sent: questions, probes and announcements.
        arp_requests_sent,
        /// ARP replies sent.
        arp_replies_sent,
        /// Neighbour solicitations sent: questions and probes (RFC 4861).
        neighbour_solicitations_sent,
        /// Neighbour advertisements sent.
        neighbour_advertisements_sent,
        /// Times a neighbour was asked for and did not answer: three questions each. One that is wanted again counts again.
        neighbours_failed,
        /// Times another station claimed an address of ours.
        address_conflicts,
        /// What ICMP told, errors of one's own packets among it, and a stack was not told, for it was too far behind: once for each.
        icmp_notices_dropped,
        /// Dropped: no frame, a queue was full, a stack was too far behind, or there was no way to the destination.
        no_memory,
    }
}
