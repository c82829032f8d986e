//! How fast streams are over simulated networks: a table that changes only when behaviour does.

use std::time::Duration;

use bywash_stack::{CongestionControl, ConnectionId, Event, Limits};

use crate::wire::network::{Faults, Network};
use crate::wire::{Node, address};

/// Kilobytes each second that `streams` connections carry together in ten seconds, and how unequal they are: the
/// slowest in percent of the fastest.
fn measure(faults: Faults, control: CongestionControl, buffer: u32, streams: usize) -> (u64, u64) {
    let a = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let b = Node::new(2).with_interface(0, 2, None, 1500, "10.0.0.2/24");
    let mut network = Network::new(a, b, faults, 42);
    let limits = Limits {
        congestion: control,
        receive_max: buffer,
        receive_initial: buffer.min(128 << 10),
        ..Limits::default()
    };
    network.a.host.stack.set_limits(limits);
    network.b.host.stack.set_limits(limits);
    network.b.host.stack.listen(None, 80, streams).unwrap();
    let mut senders = Vec::new();
    for _ in 0..streams {
        let remote = (address("10.0.0.2"), 80);
        senders
            .push(network.a.host.stack.connect(network.now, (None, 0), remote, &mut network.a.pool).unwrap());
    }
    let mut got: Vec<(ConnectionId, u64)> = Vec::new();
    let chunk = [0x55; 8192];
    let over = network.run(Duration::from_secs(10), |net| {
        net.a.host.stack.events().for_each(drop);
        for id in &senders {
            while net.a.host.stack.send(net.now, *id, &chunk, &mut net.a.pool).is_ok_and(|n| n == chunk.len())
            {
            }
        }
        for event in net.b.host.stack.events().collect::<Vec<_>>() {
            match event {
                Event::Accepted { connection, .. } => got.push((connection, 0)),
                Event::Readable(id) => {
                    let n = net.b.host.stack.readable(id).unwrap().map(<[u8]>::len).sum();
                    net.b.host.stack.consume(net.now, id, n, &mut net.b.pool).unwrap();
                    got.iter_mut().find(|(other, _)| *other == id).unwrap().1 += n as u64;
                }
                _ => {}
            }
        }
        false
    });
    assert!(!over);
    let total: u64 = got.iter().map(|(_, n)| n).sum();
    let (least, most) =
        (got.iter().map(|(_, n)| *n).min().unwrap(), got.iter().map(|(_, n)| *n).max().unwrap());
    (total / 10_000, least * 100 / most.max(1))
}

#[test]
fn the_table() {
    let ms = Duration::from_millis;
    let link = Some((1_250_000, 60_000));
    let mut table =
        String::from("control  loss/1000  reorder/1000  delay  queue   window  streams     kB/s  fairness\n");
    for control in [CongestionControl::NewReno, CongestionControl::Cubic] {
        for (loss, reorder, delay, bottleneck, buffer, streams) in [
            (0, 0, ms(10), link, 4 << 20, 1),
            (0, 0, ms(50), link, 4 << 20, 1),
            (0, 200, ms(10), link, 4 << 20, 1),
            (1, 0, ms(10), link, 4 << 20, 1),
            (10, 0, ms(10), link, 4 << 20, 1),
            (50, 0, ms(10), link, 4 << 20, 1),
            (10, 200, ms(10), link, 4 << 20, 1),
            (0, 0, ms(10), Some((1_250_000, 12_000)), 4 << 20, 1),
            (0, 0, ms(10), link, 8 << 10, 1),
            (0, 0, ms(10), link, 4 << 20, 4),
            (0, 0, ms(10), link, 4 << 20, 16),
        ] {
            let faults = Faults { delay, loss, reorder, bottleneck, ..Faults::default() };
            let (rate, fairness) = measure(faults, control, buffer, streams);
            let queue = bottleneck.map_or(0, |(_, room)| room / 1000);
            table += &format!(
                "{:8} {loss:9} {reorder:13} {:>6} {queue:4}kB {:>6}kB {streams:8} {rate:8} {fairness:8}%\n",
                format!("{control:?}"),
                format!("{}ms", delay.as_millis()),
                buffer >> 10,
            );
        }
    }
    let known = include_str!("throughput.txt");
    assert!(
        table == known,
        "the table has changed; if that is meant, put this into throughput.txt:\n{table}"
    );
}
