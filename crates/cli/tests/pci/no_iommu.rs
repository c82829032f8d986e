//! Without an IOMMU: what is refused, traffic by physical addresses, and what is left of a NIC whose program was killed.
//!
//! One NIC of each pair is taken, the other stays Linux's, as `peer` with 192.0.2.2 in a namespace of its own.

use bywash_lab::guest::{Guest, GuestError};

use crate::lines_say;

/// A pair of NICs on a cable.
pub(crate) struct Pair {
    /// Linux's driver for them.
    pub(crate) driver: &'static str,
    /// Address of the one that is taken, and of the other.
    pub(crate) addresses: [&'static str; 2],
}

/// Words for every script.
const WORDS: &str = "
    nic=/sys/bus/pci/devices/$taken
    memory='--no-iommu --memory 32M --huge-pages require'
    driver() { test -e $nic/driver && basename $(readlink $nic/driver) || echo none; }
    # Whether it may reach memory: a bit of its command register.
    dma() { echo dma $(($(hexdump -s 4 -n 2 -e '1/2 \"%u\"' $nic/config) / 4 % 2)); }
    guards() { grep -lx bywash-guard /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3; }
    until_it() { for try in $(seq 600); do $* && return; sleep 0.1; done; echo no: $*; cat /run/tool.err; exit 7; }
    no_guards() { test -z \"$(guards)\"; }
    linked() { test \"$($2 cat /sys/class/net/$1/carrier 2>/dev/null)\" = 1; }
    has_begun() { grep -qs . /run/tool.out || ! kill -0 $pid 2>/dev/null; }
    tool() {
        rm -f /run/tool.out
        /host/bywash $* $memory >/run/tool.out 2>/run/tool.err & pid=$!
        until_it has_begun
        test $(driver) = none || { cat /run/tool.err; exit 9; }
        until_it linked peer peer
    }
    stop() { kill -INT $pid; wait $pid || { cat /run/tool.err; exit 8; }; }
    peer() { ip netns exec peer $*; }
    free_pages() { grep HugePages_Free /proc/meminfo | tr -s ' '; }
    # Linux's driver has it again, and goes on with it.
    works() {
        name=$(ls $nic/net)
        ip addr add 192.0.2.1/24 dev $name; ip link set dev $name up
        until_it linked $name; until_it linked peer peer
        ping -c 5 -i 0.1 -w 20 192.0.2.2 | grep -o '[5-9] received'
        ip addr flush dev $name; ip link set dev $name down
    }";

/// Everything, for one pair.
pub(crate) fn checks(guest: &mut Guest, pair: &Pair) -> Result<(), GuestError> {
    let Pair { driver, addresses: [taken, other] } = pair;
    let mut run = |script: &str| guest.run(&format!("taken={taken}\n{WORDS}\n{script}"));
    run(&format!(
        "echo 24 > /proc/sys/vm/nr_hugepages
        modprobe {driver}; modprobe veth; modprobe af_packet || true
        sysctl -q net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
        ip netns add peer
        ip link set dev $(ls /sys/bus/pci/devices/{other}/net) name peer netns peer
        ip -n peer addr add 192.0.2.2/24 dev peer
        ip -n peer link set dev peer promisc on up"
    ))?;
    refusals(&mut run, driver)?;
    registers(&mut run, driver)?;
    traffic(&mut run, driver)?;
    killed(&mut run, driver)?;
    killed_with_its_guard(&mut run, driver)?;
    if *driver == "igb" {
        virtual_function(&mut run)?;
    }
    run("ip netns del peer")?;
    Ok(())
}

type Run<'a> = dyn FnMut(&str) -> Result<String, GuestError> + 'a;

/// What is missing or in the way is said in a line, and nothing is changed.
fn refusals(run: &mut Run<'_>, driver: &str) -> Result<(), GuestError> {
    let output = run(
        "refused() { /host/bywash receive --duration 1s --memory 8M $* 2>&1 && exit 7 || echo code $?; driver; }
        refused pci:$taken --huge-pages require
        refused pci:$taken --huge-pages off --no-iommu
        refused loop:a --no-iommu
        name=$(ls $nic/net); ip addr add 198.51.100.1/24 dev $name
        refused pci:$taken --huge-pages require --no-iommu
        ip addr del 198.51.100.1/24 dev $name",
    )?;
    let wanted = [
        "or take that risk with --no-iommu",
        "must be of huge pages of 2 MiB",
        "--no-iommu is for pci: ports",
        "has the address 198.51.100.1/24",
    ];
    let wanted: Vec<&str> = wanted.iter().flat_map(|words| [*words, "code 2", driver]).collect();
    lines_say(&output, &wanted);
    Ok(())
}

/// Registers are shown as a reset has left them, and Linux's driver has the NIC again afterwards.
fn registers(run: &mut Run<'_>, driver: &str) -> Result<(), GuestError> {
    let output = run("shown() { /host/bywash registers pci:$taken $* 2>&1 || echo code $?; driver; }
        shown CTRL; shown CTRL --no-iommu; shown STATUS --no-iommu; works")?;
    let wanted = [
        "or take that risk with --no-iommu",
        "code 2",
        driver,
        "CTRL  0x00000  0x",
        driver,
        "STATUS  0x00008  0x",
        driver,
    ];
    let mut lines = output.lines();
    for words in wanted {
        assert!(lines.any(|line| line.contains(words)), "{words}: {output}");
    }
    assert!(lines.next().is_some_and(|line| line.ends_with(" received")), "{output}");
    Ok(())
}

/// Packets go both ways, long ones too; the risk is said; and nobody else may have the NIC meanwhile.
fn traffic(run: &mut Run<'_>, driver: &str) -> Result<(), GuestError> {
    let output = run("ip link add inside type veth peer name outside
        ip addr add 192.0.2.1/24 dev inside; ip link set dev inside up; ip link set dev outside up
        tool forward pci:$taken packet:outside --queues 1 --json --idle sleep
        /host/bywash receive pci:$taken --no-iommu --memory 2M --duration 1s 2>&1 || echo code $?
        /host/bywash cleanup 2>&1; /host/bywash unbind $taken 2>&1 || echo code $?
        dma; ip netns exec peer ethtool -K peer rx off
        ping -c 20 -i 0.05 -w 20 192.0.2.2
        peer iperf3 -s -D
        listens() { peer netstat -ltn | grep -q :5201; }; until_it listens
        iperf3 -c 192.0.2.2 -n 8M; iperf3 -c 192.0.2.2 -n 4M -R
        peer nstat -asz TcpInCsumErrors; nstat -asz TcpInCsumErrors
        killall iperf3; stop; grep warning /run/tool.out; ip link del inside
        dma; guards; driver; cat $nic/driver_override; free_pages")?;
    assert!(output.contains("it is open in another program"), "{output}");
    assert_eq!(output.matches("code 2\n").count(), 2, "{output}");
    assert!(output.contains("lives; it will undo its 1 change itself"), "{output}");
    assert!(output.contains(" received, 0% packet loss"), "{output}");
    assert_eq!(output.matches("TcpInCsumErrors                 0 ").count(), 2, "{output}");
    assert!(output.contains("reaches all of this machine's memory"), "{output}");
    assert!(output.contains("there are no interrupts"), "{output}");
    // Linux's driver has switched it on again.
    assert!(output.ends_with(&format!("dma 1\n{driver}\n(null)\nHugePages_Free: 24")), "{output}");
    Ok(())
}

/// The guard of a killed process makes the NIC quiet at once, though packets come; `cleanup` gives it back to Linux's driver.
fn killed(run: &mut Run<'_>, driver: &str) -> Result<(), GuestError> {
    let output = run("tool receive pci:$taken --queues 1 --json
        # It says when emulation is too slow for the rate.
        peer /host/bywash generate packet:peer --rate 2k --duration 8s --quiet --memory 8M --huge-pages off 2>/dev/null &
        flood=$!; sleep 1; dma
        kill -9 $pid; wait $pid || true; until_it no_guards
        dma; driver; free_pages
        wait $flood || true
        /host/bywash cleanup
        driver; cat $nic/driver_override; works")?;
    let output = output.replace("Killed\n", "");
    assert!(output.starts_with("dma 1\ndma 0\nnone\nHugePages_Free: 24\nput back: "), "{output}");
    assert!(output.contains(&format!("again, not by a program\n{driver}\n(null)\n")), "{output}");
    assert!(output.ends_with(" received"), "{output}");
    Ok(())
}

/// With its guard gone as well the NIC still writes to memory, and `cleanup` ends that before it gives it back.
fn killed_with_its_guard(run: &mut Run<'_>, driver: &str) -> Result<(), GuestError> {
    let output = run("tool receive pci:$taken --queues 1 --json
        kill -9 $(guards) $pid; wait $pid || true; until_it no_guards
        dma; driver
        /host/bywash cleanup
        driver; works")?;
    let output = output.replace("Killed\n", "");
    assert!(output.starts_with("dma 1\nnone\nput back: "), "{output}");
    assert!(output.contains(&format!("again, not by a program\n{driver}\n")), "{output}");
    assert!(output.ends_with(" received"), "{output}");
    Ok(())
}

/// A virtual function, beside Linux's driver on the NIC itself: packets both ways; nobody removes it meanwhile; and when its program
/// is killed it is made quiet, and goes with the others by a cleanup.
fn virtual_function(run: &mut Run<'_>) -> Result<(), GuestError> {
    let output = run("pf=$(ls $nic/net); physical=$nic
        ip link set dev $pf up; until_it linked $pf
        /host/bywash vf create $pf 1 >/dev/null; /host/bywash vf set $pf 0 --mac 02:00:00:00:01:00
        taken=$(basename $(readlink $physical/virtfn0)); nic=$physical/virtfn0
        ip link add inside address 02:00:00:00:01:00 type veth peer name outside
        ip addr add 192.0.2.1/24 dev inside; ip link set dev inside up; ip link set dev outside up
        tool forward pci:$taken packet:outside --queues 1 --json
        ping -c 20 -i 0.1 -w 30 192.0.2.2
        /host/bywash vf destroy $pf 2>&1 || echo code $?
        dma; stop; grep warning /run/tool.out; ip link del inside; dma
        before=$(peer cat /sys/class/net/peer/statistics/rx_packets)
        /host/bywash generate pci:$taken --count 1k --rate 2k --quiet $memory
        arrived() { test $(($(peer cat /sys/class/net/peer/statistics/rx_packets) - before)) -ge 1000; }
        until_it arrived
        tool receive pci:$taken --queues 1 --json
        dma; kill -9 $pid; wait $pid || true; until_it no_guards; dma
        /host/bywash cleanup; cat $physical/sriov_numvfs; ip link set dev $pf down")?;
    let lacks = "there is no IOMMU, so a virtual function can be no program's: switch VT-d or AMD-Vi on";
    assert!(output.contains(lacks) && output.contains("intel_iommu=on"), "{output}");
    assert!(output.contains(" received, 0% packet loss"), "{output}");
    assert!(output.contains("in use") && output.contains("code 2\ndma 1\n"), "{output}");
    assert!(output.contains("reaches all of this machine's memory"), "{output}");
    let output = output.replace("Killed\n", "");
    assert!(output.contains("\ndma 0\ndma 1\ndma 0\nput back: "), "{output}");
    assert!(output.ends_with("\n0"), "{output}");
    Ok(())
}
