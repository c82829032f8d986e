//! What reading and writing each register does, besides holding a value.

use bywash_hw::ixgbe::regs::{
    self, CTRL, DCA_RXCTRL, DCA_TXCTRL, DMATXCTL, EEC, EERD, ESDP, FTQF, HLREG0, MSCA, PFQDE, RDRXCTL,
    RTTDCS, RXCTRL, RXDCTL, SECRXSTAT, SW_FW_SYNC, SWSM, TDWBAL, TXDCTL,
};
use bywash_hw::ixgbe::{Chip, QUEUES, RING_ALIGNMENT};

use super::Nic;
use super::file::{Place, place};
use super::filters::leaves_flags_alone;
use super::rss::Toeplitz;
use super::strict::Rule;

/// Bits of SW_FW_SYNC that are the firmware's.
const FIRMWARE_SYNC: u32 = 0x0000_03e0;

impl Nic {
    /// Reads the register at `offset`.
    pub fn read32(&mut self, offset: u32) -> u32 {
        self.faults.removed |= self.faults.removed_after == 1;
        self.faults.removed_after = self.faults.removed_after.saturating_sub(1);
        if self.faults.removed {
            return u32::MAX;
        }
        self.observed.reads += 1;
        if self.is_virtual { self.read_virtual(offset) } else { self.read_register(offset) }
    }

    /// Reads the register that the NIC itself has at `offset`.
    pub(super) fn read_register(&mut self, offset: u32) -> u32 {
        let Some(at) = place(offset) else {
            self.violations.add("(none)", 0, Rule::Unknown(offset));
            return 0;
        };
        // Drivers flush the reset itself by reading these.
        if !matches!(at.register.name, "CTRL" | "STATUS") {
            self.check_quiet(at);
        }
        match at.register.name {
            "STATUS" => self.status(),
            "EEC" => {
                let eec = self.file.one(&EEC);
                if self.faults.no_eeprom { eec & !(EEC::PRES.mask | EEC::ARD.mask) } else { eec }
            }
            "SWSM" => {
                let swsm = self.file.one(&SWSM);
                self.file.put(&SWSM, swsm | SWSM::SMBI.mask);
                if self.faults.stuck_semaphore { swsm | SWSM::SMBI.mask } else { swsm }
            }
            "SW_FW_SYNC" => {
                let held = self.firmware_holds();
                let sync = self.file.one(&SW_FW_SYNC);
                if self.board.chip() == Chip::X540 {
                    self.file.put(&SW_FW_SYNC, sync | SW_FW_SYNC::REGSMP.mask);
                }
                sync | held
            }
            "MSRWD" => {
                self.check_phy_access("MSRWD");
                self.file.read(at)
            }
            "MMNGC" => self.mmngc(),
            "LINKS" if self.faults.links_says_down => 0,
            "EICR" => self.interrupts.read_causes(&self.file),
            "EICS" => self.interrupts.causes(),
            "EIMS" => self.interrupts.eims(),
            "EIMS_EX" => self.interrupts.eims_ex(at.index),
            "RDRXCTL" => {
                RDRXCTL::DMAIDONE.put(self.file.one(&RDRXCTL), u32::from(!self.faults.dma_never_initialised))
            }
            "SECRXSTAT" => SECRXSTAT::SECRX_RDY.with(u32::from(!self.faults.security_never_ready)),
            _ => self.file.read(at),
        }
    }

    /// Writes the register at `offset`.
    pub fn write32(&mut self, offset: u32, value: u32) {
        if self.faults.removed {
            return;
        }
        self.observed.writes += 1;
        if self.is_virtual {
            self.write_virtual(offset, value);
        } else {
            self.write_register(offset, value);
        }
    }

    /// Writes the register that the NIC itself has at `offset`.
    pub(super) fn write_register(&mut self, offset: u32, value: u32) {
        let Some(at) = place(offset) else {
            self.violations.add("(none)", 0, Rule::Unknown(offset));
            return;
        };
        self.check_quiet(at);
        let before = self.file.get(at.register, at.index);
        if !self.guard(at, before, value) {
            return;
        }
        let now = self.file.write(at, value);
        self.effect(at, before, now, value);
    }

    /// The first address of the register at `offset`; `None` when there is none.
    pub(crate) fn first_address(offset: u32) -> Option<u32> {
        place(offset).map(|at| at.register.at(at.index))
    }

