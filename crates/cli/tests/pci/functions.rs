//! Two virtual functions of QEMU's 82576, each with a process of its own, beside the kernel's traffic on the NIC itself.
//!
//! `f0` and `f1` are namespaces whose only interface is one end of a veth pair; a `bywash forward` carries its packets to and
//! from a virtual function with the same address. `peer` has Linux's driver on the other NIC of the cable.

use bywash_lab::guest::{Guest, GuestError};

use crate::program::{GROUP, LAST, MAC, VLAN, frame, program};
use crate::steering::{capture, escaped};
use crate::{lines_say, number};

/// Words for every script.
const WORDS: &str = "
    nic=/sys/bus/pci/devices/0000:01:00.0
    pf=$(ls $nic/net)
    at() { space=$1; shift; ip netns exec $space $*; }
    # Waits until a command says yes.
    until_it() { for try in $(seq 600); do $* && return; sleep 0.1; done; echo no: $*; cat /run/?.err; exit 7; }
    linked() { test \"$(at $1 cat /sys/class/net/$2/carrier 2>/dev/null)\" = 1; }
    is_gone() { ! kill -0 $1 2>/dev/null; }
    has_begun() { grep -qs . /run/$1.out || is_gone $(cat /run/$1.pid); }
    # What carries packets of the namespace with this number.
    tool() {
        rm -f /run/$1.out
        /host/bywash forward pci:0000:01:10.$(($1 * 2)) packet:outside$1 --queues 1 --idle sleep --json --memory 24M --huge-pages require \\
            >/run/$1.out 2>/run/$1.err &
        echo $! >/run/$1.pid
        until_it has_begun $1
        grep -q . /run/$1.out || { cat /run/$1.err; exit 9; }
    }
    stop() { kill -$2 $(cat /run/$1.pid); until_it is_gone $(cat /run/$1.pid); }
    # The address of an interface answers, however long the way takes to come up again.
    answers() { at $1 ping -c 1 -W 1 $2 >/dev/null; }
    # It goes on until it has ten answers, and may have more by then.
    pings() { until_it answers $1 $2; at $1 ping -c 10 -i 0.1 -w 60 $2 | grep -o '1[0-9] received'; }";

/// Everything, in one guest.
pub(crate) fn checks(guest: &mut Guest) -> Result<(), GuestError> {
    let mut run = |script: &str| guest.run(&format!("{WORDS}\n{script}"));
    run("echo 48 > /proc/sys/vm/nr_hugepages
        modprobe veth; modprobe af_packet || true; modprobe vfio-pci
        sysctl -q net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
        for space in peer f0 f1; do ip netns add $space; done
        ip link set dev $(ls /sys/bus/pci/devices/0000:02:00.0/net) name peer netns peer
        # Room for all that is generated: a busy machine may leave the kernel without a processor for long.
        at peer ethtool -G peer rx 4096
        ip -n peer addr add 192.0.2.2/24 dev peer; ip -n peer link set dev peer up
        ip link set dev $pf up; /host/bywash vf create $pf 2 --mac 02:00:00:00:01:00 --bind --huge-pages 96M
        for i in 0 1; do
            ip link add inside$i netns f$i mtu 9000 type veth peer name outside$i mtu 9000; ip link set dev outside$i up
            ip -n f$i link set dev inside$i address 02:00:00:00:01:0$i up
            ip -n f$i addr add 192.0.2.1$i/24 dev inside$i
        done
        ip addr add 192.0.2.1/24 dev $pf
        until_it linked peer peer")?;
    registers(&mut run)?;
    traffic(&mut run)?;
    long_packets(&mut run)?;
    killed(&mut run)?;
    assert_eq!(run("dmesg | grep 'DMAR:.*fault' || true")?, "");
    strays(&mut run)?;
    reset(&mut run)?;
    refusals(&mut run)?;
    mailbox(&mut run)?;
    generated(&mut run)?;
    assert_eq!(run("dmesg | grep 'DMAR:.*fault' || true")?, "");
    Ok(())
}

type Run<'a> = dyn FnMut(&str) -> Result<String, GuestError> + 'a;

/// Registers of a function have names of their own.
fn registers(run: &mut Run<'_>) -> Result<(), GuestError> {
    let output = run("for name in CTRL STATUS; do /host/bywash registers pci:0000:01:10.0 $name; done")?;
    let wanted = [
        "82576 virtual function [8086:10ca]",
        "CTRL  0x00000  0x",
        "82576 virtual function",
        "STATUS  0x00008  0x",
    ];
    lines_say(&output, &wanted);
    assert!(output.contains(": RST=0") && output.contains(" LU=1 "), "{output}");
    Ok(())
}

/// Both functions reach the cable's other end, and each other inside the NIC, and so does the kernel on the NIC itself. Checksums
/// are made by the functions, which cut long segments as well.
fn traffic(run: &mut Run<'_>) -> Result<(), GuestError> {
    let output = run("tool 0; tool 1
        pings f0 192.0.2.2; pings f1 192.0.2.2; pings f0 192.0.2.11
        ping -c 10 -i 0.1 -w 60 192.0.2.2 | grep -o '1[0-9] received'
        interrupts() { awk '/vfio-msi.*0000:01:10.0/ { for (i = 2; $i ~ /^[0-9]+$/; i++) n += $i } END { print n + 0 }' /proc/interrupts; }
        before=$(interrupts)
        at f0 ping -c 10 -i 0.3 -w 30 192.0.2.2 | tail -n 1 | sed 's|.* = |least |; s|/.*||'
        echo interrupts $(($(interrupts) - before))
        at peer iperf3 -s -D
        serves() { at peer netstat -ltn | grep -q :5201; }
        until_it serves
        at peer ethtool -K peer rx off
        at f0 iperf3 -c 192.0.2.2 -n 4M >/dev/null; at f0 iperf3 -c 192.0.2.2 -n 2M -R >/dev/null
        at f0 nstat -asz TcpInCsumErrors; at peer nstat -asz TcpInCsumErrors")?;
    assert_eq!(output.matches(" received").count(), 4, "{output}");
    // Without interrupts a worker that sleeps would look again after 100 ms.
    assert!(number(&output, "least") < 60.0 && number(&output, "interrupts") >= 10.0, "{output}");
    assert_eq!(output.matches("TcpInCsumErrors                 0 ").count(), 2, "{output}");
    Ok(())
}

/// Functions have packets of several frames, both ways, whatever the MTU of the NIC itself.
fn long_packets(run: &mut Run<'_>) -> Result<(), GuestError> {
    let output = run("cat /sys/class/net/$pf/mtu
        ip -n peer link set dev peer mtu 9000
        until_it answers f0 192.0.2.2
        at f0 ping -c 10 -i 0.1 -w 60 -s 8000 -M do 192.0.2.2 | grep -o '1[0-9] received'")?;
    assert!(output.starts_with("1500\n1") && output.ends_with(" received"), "{output}");
    Ok(())
}

/// A program tells its function addresses where nothing is mapped for it: the IOMMU lets none of that through, and the other
/// function and the kernel go on.
fn strays(run: &mut Run<'_>) -> Result<(), GuestError> {
    let output = run(&format!(
        "stop 0 INT
        {} 2>&1 | grep strayed
        dmesg | grep 'DMAR:.*01:10.0.*fault' | head -n 1; dmesg -c >/dev/null
        pings f1 192.0.2.2
        ping -c 10 -i 0.1 -w 60 192.0.2.2 | grep -o '1[0-9] received'
        tool 0; pings f0 192.0.2.2",
        program("stray 0000:01:10.0")
    ))?;
    assert!(output.starts_with("strayed\n") && output.contains("fault addr 0x11"), "{output}");
    assert_eq!(output.matches(" received").count(), 3, "{output}");
    Ok(())
}

/// A function gets what it has asked its physical one for, and nothing else: packets to an address of its own, to a group, and of a
/// VLAN; and it sends into that VLAN.
fn mailbox(run: &mut Run<'_>) -> Result<(), GuestError> {
    let (all, other) = ([0xff; 6], [1, 0, 0x5e, 9, 9, 9]);
    let frames = [
        frame(MAC, None, 0x88b5),
        frame([2, 0, 0, 0, 2, 0], None, 0x88b5),
        frame(GROUP, None, 0x88b5),
        frame(other, None, 0x88b5),
        frame(all, Some(VLAN), 0x88b5),
        frame(all, Some(VLAN + 1), 0x88b5),
        frame(all, None, LAST),
    ];
    let output = run(&format!(
        "/host/bywash vf set $pf 0 --trust on
        at peer ip link add link peer name tagged type vlan id {VLAN}; at peer ip link set dev tagged up
        printf '{}' > /run/frames.pcap
        {} >/run/0.out 2>/run/0.err & echo $! >/run/0.pid
        listens() {{ grep -q listening /run/0.out || is_gone $(cat /run/0.pid); }}; until_it listens
        until_it linked peer peer; sleep 1
        at peer /host/bywash replay /run/frames.pcap packet:peer --quiet --memory 8M --huge-pages off
        until_it is_gone $(cat /run/0.pid)
        cat /run/0.out /run/0.err; echo tagged $(at peer cat /sys/class/net/tagged/statistics/rx_packets)
        at peer ip link del tagged",
        escaped(&capture(&frames)),
        program("listen-vf 0000:01:10.0")
    ))?;
    let got: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("got ")).collect();
    let expected =
        [&frames[0], &frames[2], &frames[4], &frames[6]].map(|frame| format!("{:02x?}", &frame[..6]));
    assert!(got.len() == 4 && got.iter().zip(&expected).all(|(got, to)| got.starts_with(to)), "{output}");
    assert!(output.contains("\ntagged 10"), "{output}");
    Ok(())
}

/// One process is killed: the other one and the kernel go on, and the function can be had again.
fn killed(run: &mut Run<'_>) -> Result<(), GuestError> {
    let output = run("stop 0 KILL
        pings f1 192.0.2.2
        ping -c 10 -i 0.1 -w 60 192.0.2.2 | grep -o '1[0-9] received'
        tool 0; pings f0 192.0.2.2")?;
    assert_eq!(output.matches(" received").count(), 3, "{output}");
    Ok(())
}

/// The physical function is reset, and has another address for the first function by then: both are agreed on anew, and their
/// packets go on.
fn reset(run: &mut Run<'_>) -> Result<(), GuestError> {
    let output = run("/host/bywash vf set $pf 0 --mac 02:00:00:00:02:00
        ip -n f0 link set dev inside0 address 02:00:00:00:02:00
        ip link set dev $pf down; ip link set dev $pf up
        pings f0 192.0.2.2; pings f1 192.0.2.2
        for i in 0 1; do stop $i INT; tail -n 1 /run/$i.out; done")?;
    assert_eq!(output.matches(" received").count(), 2, "{output}");
    let resets = |line: &str| line.contains("\"pf_resets\":") && !line.contains("\"pf_resets\":0");
    let reports: Vec<&str> = output.lines().filter(|line| resets(line)).collect();
    let changes: Vec<bool> = reports.iter().map(|line| line.contains("\"mac_changes\":1")).collect();
    assert_eq!(changes, [true, false], "{output}");
    Ok(())
}

/// What cannot be is refused in a line, and what is not given is said.
fn refusals(run: &mut Run<'_>) -> Result<(), GuestError> {
    let output = run("receive() {
            code=0
            /host/bywash receive pci:0000:01:10.0 --duration 1s --memory 24M --huge-pages require --json $* 2>&1 || code=$?
            echo code $code
        }
        receive --queues 4
        ip link set dev $pf down; receive; ip link set dev $pf up
        pf_linked() { test \"$(cat /sys/class/net/$pf/carrier)\" = 1; }
        until_it pf_linked
        receive --queues 2")?;
    let wanted = [
        "4 queues: this virtual function has 1 to 2",
        "code 2\n",
        "V2PMAILBOX is 0x",
        "with RSTI: the physical function is not ready; set its interface up",
        "code 2\n",
        "send to this port's address, or broadcast",
        "packets are received by the first queue alone",
        "code 0",
    ];
    let mut rest = output.as_str();
    for words in wanted {
        let at = rest.find(words);
        assert!(at.is_some(), "{words}: {output}");
        rest = &rest[at.unwrap_or(0) + words.len()..];
    }
    Ok(())
}

/// A function sends from both of its queues, all that it is told. When nobody uses the functions any more, they are removed.
fn generated(run: &mut Run<'_>) -> Result<(), GuestError> {
    let output = run("ip -n peer link set dev peer promisc on
        count() { at peer cat /sys/class/net/peer/statistics/rx_packets; }
        before=$(count)
        /host/bywash generate pci:0000:01:10.0 --queues 2 --count 2k --rate 2k --json --memory 24M --huge-pages require | tail -n 1
        has_all() { test $(($(count) - before)) -ge 2000; }
        until_it has_all
        /host/bywash vf destroy $pf; ls /run/bywash; cat $nic/sriov_numvfs")?;
    let report = output.lines().find(|line| line.starts_with('{')).unwrap();
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    let queues = report["queues"].as_array().unwrap().iter();
    let sent: Vec<u64> = queues.map(|queue| queue["packets"].as_u64().unwrap()).collect();
    assert!(
        sent.len() == 2 && sent.iter().sum::<u64>() == 2000 && sent.iter().all(|sent| *sent > 0),
        "{output}"
    );
    assert_eq!(output.lines().last(), Some("0"), "{output}");
    Ok(())
}
