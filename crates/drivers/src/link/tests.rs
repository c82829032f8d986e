//! Ends that do not keep to the rules: nonsense on the socket, nonsense in the region, files that could vanish.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywash_frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_sys::shared::Mapping;
use bywash_sys::virtio_header::{NEEDS_CSUM, VirtioHeader};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, bind, connect, listen, sendmsg, socket_with,
};
use zerocopy::IntoBytes;

use super::handshake::{Refusal, Terms, visit};
use super::layout::{Descriptor, Layout};
use super::session::Agreement;
use super::*;

const TERMS: Terms = Terms { queues: None, ring: 64, receives: true };

/// A directory for one test's socket.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("wire.sock")
    }

    fn open(&self) -> Result<Box<LinkPort>, String> {
        let options = OpenOptions { ring: Some(64), ..OpenOptions::default() };
        open(self.path().to_str().unwrap(), &options).map(Box::new)
    }
}

/// An end, and what it takes to use it.
struct Victim {
    port: Box<LinkPort>,
    queue: QueuePair,
    pool: Pool,
    batch: Batch,
    received: Vec<Vec<u8>>,
}

impl Victim {
    fn new(place: &Place) -> Self {
        let mut port = place.open().unwrap();
        let pool = Arena::new(vec![0; 1024 * FRAME_SIZE]).unwrap().pool(1000).unwrap();
        let queue = port.queues().remove(0);
        Self { port, queue, pool, batch: Batch::new(), received: Vec::new() }
    }

    /// One turn: takes all there is, and sends one packet.
    fn turn(&mut self, number: u64) {
        let (rx, tx) = (self.queue.rx.as_mut().unwrap(), self.queue.tx.as_mut().unwrap());
        rx.rx(&mut self.pool, &mut self.batch);
        for packet in self.batch.drain() {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(&mut bytes);
            self.received.push(bytes);
            self.pool.give_packet(packet);
        }
        let mut packet = Packet::new(self.pool.take().unwrap());
        packet.extend_from_slice(&[&number.to_le_bytes()[..], &[0x55; 52]].concat()).unwrap();
        self.batch.push(packet);
        tx.tx(&mut self.pool, &mut self.batch);
        self.pool.give_batch(&mut self.batch);
        tx.flush(&mut self.pool);
        rx.arm();
    }

    fn counter(&self, name: &str) -> u64 {
        self.port.counters().into_iter().find(|counter| counter.name == name).unwrap().value
    }

