//! Messages: every version, and a physical function that is silent, late, wrong, mean or busy.

use std::time::{Duration, Instant};

use bywash_drivers::ixgbevf::{MailboxError, Multicast, NicError, Settings};
use bywash_drivers::port::Port;

use super::{end, functions, open, quiet, set_faults, set_policy};
use crate::bed::{frame, memory, no_violations, packet};

#[test]
fn every_version_of_the_messages_carries_packets() {
    let versions = ["1.5", "1.4", "1.3", "1.2", "1.1", "1.0"];
    for (missing, version) in versions.into_iter().enumerate() {
        let world = functions(2);
        // Who speaks 1.0 does not receive beside a physical function with long frames.
        let old = version == "1.0";
        for index in 0..2 {
            set_faults(&world, index, |faults| faults.mailbox_versions_missing = missing);
            set_policy(&world, index, |policy| policy.jumbo = !old);
        }
        let (arena, mut pool) = memory(8192);
        let (mut near, mut far) = (end(&world, 0, &quiet(), arena), end(&world, 1, &quiet(), arena));
        assert_eq!(far.port.api(), version);
        assert_eq!(far.rx.len(), if old { 1 } else { 2 });
        assert_eq!(far.port.capabilities().max_len, 1522);
        // Without a question for it, only groups that are named are given.
        let groups_only = ["1.1", "1.0"].contains(&version);
        assert_eq!(far.port.warnings().len(), 1 + usize::from(groups_only), "{:?}", far.port.warnings());
        match far.port.rss() {
            Ok(rss) => assert!(!groups_only && rss.table.unwrap()[..4] == [0, 1, 0, 1]),
            Err(error) => assert!(groups_only && error.to_string().contains("refuses GET_RETA"), "{error}"),
        }
        far.port.set_multicast(Multicast::None).unwrap();
        (0..far.rx.len()).for_each(|queue| drop(far.receive(queue, &mut pool)));
        near.send(
            (0..40).map(|seed| packet(&frame(seed, 1000), 2048, &mut pool)).collect::<Vec<_>>(),
            &mut pool,
        );
        assert_eq!(far.received(&mut pool).len(), 40, "{version}");
        near.close(&mut pool).unwrap();
        far.close(&mut pool).unwrap();
        no_violations(&world, 2);
    }
}

#[test]
fn questions_without_an_answer_or_with_a_wrong_one_are_asked_again() {
    for set in [
        (|faults| faults.mailbox_lost_every = 3) as fn(&mut bywash_models::ixgbe::Faults),
        |faults| faults.mailbox_wrong_every = 3,
        |faults| faults.mailbox_delay_us = 20_000,
        |faults| (faults.mailbox_lost_every, faults.mailbox_delay_us) = (4, 5_000),
    ] {
        let world = functions(1);
        set_faults(&world, 0, set);
        let (arena, mut pool) = memory(4096);
        let end = end(&world, 0, &quiet(), arena);
        assert_eq!((end.port.api(), end.rx.len()), ("1.5", 2));
        let late = world.with(0, |device| device.nic.faults.mailbox_delay_us == 20_000);
        assert_eq!(end.counter("mailbox_unanswered") == 0, late);
        set_faults(&world, 0, |faults| *faults = Default::default());
        end.close(&mut pool).unwrap();
        no_violations(&world, 1);
    }
}

