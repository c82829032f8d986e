//! The machine's network interfaces: what each is, what it can do, what would be used of it and what is to be fixed.
//!
//! Plain data for `bywash ports`, and the checks before an `xdp:` port is opened ([`preflight`]). Everything is of
//! the calling thread's network namespace.

mod advice;
mod carried;
mod cores;
mod guard;
mod pci;
mod sessions;

use serde::Serialize;

pub use advice::{Finding, HEADERS, Severity, Topic};
pub use carried::carried;
pub use cores::{core_conflicts, index_of, worker_cores};
pub use guard::{KernelUse, NeverTake, SshConnection, gateways, kernel_use, never_take, ssh};
pub use pci::{PciNic, Pcie};

use crate::bpf::Program;
use crate::ethtool::{Channels, Driver, Ethtool, EthtoolError, Feature, Pause, Rings};
use crate::netdev::{Netdev, XdpFeatures};
use crate::netlink::NetlinkError;
use crate::pci::Device;
use crate::route::{Address, Gateway, Link, Mac, Prefix, Route};

/// Why the interfaces can't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// By netlink.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// By ethtool.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// There is none of this name.
    #[error("there is no interface '{name}' here; there is: {}", .there.join(", "))]
    None {
        /// The name.
        name: String,
        /// The names of those there are.
        there: Vec<String>,
    },
}

/// All interfaces, and the NICs that are no interface.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Interfaces of this network namespace, by index.
    pub interfaces: Vec<Interface>,
    /// Ethernet NICs on the PCI bus that are none of these.
    pub pci: Vec<PciNic>,
}

/// A network interface.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The kernel's number of it.
    pub index: u32,
    /// Who drives it.
    pub driver: Driver,
    /// What sort of virtual interface it is; `None` for hardware.
    pub kind: Option<String>,
    /// It carries Ethernet frames.
    pub ethernet: bool,
    /// Its Ethernet address.
    pub mac: Option<Mac>,
    /// Longest packet behind the Ethernet header, bytes.
    pub mtu: u32,
    /// It is set up.
    pub up: bool,
    /// It has a link partner.
    pub carrier: bool,
    /// The link's speed in Mbit/s; `None` without a link, and for a virtual one.
    pub speed_mbps: Option<u32>,
    /// Its queues in use.
    pub queues: Channels,
    /// Its rings' sizes.
    pub rings: Option<Rings>,
    /// The NUMA node it sits on.
    pub numa_node: Option<u32>,
    /// How it is connected to the PCI bus.
    pub pcie: Option<Pcie>,
    /// What its driver can do for XDP; `None` when the kernel can't tell (before 6.3).
    pub xdp_features: Option<XdpFeatures>,
    /// The XDP program on it.
    pub xdp_program: Option<XdpProgram>,
    /// Steering by n-tuple rules.
    pub ntuple: Feature,
    /// Entries of its RSS table; 0 without RSS.
    pub rss_entries: usize,
    /// Joining of received packets in the kernel.
    pub gro: Feature,
    /// Joining of received packets in the NIC.
    pub gro_hw: Feature,
    /// Taking off of VLAN tags in the NIC.
    pub vlan_strip: Feature,
    /// Its pause frames.
    pub pause: Option<Pause>,
    /// Its addresses.
    pub addresses: Vec<Prefix>,
    /// A default route goes by it.
    pub default_route: bool,
    /// The other end of a veth, when that is in this namespace too.
    pub peer: Option<Peer>,
    /// What is below a bond, team or bridge.
    pub ports: Vec<String>,
    /// What would be used to open it: `native XDP, zero-copy, 8 queues`.
    pub would_use: String,
    /// What is to be known or fixed.
    pub advice: Vec<Finding>,
}

/// The other end of a veth.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its transmit queues.
    pub tx_queues: u32,
}

/// An XDP program on an interface.
#[derive(Clone, Debug, Serialize)]
pub struct XdpProgram {
    /// The kernel's number of it.
    pub id: u32,
    /// Its name; empty when it has none, or we may not ask.
    pub name: String,
    /// `native`, `generic` or `offloaded`.
    pub mode: &'static str,
}

/// Looks at all interfaces. `frame` is the longest packet that fits into one frame, in bytes.
///
/// # Errors
/// When the kernel does not answer. What one driver does not tell is absent.
pub fn report(frame: u32) -> Result<Report, InterfaceError> {
    let mut look = Look::open()?;
    let interfaces: Vec<Interface> = (0..look.links.len()).map(|at| look.interface(at, frame)).collect();
    let here: Vec<&str> = interfaces.iter().map(|interface| interface.driver.bus.as_str()).collect();
    let pci = pci::nics(&Device::all(), &here);
    Ok(Report { interfaces, pci })
}

/// Looks at one interface.
///
/// # Errors
/// [`InterfaceError::None`], or when the kernel does not answer.
pub fn one(name: &str, frame: u32) -> Result<Interface, InterfaceError> {
    let mut look = Look::open()?;
    let at = look.links.iter().position(|link| link.name == name);
    Ok(look.interface(at.ok_or_else(|| InterfaceError::none(name, &look.links))?, frame))
}

