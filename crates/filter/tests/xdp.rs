//! The XDP programs in the kernel: its verifier takes them, and they do what they say.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::os::fd::AsRawFd;

use bywash_filter::Expression;
use bywash_filter::xdp::{
    Count, Heartbeat, LiveFrames, Maps, NeverTake, Steering, Take, Verdict, XdpBuff, pass_program,
    verdict_program,
};
use bywash_lab::skip;
use bywash_sys::bpf::{Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec, TestInput, kernel_types};

fn rights() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("bpf(2) needs root");
    }
    root
}

fn load(program: &bywash_filter::ebpf::Program) -> Program {
    let spec =
        ProgramSpec { kind: ProgramKind::XdpFrags, name: "filter_test", instructions: &program.to_words() };
    Program::load(&spec).unwrap_or_else(|error| panic!("{error}\n{program}"))
}

/// Packets come by the first of them.
const QUEUES: u32 = 2;

struct Fixture {
    sockets: Map,
    heartbeat: Map,
    counters: Map,
}

impl Fixture {
    fn new() -> Self {
        let map = |kind, name, value_size, entries, mappable| {
            Map::create(&MapSpec { kind, name, key_size: 4, value_size, entries, mappable }).unwrap()
        };
        Self {
            sockets: map(MapKind::XskMap, "test_sockets", 4, 2, false),
            heartbeat: map(
                MapKind::Array,
                "test_beat",
                u32::try_from(QUEUES as usize * size_of::<Heartbeat>()).unwrap(),
                1,
                true,
            ),
            counters: map(
                MapKind::PerCpuArray,
                "test_counters",
                u32::try_from(size_of::<Count>()).unwrap(),
                u32::try_from(Verdict::ALL.len()).unwrap(),
                false,
            ),
        }
    }

    fn maps(&self) -> Maps {
        Maps {
            sockets: self.sockets.as_raw_fd(),
            longest: 200,
            heartbeat: self.heartbeat.as_raw_fd(),
            queues: QUEUES,
            decides_others: false,
            counters: self.counters.as_raw_fd(),
        }
    }

    fn beat(&self, beat: u64) {
        let mut entry = [0; QUEUES as usize * size_of::<Heartbeat>()];
        self.heartbeat.lookup(&[0; 4], &mut entry).unwrap();
        entry[..8].copy_from_slice(&beat.to_ne_bytes());
        self.heartbeat.update(&[0; 4], &entry).unwrap();
    }

    fn counted(&self, verdict: Verdict) -> [u64; 2] {
        self.counters.sum(verdict as u32).unwrap()
    }
}

fn packet(kind: u16, length: usize) -> Vec<u8> {
    let mut packet = vec![0; length];
    packet[12..14].copy_from_slice(&kind.to_be_bytes());
    packet
}

#[test]
fn every_fate_of_a_packet_is_counted_under_its_name() {
    if !rights() {
        return;
    }
    let fixture = Fixture::new();
    let expression: Expression = "ip or arp".parse().unwrap();
    let steering = Steering {
        take: Take::Matching(&expression),
        never_take: Some(NeverTake::default()),
        maps: fixture.maps(),
        hung_after_jiffies: 0,
        buff: None,
    };
    let program = load(&steering.program().unwrap());
    let run =
        |packet: &[u8]| program.test_run(&TestInput { packet, ..TestInput::default() }).unwrap().verdict;
    assert_eq!(run(&packet(0x0806, 60)), 2);
    assert_eq!(fixture.counted(Verdict::NeverTake), [1, 60]);
    assert_eq!(run(&packet(0x86dd, 70)), 2);
    assert_eq!(fixture.counted(Verdict::Left), [1, 70]);
    // Nobody has ever beaten: nobody is there.
    assert_eq!(run(&packet(0x0800, 80)), 2);
    assert_eq!(fixture.counted(Verdict::NoSocket), [1, 80]);
    // Somebody beats who has no socket yet, and falls silent.
    fixture.beat(1);
    assert_eq!(run(&packet(0x0800, 90)), 2);
    assert_eq!(fixture.counted(Verdict::NoSocket), [2, 170]);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(run(&packet(0x0800, 100)), 2);
    assert_eq!(fixture.counted(Verdict::Hung), [1, 100]);
    // Who has gone is not hung.
    fixture.beat(0);
    assert_eq!(run(&packet(0x0800, 110)), 2);
    assert_eq!((fixture.counted(Verdict::NoSocket), fixture.counted(Verdict::Hung)), ([3, 280], [1, 100]));
    assert_eq!(fixture.counted(Verdict::Taken), [0, 0]);
    // Sockets would lose it.
    fixture.beat(2);
    assert_eq!(run(&packet(0x0800, 201)), 2);
    assert_eq!(fixture.counted(Verdict::TooLong), [1, 201]);
}

