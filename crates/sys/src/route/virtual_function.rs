//! Virtual functions as the driver of their NIC lets them be set, by rtnetlink: `ip link set dev PF vf N`.

use netlink_packet_core::DefaultNla;
use serde::Serialize;

use super::link::{IFLA_IFNAME, link_header};
use super::{Mac, Route};
use crate::netlink::{self, Attributes, Message, NetlinkError, interface_name};

/// What the host makes of a function's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VfLink {
    /// As the port's is.
    Auto,
    /// Always up: functions of one NIC reach each other then.
    Enable,
    /// Always down.
    Disable,
}

/// A setting of a virtual function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfSetting {
    /// Its Ethernet address, which it cannot change then unless it is trusted.
    Mac(Mac),
    /// Its packets leave with this VLAN's tag and this priority, and come without; 0 is none.
    Vlan {
        /// VLAN, 0 to 4094.
        id: u16,
        /// Priority, 0 to 7.
        priority: u8,
    },
    /// Packets with another source than its own are dropped.
    SpoofCheck(bool),
    /// It may do more: have another address, all multicast.
    Trust(bool),
    /// Most and least Mbit/s it sends; 0 is no limit.
    Rate {
        /// At least so many are kept for it.
        least: u32,
        /// At most so many.
        most: u32,
    },
    /// Its link.
    Link(VfLink),
}

/// A virtual function, as its NIC's driver tells. What it does not tell is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VfInfo {
    /// Its number.
    pub number: u32,
    /// Its Ethernet address, when the host has set one.
    pub mac: Option<Mac>,
    /// Its VLAN; 0 is none.
    pub vlan: Option<u32>,
    /// The priority of its packets in that VLAN.
    pub priority: Option<u32>,
    /// Packets with another source than its own are dropped.
    pub spoof_check: Option<bool>,
    /// It may do more.
    pub trust: Option<bool>,
    /// Least Mbit/s.
    pub least_mbps: Option<u32>,
    /// Most Mbit/s; 0 is no limit.
    pub most_mbps: Option<u32>,
    /// Its link.
    pub link: Option<VfLink>,
}

impl Route {
    /// Changes settings of virtual function `number` of the NIC that is interface `index`, all or none as far as the driver
    /// keeps to that.
    ///
    /// # Errors
    /// In the kernel's words, when there is no such function, or its driver does not know a setting.
    pub fn set_virtual_function(
        &mut self,
        index: u32,
        number: u32,
        settings: &[VfSetting],
    ) -> Result<(), NetlinkError> {
        let what = format!("set virtual function {number}");
        let message =
            Message::new(what, libc::RTM_NEWLINK, &link_header(index, 0, 0)).with(&[list(number, settings)]);
        self.socket.request(&message).map(drop)
    }

    /// The virtual functions of the NIC that is this interface, by number.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel does not answer.
    pub fn virtual_functions(&mut self, interface: &str) -> Result<Vec<VfInfo>, NetlinkError> {
        let what = format!("list the virtual functions of {interface}");
        let message = Message::new(what, libc::RTM_GETLINK, &link_header(0, 0, 0)).with(&[
            netlink::text(IFLA_IFNAME, interface_name(interface)?),
            netlink::number(IFLA_EXT_MASK, RTEXT_FILTER_VF),
        ]);
        let answer = self.socket.request(&message)?.unwrap_or_default();
        Ok(parse(&answer))
    }
}

/// The settings of one function, as a list of functions.
fn list(number: u32, settings: &[VfSetting]) -> DefaultNla {
    let attributes: Vec<DefaultNla> = settings.iter().map(|setting| attribute(number, *setting)).collect();
    netlink::nested(IFLA_VFINFO_LIST, &[netlink::nested(IFLA_VF_INFO, &attributes)])
}

