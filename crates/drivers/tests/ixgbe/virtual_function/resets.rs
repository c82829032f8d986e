//! A physical function that is reset under its virtual one, and a device that goes away.

use std::time::{Duration, Instant};

use bywash_drivers::ixgbevf::{Multicast, Settings, VirtualFunction};
use bywash_drivers::port::Port;
use bywash_drivers::port::frame::Batch;
use bywash_hw::ixgbe::regs::RXDCTL;
use bywash_hw::ixgbe::vf::{VFRDLEN, VFRXDCTL};
use bywash_models::function::InProcess;
use bywash_models::ixgbe::Faults;
use bywash_sys::function::{Function, Registers};

use super::{end, functions, quiet, set_faults, set_policy};
use crate::bed::{PATIENCE, frame, memory, no_violations, packet};

#[test]
fn everything_is_agreed_on_anew_and_packets_go_on() {
    let world = functions(2);
    let (arena, mut pool) = memory(8192);
    let group = [1, 0, 0x5e, 1, 2, 3];
    let settings =
        Settings { queues: Some(1), multicast: Multicast::Groups(vec![group]), vlans: vec![9], ..quiet() };
    let (mut near, mut far) = (end(&world, 0, &settings, arena), end(&world, 1, &settings, arena));
    far.port.set_mac([2, 0, 0, 0, 0, 0x77]).unwrap();
    far.port.add_mac([2, 0, 0, 0, 0, 0x78]).unwrap();
    far.receive(0, &mut pool);
    let frames: Vec<Vec<u8>> = [[2, 0, 0, 0, 0, 0x77], [2, 0, 0, 0, 0, 0x78], group]
        .into_iter()
        .map(|address| [&address[..], &frame(3, 600)[6..]].concat())
        .chain([[&[2, 0, 0, 0, 0, 0x77, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 9, 8, 0][..], &[0; 50]].concat()])
        .collect();
    for round in 0..3_u64 {
        for _ in 0..40 {
            let packets: Vec<_> = frames.iter().map(|bytes| packet(bytes, 2048, &mut pool)).collect();
            near.send(packets, &mut pool);
            assert!(far.received(&mut pool) == frames, "round {round}");
        }
        assert_eq!(far.rx[0].counters().packets, 160 * (round + 1), "what earlier rings have counted counts");
        assert_eq!((far.counter("pf_resets"), near.counter("pf_resets")), (round, round));
        for index in 0..2 {
            world.with(index, |device| device.nic.reset_physical_function());
        }
        let deadline = Instant::now() + PATIENCE;
        while [&near, &far].iter().any(|end| end.counter("pf_resets") <= round) {
            assert!(Instant::now() < deadline);
        }
        assert_eq!((far.counter("pf_failures"), near.counter("pf_failures")), (0, 0));
        far.receive(0, &mut pool);
        assert!(!far.port.link().up || far.port.wait_for_link(PATIENCE).is_ok());
    }
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    assert_eq!((pool.free(), arena.orphaned()), (8192, 0));
    no_violations(&world, 2);
}

