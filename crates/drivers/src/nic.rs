//! NICs by name: how one is reached, which driver it wants, and what of the user's options that driver is told.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use bywash_frame::Arena;
use bywash_hw::pci::{self, Family, config};
use bywash_port::{NicOptions, Port, PortName, SteerRule};
use bywash_sys::function::{DmaMemory, Function};
use bywash_sys::interface::HEADERS;
use bywash_sys::memory::file_of;
use bywash_sys::no_iommu::NoIommu;
use bywash_sys::pci::{Address, AddressError, Device};
use bywash_sys::random;
use bywash_sys::vfio::Vfio;
use bywash_sys::vfio_user::VfioUser;

use crate::igb;
use crate::igbvf;
use crate::intel::{LONGEST, NicError, PhysicalFunction, VfSettings, VirtualFunction};
use crate::ixgbe::{self, RSS_QUEUES, Rss};
use crate::ixgbevf;
use crate::virtio::ETHERNET;
use crate::{OpenOptions, Opened};

/// How long a link may take to come up before the user is told that it is down. Direct-attach cables need seconds.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

/// Descriptors in a ring.
const RING: u32 = 1024;

/// A NIC that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// What it is sold as.
    pub name: &'static str,
    /// What its driver is called.
    pub driver: &'static str,
}

/// The NIC with these PCI ids, if we know it.
pub fn known(vendor: u16, device: u16) -> Option<Known> {
    let nic = pci::known(vendor, device)?;
    Some(Known { name: nic.name, driver: nic.family.name() })
}

/// Opens the device behind a vfio-user socket.
///
/// # Errors
/// The reason. The device is out of use then.
pub(crate) fn open_socket(
    socket: &str,
    nic: NicOptions,
    name: &PortName,
    options: &OpenOptions,
    arena: &'static Arena,
) -> Result<Opened, String> {
    let function = VfioUser::connect(Path::new(socket), &name.to_string()).map_err(|e| e.to_string())?;
    let warning = (!function.is_mapped()).then(|| {
        "each batch costs messages to the device's process; serve it with --mapped, and a core to itself, for more speed"
            .to_owned()
    });
    let mut opened = open(function, name, nic, options, arena)?;
    opened.warnings.extend(warning);
    Ok(opened)
}

/// Opens the NIC at an address of the PCI bus, taken from the kernel's driver.
///
/// # Errors
/// The reason. The kernel's driver has it again then.
pub(crate) fn open_pci(
    address: &str,
    nic: NicOptions,
    name: &PortName,
    options: &OpenOptions,
    arena: &'static Arena,
) -> Result<Opened, String> {
    let device = device(address)?;
    if options.no_iommu {
        return open_without_iommu(&device, nic, name, options, arena);
    }
    let function = Vfio::open(&device, &name.to_string(), options.force).map_err(|e| e.to_string())?;
    open(function, name, nic, options, arena)
}

/// The NIC at an address of the PCI bus, looked at before anything is done to a device that is none of ours.
///
/// # Errors
/// When it is none that there is a driver for.
pub(crate) fn device(address: &str) -> Result<Device, String> {
    let address: Address = address.parse().map_err(|error: AddressError| error.to_string())?;
    let none = || format!("there is no PCI device at {address}; lspci -D lists those there are");
    let device = Device::at(address).ok_or_else(none)?;
    let (vendor, model) = device.ids().ok_or_else(none)?;
    family(vendor, model)?;
    Ok(device)
}

/// What whoever takes a NIC without an IOMMU should know, each time.
const NO_IOMMU_RISK: &str = "without an IOMMU the NIC reaches all of this machine's memory: a fault in it, or here, can destroy any \
                             of it; if this process and its bywash-guard are both killed while packets come, run `bywash \
                             cleanup` at once";
const NO_INTERRUPTS: &str = "without an IOMMU there are no interrupts: workers that receive poll and never sleep, whatever --idle says";

