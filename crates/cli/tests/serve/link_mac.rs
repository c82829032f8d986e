//! Links whose Ethernet address is changed while an instance runs, as by `ip link set dev eth1 address 02:…`.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bywash_lab::lock;
use bywash_lab::sys::route::Mac;

use crate::instance::{Instance, host, pair};
use crate::link_mtu::{PATIENCE, set_mtu, wait_for};

#[test]
fn a_stream_goes_on_from_another_ethernet_address() {
    let Some(_guard) = lock() else { return };
    for kind in ["xdp", "packet"] {
        let (near, far, pair) = pair(&["10.9.0.1/24"]);
        let ours = &pair.far.name;
        let upload = Instance::start(&far, &format!("tcp|upload|--port|{kind}:{ours}|--addr|10.9.0.2/24"));
        let mut stream = near.enter(|| TcpStream::connect(("10.9.0.2", 19))).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = vec![0; 1_000_000];
        stream.read_exact(&mut bytes).unwrap();
        let mac = Mac([2, 0, 0, 0, 7, 7]);
        far.route().set_mac(pair.far.index, mac).unwrap();
        let until = Instant::now() + PATIENCE;
        let is_told = || {
            let neighbours = near.route().neighbours().unwrap();
            neighbours.iter().any(|neighbour| neighbour.mac == Some(mac))
        };
        while !is_told() {
            assert!(Instant::now() < until, "the kernel hears of no other address");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(upload.told("addr --json")[0]["mac"], mac.to_string());
        for _ in 0..20 {
            stream.read_exact(&mut bytes).unwrap();
        }
        drop(stream);
        upload.end();
    }
}

#[test]
fn the_kernels_end_of_a_tap_has_an_address_of_its_own() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let serve = Instance::start(&host, "serve|--port|tap:t0|--addr|10.9.3.2/24");
    let mac = || serve.told("addr --json")[0]["mac"].clone();
    let ours = mac();
    let index = host.link("t0").unwrap().index;
    host.route().set_mac(index, Mac([2, 0, 0, 0, 7, 7])).unwrap();
    // It has heard what was changed before.
    set_mtu(&host, "t0", 1400);
    wait_for(&serve, "default", ("mtu", 1400.into()));
    assert_eq!(mac(), ours);
    serve.end();
}

/// Many drivers take another address only then, and nobody on the link can be told.
#[test]
fn an_address_that_is_changed_while_the_link_is_down_is_told_of_when_it_is_up() {
    let Some(_guard) = lock() else { return };
    let (_near, far, pair) = pair(&["10.9.0.1/24"]);
    let (ours, index) = (&pair.far.name, pair.far.index);
    let serve = Instance::start(&far, &format!("serve|--port|xdp:{ours}|--addr|10.9.0.2/24"));
    let mac = || serve.told("addr --json")[0]["mac"].clone();
    let old = mac();
    far.route().set_up(index, false).unwrap();
    let new = Mac([2, 0, 0, 0, 7, 7]);
    far.route().set_mac(index, new).unwrap();
    set_mtu(&far, ours, 1400);
    wait_for(&serve, "default", ("mtu", 1400.into()));
    assert_eq!(mac(), old);
    far.route().set_up(index, true).unwrap();
    wait_for(&serve, "default", ("mac", new.to_string().into()));
    serve.end();
}
