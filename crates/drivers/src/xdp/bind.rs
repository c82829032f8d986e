//! One queue's socket: made, given memory and rings, stocked with frames, bound; and what to tell the user when not.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bywash_frame::{Arena, FRAME_SIZE, Ledger, Pool, Stride};
use bywash_sys::xsk::{Bind, Chunks, CopyMode, Probe, RingSizes, Rings, Socket};
use rustix::io::Errno;

/// How long the last user of a queue may still be going away.
const PATIENCE: Duration = Duration::from_millis(200);

/// What a queue is to be.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// The interface's number.
    pub(super) interface: u32,
    pub(super) queue: u32,
    pub(super) ring_size: u32,
    pub(super) rx: bool,
    pub(super) tx: bool,
    pub(super) multi_buffer: bool,
    /// Its program leaves packets to the kernel, which are received into the same frames where nothing is copied.
    pub(super) shares: bool,
    /// `(micros, budget)`.
    pub(super) busy_poll: Option<(u32, u32)>,
}

impl Plan {
    /// How many entries each ring has.
    ///
    /// Without copies, packets that nobody fetches must not have all frames of the queue: the kernel's packets come into these as
    /// well, also when the worker hangs. The FILL ring is full at the start, so there are at least twice as many frames as
    /// the RX ring then has room for.
    fn ring_sizes(&self, mode: CopyMode) -> RingSizes {
        let size = self.ring_size;
        let waiting = if self.shares && mode != CopyMode::Copy { (size / 2).max(1) } else { size };
        RingSizes {
            fill: size,
            completion: size,
            rx: if self.rx { waiting } else { 0 },
            tx: if self.tx { size } else { 0 },
        }
    }
}

/// A bound queue.
pub(super) struct Bound {
    pub(super) rings: Rings,
    pub(super) socket: Arc<Socket>,
    pub(super) probe: Probe,
    /// What lies in the FILL ring.
    pub(super) filled: Ledger,
    pub(super) zero_copy: bool,
    /// One call sends as many as the ring has.
    pub(super) large_budget: bool,
    /// Busy polling was asked for and has something to poll.
    pub(super) polls: bool,
}

impl Bound {
    /// Does not poll, nor begin to with the first packet, unknown to us. Where it can't be undone nothing is lost.
    pub(super) fn leave_busy_poll(&mut self) {
        self.polls = false;
        self.socket.leave_busy_poll().ok();
    }

    /// Descriptors that the kernel takes in one call; without copies it goes on by itself.
    pub(super) fn per_call(&self) -> u32 {
        if self.zero_copy || self.large_budget { u32::MAX } else { KERNELS_OWN }
    }
}

/// At what it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Socket,
    Register,
    Rings,
    Options,
    Bind,
}

/// Why a queue could not be bound.
#[derive(Debug)]
pub(super) struct BindError {
    pub(super) step: Step,
    pub(super) source: io::Error,
}

impl BindError {
    fn at(step: Step) -> impl Fn(io::Error) -> Self {
        move |source| Self { step, source }
    }

    pub(super) fn errno(&self) -> Errno {
        Errno::from_io_error(&self.source).unwrap_or(Errno::IO)
    }

    /// Whether the driver can't do without copies, and copying is worth a try.
    pub(super) fn is_no_zero_copy(&self) -> bool {
        self.step == Step::Bind && !matches!(self.errno(), Errno::BUSY | Errno::PERM | Errno::NODEV)
    }
}

