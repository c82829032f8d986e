//! The link: brought up as the board's medium wants it, and where it is looked at.

use bywash_hw::ixgbe::Chip;
use bywash_hw::ixgbe::regs::{AUTOC, AUTOC2, ESDP, HLREG0, LINKS, MACC, SW_FW_SYNC};
use bywash_hw::pci::Media;
use bywash_sys::function::Registers;

use super::{init, phy};
use crate::intel::{Bar, LinkRegister, NicError};

/// AUTOC.LMS: 10 Gb/s on one lane, without negotiation: what an SFP+ cage wants.
const SERIAL_10G: u32 = 3;
/// AUTOC.LMS: 10 Gb/s on four lanes, without negotiation.
const PARALLEL_10G: u32 = 1;
/// AUTOC2.SERIAL_10G: the lane goes to an SFP+ cage.
const SFI: u32 = 2;

/// Where the NIC says what its link is.
pub(super) const REGISTER: LinkRegister =
    LinkRegister { register: &LINKS, up: LINKS::UP, speed: LINKS::SPEED, mbps: SPEEDS };

/// LINKS.SPEED, and a virtual function's VFLINKS.SPEED.
pub(crate) const SPEEDS: [u32; 4] = [0, 100, 1_000, 10_000];

/// What a link that did not come up on an SFP+ cage may lack beside a cable: lanes are set for 10 Gb/s alone.
pub(super) fn explain_cage<R: Registers>(_: &Bar<R>, error: NicError) -> NicError {
    match error {
        NicError::Timeout { register, index, value, waited, .. } => {
            let meaning = "the link is down; is the cable in, the other side on, and the module one of 10 Gb/s? Those of 1 Gb/s are not driven";
            NicError::Timeout { register, index, value, waited, meaning }
        }
        other => other,
    }
}

/// Starts bringing the link up. Firmware may use AUTOC too, so it is changed under the semaphore for it. An X540's PHY negotiates,
/// and its MAC follows.
pub(super) fn start<R: Registers>(
    bar: &Bar<R>,
    chip: Chip,
    media: Media,
    loopback: bool,
) -> Result<(), NicError> {
    if loopback {
        bar.change(&HLREG0, 0, HLREG0::LPBK.mask);
    }
    if chip == Chip::X540 {
        if loopback {
            bar.change(&MACC, 0, MACC::FLU.mask);
            return Ok(());
        }
        return phy::negotiate(bar);
    }
    init::semaphore(chip).guarded(bar, SW_FW_SYNC::SW_MAC_CSR.mask, || {
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
            // What the board has is in the EEPROM, from where AUTOC comes.
            Media::Backplane | Media::Copper | Media::Virtual => autoc,
        };
        bar.put(&AUTOC, autoc | AUTOC::RESTART_AN.mask);
        Ok(())
    })
}
