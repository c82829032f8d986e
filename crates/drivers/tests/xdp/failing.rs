//! Whatever fails while a port is opened, at whichever queue: nothing is left behind, and the next open works.
//!
//! Each test is a process of its own, so that every file descriptor in it is the port's. Calls are made to fail by the
//! kernel itself: by a filter of system calls, by a limit of descriptors, by a queue that somebody else has.

use std::collections::BTreeSet;
use std::path::Path;

use bywash_drivers::xdp::{self, CopyMode, Options, XdpPort};
use bywash_frame::Arena;
use bywash_lab::PairOptions;
use bywash_lab::sys::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use bywash_lab::sys::route::Route;
use bywash_port::{OpenError, Port, QueueChoice};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::setup::{arena, cable, options};

/// What tells the process that it is the one to do the work.
const ALONE: &str = "BYWASH_TEST_ALONE";

/// What it says when it has done it.
const DONE: &str = "all of it was tried";

/// Runs `work` in a process of its own, in a host whose interface `right` has two queues, by running the calling test
/// there again.
fn in_a_process_of_its_own(test: &str, work: fn(&'static Arena)) {
    if std::env::var_os(ALONE).is_some() {
        work(arena(4096));
        println!("{DONE}");
        return;
    }
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    let mut command = cable.near().command(std::env::current_exe().unwrap()).unwrap();
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert!(output.status.success() && said.contains(DONE), "{said}");
    assert_eq!(cable.near().link("right").unwrap().xdp.first(), None);
}

fn try_open(queue: Option<u16>, options: &Options, arena: &'static Arena) -> Result<XdpPort, OpenError> {
    xdp::open("right", QueueChoice { queue, rx_only: false }, options, arena)
}

/// What a port takes: descriptors (of sockets, maps, programs, links), the place of the XDP program, and frames.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: BTreeSet<String>,
    program: Option<u32>,
    unused_frames: usize,
}

impl Holdings {
    fn now(arena: &Arena) -> Self {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let descriptors = files.map(|file| {
            let path = file.unwrap().path();
            // The list itself is among them, under another number each time.
            let target = std::fs::read_link(&path).map(|target| target.display().to_string());
            format!("{} {}", path.display(), target.unwrap_or_default())
        });
        let descriptors = descriptors.filter(|line| !line.ends_with("/fd") && !line.ends_with(' ')).collect();
        let link = Route::open().unwrap().link("right").unwrap().unwrap();
        Self { descriptors, program: link.xdp.first(), unused_frames: arena.unused() }
    }
}

/// Opens and closes both queues, and sees that nothing is held after that.
fn opens(arena: &'static Arena, what: &str) {
    let before = Holdings::now(arena);
    let port = try_open(None, &options(), arena).unwrap_or_else(|error| panic!("after {what}: {error}"));
    assert!(Holdings::now(arena).program.is_some());
    Box::new(port).close().unwrap();
    assert_eq!(Holdings::now(arena), before, "after {what}");
}

/// Opens a port; when that fails, nothing may be held after it. Returns what was said then.
fn refusal(arena: &'static Arena, open: impl FnOnce() -> Result<XdpPort, OpenError>) -> Option<String> {
    let before = Holdings::now(arena);
    let error = match open() {
        Ok(port) => {
            Box::new(port).close().unwrap();
            return None;
        }
        Err(error) => error.to_string(),
    };
    assert_eq!(Holdings::now(arena), before, "after: {error}");
    assert!(error.starts_with("xdp:right"), "{error}");
    Some(error)
}

/// As [`refusal`], where there must be one.
fn refused(arena: &'static Arena, what: &str, open: impl FnOnce() -> Result<XdpPort, OpenError>) -> String {
    refusal(arena, open).unwrap_or_else(|| panic!("{what} did not hinder it"))
}

/// A system call that is to fail: its number, and the values of arguments by which it is told from others.
struct Call {
    name: &'static str,
    number: libc::c_long,
    arguments: &'static [(u8, u64)],
}

/// Where the rings of a socket are mapped (`XDP_UMEM_PGOFF_FILL_RING` of `if_xdp.h` and its kin).
const FILL_OFFSET: u64 = 0x1_0000_0000;
const COMPLETION_OFFSET: u64 = 0x1_8000_0000;
const TX_OFFSET: u64 = 0x8000_0000;

const SOL_XDP: u64 = 283;

