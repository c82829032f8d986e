//! An interface that gets more queues while it is filtered.

use std::net::UdpSocket;
use std::time::Duration;

use crate::bed::{Bed, Filter, SERVER, of_rule, summary};

/// Flows that the sender's kernel spreads over four queues: none by two of them is a chance of 1 in 2^64.
const FLOWS: usize = 64;

const RULES: &str = r#"
[[rule]]
name = "XDP alone"
to_ports = [9]
action = "drop"
[[rule]]
name = "user space"
to_ports = [7]
action = "limit"
rate = 1000000
"#;

#[test]
fn what_xdp_decides_holds_on_queues_that_come_later_and_it_is_told_of_them() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(4);
    let [client, server] = &bed.lab.hosts[..] else { panic!() };
    // The other end first, which may not send by more queues than this one has.
    client.ethtool().set_channels("right", 2, 2).unwrap();
    server.ethtool().set_channels("left", 2, 2).unwrap();
    let words = format!("--attach xdp --rules {}", bed.rules(RULES).display());
    let mut filter = Filter::start(&bed, &words);
    server.ethtool().set_channels("left", 4, 4).unwrap();
    client.ethtool().set_channels("right", 4, 4).unwrap();
    let told = |event: &serde_json::Value| {
        event["event"] == "warning"
            && event["message"].as_str().unwrap().contains("left has 4 receive queues")
    };
    filter.wait_for("warning of more queues", told);

    let dropped = server.enter(|| UdpSocket::bind("10.0.0.2:9")).unwrap().unwrap();
    dropped.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let bind = || UdpSocket::bind("10.0.0.1:0").unwrap();
    let clients: Vec<UdpSocket> = (0..FLOWS).map(|_| client.enter(bind).unwrap()).collect();
    clients.iter().for_each(|client| assert_eq!(client.send_to(b"drop", "10.0.0.2:9").unwrap(), 4));
    assert!(dropped.recv(&mut [0; 4]).is_err(), "the rule holds on all queues");
    for client in &clients {
        client.send_to(b"pass", SERVER).unwrap();
        bed.server.recv(&mut [0; 4]).unwrap();
    }
    let told = filter.end();
    let summary = summary(&told);
    assert_eq!(of_rule(summary, "XDP alone", "dropped_packets"), FLOWS as u64, "{summary}");
    let without = summary["port"]["counters"]["no_socket"].as_u64().unwrap();
    assert!(0 < without && without < FLOWS as u64, "a part has come by the new queues: {summary}");
    // Once, though it is looked at each second.
    let warnings = told.iter().filter(|event| event["event"] == "warning");
    assert_eq!(warnings.filter(|event| event["message"].as_str().unwrap().contains("queues")).count(), 1);
}