/// Binds a queue to memory of its own registration, or to that of `first`.
///
/// On failure nothing was bound, so the kernel has never looked at the frames of the FILL ring: they go back to `pool`.
pub(super) fn bind(
    plan: &Plan,
    mode: CopyMode,
    first: Option<&Socket>,
    arena: &'static Arena,
    pool: &mut Pool,
) -> Result<Bound, BindError> {
    let socket = Socket::new().map_err(BindError::at(Step::Socket))?;
    let probe = Probe::new(plan.interface, plan.queue).map_err(BindError::at(Step::Socket))?;
    if first.is_none() {
        let chunks = match arena.stride() {
            Stride::Packed => Chunks::Unaligned(u32::try_from(FRAME_SIZE).unwrap_or_default()),
            Stride::Aligned => Chunks::Aligned,
        };
        socket.register(arena.base(), arena.bytes(), chunks).map_err(BindError::at(Step::Register))?;
    }
    let mut rings = socket.rings(&plan.ring_sizes(mode)).map_err(BindError::at(Step::Rings))?;
    let large_budget = !plan.tx || set_options(&socket, plan).map_err(BindError::at(Step::Options))?;
    if let Some((micros, budget)) = plan.busy_poll {
        socket.prefer_busy_poll(micros, budget).map_err(BindError::at(Step::Options))?;
    }
    let mut filled = Ledger::new(arena);
    // Without copies the NIC receives into our frames also what stays with the kernel, so who only sends needs them too.
    if plan.rx || mode != CopyMode::Copy {
        stock(&mut rings, &mut filled, pool);
    }
    let bound = match first {
        None => {
            let to =
                Bind { interface: plan.interface, queue: plan.queue, mode, multi_buffer: plan.multi_buffer };
            socket.bind(&to, PATIENCE)
        }
        Some(first) => socket.bind_shared(plan.interface, plan.queue, first, PATIENCE),
    };
    match bound {
        Ok(()) => {
            let zero_copy = socket.is_zero_copy().unwrap_or(false);
            let polls = plan.busy_poll.is_some() && socket.napi_id().is_ok_and(|napi| napi != 0);
            Ok(Bound { rings, socket: Arc::new(socket), probe, filled, zero_copy, large_budget, polls })
        }
        Err(error) => {
            drop((rings, socket));
            filled.recover(pool);
            Err(BindError::at(Step::Bind)(error))
        }
    }
}

/// Descriptors that the kernel takes in one call in copy mode, where it is not let take more.
const KERNELS_OWN: u32 = 32;

/// More than the kernel's own number for each call, where it lets us.
fn set_options(socket: &Socket, plan: &Plan) -> io::Result<bool> {
    if plan.ring_size <= KERNELS_OWN {
        return Ok(true);
    }
    socket.raise_tx_budget(plan.ring_size)
}

/// Fills the FILL ring, as far as there are frames.
fn stock(rings: &mut Rings, filled: &mut Ledger, pool: &mut Pool) {
    while rings.fill.room(1) > 0 {
        let Some(frame) = pool.take() else { break };
        rings.fill.push(filled.lend(frame) as u64);
    }
    rings.fill.submit();
}

impl BindError {
    /// What the user is told: what, why, what to do.
    pub(super) fn explain(&self, interface: &str, plan: &Plan, mode: CopyMode, bytes: usize) -> String {
        let queue = plan.queue;
        match (self.step, self.errno()) {
            (Step::Socket, Errno::PERM) => "an AF_XDP socket needs CAP_NET_RAW (or root)".into(),
            (Step::Socket, Errno::AFNOSUPPORT) => {
                "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS): use packet: instead".into()
            }
            (Step::Register, Errno::NOBUFS) => format!(
                "{} MiB of packet memory can't be pinned: needs CAP_IPC_LOCK, or a higher RLIMIT_MEMLOCK (ulimit -l)",
                bytes >> 20
            ),
            (Step::Register, Errno::INVAL) => {
                "the kernel refuses this packet memory: it must come from the system (huge or ordinary pages)"
                    .into()
            }
            (Step::Options, Errno::PERM) => {
                "busy polling needs CAP_NET_ADMIN (or root): leave --busy-poll out".into()
            }
            (Step::Bind, Errno::BUSY) => format!(
                "queue {queue} of {interface} is in use by another AF_XDP socket: stop that program, or name another \
                 queue (xdp:{interface}/N)"
            ),
            (Step::Bind, Errno::OPNOTSUPP | Errno::INVAL) if mode == CopyMode::ZeroCopy => format!(
                "the driver of {interface} can't do zero-copy on queue {queue} ({}): leave --zero-copy out, or off",
                self.source
            ),
            (Step::Bind, Errno::OPNOTSUPP | Errno::INVAL) if plan.multi_buffer => format!(
                "{interface} can't give packets in several buffers ({}): set its MTU to {} or less",
                self.source,
                super::look::MAX_SINGLE_MTU
            ),
            (step, _) => format!("{} failed: {}", step.name(queue), self.source),
        }
    }
}

