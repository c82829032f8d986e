//! What services have done, for the report.

use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bywash_apps::rate::{MAX_LAG_NS, per_second};
use bywash_apps::report::{Column, Dial, Distribution, Metric, Row, Table, Times};
use bywash_programs::{Counted, Counters};
use bywash_sys::clock::monotonic;

use super::super::serve::Telling;
use super::make::Watch;

/// The numbers of all services. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    services: Arc<Mutex<Vec<Service>>>,
    aim: Aim,
}

/// What one of them has done.
#[derive(Debug)]
struct Service {
    counters: Counters,
    answered: Dial,
    unanswered: Dial,
}

/// What has to come of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// Nothing: what becomes of connections is their clients' affair.
    Serve,
    /// A connection that ends as it should.
    Talk,
    /// Bytes, until the time is over if one was given.
    Receive { duration: Option<Duration> },
    /// Answers to all requests, and so many requests a second if that was asked for.
    Answers { rate: Option<u64> },
}

const RECEIVED: Metric =
    Metric::payload("received_bytes", "bytes of payload in", "Bytes of payload received");

const COUNTED: &[Column<Counted>] = &[
    Column {
        metric: Metric::events("connections", "connections", "Connections opened"),
        of: |counted| counted.connections,
    },
    Column {
        metric: Metric::events("requests", "requests", "Requests answered"),
        of: |counted| counted.requests,
    },
    Column { metric: RECEIVED, of: |counted| counted.received },
    Column {
        metric: Metric::payload("sent_bytes", "bytes of payload out", "Bytes of payload sent"),
        of: |counted| counted.sent,
    },
    Column {
        metric: Metric::fault(
            "errors",
            "failed",
            "Connections that failed, requests lost with them, wrong answers",
        ),
        of: Counted::errors,
    },
    Column {
        metric: Metric::fault("refused", "refused", "Of errors: nobody listens there"),
        of: |counted| counted.refused,
    },
    Column {
        metric: Metric::fault("reset", "reset", "Of errors: the peer broke the connection off"),
        of: |counted| counted.reset,
    },
    Column {
        metric: Metric::fault(
            "timed_out",
            "timed out",
            "Of errors: no answer of TCP for too long, or of the server (--timeout)",
        ),
        of: |counted| counted.timed_out,
    },
    Column {
        metric: Metric::fault(
            "unreachable",
            "unreachable",
            "Of errors: the host does not answer, or no route leads there",
        ),
        of: |counted| counted.unreachable,
    },
    Column {
        metric: Metric::fault(
            "cut_short",
            "cut short",
            "Of errors: the peer ended a connection by which it owed answers",
        ),
        of: |counted| counted.cut_short,
    },
    Column {
        metric: Metric::fault("unopened", "unopened", "Of errors: our side could not open the connection"),
        of: |counted| counted.unopened,
    },
    Column {
        metric: Metric::fault("wrong", "wrong", "Of errors: answers that were wrong"),
        of: |counted| counted.wrong,
    },
    Column {
        metric: Metric::fault(
            "unwritten",
            "not all written",
            "Of errors: what came could not be written where it was to go",
        ),
        of: |counted| counted.unwritten,
    },
    Column {
        metric: Metric::fault(
            "not_sent",
            "not all sent",
            "Of errors: what was to be sent could not be read, or was not sent before the end",
        ),
        of: |counted| counted.unsent,
    },
    Column {
        metric: Metric::fault(
            "put_off",
            "times without a descriptor or memory for a peer",
            "Times peers had to wait: the kernel had no descriptor or no memory for a connection",
        ),
        of: |counted| counted.put_off,
    },
];

/// What there is of `load` beside that.
const ASKED: &[Column<Counted>] = &[
    Column { metric: Metric::count("due", "due", "Requests that have been due"), of: |counted| counted.due },
    Column {
        metric: Metric::gauge("unsent", "unsent", "Requests that have been due and wait for a connection"),
        of: |counted| counted.due - counted.asked.min(counted.due),
    },
    Column {
        metric: Metric::fault(
            "misses",
            "of the requests without a value",
            "Of requests: answered that there is no such value (redis, memcached)",
        ),
        of: |counted| counted.missed,
    },
    Column {
        metric: Metric::fault(
            "failed_requests",
            "of them requests",
            "Of errors: requests that had been sent. With those answered and unanswered they are those due",
        ),
        of: |counted| counted.failed,
    },
    Column {
        metric: Metric::fault("unanswered", "unanswered", "Requests that were due or under way at the end"),
        of: |counted| counted.unanswered,
    },
];