    /// The register whose first address is `offset`, without what reading it does.
    #[inline]
    pub(crate) fn peek(&self, offset: u32) -> u32 {
        self.file.word(offset)
    }

    /// Whether the tail at `offset` is that of a queue which is enabled; `None` when no tail lies there.
    pub(crate) fn has_tail(&self, offset: u32) -> Option<bool> {
        let at = place(offset)?;
        match at.register.name {
            "RDT" => Some(self.receives(at.index)),
            "TDT" => Some(self.transmits(at.index)),
            _ => None,
        }
    }

    /// Whether the queue with the tail at `offset` was enabled and does not say so yet.
    pub(crate) fn is_starting(&self, offset: u32) -> bool {
        place(offset).is_some_and(|at| match at.register.name {
            "RDT" => self.starting.0 >> at.index & 1 != 0,
            "TDT" => self.starting.1 >> at.index & 1 != 0,
            _ => false,
        })
    }

    /// Whether the register at `offset` enables a queue.
    pub(crate) fn has_switch(offset: u32) -> bool {
        place(offset).is_some_and(|at| matches!(at.register.name, "RXDCTL" | "TXDCTL"))
    }

    /// Whether a queue is enabled that has `value` in such a register.
    pub(crate) fn is_on(value: u32) -> bool {
        // The bit is the same for both directions.
        (RXDCTL::ENABLE.mask & TXDCTL::ENABLE.mask) & value != 0
    }

    /// An access that is no read or write of one register. It does nothing.
    pub fn misaccess(&mut self, offset: u64, bytes: usize) {
        self.violations.add("(none)", 0, Rule::NotAWord(offset, bytes));
    }

    fn check_quiet(&mut self, at: Place) {
        // Linux gives the PHY back as soon as it has told an X540 to reset, and semaphores are not reset.
        let semaphore = matches!(at.register.name, "SWSM" | "SW_FW_SYNC") && self.board.chip() == Chip::X540;
        if self.now < self.quiet_until && !semaphore {
            self.violations.add(at.register.name, at.index, Rule::TooSoonAfterReset);
        }
    }

    /// Rules that are checked before a write. False when it does nothing to the register's own word.
    fn guard(&mut self, at: Place, before: u32, value: u32) -> bool {
        let (name, queue) = (at.register.name, at.index);
        if matches!(name, "MSCA" | "MSRWD") {
            self.check_phy_access(name);
        }
        let mut broken = None;
        match name {
            "RDT" if value != 0 && !self.receives(queue) => broken = Some(Rule::TailBeforeEnable),
            "TDT" if value != 0 && !self.transmits(queue) => broken = Some(Rule::TailBeforeEnable),
            "RDT" if value >= (self.file.get(&regs::RDLEN, queue) / 16).max(1) => {
                broken = Some(Rule::TailOutsideRing(value));
            }
            "TDT" if value >= (self.file.get(&regs::TDLEN, queue) / 16).max(1) => {
                broken = Some(Rule::TailOutsideRing(value));
            }
            "RDBAL" | "RDBAH" | "RDLEN" if self.receives(queue) => {
                broken = Some(Rule::RingChangedWhileEnabled)
            }
            "TDBAL" | "TDBAH" | "TDLEN" | "TDH" if self.transmits(queue) => {
                broken = Some(Rule::RingChangedWhileEnabled)
            }
            "RDBAL" | "RDLEN" | "TDBAL" | "TDLEN" if !value.is_multiple_of(RING_ALIGNMENT) => {
                broken = Some(Rule::Unaligned(value));
            }
            "TDWBAL" if TDWBAL::HEAD_WB_EN.is_set(value) && value & 0xc != 0 => {
                broken = Some(Rule::HeadWriteBackUnaligned(value));
            }
            "FCTRL" | "RXCSUM" if RXCTRL::RXEN.is_set(self.file.one(&RXCTRL)) && value != before => {
                broken = Some(Rule::ReceiverRunning);
            }
            "MTQC" if !RTTDCS::ARBDIS.is_set(self.file.one(&RTTDCS)) => broken = Some(Rule::ArbiterRunning),
            // A reset sets it. DPDK leaves it so in all queues, used or not: to say that each time would drown all else.
            "DCA_RXCTRL" if DCA_RXCTRL::RESERVED_12.is_set(value & !before) => {
                broken = Some(Rule::ReservedBit)
            }
            "FTQF" if FTQF::QUEUE_ENABLE.is_set(value) && FTQF::PRIORITY.of(value) == 0 => {
                broken = Some(Rule::NoPriority);
            }
            "L34TIMIR" if value != 0 && !leaves_flags_alone(value) => broken = Some(Rule::ControlBits(value)),
            "SW_FW_SYNC" if value & FIRMWARE_SYNC != self.firmware_holds() => {
                broken = Some(Rule::FirmwareBits)
            }
            "SW_FW_SYNC" if !self.holds_semaphore(before) => broken = Some(Rule::NoSemaphore),
            _ => {}
        }
        if let Some(rule) = broken {
            self.violations.add(name, queue, rule);
        }
        // Software may set RDH while the queue is off, though the table says that only the NIC changes it.
        if name == "RDH" && !self.receives(queue) {
            self.file.set(&regs::RDH, queue, value & 0xffff);
        }
        true
    }

