//! NICs given away and taken back, and virtual functions made and removed, in guests: QEMU's 82576 and an 82599 in software, with
//! Linux's own drivers on them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use bywash_lab::guest::{ATTEMPTS, Guest, GuestError, Kit, Machine, kit};
use bywash_models::cable::Impairment;
use bywash_models::ixgbe::Board;
use bywash_models::server::Server;
use bywash_models::world::Shared;

/// A guest in which `bywash` is on PATH, and `$PF` is the 82576's interface.
fn boot(kit: &Kit) -> Result<Guest, GuestError> {
    let binary = Path::new(env!("CARGO_BIN_EXE_bywash"));
    let machine = Machine::default().iommu().share(binary.parent().unwrap_or(binary));
    let machine = machine.igb(0, "02:aa:00:00:00:01").virtio_net(0, "02:bb:00:00:00:02");
    let machine = machine.bridged(1, ["02:aa:00:00:00:03", "02:bb:00:00:00:04", "02:aa:00:00:00:05"]);
    let mut guest = kit.boot(&machine.limit(Duration::from_secs(400)))?;
    guest.run("modprobe igb; modprobe virtio_net; mkdir -p /run; ip link set lo up")?;
    guest.run(&format!("{PF} ip link set $PF up; $BYWASH --version; {CARRIER}"))?;
    Ok(guest)
}

/// Waits for the link: without one the driver limits no rate.
const CARRIER: &str =
    "for i in $(seq 100); do [ \"$(cat $NIC/net/$PF/carrier)\" = 1 ] && break; sleep 0.2; done";

/// Waits until a function has an interface.
fn interface_of(function: &str) -> String {
    let interface = format!("ls /sys/bus/pci/devices/{function}/net");
    format!("for i in $(seq 100); do {interface} >/dev/null 2>&1 && break; sleep 0.2; done; {interface}")
}

/// What each script begins with.
const PF: &str =
    "BYWASH=/host/bywash; NIC=/sys/bus/pci/devices/0000:01:00.0; PF=$(ls $NIC/net 2>/dev/null || true);";

/// A script's output, its errors too, and its exit code at the end.
fn run(guest: &mut Guest, script: &str) -> Result<String, GuestError> {
    guest.run(&format!("{PF} set +e\n({script}) 2>&1; echo \"code $?\""))
}

