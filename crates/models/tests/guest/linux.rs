//! Linux's own ixgbe, in one guest with both models, each in a network namespace of its own: `left` has 192.0.2.1, `right`
//! 192.0.2.2, and the interfaces are called so, too.

use std::collections::BTreeMap;
use std::ops::Index;

use bywash_lab::guest::{Guest, GuestError, kit};
use bywash_models::ixgbe::Offer;

use crate::bench::{Bench, MACS, udp};

/// Loads the driver, puts each NIC into its namespace, and sets it up.
pub(crate) fn up(driver: &str) -> String {
    format!("modprobe {driver}\n{UP}")
}

const UP: &str = "
    for i in 1:left 2:right; do
        number=${i%:*} name=${i#*:}
        ip netns add $name
        ip link set dev $(ls /sys/bus/pci/devices/0000:0$number:00.0/net) name $name netns $name
        ip netns exec $name sysctl -q net.ipv6.conf.all.disable_ipv6=1
        ip -n $name addr add 192.0.2.$number/24 dev $name
        ip -n $name link set dev $name up
    done";

/// Waits until both ends have a link.
pub(crate) const LINKED: &str = "
    for name in left right; do
        for try in $(seq 150); do
            ip netns exec $name cat /sys/class/net/$name/carrier 2>/dev/null | grep -q 1 && break
            sleep 0.1
        done
        ip netns exec $name ethtool $name | grep -q 'Speed: 10000Mb/s'
    done";

/// Neither end asks for the other one's address any more: from here on frames are counted.
pub(crate) const KNOWN: &str = "
    ip -n left neigh replace 192.0.2.2 lladdr 02:00:00:82:59:02 dev left nud permanent
    ip -n right neigh replace 192.0.2.1 lladdr 02:00:00:82:59:01 dev right nud permanent";

/// Starts a server of TCP connections at the right end.
pub(crate) const IPERF_SERVER: &str = "
    ip netns exec right iperf3 -s -D
    for try in $(seq 50); do ip netns exec right netstat -ltn | grep -q :5201 && break; sleep 0.1; done";

/// One guest for all of it: to boot one takes longer than most of what it is for.
#[test]
fn linux_is_content() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let bench = Bench::new([0x10fb, 0x10f8]);
    let mut guest = kit.boot(&bench.machine().cpus(4))?;
    guest.run(&up("ixgbe"))?;
    guest.run(LINKED)?;
    let output = guest.run("ip netns exec left ping -c 20 -i 0.05 -w 20 192.0.2.2")?;
    assert!(output.contains(" 20 received, 0% packet loss"), "{output}");
    guest.run(KNOWN)?;
    adds_up(&mut guest)?;
    tcp(&bench, &mut guest)?;
    rss(&bench, &mut guest)?;
    rules(&bench, &mut guest)?;
    vlan_and_jumbo(&mut guest)?;
    assert_eq!(bench.violations(), BTreeMap::new(), "what Linux does is allowed");
    filters(&bench, &mut guest)?;
    self_test(&bench, &mut guest)?;
    again(&bench, &mut guest)?;
    let log = guest.run("dmesg | grep -i ixgbe")?;
    for bad in ["Hang", "error", "fail", "Warning", "timeout"] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(bad)).collect();
        assert!(lines.is_empty(), "{lines:?}");
    }
    guest.power_off()
}

/// The guest's accesses to the pages of the queues' registers go to memory, and no message tells the model.
#[test]
fn linux_is_content_with_mapped_queues() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let bench = Bench::mapped([0x10f8, 0x10f8]);
    let mut guest = kit.boot(&bench.machine())?;
    guest.run(&up("ixgbe"))?;
    guest.run(LINKED)?;
    let output = guest.run("ip netns exec left ping -c 20 -i 0.05 -w 20 192.0.2.2")?;
    assert!(output.contains(" 20 received, 0% packet loss"), "{output}");
    guest.run(IPERF_SERVER)?;
    guest.run("ip netns exec left iperf3 -c 192.0.2.2 -n 8M")?;
    assert!(bench.world.with(0, |device| device.nic.observed()).tso_packets > 100);
    assert_eq!(bench.violations(), BTreeMap::new());
    guest.power_off()
}

/// What `ethtool -S` says.
#[derive(Debug)]
pub(crate) struct Statistics(BTreeMap<String, u64>);

impl Index<&str> for Statistics {
    type Output = u64;

    fn index(&self, name: &str) -> &u64 {
        self.0.get(name).unwrap_or(&0)
    }
}

