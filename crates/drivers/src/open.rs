//! From a name to an opened port.

use bywash_filter::{Expression, Hook};
use bywash_frame::{Arena, Stride};
use bywash_port::{OpenError, Port, PortName, Rule, Rules};

use crate::{link, loopback, nic, null, packet, pcap, tap, xdp};

/// Whether an `xdp:` port must, may or must not be zero-copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// An error where the driver cannot.
    Require,
    /// Copy mode.
    Off,
}

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver; an error where it cannot.
    Native,
    /// In the kernel's receive path, after it has built its own packet.
    Generic,
}

/// Whether the NIC must or may not do its part of `only` on a port of some queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ntuple {
    /// An error where its driver cannot.
    Require,
    /// The XDP program does all.
    Off,
}

/// Whether rules that a NIC can decide must or may be in it as well, where the XDP program has them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesInNic {
    /// Those that its driver takes.
    Auto,
    /// An error where it does not take one that drops by headers alone.
    Require,
}

/// How a port is to be opened. `None` leaves the choice to the port; what a kind of port has no use for is an error,
/// so that no wish is ignored.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Queues to use; all the port has when `None`, for `null:`, `loop:` and `link:` one.
    pub queues: Option<u16>,
    /// Packets in each ring, a power of two.
    pub ring: Option<u32>,
    /// Take just these packets and leave the others to the kernel.
    pub only: Option<Expression>,
    /// Where the driver can, else the XDP program alone, when `None`.
    pub ntuple: Option<Ntuple>,
    /// What becomes of these packets; what rules take out goes back by the sending halves.
    pub rules: Option<Rules>,
    /// Where the program of these rules runs; where it costs packets that pass least, as far as the rules allow, when `None`.
    pub hook: Option<Hook>,
    /// Somebody keeps what rules draw as samples ([`Port::samples`]); else they draw none.
    pub samples: bool,
    /// Whether the NIC drops what rules drop; it does not when `None`.
    pub rules_in_nic: Option<RulesInNic>,
    /// Zero-copy where the driver has it, else copy, when `None`.
    pub zero_copy: Option<ZeroCopy>,
    /// Native, else generic, when `None`.
    pub xdp_mode: Option<XdpMode>,
    /// Poll the NIC from the worker's own core for so many microseconds per call.
    pub busy_poll: Option<u32>,
    /// Take all of an interface that the machine needs, or its NIC.
    pub force: bool,
    /// Let a NIC that no IOMMU watches reach all of the machine's memory.
    pub no_iommu: bool,
    /// Nothing will be received: take nothing away from the kernel.
    pub tx_only: bool,
    /// Nothing will be sent.
    pub rx_only: bool,
    /// What becomes of packets before anything else is asked of them: rules that the NIC can obey alone
    /// ([`SteerRule::of`](bywash_port::SteerRule::of)); those of an `xdp:` port its program can obey as well
    /// ([`check_steer`](bywash_port::check_steer)).
    pub steer: Vec<Rule>,
    /// Packets must be as they are on a wire: no super-segments, no checksum left to others.
    pub plain: bool,
}

impl OpenOptions {
    /// The first option that is set and that only `xdp:` ports know, by its flag.
    fn xdp_only(&self) -> Option<&'static str> {
        let set = [
            (self.only.is_some(), "--only"),
            (self.ntuple.is_some(), "--ntuple"),
            (self.rules.is_some(), "--rules"),
            (self.hook.is_some(), "--attach"),
            (self.rules_in_nic.is_some(), "--rules-in-nic"),
            (self.zero_copy.is_some(), "--zero-copy"),
            (self.xdp_mode.is_some(), "--xdp"),
            (self.busy_poll.is_some(), "--busy-poll"),
        ];
        set.into_iter().find_map(|(is_set, flag)| is_set.then_some(flag))
    }
}

/// A port, and what the user should know of how it was opened.
pub struct Opened {
    /// The port.
    pub port: Box<dyn Port>,
    /// Each a line: what is slower or different than it could be, and the cure.
    pub warnings: Vec<String>,
    /// Each a line: a steering rule, and where it is: in the NIC, or why not.
    pub steered: Vec<String>,
}

/// Bytes of packet memory for the rings of a port, and as much again for what is on its way; 0 where nobody knows.
pub fn memory_for(name: &PortName, options: &OpenOptions, stride: Stride) -> usize {
    match name {
        PortName::Null => null::memory_for(options, stride),
        _ => xdp::memory_for(name, options, stride),
    }
}

/// Opens the port called `name`, on packets in `arena`.
///
/// # Errors
/// In one line what was wrong, why, and what to do. The machine is as it was.
pub fn open(name: &PortName, options: &OpenOptions, arena: &'static Arena) -> Result<Opened, OpenError> {
    let error = |reason: String| OpenError { port: name.clone(), reason };
    if let Some(flag) = options.xdp_only().filter(|_| !matches!(name, PortName::Xdp { .. })) {
        return Err(error(format!("{flag} is for xdp: ports; leave it out")));
    }
    let is_nic = matches!(name, PortName::Pci { .. } | PortName::VfioUser { .. });
    if !options.steer.is_empty() && !is_nic && !matches!(name, PortName::Xdp { .. }) {
        return Err(error("--steer is for xdp:, pci: and vfio-user: ports; leave it out".into()));
    }
    if options.no_iommu && !matches!(name, PortName::Pci { .. }) {
        return Err(error("--no-iommu is for pci: ports; leave it out".into()));
    }
    if let Some(ring) = options.ring.filter(|r| !r.is_power_of_two() || !(64..=32768).contains(r)) {
        return Err(error(format!(
            "a ring of {ring} packets: it must be a power of two from 64 to 32768 (--ring)"
        )));
    }
    let (mut warnings, mut steered) = (Vec::new(), Vec::new());
    let port: Box<dyn Port> = match name {
        PortName::Null => Box::new(null::open(options, arena).map_err(error)?),
        PortName::Loop { name: end } => Box::new(loopback::open(end, options).map_err(error)?),
        PortName::Link { path } => Box::new(link::open(path, options).map_err(error)?),
        PortName::Pcap { file } => Box::new(pcap::open(file, options).map_err(error)?),
        PortName::Packet { interface } => Box::new(packet::open(interface, &options.into(), arena)?),
        PortName::Tap { interface } => {
            if options.ring.is_some() {
                return Err(error("the kernel sizes a tap's ring; leave --ring out".into()));
            }
            Box::new(tap::open(interface, &options.into(), arena)?)
        }
        PortName::Pci { address, options: nic } => {
            return nic::open_pci(address, *nic, name, options, arena).map_err(error);
        }
        PortName::VfioUser { socket, options: nic } => {
            return nic::open_socket(socket, *nic, name, options, arena).map_err(error);
        }
        PortName::Xdp { interface, queues } => {
            let port = xdp::open(interface, *queues, &options.into(), arena)?;
            warnings.extend_from_slice(port.warnings());
            steered.extend(port.steered());
            Box::new(port)
        }
    };
    Ok(Opened { port, warnings, steered })
}
