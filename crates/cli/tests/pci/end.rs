//! What is done at both ends of the cable: `0000:01:00.0` is taken, `0000:02:00.0` stays Linux's, as `peer` with 192.0.2.2 in a
//! namespace of its own.

use bywash_lab::guest::{Guest, GuestError};

use crate::{lines_say, number};

/// What is different from NIC to NIC.
pub(crate) struct Checks {
    /// Linux's driver for it.
    pub(crate) driver: &'static str,
    /// What it is sold as, and its PCI ids.
    pub(crate) nic: &'static str,
    /// Queues that RSS is to spread packets over.
    pub(crate) queues: usize,
    /// What ethtool calls the link's speed.
    pub(crate) speed: &'static str,
}

/// Words for every script. `tool` starts bywash in the background, for as long as it is not stopped, and waits until it has
/// the NIC; `linked` waits until an interface has a carrier, `peer` in its namespace.
pub(crate) const WORDS: &str = "
    nic=/sys/bus/pci/devices/0000:01:00.0
    driver() { basename $(readlink $nic/driver); }
    memory='--memory 32M --huge-pages require'
    tool() {
        # What an earlier one has said is no sign of this one.
        rm -f /run/tool.out
        /host/bywash \"$@\" $memory >/run/tool.out 2>/run/tool.err & pid=$!
        for try in $(seq 300); do
            grep -qs . /run/tool.out && break
            kill -0 $pid || break
            sleep 0.1
        done
        test $(driver) = vfio-pci || { cat /run/tool.err; exit 9; }
        linked peer peer
    }
    # What has ended by itself says why.
    stop() {
        kill -INT $pid || { tail -n 3 /run/tool.out /run/tool.err; wait $pid || echo code $?; exit 7; }
        wait $pid || { cat /run/tool.err; exit 8; }
    }
    # What ends by itself, once it has what it waits for.
    ended() { wait $pid || { tail -n 3 /run/tool.out /run/tool.err; exit 8; }; }
    peer() { ip netns exec peer $*; }
    linked() {
        for try in $(seq 150); do
            test \"$($2 cat /sys/class/net/$1/carrier 2>/dev/null)\" = 1 && return
            sleep 0.1
        done
        false
    }";

/// Everything, in one guest: to boot one takes longer than most of it.
pub(crate) fn checks(guest: &mut Guest, checks: &Checks) -> Result<(), GuestError> {
    let mut run = |script: &str| guest.run(&format!("{WORDS}\n{script}"));
    run(&format!(
        "echo 48 > /proc/sys/vm/nr_hugepages
        modprobe {driver}; modprobe veth; modprobe af_packet || true
        sysctl -q net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
        ip netns add peer
        ip link set dev $(ls /sys/bus/pci/devices/0000:02:00.0/net) name peer netns peer
        # Room for all that is generated: a busy machine may leave the kernel without a processor for long.
        peer ethtool -G peer rx 4096
        ip -n peer addr add 192.0.2.2/24 dev peer
        ip -n peer link set dev peer promisc on up",
        driver = checks.driver
    ))?;
    refusals(&mut run, checks)?;
    registers(&mut run, checks)?;
    traffic(&mut run, checks)?;
    generated(&mut run, checks)?;
    spread(&mut run, checks)?;
    killed(&mut run, checks)?;
    let faults = run("dmesg | grep 'DMAR:.*fault' || true")?;
    assert_eq!(faults, "");
    Ok(())
}

type Run<'a> = dyn FnMut(&str) -> Result<String, GuestError> + 'a;