pub(crate) fn statistics(guest: &mut Guest, name: &str) -> Result<Statistics, GuestError> {
    let output = guest.run(&format!("ip netns exec {name} ethtool -S {name}"))?;
    let pair = |line: &str| {
        let (name, value) = line.trim().split_once(": ")?;
        // Hundreds are zero and would hide the others.
        Some((name.to_owned(), value.parse().ok()?)).filter(|(_, value)| *value != 0)
    };
    Ok(Statistics(output.lines().filter_map(pair).collect()))
}

/// What was counted since `before`.
pub(crate) fn since(before: &Statistics, now: &Statistics) -> Statistics {
    Statistics(now.0.iter().map(|(name, value)| (name.clone(), value - before[name])).collect())
}

/// What an end has counted since `before`: a moment after that was enough, so that more is seen, too, or when nothing comes for long.
pub(crate) fn once(
    guest: &mut Guest,
    (name, before): (&str, &Statistics),
    enough: impl Fn(&Statistics) -> bool,
) -> Result<Statistics, GuestError> {
    let mut counted = since(before, &statistics(guest, name)?);
    for _ in 0..100 {
        let was_enough = enough(&counted);
        guest.run("sleep 0.2")?;
        counted = since(before, &statistics(guest, name)?);
        if was_enough {
            break;
        }
    }
    Ok(counted)
}

/// Whether the left end receives a frame to an address. A longer one of the same flow, and so of the same queue, comes after it, as a
/// broadcast: by then it was received, or never will be.
pub(crate) fn receives(bench: &Bench, guest: &mut Guest, destination: [u8; 6]) -> Result<bool, GuestError> {
    let before = statistics(guest, "left")?;
    let mut frame = udp([198, 51, 100, 9], 1, 2);
    let mut last = [&frame[..], &[0; 200]].concat();
    frame[..6].copy_from_slice(&destination);
    last[..6].fill(0xff);
    let (bytes, more) = (last.len() as u64, frame.len() as u64);
    bench.arrive(&frame);
    bench.arrive(&last);
    let counted = once(guest, ("left", &before), |counted| counted["rx_bytes"] >= bytes)?;
    let received = counted["rx_packets"] == 2;
    assert_eq!(counted["rx_bytes"], bytes + if received { more } else { 0 }, "{counted:?}");
    Ok(received)
}

/// TCP with all offloads of the sender; the receiver adds up checksums itself, and so judges those of the model.
fn tcp(bench: &Bench, guest: &mut Guest) -> Result<(), GuestError> {
    let segmented = || bench.world.with(0, |device| device.nic.observed().tso_packets);
    guest.run("ip netns exec right ethtool -K right rx off")?;
    guest.run(IPERF_SERVER)?;
    let before = segmented();
    let output = guest.run(
        "ip netns exec left iperf3 -c 192.0.2.2 -n 24M
         ip netns exec right nstat -asz TcpInCsumErrors",
    )?;
    assert!(output.contains("TcpInCsumErrors                 0 "), "{output}");
    assert!(segmented() - before >= 300, "{} packets cut for 24 MB", segmented() - before);
    // And back, with the receiver's checksums taken from the descriptors.
    guest
        .run("ip netns exec right ethtool -K right rx on; ip netns exec left iperf3 -c 192.0.2.2 -n 8M -R")?;
    adds_up(guest)?;
    // Where it sends a flow from, the driver asks for what comes back, by hashes that it computes itself.
    for name in ["left", "right"] {
        let counted = statistics(guest, name)?;
        assert!(counted["fdir_match"] > counted["rx_packets"] / 10, "{counted:?}");
    }
    Ok(())
}

/// The counters of the driver, of each NIC and of both ends agree.
fn adds_up(guest: &mut Guest) -> Result<(), GuestError> {
    let ends = at_rest(guest)?;
    for (here, there) in [(0, 1), (1, 0)] {
        let (here, there) = (&ends[here], &ends[there]);
        for way in ["rx", "tx"] {
            let queues = |what: &str| -> u64 {
                let of = |name: &str| name.starts_with(&format!("{way}_queue_")) && name.ends_with(what);
                here.0.iter().filter(|(name, _)| of(name)).map(|(_, value)| value).sum()
            };
            let count = |what: &str| here[format!("{way}_{what}").as_str()];
            assert_eq!(queues("_packets"), count("packets"), "{way}: {here:?}");
            assert_eq!(queues("_bytes"), count("bytes"), "{way}: {here:?}");
            assert_eq!(count("pkts_nic"), count("packets"), "{way}: {here:?}");
        }
        // On the wire each frame has four bytes more. Frames that found no room count there, too.
        let bytes = here["rx_bytes"] + 4 * here["rx_packets"];
        let missed = here["rx_missed_errors"];
        let wire = bytes + 64 * missed..=bytes + 1518 * missed;
        assert!(wire.contains(&here["rx_bytes_nic"]), "{here:?}");
        assert_eq!(
            here["tx_pkts_nic"],
            there["rx_pkts_nic"] + there["rx_missed_errors"],
            "{here:?} {there:?}"
        );
        assert_eq!(here["rx_csum_offload_errors"] + here["rx_errors"] + here["tx_errors"], 0, "{here:?}");
    }
    Ok(())
}

