//! The link: the PHY negotiates it, the NIC takes over what was agreed.

use bywash_hw::igb::regs::{CTRL, MDIC, STATUS, SW_FW_SYNC};
use bywash_sys::function::Registers;

use super::init;
use crate::intel::{Bar, LinkRegister, NicError, SHORT, Wait};

/// The PHY's address behind MDIC, and its control register (IEEE 802.3, clause 22).
const PHY: u32 = 1;
const BMCR: u32 = 0;
/// Bits of the control register.
const AUTONEGOTIATE: u32 = 1 << 12;
const POWER_DOWN: u32 = 1 << 11;
const ISOLATE: u32 = 1 << 10;
const RESTART: u32 = 1 << 9;

/// MDIC.OP.
const WRITE: u32 = 1;
const READ: u32 = 2;

/// Where the NIC says what its link is.
pub(super) const REGISTER: LinkRegister =
    LinkRegister { register: &STATUS, up: STATUS::LU, speed: STATUS::SPEED, mbps: SPEEDS };

/// STATUS.SPEED, also of a virtual function.
pub(crate) const SPEEDS: [u32; 4] = [10, 100, 1_000, 1_000];

/// Starts bringing the link up.
pub(super) fn start<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    bar.change(&CTRL, CTRL::FRCSPD.mask | CTRL::FRCDPLX.mask, CTRL::SLU.mask);
    // Each port has a PHY of its own, and a bit for it.
    let own = match STATUS::LAN_ID.of(bar.get(&STATUS)) {
        0 => SW_FW_SYNC::SW_PHY0,
        _ => SW_FW_SYNC::SW_PHY1,
    };
    init::SEMAPHORE.guarded(bar, own.mask, || {
        let control = phy(bar, READ, 0)? & !(POWER_DOWN | ISOLATE);
        phy(bar, WRITE, control | AUTONEGOTIATE | RESTART).map(|_| ())
    })
}

/// Reads or writes the PHY's control register.
fn phy<R: Registers>(bar: &Bar<R>, what: u32, data: u32) -> Result<u32, NicError> {
    let ask = MDIC::OP.with(what) | MDIC::PHYADD.with(PHY) | MDIC::REGADD.with(BMCR);
    bar.put(&MDIC, ask | MDIC::DATA.with(data));
    let ready = Wait::set(MDIC::READY.mask, SHORT, "the PHY does not answer; power the machine off and on");
    let mdic = bar.wait(&MDIC, 0, ready)?;
    if MDIC::ERROR.is_set(mdic) { Err(NicError::Phy { mdic }) } else { Ok(MDIC::DATA.of(mdic)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intel::Link;

    #[test]
    fn a_status_is_a_link() {
        let of = |value| REGISTER.of(value);
        let up = |mbps| Link { up: true, mbps: Some(mbps) };
        assert_eq!([of(0x02), of(0x42), of(0x82), of(0xc2)], [up(10), up(100), up(1_000), up(1_000)]);
        assert_eq!([of(0x80), of(u32::MAX)], [Link { up: false, mbps: None }; 2]);
    }
}
