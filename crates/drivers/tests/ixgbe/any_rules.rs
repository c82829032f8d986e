//! Any rules and any packets: the NIC's choice of a queue is the one that the rules' words mean.

use std::net::Ipv4Addr;

use bywash_drivers::ixgbe::Place;
use bywash_drivers::port::FdirFilters;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::bed::sum;
use crate::steering::{Alone, SCTP, TCP, UDP, datagram, tagged};

/// What a random packet is.
#[derive(Clone, Copy, Debug)]
struct Sent {
    protocol: u8,
    source: u8,
    destination: u8,
    ports: (u16, u16),
    vlan: Option<u16>,
    fragment: bool,
}

impl Sent {
    fn frame(self) -> Vec<u8> {
        let addresses = [self.source, self.destination].map(|number| [10, number / 2, 0, number]);
        let mut frame = datagram(self.protocol, addresses[0], addresses[1], self.ports);
        if self.fragment {
            // The first of several, whose ports are there to be seen.
            frame[20..22].copy_from_slice(&[0x20, 0]);
            frame[24..26].fill(0);
            let check = !sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
        self.vlan.map_or(frame.clone(), |vlan| tagged(&frame, vlan))
    }
}

/// A random rule, as numbers that rules and packets share.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    protocol: Option<u8>,
    /// Bits, and the number of an address.
    source: (u8, u8),
    destination: (u8, u8),
    ports: (Option<u16>, Option<u16>),
    vlan: Option<u16>,
    queue: Option<u16>,
}

impl Wanted {
    /// The same, but it compares what another rule does: so the flow director can have both.
    fn like(self, other: &Self) -> Self {
        let port = |own: Option<u16>, other: Option<u16>| other.map(|other| own.unwrap_or(other));
        Self {
            protocol: other.protocol.and(self.protocol).or(other.protocol),
            source: (other.source.0, self.source.1),
            destination: (other.destination.0, self.destination.1),
            ports: (port(self.ports.0, other.ports.0), port(self.ports.1, other.ports.1)),
            vlan: port(self.vlan, other.vlan),
            queue: self.queue,
        }
    }

    /// As text, which is how users have it.
    fn text(&self) -> String {
        let mut text = self.vlan.map_or(String::new(), |vlan| format!("vlan {vlan} and ")) + "ip";
        for (name, (bits, number)) in [("src", self.source), ("dst", self.destination)] {
            text += &match bits {
                0 => String::new(),
                16 => format!(" and {name} net 10.{}.0.0/16", number / 2),
                _ => format!(" and {name} host {}", Ipv4Addr::from([10, number / 2, 0, number])),
            };
        }
        let protocol = match self.protocol {
            None => "",
            Some(TCP) => " and tcp",
            Some(UDP) => " and udp",
            Some(_) => " and sctp",
        };
        text += protocol;
        let ports = if self.protocol.is_some() { self.ports } else { (None, None) };
        for (name, value) in [("src", ports.0), ("dst", ports.1)] {
            text += &value.map_or(String::new(), |value| format!("{protocol} {name} port {value}"));
        }
        text + &self.queue.map_or(" drop".into(), |queue| format!(" queue {queue}"))
    }

    fn matches(&self, sent: &Sent) -> bool {
        let address = |(bits, number): (u8, u8), is: u8| match bits {
            0 => true,
            16 => number / 2 == is / 2,
            _ => number == is,
        };
        let transport = self.protocol.is_none_or(|protocol| {
            protocol == sent.protocol
                && !sent.fragment
                && self.ports.0.is_none_or(|port| port == sent.ports.0)
                && self.ports.1.is_none_or(|port| port == sent.ports.1)
        });
        transport
            && address(self.source, sent.source)
            && address(self.destination, sent.destination)
            && self.vlan.is_none_or(|vlan| Some(vlan) == sent.vlan)
    }
}

fn protocol() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![TCP, UDP, SCTP])
}

fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![1, 0x1234])
}

fn vlan() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![2 => Just(None), 1 => prop::sample::select(vec![Some(1), Some(0xabc)])]
}

fn sent() -> impl Strategy<Value = Sent> {
    let protocol = prop_oneof![6 => protocol(), 1 => Just(1)];
    let fragment = prop::bool::weighted(0.1);
    (protocol, 0..4u8, 0..4u8, (port(), port()), vlan(), fragment).prop_map(
        |(protocol, source, destination, ports, vlan, fragment)| Sent {
            protocol,
            source,
            destination,
            ports,
            vlan,
            fragment,
        },
    )
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let address = || (prop::sample::select(vec![0, 16, 32]), 0..4u8);
    let queue = prop_oneof![3 => (1..4u16).prop_map(Some), 1 => Just(None)];
    let ports = (prop::option::of(port()), prop::option::of(port()));
    (prop::option::of(protocol()), address(), address(), ports, vlan(), queue).prop_map(
        |(protocol, source, destination, ports, vlan, queue)| Wanted {
            protocol,
            source,
            destination,
            ports,
            vlan,
            queue,
        },
    )
}

/// Where each packet is to go: by the first rule that matches it, or by RSS to queue 0.
fn expected(rules: &[Wanted], sent: &[Sent]) -> Vec<usize> {
    let mut counts = vec![0; 4];
    for packet in sent {
        let to = rules.iter().find(|rule| rule.matches(packet)).map_or(Some(0), |rule| rule.queue);
        to.into_iter().for_each(|queue| counts[usize::from(queue)] += 1);
    }
    counts
}

#[test]
fn any_packet_goes_where_the_first_rule_that_matches_it_says() {
    let mut nic = Alone::new(4, Some(FdirFilters::K2));
    let mut landed = [0_usize; 3];
    let mut runner = TestRunner::deterministic();
    let strategy = (
        prop::collection::vec(wanted(), 1..12),
        prop::collection::vec(sent(), 1..48),
        prop::collection::vec(any::<bool>(), 12),
    );
    for _ in 0..300 {
        let (wishes, sent, removed) = strategy.new_tree(&mut runner).unwrap().current();
        let frames: Vec<_> = sent.iter().map(|sent| sent.frame()).collect();
        let mut there = Vec::new();
        for (number, wish) in wishes.iter().enumerate() {
            let wish = if number % 3 == 0 { *wish } else { wish.like(&wishes[0]) };
            match nic.steer(&wish.text()) {
                Ok(place) => {
                    there.push((place, wish));
                    landed[usize::from(matches!(place, Place::FlowDirector(_)))] += 1;
                }
                // The first rule has an empty NIC to itself.
                Err(why) if there.is_empty() => assert!(why.contains("SCTP"), "{}: {why}", wish.text()),
                Err(_) => landed[2] += 1,
            }
        }
        let rules = |there: &[(Place, Wanted)]| there.iter().map(|(_, rule)| *rule).collect::<Vec<_>>();
        for round in 0..2 {
            let told: Vec<String> =
                there.iter().map(|(place, rule)| format!("{place}: {}", rule.text())).collect();
            assert_eq!(nic.counts(&frames), expected(&rules(&there), &sent), "{told:#?} {sent:?}");
            let mut number = 0;
            there.retain(|(place, _)| {
                number += 1;
                let stays = round == 0 && !removed[number - 1];
                assert!(stays || nic.end.port.unsteer(*place).unwrap().is_some());
                stays
            });
        }
        assert_eq!(nic.end.port.steered(), Vec::new());
    }
    // All ways were gone often.
    assert!(landed.iter().all(|count| *count > 200), "{landed:?}");
    nic.close();
}
