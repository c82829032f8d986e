//! Opening: every step of it, what it refuses, and that closing leaves the NIC quiet.

use std::time::{Duration, Instant};

use bywash_drivers::ixgbe::{self, Multicast, NicError, Rss, Settings};
use bywash_drivers::port::frame::Arena;
use bywash_drivers::port::{FdirFilters, Port, PortName};
use bywash_hw::ixgbe::regs::*;
use bywash_hw::pci::{command, config};
use bywash_hw::reg::Register;
use bywash_models::function::InProcess;
use bywash_models::ixgbe::{Board, Faults, Rule};
use bywash_models::world::Shared;
use bywash_sys::function::{Function, Registers};

use crate::bed::{end, frame, memory, no_violations, packet, quiet, world};

fn read(world: &Shared, register: &Register, index: u32) -> u32 {
    world.with(0, |device| device.nic.read32(register.at(index)))
}

#[test]
fn what_an_earlier_driver_has_left_in_tables_is_gone() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let tables = [&MTA, &VFTA, &PFUTA, &PFVLVF, &PFVLVFB, &FTQF, &ETQF];
    world.with(0, |device| {
        for register in tables.into_iter().chain([&RAL, &RAH, &MPSAR, &SAQF, &DAQF, &SDPQF, &L34TIMIR]) {
            (0..register.count()).for_each(|index| device.nic.write32(register.at(index), u32::MAX));
        }
        device.nic.violations();
    });
    let settings = Settings { promiscuous: false, multicast: Multicast::None, ..quiet() };
    let mut end = end(&world, 0, &settings, arena);
    for register in tables {
        let left = (0..register.count()).find(|index| read(&world, register, *index) != 0);
        assert_eq!(left, None, "{}", register.name);
    }
    let is_valid = |index: &u32| read(&world, &RAH, *index) & RAH::AV.mask != 0;
    assert_eq!((0..RAH.count()).filter(is_valid).collect::<Vec<_>>(), [0]);
    let pools: Vec<_> = (0..MPSAR.count()).filter(|index| read(&world, &MPSAR, *index) != 0).collect();
    assert_eq!((pools, read(&world, &MPSAR, 0)), (vec![0], 1));
    end.receive(0, &mut pool);
    // To another, and to the NIC.
    for last in [9, 1] {
        let mut bytes = frame(0, 60);
        bytes[5] = last;
        world.with(0, |device| device.nic.receive(bytes, true));
    }
    assert_eq!(end.received(&mut pool).len(), 1);
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn the_registers_are_as_the_datasheet_wants_them() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let settings = Settings { queues: 2, ring: 256, ..quiet() };
    let end = end(&world, 0, &settings, arena);
    for (register, index, bits, value) in [
        (&CTRL, 0, CTRL::RST.mask | CTRL::GIO_DIS.mask, 0),
        (&CTRL_EXT, 0, CTRL_EXT::DRV_LOAD.mask | CTRL_EXT::NS_DIS.mask, 0x1001_0000),
        (&FCRTH, 0, FCRTH::RTH.mask, 0x7a000),
        (&FCTRL, 0, u32::MAX, FCTRL::BAM.mask | FCTRL::UPE.mask | FCTRL::MPE.mask),
        (&MAXFRS, 0, MAXFRS::MFS.mask, 9728 << 16),
        (&RXPBSIZE, 0, u32::MAX, 0x80000),
        (&RXPBSIZE, 1, u32::MAX, 0),
        (&RXCSUM, 0, u32::MAX, RXCSUM::PCSD.mask),
        (&SRRCTL, 1, u32::MAX, 2 | 1 << 25 | 1 << 28),
        (&RDLEN, 1, u32::MAX, 256 * 16),
        (&RXDCTL, 1, RXDCTL::ENABLE.mask | RXDCTL::VME.mask, RXDCTL::ENABLE.mask),
        (&DCA_RXCTRL, 0, DCA_RXCTRL::RESERVED_12.mask, 0),
        (&RXCTRL, 0, RXCTRL::RXEN.mask, 1),
        (&SECRXCTRL, 0, SECRXCTRL::RX_DIS.mask, 0),
        (&TXPBSIZE, 0, u32::MAX, 0x28000),
        (&TXPBTHRESH, 0, u32::MAX, 0x96),
        (&DTXMXSZRQ, 0, u32::MAX, 0xfff),
        (&RTTDCS, 0, RTTDCS::ARBDIS.mask, 0),
        (&DMATXCTL, 0, DMATXCTL::TE.mask, 1),
        (&DCA_TXCTRL, 1, DCA_TXCTRL::DESC_WRO_EN.mask, 0),
        (&TXDCTL, 1, u32::MAX, 32 | 1 << 8 | TXDCTL::ENABLE.mask),
        (&RXDCTL, 2, RXDCTL::ENABLE.mask, 0),
        (&GPIE, 0, u32::MAX, 0xc000_0030),
        (&IVAR, 0, u32::MAX, 0x0081_0080),
        (&EITR, 1, EITR::INTERVAL.mask, 10 << 3),
        (&EIMS_EX, 0, u32::MAX, 0),
        (&AUTOC, 0, AUTOC::LMS.mask, 3 << 13),
        (&AUTOC2, 0, AUTOC2::SERIAL_10G.mask, 2 << 16),
        (&SWSM, 0, SWSM::SWESMBI.mask, 0),
        (&SW_FW_SYNC, 0, u32::MAX, 0),
        (&RETA, 0, u32::MAX, 0x0100_0100),
        (&MPSAR, 0, u32::MAX, 1),
    ] {
        let is = read(&world, register, index);
        assert_eq!(is & bits, value, "{}[{index}] is {is:#x}", register.name);
    }
    assert_eq!(end.port.mac(), Some([2, 0, 0, 0, 0, 1]));
    assert_eq!(end.port.link(), ixgbe::Link { up: true, mbps: Some(10_000) });
    assert_eq!(end.port.nic().device, 0x10fb);
    let capabilities = end.port.capabilities();
    assert!(capabilities.tx_checksum && capabilities.segmentation && capabilities.zero_copy);
    assert_eq!((capabilities.max_len, capabilities.link_mbps), (9724, Some(10_000)));
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn closing_stops_everything_and_the_nic_opens_again() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    for round in 0..3 {
        let mut end = end(&world, 0, &Settings { loopback: true, ..quiet() }, arena);
        let free = pool.free();
        end.receive(0, &mut pool);
        assert_eq!(pool.free(), free - 1024);
        let bytes = frame(round, 100);
        let sent = packet(&bytes, 2048, &mut pool);
        end.send([sent], &mut pool);
        assert_eq!(end.received(&mut pool), [bytes]);
        end.close(&mut pool).unwrap();
        assert_eq!((pool.free(), arena.orphaned()), (free, 0));
        let mut bytes = [0; 2];
        world.with(0, |device| device.read_config(config::COMMAND, &mut bytes)).unwrap();
        assert_eq!(u16::from_le_bytes(bytes) & command::BUS_MASTER, 0);
        assert_eq!(read(&world, &RXCTRL, 0) & RXCTRL::RXEN.mask, 0);
    }
    no_violations(&world, 1);
}

