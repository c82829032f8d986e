//! What can't be opened is refused in one line that says why and what to do; and nothing is left behind.

use bywash_drivers::xdp::{self, Attach, BusyPoll, CopyMode, Options};
use bywash_drivers::{OpenOptions, XdpMode as AttachMode, ZeroCopy};
use bywash_frame::Stride;
use bywash_lab::PairOptions;
use bywash_port::{Port, QueueChoice, QueuePair};
use bywash_sys::bpf::{Link, Program, ProgramKind, ProgramSpec, XdpMode};
use bywash_sys::memory::{HugePages, allocate};

use crate::setup::{Cable, arena, cable, counter, halves, open, options, try_open};

/// Why it can't be opened; each of these words must be in the reason.
fn refused(cable: &Cable, interface: &str, options: &Options, words: &[&str]) {
    let arena = arena(4096);
    let unused = arena.unused();
    let before = cable.near().link("right").unwrap();
    let error = try_open(cable.near(), interface, options, arena).err().expect("it was opened");
    let text = error.to_string();
    assert!(text.starts_with(&format!("xdp:{interface}: ")), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not in: {text}");
    }
    assert_eq!(arena.unused(), unused);
    assert_eq!(cable.near().link("right").unwrap().xdp, before.xdp);
}

#[test]
fn an_interface_that_is_absent_or_down() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    refused(&cable, "nonesuch", &options(), &["no interface 'nonesuch'", "right"]);
    refused(&cable, "lo", &options(), &["carries no Ethernet"]);
    let index = cable.lab.pairs[0].near.index;
    cable.near().route().set_up(index, false).unwrap();
    refused(&cable, "right", &options(), &["is down", "ip link set right up"]);
}

#[test]
fn a_port_that_takes_everything_is_promiscuous_as_long_as_it_is_open() {
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    let count = || {
        let output = cable.near().command("ip").unwrap().args(["-d", "-j", "link", "show", "right"]).output();
        let told: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        told[0]["promiscuity"].as_u64().unwrap()
    };
    let udp = Some("udp".parse().unwrap());
    for (options, promiscuity) in [
        (options(), 1),
        (Options { only: Some("".parse().unwrap()), ..options() }, 1),
        (Options { only: udp, ..options() }, 0),
        (Options { max_queues: Some(1), ..options() }, 0),
        (Options { rx: false, ..options() }, 0),
    ] {
        let arena = arena(8192);
        let port = open(cable.near(), "right", &options, arena);
        assert_eq!(count(), promiscuity, "{options:?}");
        port.close().unwrap();
        assert_eq!(count(), 0, "{options:?}");
    }
}

#[test]
fn a_veth_has_no_rss_that_it_could_tell_of() {
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    let port = open(cable.near(), "right", &options(), arena(8192));
    assert_eq!(port.spread(), None);
    port.close().unwrap();
}

#[test]
fn memory_is_enough_for_the_rings_of_all_queues() {
    let Some(cable) = cable(&PairOptions { queues: 4, ..PairOptions::default() }) else { return };
    let bytes = |name: &str, options: &OpenOptions| {
        let name = name.parse().unwrap();
        cable.near().enter(|| xdp::memory_for(&name, options, Stride::Packed)).unwrap()
    };
    let usual = OpenOptions::default();
    let ring = |packets| 2 * Stride::Packed.bytes() * packets;
    assert_eq!(bytes("xdp:right", &usual), 4 * ring(2048));
    assert_eq!(bytes("xdp:right/3", &usual), ring(2048));
    let few = OpenOptions { queues: Some(2), ring: Some(512), ..OpenOptions::default() };
    assert_eq!(bytes("xdp:right", &few), 2 * ring(512));
    assert_eq!([bytes("xdp:nonesuch", &usual), bytes("null:", &usual)], [0, 0]);
}

