//! Network interfaces: made, changed, listed, deleted.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::str::FromStr;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use serde::Serialize;

use super::{Route, number_at};
use crate::netlink::{self, Attributes, Message, NetlinkError, interface_name};

/// An Ethernet address. Written as `02:00:00:00:00:01`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Mac {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            *byte = parts
                .next()
                .filter(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
                .and_then(|part| u8::from_str_radix(part, 16).ok())
                .ok_or_else(|| format!("'{text}' is no Ethernet address: write 02:00:00:00:00:01"))?;
        }
        if parts.next().is_some() {
            return Err(format!("'{text}' is no Ethernet address: more than six bytes"));
        }
        Ok(Self(mac))
    }
}

/// The XDP programs on an interface, by the kernel's program numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkXdp {
    /// In the driver.
    pub native: Option<u32>,
    /// In the kernel's receive path, on socket buffers.
    pub generic: Option<u32>,
    /// In the NIC.
    pub offloaded: Option<u32>,
}

impl LinkXdp {
    /// The program that sees packets first.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.offloaded.or(self.native).or(self.generic)
    }
}

/// A network interface, as rtnetlink shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number of it in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What sort of virtual interface it is: `veth`, `tun`, `bridge`. None for hardware.
    pub kind: Option<String>,
    /// ARPHRD_ETHER: it carries Ethernet frames.
    pub ethernet: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// Its Ethernet address.
    pub mac: Option<Mac>,
    /// Longest packet behind the Ethernet header, bytes.
    pub mtu: u32,
    /// An administrator has set it up.
    pub up: bool,
    /// Promiscuous, multicast and other flags: `IFF_…`.
    pub flags: u32,
    /// There is a link partner.
    pub carrier: bool,
    /// How often that has changed.
    pub carrier_changes: u32,
    /// The kernel's operational state is "up": traffic passes (RFC 2863).
    pub running: bool,
    /// Transmit queues it was made with.
    pub tx_queues: u32,
    /// Receive queues it was made with.
    pub rx_queues: u32,
    /// What packets wait in before they are sent, the root queueing discipline's name: `noqueue` when nothing waits.
    pub qdisc: Option<String>,
    /// XDP programs on it.
    pub xdp: LinkXdp,
    /// The other end's index, for a veth; the lower interface's, for a VLAN.
    pub peer: Option<u32>,
    /// Which namespace `peer` is in, by a number of this namespace; None for this one.
    pub peer_namespace: Option<i32>,
    /// The interface that this one is a port of (bridge, bond).
    pub controller: Option<u32>,
    /// The device it sits on, by bus and name: `pci`, `0000:03:00.0`.
    pub parent: Option<(String, String)>,
}

/// What an interface has counted since it was made. Drivers differ in what they count where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets that could not be sent because they were damaged, or the link was.
    pub tx_errors: u64,
    /// Packets received and dropped.
    pub rx_dropped: u64,
    /// Packets that were to be sent and were dropped.
    pub tx_dropped: u64,
}

/// One end of a veth pair to be made.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its Ethernet address; the kernel picks one when absent.
    pub mac: Option<Mac>,
    /// Its namespace; the socket's own when absent.
    pub namespace: Option<BorrowedFd<'a>>,
}

/// A veth pair to be made.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    /// One end.
    pub near: VethEnd<'a>,
    /// The other.
    pub far: VethEnd<'a>,
    /// Receive and transmit queues of either end. XDP wants as many receive queues as the other end has transmit
    /// queues.
    pub queues: u32,
    /// The MTU of either end, bytes.
    pub mtu: u32,
}

