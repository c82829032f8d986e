//! Hosts and cables, in real network namespaces.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers, too")]

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use bywash_lab::sys::namespace::Namespace;
use bywash_lab::sys::route::{Gateway, Mac, Prefix, Route};
use bywash_lab::sys::sysctl;
use bywash_lab::{Host, HostOptions, Lab, Pair, PairOptions, TapPair, lock};

const QUICK: Duration = Duration::from_secs(2);

fn udp(host: &Host, address: &str) -> UdpSocket {
    let socket = host.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(QUICK)).unwrap();
    socket
}

#[test]
fn packets_cross_a_pair_of_one_queue_and_of_four() {
    let Some(_guard) = lock() else { return };
    for queues in [1, 4] {
        let lab = Lab::row(2, &PairOptions { queues, ..PairOptions::default() }).unwrap();
        for (host, end) in [(&lab.hosts[0], &lab.pairs[0].near), (&lab.hosts[1], &lab.pairs[0].far)] {
            let link = host.link(&end.name).unwrap();
            assert_eq!((link.rx_queues, link.tx_queues), (queues, queues));
            assert_eq!((link.kind.as_deref(), link.mac, link.mtu), (Some("veth"), Some(end.mac), 1500));
            let channels = host.ethtool().channels(&end.name).unwrap();
            assert_eq!((channels.rx, channels.tx), (queues, queues));
        }
        let (sender, receiver) = (udp(&lab.hosts[0], "10.0.0.1:0"), udp(&lab.hosts[1], "10.0.0.2:7"));
        sender.send_to(b"across", "10.0.0.2:7").unwrap();
        let mut buffer = [0; 16];
        let (length, from) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.ip()), (&b"across"[..], IpAddr::from([10, 0, 0, 1])));
    }
}

#[test]
fn packets_cross_a_row_of_three_by_the_one_in_the_middle() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(3, &PairOptions { mtu: 3000, ..PairOptions::default() }).unwrap();
    lab.hosts[1].sysctl("net.ipv4.ip_forward", "1").unwrap();
    let any: Prefix = "0.0.0.0/0".parse().unwrap();
    for (host, index, router) in [
        (&lab.hosts[0], lab.pairs[0].near.index, [10, 0, 0, 2]),
        (&lab.hosts[2], lab.pairs[1].far.index, [10, 0, 1, 1]),
    ] {
        let way = Gateway { index, address: Some(router.into()) };
        host.add_route(any, way).unwrap();
        assert_eq!(host.route().default_gateways().unwrap(), [way]);
    }
    let (sender, receiver) = (udp(&lab.hosts[0], "10.0.0.1:0"), udp(&lab.hosts[2], "10.0.1.2:7"));
    sender.send_to(&[7; 2900], "10.0.1.2:7").unwrap();
    assert_eq!(receiver.recv(&mut [0; 4000]).unwrap(), 2900);
}

#[test]
fn offloads_are_off_unless_wanted() {
    let Some(_guard) = lock() else { return };
    for offloads in [false, true] {
        let lab = Lab::row(2, &PairOptions { offloads, ..PairOptions::default() }).unwrap();
        let features = lab.hosts[1].ethtool().features("left").unwrap();
        for name in [
            "tx-checksum-ip-generic",
            "tx-tcp-segmentation",
            "tx-generic-segmentation",
            "tx-udp-segmentation",
        ] {
            assert_eq!(features[name].on, offloads, "{name}");
        }
        assert!(!features["rx-gro"].on, "off, and off by default on a veth");
    }
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let ethtool = lab.hosts[0].ethtool();
    ethtool.set_features("right", &["rx-gro"], true).unwrap();
    assert!(ethtool.features("right").unwrap()["rx-gro"].on);
    let error = ethtool.set_features("right", &["rx-grow"], true).unwrap_err().to_string();
    assert_eq!(error, "right: no feature is called 'rx-grow'");
    let error = ethtool.set_features("right", &["rx-ntuple-filter"], true).unwrap_err().to_string();
    assert_eq!(error, "right: can't switch on rx-ntuple-filter: the driver doesn't let it");
}

