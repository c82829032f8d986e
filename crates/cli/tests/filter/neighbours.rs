//! Neighbours find each other, by ARP and by neighbour discovery, through rules that drop everything.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bywash_lab::PairOptions;

use crate::bed::{Filter, of_rule, summary, two_families};

const PATIENCE: Duration = Duration::from_secs(10);

/// They drop everything.
const RULES: &str = "[[rule]]\nname = 'all'\nmatch = ''\naction = 'drop'\n";

#[test]
fn neighbours_find_each_other_through_rules_that_drop_everything() {
    let Some(_guard) = bywash_lab::lock() else { return };
    // Who is asked learns of who asks as well: a cable for each that asks.
    for (attach, asks) in [("xdp", 0), ("xdp", 1), ("tcx", 0), ("tcx", 1)] {
        let options = PairOptions { neighbours: false, ..PairOptions::default() };
        let (hosts, pair) = two_families(&options);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.toml");
        std::fs::write(&path, RULES).unwrap();
        let filter = Filter::on(&hosts[1], &format!("--attach {attach} --rules {}", path.display()));
        let ends = [&pair.near, &pair.far];
        let (host, this, other) = (&hosts[asks], ends[asks], ends[1 - asks]);
        let is_known = |address| {
            let known = host.route().neighbours().unwrap().into_iter();
            let mut those = known.filter(|entry| (entry.index, entry.address) == (this.index, address));
            those.any(|entry| entry.mac.is_some())
        };
        for prefix in &other.addresses {
            let address = prefix.address;
            assert!(!is_known(address), "{address} is known before it was asked for");
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = host.enter(|| UdpSocket::bind(any)).unwrap().unwrap();
            socket.send_to(b"here?", (address, 9)).unwrap();
            let until = Instant::now() + PATIENCE;
            while !is_known(address) {
                assert!(Instant::now() < until, "{attach}: host {asks} does not find {address}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let found = host.route().neighbours().unwrap();
        let others = |address| other.addresses.iter().any(|prefix| prefix.address == address);
        let macs: Vec<_> =
            found.iter().filter(|entry| others(entry.address)).map(|entry| entry.mac).collect();
        assert_eq!(macs, [Some(other.mac); 2], "{attach}: {found:?}");
        let told = filter.end();
        // What the far end was sent, once its address was known.
        let dropped = of_rule(summary(&told), "all", "dropped_packets");
        assert!(asks == 1 || dropped >= 2, "{attach}: all else is dropped: {told:?}");
    }
}