/// What is missing or in the way is said in a line, and nothing is changed.
fn refusals(run: &mut Run<'_>, checks: &Checks) -> Result<(), GuestError> {
    let output = run(
        "name=$(ls $nic/net); ip addr add 198.51.100.1/24 dev $name
        refused() { /host/bywash receive pci:$1 --duration 1s --memory 8M --huge-pages off 2>&1 && exit 7 || echo code $?; }
        refused 0000:01:00.0; driver
        ip addr del 198.51.100.1/24 dev $name
        refused 0000:01:00.0; driver
        modprobe vfio-pci
        refused 0000:09:00.0
        refused 0000:00:00.0
        refused 0000:02:00.0
        refused eth0
        refused '0000:01:00.0 --no-iommu'; driver",
    )?;
    let wanted = [
        "has the address 198.51.100.1/24",
        "code 2",
        checks.driver,
        "modprobe vfio-pci",
        "code 2",
        checks.driver,
        "there is no PCI device at 0000:09:00.0",
        "code 2",
        "is no NIC that there is a driver for",
        "code 2",
        "its interface is in another network namespace",
        "code 2",
        "is no PCI address",
        "code 2",
        "it is behind an IOMMU, in group",
        "code 2",
        checks.driver,
    ];
    lines_say(&output, &wanted);
    Ok(())
}

