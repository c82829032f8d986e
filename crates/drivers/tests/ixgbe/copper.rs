//! An X540 and its copper PHY: what it is told, and what is said when it does not do it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bywash_drivers::ixgbe::{self, NicError, Settings};
use bywash_drivers::port::frame::Arena;
use bywash_drivers::port::{Port, PortName};
use bywash_hw::ixgbe::phy::{
    AN_10G_CONTROL, AN_ADVERTISE, AN_CONTROL, AN_PROVISION, OPCODE_ADDRESS, OPCODE_READ, OPCODE_WRITE,
    PMD_CONTROL, POWER,
};
use bywash_hw::ixgbe::regs::{MSCA, MSRWD, SW_FW_SYNC, SWSM};
use bywash_hw::reg::Register;
use bywash_models::function::InProcess;
use bywash_models::ixgbe::{Board, Faults, Offer};
use bywash_models::world::Shared;

use crate::bed::{end, memory, no_violations, quiet};

fn world() -> Shared {
    Shared::new(&[Board { device: 0x1528, ..Board::default() }], Default::default())
}

/// Something that another driver did with the PHY, by the rules.
fn before<T>(world: &Shared, act: impl FnOnce() -> T) -> T {
    let on = |register: &Register| world.with(0, |device| device.nic.read32(register.offset()));
    let put =
        |register: &Register, value| world.with(0, |device| device.nic.write32(register.offset(), value));
    let take = || {
        for register in [&SWSM, &SW_FW_SYNC] {
            on(register);
        }
    };
    take();
    put(&SW_FW_SYNC, SW_FW_SYNC::SW_PHY0.mask);
    put(&SWSM, 0);
    let result = act();
    take();
    put(&SW_FW_SYNC, 0);
    put(&SWSM, 0);
    result
}

fn command(world: &Shared, register: &Register, opcode: u32) {
    let msca = register.offset() | MSCA::OPCODE.with(opcode) | MSCA::MDICMD.mask;
    world.with(0, |device| device.nic.write32(MSCA.offset(), msca));
    let begun = Instant::now();
    while world.with(0, |device| MSCA::MDICMD.is_set(device.nic.read32(MSCA.offset()))) {
        assert!(begun.elapsed() < Duration::from_secs(5));
        sleep(Duration::from_micros(20));
    }
}

fn read(world: &Shared, register: &Register) -> u32 {
    command(world, register, OPCODE_ADDRESS);
    command(world, register, OPCODE_READ);
    MSRWD::MDIRDDATA.of(world.with(0, |device| device.nic.read32(MSRWD.offset())))
}

fn write(world: &Shared, register: &Register, value: u32) {
    world.with(0, |device| device.nic.write32(MSRWD.offset(), value));
    command(world, register, OPCODE_ADDRESS);
    command(world, register, OPCODE_WRITE);
}

fn open(world: &Shared, arena: &'static Arena) -> Result<impl Port + use<>, NicError> {
    let mut port = ixgbe::open(InProcess::new(world, 0), PortName::Null, &closed(), arena)?;
    port.wait_for_link(Duration::from_millis(60))?;
    Ok(port)
}

/// Neither sends nor receives: there are no queues to give back.
fn closed() -> Settings {
    Settings { receives: false, sends: false, ..quiet() }
}

#[test]
fn the_link_has_the_fastest_speed_that_both_offer() {
    let (arena, mut pool) = memory(4096);
    for (partner, mbps) in [
        (Offer::ALL, 10_000),
        (Offer { gbit_10: false, ..Offer::ALL }, 1_000),
        (Offer { gbit_10: false, gbit_1: false, mbit_100: true }, 100),
    ] {
        let world = world();
        world.with(0, |device| device.nic.partner = partner);
        let end = end(&world, 0, &quiet(), arena);
        assert_eq!(end.port.link().mbps, Some(mbps));
        assert_eq!(end.port.capabilities().link_mbps, Some(mbps));
        end.close(&mut pool).unwrap();
        no_violations(&world, 1);
    }
}

#[test]
fn what_another_driver_has_set_in_the_phy_is_undone() {
    let (arena, mut pool) = memory(4096);
    let world = world();
    before(&world, || {
        for register in [&AN_10G_CONTROL, &AN_PROVISION, &AN_CONTROL] {
            write(&world, register, 0);
        }
        write(&world, &AN_ADVERTISE, AN_ADVERTISE::TX_100_HALF.mask);
        write(&world, &POWER, POWER::LOW_POWER.mask);
        write(&world, &PMD_CONTROL, PMD_CONTROL::LOW_POWER.mask);
    });
    let end = end(&world, 0, &quiet(), arena);
    assert_eq!(end.port.link().mbps, Some(10_000));
    let set = before(&world, || {
        [&AN_10G_CONTROL, &AN_PROVISION, &AN_ADVERTISE, &AN_CONTROL, &POWER, &PMD_CONTROL]
            .map(|register| read(&world, register))
    });
    assert_eq!(set, [0x1000, 0x8000, 0x100, 0x1000, 0, 0]);
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn a_reset_of_the_phy_that_is_under_way_is_waited_for() {
    let (arena, mut pool) = memory(4096);
    let world = world();
    before(&world, || write(&world, &PMD_CONTROL, PMD_CONTROL::RESET.mask));
    end(&world, 0, &quiet(), arena).close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn a_link_that_management_keeps_is_left_as_it_is() {
    let (arena, mut pool) = memory(4096);
    let world = world();
    world.with(0, |device| device.nic.faults.management_keeps_link = true);
    end(&world, 0, &quiet(), arena).close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn a_phy_that_fails_is_an_error_that_says_how() {
    type Set = fn(&mut Faults);
    let cases: [(Set, &str); 7] = [
        (|faults| faults.mdio_hangs = true, "MSCA[0] is 0x40010002 after "),
        (|faults| faults.no_phy = true, "nobody answers at any of the 32 addresses of MDIO"),
        (|faults| faults.phy_reset_hangs = true, "the PHY 01540201 does not end its reset"),
        (|faults| faults.phy_without_speeds = true, "the PHY 01540201 is capable of neither 10 Gb/s"),
        (
            |faults| faults.negotiation_hangs = true,
            "the PHY has not come to an agreement (its AN_STATUS is 0x0008)",
        ),
        (
            |faults| faults.links_says_down = true,
            "the PHY has agreed on 10000 Mbit/s (its AN_STATUS is 0x002d, the other side's offers (0100, 0800))",
        ),
        (|faults| faults.firmware_holds_sync = true, "SW_FW_SYNC[0] is 0x"),
    ];
    let (arena, _) = memory(1024);
    for (set, words) in cases {
        let world = world();
        world.with(0, |device| set(&mut device.nic.faults));
        let begun = Instant::now();
        let error = open(&world, arena).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{error} took {:?}", begun.elapsed());
        // Whatever happened, the PHY is given back.
        let sync = world.with(0, |device| device.nic.read32(SW_FW_SYNC.offset()));
        assert_eq!(sync & SW_FW_SYNC::SW_PHY0.mask, 0, "{error}");
        no_violations(&world, 1);
    }
    let world = world();
    world.with(0, |device| device.nic.partner = Offer { gbit_10: false, gbit_1: false, mbit_100: false });
    let error = open(&world, arena).err().unwrap().to_string();
    assert!(error.contains("does it offer 10GBASE-T, 1000BASE-T or 100BASE-TX?"), "{error}");
}
