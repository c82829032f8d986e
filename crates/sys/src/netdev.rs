//! What an interface's driver can do for XDP and AF_XDP, and its NAPI settings, by the generic netlink family
//! `netdev`.
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

/// Receiving or sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum QueueKind {
    /// Receiving.
    Rx,
    /// Sending.
    Tx,
}

/// A queue that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NetdevQueue {
    /// Its number.
    pub id: u32,
    /// Receiving or sending.
    pub kind: QueueKind,
    /// What polls it. Without one, busy polling an AF_XDP socket on it does nothing.
    pub napi: Option<u32>,
    /// An AF_XDP socket has it.
    pub xsk: bool,
}

/// A NAPI instance: what polls queues, and how patiently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Napi {
    /// Its number.
    pub id: u32,
    /// Its interrupt.
    pub irq: Option<u32>,
    /// Its settings; all 0 on kernels before 6.13, which have them by interface, in sysfs.
    pub settings: NapiSettings,
}

/// How patiently a NAPI instance is polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NapiSettings {
    /// Empty polls before its interrupt is let through again.
    pub defer_hard_irqs: u32,
    /// How long it waits between them, ns.
    pub gro_flush_timeout: u64,
    /// How long its interrupt stays off while a program busy polls, ns.
    pub irq_suspend_timeout: u64,
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
        let message = self
            .message(format!("ask what XDP interface {index} can do"), DEV_GET)
            .with(&[number(DEV_IFINDEX, index)]);
        let answer = self.ask(&message, "netdev dev-get: Linux 6.3 and later have it")?.unwrap_or_default();
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

    /// The queues of an interface that is up, in use.
    ///
    /// # Errors
    /// [`NetlinkError::Missing`] before Linux 6.8; when there is no such interface.
    pub fn queues(&mut self, index: u32) -> Result<Vec<NetdevQueue>, NetlinkError> {
        let message = self
            .message(format!("ask about the queues of interface {index}"), QUEUE_GET)
            .with(&[number(QUEUE_IFINDEX, index)]);
        let answers = self.ask_all(&message, "netdev queue-get: Linux 6.8 and later have it")?;
        let queue = |answer: &Vec<u8>| {
            let attributes = attributes(answer);
            Some(NetdevQueue {
                id: attributes.u32(QUEUE_ID)?,
                kind: if attributes.u32(QUEUE_TYPE)? == 0 { QueueKind::Rx } else { QueueKind::Tx },
                napi: attributes.u32(QUEUE_NAPI_ID),
                xsk: attributes.bytes(QUEUE_XSK).is_some(),
            })
        };
        Ok(answers.iter().filter_map(queue).collect())
    }

    /// The NAPI instances of an interface that is up.
    ///
    /// # Errors
    /// [`NetlinkError::Missing`] before Linux 6.8; when there is no such interface.
    pub fn napis(&mut self, index: u32) -> Result<Vec<Napi>, NetlinkError> {
        let message = self
            .message(format!("ask about the NAPI of interface {index}"), NAPI_GET)
            .with(&[number(NAPI_IFINDEX, index)]);
        let answers = self.ask_all(&message, "netdev napi-get: Linux 6.8 and later have it")?;
        let napi = |answer: &Vec<u8>| {
            let attributes = attributes(answer);
            Some(Napi {
                id: attributes.u32(NAPI_ID)?,
                irq: attributes.u32(NAPI_IRQ),
                settings: NapiSettings {
                    defer_hard_irqs: attributes.u32(NAPI_DEFER_HARD_IRQS).unwrap_or_default(),
                    gro_flush_timeout: attributes.u64(NAPI_GRO_FLUSH_TIMEOUT).unwrap_or_default(),
                    irq_suspend_timeout: attributes.u64(NAPI_IRQ_SUSPEND_TIMEOUT).unwrap_or_default(),
                },
            })
        };
        Ok(answers.iter().filter_map(napi).collect())
    }

    /// Sets how patiently a NAPI instance is polled. It stays so when this process ends.
    ///
    /// # Errors
    /// [`NetlinkError::Missing`] before Linux 6.13; when there is no such instance.
    pub fn set_napi(&mut self, id: u32, settings: NapiSettings) -> Result<(), NetlinkError> {
        let time = |kind, ns: u64| crate::netlink::bytes(kind, &ns.to_ne_bytes());
        let message = self.message(format!("set NAPI {id}"), NAPI_SET).with(&[
            number(NAPI_ID, id),
            number(NAPI_DEFER_HARD_IRQS, settings.defer_hard_irqs),
            time(NAPI_GRO_FLUSH_TIMEOUT, settings.gro_flush_timeout),
            time(NAPI_IRQ_SUSPEND_TIMEOUT, settings.irq_suspend_timeout),
        ]);
        self.ask(&message, "netdev napi-set: Linux 6.13 and later have it").map(drop)
    }

    fn message(&self, what: String, command: u8) -> Message {
        Message::new(what, self.family, &header(command, 1))
    }

    fn ask(&mut self, message: &Message, missing: &str) -> Result<Option<Vec<u8>>, NetlinkError> {
        self.socket.request(message).map_err(|error| too_old(error, missing))
    }

    fn ask_all(&mut self, message: &Message, missing: &str) -> Result<Vec<Vec<u8>>, NetlinkError> {
        self.socket.dump(message).map_err(|error| too_old(error, missing))
    }
}

/// A command the kernel does not know is "not supported" to it.
fn too_old(error: NetlinkError, missing: &str) -> NetlinkError {
    if error.errno() == Some(Errno::OPNOTSUPP) { NetlinkError::Missing(missing.into()) } else { error }
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

const QUEUE_GET: u8 = 10;
const QUEUE_ID: u16 = 1;
const QUEUE_IFINDEX: u16 = 2;
const QUEUE_TYPE: u16 = 3;
const QUEUE_NAPI_ID: u16 = 4;
const QUEUE_XSK: u16 = 7;

const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
const NAPI_IFINDEX: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_IRQ: u16 = 3;
const NAPI_DEFER_HARD_IRQS: u16 = 5;
const NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
const NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;
