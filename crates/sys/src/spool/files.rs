//! The files of a spool: one, or one after the other.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{Rotation, SpoolError, Target};
use crate::output_file::open_without_waiting;

/// The file that is being written, and those before it.
pub(super) struct Files {
    target: Target,
    pub(super) rotation: Rotation,
    waits_for_reader: bool,
    file: File,
    name: String,
    /// Where in the file ours begins: standard output may be one that has something already.
    begin: u64,
    /// Bytes from there up to the last whole record.
    pub(super) len: u64,
    /// Bytes of its header.
    header: u64,
    /// When it got its first record.
    begun: Option<Instant>,
    number: u64,
    kept: VecDeque<PathBuf>,
}

/// Why writing ended.
pub(super) enum Ended {
    /// For this reason.
    Failed(String),
    /// The reader of a pipe has gone away.
    Gone,
}

impl Files {
    /// Makes the first one. Of its header is said whether there is still anybody to read what comes behind it.
    pub(super) fn new(
        target: Target,
        rotation: Rotation,
        waits_for_reader: bool,
        header: &[u8],
    ) -> Result<(Self, Result<(), Ended>), SpoolError> {
        let (file, path) = open(&target, &rotation, waits_for_reader, 1)?;
        let name = path.as_deref().map_or("standard output".into(), |path| path.display().to_string());
        let mut files = Self {
            target,
            rotation,
            waits_for_reader,
            file,
            name,
            begin: 0,
            len: 0,
            header: header.len() as u64,
            begun: None,
            number: 1,
            kept: path.into_iter().collect(),
        };
        if let Err(source) = write_all(&mut files.file, header) {
            return match files.ended(&source) {
                gone @ Ended::Gone => Ok((files, Err(gone))),
                Ended::Failed(_) => Err(SpoolError::File { name: files.name, source }),
            };
        }
        files.len = files.header;
        // A pipe has no places, and is not cut.
        files.begin = files.file.stream_position().unwrap_or(0).saturating_sub(files.len);
        Ok((files, Ok(())))
    }

    /// Whether the file is as old as it may get; one without records does not age.
    pub(super) fn is_old(&self) -> bool {
        self.rotation.time.zip(self.begun).is_some_and(|(time, begun)| begun.elapsed() >= time)
    }

    /// Whether there is more in it than a header.
    pub(super) fn has_records(&self) -> bool {
        self.len > self.header
    }

    /// Ends the file and begins the next one.
    pub(super) fn rotate(&mut self, header: &[u8]) -> Result<(), Ended> {
        let number = self.number + 1;
        let (mut file, path) = open(&self.target, &self.rotation, self.waits_for_reader, number)
            .map_err(|error| Ended::Failed(error.to_string()))?;
        self.kept.extend(path.clone());
        while self.rotation.keep.is_some_and(|keep| self.kept.len() > keep.max(1) as usize) {
            if let Some(oldest) = self.kept.pop_front() {
                // Somebody may have taken it away already.
                let _ = std::fs::remove_file(oldest);
            }
        }
        if let Err(error) = file.write_all(header) {
            // Without a header it is no file that anybody could read.
            let _ = path.map(std::fs::remove_file);
            return Err(self.ended(&error));
        }
        if let Some(path) = path {
            self.name = path.display().to_string();
        }
        (self.file, self.number, self.begun) = (file, number, None);
        (self.begin, self.len) = (0, self.header);
        Ok(())
    }

    /// Appends whole records and returns how many of their bytes are in the file: all, unless it ends. Then `whole`
    /// says how many of the bytes that could be written are whole records, and the file ends with those.
    pub(super) fn append(
        &mut self,
        bytes: &[u8],
        whole: impl Fn(&[u8], usize) -> usize,
    ) -> Result<u64, Ended> {
        self.begun.get_or_insert_with(Instant::now);
        let mut done = 0;
        while done < bytes.len() {
            match write(&mut self.file, &bytes[done..]) {
                Ok(n) => done += n,
                Err(error) => {
                    let kept = whole(bytes, done);
                    self.len += kept as u64;
                    self.cut((done - kept) as u64);
                    return Err(self.ended(&error));
                }
            }
        }
        self.len += done as u64;
        Ok(done as u64)
    }

    /// Appends a last piece, whole or not at all.
    pub(super) fn append_last(&mut self, bytes: &[u8]) {
        // Without it, the file is as good a file.
        let _ = self.append(bytes, |_, _| 0);
    }

    /// Takes off the bytes that have come behind the last whole record, if they are the last: others may write to the file, or have.
    /// A pipe can't be cut.
    fn cut(&mut self, behind: u64) {
        let end = self.begin + self.len;
        let last = Some(end + behind);
        let is_last = self.file.metadata().ok().map(|file| file.len()) == last;
        let ours = self.file.stream_position().ok() == last;
        if is_last && ours && self.file.set_len(end).is_ok() {
            let _ = self.file.seek(SeekFrom::Start(end));
        }
    }

    fn ended(&self, error: &io::Error) -> Ended {
        let name = &self.name;
        Ended::Failed(match Errno::from_io_error(error) {
            Some(Errno::PIPE) => return Ended::Gone,
            Some(Errno::NOSPC | Errno::DQUOT) => {
                format!("no space left: {name} ends with the last whole packet after {} bytes", self.len)
            }
            Some(Errno::FBIG) => {
                format!(
                    "{name} may not get longer: it ends with the last whole packet after {} bytes",
                    self.len
                )
            }
            _ => format!("{name} can't be written any more: {error}"),
        })
    }
}

/// Writes some of it as soon as there is room; never nothing. Whoever shares standard output with us may have had it say
/// [`WouldBlock`](io::ErrorKind::WouldBlock) instead.
fn write(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A reader that has gone is told of by the write.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(file, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            done => return done,
        }
    }
}

fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let done = write(file, bytes)?;
        bytes = &bytes[done..];
    }
    Ok(())
}

fn open(
    target: &Target,
    rotation: &Rotation,
    waits_for_reader: bool,
    number: u64,
) -> Result<(File, Option<PathBuf>), SpoolError> {
    let failed = |name: String| move |source| SpoolError::File { name, source };
    match target {
        Target::Stdout => {
            let file = io::stdout().as_fd().try_clone_to_owned().map_err(failed("standard output".into()))?;
            Ok((file.into(), None))
        }
        Target::File(path) => {
            let path = if rotation.is_wanted() {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                numbered(path, number, now.as_secs())
            } else {
                path.clone()
            };
            let mut options = File::options();
            options.write(true).create(true).truncate(true);
            let file = match waits_for_reader {
                true => options.open(&path),
                false => open_without_waiting(&mut options, &path),
            };
            let file = file.map_err(failed(path.display().to_string()))?;
            Ok((file, Some(path)))
        }
    }
}

/// `trace.pcap` becomes `trace-00001-20261120T233500Z.pcap`: names in the order of time.
fn numbered(path: &Path, number: u64, seconds: u64) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    let (year, month, day) = date(seconds / 86_400);
    let time = seconds % 86_400;
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    name.push(format!("-{number:05}-{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Year, month and day, so many days after 1970-01-01 in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Years that begin in March have their leap day at the end; they are counted from the year 0.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_setfl, memfd_create};

    use super::*;

    /// A file as standard output, in which there is something before ours.
    fn standard_output(file: File, begin: u64) -> Files {
        Files {
            target: Target::Stdout,
            rotation: Rotation::default(),
            waits_for_reader: true,
            file,
            name: "standard output".into(),
            begin,
            len: 0,
            header: 0,
            begun: None,
            number: 1,
            kept: VecDeque::new(),
        }
    }

    #[test]
    fn a_file_that_may_not_grow_keeps_what_was_there_before_us() {
        for somebody_else_writes in [false, true] {
            let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
            let mut file = File::from(file);
            file.write_all(b"theirs").unwrap();
            file.set_len(2 * 4096).unwrap();
            fcntl_add_seals(&file, SealFlags::GROW).unwrap();
            let mut files = standard_output(file, 6);
            assert_eq!(files.append(b"ours", |_, n| n).ok(), Some(4));
            if somebody_else_writes {
                files.file.write_all(b"!").unwrap();
            }
            // Page by page, as far as there is room.
            assert!(files.append(&[7; 3 * 4096], |_, _| 90).is_err());
            let (mut all, begun) = (Vec::new(), files.file.rewind());
            begun.and_then(|()| io::Read::read_to_end(&mut files.file, &mut all)).unwrap();
            assert!(all.starts_with(if somebody_else_writes {
                b"theirsours!\x07"
            } else {
                b"theirsours\x07\x07"
            }));
            assert_eq!(all.len(), if somebody_else_writes { 2 * 4096 } else { 6 + 4 + 90 });
        }
    }

    #[test]
    fn a_pipe_that_waits_for_nobody_is_waited_for() {
        let (mut reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        fcntl_setfl(&file, OFlags::NONBLOCK).unwrap();
        let mut files = standard_output(file, 0);
        // More than a pipe takes, before anybody reads.
        let bytes = vec![7; 1 << 20];
        let read = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let mut all = Vec::new();
            io::Read::read_to_end(&mut reader, &mut all).map(|_| all)
        });
        let appended = files.append(&bytes, |_, n| n);
        assert_eq!((appended.ok(), files.len), (Some(1 << 20), 1 << 20));
        write_all(&mut files.file, b"header").unwrap();
        drop(files);
        let read = read.join().unwrap().unwrap();
        assert_eq!((read.len(), read.ends_with(b"header")), (bytes.len() + 6, true));
    }

    #[test]
    fn a_reader_that_goes_is_known_where_it_was_waited_for() {
        let (reader, writer) = io::pipe().unwrap();
        let mut file = File::from(std::os::fd::OwnedFd::from(writer));
        fcntl_setfl(&file, OFlags::NONBLOCK).unwrap();
        let reader = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(reader);
        });
        let error = write_all(&mut file, &[7; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        reader.join().unwrap();
    }

    #[test]
    fn a_file_is_as_old_as_its_first_record() {
        let time = std::time::Duration::from_millis(300);
        let mut files = standard_output(memfd_create("test", MemfdFlags::empty()).unwrap().into(), 0);
        files.rotation.time = Some(time);
        for is_old in [false, true] {
            std::thread::sleep(time);
            assert_eq!(files.is_old(), is_old, "before a record");
            assert!(files.append(b"record", |_, n| n).is_ok());
            assert_eq!(files.is_old(), is_old, "behind it");
        }
    }

    #[test]
    fn days_have_dates() {
        let dates = [0, 58, 59, 789, 790, 11_016, 20_777, 47_540, 47_541].map(date);
        let expected = [
            (1970, 1, 1),
            (1970, 2, 28),
            (1970, 3, 1),
            (1972, 2, 29),
            (1972, 3, 1),
            (2000, 2, 29),
            (2026, 11, 20),
            (2100, 2, 28),
            (2100, 3, 1),
        ];
        assert_eq!(dates, expected);
    }

    #[test]
    fn names_are_numbered_in_front_of_the_extension() {
        let named = |path: &str| numbered(Path::new(path), 7, 1_795_217_645).display().to_string();
        assert_eq!(named("/a.b/trace.pcapng"), "/a.b/trace-00007-20261120T233405Z.pcapng");
        assert_eq!(named("trace"), "trace-00007-20261120T233405Z");
    }
}
