//! The packet tools on NICs in software, as anyone can run them without root: `vfio-user:SOCKET`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use bywash_models::cable::Impairment;
use bywash_models::ixgbe::Board;
use bywash_models::server::Server;
use bywash_models::world::Shared;
use serde_json::Value;

/// NICs being served, on a cable when there are two.
struct Served {
    folder: tempfile::TempDir,
    world: Shared,
    stop: Arc<AtomicBool>,
}

impl Served {
    fn new(nics: usize, mapped: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let boards = [1, 2].map(|last| Board { mac: [2, 0, 0, 0, 0, last], ..Board::default() });
        let world = Shared::new(&boards[..nics], Impairment::default());
        let stop = Arc::new(AtomicBool::new(false));
        let time = (world.clone(), stop.clone());
        thread::spawn(move || time.0.run(&time.1));
        let served = Self { folder, world, stop };
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
        command.args(words.split_whitespace().map(place)).args(["--huge-pages", "off", "--memory", "16M"]);
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
    for mapped in [false, true] {
        let served = Served::new(2, mapped);
        let mut receive = served.command("receive NIC1 --queues 1 --count 5k --duration 15s --json");
        let receive = receive.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It is ready when its receiver is on.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let on = |world: &Shared| world.with(1, |device| device.nic.link_up() && device.config.bus_master());
        while !on(&served.world) && std::time::Instant::now() < until {
            thread::sleep(std::time::Duration::from_millis(20));
        }
        thread::sleep(std::time::Duration::from_millis(500));
        let sent = served.command("generate NIC0 --queues 1 --count 5k --rate 5k --json").output().unwrap();
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
