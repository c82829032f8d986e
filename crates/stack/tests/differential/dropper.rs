//! A BPF program on the kernel's interface that drops packets, which ones a seed decides.

use std::os::fd::{AsFd, AsRawFd};

use bywash_drivers::port::filter::ebpf::{Assembler, Condition, Operation, Register, Width};
use bywash_lab::Host;
use bywash_lab::sys::bpf::{Link, Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec, TcxDirection};

/// Packets that came and that were dropped, 64 bits each.
const COUNTS: u32 = 16;
/// `TCX_NEXT`: whoever comes next decides.
const NEXT: i32 = -1;
/// `TCX_DROP`.
const DROP: i32 = 2;
/// `TCX_REDIRECT`, to no interface: the packet is gone, and its sender is not told. Of `TCX_DROP` Linux's TCP hears as its packet
/// leaves; it takes that for a local congestion, and forgets a handshake whose SYN,ACK it could not repeat.
const LOSE: i32 = 7;

/// Both ways through an interface.
pub(crate) struct Dropper {
    ways: [(Link, Map); 2],
}

impl Dropper {
    /// Drops so many of 1024 packets.
    pub(crate) fn on(host: &Host, interface: u32, dropped: i32, seed: u64) -> Self {
        let ways = [(TcxDirection::Ingress, DROP, seed), (TcxDirection::Egress, LOSE, !seed)].map(
            |(direction, verdict, seed)| {
                let map = Map::create(&MapSpec {
                    kind: MapKind::Array,
                    name: "drop_counts",
                    key_size: 4,
                    value_size: COUNTS,
                    entries: 1,
                    mappable: false,
                })
                .unwrap();
                let instructions = program(map.as_fd().as_raw_fd(), (dropped, verdict), seed);
                let spec = ProgramSpec {
                    kind: ProgramKind::SchedCls,
                    name: "drop_by_seed",
                    instructions: &instructions,
                };
                let program = Program::load(&spec).unwrap();
                let link = host.enter(|| Link::tcx(&program, interface, direction)).unwrap().unwrap();
                (link, map)
            },
        );
        Self { ways }
    }

    /// Packets that came and that were dropped.
    pub(crate) fn counts(&self) -> [u64; 2] {
        self.ways.iter().fold([0; 2], |sum, (_, map)| {
            let mut value = [0; COUNTS as usize];
            assert!(map.lookup(&0u32.to_ne_bytes(), &mut value).unwrap());
            let word = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().expect("eight bytes"));
            [sum[0] + word(0), sum[1] + word(8)]
        })
    }
}

/// Counts packets and gives a verdict on those whose number, mixed with the seed, has a remainder below `dropped`.
fn program(map: i32, (dropped, verdict): (i32, i32), seed: u64) -> Vec<u64> {
    use Register::{R0, R1, R2, R3, R6};
    let mut a = Assembler::new();
    let pass = a.label();
    a.map_value(R6, map, 0);
    a.load(Width::Double, R1, R6, 0);
    a.operate(Operation::Add, R1, 1);
    a.store(Width::Double, R6, 0, R1);
    a.number(R2, seed);
    a.operate(Operation::Xor, R1, R2);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        a.number(R2, factor);
        a.operate(Operation::Multiply, R1, R2);
        a.mov(R3, R1);
        a.operate(Operation::ShiftRight, R3, 29);
        a.operate(Operation::Xor, R1, R3);
    }
    a.operate(Operation::And, R1, 1023);
    a.jump_if(R1, Condition::GreaterOrEqual, dropped, pass);
    a.load(Width::Double, R1, R6, 8);
    a.operate(Operation::Add, R1, 1);
    a.store(Width::Double, R6, 8, R1);
    a.mov(R0, verdict);
    a.exit();
    a.place(pass);
    a.mov(R0, NEXT);
    a.exit();
    a.finish().unwrap().to_words()
}