/// Commands of bpf(2) and options of AF_XDP sockets by number, as in the kernel's `bpf.h` and `if_xdp.h`.
const CALLS: &[Call] = &[
    Call { name: "creating a map", number: libc::SYS_bpf, arguments: &[(0, 0)] },
    Call { name: "loading the program", number: libc::SYS_bpf, arguments: &[(0, 5)] },
    Call { name: "attaching it", number: libc::SYS_bpf, arguments: &[(0, 28)] },
    Call { name: "making a socket", number: libc::SYS_socket, arguments: &[(0, libc::AF_XDP as u64)] },
    Call { name: "registering memory", number: libc::SYS_setsockopt, arguments: &[(1, SOL_XDP), (2, 4)] },
    Call { name: "the RX ring", number: libc::SYS_setsockopt, arguments: &[(1, SOL_XDP), (2, 2)] },
    Call { name: "the TX ring", number: libc::SYS_setsockopt, arguments: &[(1, SOL_XDP), (2, 3)] },
    Call { name: "the FILL ring", number: libc::SYS_setsockopt, arguments: &[(1, SOL_XDP), (2, 5)] },
    Call { name: "the COMPLETION ring", number: libc::SYS_setsockopt, arguments: &[(1, SOL_XDP), (2, 6)] },
    Call { name: "the rings' offsets", number: libc::SYS_getsockopt, arguments: &[(1, SOL_XDP), (2, 1)] },
    Call { name: "mapping the TX ring", number: libc::SYS_mmap, arguments: &[(5, TX_OFFSET)] },
    Call { name: "mapping the FILL ring", number: libc::SYS_mmap, arguments: &[(5, FILL_OFFSET)] },
    Call {
        name: "mapping the COMPLETION ring",
        number: libc::SYS_mmap,
        arguments: &[(5, COMPLETION_OFFSET)],
    },
    Call { name: "the TX budget", number: libc::SYS_setsockopt, arguments: &[(1, SOL_XDP), (2, 9)] },
    Call { name: "binding", number: libc::SYS_bind, arguments: &[(2, 16)] },
    // Both queues are bound by then.
    Call { name: "steering packets to a socket", number: libc::SYS_bpf, arguments: &[(0, 2)] },
];

impl Call {
    /// From now on it fails in the calling thread, for good.
    fn forbid(&self) {
        let conditions = self.arguments.iter().map(|&(argument, value)| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value).unwrap()
        });
        let rule = SeccompRule::new(conditions.collect()).unwrap();
        let rules = [(self.number, vec![rule])].into_iter().collect();
        let refuse = SeccompAction::Errno(libc::ENOMEM as u32);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }
}

#[test]
fn whichever_call_fails() {
    in_a_process_of_its_own("failing::whichever_call_fails", |arena| {
        for call in CALLS {
            refused(arena, call.name, || {
                let attempt = || {
                    call.forbid();
                    try_open(None, &options(), arena)
                };
                std::thread::scope(|scope| scope.spawn(attempt).join().unwrap())
            });
            opens(arena, call.name);
        }
    });
}

#[test]
fn wherever_descriptors_run_out() {
    in_a_process_of_its_own("failing::wherever_descriptors_run_out", |arena| {
        let usual = getrlimit(Resource::Nofile);
        let limit = |most: Option<u64>| {
            setrlimit(Resource::Nofile, Rlimit { current: most.or(usual.current), ..usual }).unwrap();
        };
        // Each lets one more descriptor be made: some numbers may be taken, by what whoever started the tests left open.
        // No port needs more than these.
        let is_free = |number: &u64| !Path::new("/proc/self/fd").join(number.to_string()).exists();
        let free: Vec<u64> = (0..100).filter(is_free).collect();
        let reasons = free.into_iter().map_while(|highest| {
            refusal(arena, || {
                limit(Some(highest + 1));
                let opened = try_open(None, &options(), arena);
                limit(None);
                opened
            })
        });
        let reasons: Vec<String> = reasons.collect();
        // Two queues, each with its socket and what will show that the kernel has let go of it. (What looks whether the
        // interface is still there has the place of the program, which is closed when it is attached.)
        let sockets = reasons.iter().filter(|reason| reason.contains("making an AF_XDP socket failed"));
        assert_eq!(sockets.count(), 4, "{reasons:#?}");
        opens(arena, "there were too few descriptors");
    });
}

#[test]
fn a_queue_that_is_busy_beside_one_that_is_free() {
    in_a_process_of_its_own("failing::a_queue_that_is_busy_beside_one_that_is_free", |arena| {
        // Who only sends in copy mode attaches no program.
        let only_send = Options { rx: false, copy: CopyMode::Copy, ..options() };
        let other = try_open(Some(1), &only_send, arena).unwrap();
        for options in [options(), Options { copy: CopyMode::Copy, ..options() }, only_send] {
            let error = refused(arena, "the second queue is busy", || try_open(None, &options, arena));
            assert!(error.contains("queue 1 of right is in use by another AF_XDP socket"), "{error}");
            let port = try_open(Some(0), &options, arena).unwrap_or_else(|error| panic!("{error}"));
            Box::new(port).close().unwrap();
        }
        Box::new(other).close().unwrap();
        opens(arena, "the second queue was busy");
    });
}

#[test]
fn an_interface_that_has_another_program() {
    in_a_process_of_its_own("failing::an_interface_that_has_another_program", |arena| {
        // `r0 = XDP_PASS; exit`
        let spec =
            ProgramSpec { kind: ProgramKind::XdpFrags, name: "theirs", instructions: &[0x2_0000_00b7, 0x95] };
        let theirs = Program::load(&spec).unwrap();
        let index = Route::open().unwrap().link("right").unwrap().unwrap().index;
        let link = Link::xdp(&theirs, index, XdpMode::Native).unwrap();
        let error = refused(arena, "another program is attached", || try_open(None, &options(), arena));
        assert!(error.contains("'theirs'"), "{error}");
        drop(link);
        opens(arena, "another program was attached");
    });
}
