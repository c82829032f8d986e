//! Samples on their way to a pcapng file, each with the name of the rule that asked for it as its comment.

use bywash_pcap::Comment;
use bywash_port::RuleSet;
use bywash_port::frame::Packet;
use bywash_sys::clock;
use bywash_sys::spool::Producer;

/// Bytes of a sample, at most.
const SNAP: usize = 256;

/// One worker's samples; where nobody wants them there are none.
pub(super) struct Samples {
    producer: Option<Producer>,
    /// Of each rule, made when rules are: not while packets come.
    comments: Vec<Comment>,
    /// Those that were kept.
    pub(super) kept: u64,
    /// Those there was no room for.
    pub(super) lost: u64,
}

impl Samples {
    pub(super) fn new(producer: Option<Producer>) -> Self {
        Self { producer, comments: Vec::new(), kept: 0, lost: 0 }
    }

    /// These are the rules from now on.
    pub(super) fn name(&mut self, set: &RuleSet) {
        let names = set.rules().iter().filter(|_| self.producer.is_some()).map(|rule| &rule.name);
        self.comments = names.map(|name| Comment::new(name)).collect();
    }

    /// Keeps a sample that this rule asked for.
    pub(super) fn keep(&mut self, rule: usize, packet: &Packet) {
        let (Some(producer), Some(comment)) = (&mut self.producer, self.comments.get(rule)) else { return };
        let bytes = &packet.head()[..packet.head().len().min(SNAP)];
        let [captured, original] =
            [bytes.len(), packet.len()].map(|len| u32::try_from(len).unwrap_or(u32::MAX));
        if !producer.has_room(comment.record_len(captured)) {
            self.lost += 1;
            return;
        }
        comment.write_record(clock::realtime(), bytes, original, |piece| producer.put(piece));
        producer.end();
        self.kept += 1;
    }

    /// Has what is kept so far soon in the file.
    pub(super) fn flush(&mut self) {
        if let Some(producer) = &mut self.producer {
            producer.flush();
        }
    }
}
