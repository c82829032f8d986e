//! DPDK's ixgbe driver in user space, in one guest with both models, through VFIO and a virtual IOMMU.

use bywash_lab::guest::{GuestError, kit};

use crate::bench::Bench;

/// Gives both NICs to VFIO, and the driver its huge pages.
const BIND: &str = "
    modprobe vfio-pci
    echo 160 > /proc/sys/vm/nr_hugepages
    for nic in 0000:01:00.0 0000:02:00.0; do
        echo vfio-pci > /sys/bus/pci/devices/$nic/driver_override
        echo $nic > /sys/bus/pci/drivers_probe
    done";

/// Frames go round: what a NIC receives the other one sends, back over the cable, to the first one's address. For two seconds, from when all is started.
const FORWARD: &str = "
    trap '' PIPE
    mkfifo /run/input
    dpdk-testpmd -d /usr/lib/x86_64-linux-gnu/dpdk/pmds-25.0 -l 0-1 --no-telemetry --iova-mode=va \
        -a 0000:01:00.0 -a 0000:02:00.0 -- -i --total-num-mbufs=4096 --forward-mode=mac \
        --eth-peer=0,02:00:00:82:59:02 --eth-peer=1,02:00:00:82:59:01 </run/input >/run/testpmd 2>&1 &
    exec 4>/run/input
    for try in $(seq 400); do
        grep -q 'testpmd>' /run/testpmd && break
        sleep 0.1
    done
    echo start tx_first >&4
    sleep 2
    echo stop >&4
    sleep 1
    echo show port stats all >&4
    echo quit >&4
    wait $! && code=0 || code=$?
    cat /run/testpmd
    dmesg | grep 'DMAR:.*fault' || true
    exit $code";

#[test]
fn dpdk_forwards_between_two_nics() -> Result<(), GuestError> {
    // The datasheet forbids both, and DPDK does them all the same.
    let both = |i| DEPARTURES.map(|departure| format!("{i}: {departure}"));
    forwards([0x10fb, 0x10f8], &[both(0), both(1)].concat())
}

#[test]
fn dpdk_forwards_between_two_virtual_functions() -> Result<(), GuestError> {
    forwards([0x10ed, 0x10ed], &[])
}

fn forwards(devices: [u16; 2], departures: &[String]) -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let bench = Bench::new(devices);
    let mut guest = kit.boot(&bench.machine().iommu())?;
    guest.run(BIND)?;
    let output = guest.run(FORWARD)?;
    // What the NICs had counted when the cores stopped, and a second later: of port 0, then of port 1.
    let [stopped, counted] = ["Forward statistics for port", "NIC statistics for port"].map(|title| {
        let ports = output.split(title).skip(1);
        ports.map(|text| ["RX-packets:", "TX-packets:"].map(|name| number(text, name))).collect::<Vec<_>>()
    });
    let [[rx_0, tx_0], [rx_1, tx_1]] = counted[..] else { panic!("{output}") };
    assert_eq!((rx_0, rx_1), (tx_1, tx_0), "{output}");
    // The first two bursts were 32 packets each. They went round all the time, and some of them may have been between the NICs when it stopped.
    let late = stopped.as_flattened().iter().zip(counted.as_flattened());
    let late = late.map(|(stopped, counted)| counted.checked_sub(*stopped)).collect::<Vec<_>>();
    assert!(
        late.len() == 4 && late.iter().all(|late| late.is_some_and(|late| late <= 64)),
        "{late:?}: {output}"
    );
    assert!(rx_0 > 1_000 && rx_1 > 1_000, "{output}");
    assert!(!output.contains("fault"), "{output}");
    assert_eq!(bench.violations().into_keys().collect::<Vec<_>>(), departures);
    guest.power_off()
}

/// What DPDK does differently from the datasheet.
const DEPARTURES: [&str; 2] = [
    "FCTRL[0]: changed while RXCTRL.RXEN is set",
    "RDRXCTL[0]: RSCACKC and FCOE_WRFIX must be set, RSCFRSTSIZE cleared, before the receiver is started",
];

/// The number that follows a name.
fn number(text: &str, name: &str) -> u64 {
    let rest = text.split_once(name).unwrap().1;
    rest.split_whitespace().next().unwrap().parse().unwrap()
}
