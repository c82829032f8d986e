//! What a function asks of its physical one in the same words on all families: addresses, VLANs, groups, lengths.

use bywash_hw::ixgbe::vf::message;
use bywash_sys::function::Registers;

use super::Agreed;
use crate::intel::{FCS, LONGEST, Mailbox, Multicast, NicError, Post, check_unicast};

/// Multicast groups that can be named.
pub(crate) const MAX_GROUPS: usize = 30;

/// Detail of a message, in its first word.
pub(crate) const fn detail(value: u32) -> u32 {
    value << 16
}

/// What may help when an address is refused.
const MAC_CURE: &str =
    "its host has set another one; `ip link set dev PF vf N mac ADDRESS` there, or `trust on`, changes that";

/// The message `kind` with an address, which is not empty nor a group's.
pub(crate) fn tell_mac<R: Registers>(
    mailbox: &mut Mailbox<R>,
    name: &'static str,
    kind: u32,
    mac: [u8; 6],
) -> Result<(), NicError> {
    check_unicast(mac)?;
    let [a, b, c, d, e, f] = mac;
    let words = [kind, u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0])];
    mailbox.ask(Post { name, words: &words, cure: MAC_CURE })?;
    Ok(())
}

/// Uses an address as the function's own.
pub(crate) fn set_mac<R: Registers>(mailbox: &mut Mailbox<R>, mac: [u8; 6]) -> Result<(), NicError> {
    tell_mac(mailbox, "SET_MAC", message::SET_MAC, mac)
}

/// Tells the physical function that this one was reset. Returns the address that it has for us, if it has one, and the answer's
/// fourth word.
pub(crate) fn tell_reset<R: Registers>(mailbox: &mut Mailbox<R>) -> Result<(Option<[u8; 6]>, u32), NicError> {
    let (words, has_address) =
        mailbox.ask_whether(Post { name: "RESET", words: &[message::RESET], cure: "" })?;
    let ([a, b, c, d], [e, f, ..]) = (words[1].to_le_bytes(), words[2].to_le_bytes());
    let mac = [a, b, c, d, e, f];
    Ok(((has_address && check_unicast(mac).is_ok()).then_some(mac), words[3]))
}

/// Uses the address that is wished, or that the physical function has, or else `spare`.
pub(crate) fn agree_on_mac<R: Registers>(
    mailbox: &mut Mailbox<R>,
    wished: Option<[u8; 6]>,
    given: Option<[u8; 6]>,
    spare: [u8; 6],
) -> Result<[u8; 6], NicError> {
    let mac = wished.or(given).unwrap_or(spare);
    if Some(mac) != given {
        set_mac(mailbox, mac)?;
    }
    Ok(mac)
}

/// Takes packets of a VLAN, or no more.
pub(crate) fn set_vlan<R: Registers>(mailbox: &mut Mailbox<R>, vlan: u16, on: bool) -> Result<(), NicError> {
    check_vlan(vlan)?;
    let words = [message::SET_VLAN | detail(u32::from(on)), u32::from(vlan)];
    let cure = "its host has put the function into one VLAN, or all filters are taken";
    mailbox.ask(Post { name: "SET_VLAN", words: &words, cure })?;
    Ok(())
}

/// Refuses what is no VLAN.
pub(crate) fn check_vlan(vlan: u16) -> Result<(), NicError> {
    if vlan <= 4094 {
        return Ok(());
    }
    Err(NicError::Setting(format!("VLAN {vlan}: there are 0 to 4094")))
}

/// Groups that cannot be are refused before anything is changed.
pub(crate) fn check(multicast: &Multicast) -> Result<(), NicError> {
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

/// Names the groups whose packets to take: none, unless they are told one by one.
pub(crate) fn set_groups<R: Registers>(mailbox: &mut Mailbox<R>, agreed: &Agreed) -> Result<(), NicError> {
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
    Ok(())
}

/// Twelve bits of an address, which ones the physical function has said.
fn hash(group: [u8; 6], bits: u32) -> u32 {
    let high = u32::from(u16::from_le_bytes([group[4], group[5]]));
    high >> [4, 3, 2, 0][bits as usize & 3] & 0xfff
}

/// Says how long packets may be, or, where nobody has said so, the first of `otherwise` that is let pass; this is what lets the function
/// receive at all, so it is always said. `tags` are the bytes of VLAN tags that the NIC counts, for which there must be room, too.
pub(crate) fn longest<R: Registers>(
    mailbox: &mut Mailbox<R>,
    wanted: Option<usize>,
    otherwise: &[usize],
    tags: usize,
) -> Result<usize, NicError> {
    let lengths = wanted.as_ref().map_or(otherwise, std::slice::from_ref);
    for &max_len in lengths {
        let frame = u32::try_from((max_len + tags).min(LONGEST) + FCS).unwrap_or(u32::MAX);
        let words = [message::SET_LPE, frame];
        if mailbox.ask_whether(Post { name: "SET_LPE", words: &words, cure: "" })?.1 {
            return Ok(max_len);
        }
    }
    let first = lengths.first().copied().unwrap_or_default();
    Err(NicError::Setting(format!(
        "packets of {first} bytes: the physical function does not let them pass; an 82599 has one length for all, so set \
         the MTU of its interface to match (`ip link set dev PF mtu N`)"
    )))
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
