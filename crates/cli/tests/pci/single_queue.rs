//! One queue of an interface that Linux's ixgbe drives, on the model of the 82599: the driver's RSS table leaves the queue out, its
//! n-tuple rules give it what `--only` says, the filter gives all of it back, and afterwards `ethtool` shows what it did before:
//! when the filter has ended, and when it was killed and `bywash cleanup` has been run. Rules of others are there throughout, though
//! the driver forgets them.

use bywash_apps::wire::Ipv4Header;
use bywash_apps::wire::zerocopy::IntoBytes;
use bywash_lab::guest::{Guest, GuestError, kit};

use crate::models::Served;
use crate::prepared;

/// Words for every script. `filter` starts it in the background and waits until it has begun; `nic` is what ethtool says of the
/// interface, `shown` what ip and tc say as well, and which others there are.
const WORDS: &str = "
    linked() {
        for try in $(seq 300); do
            test \"$(cat /sys/class/net/left/carrier 2>/dev/null)\" = 1 && return
            sleep 0.2
        done
        false
    }
    nic() { linked; ethtool -x left; ethtool -n left; ethtool -k left; ethtool -l left; }
    shown() {
        nic
        ls /sys/class/net; ip -d link show dev left; tc qdisc show dev left; cat /sys/class/net/left/napi_defer_hard_irqs
    }
    filter() {
        rm -f /run/filter.out
        /host/bywash filter --json --memory 16M --huge-pages off \"$@\" >/run/filter.out 2>/run/filter.err & pid=$!
        echo $pid > /run/filter.pid
        for try in $(seq 600); do
            grep -qs '\"event\":\"start\"' /run/filter.out && break
            kill -0 $pid || { cat /run/filter.err; exit 9; }
            sleep 0.2
        done
        linked
    }
    pid() { cat /run/filter.pid; }
    swap() {
        for name in left right; do ip link set dev $name down; done
        ip link set dev left name third; ip link set dev right name left; ip link set dev third name right
        for name in left right; do ip link set dev $name up; done
    }
    # Until a rule of the filter is in that NIC, at its usual place or another one.
    ruled() {
        for try in $(seq 25); do
            ethtool -n $1 | grep -q \"Filter: ${2:-2045}\" && return
            sleep 0.2
        done
        ethtool -n left; ethtool -n right
        false
    }
    # Until it is gone: the agent has no children that it waits for.
    gone() {
        for try in $(seq 300); do
            kill -0 $(pid) 2>/dev/null || break
            sleep 0.2
        done
        for try in $(seq 300); do
            ip link show dev left | grep -q xdp || return 0
            sleep 0.2
        done
        false
    }";

/// Both NICs are Linux's. Beside its table of 4 queues, `left` is as whoever knows nothing of filters has it.
pub(crate) const BEGIN: &str = "
    modprobe ixgbe; modprobe tun
    sysctl -q net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    for i in 1:left 2:right; do
        name=${i#*:}
        ip link set dev $(ls /sys/bus/pci/devices/0000:0${i%:*}:00.0/net) name $name
        ip link set dev $name up
    done
    ip addr add 192.0.2.1/24 dev left
    ethtool -K left rxvlan on lro on ntuple off
    shown > /run/before; cat /run/before";

pub(crate) fn run(guest: &mut Guest, script: &str) -> Result<String, GuestError> {
    guest.run(&format!("{WORDS}\n{script}"))
}

/// Has the script's output the words?
pub(crate) fn has(output: &str, words: &[&str]) {
    for word in words {
        assert!(output.contains(word), "no '{word}' in {output}");
    }
}

/// The queues of an RSS table as ethtool shows it: the place of the first one in a line, a colon, queues.
fn queues(shown: &str) -> Vec<u32> {
    let line = |line: &str| {
        let (place, queues) = line.trim().split_once(':')?;
        place.parse::<u32>().ok()?;
        queues.split_whitespace().map(|queue| queue.parse().ok()).collect::<Option<Vec<u32>>>()
    };
    shown.lines().filter_map(line).flatten().collect()
}

/// Packets that the interface has counted since: by queue 2, by others, and for UDP ports where nobody listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) ours: u64,
    pub(crate) others: u64,
    pub(crate) no_port: u64,
}

