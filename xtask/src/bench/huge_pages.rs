//! More huge pages while a benchmark runs, and as many as before afterwards, whatever happens.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::project::{Problem, about};

/// How many there are; written to, how many there shall be.
pub(super) const POOL: &str = "/proc/sys/vm/nr_hugepages";

/// Huge pages that were added. Dropping it sets the number back.
///
/// A small shell waits for that in a process group of its own: it sets the number back also when this program is
/// interrupted or killed, because its input ends then.
pub(super) struct HugePages {
    keeper: Child,
}

impl HugePages {
    /// Adds pages until `wanted` ones are free.
    ///
    /// # Errors
    /// When the kernel has not so much memory in one piece, or we are not root.
    pub(super) fn with_free(wanted: u64) -> Result<Self, Problem> {
        let before = read(POOL)?;
        let free = free()?;
        let script = format!("read -r line; echo {before} >{POOL}");
        let mut keeper = Command::new("sh");
        keeper.args(["-c", &script]).stdin(Stdio::piped()).process_group(0);
        // From here on the drop sets it back.
        let pages = Self { keeper: keeper.spawn().map_err(about("sh"))? };
        fs::write(POOL, (before + wanted.saturating_sub(free)).to_string()).map_err(about(POOL))?;
        let got = self::free()?;
        if got < wanted {
            let cure = "free some memory, or reboot";
            return Err(Problem(format!(
                "{wanted} huge pages of 2 MiB are needed and {got} could be had: {cure}"
            )));
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(mut input) = self.keeper.stdin.take() {
            // Closing it is enough.
            input.write_all(b"\n").ok();
        }
        self.keeper.wait().ok();
    }
}

fn free() -> Result<u64, Problem> {
    let folder = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    let promised = read(&format!("{folder}/resv_hugepages"))?;
    Ok(read(&format!("{folder}/free_hugepages"))?.saturating_sub(promised))
}

fn read(path: &str) -> Result<u64, Problem> {
    let text = fs::read_to_string(path).map_err(about(path))?;
    text.trim().parse().map_err(|_| Problem(format!("{path}: `{}` is no number", text.trim())))
}
