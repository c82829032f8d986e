//! An 82599's virtual function, seen alone: its own registers are other addresses of the NIC's, and the model plays the
//! physical function that has set the NIC up and answers the mailbox.
//!
//! There is one function and one pool; what is said of other functions (spoof checks) is not modelled.

use bywash_hw::ixgbe::regs::{self, FCTRL, HLREG0, IVAR, LINKS, MAXFRS, MCSTCTRL, MRQC, PSRTYPE};
use bywash_hw::ixgbe::vf::{self, VFCTRL, VFMAILBOX, VTIVAR_MISC, message};
use bywash_hw::reg::{Register, find};

use super::Nic;
use super::interrupts::Interrupts;
use super::physical_function::Words;
use super::rx::Receiver;
use super::strict::Rule;
use super::tx::Transmitter;

/// How long the physical function takes to come back after a reset, in microseconds.
const PF_RESET_US: u64 = 2_000;

/// What stands behind the function's counters.
const COUNTED: [&Register; 7] =
    [&regs::GPRC, &regs::MPRC, &regs::GORCL, &regs::GORCH, &regs::GPTC, &regs::GOTCL, &regs::GOTCH];

/// Bytes are counted in 36 bits.
const BYTES: u64 = (1 << 36) - 1;

/// The mailbox, and what has no register of the NIC's behind it.
#[derive(Clone, Debug, Default)]
pub(super) struct VirtualFunction {
    mailbox: u32,
    words: Words,
    ivar_misc: u32,
    /// It was reset, and may send other messages.
    pub(super) clear_to_send: bool,
    /// Which version of messages was agreed on, by its place in the table.
    pub(super) version: usize,
    /// The physical function lets it receive.
    pub(super) receives: bool,
    /// Messages so far: which have no answer, or a wrong one, goes by it.
    messages: u32,
    /// An answer, and when it is to be there.
    answer: Option<(u64, Words)>,
    /// When a reset of the physical function ends.
    pf_back_at: Option<u64>,
}

/// Bits of VFMAILBOX that reading clears.
const READ_TO_CLEAR: u32 = VFMAILBOX::PFSTS.mask | VFMAILBOX::PFACK.mask | VFMAILBOX::RSTD.mask;

/// The NIC's register behind one of the function's.
fn behind(name: &str) -> Option<&'static Register> {
    let register = match name {
        "VTEICR" => &regs::EICR,
        "VTEICS" => &regs::EICS_EX,
        "VTEIMS" => &regs::EIMS_EX,
        "VTEIMC" => &regs::EIMC_EX,
        "VTEIAC" => &regs::EIAC,
        "VTEIAM" => &regs::EIAM_EX,
        "VTEITR" => &regs::EITR,
        "VTIVAR" => &IVAR,
        "VFPSRTYPE" => &PSRTYPE,
        "VFLINKS" => &LINKS,
        "VFSTATUS" => &regs::STATUS,
        name => {
            // Queue registers have the same names and a prefix.
            let name = name.strip_prefix("VF").filter(|name| {
                ["RD", "TD", "RX", "TX", "SRR", "RSC", "DCA"].iter().any(|start| name.starts_with(start))
            })?;
            return regs::TABLE.iter().find(|register| register.name == name);
        }
    };
    Some(register)
}

impl Nic {
    /// What the physical function does before its virtual ones begin: receiver and transmitter on, RSS over two queues.
    pub(super) fn set_up_for_virtual_function(&mut self) {
        self.virtual_function = VirtualFunction::default();
        let file = &mut self.file;
        file.put(&regs::GPIE, regs::GPIE::MSIX_MODE.mask | regs::GPIE::EIAME.mask);
        file.put(&HLREG0, file.one(&HLREG0) | HLREG0::JUMBOEN.mask);
        file.put(&MAXFRS, MAXFRS::MFS.with(1518));
        file.put(&FCTRL, FCTRL::BAM.mask);
        file.put(&MCSTCTRL, MCSTCTRL::MFE.mask);
        file.put(&regs::VLNCTRL, file.one(&regs::VLNCTRL) | regs::VLNCTRL::VFE.mask);
        let kinds =
            MRQC::RSS_IPV4.mask | MRQC::RSS_IPV4_TCP.mask | MRQC::RSS_IPV6.mask | MRQC::RSS_IPV6_TCP.mask;
        file.put(&MRQC, MRQC::MRQE.with(1) | kinds);
        file.put(&regs::RXCSUM, regs::RXCSUM::PCSD.mask);
        (0..regs::RSSRK.count()).for_each(|i| file.set(&regs::RSSRK, i, 0x6d5a_56da_u32.rotate_left(i * 5)));
        file.put(&regs::RXCTRL, regs::RXCTRL::RXEN.mask);
        file.put(&regs::DMATXCTL, file.one(&regs::DMATXCTL) | regs::DMATXCTL::TE.mask);
        self.spread_over(self.policy.queues);
    }

