//! Which packets are for us: addresses, groups and VLANs, each by a message; and how they are spread over queues, which is the
//! physical function's business.

use bywash_hw::ixgbe::vf::{API_VERSIONS, message, xcast};
use bywash_sys::function::Registers;

use super::init::Agreed;
use super::stats::Control;
use super::{MAX_GROUPS, Multicast, NicError, Rss};
use crate::intel::{Mailbox, Post, check_unicast};

/// Version 1.2, by its place in the table: from it on more than named groups can be asked for.
const V1_2: usize = 2;
/// Version 1.3: from it on everything can be asked for.
const V1_3: usize = 3;

/// Detail of a message, in its first word.
const fn detail(value: u32) -> u32 {
    value << 16
}

/// What may help when an address is refused.
const MAC_CURE: &str =
    "its host has set another one; `ip link set dev PF vf N mac ADDRESS` there, or `trust on`, changes that";

fn address(kind: u32, [a, b, c, d, e, f]: [u8; 6]) -> [u32; 3] {
    [kind, u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0])]
}

/// Uses an address as the function's own.
pub(super) fn set_mac<R: Registers>(mailbox: &mut Mailbox<R>, mac: [u8; 6]) -> Result<(), NicError> {
    check_unicast(mac)?;
    let words = address(message::SET_MAC, mac);
    mailbox.ask(Post { name: "SET_MAC", words: &words, cure: MAC_CURE })?;
    Ok(())
}

/// Takes packets to one more address, the function's `number`th beside its own.
pub(super) fn add_mac<R: Registers>(
    mailbox: &mut Mailbox<R>,
    mac: [u8; 6],
    number: usize,
) -> Result<(), NicError> {
    check_unicast(mac)?;
    // Number 1 begins the list anew.
    let number = u32::try_from(number).unwrap_or(u32::MAX).min(0xff);
    let words = address(message::SET_MACVLAN | detail(number), mac);
    mailbox.ask(Post { name: "SET_MACVLAN", words: &words, cure: MAC_CURE })?;
    Ok(())
}

/// Takes packets of a VLAN, or no more.
pub(super) fn set_vlan<R: Registers>(mailbox: &mut Mailbox<R>, vlan: u16, on: bool) -> Result<(), NicError> {
    if vlan > 4094 {
        return Err(NicError::Setting(format!("VLAN {vlan}: there are 0 to 4094")));
    }
    let words = [message::SET_VLAN | detail(u32::from(on)), u32::from(vlan)];
    let cure = "its host has put the function into one VLAN, or all filters are taken";
    mailbox.ask(Post { name: "SET_VLAN", words: &words, cure })?;
    Ok(())
}

/// Groups that cannot be are refused before anything is changed.
pub(super) fn check(multicast: &Multicast) -> Result<(), NicError> {
    let Multicast::Groups(groups) = multicast else { return Ok(()) };
    if groups.len() > MAX_GROUPS {
        let reason = format!("{} multicast groups: a function can name {MAX_GROUPS}", groups.len());
        return Err(NicError::Setting(reason));
    }
    match groups.iter().find(|group| group[0] & 1 == 0) {
        Some(group) => Err(NicError::Setting(format!("{group:02x?} is no multicast address"))),
        None => Ok(()),
    }
}

