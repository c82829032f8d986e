//! Another TCP at the other end: smoltcp, with a network between that loses, repeats, reorders and corrupts.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bywash_stack::{CloseReason, ConnectionId, Event, State, Timestamp};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use crate::wire::seeds::Told;
use crate::wire::{Node, PORT, address};

#[derive(Default)]
struct Queues {
    receive: VecDeque<Vec<u8>>,
    send: VecDeque<Vec<u8>>,
    mtu: usize,
}

struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Sending<'a>(&'a mut VecDeque<Vec<u8>>);

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut bytes = vec![0; len];
        let result = f(&mut bytes);
        self.0.push_back(bytes);
        result
    }
}

impl Device for Queues {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Sending<'_>)> {
        Some((Received(self.receive.pop_front()?), Sending(&mut self.send)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.send))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + 14;
        capabilities
    }
}

struct Peer {
    queues: Queues,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
}

impl Peer {
    fn new(mtu: usize) -> Self {
        let mut queues = Queues { mtu, ..Queues::default() };
        let mut config = Config::new(EthernetAddress([2, 0, 0, 0, 0, 2]).into());
        config.random_seed = 77;
        let mut interface = Interface::new(config, &mut queues, Instant::ZERO);
        interface.update_ip_addrs(|all| all.push(IpCidr::new(IpAddress::v4(10, 0, 0, 2), 24)).unwrap());
        let buffer = || tcp::SocketBuffer::new(vec![0; 20_000]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Self { queues, interface, sockets, socket }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }
}

/// Thousandths of packets that are lost, sent twice, put behind the next, changed in one bit.
type Chances = [u64; 4];

struct Between {
    random: u64,
    chances: Chances,
}

impl Between {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 16
    }

    fn pass(&mut self, packets: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut through: Vec<Vec<u8>> = Vec::new();
        for mut packet in packets {
            let [lost, twice, swapped, changed] = self.chances.map(|chance| self.next() % 1000 < chance);
            if lost {
                continue;
            }
            if changed {
                // Behind the Ethernet header, which has a checksum of its own on a real wire.
                let at = 14 + usize::try_from(self.next()).unwrap() % (packet.len() - 14);
                packet[at] ^= 1 << (self.next() % 8);
            }
            if twice {
                through.push(packet.clone());
            }
            let end = through.len();
            through.insert(if swapped { end.saturating_sub(1) } else { end }, packet);
        }
        through
    }
}

fn payload(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3).to_le_bytes()[0]).collect()
}

/// Who closes when both have all: we and then smoltcp, the other way round, or both at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    We,
    Smoltcp,
    Both,
}

/// So long after it was heard last smoltcp says nothing more: no timer of its own is longer.
const SILENCE: Duration = Duration::from_secs(120);