    /// The firmware's bits of SW_FW_SYNC.
    fn firmware_holds(&self) -> u32 {
        if self.faults.firmware_holds_sync { FIRMWARE_SYNC } else { 0 }
    }

    /// Whether the second of the two semaphores is taken, without which SW_FW_SYNC is not to be written.
    fn holds_semaphore(&self, sync: u32) -> bool {
        match self.board.chip() {
            Chip::I82599 => SWSM::SWESMBI.is_set(self.file.one(&SWSM)),
            Chip::X540 => SW_FW_SYNC::REGSMP.is_set(sync),
        }
    }

    fn receives(&self, queue: u32) -> bool {
        RXDCTL::ENABLE.is_set(self.file.get(&RXDCTL, queue))
    }

    fn transmits(&self, queue: u32) -> bool {
        TXDCTL::ENABLE.is_set(self.file.get(&TXDCTL, queue))
    }

    /// What a write does.
    fn effect(&mut self, at: Place, before: u32, now: u32, value: u32) {
        match at.register.name {
            "CTRL" if CTRL::RST.is_set(value) || CTRL::LRST.is_set(value) => {
                self.reset(&[&super::SEMAPHORES[..], &super::TABLES].concat())
            }
            "EICR" => self.interrupts.clear_causes(value),
            "EICS" => self.interrupts.set_causes(value),
            "EICS_EX" => self.interrupts.set_vectors(at.index, value),
            "EIMS" => self.interrupts.unmask(value, true),
            "EIMC" => self.interrupts.unmask(value, false),
            "EIMS_EX" => self.interrupts.unmask_vectors(at.index, value, true),
            "EIMC_EX" => self.interrupts.unmask_vectors(at.index, value, false),
            // The firmware's bits are not there for software to change.
            "SW_FW_SYNC" => self.file.put(&SW_FW_SYNC, now & !FIRMWARE_SYNC),
            "EEC" => self.eec(now),
            "EERD" if EERD::START.is_set(value) => self.eerd(value),
            "I2CCTL" if self.board.has_cage() => {
                let word = self.module.pins(now);
                self.file.put(&regs::I2CCTL, word);
            }
            // The cage says that it is full, whatever is written to the pin.
            "ESDP" => self.file.put(&ESDP, ESDP::SDP2.put(now, u32::from(self.board.has_cage()))),
            "MSCA" if MSCA::MDICMD.is_set(value) => self.msca(now),
            // An X540's link is its PHY's.
            "AUTOC" if self.board.chip() == Chip::I82599 => self.autoc(now),
            // Nor does it have this semaphore.
            "SWSM" if self.board.chip() == Chip::X540 => self.file.put(&SWSM, now & !SWSM::SWESMBI.mask),
            "RXCTRL" if RXCTRL::RXEN.is_set(now & !before) => self.check_receiver(),
            "RXDCTL" => self.rxdctl(at.index, before, value),
            "TXDCTL" => self.txdctl(at.index, before, value),
            "SRRCTL" => self.check_srrctl(at.index),
            "TDT" => self.tx.kick(at.index),
            "DMATXCTL" => (0..QUEUES).for_each(|queue| self.tx.kick(queue)),
            "PFQDE" if PFQDE::WE.is_set(value) => {
                let bit = 1 << PFQDE::QUEUE_IDX.of(value);
                self.pfqde = if PFQDE::QDE.is_set(value) { self.pfqde | bit } else { self.pfqde & !bit };
            }
            "FDIRCTRL" => {
                let (file, kib) = (&mut self.file, self.board.chip().receive_memory() / 1024);
                self.flow_director.initialise(file, kib, &self.faults, &mut self.violations);
            }
            "FDIRCMD" if !self.faults.flow_director_hangs => {
                self.flow_director.command(&mut self.file, &self.faults, &mut self.violations);
            }
            "RSSRK" => self.rss = Toeplitz::default(),
            "FTQF" => self.rx.set_five_tuple(at.index, FTQF::QUEUE_ENABLE.is_set(now)),
            "WUS" => self.file.put(&regs::WUS, before & !value),
            _ => {}
        }
    }

