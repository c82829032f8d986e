//! What user space says of a packet: the rules again, with those that need memory.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::AddAssign;
use std::time::Duration;

use bywash_port::filter::Expression;
use bywash_port::filter::rules::{Established, Findings, Headers, Lookup, MOST_RULES};
use bywash_port::{Action, Limit, Rule, RuleCount, RuleId, RuleSet};

use super::heavy::Hitter;
use super::limit::{Limiter, Measured};

/// What becomes of a packet: so little that it fits a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    /// It is gone.
    pub(super) is_dropped: bool,
    /// It is to be kept as a sample: [`Judge::sampler`] says whose.
    pub(super) is_sample: bool,
    /// It is of a flood: [`Judge::take_flood`] says which.
    pub(super) is_flood: bool,
}

impl Judgement {
    /// Whether there is nothing to be done but to let the packet go on.
    #[inline]
    pub(super) fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Sources of which everything is dropped where a rule stands, with its number, and until when.
pub(super) type Blocked = HashMap<(usize, IpAddr), u64>;

/// Who has looked at a packet before.
#[derive(Clone, Copy)]
pub(super) enum Before<'a> {
    /// The kernel's program: it has counted it, and drawn its samples, for the rules before the one that asks user space, and
    /// drops what the sources of floods send.
    Kernel,
    /// Nobody. The sources of floods are these.
    Nobody(&'a Blocked),
}

/// What one rule has counted here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// What it was about.
    pub(super) about: RuleCount,
    /// Of those, what it dropped, or would have in a dry run.
    pub(super) dropped: u64,
}

impl AddAssign for Counted {
    fn add_assign(&mut self, more: Self) {
        self.about += more.about;
        self.dropped += more.dropped;
    }
}

/// The rules' memory: one of each worker's.
#[derive(Default)]
pub(super) struct Judge {
    kept: Vec<Kept>,
    /// What it drops nothing of, whatever the rules say.
    never: Vec<Expression>,
    /// What rules have counted that hold no longer.
    past: HashMap<RuleId, Counted>,
    flood: Option<(usize, IpAddr)>,
    /// The rule that has drawn the packet that was judged last, if one has.
    sampler: usize,
}

/// What is kept of one rule, beside all of the rule that matters once a packet meets it.
struct Kept {
    counted: Counted,
    does: Does,
    is_dry_run: bool,
    /// It decides what becomes of a packet, or asks for that.
    decides: bool,
    /// One in so many is a sample; none when 0.
    sample: u32,
    /// Packets until the next one.
    until_sample: u32,
    limiter: Option<Box<Limiter>>,
}

/// What a rule does with a packet, its limit aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Drop,
    LetGo,
    Nothing,
    AnswersSyns,
}

impl Kept {
    /// Of a rule that has `counted` so much, whose former limiter and packets until the next sample are these.
    fn new(rule: &Rule, counted: Counted, (limiter, until_sample): (Option<Box<Limiter>>, u32)) -> Self {
        let limiter = match rule.action {
            Action::Limit(limit) => {
                let kept = limiter.filter(|limiter| limiter.limit() == limit);
                Some(kept.unwrap_or_else(|| Box::new(Limiter::new(limit))))
            }
            _ => None,
        };
        let does = match rule.action {
            Action::Drop => Does::Drop,
            Action::Pass | Action::Queue | Action::Steer(_) => Does::LetGo,
            Action::Count | Action::Limit(_) => Does::Nothing,
            Action::SynCookie | Action::SynProxy(_) => Does::AnswersSyns,
        };
        let sample = rule.sample.map_or(0, NonZeroU32::get);
        Self {
            counted,
            does,
            is_dry_run: rule.dry_run,
            decides: rule.decides(),
            sample,
            until_sample: until_sample.min(sample.saturating_sub(1)),
            limiter,
        }
    }

    /// The source that such a packet is of, as its limit tells sources apart.
    fn source(&self, headers: &Headers) -> Option<IpAddr> {
        self.limiter.as_ref().and_then(|limiter| limiter.source(headers))
    }

