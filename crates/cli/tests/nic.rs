//! The packet tools on NICs in software, as anyone can run them without root: `vfio-user:SOCKET`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bywash_hw::ixgbe::regs::{DMATXCTL, EIMS, GPRC, GPTC, RDT, RXCTRL, RXDCTL};
use bywash_hw::ixgbe::vf::{VFRDT, VFRXDCTL};
use bywash_hw::reg::Register;
use bywash_models::cable::{Cable, Impairment};
use bywash_models::ixgbe::Board;
use bywash_models::server::Server;
use bywash_models::world::Shared;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A user without rights.
const NOBODY: u32 = 65_534;

/// NICs being served, on a cable when there are two. One test has them at a time: a NIC in software takes a core, and two
/// that share one keep no rate.
struct Served {
    _turn: MutexGuard<'static, ()>,
    folder: tempfile::TempDir,
    world: Shared,
    stop: Arc<AtomicBool>,
}

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Served {
    fn new(nics: usize, mapped: bool) -> Self {
        Self::boards(nics, mapped, Board::default().device)
    }

    fn boards(nics: usize, mapped: bool, device: u16) -> Self {
        let turn = turn();
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
        let place = |word: &str| match word.split_at_checked(4) {
            Some((nic @ ("NIC0" | "NIC1"), behind)) => {
                format!("vfio-user:{}{behind}", self.path(usize::from(nic == "NIC1")).display())
            }
            _ => word.to_owned(),
        };
        command.args(words.split_whitespace().map(place));
        if !words.starts_with("registers") {
            command.args(["--huge-pages", "off", "--memory", "16M"]);
        }
        command
    }

    /// Starts to receive on the second NIC, and returns when that has memory for packets in all queues.
    fn start_receiver(&self, command: &mut Command) -> Child {
        let receive = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the receiver is on", || self.is_fed(1));
        receive
    }

    fn is_fed(&self, index: usize) -> bool {
        self.world.with(index, |device| {
            // A copy is asked: while a NIC is reset, to read its registers is forbidden.
            let mut nic = device.nic.clone();
            let (switch, tail) = if nic.board().is_virtual() { (&VFRXDCTL, &VFRDT) } else { (&RXDCTL, &RDT) };
            let on = |queue: &u32| RXDCTL::ENABLE.is_set(nic.read32(switch.at(*queue)));
            let on: Vec<u32> = (0..tail.count()).filter(on).collect();
            let all = !on.is_empty() && on.into_iter().all(|queue| nic.read32(tail.at(queue)) != 0);
            all && nic.link_up() && device.config.bus_master()
        })
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
        let receive = "receive NIC1 --queues 1 --count 5k --duration 60s --json";
        let receive = served.start_receiver(&mut served.command(receive));
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

/// A program that does not outlive its test.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The two commands of the documentation, as somebody without rights: a NIC in software, and a tool on it. Here with a second NIC
/// at the other end of a bad cable, which does the same to the same packets each time.
#[test]
fn two_commands_without_rights_are_all_it_takes() {
    const SENT: usize = 2000;
    let built = Path::new(env!("CARGO_BIN_EXE_bywash"));
    if !built.with_file_name("bywash-models").exists() {
        return bywash_lab::skip(
            "there is no bywash-models beside bywash; cargo build --package bywash-models makes it",
        );
    }
    // Nor does another test start a program while these are copied, which would have them open for writing.
    let _turn = turn();
    // Where somebody without rights may run what we have built.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let command = |program: &str, words: &str| {
        let copy = folder.path().join(program);
        if !copy.exists() {
            std::fs::copy(built.with_file_name(program), &copy).unwrap();
        }
        let mut command = Command::new(&copy);
        if bywash_lab::root().is_ok() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
            .args(words.split(' '))
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let memory = "--huge-pages off --memory 16M --json";
    let bad = Impairment { delay_us: 200, loss: 100, corrupt: 50, seed: 7, ..Impairment::default() };
    let words = "ixgbe a.sock --link b.sock --delay 200 --loss 100 --corrupt 50 --seed 7";
    let mut models = Started(command("bywash-models", words).spawn().unwrap());
    let mut lines = BufReader::new(models.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "b.sock: an 82599 (8086:10fb)"));
    // What the cable alone lets through.
    let mut cable = Cable::new(bad);
    (0..SENT).for_each(|number| cable.send(if number + 1 < SENT { vec![0; 60] } else { vec![1; 60] }, 0));
    let arrivals: Vec<_> = std::iter::from_fn(|| cable.receive(1_000)).collect();
    let good = arrivals.iter().filter(|arrival| arrival.check_good).count();
    assert!(arrivals.last().is_some_and(|last| last.frame == [1; 60]), "the last one gets through");
    let words = format!("receive vfio-user:b.sock --queues 1 --count {good} --duration 60s {memory}");
    let mut receive = Started(command("bywash", &words).spawn().unwrap());
    // It says that more would be possible once its port is open and the link up.
    let mut said = BufReader::new(receive.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("serve it with --mapped")));
    let words =
        format!("generate vfio-user:a.sock --queues 1 --dst-mac 02:00:00:82:59:91 --count {SENT} {memory}");
    let sent = command("bywash", &words).output().unwrap();
    assert_eq!(sent.status.code(), Some(0), "{sent:?}");
    assert_eq!(summary(&sent.stdout)["tx_packets"], SENT);
    let received = summary(said.last().unwrap().as_bytes());
    // All that can be counted have come; that others were lost is what it ends with 1 for.
    assert_eq!(receive.0.wait().unwrap().code(), Some(1), "{received}");
    for (name, value) in [
        ("rx_packets", good),
        ("lost_packets", SENT - good),
        ("damaged_packets", 0),
        ("duplicate_packets", 0),
    ] {
        assert_eq!(received[name], value, "{name}: {received}");
    }
    assert_eq!(received["port"]["counters"]["rx_crc_errors"], arrivals.len() - good, "{received}");
    kill_process(Pid::from_child(&models.0), Signal::TERM).unwrap();
    let code = models.0.wait().unwrap();
    let broken: Vec<String> = lines.collect();
    assert!(code.success() && broken.is_empty(), "{code}: {broken:?}");
    assert!(!folder.path().join("a.sock").exists());
}

