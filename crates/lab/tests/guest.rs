//! The guest runner: scripts, failures, limits, and a NIC that Linux's own igb drives behind a virtual IOMMU.

use std::time::{Duration, Instant};

use bywash_lab::guest::{GuestError, Machine, kit};

#[test]
fn scripts_have_output_and_an_exit_code_and_a_guest_that_hangs_is_ended() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let start = Instant::now();
    let share = std::env::current_dir().unwrap();
    let machine = Machine::default().share(&share).limit(Duration::from_secs(120));
    let mut guest = kit.boot(&machine)?;
    println!("ready after {:.1} s", start.elapsed().as_secs_f64());
    assert_eq!(guest.run("echo one; echo two >&2; printf three")?, "one\ntwo\nthree");
    assert_eq!(guest.run("")?, "");
    assert!(guest.run("grep name /host/Cargo.toml")?.contains("bywash-lab"));
    let many = guest.run("seq 20000")?;
    assert_eq!(many.lines().count(), 20_000);
    let error = guest.run("echo before\nfalse\necho after").unwrap_err().to_string();
    assert!(error.starts_with("a script ended with code 1\n"), "{error}");
    assert!(error.contains("\nbefore\n") && !error.contains("\nafter\n"), "{error}");
    guest.run("echo last words >/dev/console")?;
    guest.limit(Duration::from_secs(3));
    let start = Instant::now();
    let error = guest.run("echo begun; sleep 100").unwrap_err().to_string();
    assert!(error.starts_with("the guest does not end its script in time\n"), "{error}");
    assert!(error.contains("last words"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
    Ok(())
}

#[test]
fn linux_drives_igb_and_its_virtual_functions_behind_an_iommu() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let machine = Machine::default().iommu();
    let machine = machine.igb(0, "02:aa:00:00:00:01").virtio_net(0, "02:bb:00:00:00:02");
    let mut guest = kit.boot(&machine)?;
    let output = guest.run(
        "modprobe igb; modprobe virtio_net; cd /sys/bus/pci/devices/0000:01:00.0
         IGB=$(ls net); VIRTIO=$(ls /sys/bus/pci/devices/0000:02:00.0/virtio*/net)
         echo driver $(basename $(readlink driver)) group $(basename $(readlink iommu_group)) type $(cat iommu_group/type)
         ip netns add peer; ip link set $VIRTIO netns peer
         ip -n peer addr add 192.0.2.2/24 dev $VIRTIO; ip -n peer link set $VIRTIO up
         ip addr add 192.0.2.1/24 dev $IGB; ip link set $IGB up
         ping -c 3 -i 0.2 -w 20 192.0.2.2
         echo 2 > sriov_numvfs
         for function in virtfn0 virtfn1; do
             echo $(cat $function/device) alone $(ls $function/iommu_group/devices | wc -l)
         done",
    )?;
    // Strict: what is unmapped is out of the NIC's reach at once. Otherwise it would be DMA-FQ.
    let told = output.lines().find(|line| line.starts_with("driver igb group "));
    assert!(told.is_some_and(|line| line.ends_with(" type DMA")), "{output}");
    assert_eq!(output.matches("0x10ca alone 1").count(), 2, "{output}");
    guest.power_off()
}
