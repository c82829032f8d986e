//! Rules that name packets: in which of the NIC's filters each lands, what they do there, and what is refused.

use bywash_drivers::ixgbe::{self, NicError, Place, Rss, Settings};
use bywash_drivers::port::frame::{Arena, Pool};
use bywash_drivers::port::{FdirFilters, PortName, SteerRule, SteerTo};
use bywash_hw::ixgbe::regs::*;
use bywash_hw::reg::Register;
use bywash_models::function::InProcess;
use bywash_models::ixgbe::Faults;
use bywash_models::world::Shared;

use crate::bed::{End, Transport, end, frame, ipv4, ipv6, memory, no_violations, packet, quiet, world};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;

/// A NIC that hears itself; RSS sends everything to its first queue.
pub(crate) struct Alone {
    world: Shared,
    pub(crate) end: End,
    pool: Pool,
}

impl Alone {
    pub(crate) fn new(queues: u16, fdir: Option<FdirFilters>) -> Self {
        let (arena, pool) = memory(8192);
        Self::of(&world(1), queues, fdir, arena, pool)
    }

    fn of(world: &Shared, queues: u16, fdir: Option<FdirFilters>, arena: &'static Arena, pool: Pool) -> Self {
        let rss = Rss { table: Some([0; 128]), ..Rss::default() };
        let settings = Settings { queues, ring: 256, loopback: true, rss, fdir, ..quiet() };
        let mut alone = Self { world: world.clone(), end: end(world, 0, &settings, arena), pool };
        // Now its queues have frames.
        assert_eq!(alone.counts(&[]), vec![0; usize::from(queues)]);
        alone
    }

    pub(crate) fn steer(&mut self, text: &str) -> Result<Place, String> {
        self.end.port.steer(&rule(text)).map_err(|error| error.to_string())
    }

    /// Packets that each queue has when these have been sent.
    pub(crate) fn counts(&mut self, frames: &[Vec<u8>]) -> Vec<usize> {
        let packets: Vec<_> = frames.iter().map(|bytes| packet(bytes, 2048, &mut self.pool)).collect();
        self.end.send(packets, &mut self.pool);
        let mut counts = Vec::new();
        for queue in 0..self.end.rx.len() {
            let packets = self.end.receive(queue, &mut self.pool);
            counts.push(packets.len());
            packets.into_iter().for_each(|packet| self.pool.give_packet(packet));
        }
        counts
    }

    fn read(&self, register: &Register) -> u32 {
        self.world.with(0, |device| device.nic.read32(register.offset()))
    }

    fn counter(&self, name: &str) -> u64 {
        self.end.counter(name)
    }

    /// Closes it; nothing that the datasheet forbids was done.
    pub(crate) fn close(mut self) {
        self.end.close(&mut self.pool).unwrap();
        no_violations(&self.world, 1);
    }
}

fn rule(text: &str) -> SteerRule {
    text.parse().unwrap()
}

pub(crate) fn datagram(protocol: u8, source: [u8; 4], destination: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
    ipv4(source, destination, &Transport { protocol, ports, payload: vec![0; 30] })
}

/// The same frame with a VLAN tag.
pub(crate) fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    // A priority, which is not looked at.
    [&frame[..12], &[0x81, 0, 0x60 | high, low], &frame[12..]].concat()
}

const A: [u8; 4] = [10, 1, 0, 1];
const B: [u8; 4] = [10, 2, 0, 1];

#[test]
fn whole_addresses_and_ports_are_five_tuples_and_ether_types_have_filters_of_their_own() {
    // More queues than RSS reaches: the twentieth gets what a rule sends it, and nothing else.
    let mut nic = Alone::new(20, None);
    assert_eq!(nic.steer("ip and dst host 10.2.0.1 and udp dst port 53 queue 19"), Ok(Place::FiveTuple(0)));
    assert_eq!(nic.steer("ether proto 0x88b5 queue 17"), Ok(Place::EtherType(0)));
    assert_eq!(nic.steer("ip and sctp src port 7 queue 18"), Ok(Place::FiveTuple(1)));
    let frames = [
        datagram(UDP, A, B, (1024, 53)),
        datagram(UDP, A, A, (1024, 53)),
        datagram(TCP, A, B, (1024, 53)),
        frame(0, 60),
        datagram(SCTP, A, B, (7, 9)),
        tagged(&datagram(UDP, A, B, (1, 53)), 5),
    ];
    let counts = nic.counts(&frames);
    assert_eq!((counts[0], counts[17], counts[18], counts[19]), (2, 1, 1, 2));
    let places: Vec<Place> = nic.end.port.steered().into_iter().map(|(place, _)| place).collect();
    assert_eq!(places, [Place::EtherType(0), Place::FiveTuple(0), Place::FiveTuple(1)]);
    for place in places {
        assert!(nic.end.port.has_filter(place).unwrap());
        assert!(nic.end.port.unsteer(place).unwrap().is_some());
        assert!(!nic.end.port.has_filter(place).unwrap());
        assert_eq!(nic.end.port.unsteer(place).unwrap(), None);
    }
    assert_eq!(nic.counts(&frames)[0], frames.len());
    nic.close();
}