pub(crate) fn counted(guest: &mut Guest) -> Result<Counted, GuestError> {
    let told = run(guest, "ethtool -S left; nstat -asz UdpNoPorts")?;
    let number = |line: &str| line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    let sum = |is_it: &dyn Fn(&str) -> bool| -> u64 {
        told.lines().map(str::trim).filter(|line| is_it(line)).filter_map(number).sum()
    };
    let is_queue = |line: &str| line.starts_with("rx_queue_") && line.contains("_packets:");
    let ours = sum(&|line| line.starts_with("rx_queue_2_packets:"));
    let others = sum(&is_queue) - ours;
    Ok(Counted { ours, others, no_port: sum(&|line| line.starts_with("UdpNoPorts")) })
}

/// Sends packets by the cable, and waits until so many have been counted by queues and by the kernel.
pub(crate) fn send(
    served: &Served,
    guest: &mut Guest,
    ports: &[u16],
    (to_queues, to_kernel): (u64, u64),
) -> Result<Counted, GuestError> {
    let before = counted(guest)?;
    for from in 0..EACH {
        ports.iter().for_each(|port| served.arrive(&udp(10_000 + 7 * from, *port)));
    }
    let mut now = before;
    for _ in 0..100 {
        run(guest, "sleep 0.2")?;
        let all = counted(guest)?;
        now = Counted {
            ours: all.ours - before.ours,
            others: all.others - before.others,
            no_port: all.no_port - before.no_port,
        };
        if now.ours + now.others >= to_queues && now.no_port >= to_kernel {
            break;
        }
    }
    Ok(now)
}

/// Packets for each port.
pub(crate) const EACH: u16 = 200;

/// A UDP packet from the other end to `left`, without a checksum of its own.
fn udp(from: u16, to: u16) -> Vec<u8> {
    let length = 8 + 18;
    let ip = Ipv4Header::new([192, 0, 2, 2].into(), [192, 0, 2, 1].into(), 17, length);
    let mut frame = [&[2, 0, 0, 0, 0, 1][..], &[2, 0, 0, 0, 0, 2], &[8, 0]].concat();
    frame.extend_from_slice(ip.as_bytes());
    frame.extend([from, to, length, 0].iter().flat_map(|word| word.to_be_bytes()));
    frame.extend([0; 18]);
    frame
}

/// The two interfaces change names while they are down: what Linux's ixgbe forgets is added again where it was, the other NIC is left
/// alone; and the same when they change back.
pub(crate) fn names_change(guest: &mut Guest) -> Result<(), GuestError> {
    let changed = run(
        guest,
        "for name in left right; do ethtool -x $name | grep -v indirection > /run/$name.table; done
         swap; ruled right
         ethtool -x right | grep -v indirection | diff /run/left.table -
         ethtool -x left | grep -v indirection | diff /run/right.table -
         ethtool -n left",
    )?;
    has(&changed, &["Total 0 rules"]);
    run(guest, "swap; ruled left; linked").map(drop)
}

/// One guest for all of it: to boot one takes longer than most of what it is for.
#[test]
fn one_queue_is_given_what_only_says_and_given_back() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let served = Served::new();
    let mut guest = kit.boot(&prepared(served.machine().cpus(4)))?;
    let before = run(&mut guest, BEGIN)?;
    assert_eq!(queues(&before).len(), 128, "{before}");
    has(&before, &["Total 0 rules", "large-receive-offload: on", "ntuple-filters: off"]);

    counts_and_gives_back(&served, &mut guest)?;
    queues_change(&mut guest)?;
    is_killed(&mut guest)?;
    others_rules_stay(&served, &mut guest)?;
    drops_by_rules(&served, &mut guest)?;
    refuses(&mut guest)?;
    guest.power_off()
}

