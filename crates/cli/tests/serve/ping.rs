//! Pings and what an instance says of itself.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use bywash_lab::{lock, skip};

use crate::instance::{Instance, pair, run};

#[test]
fn the_kernel_pings_an_instance_over_a_veth() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24", "fd09::1/64"]);
    let serve = Instance::start(
        &far,
        &format!("serve|--port|xdp:{}|--addr|10.9.0.2/24|--addr|fd09::2/64", pair.far.name),
    );
    for target in ["10.9.0.2", "fd09::2"] {
        let Some(text) = run(&near, "ping", &format!("-c 3 -i 0.1 -w 10 {target}")) else {
            return skip("ping is not installed");
        };
        assert!(text.contains("3 received"), "{text}");
    }
    let addresses = serve.told("addr --json");
    let shown: Vec<&str> =
        addresses.as_array().unwrap().iter().filter_map(|row| row["address"].as_str()).collect();
    assert!(shown.contains(&"10.9.0.2/24") && shown.contains(&"fd09::2/64"), "{addresses}");
    let neighbours = serve.told("neigh --json");
    let kernel = neighbours.as_array().unwrap().iter().find(|row| row["address"] == "10.9.0.1");
    assert_eq!(kernel.unwrap()["mac"], pair.near.mac.to_string(), "{neighbours}");
    let got = serve.told("neigh get 10.9.0.1 --json");
    assert_eq!((&got[0]["address"], got.as_array().unwrap().len()), (&"10.9.0.1".into(), 1), "{got}");
    let routes = serve.told("route --json");
    assert!(routes.as_array().unwrap().iter().any(|row| row["prefix"] == "10.9.0.0/24"), "{routes}");
    let stats = serve.told("stats --json");
    assert!(stats["ports"][format!("xdp:{}", pair.far.name)]["rx_packets"].as_u64().unwrap() > 5, "{stats}");
    let counted = |name: &str| stats["control"][name].as_u64().unwrap();
    assert_eq!((counted("icmp_echo_replies"), counted("icmp_echo_limited")), (6, 0), "{stats}");
    assert!(counted("arp_replies_sent") > 0 && counted("neighbour_advertisements_sent") > 0, "{stats}");
    let text = String::from_utf8(serve.ask("stats").stdout).unwrap();
    let line =
        |line: &str| line.split_whitespace().collect::<Vec<_>>() == ["control", "icmp_echo_replies", "6"];
    assert!(text.lines().any(line), "{text}");
    let summary = serve.end();
    assert_eq!(summary["met"], true, "{summary}");
}

#[test]
fn what_makes_no_sense_is_answered_with_an_error_and_harms_nobody() {
    let Some(_guard) = lock() else { return };
    let (_near, far, pair) = pair(&["10.9.0.1/24"]);
    let serve = Instance::start(&far, &format!("serve|--port|xdp:{}|--addr|10.9.0.2/24", pair.far.name));
    let permissions = std::fs::metadata(serve.socket()).unwrap().permissions();
    assert_eq!(permissions.mode() & 0o777, 0o600);
    for request in [
        "\n",
        "{}\n",
        "[1,2\n",
        "{\"request\":\"addresses\",\"more\":1}\n",
        "{\"request\":\"add-address\"}\n",
        "{\"request\":\"add-address\",\"address\":\"10.9.0.2/24\"}\n",
        "{\"request\":\"add-route\",\"prefix\":\"10.0.0.0/8\",\"gateway\":\"fd00::1\"}\n",
        "{\"request\":\"remove-neighbour\",\"address\":\"10.9.9.9\"}\n",
        "\u{0}\u{1}\u{2}\n",
        &format!("{}\n", "[".repeat(100_000)),
    ] {
        let mut stream = UnixStream::connect(serve.socket()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("{\"error\":"), "{request}: {answer}");
    }
    // One who connects and says nothing does not keep the others waiting.
    let _silent = UnixStream::connect(serve.socket()).unwrap();
    for (words, says) in [
        ("addr add 10.9.0.2/24", "is an address of ours already"),
        ("addr add 10.9.0.3/", "no address with a prefix length"),
        ("addr del 10.9.0.9", "is no address of this instance"),
        ("addr add 10.9.0.3/24 dev nothing", "there is no interface 'nothing'"),
        ("route add default via 10.8.0.1", "on no link"),
        ("route add default via 10.9.0.2", "the gateway 10.9.0.2 is an address of ours"),
        ("route del 10.7.0.0/16", "no such route"),
        ("neigh add 10.9.0.9 lladdr zz", "zz"),
        ("addr frob", "write show, add, replace"),
        ("addr add ff02::1/64", "ff02::1 cannot be a host's address"),
        ("addr show scope global", "'scope' is not supported"),
        ("route add blackhole 10.7.0.0/16", "'blackhole' is not supported"),
        ("neigh get 10.9.0.77", "10.9.0.77 is no neighbour that is known"),
    ] {
        let output = serve.ask(words);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{words}: {complaint}");
        assert!(complaint.contains(says), "{words}: {complaint}");
    }
    for words in ["addr --json", "addr s --json", "addr sh --json", "addr ls --json", "addr lst --json"] {
        assert_eq!(serve.told(words).as_array().unwrap().len(), 1, "{words}");
    }
    let name = serve.ask("stats --name ../x");
    assert!(String::from_utf8_lossy(&name.stderr).contains("is no name for an instance"));
    serve.end();
}
