//! An 82599's virtual function, seen alone: its own registers are other addresses of the NIC's, and the model plays the
//! physical function that has set the NIC up and answers the mailbox.
//!
//! There is one function and one pool; what is said of other functions (spoof checks, VLANs that the host sets) is not modelled.

use bywash_hw::ixgbe::regs::{self, FCTRL, HLREG0, IVAR, LINKS, MAXFRS, MCSTCTRL, MRQC, PSRTYPE};
use bywash_hw::ixgbe::vf::{self, MAILBOX_WORDS, VFCTRL, VFMAILBOX, VTIVAR_MISC, message};
use bywash_hw::reg::{Register, find};

use super::Nic;
use super::interrupts::Interrupts;
use super::rx::Receiver;
use super::strict::Rule;
use super::tx::Transmitter;

/// Queues that the physical function grants.
const QUEUES: u32 = 2;

/// The mailbox, and what has no register of the NIC's behind it.
#[derive(Clone, Debug, Default)]
pub(super) struct VirtualFunction {
    mailbox: u32,
    words: [u32; MAILBOX_WORDS as usize],
    ivar_misc: u32,
    /// It was reset, and may send other messages.
    clear_to_send: bool,
    /// Messages so far: which have no answer, or a wrong one, goes by it.
    messages: u32,
    /// An answer, and when it is to be there.
    answer: Option<(u64, [u32; MAILBOX_WORDS as usize])>,
}