/// Without rules: counted, given back, and ended as one does.
fn counts_and_gives_back(served: &Served, guest: &mut Guest) -> Result<(), GuestError> {
    let during =
        run(guest, "filter xdp:left/2/rx --only 'udp dst port 53'; grep steered /run/filter.out; shown")?;
    has(
        &during,
        &[
            "off on left meanwhile: rx-lro, rx-vlan-hw-parse\"",
            "'udp4 dst-port 53' is n-tuple rule 2045 of left, to queue 2\"",
            "the RSS table of left leaves queue 2 out\"",
            "'udp6 dst-port 53' is not in the NIC: left: can't add this n-tuple rule: Invalid argument (os error 22); these packets stay",
            "Filter: 2045",
            "Dest port: 53 mask: 0x0",
            "Action: Direct to queue 2",
            "large-receive-offload: off",
            "rx-vlan-offload: off",
            "ntuple-filters: on",
        ],
    );
    let table = queues(&during);
    assert!(table.len() == 128 && !table.contains(&2), "{during}");
    assert!([0, 1, 3].iter().all(|queue| table.contains(queue)), "{during}");
    let all = u64::from(EACH);
    let came = send(served, guest, &[53, 54], (2 * all, 2 * all))?;
    assert_eq!(came, Counted { ours: all, others: all, no_port: 2 * all }, "given back to the kernel");
    run(guest, "ip link set dev left down; sleep 0.2; ip link set dev left up; linked")?;
    let came = send(served, guest, &[53, 54], (2 * all, 2 * all))?;
    assert_eq!(came, Counted { ours: all, others: all, no_port: 2 * all }, "after it was down");
    names_change(guest)?;
    goes_elsewhere(served, guest)?;
    run(guest, "kill -STOP $(pid)")?;
    // What comes in the half second in which nobody can know that it hangs waits for it.
    let came = send(served, guest, &[53], (all, 0))?;
    assert_eq!(came, Counted { ours: all, others: 0, no_port: 0 });
    run(guest, "sleep 1")?;
    let came = send(served, guest, &[53, 54], (2 * all, 2 * all))?;
    assert_eq!(came, Counted { ours: all, others: all, no_port: 2 * all }, "while the filter hangs");
    let after = run(
        guest,
        "kill -CONT $(pid); sleep 1; kill -INT $(pid); gone; tail -n 1 /run/filter.out; cat /run/filter.err
         shown > /run/after
         diff /run/before /run/after",
    )?;
    let taken = 4 * all;
    has(&after, &[&format!("\"taken_packets\":{taken},"), &format!("\"given_back_packets\":{taken},")]);
    Ok(())
}

/// A place that somebody else has taken before the filter adds its rule again stays his: the rule goes to another one, where a cleanup
/// would find it. One that can't be added at all is told, and comes back when it can be.
fn goes_elsewhere(served: &Served, guest: &mut Guest) -> Result<(), GuestError> {
    // As long as it stands still it adds nothing.
    let went = run(
        guest,
        "kill -STOP $(pid); ip link set dev left down; sleep 0.2; ip link set dev left up; linked
         ethtool -N left flow-type udp4 dst-port 97 action 0 loc 2045
         kill -CONT $(pid); ruled left 2044; ethtool -n left; echo then; cat /run/bywash/$(pid)-*.json",
    )?;
    let (rules, recorded) = went.split_once("then\n").unwrap_or_default();
    has(rules, &["Total 2 rules", "Dest port: 97 mask: 0x0", "Dest port: 53 mask: 0x0"]);
    assert!(
        recorded.contains("\"location\": 2044") && !recorded.contains("\"location\": 2045"),
        "{recorded}"
    );
    let all = u64::from(EACH);
    let came = send(served, guest, &[53, 54], (2 * all, 2 * all))?;
    assert_eq!(came, Counted { ours: all, others: all, no_port: 2 * all }, "by the rule elsewhere");
    let told = run(
        guest,
        "kill -STOP $(pid); ethtool -K left ntuple off; ip link set dev left down; sleep 0.2
         ip link set dev left up; linked; kill -CONT $(pid)
         for try in $(seq 50); do grep -q 'can.t be added again' /run/filter.out && break; sleep 0.2; done
         sleep 1.5; grep 'can.t be added again' /run/filter.out; grep interval /run/filter.out | tail -n 1
         ethtool -K left ntuple on; ruled left 2044; ethtool -n left",
    )?;
    has(&told, &["1 of 1 n-tuple rules that the driver of left has forgotten", "\"event\":\"warning\""]);
    has(&told, &["\"steering_lost\":1", "Total 1 rules", "Dest port: 53 mask: 0x0"]);
    Ok(())
}

/// Whoever changes the number of queues meanwhile has the driver's own table for these afterwards.
fn queues_change(guest: &mut Guest) -> Result<(), GuestError> {
    for (first, meanwhile, then) in [
        (3, "ethtool -L left combined 4; linked; kill -INT $(pid); gone", 4),
        (4, "kill -9 $(pid); gone; ethtool -X left default; ethtool -L left combined 2; linked", 2),
    ] {
        let changed = run(
            guest,
            &format!(
                "ethtool -L left combined {first}; linked
                 filter xdp:left/1/rx --only 'ip and udp dst port 53'; {meanwhile}
                 /host/bywash cleanup --json; linked; ethtool -x left
                 ethtool -L left combined 4; shown > /run/after; diff /run/before /run/after"
            ),
        )?;
        let table = queues(&changed);
        assert!((0..then).all(|queue| table.contains(&queue)) && !table.contains(&then), "{changed}");
    }
    Ok(())
}

