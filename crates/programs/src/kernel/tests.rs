//! Ports, listeners that are left alone, and errors of sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::dialect::Dialect;
use crate::load::{Clockwork, Load, Plan};

fn sockets() -> KernelSockets {
    KernelSockets::new(KernelOptions::default(), Counters::default()).unwrap()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let free = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
    free.unwrap().local_addr().unwrap().port()
}

#[test]
fn workers_share_a_port_with_each_other_only() {
    let port = free_port();
    let mut workers = [sockets(), sockets(), sockets()];
    for (number, worker) in workers.iter_mut().enumerate() {
        worker.listen(port, number, 3).unwrap();
    }
    for count in [1, 2] {
        let why = sockets().listen(port, 0, count).unwrap_err();
        assert!(why.contains("Address already in use"), "{why}");
    }
    drop(workers);
    let mut alone = sockets();
    alone.listen(port, 0, 1).unwrap();
    assert!(sockets().listen(port, 1, 2).is_err(), "one that is alone shares with nobody");
}

#[test]
fn without_descriptors_a_listener_is_left_alone_until_there_may_be_some() {
    let (counters, port) = (Counters::default(), free_port());
    let mut sockets = KernelSockets::new(KernelOptions::default(), counters.clone()).unwrap();
    sockets.listen(port, 0, 1).unwrap();
    let listener = KernelId { place: 0, generation: 0 };
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let accepted = |sockets: &mut KernelSockets| {
        sockets.look().unwrap();
        let happened = sockets.happened.drain(..).find_map(|happened| match happened {
            Happened::Accepted(id) => Some(id),
            _ => None,
        });
        (happened, sockets.next_deadline())
    };
    let _first = connect();
    let (first, deadline) = accepted(&mut sockets);
    assert_eq!(deadline, None);
    let _second = connect();
    sockets.rest(listener, &Errno::MFILE.into());
    assert_eq!(accepted(&mut sockets), (None, Some(Timestamp::ZERO + REST)));
    // A connection that is closed gives its descriptor back.
    sockets.close(first.unwrap());
    assert_eq!(sockets.next_deadline(), Some(Timestamp::ZERO));
    assert!(matches!(accepted(&mut sockets), (Some(_), None)));
    let _third = connect();
    sockets.rest(listener, &Errno::NFILE.into());
    assert_eq!(accepted(&mut sockets), (None, Some(Timestamp::ZERO + REST)));
    // So may others meanwhile.
    sockets.now = Timestamp::ZERO + REST;
    assert!(matches!(accepted(&mut sockets), (Some(_), None)));
    assert_eq!(counters.read().put_off, 2);
    assert!(counters.put_off_because().unwrap().ends_with("(ulimit -n)"), "the first reason");
}

#[test]
fn too_many_open_files_have_a_cure() {
    let told = |errno: Errno| with_cure(&errno.into(), ", or more");
    assert!(told(Errno::MFILE).ends_with("(ulimit -n), or more"), "{}", told(Errno::MFILE));
    assert_eq!(told(Errno::ADDRNOTAVAIL), io::Error::from(Errno::ADDRNOTAVAIL).to_string());
}

#[test]
fn what_the_peer_has_acknowledged_is_told_with_and_without_a_fin() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sockets = sockets();
    let id = sockets.connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    assert_eq!(sockets.acknowledged(id), Some(0));
    // More than the peer's kernel takes, while it reads nothing.
    let mut sent = 0;
    for _ in 0..1000 {
        sockets.turn += 1;
        let n = sockets.send(id, &[0; 64 << 10]) as u64;
        sent += n;
        if n == 0 {
            break;
        }
    }
    let before = sockets.acknowledged(id).unwrap();
    assert!(before < sent, "{before} of {sent}");
    sockets.shutdown(id);
    assert!(sockets.acknowledged(id).unwrap() < sent, "the FIN waits behind them");
    let (mut read, mut last, mut buffer) = (0, before, vec![0; 64 << 10]);
    loop {
        let n = peer.read(&mut buffer).unwrap();
        let now = sockets.acknowledged(id).unwrap();
        assert!(now >= last && now <= sent, "{now} after {last}");
        (read, last) = (read + n as u64, now);
        if n == 0 {
            break;
        }
    }
    assert_eq!(read, sent);
    let until = Instant::now() + Duration::from_secs(5);
    while sockets.acknowledged(id) != Some(sent) && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(sockets.acknowledged(id), Some(sent));
    sockets.close(id);
    assert_eq!(sockets.acknowledged(id), None);
}

struct Unwatched;

impl Clockwork for Unwatched {
    fn record(&mut self, _ns: u64, _requests: u64) {}

    fn record_unanswered(&mut self, _ns: u64, _requests: u64) {}
}

#[test]
fn a_connection_whose_end_came_with_its_answer_is_asked_nothing_more() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (counters, patience) = (Counters::default(), Duration::from_secs(10));
    let plan = Plan {
        to: listener.local_addr().unwrap(),
        dialect: Dialect::Http { path: "/".into(), host: "a".into() },
        connections: 1,
        depth: 1,
        pace: None,
        requests: Some(10),
        timeout: patience,
    };
    let load = Load::new(plan, counters.clone(), Unwatched);
    let mut task = OnKernel::new(load, sockets(), Stop::new().unwrap());
    task.begin(0, 1).unwrap();
    let (mut peer, mut request, until) = (None::<TcpStream>, [0; 1024], Instant::now() + patience);
    while task.turn() != Turn::Done && Instant::now() < until {
        peer = peer.or_else(|| Some(listener.accept().ok()?.0));
        let Some(asked) = peer.as_mut() else { continue };
        asked.set_nonblocking(true).unwrap();
        if asked.read(&mut request).is_ok() {
            asked.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
            peer = None;
            // The answer and the end are there before the next turn.
            let fd = &task.sockets.places[0].socket.as_ref().unwrap().fd;
            let longest = Timespec::try_from(patience).unwrap();
            assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::RDHUP)], Some(&longest)), Ok(1));
        }
    }
    let counted = counters.read();
    assert_eq!((counted.requests, counted.errors(), counted.connections), (10, 0, 10));
}