#[test]
fn counters_do_not_jump_whenever_the_physical_function_is_reset() {
    let world = functions(1);
    let (arena, mut pool) = memory(4096);
    let end = end(&world, 0, &quiet(), arena);
    for reset_after in 1..=40 {
        // What the reset clears.
        set_policy(&world, 0, |policy| policy.counted += 1000);
        end.port.counters();
        set_faults(&world, 0, |faults| faults.reset_after = reset_after);
        let deadline = Instant::now() + PATIENCE;
        while end.counter("pf_resets") < u64::from(reset_after) {
            assert!(Instant::now() < deadline);
        }
        let sum = 1000 * u64::from(reset_after);
        for name in ["rx_good_packets", "rx_good_bytes", "rx_multicast", "tx_good_packets", "tx_good_bytes"] {
            assert_eq!(end.counter(name), sum, "{name}, {reset_after} reads");
        }
    }
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn the_host_may_have_another_address_after_a_reset() {
    let world = functions(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &quiet(), arena);
    let (given, chosen) = ([2, 0, 0, 0, 9, 1], [2, 0, 0, 0, 9, 2]);
    let reset = |address, any_address| {
        set_policy(&world, 0, |policy| (policy.address, policy.any_address) = (address, any_address));
        world.with(0, |device| device.nic.reset_physical_function());
    };
    reset(Some(given), false);
    assert_eq!((end.counter("mac_changes"), end.counter("pf_failures")), (1, 0));
    assert_eq!(end.port.mac(), Some(given));
    // It has none any more: the last one stays.
    reset(None, true);
    assert_eq!((end.counter("pf_resets"), end.counter("mac_changes")), (2, 1));
    assert_eq!(end.port.mac(), Some(given));
    // What the owner has chosen is insisted on.
    end.port.set_mac(chosen).unwrap();
    reset(Some(given), true);
    assert_eq!((end.counter("pf_resets"), end.counter("mac_changes")), (3, 1));
    assert_eq!(end.port.mac(), Some(chosen));
    reset(Some(given), false);
    assert!(end.counter("pf_failures") > 0);
    assert_eq!(end.port.mac(), Some(chosen));
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn a_host_that_begins_anew_is_noticed_whatever_is_asked_before_the_watch_looks() {
    type Ask = fn(&mut VirtualFunction<InProcess>) -> Result<(), String>;
    let nothing: Ask = |_| Ok(());
    let asks: [Ask; 3] = [
        |port| if port.link().up { Ok(()) } else { Err("was reset before it answered".into()) },
        |port| port.set_mac([2, 0, 0, 0, 9, 1]).map_err(|error| error.to_string()),
        |port| port.rss().map(|_| ()).map_err(|error| error.to_string()),
    ];
    let silent = asks.into_iter().map(|ask| (false, ask));
    for (says, ask) in asks.into_iter().chain([nothing]).map(|ask| (true, ask)).chain(silent) {
        let world = functions(1);
        let (arena, mut pool) = memory(4096);
        let mut end = end(&world, 0, &quiet(), arena);
        world.with(0, |device| device.nic.restart_virtual_function(says));
        for _ in 0..2 {
            let refused = ask(&mut end.port);
            assert!(refused.is_ok() || refused.unwrap_err().contains("was reset before it answered"));
        }
        assert_eq!((end.counter("pf_resets"), end.counter("pf_failures")), (1, 0));
        asks.iter().for_each(|ask| ask(&mut end.port).unwrap());
        assert_eq!((end.counter("pf_resets"), end.counter("mailbox_unanswered")), (1, 0));
        end.close(&mut pool).unwrap();
        no_violations(&world, 1);
    }
}

#[test]
fn a_watch_notices_by_itself_and_what_was_to_be_sent_is_counted_as_lost() {
    let world = functions(1);
    let (arena, mut pool) = memory(4096);
    let watched = Settings { watch: Some(Duration::from_millis(5)), queues: Some(1), ..quiet() };
    let mut end = end(&world, 0, &watched, arena);
    set_faults(&world, 0, |faults| faults.transmitter_hangs = true);
    let mut batch = Batch::new();
    (0..20).for_each(|seed| batch.push(packet(&frame(seed, 64), 2048, &mut pool)));
    end.tx[0].tx(&mut pool, &mut batch);
    end.tx[0].flush(&mut pool);
    assert_eq!(end.tx[0].in_flight(), 20);
    world.with(0, |device| {
        device.nic.reset_physical_function();
        device.nic.faults.transmitter_hangs = false;
    });
    let deadline = Instant::now() + PATIENCE;
    while end.tx[0].in_flight() > 0 {
        assert!(Instant::now() < deadline);
        end.tx[0].flush(&mut pool);
    }
    assert_eq!(end.tx[0].counters().errors, 20);
    assert_eq!((end.counter("pf_resets"), pool.free()), (1, 4096));
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn a_host_that_grants_less_after_a_reset_is_a_failure_that_is_counted_and_can_end() {
    let world = functions(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &quiet(), arena);
    set_policy(&world, 0, |policy| policy.queues = 1);
    world.with(0, |device| device.nic.reset_physical_function());
    assert!(end.counter("pf_failures") > 0);
    assert_eq!(end.receive(1, &mut pool).len(), 0);
    set_policy(&world, 0, |policy| policy.queues = 2);
    let failures = end.counter("pf_failures");
    assert_eq!((end.counter("pf_failures"), end.counter("pf_resets")), (failures, 1));
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn queues_that_do_not_stop_are_ended_by_a_reset() {
    let world = functions(1);
    let (arena, mut pool) = memory(4096);
    let registers = InProcess::new(&world, 0).registers();
    for queue in 0..VFRXDCTL.count() {
        registers.write32(VFRDLEN.at(queue), 128);
        registers.write32(VFRXDCTL.at(queue), RXDCTL::ENABLE.mask);
    }
    set_faults(&world, 0, |faults| faults.queues_never_stop = true);
    let end = end(&world, 0, &quiet(), arena);
    let errors = end.close(&mut pool).unwrap_err();
    assert!(errors.len() == 1 && errors[0].starts_with("VFRXDCTL[0] is 0x02000000 after"), "{errors:?}");
    no_violations(&world, 1);
}

#[test]
fn a_device_that_is_pulled_out_ends_nothing_but_itself() {
    let world = functions(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &Settings { queues: Some(1), ring: 128, ..quiet() }, arena);
    end.receive(0, &mut pool);
    set_faults(&world, 0, |faults| faults.removed = true);
    assert!(end.received(&mut pool).is_empty());
    assert_eq!(end.counter("device_gone"), 1);
    assert!(!end.port.link().up);
    assert!(end.port.set_mac([2, 0, 0, 0, 0, 1]).is_err());
    let errors = end.close(&mut pool).unwrap_err();
    assert!(errors[0].starts_with("the device is gone"), "{errors:?}");
    assert_eq!((pool.free(), arena.orphaned()), (4096 - 128, 0), "whether it still writes nobody knows");
}

#[test]
fn a_device_that_goes_away_while_it_is_read_has_counted_no_ones() {
    let world = functions(1);
    let (arena, mut pool) = memory(4096);
    let end = end(&world, 0, &quiet(), arena);
    for removed_after in 1..=40 {
        set_faults(&world, 0, |faults| faults.removed_after = removed_after);
        let counters = end.port.counters();
        assert!(counters.iter().all(|counter| counter.value <= 1), "{removed_after} reads: {counters:?}");
        set_faults(&world, 0, |faults| *faults = Faults::default());
    }
    assert_eq!((end.counter("device_gone"), end.counter("link_losses")), (1, 0));
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}
