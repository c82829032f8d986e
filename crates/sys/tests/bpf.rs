//! The bpf(2) layer against the kernel: needs root, touches no interface.

use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use bywash_sys::bpf::{
    Link, LoadError, Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec, TcxDirection, TestInput,
    XdpMode, link_ids, loaded_maps, possible_cpus, program_ids,
};
use bywash_sys::shared::Word;

/// One instruction as it lies in memory, on a little-endian machine.
fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> u64 {
    let mut bytes = [code, registers, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
    bytes[4..].copy_from_slice(&immediate.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// `r0 = value; exit`.
fn returns(value: i32) -> [u64; 2] {
    [instruction(0xb7, 0, 0, value), instruction(0x95, 0, 0, 0)]
}

/// Without root there is nothing to test.
#[expect(clippy::print_stderr, reason = "a skipped test says so, in the words that are counted")]
fn rights() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: bpf(2) needs root");
    }
    root
}

fn spec(kind: MapKind, entries: u32) -> MapSpec<'static> {
    MapSpec { kind, name: "test", key_size: 4, value_size: 16, entries, mappable: false }
}

#[test]
fn a_hash_map_keeps_what_it_is_given() {
    if !rights() {
        return;
    }
    let map = Map::create(&MapSpec { name: "test_listed", ..spec(MapKind::Hash, 4) }).unwrap();
    let is_listed = || loaded_maps().unwrap().iter().any(|(_, name)| name == "test_listed");
    assert!(is_listed());
    let (key, value) = (7_u32.to_ne_bytes(), [9_u8; 16]);
    let mut read = [0; 16];
    assert!(!map.lookup(&key, &mut read).unwrap());
    map.update(&key, &value).unwrap();
    assert!(map.lookup(&key, &mut read).unwrap());
    assert_eq!(read, value);
    assert_eq!(map.next_key(None).unwrap().as_deref(), Some(&key[..]));
    assert_eq!(map.next_key(Some(&key)).unwrap(), None);
    assert!(map.delete(&key).unwrap());
    assert!(!map.delete(&key).unwrap());
    for i in 0..4_u32 {
        map.update(&i.to_ne_bytes(), &value).unwrap();
    }
    assert!(map.update(&9_u32.to_ne_bytes(), &value).unwrap_err().is(libc::E2BIG));
}

#[test]
fn lengths_that_are_not_the_maps_never_reach_the_kernel() {
    if !rights() {
        return;
    }
    let map = Map::create(&spec(MapKind::PerCpuArray, 2)).unwrap();
    assert_eq!(map.lookup_size(), 16 * possible_cpus());
    let mut short = vec![0; map.lookup_size() - 1];
    assert!(map.lookup(&0_u32.to_ne_bytes(), &mut short).is_err());
    assert!(map.update(&[0; 3], &vec![0; map.lookup_size()]).is_err());
    assert_eq!(map.sum::<2>(1).unwrap(), [0, 0]);
    assert!(map.next_key(Some(&[0; 2])).is_err());
}

#[test]
fn a_mapped_array_shows_what_was_set_and_the_other_way_round() {
    if !rights() {
        return;
    }
    let map = Map::create(&MapSpec { mappable: true, ..spec(MapKind::Array, 3) }).unwrap();
    let memory = map.map_memory().unwrap();
    assert_eq!(memory.bytes(), 48);
    let word = Word::u64_at(&memory, 2 * 16 + 8).unwrap();
    word.store(0x1234, Relaxed);
    let mut value = [0; 16];
    assert!(map.lookup(&2_u32.to_ne_bytes(), &mut value).unwrap());
    assert_eq!(u64::from_ne_bytes(value[8..].try_into().unwrap()), 0x1234);
    assert!(Map::create(&spec(MapKind::Array, 3)).unwrap().map_memory().is_err());
}

#[test]
fn a_program_runs_on_a_packet() {
    if !rights() {
        return;
    }
    let spec = ProgramSpec { kind: ProgramKind::XdpFrags, name: "pass", instructions: &returns(2) };
    let program = Program::load(&spec).unwrap();
    let packet = [7; 60];
    let output =
        program.test_run(&TestInput { packet: &packet, repeat: 10, ..TestInput::default() }).unwrap();
    assert_eq!((output.verdict, output.packet.as_slice()), (2, &packet[..]));
    assert!(program.test_run(&TestInput { packet: &packet[..13], ..TestInput::default() }).is_err());

    let info = program.info().unwrap();
    assert_eq!((info.name.as_str(), info.kind), ("pass", 6));
    assert!(program_ids().unwrap().contains(&info.id));
    assert_eq!(Program::by_id(info.id).unwrap().info().unwrap(), info);
}