#[test]
fn killed_programs_leave_their_nics_quiet_and_free() {
    let served = Served::new(2, false);
    let mut receive = served.start_receiver(&mut served.command("receive NIC1 --queues 2 --json"));
    let mut send = served.command("generate NIC0 --queues 1 --dst-mac 02:00:00:00:00:02 --rate 5k --spread");
    let mut send = send.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let read =
        |index, register| served.world.with(index, |device| device.nic.read32(Register::offset(register)));
    wait_until("packets come", || read(1, &GPRC) > 0);
    receive.kill().unwrap();
    receive.wait().unwrap();
    let is_quiet = |index| {
        let masters = served.world.with(index, |device| device.config.bus_master());
        let runs = RXCTRL::RXEN.is_set(read(index, &RXCTRL)) || DMATXCTL::TE.is_set(read(index, &DMATXCTL));
        !masters && !runs && read(index, &EIMS) == 0
    };
    wait_until("the receiver is quiet", || is_quiet(1));
    // More packets come meanwhile, for nobody.
    let sent = || read(0, &GPTC);
    sent();
    wait_until("packets are sent", || sent() > 0);
    assert!(is_quiet(1) && !is_quiet(0));
    send.kill().unwrap();
    send.wait().unwrap();
    wait_until("the sender is quiet", || is_quiet(0));
    served.check(2);
    let mut receive = served.command("receive NIC1 --queues 2 --count 100 --duration 60s --json");
    let receive = served.start_receiver(&mut receive);
    let mut send =
        served.command("generate NIC0 --queues 1 --dst-mac 02:00:00:00:00:02 --count 100 --rate 1k");
    assert_eq!(send.output().unwrap().status.code(), Some(0));
    assert_eq!(receive.wait_with_output().unwrap().status.code(), Some(0));
    served.check(2);
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "not in time: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A file for `--steer`.
const RULES: &str = r#"[[rule]]
name = "elsewhere"
match = "ip"
from = ["192.168.0.0/16"]
action = "queue"
queue = 1
"#;

#[test]
fn rules_give_packets_to_a_queue_and_say_where_they_are() {
    let served = Served::new(2, false);
    let mut receive = served.command("receive NIC1/fdir=2k --queues 2 --count 2k --duration 60s --json");
    // Without the second rule RSS would spread these over both queues.
    let rules = served.folder.path().join("rules.toml");
    std::fs::write(&rules, RULES).unwrap();
    let file = format!("@{}", rules.display());
    receive.args(["--steer", "ip and udp dst port 67 queue 0", "--steer", &file]);
    let receive = served.start_receiver(&mut receive);
    let mut send = served.command("generate NIC0 --queues 1 --count 2k --rate 2k --spread --json");
    assert_eq!(send.output().unwrap().status.code(), Some(0));
    let received = receive.wait_with_output().unwrap();
    assert_eq!(received.status.code(), Some(0), "{received:?}");
    let queues = &summary(&received.stdout)["queues"];
    let counts = [0, 1].map(|queue| queues[queue]["packets"].as_u64());
    assert_eq!(counts, [Some(0), Some(2000)], "{queues}");
    let text = String::from_utf8(received.stdout).unwrap();
    for said in [
        "/fdir=2k: 'elsewhere': 'ip and src net 192.168.0.0/16 queue 1' is flow director filter 0\"}",
        "/fdir=2k: 'ip and udp dst port 67 queue 0' is five-tuple filter 0\"}",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with("{\"event\":\"steered\"") && line.ends_with(said)),
            "{text}"
        );
    }
    served.check(2);
}

