//! The packet tools on NICs in software, as anyone can run them without root: `vfio-user:SOCKET`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use bywash_models::cable::Impairment;
use bywash_models::ixgbe::Board;
use bywash_models::server::Server;
use bywash_models::world::Shared;
use serde_json::Value;

/// NICs being served, on a cable when there are two. One test has them at a time: a NIC in software takes a core, and two
/// that share one keep no rate.
struct Served {
    _turn: MutexGuard<'static, ()>,
    folder: tempfile::TempDir,
    world: Shared,
    stop: Arc<AtomicBool>,
}

impl Served {
    fn new(nics: usize, mapped: bool) -> Self {
        Self::boards(nics, mapped, Board::default().device)
    }

    fn boards(nics: usize, mapped: bool, device: u16) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let boards = [1, 2].map(|last| Board { mac: [2, 0, 0, 0, 0, last], device });
        let world = Shared::new(&boards[..nics], Impairment::default());
        let stop = Arc::new(AtomicBool::new(false));
        let time = (world.clone(), stop.clone());
        thread::spawn(move || time.0.run(&time.1));
        let served = Self { _turn: turn, folder, world, stop };
        for index in 0..nics {
            let offer = if mapped { Server::mapped } else { Server::new };
            let mut server = offer(&served.path(index), &served.world, index).unwrap();
            // Client after client, until this process ends.
            thread::spawn(move || while server.serve().is_ok() {});
        }
        served
    }

    fn path(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("nic{index}.sock"))
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
        let place = |word: &str| match word {
            "NIC0" | "NIC1" => format!("vfio-user:{}", self.path(usize::from(word == "NIC1")).display()),
            word => word.to_owned(),
        };
        command.args(words.split_whitespace().map(place));
        if !words.starts_with("registers") {
            command.args(["--huge-pages", "off", "--memory", "16M"]);
        }
        command
    }

    /// No NIC was used as the datasheet forbids.
    fn check(&self, nics: usize) {
        for index in 0..nics {
            let broken = self.world.with(index, |device| device.nic.violations());
            assert!(broken.is_empty(), "NIC {index}: {broken:?}");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

fn summary(output: &[u8]) -> Value {
    let text = String::from_utf8(output.to_vec()).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_generator_and_a_receiver_are_joined_by_a_cable() {
    for (mapped, device) in [(false, 0x10fb), (true, 0x10fb), (false, 0x10ed)] {
        let served = Served::boards(2, mapped, device);
        let mut receive = served.command("receive NIC1 --queues 1 --count 5k --duration 60s --json");
        let receive = receive.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It is ready when its receiver is on.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let on = |world: &Shared| world.with(1, |device| device.nic.link_up() && device.config.bus_master());
        while !on(&served.world) {
            assert!(std::time::Instant::now() < until, "the receiver is not on");
            thread::sleep(std::time::Duration::from_millis(20));
        }
        thread::sleep(std::time::Duration::from_millis(500));
        let mut sent = served
            .command("generate NIC0 --queues 1 --dst-mac 02:00:00:00:00:02 --count 5k --rate 5k --json");
        let sent = sent.output().unwrap();
        assert_eq!(sent.status.code(), Some(0), "{sent:?}");
        let received = receive.wait_with_output().unwrap();
        assert_eq!(received.status.code(), Some(0), "{received:?}");
        assert_eq!(summary(&sent.stdout)["tx_packets"], 5000);
        served.check(2);
    }
}

#[test]
fn forwarding_from_a_looped_nic_goes_round() {
    // What is forwarded comes in again: packets that are in the loop once stay in it.
    let served = Served::new(1, false);
    let output = served.command("forward NIC0 null: --queues 1 --duration 2s --json").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let directions = &summary(&output.stdout)["directions"];
    let total: u64 =
        directions.as_array().unwrap().iter().map(|way| way["rx_packets"].as_u64().unwrap()).sum();
    assert!(total > 1000, "{directions}");
    served.check(1);
}

#[test]
fn what_a_nic_has_no_use_for_is_refused() {
    let served = Served::new(1, false);
    let output = served.command("receive NIC0 --only udp --duration 1s").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = served.command("receive vfio-user: --duration 1s").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = served.command("receive NIC1 --duration 1s").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("is a device being served at this socket?") && text.lines().count() == 1, "{text}");
}

#[test]
fn a_virtual_function_forwards_with_as_many_queues_as_it_is_granted() {
    let served = Served::boards(1, false, 0x10ed);
    let output = served.command("forward NIC0 null: --duration 1s --json").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("gives packets to other addresses than its own to no virtual one"), "{text}");
    let output = served.command("receive NIC0 --queues 4 --duration 1s").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("4 queues: the physical function grants 2"), "{text}");
    served.check(1);
}

#[test]
fn registers_are_shown_by_name_and_field_and_left_as_they_were() {
    let served = Served::boards(1, false, 0x10fb);
    served.world.with(0, |device| device.nic.receive(&[0; 60], true));
    let all = served.command("registers NIC0").output().unwrap();
    let text = String::from_utf8(all.stdout).unwrap();
    assert!(text.contains("82599ES SFP+ [8086:10fb]"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("LINKS") && line.contains("UP=1")), "{text}");
    assert!(!text.contains("\nGPRC") && !text.contains("\nSWSM"), "{text}");
    let told = String::from_utf8(all.stderr).unwrap();
    assert!(told.contains("not read") && told.contains("EICR") && told.contains("SWSM"), "{told}");
    let one = served.command("registers NIC0 rdt[127] --json").output().unwrap();
    let one = &summary(&one.stdout)["registers"][0];
    assert_eq!((&one["name"], &one["index"], &one["offset"]), (&"RDT".into(), &127.into(), &0xdfd8.into()));
    let part = served.command("registers NIC0 autoc --json").output().unwrap();
    let names: Vec<_> =
        summary(&part.stdout)["registers"].as_array().unwrap().iter().map(|r| r["name"].clone()).collect();
    assert_eq!(names, ["AUTOC"]);
    let pattern = served.command("registers NIC0 AUTOC*").output().unwrap();
    assert_eq!(String::from_utf8(pattern.stdout).unwrap().lines().count(), 3);
    // What reading takes is read when it is asked for in full.
    let taken = served.command("registers NIC0 SWSM --json").output().unwrap();
    assert_eq!(summary(&taken.stdout)["registers"][0]["fields"]["SMBI"], 0);
    let taken = served.command("registers NIC0 SWSM --json").output().unwrap();
    assert_eq!(summary(&taken.stdout)["registers"][0]["fields"]["SMBI"], 1);
    for (words, says) in [
        ("registers NIC0 RXDCTRL", "has no register 'RXDCTRL'; did you mean RXDCTL?"),
        ("registers NIC0 QQQQQ", "has no register 'QQQQQ'; without a name all are listed"),
        ("registers NIC0 RDT[128]", "has no register 'RDT[128]'"),
        ("registers null:", "null: has no registers that could be read"),
        ("registers NIC1", "is a device being served at this socket?"),
    ] {
        let output = served.command(words).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && text.contains(says) && text.lines().count() == 1,
            "{text}"
        );
    }
    served.check(1);
    drop(served);
    let function = Served::boards(1, false, 0x10ed);
    let output = function.command("registers NIC0 VFLINKS").output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("VFLINKS  0x00010"));
    function.check(1);
}