    fn turn_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let until = Instant::now() + Duration::from_secs(10);
        while !done(self) {
            assert!(Instant::now() < until, "{what}: {:?}", self.port.counters());
            self.turn(0);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// All frames are where they belong.
    fn end(mut self) {
        self.queue.rx.take().unwrap().close(&mut self.pool);
        self.queue.tx.take().unwrap().close(&mut self.pool);
        self.pool.give_batch(&mut self.batch);
        self.port.close().unwrap();
        assert_eq!((self.pool.free(), self.pool.arena().orphaned()), (1000, 0));
    }
}

/// Says what an end says, up to where the queues begin.
fn greeted(path: &Path) -> Result<(OwnedFd, Agreement), Refusal> {
    let stop = Stop::new().unwrap();
    let Ok(Part::Second(socket)) = meet(path) else { panic!("nobody listens") };
    visit(&socket, TERMS, stop.as_fd()).map(|agreement| (socket, agreement))
}

fn words(mapping: &Mapping, offset: usize, word: u32) {
    mapping.copy_in(offset, &word.to_ne_bytes());
}

const HEAD: usize = 0;
const TAIL: usize = 128;
const DESCRIPTORS: usize = 384;

fn describe(ours: &Mapping, slot: usize, entry: Descriptor) {
    ours.copy_in(DESCRIPTORS + slot % 64 * size_of::<Descriptor>(), entry.as_bytes());
}

#[test]
fn each_impossible_index_or_length_ends_the_session_and_the_next_one_works() {
    let place = Place::new();
    let mut victim = Victim::new(&place);
    type Crime = fn(&Mapping);
    let crimes: [(&str, Crime); 6] = [
        ("more slots than there are", |ours| words(ours, HEAD, 65)),
        ("slots taken back", |ours| words(ours, HEAD, u32::MAX)),
        ("read what was not sent", |ours| words(ours, TAIL, 1 << 20)),
        ("a packet without bytes", |ours| words(ours, HEAD, 1)),
        ("a packet longer than the longest", |ours| {
            describe(ours, 0, Descriptor { len: u32::MAX, ..Descriptor::default() });
            words(ours, HEAD, 64);
        }),
        ("a packet longer than what was sent", |ours| {
            describe(ours, 0, Descriptor { len: 2049, ..Descriptor::default() });
            words(ours, HEAD, 1);
        }),
    ];
    for (number, (crime, commit)) in (1..).zip(crimes) {
        let (_socket, agreement) = greeted(&place.path()).unwrap();
        commit(&agreement.ours);
        victim.turn_until(crime, |victim| victim.counter("peer_faults") == number);
    }
    let (_socket, agreement) = greeted(&place.path()).unwrap();
    agreement.ours.copy_in(agreement.our_layout.bytes() - 64 * 2112, &[7; 60]);
    let data = DESCRIPTORS + 64 * size_of::<Descriptor>();
    agreement.ours.copy_in(data, &[7; 60]);
    describe(&agreement.ours, 0, Descriptor { len: 60, ..Descriptor::default() });
    words(&agreement.ours, HEAD, 1);
    victim.turn_until("an honest end", |victim| victim.received == [[7; 60]]);
    victim.end();
}

#[test]
fn a_bad_packet_is_counted_and_the_next_one_is_received() {
    let place = Place::new();
    let mut victim = Victim::new(&place);
    let (_socket, agreement) = greeted(&place.path()).unwrap();
    let beyond =
        VirtioHeader { flags: NEEDS_CSUM, csum_start: 59, csum_offset: 0, ..VirtioHeader::default() };
    let entries = [
        Descriptor { len: 13, ..Descriptor::default() },
        Descriptor { len: 60, header: beyond, reserved: 0 },
        Descriptor { len: 60, header: VirtioHeader { gso_type: 9, ..VirtioHeader::default() }, reserved: 0 },
        Descriptor { len: 60, ..Descriptor::default() },
    ];
    entries.into_iter().enumerate().for_each(|(slot, entry)| describe(&agreement.ours, slot, entry));
    words(&agreement.ours, HEAD, 4);
    victim.turn_until("a good packet", |victim| victim.received.len() == 1);
    assert_eq!(victim.queue.rx.as_ref().unwrap().counters().errors, 3);
    assert_eq!(victim.counter("peer_faults"), 0);
    victim.end();
}

/// A region that changes at random, all the time, while it is read: whatever comes of it, it is no panic, no packet that
/// is longer than the longest, and no frame that is lost.
#[test]
fn nonsense_in_the_region_hurts_nobody() {
    let place = Place::new();
    let mut victim = Victim::new(&place);
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    for round in 0..30 {
        let Ok((_socket, agreement)) = greeted(&place.path()) else { continue };
        let (ours, layout) = (Arc::clone(&agreement.ours), agreement.our_layout);
        std::thread::scope(|scope| {
            scope.spawn(|| nonsense(&ours, layout, &mut random, round));
            for number in 0..3000 {
                victim.turn(number);
                if number % 100 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        assert!(victim.received.iter().all(|bytes| (14..=MAX_PACKET).contains(&bytes.len())));
        victim.received.clear();
        drop(agreement);
        victim.turn_until("the end of the session", |victim| victim.counter("connected") == 0);
    }
    assert!(victim.counter("peer_faults") > 0, "it was not hostile enough");
    victim.end();
}

fn nonsense(ours: &Mapping, layout: Layout, random: &mut TestRng, round: u32) {
    let mut head = 0_u32;
    for _ in 0..20_000 {
        let word = random.next_u32();
        match word % 8 {
            // Mostly within what is allowed, or no session would last.
            0..=3 => {
                head = head.wrapping_add(word >> 8 & 3);
                words(ours, HEAD, head);
            }
            4 => describe(
                ours,
                word as usize >> 8,
                Descriptor { len: 1 + (word >> 16) % 5000, ..Descriptor::default() },
            ),
            5 => ours.copy_in(
                DESCRIPTORS + (word as usize >> 3) % (layout.bytes() - DESCRIPTORS - 8),
                &random.next_u64().to_ne_bytes(),
            ),
            6 => words(ours, 256, word),
            _ if round.is_multiple_of(3) => words(ours, TAIL, word >> 24),
            _ => {}
        }
    }
}

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn say(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    // The other end may have hung up already.
    let _ = sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// A greeting as it would be written, with one thing different.
fn greeting(change: impl FnOnce(&mut [u32; 6])) -> Vec<u8> {
    // Version, about, queues, ring, flags, process.
    let mut numbers = [1, 1, 1, 64, 1, 77];
    change(&mut numbers);
    [&b"bywlink\0"[..], numbers.as_bytes()].concat()
}

#[test]
fn whoever_does_not_greet_rightly_is_sent_away() {
    let place = Place::new();
    let mut victim = Victim::new(&place);
    let layout = Layout { queues: 1, ring: 64 };
    let region = Region::new(layout.bytes()).unwrap();
    let small = Region::new(4096).unwrap();
    let unsealed = tempfile::tempfile().unwrap();
    unsealed.set_len(layout.bytes() as u64).unwrap();
    let good = || greeting(|_| {});
    let visitors: [(Vec<u8>, Vec<BorrowedFd<'_>>); 11] = [
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), vec![]),
        (vec![0xff; 5000], vec![]),
        (vec![0], vec![region.as_fd()]),
        (greeting(|n| n[0] = 2), vec![region.as_fd()]),
        (greeting(|n| n[1] = 2), vec![region.as_fd()]),
        (greeting(|n| n[2] = 7), vec![region.as_fd()]),
        (greeting(|n| n[3] = 63), vec![region.as_fd()]),
        (good(), vec![]),
        (good(), vec![small.as_fd()]),
        (good(), vec![unsealed.as_fd()]),
        (good(), vec![unsealed.as_fd(); 8]),
    ];
    for (number, (bytes, fds)) in (1..).zip(&visitors) {
        let visitor = socket();
        connect(&visitor, &SocketAddrUnix::new(place.path()).unwrap()).unwrap();
        say(&visitor, bytes, fds);
        victim.turn_until("a visitor", |victim| victim.counter("peers_refused") == number);
    }
    assert_eq!(victim.counter("connections"), 0);
    // And one that comes and goes without a word.
    let visitor = socket();
    connect(&visitor, &SocketAddrUnix::new(place.path()).unwrap()).unwrap();
    drop(visitor);
    let (_socket, _agreement) = greeted(&place.path()).unwrap();
    victim.turn_until("an honest end", |victim| victim.counter("connected") == 1);
    victim.end();
}

#[test]
fn whoever_listens_and_does_not_greet_rightly_is_refused() {
    let place = Place::new();
    let layout = Layout { queues: 1, ring: 64 };
    let region = Region::new(layout.bytes()).unwrap();
    let file = tempfile::tempfile().unwrap();
    let listener = socket();
    bind(&listener, &SocketAddrUnix::new(place.path()).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    let refused = |hello: &[u8], fds: &[BorrowedFd<'_>], last: &[u8]| {
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| place.open().err().unwrap_or_default());
            let guest = rustix::net::accept(&listener).unwrap();
            if !hello.is_empty() {
                say(&guest, hello, fds);
                say(&guest, last, &[]);
            }
            opening.join().unwrap()
        })
    };
    let good = greeting(|_| {});
    let (ready, busy) = (greeting(|n| n[1] = 2), greeting(|n| (n[1], n[3]) = (3, 78)));
    let both = [region.as_fd(), listener.as_fd()];
    assert!(refused(b"", &[], &[]).contains("does not answer"));
    assert!(refused(b"220 ready", &[], &[]).contains("is no bywash"));
    assert!(refused(&busy, &[], &[]).contains("by processes 77 and 78"));
    assert!(refused(&greeting(|n| n[0] = 9), &[], &[]).contains("version 9"));
    assert!(refused(&good, &both[..1], &ready).contains("as many doorbells"));
    assert!(refused(&good, &[region.as_fd(), file.as_fd()], &ready).contains("a doorbell that is none"));
    assert!(refused(&good, &both, &ready).contains("a doorbell that is none"), "not a stream");
    assert!(refused(&good, &both, &good).contains("no place there"));
    let other = greeting(|n| (n[1], n[2]) = (4, 3));
    assert!(refused(&good, &both, &other).contains("was opened with 3 queues"));
}

#[test]
fn what_is_said_after_the_greetings_ends_the_connection() {
    let place = Place::new();
    let mut victim = Victim::new(&place);
    let (socket, _agreement) = greeted(&place.path()).unwrap();
    victim.turn_until("a connection", |victim| victim.counter("connected") == 1);
    say(&socket, b"more", &[]);
    victim.turn_until("its end", |victim| victim.counter("connected") == 0);
    victim.end();
}
