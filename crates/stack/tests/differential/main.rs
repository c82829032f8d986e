//! The stack against Linux's own TCP, in real time: connections by chance, over a tap and a veth, with packets lost, put out
//! of order, repeated and changed, and with MTUs from 576 to 9000. Both streams of each are compared byte by byte at both
//! ends. A seed decides all that is drawn; what is left to chance is how the two ends' clocks run.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a long run is watched as it goes")]

mod draw;
mod dropper;
mod faults;
mod kernel;
mod ours;
#[path = "../random/mod.rs"]
mod random;
#[path = "../hosts/wire/seeds.rs"]
mod seeds;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bywash_drivers::port::{Port, QueueChoice};
use bywash_drivers::{packet, tap, xdp};
use bywash_lab::sys::memory::{HugePages, allocate};
use bywash_lab::sys::route::{Mac as KernelMac, Prefix};
use bywash_lab::{Host, HostOptions, Pair, PairOptions};
use bywash_stack::frame::{Arena, Stride};
use bywash_stack::wire::Mac;

use draw::{Case, Fault, GROUP, Link, Way};
use dropper::Dropper;
use faults::Done;
use kernel::Kernel;
use ours::{Ours, Place};
use seeds::Told;

/// Of all packets of a group.
const FRAMES: usize = 24_000;
/// What a port takes of them for its rings.
const RINGS: usize = 2048;
const KERNEL_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
/// No group takes longer: TCP's timers double, and a connection with bad luck waits for several of them.
const PATIENCE: Duration = Duration::from_secs(150);

/// What happened in a run.
#[derive(Debug, Default)]
struct Sum {
    connections: usize,
    /// Bytes of stream, of both ends.
    bytes: usize,
    packets: Done,
    dropped_by_bpf: u64,
    wrong_checksums: u64,
    failures: Vec<String>,
}

/// The machines of a group: the kernel's, and the one whose interface the stack has; the cable goes first.
struct Cable {
    _pair: Option<Pair>,
    kernel: Host,
    _far: Option<Host>,
    interface: u32,
}

fn addresses(ipv6: bool) -> [(IpAddr, u8); 2] {
    let (texts, length) = if ipv6 { (["fd01::1", "fd01::2"], 64) } else { (["10.1.0.1", "10.1.0.2"], 24) };
    texts.map(|text| (text.parse().unwrap(), length))
}

/// Lays the cable and opens the stack's end of it.
fn lay(link: &Link, arena: &'static Arena) -> (Cable, Box<dyn Port>) {
    let congestion_control = link.congestion_control;
    let kernel = Host::with(&HostOptions { ipv6: link.ipv6, congestion_control }).unwrap();
    let on = |on: bool| if on { "1" } else { "0" };
    kernel.sysctl("net.ipv4.tcp_timestamps", &link.timestamps.to_string()).unwrap();
    kernel.sysctl("net.ipv4.tcp_sack", on(link.sack)).unwrap();
    kernel.sysctl("net.ipv4.tcp_window_scaling", on(link.window_scaling)).unwrap();
    kernel.sysctl("net.ipv4.tcp_ecn", &link.ecn.to_string()).unwrap();
    let mtu = link.mtu.into();
    let (cable, port): (_, Box<dyn Port>) = if let Way::Tap = link.way {
        let options =
            tap::Options { offload: false, mac: Some(KERNEL_MAC), mtu: Some(mtu), ..tap::Options::default() };
        let port = kernel.enter(|| tap::open("tap0", &options, arena)).unwrap().unwrap();
        let interface = kernel.link("tap0").unwrap().index;
        (Cable { _pair: None, kernel, _far: None, interface }, Box::new(port))
    } else {
        let far = Host::new().unwrap();
        let macs = [KernelMac(KERNEL_MAC), KernelMac(OUR_MAC)];
        let options = PairOptions { mtu, macs, addresses: [vec![], vec![]], ..PairOptions::default() };
        let pair = Pair::between(&kernel, &far, &options).unwrap();
        let name = pair.far.name.as_str();
        let port: Box<dyn Port> = if let Way::Xdp = link.way {
            let options = xdp::Options { force: true, ..xdp::Options::default() };
            Box::new(far.enter(|| xdp::open(name, QueueChoice::default(), &options, arena)).unwrap().unwrap())
        } else {
            Box::new(far.enter(|| packet::open(name, &packet::Options::default(), arena)).unwrap().unwrap())
        };
        let interface = pair.near.index;
        (Cable { _pair: Some(pair), kernel, _far: Some(far), interface }, port)
    };
    let [(address, length), (ours, _)] = addresses(link.ipv6);
    cable.kernel.add_address(cable.interface, Prefix { address, length }).unwrap();
    cable.kernel.route().add_neighbour(cable.interface, ours, KernelMac(OUR_MAC)).unwrap();
    (cable, port)
}

