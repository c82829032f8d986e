//! Forwarding between `null:` ports and look-ups on one core, with as many routes as the Internet has.
//!
//! `cargo bench -p bywash-stack --bench forward` prints a table: millions of packets a second by size and destinations,
//! and what of the time is forwarding alone. For who counts instructions or compares look-ups:
//!
//!     forward|ports|aim 4|6 COUNT ROUTES SIZE   so many packets: forwarded, only moved, moved with new addresses
//!     look-up 4|6 COUNT ROUTES                  so many look-ups; prints nanoseconds for each
//!     write 4|6 ROUTES FOLDER                   routes and addresses as dpdk-test-fib reads them
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a program that measures and prints"
)]

mod routes;

use std::fmt::Write as _;
use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use bywash_drivers::{OpenOptions, open};
use bywash_lab::sys::memory::{HugePages, allocate};
use bywash_lab::sys::state::Undo;
use bywash_stack::frame::{Arena, Batch, Pool, Stride};
use bywash_stack::wire::zerocopy::FromBytes;
use bywash_stack::wire::{EtherType, Ipv4Header, Ipv6Header, Mac};
use bywash_stack::{Host, Interface, Medium, Offloads, PortId, Prefix, Route, Timestamp};

use routes::{ADDRESSES, Table};

const ROUTES: usize = 1_000_000;
/// Flows that stay in the cache.
const HOT: usize = 1000;
const GATEWAYS: u32 = 64;
const BATCH: usize = 64;
/// Bytes of packets with their FCS, which is not in memory.
const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
const FCS: usize = 4;
/// Packets of one sample, and samples.
const PACKETS: usize = 1_000_000;
const SAMPLES: usize = 10;

/// Whom packets of IPv6 are from.
const SOURCE: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
/// What `null:` sends to.
const OURS: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// What is done with packets between receiving and sending them.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Nothing,
    /// New addresses: what in earnest the senders would do.
    Aim,
    AimAndForward,
}

struct Router {
    host: Host,
    pool: Pool,
    rx: Box<dyn bywash_drivers::port::RxQueue>,
    tx: Box<dyn bywash_drivers::port::TxQueue>,
}

/// Packet memory for `routers`, as workers have it: of huge pages where that is allowed. What is returned as well takes them off the
/// kernel's pool again, once: memory lasts as long as the program, and pages in use stay where they are.
fn memory(routers: usize) -> (&'static Arena, Option<Undo>) {
    let bytes = Stride::Packed.memory_for(routers * 4000);
    let reserved = allocate(bytes, HugePages::Reserve, None);
    let all = reserved.or_else(|_| allocate(bytes, HugePages::Off, None)).unwrap();
    (Arena::new(all.memory).unwrap(), all.reservation)
}

