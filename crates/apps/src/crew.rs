//! The workers of one app: started together, stopped together.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bywash_sys::worker::{Idle, Placement, Stop, Task, Worker, WorkerError};

/// How the workers of an app run.
#[derive(Clone, Debug, Default)]
pub struct WorkerOptions {
    /// The core of each worker, in order; as many workers as queues when empty, and free to move, but for those of a
    /// [filter](crate::filter::Options::workers).
    pub cores: Vec<usize>,
    /// What a worker without work does.
    pub idle: Idle,
    /// Packet frames for each worker; an equal share of those nobody has when `None`.
    pub frames: Option<usize>,
}

impl WorkerOptions {
    /// Workers for `queues` queues, or why they don't go together.
    pub(crate) fn count(&self, queues: usize) -> Result<usize, String> {
        match self.cores.len() {
            0 => Ok(queues),
            n if n <= queues => Ok(n),
            n => Err(format!(
                "{n} cores for {queues} queues: a queue has one worker, so name at most {queues} (--cores)"
            )),
        }
    }
}

/// Running workers and the way to hear of their end.
pub(crate) struct Crew<T> {
    workers: Vec<Worker<T>>,
    ends: Receiver<()>,
    running: usize,
}

impl<T: Task> Crew<T> {
    /// Starts a worker per task. A worker that fails sets `stop`, so that the others end too.
    ///
    /// On an error all tasks come back with it, those that had been started already after their end: their queues
    /// want closing.
    pub(crate) fn start(
        app: &str,
        options: &WorkerOptions,
        tasks: Vec<T>,
        stop: &Stop,
    ) -> Result<Self, (Vec<T>, WorkerError)> {
        let (tell, ends) = channel();
        let mut crew = Self { workers: Vec::with_capacity(tasks.len()), ends, running: 0 };
        let mut tasks = tasks.into_iter().enumerate();
        while let Some((number, task)) = tasks.next() {
            let core = options.cores.get(number).copied();
            let placement = Placement { name: format!("{app} {number}"), core, idle: options.idle };
            let (tell, stop_all) = (tell.clone(), stop.clone());
            let spawned = Worker::spawn(placement, stop.clone(), task, move |result| {
                if result.is_err() {
                    stop_all.set();
                }
                // Nobody listens any more when the crew is being joined.
                let _ = tell.send(());
            });
            match spawned {
                Ok(worker) => crew.workers.push(worker),
                Err((task, error)) => {
                    stop.set();
                    let mut all = crew.join().0;
                    all.push(task);
                    all.extend(tasks.map(|(_, task)| task));
                    return Err((all, error));
                }
            }
            crew.running += 1;
        }
        Ok(crew)
    }

    /// Waits until all have ended, at most so long, and says whether they have.
    pub(crate) fn wait(&mut self, timeout: Duration) -> bool {
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

    /// Waits for the end of all and gives the tasks back, with what went wrong.
    pub(crate) fn join(self) -> (Vec<T>, Vec<WorkerError>) {
        let (mut tasks, mut errors) = (Vec::new(), Vec::new());
        for worker in self.workers {
            match worker.join() {
                Ok((task, result)) => {
                    tasks.push(task);
                    errors.extend(result.err());
                }
                Err(error) => errors.push(error),
            }
        }
        (tasks, errors)
    }
}
