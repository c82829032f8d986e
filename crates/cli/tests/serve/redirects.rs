//! Redirects of Linux as the router.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use bywash_engine::stack::wire::checksum::Sum;
use bywash_engine::stack::wire::zerocopy::IntoBytes;
use bywash_engine::stack::wire::{Ipv4Header, Ipv6Header, Protocol};
use bywash_lab::lock;
use bywash_lab::sys::route::Gateway;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

use crate::instance::{Instance, pair};

/// Hosts beyond the router, and our addresses.
const FAR4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const FAR6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
const OURS4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2);

/// An echo request that says it is from [`FAR4`].
fn ping4() -> Vec<u8> {
    let mut header = Ipv4Header::new(FAR4, OURS4, Protocol::ICMP.0, 8);
    header.seal();
    let mut echo = [8, 0, 0, 0, 0, 1, 0, 1];
    let sum = Sum::new().bytes(&echo).checksum();
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    [header.as_bytes(), &echo].concat()
}

/// The same from [`FAR6`].
fn ping6() -> Vec<u8> {
    let mut echo = [128, 0, 0, 0, 0, 1, 0, 1];
    let sum = Sum::pseudo(&FAR6.octets(), &OURS6.octets(), Protocol::ICMPV6.0, 8).bytes(&echo).checksum();
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    [Ipv6Header::new(FAR6, OURS6, Protocol::ICMPV6.0, 8).as_bytes(), &echo].concat()
}

/// Sends a packet with the IP header that it has (raw(7), `IPPROTO_RAW`).
fn send(packet: &[u8], to: IpAddr) {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let raw = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW)).unwrap();
    sendto(&raw, packet, SendFlags::empty(), &SocketAddr::new(to, 0)).unwrap();
}

#[test]
fn packets_go_where_linux_redirects_them_unless_it_is_not_heard() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24", "fd09::1/64"]);
    let (index, name) = (pair.near.index, &pair.far.name);
    for setting in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        near.sysctl(setting, "1").unwrap();
    }
    let better = ["10.9.0.3", "fe80::3"].map(|text| text.parse::<IpAddr>().unwrap());
    for (prefix, hop) in [("192.0.2.7/32", better[0]), ("2001:db8::7/128", better[1])] {
        near.add_route(prefix.parse().unwrap(), Gateway { index, address: Some(hop) }).unwrap();
    }
    let mac = pair.near.mac.0;
    let router = format!(
        "fe80::{:x}:{:x}ff:fe{:02x}:{:x}",
        u16::from_be_bytes([mac[0] ^ 2, mac[1]]),
        mac[2],
        mac[3],
        u16::from_be_bytes([mac[4], mac[5]])
    );
    let words = format!(
        "serve|--port|xdp:{name}|--addr|10.9.0.2/24|--addr|fd09::2/64|--route|default via 10.9.0.1|--route|default via {router}"
    );
    let serve = Instance::start(&far, &words);
    let redirected = |instance: &Instance| {
        let shown = instance.told("route show proto redirect --json");
        shown.as_array().unwrap().clone()
    };
    let ask = || {
        send(&ping4(), OURS4.into());
        send(&ping6(), OURS6.into());
    };
    let until = Instant::now() + Duration::from_secs(60);
    while redirected(&serve).len() < 2 {
        assert!(Instant::now() < until, "{}", serve.told("route --json"));
        near.enter(ask).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    for (row, (prefix, hop)) in
        redirected(&serve).iter().zip([("192.0.2.7/32", "10.9.0.3"), ("2001:db8::7/128", "fe80::3")])
    {
        assert_eq!((&row["prefix"], &row["gateway"]), (&prefix.into(), &hop.into()), "{row}");
        assert!((500..=600).contains(&row["expires"].as_u64().unwrap()), "{row}");
    }
    serve.end();
    let serve = Instance::start(&far, &format!("{words}|--no-redirects"));
    let count = || serve.told("stats --json")["engines"][0]["received"].as_u64().unwrap();
    let before = count();
    while count() < before + 20 {
        assert!(Instant::now() < until, "{}", serve.told("stats --json"));
        near.enter(ask).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(redirected(&serve).is_empty());
    serve.end();
}