#[test]
fn virtual_functions_are_made_set_shown_and_removed() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let mut guest = boot(&kit)?;
    the_machine_stays_within_reach(&mut guest)?;
    let none = run(&mut guest, "$BYWASH vf list $PF")?;
    assert!(none.contains("no virtual functions") && none.ends_with("code 0"), "{none}");
    let many = run(&mut guest, "$BYWASH vf create $PF 100")?;
    assert!(many.contains("virtual functions, not 100") && many.ends_with("code 2"), "{many}");
    let dry = run(&mut guest, "$BYWASH vf create $PF 2 --dry-run; cat $NIC/sriov_numvfs")?;
    assert!(dry.contains("would get 2 virtual functions\n0\n"), "{dry}");
    let created = run(&mut guest, "$BYWASH vf create $PF 2")?;
    assert!(created.contains("0  0000:01:10.0") && created.ends_with("code 0"), "{created}");
    let again = run(&mut guest, "$BYWASH vf create $PF 3")?;
    assert!(again.contains("has 2 virtual functions already") && again.ends_with("code 2"), "{again}");

    let set = run(
        &mut guest,
        "$BYWASH vf set $PF 1 --mac 02:00:00:00:00:10 --vlan 7:3 --spoof-check off --trust on --rate 500 &&
         ip link show dev $PF",
    )?;
    for words in ["vf 1", "02:00:00:00:00:10", "vlan 7, qos 3", "spoof checking off", "trust on", "500"] {
        assert!(set.contains(words), "{words}: {set}");
    }
    let listed = run(&mut guest, "$BYWASH vf list")?;
    for words in
        ["0000:01:10.0", "mac 02:00:00:00:00:10", "vlan 7:3", "spoof check off", "trust on", "500 Mbit/s"]
    {
        assert!(listed.contains(words), "{words}: {listed}");
    }
    let json = run(&mut guest, "$BYWASH vf list $PF --json")?;
    assert!(json.contains("\"spoof_check\":false") && json.contains("\"vlan\":7"), "{json}");
    // Linux's igb cannot set a function's link: what a driver does not know is named.
    let link = run(&mut guest, "$BYWASH vf set $PF 0 --link enable")?;
    assert!(link.contains("does not take --link") && link.ends_with("code 2"), "{link}");
    let absent = run(&mut guest, "$BYWASH vf set $PF 2 --trust on")?;
    assert!(
        absent.contains("no virtual function 2: it has 0 to 1") && absent.ends_with("code 2"),
        "{absent}"
    );

    in_use(&mut guest)?;
    let destroyed = run(&mut guest, "$BYWASH vf destroy $PF; cat $NIC/sriov_numvfs; ls /run/bywash")?;
    assert!(destroyed.starts_with("0\n") && !destroyed.contains(".json"), "{destroyed}");
    all_at_once(&mut guest)?;
    let cleanup = "$BYWASH vf create $PF 2 >/dev/null; $BYWASH cleanup; cat $NIC/sriov_numvfs";
    let cleaned = run(&mut guest, cleanup)?;
    assert!(cleaned.contains("has no virtual functions again, not 2\n0\n"), "{cleaned}");
    // Whatever the moment at which it is killed: a cleanup leaves no function behind.
    for wait in ["0", "0.02", "0.05", "0.1", "0.3"] {
        let killed = format!(
            "$BYWASH vf create $PF 2 >/dev/null & sleep {wait}; kill -9 $!; wait $!; $BYWASH cleanup >/dev/null; cat $NIC/sriov_numvfs"
        );
        let killed = run(&mut guest, &killed)?;
        assert!(killed.contains("0\ncode 0"), "after {wait} s: {killed}");
    }
    let traffic = run(&mut guest, "ip link show dev $PF")?;
    assert!(traffic.contains("UP"), "the NIC itself stays as it was: {traffic}");
    guest.power_off()
}

/// A NIC by which the default route goes is not taken, and none that the IOMMU cannot tell from one that the kernel uses.
fn the_machine_stays_within_reach(guest: &mut Guest) -> Result<(), GuestError> {
    let refused = "refused() { $BYWASH bind $1; echo code $?; $BYWASH receive pci:$1 --duration 1s --memory 8M --huge-pages off; echo code $?
        basename $(readlink /sys/bus/pci/devices/$1/driver); }";
    let routed = format!(
        "{refused}; ip route add default dev $PF; refused 0000:01:00.0; ip route del default dev $PF"
    );
    let routed = run(guest, &routed)?;
    assert_eq!(routed.matches("the default route goes by it").count(), 2, "{routed}");
    assert_eq!(routed.matches("code 2\n").count(), 2, "{routed}");
    assert!(routed.ends_with("igb\ncode 0"), "{routed}");
    let beside = run(guest, &format!("{refused}; refused 0000:04:01.0"))?;
    for words in ["it shares IOMMU group", "the IOMMU cannot tell it from"] {
        let line = beside.lines().find(|line| line.contains(words));
        assert!(line.is_some_and(|line| line.contains("0000:04:02.0 (virtio-pci, ")), "{words}: {beside}");
    }
    assert!(beside.matches("code 2\n").count() == 2 && beside.ends_with("igb\ncode 0"), "{beside}");
    let free = "modprobe vfio-pci; echo 0000:04:02.0 > /sys/bus/pci/drivers/virtio-pci/unbind; $BYWASH bind 0000:04:01.0";
    let together = "bywash bind 0000:04:01.0 0000:04:03.0";
    let alone = run(guest, free)?;
    assert!(
        alone.contains(&format!("bind them together: `{together}`")) && alone.ends_with("code 2"),
        "{alone}"
    );
    let drivers = "for i in 1 3; do basename $(readlink /sys/bus/pci/devices/0000:04:0$i.0/driver); done";
    // The second one's driver can't be chosen, and so it has none until a cleanup: the first one's is its own again.
    let unwritable = "f=/sys/bus/pci/devices/0000:04:03.0/driver_override; echo > /tmp/unwritable
        mount --bind /tmp/unwritable $f; mount -o remount,bind,ro $f";
    let after = "echo code $?; umount $f; basename $(readlink /sys/bus/pci/devices/0000:04:01.0/driver); $BYWASH cleanup >/dev/null";
    let half = run(guest, &format!("{unwritable}; $BYWASH {}; {after}; {drivers}", &together[7..]))?;
    assert!(half.ends_with("code 2\nigb\nigb\nigb\ncode 0"), "{half}");
    let both = run(guest, &format!("$BYWASH {0} --dry-run && $BYWASH {0}; {drivers}", &together[7..]))?;
    assert!(both.contains("0000:04:03.0 would be given to vfio-pci\nvfio-pci\nvfio-pci\n"), "{both}");
    let back = run(guest, &format!("$BYWASH un{}; {drivers}; modprobe -r vfio-pci", &together[7..]))?;
    assert!(back.contains("\nigb\nigb\n"), "{back}");
    Ok(())
}

