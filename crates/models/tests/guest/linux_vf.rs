//! Linux's own ixgbevf, in one guest with two virtual functions, whose mailboxes the model answers.

use std::collections::BTreeMap;

use bywash_lab::guest::{Guest, GuestError, kit};

use crate::bench::{Bench, MACS, udp};
use crate::linux::{IPERF_SERVER, KNOWN, LINKED, VLAN_AND_JUMBO, once, receives, statistics, up};

#[test]
fn linux_is_content_with_a_virtual_function() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let bench = Bench::new([0x10ed, 0x10ed]);
    let mut guest = kit.boot(&bench.machine())?;
    guest.run(&up("ixgbevf"))?;
    guest.run(LINKED)?;
    let output = guest.run("ip netns exec left ping -c 20 -i 0.05 -w 20 192.0.2.2")?;
    assert!(output.contains(" 20 received, 0% packet loss"), "{output}");
    guest.run(KNOWN)?;
    guest.run(IPERF_SERVER)?;
    guest.run("ip netns exec left iperf3 -c 192.0.2.2 -n 8M")?;
    assert!(bench.world.with(0, |device| device.nic.observed()).tso_packets > 100);
    let before = statistics(&mut guest, "left")?;
    for flow in 0..200 {
        bench.arrive(&udp([198, 51, flow, 7], 1, 2));
    }
    let counted = once(&mut guest, ("left", &before), |counted| counted["rx_packets"] >= 200)?;
    let shares = [counted["rx_queue_0_packets"], counted["rx_queue_1_packets"]];
    assert!(shares[0] + shares[1] == 200 && shares.iter().all(|share| *share > 50), "{counted:?}");
    mailbox(&bench, &mut guest)?;
    assert_eq!(bench.violations(), BTreeMap::new());
    guest.power_off()
}

/// What the function asks for by messages: another address, a group, longer frames, a VLAN.
fn mailbox(bench: &Bench, guest: &mut Guest) -> Result<(), GuestError> {
    let receives = |guest: &mut Guest, destination| receives(bench, guest, destination);
    let (address, group) = ([2, 0, 0, 0, 0, 0x55], [1, 0, 0x5e, 1, 2, 3]);
    assert_eq!((receives(guest, address)?, receives(guest, group)?), (false, false));
    guest.run(
        "ip -n left maddr add 01:00:5e:01:02:03 dev left
         ip -n left link set dev left address 02:00:00:00:00:55",
    )?;
    assert_eq!((receives(guest, address)?, receives(guest, group)?), (true, true));
    assert!(!receives(guest, MACS[0])?, "the old address");
    guest.run(VLAN_AND_JUMBO)?;
    guest.run(LINKED)?;
    let output = guest.run("ip netns exec left ping -c 5 -i 0.1 -w 20 -s 8972 -M do 198.51.100.2")?;
    assert!(output.contains(" 5 received, 0% packet loss"), "{output}");
    Ok(())
}