    /// Fills the RSS table, which is the physical function's, with so many queues in turn.
    pub fn spread_over(&mut self, queues: u32) {
        let entry = |i: u32| (0..4).fold(0, |word, byte| word | (((4 * i + byte) % queues) << (8 * byte)));
        (0..regs::RETA.count()).for_each(|i| self.file.set(&regs::RETA, i, entry(i)));
    }

    /// The function is reset: its vectors and its mailbox, and its queues stop. What else those were set to stays, the places in rings
    /// too: the worst that the next driver can meet. The link stays as it is.
    fn reset_virtual_function(&mut self) {
        for queue in 0..vf::VFRDT.count() {
            let [receives, sends] =
                [&regs::RXDCTL, &regs::TXDCTL].map(|register| self.file.get(register, queue));
            self.file.set(&regs::RXDCTL, queue, receives & !regs::RXDCTL::ENABLE.mask);
            self.file.set(&regs::TXDCTL, queue, sends & !regs::TXDCTL::ENABLE.mask);
        }
        (self.rx, self.tx, self.starting) = (Receiver::default(), Transmitter::new(), (0, 0));
        self.interrupts = Interrupts::new();
        let VirtualFunction { messages, pf_back_at, .. } = self.virtual_function;
        let mailbox = if pf_back_at.is_some() { VFMAILBOX::RSTI.mask } else { VFMAILBOX::RSTD.mask };
        self.virtual_function =
            VirtualFunction { mailbox, messages, pf_back_at, ..VirtualFunction::default() };
    }

    /// The physical function is reset under its virtual one, as by its driver's watchdog: queues and vectors stop, counters begin
    /// at 0, and no message but a reset is heard. When it is back it says so.
    pub fn reset_physical_function(&mut self) {
        self.virtual_function.pf_back_at = Some(self.now + PF_RESET_US);
        self.reset_virtual_function();
        self.file.put(&FCTRL, FCTRL::BAM.mask);
        (0..regs::VFTA.count()).for_each(|i| self.file.set(&regs::VFTA, i, 0));
        (0..regs::MTA.count()).for_each(|i| self.file.set(&regs::MTA, i, 0));
        COUNTED.into_iter().for_each(|register| self.file.put(register, 0));
        self.policy.counted = 0;
    }

    /// The physical function begins anew with its virtual one, as Linux's ixgbe does when its link or trust is set: it refuses all
    /// messages until it hears of a reset. It `says` so, or leaves it at that.
    pub fn restart_virtual_function(&mut self, says: bool) {
        let function = &mut self.virtual_function;
        function.clear_to_send = false;
        if says {
            function.words[0] = message::CONTROL;
            function.mailbox |= VFMAILBOX::PFSTS.mask;
        }
    }

    /// Whether a frame may come in: a virtual function's must have been let.
    pub(super) fn may_receive(&self) -> bool {
        !self.is_virtual || self.virtual_function.receives
    }

    /// The VLAN that the host has put the function into.
    pub(super) fn port_vlan(&self) -> Option<u16> {
        self.policy.port_vlan.filter(|_| self.is_virtual)
    }

    /// Of the queues that RSS may choose, how many the function has asked for.
    pub(super) fn queue_of_pool(&self, queue: u32) -> u32 {
        if self.is_virtual { queue & ((1 << PSRTYPE::RQPL.of(self.file.one(&PSRTYPE))) - 1) } else { queue }
    }

