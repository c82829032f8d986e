//! Plays the scripts in `tests/scripts` against the shared library, loaded as packetdrill loads it; and, where a machine
//! has packetdrill itself, by that as well.
#![expect(unsafe_code, reason = "what is loaded with dlopen is called through pointers")]
#![expect(clippy::unwrap_used, reason = "a test: what cannot be ends it")]

mod calls;
mod expression;
mod message;
mod network;
mod player;
mod script;
mod symbols;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use network::Network;

fn library() -> PathBuf {
    // Cargo builds it into the folder of this very program, and only `cargo build` puts it one above.
    let program = std::env::current_exe().expect("this program has a path");
    let deps = program.parent().expect("in target/PROFILE/deps");
    deps.join("libbywash_packetdrill.so")
}

fn scripts() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).expect("the scripts").flatten().map(|entry| entry.path()).collect();
    scripts.sort();
    assert!(scripts.len() >= 50, "scripts are missing");
    scripts
}

fn name(script: &Path) -> String {
    script.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Each script in each network that it is for, which is all of them unless its name says so.
fn plays() -> impl Iterator<Item = (Network, PathBuf)> {
    let scripts = scripts();
    Network::ALL.into_iter().flat_map(move |network| {
        let scripts: Vec<PathBuf> =
            scripts.iter().filter(|path| network.plays(&name(path))).cloned().collect();
        scripts.into_iter().map(move |path| (network, path))
    })
}

#[test]
fn every_script_plays() {
    let library = library();
    let mut failures = String::new();
    let mut played: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (network, path) in plays() {
        let text = std::fs::read_to_string(&path).expect("a script");
        if let Err(error) = player::play(&library, &text, network) {
            failures += &format!("{} ({}): {error}\n", path.display(), network.name());
        }
        played.entry(name(&path)).or_default().push(network.name());
    }
    let all = Network::ALL.map(Network::name);
    let mut told = format!("{} scripts played in {}", played.len(), all.join(", "));
    for (script, networks) in played.iter().filter(|(_, networks)| networks[..] != all) {
        told += &format!("; {script} only in {}", networks.join(", "));
    }
    writeln!(std::io::stderr(), "{told}").ok();
    assert!(failures.is_empty(), "{failures}");
}

/// A player that lets everything pass would prove nothing.
#[test]
fn a_wrong_script_fails() {
    let library = library();
    let play = |text: &str| player::play(&library, text, Network::V4);
    let (opening, rest) = include_str!("../scripts/close_first.pkt").split_once("+0 > F.").unwrap();
    for (wrong, why) in [
        ("+0 > F. 1:1(0) ack 2\n", "a wrong number"),
        ("+.2 > F. 1:1(0) ack 1\n", "a wrong time"),
        ("+0 > . 1:1(0) ack 1\n", "a wrong flag"),
        ("+0 > F. 1:1(0) ack 1\n+0 > . 2:2(0) ack 2\n", "a packet that never comes"),
        ("+0 read(4, ..., 10) = 3\n", "a wrong result"),
    ] {
        assert!(play(&format!("{opening}{wrong}")).is_err(), "{why}");
    }
    assert!(play(&format!("{opening}+0 > F.{rest}")).is_ok());
    let (opening, _) = include_str!("../scripts/initial_window.pkt").split_once("+0 %{").unwrap();
    assert!(play(&format!("{opening}+0 %{{ assert tcpi_snd_cwnd == 21 }}%\n")).is_err());
    let told = include_str!("../scripts/zerocopy.pkt");
    assert!(play(&told.replace("ee_data=1", "ee_data=0")).is_err(), "a wrong message");
}

#[test]
fn packetdrill_itself_plays_them() {
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("packetdrill")).find(|file| file.is_file())
    });
    let Some(packetdrill) = found else {
        return bywash_lab::skip("packetdrill is not installed, and no Debian package has it");
    };
    let library = library();
    for (network, path) in plays() {
        let flag = format!("--so_filename={}", library.display());
        let mut command = Command::new(&packetdrill);
        command.args(["--so_flags=sysctls=fixed", &flag]);
        command.arg(format!("--ip_version={}", network.name())).arg(format!("--mtu={}", network.mtu()));
        for word in ["CMSG_LEVEL_IP", "CMSG_TYPE_RECVERR"] {
            command.args(["-D", &format!("{word}={}", network.definition(word).unwrap())]);
        }
        // It asks the C library for TCP_INFO; see the crate's first lines.
        let output = command.arg(&path).env("LD_PRELOAD", &library).output().expect("packetdrill runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} ({}): {said}", path.display(), network.name());
    }
}
