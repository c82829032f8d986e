//! Rules as the NIC has them: registers in memory, and a reader of its own that finds a packet's queue by them, as what Linux's
//! igb, DPDK's and the I210's datasheet say of these filters. No NIC in software does that; QEMU's has no five-tuple filters.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bywash_port::SteerTo;
use proptest::prelude::*;

use super::*;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// Registers that keep what is written.
#[derive(Clone, Debug, Default)]
struct Board {
    words: Arc<Mutex<BTreeMap<u32, u32>>>,
    /// Offsets where nothing is.
    missing: Range<u32>,
    gone: bool,
}

impl Registers for Board {
    fn read32(&self, offset: u32) -> u32 {
        let word = self.words.lock().unwrap().get(&offset).copied().unwrap_or(0);
        if self.gone { u32::MAX } else { word }
    }

    fn write32(&self, offset: u32, value: u32) {
        if !self.missing.contains(&offset) {
            self.words.lock().unwrap().insert(offset, value);
        }
    }
}

/// A packet, as filters see it.
#[derive(Clone, Copy, Debug)]
enum Seen {
    EtherType(u16),
    Ipv4 { protocol: u8, source: [u8; 4], destination: [u8; 4], ports: (u16, u16) },
}

impl Board {
    fn bar(&self) -> Bar<Self> {
        Bar::new(self.clone())
    }

    /// The queue that a filter names for a packet; `None` when RSS has it.
    fn queue(&self, packet: Seen) -> Option<u16> {
        match packet {
            Seen::EtherType(kind) => self.ether_type(kind),
            Seen::Ipv4 { .. } => self.five_tuple(packet),
        }
    }

    fn ether_type(&self, kind: u16) -> Option<u16> {
        let words = (0..8).map(|number| self.read32(0x5cb0 + 4 * number));
        let queue = |word: u32| (word >> 16 & 7) as u16;
        let on = 1 << 26 | 1 << 31;
        let found: Vec<u16> =
            words.filter(|word| word & on == on && word & 0xffff == u32::from(kind)).map(queue).collect();
        assert!(found.len() < 2, "two filters have {kind:#06x}");
        found.first().copied()
    }

    fn five_tuple(&self, packet: Seen) -> Option<u16> {
        let mut found: Vec<(u32, u16)> = (0..8).filter_map(|number| self.matching(number, packet)).collect();
        found.sort_unstable();
        let (priority, queue) = found.pop()?;
        assert!(priority > 0, "priorities are 1 to 7");
        assert!(found.iter().all(|(other, _)| *other != priority), "{packet:?} has two of one priority");
        Some(queue)
    }

    /// Priority and queue of a five-tuple filter, if it has the packet.
    fn matching(&self, number: u32, packet: Seen) -> Option<(u32, u16)> {
        let at = |offset: u32| self.read32(offset + 4 * number);
        let Seen::Ipv4 { protocol, source, destination, ports } = packet else { return None };
        let (ftqf, imir, imirext) = (at(0x59e0), at(0x5a80), at(0x5aa0));
        if ftqf & 1 << 8 == 0 {
            return None;
        }
        assert_eq!(ftqf & 1 << 15, 1 << 15, "it would compare a virtual function's number");
        assert_eq!(imirext, 1 << 12 | 1 << 19, "it would compare sizes or TCP's flags");
        // A bit of 1 is a field that is not compared. On the wire the first byte comes first, in a register it is the lowest.
        let port = |port: u16| u32::from(u16::from_le_bytes(port.to_be_bytes()));
        let same = [
            (ftqf >> 28 & 1, ftqf & 0xff, u32::from(protocol)),
            (ftqf >> 29 & 1, at(0x5980), u32::from_le_bytes(source)),
            (ftqf >> 30 & 1, at(0x59a0), u32::from_le_bytes(destination)),
            (ftqf >> 31, at(0x59c0), port(ports.0)),
            (imir >> 17 & 1, imir & 0xffff, port(ports.1)),
        ];
        let has = same.iter().all(|(any, register, packet)| *any == 1 || register == packet);
        has.then_some((imir >> 29, (ftqf >> 16 & 0xf) as u16))
    }
}

