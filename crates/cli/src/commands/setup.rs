//! `bywash setup`: what a machine needs before programs can drive NICs: huge pages, and the kernel's VFIO module.

use bywash_sys::pci::{Device, NO_IOMMU_CURE, VFIO};
use bywash_sys::state::{self, Undo};
use bywash_sys::{memory, modules};
use clap::Args as ClapArgs;

use super::bind::Made;
use crate::failure::{self, Failure};
use crate::values;

const EXAMPLES: &str = "\
What is set up stays when this command ends, until `bywash setup --undo`, `bywash cleanup` or the next start.

Examples:
  bywash setup --dry-run
  bywash setup --huge-pages 1G
  bywash setup --undo

Exit codes: 0 it was done; 1 something that is needed is missing, and was named; 2 it could not be done";

/// Memory in huge pages that is to be free where nobody says how much.
pub(super) const HUGE_PAGES: &str = "128M";

/// What is set up.
#[derive(ClapArgs, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Memory in 2 MiB pages that is to be free for packets
    #[arg(long, value_name = "SIZE", default_value = HUGE_PAGES, value_parser = values::bytes)]
    huge_pages: usize,
    /// Put back what was set up
    #[arg(long, conflicts_with_all = ["huge_pages"])]
    undo: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// Sets up, or undoes it. The aim is met when nothing that is needed is missing.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    if args.undo {
        return undo(args.dry_run);
    }
    Made::from(make(args.huge_pages, args.dry_run)?).keep()?;
    let isolated = Device::all().iter().any(|device| device.group().is_some());
    if !isolated {
        failure::warn(&format!(
            "there is no IOMMU, without which no program can have a NIC but at a risk (--no-iommu): {NO_IOMMU_CURE}"
        ));
    }
    Ok(isolated)
}

/// Adds huge pages and loads VFIO where they are missing, and says so; or says what it would do.
pub(super) fn make(huge_pages: usize, dry_run: bool) -> Result<Vec<Undo>, Failure> {
    let mut made = Vec::new();
    let missing = memory::missing_huge_pages(huge_pages);
    if missing == 0 {
        failure::print("enough huge pages are free\n");
    } else if dry_run {
        failure::print(&format!("would add {missing} huge pages of 2 MiB\n"));
    } else {
        made.push(memory::add_huge_pages(missing)?);
        failure::print(&format!("added {missing} huge pages of 2 MiB\n"));
    }
    if modules::is_loaded(VFIO) {
        failure::print(&format!("{VFIO} is loaded\n"));
    } else if dry_run {
        failure::print(&format!("would load {VFIO}\n"));
    } else {
        made.push(state::load_module(VFIO)?);
        failure::print(&format!("loaded {VFIO}\n"));
    }
    Ok(made)
}

fn undo(dry_run: bool) -> Result<bool, Failure> {
    if dry_run {
        failure::print("would put back the number of huge pages and unload what was loaded\n");
        return Ok(true);
    }
    let report = state::undo_setup()?;
    if report.is_empty() {
        failure::print("nothing was set up\n");
    }
    for sentence in report.undone.iter().chain(&report.left_alone) {
        failure::print(&format!("{sentence}\n"));
    }
    for sentence in &report.failed {
        failure::warn(sentence);
    }
    Ok(report.failed.is_empty())
}
