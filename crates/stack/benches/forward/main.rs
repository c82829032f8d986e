//! Forwarding and look-ups on one core, with as many routes as the Internet has, on ports in memory.
//!
//! `cargo bench -p bywash-stack --bench forward` prints nanoseconds for a look-up and millions of packets a second, the
//! harness (new addresses in every packet) included and by itself. With a word on the command line (`lookup`,
//! `forward`, `harness`) and a number it does only that, so many packets: for an instruction counter.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a program that measures and prints"
)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bywash_stack::frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_stack::wire::zerocopy::{FromBytes, IntoBytes};
use bywash_stack::wire::{EthernetHeader, Ipv4Header, Mac};
use bywash_stack::{Host, Interface, Medium, Offloads, PortId, Prefix, Route, Timestamp};

const ROUTES: usize = 1_000_000;
const GATEWAYS: u32 = 64;
const BATCH: usize = 64;
const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }

    /// An address that some route may hold: not ours, not loopback, no group.
    fn address(&mut self) -> u32 {
        0x0b00_0000 + self.next() % 0xd000_0000 % 0x7300_0000
    }

    /// A prefix length about as frequent as in the Internet's tables.
    fn length(&mut self) -> u8 {
        match self.next() % 100 {
            0..60 => 24,
            60..72 => 22,
            72..82 => 23,
            82..87 => 21,
            87..92 => 20,
            92..96 => 19,
            _ => 16 + (self.next() % 3) as u8,
        }
    }
}

struct Router {
    host: Host,
    pool: Pool,
    batch: Batch,
    random: Random,
}

impl Router {
    fn new(routes: usize) -> Self {
        let mut pool = Arena::new(vec![0; 4000 * FRAME_SIZE]).unwrap().pool(3000).unwrap();
        let mut host = Host::new([3; 16], &mut pool);
        let now = Timestamp::ZERO;
        let ids: Vec<_> = (0..2u16)
            .map(|port| {
                let interface = Interface {
                    name: format!("port{port}"),
                    port: PortId(port),
                    medium: Medium::Ethernet { mac: OURS, vlan: None },
                    mtu: 1500,
                    offloads: Offloads::default(),
                };
                let id = host.control.add_interface(interface).unwrap();
                let own = Prefix::new(Ipv4Addr::new(10, port as u8, 0, 1), 16).unwrap();
                host.control.add_address(now, id, own).unwrap();
                id
            })
            .collect();
        let gateway = |i: u32| Ipv4Addr::from_bits(0x0a01_0002 + i);
        for i in 0..GATEWAYS {
            let mac = Mac([2, 0, 0, 0, 1, i as u8]);
            host.control.add_neighbour(ids[1], gateway(i).into(), mac).unwrap();
        }
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for i in 0..routes {
            let prefix = Prefix::new(Ipv4Addr::from_bits(random.address()), random.length()).unwrap();
            let gateway = Some(gateway(i as u32 % GATEWAYS).into());
            host.control.add_route(Route { prefix, gateway, interface: ids[1], metric: 1 }).unwrap();
        }
        // Everything else has a way, too.
        let all = Prefix::new(Ipv4Addr::UNSPECIFIED, 0).unwrap();
        let route = Route { prefix: all, gateway: Some(gateway(0).into()), interface: ids[1], metric: 1 };
        host.control.add_route(route).unwrap();
        host.control.set_forwarding(true);
        host.advance(now, &mut pool);
        let mut this = Self { host, pool, batch: Batch::new(), random };
        for port in 0..2 {
            this.host.transmit(PortId(port), &mut this.batch);
            this.pool.give_batch(&mut this.batch);
        }
        this
    }

    fn destinations(&mut self, count: usize) -> Vec<Ipv4Addr> {
        (0..count).map(|_| Ipv4Addr::from_bits(self.random.address())).collect()
    }

    fn fill(&mut self) {
        for _ in 0..BATCH {
            let mut packet = Packet::new(self.pool.take().unwrap());
            let link =
                EthernetHeader { destination: OURS, source: Mac([2, 0, 0, 0, 0, 9]), kind: 0x0800.into() };
            let ip = Ipv4Header::new(Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(11, 0, 0, 1), 17, 26);
            packet.extend_from_slice(&[link.as_bytes(), ip.as_bytes(), &[0; 26]].concat()).unwrap();
            self.batch.push(packet);
        }
    }