/// Registers are shown by name and field, of a NIC that the kernel does not use, and that is the kernel's again afterwards.
fn registers(run: &mut Run<'_>, checks: &Checks) -> Result<(), GuestError> {
    let output = run("shown() { /host/bywash registers pci:0000:01:00.0 $* 2>&1 || echo code $?; }
        shown CTRL; shown STATUS; shown RDLEN --no-iommu
        driver; name=$(ls $nic/net); ip addr add 198.51.100.1/24 dev $name
        shown STATUS; shown STATUS --force
        driver; ip addr flush dev $(ls $nic/net)")?;
    let wanted = [
        checks.nic,
        "CTRL  0x00000  0x",
        checks.nic,
        "STATUS  0x00008  0x",
        "it is behind an IOMMU, in group",
        "code 2",
        checks.driver,
        "has the address 198.51.100.1/24",
        "code 2",
        checks.nic,
        "STATUS  0x00008  0x",
        checks.driver,
    ];
    lines_say(&output, &wanted);
    let of = |name| output.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(of("CTRL").contains("GIO_DIS=0") && of("CTRL").contains("RST=0"), "{output}");
    assert!(of("STATUS").contains(" LAN_ID=0") && of("STATUS").contains("GIO"), "{output}");
    Ok(())
}

/// A veth's packets go by the NIC: what the kernel leaves to its device, checksums and cutting, the NIC does.
fn traffic(run: &mut Run<'_>, checks: &Checks) -> Result<(), GuestError> {
    let output = run("ip link add inside mtu 9000 type veth peer name outside mtu 9000
        ip addr add 192.0.2.1/24 dev inside; ip link set dev inside up; ip link set dev outside up
        tool forward pci:0000:01:00.0/mtu=9000 packet:outside --queues 1 --json --idle sleep
        ip netns exec peer ethtool -K peer rx off
        ping -c 20 -i 0.05 -w 20 192.0.2.2
        interrupts() { awk '/vfio-msi.*0000:01:00.0/ { for (i = 2; $i ~ /^[0-9]+$/; i++) n += $i } END { print n + 0 }' /proc/interrupts; }
        before=$(interrupts)
        ping -c 10 -i 0.3 -w 30 192.0.2.2 | tail -n 1 | sed 's|.* = |least |; s|/.*||'
        echo interrupts $(($(interrupts) - before))
        peer ethtool peer | grep Speed
        peer iperf3 -s -D
        for try in $(seq 150); do peer netstat -ltn | grep -q :5201 && break; sleep 0.1; done
        iperf3 -c 192.0.2.2 -n 16M
        iperf3 -c 192.0.2.2 -n 8M -R
        peer nstat -asz TcpInCsumErrors; nstat -asz TcpInCsumErrors
        peer ip link set dev peer mtu 9000; linked peer peer
        for try in $(seq 20); do ping -c 1 -W 1 192.0.2.2 >/dev/null && break; done
        ping -c 10 -i 0.1 -w 60 -s 8000 -M do 192.0.2.2 | grep -o '1[0-9] received' | sed 's/^/long: /'
        stop; cat /run/tool.err; tail -n 1 /run/tool.out
        ip link del inside; driver")?;
    assert!(output.contains(" received, 0% packet loss"), "{output}");
    assert!(output.contains(checks.speed), "{output}");
    // Without interrupts a worker that sleeps would look again after 100 ms.
    assert!(number(&output, "least") < 60.0 && number(&output, "interrupts") >= 10.0, "{output}");
    assert!(output.contains("long: 1"), "{output}");
    // The 82599 does not count what it cuts; its model does.
    let cut = output.split_once("\"tx_cut\":").map(|(_, rest)| rest.split([',', '}']).next().unwrap());
    let cut = cut.map(|number| number.parse::<u64>().unwrap());
    assert!(if checks.driver == "igb" { cut > Some(100) } else { cut.is_none() }, "{cut:?}: {output}");
    assert_eq!(output.matches("TcpInCsumErrors                 0 ").count(), 2, "{output}");
    assert_eq!(output.lines().last(), Some(checks.driver), "{output}");
    Ok(())
}

/// What is generated arrives, all of it.
fn generated(run: &mut Run<'_>, _: &Checks) -> Result<(), GuestError> {
    let output = run("count() { peer cat /sys/class/net/peer/statistics/rx_packets; }
        before=$(count)
        /host/bywash generate pci:0000:01:00.0 --queues 2 --count 4k --rate 4k --json $memory | tail -n 1
        for try in $(seq 100); do test $(($(count) - before)) -ge 4000 && break; sleep 0.1; done
        echo arrived $(($(count) - before))")?;
    assert!(output.contains("\"tx_packets\":4000"), "{output}");
    for counter in ["\"tx_good_packets\":4000", "\"tx_64\":4000"] {
        assert!(output.contains(counter), "{counter}: {output}");
    }
    let arrived: u64 = output.rsplit(' ').next().unwrap().parse().unwrap();
    // Linux may say a word of its own; nobody else is on the cable.
    assert!((4000..4010).contains(&arrived), "{output}");
    Ok(())
}

/// Packets of many sources are spread over the queues, each of which gets a fair share.
fn spread(run: &mut Run<'_>, checks: &Checks) -> Result<(), GuestError> {
    let output = run(&format!(
        "tool receive pci:0000:01:00.0 --queues {} --count 2k --duration 120s --json
        # It says so by its exit code when emulation is too slow for the rate.
        peer /host/bywash generate packet:peer --count 2k --rate 500 --spread --quiet --memory 8M --huge-pages off || true
        ended; tail -n 1 /run/tool.out",
        checks.queues
    ))?;
    let last = output.lines().last().unwrap();
    let report: serde_json::Value = serde_json::from_str(last).unwrap();
    let shares: Vec<u64> =
        report["queues"].as_array().unwrap().iter().map(|row| row["packets"].as_u64().unwrap()).collect();
    let all: u64 = shares.iter().sum();
    assert_eq!(shares.len(), checks.queues, "{last}");
    assert!(all >= 2000 && shares.iter().all(|share| share * 100 > all * 15), "{last}");
    Ok(())
}

/// A killed process leaves the NIC quiet; `cleanup` gives it back to Linux's driver, which goes on with it.
fn killed(run: &mut Run<'_>, checks: &Checks) -> Result<(), GuestError> {
    let output = run("tool receive pci:0000:01:00.0 --json
        # Whether it may reach memory: a bit of its command register.
        dma() { echo dma $(($(hexdump -s 4 -n 2 -e '1/2 \"%u\"' $nic/config) / 4 % 2)); }
        # It says when emulation is too slow for the rate.
        peer /host/bywash generate packet:peer --rate 2k --duration 4s --quiet --memory 8M --huge-pages off 2>/dev/null & flood=$!
        sleep 1; dma
        kill -9 $pid; wait $pid || true
        dma; driver
        wait $flood || true
        dma
        /host/bywash cleanup
        driver; cat $nic/driver_override
        name=$(ls $nic/net)
        ip addr add 192.0.2.1/24 dev $name; ip link set dev $name up; linked $name; linked peer peer
        ping -c 5 -i 0.1 -w 20 192.0.2.2")?;
    let output = output.replace("Killed\n", "");
    let back = format!(
        "dma 1\ndma 0\nvfio-pci\ndma 0\nput back: 0000:01:00.0 is driven by {0} again, not by vfio-pci\n{0}\n(null)\n",
        checks.driver
    );
    assert!(output.contains(&back), "{output}");
    assert!(output.contains(" received, 0% packet loss"), "{output}");
    Ok(())
}
