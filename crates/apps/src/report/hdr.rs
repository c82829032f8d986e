//! The file of delays that HdrHistogram's own tools read: an interval log, one line for each distribution and second.
//!
//! `HistogramLogProcessor -i FILE` shows the first distribution, since its lines have no tag; the others are found by
//! `-tag NAME`. A line is written as soon as its second is over, so that a killed run leaves a file that can be read.
//! The file may be a pipe; whoever reads it keeps the run from nothing, as with the other reports.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bywash_sys::output_file::open_without_waiting;
use bywash_sys::worker::Stop;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::outlet::{Backlog, Outlet};
use super::snapshot::Interval;

/// Nanoseconds in the unit of the column `Interval_Max`, which is milliseconds in all implementations.
const MAX_DIVISOR: f64 = 1e6;

/// The file that is being written.
pub(super) struct TimesLog {
    outlet: Outlet,
    /// Its own: what is not taken here keeps no other report back.
    backlog: Arc<Backlog>,
    serializer: V2DeflateSerializer,
    started: SystemTime,
}

impl TimesLog {
    /// Makes the file, or empties it.
    ///
    /// # Errors
    /// When it can't be written to, or is a pipe that nobody reads.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = open_without_waiting(File::options().write(true).create(true).truncate(true), path)?;
        let backlog = Arc::<Backlog>::default();
        let mut outlet = Outlet::new(file.into(), backlog.clone());
        let started = SystemTime::now();
        let since_1970 = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        write!(
            outlet,
            "#[Logged with bywash {}]\n#[Histogram log format version 1.3]\n\
             #[StartTime: {since_1970:.3} (seconds since epoch)]\n\
             \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
            env!("CARGO_PKG_VERSION")
        )?;
        Ok(Self { outlet, backlog, serializer: V2DeflateSerializer::new(), started })
    }

    /// From when on `stop` is set, whoever reads is waited for, and not for long.
    pub(super) fn heed(&self, stop: &Stop) {
        self.backlog.heed(stop);
    }

    /// Writes on what nobody has taken yet.
    ///
    /// # Errors
    /// As [`TimesLog::write`].
    pub(super) fn catch_up(&mut self) -> io::Result<()> {
        self.outlet.flush()
    }

    /// Adds what was seen in an interval.
    ///
    /// # Errors
    /// When it can't be written, on a full disk for example, or has not been read for too long.
    pub(super) fn write(&mut self, interval: &Interval<'_>) -> io::Result<()> {
        if !self.backlog.has_room() {
            return Err(self.outlet.give_up());
        }
        let since = interval.before.map_or(Duration::ZERO, |before| before.elapsed);
        let start = self.started.duration_since(UNIX_EPOCH).unwrap_or_default() + since;
        let length = interval.now.elapsed.saturating_sub(since);
        let mut lines = Vec::new();
        for (index, distribution) in interval.now.distributions.iter().enumerate() {
            let mut log = IntervalLogWriterBuilder::new()
                .with_max_value_divisor(MAX_DIVISOR)
                .begin_log_with(&mut lines, &mut self.serializer)?;
            let tag = if index == 0 { None } else { Tag::new(distribution.name) };
            log.write_histogram(interval.times(distribution).histogram(), start, length, tag)
                .map_err(|error| io::Error::other(format!("{error:?}")))?;
        }
        // The head that comes with each line is in the file once.
        for line in lines.split_inclusive(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#")) {
            self.outlet.write_all(line)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::super::samples::{later, sooner};
    use super::*;

    #[test]
    fn what_was_written_is_read_interval_by_interval() {
        let path = std::env::temp_dir().join(format!("bywash-hdr-{}", std::process::id()));
        let mut log = TimesLog::create(&path).unwrap();
        let (sooner, later) = (sooner(), later());
        log.write(&sooner.since(None)).unwrap();
        log.write(&later.since(Some(&sooner))).unwrap();
        let text = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 4 + 2);
        let intervals = IntervalLogIterator::new(&text).filter_map(|entry| match entry.unwrap() {
            LogEntry::Interval(interval) => Some(interval),
            _ => None,
        });
        let read: Vec<(f64, f64, Histogram<u64>)> = intervals
            .map(|interval| {
                let bytes = base64(interval.encoded_histogram());
                let histogram = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
                (interval.duration().as_secs_f64(), interval.max(), histogram)
            })
            .collect();
        assert_eq!((read[0].0, read[1].0, read[1].1), (2.0, 1.0, 0.002));
        assert_eq!((read[0].2.len(), read[0].2.max(), read[1].2.len(), read[1].2.max()), (1, 1000, 1, 2000));
    }

    #[test]
    fn a_pipe_that_nobody_reads_ends_the_log_when_there_is_no_room_for_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        let _reader = File::options().read(true).write(true).open(&path).unwrap();
        let mut log = TimesLog::create(&path).unwrap();
        let sooner = sooner();
        log.write(&sooner.since(None)).unwrap();
        log.outlet.write_all(&[b'\n'; 2 << 20]).unwrap();
        let error = log.write(&sooner.since(None)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// The reverse of what the log is written with (RFC 4648).
    fn base64(text: &str) -> Vec<u8> {
        let value = |byte: u8| match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
        for byte in text.bytes().filter(|byte| *byte != b'=') {
            (bits, held) = (bits << 6 | u32::from(value(byte)), held + 6);
            if held >= 8 {
                held -= 8;
                bytes.push((bits >> held & 0xff) as u8);
            }
        }
        bytes
    }
}
