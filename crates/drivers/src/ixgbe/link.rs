//! The link: brought up as the board's medium wants it, looked at, waited for.

use std::time::Duration;

use bywash_hw::ixgbe::regs::{AUTOC, AUTOC2, ESDP, HLREG0, LINKS, SW_FW_SYNC};
use bywash_hw::pci::Media;
use bywash_sys::function::Registers;

use super::init;
use crate::intel::{Bar, NicError, Wait};

/// AUTOC.LMS: 10 Gb/s on one lane, without negotiation: what an SFP+ cage wants.
const SERIAL_10G: u32 = 3;
/// AUTOC.LMS: 10 Gb/s on four lanes, without negotiation.
const PARALLEL_10G: u32 = 1;
/// AUTOC2.SERIAL_10G: the lane goes to an SFP+ cage.
const SFI: u32 = 2;

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether it is up.
    pub up: bool,
    /// Its speed in Mbit/s, when it is.
    pub mbps: Option<u32>,
}

/// Starts bringing the link up. Firmware may use AUTOC too, so it is changed under the semaphore for it.
pub(super) fn start<R: Registers>(bar: &Bar<R>, media: Media, loopback: bool) -> Result<(), NicError> {
    if loopback {
        bar.change(&HLREG0, 0, HLREG0::LPBK.mask);
    }
    init::SEMAPHORE.guarded(bar, SW_FW_SYNC::SW_MAC_CSR.mask, || {
        let autoc = bar.get(&AUTOC);
        let autoc = match media {
            // The link is forced up: there need be no other side.
            _ if loopback => AUTOC::LMS.put(autoc, PARALLEL_10G) | AUTOC::FLU.mask,
            Media::Sfp | Media::Fiber => {
                // The laser may be off since the last driver left.
                bar.change(&ESDP, ESDP::SDP3.mask, 0);
                let autoc2 = AUTOC2::SERIAL_10G.put(bar.get(&AUTOC2), SFI);
                bar.put(&AUTOC2, autoc2 & !AUTOC2::LINK_DISABLE.mask);
                AUTOC::LMS.put(autoc, SERIAL_10G)
            }
            // What the board has is in the EEPROM, from where AUTOC comes; or the PHY negotiates by itself.
            Media::Backplane | Media::Copper | Media::Virtual => autoc,
        };
        bar.put(&AUTOC, autoc | AUTOC::RESTART_AN.mask);
        Ok(())
    })
}

/// The link now.
pub(super) fn state<R: Registers>(bar: &Bar<R>) -> Link {
    of(bar.get(&LINKS))
}

/// What LINKS says, or a virtual function's VFLINKS. All ones say that there is no device.
pub(crate) fn of(links: u32) -> Link {
    let up = LINKS::UP.is_set(links) && links != u32::MAX;
    let mbps = match LINKS::SPEED.of(links) {
        3 => Some(10_000),
        2 => Some(1_000),
        1 => Some(100),
        _ => None,
    };
    Link { up, mbps: mbps.filter(|_| up) }
}

/// Waits until it is up.
pub(super) fn wait<R: Registers>(bar: &Bar<R>, within: Duration) -> Result<Link, NicError> {
    let meaning = "the link is down; is the cable in, and the other side on?";
    Ok(of(bar.wait(&LINKS, 0, Wait::set(LINKS::UP.mask, within, meaning))?))
}
