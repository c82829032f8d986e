//! A capture file's receiving half: packets as fast as they are taken, or come by a pipe, then nothing more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bywash_frame::{Batch, FRAME_DATA, MAX_FRAMES, Packet, Pool};
use bywash_pcap::{Link, Record};
use bywash_port::{QueueCounters, RxQueue};
use rustix::event::epoll;

use super::{Shared, Source};
use crate::virtio::ETHERNET;

/// The receiving half.
pub(super) struct PcapRx {
    reader: Source,
    shared: Arc<Shared>,
    counters: QueueCounters,
    has_ended: bool,
    /// All that had come of a pipe was taken.
    is_dry: bool,
    /// Readable when more has come by a pipe; never for a file, and when all has ended. Without it, whoever waits looks again and
    /// again.
    more: Option<OwnedFd>,
}

impl PcapRx {
    pub(super) fn new(reader: Source, shared: Arc<Shared>) -> Self {
        let more = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
        if let Some(more) = &more {
            // Refused of what never keeps anybody waiting, as a file.
            let _ = epoll::add(more, reader.source(), epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        }
        Self { reader, shared, counters: QueueCounters::default(), has_ended: false, is_dry: false, more }
    }

    fn end(&mut self) {
        self.has_ended = true;
        if let Some(more) = &self.more {
            // A pipe that has ended is readable for ever. What was not put in is not there.
            let _ = epoll::delete(more, self.reader.source());
        }
    }
}

impl RxQueue for PcapRx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let before = batch.len();
        self.is_dry = false;
        // What is no packet counts too: a file does not keep us here.
        for _ in 0..batch.room() {
            if self.has_ended || self.is_dry {
                break;
            }
            // Asked for before the file goes on: no packet is lost for want of one.
            let Some(frame) = pool.take() else {
                self.counters.no_frame += 1;
                break;
            };
            let mut packet = Packet::new(frame);
            match self.reader.next_record() {
                Ok(Some(record)) => match fill(&mut packet, &record, pool, &self.shared) {
                    Ok(()) => {
                        self.shared.cut.fetch_add(u64::from(packet.offload.cut() > 0), Ordering::Relaxed);
                        self.counters.bytes += packet.len() as u64;
                        batch.push(packet);
                        continue;
                    }
                    Err(reason) => {
                        self.counters.errors += 1;
                        reason.fetch_add(1, Ordering::Relaxed);
                    }
                },
                Ok(None) => self.end(),
                Err(error) if error.is_for_later() => self.is_dry = true,
                Err(error) => {
                    self.end();
                    let has_begun = self.reader.format().is_some();
                    let rest = if has_begun { "; what stands before was read" } else { "" };
                    let sentence = format!("{error}{rest}");
                    *self.shared.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(sentence);
                }
            }
            pool.give_packet(packet);
        }
        let n = batch.len() - before;
        self.counters.packets += n as u64;
        n
    }

    fn arm(&mut self) -> bool {
        self.has_ended || (self.is_dry && !self.reader.source().wait(Duration::ZERO))
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.more.as_ref().map(AsFd::as_fd)
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(self: Box<Self>, _: &mut Pool) {}
}

/// Copies a record into an empty packet, or says which counter is the reason why not.
fn fill<'a>(
    packet: &mut Packet,
    record: &Record<'_>,
    pool: &mut Pool,
    shared: &'a Shared,
) -> Result<(), &'a AtomicU64> {
    if record.link != Link::ETHERNET || record.bytes.len() < ETHERNET {
        return Err(&shared.not_ethernet);
    }
    if record.bytes.len() > MAX_FRAMES * FRAME_DATA {
        return Err(&shared.too_long);
    }
    packet.offload.set_timestamp(record.time);
    packet.offload.set_cut(record.missing());
    packet.append(record.bytes, pool).map_err(|_| &shared.no_frames)
}
