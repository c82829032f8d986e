//! What is said of interfaces, on real ones.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers, too")]

use std::fs;

use bywash_lab::sys::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use bywash_lab::sys::interface::{self, Finding, InterfaceError, Severity};
use bywash_lab::sys::namespace::Namespace;
use bywash_lab::sys::netdev::Netdev;
use bywash_lab::sys::route::{Gateway, Route};
use bywash_lab::sys::state::{self, State, Undone};
use bywash_lab::{Host, Lab, Pair, PairOptions, lock};

const FRAME: u32 = 2048;

fn preflight(host: &Host, name: &str) -> Vec<Finding> {
    host.enter(|| interface::preflight(name, FRAME)).unwrap().unwrap().advice
}

fn has(findings: &[Finding], severity: Severity, part: &str) {
    let found = findings.iter().any(|finding| finding.severity == severity && finding.text.contains(part));
    assert!(found, "no {severity:?} with '{part}' in {findings:?}");
}

#[test]
fn a_veth_is_described() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(2, &PairOptions { queues: 4, ..PairOptions::default() }).unwrap();
    let report = lab.hosts[0].enter(|| interface::report(FRAME)).unwrap().unwrap();
    let names: Vec<&str> = report.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    assert_eq!(names, ["lo", "right"]);
    let veth = &report.interfaces[1];
    assert_eq!((veth.driver.name.as_str(), veth.kind.as_deref()), ("veth", Some("veth")));
    assert_eq!((veth.queues.rx, veth.queues.tx, veth.mtu), (4, 4, 1500));
    assert_eq!((veth.speed_mbps, veth.pcie, veth.numa_node, veth.rss_entries), (None, None, None, 0));
    assert!(veth.up && veth.carrier && veth.xdp_program.is_none() && veth.peer.is_none());
    assert_eq!(veth.addresses, [lab.pairs[0].near.addresses[0]]);
    let xdp = veth.xdp_features.unwrap();
    assert!(xdp.native && xdp.redirect && xdp.multi_buffer && !xdp.zero_copy, "{xdp:?}");
    assert_eq!(veth.would_use, "native XDP, copy, 4 queues");
    has(&veth.advice, Severity::Note, "veth has no zero-copy");
    has(&veth.advice, Severity::Note, "GRO off");
    has(&report.interfaces[0].advice, Severity::Error, "lo carries no Ethernet frames");
    assert!(serde_json::to_value(&report).unwrap()["interfaces"][1]["mac"] == "02:00:00:00:00:01");
}

/// The state file knows in which namespace an interface is.
#[test]
fn a_feature_comes_back_where_its_interface_is() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let (host, directory) = (&lab.hosts[0], tempfile::tempdir().unwrap());
    let state = State::at(directory.path()).unwrap();
    let is_on = || host.ethtool().features("right").unwrap()["rx-gro"].on;
    let before = is_on();
    let set = || host.enter(|| state.set_feature("right", "rx-gro", !before).unwrap()).unwrap();
    let undo = set();
    assert_eq!(is_on(), !before);
    assert!(matches!(host.enter(|| undo.undo().unwrap()).unwrap(), Undone::Back(_)));
    assert_eq!(is_on(), before);

    let mut resident = host.command("sleep").unwrap().arg("1000").spawn().unwrap();
    let elsewhere = set().undo().unwrap_err().to_string();
    assert_eq!(elsewhere, "right: it is in another network namespace: run `bywash cleanup` there");
    assert_eq!(is_on(), !before);
    resident.kill().unwrap();
    resident.wait().unwrap();
    // What an earlier record says was there at first is what comes back.
    let undo = host.enter(|| state.set_feature("right", "rx-gro", !before).unwrap()).unwrap();
    assert!(
        matches!(undo.undo().unwrap(), Undone::LeftAlone(why) if why.contains("namespace of right is gone"))
    );
}

