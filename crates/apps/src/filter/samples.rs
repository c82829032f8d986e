//! Samples on their way to a pcapng file, each with the name of the rule that asked for it as its comment.

use std::collections::HashMap;

use bywash_pcap::Comment;
use bywash_port::RuleSet;
use bywash_port::filter::rules::Drawn;
use bywash_port::frame::Packet;
use bywash_sys::clock;
use bywash_sys::spool::Producer;

/// One worker's samples; where nobody wants them there are none.
pub(super) struct Samples {
    producer: Option<Producer>,
    /// Of each rule, made when rules are: not while packets come.
    comments: Vec<Comment>,
    /// Of each rule that the port has drawn for, made then.
    of_drawn: HashMap<String, Comment>,
    /// Those that were put in.
    pub(super) kept: u64,
    /// Those there was no room for, or no file any more.
    pub(super) lost: u64,
    /// Some are kept that nobody writes yet.
    pub(super) waits: bool,
}

impl Samples {
    pub(super) fn new(producer: Option<Producer>) -> Self {
        Self { producer, comments: Vec::new(), of_drawn: HashMap::new(), kept: 0, lost: 0, waits: false }
    }

    /// These are the rules from now on.
    pub(super) fn name(&mut self, set: &RuleSet) {
        let names = set.rules().iter().filter(|_| self.producer.is_some()).map(|rule| &rule.name);
        self.comments = names.map(|name| Comment::new(name)).collect();
        self.of_drawn.clear();
    }

    /// Keeps a sample that this rule asked for.
    pub(super) fn keep(&mut self, rule: usize, packet: &Packet) {
        let (Some(producer), Some(comment)) = (&mut self.producer, self.comments.get(rule)) else { return };
        let bytes = &packet.head()[..packet.head().len().min(Drawn::MOST)];
        let wire_len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        let is_kept = put(producer, comment, (bytes, wire_len), clock::realtime());
        self.count(is_kept);
    }

    /// Keeps one that the port has drawn for the rule of this name.
    pub(super) fn keep_drawn(&mut self, rule: &str, drawn: Drawn<'_>) {
        let Some(producer) = &mut self.producer else { return };
        if !self.of_drawn.contains_key(rule) {
            self.of_drawn.insert(rule.into(), Comment::new(rule));
        }
        let Some(comment) = self.of_drawn.get(rule) else { return };
        let time = clock::realtime().saturating_sub(clock::monotonic().saturating_sub(drawn.time));
        let is_kept = put(producer, comment, (drawn.bytes, drawn.wire_len), time);
        self.count(is_kept);
    }

    fn count(&mut self, is_kept: bool) {
        self.kept += u64::from(is_kept);
        self.lost += u64::from(!is_kept);
        self.waits |= is_kept;
    }

    /// Has what is kept so far soon in the file, unless the disk is behind.
    pub(super) fn flush(&mut self) {
        if self.waits {
            self.waits = self.producer.as_mut().is_some_and(|producer| !producer.flush());
        }
    }
}

/// Whether there was room for it, and there is still a file.
fn put(producer: &mut Producer, comment: &Comment, (bytes, wire_len): (&[u8], u32), time: u64) -> bool {
    let captured = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if producer.has_ended() || !producer.has_room(comment.record_len(captured)) {
        return false;
    }
    comment.write_record(time, bytes, wire_len, |piece| producer.put(piece));
    producer.end();
    true
}
