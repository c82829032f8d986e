//! Peers that have a link-local address: whoever speaks with them says by which interface.

use std::io::{Read, Write};
use std::net::{SocketAddrV6, TcpStream};

use bywash_lab::lock;

use crate::instance::{BYWASH, Instance, client, pair};

#[test]
fn link_local_peers_are_reached_by_the_interface_that_is_named() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["fe80::1/64"]);
    let (ours, theirs) = (&pair.far.name, &pair.near.name);
    let place = format!("--port|xdp:{ours}|--addr|fd09::2/64");
    let load = |host, to: &str, place: &str| {
        let words = format!("tcp|load|http|{to}|--connections|4|--requests|200|--duration|60s|{place}");
        let (code, told) = client(host, &words);
        assert_eq!((code, &told["requests"]), (Some(0), &200.into()), "{to} {place}: {told}");
    };
    // Their server is on the kernel's sockets, then ours is on the stack.
    let http = Instance::start(&near, "tcp|http|--kernel");
    for zone in [format!("%{ours}"), format!("%25{ours}"), String::new()] {
        load(&far, &format!("[fe80::1{zone}]:80"), &place);
    }
    http.end();
    let http = Instance::start(&far, &format!("tcp|http|{place}"));
    let addresses = http.told("addr --json");
    let all = addresses.as_array().unwrap().iter().map(|row| row["address"].as_str().unwrap());
    let local =
        all.filter_map(|text| text.strip_suffix("/64")).find(|text| text.starts_with("fe80")).unwrap();
    for zone in [format!("%{theirs}"), String::new()] {
        load(&near, &format!("[{local}{zone}]:80"), "--kernel");
    }
    let to = SocketAddrV6::new(local.parse().unwrap(), 80, 0, pair.near.index);
    let mut stream = near.enter(|| TcpStream::connect(to)).unwrap().unwrap();
    stream.write_all(b"GET /9 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 1);
    let (peer, port) = (stream.local_addr().unwrap().ip(), stream.local_addr().unwrap().port());
    // It is shown, and looked for, with its link.
    for filter in [format!("dst [{peer}%{ours}]:{port}"), format!("dport = {port} src {local}%{ours}")] {
        let shown = http.told(&format!("sockets --json {filter}"));
        let ends = [&shown[0]["local"], &shown[0]["remote"]];
        assert_eq!(ends, [&format!("[{local}%{ours}]:80"), &format!("[{peer}%{ours}]:{port}")], "{filter}");
    }
    assert_eq!(http.told(&format!("sockets --json dst [{peer}%other]")), serde_json::json!([]));
    let way = http.told(&format!("route get {peer}%{ours} --json"));
    assert_eq!([&way["interface"], &way["source"]], [ours, local], "{way}");
    let neighbour = http.told(&format!("neigh show {peer}%{ours} --json"));
    assert_eq!(neighbour[0]["mac"], pair.near.mac.to_string(), "{neighbour}");
    http.told(&format!("neigh replace {peer}%{ours} lladdr {}", pair.near.mac));
    http.told(&format!("neigh del {peer}%{ours}"));
    http.told(&format!("route add fd77::/64 via fe80::1%{ours}"));
    assert_eq!(http.told("route get fd77::1 --json")["gateway"], "fe80::1");
    http.told(&format!("route flush via fe80::1%{ours}"));
    for (words, says) in [
        (format!("route add fd77::/64 via fe80::1%{ours} dev other"), "on which of the two links"),
        ("neigh del fe80::1%other".into(), "no interface 'other'"),
        (format!("route get fd09::1%{ours}"), "leave"),
    ] {
        let told = http.ask(&words);
        let why = String::from_utf8_lossy(&told.stderr);
        assert!(told.status.code() == Some(2) && why.contains(says), "{words}: {why}");
    }
    drop(stream);
    http.end();
    // With two links it must be said which.
    let place = format!("{place}|--vlan|7|--addr|{ours}.7=fd07::2/64")
        .replace("--addr|fd09", &format!("--addr|{ours}=fd09"));
    for (to, says) in [("[fe80::1]:80", "it may be on each of"), ("[fe80::1%eth9]:80", "no interface 'eth9'")]
    {
        let mut command = far.command(BYWASH).unwrap();
        let output = command.args(["tcp", "load", "http", to]).args(place.split('|')).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{to}: {why}");
        assert!(why.contains(says) && why.contains(&format!("{ours}, {ours}.7")), "{to}: {why}");
    }
}