/// What there is of all who open several connections.
const OPENED: &[Column<Counted>] = &[Column {
    metric: Metric::fault(
        "never_opened",
        "connections never opened",
        "Connections that were still being opened at the end",
    ),
    of: |counted| counted.never_opened,
}];

const REQUEST_RATE: Metric = Metric::gauge(
    "requests_per_second",
    "requests/s",
    "Requests answered per second since the start, by clients since their first connection",
);
const RECEIVED_RATE: Metric = Metric::gauge(
    "received_bits_per_second",
    "bit/s in",
    "Payload received per second since the start, by clients since their first connection",
);
const WANTED_RATE: Metric = Metric::gauge(
    "wanted_requests_per_second",
    "requests/s wanted",
    "Requests per second that were asked for",
);
const SENT_RATE: Metric = Metric::gauge(
    "sent_bits_per_second",
    "bit/s out",
    "Payload sent per second since the start, by clients since their first connection",
);

impl Tally {
    /// None so far.
    pub(super) fn new(aim: Aim) -> Self {
        Self { services: Arc::default(), aim }
    }

    /// The numbers of one more service.
    pub(super) fn add(&self) -> (Counters, Watch) {
        let (counters, watch) = (Counters::default(), Watch::default());
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.push(Service {
            counters: counters.clone(),
            answered: watch.answered.dial(),
            unanswered: watch.unanswered.dial(),
        });
        (counters, watch)
    }

    fn counted(&self) -> Counted {
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.iter().map(|service| service.counters.read()).fold(Counted::default(), Counted::and)
    }

    /// Why peers have had to wait, once they have.
    pub(super) fn put_off(&self) -> Option<String> {
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let why = services.iter().find_map(|service| service.counters.put_off_because())?;
        Some(format!("peers had to wait for a connection: {why}"))
    }

    /// What failed and why, a sentence for each reason.
    fn failures(&self, counted: &Counted) -> Vec<String> {
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let unopened = services.iter().find_map(|service| service.counters.first_unopened());
        let wrong = services.iter().find_map(|service| service.counters.first_wrong());
        let unwritten = services.iter().find_map(|service| service.counters.unwritten_because());
        let unsent = services.iter().find_map(|service| service.counters.unsent_because());
        let asks = matches!(self.aim, Aim::Answers { .. });
        let timed_out =
            if asks { "no connection, or no answer, for too long" } else { "connection timed out" };
        let reasons = [
            (counted.refused, "connection refused".into()),
            (counted.reset, "connection reset by the peer".into()),
            (counted.timed_out, timed_out.into()),
            (counted.unreachable, "host unreachable".into()),
            (counted.cut_short, "the peer closed a connection by which it owed an answer".into()),
            (counted.unopened, unopened.unwrap_or_default().to_owned()),
            (counted.wrong, format!("wrong answers, the first: {}", wrong.unwrap_or_default())),
            (counted.unwritten, unwritten.unwrap_or_default().to_owned()),
            (counted.unsent, unsent.unwrap_or_default().to_owned()),
        ];
        let reasons = reasons.into_iter().filter(|(times, _)| *times > 0);
        // Of one connection there is nothing to number.
        let told = |(times, why)| if self.aim == Aim::Talk { why } else { format!("{times} failed: {why}") };
        reasons.map(told).collect()
    }
}

impl Telling for Tally {
    fn row(&self, elapsed: Duration) -> Row {
        let (counted, seconds) = (self.counted(), self.measured(elapsed).as_secs_f64());
        let mut row = Row::new(Vec::new(), COUNTED, &counted);
        row.values.extend([
            (REQUEST_RATE, per_second(counted.requests, seconds)),
            (RECEIVED_RATE, per_second(counted.received.saturating_mul(8), seconds)),
            (SENT_RATE, per_second(counted.sent.saturating_mul(8), seconds)),
        ]);
        if let Aim::Answers { rate } = self.aim {
            row.values.extend(rate.map(|rate| (WANTED_RATE, rate)));
            row = row.and(ASKED, &counted);
        }
        if matches!(self.aim, Aim::Answers { .. } | Aim::Receive { .. }) {
            row = row.and(OPENED, &counted);
        }
        row
    }