/// Runs connections that share a link, all at once.
fn run_group(link: &Link, seeds: &[u64], fault: Fault, arena: &'static Arena, sum: &mut Sum) {
    let _told = seeds
        .first()
        .zip(seeds.last())
        .map(|(first, last)| Told(format!("a group of seeds; again: BYWASH_SEEDS={first}..{}", last + 1)));
    let mut pool = arena.pool(FRAMES).unwrap();
    let cases: Vec<Case> = seeds.iter().map(|seed| Case::draw(*seed, fault)).collect();
    let (cable, port) = lay(link, arena);
    let [(kernel, _), ours] = addresses(link.ipv6);
    let (our_mac, kernel_mac) = (Mac(OUR_MAC), Mac(KERNEL_MAC));
    let mut ends =
        Ours::new(port, &mut pool, &Place { ours, our_mac, kernel, kernel_mac, mtu: link.mtu }, &cases);
    let until = Instant::now() + PATIENCE;
    assert!(ends.serve(until, |ends| ends.has_address()), "our address is never ready: {link:?}");
    let dropper = Dropper::on(&cable.kernel, cable.interface, link.dropped, link.seed);
    let sockets: Vec<Kernel> = cable
        .kernel
        .enter(|| cases.iter().map(|case| Kernel::new(case, kernel, ours.0, until)).collect())
        .unwrap();
    let running = AtomicUsize::new(sockets.len());
    let theirs: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = sockets
            .into_iter()
            .map(|socket| {
                scope.spawn(|| {
                    let outcome = socket.run();
                    running.fetch_sub(1, Ordering::Relaxed);
                    outcome
                })
            })
            .collect();
        ends.connect(kernel);
        ends.serve(until, |ends| ends.is_done() && running.load(Ordering::Relaxed) == 0);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // The last acknowledgments, of what either has sent when it was done.
    let quiet = ends.serve(Instant::now() + Duration::from_secs(60), Ours::is_quiet);
    let [came, dropped] = dropper.counts();
    sum.packets.add(&ends.faults.done);
    let (outcomes, wrong_checksums) = ends.finish();
    drop(cable);
    sum.wrong_checksums += wrong_checksums;
    sum.dropped_by_bpf += dropped;
    assert!(link.dropped == 0 || came < 1000 || dropped > 0, "the BPF program drops nothing: {link:?}");
    for (case, (ours, theirs)) in cases.iter().zip(outcomes.into_iter().zip(theirs)) {
        sum.connections += 1;
        sum.bytes += case.ours.length + case.kernel.length;
        let problems: Vec<String> = [ours, theirs.map_err(|why| format!("the kernel's: {why}"))]
            .into_iter()
            .filter_map(Result::err)
            .collect();
        if !problems.is_empty() {
            sum.failures.push(format!("{}\n  {case:?}\n  {link:?}", problems.join("; ")));
        }
    }
    if !quiet {
        sum.failures.push(format!("connections that never end, seeds {seeds:?}\n  {link:?}"));
    }
    drop(pool);
    assert_eq!(arena.unused(), arena.frames(), "frames are held somewhere: {link:?}");
}

/// Runs connections, group by group and fault by fault, and prints what happened; fails with the seeds that did.
fn run(seeds: impl Iterator<Item = u64>) {
    let bytes = Stride::Packed.memory_for(FRAMES + RINGS);
    let arena = Arena::new(allocate(bytes, HugePages::Off, None).unwrap().memory).unwrap();
    let mut groups: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    seeds.for_each(|seed| groups.entry(seed / GROUP).or_default().push(seed));
    let (mut sum, start) = (Sum::default(), Instant::now());
    for (fault, (group, seeds)) in groups.iter().flat_map(|group| Fault::ALL.map(|fault| (fault, group))) {
        // One at a time: nobody else's test waits for the whole run.
        let Some(_guard) = bywash_lab::lock() else { return };
        let (before, failed) = (Instant::now(), sum.failures.len());
        let link = Link::draw(*group, fault);
        run_group(&link, seeds, fault, arena, &mut sum);
        let Link { way, mtu, ipv6, dropped, .. } = link;
        let (first, last) = (seeds[0], seeds[seeds.len() - 1]);
        let took = before.elapsed().as_secs_f64();
        println!(
            "seeds {first} to {last}, {fault:?}: {way:?}, MTU {mtu}, IPv6 {ipv6}, BPF drops {dropped} of 1024: {took:.1} s, {} failed",
            sum.failures.len() - failed
        );
        sum.failures[failed..].iter().for_each(|failure| println!("{failure}"));
    }
    let Sum { connections, bytes, packets, dropped_by_bpf, wrong_checksums, failures } = sum;
    let Done { passed, lost, reordered, duplicated, corrupted } = packets;
    println!(
        "{connections} connections, {bytes} bytes, {passed} packets: {lost} lost, {dropped_by_bpf} dropped by BPF, {reordered} \
         reordered, {duplicated} duplicated, {corrupted} corrupted ({wrong_checksums} wrong checksums here), {:.0} s, {} failed",
        start.elapsed().as_secs_f64(),
        failures.len()
    );
    assert!(failures.is_empty(), "{} failed, first: {}", failures.len(), failures[0]);
}

#[test]
fn streams_to_and_from_the_kernel_are_intact() {
    run((0..2).flat_map(|group| (0..20).map(move |seed| group * GROUP + seed)));
}

/// See CONTRIBUTING.md: `BYWASH_SEEDS` says how many, or which.
#[test]
#[ignore = "takes many minutes; see CONTRIBUTING.md"]
fn ten_thousand_seeds_with_the_kernel() {
    run(seeds::seeds(10_000));
}