/// As [`open_pci`], by physical addresses.
fn open_without_iommu(
    device: &Device,
    nic: NicOptions,
    name: &PortName,
    options: &OpenOptions,
    arena: &'static Arena,
) -> Result<Opened, String> {
    let (address, bytes) = (arena.base(), arena.bytes());
    let (file, offset) = file_of(address, bytes).ok_or_else(|| NicError::PrivateMemory.to_string())?;
    let packets = DmaMemory { address, bytes, file: file.as_fd(), offset };
    let function = NoIommu::open(device, &name.to_string(), options.force, Some(&packets));
    let mut opened = open(function.map_err(|error| error.to_string())?, name, nic, options, arena)?;
    let polls = (!options.tx_only).then_some(NO_INTERRUPTS);
    let warnings = [NO_IOMMU_RISK].into_iter().chain(polls).map(str::to_owned);
    opened.warnings.splice(0..0, warnings);
    Ok(opened)
}

/// Which driver a device wants.
fn family(vendor: u16, device: u16) -> Result<Family, String> {
    let family = pci::known(vendor, device).map(|nic| nic.family);
    family.ok_or_else(|| {
        format!(
            "{vendor:04x}:{device:04x} is no NIC that there is a driver for: use an 82599, an X540, an 82576, or a virtual function of one"
        )
    })
}

/// Opens the NIC behind `function` by the driver that it wants.
fn open<F: Function + 'static>(
    mut function: F,
    name: &PortName,
    nic: NicOptions,
    options: &OpenOptions,
    arena: &'static Arena,
) -> Result<Opened, String> {
    let mut id = [0; 4];
    function.read_config(config::VENDOR, &mut id).map_err(|error| plain(name, &error))?;
    let [a, b, c, d] = id;
    let (vendor, device) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    let family = family(vendor, device)?;
    if matches!(family, Family::IxgbeVf | Family::IgbVf) {
        refuse_filters(family, nic, options)?;
        refuse_key(family, nic)?;
    }
    match family {
        Family::Ixgbe => open_ixgbe(function, name, nic, options, arena),
        Family::Igb => open_igb(function, name, nic, options, arena),
        Family::IxgbeVf => open_vf(function, name, nic, options, arena, ixgbevf::open),
        Family::IgbVf => open_vf(function, name, nic, options, arena, igbvf::open),
    }
}

/// Virtual functions have no filters that name a queue.
fn refuse_filters(family: Family, nic: NicOptions, options: &OpenOptions) -> Result<(), String> {
    let given = nic.fdir.map(|_| "/fdir=").or((!options.steer.is_empty()).then_some("--steer"));
    given.map_or(Ok(()), |given| {
        Err(format!("the {} driver has no filters that name a queue; leave {given} out", family.name()))
    })
}

/// Virtual functions have the key of their physical one.
fn refuse_key(family: Family, nic: NicOptions) -> Result<(), String> {
    if !nic.symmetric {
        return Ok(());
    }
    Err(format!(
        "the {} driver cannot say how packets are spread, the physical function does; leave /rss= out",
        family.name()
    ))
}

/// How a physical function spreads packets: by a key that nobody outside knows, who could else choose flows that all meet in one
/// queue, and that all ports of this process have, so that a flow is in the same queue of each.
fn rss(nic: NicOptions) -> Result<Rss, String> {
    static KEY: OnceLock<[u8; 40]> = OnceLock::new();
    if nic.symmetric {
        return Ok(Rss::symmetric());
    }
    if let Some(key) = KEY.get() {
        return Ok(Rss { key: *key, table: None });
    }
    let mut key = [0; 40];
    for part in key.chunks_mut(16) {
        let random =
            random::bytes().map_err(|error| format!("no random numbers for the RSS key: {error}"))?;
        part.copy_from_slice(&random[..part.len()]);
    }
    Ok(Rss { key: *KEY.get_or_init(|| key), table: None })
}

/// Bytes of a physical function's longest packet without FCS: one with two VLAN tags, as an interface of the kernel's has it, if there is
/// room for them.
fn longest(mtu: Option<u16>) -> usize {
    mtu.map_or(LONGEST, |mtu| (usize::from(mtu) + HEADERS as usize).min(LONGEST))
}

