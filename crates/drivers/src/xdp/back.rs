//! The way back: what was taken from an interface goes on into the kernel as if it had just come in there.
//!
//! A TAP interface of our own takes the packets, and a TCX program on it moves each to the interface that it came from,
//! before any rule of the kernel's has seen it: routes, nftables and sockets know the original interface only. A queue of
//! the TAP's for each of ours keeps what came by one queue in order. Both go when this process goes. Where many wait, they are
//! given to the interface together ([`live`](super::live)).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bywash_filter::xdp::return_program;
use bywash_port::TxQueue;
use bywash_sys::bpf::{Link, Program, ProgramKind, ProgramSpec, TcxDirection};
use bywash_sys::interface::Interface;
use bywash_sys::route::Route;
use bywash_sys::sysctl;
use bywash_sys::tun::Tap;

use super::live::Live;
use crate::tap;

/// The way back to one interface.
pub(super) struct Back {
    taps: Vec<Arc<Tap>>,
    /// The TAP interface's number.
    index: u32,
    /// Detaches when nobody has it any more.
    link: Arc<Link>,
    /// How many go together, where the kernel lets us.
    live: Option<Arc<Live>>,
}

impl Back {
    /// Opens a way back to `interface`, of so many queues.
    pub(super) fn open(interface: &Interface, queues: usize) -> Result<Self, String> {
        let name = format!("bywash{}", interface.index);
        let refused = |why: String| format!("the way back into {}, by {name}: {why}", interface.name);
        let many = queues > 1;
        let mut taps = vec![Arc::new(Tap::create(&name, many).map_err(|error| refused(error.to_string()))?)];
        for _ in 1..queues {
            taps.push(Arc::new(Tap::attach(&name, true).map_err(|error| refused(error.to_string()))?));
        }
        // Nobody reads what the kernel sends by it, but the header in front of packets is set in the same call.
        taps[0].set_offloads(false).map_err(|error| refused(error.to_string()))?;
        // It shall say nothing of its own. Where there is no IPv6 it can't.
        sysctl::write(&format!("net.ipv6.conf.{name}.disable_ipv6"), "1").ok();
        let mut route = Route::open().map_err(|error| refused(error.to_string()))?;
        let tap = route.link(&name).map_err(|error| refused(error.to_string()))?;
        let tap = tap.ok_or_else(|| refused("it was deleted while it was opened: try again".into()))?;
        let instructions = return_program(interface.index).to_words();
        let spec =
            ProgramSpec { kind: ProgramKind::SchedCls, name: "bywash_back", instructions: &instructions };
        let program = Program::load(&spec).map_err(|error| refused(error.to_string()))?;
        let link = Link::tcx(&program, tap.index, TcxDirection::Ingress)
            .map_err(|error| refused(format!("{error}; it needs Linux 6.6 with CONFIG_NET_XGRESS")))?;
        route.set_up(tap.index, true).map_err(|error| refused(error.to_string()))?;
        // Without CAP_SYS_ADMIN all packets go by the TAP.
        let live = Live::open(interface.index, queues).ok();
        Ok(Self { taps, index: tap.index, link: Arc::new(link), live })
    }

    /// The number of the interface that takes what goes back.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// The place of its program.
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// The sending half of a queue.
    pub(super) fn sender(&self, queue: usize) -> Option<Box<dyn TxQueue>> {
        let tap = self.taps.get(queue)?;
        let tap = tap::sender(Arc::clone(tap), Arc::new(AtomicBool::new(false)));
        Some(match &self.live {
            Some(live) => Box::new(live.sender(queue, tap)),
            None => tap,
        })
    }
}
