//! What a NIC counts, kept as 64 bits: its own counters are cleared by reading and stick at their end, so a thread of its own
//! reads them, and looks at the link.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bywash_hw::reg::{Access, Field, Register};
use bywash_port::Counter;
use bywash_sys::function::Registers;

use super::link::Seen;
use super::{Bar, Link, LinkRegister, Ticker, lock};

/// A counter: its name, its register, and the register of its upper bits when it has more than 32. Of arrays the sum counts.
pub(crate) type Statistic = (&'static str, &'static Register, Option<&'static Register>);

/// A register that counts in some of its bits, maybe several things, and what they are called. Of arrays the sum counts.
pub(crate) type Shared = (&'static Register, &'static [(&'static str, Field)]);

/// All that a NIC counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statistics {
    pub(crate) own: &'static [Statistic],
    pub(crate) shared: &'static [Shared],
    /// Counters of `own` that count what another one of them counts, too, and that one.
    pub(crate) twice: &'static [(&'static str, &'static str)],
}

impl Statistics {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        let shared = self.shared.iter().flat_map(|(_, fields)| fields.iter().map(|(name, _)| *name));
        self.own.iter().map(|(name, ..)| *name).chain(shared)
    }
}

/// Reads all counters of a table of registers once, so that counting begins at 0.
pub(crate) fn clear<R: Registers>(bar: &Bar<R>, table: &[Register]) {
    for register in table.iter().filter(|register| register.access == Access::RC) {
        read(bar, register);
    }
}

/// A register, or the sum of an array.
fn read<R: Registers>(bar: &Bar<R>, register: &Register) -> u64 {
    (0..register.count()).map(|index| u64::from(bar.get_at(register, index))).sum()
}

/// What was counted so far.
#[derive(Debug)]
struct Counted {
    statistics: Statistics,
    /// In the order of `statistics`, the shared ones last.
    sums: Vec<u64>,
    /// What is still to be taken off each of those that count others' as well, as these are read later than they.
    owed: Vec<u64>,
    link: LinkRegister,
    seen: Seen,
    gone: bool,
}

impl Counted {
    /// Reads everything; what was counted since is added.
    fn update<R: Registers>(&mut self, bar: &Bar<R>) {
        let value = bar.get(self.link.register);
        if value == u32::MAX && bar.is_gone() {
            self.gone = true;
            return;
        }
        let mut counted = Vec::with_capacity(self.sums.len());
        for (_, low, high) in self.statistics.own {
            // The low half first: the high one is kept meanwhile, and reading that clears both.
            let low = read(bar, low);
            counted.push(low + high.map_or(0, |high| read(bar, high) << 32));
        }
        for (register, fields) in self.statistics.shared {
            let values: Vec<u32> = (0..register.count()).map(|index| bar.get_at(register, index)).collect();
            let sum = |field: &Field| values.iter().map(|value| u64::from(field.of(*value))).sum::<u64>();
            counted.extend(fields.iter().map(|(_, field)| sum(field)));
        }
        // One that went away meanwhile has counted nothing: it read as ones.
        if bar.is_gone() {
            self.gone = true;
            return;
        }
        self.seen.see(self.link.of(value));
        let place = |name| self.statistics.names().position(|one| one == name);
        for ((name, other), owed) in self.statistics.twice.iter().zip(&mut self.owed) {
            if let (Some(at), Some(other)) = (place(*name), place(*other)) {
                *owed += counted[other];
                let off = counted[at].min(*owed);
                counted[at] -= off;
                *owed -= off;
            }
        }
        self.sums.iter_mut().zip(counted).for_each(|(sum, more)| *sum += more);
    }
}

/// Looks at link and statistics from time to time.
#[derive(Debug)]
pub(crate) struct Watch<R> {
    bar: Bar<R>,
    counted: Arc<Mutex<Counted>>,
    ticker: Ticker,
}

impl<R: Registers> Watch<R> {
    /// Begins to, in a thread called `name`; without a period nothing is looked at until it is asked for. All that is lost then
    /// is what sticks meanwhile.
    pub(crate) fn start(
        name: &str,
        bar: Bar<R>,
        link: LinkRegister,
        statistics: Statistics,
        period: Option<Duration>,
    ) -> Self {
        let (sums, owed) = (vec![0; statistics.names().count()], vec![0; statistics.twice.len()]);
        let seen = Seen::first(link.state(&bar));
        let counted = Arc::new(Mutex::new(Counted { statistics, sums, owed, link, seen, gone: false }));
        let ticker = Ticker::start(name, period, {
            let (bar, counted) = (bar.clone(), counted.clone());
            move || lock(&counted).update(&bar)
        });
        Self { bar, counted, ticker }
    }

    /// Somebody has looked at the link.
    pub(crate) fn see(&self, link: Link) {
        lock(&self.counted).seen.see(link);
    }

    /// Everything as of now.
    pub(crate) fn counters(&self) -> Vec<Counter> {
        let mut counted = lock(&self.counted);
        counted.update(&self.bar);
        let statistics = counted.statistics.names().zip(counted.sums.iter().copied());
        let counts = statistics.map(|(name, value)| Counter::count(name, value));
        let losses = Counter::count("link_losses", counted.seen.losses);
        counts.chain([losses, Counter::state("device_gone", counted.gone)]).collect()
    }

    /// Ends the thread.
    pub(crate) fn stop(&mut self) {
        self.ticker.stop();
    }
}
