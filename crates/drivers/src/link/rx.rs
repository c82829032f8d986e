//! The receiving half of a queue: packets are copied out of the other end's slots, and checked after the copy.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use bywash_frame::{Batch, Frame, HEADROOM, MAX_FRAMES, Packet, Pool, Segment};
use bywash_port::{QueueCounters, RxQueue};
use rustix::event::epoll;

use super::layout::{Descriptor, Emptying, MAX_PACKET, SLOT, slots_for};
use super::ring::Fault;
use super::session::{News, QueueShared, RxSession};
use crate::virtio::{ETHERNET, received};

/// How many packets ahead the first bytes are asked for.
const AHEAD: u32 = 8;

/// The receiving half.
pub(super) struct LinkRx {
    session: Option<RxSession>,
    /// The other end of this session is gone: no more comes than there was then.
    is_last: bool,
    /// News has been heard of and not been taken.
    has_news: bool,
    seen: u32,
    shared: Arc<QueueShared>,
    /// What the worker sleeps on: news, and the session's doorbell.
    epoll: OwnedFd,
    /// Whether we have been asleep since the bells were last hushed.
    armed: bool,
    /// Packets must be as they are on a wire.
    plain: bool,
    counters: QueueCounters,
}

/// What became of the next slots.
enum Next {
    Packet(Packet),
    /// It was not fit to be one.
    Bad,
    NoFrame,
}

impl LinkRx {
    /// Without a session.
    pub(super) fn new(shared: Arc<QueueShared>, plain: bool) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &shared.news, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self {
            session: None,
            is_last: false,
            has_news: false,
            seen: 0,
            shared,
            epoll,
            armed: false,
            plain,
            counters: QueueCounters::default(),
        })
    }

    /// Takes over what has become of the wire.
    #[cold]
    fn hear(&mut self) {
        loop {
            if let Some(session) = &mut self.session {
                if !self.is_last {
                    if self.shared.rx.is_empty() {
                        break;
                    }
                    // Whatever comes after a session says that it has ended. What is in it now is ours, and no more:
                    // who is gone must not go on for ever. A broken one gives what was seen before it broke.
                    self.is_last = true;
                    let _ = session.emptying.receiver.look();
                }
                if session.emptying.receiver.available() > 0 {
                    return;
                }
            }
            if let Some(session) = self.session.take() {
                self.leave(&session);
            }
            match self.shared.rx.take() {
                Some(News::Gone) => {}
                Some(News::Session(session)) => self.enter(session),
                None => break,
            }
        }
        self.has_news = false;
    }

    fn enter(&mut self, session: RxSession) {
        let bell = &session.doorbell;
        let added = epoll::add(&self.epoll, bell, epoll::EventData::new_u64(1), epoll::EventFlags::IN);
        self.is_last = false;
        if added.is_ok() {
            self.session = Some(session);
        } else {
            session.alarm.set();
        }
    }

    fn leave(&self, session: &RxSession) {
        // It fails when that has been done.
        let _ = epoll::delete(&self.epoll, &session.doorbell);
    }

    #[cold]
    fn fail(&mut self) {
        if let Some(session) = self.session.take() {
            session.alarm.set();
            self.leave(&session);
        }
        self.is_last = false;
    }

    fn hush(&mut self) {
        self.armed = false;
        // It only fails when there was no news.
        let _ = rustix::io::read(&self.shared.news, &mut [0; 8]);
        if let Some(session) = &self.session {
            session.emptying.receiver.wake();
            if !session.doorbell.hush() {
                self.leave(session);
            }
        }
    }

    /// Receives from the session as long as there is room; an error when the other side is broken.
    #[inline]
    fn receive(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<(), Fault> {
        let Some(RxSession { emptying, .. }) = &mut self.session else { return Ok(()) };
        if !self.is_last {
            emptying.receiver.look()?;
        }
        let available = emptying.receiver.available();
        if available == 0 {
            return Ok(());
        }
        for ahead in 0..AHEAD.min(available) {
            emptying.prefetch(emptying.receiver.next().wrapping_add(ahead));
        }
        let mut end = Ok(());
        while batch.room() > 0 && emptying.receiver.available() > 0 {
            let index = emptying.receiver.next();
            let entry = emptying.descriptor(index);
            let slots = slots_for(entry.len);
            // Behind such a length nobody knows where the next packet begins.
            if entry.len == 0 || entry.len as usize > MAX_PACKET || slots > emptying.receiver.available() {
                end = Err(Fault);
                break;
            }
            emptying.prefetch(index.wrapping_add(AHEAD));
            match copy(emptying, index, &entry, self.plain, pool) {
                Next::Packet(packet) => {
                    self.counters.packets += 1;
                    self.counters.bytes += u64::from(entry.len);
                    batch.push(packet);
                }
                Next::Bad => self.counters.errors += 1,
                Next::NoFrame => {
                    self.counters.no_frame += 1;
                    break;
                }
            }
            emptying.receiver.empty(slots);
        }
        emptying.receiver.publish();
        end
    }
}

/// Copies the packet that begins in slot `index`.
#[inline]
fn copy(emptying: &Emptying, index: u32, entry: &Descriptor, plain: bool, pool: &mut Pool) -> Next {
    let len = entry.len as usize;
    let Some(offload) =
        Some(len).filter(|&len| len >= ETHERNET).and_then(|len| received(&entry.header, len, 0))
    else {
        return Next::Bad;
    };
    if plain && offload.segmentation().is_some() {
        return Next::Bad;
    }
    let Some(mut frame) = pool.take() else { return Next::NoFrame };
    let n = len.min(SLOT);
    emptying.read(index, &mut frame.bytes_mut()[HEADROOM..][..n]);
    let mut packet = Packet::new(frame);
    let fits = packet.set_len(n);
    debug_assert!(fits.is_ok());
    packet.offload = offload;
    if len > SLOT && !copy_rest(emptying, index, len, &mut packet, pool) {
        pool.give_packet(packet);
        return Next::NoFrame;
    }
    if plain && packet.complete_checksum().is_err() {
        pool.give_packet(packet);
        return Next::Bad;
    }
    Next::Packet(packet)
}

/// Copies all but the first slot; false when there are not enough frames.
fn copy_rest(emptying: &Emptying, index: u32, len: usize, packet: &mut Packet, pool: &mut Pool) -> bool {
    let mut frames = ArrayVec::<Frame, MAX_FRAMES>::new();
    frames.extend(pool.take_many(len.div_ceil(SLOT) - 1));
    let (mut left, mut slot) = (len - SLOT, index);
    while let Some(mut frame) = frames.pop() {
        slot = slot.wrapping_add(1);
        let n = left.min(SLOT);
        emptying.read(slot, &mut frame.bytes_mut()[HEADROOM..][..n]);
        left -= n;
        // A packet has room for all slots of the longest one.
        if let Err(segment) = packet.push_segment(Segment::received(frame, n), pool) {
            pool.give(segment.into_frame());
        }
    }
    left == 0
}

impl RxQueue for LinkRx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.armed {
            self.hush();
        }
        self.has_news |= self.shared.rx.has_news(&mut self.seen);
        if self.has_news {
            self.hear();
        }
        let before = batch.len();
        if self.receive(pool, batch).is_err() {
            self.fail();
        }
        batch.len() - before
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        if self.has_news || self.shared.rx.is_newer(self.seen) {
            return false;
        }
        self.session.as_mut().is_none_or(|session| session.emptying.receiver.sleep())
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(self: Box<Self>, _: &mut Pool) {}
}