/// The rules of a NIC, and its registers.
struct Nic {
    rules: Rules,
    board: Board,
}

impl Nic {
    fn new() -> Self {
        Self { rules: Rules::new(), board: Board::default() }
    }

    fn add(&mut self, text: &str) -> Result<Place, String> {
        let rule = text.parse::<SteerRule>().unwrap();
        self.rules.add(&self.board.bar(), &rule).map_err(|error| error.to_string())
    }

    fn remove(&mut self, place: Place) -> Option<SteerRule> {
        self.rules.remove(&self.board.bar(), place).unwrap()
    }

    fn holds(&self, place: Place) -> bool {
        self.rules.holds(&self.board.bar(), place).unwrap()
    }

    fn written(&self) -> BTreeMap<u32, u32> {
        self.board.words.lock().unwrap().clone()
    }
}

fn packet(protocol: u8, ports: (u16, u16)) -> Seen {
    Seen::Ipv4 { protocol, source: [10, 0, 0, 1], destination: [10, 0, 0, 2], ports }
}

#[test]
fn packets_go_to_the_queues_that_rules_name_until_they_are_removed() {
    let mut nic = Nic::new();
    let rules = [
        ("ip and dst host 10.0.0.2 and udp dst port 319 queue 7", Place::FiveTuple(0)),
        ("ether proto 0x88cc queue 5", Place::EtherType(0)),
        ("ip and src host 10.0.0.1 and tcp src port 258 queue 3", Place::FiveTuple(1)),
        ("ip and sctp queue 1", Place::FiveTuple(2)),
    ];
    for (text, place) in rules {
        assert_eq!(nic.add(text), Ok(place));
        assert!(nic.holds(place));
    }
    let packets = [
        packet(UDP, (9, 319)),
        Seen::EtherType(0x88cc),
        packet(TCP, (258, 80)),
        packet(SCTP, (1, 2)),
        packet(UDP, (319, 9)),
        packet(TCP, (513, 80)),
        Seen::EtherType(0x88cd),
    ];
    let queues = packets.map(|packet| nic.board.queue(packet));
    assert_eq!(queues, [Some(7), Some(5), Some(3), Some(1), None, None, None]);
    for (text, place) in rules {
        assert_eq!(nic.remove(place).unwrap().to_string(), text);
        assert!(!nic.holds(place));
        assert_eq!(nic.remove(place), None);
    }
    assert_eq!(packets.map(|packet| nic.board.queue(packet)), [None; 7]);
    // What is off compares nothing, so that nothing of it is left for whoever comes next.
    assert!((0..8).all(|number| nic.board.read32(0x59e0 + 4 * number) & 0x100 == 0));
    assert_eq!(nic.remove(Place::FlowDirector(0)), None);
    assert!(!nic.holds(Place::FlowDirector(0)) && !nic.holds(Place::FiveTuple(8)));
}

/// Linux's filter for the packets of PTP: `htons` of their port in two registers, and the protocol by IP's number.
#[test]
fn a_filter_is_in_registers_as_linux_has_it() {
    let mut nic = Nic::new();
    nic.add("ip and udp src port 319 and udp dst port 319 queue 2").unwrap();
    let written = nic.written();
    assert_eq!(written[&0x59c0], 0x3f01);
    assert_eq!(written[&0x5a80] & 0x0003_ffff, 0x3f01);
    assert_eq!(written[&0x5aa0], 0x1000 | 0x0008_0000);
    assert_eq!(written[&0x59e0], 0x11 | 0x8000 | 0x6000_0000 | 0x100 | 2 << 16);
}

