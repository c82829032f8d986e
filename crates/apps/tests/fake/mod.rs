//! A port made of queues that a test brings along, which notes that it was closed.

use bywash_apps::port::{Capabilities, Counter, Port, PortName, QueuePair};

/// What its `close` answers.
pub(crate) type Closing = Box<dyn Fn() -> Result<(), Vec<String>> + Send>;

/// What it has counted.
pub(crate) type Counting = Box<dyn Fn() -> Vec<Counter> + Send>;

/// A port with these queues.
pub(crate) struct Fake {
    name: PortName,
    capabilities: Capabilities,
    queues: Vec<QueuePair>,
    closing: Closing,
    pub(crate) counting: Counting,
}

impl Fake {
    pub(crate) fn new(name: &str, queues: Vec<QueuePair>, closing: Closing) -> Box<Self> {
        let capabilities = Capabilities { max_len: 1514, ..Capabilities::default() };
        let counting = Box::new(|| vec![Counter::count("faults", 3)]);
        Box::new(Self { name: name.parse().unwrap(), capabilities, queues, closing, counting })
    }
}

impl Port for Fake {
    fn name(&self) -> &PortName {
        &self.name
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }
    fn counters(&self) -> Vec<Counter> {
        (self.counting)()
    }
    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        (self.closing)()
    }
}
