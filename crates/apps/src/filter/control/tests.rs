//! What the thread does when a port refuses.

use bywash_port::filter::rules::FlowOptions;
use bywash_port::{Capabilities, Condition, PortName, QueuePair, RuleSet};

use super::*;

/// A port that blocks, unblocks and takes rules as long as it is not told to refuse.
struct Stubborn {
    refuses: Arc<AtomicBool>,
    /// Times it was asked to unblock.
    asked: Arc<AtomicU64>,
    /// What was to stay blocked when rules were set last.
    kept: Vec<Key>,
    /// What looking at it waits for.
    lock: Arc<Mutex<()>>,
    name: PortName,
    capabilities: Capabilities,
}

/// How long loading takes: a share of the time that is more than [`RETRY`].
const LOAD: Duration = Duration::from_millis(60);

impl Stubborn {
    fn answer<T>(&self, done: T) -> Result<T, String> {
        if self.refuses.load(Ordering::Relaxed) { Err("not now".into()) } else { Ok(done) }
    }
}

impl Port for Stubborn {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        Vec::new()
    }

    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    fn look_apart(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let lock = Arc::clone(&self.lock);
        Some(Box::new(move || drop(lock.lock().unwrap())))
    }

    fn load_rules(&mut self, _: &Rules) -> Result<RuleLoad, String> {
        Ok(RuleLoad::new(|| {
            std::thread::sleep(LOAD);
            Ok(LoadedRules(Box::new(())))
        }))
    }

    fn new_gateways(&mut self) -> Result<Option<Vec<IpAddr>>, String> {
        Ok(Some(Vec::new()))
    }

    fn set_rules(&mut self, _: LoadedRules, blocked: &[Key]) -> Result<Option<Moved>, String> {
        self.answer(())?;
        self.kept = blocked.to_vec();
        Ok(None)
    }

    fn block(&mut self, _: &str, _: IpAddr, on: bool) -> Result<(), String> {
        self.asked.fetch_add(u64::from(!on), Ordering::Relaxed);
        self.answer(())
    }

    fn blocked_packets(&self, rule: &str, source: IpAddr) -> u64 {
        u64::from(self.kept.contains(&(rule.into(), source)))
    }

    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        Ok(())
    }
}

fn rules() -> Rules {
    let set = Arc::new(RuleSet::new(vec![rule()]).unwrap());
    Rules { set, never: Vec::new(), flows: FlowOptions::default() }
}

fn rule() -> Rule {
    let limit =
        Limit { rate: 1, burst: 1, per: Per::Source { v4: 32, v6: 64 }, block: Some(Duration::from_secs(1)) };
    let condition = Condition { to_ports: vec![9..=9], ..Condition::default() };
    let action = Action::Limit(limit);
    Rule { name: "rate".into(), condition, action, sample: None, expires: None, dry_run: false }
}

/// A file that says the same.
fn file() -> RuleFile {
    let limit = "action = 'limit'\nrate = 1\nper = 'source/32'\nblock_seconds = 1";
    let text = format!("[[rule]]\nname = 'rate'\nto_ports = [9]\n{limit}\n");
    RuleFile::parse(&text, std::path::Path::new("rules.toml")).unwrap()
}

/// Such a port, and what it goes by.
fn port() -> (SharedPort, Arc<AtomicBool>, Arc<AtomicU64>) {
    port_behind(Arc::default())
}

