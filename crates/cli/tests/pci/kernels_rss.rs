//! Two engines on an interface that Linux's ixgbe drives, on the model of the 82599: each flow is where RSS has it come, for
//! connections of either side, and goes on there when somebody sets another RSS table.

use bywash_lab::guest::{Guest, GuestError, kit};
use serde_json::Value;

use crate::models::Served;
use crate::prepared;

/// `left` is for us, `right` Linux's in a namespace of its own, where `bywash` is a program on the kernel's sockets. `begin` starts
/// it on `left` in the background and waits until it has begun, `end` ends it and shows its summary.
const WORDS: &str = "
    peer() { ip netns exec peer \"$@\"; }
    linked() {
        for try in $(seq 300); do
            test \"$($2 cat /sys/class/net/$1/carrier 2>/dev/null)\" = 1 && return
            sleep 0.2
        done
        false
    }
    place='--port xdp:left --addr 192.0.2.1/24 --addr fd00::1/64 --memory 32M --huge-pages off --ring 512 --idle sleep'
    begin() {
        rm -f /run/ours.out
        /host/bywash \"$@\" $place --json >/run/ours.out 2>/run/ours.err & echo $! >/run/ours.pid
        for try in $(seq 600); do
            grep -qs '\"event\":\"start\"' /run/ours.out && break
            kill -0 $(cat /run/ours.pid) || { cat /run/ours.err; exit 9; }
            sleep 0.2
        done
        linked left; linked right peer
    }
    end() {
        kill -INT $(cat /run/ours.pid)
        for try in $(seq 300); do
            kill -0 $(cat /run/ours.pid) 2>/dev/null || break
            sleep 0.2
        done
        cat /run/ours.err >&2; tail -n 1 /run/ours.out
    }
    load='/host/bywash tcp load http --connections 20 --duration 200s --json'";

const BEGIN: &str = "
    modprobe ixgbe; modprobe af_packet || true
    ip link set dev $(ls /sys/bus/pci/devices/0000:01:00.0/net) name left
    sysctl -q net.ipv6.conf.left.disable_ipv6=1
    ip netns add peer
    ip link set dev $(ls /sys/bus/pci/devices/0000:02:00.0/net) name right netns peer
    peer ip addr add 192.0.2.2/24 dev right; peer ip addr add fd00::2/64 dev right nodad
    ip link set dev left up; peer ip link set dev right up; peer ip link set dev lo up
    # With LRO it has no native XDP.
    ethtool -K left lro off
    ethtool -l left; ethtool -x left";

fn run(guest: &mut Guest, script: &str) -> Result<String, GuestError> {
    guest.run(&format!("{WORDS}\n{script}"))
}

/// The reports that the script's output has, a line each.
fn reports(output: &str) -> Vec<Value> {
    output
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// That both engines have received, and how much of it was for the other one.
fn handed_over(summary: &Value) -> (u64, u64) {
    let engines = summary["engines"].as_array().unwrap();
    let received = engines.iter().map(|engine| engine["rx_packets"].as_u64().unwrap());
    assert!(engines.len() == 2 && received.clone().all(|packets| packets > 50), "{summary}");
    (summary["handed_over"].as_u64().unwrap(), received.sum())
}

#[test]
fn engines_have_the_flows_that_rss_of_linuxs_driver_gives_them() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let served = Served::new();
    let mut guest = kit.boot(&prepared(served.machine()))?;
    let before = run(&mut guest, BEGIN)?;
    assert!(before.contains("RX ring(s)") && before.contains("toeplitz: on"), "{before}");

    let said = run(&mut guest, "/host/bywash serve $place --duration 1s 2>&1")?;
    assert!(said.contains("with 2 engines, flows spread by RSS"), "{said}");

    // Theirs, and ours: each engine chooses ports by which the answers come to itself.
    let theirs = run(
        &mut guest,
        "begin tcp http; grep '\"event\":\"start\"' /run/ours.out
         for to in 192.0.2.1:80 [fd00::1]:80; do peer $load $to --kernel --requests 400 | tail -n 1; done
         end",
    )?;
    let ours = run(
        &mut guest,
        "ip netns exec peer /host/bywash tcp http --kernel --quiet & server=$!
         for try in $(seq 300); do peer netstat -ltn | grep -q :80 && break; sleep 0.2; done
         for to in 192.0.2.2:80 [fd00::2]:80; do $load $to $place --requests 400 | tail -n 1; done
         kill -INT $server; wait $server",
    )?;
    let (theirs, ours) = (reports(&theirs), reports(&ours));
    let [start, clients @ .., summary] = &theirs[..] else { panic!("{theirs:?}") };
    assert_eq!(start["spread_by"], "nic", "{start}");
    for report in clients.iter().chain(&ours) {
        assert_eq!((&report["requests"], &report["errors"]), (&400.into(), &0.into()), "{report}");
    }
    assert_eq!((clients.len(), ours.len()), (2, 2));
    for summary in ours.iter().chain([summary]) {
        let (handed_over, received) = handed_over(summary);
        // Two flows may have the same signature for its flow director.
        assert!(handed_over * 50 <= received, "{summary}");
    }

    let changed = run(
        &mut guest,
        "begin tcp http
         peer $load 192.0.2.1:80 --kernel --rate 100 --requests 800 >/run/theirs.out & client=$!
         sleep 4; ethtool -X left equal 1
         wait $client; tail -n 1 /run/theirs.out; end
         begin tcp http; grep '\"event\":\"start\"' /run/ours.out
         peer $load 192.0.2.1:80 --kernel --requests 400 | tail -n 1; end; ethtool -X left default",
    )?;
    let changed = reports(&changed);
    let [client, summary, start, later, alone] = &changed[..] else { panic!("{changed:?}") };
    for (report, requests) in [(client, 800), (later, 400)] {
        assert_eq!((&report["requests"], &report["errors"]), (&requests.into(), &0.into()), "{report}");
    }
    assert!(handed_over(summary).0 > 100, "{summary}");
    // By a table that leaves a queue out no engine can have all that comes by its own.
    assert_eq!(start["spread_by"], "software", "{start}");
    assert!(alone["handed_over"].as_u64().unwrap() > 100, "{alone}");
    guest.power_off()
}
