//! Ports whose interface goes away while an instance runs: whoever supervises it must know.

use std::time::{Duration, Instant};

use bywash_lab::{Host, lock};
use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::instance::{Instance, Router, host, is_pinged, pair};

/// Longer than an instance may take to notice and to end, on a machine that has much else to do.
const SOON: Duration = Duration::from_secs(10);

fn delete(host: &Host, name: &str) {
    let index = host.link(name).unwrap().index;
    host.route().delete_link(index).unwrap();
}

#[test]
fn who_is_left_without_a_port_says_so_and_ends() {
    let Some(_guard) = lock() else { return };
    for (port, words) in [
        ("xdp", "serve"),
        ("packet", "tcp|echo"),
        ("xdp", "tcp|download|10.9.0.1:19"),
        ("xdp", "tcp|load|http|10.9.0.1:80|--rate|10"),
    ] {
        let (near, far, pair) = pair(&["10.9.0.1/24"]);
        let servers = ["tcp|upload|--kernel", "tcp|http|--kernel"].map(|words| Instance::start(&near, words));
        let port = format!("{port}:{}", pair.far.name);
        let instance = Instance::start(&far, &format!("{words}|--port|{port}|--addr|10.9.0.2/24"));
        // A client has something by then.
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        delete(&far, &pair.far.name);
        let (code, summary) = instance.ended();
        assert!(began.elapsed() < SOON, "{words}: {:?}", began.elapsed());
        assert_eq!((code, &summary["met"]), (Some(1), &json!(false)), "{words}: {summary}");
        assert_eq!(summary["unmet"][0], format!("the interface of {port} is gone"), "{words}: {summary}");
        for server in servers {
            server.end();
        }
    }
}

#[test]
fn a_tap_that_is_deleted_ends_its_server() {
    let Some(_guard) = lock() else { return };
    let host = host();
    let http = Instance::start(&host, "tcp|http|--port|tap:t0|--addr|10.9.3.2/24");
    let began = Instant::now();
    delete(&host, "t0");
    let (code, summary) = http.ended();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(
        (code, &summary["unmet"]),
        (Some(1), &json!(["the interface of tap:t0 is gone"])),
        "{summary}"
    );
}

#[test]
fn a_router_goes_on_with_the_port_that_is_left() {
    let Some(_guard) = lock() else { return };
    let mut router = Router::start();
    delete(&router.middle, "ra");
    let sentence = "the interface of xdp:ra is gone";
    assert_eq!(router.instance.warning(), sentence);
    let addresses = router.instance.told("addr --json --name router");
    let gone = |address: &str| {
        let row = addresses.as_array().unwrap().iter().find(|row| row["address"] == address);
        row.unwrap()["gone"].as_bool().unwrap()
    };
    assert_eq!((gone("10.9.1.1/24"), gone("10.9.2.1/24")), (true, false), "{addresses}");
    let text = String::from_utf8(router.instance.ask("addr --name router").stdout).unwrap();
    assert_eq!(text.matches("preferred gone").count(), 1, "{text}");
    let stats = router.instance.told("stats --json --name router");
    let counted = ["xdp:ra", "xdp:rb"].map(|port| &stats["ports"][port]["interface_gone"]);
    assert_eq!(counted, [&json!(1), &json!(0)], "{stats}");
    is_pinged(&router.right, "10.9.2.1");
    kill_process(router.instance.pid(), Signal::INT).unwrap();
    let (code, summary) = router.instance.ended();
    assert_eq!((code, &summary["unmet"]), (Some(1), &json!([sentence])), "{summary}");
}