/// The same, which is looked at under a lock.
fn port_behind(lock: Arc<Mutex<()>>) -> (SharedPort, Arc<AtomicBool>, Arc<AtomicU64>) {
    let (refuses, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let port = Stubborn {
        refuses: Arc::clone(&refuses),
        asked: Arc::clone(&asked),
        kept: Vec::new(),
        lock,
        name: "loop:stubborn".parse().unwrap(),
        capabilities: Capabilities::default(),
    };
    (SharedPort::new(Box::new(port)), refuses, asked)
}

/// The thread's work on such a port, by which one source is blocked for so long; and what the port goes by.
fn work(time: Duration) -> (Work, Arc<AtomicBool>, Arc<AtomicU64>) {
    let (port, refuses, asked) = port();
    let blocks = Blocks::default();
    blocks.add(("rate".into(), [10, 0, 0, 1].into()), 32, time);
    let work = Work {
        port,
        shared: Shared::new(Held { rules: rules(), flows: None }, AT_WORK),
        stop: Arc::default(),
        stop_all: Stop::new().unwrap(),
        state: Arc::new(Mutex::new(State {
            done: Done { blocks: 1, ..Done::default() },
            ..State::default()
        })),
        reload: Arc::default(),
        file: None,
        seen: Vec::new(),
        changing: Vec::new(),
        expiry: None,
        applied: SystemTime::now(),
        expiry_due: Instant::now(),
        unblocking_due: Instant::now(),
        told: Vec::new(),
        blocks,
        gateways_due: Instant::now(),
        audit: None,
    };
    (work, refuses, asked)
}

#[test]
fn a_source_that_can_not_be_unblocked_is_told_of_and_tried_again_a_second_later() {
    let (mut work, refuses, asked) = work(Duration::ZERO);
    let stands = |work: &Work| {
        let state = work.state.lock().unwrap();
        (work.blocks.count(), state.done.blocks, state.unblock_trouble.why.clone())
    };
    work.unblock();
    let trouble = Some("10.0.0.1/32 is still blocked by 'rate': not now".to_owned());
    assert_eq!(stands(&work), (1, 1, trouble.clone()));
    refuses.store(false, Ordering::Relaxed);
    work.unblock();
    assert_eq!((stands(&work), asked.load(Ordering::Relaxed)), ((1, 1, trouble), 1), "not yet");
    work.unblocking_due = Instant::now();
    work.unblock();
    assert_eq!((stands(&work), asked.load(Ordering::Relaxed)), ((0, 0, None), 2));
}

#[test]
fn a_source_that_can_not_be_blocked_is_told_of_also_when_other_rules_hold_until_one_can() {
    let (mut work, refuses, _) = work(Duration::from_secs(60));
    let (mut teller, told) = rtrb::RingBuffer::new(2);
    work.told = vec![told];
    let mut tell = |work: &mut Work| {
        let generation = work.shared.generation();
        teller.push(Block { generation, rule: 0, source: [10, 0, 0, 2].into() }).unwrap();
        work.block();
        work.state.lock().unwrap().block_trouble.why.clone()
    };
    let trouble = Some("not now".to_owned());
    assert_eq!(tell(&mut work), trouble);
    refuses.store(false, Ordering::Relaxed);
    assert!(work.apply(&file()).is_ok_and(|places| places.is_some()));
    work.block();
    assert_eq!(work.state.lock().unwrap().block_trouble.why, trouble, "nobody is blocked yet");
    assert_eq!(tell(&mut work), None);
}

#[test]
fn while_others_keep_the_kernel_from_answering_the_rules_are_looked_after_and_the_port_is_there() {
    let lock = Arc::new(Mutex::new(()));
    let (mut work, ..) = work(Duration::from_secs(60));
    work.port = port_behind(Arc::clone(&lock)).0;
    work.gateways_due += Duration::from_secs(60);
    let (shared, port, stop) = (Arc::clone(&work.shared), work.port.clone(), Arc::clone(&work.stop));
    let held = lock.lock().unwrap();
    shared.is_seen(Duration::ZERO);
    let thread = std::thread::spawn(move || work.run());
    std::thread::sleep(WATCH + 2 * SILENCE);
    assert!(!shared.is_left_alone(clock::monotonic()), "packets are left to the kernel");
    assert!(shared.may_wait_for().contains("RTNL"));
    // Whoever takes it waits for nobody.
    let taken = port.take(Instant::now());
    drop(held);
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert!(taken.is_some(), "the port is kept");
}

#[test]
fn rules_that_take_long_to_load_and_are_refused_are_tried_again_the_later() {
    let (mut work, ..) = work(Duration::from_secs(60));
    work.file = Some(file());
    let began = Instant::now();
    work.expire();
    work.look_at_gateways();
    assert!(work.expiry_due >= began + LOAD * SHARE && work.gateways_due >= began + LOAD * SHARE);
}

/// Until the verifier has been asked, seconds may have gone by.
#[test]
fn a_rule_that_expires_before_the_thread_begins_is_taken_out_as_well() {
    let (port, refuses, _) = port();
    refuses.store(false, Ordering::Relaxed);
    let rule = |name: &str, year: u32| {
        format!(
            "[[rule]]\nname = '{name}'\nto_ports = [9]\naction = 'drop'\nexpires = {year}-01-01T00:00:00Z\n"
        )
    };
    let text = rule("over", 2020) + &rule("long", 2200);
    let file = RuleFile::parse(&text, std::path::Path::new("rules.toml")).unwrap();
    let rules = file.live(SystemTime::UNIX_EPOCH).unwrap();
    let shared = Shared::new(Held { rules: rules.clone(), flows: None }, AT_WORK);
    let options = Options::new(Some(file), rules);
    let control = Control::start(port, shared, &options, None, Vec::new(), &Stop::new().unwrap()).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while control.rules().set.rules().len() == 2 {
        assert!(Instant::now() < until, "it is there for ever");
        std::thread::sleep(LOADING);
    }
    let Ended { rules, done, .. } = control.finish();
    assert_eq!((rules.set.rules()[0].name.as_str(), done.reloads), ("long", 1));
}

#[test]
fn a_file_that_is_being_written_is_read_when_two_looks_have_seen_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.toml");
    let rule = |name: &str| format!("[[rule]]\nname = '{name}'\nto_ports = [9]\naction = 'drop'\n");
    std::fs::write(&path, rule("before")).unwrap();
    let (mut work, refuses, _) = work(Duration::from_secs(60));
    refuses.store(false, Ordering::Relaxed);
    let file = RuleFile::read(&path).unwrap();
    work.seen.clone_from(&file.files);
    work.file = Some(file);
    assert!(!work.has_settled() && !work.has_settled(), "nobody has written");
    let text = rule("after");
    for so_far in [0, 9, 30, text.len()] {
        std::fs::write(&path, &text[..so_far]).unwrap();
        assert!(!work.has_settled(), "{so_far} bytes of it so far");
    }
    assert!(work.has_settled());
    work.read_again(false);
    assert_eq!(work.shared.rules().set.rules()[0].name, "after");
    assert!(!work.has_settled() && !work.has_settled());
}

