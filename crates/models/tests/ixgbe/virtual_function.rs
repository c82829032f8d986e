//! A virtual function: reset, mailbox, and a frame that is sent and comes back.

use bywash_hw::ixgbe::vf::*;
use bywash_models::host::Host;
use bywash_models::ixgbe::{Board, Faults, Nic};

/// A function, and the time.
struct Function(Nic, u64);

impl Function {
    fn new() -> Self {
        let mut function = Self(Nic::new(Board { device: 0x10ed, ..Board::default() }), 0);
        function.wait(20_000);
        function
    }

    fn wait(&mut self, microseconds: u64) {
        let (mut memory, mut wire) = (bywash_models::host::FlatMemory::default(), Vec::new());
        self.1 += microseconds;
        let host = &mut Host { memory: &mut memory, interrupts: &mut Vec::new(), wire: &mut wire };
        self.0.tick(self.1, host);
    }

    /// Sends a message as a driver does; the words of the answer, if there is one.
    fn send(&mut self, words: &[u32]) -> Option<Vec<u32>> {
        self.0.write32(VFMAILBOX.offset(), VFMAILBOX::VFU.mask);
        assert!(VFMAILBOX::VFU.is_set(self.0.read32(VFMAILBOX.offset())));
        (0..).zip(words).for_each(|(i, word)| self.0.write32(VFMBMEM.at(i), *word));
        self.0.write32(VFMAILBOX.offset(), VFMAILBOX::REQ.mask);
        self.answer()
    }

    fn answer(&mut self) -> Option<Vec<u32>> {
        let mailbox = self.0.read32(VFMAILBOX.offset());
        assert_eq!(VFMAILBOX::PFSTS.of(mailbox), VFMAILBOX::PFACK.of(mailbox));
        let again = self.0.read32(VFMAILBOX.offset());
        assert!(!VFMAILBOX::PFSTS.is_set(again) && !VFMAILBOX::RSTD.is_set(again), "read to clear");
        let words = (0..5).map(|i| self.0.read32(VFMBMEM.at(i)));
        VFMAILBOX::PFSTS.is_set(mailbox).then(|| words.collect())
    }
}

#[test]
fn a_reset_opens_the_mailbox_and_answers_have_what_was_asked_for() {
    let mut function = Function::new();
    assert!(VFLINKS::UP.is_set(function.0.read32(VFLINKS.offset())));
    let early = function.send(&[message::GET_QUEUES]).unwrap();
    assert_eq!(early[0], message::GET_QUEUES | message::NACK);
    function.0.write32(VFCTRL.offset(), VFCTRL::RST.mask);
    assert!(VFMAILBOX::RSTD.is_set(function.0.read32(VFMAILBOX.offset())));
    let reset = function.send(&[message::RESET]).unwrap();
    assert_eq!(reset[..4], [message::RESET | message::ACK, 0x8200_0002, 0x9059, 0]);
    let done = message::ACK | message::CLEAR_TO_SEND;
    let queues = function.send(&[message::GET_QUEUES]).unwrap();
    assert_eq!(queues[0], message::GET_QUEUES | 0x6000_0000, "no question of version 1.0");
    assert_eq!(function.send(&[message::SET_LPE, 1518]).unwrap()[0], message::SET_LPE | 0x6000_0000);
    for (version, answer) in [(0, done), (2, done), (5, done), (6, done), (1, 0x6000_0000), (7, 0x6000_0000)]
    {
        let negotiated = function.send(&[message::API_NEGOTIATE, version]).unwrap();
        assert_eq!(negotiated[0], message::API_NEGOTIATE | answer, "{version}");
    }
    let queues = function.send(&[message::GET_QUEUES]).unwrap();
    assert_eq!(queues, [message::GET_QUEUES | done, 2, 2, 0, 0]);
    let table = function.send(&[message::GET_RETA]).unwrap();
    assert_eq!(table[..2], [message::GET_RETA | done, 0x4444_4444]);
    assert_eq!(function.send(&[message::GET_LINK_STATE, 0]).unwrap()[1], 1);
    let everything = function.send(&[message::UPDATE_XCAST_MODE, xcast::PROMISCUOUS]).unwrap();
    assert_eq!(everything[0], message::UPDATE_XCAST_MODE | 0x6000_0000);
    function.0.policy.trusted = false;
    let all = function.send(&[message::UPDATE_XCAST_MODE, xcast::ALL_MULTICAST]).unwrap();
    assert_eq!(all[..2], [message::UPDATE_XCAST_MODE | done, xcast::MULTICAST]);
    assert_eq!(function.send(&[message::SET_LPE, 9728]).unwrap()[0], message::SET_LPE | done);
    assert_eq!(function.send(&[message::SET_LPE, 9729]).unwrap()[0], message::SET_LPE | 0x6000_0000);
    assert_eq!(function.send(&[0x77]).unwrap()[0], 0x6000_0077);
    assert_eq!(function.0.violations(), []);
    function.0.read32(0x400);
    assert_eq!(function.0.violations().len(), 1, "no register of a function's");
}

#[test]
fn answers_may_be_lost_late_wrong_or_of_an_older_version() {
    let mut function = Function::new();
    function.0.faults = Faults { mailbox_delay_us: 500, mailbox_versions_missing: 5, ..Faults::default() };
    assert_eq!(function.send(&[message::RESET]), None);
    function.wait(499);
    assert_eq!(function.answer(), None);
    function.wait(1);
    assert_eq!(function.answer().unwrap()[0], message::RESET | message::ACK);
    function.0.faults = Faults { mailbox_versions_missing: 5, ..Faults::default() };
    let done = message::ACK | message::CLEAR_TO_SEND;
    for (version, answer) in [(2, 0x6000_0000), (0, done)] {
        let negotiated = function.send(&[message::API_NEGOTIATE, version]).unwrap();
        assert_eq!(negotiated[0], message::API_NEGOTIATE | answer, "{version}");
    }
    function.0.faults = Faults { mailbox_lost_every: 1, ..Faults::default() };
    assert_eq!(function.send(&[message::GET_QUEUES]), None);
    function.0.faults = Faults { mailbox_wrong_every: 1, ..Faults::default() };
    let wrong = function.send(&[message::GET_QUEUES]).unwrap();
    assert_ne!(wrong[0] & 0xffff, message::GET_QUEUES);
}

#[test]
fn a_reset_of_the_physical_function_closes_the_mailbox_until_the_next_handshake() {
    let mut function = Function::new();
    function.0.write32(VFCTRL.offset(), VFCTRL::RST.mask);
    function.send(&[message::RESET]).unwrap();
    function.0.reset_physical_function();
    assert!(VFMAILBOX::RSTI.is_set(function.0.read32(VFMAILBOX.offset())));
    function.wait(2_000);
    let mailbox = function.0.read32(VFMAILBOX.offset());
    assert!(VFMAILBOX::RSTD.is_set(mailbox) && VFMAILBOX::PFSTS.is_set(mailbox));
    assert_eq!(function.0.read32(VFMBMEM.at(0)), message::CONTROL, "not clear to send");
    let refused = function.send(&[message::SET_LPE, 1518]).unwrap();
    assert_eq!(refused[0], message::SET_LPE | message::NACK);
    assert_eq!(function.send(&[message::RESET]).unwrap()[0], message::RESET | message::ACK);
}
