//! `bywash bind` and `bywash unbind`: gives NICs from the kernel's driver to programs, and back.

use std::fmt::Write;

use bywash_drivers::known;
use bywash_sys::pci::{Address, Device, Member, NO_IOMMU_CURE, VFIO};
use bywash_sys::state::{self, StateError, Undo};
use clap::Args as ClapArgs;
use serde_json::json;

use crate::failure::{self, Failure};

const BIND_EXAMPLES: &str = "\
Without a NIC, shows all of them: who drives each, and whether a driver of ours could.

A NIC is refused when it is none that we know, when its interface has an address or the default route, and when it shares
its IOMMU group with something that the kernel uses and that is not named with it. It stays bound when this command ends:
`bywash unbind`, and `bywash cleanup`, give it back to the driver that had it.

Examples:
  bywash bind
  bywash bind eth1
  bywash bind eth1 eth2                          ports of one NIC, which may share an IOMMU group
  bywash bind 0000:03:00.0 && bywash receive pci:0000:03:00.0

Exit codes: 0 it was done; 2 it could not be, and nothing was changed";

const UNBIND_EXAMPLES: &str = "\
Examples:
  bywash unbind 0000:03:00.0

Exit codes: 0 it was done; 2 it could not be";

/// What is bound.
#[derive(ClapArgs, Debug)]
#[command(after_help = BIND_EXAMPLES)]
pub(crate) struct BindArgs {
    /// NICs: interfaces, or PCI addresses; without one all are shown
    #[arg(value_name = "NIC")]
    nics: Vec<String>,
    /// Take a NIC whose interface is in use, too
    #[arg(long)]
    force: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// With the table of all NICs: one JSON object in its place
    #[arg(long, conflicts_with = "nics")]
    json: bool,
}

/// What is given back.
#[derive(ClapArgs, Debug)]
#[command(after_help = UNBIND_EXAMPLES)]
pub(crate) struct UnbindArgs {
    /// PCI addresses
    #[arg(value_name = "NIC", required = true)]
    nics: Vec<String>,
}

/// What was done so far: undone, the last first, unless all comes to a good end.
#[derive(Default)]
pub(super) struct Made(Vec<Undo>);

impl Made {
    pub(super) fn add(&mut self, undo: Undo) {
        self.0.push(undo);
    }

    pub(super) fn keep(mut self) -> Result<(), StateError> {
        while let Some(undo) = self.0.pop() {
            undo.keep()?;
        }
        Ok(())
    }
}

