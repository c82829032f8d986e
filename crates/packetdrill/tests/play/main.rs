//! Plays the scripts in `tests/scripts` against the shared library, loaded as packetdrill loads it; and, where a machine
//! has packetdrill itself, by that as well.
#![expect(unsafe_code, reason = "what is loaded with dlopen is called through pointers")]
#![expect(clippy::unwrap_used, reason = "a test: what cannot be ends it")]

mod expression;
mod message;
mod player;
mod script;

use std::path::PathBuf;
use std::process::Command;

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

#[test]
fn every_script_plays() {
    let library = library();
    let mut failures = String::new();
    for path in scripts() {
        let text = std::fs::read_to_string(&path).expect("a script");
        if let Err(error) = player::play(&library, &text) {
            failures += &format!("{}: {error}\n", path.display());
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// A player that lets everything pass would prove nothing.
#[test]
fn a_wrong_script_fails() {
    let library = library();
    let (opening, rest) = include_str!("../scripts/close_first.pkt").split_once("+0 > F.").unwrap();
    for (wrong, why) in [
        ("+0 > F. 1:1(0) ack 2\n", "a wrong number"),
        ("+.2 > F. 1:1(0) ack 1\n", "a wrong time"),
        ("+0 > . 1:1(0) ack 1\n", "a wrong flag"),
        ("+0 > F. 1:1(0) ack 1\n+0 > . 2:2(0) ack 2\n", "a packet that never comes"),
        ("+0 read(4, ..., 10) = 3\n", "a wrong result"),
    ] {
        assert!(player::play(&library, &format!("{opening}{wrong}")).is_err(), "{why}");
    }
    assert!(player::play(&library, &format!("{opening}+0 > F.{rest}")).is_ok());
    let (opening, _) = include_str!("../scripts/initial_window.pkt").split_once("+0 %{").unwrap();
    assert!(player::play(&library, &format!("{opening}+0 %{{ assert tcpi_snd_cwnd == 21 }}%\n")).is_err());
    let told = include_str!("../scripts/zerocopy.pkt");
    assert!(player::play(&library, &told.replace("ee_data=1", "ee_data=0")).is_err(), "a wrong message");
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
    for path in scripts() {
        let flag = format!("--so_filename={}", library.display());
        let mut command = Command::new(&packetdrill);
        command.args(["--ip_version=ipv4", "--so_flags=sysctls=fixed", &flag]).arg(&path);
        // It asks the C library for TCP_INFO; see the crate's first lines.
        let output = command.env("LD_PRELOAD", &library).output().expect("packetdrill runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", path.display());
    }
}