#[test]
fn tcp_uses_cubic_whatever_the_machine_prefers() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let listener = lab.hosts[1].enter(|| TcpListener::bind("10.0.0.2:80")).unwrap().unwrap();
    let mut client = lab.hosts[0].enter(|| TcpStream::connect("10.0.0.2:80")).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    for socket in [&client, &server] {
        let name = rustix::net::sockopt::tcp_congestion(socket).unwrap();
        assert_eq!(name, "cubic");
    }
}

#[test]
fn a_host_is_silent_until_it_is_spoken_to() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    for host in &lab.hosts {
        assert_eq!(host.enter(|| sysctl::read("net.ipv6.conf.all.disable_ipv6")).unwrap().unwrap(), "1");
        assert!(host.route().addresses().unwrap().iter().all(|address| address.prefix.address.is_ipv4()));
    }
    let mut route = lab.hosts[0].route();
    let neighbours = route.neighbours().unwrap();
    let far = neighbours.iter().find(|n| n.address == IpAddr::from([10, 0, 0, 2])).unwrap();
    assert_eq!((far.mac, far.permanent), (Some(Mac([2, 0, 0, 0, 0, 2])), true));
}

#[test]
fn a_host_may_have_ipv6() {
    let Some(_guard) = lock() else { return };
    let host = |_| Host::with(&HostOptions { ipv6: true, ..HostOptions::default() }).unwrap();
    let hosts = [0, 1].map(host);
    let prefix = |text: &str| vec![text.parse::<Prefix>().unwrap()];
    let options =
        PairOptions { addresses: [prefix("fd00::1/64"), prefix("fd00::2/64")], ..PairOptions::default() };
    let pair = Pair::between(&hosts[0], &hosts[1], &options).unwrap();
    let (sender, receiver) = (udp(&hosts[0], "[fd00::1]:0"), udp(&hosts[1], "[fd00::2]:7"));
    sender.send_to(b"six", "[fd00::2]:7").unwrap();
    assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 3);
    for (address, local) in
        [("fd00::1", true), ("fd00::2", false), ("2001:db8::1", false), ("127.0.0.1", true)]
    {
        assert_eq!(hosts[0].route().is_local(address.parse().unwrap()).unwrap(), local, "{address}");
    }
    let router: IpAddr = "fd00::2".parse().unwrap();
    let way = Gateway { index: pair.near.index, address: Some(router) };
    hosts[0].add_route("::/0".parse().unwrap(), way).unwrap();
    assert_eq!(hosts[0].route().default_gateways().unwrap(), [way]);
}

/// Routers for large networks have their default routes like that, and turn the old way of listing them off.
#[test]
fn gateways_are_found_behind_next_hops_that_are_objects() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(3, &PairOptions::default()).unwrap();
    let host = &lab.hosts[1];
    host.sysctl("net.ipv4.nexthop_compat_mode", "0").unwrap();
    let (left, right) = (&lab.pairs[0].far, &lab.pairs[1].near);
    for words in [
        format!("nexthop add id 7 via 10.0.0.1 dev {}", left.name),
        format!("nexthop add id 8 via 10.0.1.2 dev {}", right.name),
        "nexthop add id 9 group 7/8".to_owned(),
        "route add default nhid 9".to_owned(),
        "route add default metric 5 nhid 7".to_owned(),
    ] {
        let mut ip = host.command("ip").unwrap();
        assert!(ip.args(words.split(' ')).status().unwrap().success(), "{words}");
    }
    let way = |index, router: [u8; 4]| Gateway { index, address: Some(router.into()) };
    let ways = [way(left.index, [10, 0, 0, 1]), way(right.index, [10, 0, 1, 2])];
    assert_eq!(host.route().default_gateways().unwrap(), ways);
    let routes = host.route().routes().unwrap();
    let of = |metric| routes.iter().find(|route| route.destination.length == 0 && route.metric == metric);
    assert_eq!(of(5).unwrap().ways, ways[..1]);
}

