//! `filter --rules-in-nic` where Linux's ixgbe drives the model of the 82599: what rules drop dies in the NIC, before the XDP
//! program counts it; other rules take their place while it runs; and afterwards `ethtool` shows what it did before, when the
//! filter has ended, and when it was killed and `bywash cleanup` has been run.

use bywash_lab::guest::{Guest, GuestError, kit};
use serde_json::Value;

use crate::models::Served;
use crate::prepared;
use crate::single_queue::{BEGIN, EACH, counted, has, names_change, run, send};

/// The NIC can drop what the first two are about: the driver takes no IPv6, and has no source addresses beside ports alone.
fn rules(port: u16) -> String {
    format!(
        r#"
        [[rule]]
        name = "long"
        match = "anyvlan and ip and udp dst port 56 and len > 1000"
        action = "drop"
        [[rule]]
        name = "one port"
        match = "anyvlan and ip and udp dst port {port}"
        action = "drop"
        [[rule]]
        name = "both"
        to_ports = [55]
        action = "drop"
        [[rule]]
        name = "source"
        from = ["198.51.100.0/24"]
        action = "drop""#
    )
}

/// A script that writes them.
fn write(rules: &str) -> String {
    format!("cat >/run/new.toml <<'EOF'\n{rules}\nEOF\nmv /run/new.toml /run/rules.toml\n")
}

const FILTER: &str = "filter xdp:left --ring 256 --rules /run/rules.toml --audit /run/audit --rules-in-nic";

#[test]
fn what_rules_drop_dies_in_the_nic() -> Result<(), GuestError> {
    let Some(kit) = kit() else { return Ok(()) };
    let served = Served::new();
    let mut guest = kit.boot(&prepared(served.machine().cpus(4)))?;
    run(&mut guest, BEGIN)?;
    // With LRO there is no native XDP. A rule of others is there throughout.
    run(
        &mut guest,
        "ethtool -K left lro off ntuple on; linked
         ethtool -N left flow-type udp4 dst-port 99 action 1 loc 7
         shown > /run/before",
    )?;
    drops_and_reloads(&served, &mut guest)?;
    others_come_first(&mut guest)?;
    a_place_is_taken(&mut guest)?;
    is_killed(&served, &mut guest)?;
    requires(&mut guest)?;
    gives_to_a_queue(&mut guest)?;
    guest.power_off()
}

/// How often the NIC's filters have matched.
fn matched(guest: &mut Guest) -> Result<u64, GuestError> {
    let told = run(guest, "ethtool -S left")?;
    let line = told.lines().find_map(|line| line.trim().strip_prefix("fdir_match: "));
    Ok(line.unwrap().parse().unwrap())
}

/// Where the rules are, by the last line of a file that tells it.
fn places(lines: &str, event: &str) -> Vec<(String, String, Value)> {
    let mut events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let last = events.rfind(|line| line["event"] == event).unwrap();
    let of = |place: &Value| {
        let text = |name: &str| place[name].as_str().unwrap().to_owned();
        (text("rule"), text("place"), place["left"].clone())
    };
    last["places"].as_array().unwrap().iter().map(of).collect()
}