#[test]
fn a_port_that_is_dropped_leaves_the_nic_quiet_too() {
    let world = world(1);
    let (arena, _) = memory(4096);
    let end = end(&world, 0, &quiet(), arena);
    drop(end);
    assert_eq!(read(&world, &RXCTRL, 0) & RXCTRL::RXEN.mask, 0);
    assert!(!world.with(0, |device| device.config.bus_master()));
    no_violations(&world, 1);
}

#[test]
fn what_another_driver_left_running_is_stopped_first() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    // A driver was killed: queues run, the semaphore is taken, the laser is off.
    let mut left = InProcess::new(&world, 0);
    let on = (command::MEMORY | command::BUS_MASTER).to_le_bytes();
    left.write_config(config::COMMAND, &on).unwrap();
    let registers = left.registers();
    for (register, value) in [
        (&DMATXCTL, 1),
        (&DCA_TXCTRL, 0),
        (&RDLEN, 128),
        (&TDLEN, 128),
        (&RXDCTL, RXDCTL::ENABLE.mask),
        (&TXDCTL, TXDCTL::ENABLE.mask),
        (&ESDP, 0xc),
    ] {
        registers.write32(register.offset(), value);
    }
    registers.read32(SWSM.offset());
    let end = end(&world, 0, &quiet(), arena);
    assert_eq!(read(&world, &ESDP, 0) & ESDP::SDP3.mask, 0);
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn queues_that_do_not_stop_are_ended_by_a_reset() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let registers = InProcess::new(&world, 0).registers();
    for queue in 0..64 {
        registers.write32(RDLEN.at(queue), 128);
        registers.write32(RXDCTL.at(queue), RXDCTL::ENABLE.mask);
    }
    world.with(0, |device| device.nic.faults.queues_never_stop = true);
    let begun = Instant::now();
    let end = end(&world, 0, &quiet(), arena);
    assert!(begun.elapsed() < Duration::from_secs(1), "each hanging queue was waited for");
    // Nothing follows a close but a reset from outside.
    let errors = end.close(&mut pool).unwrap_err();
    assert!(errors.len() == 1 && errors[0].starts_with("RXDCTL[0] is 0x02000000 after"), "{errors:?}");
    assert_eq!(read(&world, &RXDCTL, 0), 0);
    no_violations(&world, 1);
}

