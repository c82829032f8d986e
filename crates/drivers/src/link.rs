//! `link:/run/x.sock`, a wire between two processes: memory that both see, and a socket by which they find each other.
//!
//! Whoever opens the path first listens, and the second connects. It copies, once into the memory and once out of it, and
//! that is what keeps each side safe from the other: a side writes only its own memory, which the other has mapped
//! read-only, and whatever is read there is checked after the copy. No system call is made while both ends are busy; a
//! sleeping receiver is rung for.
//!
//! When one end dies the other goes on: it still receives all that was sent to it, and what it sends waits, up to a full
//! ring, for whoever comes next. What the dead end had taken is lost with it. Super-segments and unfinished checksums
//! travel as they are, packets of up to [`Capabilities::max_len`] bytes as chains. A packet counts as sent when the other
//! end has taken it.

mod handshake;
mod keeper;
mod layout;
mod ring;
mod rx;
mod session;
mod socket;
mod tx;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bywash_port::{Capabilities, Counter, Port, PortName, QueuePair};
use bywash_sys::region::Region;
use bywash_sys::worker::Stop;

use crate::OpenOptions;
use handshake::Terms;
use keeper::{Keeper, Keeping, Start};
use layout::{Filling, Layout, MAX_PACKET, MAX_QUEUES};
use rx::LinkRx;
use session::{Counts, QueueShared};
use socket::{Part, meet};
use tx::LinkTx;

/// Slots of a queue.
const RING: u32 = 1024;

/// Opens one end of the wire whose socket lies at `path`.
///
/// # Errors
/// In one line what was wrong, why, and what to do. Nothing was changed.
pub fn open(path: &str, options: &OpenOptions) -> Result<LinkPort, String> {
    if let Some(queues) = options.queues.filter(|queues| !(1..=MAX_QUEUES).contains(queues)) {
        return Err(format!("{queues} queues: a link has from 1 to {MAX_QUEUES} (--queues)"));
    }
    let mut terms =
        Terms { queues: options.queues, ring: options.ring.unwrap_or(RING), receives: !options.tx_only };
    let stop = Stop::new().map_err(|error| format!("no eventfd: {error}"))?;
    let (part, agreement) = match meet(Path::new(path))? {
        Part::First(listener) => (Start::Listening(listener), None),
        Part::Second(socket) => {
            let agreement =
                handshake::visit(&socket, terms, stop.as_fd()).map_err(|refusal| refusal.to_string())?;
            (Start::Connected(socket, agreement.alarm.clone()), Some(agreement))
        }
    };
    let queues = agreement.as_ref().map_or(options.queues.unwrap_or(1), |agreed| agreed.our_layout.queues);
    terms.queues = Some(queues);
    let layout = Layout { queues, ring: terms.ring };
    let shared = (0..queues).map(|_| QueueShared::new().map(Arc::new)).collect::<Result<Vec<_>, _>>();
    let shared = shared.map_err(|error| format!("no eventfd for its queues: {error}"))?;
    let counts = Arc::new(Counts::default());
    let halves = halves(&shared, &counts, layout, options)?;
    let keeping = Keeping {
        path: path.into(),
        terms,
        layout,
        sends: !options.rx_only,
        queues: shared,
        counts: Arc::clone(&counts),
        stop: stop.clone(),
    };
    if let Some(agreement) = &agreement {
        keeping.hand_out(agreement).map_err(|error| format!("its memory can't be used: {error}"))?;
    }
    let keeper = Keeper::start(keeping, stop, part).map_err(|error| format!("no thread for it: {error}"))?;
    let name = PortName::Link { path: path.into() };
    Ok(LinkPort { name, capabilities: capabilities(), halves, counts, _keeper: keeper })
}

type Halves = Vec<(LinkRx, LinkTx)>;

/// The queues, without a session. What is sent now waits in a region that nobody else has.
fn halves(
    shared: &[Arc<QueueShared>],
    counts: &Arc<Counts>,
    layout: Layout,
    options: &OpenOptions,
) -> Result<Halves, String> {
    let memory = |error: std::io::Error| {
        format!("{} MiB of shared memory: {error}: ask for less (--queues, --ring)", layout.bytes() >> 20)
    };
    let region = Region::new(layout.bytes()).map_err(memory)?;
    let one = |(number, shared): (usize, &Arc<QueueShared>)| {
        let filling = Filling::new(region.mapping(), layout, number).map_err(memory)?;
        let tx = LinkTx::new(filling, layout.ring, Arc::clone(shared), Arc::clone(counts));
        let rx = LinkRx::new(Arc::clone(shared), options.plain)
            .map_err(|errno| format!("can't make what its worker sleeps on: {errno}"))?;
        Ok((rx, tx))
    };
    shared.iter().enumerate().map(one).collect()
}

fn capabilities() -> Capabilities {
    Capabilities {
        max_len: MAX_PACKET,
        tx_checksum: true,
        segmentation: true,
        chains: true,
        zero_copy: false,
        mode: vec!["copy", "shared memory"],
        link_mbps: None,
        sent: None,
    }
}

/// One end of a wire between processes.
pub struct LinkPort {
    name: PortName,
    capabilities: Capabilities,
    halves: Halves,
    counts: Arc<Counts>,
    /// Ends the connection when it is dropped.
    _keeper: Keeper,
}

impl Port for LinkPort {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        let halves = std::mem::take(&mut self.halves).into_iter();
        halves.map(|(rx, tx)| QueuePair { rx: Some(Box::new(rx)), tx: Some(Box::new(tx)) }).collect()
    }

    fn counters(&self) -> Vec<Counter> {
        let Counts { connections, faults, refused, kept, connected } = &*self.counts;
        let count = |name, value: &AtomicU64| Counter::count(name, value.load(Ordering::Relaxed));
        vec![
            Counter::state("connected", connected.load(Ordering::Relaxed)),
            count("connections", connections),
            count("kept_packets", kept),
            count("peer_faults", faults),
            count("peers_refused", refused),
        ]
    }

    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