fn drops_and_reloads(served: &Served, guest: &mut Guest) -> Result<(), GuestError> {
    let during = run(guest, &format!("{}{FILTER} auto; cat /run/filter.out; shown", write(&rules(53))))?;
    has(&during, &["Total 4 rules", "Filter: 7", "Filter: 2045", "Filter: 2044", "Filter: 2043"]);
    assert_eq!(during.matches("Action: Drop").count(), 3, "{during}");
    let told = places(&during, "start");
    let names: Vec<(&str, &str)> = told.iter().map(|(rule, place, _)| (&**rule, &**place)).collect();
    assert_eq!(
        names,
        [("long", "xdp"), ("one port", "nic"), ("both", "nic_in_part"), ("source", "xdp")],
        "{during}"
    );
    has(&told[2].2.to_string(), &["'sctp4 dst-port 55': not all NICs", "IPv6: NICs may look"]);
    has(&told[3].2.to_string(), &["'ip4 src-ip 198.51.100.0/24': left: can't add this n-tuple rule"]);

    let all = u64::from(EACH);
    let before = matched(guest)?;
    let came = send(served, guest, &[53, 54, 55], (all, all))?;
    assert_eq!((came.ours + came.others, came.no_port), (all, all), "two of three die in the NIC");
    assert_eq!(matched(guest)? - before, 2 * all);
    names_change(guest)?;
    // The driver has forgotten others' rules, too, as it does without us.
    run(guest, "ethtool -N left flow-type udp4 dst-port 99 action 1 loc 7")?;

    // Others in their place: the port that was dropped is the kernel's again.
    let reloaded = run(
        guest,
        &format!(
            "{}for try in $(seq 100); do grep -q reload /run/audit && break; sleep 0.2; done
             ethtool -n left; cat /run/audit",
            write(&rules(54))
        ),
    )?;
    has(&reloaded, &["Total 4 rules", "Filter: 7", "Dest port: 54 mask: 0x0", "Dest port: 55 mask: 0x0"]);
    assert!(!reloaded.contains("Dest port: 53"), "{reloaded}");
    assert_eq!(places(&reloaded, "reload"), told, "only the port is another");
    let came = send(served, guest, &[53, 54, 55], (all, all))?;
    assert_eq!((came.ours + came.others, came.no_port), (all, all), "another two die in the NIC");

    // A file with a mistake changes nothing.
    run(
        guest,
        "echo '[[rule]]' > /run/rules.toml
         for try in $(seq 100); do grep -q refused /run/audit && break; sleep 0.2; done
         ethtool -n left | grep -q 'Total 4 rules'",
    )?;
    let after = run(
        guest,
        "kill -INT $(pid); gone; tail -n 1 /run/filter.out; cat /run/filter.err; grep news /run/filter.out
         shown > /run/after; diff /run/before /run/after; ls /run/bywash",
    )?;
    has(&after, &["'one port' is in the NIC ('udp4 dst-port 54' is n-tuple rule 2045 of left)"]);
    assert!(!after.contains(".json"), "{after}");
    let summary: Value = serde_json::from_str(after.lines().next().unwrap()).unwrap();
    let counted = |name: &str| {
        let rule = summary["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == name).unwrap();
        rule["packets"].as_u64().unwrap()
    };
    assert_eq!((counted("one port"), counted("both")), (0, 0), "the program has not seen them: {summary}");
    Ok(())
}

/// A rule that somebody adds while a filter adds many is where he wants it, and stays when they go.
fn others_come_first(guest: &mut Guest) -> Result<(), GuestError> {
    // Ports that no block joins: two rules of the NIC for each.
    let ports: Vec<u16> = (0..100).map(|port| 1001 + 2 * port).collect();
    let many = format!("[[rule]]\nname = \"many\"\nto_ports = {ports:?}\naction = \"drop\"\n");
    let during = run(
        guest,
        &format!(
            "rm -f /run/audit; {}{FILTER} auto; {}
             for try in $(seq 600); do ethtool -n left rule 2040 >/dev/null 2>&1 && break; done
             ethtool -N left flow-type udp4 dst-port 97 action 0 loc 1895
             for try in $(seq 600); do grep -q reload /run/audit && break; sleep 0.2; done
             ethtool -n left | grep Total; ethtool -n left rule 1895; ethtool -n left rule 1894",
            write(&rules(53)),
            write(&many)
        ),
    )?;
    has(&during, &["Total 202 rules", "Dest port: 97 mask: 0x0", "Action: Drop"]);
    let after = run(
        guest,
        "kill -INT $(pid); gone; cat /run/filter.err; ethtool -n left
         ethtool -N left delete 1895; shown > /run/after; diff /run/before /run/after",
    )?;
    has(&after, &["Total 2 rules", "Filter: 1895", "Dest port: 97 mask: 0x0"]);
    Ok(())
}

/// Somebody takes the place of a rule before it is there again, which the driver has forgotten: that one goes elsewhere, the others come
/// back where they were, and his stays.
fn a_place_is_taken(guest: &mut Guest) -> Result<(), GuestError> {
    let during = run(
        guest,
        &format!(
            "rm -f /run/audit; {}{FILTER} auto
             kill -STOP $(pid); ip link set dev left down; sleep 0.2; ip link set dev left up; linked
             ethtool -N left flow-type udp4 dst-port 97 action 0 loc 2045
             kill -CONT $(pid); ruled left 2042; ethtool -n left",
            write(&rules(53))
        ),
    )?;
    has(
        &during,
        &["Total 4 rules", "Filter: 2045", "Filter: 2044", "Filter: 2043", "Dest port: 53 mask: 0x0"],
    );
    assert_eq!(during.matches("Action: Drop").count(), 3, "{during}");
    let after = run(
        guest,
        "kill -INT $(pid); gone; cat /run/filter.err; ethtool -n left; ethtool -N left delete 2045
         ethtool -N left flow-type udp4 dst-port 99 action 1 loc 7; shown > /run/after; diff /run/before /run/after",
    )?;
    has(&after, &["Total 1 rules", "Filter: 2045", "Dest port: 97 mask: 0x0"]);
    Ok(())
}

/// The driver forgets all rules when the program of a killed process goes; others need not.
fn is_killed(served: &Served, guest: &mut Guest) -> Result<(), GuestError> {
    let start = format!("{}{FILTER} auto; ethtool -n left", write(&rules(53)));
    let killed = "kill -9 $(pid); gone; linked; ethtool -n left";
    let clean =
        "/host/bywash cleanup --json; shown > /run/after; diff /run/before /run/after; ls /run/bywash";
    let told = run(guest, &format!("{start}; {killed}; {clean}"))?;
    has(&told, &["Total 4 rules", "Total 0 rules", "left steers packets as it did", "\"failed\":[]"]);
    assert!(!told.contains("/run/bywash/"), "{told}");

    // As a driver does that forgets nothing: it drops until the cleanup.
    run(guest, &format!("{start}; {killed}; ethtool -N left flow-type udp4 dst-port 53 action -1 loc 2045"))?;
    let all = u64::from(EACH);
    let came = send(served, guest, &[53, 54], (all, all))?;
    assert_eq!(came.no_port, all, "it outlives the filter");
    let cleaned = run(guest, clean)?;
    has(&cleaned, &["left has no n-tuple rule 2045 again", "left steers packets as it did"]);
    let before = counted(guest)?;
    let came = send(served, guest, &[53, 54], (2 * all, 2 * all))?;
    assert_eq!(came.no_port, 2 * all, "before: {before:?}");
    Ok(())
}

/// What must be in the NIC and is not is one line, and nothing has changed.
fn requires(guest: &mut Guest) -> Result<(), GuestError> {
    let refused = "/host/bywash filter --memory 16M --huge-pages off --duration 1s --rules /run/rules.toml";
    let long = "the rule 'long' is not in the NIC: 'udp4 dst-port 56': the rule asks for more than";
    let part = "the rule 'r' is not in the NIC: 'ip4 src-ip 10.0.0.0/8': the port has not all queues of left";
    let source = "[[rule]]\nname = \"r\"\nfrom = [\"10.0.0.0/8\"]\naction = \"drop\"";
    for (rules, words, says) in [
        (rules(53), "xdp:left --ring 256 --rules-in-nic require", long),
        (source.into(), "xdp:left/2/rx --rules-in-nic require", part),
    ] {
        let said = run(
            guest,
            &format!(
                "{}{refused} {words} && exit 1; echo code $?; shown > /run/after; diff /run/before /run/after",
                write(&rules)
            ),
        )?;
        assert!(said.contains(says) && said.lines().count() == 2 && said.ends_with("code 2"), "{said}");
    }
    // One that is wholly there. On a reload what is not keeps the rules as they were.
    let whole = "[[rule]]\nname = \"r\"\nmatch = \"anyvlan and ip and udp dst port 53\"\naction = \"drop\"";
    let told = run(
        guest,
        &format!(
            "rm /run/audit; {}{FILTER} require; {}for try in $(seq 100); do grep -q refused /run/audit && break; sleep 0.2; done
             ethtool -n left; cat /run/audit",
            write(whole),
            write(&rules(53)),
        ),
    )?;
    has(&told, &["Total 2 rules", "Dest port: 53 mask: 0x0", "Action: Drop", long]);
    // What comes from a new gateway is not dropped, whatever must be in the NIC; when there is none any more, all is as it was.
    let told = run(
        guest,
        &format!(
            ": > /run/audit; {}for try in $(seq 100); do grep -q reload /run/audit && break; sleep 0.2; done
             for gateways in 1 2; do
                 [ $gateways = 1 ] && ip route add default via 192.0.2.2 dev left || ip route del default
                 for try in $(seq 100); do [ $(grep -c gateways /run/audit) = $gateways ] && break; sleep 0.2; done
                 # What holds no more is told of once a second, if it is so then.
                 for try in $(seq 100); do grep -q \"the rule 'r' is not in the NIC\" /run/filter.out && break; sleep 0.2; done
                 ethtool -n left; echo then
             done
             cat /run/audit /run/filter.out; kill -INT $(pid); gone; shown > /run/after; diff /run/before /run/after",
            write(whole)
        ),
    )?;
    let (first, then) = told.split_once("then\n").unwrap_or_default();
    has(first, &["Total 1 rules"]);
    has(then, &["Total 2 rules", "\"gateways\":[\"192.0.2.2\"]", "\"gateways\":[]"]);
    has(then, &["the rule 'r' is not in the NIC: ", "(--rules-in-nic require); it holds in XDP"]);
    Ok(())
}

/// Rules with a queue are in the NIC though nothing else is to be there, leave it when a file has them no more, and come back; what it
/// can't do is told with its place in the file.
fn gives_to_a_queue(guest: &mut Guest) -> Result<(), GuestError> {
    let rule = |text: &str, queue: u16| {
        format!("[[rule]]\nname = \"dns\"\nmatch = \"{text}\"\naction = \"queue\"\nqueue = {queue}\n")
    };
    let dns = rule("ip and udp dst port 53", 1);
    let filter = "filter xdp:left --ring 256 --rules /run/rules.toml --audit /run/audit";
    let during = run(
        guest,
        &format!("rm -f /run/audit; {}{filter}; cat /run/filter.out; ethtool -n left", write(&dns)),
    )?;
    has(&during, &["Total 2 rules", "Dest port: 53 mask: 0x0", "Action: Direct to queue 1"]);
    has(&during, &["'udp4 dst-port 53' is n-tuple rule 2045 of left, to queue 1"]);
    let told: Vec<_> = places(&during, "start").into_iter().map(|(rule, place, _)| (rule, place)).collect();
    assert_eq!(told, [("dns".to_owned(), "nic".to_owned())], "{during}");
    // The audit's file stays open.
    let reload = |rules: &str| {
        format!(
            ": > /run/audit; {}for try in $(seq 100); do grep -q -e reload -e refused /run/audit && break; sleep 0.2; done
             cat /run/audit; ethtool -n left",
            write(rules)
        )
    };
    let passes = "[[rule]]\nname = \"dns\"\nmatch = \"udp dst port 53\"\naction = \"pass\"\n";
    has(&run(guest, &reload(passes))?, &["reload", "Total 1 rules"]);
    has(&run(guest, &reload(&dns))?, &["reload", "Total 2 rules", "Action: Direct to queue 1"]);
    let refused = run(guest, &reload(&rule("udp dst port 53", 1)))?;
    has(
        &refused,
        &["/run/rules.toml:4:10: the rule 'dns' can't give its packets to queue 1", "Total 2 rules"],
    );
    run(guest, "kill -INT $(pid); gone; shown > /run/after; diff /run/before /run/after")?;
    let none = run(
        guest,
        &format!(
            "{}/host/bywash filter --memory 16M --huge-pages off --duration 1s xdp:left --ring 256 --rules /run/rules.toml && exit 1
             echo code $?; shown > /run/after; diff /run/before /run/after",
            write(&rule("ip and udp dst port 53", 99))
        ),
    )?;
    has(
        &none,
        &["/run/rules.toml:4:10: the rule 'dns' can't give its packets to queue 99: left has", "code 2"],
    );
    // Without a filter.
    let steered = run(
        guest,
        "rm -f /run/filter.out
         /host/bywash receive xdp:left --force --json --memory 16M --huge-pages off --duration 60s --ring 256 \\
             --steer 'ip and udp dst port 53 queue 2' --steer 'anyvlan and ip and udp dst port 54 drop' \\
             --steer 'udp count' >/run/filter.out 2>/run/filter.err & echo $! > /run/filter.pid
         for try in $(seq 300); do grep -qs '\"start\"' /run/filter.out && break; sleep 0.2; done
         linked; cat /run/filter.out /run/filter.err; ethtool -n left
         kill -INT $(pid); gone; shown > /run/after; diff /run/before /run/after",
    )?;
    has(&steered, &["Total 3 rules", "Action: Direct to queue 2", "Action: Drop", "\"event\":\"steered\""]);
    let place = "('udp4 dst-port 53' is n-tuple rule 2045 of left, to queue 2)";
    has(&steered, &[&format!("'ip and udp dst port 53 queue 2' is in the NIC {place}")]);
    let place = "('udp4 dst-port 54' is n-tuple rule 2044 of left)";
    has(&steered, &[&format!("'anyvlan and ip and udp dst port 54 drop' is in the NIC {place}")]);
    has(&steered, &["'udp count' is in XDP"]);
    Ok(())
}