    /// Whether this is one of so many.
    #[inline]
    fn draws(&mut self) -> bool {
        let is_it = self.until_sample == 0;
        self.until_sample = if is_it { self.sample - 1 } else { self.until_sample - 1 };
        is_it
    }
}

impl Judge {
    /// For these rules; limits that were in `before` by the same name and alike go on, samples by the same name are no sooner for it, and
    /// what was counted stays known.
    pub(super) fn new(set: &RuleSet, before: Option<(&RuleSet, Self)>) -> Self {
        let (mut former, mut counted) = (HashMap::new(), HashMap::new());
        if let Some((rules, judge)) = before {
            counted = judge.past;
            for (rule, kept) in rules.rules().iter().zip(judge.kept) {
                counted.insert(RuleId::from(rule), kept.counted);
                former.insert(rule.name.as_str(), (kept.limiter, kept.until_sample));
            }
        }
        let kept = |rule: &Rule| {
            let counted = counted.remove(&RuleId::from(rule)).unwrap_or_default();
            Kept::new(rule, counted, former.remove(rule.name.as_str()).unwrap_or_default())
        };
        let kept = set.rules().iter().map(kept).collect();
        // Most rules are the kernel's, and have nothing here.
        counted.retain(|_, counted| *counted != Counted::default());
        if counted.len() > MOST_RULES {
            counted = nameless(counted);
        }
        Self { kept, never: Vec::new(), past: counted, flood: None, sampler: 0 }
    }

    /// The same, which drops nothing that matches one of these. The kernel's program leaves such packets to the kernel, but the program
    /// of other rules, which these follow or which follows them, may not have known that.
    pub(super) fn sparing(self, never: Vec<Expression>) -> Self {
        Self { never, ..self }
    }

    /// What rules have counted that hold no longer.
    pub(super) fn past(&self) -> &HashMap<RuleId, Counted> {
        &self.past
    }

    pub(super) fn counted(&self) -> impl Iterator<Item = &Counted> {
        self.kept.iter().map(|kept| &kept.counted)
    }

    /// Who sends most above which rule's limit.
    pub(super) fn hitters(&self) -> impl Iterator<Item = (usize, Hitter)> {
        let limiters =
            self.kept.iter().enumerate().filter_map(|(rule, kept)| Some((rule, kept.limiter.as_ref()?)));
        limiters.flat_map(|(rule, limiter)| limiter.hitters().map(move |hitter| (rule, hitter)))
    }

    /// The source that the kernel shall block, and the rule by which: of the packet that was just judged to be of a flood.
    pub(super) fn take_flood(&mut self) -> Option<(usize, IpAddr)> {
        self.flood.take()
    }

    /// The rule that asked for the packet that was just judged as a sample.
    pub(super) fn sampler(&self) -> usize {
        self.sampler
    }

