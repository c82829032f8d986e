//! Neighbours: the state machine of RFC 4861, 7.3, for ARP as well, which has none of its own.

use std::collections::HashMap;
use std::time::Duration;

use bywash_wire::Mac;

use super::icmp::Limit;
use crate::ends::Ends;
use crate::snapshot::Known;
use crate::{Address, InterfaceId, Timestamp};

/// How long an answer counts, if no router says otherwise (RFC 4861, 10: REACHABLE_TIME).
const REACHABLE: Duration = Duration::from_secs(30);
/// How long a use waits for good news before asking (DELAY_FIRST_PROBE_TIME).
const DELAY: Duration = Duration::from_secs(5);
/// Between two questions (RETRANS_TIMER; RFC 1122, 2.3.2.1: at most one a second).
const RETRANSMIT: Duration = Duration::from_secs(1);
/// Questions of each sort (MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT).
const QUESTIONS: u8 = 3;
/// How long a host that did not answer is not asked for again.
const ABSENT: Duration = Duration::from_secs(3);
/// How long an unused entry is kept (RFC 1122, 2.3.2.1: out-of-date entries go).
const FORGET: Duration = Duration::from_secs(600);
/// Neighbours in all: a scan of a large prefix must not fill memory. Of them, those that have told of themselves and that nothing was
/// sent to yet, and those that are being asked for: neither keep others away.
const LIMIT: usize = 16_384;
const HEARD: usize = LIMIT / 4;
const ASKED: usize = LIMIT / 2;
/// News of neighbours that do not answer and of those that age and are forgotten come at multiples of this, together. Each costs every stack
/// a new snapshot, and who scans a link, however slowly, must not set the pace of that (RFC 6583).
const TOGETHER: Duration = Duration::from_millis(100);
/// What neighbours may tell of themselves unasked, that they are there or somewhere else: as many at once as a link may wake up
/// with, and how long one more takes.
/// Each costs every stack a new snapshot, and who makes up neighbours must not set the pace of that.
const NEWS: u32 = 256;
const NEWS_REFILL: Duration = Duration::from_millis(10);
/// The end of a state that has none.
const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);

/// How far a neighbour is known. The names are RFC 4861's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// It has been asked for, and has not answered yet.
    Incomplete,
    /// It answered not long ago.
    Reachable,
    /// It answered some time ago.
    Stale,
    /// It is used though nobody has heard of it for some time.
    Delay,
    /// It is asked whether it still is there.
    Probe,
    /// It does not answer.
    Failed,
    /// Someone entered it by hand.
    Permanent,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour {
    pub(super) state: NeighbourState,
    pub(super) mac: Mac,
    /// When the state ends by itself.
    until: Timestamp,
    questions: u8,
    /// It told of itself, and nothing was sent to it yet.
    only_heard: bool,
}

/// Neighbours in the order in which they make room for others.
#[derive(Clone, Copy, Debug)]
enum Class {
    /// Only heard of, and no more.
    Heard,
    /// Not used for long.
    Stale,
    /// They do not answer.
    Failed,
    /// They are used, the one that was confirmed first before the others.
    Used,
    /// They are being asked for.
    Asked,
}

const CLASSES: [Class; 5] = [Class::Heard, Class::Stale, Class::Failed, Class::Used, Class::Asked];

/// A question to be sent: to everyone, or to the address that is doubted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) interface: InterfaceId,
    pub(super) address: Address,
    pub(super) to: Option<Mac>,
}

/// What routers have said of the times on a link (RFC 4861, 6.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    reachable: Duration,
    retransmit: Duration,
}

const USUAL: Times = Times { reachable: REACHABLE, retransmit: RETRANSMIT };

