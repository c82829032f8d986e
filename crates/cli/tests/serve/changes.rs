//! Addresses, routes and neighbours that change while traffic flows, and packets that are passed on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use bywash_lab::{lock, skip};

use crate::instance::{BYWASH, Instance, Router, client, hops, host, pair, run};

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
        echo.told(&format!("neigh replace 10.9.0.1 lladdr {}", pair.near.mac));
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

/// What `ip` of Linux would say of the same words.
#[test]
fn changes_are_those_of_iproute2() {
    let Some(_guard) = lock() else { return };
    let (_near, far, pair) = pair(&["10.9.0.1/24"]);
    let name = &pair.far.name;
    let place = format!("--port|xdp:{name}|--addr|10.9.0.2/24|--addr|fd09::2/64");
    let serve = Instance::start(&far, &format!("serve|{place}"));
    let (text, refused) =
        (|words: &str| serve.text(words), |words: &str, says: &str| serve.refuses(words, says));
    let mac = "02:00:00:00:00:77";
    // What is there is not added again.
    text("route add 10.7.0.0/16 via 10.9.0.1");
    refused("route add 10.7.0.0/16 via 10.9.0.5", "already");
    text("route replace 10.7.0.0/16 via 10.9.0.5");
    refused("route change 10.7.0.0/16 via 10.9.0.6 metric 3", "no route");
    assert_eq!(
        text("route show 10.7.0.0/16"),
        format!("10.7.0.0/16 via 10.9.0.5 dev {name} proto static metric 0")
    );
    refused(&format!("neigh change 10.9.0.7 lladdr {mac}"), "no neighbour");
    text(&format!("neigh add 10.9.0.7 lladdr {mac}"));
    refused(&format!("neigh add 10.9.0.7 lladdr {mac}"), "already");
    text(&format!("neigh replace dev {name} 10.9.0.7 lladdr 02:00:00:00:00:78 nud permanent"));
    assert_eq!(text("neigh show 10.9.0.7"), format!("10.9.0.7 dev {name} 02:00:00:00:00:78 permanent"));
    refused("addr add 10.9.0.2/24", "already");
    text("addr replace 10.9.0.2/24");
    // One of all its bits.
    text("addr add 10.9.0.77");
    assert!(text("addr show to 10.9.0.77").contains("10.9.0.77/32"));
    text("addr del 10.9.0.77");
    text("route add 10.4.0.0/16 via 10.9.0.1 priority 5");
    assert!(text("route show 10.4.0.0/16 preference 5").ends_with("metric 5"));
    text("route del 10.4.0.0/16");
    refused("route add 10.4.0.0/16 via 10.9.0.1 table 5", "'table' is not supported");
    // What cannot be.
    refused("route add 10.9.1.1/16 via 10.9.0.1", "is it 10.9.0.0/16?");
    refused("route add 10.8.0.0/16 via 10.9.0.2", "an address of ours");
    refused(&format!("route add 127.0.0.0/8 dev {name}"), "this host");
    refused(&format!("neigh add 224.0.0.1 lladdr {mac}"), "cannot be a host's");
    refused(&format!("neigh add 10.9.0.2 lladdr {mac}"), "an address of ours");
    refused("neigh add 10.9.0.8 lladdr 01:00:5e:00:00:01", "not the Ethernet address of one station");
    refused("addr add 0.1.2.3/8", "cannot be a host's");
    refused("addr add 127.0.0.5/8", "is this host itself");
    refused("addr add ::ffff:10.9.0.9/24", "is no address with a prefix length");
    refused("addr add fe80:2::1", "is no address with a prefix length");
    refused(&format!("neigh add fe80:2::1 lladdr {mac}"), "bits that are zero in all link-local addresses");
    // One route at a time.
    text("route add 10.9.0.0/24 via 10.9.0.1 metric 7");
    text("route del 10.9.0.0/24");
    assert!(text("route show 10.9.0.0/24").ends_with("proto static metric 7"));
    text(&format!("route add 10.9.0.0/24 dev {name}"));
    // Unknown words.
    refused("neigh show nud foo", "write incomplete, reachable");
    refused("route show proto foo", "write kernel, static, ra, redirect");
    // Whom packets are for.
    text("route add default via 10.9.0.1");
    let kinds = [
        ("224.0.0.1", "multicast 224.0.0.1 dev N src 10.9.0.2"),
        ("10.9.0.255", "broadcast 10.9.0.255 dev N src 10.9.0.2"),
        ("255.255.255.255", "broadcast 255.255.255.255 dev N src 10.9.0.2"),
        ("10.9.0.2", "local 10.9.0.2 dev lo src 10.9.0.2"),
        ("192.0.2.7", "192.0.2.7 via 10.9.0.1 dev N src 10.9.0.2"),
    ];
    for (to, way) in kinds {
        assert_eq!(text(&format!("route get {to}")), way.replace('N', name));
    }
    assert_eq!(serve.told("route get 224.0.0.1 --json")["type"], "multicast");
    // `default`, and hosts.
    text(&format!("route -6 add default dev {name}"));
    assert_eq!(
        text("route -4 show default"),
        format!("default via 10.9.0.1 dev {name} proto static metric 0")
    );
    assert_eq!(text("route -6 show default"), format!("default dev {name} proto static metric 0"));
    let both = serve.told("route show default --json");
    let both: Vec<_> = both.as_array().unwrap().iter().map(|row| (&row["prefix"], &row["family"])).collect();
    assert_eq!(both, [(&"default".into(), &"inet".into()), (&"default".into(), &"inet6".into())]);
    text("route add 10.6.0.1 via 10.9.0.1");
    assert!(text("route show 10.6.0.1").starts_with("10.6.0.1/32 via 10.9.0.1"));
    text("route del to 10.6.0.1");
    // Several at once.
    for table in ["addr", "route", "neigh"] {
        refused(&format!("{table} flush"), "flush what?");
    }
    text("route add 10.5.0.0/16 via 10.9.0.5");
    text("route flush via 10.9.0.5");
    assert!(!text("route").contains("10.9.0.5"));
    text("route -6 flush default");
    assert_eq!(text("route -6 show default"), "");
    text("neigh flush all");
    assert_eq!(
        text("neigh -4 show 10.9.0.0/24 nud permanent"),
        format!("10.9.0.7 dev {name} 02:00:00:00:00:78 permanent")
    );
    text(&format!("neigh flush dev {name} nud permanent"));
    assert_eq!(text("neigh -4"), "");
    text(&format!("addr flush dev {name} to 10.0.0.0/8"));
    assert_eq!((text("addr -4"), text("-4 addr show")), (String::new(), String::new()));
    assert!(text("addr -6").contains("fd09::2/64"));
    assert!(serve.told("-6 -j addr show").as_array().unwrap().len() > 1);
    refused("-4 addr add fd09::3/64", "fd09::3/64 is not IPv4");
    refused("-4 route add default via fd09::1", "fd09::1 is not IPv4");
    refused("-6 route add default via 10.9.0.1", "10.9.0.1 is not IPv6");
    refused("-4 stats", "unexpected argument '-4'");
    assert_eq!(text("sockets -H -4 sport = :1 or sport = :2"), "");
    serve.end();
}

