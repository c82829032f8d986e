//! A bad cable between two NICs: what is lost, damaged, late and overtaken on it is counted, and nothing else happens to packets.
//!
//! What the cable does follows from its seed alone, so that the same cable, without NICs, says what must arrive.

use std::time::Duration;

use bywash_drivers::ixgbe::Settings;
use bywash_drivers::port::frame::Pool;
use bywash_models::cable::{Arrival, Cable, Impairment};
use bywash_models::ixgbe::Board;
use bywash_models::world::Shared;

use crate::bed::{End, end, frame, memory, no_violations, packet, quiet};

const BAD: Impairment =
    Impairment { delay_us: 300, loss: 60, reorder: 90, hold_us: 700, corrupt: 70, seed: 11 };

/// Frames that go at once: one batch, so that they enter the cable at the same moment, and arrive by the seed alone.
const AT_ONCE: u16 = 60;
const ROUNDS: u16 = 12;

/// A frame with its number in it, of a length that goes by it: one descriptor, or several.
fn numbered(direction: u8, number: u16) -> Vec<u8> {
    let mut bytes = frame(direction, 60 + usize::from(number) * 37 % 4000);
    bytes[14..16].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// What the cable alone makes of one direction's frames.
fn expected(direction: u8) -> Vec<Arrival> {
    let mut cable = Cable::new(Impairment { seed: BAD.seed + u64::from(direction), ..BAD });
    let round = |round: u16| {
        let at = u64::from(round) * 1_000_000;
        (0..AT_ONCE).for_each(|i| cable.send(numbered(direction, round * AT_ONCE + i), at));
        std::iter::from_fn(|| cable.receive(at + 1_000_000)).collect::<Vec<_>>()
    };
    (0..ROUNDS).flat_map(round).collect()
}

fn send(end: &mut End, direction: u8, round: u16, pool: &mut Pool) {
    let bytes = (0..AT_ONCE).map(|i| numbered(direction, round * AT_ONCE + i));
    let packets: Vec<_> = bytes.map(|bytes| packet(&bytes, 2048, pool)).collect();
    end.send(packets, pool);
}

#[test]
fn all_that_a_bad_cable_does_is_counted_and_nothing_else_happens() {
    let boards = [1, 2].map(|last| Board { mac: [2, 0, 0, 0, 0, last], ..Board::default() });
    let world = Shared::new(&boards, BAD);
    let (arena, mut pool) = memory(8192);
    let settings = Settings { ring: 512, ..quiet() };
    let mut ends = [0, 1].map(|index| end(&world, index, &settings, arena));
    ends.iter_mut().for_each(|end| assert!(end.receive(0, &mut pool).is_empty()));
    let mut received = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        (0_u8..).zip(&mut ends).for_each(|(direction, end)| send(end, direction, round, &mut pool));
        // The last of them is under way so long.
        std::thread::sleep(Duration::from_micros(BAD.delay_us + BAD.hold_us + 100));
        world.step();
        for (end, received) in ends.iter_mut().zip(&mut received) {
            received.extend(end.received(&mut pool));
        }
    }
    let sent = u64::from(ROUNDS * AT_ONCE);
    for (from, to) in [(0, 1), (1, 0)] {
        let arrivals = expected(from as u8);
        let good: Vec<_> =
            arrivals.iter().filter(|one| one.check_good).map(|one| one.frame.clone()).collect();
        assert!(received[to] == good, "from {from}: {} of {}", received[to].len(), good.len());
        let numbers =
            |frames: &[Vec<u8>]| frames.iter().map(|frame| frame[14..16].to_vec()).collect::<Vec<_>>();
        assert!(!numbers(&good).is_sorted(), "some were overtaken");
        let (arrived, damaged) = (arrivals.len() as u64, (arrivals.len() - good.len()) as u64);
        let lost = sent - arrived;
        assert!(lost > 20 && damaged > 20, "{lost} lost, {damaged} damaged");
        let on_the_wire =
            |frames: &mut dyn Iterator<Item = usize>| frames.map(|len| len as u64 + 4).sum::<u64>();
        for (end, name, value) in [
            (from, "tx_good_packets", sent),
            (to, "rx_all_packets", sent - lost),
            (to, "rx_all_bytes", on_the_wire(&mut arrivals.iter().map(|one| one.frame.len()))),
            (to, "rx_crc_errors", damaged),
            (to, "rx_good_packets", sent - lost - damaged),
            (to, "rx_good_bytes", on_the_wire(&mut good.iter().map(Vec::len))),
            (to, "rx_no_descriptor", 0),
            (to, "rx_no_buffer_space", 0),
        ] {
            assert_eq!(ends[end].counter(name), value, "{name} of {end}");
        }
        let counters = ends[to].rx[0].counters();
        assert_eq!((counters.packets, counters.errors), (sent - lost - damaged, 0));
        assert_eq!(ends[from].tx[0].counters().packets, sent);
    }
    for end in ends {
        end.close(&mut pool).unwrap();
    }
    assert_eq!((pool.free(), arena.orphaned()), (8192, 0));
    no_violations(&world, 2);
}
