//! Which Ethernet address an IP address has on an interface.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};

use super::{Mac, Route, address, family, number_at, octets};
use crate::netlink::{self, Attributes, Message, NetlinkError};

/// An entry of the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface's index.
    pub index: u32,
    /// The neighbour's IP address.
    pub address: IpAddr,
    /// Its Ethernet address, once known.
    pub mac: Option<Mac>,
    /// Entered by hand; never asked for again.
    pub permanent: bool,
}

impl Route {
    /// Enters a neighbour for good, so that nobody need ask for it by ARP or ND.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn add_neighbour(&mut self, index: u32, address: IpAddr, mac: Mac) -> Result<(), NetlinkError> {
        let what = format!("enter {address} at {mac} as a neighbour on interface {index}");
        let message =
            Message::new(what, libc::RTM_NEWNEIGH, &header(family(address), index, libc::NUD_PERMANENT))
                .flags(NLM_F_CREATE | NLM_F_REPLACE)
                .with(&[
                    netlink::bytes(libc::NDA_DST, &octets(address)),
                    netlink::bytes(libc::NDA_LLADDR, &mac.0),
                ]);
        self.socket.request(&message).map(drop)
    }

    /// Every neighbour of every interface.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>, NetlinkError> {
        let message = Message::new("list the neighbours", libc::RTM_GETNEIGH, &header(0, 0, 0));
        Ok(self.socket.dump(&message)?.iter().filter_map(|answer| parse(answer)).collect())
    }
}

/// `struct ndmsg`.
fn header(family: u8, index: u32, state: u16) -> [u8; 12] {
    let mut header = [0; 12];
    header[0] = family;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header
}

pub(super) fn parse(answer: &[u8]) -> Option<Neighbour> {
    let attributes = Attributes(answer.get(12..)?);
    let state = u16::from_ne_bytes([answer[8], answer[9]]);
    Some(Neighbour {
        index: number_at(answer, 4)?,
        address: address(attributes.bytes(libc::NDA_DST)?)?,
        mac: attributes.bytes(libc::NDA_LLADDR).and_then(|mac| Some(Mac(mac.try_into().ok()?))),
        permanent: state & libc::NUD_PERMANENT != 0,
    })
}
