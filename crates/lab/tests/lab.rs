//! Hosts and cables, in real network namespaces.

use std::net::UdpSocket;
use std::time::Duration;

use bywash_lab::{Lab, PairOptions, lock};

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
        let receiver = lab.hosts[1].enter(|| UdpSocket::bind("10.0.0.2:7")).unwrap().unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let sender = lab.hosts[0].enter(|| UdpSocket::bind("10.0.0.1:0")).unwrap().unwrap();
        sender.send_to(b"across", "10.0.0.2:7").unwrap();
        let mut buffer = [0; 16];
        let (length, from) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.ip().to_string().as_str()), (&b"across"[..], "10.0.0.1"));
    }
}