#[test]
fn a_file_of_no_bytes_is_taken_only_by_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.toml");
    std::fs::write(&path, "").unwrap();
    let (mut work, refuses, _) = work(Duration::from_secs(60));
    refuses.store(false, Ordering::Relaxed);
    work.file = Some(RuleFile::read(&path).unwrap());
    work.read_again(false);
    let why = work.state.lock().unwrap().reload_trouble.why.clone().unwrap();
    assert!(why.contains("rules.toml is empty") && why.contains("SIGHUP"), "{why}");
    assert_eq!((work.shared.rules().set.rules().len(), work.blocks.count()), (1, 1), "all is as it was");
    assert!(!work.has_settled() && !work.has_settled(), "it is told of once");
    work.read_again(true);
    let state = work.state.lock().unwrap();
    assert_eq!((work.shared.rules().set.rules().len(), &state.reload_trouble.why), (0, &None));
    assert_eq!((state.done.reloads, state.done.refused), (1, 1));
}

#[test]
fn the_audit_log_says_of_a_reload_who_ordered_it_and_what_is_not_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let [path, log] = ["rules.toml", "audit.log"].map(|name| folder.path().join(name));
    let (mut work, refuses, _) = work(Duration::from_secs(60));
    refuses.store(false, Ordering::Relaxed);
    work.audit = Some(Audit::open(&log, &"xdp:eth1".parse().unwrap()).unwrap());
    let limit =
        |rate: u32| format!("[[rule]]\nname = 'rate'\nto_ports = [9]\naction = 'limit'\nrate = {rate}\n");
    let rule = |name: &str, more: &str| {
        format!("[[rule]]\nname = '{name}'\nto_ports = [7]\naction = 'drop'\n{more}")
    };
    let first = limit(200) + &rule("a", "");
    std::fs::write(&path, &first).unwrap();
    work.file = Some(RuleFile::read(&path).unwrap());
    work.read_again(false);
    let established = "[established]\nflows = 1000\n";
    for (text, asked, told) in [
        (first.clone(), true, json!(["signal", [], [], [], []])),
        (limit(20) + &rule("a", ""), false, json!(["file", [], [], ["rate"], []])),
        (limit(20) + &rule("a", "dry_run = true\n"), false, json!(["file", [], [], ["a"], []])),
        (rule("b", "") + &limit(20), false, json!(["file", ["b"], ["a"], [], []])),
        (limit(20) + &rule("b", ""), true, json!(["signal", [], [], [], ["order"]])),
        (
            format!("never_drop = ['192.0.2.1']\n{established}{}{}", limit(20), rule("b", "")),
            false,
            json!(["file", [], [], [], ["never_drop", "established"]]),
        ),
        ("[[rule]]".into(), false, json!(["file", null, null, null, null])),
    ] {
        std::fs::write(&path, &text).unwrap();
        work.read_again(asked);
        let log = std::fs::read_to_string(&log).unwrap();
        let line: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        let parts = ["by", "added", "removed", "changed", "besides"].map(|part| line[part].clone());
        assert_eq!(json!(parts), told, "{line}");
        assert_eq!((&line["port"], &line["pid"]), (&json!("xdp:eth1"), &json!(std::process::id())));
    }
}

