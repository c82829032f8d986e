//! The ixgbevf driver on functions whose physical one the model plays.

mod mailbox;
mod resets;
mod traffic;

use std::time::Duration;

use bywash_drivers::ixgbevf::{self, NicError, Settings, VirtualFunction};
use bywash_drivers::port::PortName;
use bywash_drivers::port::frame::Arena;
use bywash_models::cable::Impairment;
use bywash_models::function::InProcess;
use bywash_models::ixgbe::{Board, Faults, Policy};
use bywash_models::world::Shared;

use crate::bed::{End, PATIENCE};

/// The functions' own addresses.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// Settings that make runs repeatable and quick.
fn quiet() -> Settings {
    Settings { watch: None, patience: Duration::from_millis(100), ..Settings::default() }
}

/// One function, or two on a cable.
fn functions(count: usize) -> Shared {
    let boards = MACS.map(|mac| Board { device: 0x10ed, mac });
    Shared::new(&boards[..count], Impairment::default())
}

fn set_policy(world: &Shared, index: usize, change: impl FnOnce(&mut Policy)) {
    world.with(index, |device| change(&mut device.nic.policy));
}

fn set_faults(world: &Shared, index: usize, change: impl FnOnce(&mut Faults)) {
    world.with(index, |device| change(&mut device.nic.faults));
}

fn open(
    world: &Shared,
    index: usize,
    settings: &Settings,
    arena: &'static Arena,
) -> Result<VirtualFunction<InProcess>, NicError> {
    ixgbevf::open(InProcess::new(world, index), PortName::Null, settings, arena)
}

/// Opens function `index` of a world and waits for its link.
fn end(
    world: &Shared,
    index: usize,
    settings: &Settings,
    arena: &'static Arena,
) -> End<VirtualFunction<InProcess>> {
    let mut port = open(world, index, settings, arena).unwrap();
    assert_eq!(port.wait_for_link(PATIENCE).unwrap().mbps, Some(10_000));
    End::new(port, world, index)
}
