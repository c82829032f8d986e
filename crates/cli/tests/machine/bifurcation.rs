//! `--only`: the chosen packets are forwarded, all others stay with the kernel, and both are counted.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bywash_lab::sys::route::Prefix;
use bywash_lab::{Host, Lab, PairOptions};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
use serde_json::Value;

use crate::setup::{PATIENCE, Tool, bywash};

/// The port that is chosen, and one that is not.
const CHOSEN: u16 = 4444;
const OTHER: u16 = 4445;

/// How long an answer may take before it is asked again: a worker that the machine did not run for half a second leaves
/// its packets to the kernel meanwhile.
const ANSWER: Duration = Duration::from_secs(1);

fn udp(host: &Host, address: [u8; 4], port: u16) -> UdpSocket {
    let socket = host.enter(|| UdpSocket::bind((Ipv4Addr::from(address), port))).unwrap().unwrap();
    socket.set_read_timeout(Some(ANSWER)).unwrap();
    socket
}

/// Sends until `there` has it and `here` has the answer. How many went either way.
fn exchange(here: &UdpSocket, there: &UdpSocket, text: &[u8]) -> (u64, u64) {
    let (start, mut asked, mut answered, mut buffer) = (Instant::now(), 0, 0, [0; 100]);
    let to = there.local_addr().unwrap();
    while start.elapsed() < PATIENCE {
        here.send_to(text, to).unwrap();
        asked += 1;
        let Ok((len, from)) = there.recv_from(&mut buffer) else { continue };
        assert_eq!(&buffer[..len], text);
        there.send_to(text, from).unwrap();
        answered += 1;
        if here.recv(&mut buffer).is_ok() {
            return (asked, answered);
        }
    }
    panic!("{to} does not answer");
}

/// Waits for the kernel's answer to an ICMP echo request.
fn ping(host: &Host, to: [u8; 4]) {
    let socket: OwnedFd = host
        .enter(|| rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap())
        .unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER)).unwrap();
    rustix::net::connect(&socket, &std::net::SocketAddr::from((to, 0))).unwrap();
    // Type 8, its sum, number 0x4242 and nothing else.
    let request = [8, 0, 0xb5, 0xbd, 0x42, 0x42, 0, 0];
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        rustix::net::send(&socket, &request, SendFlags::empty()).unwrap();
        let mut packet = [0; 100];
        while let Ok((len, _)) = rustix::net::recv(&socket, &mut packet, RecvFlags::empty()) {
            if len >= 28 && packet[20] == 0 && packet[24..26] == [0x42, 0x42] {
                return;
            }
        }
    }
    panic!("{to:?} does not answer a ping");
}

/// A connection, and a word each way.
fn talk(here: &Host, there: &Host, to: [u8; 4], port: u16) {
    let to = (Ipv4Addr::from(to), port);
    let listener = there.enter(|| TcpListener::bind(to)).unwrap().unwrap();
    let client = here
        .enter(|| TcpStream::connect_timeout(&std::net::SocketAddr::from(to), PATIENCE))
        .unwrap()
        .unwrap();
    let server = listener.accept().unwrap().0;
    for (mut from, mut to) in [(&client, &server), (&server, &client)] {
        let mut word = [0; 5];
        to.set_read_timeout(Some(PATIENCE)).unwrap();
        from.write_all(b"hello").unwrap();
        to.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"hello");
    }
}

#[test]
fn what_is_chosen_is_forwarded_and_the_rest_reaches_the_kernel() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(3, &PairOptions::default()).unwrap();
    let [first, middle, last] = &lab.hosts[..] else { panic!("three hosts") };
    // To each other the outer hosts are on one link; the middle one's addresses are the row's.
    let (a, b) = (&lab.pairs[0].near, &lab.pairs[1].far);
    let [a_ip, b_ip]: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 3]];
    last.add_address(b.index, Prefix { address: b_ip.into(), length: 24 }).unwrap();
    first.route().add_neighbour(a.index, IpAddr::from(b_ip), b.mac).unwrap();
    last.route().add_neighbour(b.index, IpAddr::from(a_ip), a.mac).unwrap();

    let words = format!("forward xdp:left xdp:right --only 'udp dst port {CHOSEN}' --json");
    let forwarder = Tool::start(&mut bywash(middle, &words));

    let (here, there) = (udp(first, a_ip, CHOSEN), udp(last, b_ip, CHOSEN));
    let (mut asked, mut answered) = (0, 0);
    for number in 0..100_u32 {
        let (there, back) = exchange(&here, &there, &number.to_be_bytes());
        (asked, answered) = (asked + there, answered + back);
    }
    // Chosen as well, though it is for the middle host itself: its kernel never sees it.
    let deaf = udp(middle, [10, 0, 0, 2], CHOSEN);
    here.send_to(b"not for you", deaf.local_addr().unwrap()).unwrap();
    assert!(deaf.recv(&mut [0; 100]).is_err());
    asked += 1;

    // From either side: another port of UDP, also out of the chosen one; the same port of TCP; neither.
    let mut left = 0;
    for (host, from, to) in [(first, a_ip, [10, 0, 0, 2]), (last, [10, 0, 1, 2], [10, 0, 1, 1])] {
        let kernel = udp(middle, to, OTHER);
        exchange(&udp(host, from, OTHER + 1), &kernel, b"for the kernel");
        if host.namespace().number().unwrap() == first.namespace().number().unwrap() {
            exchange(&here, &kernel, b"for the kernel");
            left += 1;
        }
        talk(host, middle, to, CHOSEN);
        ping(host, to);
        // A datagram, a handshake with data and an end, an echo request.
        left += 1 + 4 + 1;
    }

    let summary = forwarder.summary();
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{summary:#}"));
    let counter = |port: usize, name: &str| number(&summary["ports"][port]["counters"][name]);
    for (port, sent) in [(0, asked), (1, answered)] {
        let direction = &summary["directions"][port];
        let taken = counter(port, "taken");
        assert_eq!(taken + counter(port, "hung"), sent, "{summary:#}");
        assert_eq!(number(&direction["rx_packets"]), taken, "{summary:#}");
        assert_eq!(number(&direction["tx_packets"]), taken, "{summary:#}");
        assert!(taken >= 100 && counter(port, "taken_bytes") >= taken * 46, "{summary:#}");
    }
    assert!(counter(0, "left") + counter(1, "left") >= left, "{left} at least: {summary:#}");
    assert!(counter(0, "left") > 0 && counter(1, "left") > 0, "{summary:#}");
}
