//! `pcap:`, the port that is a file.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_frame::{Arena, Batch, Checksum, FRAME_DATA, FRAME_SIZE, HEADROOM, Packet, Pool, Segment};
use bywash_port::{Port, QueuePair, RxQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn pool() -> (&'static Arena, Pool) {
    let arena = Arena::new(vec![0; 512 * FRAME_SIZE]).unwrap();
    (arena, arena.pool(500).unwrap())
}

fn source() -> OpenOptions {
    OpenOptions { rx_only: true, ..OpenOptions::default() }
}

fn sink() -> OpenOptions {
    OpenOptions { tx_only: true, ..OpenOptions::default() }
}

fn opened(path: &str, options: &OpenOptions, arena: &'static Arena) -> Box<dyn Port> {
    open(&format!("pcap:{path}").parse().unwrap(), options, arena).unwrap().port
}

fn refused(path: &str, options: &OpenOptions, arena: &'static Arena) -> String {
    let error = open(&format!("pcap:{path}").parse().unwrap(), options, arena).err().unwrap();
    error.to_string()
}

/// A packet with these bytes, in as many frames as it needs.
fn packet(bytes: &[u8], pool: &mut Pool) -> Packet {
    let mut parts = bytes.chunks(FRAME_DATA);
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(parts.next().unwrap()).unwrap();
    for part in parts {
        let mut segment = Segment::new(pool.take().unwrap(), HEADROOM, part.len()).unwrap();
        segment.bytes_mut().copy_from_slice(part);
        packet.push_segment(segment, pool).unwrap();
    }
    packet
}

/// Writes packets to a file, closes it, and returns what closing said.
fn write(
    path: &str,
    arena: &'static Arena,
    pool: &mut Pool,
    packets: impl FnOnce(&mut Pool) -> Vec<Packet>,
) -> Result<u64, Vec<String>> {
    let mut port = opened(path, &sink(), arena);
    let QueuePair { rx: None, tx: Some(mut tx) } = port.queues().remove(0) else {
        panic!("a sink only sends")
    };
    let mut batch = Batch::new();
    packets(pool).into_iter().for_each(|packet| batch.push(packet));
    let n = batch.len();
    assert_eq!((tx.tx(pool, &mut batch), batch.len()), (n, 0));
    let until = Instant::now() + Duration::from_secs(20);
    while tx.in_flight() > 0 {
        assert!(Instant::now() < until, "it is not written");
        tx.flush(pool);
    }
    let counters = tx.counters();
    tx.close(pool);
    assert_eq!(counters.packets + counters.errors, n as u64);
    port.close().map(|()| counters.packets)
}

/// Packets, with their times.
type Packets = Vec<(u64, Vec<u8>)>;

/// All packets of a file, and what closing it said.
fn read(path: &str, arena: &'static Arena, pool: &mut Pool) -> (Packets, Result<(), Vec<String>>) {
    let mut port = opened(path, &source(), arena);
    let QueuePair { rx: Some(mut rx), tx: None } = port.queues().remove(0) else {
        panic!("a source only receives")
    };
    assert!(port.queues().is_empty());
    let (mut batch, mut packets) = (Batch::new(), Vec::new());
    let frames = pool.free();
    while !rx.has_ended() {
        rx.rx(pool, &mut batch);
        for packet in &batch {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(&mut bytes);
            packets.push((packet.offload.timestamp().unwrap_or(u64::MAX), bytes));
        }
        pool.give_batch(&mut batch);
    }
    assert_eq!((rx.rx(pool, &mut batch), rx.arm(), rx.wake_fd().is_some()), (0, true, true));
    assert_eq!(rx.counters().packets, packets.len() as u64);
    rx.close(pool);
    assert_eq!(pool.free(), frames);
    (packets, port.close())
}

#[test]
fn what_is_written_to_a_file_is_read_from_it() {
    let directory = tempfile::tempdir().unwrap();
    let (arena, mut pool) = pool();
    for name in ["out.pcap", "out.pcapng", "out"] {
        let path = directory.path().join(name).display().to_string();
        let sizes = [14, 60, 61, 1514, FRAME_DATA, FRAME_DATA + 1, 9000];
        let bytes = |n: usize| (0..n).map(|i| u8::try_from((i * 7 + n) % 256).unwrap()).collect::<Vec<_>>();
        let made = |pool: &mut Pool| -> Vec<Packet> {
            let of = |(number, &n): (usize, &usize)| {
                let mut packet = packet(&bytes(n), pool);
                packet.offload.set_timestamp(Some(1_000_000_007 + number as u64));
                packet
            };
            sizes.iter().enumerate().map(of).collect()
        };
        assert_eq!(write(&path, arena, &mut pool, made), Ok(sizes.len() as u64));
        let (packets, closed) = read(&path, arena, &mut pool);
        assert_eq!(closed, Ok(()));
        let expected = sizes.iter().enumerate().map(|(n, &size)| (1_000_000_007 + n as u64, bytes(size)));
        assert!(packets.iter().cloned().eq(expected), "{name}");
        let magic = std::fs::read(&path).unwrap()[0];
        assert_eq!(magic, if name.ends_with("ng") { 0x0a } else { 0x4d });
    }
}

#[test]
fn what_a_nic_would_have_done_is_done_before_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.pcap").display().to_string();
    let (arena, mut pool) = pool();
    let made = |pool: &mut Pool| {
        let mut tagged = packet(&[1; 60], pool);
        tagged.offload.set_vlan(Some(0x2003));
        let mut summed = packet(&[0; 60], pool);
        summed.offload.set_checksum(Checksum::Partial { start: 20, offset: 6 });
        let mut wrong = packet(&[0; 60], pool);
        wrong.offload.set_checksum(Checksum::Partial { start: 60, offset: 6 });
        vec![tagged, summed, wrong]
    };
    assert_eq!(write(&path, arena, &mut pool, made), Ok(2), "one names bytes that it does not have");
    let (packets, _) = read(&path, arena, &mut pool);
    assert_eq!(packets[0].1[10..18], [1, 1, 0x81, 0, 0x20, 3, 1, 1]);
    assert_eq!((packets[0].1.len(), &packets[1].1[26..28]), (64, &[0xff, 0xff][..]));
    assert!(packets[1].0 > 1_600_000_000_000_000_000, "a packet without a time gets today's");
}

