//! An X540's copper PHY, as a driver that does nothing else sees it.

use bywash_hw::ixgbe::phy::*;
use bywash_hw::ixgbe::regs::{LINKS, MSCA, MSRWD, RXPBSIZE, SW_FW_SYNC, SWSM};
use bywash_hw::reg::Register;
use bywash_models::ixgbe::{Board, Offer};

use crate::bench::Bench;

const UNGUARDED: &str = "used without the semaphore that guards it";

/// An X540 with its link up.
fn x540() -> Bench {
    let mut bench = Bench::with(Board { device: 0x1528, ..Board::default() });
    assert_eq!(bench.read(&RXPBSIZE, 0), 384 << 10);
    bench.wait(20_000);
    assert!(bench.nic.link_up());
    bench
}

/// Takes or gives back the PHY.
fn guard(bench: &mut Bench, taken: bool) {
    bench.read(&SWSM, 0);
    bench.read(&SW_FW_SYNC, 0);
    bench.write(&SW_FW_SYNC, 0, if taken { SW_FW_SYNC::SW_PHY0.mask } else { 0 });
    bench.write(&SWSM, 0, 0);
}

fn order(bench: &mut Bench, register: &Register, opcode: u32) {
    bench.write(&MSCA, 0, register.offset() | MSCA::OPCODE.with(opcode) | MSCA::MDICMD.mask);
}

fn command(bench: &mut Bench, register: &Register, opcode: u32) {
    order(bench, register, opcode);
    assert!(MSCA::MDICMD.is_set(bench.read(&MSCA, 0)));
    bench.wait(30);
    assert!(!MSCA::MDICMD.is_set(bench.read(&MSCA, 0)));
}

fn read(bench: &mut Bench, register: &Register) -> u32 {
    command(bench, register, OPCODE_ADDRESS);
    command(bench, register, OPCODE_READ);
    MSRWD::MDIRDDATA.of(bench.read(&MSRWD, 0))
}

fn write(bench: &mut Bench, register: &Register, value: u32) {
    bench.write(&MSRWD, 0, value);
    command(bench, register, OPCODE_ADDRESS);
    command(bench, register, OPCODE_WRITE);
}

#[test]
fn it_says_what_it_is_and_what_was_agreed_on() {
    let mut bench = x540();
    guard(&mut bench, true);
    assert_eq!((read(&mut bench, &ID_HIGH), read(&mut bench, &ID_LOW) & 0xfff0), (0x0154, 0x0200));
    assert_eq!(read(&mut bench, &SPEEDS), 0x31);
    assert_eq!(read(&mut bench, &PMD_STATUS_2), 0x8000);
    // One read after another goes on by itself.
    command(&mut bench, &ID_HIGH, OPCODE_ADDRESS);
    let next = [0, 1].map(|_| {
        command(&mut bench, &ID_HIGH, OPCODE_READ_NEXT);
        MSRWD::MDIRDDATA.of(bench.read(&MSRWD, 0))
    });
    assert_eq!((next[0], next[1] & 0xfff0), (0x0154, 0x0200));
    // That the link was down is said once.
    let status: [u32; 2] = [0, 1].map(|_| read(&mut bench, &AN_STATUS));
    assert_eq!(status, [0x29, 0x2d]);
    assert_eq!((read(&mut bench, &AN_SPEED), read(&mut bench, &PCS_STATUS)), (7, 4));
    assert_eq!((read(&mut bench, &AN_PARTNER), read(&mut bench, &AN_10G_STATUS)), (0x100, 0x800));
    // Elsewhere on the bus nobody is.
    order(&mut bench, &ID_HIGH, OPCODE_READ);
    bench.wait(30);
    bench.write(&MSCA, 0, MSCA::PHYADD.with(3) | MSCA::OPCODE.with(OPCODE_READ) | MSCA::MDICMD.mask);
    bench.wait(30);
    assert_eq!(MSRWD::MDIRDDATA.of(bench.read(&MSRWD, 0)), 0xffff);
    guard(&mut bench, false);
    assert_eq!(bench.broken(), Vec::<String>::new());
}