/// All neighbours of all interfaces.
#[derive(Debug)]
pub(super) struct Neighbours {
    entries: HashMap<(InterfaceId, Address), Neighbour>,
    /// When the state of each that has an end ends, the soonest first, for each class. [`Neighbours::put`] and
    /// [`Neighbours::take`] keep it.
    ends: [Ends<Key>; CLASSES.len()],
    /// Those that routes lead through, sorted: they make room for nobody.
    gateways: Vec<Key>,
    /// Links whose times are not the usual ones. They are for IPv6 alone.
    times: HashMap<InterfaceId, Times>,
    news: Limit,
    /// Our own Ethernet addresses.
    ours: Vec<Mac>,
    /// How many have not answered.
    pub(super) failed: u64,
    /// Stacks are to be told something else than before.
    pub(super) changed: bool,
    /// Stacks are to be told by then: what they know can be forgotten a little later.
    tell_by: Option<Timestamp>,
}

impl Default for Neighbours {
    fn default() -> Self {
        let news = Limit::new(NEWS, NEWS_REFILL);
        Self {
            entries: HashMap::new(),
            ends: Default::default(),
            gateways: Vec::new(),
            times: HashMap::new(),
            news,
            ours: Vec::new(),
            failed: 0,
            changed: false,
            tell_by: None,
        }
    }
}

type Key = (InterfaceId, Address);

impl Neighbours {
    /// Packets wait for a neighbour: asks for it, unless that is under way or was in vain a moment ago.
    pub(super) fn resolve(&mut self, now: Timestamp, key: Key) -> Option<Question> {
        if self.entries.contains_key(&key) {
            return None;
        }
        // Of those that are being asked for, the one whose next question is due first has waited for long enough.
        if self.ends[Class::Asked as usize].len() >= ASKED {
            self.push_out(now, &[Class::Asked]);
        }
        if self.entries.len() >= LIMIT && !self.make_room(now) {
            return None;
        }
        let until = now + self.times(&key).retransmit;
        let neighbour = Neighbour { questions: 1, ..Neighbour::new(NeighbourState::Incomplete, until) };
        self.put(key, neighbour);
        Some(Question { interface: key.0, address: key.1, to: None })
    }

    /// A stale neighbour is used.
    pub(super) fn used(&mut self, now: Timestamp, key: Key) {
        self.step(key, |neighbour| {
            (neighbour.state == NeighbourState::Stale).then_some((NeighbourState::Delay, now + DELAY))
        });
    }

    /// Something else than an answer says that the neighbour is there.
    pub(super) fn confirmed(&mut self, now: Timestamp, key: Key) {
        let until = now + self.times(&key).reachable;
        self.step(key, |neighbour| {
            use NeighbourState::{Delay, Probe, Reachable, Stale};
            matches!(neighbour.state, Reachable | Stale | Delay | Probe).then_some((Reachable, until))
        });
    }

    /// The neighbour answered a question of ours.
    pub(super) fn answered(&mut self, now: Timestamp, key: Key, mac: Mac) {
        let until = now + self.times(&key).reachable;
        self.learn(key, Neighbour { mac, ..Neighbour::new(NeighbourState::Reachable, until) });
    }

    /// The neighbour has sent a neighbour advertisement (RFC 4861, 7.2.5); `false`: it is to be ignored, whatever it says.
    pub(super) fn advertised(
        &mut self,
        now: Timestamp,
        key: Key,
        mac: Option<Mac>,
        solicited: bool,
        overrides: bool,
    ) -> bool {
        use NeighbourState::{Failed, Incomplete, Permanent, Probe, Reachable, Stale};
        let Some(known) = self.entries.get(&key).copied() else { return false };
        let contradicts = mac.is_some_and(|mac| mac != known.mac) && !overrides;
        let reachable = (Reachable, now + self.times(&key).reachable);
        let stale = (Stale, now + FORGET);
        let ((state, until), mac) = match (known.state, mac) {
            (_, Some(mac)) if !self.is_station(mac) => return false,
            (Incomplete | Failed, None) => return false,
            // Whether it still is a router, nobody has entered by hand.
            (Permanent, _) => return !contradicts,
            (Incomplete | Failed, Some(mac)) => (if solicited { reachable } else { stale }, mac),
            // It contradicts what counts as true: neither is believed until it has answered.
            (Reachable, _) if contradicts => (stale, known.mac),
            _ if contradicts => return false,
            (_, mac) if solicited => (reachable, mac.unwrap_or(known.mac)),
            (_, Some(mac)) if mac != known.mac => (stale, mac),
            _ => return true,
        };
        let new = Neighbour { mac, ..Neighbour::new(state, until) };
        // Who contradicts itself all the time must not set the pace of snapshots. What we have asked for is heard in any case: each
        // question of ours is answered once.
        let asked = matches!(known.state, Incomplete | Probe);
        if !asked && known.known() != new.known() && !self.news.allow(now) {
            return false;
        }
        self.learn(key, new);
        !(known.state == Reachable && contradicts)
    }

