//! Links whose MTU is changed while an instance runs, as by `ip link set dev eth1 mtu 1400`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bywash_lab::{Host, lock};
use serde_json::Value;

use crate::instance::{Instance, Router, pair};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn set_mtu(host: &Host, name: &str, mtu: u32) {
    let index = host.link(name).unwrap().index;
    host.route().set_mtu(index, mtu).unwrap();
}

/// Waits until the instance of this name shows something of an interface, by the word that `bywash addr --json` has for it.
pub(crate) fn wait_for(instance: &Instance, name: &str, (word, value): (&str, Value)) {
    let until = Instant::now() + PATIENCE;
    loop {
        let shown = instance.told(&format!("addr --json --name {name}"));
        if shown.as_array().unwrap().iter().any(|row| row[word] == value) {
            return;
        }
        assert!(Instant::now() < until, "{shown}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_stream_goes_on_over_a_link_that_becomes_narrower_and_is_never_wider_than_at_the_start() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let (ours, theirs) = (&pair.far.name, &pair.near.name);
    let upload = Instance::start(&far, &format!("tcp|upload|--port|xdp:{ours}|--addr|10.9.0.2/24"));
    let mut stream = near.enter(|| TcpStream::connect(("10.9.0.2", 19))).unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = vec![0; 1_000_000];
    stream.read_exact(&mut bytes).unwrap();
    // The far end of a veth drops what is too long for it.
    for (host, name) in [(&near, theirs), (&far, ours)] {
        set_mtu(host, name, 1400);
    }
    wait_for(&upload, "default", ("mtu", 1400.into()));
    for _ in 0..20 {
        stream.read_exact(&mut bytes).unwrap();
    }
    // Its port was made for packets of 1500 bytes.
    set_mtu(&near, theirs, 1500);
    set_mtu(&far, ours, 1600);
    wait_for(&upload, "default", ("mtu", 1500.into()));
    drop(stream);
    upload.end();
}

#[test]
fn a_router_tells_senders_of_a_link_that_has_become_narrower() {
    let Some(_guard) = lock() else { return };
    let router = Router::start();
    let listener = router.right.enter(|| TcpListener::bind("10.9.2.2:7")).unwrap().unwrap();
    let mut stream = router.left.enter(|| TcpStream::connect("10.9.2.2:7")).unwrap().unwrap();
    let (mut served, _) = listener.accept().unwrap();
    served.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // Both ends have agreed on 1460 bytes by now.
    set_mtu(&router.middle, "rb", 1400);
    set_mtu(&router.right, "b", 1400);
    wait_for(&router.instance, "router", ("mtu", 1400.into()));
    let sent = vec![7; 500_000];
    std::thread::scope(|scope| {
        scope.spawn(|| stream.write_all(&sent).unwrap());
        served.read_exact(&mut vec![0; sent.len()]).unwrap();
    });
    let stats = router.instance.told("stats --json --name router");
    assert!(stats["control"]["icmp_error_messages_sent"].as_u64().unwrap() > 0, "{stats}");
    router.instance.end();
}