#[test]
fn who_is_blocked_stays_so_by_a_rule_that_does_the_same_with_the_same_packets_alone() {
    let other = Condition { to_ports: vec![10..=10], ..Condition::default() };
    let faster = Limit { rate: 2, burst: 1, per: Per::Rule, block: None };
    for (rule, stays) in [
        (Rule { sample: std::num::NonZeroU32::new(9), ..rule() }, true),
        (Rule { condition: other, ..rule() }, false),
        (Rule { dry_run: true, ..rule() }, false),
        (Rule { action: Action::Limit(faster), ..rule() }, false),
        (Rule { name: "other".into(), ..rule() }, false),
    ] {
        let (mut work, refuses, _) = work(Duration::from_secs(60));
        let what = format!("{rule:?}");
        let next = Rules { set: Arc::new(RuleSet::new(vec![rule]).unwrap()), ..rules() };
        // The port is told with the rules: it blocks before these decide.
        let kept = |work: &Work| work.port.with(|port| port.blocked_packets("rate", [10, 0, 0, 1].into()));
        let stands = |work: &Work| (work.blocks.count(), kept(work).unwrap());
        assert!(work.hold(next.clone()).is_err());
        assert_eq!(stands(&work), (1, 0), "{what}: refused");
        refuses.store(false, Ordering::Relaxed);
        work.hold(next).unwrap();
        assert_eq!(stands(&work), (stays.into(), stays.into()), "{what}");
    }
}