#[test]
fn rules_that_overlap_count_in_the_order_in_which_they_were_given() {
    let mut nic = Alone::new(4, None);
    nic.steer("ip and udp dst port 53 queue 1").unwrap();
    nic.steer("ip and udp queue 2").unwrap();
    nic.steer("ip and src host 10.1.0.1 queue 3").unwrap();
    let frames = [(UDP, 53), (UDP, 54), (TCP, 53)].map(|(protocol, to)| datagram(protocol, A, B, (9, to)));
    assert_eq!(nic.counts(&frames), [0, 1, 1, 1]);
    // Each of these overlaps all others, and there are seven priorities: none is below 1.
    for text in [
        "ip and dst host 10.2.0.1",
        "ip and udp src port 9",
        "ip and src host 10.1.0.1 and dst host 10.2.0.1",
        "ip and src host 10.1.0.1 and udp dst port 53",
    ] {
        nic.steer(&format!("{text} queue 1")).unwrap();
    }
    assert_eq!(nic.counts(&frames), [0, 1, 1, 1]);
    let error = nic.steer("ip queue 1").unwrap_err();
    assert!(error.starts_with("five-tuple filters (FTQF) have no lower priority left for it; "), "{error}");
    nic.close();
}

#[test]
fn what_five_tuples_cannot_say_is_the_flow_directors() {
    let mut nic = Alone::new(4, Some(FdirFilters::K2));
    let net = "vlan 5 and ip and src net 10.1.0.0/16 and tcp dst port 80 queue 3";
    assert_eq!(nic.steer(net), Ok(Place::FlowDirector(0)));
    assert_eq!(
        nic.steer("vlan 5 and ip and src net 10.3.0.0/16 and tcp dst port 80 drop"),
        Ok(Place::FlowDirector(1))
    );
    assert_eq!(
        nic.steer("vlan 6 and ip and src net 10.1.0.0/16 and udp dst port 53 queue 2"),
        Ok(Place::FlowDirector(2))
    );
    assert_eq!(nic.steer("ip and udp dst port 67 queue 1"), Ok(Place::FiveTuple(0)));
    let http = datagram(TCP, A, B, (1024, 80));
    let v6 = Transport { protocol: TCP, ports: (1024, 80), payload: vec![0; 30] };
    let frames = [
        tagged(&http, 5),
        tagged(&http, 6),
        http.clone(),
        tagged(&datagram(TCP, [10, 3, 9, 9], B, (1024, 80)), 5),
        tagged(&datagram(TCP, A, B, (1024, 81)), 5),
        tagged(&datagram(UDP, A, B, (1024, 53)), 6),
        tagged(&datagram(UDP, A, B, (1024, 67)), 6),
        tagged(&ipv6([1; 16], [2; 16], &v6), 5),
    ];
    assert_eq!(nic.counts(&frames), [4, 1, 1, 1]);
    assert_eq!(FDIRFREE::FREE.of(nic.read(&FDIRFREE)), 2046 - 3);
    // Of the packets of IPv4 that no five-tuple filter took, three were found; IPv6 is not asked for.
    let names = ["matches", "misses", "added", "removed", "not_added", "not_removed"];
    let all = |nic: &Alone| names.map(|name| nic.counter(&format!("flow_director_{name}")));
    assert_eq!(all(&nic), [3, 3, 3, 0, 0, 0]);
    assert!(nic.end.port.has_filter(Place::FlowDirector(1)).unwrap());
    assert_eq!(nic.end.port.unsteer(Place::FlowDirector(1)).unwrap().unwrap().to, SteerTo::Drop);
    assert!(!nic.end.port.has_filter(Place::FlowDirector(1)).unwrap());
    assert_eq!(nic.end.port.unsteer(Place::FlowDirector(1)).unwrap(), None);
    assert_eq!(nic.counts(&frames), [5, 1, 1, 1]);
    assert_eq!(all(&nic), [5, 7, 3, 1, 0, 0]);
    // Its number is given again.
    assert_eq!(
        nic.steer("vlan 5 and ip and src net 10.4.0.0/16 and tcp dst port 80 drop"),
        Ok(Place::FlowDirector(1))
    );
    nic.close();
}

