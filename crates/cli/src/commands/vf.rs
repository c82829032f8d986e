//! `bywash vf`: virtual functions of a NIC that stays with the kernel's driver, and its traffic with the kernel.

use std::fmt::Write;

use bywash_sys::pci::{Device, NO_IOMMU_CURE, VFIO};
use bywash_sys::route::{Mac, Route, VfInfo, VfLink, VfSetting};
use bywash_sys::state;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use serde_json::json;

use super::bind::find;
use crate::failure::{self, Failure};

const EXAMPLES: &str = "\
A virtual function is a part of a NIC that looks like a NIC of its own. The kernel's driver stays on the NIC itself and
decides what its functions may do. Give one to a program with `bywash bind`, then open it as pci:ADDRESS.

Examples:
  bywash vf create eth1 2
  bywash vf set eth1 0 --mac 02:00:00:00:00:10 --vlan 7 --spoof-check on --rate 500
  bywash vf list eth1
  bywash vf destroy eth1

What is created stays when this command ends; `bywash cleanup` removes it, too. A function that is in use is not removed.

Exit codes: 0 it was done; 2 it could not be, and nothing was changed (of several settings, those in front of the one
that the message names are made)";

/// What is to be done.
#[derive(ClapArgs, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Make virtual functions
    Create {
        /// The NIC: an interface, or a PCI address
        #[arg(value_name = "INTERFACE")]
        nic: String,
        /// How many
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
        /// Say what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Change what a virtual function is and may do
    Set(SetArgs),
    /// Show the virtual functions, who has them, and what they may do
    List {
        /// The NIC: an interface, or a PCI address; all NICs without one
        #[arg(value_name = "INTERFACE")]
        nic: Option<String>,
        /// One JSON object in place of the table
        #[arg(long)]
        json: bool,
    },
    /// Remove all virtual functions of a NIC
    Destroy {
        /// The NIC: an interface, or a PCI address
        #[arg(value_name = "INTERFACE")]
        nic: String,
    },
}

/// `vf set`.
#[derive(ClapArgs, Debug)]
#[group(required = true, multiple = true, id = "setting",
    args = ["mac", "vlan", "spoof_check", "trust", "rate", "link"])]
