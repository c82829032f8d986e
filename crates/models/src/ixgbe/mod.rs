//! An 82599, or an X540, as a plain library: registers are read and written, time is told, and frames and interrupts come out.
//!
//! Nothing here waits, reads a clock or draws numbers: the same calls have the same results. A write to a register only
//! notes what is to be done; [`Nic::tick`] does it, so that memory, interrupts and the wire are touched at one place.
//!
//! Not modelled: header split, receive side coalescing, pools and several virtual functions, data centre bridging, FCoE, IPsec and
//! MACsec (their registers hold what is written), time stamps, wake-up, flow control, and write-back thresholds (RS is answered
//! at once). All traffic goes through packet
//! buffer 0.

mod access;
mod eeprom;
mod faults;
mod file;
mod filters;
mod flow_director;
mod flow_key;
mod interrupts;
mod link;
mod offload;
mod parse;
mod phy;
mod physical_function;
mod rss;
mod rx;
mod sfp;
mod stats;
mod strict;
mod tx;
mod virtual_function;

use bywash_hw::ixgbe::regs::{self, CTRL, FTQF, RXDCTL, STATUS, TXDCTL};
use bywash_hw::ixgbe::{BAR_SIZE, Chip, QUEUES, RESET_QUIET_US, VECTORS, vf};
use bywash_hw::pci::{INTEL, Media, known};
use bywash_hw::reg::Register;

pub use faults::Faults;
pub use phy::Offer;
pub use physical_function::Policy;
pub use strict::{Rule, Violation};

use crate::host::Host;
use eeprom::Eeprom;
use file::File;
use flow_director::FlowDirector;
use interrupts::Interrupts;
use link::Link;
use phy::Phy;
use rss::Toeplitz;
use rx::Receiver;
use sfp::Module;
use strict::Violations;
use tx::Transmitter;
use virtual_function::VirtualFunction;

/// What kind of board it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    /// PCI device id: 0x10fb has an SFP cage with a module in it, 0x10f8 is a backplane without one, 0x10ed a virtual function,
    /// 0x1528 an X540 with a copper PHY.
    pub device: u16,
    /// The port's MAC address.
    pub mac: [u8; 6],
}

impl Default for Board {
    /// A board with an SFP cage and a local address.
    fn default() -> Self {
        Self { device: 0x10fb, mac: [0x02, 0, 0, 0x82, 0x59, 0x90] }
    }
}

impl Board {
    fn media(&self) -> Option<Media> {
        known(INTEL, self.device).map(|nic| nic.media)
    }

    fn chip(&self) -> Chip {
        Chip::of(self.device)
    }

    fn has_cage(&self) -> bool {
        self.media() == Some(Media::Sfp)
    }

    /// Whether there is a copper PHY behind MDIO.
    fn has_phy(&self) -> bool {
        self.media() == Some(Media::Copper)
    }

    /// Whether it is a virtual function, with its own registers.
    pub fn is_virtual(&self) -> bool {
        self.media() == Some(Media::Virtual)
    }

    /// Bytes of BAR 0.
    pub fn bar_size(&self) -> u32 {
        if self.is_virtual() { vf::BAR_SIZE } else { BAR_SIZE }
    }

    /// MSI-X vectors.
    pub fn vectors(&self) -> u32 {
        if self.is_virtual() { vf::VECTORS } else { VECTORS }
    }
}

/// What the model saw of its driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Register reads.
    pub reads: u64,
    /// Register writes.
    pub writes: u64,
    /// Packets that were handed over to be cut into segments.
    pub tso_packets: u64,
    /// Packets of a virtual function that named no context (CC): its host cannot check for whom they claim to speak.
    pub unchecked_packets: u64,
    /// Rules broken.
    pub violations: u64,
}

/// What no reset takes from whoever has it, as both functions of a NIC and its firmware share it.
const SEMAPHORES: [&Register; 2] = [&regs::SWSM, &regs::SW_FW_SYNC];

/// Tables that CTRL.RST leaves as they are: drivers must empty them themselves.
const TABLES: [&Register; 14] = [
    &regs::MTA,
    &regs::VFTA,
    &regs::PFUTA,
    &regs::PFVLVF,
    &regs::PFVLVFB,
    &regs::MPSAR,
    &regs::RAL,
    &regs::RAH,
    &FTQF,
    &regs::SAQF,
    &regs::DAQF,
    &regs::SDPQF,
    &regs::L34TIMIR,
    &regs::ETQF,
];