fn open_ixgbe<F: Function + 'static>(
    function: F,
    name: &PortName,
    nic: NicOptions,
    options: &OpenOptions,
    arena: &'static Arena,
) -> Result<Opened, String> {
    let queues = options.queues.unwrap_or_else(|| cores().min(RSS_QUEUES));
    if queues > RSS_QUEUES {
        return Err(format!(
            "{queues} queues: the 82599 spreads packets over {RSS_QUEUES} at most (--queues)"
        ));
    }
    let settings = ixgbe::Settings {
        queues,
        ring: options.ring.unwrap_or(RING),
        receives: !options.tx_only,
        sends: !options.rx_only,
        max_len: longest(nic.mtu),
        fdir: nic.fdir,
        rss: rss(nic)?,
        ..ixgbe::Settings::default()
    };
    let port = ixgbe::open(function, name.clone(), &settings, arena).map_err(|error| plain(name, &error))?;
    steered(port, options)
}

/// A physical function with the user's rules in it, and its link up, if it comes up.
fn steered<F: Function + 'static>(
    mut port: PhysicalFunction<F>,
    options: &OpenOptions,
) -> Result<Opened, String> {
    let mut steered = Vec::new();
    for rule in &options.steer {
        let refused = |why: String| format!("'{}' can't be steered: {why} (--steer)", rule.name);
        for part in SteerRule::of(rule).map_err(|error| refused(error.to_string()))? {
            let part_of =
                if part.to_string() == rule.name { String::new() } else { format!("'{}': ", rule.name) };
            let place = port.steer(&part).map_err(|error| refused(error.to_string()))?;
            steered.push(format!("{part_of}'{part}' is {place}"));
        }
    }
    let down = port.wait_for_link(LINK_PATIENCE).err().map(|error| error.to_string());
    let port: Box<dyn Port> = Box::new(port);
    Ok(Opened { port, warnings: down.into_iter().collect(), steered })
}

/// A virtual function, by its driver's `open`.
#[expect(clippy::type_complexity, reason = "a name for the function's type would hide what it takes")]
fn open_vf<F: Function + 'static>(
    function: F,
    name: &PortName,
    nic: NicOptions,
    options: &OpenOptions,
    arena: &'static Arena,
    open: fn(F, PortName, &VfSettings, &'static Arena) -> Result<VirtualFunction<F>, NicError>,
) -> Result<Opened, String> {
    let settings = VfSettings {
        queues: options.queues,
        most_queues: cores(),
        ring: options.ring.unwrap_or(RING),
        receives: !options.tx_only,
        sends: !options.rx_only,
        // Tags come on top.
        max_len: nic.mtu.map(|mtu| usize::from(mtu) + ETHERNET),
        ..VfSettings::default()
    };
    let mut port = open(function, name.clone(), &settings, arena).map_err(|error| plain(name, &error))?;
    let down = port.wait_for_link(LINK_PATIENCE).err().map(|error| error.to_string());
    let narrowed = if options.tx_only { Vec::new() } else { port.warnings() };
    Ok(Opened {
        port: Box::new(port),
        warnings: down.into_iter().chain(narrowed).collect(),
        steered: Vec::new(),
    })
}

fn open_igb<F: Function + 'static>(
    function: F,
    name: &PortName,
    nic: NicOptions,
    options: &OpenOptions,
    arena: &'static Arena,
) -> Result<Opened, String> {
    let settings = igb::Settings {
        queues: options.queues.unwrap_or_else(|| cores().min(igb::MAX_QUEUES)),
        ring: options.ring.unwrap_or(RING),
        receives: !options.tx_only,
        sends: !options.rx_only,
        max_len: longest(nic.mtu),
        fdir: nic.fdir,
        rss: rss(nic)?,
        ..igb::Settings::default()
    };
    let port = igb::open(function, name.clone(), &settings, arena).map_err(|error| plain(name, &error))?;
    steered(port, options)
}

/// Processors that may be used: so many workers there will be.
fn cores() -> u16 {
    std::thread::available_parallelism().map_or(1, |cores| u16::try_from(cores.get()).unwrap_or(u16::MAX))
}

/// An error without the function's name, which whoever reports it puts in front.
fn plain(name: &PortName, error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    text.strip_prefix(&format!("{name}: ")).map_or(text.clone(), str::to_owned)
}