    /// A router has said how long answers count on a link and how far questions are apart.
    pub(super) fn set_times(&mut self, link: InterfaceId, reachable: Duration, retransmit: Duration) {
        let or = |said: Duration, usual| if said.is_zero() { usual } else { said };
        let known = self.times.get(&link).copied().unwrap_or(USUAL);
        // RFC 4861, 6.2.1: an hour at most.
        let reachable = or(reachable, known.reachable).min(Duration::from_secs(3600));
        let retransmit = or(retransmit, known.retransmit).clamp(RETRANSMIT / 10, RETRANSMIT * 60);
        self.times.insert(link, Times { reachable, retransmit });
    }

    /// What routers have said of the times on a link counts no more.
    pub(super) fn forget_times(&mut self, link: InterfaceId) {
        self.times.remove(&link);
    }

    /// How far questions for a neighbour are apart (RFC 4861, 6.3.4: RetransTimer).
    pub(super) fn retransmit(&self, key: &Key) -> Duration {
        self.times(key).retransmit
    }

    fn times(&self, key: &Key) -> Times {
        if key.1.is_v4() { USUAL } else { self.times.get(&key.0).copied().unwrap_or(USUAL) }
    }

    /// The neighbour said where it is without being asked: true perhaps, but no proof that our packets reach it.
    /// `create`: it asked for us, so we will answer, and so need it.
    pub(super) fn heard(&mut self, now: Timestamp, key: Key, mac: Mac, create: bool) {
        let known = self.entries.get(&key);
        if !self.is_station(mac) {
            return;
        }
        // RFC 4861, 7.2.3: who asks for us is there, also if he has not answered before.
        let gone = |state| matches!(state, NeighbourState::Incomplete | NeighbourState::Failed);
        let same = known.is_some_and(|n| n.mac == mac && !gone(n.state));
        if same || (known.is_none() && !create) {
            return;
        }
        let new = known.is_none();
        let only_heard = known.is_none_or(|known| known.only_heard);
        if !self.news.allow(now) {
            return;
        }
        if new && self.ends[Class::Heard as usize].len() >= HEARD {
            self.push_out(now, &[Class::Heard]);
        }
        if !new || self.entries.len() < LIMIT || self.make_room(now) {
            self.learn(
                key,
                Neighbour { mac, only_heard, ..Neighbour::new(NeighbourState::Stale, now + FORGET) },
            );
        }
    }

    /// An Ethernet address is ours.
    pub(super) fn add_ours(&mut self, mac: Mac) {
        self.ours.push(mac);
    }

    /// An Ethernet address of ours is another one by now. Of several interfaces that had it the others keep it. Neighbours that were
    /// known to have the new one do so no longer.
    pub(super) fn change_ours(&mut self, old: Mac, new: Mac) {
        if let Some(ours) = self.ours.iter_mut().find(|ours| **ours == old) {
            *ours = new;
        }
        self.remove(|_, known| known.mac == new && known.state != NeighbourState::Permanent);
    }

    /// Whether an Ethernet address is ours.
    pub(super) fn is_ours(&self, mac: Mac) -> bool {
        self.ours.contains(&mac)
    }

    /// Routes lead through these neighbours, and no others.
    pub(super) fn set_gateways(&mut self, mut gateways: Vec<Key>) {
        gateways.sort_unstable();
        self.gateways = gateways;
    }