#[test]
fn a_silent_worker_loses_its_packets_after_the_limit() {
    if !rights() {
        return;
    }
    let fixture = Fixture::new();
    let limit = bywash_sys::bpf::jiffies(std::time::Duration::from_millis(200));
    let steering = Steering {
        take: Take::All,
        never_take: None,
        maps: fixture.maps(),
        hung_after_jiffies: limit,
        buff: None,
    };
    let program = load(&steering.program().unwrap());
    let run =
        || program.test_run(&TestInput { packet: &packet(0x0800, 60), ..TestInput::default() }).unwrap();
    fixture.beat(1);
    run();
    run();
    assert_eq!(fixture.counted(Verdict::Hung)[0], 0);
    std::thread::sleep(std::time::Duration::from_millis(300));
    run();
    assert_eq!(fixture.counted(Verdict::Hung)[0], 1);
    fixture.beat(2);
    run();
    assert_eq!(fixture.counted(Verdict::Hung)[0], 1);
    assert_eq!(fixture.counted(Verdict::NoSocket)[0], 3);
}

#[test]
fn the_never_take_list_saves_what_a_machine_lives_by() {
    if !rights() {
        return;
    }
    let operator = ("10.0.0.2:22".parse().unwrap(), "192.0.2.7:50000".parse().unwrap());
    let gateways = vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
    let never_take = NeverTake { gateways, operator: Some(operator), ..NeverTake::default() };
    let fixture = Fixture::new();
    let steering = Steering {
        take: Take::All,
        never_take: Some(never_take),
        maps: fixture.maps(),
        hung_after_jiffies: 0,
        buff: None,
    };
    load(&steering.program().unwrap());
}

/// Larger ones than a page come in several buffers.
#[test]
fn lengths_are_known_with_the_kernels_own_structure_and_without() {
    let buff = kernel_types().and_then(|types| XdpBuff::new(&types));
    if !rights() || buff.is_none() {
        return;
    }
    load(&buff.unwrap().trial_program());
    for buff in [None, buff] {
        let fixture = Fixture::new();
        let maps = fixture.maps();
        let steering = Steering { take: Take::All, never_take: None, maps, hung_after_jiffies: 0, buff };
        let program = load(&steering.program().unwrap());
        let mut bytes = 0;
        for length in [60, 1500, 9000, 4000, 20_000] {
            let packet = packet(0x0800, length);
            program.test_run(&TestInput { packet: &packet, ..TestInput::default() }).unwrap();
            bytes += length as u64;
            assert_eq!(fixture.counted(Verdict::NoSocket)[1], bytes, "{length} {buff:?}");
        }
    }
}

#[test]
fn the_program_that_passes_passes() {
    if !rights() {
        return;
    }
    let program = load(&pass_program());
    assert_eq!(program.test_run(&TestInput { packet: &[0; 14], ..TestInput::default() }).unwrap().verdict, 2);
}

#[test]
fn the_verifier_takes_each_kind_of_primitive() {
    if !rights() {
        return;
    }
    for text in [
        "",
        "ip",
        "tcp port 80",
        "host 10.0.0.1 or net 10.0.0.0/8",
        "ip6 host ::1",
        "tcp[tcp[12] >> 2] / len = 3",
        "anyvlan and udp port 53",
        "anyvlan and l4 tcp dst port 443",
        "l4 proto 58",
        "fragment first or fragment later",
        "ip6 protochain 6",
        "protochain 51 and anyvlan and protochain 17",
        "vlan 5 and mpls and ip6",
        "pppoes and tcp",
        "ip[-4:4] = 5",
        "ether[len - 4:4] != 0",
        "ip[0xffff] = 1",
        "ip[40000] = 1",
        "len << ip[0] > 2",
        "anyvlan and (tcp[13] & 2 != 0 or udp[8:2] = ip[2:2] % 7) and l4 src portrange 1-2 and fragment",
    ] {
        load(&verdict_program(&text.parse().unwrap(), 1, 2).unwrap());
    }
}