/// Functions are made, set and given to programs by one command, which does all of it or nothing, and so does the one that
/// takes them back.
fn all_at_once(guest: &mut Guest) -> Result<(), GuestError> {
    // Who has the functions, how many there are; and how many huge pages, whether VFIO is loaded, what is to be undone.
    let machine = "for i in 0 1; do echo driver $(basename $(readlink $NIC/virtfn$i/driver) 2>/dev/null); done; cat $NIC/sriov_numvfs
        echo pages $(cat /proc/sys/vm/nr_hugepages) probing $(cat $NIC/sriov_drivers_autoprobe) loaded $(lsmod | grep -c '^vfio_pci ')
        echo records $(ls /run/bywash | grep -c json)";
    let nothing = "driver\ndriver\n0\npages 0 probing 1 loaded 0\nrecords 0\ncode 0";
    let wishes = "--mac 02:00:00:00:00:ff --vlan 7:3 --spoof-check off --trust on --rate 500";
    let create = format!("$BYWASH vf create $PF 2 {wishes} --bind --huge-pages 8M");
    let dry = run(guest, &format!("{create} --dry-run; {machine}"))?;
    let would = "would get 2 virtual functions, given to vfio-pci\nwould add 4 huge pages of 2 MiB\nwould load vfio-pci\n";
    assert!(dry.contains(would) && dry.ends_with(nothing), "{dry}");
    let link = run(guest, &format!("{create} --link enable; echo code $?; {machine}"))?;
    assert!(link.contains("does not take --link") && link.ends_with(&format!("code 2\n{nothing}")), "{link}");
    for undo in ["vf destroy $PF", "cleanup"] {
        let made = run(guest, &format!("{create}; {machine}; ip link show dev $PF"))?;
        assert!(made.contains("loaded vfio-pci\n0  0000:01:10.0\n1  0000:01:10.2\n"), "{made}");
        assert!(made.contains("driver vfio-pci\ndriver vfio-pci\n2\npages 4 probing 1 loaded 1\n"), "{made}");
        for words in [
            "02:00:00:00:00:ff",
            "02:00:00:00:01:00",
            "vlan 7, qos 3",
            "spoof checking off",
            "trust on",
            "500",
        ] {
            assert!(made.contains(words), "{words}: {made}");
        }
        let undone = run(guest, &format!("$BYWASH {undo} >/dev/null; {machine}"))?;
        assert_eq!(undone, nothing, "{undo}");
    }
    // What is not put back is said.
    let retaken = "echo igbvf > $NIC/virtfn0/driver_override; echo 0000:01:10.0 > $NIC/virtfn0/driver/unbind
        echo 0000:01:10.0 > /sys/bus/pci/drivers_probe";
    let destroyed = run(guest, &format!("{create}; modprobe igbvf; {retaken}; $BYWASH vf destroy $PF"))?;
    assert!(destroyed.contains("0000:01:10.0 is driven by igbvf by now"), "{destroyed}");
    assert!(destroyed.ends_with("code 0"), "{destroyed}");
    Ok(())
}