#[test]
fn the_end_of_the_filter_waits_for_a_port_that_moves_and_leaves_it_as_it_was() {
    struct Undone(Arc<AtomicBool>);
    impl Drop for Undone {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (mut work, ..) = work(Duration::from_secs(60));
    work.stop.store(true, Ordering::Relaxed);
    let undone = Arc::new(AtomicBool::new(false));
    let moved = Undone(Arc::clone(&undone));
    let load = RuleLoad::moving(|| {
        std::thread::sleep(LOAD);
        Ok(LoadedRules(Box::new(moved)))
    });
    assert!(matches!(work.load(load), Ok(None)));
    assert!(undone.load(Ordering::Relaxed));
}

#[test]
fn the_end_of_the_filter_does_not_wait_for_rules_that_are_loaded() {
    let (mut work, ..) = work(Duration::from_secs(60));
    work.stop.store(true, Ordering::Relaxed);
    let load = RuleLoad::new(|| {
        std::thread::sleep(Duration::from_secs(5));
        Ok(LoadedRules(Box::new(())))
    });
    let began = Instant::now();
    assert!(matches!(work.load(load), Ok(None)));
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[test]
fn gateways_that_are_spared_now_are_known_to_the_next_file() {
    let (mut work, refuses, _) = work(Duration::from_secs(60));
    refuses.store(false, Ordering::Relaxed);
    let mut file = file();
    file.spared.gateways = vec![[10, 0, 0, 9].into()];
    work.file = Some(file);
    work.look_at_gateways();
    assert_eq!(work.file.unwrap().spared.gateways, Vec::<IpAddr>::new(), "as the port has them");
}

#[test]
fn why_a_file_was_refused_is_told_also_after_a_rule_has_expired() {
    let (mut work, refuses, _) = work(Duration::from_secs(60));
    refuses.store(false, Ordering::Relaxed);
    work.file = Some(file());
    let refused = Some("rules.toml:1:1: wrong".to_owned());
    work.state.lock().unwrap().reload_trouble.set(refused.clone());
    work.expire();
    assert_eq!(work.state.lock().unwrap().reload_trouble.why, refused);
}

#[test]
fn a_rule_that_expired_by_a_clock_that_was_ahead_holds_again_when_it_is_set_back() {
    let (mut work, refuses, _) = work(Duration::from_secs(60));
    refuses.store(false, Ordering::Relaxed);
    let text = "[[rule]]\nname = 'a'\nto_ports = [9]\naction = 'drop'\nexpires = 2200-01-01T00:00:00Z\n";
    let file = RuleFile::parse(text, std::path::Path::new("rules.toml")).unwrap();
    let ahead = SystemTime::UNIX_EPOCH + Duration::from_secs(300 * 366 * 86_400);
    work.hold(file.live(ahead).unwrap()).unwrap();
    (work.expiry, work.applied) = (file.next_expiry(ahead), ahead);
    work.file = Some(file);
    assert!(!work.are_others_live(ahead) && work.shared.rules().set.rules().is_empty());
    assert!(work.are_others_live(SystemTime::now()));
    work.expire();
    assert_eq!(work.shared.rules().set.rules().len(), 1);
    assert!(!work.are_others_live(SystemTime::now()) && work.are_others_live(ahead));
}

#[test]
fn that_user_space_can_not_keep_up_is_told() {
    let (work, ..) = work(Duration::from_secs(60));
    let count = |value| ["rx_fill_ring_empty", "rx_ring_full"].map(|name| Counter::count(name, value));
    let told = |work: &Work| work.state.lock().unwrap().room_trouble.why.clone();
    work.look_for_lost_packets(&count(0));
    assert_eq!((told(&work), unjudged(&count(3))), (None, 3));
    work.look_for_lost_packets(&count(3));
    assert!(told(&work).is_some_and(|why| why.contains("can't keep up")));
}

#[test]
fn what_is_said_of_a_file_is_told_also_when_gateways_change_before_anybody_asks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.toml");
    let rule = "[[rule]]\nname = 'a'\nto_ports = [9]\naction = 'drop'\n";
    let (mut work, refuses, _) = work(Duration::from_secs(60));
    refuses.store(false, Ordering::Relaxed);
    for (more, told) in [("expires = 2020-01-01T00:00:00Z\n", true), ("", false)] {
        std::fs::write(&path, rule.to_owned() + more).unwrap();
        work.file = Some(RuleFile::read(&path).unwrap());
        work.read_again(true);
        work.look_at_gateways();
        let news = work.state.lock().unwrap().news.take();
        assert_eq!(news.iter().any(|line| line.contains("the rule 'a' has expired")), told, "{news:?}");
    }
}
