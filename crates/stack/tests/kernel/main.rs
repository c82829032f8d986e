//! The stack against Linux's own, over a tap: pings, datagrams, and streams both ways, over IPv4 and IPv6.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod worker;

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bywash_lab::{Host, HostOptions};
use bywash_stack::wire::checksum::Sum;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket};

use worker::{ECHO, KERNEL, OURS, PATIENCE, Worker};

/// A host with its worker.
fn setting(offload: bool) -> (Host, Worker) {
    let host = Host::with(&HostOptions { ipv6: true, ..HostOptions::default() }).unwrap();
    let worker = Worker::on(&host, offload);
    (host, worker)
}

fn addresses() -> [(IpAddr, IpAddr); 2] {
    [0, 1].map(|i| (KERNEL[i].0.parse().unwrap(), OURS[i].0.parse().unwrap()))
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(31) >> 3).to_le_bytes()[0]).collect()
}

/// Sends an echo request of `length` bytes and waits for what comes back.
fn ping(from: IpAddr, to: IpAddr, length: usize) {
    let (family, protocol): (_, Protocol) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let raw: OwnedFd = socket(family, SocketType::RAW, Some(protocol)).unwrap();
    rustix::net::sockopt::set_socket_timeout(&raw, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))
        .unwrap();
    rustix::net::bind(&raw, &SocketAddr::new(from, 0)).unwrap();
    let kind = if to.is_ipv4() { 8 } else { 128 };
    let mut message = [&[kind, 0, 0, 0, 0x12, 0x34, 0, 1], &payload(length)[..]].concat();
    if to.is_ipv4() {
        let checksum = Sum::new().bytes(&message).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    sendto(&raw, &message, SendFlags::empty(), &SocketAddr::new(to, 0)).unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no reply of {length} bytes from {to}");
        let mut buffer = vec![0; 1 << 16];
        let (length, _) = recv(&raw, &mut buffer, RecvFlags::empty()).unwrap();
        // IPv4's raw sockets show the IP header.
        let reply = if to.is_ipv4() { &buffer[20..length] } else { &buffer[..length] };
        if reply[0] == (if to.is_ipv4() { 0 } else { 129 }) && reply[4..6] == [0x12, 0x34] {
            assert!(reply[8..] == message[8..], "the same bytes come back");
            return;
        }
    }
}

#[test]
fn the_kernel_pings_us() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for offload in [false, true] {
        let (host, mut worker) = setting(offload);
        worker.serve_while(|| {
            host.enter(|| {
                for (kernel, ours) in addresses() {
                    for length in [0, 56, 1453, 20_000] {
                        ping(kernel, ours, length);
                    }
                }
            })
            .unwrap();
        });
        worker.close();
    }
}

#[test]
fn datagrams_of_every_size_go_both_ways() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let (host, mut worker) = setting(true);
    worker.serve_while(|| {
        host.enter(|| {
            for (kernel, ours) in addresses() {
                let socket = UdpSocket::bind((kernel, 0)).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                for length in [0, 1, 1452, 1453, 1473, 30_000] {
                    let sent = payload(length);
                    socket.send_to(&sent, (ours, ECHO)).unwrap();
                    let mut buffer = vec![0; 1 << 16];
                    let (n, from) = socket.recv_from(&mut buffer).unwrap();
                    assert_eq!((n, from), (length, SocketAddr::new(ours, ECHO)));
                    assert!(buffer[..n] == sent, "{length} bytes over {ours}");
                }
                // Nobody has that port: the kernel's socket hears of it.
                socket.connect((ours, ECHO + 1)).unwrap();
                socket.send(b"?").unwrap();
                let error = socket.recv(&mut [0]).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{ours}");
            }
        })
        .unwrap();
    });
    worker.close();
}

#[test]
fn the_kernel_connects_and_its_bytes_come_back() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for offload in [false, true] {
        let (host, mut worker) = setting(offload);
        worker.serve_while(|| {
            host.enter(|| {
                for (_, ours) in addresses() {
                    let sent = payload(4_000_000);
                    let mut stream = TcpStream::connect((ours, ECHO)).unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut half = stream.try_clone().unwrap();
                    let back = std::thread::scope(|scope| {
                        let writer = scope.spawn(|| {
                            half.write_all(&sent).unwrap();
                            half.shutdown(Shutdown::Write).unwrap();
                        });
                        let mut back = Vec::new();
                        stream.read_to_end(&mut back).unwrap();
                        writer.join().unwrap();
                        back
                    });
                    assert_eq!(back.len(), sent.len());
                    assert!(back == sent, "offload {offload}, {ours}");
                }
            })
            .unwrap();
        });
        worker.close();
    }
}

#[test]
fn we_connect_to_the_kernel_and_it_gets_everything() {
    let Some(_guard) = bywash_lab::lock() else { return };
    for offload in [false, true] {
        let (host, mut worker) = setting(offload);
        for (kernel, _) in addresses() {
            let listener = host.enter(|| TcpListener::bind((kernel, 0)).unwrap()).unwrap();
            let to = listener.local_addr().unwrap();
            let sent = payload(4_000_000);
            let got = std::thread::scope(|scope| {
                let sink = scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).unwrap();
                    got
                });
                worker.upload(to, &sent);
                worker.serve_until(|| sink.is_finished());
                sink.join().unwrap()
            });
            assert_eq!(got.len(), sent.len());
            assert!(got == sent, "offload {offload}, {kernel}");
        }
        worker.close();
    }
}

#[test]
fn a_closed_port_refuses_the_kernel() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let (host, mut worker) = setting(true);
    worker.serve_while(|| {
        host.enter(|| {
            for (_, ours) in addresses() {
                let to = SocketAddr::new(ours, ECHO + 1);
                let error = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{ours}");
            }
        })
        .unwrap();
    });
    worker.close();
}