/// What both ends have counted when all is sent, and the last acknowledgment has come: nothing comes any more.
fn at_rest(guest: &mut Guest) -> Result<[Statistics; 2], GuestError> {
    let packets = |ends: &[Statistics; 2]| ends.each_ref().map(|end| (end["rx_packets"], end["tx_packets"]));
    let mut ends = [statistics(guest, "left")?, statistics(guest, "right")?];
    for _ in 0..30 {
        guest.run("sleep 1")?;
        let now = [statistics(guest, "left")?, statistics(guest, "right")?];
        let moved = packets(&now) != packets(&ends);
        ends = now;
        if !moved {
            break;
        }
    }
    Ok(ends)
}

/// A thousand flows go to four queues.
fn rss(bench: &Bench, guest: &mut Guest) -> Result<(), GuestError> {
    guest.run("ip netns exec left ethtool -N left rx-flow-hash udp4 sdfn")?;
    guest.run(LINKED)?;
    let before = statistics(guest, "left")?;
    for flow in 0..1000_u16 {
        bench.arrive(&udp([198, 51, 100, 7], 10_000 + 7 * flow, 4789));
    }
    let counted = once(guest, ("left", &before), |counted| counted["rx_packets"] >= 1000)?;
    let shares: Vec<u64> =
        (0..4).map(|queue| counted[format!("rx_queue_{queue}_packets").as_str()]).collect();
    assert_eq!(shares.iter().sum::<u64>(), 1000, "{counted:?}");
    assert!(shares.iter().all(|share| *share > 150), "{shares:?}");
    Ok(())
}

/// Flow director rules steer and drop, and do so no more when they are deleted.
fn rules(bench: &Bench, guest: &mut Guest) -> Result<(), GuestError> {
    let output = guest.run(
        "alias e='ip netns exec left ethtool'
         e -K left ntuple on
         e -N left flow-type udp4 src-ip 203.0.113.9 dst-ip 192.0.2.1 src-port 1111 dst-port 2222 action 3 loc 5
         e -N left flow-type udp4 src-ip 203.0.113.9 dst-ip 192.0.2.1 src-port 1111 dst-port 2223 action -1 loc 6
         e -n left",
    )?;
    assert!(output.contains("Filter: 5") && output.contains("Direct to queue 3"), "{output}");
    assert!(output.contains("Filter: 6") && output.contains("Action: Drop"), "{output}");
    guest.run(LINKED)?;
    let send = |guest: &mut Guest, arrive: u64| {
        let before = statistics(guest, "left")?;
        for port in [2222, 2223, 2224] {
            (0..10).for_each(|_| bench.arrive(&udp([203, 0, 113, 9], 1111, port)));
        }
        once(guest, ("left", &before), |counted| counted["rx_packets"] >= arrive)
    };
    let counted = send(guest, 20)?;
    assert_eq!((counted["fdir_match"], counted["fdir_miss"]), (20, 10), "{counted:?}");
    assert_eq!(counted["rx_packets"], 20, "ten are dropped: {counted:?}");
    assert!(counted["rx_queue_3_packets"] >= 10, "{counted:?}");
    guest.run("ip netns exec left ethtool -N left delete 5; ip netns exec left ethtool -N left delete 6")?;
    let counted = send(guest, 30)?;
    assert_eq!((counted["fdir_match"], counted["rx_packets"]), (0, 30), "{counted:?}");
    guest.run("ip netns exec left ethtool -K left ntuple off")?;
    Ok(())
}