    /// Enters a neighbour that nothing from the wire changes.
    pub(super) fn add(&mut self, key: Key, mac: Mac) {
        self.put(key, Neighbour { mac, ..Neighbour::new(NeighbourState::Permanent, NEVER) });
    }

    /// Forgets neighbours.
    pub(super) fn remove(&mut self, wanted: impl Fn(&Key, &Neighbour) -> bool) -> usize {
        let gone: Vec<Key> =
            self.entries.iter().filter(|(key, known)| wanted(key, known)).map(|(key, _)| *key).collect();
        for key in &gone {
            self.take(key);
        }
        // Stacks ask again for one that has not answered yet.
        self.changed |= !gone.is_empty();
        gone.len()
    }

    pub(super) fn state(&self, key: Key) -> Option<NeighbourState> {
        self.entries.get(&key).map(|neighbour| neighbour.state)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Neighbour)> {
        self.entries.iter()
    }

    /// Ends what has lasted long enough, and returns the questions to be asked now.
    pub(super) fn advance(&mut self, now: Timestamp) -> Vec<Question> {
        let mut questions = Vec::new();
        self.changed |= self.tell_by.is_some_and(|by| by <= now);
        while let Some((_, key)) = self.first_end().filter(|(end, _)| *end <= now) {
            let Some(mut neighbour) = self.entries.get(&key).copied() else { break };
            if neighbour.expire(now, self.times(&key).retransmit) {
                // The state has just begun: a failed one that ends is forgotten.
                self.failed += u64::from(neighbour.state == NeighbourState::Failed);
                if matches!(neighbour.state, NeighbourState::Incomplete | NeighbourState::Probe) {
                    let to = (neighbour.state == NeighbourState::Probe).then_some(neighbour.mac);
                    questions.push(Question { interface: key.0, address: key.1, to });
                }
                self.put(key, neighbour);
            } else {
                self.take(&key);
            }
        }
        questions
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.first_end().map(|(end, _)| end).into_iter().chain(self.tell_by).min()
    }

    fn first_end(&self) -> Option<(Timestamp, Key)> {
        self.ends.iter().filter_map(Ends::first).min()
    }

    /// Stacks have been told.
    pub(super) fn told(&mut self) {
        (self.changed, self.tell_by) = (false, None);
    }

