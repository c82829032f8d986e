//! The file of samples, while a thread writes it: that it takes no more is told at once, and it keeps nobody from the end.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bywash_pcap::{Format, Interface};
use bywash_sys::spool::{Plan, Producer, Rotation, Spool, Target, Written};

use super::trouble::Trouble;

/// Memory for samples on their way to the disk.
const MEMORY: usize = 8 << 20;

/// What writing them takes at the end where something else has had the time.
const LAST: Duration = Duration::from_secs(1);

pub(super) struct SampleFile {
    spool: Spool,
    path: PathBuf,
    trouble: Mutex<Trouble>,
}

impl SampleFile {
    /// Makes it, for what comes by `port`, with so many who put samples in.
    pub(super) fn start(
        path: &Path,
        rotation: &Rotation,
        port: &str,
        producers: usize,
    ) -> Result<(Self, Vec<Producer>), String> {
        let format = Format::Pcapng;
        let plan = Plan {
            target: Target::File(path.into()),
            rotation: rotation.clone(),
            header: format.file_header(&Interface::named(port)),
            record_len: Box::new(move |bytes| format.record_len_at(bytes)),
            trailer: Box::new(|_| Vec::new()),
            // Nothing would be filtered until then.
            waits_for_reader: false,
            producers,
            memory: MEMORY,
        };
        let (spool, producers) = Spool::start(plan).map_err(|error| error.to_string())?;
        Ok((Self { spool, path: path.into(), trouble: Mutex::default() }, producers))
    }

    pub(super) fn written(&self) -> Written {
        self.spool.written()
    }

    /// Why samples are kept no longer.
    pub(super) fn trouble(&self) -> Option<String> {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.set(ended(&self.spool.written(), &self.path));
        trouble.tell()
    }

    /// Waits until all is written, and goes without the thread when that takes longer than until then.
    pub(super) fn finish(
        self,
        until: Instant,
        warnings: &mut Vec<String>,
        unmet: &mut Vec<String>,
    ) -> Written {
        let mut trouble = self.trouble.into_inner().unwrap_or_else(PoisonError::into_inner);
        let written = self.spool.finish_by(until.max(Instant::now() + LAST));
        if written.is_left_behind {
            warnings.push(format!(
                "the thread 'writer' (samples) has not ended in time, and is left behind: does {} take what is written?",
                self.path.display()
            ));
        }
        trouble.set(ended(&written, &self.path));
        match &written.failure {
            Some(failure) => unmet.push(failure.clone()),
            None => warnings.extend(trouble.untold()),
        }
        written
    }
}

fn ended(written: &Written, path: &Path) -> Option<String> {
    let gone = || written.is_gone.then(|| format!("nobody reads {} any more", path.display()));
    written.failure.clone().or_else(gone).map(|why| format!("samples are kept no longer: {why}"))
}