#[test]
fn the_fastest_that_both_offer_is_the_links_speed() {
    for (ours, partner, speed) in [
        ([true, true, true], [true, true, true], Some(3)),
        ([true, true, true], [false, true, true], Some(2)),
        ([false, false, true], [true, true, true], Some(1)),
        ([true, false, false], [false, true, true], None),
    ] {
        let mut bench = x540();
        bench.nic.partner = Offer { gbit_10: partner[0], gbit_1: partner[1], mbit_100: partner[2] };
        guard(&mut bench, true);
        write(&mut bench, &AN_10G_CONTROL, AN_10G_CONTROL::T_10G.with(u32::from(ours[0])));
        write(&mut bench, &AN_PROVISION, AN_PROVISION::T_1000.with(u32::from(ours[1])));
        write(&mut bench, &AN_ADVERTISE, AN_ADVERTISE::TX_100.with(u32::from(ours[2])));
        bench.wait(50_000);
        assert_eq!(LINKS::SPEED.of(bench.read(&LINKS, 0)), 3, "as it was agreed before");
        write(&mut bench, &AN_CONTROL, AN_CONTROL::ENABLE.mask | AN_CONTROL::RESTART.mask);
        assert!(!bench.nic.link_up());
        assert_eq!(read(&mut bench, &AN_CONTROL), AN_CONTROL::ENABLE.mask);
        bench.wait(50_000);
        let links = bench.read(&LINKS, 0);
        assert_eq!(LINKS::UP.is_set(links).then(|| LINKS::SPEED.of(links)), speed);
        assert_eq!(AN_STATUS::COMPLETE.is_set(read(&mut bench, &AN_STATUS)), speed.is_some());
        assert_eq!(bench.broken(), Vec::<String>::new());
    }
}

#[test]
fn a_reset_takes_its_time_and_forgets_what_was_set() {
    let mut bench = x540();
    guard(&mut bench, true);
    write(&mut bench, &AN_PROVISION, 0);
    write(&mut bench, &PMD_CONTROL, PMD_CONTROL::RESET.mask);
    assert!(PMD_CONTROL::RESET.is_set(read(&mut bench, &PMD_CONTROL)) && !bench.nic.link_up());
    write(&mut bench, &AN_10G_CONTROL, 0);
    bench.wait(20_000);
    assert_eq!(read(&mut bench, &PMD_CONTROL), 0);
    assert_eq!(read(&mut bench, &AN_PROVISION), AN_PROVISION::T_1000.mask);
    assert_eq!(read(&mut bench, &AN_10G_CONTROL), AN_10G_CONTROL::T_10G.mask, "not during the reset");
    bench.wait(20_000);
    assert!(bench.nic.link_up());
}

#[test]
fn without_power_or_negotiation_there_is_no_link() {
    let mut bench = x540();
    guard(&mut bench, true);
    for (register, off, on) in [
        (&POWER, POWER::LOW_POWER.mask, 0),
        (&PMD_CONTROL, PMD_CONTROL::LOW_POWER.mask, 0),
        (&AN_CONTROL, 0, AN_CONTROL::ENABLE.mask),
    ] {
        write(&mut bench, register, off);
        bench.wait(50_000);
        assert!(!bench.nic.link_up(), "{}", register.name);
        write(&mut bench, register, on);
        bench.wait(50_000);
        assert!(bench.nic.link_up(), "{}", register.name);
    }
}

#[test]
fn a_driver_that_does_not_ask_or_does_not_wait_is_told_so() {
    let mut bench = x540();
    order(&mut bench, &ID_HIGH, OPCODE_READ);
    assert_eq!(bench.broken(), [format!("MSCA[0]: {UNGUARDED}")]);
    bench.wait(30);
    bench.read(&MSRWD, 0);
    bench.write(&MSRWD, 0, 0);
    assert_eq!(bench.broken(), [format!("MSRWD[0]: {UNGUARDED}"), format!("MSRWD[0]: {UNGUARDED}")]);
    guard(&mut bench, true);
    order(&mut bench, &ID_HIGH, OPCODE_ADDRESS);
    order(&mut bench, &ID_HIGH, OPCODE_READ);
    bench.read(&MSRWD, 0);
    let why = "used while a command to the PHY is under way (poll MSCA.MDICMD until it reads 0)";
    assert_eq!(bench.broken(), [format!("MSCA[0]: {why}"), format!("MSRWD[0]: {why}")]);
    bench.wait(30);
    bench.nic.faults.management_keeps_link = true;
    write(&mut bench, &AN_CONTROL, AN_CONTROL::ENABLE.mask | AN_CONTROL::RESTART.mask);
    assert_eq!(bench.broken(), ["MMNGC[0]: negotiation was restarted though MNG_VETO is set"]);
}
