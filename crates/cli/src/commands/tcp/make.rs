//! Services for engines and for the kernel's workers: each command makes one for each of them.

use std::fmt::Debug;
use std::hash::Hash;
use std::net::SocketAddr;
use std::time::Duration;

use bywash_apps::report::Stopwatch;
use bywash_programs::{
    Clockwork, Connect, Counters, Dialect, Download, File, Http, Load, Manner, Pace, Plan, Server, Service,
    Stream, Wanted,
};

use super::tally::Aim;

/// What a command makes of itself.
pub(super) trait Make {
    /// Its service.
    type Service<Id: Copy + Debug + Eq + Hash + Send + 'static>: Service<Id>;

    /// The service number `number` of `count`, which share the work. Times are told to `watch`.
    fn make<Id: Copy + Debug + Eq + Hash + Send + 'static>(
        &self,
        number: usize,
        count: usize,
        counters: Counters,
        watch: Watch,
    ) -> Self::Service<Id>;

    /// Whether one service is all there can be.
    fn is_single(&self) -> bool {
        false
    }

    /// What has to come of it.
    fn aim(&self) -> Aim;
}

/// Takes the times of answers, and at the end those of requests without one.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) answered: Stopwatch,
    pub(super) unanswered: Stopwatch,
}

impl Clockwork for Watch {
    fn record(&mut self, ns: u64, requests: u64) {
        self.answered.record_many(ns, requests);
    }

    fn record_unanswered(&mut self, ns: u64, requests: u64) {
        self.unanswered.record_many(ns, requests);
    }
}

/// A share of a whole, the first shares being larger by one where it does not come out even.
fn share(whole: usize, number: usize, count: usize) -> usize {
    whole / count + usize::from(number < whole % count)
}

pub(super) struct StreamMake {
    pub(super) manner: Manner,
    pub(super) port: u16,
}

impl Make for StreamMake {
    type Service<Id: Copy + Debug + Eq + Hash + Send + 'static> = Server<Id, Stream>;

    fn make<Id: Copy + Debug + Eq + Hash + Send + 'static>(
        &self,
        _: usize,
        _: usize,
        counters: Counters,
        _: Watch,
    ) -> Server<Id, Stream> {
        Server::new(Stream::new(self.manner), self.port, counters)
    }

    fn aim(&self) -> Aim {
        Aim::Serve
    }
}

pub(super) struct HttpMake {
    pub(super) port: u16,
    pub(super) files: Vec<File>,
    pub(super) idle: Duration,
}

impl Make for HttpMake {
    type Service<Id: Copy + Debug + Eq + Hash + Send + 'static> = Server<Id, Http>;

    fn make<Id: Copy + Debug + Eq + Hash + Send + 'static>(
        &self,
        _: usize,
        _: usize,
        counters: Counters,
        _: Watch,
    ) -> Server<Id, Http> {
        Server::new(Http::new(&self.files), self.port, counters).with_idle_timeout(self.idle)
    }

    fn aim(&self) -> Aim {
        Aim::Serve
    }
}

pub(super) struct ConnectMake {
    pub(super) to: SocketAddr,
}

impl Make for ConnectMake {
    type Service<Id: Copy + Debug + Eq + Hash + Send + 'static> = Connect<Id>;

    fn make<Id: Copy + Debug + Eq + Hash + Send + 'static>(
        &self,
        number: usize,
        _: usize,
        counters: Counters,
        _: Watch,
    ) -> Connect<Id> {
        Connect::new((number == 0).then_some(self.to), counters)
    }

    fn is_single(&self) -> bool {
        true
    }

    fn aim(&self) -> Aim {
        Aim::Talk
    }
}

pub(super) struct DownloadMake {
    pub(super) from: SocketAddr,
    pub(super) request: Vec<u8>,
    pub(super) streams: usize,
    /// How long it is to go on.
    pub(super) duration: Option<Duration>,
}

impl Make for DownloadMake {
    type Service<Id: Copy + Debug + Eq + Hash + Send + 'static> = Download<Id>;

    fn make<Id: Copy + Debug + Eq + Hash + Send + 'static>(
        &self,
        number: usize,
        count: usize,
        counters: Counters,
        _: Watch,
    ) -> Download<Id> {
        let streams = share(self.streams, number, count);
        Download::new(Wanted { from: self.from, request: self.request.clone(), streams }, counters)
    }

    fn aim(&self) -> Aim {
        Aim::Receive { duration: self.duration }
    }
}

pub(super) struct LoadMake {
    pub(super) to: SocketAddr,
    pub(super) dialect: Dialect,
    pub(super) connections: usize,
    pub(super) depth: usize,
    /// Requests per second of all services together.
    pub(super) rate: Option<u64>,
    pub(super) requests: Option<u64>,
    pub(super) timeout: Duration,
}

impl Make for LoadMake {
    type Service<Id: Copy + Debug + Eq + Hash + Send + 'static> = Load<Id, Watch>;

    fn make<Id: Copy + Debug + Eq + Hash + Send + 'static>(
        &self,
        number: usize,
        count: usize,
        counters: Counters,
        watch: Watch,
    ) -> Load<Id, Watch> {
        let all = self.requests.map(|all| usize::try_from(all).unwrap_or(usize::MAX));
        // Who has no connection has no part in requests either, nor the other way round.
        let count = count.min(self.connections).min(all.unwrap_or(usize::MAX));
        let connections = if number < count { share(self.connections, number, count) } else { 0 };
        let plan = Plan {
            to: self.to,
            dialect: self.dialect.clone(),
            connections,
            depth: self.depth,
            pace: self.rate.map(|requests| Pace::share(requests, number, count)),
            requests: if connections == 0 {
                Some(0)
            } else {
                all.map(|all| share(all, number, count) as u64)
            },
            timeout: self.timeout,
        };
        Load::new(plan, counters, watch)
    }

    fn aim(&self) -> Aim {
        Aim::Answers { rate: self.rate }
    }
}