#[test]
fn links_are_changed_and_deleted() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let (host, end) = (&lab.hosts[0], &lab.pairs[0].near);
    let mac = Mac([2, 0, 0, 0, 9, 9]);
    host.route().set_mac(end.index, mac).unwrap();
    host.route().set_mtu(end.index, 900).unwrap();
    host.route().set_up(end.index, false).unwrap();
    let link = host.link(&end.name).unwrap();
    assert_eq!((link.mac, link.mtu, link.up, link.running), (Some(mac), 900, false, false));
    assert!(!lab.hosts[1].link("left").unwrap().carrier, "the other end has lost its partner");
    let error = host.route().set_mtu(end.index, 70_000).unwrap_err().to_string();
    assert!(error.contains("an MTU of 70000: Invalid argument") && error.contains("mtu"), "{error}");

    host.route().delete_link(end.index).unwrap();
    assert_eq!(host.route().link("right").unwrap(), None);
    assert_eq!(lab.hosts[1].route().link("left").unwrap(), None);
}

#[test]
fn one_end_may_be_in_the_callers_namespace_and_goes_with_the_pair() {
    let Some(_guard) = lock() else { return };
    let (here, there) = (Host::here().unwrap(), Host::new().unwrap());
    let options = PairOptions {
        names: ["bwtest0".into(), "far".into()],
        addresses: Default::default(),
        ..PairOptions::default()
    };
    let pair = Pair::between(&here, &there, &options).unwrap();
    assert!(here.link("bwtest0").unwrap().running);
    let taken = Pair::between(&here, &there, &options).unwrap_err().to_string();
    assert!(taken.contains("bwtest0 and far: File exists"), "{taken}");
    drop(pair);
    assert_eq!(here.route().link("bwtest0").unwrap(), None);
}

#[test]
fn a_namespace_is_entered_by_closures_and_programs() {
    let Some(_guard) = lock() else { return };
    let host = Host::new().unwrap();
    let outside = Namespace::current().unwrap().number().unwrap();
    let inside = host.namespace().number().unwrap();
    assert_ne!(inside, outside);
    assert_eq!(host.enter(|| Namespace::current().unwrap().number().unwrap()).unwrap(), inside);
    assert_eq!(Namespace::current().unwrap().number().unwrap(), outside, "the caller has not moved");
    let output = host.command("readlink").unwrap().arg("/proc/self/ns/net").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("net:[{inside}]"));
    assert!(host.namespace().fd().as_raw_fd() > 2);

    let panic = std::panic::catch_unwind(|| host.enter(|| panic!("inside")).unwrap()).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"inside"));
    let links = host.enter(|| Route::open().unwrap().links().unwrap()).unwrap();
    assert_eq!(links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>(), ["lo"]);
}

#[test]
fn a_tap_pair_carries_frames_byte_for_byte() {
    let Some(_guard) = lock() else { return };
    let host = Host::new().unwrap();
    let tap = TapPair::to(&host, &PairOptions::default()).unwrap();
    assert_eq!(host.link("right").unwrap().kind.as_deref(), Some("tun"));
    assert_eq!(tap.receive(Duration::from_millis(20)), Ok(None), "the host is silent");

    let (near, far) = (tap.near.mac.0, tap.far.mac.0);
    // Who has 10.0.0.1? Tell 10.0.0.2.
    let ask = [
        &[0xff; 6][..],
        &far,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &far,
        &[10, 0, 0, 2],
        &[0; 6],
        &[10, 0, 0, 1],
    ]
    .concat();
    let answer =
        [&far[..], &near, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &near, &[10, 0, 0, 1], &far, &[10, 0, 0, 2]]
            .concat();
    tap.send(&ask).unwrap();
    assert_eq!(tap.receive(QUICK).unwrap().unwrap(), answer);

    udp(&host, "10.0.0.1:5").send_to(b"to the tap", "10.0.0.2:7").unwrap();
    let frame = tap.receive(QUICK).unwrap().unwrap();
    assert_eq!((&frame[..6], &frame[6..12], &frame[42..]), (&far[..], &near[..], &b"to the tap"[..]));

    drop(tap);
    assert_eq!(host.route().link("right").unwrap(), None);
}
