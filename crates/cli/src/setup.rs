//! What every packet tool needs before it begins: memory, opened ports, a way to be stopped.

use bywash_apps::report::Reporter;
use bywash_drivers::{OpenOptions, Opened};
use bywash_port::frame::Arena;
use bywash_port::{Port, PortName};
use bywash_sys::interface::core_conflicts;
use bywash_sys::memory::{self, HugePages, MemoryError};
use bywash_sys::state::Undo;
use bywash_sys::worker::Stop;

use crate::failure::Failure;
use crate::options::{PortArgs, WorkerArgs};

/// The machine's part of a run.
pub(crate) struct Setup {
    /// The ports, in the order of their names.
    pub(crate) ports: Vec<Box<dyn Port>>,
    /// Packet memory.
    pub(crate) arena: &'static Arena,
    /// Set by Ctrl-C and its kin.
    pub(crate) stop: Stop,
    /// Give huge pages back at the end.
    _reservations: Vec<Undo>,
}

/// A flag that Ctrl-C and its kin set.
///
/// # Errors
/// When they can't be caught.
pub(crate) fn catch_signals() -> Result<Stop, Failure> {
    let stop = Stop::new().map_err(Failure::Signals)?;
    bywash_sys::signals::stop_on_signals(stop.clone()).map_err(Failure::Signals)?;
    Ok(stop)
}

/// Catches signals, allocates packet memory and opens the ports, each with its own of `options`.
///
/// # Errors
/// The first thing that did not work; what was opened is closed again.
pub(crate) fn set_up(
    names: &[PortName],
    (args, worker): (&PortArgs, &WorkerArgs),
    options: &[OpenOptions],
    reporter: &mut Reporter,
) -> Result<Setup, Failure> {
    set_up_until(catch_signals()?, names, (args, worker), options, reporter)
}

/// The same, with signals caught already.
///
/// # Errors
/// The first thing that did not work; what was opened is closed again.
pub(crate) fn set_up_until(
    stop: Stop,
    names: &[PortName],
    (args, worker): (&PortArgs, &WorkerArgs),
    options: &[OpenOptions],
    reporter: &mut Reporter,
) -> Result<Setup, Failure> {
    let stride = args.stride(names);
    let bytes = args.memory(names, options, stride);
    let for_rings = reserve_for_rings(bytes, args, options)?;
    let allocation = memory::allocate(bytes, args.huge_pages(), None)?;
    let arena = Arena::with_stride(allocation.memory, stride)?;
    let mut warnings: Vec<String> = allocation.warning.into_iter().collect();
    let mut ports: Vec<Box<dyn Port>> = Vec::with_capacity(names.len());
    for (name, options) in names.iter().zip(options) {
        match bywash_drivers::open(name, options, arena) {
            Ok(Opened { port, warnings: more, steered }) => {
                ports.push(port);
                steered.into_iter().for_each(|rule| reporter.steered(format!("{name}: {rule}")));
                warnings.extend(more.into_iter().map(|warning| format!("{name}: {warning}")));
            }
            Err(error) => {
                for sentence in ports.into_iter().filter_map(|port| port.close().err()).flatten() {
                    reporter.warning(&sentence);
                }
                return Err(error.into());
            }
        }
    }
    let cores = worker.options().cores;
    for name in names {
        if let PortName::Xdp { interface, .. } = name {
            warnings.extend(core_conflicts(interface, &cores));
        }
    }
    for warning in warnings {
        reporter.warn_at_start(warning);
    }
    let _reservations = for_rings.into_iter().chain(allocation.reservation).collect();
    Ok(Setup { ports, arena, stop, _reservations })
}

/// Most bytes of a NIC's rings: two of 8192 descriptors for each of 16 queues.
const RINGS: usize = 2 * 16 * 8192 * 16;

/// Without an IOMMU rings must lie in huge pages, too: those are reserved together with packet memory's.
fn reserve_for_rings(
    bytes: usize,
    args: &PortArgs,
    options: &[OpenOptions],
) -> Result<Option<Undo>, Failure> {
    let ports = options.iter().filter(|options| options.no_iommu).count();
    if ports == 0 || args.huge_pages() != HugePages::Reserve {
        return Ok(None);
    }
    let missing = memory::missing_huge_pages(bytes.saturating_add(ports * RINGS));
    Ok(Some(memory::add_huge_pages(missing).map_err(MemoryError::or_auto)?))
}