/// On a machine that has a table of its own, and rules switched on: they come back, and what was killed is undone by a cleanup
/// alone.
fn is_killed(guest: &mut Guest) -> Result<(), GuestError> {
    run(
        guest,
        "ethtool -K left ntuple on; linked
         ethtool -X left weight 1 0 3 1
         shown > /run/before",
    )?;
    let during = run(guest, "filter xdp:left/3/rx --only 'udp dst port 53'; shown")?;
    has(&during, &["Total 1 rules", "Filter: 2045", "Direct to queue 3"]);
    let table = queues(&during);
    assert!(table.contains(&0) && table.contains(&2) && !table.contains(&3), "{during}");
    // The driver forgets its rules when the program goes.
    let killed = run(guest, "kill -9 $(pid); gone; shown")?;
    has(&killed, &["Total 0 rules", "large-receive-offload: off"]);
    let cleaned = run(
        guest,
        "/host/bywash cleanup --json; shown > /run/after; diff /run/before /run/after; /host/bywash cleanup",
    )?;
    has(&cleaned, &["an n-tuple rule of left is gone", "rx-lro of left is on again", "nothing to clean up"]);
    has(&cleaned, &["the RSS table of left is as it was", "\"failed\":[]"]);
    Ok(())
}

/// The driver starts anew for each XDP program, and has no n-tuple rules then, and a table of its own.
fn others_rules_stay(served: &Served, guest: &mut Guest) -> Result<(), GuestError> {
    let rules = run(
        guest,
        "ethtool -K left lro off
         ethtool -N left flow-type udp4 dst-port 99 action 1 loc 7
         ethtool -N left flow-type udp4 dst-port 98 action -1 loc 2045
         nic > /run/nic; shown > /run/before; cat /run/before",
    )?;
    has(&rules, &["Total 2 rules", "Filter: 7", "Filter: 2045", "Action: Drop"]);
    // On all queues there is nothing of ours in the NIC, but that it leaves tags in packets; with LRO it has no native XDP.
    let during = run(
        guest,
        "filter xdp:left --ring 256 --only 'udp dst port 53'; grep steered /run/filter.out; nic > /run/during
         grep rx-vlan-offload /run/during
         sed 's/rx-vlan-offload: off/rx-vlan-offload: on/' /run/during | diff /run/nic -",
    )?;
    has(&during, &["off on left meanwhile: rx-vlan-hw-parse\"", "rx-vlan-offload: off"]);
    let all = u64::from(EACH);
    let came = send(served, guest, &[98, 54], (all, all))?;
    assert_eq!((came.ours + came.others, came.no_port), (all, all), "one flow dies in the NIC");
    run(
        guest,
        "kill -INT $(pid); gone; cat /run/filter.err; shown > /run/after; diff /run/before /run/after",
    )?;

    // What was removed meanwhile stays away, what was added is not lost.
    let own = run(
        guest,
        "filter xdp:left/2/rx --only 'ip and udp dst port 53' --ntuple require; ethtool -n left
         ethtool -N left delete 7
         ethtool -N left flow-type udp4 dst-port 97 action 0 loc 9
         kill -INT $(pid); gone; ! grep \"can't be put back\" /run/filter.out /run/filter.err; echo then; shown",
    )?;
    let (during, after) = own.split_once("\nthen\n").unwrap_or_default();
    has(during, &["Total 3 rules", "Filter: 7", "Filter: 2044", "Filter: 2045"]);
    has(after, &["Total 2 rules", "Filter: 9", "Filter: 2045"]);
    run(
        guest,
        "ethtool -N left delete 9; ethtool -N left flow-type udp4 dst-port 99 action 1 loc 7
         shown > /run/after; diff /run/before /run/after",
    )?;

    for words in ["xdp:left", "xdp:left/2/rx"] {
        let killed = run(
            guest,
            &format!(
                "filter {words} --ring 256 --only 'ip and udp dst port 53'; kill -9 $(pid); gone; ethtool -n left
                 /host/bywash cleanup; shown > /run/after; diff /run/before /run/after; ls /run/bywash"
            ),
        )?;
        has(
            &killed,
            &["Total 0 rules", "left steers packets as it did", "rx-vlan-hw-parse of left is on again"],
        );
        assert!(!killed.contains(".json"), "{killed}");
    }
    // A filter that has begun since is the one that needs tags in packets, and ends with what was there before both.
    let restarted = run(
        guest,
        "filter xdp:left --ring 256 --only 'udp dst port 53'; kill -9 $(pid); gone
         filter xdp:left --ring 256 --only 'udp dst port 53'
         grep meanwhile /run/filter.out || echo was off already
         /host/bywash cleanup --json; shown | grep rx-vlan-offload
         kill -INT $(pid); gone; /host/bywash cleanup; shown > /run/after; diff /run/before /run/after",
    )?;
    has(
        &restarted,
        &["was off already", "rx-vlan-hw-parse of left is another process's by now", "rx-vlan-offload: off"],
    );
    // As is one that steers the same to the same place, which the driver had forgotten.
    let restarted = run(
        guest,
        "ethtool -N left delete 2045; shown > /run/without
         filter xdp:left/3/rx --only 'ip and udp dst port 53'; kill -9 $(pid); gone
         filter xdp:left/3/rx --only 'ip and udp dst port 53'
         /host/bywash cleanup --json; echo then; ethtool -n left; echo then
         kill -INT $(pid); gone; /host/bywash cleanup; shown > /run/after; diff /run/without /run/after
         ethtool -N left flow-type udp4 dst-port 98 action -1 loc 2045; shown > /run/after; diff /run/before /run/after",
    )?;
    has(&restarted, &["an n-tuple rule of left is another process's by now"]);
    let during = restarted.split("\nthen\n").nth(1).unwrap_or_default();
    has(during, &["Total 2 rules", "Filter: 7", "Filter: 2045", "Direct to queue 3"]);
    // A place that is somebody else's by now.
    let refused = run(
        guest,
        "filter xdp:left --ring 256 --only 'udp dst port 53'; kill -9 $(pid); gone
         ethtool -N left flow-type udp4 dst-port 97 action 0 loc 7
         /host/bywash cleanup --json || echo code $?; ethtool -n left
         ethtool -N left delete 7; /host/bywash cleanup; shown > /run/after; diff /run/before /run/after",
    )?;
    let named = "left: n-tuple rule 7 ('udp4 dst-port 99 queue 1') can't be put back: 'udp4 dst-port 97 queue 0' is there by now";
    has(&refused, &[&format!("\"failed\":[\"{named}\"]"), "Total 2 rules", "left steers packets as it did"]);
    Ok(())
}