/// The way by another interface is from the address that packets by it would have.
#[test]
fn a_way_by_one_interface_is_from_what_the_stack_would_take() {
    let Some(_guard) = lock() else { return };
    let router = Router::start();
    for (link, number) in [("ra", 1), ("rb", 2)] {
        router.instance.told(&format!("addr add fd0{number}::1/64 dev {link} --name router"));
        router
            .instance
            .told(&format!("route add default6 via fe80::9 dev {link} metric {number} --name router"));
    }
    let way = |by: &str| router.instance.told(&format!("route get 2001:db8::1 --name router --json{by}"));
    let until = Instant::now() + Duration::from_secs(20);
    while way("")["source"] != "fd01::1" {
        assert!(Instant::now() < until, "{}", way(""));
        std::thread::sleep(Duration::from_millis(50));
    }
    while way(" dev rb")["source"] != "fd02::1" {
        assert!(Instant::now() < until, "{}", way(" dev rb"));
        std::thread::sleep(Duration::from_millis(50));
    }
    // One that is not in use yet is not taken.
    router.instance.told("addr add fd03::1/64 dev rb --name router");
    assert_eq!(router.instance.told("route get fd03::9 dev rb --name router --json")["source"], "fd02::1");
    router.instance.end();
}

/// An instance that says of its one route what it is made to, whatever it is asked to do.
#[test]
fn what_is_not_flushed_is_told_unless_it_has_gone_by_itself() {
    let row = r#"{"prefix":"10.7.0.0/16","family":"inet","gateway":"10.9.0.5","interface":"eth1","metric":0,"protocol":"static"}"#;
    let busy = r#"{"error":"the instance has ended, or is too busy to answer"}"#;
    let (there, gone) = (format!(r#"{{"ok":[{row}]}}"#), r#"{"ok":[]}"#.to_owned());
    for (second, code, says) in [(there.clone(), 2, "too busy to answer"), (gone, 0, "")] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bywash")).unwrap();
        let listener =
            std::os::unix::net::UnixListener::bind(folder.path().join("bywash/default.sock")).unwrap();
        let answers = [there.clone(), busy.to_owned(), second];
        let instance = std::thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut asked = String::new();
                std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut asked).unwrap();
                Write::write_all(&mut &stream, answer.as_bytes()).unwrap();
            }
        });
        let mut command = Command::new(BYWASH);
        command.args(["route", "flush", "via", "10.9.0.5"]).env("XDG_RUNTIME_DIR", folder.path());
        let output = command.output().unwrap();
        let why = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{why}");
        assert!(why.contains(says), "{why}");
        instance.join().unwrap();
    }
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

