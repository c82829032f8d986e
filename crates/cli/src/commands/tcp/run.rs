//! Runs services on an instance of Bywash or on the kernel's sockets, and reports alike.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bywash_apps::report::Snapshot;
use bywash_apps::{App, WorkerOptions};
use bywash_engine::Program;
use bywash_engine::scoped::ScopedEnd;
use bywash_engine::stack::ConnectionId;
use bywash_programs::{KernelId, KernelSockets, OnKernel, OnStack, Service};
use bywash_sys::open_files;
use bywash_sys::route::Route;
use bywash_sys::worker::{Placement, Stop, Worker};

use super::super::serve::{Plan, Start, Summary, Telling};
use super::PlaceArgs;
use super::make::Make;
use super::tally::Tally;
use crate::failure::Failure;
use crate::setup::catch_signals;

/// The interfaces that a peer may be on the link of, by name and number: the instance's, or the kernel's.
pub(super) struct Links(Vec<(String, u32)>);

impl Links {
    fn of_the_kernel() -> Result<Self, Failure> {
        let links = Route::open().and_then(|mut route| route.links());
        let links =
            links.map_err(|error| Failure::Usage(format!("the kernel tells no interfaces: {error}")))?;
        let others = links.into_iter().filter(|link| link.up && !link.loopback);
        Ok(Self(others.map(|link| (link.name, link.index)).collect()))
    }

    /// Where a peer is.
    ///
    /// # Errors
    /// It may be on several of them, or is on none.
    pub(super) fn resolve(&self, peer: &ScopedEnd) -> Result<SocketAddr, Failure> {
        peer.resolve(&self.0).map_err(|what| Failure::Usage(format!("{peer}: {what}")))
    }
}

/// Runs what `make` makes.
///
/// # Errors
/// Why it did not begin.
pub(super) fn run<M: Make>(
    command: &'static str,
    make: impl FnOnce(&Links) -> Result<M, Failure>,
    place: PlaceArgs,
) -> Result<bool, Failure> {
    if !place.kernel && place.instance.port.is_empty() && place.instance.config.is_none() {
        return Err(Failure::Usage("name a port (--port), a file (--config), or --kernel".into()));
    }
    let (make, config) = if place.kernel {
        (make(&Links::of_the_kernel()?)?, None)
    } else {
        let config = place.instance.config()?;
        (make(&Links(config.links()))?, Some(config))
    };
    let tally = Tally::new(make.aim());
    // What `connect` receives goes to standard output, and it sends what is typed.
    let mut reporter =
        if make.is_single() { place.report.reporter_beside_typing()? } else { place.report.reporter()? };
    let Some(config) = config else {
        return on_kernel(command, &make, &place, tally, &mut reporter);
    };
    let plan = Plan { command, config, ports: &place.ports, worker: &place.worker };
    let programs = tally.clone();
    let mut program = |number: usize, count: usize| {
        let (counters, watch) = programs.add();
        Box::new(OnStack::new(make.make::<ConnectionId>(number, count, counters, watch))) as Box<dyn Program>
    };
    plan.run(&mut program, tally, place.report.duration, &mut reporter)
}

fn on_kernel<M: Make>(
    command: &'static str,
    make: &M,
    place: &PlaceArgs,
    tally: Tally,
    reporter: &mut bywash_apps::report::Reporter,
) -> Result<bool, Failure> {
    let kernel = place.instance.tcp.kernel().map_err(Failure::Usage)?;
    let stop = catch_signals()?;
    // Each connection is a file.
    open_files::raise_limit();
    let options = place.worker.options();
    let count = if make.is_single() { 1 } else { options.cores.len().max(1) };
    let mut services = Vec::with_capacity(count);
    for number in 0..count {
        let (counters, watch) = tally.add();
        let sockets = KernelSockets::new(kernel.clone(), counters.clone())
            .map_err(|error| Failure::Usage(format!("the kernel gives no epoll set: {error}")))?;
        let service = make.make::<KernelId>(number, count, counters, watch);
        let mut service = OnKernel::new(service, sockets, stop.clone());
        // Listeners are open before anything is said to be running.
        service.begin(number, count).map_err(Failure::Usage)?;
        services.push(service);
    }
    let (workers, ends) = spawn(services, &options, &stop)?;
    let start = Start {
        command,
        name: "on the kernel's sockets".into(),
        ports: vec!["the kernel".into()],
        addresses: Vec::new(),
        engines: count,
        spread_by: None,
        socket: None,
    };
    let running = OnKernelApp {
        start,
        running: workers.len(),
        workers,
        ends,
        tally,
        began: Instant::now(),
        stop: stop.clone(),
    };
    Ok(bywash_apps::run(running, place.report.duration, &stop, reporter))
}

