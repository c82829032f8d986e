//! How fast streams are over simulated networks: a table that changes only when behaviour does.
//!
//! All streams of a row begin together, each with ten segments, and the queue drops what does not fit. In ten seconds that
//! beginning still shows: who has lost little of it is ahead, for windows come near each other by a part with each loss,
//! and losses are seconds apart. In a minute streams share. Where the queue holds less than the first windows, those that
//! lose all of them wait for a timer and then meet a full queue, which has room only where an acknowledgment has just made
//! some, and stay locked out, as drop-tail queues do (RFC 2309, 2): 64 streams need a queue for them, and 120 kB are none
//! at 20 ms.

use std::time::Duration;

use bywash_stack::{CongestionControl, ConnectionId, Event, Limits};

use crate::wire::network::{Faults, Network};
use crate::wire::{Node, address};

/// What is measured, beside faults and congestion control.
#[derive(Clone, Copy)]
struct Row {
    /// Bytes of receive window at most, and at first.
    window: u32,
    first: u32,
    streams: usize,
    seconds: u64,
}

/// Kilobytes each second that connections carry together, and how equal they are: the slowest in percent of the fastest,
/// and Jain's index, in thousandths. Last, how many segments were sent again.
fn measure(faults: Faults, control: CongestionControl, row: Row) -> [u64; 4] {
    let Row { window: buffer, first, streams, seconds } = row;
    let a = Node::with_frames(1, 16_000).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let b = Node::with_frames(2, 16_000).with_interface(0, 2, None, 1500, "10.0.0.2/24");
    let mut network = Network::new(a, b, faults, 42);
    let limits = Limits {
        congestion: control,
        receive_max: buffer,
        receive_initial: buffer.min(first),
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
    let over = network.run(Duration::from_secs(seconds), |net| {
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
    // (sum of x)^2 / (n sum of x^2)
    let squares: u128 = got.iter().map(|(_, n)| u128::from(*n).pow(2)).sum();
    let jain = u128::from(total).pow(2) * 1000 / (streams as u128 * squares).max(1);
    let again = |id: &ConnectionId| network.a.host.stack.tcp_info(network.now, *id).unwrap().total_retrans;
    let again = senders.iter().map(again).sum::<u32>();
    [total / 1000 / seconds, least * 100 / most.max(1), u64::try_from(jain).unwrap(), again.into()]
}

#[test]
fn a_deep_queue_is_not_filled_by_slow_start() {
    // The path holds 50 kB, and the queue in front of it 400 kB.
    let faults = Faults {
        delay: Duration::from_millis(20),
        bottleneck: Some((1_250_000, 400_000)),
        ..Faults::default()
    };
    let row = Row { window: 4 << 20, first: 4 << 20, streams: 1, seconds: 3 };
    let [rate, .., again] = measure(faults, CongestionControl::Cubic, row);
    assert!(again == 0 && rate >= 1100, "{rate} kB/s, {again} again");
    let [.., again] = measure(faults, CongestionControl::NewReno, row);
    assert!(again > 100, "where slow start has no other end than a loss: {again} again");
}

/// Loss, reordering, delay, queue, receive window, streams and seconds of a row.
type Cell = (u32, u32, Duration, Option<(u64, u64)>, u32, usize, u64);

/// Each loss with each reordering, delay, queue and number of streams. The link of 64 is ten times as fast, and so is
/// its queue.
fn cross() -> impl Iterator<Item = Cell> {
    (0..48usize).map(|number| {
        let high = |bit: usize| ((number / 3) >> bit) & 1 == 1;
        let (streams, times) = [(1, 1), (8, 1), (64, 10)][number % 3];
        let delay = Duration::from_millis(if high(1) { 50 } else { 10 });
        let queue = if high(0) { 12_000 } else { 60_000 };
        let (loss, reorder) = (if high(3) { 5 } else { 0 }, if high(2) { 100 } else { 0 });
        (loss, reorder, delay, Some((1_250_000 * times, queue * times)), 4 << 20, streams, 10)
    })
}

#[test]
fn the_table() {
    let ms = Duration::from_millis;
    let link = Some((1_250_000, 60_000));
    let wide = Some((12_500_000, 600_000));
    let mut table = String::from(
        "control  loss/1000  reorder/1000  delay  queue   window  streams  seconds     kB/s  least/most  jain\n",
    );
    for control in [CongestionControl::NewReno, CongestionControl::Cubic] {
        let chosen = [
            (0, 200, ms(10), link, 4 << 20, 1, 10),
            (1, 0, ms(10), link, 4 << 20, 1, 10),
            (10, 0, ms(10), link, 4 << 20, 1, 10),
            (50, 0, ms(10), link, 4 << 20, 1, 10),
            (10, 200, ms(10), link, 4 << 20, 1, 10),
            (0, 0, ms(10), link, 8 << 10, 1, 10),
            (0, 0, ms(10), link, 4 << 20, 4, 10),
            (0, 0, ms(10), link, 4 << 20, 16, 10),
            (0, 0, ms(10), link, 4 << 20, 4, 60),
            (0, 0, ms(10), link, 4 << 20, 16, 60),
            (0, 0, ms(10), wide, 4 << 20, 64, 60),
            (5, 100, ms(50), wide, 4 << 20, 64, 60),
        ];
        for (loss, reorder, delay, bottleneck, window, streams, seconds) in chosen.into_iter().chain(cross())
        {
            let faults = Faults { delay, loss, reorder, bottleneck, ..Faults::default() };
            let [rate, fairness, jain, _] =
                measure(faults, control, Row { window, first: 128 << 10, streams, seconds });
            assert!(seconds < 60 || jain >= 970, "{control:?}: {streams} streams do not share: {jain}");
            let queue = bottleneck.map_or(0, |(_, room)| room / 1000);
            table += &format!(
                "{:8} {loss:9} {reorder:13} {:>6} {queue:4}kB {:>6}kB {streams:8} {seconds:8} {rate:8} {fairness:10}% {jain:5}\n",
                format!("{control:?}"),
                format!("{}ms", delay.as_millis()),
                window >> 10,
            );
        }
    }
    let known = include_str!("throughput.txt");
    assert!(
        table == known,
        "the table has changed; if that is meant, put this into throughput.txt:\n{table}"
    );
}
