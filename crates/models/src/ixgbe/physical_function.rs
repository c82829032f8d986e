//! The physical function as its virtual one meets it: what it allows, and what it answers to messages.

use bywash_hw::ixgbe::regs::{self, FCTRL, MAXFRS, MCSTCTRL};
use bywash_hw::ixgbe::vf::{API_VERSIONS, MAILBOX_WORDS, message, xcast};

use super::Nic;

/// A message.
pub(super) type Words = [u32; MAILBOX_WORDS as usize];

/// What the host lets the function have: what `ip link set PF vf N` and the host's driver decide on a real one. It may be
/// changed at any time; the function sees it with its next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Queues: 1, 2 or 4.
    pub queues: u32,
    /// The address that it has for the function; without one that must choose one.
    pub address: Option<[u8; 6]>,
    /// The function may change its address.
    pub any_address: bool,
    /// The function may receive all groups.
    pub trusted: bool,
    /// The function may know the RSS table and key.
    pub rss_query: bool,
    /// Which bits of an address the multicast filter takes (MCSTCTRL.MO).
    pub multicast_bits: u32,
    /// The physical function itself takes frames of more than 1518 bytes: the virtual one receives nothing then before it has
    /// said that it does, too, by a version that can.
    pub jumbo: bool,
    /// The VLAN that it has put the function into: what that sends gets the tag, which stays in what it receives, and it receives
    /// nothing else.
    pub port_vlan: Option<u16>,
    /// The function has a link when the port has one.
    pub link: bool,
    /// What the function's counters stood at before anybody used it; 0 once the physical function was reset. They wrap.
    pub counted: u64,
}

impl Policy {
    /// Everything is allowed to a function that has this address.
    pub(super) fn generous(address: [u8; 6]) -> Self {
        Self {
            queues: 2,
            address: Some(address),
            any_address: true,
            trusted: true,
            rss_query: true,
            multicast_bits: 0,
            jumbo: true,
            port_vlan: None,
            link: true,
            counted: 0,
        }
    }
}

/// Number of a version in [`API_VERSIONS`], for those that are spoken of here.
const V1_1: usize = 1;
const V1_2: usize = 2;

impl Nic {
    /// Does what a message asks, and puts what is to be known into its words. False when it is not done.
    pub(super) fn answer(&mut self, kind: u32, words: &mut Words) -> bool {
        let detail = words[0] >> 16 & 0xff;
        let version = self.virtual_function.version;
        match kind {
            message::RESET => self.answer_reset(words),
            message::SET_MAC => {
                let mac = mac(words);
                let may = self.policy.any_address || Some(mac) == self.policy.address;
                may.then(|| self.address(0, Some(mac))).is_some()
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
            message::SET_VLAN if self.policy.port_vlan.is_none() => {
                let (row, bit) = (words[1] >> 5 & 0x7f, 1 << (words[1] & 31));
                let before = self.file.get(&regs::VFTA, row);
                self.file.set(&regs::VFTA, row, if detail == 0 { before & !bit } else { before | bit });
                true
            }
            message::SET_LPE => self.set_longest(words[1]),
            message::API_NEGOTIATE => {
                let at = API_VERSIONS.iter().position(|(_, number)| *number == words[1]);
                let at = at.filter(|at| at + self.faults.mailbox_versions_missing < API_VERSIONS.len());
                self.virtual_function.version = at.unwrap_or(version);
                at.is_some()
            }
            message::GET_QUEUES if version >= V1_1 => {
                let Policy { queues, port_vlan, .. } = self.policy;
                let tagged = u32::from(port_vlan.is_some());
                words[1..=4].copy_from_slice(&[queues, queues, tagged, 0]);
                true
            }
            message::GET_RETA if version >= V1_2 && self.policy.rss_query => {
                words[1..=8].fill(0);
                for entry in 0..128 {
                    let queue = self.file.get(&regs::RETA, entry / 4) >> (entry % 4 * 8) & 3;
                    words[1 + entry as usize / 16] |= queue << (entry % 16 * 2);
                }
                true
            }
            message::GET_RSS_KEY if version >= V1_2 && self.policy.rss_query => {
                (0..).zip(&mut words[1..=10]).for_each(|(i, word)| *word = self.file.get(&regs::RSSRK, i));
                true
            }
            message::UPDATE_XCAST_MODE if version >= V1_2 => {
                // An 82599 cannot give a function everything, and gives all groups to those that are trusted.
                let most = if self.policy.trusted { xcast::ALL_MULTICAST } else { xcast::MULTICAST };
                if words[1] > xcast::ALL_MULTICAST {
                    return false;
                }
                let mode = words[1].min(most);
                let all = u32::from(mode == xcast::ALL_MULTICAST);
                self.file.put(&FCTRL, FCTRL::MPE.put(self.file.one(&FCTRL), all));
                words[1] = mode;
                true
            }
            message::GET_LINK_STATE if version >= V1_2 => {
                words[1] = u32::from(self.policy.link);
                true
            }
            _ => false,
        }
    }

    /// The function was reset: it is told its address, if there is one, and may go on.
    fn answer_reset(&mut self, words: &mut Words) -> bool {
        let function = &mut self.virtual_function;
        function.clear_to_send = true;
        function.version = 0;
        function.receives = !self.policy.jumbo;
        let bits = self.policy.multicast_bits;
        self.file.put(&MCSTCTRL, MCSTCTRL::MO.put(self.file.one(&MCSTCTRL), bits));
        words[1..=3].copy_from_slice(&[0, 0, bits]);
        self.address(0, self.policy.address);
        let Some([a, b, c, d, e, f]) = self.policy.address else { return false };
        (words[1], words[2]) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0]));
        true
    }

    /// The 82599 has one length for all functions: who speaks 1.0 or has short frames does not receive beside a physical
    /// function with long ones, and nobody has long ones beside one with short ones.
    fn set_longest(&mut self, longest: u32) -> bool {
        let both = self.policy.jumbo && self.virtual_function.version >= V1_1;
        let fits = longest <= 9728 && (both || longest <= 1518 && !self.policy.jumbo);
        self.virtual_function.receives = fits;
        if fits {
            // It is the whole port's, and nobody lowers it.
            let before = MAXFRS::MFS.of(self.file.one(&MAXFRS));
            self.file.put(&MAXFRS, MAXFRS::MFS.with(longest.max(before)));
        }
        fits
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