#[test]
fn a_queue_or_a_ring_that_cannot_be() {
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    refused(&cable, "right", &Options { ring_size: 1000, ..options() }, &["power of two"]);
    refused(
        &cable,
        "right",
        &Options { rx: false, tx: false, ..options() },
        &["no queue for what is wanted"],
    );
    refused(
        &cable,
        "right",
        &Options { ring_size: 1 << 16, ..options() },
        &["left in the arena", "--memory"],
    );
    let choice = QueueChoice { queue: Some(2), rx_only: false };
    let error = cable.near().enter(|| xdp::open("right", choice, &options(), arena(4096)).err()).unwrap();
    let text = error.unwrap().to_string();
    assert_eq!(text, "xdp:right/2: right has no queue 2: its queues are 0 to 1");
}

#[test]
fn a_busy_queue_and_an_interface_with_a_program() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let arena = arena(4096);
    let mut pool = arena.pool(16).unwrap();
    // Who only sends in copy mode attaches no program.
    let only_send = Options { rx: false, copy: CopyMode::Copy, ..options() };
    let mut port = open(cable.near(), "right", &only_send, arena);
    assert_eq!(port.capabilities().mode, ["copy"]);
    assert_eq!(cable.near().link("right").unwrap().xdp.first(), None);
    refused(&cable, "right", &options(), &["queue 0 of right is in use by another AF_XDP socket"]);
    port.queues().remove(0).tx.unwrap().close(&mut pool);
    port.close().unwrap();

    let mut port = open(cable.near(), "right", &options(), arena);
    refused(
        &cable,
        "right",
        &options(),
        &["'bywash' (native)", "right has an XDP program already", "it is Bywash's: one port at a time"],
    );
    let (rx, tx) = halves(&mut port);
    rx.close(&mut pool);
    tx.close(&mut pool);
    port.close().unwrap();
    assert_eq!(cable.near().link("right").unwrap().xdp.first(), None);

    // `r0 = XDP_PASS; exit`
    let spec =
        ProgramSpec { kind: ProgramKind::XdpFrags, name: "theirs", instructions: &[0x2_0000_00b7, 0x95] };
    let theirs = Program::load(&spec).unwrap();
    let index = cable.lab.pairs[0].near.index;
    let link = cable.near().enter(|| Link::xdp(&theirs, index, XdpMode::Native)).unwrap().unwrap();
    let id = theirs.info().unwrap().id.to_string();
    refused(
        &cable,
        "right",
        &options(),
        &["an XDP program already", &id, "'theirs'", "`ip link set right xdp off`"],
    );
    drop(link);
}

#[test]
fn taking_everything_of_an_interface_that_is_in_use() {
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    let careful = Options { force: false, ..options() };
    refused(&cable, "right", &careful, &["the address 10.0.0.1", "--only", "--force"]);
    // What an expression takes that hardly leaves any is all as well.
    for only in ["", "ip or not ip"] {
        let only = Options { only: Some(only.parse().unwrap()), ..careful.clone() };
        refused(&cable, "right", &only, &["the address 10.0.0.1", "--force"]);
    }
    // One queue of two is a part; sending takes nothing.
    let arena = arena(4096);
    let choice = QueueChoice { queue: Some(1), rx_only: true };
    let port = cable.near().enter(|| xdp::open("right", choice, &careful, arena)).unwrap().unwrap();
    drop(port);
    open(cable.near(), "right", &Options { rx: false, ..careful }, arena);
}

#[test]
fn an_mtu_that_no_frame_holds() {
    let Some(cable) = cable(&PairOptions { mtu: 3000, ..PairOptions::default() }) else { return };
    let single = Options { multi_buffer: Some(false), ..options() };
    refused(&cable, "right", &single, &["the MTU of right is 3000", "2026", "ip link set dev right mtu"]);
    let bytes = Stride::Aligned.memory_for(2048);
    let memory = allocate(bytes, HugePages::Off, None).unwrap().memory;
    let apart = bywash_frame::Arena::with_stride(memory, Stride::Aligned).unwrap();
    let error = try_open(cable.near(), "right", &options(), apart).err().unwrap().to_string();
    assert!(error.contains("packed frames"), "{error}");
}

