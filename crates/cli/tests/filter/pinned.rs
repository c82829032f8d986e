//! The cores of a filter's workers: whoever gives packets back stays on one, since they would overtake each other else.

use std::collections::HashMap;
use std::path::Path;

use bywash_sys::worker::allowed_cores;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::bed::{Bed, Filter};

/// The cores that each worker of a filter's may use, in the order of their numbers.
pub(crate) fn workers(filter: &Filter) -> Vec<Vec<usize>> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", filter.child.id())).unwrap();
    let mut workers: Vec<(usize, Vec<usize>)> =
        threads.filter_map(|thread| worker(&thread.unwrap().path())).collect();
    workers.sort();
    workers.into_iter().map(|(_, cores)| cores).collect()
}

/// A thread's number and its cores, if it is a worker and has not ended.
fn worker(thread: &Path) -> Option<(usize, Vec<usize>)> {
    let status = std::fs::read_to_string(thread.join("status")).ok()?;
    let of = |what: &str| status.lines().find_map(|line| line.strip_prefix(what)).unwrap().trim();
    let number = of("Name:").strip_prefix("filter ")?.parse().ok()?;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    };
    Some((number, of("Cpus_allowed_list:").split(',').flat_map(range).collect()))
}

/// What is started meanwhile may use this core alone, as under `taskset`.
fn confined<T: Send>(core: usize, start: impl FnOnce() -> T + Send) -> T {
    let start = || {
        let mut only = CpuSet::new();
        only.set(core);
        // Of this thread, which ends, and of what it starts.
        sched_setaffinity(None, &only).unwrap();
        start()
    };
    std::thread::scope(|scope| scope.spawn(start).join().unwrap())
}

#[test]
fn each_worker_that_gives_packets_back_stays_on_a_core_of_its_own_that_the_process_may_use() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let bed = Bed::new(4);
    let allowed = allowed_cores();
    let limit = "[[rule]]\nname = 'asked'\nto_ports = [7]\naction = 'limit'\nrate = 1000000\n";
    let rules = format!("--rules {}", bed.rules(limit).display());
    for words in ["", &rules] {
        let filter = Filter::start(&bed, words);
        let cores = workers(&filter);
        assert_eq!(cores.len(), 4, "a worker for each queue: {cores:?}");
        let mut used: HashMap<usize, usize> = HashMap::new();
        for cores in &cores {
            let [core] = cores[..] else { panic!("'{words}': a worker is free to move: {cores:?}") };
            assert!(allowed.contains(&core), "{core} of {allowed:?}");
            *used.entry(core).or_default() += 1;
        }
        assert_eq!(used.len(), allowed.len().min(4), "in turn: {used:?}");
        assert!(used.values().all(|workers| *workers <= 4_usize.div_ceil(used.len())), "in turn: {used:?}");
        assert_eq!(bed.ask(20), 20);
        filter.end();
    }
    for &core in &allowed {
        // Each of them, so that it is not by chance the one that it would have begun with.
        let filter = confined(core, || Filter::start(&bed, "--queues 2"));
        assert_eq!(workers(&filter), [[core], [core]], "under taskset -c {core}");
        filter.end();
        let filter = Filter::start(&bed, &format!("--cores {core}"));
        assert_eq!(workers(&filter), [[core]], "by --cores {core}");
        filter.end();
    }
}
