//! TCP of the kernel at both ends, through `forward` between a tap and an `xdp:` port, and between two of the latter.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};

use bywash_lab::sys::route::{Mac, Prefix};
use bywash_lab::{Host, Lab, Pair, PairOptions};

use serde_json::Value;

use crate::setup::{PATIENCE, Tool, bywash};

/// Bytes in either direction.
const BYTES: usize = 5 << 20;

/// Addresses of the network that the forwarder joins: the kernel's behind the tap, and the far host's.
const NEAR: [u8; 4] = [10, 9, 0, 1];
const FAR: [u8; 4] = [10, 9, 0, 2];

/// The byte at a place of a direction's stream.
fn byte(at: usize, direction: usize) -> u8 {
    let mixed = (at as u64 ^ (direction as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_le_bytes()[7]
}

/// Sends a direction's stream, and its end.
fn send(mut to: &TcpStream, direction: usize) {
    for at in (0..BYTES).step_by(1 << 16) {
        let piece: Vec<u8> = (at..at + (1 << 16)).map(|at| byte(at, direction)).collect();
        to.write_all(&piece).unwrap();
    }
    to.shutdown(Shutdown::Write).unwrap();
}

/// Receives a direction's stream to its end.
fn receive(mut from: &TcpStream, direction: usize) {
    let (mut at, mut buffer) = (0, vec![0; 1 << 16]);
    loop {
        match from.read(&mut buffer).unwrap() {
            0 => break,
            n => {
                let wrong = buffer[..n].iter().zip(at..).find(|&(&got, at)| got != byte(at, direction));
                assert_eq!(wrong, None, "direction {direction}");
                at += n;
            }
        }
    }
    assert_eq!(at, BYTES, "direction {direction}");
}

/// Both directions at once.
fn talk(client: &TcpStream, server: &TcpStream) {
    for end in [client, server] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| send(client, 0));
        scope.spawn(|| send(server, 1));
        scope.spawn(|| receive(client, 1));
        receive(server, 0);
    });
}

fn join(host: &Host, name: &str, own: [u8; 4], other: ([u8; 4], Mac)) {
    let index = host.link(name).unwrap().index;
    host.add_address(index, Prefix { address: own.into(), length: 24 }).unwrap();
    host.route().add_neighbour(index, other.0.into(), other.1).unwrap();
}

/// Five megabytes each way between the near host's kernel, behind a tap, and the far host's, behind a veth.
fn five_megabytes(offloads: bool) {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions { offloads, ..PairOptions::default() }).unwrap();
    let (near, far) = (&lab.hosts[0], &lab.hosts[1]);
    let words = "forward tap:tap0 xdp:right --only 'net 10.9.0.0/24' --json";
    let forwarder = Tool::start(&mut bywash(near, words));
    join(near, "tap0", NEAR, (FAR, lab.pairs[0].far.mac));
    join(far, "left", FAR, (NEAR, near.link("tap0").unwrap().mac.unwrap()));

    connect_and_talk(near, far);
    check(&forwarder.summary());
}

/// A connection from the near address to the far one, of five megabytes each way.
fn connect_and_talk(near: &Host, far: &Host) {
    let to = SocketAddr::from((FAR, 80));
    let listener = far.enter(|| TcpListener::bind(to)).unwrap().unwrap();
    let client = near.enter(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap().unwrap();
    let server = listener.accept().unwrap().0;
    assert_eq!(server.peer_addr().unwrap().ip(), IpAddr::from(NEAR));
    talk(&client, &server);
}

/// All of it went through the forwarder.
fn check(summary: &Value) {
    for direction in summary["directions"].as_array().unwrap() {
        assert!(direction["tx_bytes"].as_u64().unwrap() >= BYTES as u64, "past us: {summary:#}");
    }
    let queues = summary["queues"].as_array().unwrap();
    assert!(queues.len() >= 2, "{summary:#}");
    for queue in queues {
        assert_eq!(queue["errors"], 0, "{summary:#}");
    }
}

#[test]
fn a_connection_between_a_tap_and_a_wire() {
    five_megabytes(false);
}

/// A veth whose peer leaves checksums and segments to it, as those of containers do.
#[test]
fn a_connection_between_a_tap_and_a_veth_as_it_comes() {
    five_megabytes(true);
}

#[test]
fn a_connection_between_two_veths_as_they_come() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let [near, middle, far] = &[(); 3].map(|()| Host::new().unwrap());
    let bare = PairOptions { offloads: true, addresses: Default::default(), ..PairOptions::default() };
    let first = Pair::between(near, middle, &bare).unwrap();
    let macs = [Mac([2, 0, 0, 0, 1, 1]), Mac([2, 0, 0, 0, 1, 2])];
    let second = Pair::between(middle, far, &PairOptions { macs, ..bare }).unwrap();
    let forwarder = Tool::start(&mut bywash(middle, "forward xdp:left xdp:right --json"));
    join(near, "right", NEAR, (FAR, second.far.mac));
    join(far, "left", FAR, (NEAR, first.near.mac));
    connect_and_talk(near, far);
    check(&forwarder.summary());
}