impl From<Vec<Undo>> for Made {
    fn from(undos: Vec<Undo>) -> Self {
        Self(undos)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// A NIC by an interface of it, or by its PCI address.
pub(super) fn find(name: &str) -> Result<Device, Failure> {
    if let Ok(address) = name.parse::<Address>() {
        let none =
            || Failure::Usage(format!("there is no PCI device at {address}: `bywash bind` lists the NICs"));
        return Device::at(address).ok_or_else(none);
    }
    let has = |device: &Device| device.interfaces().iter().any(|interface| interface == name);
    Device::all().into_iter().find(has).ok_or_else(|| {
        Failure::Usage(format!(
            "'{name}' is no interface of a PCI NIC here, and no PCI address: `bywash bind` lists the NICs"
        ))
    })
}

/// Whether a driver of ours could have a NIC, in one line; nothing of one that we do not know.
pub(super) fn prospect(device: &Device) -> Option<String> {
    let (vendor, model) = device.ids()?;
    let nic = known(vendor, model)?;
    let address = device.address();
    Some(match (check(device, &[], false), device.driver()) {
        (Err(error), _) => {
            let why = error.to_string();
            let why = why.strip_prefix(&format!("{address}: ")).map(str::to_owned).unwrap_or(why);
            format!("our {} could drive it, but {why}", nic.driver)
        }
        (Ok(()), Some(driver)) if driver == VFIO => format!("our {} can drive it: pci:{address}", nic.driver),
        (Ok(()), _) => {
            format!("our {} can drive it: `bywash bind {address}`, then pci:{address}", nic.driver)
        }
    })
}

/// Binds, or shows.
pub(crate) fn bind(args: &BindArgs) -> Result<bool, Failure> {
    if args.nics.is_empty() {
        let nics: Vec<Device> = Device::all().into_iter().filter(Device::is_ethernet).collect();
        failure::print(&if args.json { object(&nics) } else { table(&nics) });
        return Ok(true);
    }
    let devices = args.nics.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
    // All are looked at before one is touched.
    devices.iter().try_for_each(|device| check(device, &devices, args.force))?;
    let mut made = Made::default();
    for device in devices {
        if args.dry_run {
            failure::print(&format!("{} would be given to {VFIO}\n", device.address()));
        } else if device.driver().as_deref() != Some(VFIO) {
            made.add(state::set_driver(&device, Some(VFIO))?);
        }
    }
    made.keep()?;
    Ok(true)
}

/// Whether a NIC may be given to VFIO together with others, which may be of its IOMMU group.
///
/// # Errors
/// Why not.
pub(super) fn check(device: &Device, together: &[Device], force: bool) -> Result<(), Failure> {
    let address = device.address();
    let refuse = |why: String| Err(Failure::Usage(format!("{address}: {why}")));
    let (vendor, model) = device.ids().unwrap_or_default();
    if known(vendor, model).is_none() {
        return refuse(format!("{vendor:04x}:{model:04x} is no NIC that there is a driver for"));
    }
    if let Err(error) = device.check_unused(force) {
        return refuse(error.to_string());
    }
    let Some(group) = device.group() else {
        return refuse(format!(
            "there is no IOMMU that would keep it from the rest of memory: {NO_IOMMU_CURE}; or use it unbound, at that risk, with \
             --no-iommu"
        ));
    };
    let others = group.in_the_way(&[together, std::slice::from_ref(device)].concat());
    if !others.is_empty() {
        let is_known = |member: &Member| {
            member.device.ids().is_some_and(|(vendor, model)| known(vendor, model).is_some())
        };
        let cure = if others.iter().all(is_known) {
            let all = together.iter().filter(|other| *other != device).chain([device]).map(Device::address);
            let all = all.chain(others.iter().map(|member| member.device.address()));
            let all = all.map(|address| address.to_string()).collect::<Vec<_>>().join(" ");
            format!("bind them together: `bywash bind {all}`")
        } else {
            "take those from the kernel's drivers too, or use another slot".into()
        };
        let others = others.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let number = group.number();
        return refuse(format!(
            "it shares IOMMU group {number} with {others}, which the kernel uses: no program can have it then; {cure}"
        ));
    }
    if !device.is_loaded(VFIO) {
        return refuse(format!("{VFIO} is not loaded: `bywash setup` loads it"));
    }
    Ok(())
}

/// Gives NICs back.
pub(crate) fn unbind(args: &UnbindArgs) -> Result<bool, Failure> {
    let devices = args.nics.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
    for device in devices {
        if device.driver().is_some_and(|driver| driver != VFIO) {
            failure::print(&format!("{} is the kernel's already\n", device.address()));
            continue;
        }
        failure::print(&format!("{}\n", state::give_back(&device)?));
    }
    Ok(true)
}

fn object(nics: &[Device]) -> String {
    let nic = |device: &Device| {
        let (vendor, model) = device.ids().unwrap_or_default();
        let nic = known(vendor, model);
        json!({
            "address": device.address().to_string(),
            "id": format!("{vendor:04x}:{model:04x}"),
            "nic": nic.map(|nic| nic.name),
            "driver": device.driver(),
            "interfaces": device.interfaces(),
            "iommu_group": device.group().map(|group| group.number()),
            "our_driver": nic.map(|nic| nic.driver),
            "refused": check(device, &[], false).err().map(|error| error.to_string()),
        })
    };
    format!("{}\n", json!({ "nics": nics.iter().map(nic).collect::<Vec<_>>() }))
}

fn table(nics: &[Device]) -> String {
    if nics.is_empty() {
        return "no Ethernet NIC on the PCI bus\n".into();
    }
    let mut text = String::new();
    for device in nics {
        let (vendor, model) = device.ids().unwrap_or_default();
        let nic = known(vendor, model);
        let interfaces = device.interfaces().join(" ");
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{}  {vendor:04x}:{model:04x}  {}  {}{}{}",
            device.address(),
            nic.map_or("unknown", |nic| nic.name),
            device.driver().unwrap_or_else(|| "no driver".into()),
            if interfaces.is_empty() { "" } else { ", " },
            interfaces
        );
        if let Some(line) = prospect(device) {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}