/// A function that is in use stays, by whatever command.
fn in_use(guest: &mut Guest) -> Result<(), GuestError> {
    guest.run(&format!("modprobe igbvf; {}", interface_of("0000:01:00.0/virtfn0")))?;
    let use_it = "VF=$(ls $NIC/virtfn0/net) && ip addr add 192.0.2.9/24 dev $VF && ip link set $VF up";
    let refused = run(guest, &format!("{use_it} && $BYWASH vf destroy $PF"))?;
    assert!(refused.contains("virtual function 0 (0000:01:10.0) is in use"), "{refused}");
    assert!(refused.contains("it has the address 192.0.2.9/24") && refused.ends_with("code 2"), "{refused}");
    let cleanup = run(guest, "$BYWASH cleanup; cat $NIC/sriov_numvfs")?;
    assert!(cleanup.contains("is in use") && cleanup.contains("\n2\n"), "{cleanup}");
    guest.run("ip addr flush dev $(ls /sys/bus/pci/devices/0000:01:00.0/virtfn0/net)")?;
    Ok(())
}

/// An 82599 in software, served to one guest until the test ends.
fn served(folder: &Path) -> PathBuf {
    let world = Shared::new(&[Board::default()], Impairment::default());
    let path = folder.join("nic.sock");
    let mut server = Server::new(&path, &world, 0).unwrap();
    thread::spawn(move || (0..ATTEMPTS).for_each(|_| drop(server.serve())));
    thread::spawn(move || world.run(&AtomicBool::new(false)));
    path
}

#[test]
fn a_nic_is_given_to_programs_and_back_and_the_machine_is_set_up() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let folder = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_bywash"));
    let machine = Machine::default().iommu().share(binary.parent().unwrap_or(binary));
    let machine = machine.vfio_user(&served(folder.path())).virtio_net(0, "02:bb:00:00:00:02");
    let mut guest = kit.boot(&machine.limit(Duration::from_secs(400)))?;
    guest.run("modprobe ixgbe; modprobe virtio_net; mkdir -p /run; ip link set lo up")?;
    guest.run(&interface_of("0000:01:00.0"))?;
    let shown = run(&mut guest, "$BYWASH bind; $BYWASH ports")?;
    assert!(shown.contains("0000:01:00.0  8086:10fb  82599ES SFP+  ixgbe, "), "{shown}");
    assert!(shown.contains("vfio-pci is not loaded: `bywash setup` loads it"), "{shown}");
    let early = run(
        &mut guest,
        "$BYWASH setup --dry-run; $BYWASH setup; lsmod | grep vfio_pci; cat /proc/sys/vm/nr_hugepages",
    )?;
    assert!(early.contains("would add 64 huge pages") && early.contains("loaded vfio-pci"), "{early}");
    assert!(early.contains("\n64\ncode 0"), "{early}");
    let ready = run(&mut guest, "$BYWASH bind; $BYWASH ports $PF")?;
    assert_eq!(ready.matches("our ixgbe can drive it").count(), 2, "{ready}");

    let strange = run(&mut guest, "$BYWASH bind 0000:02:00.0")?;
    assert!(
        strange.contains("is no NIC that there is a driver for") && strange.ends_with("code 2"),
        "{strange}"
    );
    let used = run(&mut guest, "ip addr add 192.0.2.1/24 dev $PF; $BYWASH bind $PF")?;
    assert!(used.contains("it has the address 192.0.2.1/24") && used.ends_with("code 2"), "{used}");
    guest.run(&format!("{PF} ip addr flush dev $PF"))?;
    let driver = "basename $(readlink $NIC/driver)";
    let bound =
        run(&mut guest, &format!("$BYWASH bind $PF --dry-run; {driver}; $BYWASH bind $PF; {driver}"))?;
    assert!(bound.contains("would be given to vfio-pci\nixgbe\nvfio-pci\ncode 0"), "{bound}");
    // Whoever uses it leaves it so, however he ends.
    let receive = "$BYWASH receive pci:01:00.0 --memory 8M --huge-pages off --json";
    let used = run(
        &mut guest,
        &format!(
            "{receive} --duration 1s >/tmp/received; tail -n 1 /tmp/received; {driver}
             {receive} --duration 60s >/tmp/received & pid=$!
             for i in $(seq 300); do grep -qs '\"event\":\"start\"' /tmp/received && break; sleep 0.1; done
             kill -9 $pid; wait $pid; {receive} --duration 1s >/dev/null; {driver}"
        ),
    )?;
    assert!(used.contains("\"event\":\"summary\"") && used.matches("vfio-pci\n").count() == 2, "{used}");
    let back = run(&mut guest, &format!("$BYWASH unbind 01:00.0; {driver}; $BYWASH unbind 01:00.0"))?;
    assert!(back.contains("is driven by ixgbe again, not by vfio-pci\nixgbe\n"), "{back}");
    assert!(back.contains("is the kernel's already"), "{back}");
    let cleaned = run(&mut guest, &format!("$BYWASH bind 01:00.0; {driver}; $BYWASH cleanup -q; {driver}"))?;
    assert!(cleaned.contains("vfio-pci\nixgbe\ncode 0"), "{cleaned}");
    // Bound by somebody else: given to whom the kernel finds.
    let foreign =
        "modprobe vfio-pci; echo vfio-pci > $NIC/driver_override; echo 0000:01:00.0 > $NIC/driver/unbind;
         echo 0000:01:00.0 > /sys/bus/pci/drivers_probe";
    let given = run(&mut guest, &format!("{foreign}; {driver}; $BYWASH unbind 01:00.0"))?;
    assert!(given.contains("vfio-pci\n0000:01:00.0 is driven by ixgbe\n"), "{given}");
    // What was set up went with the cleanup; once more, and undone by name.
    let undone = run(
        &mut guest,
        "modprobe -r vfio-pci; $BYWASH setup >/dev/null; $BYWASH setup --undo; cat /proc/sys/vm/nr_hugepages; lsmod | grep -c vfio_pci",
    )?;
    assert!(undone.contains("module vfio-pci is not loaded again"), "{undone}");
    assert!(undone.contains("\n0\n0\n"), "{undone}");
    guest.power_off()
}

