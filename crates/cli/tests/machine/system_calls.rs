//! System calls per packet, counted by tracing the process that makes them.
#![expect(unsafe_code, reason = "ptrace(2) has no safe form")]

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr::null_mut;

use bywash_lab::{Lab, PairOptions};
use libc::{c_int, c_long, c_uint, pid_t};
use serde_json::Value;

use crate::setup::bywash;

/// What a thread was seen to do.
#[derive(Default)]
struct Thread {
    /// The name it had at its last system call.
    name: String,
    /// The numbers of its system calls, in order.
    calls: Vec<c_long>,
    /// It is in one.
    is_inside: bool,
}

/// Asks something of a thread that is stopped for us.
fn request(request: c_uint, thread: pid_t, address: usize, data: usize) -> io::Result<c_long> {
    // SAFETY: of the requests made here only PTRACE_GET_SYSCALL_INFO writes to memory of ours: at most `address` bytes at
    // `data`, which its caller gives as the size and the place of one live structure.
    let result = unsafe { libc::ptrace(request, thread, address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The number of the system call that a stopped thread enters.
fn entered(thread: pid_t) -> c_long {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    request(libc::PTRACE_GET_SYSCALL_INFO, thread, size, info.as_mut_ptr().expose_provenance()).unwrap();
    // SAFETY: it is made of numbers only, for which zeros and whatever the kernel has written are values.
    let info = unsafe { info.assume_init() };
    assert_eq!(info.op, libc::PTRACE_SYSCALL_INFO_ENTRY);
    // SAFETY: `op` says that this member is the one that was written.
    c_long::try_from(unsafe { info.u.entry.nr }).unwrap()
}

/// Waits for the next thing to happen to a thread of a process that this thread has started.
fn next_event() -> (pid_t, c_int) {
    let mut status = 0;
    // SAFETY: the status is the only thing written. Children of other threads' making are left to them.
    let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
    assert!(thread > 0, "{}", io::Error::last_os_error());
    (thread, status)
}

/// Runs a command to its end and lists the system calls of each of its threads. It is killed with this process.
fn trace(command: &mut Command) -> (HashMap<pid_t, Thread>, Vec<u8>) {
    // SAFETY: between fork and exec the closure makes one system call and touches nothing else.
    unsafe {
        command.pre_exec(|| {
            match libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<()>(), null_mut::<()>()) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    #[expect(clippy::zombie_processes, reason = "waiting for whatever happens waits for its end, too")]
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let process = pid_t::try_from(child.id()).unwrap();
    assert_eq!(next_event().0, process, "it stops when it has begun");
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SETOPTIONS, process, 0, usize::try_from(options).unwrap()).unwrap();
    request(libc::PTRACE_SYSCALL, process, 0, 0).unwrap();
    let mut threads = HashMap::from([(process, Thread::default())]);
    loop {
        let (id, status) = next_event();
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            if id == process {
                assert_eq!(libc::WEXITSTATUS(status), 0, "status {status:#x}");
                break;
            }
            continue;
        }
        let is_new = !threads.contains_key(&id);
        let thread = threads.entry(id).or_default();
        let signal = match libc::WSTOPSIG(status) {
            call if call == libc::SIGTRAP | 0x80 => {
                thread.is_inside = !thread.is_inside;
                if thread.is_inside {
                    let name = std::fs::read_to_string(format!("/proc/{process}/task/{id}/comm"));
                    thread.name = name.unwrap_or_default().trim().to_owned();
                    thread.calls.push(entered(id));
                }
                0
            }
            // A thread begins with one; another one tells of the thread it has made.
            libc::SIGSTOP if is_new => 0,
            libc::SIGTRAP => 0,
            signal => signal,
        };
        // One that was killed meanwhile tells of its end next.
        request(libc::PTRACE_SYSCALL, id, 0, usize::try_from(signal).unwrap()).ok();
    }
    let mut said = Vec::new();
    io::Read::read_to_end(&mut child.stdout.unwrap(), &mut said).unwrap();
    (threads, said)
}

#[test]
fn generating_flat_out_takes_one_for_64_packets() {
    const PACKETS: usize = 640_000;
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let words = format!("generate xdp:right --count {PACKETS} --duration 60s --json");
    let (threads, said) = trace(&mut bywash(&lab.hosts[0], &words));
    let said = String::from_utf8(said).unwrap();
    let summary: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(summary["tx_packets"], PACKETS, "{summary}");

    let mut workers = threads.values().filter(|thread| thread.name.starts_with("generate"));
    let calls = &workers.next().unwrap().calls;
    assert!(workers.next().is_none());
    // What it does before the first packet and after the last is not for packets.
    let kick = |number: &c_long| *number == libc::SYS_sendto;
    let (first, last) = (calls.iter().position(kick).unwrap(), calls.iter().rposition(kick).unwrap());
    let count = last - first + 1;
    assert!(count > PACKETS / 4096, "{count}: they were not counted");
    assert!(count * 64 <= PACKETS, "{count} system calls for {PACKETS} packets");
}