#[test]
fn each_rule_that_has_no_place_is_refused_with_the_reason() {
    let mut nic = Alone::new(4, None);
    let none =
        "; the flow director might, but the port was opened without it: write /fdir=2k behind its name";
    for (text, why) in [
        ("ip and udp dst port 53 drop", "five-tuple filters drop nothing"),
        ("vlan 3 and ip and udp queue 1", "five-tuple filters do not look at VLANs"),
        ("ip and src net 10.0.0.0/8 and udp queue 1", "five-tuple filters compare whole addresses"),
    ] {
        assert_eq!(nic.steer(text), Err(format!("{why}{none}")));
    }
    let error = nic.steer("ether proto 0x88b5 drop").unwrap_err();
    assert_eq!(error, "the 82599 drops no packets by EtherType: give them to a queue");
    assert_eq!(nic.steer("ip and udp queue 4"), Err("queue 4: the port was opened with 4".into()));
    for last in 0..8 {
        assert_eq!(nic.steer(&format!("ether proto {} queue 1", 0x9000 + last)), Ok(Place::EtherType(last)));
    }
    assert_eq!(
        nic.steer("ether proto 0x88b5 queue 1"),
        Err("all 8 EtherType filters (ETQF) are taken".into())
    );
    nic.steer("ip and udp dst port 53 queue 1").unwrap();
    let error = nic.steer("ip and udp dst port 53 queue 2").unwrap_err();
    let twice =
        "the packets of 'ip and udp dst port 53 queue 1' (five-tuple filter 0): remove that rule first";
    assert_eq!(error, twice);
    nic.close();
}

#[test]
fn the_flow_director_compares_the_same_parts_for_all_its_filters() {
    let mut nic = Alone::new(4, Some(FdirFilters::K2));
    let first = nic.steer("ip and src net 10.1.0.0/16 and tcp queue 1").unwrap();
    let error = nic.steer("ip and src net 10.2.1.0/24 and tcp dst port 80 queue 1").unwrap_err();
    assert_eq!(
        error,
        "five-tuple filters compare whole addresses, and all flow director filters compare the same parts of a packet, \
         now protocol, 16 bits of src-ip (FDIRM, FDIRSIP4M, FDIRDIP4M, FDIRTCPM, FDIRUDPM) because of \
         'ip and src net 10.1.0.0/16 and tcp queue 1', and this one would need protocol, 24 bits of src-ip, dst-port"
    );
    let error = nic.steer("ip and src net 10.2.0.0/16 and sctp queue 1").unwrap_err();
    assert!(
        error.ends_with("the flow director is not asked for SCTP, whose ports it may not compare"),
        "{error}"
    );
    // A five-tuple filter is asked before the flow director, and so must not take packets of an earlier rule.
    let error = nic.steer("ip and tcp dst port 80 queue 2").unwrap_err();
    let why = "a five-tuple filter would come before 'ip and src net 10.1.0.0/16 and tcp queue 1', which was given earlier, and ";
    assert!(error.starts_with(why), "{error}");
    assert_eq!(nic.steer("ip and udp dst port 80 queue 2"), Ok(Place::FiveTuple(0)));
    // Without filters there are no masks.
    nic.end.port.unsteer(first).unwrap().unwrap();
    assert_eq!(
        nic.steer("ip and src net 10.2.1.0/24 and tcp dst port 80 queue 1"),
        Ok(Place::FlowDirector(0))
    );
    nic.close();
}

#[test]
fn five_tuples_that_are_full_overflow_into_the_flow_director_until_it_is_full_too() {
    let mut nic = Alone::new(4, Some(FdirFilters::K2));
    let text = |number: u32| {
        format!(
            "ip and src host 10.1.0.1 and dst host 10.2.0.1 and udp src port 7 and udp dst port {number} queue 3"
        )
    };
    for number in 0..128 + 2046 {
        let place = if number < 128 { Place::FiveTuple(number) } else { Place::FlowDirector(number - 128) };
        assert_eq!(nic.steer(&text(number)), Ok(place));
    }
    assert_eq!(
        nic.steer(&text(3000)).unwrap_err(),
        "all 128 five-tuple filters (FTQF) are taken, and the flow director is full with 2046 filters (FDIRFREE is 0): \
         open the port with a larger /fdir="
    );
    let frames = [0, 127, 128, 2173, 2174].map(|to| datagram(UDP, A, B, (7, to)));
    assert_eq!(nic.counts(&frames), [1, 0, 0, 4]);
    assert_eq!(nic.counter("flow_director_not_added"), 0);
    nic.end.port.unsteer(Place::FlowDirector(1000)).unwrap().unwrap();
    assert_eq!(nic.steer(&text(3000)), Ok(Place::FlowDirector(1000)));
    nic.close();
}