/// The place behind `head` in a ring, also when software has set a head outside it.
#[inline]
fn following(head: u32, ring: u32) -> u32 {
    if head + 1 < ring { head + 1 } else { (head + 1) % ring }
}

/// The NIC.
#[derive(Clone, Debug)]
pub struct Nic {
    board: Board,
    /// Whether the board is a virtual function: asked for each packet.
    is_virtual: bool,
    /// Faults it has now.
    pub faults: Faults,
    /// What a virtual function's host allows it.
    pub policy: Policy,
    file: File,
    eeprom: Eeprom,
    module: Module,
    interrupts: Interrupts,
    flow_director: FlowDirector,
    rss: Toeplitz,
    rx: Receiver,
    tx: Transmitter,
    /// Frames that were delivered, empty: room for the next to be sent.
    spare: Vec<Vec<u8>>,
    link: Link,
    phy: Phy,
    /// What the other side of an X540's cable offers.
    pub partner: Offer,
    virtual_function: VirtualFunction,
    violations: Violations,
    observed: Observed,
    bus_master: bool,
    /// Queues that drop for want of descriptors, by PFQDE.
    pfqde: u128,
    /// Queues whose enable bit is to be shown at the next tick.
    starting: (u128, u128),
    /// Microseconds since the start.
    now: u64,
    /// Until when no register may be touched.
    quiet_until: u64,
    ticks: u32,
}

impl Nic {
    /// A NIC as after power-on: the link comes up by itself, everything else waits for a driver.
    pub fn new(board: Board) -> Self {
        let mut nic = Self {
            board,
            is_virtual: board.is_virtual(),
            faults: Faults::default(),
            policy: Policy::generous(board.mac),
            file: File::new(),
            eeprom: Eeprom::new(board.mac, !board.has_cage(), board.chip()),
            module: Module::new(),
            interrupts: Interrupts::new(),
            flow_director: FlowDirector::default(),
            rss: Toeplitz::default(),
            rx: Receiver::default(),
            tx: Transmitter::new(),
            spare: Vec::new(),
            link: Link::new(),
            phy: Phy::new(),
            partner: Offer::ALL,
            virtual_function: VirtualFunction::default(),
            violations: Violations::default(),
            observed: Observed::default(),
            bus_master: false,
            pfqde: 0,
            starting: (0, 0),
            now: 0,
            quiet_until: 0,
            ticks: 0,
        };
        nic.power_on_values();
        nic
    }

    /// The board.
    pub fn board(&self) -> Board {
        self.board
    }

    /// Whether the link is up.
    pub fn link_up(&self) -> bool {
        self.link.up
    }

    /// Puts the cable in, or pulls it out.
    pub fn set_light(&mut self, light: bool) {
        self.link.light = light;
    }

    /// PCI command register: may it do DMA.
    pub fn set_bus_master(&mut self, on: bool) {
        self.bus_master = on;
    }

    /// Function level reset: all but the semaphores as after power-on. Faults, what was observed and time stay.
    pub fn function_reset(&mut self) {
        self.reset(&SEMAPHORES);
        self.bus_master = false;
        self.quiet_until = self.now;
        self.file.put(&CTRL, 0);
    }

    /// What was seen of the driver.
    pub fn observed(&self) -> Observed {
        Observed { violations: self.violations.count, ..self.observed }
    }

    /// Rules broken since the last call, at most 256 of them.
    pub fn violations(&mut self) -> Vec<Violation> {
        self.violations.take()
    }

    /// A frame arrives from the wire, without its check sequence; `check_good` says whether that was right.
    pub fn receive(&mut self, frame: Vec<u8>, check_good: bool) {
        if !self.faults.removed {
            self.arrive(frame, check_good, false);
        }
    }

