//! What judging a generator's packet costs the receiver, in instructions: to be run under callgrind.
//!
//! The packets come from a port that writes each one anew: probe, sequence number and time. `receive_cost judge N`
//! receives N of them, `receive_cost flows N` tells of their flow too, `receive_cost drop N` counts them only; the difference is what judging costs, since making them
//! costs the same in both.
#![expect(clippy::print_stdout, reason = "its output is the result")]
#![expect(clippy::unwrap_used, reason = "a benchmark that can't run should stop")]

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use bywash_apps::probe::{PROBE, Probe};
use bywash_apps::receive::{Options, Receive};
use bywash_apps::wire::zerocopy::IntoBytes;
use bywash_apps::wire::{Ipv4Header, Protocol, UdpHeader};
use bywash_apps::{App, WorkerOptions};
use bywash_port::frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_port::{Capabilities, Counter, Port, PortName, QueueCounters, QueuePair, RxQueue};
use bywash_sys::clock;
use bywash_sys::worker::Stop;

/// Bytes of each packet: the shortest that a probe has room in.
const LENGTH: usize = 60;

/// Where the probe lies: behind Ethernet, IPv4 and UDP.
const PROBE_AT: usize = 14 + 20 + 8;

struct Source(PortName, Capabilities);

struct Rx {
    template: [u8; LENGTH],
    sequence: u32,
    counters: QueueCounters,
}

impl Port for Source {
    fn name(&self) -> &PortName {
        &self.0
    }
    fn capabilities(&self) -> &Capabilities {
        &self.1
    }
    fn queues(&mut self) -> Vec<QueuePair> {
        let rx = Rx { template: template(), sequence: 0, counters: QueueCounters::default() };
        vec![QueuePair { rx: Some(Box::new(rx)), tx: None }]
    }
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        Ok(())
    }
}

impl RxQueue for Rx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let (n, time) = (batch.room(), clock::realtime());
        batch.extend(pool.take_many(n).map(|frame| {
            let mut packet = Packet::new(frame);
            packet.extend_from_slice(&self.template).unwrap();
            let probe = Probe { stream: 7, sequence: self.sequence, time, flows: 1 }.to_bytes(0);
            packet.head_mut()[PROBE_AT..].copy_from_slice(&probe);
            self.sequence = self.sequence.wrapping_add(1);
            packet
        }));
        self.counters.packets += n as u64;
        self.counters.bytes += (n * LENGTH) as u64;
        n
    }
    fn arm(&mut self) -> bool {
        false
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn counters(&self) -> QueueCounters {
        self.counters
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

fn template() -> [u8; LENGTH] {
    let (from, to) = (Ipv4Addr::new(192, 168, 0, 1), Ipv4Addr::new(192, 168, 0, 2));
    let length = u16::try_from(8 + PROBE).unwrap();
    let ip = Ipv4Header::new(from, to, Protocol::UDP.0, length);
    let udp = UdpHeader {
        source_port: 9.into(),
        destination_port: 9.into(),
        length: length.into(),
        checksum: 0.into(),
    };
    let mut template = [0; LENGTH];
    template[12..14].copy_from_slice(&[8, 0]);
    template[14..34].copy_from_slice(ip.as_bytes());
    template[34..42].copy_from_slice(udp.as_bytes());
    template
}

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let (Some(mode), Some(count)) = (words.next(), words.next()) else {
        println!("say what to do, and with how many packets: judge 1000000, or drop 1000000");
        return;
    };
    let arena = Arena::new(vec![0; 512 * FRAME_SIZE]).unwrap();
    let workers = WorkerOptions { frames: Some(256), ..WorkerOptions::default() };
    let options = Options {
        count: Some(count.parse().unwrap()),
        drop: mode == "drop",
        flows: if mode == "flows" { 20 } else { 0 },
        workers,
        ..Options::default()
    };
    let port = Source("loop:source".parse().unwrap(), Capabilities::default());
    let mut receiver = Receive::start(Box::new(port), &options, arena, &Stop::new().unwrap()).unwrap();
    receiver.wait(Duration::from_secs(600));
    let summary = receiver.finish();
    assert!(summary.met, "{summary}");
    println!("received {}", summary.received.rx_packets);
}