/// `/sys` has a directory of the same name for another interface, in another namespace.
#[test]
fn a_setting_comes_back_where_its_interface_is() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let state = State::at(directory.path()).unwrap();
    let error =
        lab.hosts[0].enter(|| state.set_setting("right", "gro_flush_timeout", "7").unwrap_err()).unwrap();
    assert!(error.to_string().starts_with("right: /sys is another network namespace's"), "{error}");
    let output = lab.hosts[0]
        .command("unshare")
        .unwrap()
        .args([
            "-m",
            "sh",
            "-c",
            "mount -t sysfs sysfs /sys && exec \"$0\" --exact who_sets_it --ignored --nocapture",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const CHILD: &str = "BYWASH_TEST_SETTING";

#[test]
#[ignore = "a process that another test starts, which holds the lock"]
fn who_sets_it() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let state = State::at(directory.path()).unwrap();
    let read = || fs::read_to_string("/sys/class/net/right/gro_flush_timeout").unwrap().trim().to_owned();
    let before = read();
    let set = |value| state.set_setting("right", "gro_flush_timeout", value).unwrap();
    let undo = set("7");
    assert_eq!(read(), "7");
    assert!(matches!(undo.undo().unwrap(), Undone::Back(_)));
    assert_eq!(read(), before);

    let elsewhere = Namespace::new().unwrap();
    let undo = set("7");
    let error = elsewhere.enter(|| undo.undo().unwrap_err().to_string()).unwrap();
    assert_eq!(error, "right: it is in another network namespace: run `bywash cleanup` there");
    assert_eq!(read(), "7");
    // What was not put back is still wanted; what another has set since stays.
    assert!(matches!(set("8").undo().unwrap(), Undone::LeftAlone(why) if why.contains("still wants")));
    assert_eq!(read(), "7");
    let undo = set("9");
    fs::write("/sys/class/net/right/gro_flush_timeout", "10").unwrap();
    assert!(matches!(undo.undo().unwrap(), Undone::LeftAlone(why) if why.contains("somebody else")));
    assert_eq!(read(), "10");
}

/// A driver without n-tuple rules and RSS table has nothing to forget.
#[test]
fn of_a_veth_nothing_is_kept() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let mine = || {
        let files = fs::read_dir(state::directory()).unwrap().map(|entry| entry.unwrap().file_name());
        let begin = format!("{}-", std::process::id());
        files.filter(|name| name.to_string_lossy().starts_with(&begin)).count()
    };
    let before = mine();
    let mut kept = lab.hosts[0].enter(|| state::keep_steering("right")).unwrap().unwrap();
    lab.hosts[0].enter(|| kept.note(true).and_then(|()| kept.put_back(true))).unwrap().unwrap();
    assert_eq!(mine(), before);
    assert!(matches!(kept.end().unwrap(), Undone::Back(_)));
}

#[test]
fn preflight_finds_what_is_wrong() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let (host, index) = (&lab.hosts[0], lab.pairs[0].near.index);
    assert!(preflight(host, "right").iter().all(|finding| finding.severity == Severity::Note));
    for name in ["left", "a-name-that-is-too-long"] {
        let error = host.enter(|| interface::preflight(name, FRAME)).unwrap().unwrap_err();
        assert_eq!(error.to_string(), format!("there is no interface '{name}' here; there is: lo, right"));
    }

    host.route().set_mtu(index, 9000).unwrap();
    has(&preflight(host, "right"), Severity::Note, "MTU of 9000");
    host.route().set_mtu(index, 1500).unwrap();

    lab.hosts[1].route().set_up(lab.pairs[0].far.index, false).unwrap();
    has(&preflight(host, "right"), Severity::Warning, "right has no link");
    host.route().set_up(index, false).unwrap();
    has(&preflight(host, "right"), Severity::Error, "`ip link set right up`");
    host.route().set_up(index, true).unwrap();
    lab.hosts[1].route().set_up(lab.pairs[0].far.index, true).unwrap();

    // r0 = XDP_PASS (2); exit
    let instructions = [0x0000_0002_0000_00b7, 0x95];
    let spec =
        ProgramSpec { name: "already_there", kind: ProgramKind::XdpFrags, instructions: &instructions };
    let program = Program::load(&spec).unwrap();
    for (mode, called) in [(XdpMode::Native, "(native)"), (XdpMode::Generic, "(generic)")] {
        let link = host.enter(|| Link::xdp(&program, index, mode)).unwrap().unwrap();
        let id = program.info().unwrap().id;
        has(&preflight(host, "right"), Severity::Error, &format!("number {id} 'already_there' {called}"));
        assert_eq!(host.link("right").unwrap().xdp.first(), Some(id));
        drop(link);
        assert_eq!(host.link("right").unwrap().xdp.first(), None);
    }
}