/// A setting as the kernel's structures have it (`linux/if_link.h`): the function's number, then 32-bit words.
fn attribute(number: u32, setting: VfSetting) -> DefaultNla {
    let words = |kind, words: &[u32]| {
        let bytes: Vec<u8> = [number].iter().chain(words).flat_map(|word| word.to_ne_bytes()).collect();
        netlink::bytes(kind, &bytes)
    };
    match setting {
        VfSetting::Mac(mac) => {
            let mut bytes = [0; 36];
            bytes[..4].copy_from_slice(&number.to_ne_bytes());
            bytes[4..10].copy_from_slice(&mac.0);
            netlink::bytes(IFLA_VF_MAC, &bytes)
        }
        VfSetting::Vlan { id, priority } => words(IFLA_VF_VLAN, &[id.into(), priority.into()]),
        VfSetting::SpoofCheck(on) => words(IFLA_VF_SPOOFCHK, &[on.into()]),
        VfSetting::Trust(on) => words(IFLA_VF_TRUST, &[on.into()]),
        VfSetting::Rate { least, most } => words(IFLA_VF_RATE, &[least, most]),
        VfSetting::Link(link) => words(
            IFLA_VF_LINK_STATE,
            &[match link {
                VfLink::Auto => 0,
                VfLink::Enable => 1,
                VfLink::Disable => 2,
            }],
        ),
    }
}

/// The functions in an answer to RTM_GETLINK.
pub(super) fn parse(answer: &[u8]) -> Vec<VfInfo> {
    let attributes = Attributes(answer.get(16..).unwrap_or_default());
    let list = attributes.nested(IFLA_VFINFO_LIST);
    let mut all: Vec<VfInfo> = list
        .iter()
        .filter(|(kind, _)| *kind == IFLA_VF_INFO)
        .filter_map(|(_, bytes)| one(Attributes(bytes)))
        .collect();
    all.sort_by_key(|function| function.number);
    all
}

fn one(attributes: Attributes<'_>) -> Option<VfInfo> {
    // Behind the function's number; all ones say that the driver does not tell.
    let word = |kind: u16, at: usize| {
        let bytes = attributes.bytes(kind)?.get(4 * at..4 * at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?)).filter(|word| *word != u32::MAX)
    };
    let mac = attributes.bytes(IFLA_VF_MAC)?;
    let number = u32::from_ne_bytes(mac.get(..4)?.try_into().ok()?);
    let mac = Mac(mac.get(4..10)?.try_into().ok()?);
    Some(VfInfo {
        number,
        mac: Some(mac).filter(|mac| mac.0 != [0; 6]),
        vlan: word(IFLA_VF_VLAN, 1),
        priority: word(IFLA_VF_VLAN, 2),
        spoof_check: word(IFLA_VF_SPOOFCHK, 1).map(|on| on != 0),
        trust: word(IFLA_VF_TRUST, 1).map(|on| on != 0),
        least_mbps: word(IFLA_VF_RATE, 1),
        most_mbps: word(IFLA_VF_RATE, 2),
        link: match word(IFLA_VF_LINK_STATE, 1) {
            Some(0) => Some(VfLink::Auto),
            Some(1) => Some(VfLink::Enable),
            Some(2) => Some(VfLink::Disable),
            _ => None,
        },
    })
}

