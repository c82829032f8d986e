//! `igb`: the 82576 with a copper PHY, driven from this process.
//!
//! It has the same files as `ixgbe`, and the same engine for its queues: `init` resets the NIC and makes its tables empty,
//! `rx` and `tx` prepare the two directions, `steer` says which packets are for us and which queue gets them, `rules` which
//! filter a rule lands in, `link` brings the link up, `stats` says what is counted. The datasheet was not at hand: order and
//! values follow Linux's igb and DPDK's, where each file says so.
//!
//! Not done by this driver: ports with a SerDes, virtual functions of its own, SYN and flexible filters, header split, IPsec
//! and MACsec, time stamps, wake-up, flow control (pause frames are neither sent nor obeyed).

mod init;
mod link;
mod rules;
mod rx;
mod stats;
mod steer;
#[cfg(test)]
mod tests;
mod tx;

use bywash_frame::Arena;
use bywash_hw::igb as hw;
use bywash_hw::pci::{Family, Media};
use bywash_port::PortName;
use bywash_sys::function::{Function, Registers};

pub use crate::intel::{Link, Multicast, NicError, PhysicalFunction, Place, Rss, Settings};

pub(crate) use link::SPEEDS;
pub(crate) use rx::THRESHOLDS as RX_THRESHOLDS;
pub(crate) use tx::{REST, THRESHOLDS as TX_THRESHOLDS};

use crate::intel::{
    Bar, Driver, FCS, LONGEST, Limits, Prepared, Statistics, allow_dma, before_reset, clear_counters,
    identify, power_up,
};

/// Queue pairs: RSS spreads packets over so many, and the physical function has a vector for each.
pub const MAX_QUEUES: u16 = 8;
/// Descriptors in a ring, as Linux's driver has at most.
pub const MAX_RING: u32 = 4096;

const LIMITS: Limits = Limits {
    queues: MAX_QUEUES,
    rss_queues: MAX_QUEUES,
    ring: MAX_RING,
    moderation_us: 8191,
    loopback: false,
    flow_director: false,
};

// The longest packet is the 82599's.
const _: () = assert!(hw::MAX_FRAME as usize == LONGEST + FCS);

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
    let nic = identify(&mut function, Family::Igb)?;
    if nic.media != Media::Copper {
        return Err(NicError::Setting(format!(
            "{}: this driver knows ports with a copper PHY alone",
            nic.name
        )));
    }
    power_up(&mut function)?;
    let bar = Bar::new(function.registers());
    before_reset(init::stop(&bar))?;
    init::reset(&bar)?;
    allow_dma(&mut function)?;
    init::check_eeprom(&bar)?;
    init::clear_tables(&bar);
    let mac = steer::ADDRESSES.own(&bar, settings.mac)?;
    link::start(&bar)?;
    clear_counters(&bar, hw::regs::TABLE);
    rx::prepare(&bar, settings)?;
    rx::prepare_interrupts(&bar, settings);
    tx::prepare(&bar);
    Prepared { function, bar, nic, name, mac, settings }.start(driver(), arena, |bar| {
        if settings.receives {
            rx::start(bar);
        }
        tx::start(bar);
        Ok(())
    })
}

fn driver<R: Registers>() -> Driver<R> {
    Driver {
        thread: "igb-watch",
        limits: LIMITS,
        link: link::REGISTER,
        explain: |_, error| error,
        statistics: Statistics { own: &stats::STATISTICS, shared: &stats::SHARED, twice: &[] },
        queues: (rx::QUEUES, tx::QUEUES),
        addresses: steer::ADDRESSES,
        rss: steer::RSS,
        filter: steer::filter,
        steer: Box::new(rules::Rules::new()),
        stop: init::stop,
    }
}
