//! What it costs to match a packet against 1, 10 and 100 typical expressions joined by `or`.
//!
//! `match_cost cases` lists the kinds of expression. `match_cost ours KIND N PACKETS` matches that many packets against N
//! of them, and `libpcap` in place of `ours` has libpcap's interpreter do it, with its optimized program: to be run under
//! callgrind. `match_cost nothing KIND N PACKETS` only goes through the packets. `match_cost kernel` runs the eBPF
//! programs in the kernel beside an empty one, and prints what they take more.
//!
//! Of the sixteen packets two match one of the last expressions; the others match none, and so are asked everything that
//! applies to them.
#![expect(clippy::print_stdout, reason = "its output is the result")]
#![expect(clippy::unwrap_used, reason = "a benchmark that can't run should stop")]

mod kernel;
#[path = "../tests/oracle/mod.rs"]
#[expect(dead_code, reason = "not all of it is used by this benchmark")]
mod oracle;

use std::hint::black_box;

use bywash_filter::xdp::{pass_program, verdict_program};
use bywash_filter::{Expression, NoNames, Options};
use kernel::{load, run};
use oracle::Oracle;

/// How many expressions are joined.
const NUMBERS: [usize; 3] = [1, 10, 100];

/// Makes the expression of a number.
type Maker = fn(usize) -> String;

const KINDS: &[(&str, Maker)] = &[
    ("host", |n| format!("host 10.1.{}.{}", n % 4, n + 1)),
    ("net", |n| format!("net 10.{}.{}.0/24", n % 4, 2 * n)),
    ("host6", |n| format!("host 2001:db8:{}::{n:x}", n % 4)),
    ("ether-host", |n| format!("ether host 02:00:00:00:01:{n:02x}")),
    ("port", |n| format!("port {}", 2000 + 7 * n)),
    ("net-and-port", |n| format!("(src net 10.{}.0.0/16 and tcp dst port {})", n + 1, 2000 + n)),
    ("mixed", |n| match n % 10 {
        0 => format!("host 10.1.1.{}", n + 1),
        1 => format!("tcp dst port {}", 2000 + n),
        2 => format!("net 10.2.{n}.0/24"),
        3 => format!("udp port {}", 3000 + n),
        4 => format!("(src host 10.3.0.{} and tcp port 443)", n + 1),
        5 => format!("portrange {}-{}", 4000 + 10 * n, 4005 + 10 * n),
        6 => format!("(icmp and dst host 10.4.0.{})", n + 1),
        7 => format!("host 2001:db8::{n:x}"),
        8 => format!("(tcp[tcpflags] & tcp-syn != 0 and dst net 10.5.{n}.0/24)"),
        _ => format!("(udp dst port {} and src net 10.6.{n}.0/24)", 5000 + n),
    }),
];

/// How often each program is run on all packets, in turn.
const PAIRS: usize = 21;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["cases"] => {
            for (kind, make) in KINDS {
                println!("{kind}\t{}", make(0));
            }
        }
        ["kernel"] => kernel(),
        [who, kind, number, count] => {
            match_many(who, &text(kind, number.parse().unwrap()), count.parse().unwrap());
        }
        _ => println!("usage: match_cost cases | kernel | ours|libpcap|nothing KIND N PACKETS"),
    }
}

fn text(kind: &str, number: usize) -> String {
    let (_, make) = KINDS.iter().find(|(known, _)| *known == kind).unwrap();
    (0..number).map(make).collect::<Vec<_>>().join(" or ")
}

fn read(text: &str) -> Expression {
    Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap()
}

fn match_many(who: &str, text: &str, count: usize) {
    let matched = match who {
        "ours" => {
            let expression = read(text);
            go_through(count, |packet| expression.matches(packet))
        }
        "libpcap" => {
            let oracle = Oracle::open().unwrap();
            let code = oracle.compile(text, true, None).unwrap();
            let matches = oracle.matcher(&code);
            go_through(count, |packet| matches(packet, packet.len()))
        }
        "nothing" => go_through(count, |packet| packet.is_empty()),
        _ => panic!("nobody is called {who}"),
    };
    println!("{matched} of {count} matched");
}

fn go_through(count: usize, matches: impl Fn(&[u8]) -> bool) -> usize {
    let packets = packets();
    (0..count).filter(|index| matches(black_box(&packets[index % packets.len()]))).count()
}

/// Nanoseconds that a packet takes more than with an empty program: the median of alternating runs.
fn kernel() {
    let empty = load(&pass_program());
    let packets = packets();
    for (kind, _) in KINDS {
        for number in NUMBERS {
            let program = verdict_program(&read(&text(kind, number)), 1, 2).unwrap();
            let loaded = load(&program);
            let mut more: Vec<f64> =
                (0..PAIRS).map(|_| run(&loaded, &packets) - run(&empty, &packets)).collect();
            more.sort_by(f64::total_cmp);
            let [low, median, high] = [PAIRS / 4, PAIRS / 2, PAIRS - 1 - PAIRS / 4].map(|index| more[index]);
            let instructions = program.instructions().len();
            println!("{kind}\t{number}\t{median:.1}\t{low:.1}\t{high:.1}\t{instructions}");
        }
    }
}

fn packets() -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for n in 0..6_u8 {
        packets.push(ipv4(6, [172, 16, 0, n], [192, 0, 2, n], 40_000 + u16::from(n), 443));
        packets.push(ipv4(17, [192, 0, 2, n], [172, 16, 0, n], 53, 50_000 + u16::from(n)));
    }
    packets.push(ipv4(6, [10, 100, 0, 1], [10, 1, 3, 100], 50_000, 2693));
    packets.push(ethernet(0x0806, &[[0, 1, 8, 0, 6, 4, 0, 1].to_vec(), vec![7; 20]].concat()));
    packets.push(ipv6([0x20, 1, 0xd, 0xb8, 0, 9], 443));
    packets.push(ipv6([0x20, 1, 0xd, 0xb8, 0, 3], 2693));
    packets
}

fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    packet.extend(kind.to_be_bytes());
    packet.extend(payload);
    packet.resize(packet.len().max(60), 0);
    packet
}

fn ipv4(protocol: u8, source: [u8; 4], destination: [u8; 4], from: u16, to: u16) -> Vec<u8> {
    let mut payload = vec![0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, protocol, 0, 0];
    payload.extend(source);
    payload.extend(destination);
    payload.extend(from.to_be_bytes());
    payload.extend(to.to_be_bytes());
    payload.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0]);
    ethernet(0x0800, &payload)
}

/// TCP between two addresses that begin like this and end with 0x63.
fn ipv6(prefix: [u8; 6], port: u16) -> Vec<u8> {
    let mut payload = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
    for _ in 0..2 {
        payload.extend(prefix);
        payload.extend([0; 9]);
        payload.push(0x63);
    }
    payload.extend(40_000_u16.to_be_bytes());
    payload.extend(port.to_be_bytes());
    payload.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    ethernet(0x86dd, &payload)
}