/// Two addresses that Linux has, one after the other: the second is told of, too.
#[test]
fn each_address_that_somebody_else_has_is_warned_of() {
    let Some(_guard) = lock() else { return };
    let (_near, far, pair) = pair(&["10.9.0.1/24", "10.9.0.3/32"]);
    let name = &pair.far.name;
    let mut serve = Instance::start(&far, &format!("serve|--port|xdp:{name}|--addr|10.9.0.2/24"));
    for address in ["10.9.0.3", "10.9.0.1"] {
        serve.told(&format!("addr add {address}/24 dad"));
        let told = serve.warning();
        assert_eq!(told, format!("{address} is not used: {} has it", pair.near.mac));
    }
    serve.end();
}

#[test]
fn who_is_left_without_an_address_ends_and_says_who_has_it() {
    let Some(_guard) = lock() else { return };
    let (_near, far, pair) = pair(&["10.9.0.1/24"]);
    let place = format!("--addr|10.9.0.1/24 dad|--port|xdp:{}", pair.far.name);
    let why = format!("10.9.0.1 is not used: {} has it", pair.near.mac);
    for words in ["tcp|load|http|10.9.0.1:80|--requests|1", "tcp|http", "serve"] {
        let (code, summary) = client(&far, &format!("{words}|--duration|60s|{place}"));
        assert_eq!((code, &summary["met"]), (Some(1), &false.into()), "{words}: {summary}");
        assert_eq!(summary["unmet"][0], why, "{words}: {summary}");
    }
    // With another address it goes on.
    let http = Instance::start(&far, &format!("tcp|http|{place}|--addr|10.9.0.2/24"));
    assert_eq!(http.told("addr --json")[0]["state"], "duplicate");
    http.end();
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
    let traced = run(left, "traceroute.db", "-n -q 1 -w 2 -m 4 10.9.2.2");
    let summary = router.instance.end();
    assert!(summary["forwarded"].as_u64().unwrap() >= 6, "{summary}");
    let Some(text) = traced else { return skip("traceroute is not installed") };
    assert_eq!(hops(&text), [(1, "10.9.1.1"), (2, "10.9.2.2")], "{text}");
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