#[test]
fn the_other_end_of_a_veth_is_known() {
    let Some(_guard) = lock() else { return };
    let host = Host::new().unwrap();
    let options = PairOptions { addresses: Default::default(), queues: 2, ..PairOptions::default() };
    let _pair = Pair::between(&host, &host, &options).unwrap();
    let interface = host.enter(|| interface::one("right", FRAME)).unwrap().unwrap();
    let peer = interface.peer.unwrap();
    assert_eq!((peer.name.as_str(), peer.tx_queues), ("left", 2));
    assert!(interface.advice.iter().all(|finding| finding.severity == Severity::Note));
}

#[test]
fn what_the_kernel_uses_is_told() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(3, &PairOptions::default()).unwrap();
    let host = &lab.hosts[1];
    let kernel_use = |name: &str| host.enter(|| interface::kernel_use(name)).unwrap();
    assert_eq!(kernel_use("left").unwrap().reason().unwrap(), "it has the address 10.0.0.2/24");
    assert!(matches!(kernel_use("none"), Err(InterfaceError::None { .. })));

    let never = || host.enter(|| interface::gateways(&mut Route::open().unwrap()).unwrap()).unwrap();
    assert!(never().is_empty());
    let router = [10, 0, 1, 2].into();
    let way = Gateway { index: lab.pairs[1].near.index, address: Some(router) };
    host.add_route("0.0.0.0/0".parse().unwrap(), way).unwrap();
    assert_eq!(never(), [router]);
    assert!(kernel_use("right").unwrap().default_route);
    assert!(!kernel_use("left").unwrap().default_route);

    let bare = PairOptions { addresses: Default::default(), ..PairOptions::default() };
    let two = [Host::new().unwrap(), Host::new().unwrap()];
    let _pair = Pair::between(&two[0], &two[1], &bare).unwrap();
    assert_eq!(two[0].enter(|| interface::kernel_use("right")).unwrap().unwrap().reason(), None);
}

#[test]
fn what_is_on_top_of_an_interface_or_controls_it_uses_it() {
    let Some(_guard) = lock() else { return };
    let bare = PairOptions { addresses: Default::default(), ..PairOptions::default() };
    let hosts = [Host::new().unwrap(), Host::new().unwrap()];
    let _pair = Pair::between(&hosts[0], &hosts[1], &bare).unwrap();
    let reason = || hosts[0].enter(|| interface::kernel_use("right")).unwrap().unwrap().reason();
    let ip = |words: &str| {
        let status = hosts[0].command("ip").unwrap().args(words.split(' ')).status().unwrap();
        assert!(status.success(), "ip {words}");
    };
    assert_eq!(reason(), None);
    ip("link add mac0 link right type macvlan mode bridge");
    assert_eq!(reason(), None, "nothing gets through it yet");
    ip("link set mac0 up");
    assert_eq!(reason().unwrap(), "mac0 on top of it is up");
    ip("link del mac0");
    ip("link add br0 type bridge");
    ip("link set right master br0");
    assert_eq!(reason().unwrap(), "it is a port of br0");
}

#[test]
fn what_an_absent_interface_can_do_is_an_error() {
    let Some(_guard) = lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let mut netdev = lab.hosts[0].enter(Netdev::open).unwrap().unwrap();
    let error = netdev.features(lab.pairs[0].near.index + 100).unwrap_err().to_string();
    assert!(error.contains("what XDP interface") && error.contains("No such device"), "{error}");
}