    /// Does what is to be done at time `now`, in microseconds since the start: link, transmission, reception, interrupts.
    pub fn tick(&mut self, now: u64, host: &mut Host<'_>) {
        self.now = self.now.max(now);
        self.ticks = self.ticks.wrapping_add(1);
        if self.faults.removed {
            return;
        }
        self.step_phy();
        self.step_link();
        self.step_mailbox();
        self.start_queues();
        self.transmit(host);
        self.deliver(host);
        let spurious = self.faults.spurious_every;
        if spurious != 0 && self.ticks.is_multiple_of(spurious) {
            host.interrupts.raise(0);
        }
        if !self.faults.no_interrupts {
            self.interrupts.deliver(&self.file, self.now, host.interrupts);
        }
        // Soon, as on the card: DPDK looks ten times, a microsecond apart, in spite of the pause that it should make.
        if CTRL::RST.is_set(self.file.one(&CTRL)) && !self.faults.reset_hangs {
            self.file.put(&CTRL, self.file.one(&CTRL) & !CTRL::RST.mask);
        }
    }

    /// Registers whose values come from the EEPROM or from the board, not from the table.
    fn power_on_values(&mut self) {
        let [a, b, c, d, e, f] = self.board.mac;
        self.file.set(&regs::RAL, 0, u32::from_le_bytes([a, b, c, d]));
        self.file.set(&regs::RAH, 0, u32::from_le_bytes([e, f, 0, 0x80]));
        self.file.set(&regs::RXPBSIZE, 0, self.board.chip().receive_memory());
        self.file.set(&regs::TXPBSIZE, 0, 160 << 10);
        self.file.set(&regs::TXPBTHRESH, 0, 0x96);
        self.file.put(
            &regs::EEC,
            regs::EEC::PRES.mask | regs::EEC::ARD.mask | regs::EEC::ADDR_SIZE.mask | 8 << 11,
        );
        if self.is_virtual {
            self.set_up_for_virtual_function();
        }
    }

    /// All as after power-on, but for the registers in `kept`.
    fn reset(&mut self, kept: &[&Register]) {
        let before = std::mem::replace(&mut self.file, File::new());
        for register in kept {
            (0..register.count()).for_each(|i| self.file.set(register, i, before.get(register, i)));
        }
        self.interrupts = Interrupts::new();
        self.flow_director = FlowDirector::default();
        self.rss = Toeplitz::default();
        (self.rx, self.tx) = (Receiver::default(), Transmitter::new());
        for filter in 0..FTQF.count() {
            self.rx.set_five_tuple(filter, FTQF::QUEUE_ENABLE.is_set(self.file.get(&FTQF, filter)));
        }
        (self.pfqde, self.starting) = (0, (0, 0));
        self.power_on_values();
        self.drop_phy_command();
        self.restart_link();
        self.quiet_until = self.now + RESET_QUIET_US;
        self.file.put(&CTRL, CTRL::RST.mask);
    }

    /// Queues whose enable bit was written show it now.
    fn start_queues(&mut self) {
        if self.starting == (0, 0) || self.faults.queues_never_enable {
            return;
        }
        let (rx, tx) = std::mem::take(&mut self.starting);
        for queue in (0..QUEUES).filter(|queue| (rx | tx) >> queue & 1 != 0) {
            if rx >> queue & 1 != 0 {
                self.enable(&RXDCTL, RXDCTL::ENABLE.mask, queue);
                self.rx.start(queue);
            }
            if tx >> queue & 1 != 0 {
                self.enable(&TXDCTL, TXDCTL::ENABLE.mask, queue);
                self.tx.start(queue);
            }
        }
    }

    fn enable(&mut self, register: &Register, bit: u32, queue: u32) {
        self.file.set(register, queue, self.file.get(register, queue) | bit);
    }

    /// Whether the NIC may touch memory now; if not, that is the driver's fault, unless it said so.
    fn may_dma(&mut self, register: &'static str, queue: u32) -> bool {
        if CTRL::GIO_DIS.is_set(self.file.one(&CTRL)) {
            return false;
        }
        if !self.bus_master {
            self.violations.add(register, queue, Rule::NoBusMaster);
        }
        self.bus_master
    }

    #[inline]
    fn ring_base(&self, low: &Register, high: &Register, queue: u32) -> u64 {
        u64::from(self.file.get(low, queue)) | u64::from(self.file.get(high, queue)) << 32
    }

    /// STATUS as it reads: master activity ends when it is asked to.
    fn status(&self) -> u32 {
        let quiet = CTRL::GIO_DIS.is_set(self.file.one(&CTRL)) && !self.faults.master_stays_busy;
        STATUS::GIO.put(self.file.one(&STATUS), u32::from(!quiet))
    }
}