impl Step {
    fn name(self, queue: u32) -> String {
        match self {
            Self::Socket => "making an AF_XDP socket".into(),
            Self::Register => "registering the packet memory".into(),
            Self::Rings => "making the rings".into(),
            Self::Options => "setting the socket's options".into(),
            Self::Bind => format!("binding to queue {queue}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ring_size: u32, shares: bool, multi_buffer: bool) -> Plan {
        Plan { interface: 7, queue: 3, ring_size, rx: true, tx: true, multi_buffer, shares, busy_poll: None }
    }

    fn explain(step: Step, errno: Errno, mode: CopyMode, multi_buffer: bool) -> String {
        let plan = plan(2048, false, multi_buffer);
        BindError { step, source: errno.into() }.explain("eth1", &plan, mode, 64 << 20)
    }

    #[test]
    fn packets_that_nobody_fetches_leave_half_of_the_frames_to_those_of_the_kernel() {
        let rx_and_fill = |shares, mode| {
            let sizes = plan(2048, shares, false).ring_sizes(mode);
            assert_eq!((sizes.completion, sizes.tx), (2048, 2048));
            (sizes.rx, sizes.fill)
        };
        assert_eq!(rx_and_fill(true, CopyMode::ZeroCopy), (1024, 2048));
        // The kernel has its packets elsewhere, or has none.
        assert_eq!(rx_and_fill(true, CopyMode::Copy), (2048, 2048));
        assert_eq!(rx_and_fill(false, CopyMode::ZeroCopy), (2048, 2048));
        let sends = Plan { rx: false, ..plan(2048, true, false) };
        assert_eq!(sends.ring_sizes(CopyMode::ZeroCopy).rx, 0);
        assert_eq!(plan(1, true, false).ring_sizes(CopyMode::ZeroCopy).rx, 1, "a ring of none is no ring");
    }

    #[test]
    fn missing_rights_are_named() {
        let plain = |step, errno| explain(step, errno, CopyMode::Copy, false);
        assert!(plain(Step::Socket, Errno::PERM).contains("CAP_NET_RAW"));
        let pinned = plain(Step::Register, Errno::NOBUFS);
        assert!(
            pinned.contains("64 MiB") && pinned.contains("CAP_IPC_LOCK") && pinned.contains("RLIMIT_MEMLOCK")
        );
        // Whatever the budget is.
        let options = plain(Step::Options, Errno::PERM);
        assert_eq!(options, "busy polling needs CAP_NET_ADMIN (or root): leave --busy-poll out");
        assert!(plain(Step::Socket, Errno::AFNOSUPPORT).contains("CONFIG_XDP_SOCKETS"));
    }

    #[test]
    fn a_refused_bind_says_what_to_change() {
        let busy = explain(Step::Bind, Errno::BUSY, CopyMode::ZeroCopy, true);
        assert!(busy.starts_with("queue 3 of eth1 is in use by another AF_XDP socket"), "{busy}");
        assert!(
            explain(Step::Bind, Errno::OPNOTSUPP, CopyMode::ZeroCopy, false).contains("can't do zero-copy")
        );
        assert!(explain(Step::Bind, Errno::INVAL, CopyMode::Copy, true).contains("MTU to 2026"));
        let other = explain(Step::Bind, Errno::NETDOWN, CopyMode::Copy, false);
        assert!(other.starts_with("binding to queue 3 failed: "), "{other}");
    }

    #[test]
    fn copying_is_tried_only_where_it_could_help() {
        let error = |step, errno: Errno| BindError { step, source: errno.into() };
        assert!(error(Step::Bind, Errno::OPNOTSUPP).is_no_zero_copy());
        assert!(error(Step::Bind, Errno::INVAL).is_no_zero_copy());
        assert!(!error(Step::Bind, Errno::BUSY).is_no_zero_copy());
        assert!(!error(Step::Register, Errno::INVAL).is_no_zero_copy());
    }
}
