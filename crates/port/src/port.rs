//! Ports and queues.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bywash_filter::rules::{Drawn, SentFlows};
use bywash_frame::{Batch, Pool};

use crate::{
    Counter, LoadedRules, Moved, PortName, QueueCounters, RssSpread, RuleCount, RuleId, RuleLoad, RulePlace,
    Rules, SteerCount,
};

/// One RX ring, owned by exactly one worker.
pub trait RxQueue: Send {
    /// Appends received packets to `batch`, as many as are there and fit, and returns how many. Gives the NIC free
    /// frames of `pool` for the next ones.
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize;

    /// Asks to be woken for the next packet, before sleeping on [`RxQueue::wake_fd`]. False when packets are there
    /// already, or nothing can wake this queue: then do not sleep.
    fn arm(&mut self) -> bool;

    /// Whether no packet will ever come again: a file was read to its end.
    fn has_ended(&self) -> bool {
        false
    }

    /// What becomes readable when a packet comes; `None` when this queue has packets without end.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether its calls show from now on that somebody is there; they do at first. A port whose packets fall to another one
    /// when nobody is there, the kernel, lets them do so soon after that. What comes meanwhile is received all the same.
    fn show_life(&mut self, shows: bool) {
        let _ = shows;
    }

    /// Takes nothing more, for good, where packets fall to another one then, the kernel. What was on its way already still comes by
    /// [`RxQueue::rx`], in the next moments; what comes after that is not lost.
    fn stop(&mut self) {}

    /// What it has counted.
    fn counters(&self) -> QueueCounters;

    /// Stops receiving and takes the frames back that the NIC had. What has come and was not received is lost.
    fn close(self: Box<Self>, pool: &mut Pool);
}

/// One TX ring, owned by exactly one worker.
pub trait TxQueue: Send {
    /// Queues packets from the front of `batch`, as many as there is room for, leaves the others in it, and returns
    /// how many were queued. Nothing need be on its way before [`TxQueue::flush`].
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize;

    /// Makes the NIC start on all that was queued and takes frames back that it has done with. Call it once in each
    /// turn, also when nothing was queued and [`TxQueue::in_flight`] is not 0.
    fn flush(&mut self, pool: &mut Pool);

    /// Packets queued and not yet completed.
    fn in_flight(&self) -> usize;

    /// What it has counted: completed packets, not queued ones.
    fn counters(&self) -> QueueCounters;

    /// Stops sending, takes the frames back, and drops what was not sent. Flush until [`TxQueue::in_flight`] is 0
    /// (for a bounded time: a link that is down never completes) to send everything first.
    fn close(self: Box<Self>, pool: &mut Pool);
}

/// The two halves of a queue: of an interface's queue 4, say.
pub struct QueuePair {
    /// The receiving half; `None` on a port that only sends.
    pub rx: Option<Box<dyn RxQueue>>,
    /// The sending half; `None` on a port that only receives.
    pub tx: Option<Box<dyn TxQueue>>,
}

/// What a port can do, and how it was opened. What it can't, software does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Longest packet, without FCS: the MTU and the Ethernet header with two VLAN tags.
    pub max_len: usize,
    /// Longest packets that can be sent, where those are shorter.
    pub sent: Option<SentLen>,
    /// Fills in TCP and UDP checksums ([`Checksum::Partial`](bywash_frame::Checksum::Partial)).
    pub tx_checksum: bool,
    /// Cuts super-segments, and fills in the checksums of what it cuts.
    pub segmentation: bool,
    /// Packets may have several frames.
    pub chains: bool,
    /// Frames move without a copy.
    pub zero_copy: bool,
    /// How it was opened, for the user: `copy`, `native XDP`, `zero-copy`, `TCX`.
    pub mode: Vec<&'static str>,
    /// Speed of the link in Mbit/s, where there is one.
    pub link_mbps: Option<u32>,
}

/// Bytes of the longest packets that can be sent, without FCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentLen {
    /// With a VLAN tag (802.1Q) behind the addresses.
    pub tagged: usize,
    /// Others.
    pub untagged: usize,
}

impl Capabilities {
    /// Bytes of the longest packet that can be sent of those that begin like this one.
    pub fn longest_sent(&self, packet: &[u8]) -> usize {
        let is_tagged = packet.get(12..14) == Some(&[0x81, 0]);
        let sent = self.sent.map(|sent| if is_tagged { sent.tagged } else { sent.untagged });
        sent.unwrap_or(self.max_len).min(self.max_len)
    }
}

/// An opened NIC, real or virtual.
pub trait Port: Send {
    /// What it was opened as.
    fn name(&self) -> &PortName;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Its Ethernet address, if it has one: a port that stands for no NIC has none.
    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    /// How its NIC spreads flows over its receiving queues, of which each has the number of its place among
    /// [`Port::queues`]; it says itself of which packets that is certain. `None` where it is not known.
    fn spread(&self) -> Option<RssSpread> {
        None
    }

    /// Its queues. They are given out once: a second call returns none.
    fn queues(&mut self) -> Vec<QueuePair>;

    /// What the port counts beside its queues: what the kernel or the NIC dropped, what stayed with the kernel.
    fn counters(&self) -> Vec<Counter>;

    /// Looks whether all that it needs is still there, for who must not keep the port from others while the kernel has them wait. Once this
    /// was asked for, [`Port::counters`] has what the last such look has found, and waits for nobody.
    fn look_apart(&self) -> Option<Box<dyn FnOnce() + Send>> {
        None
    }

