//! A physical function that runs: what its owner may ask of it, for all families; how, each says in a table.

use std::time::Duration;

use bywash_frame::Arena;
use bywash_hw::pci::Nic;
use bywash_port::{Capabilities, Certain, Counter, Port, PortName, QueuePair, RssSpread, SteerRule, SteerTo};
use bywash_sys::function::Function;

use super::{
    Addresses, Bar, Limits, Link, LinkRegister, Memory, Multicast, NicError, Place, Rss, RssRegisters,
    RxRegisters, Settings, Statistics, Steer, TxRegisters, Watch, capabilities, retire, start_all,
};

/// What is different from family to family once the NIC runs.
#[derive(Debug)]
pub(crate) struct Driver<R> {
    /// What its watching thread is called.
    pub(crate) thread: &'static str,
    pub(crate) limits: Limits,
    pub(crate) link: LinkRegister,
    /// Makes of a link that did not come up in time what more is known of it.
    pub(crate) explain: fn(&Bar<R>, NicError) -> NicError,
    pub(crate) statistics: Statistics,
    pub(crate) queues: (RxRegisters, TxRegisters),
    pub(crate) addresses: Addresses,
    pub(crate) rss: RssRegisters,
    /// Says which packets pass the address filters.
    pub(crate) filter: fn(&Bar<R>, &Settings) -> Result<(), NicError>,
    /// Filters that name a queue.
    pub(crate) steer: Box<dyn Steer<R>>,
    /// Makes it quiet: no DMA, no interrupt.
    pub(crate) stop: fn(&Bar<R>) -> Result<(), NicError>,
}

/// A physical function that is up and running.
#[expect(missing_debug_implementations, reason = "queues are trait objects")]
pub struct PhysicalFunction<F: Function> {
    // Dropped first: no DMA after that, and the rings' memory may go.
    function: F,
    bar: Bar<F::Registers>,
    nic: &'static Nic,
    name: PortName,
    driver: Driver<F::Registers>,
    capabilities: Capabilities,
    mac: [u8; 6],
    queues: Vec<QueuePair>,
    settings: Settings,
    watch: Watch<F::Registers>,
    closed: bool,
    _memory: Memory,
}

/// A NIC whose tables are set, and whose queues are to be made.
pub(crate) struct Prepared<'a, F: Function> {
    pub(crate) function: F,
    pub(crate) bar: Bar<F::Registers>,
    pub(crate) nic: &'static Nic,
    pub(crate) name: PortName,
    pub(crate) mac: [u8; 6],
    pub(crate) settings: &'a Settings,
}

impl<F: Function> Prepared<'_, F> {
    /// Makes the queues, on packets in `arena`, and switches them on; then `start` lets packets and the link come.
    pub(crate) fn start(
        mut self,
        driver: Driver<F::Registers>,
        arena: &'static Arena,
        start: impl FnOnce(&Bar<F::Registers>) -> Result<(), NicError>,
    ) -> Result<PhysicalFunction<F>, NicError> {
        let settings = self.settings.clone();
        let memory = Memory::new(&mut self.function, arena, settings.queues, settings.ring)?;
        let queues = start_all(&mut self.function, &self.bar, &memory, &settings, &driver.queues)?;
        let Self { function, bar, nic, name, mac, .. } = self;
        start(&bar)?;
        let watch = Watch::start(driver.thread, bar.clone(), driver.link, driver.statistics, settings.watch);
        let capabilities = capabilities(nic, settings.max_len, driver.link.state(&bar).mbps);
        let (closed, _memory) = (false, memory);
        Ok(PhysicalFunction {
            function,
            bar,
            nic,
            name,
            driver,
            capabilities,
            mac,
            queues,
            settings,
            watch,
            closed,
            _memory,
        })
    }
}

