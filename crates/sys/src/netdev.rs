//! What an interface's driver can do for XDP and AF_XDP, by the generic netlink family `netdev`.
//!
//! The family is asked instead of a table of drivers: drivers learn. Layouts:
//! `Documentation/netlink/specs/netdev.yaml`.

use rustix::io::Errno;
use serde::Serialize;

use crate::netlink::{Attributes, Family, Message, NetlinkError, Socket, number, text};

/// What a driver can do for XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct XdpFeatures {
    /// Runs XDP programs in the driver, with DROP, PASS, ABORTED and TX.
    pub native: bool,
    /// Redirects from it to other interfaces and to AF_XDP sockets.
    pub redirect: bool,
    /// Takes what others redirect to it. A veth does only while its other end has an XDP program or GRO.
    pub redirect_target: bool,
    /// AF_XDP without a copy.
    pub zero_copy: bool,
    /// Runs programs in the NIC.
    pub offload: bool,
    /// Packets of several buffers, received.
    pub multi_buffer: bool,
    /// Packets of several buffers, redirected to it.
    pub multi_buffer_target: bool,
    /// The most buffers of a packet without a copy; 1 when it has no multi-buffer there.
    pub zero_copy_segments: u32,
    /// Tells XDP programs when a packet came.
    pub rx_timestamp: bool,
    /// Tells XDP programs a packet's RSS hash.
    pub rx_hash: bool,
    /// Tells XDP programs the VLAN tag that it took off.
    pub rx_vlan: bool,
    /// Tells AF_XDP when a packet went.
    pub tx_timestamp: bool,
    /// Fills in the checksum of what AF_XDP sends.
    pub tx_checksum: bool,
    /// Sends at a given time.
    pub tx_launch_time: bool,
}

/// The `netdev` family in one network namespace: the one it was opened in, whichever thread uses it.
#[derive(Debug)]
pub struct Netdev {
    socket: Socket,
    family: u16,
}

impl Netdev {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Missing`] before Linux 6.3.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut socket = Socket::open(Family::Generic)?;
        let message = Message::new("find the netlink family netdev", CTRL, &header(CTRL_GET_FAMILY, 2))
            .with(&[text(CTRL_ATTR_FAMILY_NAME, "netdev")]);
        let answer = match socket.request(&message) {
            Err(error) if error.errno() == Some(Errno::NOENT) => {
                return Err(NetlinkError::Missing(
                    "netlink family netdev: Linux 6.3 and later have it".into(),
                ));
            }
            answer => answer?.unwrap_or_default(),
        };
        let family = attributes(&answer)
            .u16(CTRL_ATTR_FAMILY_ID)
            .ok_or_else(|| message.answer("it names no family".into()))?;
        Ok(Self { socket, family })
    }

    /// What the driver of an interface can do for XDP.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn features(&mut self, index: u32) -> Result<XdpFeatures, NetlinkError> {
        let what = format!("ask what XDP interface {index} can do");
        let message =
            Message::new(what, self.family, &header(DEV_GET, 1)).with(&[number(DEV_IFINDEX, index)]);
        let answer = self.socket.request(&message)?.unwrap_or_default();
        let attributes = attributes(&answer);
        let bits = |kind| attributes.u64(kind).unwrap_or_default();
        let (xdp, metadata, xsk) = (bits(DEV_XDP_FEATURES), bits(DEV_RX_METADATA), bits(DEV_XSK_FEATURES));
        let has = |bits: u64, bit: u32| bits >> bit & 1 == 1;
        Ok(XdpFeatures {
            native: has(xdp, 0),
            redirect: has(xdp, 1),
            redirect_target: has(xdp, 2),
            zero_copy: has(xdp, 3),
            offload: has(xdp, 4),
            multi_buffer: has(xdp, 5),
            multi_buffer_target: has(xdp, 6),
            zero_copy_segments: attributes.u32(DEV_ZC_MAX_SEGS).unwrap_or(1),
            rx_timestamp: has(metadata, 0),
            rx_hash: has(metadata, 1),
            rx_vlan: has(metadata, 2),
            tx_timestamp: has(xsk, 0),
            tx_checksum: has(xsk, 1),
            tx_launch_time: has(xsk, 2),
        })
    }
}

/// `struct genlmsghdr`.
fn header(command: u8, version: u8) -> [u8; 4] {
    [command, version, 0, 0]
}

/// What follows it.
fn attributes(answer: &[u8]) -> Attributes<'_> {
    Attributes(answer.get(4..).unwrap_or_default())
}

const CTRL: u16 = 0x10;
const CTRL_GET_FAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;
const DEV_ZC_MAX_SEGS: u16 = 4;
const DEV_RX_METADATA: u16 = 5;
const DEV_XSK_FEATURES: u16 = 6;