    /// Looks up which lists packets are in, some time before they are judged, and asks for the memory of limits that they may
    /// meet: there are so many sources that it mostly lies far from the processor.
    // Not a part of the worker's loop: together they have too few registers.
    #[inline(never)]
    pub(super) fn look_up<'a>(
        &self,
        set: &RuleSet,
        packets: impl ExactSizeIterator<Item = &'a [u8]>,
        lookups: &mut Vec<Lookup>,
    ) {
        set.look_up_all(packets, lookups);
        if !set.knows_limits() {
            return;
        }
        for lookup in lookups {
            set.each_limit(lookup, |index| {
                if let Some(Kept { limiter: Some(limiter), .. }) = self.kept.get(index) {
                    limiter.prefetch(&lookup.headers);
                }
            });
        }
    }

    /// Looks a packet up that nobody has looked at, and judges it; what the sources of floods send, the `blocked` ones, is
    /// dropped from then on.
    pub(super) fn judge_alone(
        &mut self,
        set: &RuleSet,
        packet: (&[u8], usize),
        seen: Established<'_>,
        blocked: &mut Blocked,
    ) -> Judgement {
        let lookup = set.look_up(packet.0);
        let before = Before::Nobody(blocked);
        let judgement = self.judge_on(set, &lookup, packet.0, packet.1, &seen, before);
        if let Some((rule, source)) = self.take_flood()
            && let Some(Action::Limit(Limit { block: Some(time), .. })) =
                set.rules().get(rule).map(|rule| rule.action)
        {
            blocked.insert((rule, source), seen.now.saturating_add(nanos(time)));
        }
        judgement
    }

    /// Judges a packet that was looked up in the same set, as it is `seen` now.
    // The arguments are one by one, for a register each: what was just written in pieces would be read as a whole. And it is a
    // part of the loop over a batch: what is the same for all its packets is loaded once.
    #[inline(always)]
    pub(super) fn judge_on(
        &mut self,
        set: &RuleSet,
        lookup: &Lookup,
        packet: &[u8],
        wire_len: usize,
        seen: &Established<'_>,
        before: Before<'_>,
    ) -> Judgement {
        let is_first = matches!(before, Before::Nobody(_));
        let mut findings = Findings::default();
        let mut course = set.course(lookup, (packet, wire_len), seen, &mut findings);
        let mut judgement = Judgement::default();
        loop {
            let has_asked = course.has_asked();
            let (index, is_met) = match before {
                Before::Kernel => (course.next_index(), true),
                Before::Nobody(_) => course.next_asked(),
            };
            let Some(kept) = self.kept.get_mut(index) else { break };
            if kept.does == Does::AnswersSyns && !is_first {
                // What the kernel's program has not answered is none of its business.
                continue;
            }
            let is_blocked = match before {
                // The kernel's program has no say once user space was asked.
                Before::Nobody(blocked) if !has_asked => {
                    let source = kept.source(&lookup.headers);
                    let until = source.and_then(|source| blocked.get(&(index, source)));
                    until.is_some_and(|until| seen.now < *until)
                }
                Before::Kernel | Before::Nobody(_) => false,
            };
            if !is_met && !is_blocked {
                continue;
            }
            // What the kernel would have decided was taken by rules that are gone: it is counted here.
            let is_counted = !(is_first || course.has_asked() || kept.decides);
            if !is_counted {
                kept.counted.about.packets += 1;
                kept.counted.about.bytes += wire_len as u64;
                if kept.sample != 0 && !judgement.is_sample && kept.draws() {
                    judgement.is_sample = true;
                    self.sampler = index;
                }
            }
            let measured = match &mut kept.limiter {
                _ if is_blocked => Measured::Above,
                Some(limiter) => limiter.measure(&lookup.headers, seen.now),
                None if kept.does == Does::Drop => Measured::Above,
                None => Measured::Within,
            };
            if measured == Measured::Within {
                if kept.does == Does::LetGo && !kept.is_dry_run {
                    break;
                }
                continue;
            }
            // Asked only here: what passes pays nothing for it.
            if spares(&self.never, packet, wire_len) {
                break;
            }
            kept.counted.dropped += u64::from(!is_counted);
            if kept.is_dry_run {
                continue;
            }
            judgement.is_dropped = true;
            if measured == Measured::Flood {
                judgement.is_flood = true;
                self.flood = kept.source(&lookup.headers).map(|source| (index, source));
            }
            break;
        }
        judgement
    }
}