#[test]
fn no_bucket_has_more_filters_than_the_nic_looks_at() {
    let mut nic = Alone::new(2, Some(FdirFilters::K8));
    // The hash adds up addresses: what is added to both makes no difference.
    let text = |last: u32| {
        format!(
            "ip and src host 10.1.0.{last} and dst host 10.2.0.{last} and udp src port 7 and udp dst port 8 drop"
        )
    };
    for last in 0..10 {
        assert_eq!(nic.steer(&text(last)), Ok(Place::FlowDirector(last)));
    }
    let error = nic.steer(&text(10)).unwrap_err();
    let why = "10 flow director filters have the same hash already (FDIRHASH 0x";
    assert!(
        error.contains(why) && error.ends_with("the NIC looks at no more (FDIRCTRL.MAX_LENGTH)"),
        "{error}"
    );
    nic.close();
}

#[test]
fn its_memory_is_taken_from_the_packet_buffer_and_closing_forgets_all_rules() {
    let world = world(1);
    for (fdir, buffer, free) in [
        (Some(FdirFilters::K2), 448, 2046),
        (Some(FdirFilters::K4), 384, 4094),
        (Some(FdirFilters::K8), 256, 8190),
        (None, 512, 0),
    ] {
        let (arena, pool) = memory(1024);
        let mut nic = Alone::of(&world, 2, fdir, arena, pool);
        assert_eq!(nic.read(&RXPBSIZE), buffer * 1024);
        assert_eq!(nic.read(&FCRTH) & FCRTH::RTH.mask, buffer * 1024 - 0x6000);
        assert_eq!(FDIRFREE::FREE.of(nic.read(&FDIRFREE)), free);
        let frames = [datagram(UDP, A, B, (7, 8)), datagram(TCP, A, B, (7, 8)), frame(0, 60)];
        assert_eq!((nic.counts(&frames), nic.end.port.steered()), (vec![3, 0], Vec::new()));
        if fdir.is_some() {
            for text in [
                "ip and udp queue 1",
                "ip and src net 10.0.0.0/8 and tcp queue 1",
                "ether proto 0x88b5 queue 1",
            ] {
                nic.steer(text).unwrap();
            }
            assert_eq!(nic.counts(&frames), [0, 3]);
        }
        nic.close();
    }
}

#[test]
fn a_flow_director_that_fails_is_told_by_its_registers() {
    let mut nic = Alone::new(2, Some(FdirFilters::K2));
    let drop = rule("ip and udp dst port 53 drop");
    nic.end.set_faults(Faults { flow_director_forgets: true, ..Faults::default() });
    let error = nic.end.port.steer(&drop).unwrap_err();
    assert!(matches!(error, NicError::FilterLost { .. }), "{error}");
    assert!(error.to_string().starts_with("FDIRCMD is 0x"), "{error}");
    assert_eq!((nic.counter("flow_director_not_added"), nic.end.port.steered()), (1, Vec::new()));
    nic.end.set_faults(Faults { flow_director_hangs: true, ..Faults::default() });
    let error = nic.end.port.steer(&drop).unwrap_err();
    assert!(matches!(error, NicError::Timeout { register: "FDIRCMD", .. }), "{error}");
    nic.end.set_faults(Faults::default());
    assert_eq!(nic.end.port.steer(&drop).unwrap(), Place::FlowDirector(0));
    nic.close();

    let world = world(1);
    let (arena, _) = memory(64);
    world.with(0, |device| device.nic.faults.flow_director_hangs = true);
    let settings = Settings { fdir: Some(FdirFilters::K2), ..quiet() };
    let opened = ixgbe::open(InProcess::new(&world, 0), PortName::Null, &settings, arena);
    let error = opened.err().unwrap();
    assert!(matches!(error, NicError::Timeout { register: "FDIRCTRL", .. }), "{error}");
}
