//! The copper PHY of an X540, behind MDIO (clause 45 of IEEE 802.3): found, woken, and told what to offer; in the order of Intel's
//! shared code (`ixgbe_identify_phy_generic` and `ixgbe_setup_phy_link_generic` of intel/ethernet-linux-ixgbe, commit 52e3c49).

use std::thread::sleep;
use std::time::{Duration, Instant};

use bywash_hw::ixgbe::Chip;
use bywash_hw::ixgbe::phy::{
    ADDRESSES, AN_10G_CONTROL, AN_10G_STATUS, AN_ADVERTISE, AN_CONTROL, AN_PARTNER, AN_PROVISION, AN_SPEED,
    AN_STATUS, ID_HIGH, ID_LOW, OPCODE_ADDRESS, OPCODE_READ, OPCODE_WRITE, PMD_CONTROL, POWER, SPEEDS,
};
use bywash_hw::ixgbe::regs::{MMNGC, MSCA, MSRWD, STATUS, SW_FW_SYNC};
use bywash_hw::reg::{Field, Register};
use bywash_sys::function::Registers;

use super::{init, link};
use crate::intel::{Bar, NicError, SHORT, Wait};

/// How long a PHY may take for a reset (IEEE 802.3, 45.2.1.1.1).
const RESET: Duration = Duration::from_millis(500);

/// The bit of SW_FW_SYNC that says who talks to this port's PHY.
pub(super) fn semaphore_bit<R: Registers>(bar: &Bar<R>) -> u32 {
    let second = STATUS::LAN_ID.of(bar.get(&STATUS)) != 0;
    if second { SW_FW_SYNC::SW_PHY1.mask } else { SW_FW_SYNC::SW_PHY0.mask }
}

/// Has the PHY offer all that it is capable of, and negotiate anew: not if the firmware that manages the machine forbids it.
pub(super) fn negotiate<R: Registers>(bar: &Bar<R>) -> Result<(), NicError> {
    let vetoed = MMNGC::MNG_VETO.is_set(bar.get(&MMNGC));
    talk(bar, |phy| {
        phy.wait_for_reset()?;
        // The last driver may have switched its power off.
        phy.change(&POWER, POWER::LOW_POWER, false)?;
        phy.change(&PMD_CONTROL, PMD_CONTROL::LOW_POWER, false)?;
        let speeds = phy.read(&SPEEDS)?;
        let able = [SPEEDS::GBIT_10, SPEEDS::GBIT_1, SPEEDS::MBIT_100].map(|speed| speed.is_set(speeds));
        if able == [false; 3] {
            return Err(NicError::PhyUnable { id: phy.id, speeds });
        }
        phy.change(&AN_10G_CONTROL, AN_10G_CONTROL::T_10G, able[0])?;
        phy.change(&AN_PROVISION, AN_PROVISION::T_1000, able[1])?;
        phy.change(&AN_ADVERTISE, AN_ADVERTISE::TX_100_HALF, false)?;
        phy.change(&AN_ADVERTISE, AN_ADVERTISE::TX_100, able[2])?;
        if vetoed {
            return Ok(());
        }
        let control = phy.read(&AN_CONTROL)? & !AN_CONTROL::RESET.mask;
        phy.write(&AN_CONTROL, control | AN_CONTROL::ENABLE.mask | AN_CONTROL::RESTART.mask)
    })
}

/// Makes of a link that did not come up in time what the PHY says of it.
pub(super) fn explain<R: Registers>(bar: &Bar<R>, error: NicError) -> NicError {
    if !matches!(error, NicError::Timeout { .. }) {
        return error;
    }
    let asked = talk(bar, |phy| {
        // What it says of the link sticks until it is read once.
        phy.read(&AN_STATUS)?;
        let status = phy.read(&AN_STATUS)?;
        if !AN_STATUS::COMPLETE.is_set(status) {
            return Ok(NicError::Negotiation { status });
        }
        let partner = (phy.read(&AN_PARTNER)?, phy.read(&AN_10G_STATUS)?);
        let mbps = link::SPEEDS[AN_SPEED::SPEED.of(phy.read(&AN_SPEED)?) as usize];
        Ok(NicError::NotFollowed { mbps, status, partner })
    });
    asked.unwrap_or_else(|error| error)
}

/// Does something with the PHY while nobody else talks to it.
fn talk<R: Registers, T>(
    bar: &Bar<R>,
    act: impl FnOnce(&Phy<'_, R>) -> Result<T, NicError>,
) -> Result<T, NicError> {
    init::semaphore(Chip::X540).guarded(bar, semaphore_bit(bar), || act(&Phy::find(bar)?))
}

/// A PHY that answers.
struct Phy<'a, R> {
    bar: &'a Bar<R>,
    address: u32,
    id: u32,
}

impl<'a, R: Registers> Phy<'a, R> {
    /// The first that has an identifier.
    fn find(bar: &'a Bar<R>) -> Result<Self, NicError> {
        for address in 0..ADDRESSES {
            let phy = Self { bar, address, id: 0 };
            let high = phy.read(&ID_HIGH)?;
            // Nobody drives the bus where nobody is.
            if !matches!(high, 0 | 0xffff) {
                return Ok(Self { id: high << 16 | phy.read(&ID_LOW)?, ..phy });
            }
        }
        Err(NicError::NoPhy)
    }

    fn read(&self, register: &Register) -> Result<u32, NicError> {
        self.command(register, OPCODE_ADDRESS)?;
        self.command(register, OPCODE_READ)?;
        Ok(MSRWD::MDIRDDATA.of(self.bar.get(&MSRWD)))
    }

    fn write(&self, register: &Register, value: u32) -> Result<(), NicError> {
        self.bar.put(&MSRWD, MSRWD::MDIWRDATA.with(value));
        self.command(register, OPCODE_ADDRESS)?;
        self.command(register, OPCODE_WRITE)
    }

    /// Sets or clears bits, if they are not so.
    fn change(&self, register: &Register, field: Field, set: bool) -> Result<(), NicError> {
        let before = self.read(register)?;
        let after = if set { before | field.mask } else { before & !field.mask };
        if before == after { Ok(()) } else { self.write(register, after) }
    }

    fn command(&self, register: &Register, opcode: u32) -> Result<(), NicError> {
        let which = register.offset() | MSCA::PHYADD.with(self.address);
        self.bar.put(&MSCA, which | MSCA::OPCODE.with(opcode) | MSCA::MDICMD.mask);
        let meaning = "the bus to the PHY (MDIO) does not end a command; power the machine off and on";
        self.bar.wait(&MSCA, 0, Wait::clear(MSCA::MDICMD.mask, SHORT, meaning)).map(|_| ())
    }

    /// A driver that was killed may have left it in the midst of one.
    fn wait_for_reset(&self) -> Result<(), NicError> {
        let begun = Instant::now();
        loop {
            let value = self.read(&PMD_CONTROL)?;
            if !PMD_CONTROL::RESET.is_set(value) {
                return Ok(());
            }
            if begun.elapsed() >= RESET {
                return Err(NicError::PhyReset { id: self.id, control: value });
            }
            sleep(Duration::from_millis(5));
        }
    }
}
