//! A stack and a control side by side: all there is to it with one worker.

use bywash_frame::{Batch, Pool};

use crate::{Control, PortId, Request, Stack, Timestamp};

/// How often packets to ourselves go round in one call: two of our own sockets can talk for long, and the ports must
/// have their turn.
const ROUNDS: usize = 64;

/// One control and one stack, with everything handed from one to the other.
#[derive(Debug)]
pub struct Host {
    /// Addresses, routes, neighbours.
    pub control: Control,
    /// Sockets.
    pub stack: Stack,
    /// Requests on their way from one to the other; kept so that nothing is allocated each time.
    requests: Vec<Request>,
}

impl Host {
    /// A host with nothing but its loopback. `random`: see [`Stack::new`].
    pub fn new(random: [u8; 16], pool: &mut Pool) -> Self {
        let mut control = Control::new(random);
        let stack = Stack::new(control.snapshot(pool).clone(), random);
        Self { control, stack, requests: Vec::new() }
    }

    /// Takes the packets that a port has received.
    pub fn receive(&mut self, now: Timestamp, port: PortId, batch: &mut Batch, pool: &mut Pool) {
        self.stack.receive(now, port, batch, pool);
    }

    /// Lets time pass and settles what stack and control have for each other. Call it after packets were received
    /// and after the program has done its part, before [`Host::transmit`].
    pub fn advance(&mut self, now: Timestamp, pool: &mut Pool) {
        self.control.advance(now, pool);
        self.stack.update(self.control.snapshot(pool), pool);
        for _ in 0..ROUNDS {
            self.stack.advance(now, pool);
            let mut settled = !self.stack.has_requests();
            if !settled {
                self.requests.extend(self.stack.requests());
                self.requests.drain(..).for_each(|request| self.control.handle(now, request, pool));
            }
            while let Some((zone, packet)) = self.control.to_ourselves() {
                settled = false;
                self.stack.deliver(now, zone, packet, pool);
            }
            for notice in self.control.notices() {
                self.stack.notice(now, &notice, pool);
            }
            self.stack.update(self.control.snapshot(pool), pool);
            if settled && !self.stack.has_own_packets() {
                return;
            }
        }
    }

    /// Moves packets for a port into a batch, as many as there is room for.
    pub fn transmit(&mut self, port: PortId, batch: &mut Batch) {
        self.control.transmit(port, batch);
        self.stack.transmit(port, batch);
    }

    /// When [`Host::advance`] is to be called next, if nothing comes in before.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.control.next_deadline().into_iter().chain(self.stack.next_deadline()).min()
    }
}