    /// What the stacks are told, sorted.
    pub(super) fn known(&self) -> Vec<(Key, Known)> {
        let entries = self.entries.iter();
        let mut all: Vec<_> =
            entries.filter_map(|(key, neighbour)| Some((*key, neighbour.known()?))).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    fn step(&mut self, key: Key, to: impl Fn(&Neighbour) -> Option<(NeighbourState, Timestamp)>) {
        let Some(neighbour) = self.entries.get(&key) else { return };
        if let Some((state, until)) = to(neighbour) {
            let mac = neighbour.mac;
            self.put(key, Neighbour { mac, ..Neighbour::new(state, until) });
        }
    }

    /// Enters a neighbour, in place of what was known of it.
    fn put(&mut self, key: Key, mut neighbour: Neighbour) {
        if neighbour.ends_in_news() {
            neighbour.until = together(neighbour.until);
        }
        let old = self.entries.insert(key, neighbour);
        self.changed |= old.and_then(|old| old.known()) != neighbour.known();
        if let Some(old) = old {
            self.ends[old.class() as usize].remove(old.until, key);
        }
        if neighbour.until != NEVER {
            self.ends[neighbour.class() as usize].insert(neighbour.until, key);
        }
    }

    fn take(&mut self, key: &Key) -> Option<Neighbour> {
        let neighbour = self.entries.remove(key)?;
        self.changed |= neighbour.known().is_some();
        self.ends[neighbour.class() as usize].remove(neighbour.until, *key);
        Some(neighbour)
    }

    fn learn(&mut self, key: Key, neighbour: Neighbour) {
        let permanent = self.entries.get(&key).is_some_and(|n| n.state == NeighbourState::Permanent);
        if !permanent && self.is_station(neighbour.mac) {
            self.put(key, neighbour);
        }
    }

    /// Whether it can be another station's: packets to ourselves, to nobody or to many would find no neighbour.
    fn is_station(&self, mac: Mac) -> bool {
        !mac.is_multicast() && mac != Mac::default() && !self.is_ours(mac)
    }

    /// Forgets the one that is needed least.
    fn make_room(&mut self, now: Timestamp) -> bool {
        self.push_out(now, &CLASSES)
    }

    /// Forgets one of the first class that has any, but for gateways: the one that would end first. Stacks hear of it with the
    /// next news, or a little later.
    fn push_out(&mut self, now: Timestamp, classes: &[Class]) -> bool {
        let spare = |key: &Key| self.gateways.binary_search(key).is_err();
        let first = classes.iter().flat_map(|class| self.ends[*class as usize].iter()).find(spare);
        let Some(first) = first else { return false };
        let changed = std::mem::take(&mut self.changed);
        self.take(&first);
        if std::mem::replace(&mut self.changed, changed) {
            self.tell_by.get_or_insert(together(now + TOGETHER));
        }
        true
    }
}

/// The next time at which news come together.
fn together(at: Timestamp) -> Timestamp {
    let step = crate::time::nanos(TOGETHER);
    at.as_nanos().checked_next_multiple_of(step).map_or(NEVER, Timestamp::from_nanos)
}

impl Neighbour {
    fn new(state: NeighbourState, until: Timestamp) -> Self {
        Self { state, mac: Mac::default(), until, questions: 0, only_heard: false }
    }

    fn class(&self) -> Class {
        match self.state {
            NeighbourState::Stale if self.only_heard => Class::Heard,
            NeighbourState::Stale => Class::Stale,
            NeighbourState::Failed => Class::Failed,
            NeighbourState::Incomplete => Class::Asked,
            NeighbourState::Reachable
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent => Class::Used,
        }
    }

    /// Whether stacks hear when the state ends: that its use is to be told, that it has not answered, or is forgotten.
    fn ends_in_news(&self) -> bool {
        use NeighbourState::{Delay, Failed, Incomplete, Permanent, Probe, Reachable, Stale};
        match self.state {
            Reachable | Stale | Failed => true,
            Incomplete | Probe => self.questions == QUESTIONS,
            Delay | Permanent => false,
        }
    }

    /// What stacks are told of it: nothing as long as it has not answered.
    fn known(&self) -> Option<Known> {
        match self.state {
            NeighbourState::Incomplete => None,
            NeighbourState::Failed => Some(Known::Absent),
            state => Some(Known::At { mac: self.mac, stale: state == NeighbourState::Stale }),
        }
    }

