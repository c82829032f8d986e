//! Address conflict detection (RFC 5227): probes, announcements, claims of others, defence.

use std::time::Duration;

use bywash_stack::{AddressState, Claims, Timestamp};
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{ArpOperation, ArpPacket, EthernetHeader, Mac};

use crate::wire::{Node, PORT, address};

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const START: Timestamp = Timestamp::from_nanos(100_000_000_000);

/// A packet as `from > to: who has|here is TARGET, SENDER at MAC`.
fn words(bytes: &[u8]) -> String {
    let (ethernet, rest) = EthernetHeader::read_from_prefix(bytes).unwrap();
    assert_eq!(ethernet.kind.get(), 0x0806);
    let (arp, operation) = ArpPacket::parse(rest).unwrap();
    assert_eq!((ethernet.source, arp.sender_mac), (OURS, OURS), "ours is in both places");
    let to =
        if ethernet.destination == Mac::BROADCAST { "all".into() } else { ethernet.destination.to_string() };
    match operation {
        ArpOperation::Request => {
            assert_eq!(arp.target_mac, Mac::default(), "nobody knows it yet");
            format!("{to}: {} asks for {}", arp.sender(), arp.target())
        }
        _ => format!("{to}: {} is here", arp.sender()),
    }
}

fn arp(operation: ArpOperation, mac: Mac, sender: &str, target: &str) -> Vec<u8> {
    let ethernet = EthernetHeader { destination: Mac::BROADCAST, source: mac, kind: 0x0806.into() };
    let ends = ((mac, sender.parse().unwrap()), (Mac::default(), target.parse().unwrap()));
    [ethernet.as_bytes(), ArpPacket::new(operation, ends.0, ends.1).as_bytes()].concat()
}

/// A host that was given 10.0.0.3 on a link where it already has 10.0.0.1, if nobody else has it.
fn node() -> Node {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    // Its first address has been announced by then.
    run(&mut node, Timestamp::ZERO, START);
    let id = node.interface(1);
    node.host.control.add_address_if_free(START, id, "10.0.0.3/24".parse().unwrap()).unwrap();
    node
}