#[test]
fn a_late_answer_to_a_question_that_was_given_up_is_not_taken_for_another() {
    let world = functions(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &Settings { patience: Duration::from_millis(10), ..quiet() }, arena);
    set_faults(&world, 0, |faults| faults.mailbox_delay_us = 50_000);
    let error = end.port.rss().unwrap_err();
    assert!(matches!(error, NicError::Mailbox(MailboxError::Silent { asked: "GET_RETA", .. })), "{error}");
    set_faults(&world, 0, |faults| faults.mailbox_delay_us = 0);
    for last in 0..20 {
        end.port.set_mac([2, 0, 0, 0, 9, last]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn who_does_not_answer_is_named_and_not_waited_for() {
    type Set = fn(&mut bywash_models::ixgbe::Faults);
    let cases: [(Set, &str); 4] = [
        (|faults| faults.mailbox_lost_every = 1, "does not answer RESET, asked 3 times"),
        (|faults| faults.mailbox_wrong_every = 1, "answers RESET with message 0xfe"),
        (|faults| faults.queues_never_enable = true, "VFRXDCTL[0] is 0x"),
        (|faults| faults.removed = true, "the device is gone"),
    ];
    let (arena, _) = memory(1024);
    for (set, words) in cases {
        let world = functions(1);
        set_faults(&world, 0, set);
        let begun = Instant::now();
        let error = open(&world, 0, &quiet(), arena).err().unwrap().to_string();
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{error} took {:?}", begun.elapsed());
    }
    // The physical function is being reset, and stays so.
    let world = functions(1);
    world.with(0, |device| device.nic.reset_physical_function());
    let hurried = Settings { patience: Duration::ZERO, ..quiet() };
    let error = open(&world, 0, &hurried, arena).err();
    assert!(error.is_none_or(|error| error.to_string().contains("without RSTD")));
}

#[test]
fn what_the_host_does_not_allow_is_said() {
    let (arena, mut pool) = memory(4096);
    let world = functions(1);
    set_policy(&world, 0, |policy| {
        (policy.any_address, policy.trusted, policy.rss_query) = (false, false, false)
    });
    let mut end = end(&world, 0, &quiet(), arena);
    let error = end.port.set_mac([2, 0, 0, 0, 0, 9]).unwrap_err().to_string();
    assert!(
        error.starts_with("the physical function refuses SET_MAC: its host has set another one"),
        "{error}"
    );
    assert_eq!(end.port.mac(), Some(super::MACS[0]));
    assert!(end.port.rss().unwrap_err().to_string().contains("query_rss on"));
    assert_eq!(end.port.warnings().len(), 2);
    set_policy(&world, 0, |policy| policy.link = false);
    assert!(!end.port.link().up);
    let error = end.port.wait_for_link(Duration::from_millis(20)).unwrap_err().to_string();
    assert!(error.starts_with("VFLINKS[0] is 0x") && error.contains("state auto"), "{error}");
    end.close(&mut pool).unwrap();
    for (settings, words) in [
        (Settings { queues: Some(4), ..quiet() }, "4 queues: the physical function grants 2"),
        (
            Settings { queues: Some(3), ..quiet() },
            "3 queues: this virtual function has 1 to 8, and their number is a power of two",
        ),
        (Settings { ring: 100, ..quiet() }, "a ring of 100 packets"),
        (
            Settings { max_len: Some(100), ..quiet() },
            "packets of 100 bytes: the longest may have 1514 to 9724",
        ),
        (Settings { mac: Some([2, 0, 0, 0, 0, 9]), ..quiet() }, "refuses SET_MAC"),
        (Settings { mac: Some([1; 6]), ..quiet() }, "is no address of one NIC"),
        (Settings { vlans: vec![4095], ..quiet() }, "VLAN 4095"),
    ] {
        let error = open(&world, 0, &settings, arena).err().unwrap().to_string();
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
    }
    // Short frames alone, where that is the host's MTU.
    set_policy(&world, 0, |policy| policy.jumbo = false);
    let error =
        open(&world, 0, &Settings { max_len: Some(9000), ..quiet() }, arena).err().unwrap().to_string();
    assert!(error.contains("packets of 9000 bytes: the physical function does not let them pass"), "{error}");
    assert_eq!(open(&world, 0, &quiet(), arena).unwrap().capabilities().max_len, 1522);
}

#[test]
fn a_function_without_an_address_chooses_one() {
    let world = functions(1);
    set_policy(&world, 0, |policy| policy.address = None);
    let (arena, _) = memory(4096);
    let macs = [0, 1].map(|_| open(&world, 0, &quiet(), arena).unwrap().mac().unwrap());
    assert!(macs.iter().all(|mac| mac[0] == 2) && macs[0] != macs[1], "{macs:02x?}");
}