/// Says which packets to other addresses than our own to take, as far as the other side gives them.
pub(super) fn filter<R: Registers>(mailbox: &mut Mailbox<R>, agreed: &mut Agreed) -> Result<(), NicError> {
    let groups = match &agreed.multicast {
        Multicast::Groups(groups) => groups.as_slice(),
        Multicast::None | Multicast::All => &[],
    };
    let mut words = [0; 16];
    let count = groups.len().min(MAX_GROUPS);
    words[0] = message::SET_MULTICAST | detail(u32::try_from(count).unwrap_or(0));
    for (at, group) in groups.iter().take(MAX_GROUPS).enumerate() {
        words[1 + at / 2] |= hash(*group, agreed.multicast_bits) << (at % 2 * 16);
    }
    mailbox.ask(Post { name: "SET_MULTICAST", words: &words, cure: "update its driver" })?;

    agreed.warnings.clear();
    let all = agreed.multicast == Multicast::All;
    let given = if agreed.api >= V1_2 { widest(mailbox, agreed, all)? } else { xcast::MULTICAST };
    if agreed.promiscuous && given < xcast::PROMISCUOUS {
        agreed.warnings.push(
            "the physical function gives packets to other addresses than its own to no virtual one: send to this \
             port's address, or broadcast"
                .into(),
        );
    }
    if all && given < xcast::ALL_MULTICAST {
        let version = API_VERSIONS[agreed.api].0;
        agreed.warnings.push(format!(
            "the physical function gives multicast packets of named groups only (its messages are of version {version}; \
             `ip link set dev PF vf N trust on` may help)"
        ));
    }
    Ok(())
}

/// Asks for the widest mode that is wished, then for narrower ones. Returns what is given.
fn widest<R: Registers>(mailbox: &mut Mailbox<R>, agreed: &Agreed, all: bool) -> Result<u32, NicError> {
    let wished = [
        (agreed.promiscuous && agreed.api >= V1_3).then_some(xcast::PROMISCUOUS),
        (agreed.promiscuous || all).then_some(xcast::ALL_MULTICAST),
        Some(xcast::MULTICAST),
    ];
    for mode in wished.into_iter().flatten() {
        let words = [message::UPDATE_XCAST_MODE, mode];
        let post = Post { name: "UPDATE_XCAST_MODE", words: &words, cure: "" };
        if let (answer, true) = mailbox.ask_whether(post)? {
            // It may say yes and give less.
            return Ok(answer[1].min(mode));
        }
    }
    Ok(xcast::MULTICAST)
}

/// Twelve bits of an address, which ones the physical function has said.
fn hash(group: [u8; 6], bits: u32) -> u32 {
    let high = u32::from(u16::from_le_bytes([group[4], group[5]]));
    high >> [4, 3, 2, 0][bits as usize & 3] & 0xfff
}

/// Asks for the table and key by which packets are spread over queues.
pub(super) fn rss<R: Registers>(control: &mut Control<R>, queues: u16) -> Result<Rss, NicError> {
    let cure = "its host must allow it: `ip link set dev PF vf N query_rss on`";
    let mailbox = &mut control.mailbox;
    let words = mailbox.ask(Post { name: "GET_RETA", words: &[message::GET_RETA], cure })?;
    let entry = |i: usize| words[1 + i / 16] >> (i % 16 * 2) & 3 & (u32::from(queues) - 1);
    let table = std::array::from_fn(|i| u8::try_from(entry(i)).unwrap_or(0));
    let words = mailbox.ask(Post { name: "GET_RSS_KEY", words: &[message::GET_RSS_KEY], cure })?;
    let key = std::array::from_fn(|i| words[1 + i / 4].to_le_bytes()[i % 4]);
    Ok(Rss { key, table: Some(table) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_takes_the_bits_that_the_other_side_names() {
        let group = [0x01, 0, 0x5e, 0, 0x12, 0xab];
        assert_eq!([0, 1, 2, 3].map(|bits| hash(group, bits)), [0xab1, 0x562, 0xac4, 0xb12]);
    }

    #[test]
    fn groups_are_checked_before_they_are_sent() {
        assert!(check(&Multicast::Groups(vec![[1, 0, 0x5e, 0, 0, 1]; 30])).is_ok());
        assert!(check(&Multicast::Groups(vec![[1, 0, 0x5e, 0, 0, 1]; 31])).is_err());
        assert!(check(&Multicast::Groups(vec![[2, 0, 0, 0, 0, 1]])).is_err());
    }
}
