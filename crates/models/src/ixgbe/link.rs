//! The link: it comes up some time after it was asked for, if there is light. 10 Gb/s on SFP and backplane, on copper what
//! the PHY has agreed on.

use bywash_hw::ixgbe::regs::{ANLP1, AUTOC, EICR, LINKS};

use super::Nic;

/// How long it takes to come up, in microseconds. Real ones need up to seconds; a test should not.
const UP_AFTER_US: u64 = 10_000;

/// Value of LINKS.SPEED for 10 Gb/s.
const SPEED_10G: u32 = 3;

/// The link's state.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) up: bool,
    /// Its speed, as LINKS.SPEED numbers it.
    pub(super) speed: u32,
    /// Whether there is light: the cable is in and the other side is on.
    pub(super) light: bool,
    /// When it comes up, if nothing happens meanwhile.
    up_at: Option<u64>,
}

impl Link {
    pub(super) fn new() -> Self {
        Self { up: false, speed: SPEED_10G, light: true, up_at: Some(UP_AFTER_US) }
    }
}

impl Nic {
    /// Takes the link down and, if there is light, up again after its time.
    pub(super) fn restart_link(&mut self) {
        self.set_link(false);
        self.phy.negotiate();
        self.link.up_at = Some(self.now + UP_AFTER_US);
    }

    /// The speed that a link would have now; `None` when there can be none.
    fn speed(&self) -> Option<u32> {
        match self.board.has_phy() {
            true => self.phy.agreed(self.partner).filter(|_| !self.faults.negotiation_hangs),
            false => Some(SPEED_10G),
        }
    }

    /// AUTOC was written.
    pub(super) fn autoc(&mut self, value: u32) {
        if AUTOC::RESTART_AN.is_set(value) {
            self.file.put(&AUTOC, value & !AUTOC::RESTART_AN.mask);
            self.restart_link();
        }
    }

    /// Time has passed.
    pub(super) fn step_link(&mut self) {
        let light = self.link.light && !self.faults.no_link;
        if !light {
            self.set_link(false);
            self.link.up_at = None;
        } else if self.link.up_at.is_some_and(|at| at <= self.now) {
            self.link.up_at = None;
            if let Some(speed) = self.speed() {
                self.link.speed = speed;
                self.set_link(true);
            }
        } else if !self.link.up && self.link.up_at.is_none() {
            self.link.up_at = Some(self.now + UP_AFTER_US);
        }
    }

    fn set_link(&mut self, up: bool) {
        let was = std::mem::replace(&mut self.link.up, up);
        let links = if up { LINKS::UP.mask | LINKS::SPEED.with(self.link.speed) | 0x81 } else { 0 };
        self.file.put(&LINKS, links);
        self.file.put(&ANLP1, ANLP1::AN_STATE.with(if up { 9 } else { 4 }));
        if was != up {
            self.interrupts.other(EICR::LSC.mask);
        }
    }
}