/// With rules, on that queue.
fn drops_by_rules(served: &Served, guest: &mut Guest) -> Result<(), GuestError> {
    let rules = "[[rule]]\nname = \"all\"\nmatch = \"\"\naction = \"drop\"\n";
    run(
        guest,
        &format!(
            "printf '{}' > /run/rules.toml
             filter xdp:left/2/rx --only 'ip and udp dst port 53' --ntuple require --rules /run/rules.toml",
            rules.replace('\n', "\\n")
        ),
    )?;
    let all = u64::from(EACH);
    let came = send(served, guest, &[53, 54], (2 * all, all))?;
    assert_eq!(came, Counted { ours: all, others: all, no_port: all }, "what the rule drops is gone");
    run(guest, "kill -INT $(pid); gone; shown > /run/after; diff /run/before /run/after")?;
    Ok(())
}

/// What does not go is one line, exit code 2, and nothing has changed.
fn refuses(guest: &mut Guest) -> Result<(), GuestError> {
    let others = run(guest, "ethtool -X left equal 2; shown > /run/before; cat /run/before")?;
    assert!(queues(&others).iter().all(|queue| *queue < 2), "{others}");
    has(&others, &["Total 2 rules"]);
    let refused = "/host/bywash filter --memory 16M --huge-pages off --duration 1s";
    for (words, says) in [
        ("xdp:left/2/rx --only 'udp dst port 53' --ntuple require", "'udp6 dst-port 53' is not in the NIC: "),
        ("xdp:left/4/rx --only 'udp dst port 53'", "left has no queue 4: its queues are 0 to 3"),
        // Here the program has been attached: the driver has forgotten all rules and its table, and does so again when it goes.
        ("xdp:left --only 'udp dst port 53'", "4 rings of 2048 packets must be filled: "),
        (
            "xdp:left/2/rx --ring 8192 --only 'ip and udp dst port 53'",
            "1 rings of 8192 packets must be filled: ",
        ),
    ] {
        let said = run(
            guest,
            &format!(
                "{refused} {words} && exit 1; echo code $?; shown > /run/after; diff /run/before /run/after"
            ),
        )?;
        assert!(said.contains(says) && said.lines().count() == 2 && said.ends_with("code 2"), "{said}");
    }
    Ok(())
}
