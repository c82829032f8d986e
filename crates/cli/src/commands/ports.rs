//! `bywash ports`: which NICs there are, what would be used of them, what to fix.

use std::fmt::Write;

use bywash_port::frame::FRAME_DATA;
use bywash_sys::ethtool::Feature;
use bywash_sys::interface::{self, Interface, PciNic, Pcie, Report, Severity};
use bywash_sys::pci::Device;
use clap::Args as ClapArgs;

use super::bind::prospect;
use crate::failure::{self, Failure};

const EXAMPLES: &str = "\
Examples:
  bywash ports                 a table, with advice under each interface that needs some
  bywash ports eth1            one interface
  bywash ports --json | jq '.interfaces[] | select(.xdp_features.zero_copy) | .name'

Exit codes: 0 it was shown; 2 there is no such interface";

/// What is looked at.
#[derive(ClapArgs, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only this interface
    #[arg(value_name = "INTERFACE")]
    interface: Option<String>,
    /// One JSON object with everything that is known, in place of the table
    #[arg(long)]
    json: bool,
}

/// Looks, and prints what it sees. The aim is met whatever that is.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    let longest = u32::try_from(FRAME_DATA).unwrap_or(u32::MAX);
    let report = match &args.interface {
        Some(name) => Report { interfaces: vec![interface::one(name, longest)?], pci: Vec::new() },
        None => interface::report(longest)?,
    };
    if args.json {
        let text =
            serde_json::to_string_pretty(&report).map_err(|error| Failure::Usage(error.to_string()))?;
        failure::print(&format!("{text}\n"));
    } else {
        failure::print(&table(&report));
    }
    Ok(true)
}

const HEADINGS: [&str; 10] =
    ["INTERFACE", "DRIVER", "QUEUES", "NUMA", "LINK", "PCIE", "XDP", "ZERO-COPY", "N-TUPLE", "RSS"];

fn table(report: &Report) -> String {
    let rows: Vec<[String; 10]> = report.interfaces.iter().map(row).collect();
    let widths: Vec<usize> = (0..HEADINGS.len())
        .map(|column| {
            rows.iter().map(|row| row[column].chars().count()).fold(HEADINGS[column].len(), usize::max)
        })
        .collect();
    let line = |cells: &[&str]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut text = line(&HEADINGS) + "\n";
    for (interface, row) in report.interfaces.iter().zip(&rows) {
        text += &line(&row.each_ref().map(String::as_str));
        text += "\n";
        text += &below(interface);
    }
    for nic in &report.pci {
        text += &unbound(nic);
    }
    text
}

fn row(interface: &Interface) -> [String; 10] {
    let features = interface.xdp_features;
    let known = |answer: Option<bool>| answer.map_or("?", |yes| if yes { "yes" } else { "no" }).to_owned();
    let queues = &interface.queues;
    [
        interface.name.clone(),
        if interface.driver.name.is_empty() { "-".into() } else { interface.driver.name.clone() },
        if queues.rx == queues.tx { queues.rx.to_string() } else { format!("{}/{}", queues.rx, queues.tx) },
        interface.numa_node.map_or("-".into(), |node| node.to_string()),
        link(interface),
        interface.pcie.as_ref().map_or("-".into(), pcie),
        match features {
            None => "?".into(),
            Some(features) => if features.native { "native" } else { "generic" }.into(),
        },
        known(features.map(|features| features.zero_copy)),
        feature(&interface.ntuple).into(),
        if interface.rss_entries == 0 { "no".into() } else { interface.rss_entries.to_string() },
    ]
}

fn link(interface: &Interface) -> String {
    match (interface.up, interface.carrier, interface.speed_mbps) {
        (false, ..) => "down".into(),
        (_, false, _) => "no carrier".into(),
        (.., Some(mbps)) if mbps >= 1000 && mbps % 500 == 0 => format!("{} Gbit/s", f64::from(mbps) / 1000.0),
        (.., Some(mbps)) => format!("{mbps} Mbit/s"),
        (.., None) => "up".into(),
    }
}

fn pcie(pcie: &Pcie) -> String {
    format!("x{} {} GT/s", pcie.lanes, pcie.gigatransfers)
}

fn feature(feature: &Feature) -> &'static str {
    match (feature.on, feature.changeable) {
        (true, _) => "on",
        (false, true) => "off",
        (false, false) => "no",
    }
}

/// What would be used, and what to fix.
fn below(interface: &Interface) -> String {
    let mut text = String::new();
    if !interface.would_use.is_empty() {
        // Writing to a string can't fail.
        let _ = writeln!(text, "    xdp:{}: {}", interface.name, interface.would_use);
    }
    if let Some(line) = pci_device(&interface.driver.bus).as_ref().and_then(prospect) {
        let _ = writeln!(text, "    {line}");
    }
    for finding in &interface.advice {
        let sign = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        let _ = writeln!(text, "    {sign}: {}", finding.text);
    }
    text
}

/// The PCI function at an address, when there is one.
fn pci_device(address: &str) -> Option<Device> {
    address.parse().ok().and_then(Device::at)
}

fn unbound(nic: &PciNic) -> String {
    let driver = nic.driver.as_deref().map_or("no driver".into(), |name| format!("driver {name}"));
    let group = nic.iommu_group.map_or("no IOMMU group".into(), |group| format!("IOMMU group {group}"));
    let name =
        bywash_drivers::known(nic.vendor, nic.device).map_or(String::new(), |nic| format!("{} ", nic.name));
    let line = pci_device(&nic.address).as_ref().and_then(prospect);
    format!(
        "{} {name}[{:04x}:{:04x}]  no interface here; {driver}, {group}\n{}",
        nic.address,
        nic.vendor,
        nic.device,
        line.map_or(String::new(), |line| format!("    {line}\n"))
    )
}