/// Longer frames, and a VLAN with 198.51.100.1 and .2.
pub(crate) const VLAN_AND_JUMBO: &str = "
    modprobe 8021q
    for i in 1:left 2:right; do
        number=${i%:*} name=${i#*:}
        ip -n $name link set dev $name mtu 9000
        ip -n $name link add link $name name vlan7 type vlan id 7
        ip -n $name addr add 198.51.100.$number/24 dev vlan7
        ip -n $name link set dev vlan7 up
    done";

/// 9000-byte frames in a VLAN that the NIC filters, tags and strips.
fn vlan_and_jumbo(guest: &mut Guest) -> Result<(), GuestError> {
    guest.run(VLAN_AND_JUMBO)?;
    guest.run(LINKED)?;
    let output = guest.run("ip netns exec left ping -c 5 -i 0.1 -w 20 -s 8972 -M do 198.51.100.2")?;
    assert!(output.contains(" 5 received, 0% packet loss"), "{output}");
    guest.run("ip netns exec left iperf3 -c 198.51.100.2 -n 8M")?;
    guest.run("ip -n left link del vlan7; ip -n right link del vlan7")?;
    Ok(())
}

/// Frames for others are received where all are asked for, and those for a multicast group once it was joined.
fn filters(bench: &Bench, guest: &mut Guest) -> Result<(), GuestError> {
    let group = [1, 0, 0x5e, 1, 2, 3];
    let receives = |guest: &mut Guest, destination| receives(bench, guest, destination);
    assert_eq!((receives(guest, MACS[1])?, receives(guest, group)?), (false, false));
    guest.run("ip -n left maddr add 01:00:5e:01:02:03 dev left")?;
    assert_eq!((receives(guest, MACS[1])?, receives(guest, group)?), (false, true));
    assert_eq!(bench.violations(), BTreeMap::new());
    guest.run("ip -n left link set dev left promisc on")?;
    assert!(receives(guest, MACS[1])?);
    guest.run("ip -n left link set dev left promisc off")?;
    assert!(!receives(guest, MACS[1])?);
    // The datasheet forbids it, and Linux does it all the same.
    let broken: Vec<_> = bench.violations().into_keys().collect();
    assert_eq!(broken, ["0: FCTRL[0]: changed while RXCTRL.RXEN is set"]);
    Ok(())
}

/// `ethtool -t`: registers, EEPROM, interrupts, loopback, link.
fn self_test(bench: &Bench, guest: &mut Guest) -> Result<(), GuestError> {
    for name in ["left", "right"] {
        let output = guest.run(&format!("ip netns exec {name} ethtool -t {name} offline"))?;
        assert!(output.contains("The test result is PASS"), "{output}");
        let passed = output.lines().filter(|line| line.contains("line)") && line.trim_end().ends_with(" 0"));
        assert_eq!(passed.count(), 5, "{output}");
    }
    // It writes patterns that no driver would otherwise, and its loopback skips what a start does.
    assert!(!bench.violations().is_empty());
    Ok(())
}

/// The driver goes and comes back.
fn again(bench: &Bench, guest: &mut Guest) -> Result<(), GuestError> {
    guest.run("ip netns del left; ip netns del right; rmmod ixgbe")?;
    guest.run(&up("ixgbe"))?;
    guest.run(LINKED)?;
    let output = guest.run("ip netns exec right ping -c 5 -i 0.1 -w 20 192.0.2.1")?;
    assert!(output.contains(" 5 received, 0% packet loss"), "{output}");
    assert_eq!(bench.violations(), BTreeMap::new());
    Ok(())
}

/// Two X540: Linux finds their PHYs, says what to offer, and follows what they agree on with the other side.
#[test]
fn linux_is_content_with_the_copper_phy_of_an_x540() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let bench = Bench::new([0x1528, 0x1560]);
    let mut guest = kit.boot(&bench.machine())?;
    guest.run(&up("ixgbe"))?;
    guest.run(LINKED)?;
    let output = guest.run("ip netns exec left ping -c 20 -i 0.05 -w 20 192.0.2.2")?;
    assert!(output.contains(" 20 received, 0% packet loss"), "{output}");
    // The other side offers less; then this one does.
    let slower = Offer { gbit_10: false, ..Offer::ALL };
    bench.world.with(0, |device| device.nic.partner = slower);
    guest.run(&format!("ip netns exec left ethtool -r left\n{}", at_speed(1000)))?;
    guest.run(&format!("ip netns exec left ethtool -s left advertise 0x8\n{}", at_speed(100)))?;
    let mut broken = bench.violations();
    // What it counts of a management controller's packets, and when time stamps are taken: an X540's alone, and not modelled.
    let unknown =
        [0x2f90, 0x41c0, 0x41c4, 0x87b0, 0x8c20].map(|at| format!("no register has offset {at:#x}"));
    broken.retain(|line, _| !unknown.iter().any(|words| line.ends_with(words)));
    assert_eq!(broken, BTreeMap::new(), "what Linux does is allowed");
    guest.power_off()
}

/// Waits until the left end has a link of so many Mbit/s.
fn at_speed(mbps: u32) -> String {
    format!(
        "for try in $(seq 150); do
            ip netns exec left ethtool left | grep -q 'Speed: {mbps}Mb/s' && break
            sleep 0.1
        done
        ip netns exec left ethtool left | grep -q 'Speed: {mbps}Mb/s' || {{ ip netns exec left ethtool left; exit 9; }}"
    )
}
