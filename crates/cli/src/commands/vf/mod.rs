//! `bywash vf`: virtual functions of a NIC that stays with the kernel's driver, and its traffic with the kernel.

mod settings;

use std::fmt::Write;

use bywash_sys::pci::{Device, NO_IOMMU_CURE, VFIO};
use bywash_sys::route::{Route, VfInfo};
use bywash_sys::state;
use clap::{Args as ClapArgs, Subcommand};
use serde_json::json;

use super::bind::{Made, check, find};
use super::setup::{self, HUGE_PAGES};
use crate::failure::{self, Failure};
use crate::values;
use settings::{Settings, interface};

const EXAMPLES: &str = "\
A virtual function is a part of a NIC that looks like a NIC of its own. The kernel's driver stays on the NIC itself and
decides what its functions may do. With --bind they are ready to be opened as pci:ADDRESS: what `bywash setup` and
`bywash bind` do is done as well. Without it they get a driver of the kernel's, if there is one.

Examples:
  bywash vf create eth1 2
  bywash vf create eth1 2 --mac 02:00:00:00:00:10 --trust on --bind && bywash receive pci:0000:03:10.0
  bywash vf set eth1 0 --mac 02:00:00:00:00:10 --vlan 7 --spoof-check on --rate 500
  bywash vf list eth1
  bywash vf destroy eth1

What is created stays when this command ends. `vf destroy` undoes all that its `vf create` has done, and so does `bywash
cleanup`. A function that is in use is not removed.

Exit codes: 0 it was done; 2 it could not be, and nothing was changed (of several settings of `vf set`, those in front of
the one that the message names are made)";

/// What is to be done.
#[derive(ClapArgs, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Make virtual functions, say what they may do, and give them to programs
    Create(CreateArgs),
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

/// `vf create`.
#[derive(ClapArgs, Debug)]
struct CreateArgs {
    /// The NIC: an interface, or a PCI address
    #[arg(value_name = "INTERFACE")]
    nic: String,
    /// How many
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    #[command(flatten)]
    settings: Settings,
    /// Give them to programs: bind them to vfio-pci, which is loaded, and add huge pages, where those are missing
    #[arg(long)]
    bind: bool,
    /// With --bind: memory in 2 MiB pages that is to be free for packets
    #[arg(long, value_name = "SIZE", default_value = HUGE_PAGES, value_parser = values::bytes, requires = "bind")]
    huge_pages: usize,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// `vf set`.
#[derive(ClapArgs, Debug)]
struct SetArgs {
    /// The NIC: an interface
    #[arg(value_name = "INTERFACE")]
    nic: String,
    /// Which virtual function
    #[arg(value_name = "NUMBER", requires = "setting")]
    number: u32,
    #[command(flatten)]
    settings: Settings,
}

/// Does it.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    match &args.what {
        What::Create(args) => create(args),
        What::Set(args) => set(args),
        What::List { nic, json } => list(nic.as_deref(), *json),
        What::Destroy { nic } => destroy(&find(nic)?),
    }
}

fn create(args: &CreateArgs) -> Result<bool, Failure> {
    let nic = find(&args.nic)?;
    nic.check_virtual_functions(args.count)?;
    args.settings.check(args.count)?;
    if args.dry_run {
        let bound = if args.bind { format!(", given to {VFIO}") } else { String::new() };
        failure::print(&format!("{} would get {} virtual functions{bound}\n", nic.address(), args.count));
        if args.bind {
            setup::make(args.huge_pages, true)?;
        }
        return Ok(true);
    }
    let mut made = Made::default();
    if args.bind {
        made = setup::make(args.huge_pages, false)?.into();
    }
    // What is a program's from the start needs no driver of the kernel's first.
    let unprobed = args.bind.then(|| state::leave_virtual_functions_alone(&nic)).transpose()?;
    made.add(state::set_virtual_functions(&nic, args.count)?);
    drop(unprobed);
    args.settings.make(&nic, 0..args.count)?;
    let functions = nic.virtual_function_devices();
    if args.bind {
        functions.iter().try_for_each(|function| check(function, &functions, false))?;
        for function in &functions {
            made.add(state::set_driver(function, Some(VFIO))?);
        }
    } else if functions.iter().any(|function| function.group().is_none()) {
        failure::warn(&format!(
            "there is no IOMMU, so a virtual function can be no program's: {NO_IOMMU_CURE}"
        ));
    }
    made.keep()?;
    for (number, function) in functions.iter().enumerate() {
        failure::print(&format!("{number}  {}\n", function.address()));
    }
    Ok(true)
}

fn set(args: &SetArgs) -> Result<bool, Failure> {
    let nic = find(&args.nic)?;
    interface(&nic)?;
    let there = nic.virtual_functions();
    if args.number >= there {
        let what = match there {
            0 => "none".into(),
            1 => "0 alone".into(),
            _ => format!("0 to {}", there - 1),
        };
        return Err(Failure::Usage(format!(
            "{} has no virtual function {}: it has {what}",
            args.nic, args.number
        )));
    }
    args.settings.make(&nic, std::iter::once(args.number))?;
    Ok(true)
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
    let report = state::remove_virtual_functions(nic)?;
    for sentence in &report.left_alone {
        failure::print(&format!("{sentence}\n"));
    }
    for sentence in &report.failed {
        failure::warn(sentence);
    }
    Ok(report.failed.is_empty())
}