    /// Gives every packet of the batch a new destination and a fresh time to live.
    fn aim(&mut self, destinations: &[Ipv4Addr], at: &mut usize) {
        for packet in &mut self.batch {
            let head = packet.head_mut();
            head[..6].copy_from_slice(&OURS.0);
            let to = destinations[*at];
            *at = if *at + 1 == destinations.len() { 0 } else { *at + 1 };
            let ip = Ipv4Header::new(Ipv4Addr::new(10, 0, 0, 9), to, 17, 26);
            if let Ok(header) = Ipv4Header::mut_from_bytes(&mut head[14..34]) {
                *header = ip;
            }
        }
    }

    fn forward(&mut self, packets: usize, destinations: &[Ipv4Addr], harness_only: bool) {
        let mut at = 0;
        self.fill();
        for _ in 0..packets / BATCH {
            self.aim(destinations, &mut at);
            black_box(&mut self.batch);
            if !harness_only {
                self.host.stack.receive(Timestamp::ZERO, PortId(0), &mut self.batch, &mut self.pool);
                self.host.stack.transmit(PortId(1), &mut self.batch);
            }
        }
        assert_eq!(self.batch.len(), BATCH, "every packet came out");
        self.pool.give_batch(&mut self.batch);
    }

    fn look_up(&mut self, packets: usize, destinations: &[Ipv4Addr]) -> usize {
        let snapshot = self.host.control.snapshot(&mut self.pool);
        let mut found = 0;
        for to in destinations.iter().cycle().take(packets) {
            found += usize::from(black_box(snapshot.next_hop((*to).into())).is_some());
        }
        found
    }
}

fn time(packets: usize, work: impl FnOnce(usize)) -> Duration {
    let start = Instant::now();
    work(packets);
    start.elapsed() / packets as u32
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--bench")).collect();
    if arguments.iter().any(|argument| argument == "--test") {
        let mut router = Router::new(1000);
        let destinations = router.destinations(500);
        router.forward(6400, &destinations, false);
        return assert_eq!(router.look_up(1000, &destinations), 1000);
    }
    if let [what, count, routes, ..] = &arguments[..] {
        let mut router = Router::new(routes.parse().unwrap());
        let destinations = router.destinations(1 << 20);
        let count = count.parse().unwrap();
        match what.as_str() {
            "lookup" => drop(black_box(router.look_up(count, &destinations))),
            "forward" => router.forward(count, &destinations, false),
            _ => router.forward(count, &destinations, true),
        }
        return;
    }
    let start = Instant::now();
    let mut router = Router::new(ROUTES);
    println!("{ROUTES} routes entered and published in {:.2} s", start.elapsed().as_secs_f64());
    for (name, count) in [("a million random destinations", 1 << 20), ("1000 hot flows", 1000)] {
        let destinations = router.destinations(count);
        let mut samples: Vec<[f64; 3]> = Vec::new();
        for _ in 0..10 {
            let packets = 2_000_000;
            let nanos = |each: Duration| each.as_nanos() as f64;
            let start = Instant::now();
            router.forward(packets, &destinations, false);
            let all = start.elapsed().as_secs_f64() * 1e9 / packets as f64;
            let start = Instant::now();
            router.forward(packets, &destinations, true);
            let harness = start.elapsed().as_secs_f64() * 1e9 / packets as f64;
            let look_up = time(packets, |n| assert_eq!(router.look_up(n, &destinations), n));
            samples.push([all, harness, nanos(look_up)]);
        }
        samples.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let [all, harness, look_up] = samples[samples.len() / 2];
        println!(
            "{name}: {all:.1} ns a packet ({harness:.1} of them the harness), {look_up:.0} ns a look-up alone"
        );
        println!(
            "{:>width$} {:.1} million packets a second",
            "",
            1e3 / (all - harness),
            width = name.len() + 1
        );
    }
}
