//! Routes that say which address of ours packets come from (`src`).

use std::net::TcpListener;
use std::process::Stdio;

use bywash_lab::lock;

use crate::instance::{BYWASH, Instance, little_memory, pair};

#[test]
fn linux_hears_from_the_source_that_a_route_names() {
    let Some(_guard) = lock() else { return };
    let (near, far, pair) = pair(&["10.9.0.1/24", "10.77.0.1/32"]);
    let listener = near.enter(|| TcpListener::bind("0.0.0.0:8080")).unwrap().unwrap();
    let place = format!("--port|xdp:{}|--addr|10.9.0.2/24|--addr|10.9.0.5/24", pair.far.name);
    let named = "--route|10.77.0.0/16 via 10.9.0.1 src 10.9.0.5";
    for (to, route, from) in [
        ("10.77.0.1:8080", named, "10.9.0.5"),
        ("10.9.0.1:8080", named, "10.9.0.2"),
        ("10.77.0.1:8080", "--route|default via 10.9.0.1", "10.9.0.2"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = far.command(BYWASH).unwrap();
        command.args(["tcp", "connect", to, "--force", "--quiet", "--duration", "60s"]);
        command.args(format!("{place}|{route}").split('|')).args(little_memory(&place));
        command.env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip().to_string(), from, "{to} {route}");
        drop((stream, child.stdin.take()));
        child.wait().unwrap();
    }
}

#[test]
fn a_source_is_given_shown_and_taken_away_as_iproute2_does() {
    let Some(_guard) = lock() else { return };
    let (_near, far, pair) = pair(&["10.9.0.1/24"]);
    let name = &pair.far.name;
    let config = tempfile::NamedTempFile::new().unwrap();
    let written = format!(
        "[[port]]\nport = 'xdp:{name}'\naddresses = ['10.9.0.2/24', '10.9.0.5/24', 'fd09::2/64', 'fd09::5/64']\n\
         [[route]]\nprefix = '10.7.0.0/16'\nvia = '10.9.0.1'\nsrc = '10.9.0.5'\n\
         [[route]]\nprefix = 'fd07::/16'\nvia = 'fd09::1'\nsrc = 'fd09::5'\n"
    );
    std::fs::write(config.path(), &written).unwrap();
    let serve = Instance::start(&far, &format!("serve|--config|{}", config.path().display()));
    let (text, refused) =
        (|words: &str| serve.text(words), |words: &str, says: &str| serve.refuses(words, says));
    assert_eq!(
        text("route show 10.7.0.0/16"),
        format!("10.7.0.0/16 via 10.9.0.1 dev {name} proto static src 10.9.0.5 metric 0")
    );
    assert_eq!(serve.told("route show 10.7.0.0/16 --json")[0]["prefsrc"], "10.9.0.5");
    assert_eq!(text("route get 10.7.0.1"), format!("10.7.0.1 via 10.9.0.1 dev {name} src 10.9.0.5"));
    assert_eq!(text("route get fd07::1"), format!("fd07::1 via fd09::1 dev {name} src fd09::5"));
    assert_eq!(text("route get 10.9.0.1"), format!("10.9.0.1 dev {name} src 10.9.0.2"));
    text("route change 10.7.0.0/16 via 10.9.0.1");
    assert_eq!(text("route get 10.7.0.1"), format!("10.7.0.1 via 10.9.0.1 dev {name} src 10.9.0.2"));
    text("route replace 10.7.0.0/16 via 10.9.0.1 src 10.9.0.5");
    text("route add 10.8.0.0/16 via 10.9.0.1 src 10.9.0.2");
    // What is refused.
    refused("route add 10.6.0.0/16 via 10.9.0.1 src 10.9.0.77", "cannot come from 10.9.0.77");
    refused("route add 10.6.0.0/16 via 10.9.0.1 src fd09::5", "its source are of different families");
    refused("-4 route add default src fd09::5", "fd09::5 is not IPv4");
    refused(&format!("route add fd06::/16 src fe80::77 dev {name}"), "cannot come from fe80::77:");
    refused("route append 10.7.0.0/16 via 10.9.0.7", "of one prefix and metric there is one route");
    refused("addr add 10.9.0.9/24 src 10.9.0.5", "'src' is not supported");
    // Which is meant.
    refused("route del 10.7.0.0/16 src 10.9.0.2", "no such route");
    assert_eq!(text("route show src 10.9.0.2").split(' ').next(), Some("10.8.0.0/16"));
    text("route flush src 10.9.0.2");
    assert_eq!(text("route show 10.8.0.0/16"), "");
    text("route del 10.7.0.0/16 src 10.9.0.5");
    // An address goes: IPv4's routes from it with it, those of IPv6 stay.
    text("route add default via 10.9.0.1 src 10.9.0.5");
    text("addr del 10.9.0.5");
    text("addr del fd09::5");
    assert_eq!(text("route -4 show default"), "");
    assert_eq!(
        text("route -6 show fd07::/16"),
        format!("fd07::/16 via fd09::1 dev {name} proto static metric 0")
    );
    serve.end();
    // Where the file says it.
    std::fs::write(config.path(), written.replace("src = '10.9.0.5'", "src = '10.9.0.7'")).unwrap();
    let mut command = far.command(BYWASH).unwrap();
    command.args(["serve", "--config"]).arg(config.path()).args(little_memory("serve"));
    let output = command.output().unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{why}");
    assert!(why.contains(":7:7: packets by that route cannot come from 10.9.0.7"), "{why}");
}
