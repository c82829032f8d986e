//! `pci:` in a guest: the packet tools take a NIC from Linux's own driver through VFIO and a strict virtual IOMMU, talk to Linux's
//! driver at the other end of a cable, and give the NIC back. The NICs are two models of the 82599, and QEMU's 82576, whose
//! virtual functions are taken too.
#![expect(clippy::unwrap_used, reason = "what cannot be set up must fail the test")]

mod end;
mod functions;
mod kernels_rss;
mod models;
mod no_iommu;
mod offloads;
mod program;
mod rules_in_nic;
mod single_queue;
mod steering;

use std::time::Duration;

use bywash_lab::guest::{GuestError, Machine, kit};

use end::{Checks, checks};
use no_iommu::Pair;

#[test]
fn an_82576_is_driven_and_given_back() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let machine = Machine::default().igb(0, "02:00:00:00:00:01").igb(0, "02:00:00:00:00:02");
    let mut guest = kit.boot(&prepared(machine))?;
    checks(&mut guest, &Checks { driver: "igb", nic: "82576 [8086:10c9]", queues: 4, speed: "1000Mb/s" })?;
    steering::checks(&mut guest)?;
    offloads::checks(&mut guest)?;
    guest.power_off()
}

#[test]
fn an_82599_is_driven_and_given_back() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let served = models::Served::new();
    let mut guest = kit.boot(&prepared(served.machine()))?;
    checks(
        &mut guest,
        &Checks { driver: "ixgbe", nic: "82599ES SFP+ [8086:10fb]", queues: 4, speed: "10000Mb/s" },
    )?;
    let (cut, broken) = served.cut_and_violations();
    // The kernel forbids a killed program's NIC to reach memory before it resets it, and packets come.
    assert!(cut && broken.iter().all(|line| line.contains("DMA without bus mastering")), "{broken:#?}");
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

#[test]
fn nics_are_driven_and_given_back_without_an_iommu() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let served = models::Served::new();
    let machine = served.machine().igb(0, "02:00:00:00:00:01").igb(0, "02:00:00:00:00:02");
    let mut guest = kit.boot(&shared(machine))?;
    for (driver, addresses) in
        [("ixgbe", ["0000:01:00.0", "0000:02:00.0"]), ("igb", ["0000:03:00.0", "0000:04:00.0"])]
    {
        no_iommu::checks(&mut guest, &Pair { driver, addresses })?;
    }
    // What the NIC of a killed program would have written, had its guard not stopped it.
    let broken = served.cut_and_violations().1;
    assert!(broken.iter().all(|line| line.contains("DMA without bus mastering")), "{broken:#?}");
    guest.power_off()
}

/// With an IOMMU, and the folder of the program.
fn prepared(machine: Machine) -> Machine {
    shared(machine.iommu())
}

/// With the folder of the program. It is done in a minute or two when the machine has nothing else to do.
fn shared(machine: Machine) -> Machine {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_bywash"));
    machine.share(program.parent().unwrap()).limit(Duration::from_secs(900))
}

/// The number behind a word that a line begins with.
fn number(output: &str, word: &str) -> f64 {
    let line = output.lines().find_map(|line| line.strip_prefix(word));
    line.and_then(|number| number.trim().parse().ok()).unwrap()
}

/// Each line says what is wanted of it, and there are no others.
fn lines_say(output: &str, wanted: &[&str]) {
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), wanted.len(), "{output}");
    assert!(lines.iter().zip(wanted).all(|(line, wanted)| line.contains(wanted)), "{output}");
}