    /// Reads the function's register at `offset`.
    pub(super) fn read_virtual(&mut self, offset: u32) -> u32 {
        if self.faults.reset_after == 1 {
            self.reset_physical_function();
        }
        self.faults.reset_after = self.faults.reset_after.saturating_sub(1);
        let Some((register, index)) = find(vf::TABLE, offset) else {
            self.violations.add("(none)", 0, Rule::Unknown(offset));
            return 0;
        };
        match register.name {
            "VFMAILBOX" => {
                let seen = self.virtual_function.mailbox;
                self.virtual_function.mailbox &= !READ_TO_CLEAR;
                seen
            }
            "VFMBMEM" => self.virtual_function.words[index as usize],
            "VTIVAR_MISC" => self.virtual_function.ivar_misc,
            "VFGPRC" => self.counted(&regs::GPRC, None)[0],
            "VFMPRC" => self.counted(&regs::MPRC, None)[0],
            "VFGORC_LSB" => self.counted(&regs::GORCL, Some(&regs::GORCH))[0],
            "VFGORC_MSB" => self.counted(&regs::GORCL, Some(&regs::GORCH))[1],
            "VFGPTC" => self.counted(&regs::GPTC, None)[0],
            "VFGOTC_LSB" => self.counted(&regs::GOTCL, Some(&regs::GOTCH))[0],
            "VFGOTC_MSB" => self.counted(&regs::GOTCL, Some(&regs::GOTCH))[1],
            name => behind(name).map_or(0, |register| self.read_register(register.at(index))),
        }
    }

    /// The two halves of a counter, which does not clear, but wraps.
    fn counted(&self, low: &Register, high: Option<&Register>) -> [u32; 2] {
        let high = high.map_or(0, |high| u64::from(self.file.one(high)) << 32);
        let sum = self.policy.counted.wrapping_add(high | u64::from(self.file.one(low))) & BYTES;
        [sum & 0xffff_ffff, sum >> 32].map(|half| u32::try_from(half).unwrap_or(0))
    }

    /// Writes the function's register at `offset`.
    pub(super) fn write_virtual(&mut self, offset: u32, value: u32) {
        let Some((register, index)) = find(vf::TABLE, offset) else {
            self.violations.add("(none)", 0, Rule::Unknown(offset));
            return;
        };
        match register.name {
            "VFCTRL" if VFCTRL::RST.is_set(value) => self.reset_virtual_function(),
            "VFMAILBOX" => self.mailbox(value),
            "VFMBMEM" => self.virtual_function.words[index as usize] = value,
            "VTIVAR_MISC" => self.virtual_function.ivar_misc = value,
            name => {
                if let Some(register) = behind(name) {
                    self.write_register(register.at(index), value);
                }
            }
        }
    }

    /// VFMAILBOX was written: the buffer is asked for, or a message is in it.
    fn mailbox(&mut self, value: u32) {
        let held = VFMAILBOX::VFU.mask & value;
        self.virtual_function.mailbox = self.virtual_function.mailbox & !VFMAILBOX::VFU.mask | held;
        if !VFMAILBOX::REQ.is_set(value) || self.virtual_function.pf_back_at.is_some() {
            return;
        }
        let mut words = self.virtual_function.words;
        let asked = words[0];
        let kind = asked & 0xffff;
        let may = self.virtual_function.clear_to_send || kind == message::RESET;
        let done = may && self.answer(kind, &mut words);
        words[0] = asked | if done { message::ACK } else { message::NACK };
        if self.virtual_function.clear_to_send && kind != message::RESET {
            words[0] |= message::CLEAR_TO_SEND;
        }
        let function = &mut self.virtual_function;
        function.messages = function.messages.wrapping_add(1);
        let befallen = |every: u32| every != 0 && function.messages.is_multiple_of(every);
        if befallen(self.faults.mailbox_lost_every) {
            return;
        }
        if befallen(self.faults.mailbox_wrong_every) {
            words[0] ^= 0xff;
        }
        function.answer = Some((self.now + self.faults.mailbox_delay_us, words));
        self.step_mailbox();
    }

    /// Time has passed: an answer may be due, or the physical function is back.
    pub(super) fn step_mailbox(&mut self) {
        let function = &mut self.virtual_function;
        if function.pf_back_at.take_if(|at| *at <= self.now).is_some() {
            function.mailbox = function.mailbox & !VFMAILBOX::RSTI.mask | VFMAILBOX::RSTD.mask;
            function.words[0] = message::CONTROL;
            function.mailbox |= VFMAILBOX::PFSTS.mask;
        }
        let Some((_, words)) = function.answer.take_if(|(due, _)| *due <= self.now) else { return };
        function.words = words;
        function.mailbox |= VFMAILBOX::PFSTS.mask | VFMAILBOX::PFACK.mask;
        if VTIVAR_MISC::MAILBOX_VALID.is_set(function.ivar_misc) {
            self.interrupts.set_vectors(0, 1 << VTIVAR_MISC::MAILBOX.of(function.ivar_misc));
        }
    }
}