    /// What a state becomes when its time is over; `false`: nothing, it is forgotten.
    fn expire(&mut self, now: Timestamp, retransmit: Duration) -> bool {
        use NeighbourState::{Delay, Failed, Incomplete, Permanent, Probe, Reachable, Stale};
        match self.state {
            Reachable => (self.state, self.until) = (Stale, now + FORGET),
            Delay => (self.state, self.until, self.questions) = (Probe, now + retransmit, 1),
            Incomplete | Probe if self.questions < QUESTIONS => {
                (self.until, self.questions) = (now + retransmit, self.questions + 1);
            }
            Incomplete | Probe => (self.state, self.until) = (Failed, now + ABSENT),
            Stale | Failed => return false,
            Permanent => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn key() -> Key {
        (InterfaceId(1), Ipv4Addr::new(10, 0, 0, 9).into())
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    fn state(neighbours: &Neighbours) -> Option<NeighbourState> {
        neighbours.entries.get(&key()).map(|n| n.state)
    }

    #[test]
    fn a_silent_host_is_asked_for_three_times_and_then_left_alone() {
        let mut all = Neighbours::default();
        assert!(all.resolve(at(0), key()).is_some());
        assert!(all.resolve(at(0), key()).is_none(), "once a second");
        assert_eq!(all.advance(at(1)).len(), 1);
        assert_eq!(all.advance(at(2)).len(), 1);
        assert_eq!(all.advance(at(3)).len(), 0);
        assert_eq!(state(&all), Some(NeighbourState::Failed));
        assert!(all.resolve(at(4), key()).is_none(), "not again so soon");
        all.advance(at(6));
        assert!(all.resolve(at(6), key()).is_some());
    }

    #[test]
    fn who_did_not_answer_and_asks_for_us_is_there_again() {
        let mut all = Neighbours::default();
        all.resolve(at(0), key());
        all.answered(at(0), key(), MAC);
        all.advance(at(30));
        all.used(at(31), key());
        for second in 36..40 {
            all.advance(at(second));
        }
        assert_eq!(state(&all), Some(NeighbourState::Failed));
        all.heard(at(40), key(), MAC, true);
        assert_eq!(state(&all), Some(NeighbourState::Stale));
    }

    #[test]
    fn the_next_end_is_that_of_the_neighbour_that_ends_first() {
        let mut all = Neighbours::default();
        let key = |n: u64| (InterfaceId(1), Ipv4Addr::new(10, 0, 0, u8::try_from(n).unwrap()).into());
        let mut random = 1u64;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (n, now) = (key((random >> 33) & 63), at(step / 20));
            match random >> 60 {
                0..=4 => drop(all.resolve(now, n)),
                5..=7 => all.answered(now, n, MAC),
                8 => all.used(now, n),
                9 => all.confirmed(now, n),
                10 => drop(all.remove(|key, _| *key == n)),
                11 if step % 40 == 0 => all.add(n, MAC),
                12 => drop(all.make_room(now)),
                _ => drop(all.advance(now)),
            }
            let ends = all.entries.values().map(|n| n.until).filter(|until| *until != NEVER);
            let known: usize = all.ends.iter().map(Ends::len).sum();
            assert_eq!(known, ends.clone().count(), "step {step}");
            assert_eq!(all.next_deadline(), ends.chain(all.tell_by).min(), "step {step}");
        }
        all.advance(Timestamp::from_nanos(u64::MAX - 1));
        assert!(all.entries.values().any(|n| n.state == NeighbourState::Permanent));
    }

    #[test]
    fn stacks_hear_of_a_neighbour_that_makes_room() {
        let mut all = Neighbours::default();
        all.resolve(at(0), key());
        assert!(all.make_room(at(0)) && !all.changed, "they did not know it");
        assert_eq!(all.next_deadline(), None);
        all.heard(at(0), key(), MAC, true);
        all.told();
        assert!(all.make_room(at(1)) && !all.changed && all.known().is_empty(), "not at once");
        let by = at(1) + TOGETHER;
        assert_eq!(all.next_deadline(), Some(by));
        all.advance(by);
        assert!(all.changed);
        all.told();
        assert_eq!(all.next_deadline(), None);
    }

    /// RFC 6583: who scans a link does not make a snapshot with each question.
    #[test]
    fn stacks_hear_only_of_what_they_see() {
        let mut all = Neighbours::default();
        let hears = |all: &mut Neighbours| (all.changed, all.told()).0;
        all.resolve(at(0), key());
        for (second, news) in [(0, false), (1, false), (2, false), (3, true), (4, false), (6, true)] {
            all.advance(at(second));
            assert_eq!(hears(&mut all), news, "asked for, absent, forgotten: {second}");
        }
        all.resolve(at(10), key());
        all.answered(at(10), key(), MAC);
        assert!(hears(&mut all), "it is there");
        all.answered(at(11), key(), MAC);
        assert!(!hears(&mut all), "it still is");
        all.advance(at(41));
        assert!(hears(&mut all), "its use is to be told");
        all.used(at(41), key());
        assert!(hears(&mut all), "its use is known");
        for (second, news) in [(46, false), (47, false), (48, false), (49, true)] {
            all.advance(at(second));
            assert_eq!(hears(&mut all), news, "probed, and then absent: {second}");
        }
    }

    /// RFC 6583: each address of the scan is asked for at another moment, and fails and is forgotten at another.
    #[test]
    fn a_slow_scan_makes_ten_pictures_a_second() {
        const SCANNED: u64 = 20_000;
        let mut all = Neighbours::default();
        let (mut now, mut pictures) = (Timestamp::ZERO, 0);
        for n in 0..SCANNED {
            now = now + Duration::from_nanos(1_000_007);
            let last = Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(n).unwrap());
            all.resolve(now, (InterfaceId(1), last.into()));
            all.advance(now);
            if all.changed {
                all.told();
                pictures += 1;
            }
        }
        assert!(all.failed > 10_000, "{}", all.failed);
        assert!(pictures <= 201, "{pictures} in twenty seconds");
    }

    #[test]
    fn an_answer_ages_and_use_makes_it_probed() {
        let mut all = Neighbours::default();
        all.resolve(at(0), key());
        all.answered(at(0), key(), MAC);
        all.advance(at(30));
        assert_eq!(state(&all), Some(NeighbourState::Stale));
        assert_eq!(all.known(), [(key(), Known::At { mac: MAC, stale: true })]);
        all.used(at(31), key());
        assert_eq!(state(&all), Some(NeighbourState::Delay));
        let question = all.advance(at(36));
        assert_eq!(question, [Question { interface: key().0, address: key().1, to: Some(MAC) }]);
        all.confirmed(at(36), key());
        assert_eq!(state(&all), Some(NeighbourState::Reachable));
    }

    #[test]
    fn advertisements_are_taken_by_the_table_of_the_rfc() {
        use NeighbourState::{Delay, Incomplete, Reachable, Stale};
        let other = Mac([2, 0, 0, 0, 0, 7]);
        // State before, address told, solicited, override; state and address after (RFC 4861, appendix C).
        for (before, told, solicited, overrides, after, mac) in [
            (Incomplete, None, true, true, Incomplete, Mac::default()),
            (Incomplete, Some(MAC), true, false, Reachable, MAC),
            (Incomplete, Some(MAC), false, true, Stale, MAC),
            (Delay, Some(MAC), true, false, Reachable, MAC),
            (Delay, None, true, false, Reachable, MAC),
            (Delay, Some(MAC), false, false, Delay, MAC),
            (Reachable, Some(other), true, false, Stale, MAC),
            (Stale, Some(other), true, false, Stale, MAC),
            (Stale, Some(other), true, true, Reachable, other),
            (Reachable, Some(other), false, true, Stale, other),
        ] {
            let mut all = Neighbours::default();
            all.advertised(at(0), key(), Some(MAC), true, true);
            assert_eq!(state(&all), None, "nobody has asked");
            all.resolve(at(0), key());
            if before != Incomplete {
                all.answered(at(0), key(), MAC);
            }
            if matches!(before, Stale | Delay) {
                all.advance(at(31));
            }
            if before == Delay {
                all.used(at(31), key());
            }
            assert_eq!(state(&all), Some(before));
            all.advertised(at(32), key(), told, solicited, overrides);
            let entry = all.entries[&key()];
            let case = (before, told, solicited, overrides);
            assert_eq!((entry.state, entry.mac), (after, mac), "{case:?}");
        }
    }

    #[test]
    fn what_was_not_asked_for_is_stale_and_makes_no_entry_unless_it_asked_us() {
        let mut all = Neighbours::default();
        all.heard(at(0), key(), MAC, false);
        assert_eq!(state(&all), None);
        all.heard(at(0), key(), MAC, true);
        assert_eq!(state(&all), Some(NeighbourState::Stale));
        all.add(key(), MAC);
        all.heard(at(0), key(), Mac([2, 0, 0, 0, 0, 7]), true);
        assert_eq!(all.known(), [(key(), Known::At { mac: MAC, stale: false })], "entered by hand");
    }
}