// linux/if_link.h and linux/rtnetlink.h.
const IFLA_VFINFO_LIST: u16 = 22;
const IFLA_EXT_MASK: u16 = 29;
const RTEXT_FILTER_VF: u32 = 1;
const IFLA_VF_INFO: u16 = 1;
const IFLA_VF_MAC: u16 = 1;
const IFLA_VF_VLAN: u16 = 2;
const IFLA_VF_SPOOFCHK: u16 = 4;
const IFLA_VF_LINK_STATE: u16 = 5;
const IFLA_VF_RATE: u16 = 6;
const IFLA_VF_TRUST: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_reads_as_it_was_written() {
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        let settings = [
            VfSetting::Mac(mac),
            VfSetting::Vlan { id: 7, priority: 3 },
            VfSetting::SpoofCheck(false),
            VfSetting::Trust(true),
            VfSetting::Rate { least: 0, most: 500 },
            VfSetting::Link(VfLink::Disable),
        ];
        let info = |number| {
            let attributes: Vec<_> = settings.iter().map(|setting| attribute(number, *setting)).collect();
            netlink::nested(IFLA_VF_INFO, &attributes)
        };
        let list = netlink::emit(&[netlink::nested(IFLA_VFINFO_LIST, &[info(1), info(0)])]);
        let all = parse(&[&link_header(3, 0, 0)[..], &list].concat());
        let wanted = VfInfo {
            number: 0,
            mac: Some(mac),
            vlan: Some(7),
            priority: Some(3),
            spoof_check: Some(false),
            trust: Some(true),
            least_mbps: Some(0),
            most_mbps: Some(500),
            link: Some(VfLink::Disable),
        };
        assert_eq!(all, [wanted.clone(), VfInfo { number: 1, ..wanted }]);
    }

    /// What iproute2 6.1 sends behind the header of RTM_NEWLINK for `ip link set dev lo vf 1 WORDS`, as strace shows it
    /// (`-e trace=sendmsg -e write=3`), in words of the little-endian machine it ran on. Lists and their members have no flag there
    /// that they are nested.
    const IPROUTE2: [(&str, VfSetting, &[u32]); 8] = [
        (
            "mac 02:00:00:00:00:10",
            VfSetting::Mac(Mac([2, 0, 0, 0, 0, 0x10])),
            &[0x0016_0030, 0x0001_002c, 0x0001_0028, 1, 2, 0x1000, 0, 0, 0, 0, 0, 0],
        ),
        (
            "vlan 7 qos 3",
            VfSetting::Vlan { id: 7, priority: 3 },
            &[0x0016_0018, 0x0001_0014, 0x0002_0010, 1, 7, 3],
        ),
        ("spoofchk off", VfSetting::SpoofCheck(false), &[0x0016_0014, 0x0001_0010, 0x0004_000c, 1, 0]),
        ("trust on", VfSetting::Trust(true), &[0x0016_0014, 0x0001_0010, 0x0009_000c, 1, 1]),
        (
            "max_tx_rate 500 min_tx_rate 100",
            VfSetting::Rate { least: 100, most: 500 },
            &[0x0016_0018, 0x0001_0014, 0x0006_0010, 1, 100, 500],
        ),
        ("state auto", VfSetting::Link(VfLink::Auto), &[0x0016_0014, 0x0001_0010, 0x0005_000c, 1, 0]),
        ("state enable", VfSetting::Link(VfLink::Enable), &[0x0016_0014, 0x0001_0010, 0x0005_000c, 1, 1]),
        ("state disable", VfSetting::Link(VfLink::Disable), &[0x0016_0014, 0x0001_0010, 0x0005_000c, 1, 2]),
    ];

    #[test]
    fn settings_are_sent_as_iproute2_sends_them() {
        const NESTED: u32 = 0x8000 << 16;
        for (command, setting, wanted) in IPROUTE2 {
            let sent = netlink::emit(&[list(1, &[setting])]);
            let words = sent.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
            let words: Vec<u32> =
                words.enumerate().map(|(at, word)| if at < 2 { word & !NESTED } else { word }).collect();
            assert_eq!(words, wanted, "{command}");
        }
    }

    #[test]
    fn what_a_driver_does_not_tell_is_absent() {
        let mac = attribute(4, VfSetting::Mac(Mac([0; 6])));
        let unknown = [4_u32, u32::MAX].map(u32::to_ne_bytes).concat();
        let info = netlink::nested(IFLA_VF_INFO, &[mac, netlink::bytes(IFLA_VF_SPOOFCHK, &unknown)]);
        let list = netlink::emit(&[netlink::nested(IFLA_VFINFO_LIST, &[info])]);
        let all = parse(&[&link_header(3, 0, 0)[..], &list].concat());
        assert_eq!(all, [VfInfo { number: 4, ..VfInfo::default() }]);
    }
}