/// Started workers, and who tells of each that has ended.
type Spawned<T> = (Vec<Worker<OnKernel<T>>>, Receiver<()>);

/// Starts a worker for each service. One that fails ends all: its listener would still be dealt its part
/// of the connections, and nobody would take them.
fn spawn<T: Service<KernelId>>(
    services: Vec<OnKernel<T>>,
    options: &WorkerOptions,
    stop: &Stop,
) -> Result<Spawned<T>, Failure> {
    let (tell, ends) = channel();
    let mut workers = Vec::with_capacity(services.len());
    for (number, service) in services.into_iter().enumerate() {
        let core = options.cores.get(number).copied();
        let placement = Placement { name: format!("kernel {number}"), core, idle: options.idle };
        let (tell, others) = (tell.clone(), stop.clone());
        let started = Worker::spawn(placement, stop.clone(), service, move |result| {
            if result.is_err() {
                others.set();
            }
            // Nobody listens any more at the end.
            let _ = tell.send(());
        });
        match started {
            Ok(worker) => workers.push(worker),
            Err((_, error)) => {
                stop.set();
                workers.into_iter().for_each(|worker| drop(worker.join()));
                return Err(Failure::Start(error.into()));
            }
        }
    }
    Ok((workers, ends))
}

/// Services on the kernel's sockets, as an app.
struct OnKernelApp<T: Service<KernelId>> {
    start: Start,
    workers: Vec<Worker<OnKernel<T>>>,
    ends: Receiver<()>,
    running: usize,
    tally: Tally,
    began: Instant,
    stop: Stop,
}

impl<T: Service<KernelId>> App for OnKernelApp<T> {
    type Start = Start;
    type Summary = Summary;

    fn start(&self) -> Start {
        self.start.clone()
    }

    fn snapshot(&self) -> Snapshot {
        snapshot(self.start.command, &self.tally, self.began.elapsed())
    }

    fn trouble(&self) -> Option<String> {
        self.tally.put_off()
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        let since = Instant::now();
        while self.running > 0 {
            match self.ends.recv_timeout(timeout.saturating_sub(since.elapsed())) {
                Ok(()) => self.running -= 1,
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => self.running = 0,
            }
        }
        true
    }

    fn finish(mut self) -> Summary {
        let elapsed = self.began.elapsed();
        self.stop.set();
        let mut unmet = Vec::new();
        for worker in std::mem::take(&mut self.workers) {
            match worker.join() {
                Ok((service, result)) => {
                    unmet.extend(result.err().map(|error| error.to_string()));
                    unmet.extend(service.failure().map(str::to_owned));
                }
                Err(error) => unmet.push(error.to_string()),
            }
        }
        // Services have counted all by now.
        unmet.extend(self.tally.unmet());
        let elapsed = self.tally.measured(elapsed);
        Summary::new(unmet, snapshot(self.start.command, &self.tally, elapsed), self.tally.warnings())
    }
}

fn snapshot(command: &'static str, tally: &Tally, elapsed: Duration) -> Snapshot {
    Snapshot {
        command,
        elapsed,
        total: tally.row(elapsed),
        tables: tally.tables(elapsed),
        distributions: tally.distributions(),
    }
}

#[cfg(test)]
mod tests {
    use bywash_engine::stack::Timestamp;
    use bywash_programs::{Counters, Happened, KernelOptions, Sockets};

    use super::*;

    /// Has a bug, or not.
    struct Buggy(bool);

    impl Service<KernelId> for Buggy {
        fn start<S: Sockets<Id = KernelId>>(&mut self, _: &mut S) -> Result<(), String> {
            Ok(())
        }

        fn turn<S: Sockets<Id = KernelId>>(&mut self, _: &[Happened<KernelId>], _: &mut S) {
            assert!(!self.0, "on purpose");
        }

        fn next_deadline(&self) -> Option<Timestamp> {
            self.0.then_some(Timestamp::ZERO)
        }
    }

    #[test]
    fn a_worker_that_fails_ends_all() {
        let stop = Stop::new().unwrap();
        let service = |is_buggy| {
            let sockets = KernelSockets::new(KernelOptions::default(), Counters::default()).unwrap();
            OnKernel::new(Buggy(is_buggy), sockets, stop.clone())
        };
        let services = vec![service(false), service(true)];
        let (workers, ends) = spawn(services, &WorkerOptions::default(), &stop).unwrap();
        let ended = |_| ends.recv_timeout(Duration::from_secs(10)).is_ok();
        let ended = [(), ()].map(ended);
        stop.set();
        let results = workers.into_iter().map(|worker| worker.join().unwrap().1.is_ok());
        assert_eq!((ended, results.collect::<Vec<_>>()), ([true, true], vec![true, false]));
    }
}
