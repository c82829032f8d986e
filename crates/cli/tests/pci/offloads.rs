//! What a program of our own has the 82576 do to packets beside what the packet tools ask of it: VLAN tags taken out and put in, and
//! checksums looked at.

use bywash_lab::guest::{Guest, GuestError};

use crate::end::WORDS;
use crate::program::{LAST, frame, program};
use crate::steering::{capture, escaped};

/// With the other NIC in `peer`, as [`crate::end::checks`] leaves it.
pub(crate) fn checks(guest: &mut Guest) -> Result<(), GuestError> {
    let all = [0xff; 6];
    let frames = [
        frame(all, None, 0x88b5),
        frame(all, Some(5), 0x88b5),
        tcp(TCP_CHECKSUM),
        tcp(TCP_CHECKSUM ^ 0x0101),
        frame(all, None, LAST),
    ];
    let output = guest.run(&format!(
        "{WORDS}
        name=$(ls $nic/net); ip addr flush dev $name; ip link set dev $name down
        peer ip link add link peer name tagged type vlan id 7; peer ip link set dev tagged up
        printf '{}' > /run/frames.pcap
        {} >/run/program.out 2>&1 & pid=$!
        for try in $(seq 300); do grep -q listening /run/program.out && break; kill -0 $pid || break; sleep 0.1; done
        linked peer peer; sleep 1
        peer /host/bywash replay /run/frames.pcap packet:peer --quiet --memory 8M --huge-pages off
        wait $pid || {{ cat /run/program.out; exit 9; }}
        cat /run/program.out; echo tagged $(peer cat /sys/class/net/tagged/statistics/rx_packets)
        peer ip link del tagged; driver",
        escaped(&capture(&frames)),
        program("listen 0000:01:00.0")
    ))?;
    let got: Vec<&str> =
        output.lines().filter_map(|line| line.strip_prefix("got [ff, ff, ff, ff, ff, ff] ")).collect();
    let wanted = [
        "kind 88b5 vlan none checksum unknown",
        // Its tag is no longer in it.
        "kind 88b5 vlan 5 checksum unknown",
        "kind 0800 vlan none checksum valid",
        "kind 0800 vlan none checksum bad",
        "kind 88b6 vlan none checksum unknown",
    ];
    assert_eq!(got, wanted, "{output}");
    for (counter, packets) in [("tx_good_packets", 10), ("tx_broadcast", 10), ("rx_broadcast", 5)] {
        assert!(output.contains(&format!("counter {counter} {packets}\n")), "{counter}: {output}");
    }
    assert!(output.contains("\ntagged 10\n"), "{output}");
    assert_eq!(output.lines().last(), Some("igb"), "{output}");
    Ok(())
}

/// What stands in [`tcp`] when it is right.
const TCP_CHECKSUM: u16 = 0xe46e;

/// A TCP segment without data, from 192.0.2.2 to 192.0.2.1.
fn tcp(checksum: u16) -> Vec<u8> {
    let mut frame = frame([0xff; 6], None, 0x0800);
    let ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0xf6, 0xcc, 192, 0, 2, 2, 192, 0, 2, 1];
    frame[14..34].copy_from_slice(&ip);
    let segment = [0, 80, 0x27, 0x10, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0x20, 0];
    frame[34..50].copy_from_slice(&segment);
    frame[50..52].copy_from_slice(&checksum.to_be_bytes());
    frame
}
