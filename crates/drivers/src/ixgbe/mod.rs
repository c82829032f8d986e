//! `ixgbe`: the 82599 (X520), and the X540 with its copper PHY, driven from this process.
//!
//! Read it beside Intel's 82599 datasheet, whose order of initialisation it follows: `init` resets the NIC and makes its tables
//! empty, `rx` and `tx` prepare the two directions, `steer` says which packets are for us and which queue gets them, `rules`
//! which of the NIC's filters a rule lands in and `flow_director` how the largest of them is driven, `link` brings the link up,
//! an X540's by its `phy`, `stats` says what is counted. The queues themselves, the code that runs for every packet, are in
//! `intel`, and so is all that every family does alike. Frames move between the NIC and packet memory without a copy.
//!
//! Not done by this driver: modules of 1 Gb/s in an SFP+ cage, receive side coalescing, header split, virtual functions of its
//! own, DCB, FCoE, IPsec and MACsec, time stamps, wake-up, flow control (pause frames are neither sent nor obeyed).

mod flow_director;
mod init;
mod link;
mod phy;
mod rules;
mod rx;
mod stats;
mod steer;
mod tx;

use bywash_frame::Arena;
use bywash_hw::ixgbe::{self as hw, Chip};
use bywash_hw::pci::{Family, Media};
use bywash_port::PortName;
use bywash_sys::function::{Function, Registers};

pub use crate::intel::{Link, Multicast, NicError, PhysicalFunction, Place, Rss, Settings};

pub(crate) use link::SPEEDS;
pub(crate) use tx::THRESHOLDS;

use crate::intel::{
    Bar, Driver, Limits, Prepared, allow_dma, before_reset, clear_counters, identify, power_up,
};
use flow_director::FlowDirector;
use rules::Rules;

/// Queue pairs: without virtualisation the NIC transmits from 64 queues, and it has as many vectors.
pub const MAX_QUEUES: u16 = 64;
/// Queues that RSS spreads packets over: its table has four bits for each.
pub const RSS_QUEUES: u16 = 16;
/// Descriptors in a ring.
pub const MAX_RING: u32 = 8192;

const LIMITS: Limits = Limits {
    queues: MAX_QUEUES,
    rss_queues: RSS_QUEUES,
    ring: MAX_RING,
    moderation_us: 1022,
    loopback: true,
    flow_director: true,
};

/// Resets and starts the NIC behind `function`, on packets in `arena`. Its link need not be up when this returns:
/// [`PhysicalFunction::wait_for_link`].
///
/// # Errors
/// [`NicError`], naming the register. The device is out of use then.
pub fn open<F: Function>(
    mut function: F,
    name: PortName,
    settings: &Settings,
    arena: &'static Arena,
) -> Result<PhysicalFunction<F>, NicError> {
    LIMITS.check(settings)?;
    let nic = identify(&mut function, Family::Ixgbe)?;
    power_up(&mut function)?;
    let chip = Chip::of(nic.device);
    let bar = Bar::new(function.registers());
    before_reset(init::stop(&bar, chip))?;
    init::reset(&bar, chip)?;
    allow_dma(&mut function)?;
    init::check_eeprom(&bar, chip)?;
    init::clear_tables(&bar);
    let mac = steer::ADDRESSES.own(&bar, settings.mac)?;
    clear_counters(&bar, hw::regs::TABLE);
    rx::prepare(&bar, settings, chip)?;
    let director = settings.fdir.map(|size| FlowDirector::start(&bar, size)).transpose()?;
    rx::prepare_interrupts(&bar, settings);
    tx::prepare(&bar, settings);
    let driver = driver(chip, nic.media, director);
    Prepared { function, bar, nic, name, mac, settings }.start(driver, arena, |bar| {
        if settings.receives {
            rx::start(bar)?;
        }
        link::start(bar, chip, nic.media, settings.loopback)
    })
}

fn driver<R: Registers>(chip: Chip, media: Media, director: Option<FlowDirector>) -> Driver<R> {
    Driver {
        thread: "ixgbe-watch",
        limits: LIMITS,
        link: link::REGISTER,
        explain: match (chip, media) {
            (Chip::X540, _) => phy::explain,
            (Chip::I82599, Media::Sfp) => link::explain_cage,
            (Chip::I82599, _) => |_, error| error,
        },
        statistics: stats::STATISTICS,
        queues: (rx::QUEUES, tx::QUEUES),
        addresses: steer::ADDRESSES,
        rss: steer::RSS,
        // The datasheet wants the receiver off meanwhile.
        filter: |bar, settings| rx::paused(bar, || steer::filter(bar, settings)),
        steer: Box::new(Rules::new(director)),
        stop: match chip {
            Chip::I82599 => |bar| init::stop(bar, Chip::I82599),
            Chip::X540 => |bar| init::stop(bar, Chip::X540),
        },
    }
}

/// Queues whose registers there are, used or not.
const ALL_QUEUES: u32 = hw::QUEUES;