/// Whether a packet matches one of these.
#[inline]
fn spares(never: &[Expression], packet: &[u8], wire_len: usize) -> bool {
    never.iter().any(|never| never.matches_len(packet, wire_len))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The same, with all rules of a kind as one.
fn nameless(counted: HashMap<RuleId, Counted>) -> HashMap<RuleId, Counted> {
    let mut sums = HashMap::<RuleId, Counted>::new();
    for (rule, counted) in counted {
        *sums.entry(rule.without_name()).or_default() += counted;
    }
    sums
}

#[cfg(test)]
mod tests {
    use bywash_port::filter::rules::{PayloadPattern, PayloadPlace};
    use bywash_port::{Condition, Per};
    use bywash_sys::clock::SECOND;

    use super::*;

    fn rule(name: &str, action: Action, text: &str) -> Rule {
        let condition = Condition { expression: Some(text.parse().unwrap()), ..Condition::default() };
        Rule { name: name.into(), condition, action, sample: None, expires: None, dry_run: false }
    }

    impl Judge {
        /// Looks a packet up and judges it; `is_first`: nobody has looked at it before.
        fn judge(
            &mut self,
            set: &RuleSet,
            packet: (&[u8], usize),
            seen: Established<'_>,
            is_first: bool,
        ) -> Judgement {
            let nobody = Blocked::new();
            let before = if is_first { Before::Nobody(&nobody) } else { Before::Kernel };
            self.judge_on(set, &set.look_up(packet.0), packet.0, packet.1, &seen, before)
        }
    }

    fn at(now: u64) -> Established<'static> {
        Established { flows: None, now }
    }

    fn packets(judge: &Judge) -> Vec<u64> {
        judge.counted().map(|counted| counted.about.packets).collect()
    }

    #[test]
    fn what_the_kernel_has_counted_is_not_counted_again() {
        let limit = Limit { rate: 1, burst: 1, per: Per::Rule, block: None };
        let set = RuleSet::new(vec![
            rule("seen", Action::Count, ""),
            rule("limited", Action::Limit(limit), ""),
            rule("after", Action::Count, ""),
        ])
        .unwrap();
        let mut judge = Judge::new(&set, None);
        let packet = ([0; 60].as_slice(), 60);
        assert!(!judge.judge(&set, packet, at(9), false).is_dropped);
        assert!(judge.judge(&set, packet, at(9), false).is_dropped);
        assert_eq!(packets(&judge), [0, 2, 1]);
        assert!(judge.judge(&set, packet, at(9), true).is_dropped);
        assert_eq!(packets(&judge), [1, 3, 1]);
        assert_eq!(judge.kept[1].counted.dropped, 2);
        let next = RuleSet::new(vec![rule("limited", Action::Limit(limit), "")]).unwrap();
        let mut judge = Judge::new(&next, Some((&set, judge)));
        assert!(judge.judge(&next, packet, at(9), false).is_dropped, "the limit goes on");
        assert_eq!(packets(&judge), [4]);
        assert_eq!(judge.past.values().map(|counted| counted.about.packets).collect::<Vec<_>>(), [1, 1]);
        let judge = Judge::new(&set, Some((&next, judge)));
        assert_eq!((packets(&judge), judge.past.len()), (vec![1, 4, 1], 0), "they are there again");
    }

    #[test]
    fn what_user_space_counts_it_draws_and_what_the_kernel_has_counted_it_does_not() {
        let limit = Limit { rate: 1000, burst: 1000, per: Per::Rule, block: None };
        let names = vec!["*.bad.example".parse().unwrap()];
        let sample = NonZeroU32::new(50);
        let set = RuleSet::new(vec![
            Rule { sample, ..rule("seen", Action::Count, "") },
            Rule { condition: Condition { names, ..Condition::default() }, ..rule("bad", Action::Drop, "") },
            Rule { sample, ..rule("behind", Action::Count, "") },
            Rule { sample, ..rule("limited", Action::Limit(limit), "") },
        ])
        .unwrap();
        let packet = udp(1, 53, &[0; 40]);
        let by = |is_first: bool| {
            let mut judge = Judge::new(&set, None);
            let mut drawn = [0; 4];
            for _ in 0..100 {
                if judge.judge(&set, (&packet, 99), at(9), is_first).is_sample {
                    drawn[judge.sampler()] += 1;
                }
            }
            drawn
        };
        // A packet is drawn for one rule; the others have their turn by the next ones.
        assert_eq!(by(true), [2, 0, 2, 2]);
        assert_eq!(by(false), [0, 0, 2, 2]);
    }

    #[test]
    fn samples_are_one_in_so_many_also_where_rules_change_all_the_time() {
        let of = |sample| {
            let sample = NonZeroU32::new(sample);
            RuleSet::new(vec![Rule { sample, ..rule("flood", Action::Drop, "") }]).unwrap()
        };
        let mut set = of(50);
        let mut judge = Judge::new(&set, None);
        let mut drawn = |sample| {
            let next = of(sample);
            judge = Judge::new(&next, Some((&set, std::mem::take(&mut judge))));
            set = next;
            (0..10).filter(|_| judge.judge(&set, (&[0; 60], 60), at(9), true).is_sample).count()
        };
        assert_eq!((0..100).map(|_| drawn(50)).sum::<usize>(), 20);
        // The next is due in 50 packets, and who draws one in 5 does not wait for that.
        assert_eq!([drawn(50), drawn(5), drawn(0), drawn(10)], [1, 2, 0, 1]);
    }

    #[test]
    fn a_packet_that_rules_have_taken_which_are_gone_is_counted_drawn_and_dropped_here() {
        let sampled = Rule { sample: NonZeroU32::new(10), ..rule("flood", Action::Drop, "") };
        let set = RuleSet::new(vec![sampled]).unwrap();
        let mut judge = Judge::new(&set, None);
        let all: Vec<_> = (0..20).map(|_| judge.judge(&set, (&[0; 60], 60), at(9), false)).collect();
        assert_eq!(all.iter().filter(|judgement| judgement.is_sample).count(), 2);
        assert!(all.iter().all(|judgement| judgement.is_dropped));
        assert_eq!(packets(&judge), [20]);
    }

    /// As when the program of other rules, which knew no such list, has sent it here.
    #[test]
    fn what_these_rules_never_drop_is_dropped_counted_as_dropped_and_blocked_by_none_of_them() {
        let block = Some(Duration::from_secs(60));
        let limit = Limit { rate: 1, burst: 1, per: Per::Source { v4: 32, v6: 64 }, block };
        let set = RuleSet::new(vec![
            Rule { dry_run: true, ..rule("tried", Action::Drop, "udp dst port 9") },
            rule("flood", Action::Drop, "udp dst port 9"),
            rule("limited", Action::Limit(limit), "udp dst port 10"),
        ]);
        let set = set.unwrap();
        let never = vec!["src net 10.0.0.0/30".parse().unwrap(), "udp dst port 11".parse().unwrap()];
        let mut judge = Judge::new(&set, None).sparing(never);
        let mut gone = |source, port, now| {
            let packet = udp(source, port, &[1; 40]);
            let judgement = judge.judge(&set, (&packet, packet.len()), at(now), false);
            (judgement.is_dropped, judgement.is_flood || judge.take_flood().is_some())
        };
        for n in 0..300 {
            let now = SECOND + n * SECOND / 30;
            assert_eq!([gone(1, 9, now), gone(1, 10, now), gone(3, 10, now)], [(false, false); 3]);
        }
        assert_eq!([gone(4, 9, SECOND), gone(4, 10, SECOND)], [(true, false), (false, false)]);
        assert!(gone(4, 10, SECOND).0, "others are limited");
        let dropped: Vec<u64> = judge.counted().map(|counted| counted.dropped).collect();
        // The kernel's program has counted what is tried.
        assert_eq!(dropped, [0, 1, 1]);
        let mut next = Judge::new(&set, Some((&set, judge)));
        let packet = udp(1, 9, &[1; 40]);
        assert!(next.judge(&set, (&packet, 99), at(9), false).is_dropped, "it is of these rules alone");
    }

    /// A packet of UDP over IPv4.
    fn udp(source: u8, port: u16, payload: &[u8]) -> Vec<u8> {
        let length = |headers: usize| u16::try_from(headers + payload.len()).unwrap().to_be_bytes();
        let mut packet = vec![0; 12];
        packet.extend([8, 0, 0x45, 0].into_iter().chain(length(28)));
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, source, 192, 0, 2, 1]);
        packet.extend([7, port].into_iter().flat_map(u16::to_be_bytes).chain(length(8)));
        packet.extend([0; 2].iter().chain(payload));
        packet
    }

    #[test]
    fn who_floods_is_dropped_where_the_rule_stands_until_the_time_is_over() {
        let block = Some(Duration::from_secs(60));
        let limit = Limit { rate: 10, burst: 10, per: Per::Source { v4: 32, v6: 64 }, block };
        let set = RuleSet::new(vec![
            rule("friends", Action::Pass, "udp dst port 10"),
            rule("limited", Action::Limit(limit), "udp"),
        ]);
        let set = set.unwrap();
        let (mut judge, mut blocked) = (Judge::new(&set, None), Blocked::new());
        let mut dropped = |source, port, now| {
            let packet = udp(source, port, &[1; 40]);
            judge.judge_alone(&set, (&packet, 99), at(now), &mut blocked).is_dropped
        };
        // Three times the rate for ten seconds: from its third second on nothing of it comes in.
        let of_flood: Vec<bool> = (0..300).map(|n| dropped(1, 9, SECOND + n * SECOND / 30)).collect();
        let after = |n: usize| of_flood[n..].iter().filter(|dropped| !**dropped).count();
        assert!(after(0) >= 10 && after(100) == 0, "{of_flood:?}");
        let now = 12 * SECOND;
        assert_eq!([dropped(1, 10, now), dropped(2, 9, now), dropped(1, 9, now)], [false, false, true]);
        assert!(!dropped(1, 9, 80 * SECOND), "its time is over");
    }

    /// As the kernel's program does, which does not look inside, and which has no say once user space was asked.
    #[test]
    fn who_floods_is_dropped_by_what_is_asked_before_the_look_inside() {
        let limit = Action::Limit(Limit {
            rate: 10,
            burst: 10,
            per: Per::Source { v4: 32, v6: 64 },
            block: Some(Duration::from_secs(60)),
        });
        let payload = |bytes: &[u8]| vec![PayloadPattern { bytes: bytes.into(), place: PayloadPlace::At(0) }];
        let inside = |bytes: &[u8], rule: Rule| Rule {
            condition: Condition { payload: payload(bytes), ..rule.condition },
            ..rule
        };
        let flood = inside(b"bad", rule("flood", limit, "udp dst port 9"));
        let asks = inside(b"no", rule("asks", Action::Drop, "src host 10.0.0.7"));
        let set = RuleSet::new(vec![asks, flood]).unwrap();
        let (mut judge, mut blocked) = (Judge::new(&set, None), Blocked::new());
        let mut dropped = |source, port, payload: &[u8], now| {
            let packet = udp(source, port, payload);
            judge.judge_alone(&set, (&packet, packet.len()), at(now), &mut blocked).is_dropped
        };
        for n in 0..300 {
            for source in [1, 7] {
                dropped(source, 9, b"bad", SECOND + n * SECOND / 30);
            }
        }
        let now = 12 * SECOND;
        assert!(dropped(1, 9, b"good", now), "its source is blocked");
        assert!(!dropped(1, 10, b"good", now), "the rule is not about that port");
        assert!(!dropped(2, 9, b"good", now), "another source is not blocked");
        assert!(!dropped(7, 9, b"good", now), "user space was asked before");
        assert!(!dropped(1, 9, b"good", 80 * SECOND), "its time is over");
        assert_eq!(packets(&judge), [0, 601]);
    }

    #[test]
    fn an_allowed_burst_is_no_flood_however_young_the_clock_is() {
        let per = Per::Source { v4: 32, v6: 64 };
        let limit = Limit { rate: 200, burst: 400, per, block: Some(Duration::from_secs(30)) };
        let set = RuleSet::new(vec![rule("flood", Action::Limit(limit), "udp")]).unwrap();
        let packet = udp(1, 9, b"");
        for start in [0, 1, 100 * SECOND] {
            let (mut judge, mut blocked) = (Judge::new(&set, None), Blocked::new());
            // One more than the burst at once, then a quarter of the rate.
            let times = (0..401).map(|n| n * 10_000).chain((1..=1250).map(|n| SECOND / 2 + n * SECOND / 50));
            let is_dropped = |now| {
                judge.judge_alone(&set, (&packet, packet.len()), at(start + now), &mut blocked).is_dropped
            };
            assert_eq!(times.map(is_dropped).filter(|is| *is).count(), 1, "{start}");
        }
    }

    #[test]
    fn a_batch_that_was_looked_up_before_is_judged_as_its_packets_one_by_one() {
        let per = Per::Source { v4: 32, v6: 64 };
        let limit = |per, block| Action::Limit(Limit { rate: 2, burst: 3, per, block });
        let block = Some(Duration::from_secs(1));
        let names = vec!["*.bad.example".parse().unwrap()];
        let bad =
            Rule { condition: Condition { names, ..Condition::default() }, ..rule("bad", Action::Drop, "") };
        let list = |port| Condition { to_ports: vec![port..=port], ..Condition::default() };
        let set = RuleSet::new(vec![
            rule("seen", Action::Count, "udp"),
            Rule {
                condition: list(53),
                sample: NonZeroU32::new(7),
                ..rule("queries", limit(per, block), "")
            },
            bad,
            Rule { condition: list(9), ..rule("flows", limit(Per::Flow, None), "") },
            rule("in all", limit(Per::Rule, None), "udp dst port 10"),
            rule("each", limit(per, None), ""),
        ]);
        let set = set.unwrap();
        let query = |label: &[u8]| {
            [&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a'], label, b"\x07EXAMPLE\0\0\x01\0\x01"].concat()
        };
        let payloads = [query(b"\x03Bad"), query(b"\x04good"), vec![1; 40]];
        let packets: Vec<_> = (0..3000_usize)
            .map(|n| udp((n * n % 23).try_into().unwrap(), [53, 9, 10, 11][n * 7 % 4], &payloads[n % 3]))
            .collect();
        let at = |batch: usize| at(SECOND + batch as u64 * SECOND / 16);
        let (mut one, mut many) = (Judge::new(&set, None), Judge::new(&set, None));
        let (mut right, mut judged, mut lookups) = (Vec::new(), Vec::new(), Vec::new());
        for (number, batch) in packets.chunks(61).enumerate() {
            right.extend(
                batch
                    .iter()
                    .map(|packet| (one.judge(&set, (packet, 99), at(number), false), one.take_flood())),
            );
            many.look_up(&set, batch.iter().map(|packet| &packet[..]), &mut lookups);
            judged.extend(batch.iter().zip(&lookups).map(|(packet, lookup)| {
                (many.judge_on(&set, lookup, packet, 99, &at(number), Before::Kernel), many.take_flood())
            }));
        }
        assert_eq!(judged, right);
        assert!(many.counted().eq(one.counted()));
        assert!(right.iter().all(|(judged, flood)| judged.is_flood == flood.is_some()));
        let count = |is: fn(&Judgement) -> bool| right.iter().filter(|(judged, _)| is(judged)).count();
        let seen = [
            count(|judged| judged.is_dropped),
            count(|judged| judged.is_sample),
            count(|judged| judged.is_flood),
        ];
        assert!(seen.iter().all(|count| (20..2900).contains(count)), "{seen:?}");
        let counted: Vec<_> = one.counted().collect();
        assert!(counted[1..].iter().all(|counted| counted.dropped > 0), "{counted:?}");
    }

    #[test]
    fn a_dry_run_counts_and_drops_nothing() {
        let set = RuleSet::new(vec![Rule { dry_run: true, ..rule("flood", Action::Drop, "") }]).unwrap();
        let mut judge = Judge::new(&set, None);
        assert!(!judge.judge(&set, (&[0; 60], 60), at(9), true).is_dropped);
        assert_eq!(judge.kept[0].counted, Counted { about: RuleCount { packets: 1, bytes: 60 }, dropped: 1 });
    }
}