impl<F: Function> PhysicalFunction<F> {
    /// Which NIC it is.
    pub fn nic(&self) -> &'static Nic {
        self.nic
    }

    /// The link now.
    pub fn link(&self) -> Link {
        self.driver.link.state(&self.bar)
    }

    /// Waits until the link is up.
    ///
    /// # Errors
    /// [`NicError::Timeout`], when it does not come up within that time; with an X540, what its PHY says of that.
    pub fn wait_for_link(&mut self, within: Duration) -> Result<Link, NicError> {
        let link = self.driver.link.wait(&self.bar, within);
        let link = link.map_err(|error| (self.driver.explain)(&self.bar, error))?;
        self.watch.see(link);
        self.capabilities.link_mbps = link.mbps;
        Ok(link)
    }

    /// Takes packets to any address, or just those to its own and to the multicast groups named.
    ///
    /// # Errors
    /// [`NicError::Setting`] when a group is none; another [`NicError`] when the receiver does not stop for it.
    pub fn set_filter(&mut self, promiscuous: bool, multicast: Multicast) -> Result<(), NicError> {
        multicast.table()?;
        self.settings.promiscuous = promiscuous;
        self.settings.multicast = multicast;
        (self.driver.filter)(&self.bar, &self.settings)
    }

    /// Changes its Ethernet address.
    ///
    /// # Errors
    /// [`NicError::Mac`] when it is no address of one NIC.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), NicError> {
        self.mac = self.driver.addresses.own(&self.bar, Some(mac))?;
        Ok(())
    }

    /// Takes packets to one more address.
    ///
    /// # Errors
    /// [`NicError`] when it is no unicast address, or there is no room for more.
    pub fn add_mac(&mut self, mac: [u8; 6]) -> Result<(), NicError> {
        self.driver.addresses.add(&self.bar, mac)
    }

    /// Changes how packets are spread over queues, while they run.
    ///
    /// # Errors
    /// [`NicError::Setting`] when the table names a queue that is not there.
    pub fn set_rss(&mut self, rss: &Rss) -> Result<(), NicError> {
        let (queues, limits) = (self.settings.queues, self.driver.limits);
        rss.check(queues.min(limits.rss_queues), queues)?;
        self.driver.rss.spread(&self.bar, rss, queues.min(limits.rss_queues));
        self.settings.rss = rss.clone();
        Ok(())
    }

    /// Has the NIC itself give the packets of a rule to a queue, or drop them, from now on. Of several rules that match a packet
    /// the one that was given first counts.
    ///
    /// # Errors
    /// [`NicError::Setting`] when the rule makes no sense, its queue is not there, or no filter that is free can do it; another
    /// [`NicError`] when the NIC does not take it.
    pub fn steer(&mut self, rule: &SteerRule) -> Result<Place, NicError> {
        rule.flow.check().map_err(|error| NicError::Setting(error.to_string()))?;
        if let SteerTo::Queue(queue) = rule.to {
            self.check_queue(queue)?;
        }
        self.driver.steer.add(&self.bar, rule)
    }

    /// Removes the rule that [`PhysicalFunction::steer`] has put there, and returns it; `None` when there is none.
    ///
    /// # Errors
    /// [`NicError`] when the NIC does not do it.
    pub fn unsteer(&mut self, place: Place) -> Result<Option<SteerRule>, NicError> {
        self.driver.steer.remove(&self.bar, place)
    }

    /// All rules, and where they are.
    pub fn steered(&self) -> Vec<(Place, SteerRule)> {
        self.driver.steer.rules()
    }

    /// Asks the NIC whether it has a filter in a place.
    ///
    /// # Errors
    /// [`NicError`] when it does not answer.
    pub fn has_filter(&self, place: Place) -> Result<bool, NicError> {
        self.driver.steer.holds(&self.bar, place)
    }

    fn check_queue(&self, queue: u16) -> Result<(), NicError> {
        let queues = self.settings.queues;
        if queue < queues {
            return Ok(());
        }
        Err(NicError::Setting(format!("queue {queue}: the port was opened with {queues}")))
    }

    /// Takes the NIC out of use: no DMA, no interrupt, no packet after this.
    fn stop(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.closed, true) {
            return Vec::new();
        }
        self.watch.stop();
        retire((self.driver.stop)(&self.bar), &mut self.function)
    }
}

impl<F: Function> Port for PhysicalFunction<F> {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> Option<[u8; 6]> {
        Some(self.mac)
    }

    fn spread(&self) -> Option<RssSpread> {
        let Settings { queues, rss, .. } = &self.settings;
        // A rule may give a flow to any queue. Without one, `RssRegisters::spread` has said it all.
        let only_rss = self.driver.steer.rules().is_empty();
        let spread = || rss.spread((*queues).min(self.driver.limits.rss_queues), Certain::TcpAndUdp);
        only_rss.then(spread).flatten()
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn counters(&self) -> Vec<Counter> {
        self.watch.counters()
    }

    fn close(mut self: Box<Self>) -> Result<(), Vec<String>> {
        let sentences = self.stop();
        if sentences.is_empty() { Ok(()) } else { Err(sentences) }
    }
}

impl<F: Function> Drop for PhysicalFunction<F> {
    fn drop(&mut self) {
        self.stop();
    }
}