/// Lets time pass, deadline by deadline; what was sent, and when.
fn run(node: &mut Node, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, String)> {
    let (mut now, mut sent) = (from, Vec::new());
    for _ in 0..1000 {
        sent.extend(node.take(now, PORT).iter().map(|packet| (now, words(packet))));
        match node.host.next_deadline().filter(|next| *next <= to) {
            Some(next) => now = next.max(now + Duration::from_nanos(1)),
            None => return sent,
        }
    }
    panic!("it never ends");
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn state(node: &Node) -> AddressState {
    node.host.control.addresses().find(|(prefix, ..)| prefix.address() == address("10.0.0.3")).unwrap().2
}

/// What is answered, without anything that is due by itself.
fn answers(node: &mut Node, now: Timestamp, packet: &[u8]) -> Vec<String> {
    node.put(now, PORT, packet);
    node.take(now, PORT).iter().map(|packet| words(packet)).collect()
}

#[test]
fn an_address_that_is_looked_for_is_asked_for_three_times_and_then_announced_twice() {
    let mut node = node();
    assert_eq!(state(&node), AddressState::Tentative);
    let sent = run(&mut node, START, START + seconds(60));
    let said: Vec<&str> = sent.iter().map(|(_, words)| words.as_str()).collect();
    let (probe, announcement) = ("all: 0.0.0.0 asks for 10.0.0.3", "all: 10.0.0.3 asks for 10.0.0.3");
    assert_eq!(said, [probe, probe, probe, announcement, announcement]);
    // 2.1.1: up to PROBE_WAIT before the first, PROBE_MIN to PROBE_MAX between, ANNOUNCE_WAIT behind the last.
    let at: Vec<Timestamp> = sent.iter().map(|(at, _)| *at).collect();
    assert!(at[0].since(START) <= seconds(1));
    for pair in at[..3].windows(2) {
        let apart = pair[1].since(pair[0]);
        assert!(apart >= seconds(1) && apart <= seconds(2), "{apart:?}");
    }
    assert_eq!((at[3].since(at[2]), at[4].since(at[3])), (seconds(2), seconds(2)));
    assert_eq!(state(&node), AddressState::Preferred);
    node.assert_nothing_leaked();
}

#[test]
fn hosts_that_begin_together_do_not_ask_together() {
    let first = |mac: u8| {
        let mut node = Node::new(1).with_interface(0, mac, None, 1500, "10.0.0.1/24");
        node.take(START, PORT);
        let id = node.interface(1);
        node.host.control.add_address_if_free(START, id, "10.0.0.3/24".parse().unwrap()).unwrap();
        node.host.next_deadline().unwrap()
    };
    let mut all: Vec<Timestamp> = (1..=20).map(first).collect();
    all.sort_unstable();
    all.dedup();
    // The announcements' next is due in 2 s, so the probe is what comes first.
    assert!(all.len() == 20 && all[19] <= START + seconds(1), "{all:?}");
    assert!(all[19].since(all[0]) > Duration::from_millis(500), "over the whole of PROBE_WAIT: {all:?}");
}

#[test]
fn by_default_an_address_is_used_and_announced_at_once() {
    let mut node = node();
    let id = node.interface(1);
    node.host.control.remove_address(address("10.0.0.3"));
    node.host.control.add_address(START, id, "10.0.0.3/24".parse().unwrap()).unwrap();
    assert_eq!(state(&node), AddressState::Preferred);
    let sent = run(&mut node, START, START + seconds(60));
    let announcement = "all: 10.0.0.3 asks for 10.0.0.3".to_owned();
    assert_eq!(sent, [(START, announcement.clone()), (START + seconds(2), announcement)]);
}

#[test]
fn until_then_it_is_nobodys() {
    let mut node = node();
    let ask = arp(ArpOperation::Request, OTHER, "10.0.0.9", "10.0.0.3");
    assert_eq!(answers(&mut node, START, &ask), [""; 0]);
    let ask_first = arp(ArpOperation::Request, OTHER, "10.0.0.9", "10.0.0.1");
    assert_eq!(answers(&mut node, START, &ask_first), ["02:00:00:00:00:09: 10.0.0.1 is here"]);
    // 2.5: from the first announcement on it is answered for, whoever asks, and for probes.
    run(&mut node, START, START + seconds(60));
    assert_eq!(answers(&mut node, START + seconds(60), &ask), ["02:00:00:00:00:09: 10.0.0.3 is here"]);
    let probe = arp(ArpOperation::Request, OTHER, "0.0.0.0", "10.0.0.3");
    assert_eq!(answers(&mut node, START + seconds(60), &probe), ["02:00:00:00:00:09: 10.0.0.3 is here"]);
    assert_eq!(node.host.control.conflicts(), 0, "who looks for it is told, and no rival");
}

#[test]
fn whoever_claims_it_while_it_is_looked_for_keeps_it() {
    use ArpOperation::{Reply, Request};
    // 2.1.1: any packet of its sender, and another's probe; from the beginning until ANNOUNCE_WAIT behind the last probe.
    for (after, operation, sender, target) in [
        (Duration::ZERO, Reply, "10.0.0.3", "0.0.0.0"),
        (seconds(2), Request, "10.0.0.3", "10.0.0.77"),
        (seconds(2), Request, "10.0.0.3", "10.0.0.3"),
        (Duration::from_millis(3900), Request, "0.0.0.0", "10.0.0.3"),
    ] {
        let mut node = node();
        let now = START + after;
        run(&mut node, START, now);
        // Our own packets may come back from the link, and are nobody's claim.
        node.put(now, PORT, &arp(Request, OURS, "0.0.0.0", "10.0.0.3"));
        assert_eq!(state(&node), AddressState::Tentative);
        node.put(now, PORT, &arp(operation, OTHER, sender, target));
        assert_eq!(state(&node), AddressState::Duplicate, "{after:?} {sender}");
        let claims = node.host.control.claims(node.interface(1), address("10.0.0.3"));
        assert_eq!(claims, Claims { count: 1, by: Some(OTHER) });
        assert_eq!(run(&mut node, now, now + seconds(60)), [], "neither probed, announced nor defended");
        // It is the other's now: who asks for it is not answered, and the other is a neighbour as any.
        let now = now + seconds(60);
        assert_eq!(answers(&mut node, now, &arp(Request, OTHER, "10.0.0.9", "10.0.0.3")), [""; 0]);
        let hello = arp(Request, OTHER, "10.0.0.3", "10.0.0.1");
        assert_eq!(answers(&mut node, now, &hello), ["02:00:00:00:00:09: 10.0.0.1 is here"]);
        assert!(
            node.host.control.neighbours().any(|(_, ip, mac, _)| (ip, mac) == (address("10.0.0.3"), OTHER))
        );
        assert_eq!(node.host.control.conflicts(), 1);
        node.assert_nothing_leaked();
    }
}

#[test]
fn a_claim_on_an_address_in_use_is_counted_and_answered_once_in_ten_seconds() {
    let mut node = node();
    let now = START + seconds(60);
    run(&mut node, START, now);
    let defence = ["all: 10.0.0.3 asks for 10.0.0.3"];
    let claim = arp(ArpOperation::Reply, OTHER, "10.0.0.3", "10.0.0.1");
    assert_eq!(answers(&mut node, now, &claim), defence);
    for after in [0, 1, 9] {
        assert_eq!(answers(&mut node, now + seconds(after), &claim), [""; 0], "{after} s");
    }
    let request = arp(ArpOperation::Request, Mac([2, 0, 0, 0, 0, 8]), "10.0.0.3", "10.0.0.77");
    assert_eq!(answers(&mut node, now + seconds(10), &request), defence, "DEFEND_INTERVAL is over");
    // 2.4 (c): it is kept.
    assert_eq!(state(&node), AddressState::Preferred);
    let claims = |node: &Node, ip| node.host.control.claims(node.interface(1), address(ip));
    assert_eq!(claims(&node, "10.0.0.3"), Claims { count: 5, by: Some(Mac([2, 0, 0, 0, 0, 8])) });
    assert_eq!(claims(&node, "10.0.0.1"), Claims::default());
    assert!(
        node.host.control.neighbours().all(|(_, ip, ..)| ip != address("10.0.0.3")),
        "no neighbour of ours"
    );
    // Each address is defended for itself, also where it was not looked for; our own echo is no claim.
    node.put(now + seconds(11), PORT, &arp(ArpOperation::Reply, OURS, "10.0.0.1", "10.0.0.1"));
    let claim = arp(ArpOperation::Reply, OTHER, "10.0.0.1", "10.0.0.1");
    assert_eq!(answers(&mut node, now + seconds(11), &claim), ["all: 10.0.0.1 asks for 10.0.0.1"]);
    assert_eq!((claims(&node, "10.0.0.1").count, node.host.control.conflicts()), (1, 6));
    assert_eq!(run(&mut node, now + seconds(11), now + seconds(300)), [], "a defence is one packet");
    node.assert_nothing_leaked();
}

#[test]
fn what_could_not_be_asked_or_told_for_want_of_memory_is_said_later() {
    let mut node = Node::with_frames(1, 300).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    run(&mut node, Timestamp::ZERO, START);
    let id = node.interface(1);
    let ours = ["10.0.0.3/24", "fd00::3/64"].map(|text| text.parse().unwrap());
    node.host.control.add_address_if_free(START, id, ours[0]).unwrap();
    node.host.control.add_address(START, id, ours[1]).unwrap();
    node.host.control.add_address(START, id, "10.0.0.4/24".parse().unwrap()).unwrap();
    let frames: Vec<_> = std::iter::from_fn(|| node.pool.take()).collect();
    let mut now = START;
    for _ in 0..100 {
        assert_eq!(node.take(now, PORT), [[0; 0]; 0]);
        now = now + Duration::from_millis(100);
    }
    assert!(node.host.control.is_settling(), "nobody has been asked");
    let states = |node: &Node| {
        let of = |wanted| node.host.control.addresses().find(|(prefix, ..)| *prefix == wanted).unwrap().2;
        ours.map(of)
    };
    assert_eq!(states(&node), [AddressState::Tentative; 2]);
    node.pool.give_many(frames.into_iter());
    let sent = node.take(now, PORT);
    let (six, four): (Vec<_>, Vec<_>) = sent.iter().partition(|packet| packet[12..14] == [0x86, 0xdd]);
    let four: Vec<String> = four.iter().map(|packet| words(packet)).collect();
    assert_eq!(four, ["all: 0.0.0.0 asks for 10.0.0.3", "all: 10.0.0.4 asks for 10.0.0.4"]);
    // RFC 4862, 5.4: an IPv6 address is ours RetransTimer after its question, not after the attempt at one.
    assert!(
        six.iter().filter(|packet| packet[54] == 135).count() == 2,
        "{six:?}: its own and the link-local one"
    );
    node.take(now + Duration::from_millis(990), PORT);
    assert_eq!(states(&node), [AddressState::Tentative; 2]);
    node.take(now + seconds(1), PORT);
    assert_eq!(states(&node), [AddressState::Tentative, AddressState::Preferred]);
    node.assert_nothing_leaked();
}

#[test]
fn many_addresses_are_announced_in_bursts() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/16");
    run(&mut node, Timestamp::ZERO, START);
    let id = node.interface(1);
    for n in 0..300_u32 {
        let address = std::net::Ipv4Addr::from_bits(0x0a00_0100 + n);
        let prefix = bywash_stack::Prefix::new(address, 16).unwrap();
        node.host.control.add_address(START, id, prefix).unwrap();
    }
    let sent = run(&mut node, START, START + seconds(10));
    assert_eq!(sent.len(), 600, "each twice");
    let bursts: Vec<usize> = sent.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).collect();
    assert!(bursts.len() > 4 && bursts.iter().all(|burst| *burst <= 64), "{bursts:?}");
}