#[test]
fn a_broken_file_is_read_up_to_the_break_and_says_where() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broken.pcap").display().to_string();
    let (arena, mut pool) = pool();
    write(&path, arena, &mut pool, |pool| (0..3).map(|n| packet(&[n; 60], pool)).collect()).unwrap();
    let file = std::fs::read(&path).unwrap();
    std::fs::write(&path, &file[..file.len() - 1]).unwrap();
    let (packets, closed) = read(&path, arena, &mut pool);
    assert_eq!(packets.len(), 2);
    let sentence = "broken at byte 176: a packet of 76 bytes begins there, and the file ends after 75; what stands \
                    before was read";
    assert_eq!(closed, Err(vec![sentence.to_owned()]));
}

/// Whether whoever sleeps on it is woken, now or soon.
fn wakes(rx: &dyn RxQueue) -> bool {
    let soon = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    poll(&mut [PollFd::from_borrowed_fd(rx.wake_fd().unwrap(), PollFlags::IN)], Some(&soon)).unwrap() > 0
}

#[test]
fn a_pipe_gives_what_has_come_and_wakes_who_sleeps_until_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let [path, written] = ["pipe", "out.pcap"].map(|name| directory.path().join(name).display().to_string());
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    let (arena, mut pool) = pool();
    write(&written, arena, &mut pool, |pool| (0..3).map(|n| packet(&[n; 60], pool)).collect()).unwrap();
    let file = std::fs::read(&written).unwrap();
    let mut port = opened(&path, &source(), arena);
    let mut rx = port.queues().remove(0).rx.unwrap();
    let mut batch = Batch::new();
    assert_eq!((rx.rx(&mut pool, &mut batch), rx.arm(), rx.has_ended()), (0, true, false), "nobody writes");
    let mut pipe = std::fs::File::options().write(true).open(&path).unwrap();
    for (part, came) in [(0..20, 0), (20..30, 0), (30..24 + 76, 1), (24 + 76..24 + 2 * 76 + 5, 1)] {
        assert!(rx.arm() && !wakes(&*rx), "it waits for {part:?}");
        pipe.write_all(&file[part.clone()]).unwrap();
        assert_eq!((rx.arm(), wakes(&*rx)), (false, true), "{part:?}");
        assert_eq!(rx.rx(&mut pool, &mut batch), came, "{part:?}");
    }
    drop(pipe);
    assert_eq!((rx.rx(&mut pool, &mut batch), rx.has_ended(), rx.arm(), wakes(&*rx)), (0, true, true, false));
    pool.give_batch(&mut batch);
    rx.close(&mut pool);
    assert!(port.close().unwrap_err()[0].contains("broken at byte 176: a packet's header of 16 bytes"));
}

#[test]
fn packets_that_are_no_ethernet_are_left_out_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("short.pcap").display().to_string();
    let (arena, mut pool) = pool();
    write(&path, arena, &mut pool, |pool| (0..3).map(|n| packet(&[n; 60], pool)).collect()).unwrap();
    let mut file = std::fs::read(&path).unwrap();
    // The second packet has 13 bytes of 60, and the others follow it at once.
    file[24 + 76 + 8] = 13;
    file.drain(24 + 76 + 16 + 13..24 + 76 + 16 + 60);
    std::fs::write(&path, &file).unwrap();
    assert_eq!(read(&path, arena, &mut pool).0.len(), 2);
    // And of another link type, it is refused.
    file[20] = 101;
    std::fs::write(&path, &file).unwrap();
    let reason = refused(&path, &source(), arena);
    assert!(reason.contains("raw IP (link type 101)"), "{reason}");
}

#[test]
fn a_file_that_can_not_be_used_as_asked_is_refused_with_the_reason() {
    let (arena, _) = pool();
    let reason = refused("/dev/full", &sink(), arena);
    assert!(reason.contains("/dev/full can't be written"), "{reason}");
    let directory = tempfile::tempdir().unwrap();
    assert!(refused(&directory.path().display().to_string(), &sink(), arena).contains("can't be written"));
    assert!(refused("/nowhere", &source(), arena).contains("can't be read"));
    assert!(refused("/dev/null", &source(), arena).contains("empty"));
    assert!(refused("/dev/null", &OpenOptions::default(), arena).contains("not both"));
    let many = OpenOptions { queues: Some(2), ..source() };
    assert!(refused("/dev/null", &many, arena).contains("--queues"));
    let ring = OpenOptions { ring: Some(64), ..source() };
    assert!(refused("/dev/null", &ring, arena).contains("--ring"));
}