impl Route {
    /// Makes a veth pair. Both ends are down.
    ///
    /// # Errors
    /// When a name is taken, or the kernel refuses otherwise.
    pub fn create_veth(&mut self, veth: &Veth<'_>) -> Result<(), NetlinkError> {
        let end = |end: &VethEnd<'_>| -> Result<Vec<DefaultNla>, NetlinkError> {
            let mut attributes = vec![
                netlink::text(IFLA_IFNAME, interface_name(end.name)?),
                netlink::number(IFLA_MTU, veth.mtu),
                netlink::number(IFLA_NUM_TX_QUEUES, veth.queues),
                netlink::number(IFLA_NUM_RX_QUEUES, veth.queues),
            ];
            attributes.extend(end.mac.map(|mac| netlink::bytes(IFLA_ADDRESS, &mac.0)));
            attributes.extend(
                end.namespace.map(|fd| netlink::bytes(IFLA_NET_NS_FD, &fd.as_raw_fd().to_ne_bytes())),
            );
            Ok(attributes)
        };
        let mut peer = link_header(0, 0, 0).to_vec();
        peer.extend(netlink::emit(&end(&veth.far)?));
        let mut attributes = end(&veth.near)?;
        attributes.push(netlink::nested(
            IFLA_LINKINFO,
            &[
                netlink::text(IFLA_INFO_KIND, "veth"),
                netlink::nested(IFLA_INFO_DATA, &[netlink::bytes(VETH_INFO_PEER, &peer)]),
            ],
        ));
        let what = format!("make the veth pair {} and {}", veth.near.name, veth.far.name);
        let message = Message::new(what, libc::RTM_NEWLINK, &link_header(0, 0, 0))
            .flags(NLM_F_CREATE | NLM_F_EXCL)
            .with(&attributes);
        self.socket.request(&message).map(drop)
    }

    /// Deletes an interface; for a veth, the pair.
    ///
    /// # Errors
    /// When there is no such interface, or it is one that can't be deleted.
    pub fn delete_link(&mut self, index: u32) -> Result<(), NetlinkError> {
        let message =
            Message::new(format!("delete interface {index}"), libc::RTM_DELLINK, &link_header(index, 0, 0));
        self.socket.request(&message).map(drop)
    }

    /// Sets an interface up or down.
    ///
    /// # Errors
    /// When there is no such interface or its driver refuses.
    pub fn set_up(&mut self, index: u32, up: bool) -> Result<(), NetlinkError> {
        let what = format!("set interface {index} {}", if up { "up" } else { "down" });
        let header = link_header(index, if up { IFF_UP } else { 0 }, IFF_UP);
        self.socket.request(&Message::new(what, libc::RTM_NEWLINK, &header)).map(drop)
    }

    /// Sets an interface's Ethernet address.
    ///
    /// # Errors
    /// When its driver refuses, as some do while it is up.
    pub fn set_mac(&mut self, index: u32, mac: Mac) -> Result<(), NetlinkError> {
        let what = format!("give interface {index} the address {mac}");
        self.change(what, index, &netlink::bytes(IFLA_ADDRESS, &mac.0))
    }

    /// Sets an interface's MTU, in bytes.
    ///
    /// # Errors
    /// When its driver refuses; an XDP program on it can be the reason.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        self.change(format!("give interface {index} an MTU of {mtu}"), index, &netlink::number(IFLA_MTU, mtu))
    }

    fn change(&mut self, what: String, index: u32, to: &DefaultNla) -> Result<(), NetlinkError> {
        let message =
            Message::new(what, libc::RTM_NEWLINK, &link_header(index, 0, 0)).with(std::slice::from_ref(to));
        self.socket.request(&message).map(drop)
    }

    /// Every interface, by index.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let message = Message::new("list the interfaces", libc::RTM_GETLINK, &link_header(0, 0, 0));
        let mut links: Vec<Link> =
            self.socket.dump(&message)?.iter().filter_map(|answer| parse(answer)).collect();
        links.sort_by_key(|link| link.index);
        Ok(links)
    }

    /// What an interface has counted; `None` when there is none of this number.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn counters(&mut self, index: u32) -> Result<Option<LinkCounters>, NetlinkError> {
        let what = format!("read the counters of interface {index}");
        let message = Message::new(what, libc::RTM_GETLINK, &link_header(index, 0, 0));
        match self.socket.request(&message) {
            Ok(answer) => Ok(answer.and_then(|answer| counters(&answer))),
            Err(error) if error.errno() == Some(rustix::io::Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One interface by its number; `None` when there is none.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn link_at(&mut self, index: u32) -> Result<Option<Link>, NetlinkError> {
        let what = format!("look for interface {index}");
        self.find(&Message::new(what, libc::RTM_GETLINK, &link_header(index, 0, 0)))
    }

    /// One interface by name; `None` when there is none.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let message =
            Message::new(format!("look for interface {name}"), libc::RTM_GETLINK, &link_header(0, 0, 0))
                .with(&[netlink::text(IFLA_IFNAME, interface_name(name)?)]);
        self.find(&message)
    }

    fn find(&mut self, message: &Message) -> Result<Option<Link>, NetlinkError> {
        match self.socket.request(message) {
            Ok(answer) => Ok(answer.and_then(|answer| parse(&answer))),
            Err(error) if error.errno() == Some(rustix::io::Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// `struct ifinfomsg`.
pub(super) fn link_header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// An answer to RTM_GETLINK; None when it is too short to name an interface.
pub(super) fn parse(answer: &[u8]) -> Option<Link> {
    let hardware = u16::from_ne_bytes(answer.get(2..4)?.try_into().ok()?);
    let flags = number_at(answer, 8)?;
    let attributes = Attributes(answer.get(16..)?);
    let xdp = attributes.nested(IFLA_XDP);
    // With one program only its number is there, with the way it is attached beside it; with several, each has its
    // own.
    let attached = xdp.u8(IFLA_XDP_ATTACHED).unwrap_or_default();
    let program = |way: u8, kind: u16| {
        xdp.u32(kind)
            .or_else(|| if attached == way { xdp.u32(IFLA_XDP_PROG_ID) } else { None })
            .filter(|&id| id != 0)
    };
    let parent = attributes.text(IFLA_PARENT_DEV_BUS_NAME).zip(attributes.text(IFLA_PARENT_DEV_NAME));
    let kind = attributes.nested(IFLA_LINKINFO).text(IFLA_INFO_KIND);
    let carrier = attributes.u8(IFLA_CARRIER).unwrap_or_default() != 0;
    Some(Link {
        index: number_at(answer, 4)?,
        name: attributes.text(IFLA_IFNAME)?,
        ethernet: hardware == libc::ARPHRD_ETHER,
        loopback: hardware == libc::ARPHRD_LOOPBACK,
        mac: attributes.bytes(IFLA_ADDRESS).and_then(|mac| Some(Mac(mac.try_into().ok()?))),
        mtu: attributes.u32(IFLA_MTU).unwrap_or_default(),
        up: flags & IFF_UP != 0,
        flags,
        carrier,
        carrier_changes: attributes.u32(IFLA_CARRIER_CHANGES).unwrap_or_default(),
        running: match attributes.u8(IFLA_OPERSTATE) {
            Some(IF_OPER_UP) => true,
            // Of a TAP interface for ever, since its driver never tells; of a veth only until the kernel has looked.
            Some(IF_OPER_UNKNOWN) => carrier && flags & IFF_UP != 0 && kind.as_deref() != Some("veth"),
            _ => false,
        },
        kind,
        tx_queues: attributes.u32(IFLA_NUM_TX_QUEUES).unwrap_or(1),
        rx_queues: attributes.u32(IFLA_NUM_RX_QUEUES).unwrap_or(1),
        qdisc: attributes.text(IFLA_QDISC),
        xdp: LinkXdp {
            native: program(XDP_ATTACHED_DRV, IFLA_XDP_DRV_PROG_ID),
            generic: program(XDP_ATTACHED_SKB, IFLA_XDP_SKB_PROG_ID),
            offloaded: program(XDP_ATTACHED_HW, IFLA_XDP_HW_PROG_ID),
        },
        peer: attributes.u32(IFLA_LINK).filter(|&peer| peer != 0),
        peer_namespace: attributes
            .bytes(IFLA_LINK_NETNSID)
            .and_then(|id| Some(i32::from_ne_bytes(id.try_into().ok()?))),
        controller: attributes.u32(IFLA_MASTER),
        parent,
    })
}

/// The beginning of `struct rtnl_link_stats64` in an answer to RTM_GETLINK.
fn counters(answer: &[u8]) -> Option<LinkCounters> {
    let words = Attributes(answer.get(16..)?).bytes(IFLA_STATS64)?.as_chunks().0;
    let word = |n: usize| Some(u64::from_ne_bytes(*words.get(n)?));
    Some(LinkCounters {
        rx_packets: word(0)?,
        tx_packets: word(1)?,
        tx_errors: word(5)?,
        rx_dropped: word(6)?,
        tx_dropped: word(7)?,
    })
}

// linux/if_link.h and linux/if.h; libc has these for some targets only.
const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_QDISC: u16 = 6;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_CARRIER: u16 = 33;
const IFLA_CARRIER_CHANGES: u16 = 35;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
const XDP_ATTACHED_DRV: u8 = 1;
const XDP_ATTACHED_SKB: u8 = 2;
const XDP_ATTACHED_HW: u8 = 3;
const IF_OPER_UNKNOWN: u8 = 0;
const IF_OPER_UP: u8 = 6;
const IFF_UP: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_addresses_print_as_they_were_written() {
        for text in ["02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff", "0a:b1:c2:d3:e4:f5"] {
            assert_eq!(text.parse::<Mac>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "02-00-00-00-00-01",
            "0g:00:00:00:00:00",
            "+1:00:00:00:00:00",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_xdp_program_and_several_are_both_understood() {
        let link = |xdp: &[DefaultNla]| {
            let mut answer = link_header(7, IFF_UP, 0).to_vec();
            answer.extend(netlink::emit(&[netlink::text(IFLA_IFNAME, "e"), netlink::nested(IFLA_XDP, xdp)]));
            parse(&answer).unwrap().xdp
        };
        let attached = |way: u8| netlink::bytes(IFLA_XDP_ATTACHED, &[way]);
        assert_eq!(link(&[attached(0)]), LinkXdp::default());
        let native = link(&[attached(1), netlink::number(IFLA_XDP_PROG_ID, 5)]);
        assert_eq!(native, LinkXdp { native: Some(5), ..LinkXdp::default() });
        let both = link(&[
            attached(4),
            netlink::number(IFLA_XDP_DRV_PROG_ID, 5),
            netlink::number(IFLA_XDP_SKB_PROG_ID, 6),
        ]);
        assert_eq!(both, LinkXdp { native: Some(5), generic: Some(6), offloaded: None });
        assert_eq!(both.first(), Some(5));
    }

    #[test]
    fn short_answers_are_no_links() {
        let whole = [&link_header(1, 0, 0)[..], &netlink::emit(&[netlink::text(IFLA_IFNAME, "e")])].concat();
        assert!(parse(&whole).is_some());
        for length in 0..whole.len() - 4 {
            assert!(parse(&whole[..length]).is_none(), "{length}");
        }
    }
}