#[test]
fn what_another_driver_left_running_reaches_no_memory() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    // A driver was killed while packets came, and its guard has ended its DMA.
    let registers = InProcess::new(&world, 0).registers();
    let received = RDRXCTL::CRCSTRIP.mask | RDRXCTL::RSCACKC.mask | RDRXCTL::FCOE_WRFIX.mask;
    for (register, value) in [
        (&RDRXCTL, received),
        (&FCTRL, FCTRL::UPE.mask),
        (&RDLEN, 1024),
        (&RXDCTL, RXDCTL::ENABLE.mask),
        (&RDT, 63),
        (&RXCTRL, RXCTRL::RXEN.mask),
    ] {
        registers.write32(register.offset(), value);
    }
    while !world.with(0, |device| device.nic.link_up()) {}
    world.with(0, |device| (0..10).for_each(|seed| device.nic.receive(frame(seed, 100), true)));
    let before = world.with(0, |device| device.nic.violations());
    assert!(before.iter().any(|broken| broken.rule == Rule::NoBusMaster), "they wait for that: {before:?}");
    let end = end(&world, 0, &quiet(), arena);
    let broken = world.with(0, |device| device.nic.violations());
    assert!(broken.iter().all(|broken| broken.rule == Rule::NoBusMaster), "{broken:?}");
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn a_backplane_board_keeps_what_its_eeprom_says() {
    let board = Board { device: 0x10f8, ..Board::default() };
    let world = Shared::new(&[board], Default::default());
    let (arena, mut pool) = memory(4096);
    let autoc = AUTOC.reset.unwrap();
    let end = end(&world, 0, &quiet(), arena);
    assert_eq!(read(&world, &AUTOC, 0) & AUTOC::LMS.mask, autoc & AUTOC::LMS.mask);
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn an_x540_has_less_packet_memory_and_a_phy_that_negotiates() {
    let (arena, mut pool) = memory(4096);
    let board = Board { device: 0x1528, ..Board::default() };
    for (fdir, kib) in [
        (None, 384),
        (Some(FdirFilters::K2), 384 - 64),
        (Some(FdirFilters::K4), 384 - 128),
        (Some(FdirFilters::K8), 384 - 256),
    ] {
        let world = Shared::new(&[board], Default::default());
        let settings = Settings { fdir, loopback: true, ..quiet() };
        let mut end = end(&world, 0, &settings, arena);
        assert_eq!(end.port.nic().name, "X540-T2");
        for (register, bits, value) in [
            (&RXPBSIZE, u32::MAX, kib << 10),
            (&FCRTH, u32::MAX, (kib - 24) << 10),
            (&AUTOC, AUTOC::LMS.mask, AUTOC.reset.unwrap() & AUTOC::LMS.mask),
            (&MACC, MACC::FLU.mask, 1),
            (&SW_FW_SYNC, u32::MAX, 0),
            (&SWSM, SWSM::SMBI.mask, 0),
        ] {
            let is = read(&world, register, 0);
            assert_eq!(is & bits, value, "{} is {is:#x}", register.name);
        }
        end.receive(0, &mut pool);
        let sent = packet(&frame(1, 100), 2048, &mut pool);
        end.send([sent], &mut pool);
        assert_eq!(end.received(&mut pool), [frame(1, 100)]);
        end.close(&mut pool).unwrap();
        no_violations(&world, 1);
    }
    // A driver was killed with both semaphores taken.
    let world = Shared::new(&[board], Default::default());
    [&SWSM, &SW_FW_SYNC].iter().for_each(|taken| assert_eq!(read(&world, taken, 0), 0));
    end(&world, 0, &quiet(), arena).close(&mut pool).unwrap();
    no_violations(&world, 1);
}

/// Both chips, and a bit of SW_FW_SYNC that a driver had when it was killed.
const KILLED: [(u16, u32); 3] = [
    (0x10fb, SW_FW_SYNC::SW_EEP.mask),
    (0x1528, SW_FW_SYNC::SW_EEP.mask),
    (0x1528, SW_FW_SYNC::SW_PHY0.mask),
];

/// A NIC whose last driver was killed with `held` taken.
fn left_taken(device: u16, held: u32) -> Shared {
    let world = Shared::new(&[Board { device, ..Board::default() }], Default::default());
    let write = |register: &Register, value| {
        world.with(0, |device| device.nic.write32(register.offset(), value));
    };
    [&SWSM, &SW_FW_SYNC].iter().for_each(|taken| assert_eq!(read(&world, taken, 0), 0));
    write(&SWSM, SWSM::SMBI.mask | SWSM::SWESMBI.mask);
    write(&SW_FW_SYNC, held);
    write(&SWSM, 0);
    world
}

#[test]
fn what_a_killed_driver_has_not_given_back_is_taken_after_a_second() {
    let (arena, mut pool) = memory(4096);
    for (device, held) in KILLED {
        let world = left_taken(device, held);
        let begun = Instant::now();
        let end = end(&world, 0, &quiet(), arena);
        let took = begun.elapsed();
        assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&took), "{held:#x}: {took:?}");
        end.close(&mut pool).unwrap();
        assert_eq!(read(&world, &SW_FW_SYNC, 0), 0);
        no_violations(&world, 1);
    }
}