#[test]
fn a_refused_program_shows_the_verifiers_log() {
    if !rights() {
        return;
    }
    // `exit` with nothing in r0.
    let spec =
        ProgramSpec { kind: ProgramKind::XdpFrags, name: "bad", instructions: &[instruction(0x95, 0, 0, 0)] };
    match Program::load(&spec).unwrap_err() {
        LoadError::Verifier { log, name, .. } => {
            assert_eq!(name, "bad");
            assert!(log.contains("R0"), "{log}");
        }
        other => panic!("no log: {other}"),
    }
}

#[test]
#[expect(unsafe_code, reason = "the test's thread gets a mount namespace with a BPF file system of its own")]
fn a_pinned_program_outlives_who_loaded_it() {
    if !rights() {
        return;
    }
    let mount = |what: &CStr, place: &CStr, flags| {
        // SAFETY: only this thread sees its mounts, and it ends with the test; the strings live through the call, and
        // the kernel takes null as no data.
        unsafe { libc::mount(what.as_ptr(), place.as_ptr(), what.as_ptr(), flags, std::ptr::null()) }
    };
    // SAFETY: only this thread's mount namespace changes.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    assert_eq!(mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE), 0);
    assert_eq!(mount(c"bpf", c"/sys/fs/bpf", 0), 0);

    let spec = ProgramSpec { kind: ProgramKind::SchedCls, name: "pinned", instructions: &returns(-1) };
    let program = Program::load(&spec).unwrap();
    let elsewhere = std::env::temp_dir().join("bywash-pinned");
    assert!(program.pin(&elsewhere).unwrap_err().is(libc::EPERM));
    assert!(program.pin(Path::new("a\0b")).is_err());
    let path = Path::new("/sys/fs/bpf/pinned");
    program.pin(path).unwrap();
    assert!(path.exists());
    assert!(program.pin(path).unwrap_err().is(libc::EEXIST));
    let info = program.info().unwrap();
    drop(program);
    assert_eq!(Program::by_id(info.id).unwrap().info().unwrap(), info);
}

#[test]
#[expect(unsafe_code, reason = "the test's thread gets a network namespace of its own")]
fn links_attach_replace_and_let_go() {
    if !rights() {
        return;
    }
    // SAFETY: only this thread's network namespace changes, and the thread ends with the test.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
    let lo = 1;
    let load = |kind, name, verdict| {
        Program::load(&ProgramSpec { kind, name, instructions: &returns(verdict) }).unwrap()
    };
    let (first, second) = (load(ProgramKind::XdpFrags, "first", 2), load(ProgramKind::XdpFrags, "second", 1));
    assert!(Link::xdp(&first, lo, XdpMode::Native).unwrap_err().is(libc::EOPNOTSUPP));
    let link = Link::xdp(&first, lo, XdpMode::Generic).unwrap();
    assert_eq!(link.info().unwrap().program_id, first.info().unwrap().id);
    let busy = Link::xdp(&second, lo, XdpMode::Generic).unwrap_err();
    assert!(busy.is(libc::EBUSY) || busy.is(libc::EEXIST), "{busy}");
    link.update(&second).unwrap();
    assert_eq!(link.info().unwrap().program_id, second.info().unwrap().id);
    drop(link);
    let link = Link::xdp(&first, lo, XdpMode::Generic).unwrap();
    let id = link.info().unwrap().link_id;
    assert!(link_ids().unwrap().contains(&id));
    // Anybody with the right may detach it: who has it sees that.
    Link::by_id(id).unwrap().detach().unwrap();
    let info = link.info().unwrap();
    assert_eq!((info.link_id, info.interface), (id, 0));

    let classifier = load(ProgramKind::SchedCls, "cls", 0);
    let ways = [TcxDirection::Ingress, TcxDirection::Egress];
    let links = ways.map(|way| Link::tcx(&classifier, lo, way).unwrap());
    assert_ne!(links[0].info().unwrap().link_id, links[1].info().unwrap().link_id);
    assert!(Link::xdp(&first, 999, XdpMode::Generic).unwrap_err().to_string().contains("999"));
}