impl Router {
    fn new(table: &Table, arena: &'static Arena) -> Self {
        let mut queues = (0..2).map(|_| {
            let mut port = open(&"null:".parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
            port.queues().pop().unwrap()
        });
        let (rx, tx) = (queues.next().unwrap().rx.unwrap(), queues.next().unwrap().tx.unwrap());
        let mut pool = arena.pool(3500).unwrap();
        let host = host(table, &mut pool);
        Self { host, pool, rx, tx }
    }

    /// Moves so many packets of a size, with the FCS, from one port to the other; to the first so many addresses of a table.
    fn run(&mut self, packets: usize, size: usize, (table, addresses): (&Table, usize), work: Work) {
        let (mut at, mut moved, mut batch) = (0, 0, Batch::new());
        while moved < packets {
            moved += self.rx.rx(&mut self.pool, &mut batch);
            if work != Work::Nothing {
                match table {
                    Table::V4(v4) => aim_v4(&mut batch, size, &v4.addresses[..addresses], &mut at),
                    Table::V6(v6) => aim_v6(&mut batch, size, &v6.addresses[..addresses], &mut at),
                }
            }
            if work == Work::AimAndForward {
                self.host.stack.receive(Timestamp::ZERO, PortId(0), &mut batch, &mut self.pool);
                self.host.stack.transmit(PortId(1), &mut batch);
            }
            assert_eq!(batch.len(), BATCH, "every packet comes out");
            self.tx.tx(&mut self.pool, &mut batch);
        }
    }
}

/// A router with two ports, all of whose routes lead out of the second.
fn host(table: &Table, pool: &mut Pool) -> Host {
    let mut host = Host::new([3; 16], pool);
    let now = Timestamp::ZERO;
    let ids = [0u8, 1].map(|port| {
        let interface = Interface {
            name: format!("port{port}"),
            port: PortId(port.into()),
            medium: Medium::Ethernet { mac: OURS, vlan: None },
            mtu: 1500,
            offloads: Offloads::default(),
        };
        let id = host.control.add_interface(interface).unwrap();
        let own = Prefix::new(Ipv4Addr::new(10, port, 0, 1), 16).unwrap();
        host.control.add_address(now, id, own).unwrap();
        id
    });
    let gateway = |i: u32| match table {
        Table::V4(_) => Ipv4Addr::from_bits(0x0a01_0002 + i).into(),
        Table::V6(_) => format!("fe80::{}", i + 2).parse::<std::net::IpAddr>().unwrap().into(),
    };
    for i in 0..GATEWAYS {
        let mac = Mac([2, 0, 0, 0, 1, i as u8]);
        host.control.add_neighbour(ids[1], gateway(i), mac).unwrap();
    }
    for (prefix, i) in table.prefixes().zip((0..GATEWAYS).cycle()) {
        let route = Route { prefix, gateway: Some(gateway(i)), interface: ids[1], metric: 1, source: None };
        host.control.add_route(route).unwrap();
    }
    host.control.set_forwarding(true);
    host.advance(now, pool);
    // What it has to say itself is nobody's business here.
    let mut batch = Batch::new();
    for port in 0..2 {
        host.transmit(PortId(port), &mut batch);
        pool.give_batch(&mut batch);
    }
    host
}

/// Gives every packet of the batch its size and a destination.
fn aim_v4(batch: &mut Batch, size: usize, destinations: &[u32], at: &mut usize) {
    for packet in batch {
        packet.set_len(size - FCS).unwrap();
        let to = Ipv4Addr::from_bits(next(destinations, at));
        let header = Ipv4Header::new(Ipv4Addr::new(10, 0, 0, 9), to, 17, (size - FCS - 34) as u16);
        if let Ok(ip) = Ipv4Header::mut_from_bytes(&mut packet.head_mut()[14..34]) {
            *ip = header;
        }
    }
}

/// The same as IPv6.
fn aim_v6(batch: &mut Batch, size: usize, destinations: &[u128], at: &mut usize) {
    for packet in batch {
        packet.set_len(size - FCS).unwrap();
        let to = Ipv6Addr::from_bits(next(destinations, at));
        let header = Ipv6Header::new(SOURCE, to, 17, (size - FCS - 54) as u16);
        let head = packet.head_mut();
        head[12..14].copy_from_slice(&EtherType::IPV6.0.to_be_bytes());
        if let Ok(ip) = Ipv6Header::mut_from_bytes(&mut head[14..54]) {
            *ip = header;
        }
    }
}

fn next<T: Copy>(destinations: &[T], at: &mut usize) -> T {
    let to = destinations[*at];
    *at = if *at + 1 == destinations.len() { 0 } else { *at + 1 };
    to
}

/// Looks so many addresses up, 64 at a time as for a batch of packets; returns how many have a route.
fn look_up(snapshot: &bywash_stack::Snapshot, count: usize, table: &Table) -> usize {
    let (mut hops, mut found) = ([0; BATCH], 0);
    for start in (0..ADDRESSES).step_by(BATCH).cycle().take(count / BATCH) {
        match table {
            Table::V4(v4) => snapshot.hops_v4(&v4.addresses[start..start + BATCH], &mut hops),
            Table::V6(v6) => snapshot.hops_v6(&v6.addresses[start..start + BATCH], &mut hops),
        }
        found += black_box(&hops).iter().filter(|hop| **hop > 0).count();
    }
    found
}

/// Nanoseconds for each of `count`.
fn time(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(arena: &'static Arena) {
    for (family, routes) in [("4", ROUTES), ("6", ROUTES / 4)] {
        let start = Instant::now();
        let table = Table::new(family, routes);
        let mut router = Router::new(&table, arena);
        println!(
            "IPv{family}: {routes} routes made, entered and published in {:.2} s\n",
            start.elapsed().as_secs_f64()
        );
        println!("| destinations | bytes | Mpps | ns a packet | of them forwarding |\n|---|---|---|---|---|");
        for (name, addresses) in [("a million, random", ADDRESSES), ("1000 hot flows", HOT)] {
            for size in SIZES {
                sample(&mut router, (name, size), (&table, addresses));
            }
        }
        println!();
    }
}

/// A row of the table.
fn sample(router: &mut Router, (name, size): (&str, usize), to: (&Table, usize)) {
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        let [ports, aimed, all] = [Work::Nothing, Work::Aim, Work::AimAndForward]
            .map(|work| time(PACKETS, || router.run(PACKETS, size, to, work)));
        samples.push((ports, all - aimed));
    }
    let forwarding = median(samples.iter().map(|(_, forwarding)| *forwarding));
    let whole = median(samples.iter().map(|(ports, forwarding)| ports + forwarding));
    println!("| {name} | {size} | {:.1} | {whole:.1} | {forwarding:.1} |", 1e3 / whole);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--bench")).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // One for each table.
    let (arena, _reservation) = memory(2);
    match words[..] {
        ["--test", ..] => {
            for table in [Table::v4(1000), Table::v6(1000)] {
                let mut router = Router::new(&table, arena);
                for size in SIZES {
                    router.run(6400, size, (&table, ADDRESSES), Work::AimAndForward);
                }
                let snapshot = router.host.control.snapshot(&mut router.pool);
                assert_eq!(look_up(snapshot, 6400, &table), 6400);
            }
        }
        ["look-up", family, count, routes] => {
            let table = Table::new(family, routes.parse().unwrap());
            let mut router = Router::new(&table, arena);
            let (snapshot, count) = (router.host.control.snapshot(&mut router.pool), count.parse().unwrap());
            println!("ns: {:.3}", time(count, || assert!(look_up(snapshot, count, &table) > 0)));
        }
        ["write", family, routes, folder] => write(&Table::new(family, routes.parse().unwrap()), folder),
        [what, family, count, routes, size] => {
            let table = Table::new(family, routes.parse().unwrap());
            let mut router = Router::new(&table, arena);
            let work = match what {
                "forward" => Work::AimAndForward,
                "aim" => Work::Aim,
                _ => Work::Nothing,
            };
            router.run(count.parse().unwrap(), size.parse().unwrap(), (&table, ADDRESSES), work);
        }
        _ => measure(arena),
    }
}

fn write(table: &Table, folder: &str) {
    let (mut routes, mut addresses) = (String::new(), String::new());
    for (prefix, i) in table.prefixes().zip((0..GATEWAYS).cycle()) {
        writeln!(routes, "{}/{} {i}", prefix.address().ip(), prefix.length()).unwrap();
    }
    match table {
        Table::V4(v4) => {
            v4.addresses.iter().for_each(|a| writeln!(addresses, "{}", Ipv4Addr::from_bits(*a)).unwrap())
        }
        Table::V6(v6) => {
            v6.addresses.iter().for_each(|a| writeln!(addresses, "{}", Ipv6Addr::from_bits(*a)).unwrap());
        }
    }
    std::fs::write(format!("{folder}/routes"), routes).unwrap();
    std::fs::write(format!("{folder}/addresses"), addresses).unwrap();
}