#[test]
fn what_the_nic_cannot_do_is_said_and_nothing_is_written() {
    let mut nic = Nic::new();
    let others = ", and the 82576 has no others for addresses and ports";
    for (text, why) in [
        ("ip and udp dst port 53 drop", format!("five-tuple filters drop nothing{others}")),
        ("vlan 5 and ip and udp queue 1", format!("five-tuple filters do not look at VLANs{others}")),
        ("ip and src net 10.0.0.0/8 queue 1", format!("five-tuple filters compare whole addresses{others}")),
        (
            "ip queue 1",
            "a five-tuple filter of the 82576 that compares nothing might take more than IPv4: name a protocol or an address"
                .into(),
        ),
        ("ether proto 0x88cc drop", "the 82576 drops no packets by EtherType: give them to a queue".into()),
    ] {
        assert_eq!(nic.add(text), Err(why));
    }
    assert_eq!(nic.written(), BTreeMap::new());
    assert_eq!(Steer::<Board>::rules(&nic.rules), []);
}

#[test]
fn filters_and_priorities_run_out() {
    let mut nic = Nic::new();
    for number in 0..8 {
        let text = format!("ether proto {} queue {number}", 0x9000 + number);
        assert_eq!(nic.add(&text), Ok(Place::EtherType(number)));
        let text = format!("ip and udp dst port {number} queue {number}");
        assert_eq!(nic.add(&text), Ok(Place::FiveTuple(number)));
    }
    let before = nic.written();
    let none = [
        ("ether proto 0x88cc queue 1", "all 8 EtherType filters (ETQF) are taken"),
        ("ip and udp dst port 8 queue 1", "all 8 five-tuple filters (FTQF) are taken"),
        (
            "ip and udp dst port 7 queue 1",
            "the packets of 'ip and udp dst port 7 queue 7' (five-tuple filter 7): remove that rule first",
        ),
    ];
    for (text, why) in none {
        assert_eq!(nic.add(text), Err(why.into()));
    }
    assert_eq!(nic.written(), before);
    nic.remove(Place::FiveTuple(3)).unwrap();
    assert_eq!(nic.add("ip and udp dst port 8 queue 1"), Ok(Place::FiveTuple(3)));

    let mut nic = Nic::new();
    for text in [
        "ip and udp",
        "ip and src host 10.0.0.1",
        "ip and dst host 10.0.0.2",
        "ip and udp src port 1",
        "ip and udp dst port 2",
        "ip and src host 10.0.0.1 and udp dst port 2",
        "ip and dst host 10.0.0.2 and udp dst port 2",
    ] {
        nic.add(&format!("{text} queue 1")).unwrap();
    }
    let error = nic.add("ip and src host 10.0.0.1 and udp src port 1 queue 1").unwrap_err();
    assert_eq!(error, "five-tuple filters (FTQF) have no lower priority left for it");
    assert!(
        nic.add("ip and src host 10.0.0.9 and dst host 10.0.0.9 and tcp queue 1").is_ok(),
        "it overlaps no other"
    );
}

/// As on QEMU's NIC, which has EtherType filters alone.
#[test]
fn a_filter_that_the_nic_does_not_have_is_not_believed_in() {
    let board = Board { missing: 0x59e0..0x5a00, ..Board::default() };
    let mut nic = Nic { rules: Rules::new(), board };
    assert_eq!(
        nic.add("ip and udp dst port 53 queue 1"),
        Err("FTQF[0] is 0x00000000 after 0xe0018111 was written: this NIC does not have the filter (QEMU's 82576 has none but for \
             EtherTypes)"
            .into())
    );
    assert!(nic.written().values().all(|word| *word == 0), "what was written is taken back");
    assert_eq!(Steer::<Board>::rules(&nic.rules), []);
    assert_eq!(nic.add("ether proto 0x88cc queue 1"), Ok(Place::EtherType(0)));
    nic.board.gone = true;
    assert!(nic.add("ether proto 0x88cd queue 1").unwrap_err().starts_with("the device is gone"));
}

/// The port's number: few, so that rules and packets meet.
fn number() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![Just(None), (0u16..3).prop_map(Some)]
}

