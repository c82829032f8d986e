//! Ports, and errors of sockets.

use super::*;

fn sockets() -> KernelSockets {
    KernelSockets::new(KernelOptions::default()).unwrap()
}

#[test]
fn workers_share_a_port_with_each_other_only() {
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("[::]:0").or_else(|_| std::net::TcpListener::bind("0.0.0.0:0"));
    let port = free.unwrap().local_addr().unwrap().port();
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
fn too_many_open_files_have_a_cure() {
    let told = |errno: Errno| with_cure(&errno.into());
    assert!(told(Errno::MFILE).contains("(ulimit -n)"), "{}", told(Errno::MFILE));
    assert_eq!(told(Errno::ADDRNOTAVAIL), io::Error::from(Errno::ADDRNOTAVAIL).to_string());
}
