//! Peers with link-local addresses: the same address is another host on each link (RFC 4007).

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::ip6::{frame, icmp, udp};
use crate::wire::{Node, address};
use bywash_stack::{Address, Event, PortId, TcpError, Timestamp};
use bywash_wire::{Mac, Protocol, icmpv6};

/// The link-local address of 02:00:00:00:00:02, and of each of a's two interfaces.
const PEER: &str = "fe80::ff:fe00:2";
const OURS: [&str; 2] = ["fe80::ff:fe00:1", "fe80::ff:fe00:3"];

/// Moves packets between a's two ports and a peer on each, until all are silent.
fn settle(a: &mut Node, peers: &mut [Node; 2], now: Timestamp) {
    loop {
        let mut moved = 0;
        for (peer, port) in peers.iter_mut().zip([PortId(0), PortId(1)]) {
            for bytes in a.take(now, port) {
                moved += 1;
                peer.put(now, PortId(0), &bytes);
            }
            for bytes in peer.take(now, PortId(0)) {
                moved += 1;
                a.put(now, port, &bytes);
            }
        }
        if moved == 0 {
            return;
        }
    }
}

#[test]
fn a_scope_id_says_which_of_two_hosts_with_one_address_is_meant() {
    let mut a = Node::new(1).with_interface(0, 1, None, 1500, "fd00:1::1/64").with_interface(
        1,
        3,
        None,
        1500,
        "fd00:2::1/64",
    );
    let mut peers =
        [1, 2].map(|net| Node::new(1 + net).with_interface(0, 2, None, 1500, &format!("fd00:{net}::2/64")));
    let mut now = Timestamp::ZERO;
    for _ in 0..4 {
        now = now + Duration::from_millis(600);
        settle(&mut a, &mut peers, now);
    }
    for peer in &mut peers {
        peer.host.stack.listen(None, 80, 4).unwrap();
    }
    for link in [0, 1] {
        let remote: SocketAddr = format!("[{PEER}%{}]:80", link + 1).parse().unwrap();
        let remote = (Address::from(remote), 80);
        let id = a.host.stack.connect(now, (None, 0), remote, &mut a.pool).unwrap();
        settle(&mut a, &mut peers, now);
        assert_eq!(a.host.stack.events().collect::<Vec<_>>(), [Event::Connected(id)], "{link}");
        let accepted = [0, 1].map(|peer: usize| {
            let stack = &mut peers[peer].host.stack;
            stack.events().filter(|event| matches!(event, Event::Accepted { .. })).count()
        });
        assert_eq!(accepted, if link == 0 { [1, 0] } else { [0, 1] });
        let mut sockets = a.host.stack.sockets();
        let socket = sockets.find(|socket| socket.remote == Some(remote)).unwrap();
        let ours = address(OURS[link]).with_zone(a.interface(link + 1));
        assert_eq!(socket.local.0, Some(ours), "from the link's own address");
    }
    let nowhere = a.host.stack.connect(now, (None, 0), (address(PEER), 80), &mut a.pool);
    assert_eq!(nowhere, Err(TcpError::NoRoute), "on no link");
}

