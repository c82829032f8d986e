//! Ctrl-C and its kin: the first asks everything to stop, one half a second after it ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;

use crate::terminal;
use crate::worker::Stop;

/// How long after the first signal others say the same: timeout(1), when it is told to end, tells its child and then the group that
/// both are in.
const SAME_WISH: Duration = Duration::from_millis(500);

/// From now on SIGINT, SIGTERM and SIGHUP set `stop`; not SIGHUP where it is ignored, as nohup(1) has it. One of the first two that
/// comes half a second after the first signal, or later, ends the process with 128 and the signal's number, as a shell reports it:
/// for when stopping hangs.
///
/// # Errors
/// The process may have no more threads or handlers.
pub fn stop_on_signals(stop: Stop) -> io::Result<()> {
    watch(stop, None)
}

/// The same, but SIGHUP sets `reload`, also where it was ignored: what a program does that runs for long by a file.
///
/// # Errors
/// The process may have no more threads or handlers.
pub fn stop_or_reload_on_signals(stop: Stop, reload: Arc<AtomicBool>) -> io::Result<()> {
    watch(stop, Some(reload))
}

/// From now on SIGUSR1 sets what is returned.
///
/// # Errors
/// The process may have no more handlers.
pub fn ask_on_signal() -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGUSR1, asked.clone())?;
    Ok(asked)
}

/// From now on a file that may not get longer (`ulimit -f`) ends nothing but itself: whoever writes to it gets an error. Programs that are
/// started are not told.
///
/// # Errors
/// The process may have no more handlers.
pub fn outlive_full_files() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

fn watch(stop: Stop, reload: Option<Arc<AtomicBool>>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if reload.is_some() || !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            match &reload {
                Some(reload) if signal == SIGHUP => reload.store(true, Ordering::Relaxed),
                _ => {
                    stop.set();
                    let since = first.get_or_insert_with(Instant::now).elapsed();
                    // A terminal that goes away sends several, and whoever had it asks for nothing more.
                    if since >= SAME_WISH && signal != SIGHUP {
                        terminal::give_back();
                        exit(128 + signal);
                    }
                }
            }
        }
    })?;
    Ok(())
}

/// Whether this process ignores a signal, as whoever started it has asked for (proc(5), `SigIgn`).
pub(crate) fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_stands_in_a_mask() {
        let status = "Name:\tbywash\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert_eq!([SIGHUP, SIGINT, 13].map(|signal| ignores(status, signal)), [true, false, true]);
        assert!(!ignores("", SIGHUP));
    }
}
