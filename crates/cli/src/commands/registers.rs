//! `bywash registers`: what a NIC's registers hold, by name and field.

use std::fmt::Write;

use bywash_drivers::registers::{self, Dump, Taking};
use bywash_port::PortName;
use clap::Args as ClapArgs;
use serde_json::json;

use crate::failure::{self, Failure};

const EXAMPLES: &str = "\
NAME is a register's name in the datasheet (RXDCTL), one of an array (RXDCTL[3]), a pattern ('RD*'), or a part of a name
or of what the register is for (link). Reading changes some registers: counters and interrupt causes are cleared by it,
a semaphore is taken. Those are read only when they are named in full; commands, which can only be written, never.

A NIC is one program's at a time: another one must not have it open, and the kernel must not use it. From the kernel's
driver a NIC of the PCI bus (pci:) is taken while it is read, and VFIO resets it at that: a function that is bound to
vfio-pci shows what is there after a reset. With --no-iommu it is not reset, and shows what its driver has left.

Examples:
  bywash registers vfio-user:nic.sock              all that can be read without changing anything
  bywash registers vfio-user:nic.sock LINKS
  bywash registers pci:0000:03:00.0 STATUS
  bywash registers vfio-user:nic.sock 'RX*' --json | jq '.registers[] | {name, index, value}'

Exit codes: 0 they were read; 2 there is no such register, or no NIC";

/// What is read.
#[derive(ClapArgs, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The NIC: vfio-user:SOCKET or pci:ADDRESS
    port: PortName,
    /// Only these registers
    name: Option<String>,
    /// One JSON object in place of the table
    #[arg(long)]
    json: bool,
    /// Take a NIC whose interface is in use, too; pci: only
    #[arg(long)]
    force: bool,
    /// Take a NIC although the machine has no IOMMU; pci: only
    #[arg(long)]
    no_iommu: bool,
}

/// Reads and prints. The aim is met whatever they hold.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    let taking = Taking { force: args.force, no_iommu: args.no_iommu };
    let dump = registers::read(&args.port, args.name.as_deref(), taking)?;
    if args.json {
        failure::print(&format!("{}\n", object(&args.port, &dump)));
        return Ok(true);
    }
    failure::print(&table(&args.port, &dump));
    if dump.left_out > 0 {
        failure::tell(&format!(
            "{} registers of arrays hold what they hold after a reset and are left out: name them to see them",
            dump.left_out
        ));
    }
    if !dump.not_read.is_empty() {
        failure::tell(&format!(
            "not read, because that changes them or says nothing: {} (those that can be read are when named in full)",
            dump.not_read.join(" ")
        ));
    }
    Ok(true)
}

fn object(port: &PortName, dump: &Dump) -> serde_json::Value {
    let register = |value: &registers::Value| {
        let fields: serde_json::Map<_, _> =
            value.fields().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        json!({
            "name": value.register.name,
            "index": value.index,
            "offset": value.offset,
            "access": value.register.access.name(),
            "about": value.register.about,
            "value": value.value,
            "fields": fields,
        })
    };
    json!({
        "port": port.to_string(),
        "nic": dump.nic,
        "device": format!("8086:{:04x}", dump.device),
        "driver": dump.driver,
        "registers": dump.values.iter().map(register).collect::<Vec<_>>(),
        "not_read": dump.not_read,
        "left_out": dump.left_out,
    })
}

fn table(port: &PortName, dump: &Dump) -> String {
    let mut text = format!("{port}: {} [8086:{:04x}]\n", dump.nic, dump.device);
    let name = |value: &registers::Value| match value.index {
        Some(index) => format!("{}[{index}]", value.register.name),
        None => value.register.name.to_owned(),
    };
    let width = dump.values.iter().map(|value| name(value).len()).max().unwrap_or(0);
    for value in &dump.values {
        let fields: Vec<String> = value
            .fields()
            .map(
                |(name, value)| {
                    if value < 10 { format!("{name}={value}") } else { format!("{name}={value:#x}") }
                },
            )
            .collect();
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{:width$}  {:#07x}  {:#010x}  {}{}{}",
            name(value),
            value.offset,
            value.value,
            value.register.about,
            if fields.is_empty() { "" } else { ": " },
            fields.join(" ")
        );
    }
    text
}