/// RFC 6724, 5, rule 2: the way to the world leads over a link where we have a link-local address alone.
#[test]
fn who_is_beyond_the_link_hears_from_an_address_that_he_can_answer_to() {
    let mut a = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24").with_interface(
        1,
        3,
        None,
        1500,
        "10.1.0.1/24",
    );
    let (out, router) = (a.interface(1), Mac([2, 0, 0, 0, 0, 2]));
    a.host.control.add_address(Timestamp::ZERO, out, format!("{}/64", OURS[0]).parse().unwrap()).unwrap();
    a.host.control.add_address(Timestamp::ZERO, a.interface(2), "fd00::1/64".parse().unwrap()).unwrap();
    a.host.control.add_neighbour(out, address("fe80::2"), router).unwrap();
    let mut a = a.with_route("::/0", "fe80::2", out);
    let mut now = Timestamp::ZERO;
    for _ in 0..12 {
        now = now + Duration::from_millis(600);
        [0, 1].iter().for_each(|port| drop(a.take(now, PortId(*port))));
    }
    // Who sent the one packet that has left by the link, and what it is.
    let sent = |a: &mut Node| {
        let sent = a.take(now, PortId(0));
        let [packet] = &sent[..] else { panic!("{sent:02x?}") };
        let from = Ipv6Addr::from(*packet[22..].first_chunk::<16>().unwrap());
        format!("{from} {:?}", Protocol(packet[20]))
    };
    let far = address("2001:db8::9");
    let client = a.host.stack.udp_bind(None, 0).unwrap();
    a.host.stack.udp_send(now, client, Some((far, 9)), b"x", &mut a.pool).unwrap();
    assert_eq!(sent(&mut a), format!("fd00::1 {:?}", Protocol::UDP));
    a.host.stack.connect(now, (None, 0), (far, 80), &mut a.pool).unwrap();
    assert_eq!(sent(&mut a), format!("fd00::1 {:?}", Protocol::TCP));
    // What is passed on, and lives no longer.
    a.host.control.set_forwarding(true);
    a.take(now, PortId(0));
    let spent = frame(Mac([2, 0, 0, 0, 0, 1]), "2001:db8::9", "2001:db8:1::1", Protocol::UDP, 1, &[0; 8]);
    a.put(now, PortId(0), &spent);
    assert_eq!(sent(&mut a), format!("fd00::1 {:?}", Protocol::ICMPV6), "its sender is told");
    // What stays on the link comes from there, and so does all where nothing reaches further.
    let near = address("fe80::2").with_zone(out);
    let group = address("ff05::9");
    for to in [near, group] {
        a.host.stack.udp_send(now, client, Some((to, 9)), b"x", &mut a.pool).unwrap();
        assert_eq!(sent(&mut a), format!("{} {:?}", OURS[0], Protocol::UDP), "{to}");
    }
    a.host.control.remove_address(address("fd00::1"));
    a.take(now, PortId(0));
    a.host.stack.udp_send(now, client, Some((far, 9)), b"x", &mut a.pool).unwrap();
    assert_eq!(sent(&mut a), format!("{} {:?}", OURS[0], Protocol::UDP));
}

/// RFC 4291, 2.5.6; RFC 4443, 4.2.
#[test]
fn an_address_of_one_link_does_not_speak_on_another() {
    let mut a = Node::new(1).with_interface(0, 1, None, 1500, "fd00:1::1/64").with_interface(
        1,
        3,
        None,
        1500,
        "fd00:2::1/64",
    );
    let links = [a.interface(1), a.interface(2)];
    let (far, mac) = (address("2001:db8::9"), Mac([2, 0, 0, 0, 0, 2]));
    a.host.control.add_neighbour(links[0], far, mac).unwrap();
    a.host.control.add_neighbour(links[1], address("fe80::2"), mac).unwrap();
    let mut a = a.with_route("::/0", "fe80::2", links[1]);
    let mut now = Timestamp::ZERO;
    for _ in 0..12 {
        now = now + Duration::from_millis(600);
        [0, 1].iter().for_each(|port| drop(a.take(now, PortId(*port))));
    }
    // Who speaks on which link, when something comes to an address of the first.
    let spoken = |a: &mut Node, bytes: &[u8]| {
        a.put(now, PortId(0), bytes);
        [0, 1].map(|port| {
            let from = |packet: &Vec<u8>| Ipv6Addr::from(*packet[22..].first_chunk::<16>().unwrap());
            a.take(now, PortId(port)).iter().map(|packet| from(packet).to_string()).collect::<Vec<_>>()
        })
    };
    let ours = Mac([2, 0, 0, 0, 0, 1]);
    let echo = |to| icmp(ours, "2001:db8::9", to, 64, &[icmpv6::ECHO_REQUEST, 0, 0, 0, 0, 1, 0, 1]);
    assert_eq!(spoken(&mut a, &echo(OURS[0])), [vec![OURS[0].to_string()], vec![]]);
    assert_eq!(spoken(&mut a, &echo("fd00:1::1")), [vec![], vec!["fd00:1::1".to_string()]]);
    let closed = |to| frame(ours, "2001:db8::9", to, Protocol::UDP, 64, &udp("2001:db8::9", to, 9, b"x"));
    assert_eq!(spoken(&mut a, &closed(OURS[0])), [vec![], vec!["fd00:2::1".to_string()]]);
    assert_eq!(spoken(&mut a, &closed("fd00:1::1")), [vec![], vec!["fd00:1::1".to_string()]]);
}
