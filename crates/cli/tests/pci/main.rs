//! `pci:` in a guest: the packet tools take a NIC from Linux's own driver through VFIO and a strict virtual IOMMU, talk to Linux's
//! driver at the other end of a cable, and give the NIC back. The NICs are two models of the 82599, and QEMU's 82576, whose
//! virtual functions are taken too.
#![expect(clippy::unwrap_used, reason = "what cannot be set up must fail the test")]

mod end;
mod functions;
mod models;
mod single_queue;

use std::time::Duration;

use bywash_lab::guest::{GuestError, Machine, kit};

use end::{Checks, checks};

#[test]
fn an_82576_is_driven_and_given_back() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let machine = Machine::default().igb(0, "02:00:00:00:00:01").igb(0, "02:00:00:00:00:02");
    let mut guest = kit.boot(&prepared(machine))?;
    checks(&mut guest, &Checks { driver: "igb", queues: 4, speed: "1000Mb/s" })?;
    guest.power_off()
}

#[test]
fn an_82599_is_driven_and_given_back() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let served = models::Served::new();
    let mut guest = kit.boot(&prepared(served.machine()))?;
    checks(&mut guest, &Checks { driver: "ixgbe", queues: 4, speed: "10000Mb/s" })?;
    assert_eq!(served.cut_and_violations(), (true, Vec::new()));
    guest.power_off()
}

#[test]
fn two_virtual_functions_of_an_82576_have_a_process_each() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let machine = Machine::default().igb(0, "02:00:00:00:00:01").igb(0, "02:00:00:00:00:02");
    let mut guest = kit.boot(&prepared(machine))?;
    guest.run("modprobe igb")?;
    functions::checks(&mut guest)?;
    guest.power_off()
}

/// With an IOMMU, and the folder of the program. It is done in a minute or two when the machine has nothing else to do.
fn prepared(machine: Machine) -> Machine {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_bywash"));
    machine.iommu().share(program.parent().unwrap()).limit(Duration::from_secs(900))
}