/// Looks at one interface before an AF_XDP port is opened on it: as [`one`], and the advice, errors first, has also
/// what this process lacks.
///
/// # Errors
/// As [`one`].
pub fn preflight(name: &str, frame: u32) -> Result<Interface, InterfaceError> {
    let mut interface = one(name, frame)?;
    interface.advice.extend(advice::rights());
    interface.advice.sort_by_key(|finding| finding.severity);
    Ok(interface)
}

/// How fast a link is, Mbit/s, where that is known. What virtual ones tell is made up.
pub fn speed(link: &Link, ethtool: &Ethtool) -> Option<u32> {
    if link.kind.is_none() { ethtool.speed(&link.name).ok().flatten() } else { None }
}

impl InterfaceError {
    fn none(name: &str, links: &[Link]) -> Self {
        Self::None { name: name.into(), there: links.iter().map(|link| link.name.clone()).collect() }
    }
}

/// What is asked, opened once.
struct Look {
    ethtool: Ethtool,
    netdev: Option<Netdev>,
    links: Vec<Link>,
    addresses: Vec<Address>,
    gateways: Vec<Gateway>,
}

impl Look {
    fn open() -> Result<Self, InterfaceError> {
        let mut route = Route::open()?;
        Ok(Self {
            ethtool: Ethtool::open()?,
            netdev: Netdev::open().ok(),
            links: route.links()?,
            addresses: route.addresses()?,
            gateways: route.default_gateways()?,
        })
    }

    /// What a driver does not tell is absent: many tell little.
    fn interface(&mut self, at: usize, frame: u32) -> Interface {
        let (link, ethtool) = (&self.links[at], &self.ethtool);
        let name = link.name.as_str();
        let mut driver = ethtool.driver(name).unwrap_or_default();
        if driver.name.is_empty() {
            driver.name = link.kind.clone().unwrap_or_default();
        }
        if let Some((bus, device)) = &link.parent
            && bus == "pci"
        {
            driver.bus.clone_from(device);
        }
        let device = driver.bus.parse().ok().and_then(Device::at).map(|device| device.directory());
        let features = ethtool.features(name).unwrap_or_default();
        let feature = |name: &str| features.get(name).copied().unwrap_or_default();
        let made_with = Channels {
            rx: link.rx_queues,
            tx: link.tx_queues,
            max_rx: link.rx_queues,
            max_tx: link.tx_queues,
        };
        let peer = link.peer.filter(|_| link.peer_namespace.is_none());
        let peer = peer.and_then(|index| self.links.iter().find(|other| other.index == index));
        let mut interface = Interface {
            name: link.name.clone(),
            index: link.index,
            kind: link.kind.clone(),
            ethernet: link.ethernet,
            mac: link.mac.filter(|_| link.ethernet),
            mtu: link.mtu,
            up: link.up,
            carrier: link.carrier,
            speed_mbps: speed(link, ethtool),
            queues: ethtool.channels(name).unwrap_or(made_with),
            rings: ethtool.rings(name).ok(),
            numa_node: device.as_deref().and_then(pci::numa_node),
            pcie: device.as_deref().and_then(pci::pcie),
            xdp_features: self.netdev.as_mut().and_then(|netdev| netdev.features(link.index).ok()),
            xdp_program: program(link),
            ntuple: feature("rx-ntuple-filter"),
            rss_entries: ethtool.rss(name).map_or(0, |rss| rss.table.len()),
            gro: feature("rx-gro"),
            gro_hw: feature("rx-gro-hw"),
            vlan_strip: feature("rx-vlan-hw-parse"),
            pause: ethtool.pause(name).ok(),
            addresses: self.addresses.iter().filter(|a| a.index == link.index).map(|a| a.prefix).collect(),
            default_route: self.gateways.iter().any(|gateway| gateway.index == link.index),
            peer: peer.map(|peer| Peer { name: peer.name.clone(), tx_queues: peer.tx_queues }),
            ports: self
                .links
                .iter()
                .filter(|port| port.controller == Some(link.index))
                .map(|port| port.name.clone())
                .collect(),
            driver,
            would_use: String::new(),
            advice: Vec::new(),
        };
        interface.would_use = advice::would_use(&interface, frame);
        interface.advice = advice::findings(&interface, frame);
        interface
    }
}

fn program(link: &Link) -> Option<XdpProgram> {
    let modes =
        [("offloaded", link.xdp.offloaded), ("native", link.xdp.native), ("generic", link.xdp.generic)];
    let (mode, id) = modes.into_iter().find_map(|(mode, id)| Some((mode, id?)))?;
    let info = Program::by_id(id).and_then(|program| program.info());
    Some(XdpProgram { id, name: info.map(|info| info.name).unwrap_or_default(), mode })
}
