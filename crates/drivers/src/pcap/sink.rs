//! A capture file's sending half: packets become records in memory, which a thread of its own writes.

use bywash_frame::{Batch, Packet, Pool};
use bywash_pcap::Format;
use bywash_port::{QueueCounters, TxQueue};
use bywash_sys::clock;
use bywash_sys::spool::Producer;

use crate::virtio::Outgoing;

/// How long a packet waits for others before it is written.
const FLUSH_NS: u64 = 20_000_000;

/// The sending half: a packet is in flight until it is in the file.
pub(super) struct PcapTx {
    producer: Producer,
    format: Format,
    put: QueueCounters,
    flushed: u64,
}

impl PcapTx {
    pub(super) fn new(producer: Producer, format: Format) -> Self {
        Self { producer, format, put: QueueCounters::default(), flushed: 0 }
    }

    /// Makes a record of a packet; false when there is no room now.
    #[inline]
    fn write(&mut self, packet: &mut Packet, now: u64) -> bool {
        // A super-segment goes as it is, and so does what names bytes that are not there.
        if packet.offload.segmentation().is_none() && packet.complete_checksum().is_err() {
            self.put.errors += 1;
            return true;
        }
        let Some(outgoing) = Outgoing::new(packet) else {
            self.put.errors += 1;
            return true;
        };
        let captured = packet.len() + outgoing.added();
        #[expect(clippy::cast_possible_truncation, reason = "a packet has at most 34 frames of 2304 bytes")]
        let len = captured as u32;
        let original = len + packet.offload.cut();
        if !self.producer.has_room(self.format.record_len(len)) {
            return false;
        }
        let time = packet.offload.timestamp().unwrap_or(now);
        self.producer.put(self.format.record_head(time, len, original).bytes());
        for piece in outgoing.pieces(packet) {
            self.producer.put(piece);
        }
        self.producer.put(self.format.record_tail(len).bytes());
        self.producer.end();
        self.put.packets += 1;
        self.put.bytes += captured as u64;
        true
    }
}

impl TxQueue for PcapTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let now = clock::realtime();
        let ended = self.producer.has_ended();
        let failed = ended && !self.producer.is_gone();
        let mut done = 0;
        for packet in batch.iter_mut() {
            // When nothing is written any more, packets go the way of those for a wire that is cut. Where it is for want of a
            // reader, nobody misses them.
            if !ended && !self.write(packet, now) {
                break;
            }
            self.put.errors += u64::from(failed);
            done += 1;
        }
        for packet in batch.drain_front(done) {
            pool.give_packet(packet);
        }
        done
    }

    fn flush(&mut self, _: &mut Pool) {
        if self.producer.pending() > 0 {
            let now = clock::monotonic();
            if now - self.flushed >= FLUSH_NS {
                self.flushed = now;
                self.producer.flush();
            }
        }
    }

    fn in_flight(&self) -> usize {
        usize::try_from(self.producer.pending()).unwrap_or(usize::MAX)
    }

    fn counters(&self) -> QueueCounters {
        let (written, put) = (self.producer.written(), self.put);
        // Exact when all is written; a share while some is on its way.
        let bytes = u128::from(put.bytes) * u128::from(written) / u128::from(put.packets.max(1));
        let failed = self.producer.has_ended() && !self.producer.is_gone();
        let lost = if failed { put.packets - written - self.producer.pending() } else { 0 };
        QueueCounters {
            packets: written,
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            errors: put.errors + lost,
            no_frame: 0,
        }
    }

    fn close(self: Box<Self>, _: &mut Pool) {}
}