#[test]
fn what_veth_cannot_do_is_an_error_when_demanded_and_a_warning_when_hoped_for() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let zero_copy = Options { copy: CopyMode::ZeroCopy, ..options() };
    refused(&cable, "right", &zero_copy, &["right can't do zero-copy on queue 0"]);
    let generic = Options { attach: Attach::Generic, ..zero_copy };
    refused(&cable, "right", &generic, &["zero-copy needs native XDP"]);

    let arena = arena(4096);
    let busy = Options { busy_poll: Some(BusyPoll::default()), ..options() };
    let port = open(cable.near(), "right", &busy, arena);
    assert!(
        port.warnings().iter().any(|w| w.contains("busy polling has no effect on right")),
        "{:?}",
        port.warnings()
    );
    assert_eq!(counter(&port, "failed_calls"), 0);
    drop(port);
    let generic = Options { attach: Attach::Generic, copy: CopyMode::Copy, ..options() };
    let port = open(cable.near(), "right", &generic, arena);
    assert_eq!(port.capabilities().mode, ["copy", "generic XDP"]);
    assert!(port.warnings().is_empty(), "what was asked for is no surprise: {:?}", port.warnings());
}

#[test]
fn what_is_known_to_work_badly_is_told_with_the_cure() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let ip =
        cable.near().command("ip").unwrap().args("link add mac0 link right type macvlan".split(' ')).status();
    assert!(ip.unwrap().success());
    let index = cable.near().link("mac0").unwrap().index;
    cable.near().route().set_up(index, true).unwrap();
    let port = open(cable.near(), "mac0", &options(), arena(4096));
    assert_eq!(port.capabilities().mode, ["copy", "generic XDP"]);
    let told = port.warnings().iter().filter(|warning| warning.contains("XDP")).collect::<Vec<_>>();
    assert!(told.len() == 1 && told[0].contains("its driver macvlan has no native XDP"), "{told:?}");
    drop(port);
    let native = Options { attach: Attach::Native, ..options() };
    refused(&cable, "mac0", &native, &["no XDP program can be attached to mac0", "has no native XDP"]);

    cable.far().route().set_up(cable.lab.pairs[0].far.index, false).unwrap();
    let port = open(cable.near(), "right", &options(), arena(4096));
    assert!(port.warnings().iter().any(|w| w.contains("right has no link")), "{:?}", port.warnings());
}

#[test]
fn memory_of_the_heap_is_no_packet_memory() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let heap = bywash_frame::Arena::new(vec![0_u8; 4 << 20]).unwrap();
    let error = try_open(cable.near(), "right", &options(), heap).err().unwrap().to_string();
    assert!(error.contains("must come from the system"), "{error}");
}

#[test]
fn a_port_is_opened_by_its_name() {
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    let wishes = OpenOptions {
        ring: Some(256),
        zero_copy: Some(ZeroCopy::Off),
        xdp_mode: Some(AttachMode::Generic),
        force: true,
        ..OpenOptions::default()
    };
    let by_name = |name: &str, wishes: &OpenOptions| {
        let name = name.parse().unwrap();
        cable.near().enter(|| bywash_drivers::open(&name, wishes, arena(4096))).unwrap()
    };
    let mut opened = by_name("xdp:right/1/rx", &wishes).unwrap();
    assert_eq!(opened.port.name().to_string(), "xdp:right/1/rx");
    assert_eq!(opened.port.capabilities().mode, ["copy", "generic XDP"]);
    assert_eq!(opened.port.mac(), Some(cable.lab.pairs[0].near.mac.0));
    assert!(opened.warnings.is_empty(), "{:?}", opened.warnings);
    let queues = opened.port.queues();
    assert!(matches!(queues.as_slice(), [QueuePair { rx: Some(_), tx: None }]));
    drop((queues, opened));

    let wishes = OpenOptions { zero_copy: Some(ZeroCopy::Require), tx_only: true, xdp_mode: None, ..wishes };
    let error = by_name("xdp:right", &wishes).err().unwrap().to_string();
    assert!(error.contains("can't do zero-copy"), "{error}");
    let opened =
        by_name("xdp:right", &OpenOptions { zero_copy: None, busy_poll: Some(20), ..wishes }).unwrap();
    assert_eq!(opened.warnings.len(), 2, "copy mode and no busy polling: {:?}", opened.warnings);
}