    /// The time that rates are over: of clients that in which there was something to measure. Ours begins before the first connection,
    /// and ends when we hear that all is done, which may be much later than that on either side of a short run.
    fn measured(&self, elapsed: Duration) -> Duration {
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let measured: Vec<_> = services.iter().filter_map(|service| service.counters.measured()).collect();
        let began = measured.iter().map(|(began, _)| *began).min();
        let ended = measured.iter().map(|(_, ended)| *ended).collect::<Option<Vec<_>>>();
        let ended = ended.map_or_else(monotonic, |ended| ended.into_iter().max().unwrap_or_default());
        let measured = began.map(|began| Duration::from_nanos(ended.saturating_sub(began)));
        measured.unwrap_or(elapsed)
    }

    fn tables(&self, elapsed: Duration) -> Vec<Table> {
        let seconds = self.measured(elapsed).as_secs_f64();
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let streams: Vec<u64> = services.iter().flat_map(|service| service.counters.streams()).collect();
        if streams.len() < 2 {
            return Vec::new();
        }
        let rate = |received: u64| per_second(received.saturating_mul(8), seconds);
        let row = |(number, received): (usize, u64)| Row {
            labels: vec![("stream", number.into())],
            values: vec![(RECEIVED, received), (RECEIVED_RATE, rate(received))],
        };
        let rows = streams.into_iter().enumerate().map(row).collect();
        vec![Table::new("streams", "stream", usize::MAX, rows)]
    }

    fn distributions(&self) -> Vec<Distribution> {
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |dial: fn(&Service) -> &Dial| Times::read(services.iter().map(dial));
        let times = read(|service| &service.answered).and_unfinished(&read(|service| &service.unanswered));
        if times.count() == 0 {
            return Vec::new();
        }
        let help = "How long answers took, counted from when the request was due; of requests without an answer, their age when they were given up, or at the end";
        vec![Distribution { name: "latency", help, times }]
    }

    /// What was measured may not be what was meant.
    fn warnings(&self) -> Vec<String> {
        let Counted { missed, requests, .. } = self.counted();
        let cure = "store one first, by a run with --set BYTES";
        let told = (missed > 0)
            .then(|| format!("the server had no value for {missed} of {requests} requests: {cure}"));
        told.into_iter().collect()
    }

    fn unmet(&self) -> Vec<String> {
        let counted = self.counted();
        let mut unmet = Vec::new();
        if self.aim == Aim::Serve {
            return unmet;
        }
        unmet.extend(self.failures(&counted));
        if counted.given_up > 0 {
            unmet.push(
                "the rest was given up: nothing but failures had come for as long as --timeout says".into(),
            );
        }
        if counted.connections == 0 && counted.errors() == 0 {
            unmet.push("no connection was opened: does the server run, and is there a route to it?".into());
        } else if matches!(self.aim, Aim::Receive { .. }) && counted.received == 0 {
            unmet.push("nothing was received".into());
        } else if matches!(self.aim, Aim::Answers { .. }) && counted.requests == 0 {
            unmet.push("no request was answered".into());
        } else if counted.oldest_ns > counted.slowest_ns + MAX_LAG_NS {
            // Requests are under way at any moment. Those that end with the run are no older than answers take.
            unmet.push(format!(
                "a request had waited for {} at the end without an answer; the slowest answer took {}",
                Milliseconds(counted.oldest_ns),
                Milliseconds(counted.slowest_ns)
            ));
        }
        if let Aim::Receive { duration: Some(duration) } = self.aim
            && counted.ran_out > 0
            && counted.left == 0
        {
            let lasted = self.measured(duration).as_secs_f64();
            let wanted = duration.as_secs_f64();
            unmet.push(format!("the server had ended all streams after {lasted:.1} of {wanted:.1} s"));
        }
        if let Aim::Answers { rate: Some(rate) } = self.aim
            && counted.late_ns > MAX_LAG_NS.max(counted.asking_ns / 100)
        {
            let reached = per_second(counted.asked, Duration::from_nanos(counted.asking_ns).as_secs_f64());
            unmet.push(format!("{rate} requests/s were asked for, {reached} were reached"));
        }
        unmet
    }
}

/// Nanoseconds for people.
struct Milliseconds(u64);

impl Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} ms", self.0 / 1_000_000, self.0 / 100_000 % 10)
    }
}
