//! The copper PHY of an X540: registers behind MDIO (clause 45), its reset, and what it negotiates with the other side.
//!
//! A reset of the NIC restarts negotiation and leaves what drivers have set in the PHY: the worst that the next one can meet.

use bywash_hw::ixgbe::phy::{
    self, AN_10G_CONTROL, AN_10G_STATUS, AN_ADVERTISE, AN_CONTROL, AN_PARTNER, AN_PROVISION, AN_SPEED,
    AN_STATUS, PCS_STATUS, PMD_CONTROL, PMD_DEVICES, PMD_STATUS_2, POWER, SPEEDS,
};
use bywash_hw::ixgbe::regs::{MMNGC, MSCA, MSRWD, SW_FW_SYNC};
use bywash_hw::reg::Register;

use super::Nic;
use super::strict::Rule;

/// How long a command on MDIO takes, in microseconds.
const COMMAND_US: u64 = 20;
/// How long a reset of the PHY takes, in microseconds. Real ones may need half a second.
const RESET_US: u64 = 5_000;
/// The PHY's address on the bus.
const ADDRESS: u32 = 0;
/// Its revision.
const REVISION: u32 = 1;
/// What is read where nobody answers.
const NOBODY: u32 = 0xffff;

/// What one side of a cable can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// 10GBASE-T.
    pub gbit_10: bool,
    /// 1000BASE-T.
    pub gbit_1: bool,
    /// 100BASE-TX.
    pub mbit_100: bool,
}

impl Offer {
    /// All three.
    pub const ALL: Self = Self { gbit_10: true, gbit_1: true, mbit_100: true };

    /// The fastest that both can do, as LINKS.SPEED and the PHY's AN_SPEED number it; `None` when there is none.
    fn with(self, other: Self) -> Option<u32> {
        [
            (3, self.gbit_10 && other.gbit_10),
            (2, self.gbit_1 && other.gbit_1),
            (1, self.mbit_100 && other.mbit_100),
        ]
        .iter()
        .find_map(|(speed, both)| both.then_some(*speed))
    }
}

/// The PHY, and the command that is under way to it.
#[derive(Clone, Debug)]
pub(super) struct Phy {
    /// Registers that are written, by their place in the table.
    words: Vec<u32>,
    /// The address that each device was given last.
    addresses: [u32; 32],
    /// When the command ends, and what MSCA and MSRWD said when it began.
    command: Option<(u64, u32, u32)>,
    /// When a reset ends.
    reset_until: Option<u64>,
    /// What was offered when negotiation began: what is set later counts at the next start.
    offered: Offer,
    /// The link was down since AN_STATUS was read.
    was_down: bool,
}

impl Phy {
    pub(super) fn new() -> Self {
        let mut phy = Self {
            words: vec![0; phy::TABLE.len()],
            addresses: [0; 32],
            command: None,
            reset_until: None,
            offered: Offer::ALL,
            was_down: true,
        };
        phy.as_its_eeprom_says();
        phy
    }

    fn as_its_eeprom_says(&mut self) {
        self.words.fill(0);
        self.put(&AN_CONTROL, AN_CONTROL::ENABLE.mask);
        self.put(&AN_ADVERTISE, AN_ADVERTISE::TX_100.mask);
        self.put(&AN_10G_CONTROL, AN_10G_CONTROL::T_10G.mask);
        self.put(&AN_PROVISION, AN_PROVISION::T_1000.mask);
    }

    fn place(register: &Register) -> usize {
        phy::TABLE.iter().position(|entry| entry.name == register.name).unwrap_or(0)
    }

    fn get(&self, register: &Register) -> u32 {
        self.words[Self::place(register)]
    }

    fn put(&mut self, register: &Register, value: u32) {
        self.words[Self::place(register)] = value;
    }

    /// What it can have a link by, as it is set now.
    fn own(&self) -> Offer {
        Offer {
            gbit_10: AN_10G_CONTROL::T_10G.is_set(self.get(&AN_10G_CONTROL)),
            gbit_1: AN_PROVISION::T_1000.is_set(self.get(&AN_PROVISION)),
            mbit_100: AN_ADVERTISE::TX_100.is_set(self.get(&AN_ADVERTISE)),
        }
    }

    fn is_powered(&self) -> bool {
        !POWER::LOW_POWER.is_set(self.get(&POWER)) && !PMD_CONTROL::LOW_POWER.is_set(self.get(&PMD_CONTROL))
    }

    /// Negotiation begins anew.
    pub(super) fn negotiate(&mut self) {
        self.offered = self.own();
        self.was_down = true;
    }

    /// The speed that both sides agree on, as LINKS.SPEED numbers it; `None` when there can be no link.
    pub(super) fn agreed(&self, partner: Offer) -> Option<u32> {
        let negotiates = AN_CONTROL::ENABLE.is_set(self.get(&AN_CONTROL)) && self.reset_until.is_none();
        self.offered.with(partner).filter(|_| negotiates && self.is_powered())
    }
}

impl Nic {
    /// MSCA or MSRWD is used: nobody else may, and no command may be under way.
    pub(super) fn check_phy_access(&mut self, register: &'static str) {
        if !self.board.has_phy() {
            return;
        }
        if !SW_FW_SYNC::SW_PHY0.is_set(self.file.one(&SW_FW_SYNC)) {
            self.violations.add(register, 0, Rule::NoSemaphore);
        }
        if self.phy.command.is_some() {
            self.violations.add(register, 0, Rule::CommandUnderWay);
        }
    }