/// One connection, opened by us or by smoltcp, both streams compared byte by byte, and closed by both.
/// `false` when a fault of smoltcp's own ends it.
fn run(seed: u64, chances: Chances, mtu: u16, we_open: bool) -> bool {
    let first = [First::We, First::Smoltcp, First::Both][usize::try_from(seed % 3).unwrap()];
    let told = format!("seed {seed}, chances {chances:?}, MTU {mtu}, we open: {we_open}, closes: {first:?}");
    let _told = Told(told.clone());
    let mut node = Node::new(1).with_interface(0, 1, None, mtu, "10.0.0.1/24");
    let mut peer = Peer::new(mtu.into());
    let mut between = Between { random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, chances };
    let (ours, theirs) = (payload(60_000, seed), payload(40_000, seed + 1));
    let mut now = Timestamp::from_nanos(1_000_000_000);
    let mut id: Option<ConnectionId> = None;
    if we_open {
        peer.socket().listen(80).unwrap();
        node.host.stack.connect(now, (None, 0), (address("10.0.0.2"), 80), &mut node.pool).unwrap();
    } else {
        node.host.stack.listen(None, 80, 4).unwrap();
        let context = peer.interface.context();
        let to = (IpAddress::v4(10, 0, 0, 1), 80);
        peer.sockets.get_mut::<tcp::Socket>(peer.socket).connect(context, to, 5000).unwrap();
    }
    let (mut sent, mut sent_back) = (0, 0);
    let (mut shut, mut peer_closed, mut closed) = (false, false, false);
    let (mut got, mut got_back) = (Vec::<u8>::new(), Vec::<u8>::new());
    let mut heard = now;
    let mut buffer = [0; 8192];
    for _ in 0..2_000_000 {
        now = now + Duration::from_millis(1);
        for event in node.host.stack.events().collect::<Vec<_>>() {
            match event {
                Event::Connected(c) | Event::Accepted { connection: c, .. } => id = Some(c),
                Event::PeerClosed(_) => peer_closed = true,
                Event::Closed(id, reason) => {
                    assert_eq!((reason, shut), (CloseReason::Done, true), "{told}");
                    node.host.stack.close(now, id, &mut node.pool).unwrap();
                    closed = true;
                }
                _ => {}
            }
        }
        if let Some(id) = id.filter(|_| !shut) {
            sent += node.host.stack.send(now, id, &ours[sent..], &mut node.pool).unwrap();
            let n = node.host.stack.receive_copy(now, id, &mut buffer, &mut node.pool).unwrap();
            got_back.extend(&buffer[..n]);
        }
        let socket = peer.socket();
        if socket.can_send() && sent_back < theirs.len() {
            sent_back += socket.send_slice(&theirs[sent_back..]).unwrap();
        }
        if socket.can_recv() {
            let n = socket.recv_slice(&mut buffer).unwrap();
            got.extend(&buffer[..n]);
        }
        if got.len() == ours.len() && got_back.len() == theirs.len() {
            assert!(got == ours && got_back == theirs, "a stream is not intact: {told}");
            if let Some(id) = id.filter(|_| !shut && (first != First::Smoltcp || peer_closed)) {
                node.host.stack.shutdown(now, id, &mut node.pool).unwrap();
                shut = true;
            }
            if first != First::We || socket.state() == tcp::State::CloseWait {
                socket.close();
            }
            if closed && matches!(socket.state(), tcp::State::Closed | tcp::State::TimeWait) {
                all_is_gone(&mut node, now);
                return true;
            }
            if let Some(id) =
                id.filter(|_| socket.state() == tcp::State::Closing && now.since(heard) > SILENCE)
            {
                // A FIN of its own that was lost is never sent again when ours comes before its timer has gone off, which ends that.
                // We wait for it, as long as somebody holds the connection.
                let state = node.host.stack.tcp_info(now, id).unwrap().state;
                assert_eq!((state, peer_closed, closed), (State::FinWait2, false, false), "{told}");
                println!("smoltcp has forgotten its FIN: {told}");
                node.host.stack.close(now, id, &mut node.pool).unwrap();
                node.take(now, PORT);
                node.take(now + SILENCE, PORT);
                all_is_gone(&mut node, now + SILENCE);
                return false;
            }
        }
        let forth = between.pass(node.take(now, PORT));
        peer.queues.receive.extend(forth);
        let at = Instant::from_millis(i64::try_from(now.as_millis()).unwrap());
        // Only its own code is in here: what it panics of is no fault of ours.
        let poll = || peer.interface.poll(at, &mut peer.queues, &mut peer.sockets);
        if catch_unwind(AssertUnwindSafe(poll)).is_err() {
            println!("smoltcp panicked: {told}");
            return false;
        }
        if !peer.queues.send.is_empty() {
            heard = now;
        }
        let back = between.pass(peer.queues.send.drain(..).collect());
        back.iter().for_each(|packet| node.put(now, PORT, packet));
    }
    let ends = (shut, peer_closed, closed, peer.socket().state());
    panic!("stuck at {} of {} and {} of {}: {ends:?}", got.len(), ours.len(), got_back.len(), theirs.len());
}

/// Nothing is left of a connection when TIME-WAIT is over.
fn all_is_gone(node: &mut Node, now: Timestamp) {
    let (connections, half_open, _) = node.host.stack.connections();
    assert_eq!((connections, half_open), (0, 0));
    node.take(now + Duration::from_secs(61), PORT);
    assert_eq!(node.host.stack.connections(), (0, 0, 0));
    node.assert_nothing_leaked();
}

/// Each fault alone, all at once, and some together that the seed draws. How often a fault of smoltcp's own
/// ends one.
fn each_fault(seed: u64) -> usize {
    let mut faults = 0;
    let drawn = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    // Four bits say which faults there are together.
    let mut fault = 0;
    let together = [25, 80, 150, 15].map(|thousandths| {
        fault += 1;
        if drawn >> fault & 1 == 1 { thousandths } else { 0 }
    });
    let any = 576 + u16::try_from(drawn >> 16 & 0xffff).unwrap() % 8425;
    for (i, chances) in
        [[0; 4], [30, 0, 0, 0], [0, 100, 0, 0], [0, 0, 200, 0], [0, 0, 0, 20], [20, 50, 100, 10], together]
            .into_iter()
            .enumerate()
    {
        let mtu = [1500, 576, 9000, 1280, any, 1000, any][(usize::try_from(seed).unwrap() + i) % 7];
        faults += usize::from(!run(seed, chances, mtu, seed.is_multiple_of(2)));
    }
    faults
}

#[test]
fn streams_to_and_from_smoltcp_are_intact() {
    assert_eq!((0..28).map(each_fault).sum::<usize>(), 0, "smoltcp's own");
}

/// See `streams::ten_thousand_seeds_of_each_fault`.
#[test]
#[ignore = "takes many minutes; see CONTRIBUTING.md"]
fn ten_thousand_seeds_with_smoltcp() {
    let seeds = crate::wire::seeds::seeds(10_000);
    let (connections, faults) = (7 * seeds.clone().count(), seeds.map(each_fault).sum::<usize>());
    println!("{connections} connections, {faults} of them ended by a fault of smoltcp's own");
    assert!(faults * 1000 <= connections, "too many of them to say anything");
}
