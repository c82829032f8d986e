//! Addresses, routes and neighbours that change while traffic flows, and packets that are passed on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bywash_lab::{lock, skip};

use crate::instance::{Instance, Router, host, pair, run};

#[test]
fn addresses_and_neighbours_change_while_traffic_flows() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24"]);
    let name = &pair.far.name;
    let echo = Instance::start(&far, &format!("tcp|echo|--port|xdp:{name}|--addr|10.9.0.2/24"));
    near.enter(|| {
        let mut stream = TcpStream::connect(("10.9.0.2", 7)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut say = |text: &[u8]| {
            stream.write_all(text).unwrap();
            let mut back = vec![0; text.len()];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, text);
        };
        say(b"before");
        echo.told("addr add 10.9.0.3/24");
        say(b"with another address");
        let mut other = TcpStream::connect(("10.9.0.3", 7)).unwrap();
        other.write_all(b"x").unwrap();
        echo.told("route add 10.77.0.0/16 via 10.9.0.1 metric 5");
        say(b"with a route");
        let routes = echo.told("route --json");
        let ours = routes.as_array().unwrap().iter().find(|row| row["prefix"] == "10.77.0.0/16").unwrap();
        assert_eq!((&ours["gateway"], &ours["metric"]), (&"10.9.0.1".into(), &5.into()));
        echo.told("neigh del 10.9.0.1");
        say(b"after its neighbour was forgotten");
        echo.told(&format!("neigh add 10.9.0.1 lladdr {}", pair.near.mac));
        say(b"with one by hand");
        let neighbours = echo.told("neigh --json");
        assert_eq!(neighbours[0]["state"], "permanent", "{neighbours}");
        for wrong in
            ["addr del 10.9.0.3 dev absent", "addr del 10.9.0.3/16", "route del 10.77.0.0/16 via fd09::1"]
        {
            assert_eq!(echo.ask(wrong).status.code(), Some(2), "{wrong}");
        }
        echo.told(&format!("addr del 10.9.0.3/24 dev {name}"));
        echo.told("route del 10.77.0.0/16");
        say(b"and without all of it");
        let sockets = echo.told("sockets --json");
        let open = sockets.as_array().unwrap().iter().any(|row| row["state"] == "ESTAB");
        assert!(open, "{sockets}");
    })
    .unwrap();
    echo.end();
}

#[test]
fn an_address_that_linux_has_is_not_taken() {
    let Some(_guard) = lock() else { return };
    let (_near, far, pair) = pair(&["10.9.0.1/24"]);
    let name = &pair.far.name;
    let serve = Instance::start(&far, &format!("serve|--port|xdp:{name}|--addr|10.9.0.2/24"));
    serve.told("addr add 10.9.0.1/24 dad");
    serve.told("addr add 10.9.0.8/24 dad");
    let row = |address: &str| {
        let rows = serve.told("addr --json");
        rows.as_array().unwrap().iter().find(|row| row["address"] == address).unwrap().clone()
    };
    // Seven seconds at most.
    let mut free = row("10.9.0.8/24");
    assert_eq!(free["state"], "tentative", "it is being looked for");
    for _ in 0..200 {
        if free["state"] != "tentative" {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        free = row("10.9.0.8/24");
    }
    assert_eq!((&free["state"], &free["claims"]), (&"preferred".into(), &0.into()), "{free}");
    let taken = row("10.9.0.1/24");
    assert_eq!((&taken["state"], &taken["claims"]), (&"duplicate".into(), &1.into()), "{taken}");
    assert_eq!(taken["claimed_by"], pair.near.mac.to_string());
    let text = String::from_utf8(serve.ask("addr").stdout).unwrap();
    assert!(text.contains(&format!("claimed 1 by {}", pair.near.mac)), "{text}");
    serve.end();
}

#[test]
fn packets_are_passed_on_between_two_ports() {
    let Some(_guard) = lock() else { return };
    let router = Router::start();
    let left = &router.left;
    let Some(text) = run(left, "ping", "-c 3 -i 0.1 -w 10 10.9.2.2") else {
        return skip("ping is not installed");
    };
    assert!(text.contains("3 received") && text.contains("ttl=63"), "{text}");
    if let Some(text) = run(left, "traceroute.db", "-n -q 1 -w 2 -m 4 10.9.2.2") {
        assert!(text.contains("10.9.1.1") && text.contains("10.9.2.2"), "{text}");
    }
    let summary = router.instance.end();
    assert!(summary["forwarded"].as_u64().unwrap() >= 6, "{summary}");
}

#[test]
fn a_tap_is_a_port_as_any_other() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let http = Instance::start(&host, "tcp|http|--port|tap:t0|--addr|10.9.3.2/24");
    let index = host.link("t0").unwrap().index;
    host.wait_until_running("t0").unwrap();
    host.add_address(index, "10.9.3.1/24".parse().unwrap()).unwrap();
    let Some(text) =
        run(&host, "curl", "-sS --max-time 60 -o /dev/null -w %{size_download} http://10.9.3.2/5000000")
    else {
        return skip("curl is not installed");
    };
    assert_eq!(text, "5000000");
    let summary = http.end();
    assert_eq!(summary["requests"], 1, "{summary}");
}