/// Sends a thousand packets from one port to another, and returns what both ends said: who received, then who sent.
fn sent(guest: &mut Guest, from: &str, (to, mac): (&str, &str)) -> Result<String, GuestError> {
    run(
        guest,
        &format!(
            "$BYWASH receive {to} --count 1000 --duration 60s > /tmp/received 2>&1 & receiver=$!
             for i in $(seq 300); do grep -q receiving /tmp/received && break; sleep 0.1; done
             $BYWASH generate {from} --dst-mac {mac} --count 1000 --rate 2k --flows 4 --size 64-1518 2>&1; echo \"sender $?\"
             wait $receiver; echo \"receiver $?\"; cat /tmp/received"
        ),
    )
}

/// The only driver with AF_XDP zero-copy that can be had without hardware: what differs from copying is the driver's own way with
/// our memory, and with its rings.
#[test]
fn packets_are_not_copied_where_linux_igb_need_not() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let mut guest = boot(&kit)?;
    guest.run(&format!(
        "{PF} PEER=$(ls /sys/bus/pci/devices/0000:02:00.0/virtio*/net); ip link set $PEER up"
    ))?;
    let peer = "packet:$(ls /sys/bus/pci/devices/0000:02:00.0/virtio*/net)";
    let (ours, theirs) = (("xdp:$PF", "02:aa:00:00:00:01"), (peer, "02:bb:00:00:00:02"));
    for ((from, _), to) in [(ours, theirs), (theirs, ours)] {
        let output = sent(&mut guest, from, to)?;
        assert!(output.contains("zero-copy"), "{from}: {output}");
        assert!(output.contains("sender 0") && output.contains("receiver 0"), "{from}: {output}");
        assert!(output.contains("1000 of a generator: 0 lost"), "{from}: {output}");
    }
    // Frames across pages would be lost now and then.
    let packed = "$BYWASH receive xdp:$PF --frame-stride 2304 --duration 1s";
    let copied = run(&mut guest, packed)?;
    assert!(copied.contains("--frame-stride 4096") && copied.contains("(copy"), "{copied}");
    let refused = run(&mut guest, &format!("{packed} --zero-copy require"))?;
    assert!(refused.contains("no zero-copy on") && refused.ends_with("code 2"), "{refused}");
    guest.power_off()
}