#[test]
fn a_stack_says_what_spreads_its_flows() {
    let served = Served::new(1, false);
    let runtime = tempfile::tempdir().unwrap();
    for (words, spread_by) in [
        ("--queues 2", "nic".into()),
        ("--queues 2 --steer ip|and|udp|dst|port|53|queue|1", "software".into()),
        ("--queues 1", Value::Null),
    ] {
        let mut serve = served.command("serve --port NIC0 --addr 10.0.0.2/24 --duration 1s --json");
        serve.args(words.split(' ').map(|word| word.replace('|', " ")));
        let output = serve.env("XDG_RUNTIME_DIR", runtime.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let start = text.lines().find(|line| line.contains(r#""event":"start""#)).unwrap();
        let start: Value = serde_json::from_str(start).unwrap();
        assert_eq!(start["spread_by"], spread_by, "{words}: {start}");
    }
    served.check(1);
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
    let rules = served.folder.path().join("rules.toml");
    std::fs::write(&rules, format!("{RULES}dry_run = true\n")).unwrap();
    for (words, rule, says) in [
        ("receive NIC0", "vlan 3 and ip and udp queue 0", "write /fdir=2k behind its name (--steer)"),
        ("receive NIC0", "ip and udp queue 7", "queue 7: the port was opened with 1 (--steer)"),
        ("receive NIC0", "udp dst port 53 queue 0", ": write: ip and udp dst port 53"),
        ("receive NIC0", "udp4 dst-port 53 queue 0", "udp4 dst-port 53 queue 0"),
        (
            "receive NIC0",
            "ip and udp count",
            "a NIC gives packets to a queue or drops them, and does not 'count': write queue or drop; xdp: ports pass and count",
        ),
        (
            "receive NIC0",
            "@RULES",
            "rules.toml:5:10: 'elsewhere' is no rule for --steer: dry_run drops nothing",
        ),
        ("receive NIC0", "@/nowhere", "/nowhere: it can't be read"),
        (
            "receive null:",
            "ip and udp queue 0",
            "--steer is for xdp:, pci: and vfio-user: ports and there is none",
        ),
        ("generate NIC0", "ip and udp queue 0", "--steer is about packets that are received"),
    ] {
        let mut command = served.command(&format!("{words} --queues 1 --duration 1s"));
        let output =
            command.args(["--steer", &rule.replace("RULES", &rules.display().to_string())]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(says) && text.lines().count() == 1, "{text}");
    }
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
    served.world.with(0, |device| device.nic.receive(vec![0; 60], true));
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