    /// Begins to put other rules in the place of those that it has: what is loaded then is for [`Port::set_rules`].
    ///
    /// # Errors
    /// In one line why not.
    fn load_rules(&mut self, rules: &Rules) -> Result<RuleLoad, String> {
        let _ = rules;
        Err(format!("{} has no rules", self.name()))
    }

    /// Puts rules that were loaded since others were set in the place of these, in one step: each packet is decided by the ones or by
    /// the others. A rule keeps its counter as long as there is one of its [`RuleId`].
    ///
    /// What is `blocked` stays so ([`Port::block`]): limits of these names, which the rules before have as well, drop what comes from these
    /// sources from the first packet that they decide about, and count on.
    ///
    /// Rules that could not be where the port was bring other queues along. Then the old ones decide until workers call all of
    /// these, and for a moment packets are decided by both: [`Port::has_moved`] is to be asked.
    ///
    /// # Errors
    /// In one line why not; the old rules are still there.
    fn set_rules(
        &mut self,
        rules: LoadedRules,
        blocked: &[(String, IpAddr)],
    ) -> Result<Option<Moved>, String> {
        let _ = (rules, blocked);
        Err(format!("{} has no rules", self.name()))
    }

    /// Whether rules that have brought other queues along decide alone. What was there before them ends in one of these calls, once
    /// all these queues have workers.
    fn has_moved(&mut self) -> bool {
        true
    }

    /// The addresses of the machine's default gateways, when they are others than those that its rules never drop; rules that
    /// are set after that spare these.
    ///
    /// # Errors
    /// In one line why that is not known.
    fn new_gateways(&mut self) -> Result<Option<Vec<IpAddr>>, String> {
        Ok(None)
    }

    /// What its interface has by now that it had not when rules were set, or its NIC does no more, so that they do not decide about all
    /// that comes, or not as they should, or the port does not get all that it is for; in one line, with what to do. Rules that are set after
    /// that follow as far as they can.
    fn outgrown(&self) -> Option<String> {
        None
    }

    /// Has the rule with this name, a limit, drop all that comes from a source from now on, or no longer. Other rules make
    /// an end of that, but for what is named when they are set.
    ///
    /// # Errors
    /// In one line why not.
    fn block(&mut self, rule: &str, source: IpAddr, on: bool) -> Result<(), String> {
        let _ = (source, on);
        Err(format!("{} has no rule '{rule}'", self.name()))
    }

    /// Packets that were dropped since this rule's limit has a source dropped ([`Port::block`]); 0 when it does not.
    fn blocked_packets(&self, rule: &str, source: IpAddr) -> u64 {
        let _ = (rule, source);
        0
    }

    /// Who knows which flows are established, where a rule that it has now asks for that. Times are those of
    /// `CLOCK_MONOTONIC`.
    fn sent_flows(&self) -> Option<Arc<dyn SentFlows>> {
        None
    }

    /// What its program draws for rules, where it was opened for that. Given out once.
    fn samples(&mut self) -> Option<Box<dyn Samples>> {
        None
    }

    /// How many samples were drawn when there was no room for them.
    fn lost_samples(&self) -> u64 {
        0
    }

    /// Whether no packet comes to the queues that it has: a program in the kernel decides all of them, as long as there is a worker.
    fn is_in_kernel(&self) -> bool {
        false
    }

    /// What each rule has counted by itself, in order: without what was left to user space.
    fn rule_counts(&self) -> Vec<RuleCount> {
        Vec::new()
    }

    /// The same of rules that it has had before and has no longer. Nothing that a rule has counted is lost.
    fn past_rule_counts(&self) -> Vec<(RuleId, RuleCount)> {
        Vec::new()
    }

    /// What each rule has counted by which the port's program steers packets, in order; these hold as long as the port is open,
    /// and are none of [`Port::set_rules`].
    fn steer_counts(&self) -> Vec<SteerCount> {
        Vec::new()
    }

    /// Which of its rules should be in the NIC and is not any more, since what is never dropped has changed; why, in one line.
    fn rules_missing(&self) -> Option<String> {
        None
    }

    /// Where each rule is decided, in order.
    fn rule_places(&self) -> Vec<RulePlace> {
        Vec::new()
    }

    /// Gives the machine back: what was attached, steered or set is as it was before. Close its queues first.
    ///
    /// # Errors
    /// A sentence for each thing that could not be undone; everything else was.
    fn close(self: Box<Self>) -> Result<(), Vec<String>>;
}

/// Packets that a port's program has drawn for rules with `sample`. They were copied, and have gone on.
pub trait Samples: Send {
    /// Shows the next ones, so many at most, each with the name of its rule, and returns how many there were.
    fn each(&mut self, most: usize, show: &mut dyn FnMut(&str, Drawn<'_>)) -> usize;

    /// Whether none waits, and none is being written.
    fn is_empty(&self) -> bool;

    /// What becomes readable when there are some.
    fn wake_fd(&self) -> BorrowedFd<'_>;
}

/// Why a port could not be opened: what was wrong, why, and what to do, for the user. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[error("{port}: {reason}")]
pub struct OpenError {
    /// The port.
    pub port: PortName,
    /// What, why, and what to do, in one line.
    pub reason: String,
}