fn flow() -> impl Strategy<Value = Flow> {
    let address = || {
        let one = (1u8..3).prop_map(|last| Ipv4Prefix::from(std::net::Ipv4Addr::new(10, 0, 0, last)));
        prop_oneof![Just(Ipv4Prefix::ANY), one]
    };
    let protocol = prop::sample::select(vec!["ip", "ip and tcp", "ip and udp", "ip and sctp"]);
    let ipv4 = (protocol, address(), address(), number(), number()).prop_map(
        |(kind, source, destination, from, to)| {
            let rule = format!("{kind} queue 0").parse::<SteerRule>().unwrap();
            let Flow::Ipv4(mut flow) = rule.flow else { unreachable!("{kind} is IPv4") };
            (flow.source, flow.destination) = (source, destination);
            if let Some(transport) = &mut flow.transport {
                (transport.source_port, transport.destination_port) = (from, to);
            }
            Flow::Ipv4(flow)
        },
    );
    prop_oneof![4 => ipv4, 1 => (0x9000u16..0x9003).prop_map(Flow::EtherType)]
}

fn seen() -> impl Strategy<Value = Seen> {
    let protocol = prop::sample::select(vec![1, TCP, UDP, SCTP]);
    let ipv4 =
        (protocol, 1u8..4, 1u8..4, 0u16..3, 0u16..3).prop_map(|(protocol, source, destination, from, to)| {
            let address = |last| [10, 0, 0, last];
            Seen::Ipv4 {
                protocol,
                source: address(source),
                destination: address(destination),
                ports: (from, to),
            }
        });
    prop_oneof![4 => ipv4, 1 => (0x9000u16..0x9004).prop_map(Seen::EtherType)]
}

/// Whether the words of a rule mean the packet.
fn means(flow: &Flow, packet: Seen) -> bool {
    match (flow, packet) {
        (Flow::EtherType(kind), Seen::EtherType(packet)) => *kind == packet,
        (Flow::Ipv4(flow), Seen::Ipv4 { protocol, source, destination, ports }) => {
            let any_or = |wanted: Option<u16>, port: u16| wanted.is_none_or(|wanted| wanted == port);
            let address = |wanted: Ipv4Prefix, address: [u8; 4]| {
                wanted.single().is_none_or(|wanted| wanted.octets() == address)
            };
            let transport = flow.transport.is_none_or(|wanted| {
                let number = match wanted.protocol {
                    bywash_port::TransportProtocol::Tcp => TCP,
                    bywash_port::TransportProtocol::Udp => UDP,
                    bywash_port::TransportProtocol::Sctp => SCTP,
                };
                number == protocol
                    && any_or(wanted.source_port, ports.0)
                    && any_or(wanted.destination_port, ports.1)
            });
            transport && address(flow.source, source) && address(flow.destination, destination)
        }
        _ => false,
    }
}

proptest! {
    /// Of the rules that the NIC has, in the order in which they were given, the first one that means a packet has it; also when
    /// some were removed, and others came.
    #[test]
    fn any_rules_are_obeyed_in_their_order(
        steps in prop::collection::vec((flow(), 0u16..8, prop::option::weighted(0.2, 0u32..8)), 1..24),
        packets in prop::collection::vec(seen(), 40),
    ) {
        let mut nic = Nic::new();
        let mut given: Vec<(Place, Flow, u16)> = Vec::new();
        for (flow, queue, remove) in steps {
            if let Some(number) = remove {
                nic.remove(Place::FiveTuple(number));
                given.retain(|(place, ..)| *place != Place::FiveTuple(number));
            }
            let rule = SteerRule { flow, to: SteerTo::Queue(queue) };
            if let Ok(place) = nic.rules.add(&nic.board.bar(), &rule) {
                given.push((place, flow, queue));
            }
        }
        for packet in packets {
            let first = given.iter().find(|(_, flow, _)| means(flow, packet)).map(|(.., queue)| *queue);
            prop_assert_eq!(nic.board.queue(packet), first, "{:?} of {:?}", packet, given);
        }
    }
}