#[test]
fn the_verifier_takes_the_largest_expressions_too() {
    if !rights() {
        return;
    }
    // Every second port, so that they do not become one range.
    let ports = (1..=300).map(|port| (2 * port).to_string()).collect::<Vec<_>>().join(" or ");
    let nets = (0..200).map(|net| format!("src net 10.{net}.0.0/17")).collect::<Vec<_>>().join(" or ");
    let deep = format!(
        "{}ip[40]{} = 3",
        (1..38).map(|at| format!("ip[{at}] - (")).collect::<String>(),
        ")".repeat(37)
    );
    let walks = "vlan and anyvlan and geneve and l4 port 80 and fragment and l4 proto 6";
    let chains = (0..20).map(|protocol| format!("protochain {protocol}")).collect::<Vec<_>>().join(" or ");
    for text in [format!("port {ports}"), format!("anyvlan and ({nets})"), deep, walks.into(), chains] {
        load(&verdict_program(&text.parse().unwrap(), 1, 2).unwrap());
    }
    let many = (1..=5000).map(|port| (2 * port).to_string()).collect::<Vec<_>>().join(" or ");
    let error = verdict_program(&format!("port {many}").parse().unwrap(), 1, 2).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

#[test]
fn what_stands_in_memory_becomes_one_packet_after_the_other() {
    if !rights() {
        return;
    }
    let value_size = LiveFrames::region(2);
    let spec = MapSpec {
        kind: MapKind::Array,
        name: "test_live",
        key_size: 4,
        value_size: u32::try_from(value_size).unwrap(),
        entries: 1,
        mappable: true,
    };
    let map = Map::create(&spec).unwrap();
    let memory = map.map_memory().unwrap();
    let lengths: Vec<usize> = [14, 60, 64, 65, LiveFrames::LONGEST]
        .into_iter()
        .chain((5..LiveFrames::MOST).map(|n| 14 + n * 31))
        .collect();
    let bytes = |place: usize| -> Vec<u8> {
        (0..lengths[place]).map(|n| u8::try_from((n + place) % 251).unwrap()).collect()
    };
    // The second of two regions.
    let region = LiveFrames::region(1);
    for (place, length) in lengths.iter().enumerate() {
        memory.copy_in(region + LiveFrames::length(place), &u32::try_from(*length).unwrap().to_ne_bytes());
        memory.copy_in(region + LiveFrames::packet(place), &bytes(place));
    }
    let program = load(&LiveFrames { map: map.as_raw_fd(), queues: 2 }.program().unwrap());
    let run = |region: u32| {
        let mut made = [0; LiveFrames::MADE];
        made[..4].copy_from_slice(&region.to_ne_bytes());
        program.test_run(&TestInput { packet: &made, ..TestInput::default() }).unwrap()
    };
    for place in 0..LiveFrames::MOST {
        let output = run(1);
        assert_eq!((output.verdict, output.packet == bytes(place)), (2, true), "packet {place}");
    }
    let next = |region| memory.read::<u64>(LiveFrames::region(region) + LiveFrames::NEXT);
    assert_eq!((next(0), next(1)), (Some(0), Some(64)), "so many are the kernel's");
    assert_eq!(run(1).verdict, 1, "there are no more");
    for length in [0, LiveFrames::LONGEST + 1] {
        memory.copy_in(region + LiveFrames::NEXT, &0_u64.to_ne_bytes());
        memory.copy_in(region + LiveFrames::length(0), &u32::try_from(length).unwrap().to_ne_bytes());
        assert_eq!(run(1).verdict, 1, "{length} bytes are no packet");
    }
    assert_eq!(run(2).verdict, 1, "there are two regions");
}