struct SetArgs {
    /// The NIC: an interface
    #[arg(value_name = "INTERFACE")]
    nic: String,
    /// Which virtual function
    #[arg(value_name = "NUMBER")]
    number: u32,
    /// Its Ethernet address
    #[arg(long, value_name = "MAC")]
    mac: Option<Mac>,
    /// Its VLAN, and the priority of its packets there; 0 takes it out of any
    #[arg(long, value_name = "ID[:PRIORITY]", value_parser = vlan)]
    vlan: Option<VfSetting>,
    /// Drop its packets that have another source than its own address
    #[arg(long, value_name = "WHEN")]
    spoof_check: Option<Switch>,
    /// Let it change its address and receive all multicast
    #[arg(long, value_name = "WHEN")]
    trust: Option<Switch>,
    /// Most Mbit/s that it sends, and least that are kept for it; 0 is no limit
    #[arg(long, value_name = "MOST[:LEAST]", value_parser = rate)]
    rate: Option<VfSetting>,
    /// Its link: as the port's, always up, always down
    #[arg(long, value_name = "STATE")]
    link: Option<LinkArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LinkArg {
    Auto,
    Enable,
    Disable,
}

fn pair(text: &str) -> Result<(u32, Option<u32>), String> {
    let (first, second) = text.split_once(':').map_or((text, None), |(first, second)| (first, Some(second)));
    let number = |text: &str| text.parse().map_err(|_| format!("'{text}' is no number"));
    Ok((number(first)?, second.map(number).transpose()?))
}

fn vlan(text: &str) -> Result<VfSetting, String> {
    let (id, priority) = pair(text)?;
    let id = u16::try_from(id).ok().filter(|id| *id <= 4094).ok_or("VLANs are 0 to 4094")?;
    let priority =
        u8::try_from(priority.unwrap_or(0)).ok().filter(|it| *it <= 7).ok_or("priorities are 0 to 7")?;
    Ok(VfSetting::Vlan { id, priority })
}

fn rate(text: &str) -> Result<VfSetting, String> {
    let (most, least) = pair(text)?;
    Ok(VfSetting::Rate { least: least.unwrap_or(0), most })
}

impl SetArgs {
    fn settings(&self) -> Vec<VfSetting> {
        let link = self.link.map(|link| match link {
            LinkArg::Auto => VfLink::Auto,
            LinkArg::Enable => VfLink::Enable,
            LinkArg::Disable => VfLink::Disable,
        });
        [
            self.mac.map(VfSetting::Mac),
            self.vlan,
            self.spoof_check.map(|switch| VfSetting::SpoofCheck(switch == Switch::On)),
            self.trust.map(|switch| VfSetting::Trust(switch == Switch::On)),
            self.rate,
            link.map(VfSetting::Link),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Does it.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    match &args.what {
        What::Create { nic, count, dry_run } => create(&find(nic)?, *count, *dry_run),
        What::Set(args) => set(args),
        What::List { nic, json } => list(nic.as_deref(), *json),
        What::Destroy { nic } => destroy(&find(nic)?),
    }
}

fn create(nic: &Device, count: u32, dry_run: bool) -> Result<bool, Failure> {
    nic.check_virtual_functions(count)?;
    if dry_run {
        failure::print(&format!("{} would get {count} virtual functions\n", nic.address()));
        return Ok(true);
    }
    state::set_virtual_functions(nic, count)?.keep();
    let functions = nic.virtual_function_devices();
    if functions.iter().any(|function| function.group().is_none()) {
        failure::warn(&format!(
            "there is no IOMMU, so a virtual function can be no program's: {NO_IOMMU_CURE}"
        ));
    }
    for (number, function) in functions.iter().enumerate() {
        failure::print(&format!("{number}  {}\n", function.address()));
    }
    Ok(true)
}

fn set(args: &SetArgs) -> Result<bool, Failure> {
    let nic = find(&args.nic)?;
    let interface = interface(&nic)?;
    let mut route = Route::open()?;
    let there = nic.virtual_functions();
    if args.number >= there {
        let what = if there == 0 { "none".into() } else { format!("0 to {}", there - 1) };
        return Err(Failure::Usage(format!(
            "{} has no virtual function {}: it has {what}",
            args.nic, args.number
        )));
    }
    let link = route.link(&interface)?.ok_or_else(|| Failure::Usage(format!("{interface} is gone")))?;
    // One at a time, so that a refusal names the setting; those before it stay.
    for setting in args.settings() {
        let set = route.set_virtual_function(link.index, args.number, &[setting]);
        set.map_err(|error| {
            Failure::Usage(format!("{interface}'s driver does not take {}: {error}", flag(setting)))
        })?;
    }
    Ok(true)
}

/// The option that a setting comes from.
fn flag(setting: VfSetting) -> &'static str {
    match setting {
        VfSetting::Mac(_) => "--mac",
        VfSetting::Vlan { .. } => "--vlan",
        VfSetting::SpoofCheck(_) => "--spoof-check",
        VfSetting::Trust(_) => "--trust",
        VfSetting::Rate { .. } => "--rate",
        VfSetting::Link(_) => "--link",
    }
}

/// The kernel's interface of a NIC, by whose driver its functions are set.
fn interface(nic: &Device) -> Result<String, Failure> {
    nic.interfaces().into_iter().next().ok_or_else(|| {
        Failure::Usage(format!(
            "{} is no interface here: its functions are set by the kernel's driver, in the network namespace of its interface",
            nic.address()
        ))
    })
}

/// A virtual function, from both who know of it.
struct Function {
    nic: String,
    number: usize,
    device: Device,
    info: Option<VfInfo>,
}

fn functions(nic: &Device) -> Vec<Function> {
    let interface = nic.interfaces().into_iter().next();
    let infos = interface.as_ref().and_then(|name| Route::open().ok()?.virtual_functions(name).ok());
    let infos = infos.unwrap_or_default();
    let name = interface.unwrap_or_else(|| nic.address().to_string());
    let devices = nic.virtual_function_devices().into_iter().enumerate();
    let function = |(number, device)| Function {
        nic: name.clone(),
        number,
        device,
        info: infos.iter().find(|info| usize::try_from(info.number) == Ok(number)).cloned(),
    };
    devices.map(function).collect()
}

fn list(nic: Option<&str>, json: bool) -> Result<bool, Failure> {
    let nics = match nic {
        Some(nic) => vec![find(nic)?],
        None => Device::all().into_iter().filter(|nic| nic.virtual_functions() > 0).collect(),
    };
    let all: Vec<Function> = nics.iter().flat_map(functions).collect();
    if json {
        let functions: Vec<_> = all
            .iter()
            .map(|function| {
                json!({
                    "nic": function.nic,
                    "number": function.number,
                    "address": function.device.address().to_string(),
                    "driver": function.device.driver(),
                    "interfaces": function.device.interfaces(),
                    "iommu_group": function.device.group().map(|group| group.number()),
                    "open": function.device.is_open(),
                    "settings": function.info,
                })
            })
            .collect();
        failure::print(&format!("{}\n", json!({ "functions": functions })));
        return Ok(true);
    }
    if all.is_empty() {
        failure::print("no virtual functions\n");
    }
    let mut text = String::new();
    for function in &all {
        let device = &function.device;
        let interfaces = device.interfaces().join(" ");
        let who = match device.driver() {
            None => "no driver".into(),
            Some(driver) if driver == VFIO && device.is_open() => format!("{driver}, open in a program"),
            Some(driver) if interfaces.is_empty() => driver,
            Some(driver) => format!("{driver}, {interfaces}"),
        };
        let settings = function.info.as_ref().map(settings).unwrap_or_default();
        // Writing to a string can't fail.
        let _ = writeln!(text, "{} {}  {}  {who}{settings}", function.nic, function.number, device.address());
    }
    failure::print(&text);
    Ok(true)
}

/// What a function may do, in words; what its driver does not tell is left out.
fn settings(info: &VfInfo) -> String {
    let switch =
        |name: &str, on: Option<bool>| on.map(|on| format!("{name} {}", if on { "on" } else { "off" }));
    let words = [
        info.mac.map(|mac| format!("mac {mac}")),
        info.vlan.filter(|vlan| *vlan != 0).map(|vlan| match info.priority {
            Some(priority) if priority != 0 => format!("vlan {vlan}:{priority}"),
            _ => format!("vlan {vlan}"),
        }),
        switch("spoof check", info.spoof_check),
        switch("trust", info.trust),
        info.most_mbps.filter(|most| *most != 0).map(|most| format!("at most {most} Mbit/s")),
        info.least_mbps.filter(|least| *least != 0).map(|least| format!("at least {least} Mbit/s")),
        info.link.map(|link| format!("link {}", format!("{link:?}").to_lowercase())),
    ];
    words.into_iter().flatten().map(|word| format!("; {word}")).collect()
}

fn destroy(nic: &Device) -> Result<bool, Failure> {
    if nic.virtual_functions() == 0 {
        failure::print(&format!("{} has no virtual functions\n", nic.address()));
        return Ok(true);
    }
    nic.check_virtual_functions_unused()?;
    state::remove_virtual_functions(nic)?;
    Ok(true)
}