#[test]
fn what_the_firmware_has_is_not_taken_from_it() {
    let (arena, _) = memory(1024);
    for (device, held) in KILLED {
        let world = left_taken(device, held);
        world.with(0, |device| device.nic.faults.firmware_holds_sync = true);
        let error = refusal(&world, &quiet(), arena).to_string();
        let is = 0x3e0 | held | if device == 0x1528 { SW_FW_SYNC::REGSMP.mask } else { 0 };
        assert!(error.starts_with(&format!("SW_FW_SYNC[0] is {is:#010x} after 1s: the firmware")), "{error}");
        no_violations(&world, 1);
    }
}

#[test]
fn what_an_x540_needs_and_does_not_get_is_named() {
    type Set = fn(&mut Faults);
    let cases: [(Set, &str); 3] = [
        (|faults| faults.bad_checksum = true, "the EEPROM's checksum is wrong: its words add up to 0xbabb"),
        (|faults| faults.stuck_semaphore = true, "SWSM[0] is 0x00000001"),
        (|faults| faults.firmware_holds_sync = true, "SW_FW_SYNC[0] is 0x800003e0"),
    ];
    let (arena, _) = memory(1024);
    for (set, words) in cases {
        let world = Shared::new(&[Board { device: 0x1560, ..Board::default() }], Default::default());
        world.with(0, |device| set(&mut device.nic.faults));
        let error = refusal(&world, &quiet(), arena).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn addresses_and_groups_are_filtered_when_not_promiscuous() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let group = [0x01, 0, 0x5e, 0, 0x12, 0xab];
    let settings = Settings { promiscuous: false, multicast: Multicast::Groups(vec![group]), ..quiet() };
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &settings, arena);
    far.receive(0, &mut pool);
    let own = [2, 0, 0, 0, 0, 2];
    let other = [2, 0, 0, 0, 0, 9];
    let try_all = |near: &mut super::bed::End, far: &mut super::bed::End, pool: &mut _| -> Vec<[u8; 6]> {
        for address in [own, other, group, [0x01, 0, 0x5e, 0, 0x77, 0x77], [0xff; 6]] {
            let mut bytes = frame(1, 60);
            bytes[..6].copy_from_slice(&address);
            let packet = packet(&bytes, 2048, pool);
            near.send([packet], pool);
        }
        far.received(pool).iter().map(|bytes| bytes[..6].try_into().unwrap()).collect()
    };
    assert_eq!(try_all(&mut near, &mut far, &mut pool), [own, group, [0xff; 6]]);
    far.port.add_mac(other).unwrap();
    assert_eq!(try_all(&mut near, &mut far, &mut pool), [own, other, group, [0xff; 6]]);
    far.port.set_filter(false, Multicast::None).unwrap();
    assert_eq!(try_all(&mut near, &mut far, &mut pool), [own, other, [0xff; 6]]);
    far.port.set_filter(true, Multicast::None).unwrap();
    assert_eq!(try_all(&mut near, &mut far, &mut pool).len(), 5);
    far.port.set_filter(false, Multicast::All).unwrap();
    far.port.set_mac([2, 0, 0, 0, 0, 0x77]).unwrap();
    assert_eq!(try_all(&mut near, &mut far, &mut pool).len(), 4, "not its old address");
    assert!(matches!(far.port.set_mac([1; 6]), Err(NicError::Mac(_))));
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn settings_that_the_nic_does_not_have_are_refused_before_it_is_touched() {
    let (arena, _) = memory(1024);
    let table = |queue| Rss { table: Some([queue; 128]), ..Rss::default() };
    for (settings, words) in [
        (Settings { queues: 0, ..quiet() }, "0 queues: the NIC has 1 to 64"),
        (Settings { queues: 65, ..quiet() }, "65 queues"),
        (
            Settings { ring: 100, ..quiet() },
            "a ring of 100 packets: it must be a power of two from 64 to 8192",
        ),
        (Settings { ring: 16384, ..quiet() }, "a ring of 16384"),
        (Settings { max_len: 9725, ..quiet() }, "packets of 9725 bytes: the longest may have 1518 to 9724"),
        (Settings { moderation_us: 1023, ..quiet() }, "1023 µs between interrupts"),
        (Settings { rss: table(1), ..quiet() }, "queue 1 in the RSS table: it may name the first 1 of 1"),
        (Settings { mac: Some([3, 0, 0, 0, 0, 0]), ..quiet() }, "is no address of one NIC"),
    ] {
        let error = refusal(&world(1), &settings, arena).to_string();
        assert!(error.contains(words), "{error}");
    }
    let private = Arena::new(vec![0; 1 << 20]).unwrap();
    assert!(matches!(refusal(&world(1), &quiet(), private), NicError::PrivateMemory));
}

fn refusal(world: &Shared, settings: &Settings, arena: &'static Arena) -> NicError {
    ixgbe::open(InProcess::new(world, 0), PortName::Null, settings, arena).err().unwrap()
}

#[test]
fn a_nic_that_does_not_come_up_says_which_register_and_does_not_hang() {
    type Set = fn(&mut Faults);
    let cases: [(Set, &str); 9] = [
        (|faults| faults.reset_hangs = true, "CTRL[0] is 0x04000000"),
        (|faults| faults.bad_checksum = true, "the EEPROM's checksum is wrong: its words add up to 0xbabb"),
        (|faults| faults.no_eeprom = true, "EEC is 0x"),
        (|faults| faults.stuck_semaphore = true, "SWSM[0] is 0x"),
        (|faults| faults.firmware_holds_sync = true, "SW_FW_SYNC[0] is 0x000003e0"),
        (|faults| faults.queues_never_enable = true, "RXDCTL[0] is 0x"),
        (|faults| faults.dma_never_initialised = true, "RDRXCTL[0] is 0x"),
        (|faults| faults.security_never_ready = true, "SECRXSTAT[0] is 0x"),
        (|faults| faults.removed = true, "the device is gone"),
    ];
    let (arena, _) = memory(1024);
    for (set, words) in cases {
        let world = world(1);
        world.with(0, |device| set(&mut device.nic.faults));
        let begun = Instant::now();
        let error = refusal(&world, &quiet(), arena).to_string();
        assert!(error.contains(words), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{error} took {:?}", begun.elapsed());
    }
}

#[test]
fn a_bus_that_does_not_become_quiet_is_reset_twice_and_then_used() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    world.with(0, |device| device.nic.faults.master_stays_busy = true);
    let end = end(&world, 0, &quiet(), arena);
    world.with(0, |device| device.nic.faults.master_stays_busy = false);
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn without_light_there_is_no_link_but_an_error_that_says_so() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    world.with(0, |device| device.nic.faults.no_link = true);
    let function = InProcess::new(&world, 0);
    let mut port = ixgbe::open(function, PortName::Null, &quiet(), arena).unwrap();
    let error = port.wait_for_link(Duration::from_millis(30)).unwrap_err().to_string();
    assert!(
        error.starts_with("LINKS[0] is 0x00000000 after ")
            && error.contains("is the cable in")
            && error.ends_with("Those of 1 Gb/s are not driven"),
        "{error}"
    );
    assert!(!port.link().up);
    port.queues().into_iter().for_each(|queue| queue.rx.unwrap().close(&mut pool));
    Box::new(port).close().unwrap();
    no_violations(&world, 1);
}