    /// A command was written to MSCA.
    pub(super) fn msca(&mut self, value: u32) {
        if self.board.has_phy() {
            self.phy.command = Some((self.now + COMMAND_US, value, self.file.one(&MSRWD)));
        } else {
            self.answer_msca(value, NOBODY);
        }
    }

    fn answer_msca(&mut self, msca: u32, data: u32) {
        self.file.put(&MSCA, msca & !MSCA::MDICMD.mask);
        self.file.put(&MSRWD, MSRWD::MDIRDDATA.put(self.file.one(&MSRWD), data));
    }

    /// A command that was under way to the PHY when the NIC was reset is lost.
    pub(super) fn drop_phy_command(&mut self) {
        self.phy.command = None;
    }

    /// Time has passed.
    pub(super) fn step_phy(&mut self) {
        if self.phy.reset_until.is_some_and(|until| until <= self.now) {
            self.phy.reset_until = None;
            self.phy.as_its_eeprom_says();
            self.restart_link();
        }
        if self.faults.mdio_hangs {
            return;
        }
        let Some((_, msca, msrwd)) = self.phy.command.take_if(|(until, ..)| *until <= self.now) else {
            return;
        };
        let here = MSCA::STCODE.of(msca) == 0 && MSCA::PHYADD.of(msca) == ADDRESS && !self.faults.no_phy;
        let device = MSCA::DEVADD.of(msca);
        let latched = self.phy.addresses[device as usize];
        let data = match MSCA::OPCODE.of(msca) {
            _ if !here => NOBODY,
            phy::OPCODE_ADDRESS => {
                self.phy.addresses[device as usize] = MSCA::MDIADD.of(msca);
                0
            }
            phy::OPCODE_WRITE => {
                self.write_phy(device << 16 | latched, MSRWD::MDIWRDATA.of(msrwd));
                0
            }
            opcode => {
                if opcode == phy::OPCODE_READ_NEXT {
                    self.phy.addresses[device as usize] = (latched + 1) & 0xffff;
                }
                self.read_phy(device << 16 | latched)
            }
        };
        self.answer_msca(msca, data);
    }

    /// Reads the PHY's register with this device and address. What it does not have reads as 0.
    fn read_phy(&mut self, at: u32) -> u32 {
        let Some((register, _)) = bywash_hw::reg::find(phy::TABLE, at) else { return 0 };
        let up = u32::from(self.link.up);
        let in_reset = self.phy.reset_until.is_some() || self.faults.phy_reset_hangs;
        let partner = self.partner;
        match register.name {
            "PMD_CONTROL" => PMD_CONTROL::RESET.put(self.phy.get(&PMD_CONTROL), u32::from(in_reset)),
            "ID_HIGH" => phy::X540_ID >> 16,
            "ID_LOW" => phy::ID_LOW::REVISION.put(phy::X540_ID & 0xffff, REVISION),
            "SPEEDS" if self.faults.phy_without_speeds => 0,
            "SPEEDS" => SPEEDS::GBIT_10.mask | SPEEDS::GBIT_1.mask | SPEEDS::MBIT_100.mask,
            "PMD_DEVICES" => PMD_DEVICES::PMD.mask | PMD_DEVICES::PCS.mask | PMD_DEVICES::AN.mask,
            "PMD_STATUS_2" => PMD_STATUS_2::PRESENT.with(2),
            "PCS_STATUS" => PCS_STATUS::LINK.with(up),
            "AN_STATUS" => {
                let since = u32::from(self.link.up && !std::mem::replace(&mut self.phy.was_down, false));
                AN_STATUS::ABLE.mask
                    | AN_STATUS::LINK.with(since)
                    | AN_STATUS::COMPLETE.with(up)
                    | AN_STATUS::PARTNER_ABLE.with(up)
            }
            "AN_PARTNER" => AN_PARTNER::TX_100.with(up & u32::from(partner.mbit_100)),
            "AN_10G_STATUS" => AN_10G_STATUS::T_10G.with(up & u32::from(partner.gbit_10)),
            "AN_SPEED" if self.link.up => AN_SPEED::FULL_DUPLEX.mask | AN_SPEED::SPEED.with(self.link.speed),
            _ => self.phy.get(register),
        }
    }

    /// Writes the PHY's register with this device and address. What it does not have, or only reads, stays.
    fn write_phy(&mut self, at: u32, value: u32) {
        let Some((register, _)) = bywash_hw::reg::find(phy::TABLE, at) else { return };
        if register.writable == 0 || self.phy.reset_until.is_some() {
            return;
        }
        let before = self.phy.get(register);
        let restarts = match register.name {
            "PMD_CONTROL" if PMD_CONTROL::RESET.is_set(value) => {
                self.phy.reset_until = Some(self.now + RESET_US);
                true
            }
            "AN_CONTROL" => {
                let restart = AN_CONTROL::RESTART.is_set(value);
                if restart && MMNGC::MNG_VETO.is_set(self.mmngc()) {
                    self.violations.add("MMNGC", 0, Rule::Vetoed);
                }
                restart || (before ^ value) & AN_CONTROL::ENABLE.mask != 0
            }
            "PMD_CONTROL" | "POWER" => before != value,
            _ => false,
        };
        self.phy
            .put(register, value & !(AN_CONTROL::RESTART.mask * u32::from(register.name == "AN_CONTROL")));
        if restarts {
            self.restart_link();
        }
    }

    /// MMNGC as it reads.
    pub(super) fn mmngc(&self) -> u32 {
        MMNGC::MNG_VETO.with(u32::from(self.faults.management_keeps_link))
    }
}