    /// EEC: a request is granted, and the serial chip sees its pins.
    fn eec(&mut self, eec: u32) {
        let eec = EEC::GNT.put(eec, EEC::REQ.of(eec));
        let eec = self.eeprom.pins(eec);
        self.file.put(&EEC, eec);
    }

    fn eerd(&mut self, value: u32) {
        let at = u16::try_from(EERD::ADDR.of(value)).unwrap_or(u16::MAX);
        let mut word = self.eeprom.word(at);
        if at == bywash_hw::ixgbe::eeprom::CHECKSUM_WORD && self.faults.bad_checksum {
            word = word.wrapping_add(1);
        }
        let answer = EERD::DATA.with(u32::from(word)) | EERD::DONE.mask | EERD::ADDR.with(u32::from(at));
        self.file.put(&EERD, answer);
    }

    /// What must hold when the receiver is started.
    fn check_receiver(&mut self) {
        let rdrxctl = self.file.one(&RDRXCTL);
        let strips = HLREG0::RXCRCSTRP.is_set(self.file.one(&HLREG0));
        if strips != RDRXCTL::CRCSTRIP.is_set(rdrxctl) {
            self.violations.add("RDRXCTL", 0, Rule::CrcStripDiffers);
        }
        let set = RDRXCTL::RSCACKC.is_set(rdrxctl) && RDRXCTL::FCOE_WRFIX.is_set(rdrxctl);
        if !set || RDRXCTL::RSCFRSTSIZE.is_set(rdrxctl) {
            self.violations.add("RDRXCTL", 0, Rule::RdrxctlNotSet);
        }
    }

    /// A receive queue is switched on or off. It says so at the next tick.
    fn rxdctl(&mut self, queue: u32, before: u32, value: u32) {
        let (was, on) = (RXDCTL::ENABLE.is_set(before), RXDCTL::ENABLE.is_set(value));
        if on && !was {
            if self.file.get(&regs::RDLEN, queue) == 0 {
                self.violations.add("RXDCTL", queue, Rule::EmptyRing);
            }
            self.check_srrctl(queue);
            self.file.set(&RXDCTL, queue, value & !RXDCTL::ENABLE.mask);
            self.starting.0 |= 1 << queue;
        } else if !on {
            self.starting.0 &= !(1 << queue);
            if was && self.faults.queues_never_stop {
                self.file.set(&RXDCTL, queue, value | RXDCTL::ENABLE.mask);
            }
        }
    }

    /// A transmit queue is switched on or off.
    fn txdctl(&mut self, queue: u32, before: u32, value: u32) {
        let (was, on) = (TXDCTL::ENABLE.is_set(before), TXDCTL::ENABLE.is_set(value));
        if on && !was {
            if !DMATXCTL::TE.is_set(self.file.one(&DMATXCTL)) {
                self.violations.add("TXDCTL", queue, Rule::QueueBeforeTransmitter);
            }
            if self.file.get(&regs::TDLEN, queue) == 0 {
                self.violations.add("TXDCTL", queue, Rule::EmptyRing);
            }
            // Set after a reset: a driver must clear it.
            if DCA_TXCTRL::DESC_WRO_EN.is_set(self.file.get(&DCA_TXCTRL, queue)) {
                self.violations.add("DCA_TXCTRL", queue, Rule::RelaxedWriteBack);
            }
            self.file.set(&TXDCTL, queue, value & !TXDCTL::ENABLE.mask);
            self.starting.1 |= 1 << queue;
        } else if !on {
            self.starting.1 &= !(1 << queue);
        }
    }
}
