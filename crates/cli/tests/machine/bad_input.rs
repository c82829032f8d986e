//! What can't be begun says so in one line: what, why, what to do; exit code 2; and the machine is as it was.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use bywash_lab::sys::route::Gateway;
use bywash_lab::{Host, Lab, Pair, PairOptions, Snapshot};

use crate::setup::{OpenToAll, PATIENCE, Tool, bywash, words_of};

/// The user without rights.
const NOBODY: u32 = 65_534;

/// Who types it.
#[derive(Clone, Copy)]
enum User {
    Root,
    Nobody,
    /// Nobody with these rights, as setpriv(1) names them.
    With(&'static str),
}

/// A command, and what its line must say: what was wrong, why, and what to do.
type Row = (User, &'static str, [&'static str; 3]);

/// On a host whose `right` has the address 10.0.0.1 and the default route, whose `taken` another `bywash` sends on, whose `full` another one
/// receives from, whose `wide` has an MTU of 40000, and whose `dark` has no link.
const ROWS: &[Row] = &[
    (User::Root, "forward null: --mac-swop", ["unexpected argument", "'--mac-swop'", "exists: '--mac-swap'"]),
    (User::Root, "receive xpd:right", ["invalid value 'xpd:right'", "is not a port", "write KIND:NAME"]),
    (User::Root, "receive xdp:", ["'xdp:'", "names no interface", "write xdp:eth1"]),
    (User::Root, "receive tap:", ["'tap:'", "names no interface", "write tap:tap0"]),
    (User::Root, "forward loop: null:", ["'loop:'", "has no name", "write loop:a"]),
    (User::Root, "receive xdp:right/x", ["'right/x'", "is no queue", "write xdp:right/4"]),
    (User::Root, "receive xdp:right/7 --force", ["xdp:right/7:", "no queue 7", "its only queue is 0"]),
    (User::Root, "receive xdp:absent", ["xdp:absent:", "there is no interface 'absent'", "there is: "]),
    (
        User::Root,
        "generate packet:absent",
        ["packet:absent:", "no interface 'absent'", "`bywash ports` lists"],
    ),
    (User::Root, "forward xdp:right xdp:absent --force", ["xdp:absent:", "no interface", "there is: "]),
    (User::Root, "receive xdp:right", ["cut the machine off", "it has the address 10.0.0.1", "--only"]),
    (
        User::Root,
        "generate xdp:taken",
        ["queue 0 of taken", "in use by another AF_XDP socket", "stop that program"],
    ),
    (
        User::Root,
        "receive xdp:taken --force",
        ["queue 0 of taken", "in use by another", "name another queue"],
    ),
    (
        User::Root,
        "receive xdp:full --force",
        ["full has an XDP program already", "it is Bywash's", "one port at a time"],
    ),
    (
        User::Root,
        "receive xdp:wide --force",
        ["the MTU of wide is 40000", "more than the 18 frames of a packet hold", "set it to"],
    ),
    // With the warnings that there would be otherwise.
    (
        User::Root,
        "generate xdp:wide --size 60000 --memory 16M",
        ["xdp:wide takes", "at most 36868 bytes", "--size 60000 is more"],
    ),
    (
        User::Root,
        "generate xdp:right",
        ["the default route goes by right", "would cut this machine off", "give a --rate, or --force"],
    ),
    (User::Root, "generate packet:dark", ["dark has no carrier", "its partner", "is not up"]),
    (
        User::Root,
        "generate packet:right --size 1600 --rate 10",
        ["packet:right takes", "at most 1518 bytes", "--size 1600 is more"],
    ),
    (
        User::Root,
        "receive xdp:right --force --memory 4000G --huge-pages require",
        ["2048000 huge pages of 2 MiB are needed", "are free", "nr_hugepages`"],
    ),
    (User::Nobody, "receive packet:right", ["packet:right:", "a packet socket needs", "CAP_NET_RAW"]),
    // What is refused is /dev/net/tun, or the interface where that is open to all, as udev has it.
    (User::Nobody, "receive tap:other", ["tap:other:", "needs root", "the right"]),
    (User::Nobody, "generate xdp:right --rate 10", ["xdp:right:", "an AF_XDP socket needs", "CAP_NET_RAW"]),
    (
        User::Nobody,
        "receive xdp:right --only udp",
        ["xdp:right:", "AF_XDP needs CAP_NET_ADMIN and CAP_NET_RAW and CAP_BPF", "as root"],
    ),
    (
        User::With("+bpf,+net_admin"),
        "receive xdp:right --force",
        ["xdp:right:", "AF_XDP needs CAP_NET_RAW, which", "as root"],
    ),
    (
        User::With("+bpf,+net_admin,+net_raw,+ipc_lock"),
        "receive xdp:right --only udp",
        ["xdp:right:", "needs CAP_PERFMON as well", "run it as root"],
    ),
    (
        User::With("+bpf,+net_admin,+net_raw"),
        "receive xdp:right --force --memory 16M",
        ["packet memory can't be pinned", "needs CAP_IPC_LOCK", "RLIMIT_MEMLOCK"],
    ),
];