/// Versions of the messages that the physical function knows, 1.0 to 1.4, as messages name them; 2.0, which is 1, is none.
const API_VERSIONS: [u32; 5] = [0, 2, 3, 4, 5];

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
        (0..regs::RETA.count()).for_each(|i| file.set(&regs::RETA, i, 0x0100_0100));
        (0..regs::RSSRK.count()).for_each(|i| file.set(&regs::RSSRK, i, 0x6d5a_56da_u32.rotate_left(i * 5)));
        file.put(&regs::RXCTRL, regs::RXCTRL::RXEN.mask);
        file.put(&regs::DMATXCTL, file.one(&regs::DMATXCTL) | regs::DMATXCTL::TE.mask);
    }

    /// The function is reset: its queues, its vectors, its mailbox. The link stays as it is.
    fn reset_virtual_function(&mut self) {
        let queues = regs::TABLE.iter().filter(|register| register.count() == super::QUEUES);
        for register in queues {
            for queue in 0..vf::VFRDT.count() {
                self.file.set(register, queue, register.reset.unwrap_or(0));
            }
        }
        (self.rx, self.tx, self.starting) = (Receiver::default(), Transmitter::new(), (0, 0));
        self.interrupts = Interrupts::new();
        let messages = self.virtual_function.messages;
        let mailbox = VFMAILBOX::RSTD.mask;
        self.virtual_function = VirtualFunction { mailbox, messages, ..VirtualFunction::default() };
    }

    /// Of the queues that RSS may choose, how many the function has asked for.
    pub(super) fn queue_of_pool(&self, queue: u32) -> u32 {
        if self.board.is_virtual() {
            queue & ((1 << PSRTYPE::RQPL.of(self.file.one(&PSRTYPE))) - 1)
        } else {
            queue
        }
    }

    /// Reads the function's register at `offset`.
    pub(super) fn read_virtual(&mut self, offset: u32) -> u32 {
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
            // These do not clear, but wrap.
            "VFGPRC" => self.file.one(&regs::GPRC),
            "VFMPRC" => self.file.one(&regs::MPRC),
            "VFGORC_LSB" => self.file.one(&regs::GORCL),
            "VFGORC_MSB" => self.file.one(&regs::GORCH),
            "VFGPTC" => self.file.one(&regs::GPTC),
            "VFGOTC_LSB" => self.file.one(&regs::GOTCL),
            "VFGOTC_MSB" => self.file.one(&regs::GOTCH),
            name => behind(name).map_or(0, |register| self.read_register(register.at(index))),
        }
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
        if !VFMAILBOX::REQ.is_set(value) {
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

    /// Time has passed: an answer may be due.
    pub(super) fn step_mailbox(&mut self) {
        let function = &mut self.virtual_function;
        let Some((_, words)) = function.answer.take_if(|(due, _)| *due <= self.now) else { return };
        function.words = words;
        function.mailbox |= VFMAILBOX::PFSTS.mask | VFMAILBOX::PFACK.mask;
        if VTIVAR_MISC::MAILBOX_VALID.is_set(function.ivar_misc) {
            self.interrupts.set_vectors(0, 1 << VTIVAR_MISC::MAILBOX.of(function.ivar_misc));
        }
    }

    /// Does what a message asks, and puts what is to be known into its words. False when it is not done.
    fn answer(&mut self, kind: u32, words: &mut [u32; MAILBOX_WORDS as usize]) -> bool {
        let detail = words[0] >> 16 & 0xff;
        match kind {
            message::RESET => {
                let [a, b, c, d, e, f] = self.board.mac;
                self.address(0, Some(self.board.mac));
                (words[1], words[2]) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0]));
                // Multicast hashes are of bits 47:36 of an address.
                words[3] = 0;
                self.virtual_function.clear_to_send = true;
                true
            }
            message::SET_MAC => {
                self.address(0, Some(mac(words)));
                true
            }
            message::SET_MACVLAN if detail == 0 => {
                (1..regs::RAL.count()).for_each(|i| self.address(i, None));
                true
            }
            message::SET_MACVLAN => {
                self.address(detail.min(regs::RAL.count() - 1), Some(mac(words)));
                true
            }
            message::SET_MULTICAST => {
                (0..regs::MTA.count()).for_each(|i| self.file.set(&regs::MTA, i, 0));
                let hashes = words[1..].iter().flat_map(|word| [word & 0xfff, word >> 16 & 0xfff]);
                for hash in hashes.take(detail as usize) {
                    let row = self.file.get(&regs::MTA, hash >> 5);
                    self.file.set(&regs::MTA, hash >> 5, row | 1 << (hash & 31));
                }
                true
            }
            message::SET_VLAN => {
                let (row, bit) = (words[1] >> 5 & 0x7f, 1 << (words[1] & 31));
                let before = self.file.get(&regs::VFTA, row);
                self.file.set(&regs::VFTA, row, if detail == 0 { before & !bit } else { before | bit });
                true
            }
            message::SET_LPE => {
                let fits = words[1] <= 9728;
                if fits {
                    self.file.put(&MAXFRS, MAXFRS::MFS.with(words[1].max(1518)));
                }
                fits
            }
            message::API_NEGOTIATE => {
                let at = API_VERSIONS.iter().position(|version| *version == words[1]);
                at.is_some_and(|at| at + self.faults.mailbox_versions_missing < API_VERSIONS.len())
            }
            message::GET_QUEUES => {
                words[1..=4].copy_from_slice(&[QUEUES, QUEUES, 0, 0]);
                true
            }
            message::UPDATE_XCAST_MODE => {
                let all = words[1] == 2;
                self.file.put(&FCTRL, FCTRL::MPE.put(self.file.one(&FCTRL), u32::from(all)));
                // An 82599 cannot give a function everything.
                words[1] <= 2
            }
            _ => false,
        }
    }

    /// Sets or clears receive address `i`.
    fn address(&mut self, i: u32, mac: Option<[u8; 6]>) {
        let [a, b, c, d, e, f] = mac.unwrap_or_default();
        let valid = if mac.is_some() { 0x80 } else { 0 };
        self.file.set(&regs::RAL, i, u32::from_le_bytes([a, b, c, d]));
        self.file.set(&regs::RAH, i, u32::from_le_bytes([e, f, 0, valid]));
    }
}

/// The address in a message's second and third word.
fn mac(words: &[u32]) -> [u8; 6] {
    let ([a, b, c, d], [e, f, ..]) = (words[1].to_le_bytes(), words[2].to_le_bytes());
    [a, b, c, d, e, f]
}