/// The command, by its user; it starts in the namespace of the thread that starts it.
fn command(binary: &OpenToAll, (user, words, _): Row) -> Command {
    let (program, mut before) = match user {
        User::Root => (env!("CARGO_BIN_EXE_bywash").into(), Vec::new()),
        User::Nobody => (binary.binary(), Vec::new()),
        User::With(rights) => ("setpriv".into(), vec!["--inh-caps", rights, "--ambient-caps", rights]),
    };
    let name = binary.binary().display().to_string();
    if let User::With(_) = user {
        before.extend(["--reuid", "65534", "--regid", "65534", "--clear-groups", &name]);
    }
    let mut command = Command::new(program);
    command.args(before).args(words_of(words)).current_dir("/");
    if !words.contains("--memory") {
        command.args(["--huge-pages", "off", "--memory", "16M"]);
    }
    // Should it begin, it ends.
    command.args(["--duration", "1s"]);
    if let User::Nobody = user {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// What can be seen of a host's interfaces.
fn interfaces(host: &Host) -> String {
    let mut route = host.route();
    format!("{:?} {:?}", route.links().unwrap(), route.addresses().unwrap())
}

#[test]
fn one_line_and_nothing_changed() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let [host, other] = &lab.hosts[..] else { panic!("two hosts") };
    let bare = |name: &str, mtu| PairOptions {
        names: [name.into(), name.into()],
        addresses: Default::default(),
        mtu,
        ..PairOptions::default()
    };
    let cables = [("taken", 1500), ("full", 1500), ("wide", 40_000), ("dark", 1500)];
    let cables = cables.map(|(name, mtu)| Pair::between(host, other, &bare(name, mtu)).unwrap());
    let everywhere = "0.0.0.0/0".parse().unwrap();
    let index = lab.pairs[0].near.index;
    host.add_route(everywhere, Gateway { index, address: Some("10.0.0.2".parse().unwrap()) }).unwrap();
    other.route().set_up(cables[3].far.index, false).unwrap();
    let start = Instant::now();
    while host.link("dark").unwrap().running {
        assert!(start.elapsed() < PATIENCE, "it keeps its link");
        std::thread::sleep(Duration::from_millis(10));
    }
    let sender = Tool::start(&mut bywash(host, "generate xdp:taken --rate 100 --json"));
    let receiver = Tool::start(&mut bywash(host, "receive xdp:full --force --json"));

    let binary = OpenToAll::new();
    let (machine, before) = (Snapshot::take(), interfaces(host));
    let mut complaints = Vec::new();
    for &row in ROWS {
        let (_, words, says) = row;
        let output = host.enter(|| command(&binary, row).output().unwrap()).unwrap();
        let (said, mut wrong) = (String::from_utf8(output.stderr).unwrap(), Vec::new());
        if (output.status.code(), output.stdout.len()) != (Some(2), 0) {
            wrong.push(format!("{}, {} bytes", output.status, output.stdout.len()));
        }
        if !said.starts_with("bywash: ") || said.lines().count() != 1 {
            wrong.push("not one line of bywash's".into());
        }
        wrong.extend(says.iter().filter(|part| !said.contains(**part)).map(|part| format!("no '{part}'")));
        wrong.extend(machine.difference());
        if interfaces(host) != before {
            wrong.push("an interface has changed".into());
        }
        if !wrong.is_empty() {
            complaints.push(format!("{words}: {}: {said}", wrong.join(", ")));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    // Those who had the queues have not noticed.
    assert_eq!(sender.summary()["port"]["counters"]["failed_calls"], 0);
    assert_eq!(receiver.summary()["port"]["counters"]["failed_calls"], 0);
}

#[test]
fn who_may_not_add_huge_pages_is_told_what_the_command_takes_instead() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let (binary, machine) = (OpenToAll::new(), Snapshot::take());
    // What would be undone is noted there first.
    let own = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(own.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let rows = [
        ("setup --huge-pages 4000G", false),
        ("receive loop:nobody --huge-pages reserve --memory 4000G --duration 1s", true),
    ];
    for (words, has_auto) in rows {
        let mut command = Command::new(binary.binary());
        command.args(words_of(words)).current_dir("/").env("XDG_RUNTIME_DIR", own.path());
        let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let end = if has_auto { ": needs root, or --huge-pages auto\n" } else { ": needs root\n" };
        assert!(said.lines().count() == 1 && said.ends_with(end), "{words}: {said}");
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert_eq!(machine.difference(), Vec::<String>::new(), "{words}");
    }
}
