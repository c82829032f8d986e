//! Files that are long, short, many and cut off.

use std::fs;
use std::time::Instant;

use super::*;

/// Records whose first four bytes are their length.
fn record(len: u32, fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; len as usize];
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

fn plan(target: Target, rotation: Rotation, producers: usize) -> Plan {
    Plan {
        target,
        rotation,
        header: b"head".to_vec(),
        record_len: Box::new(|bytes| bytes.first_chunk::<4>().map(|len| u32::from_le_bytes(*len) as usize)),
        trailer: Box::new(|_| b"tail".to_vec()),
        waits_for_reader: false,
        producers,
        memory: 0,
    }
}

/// Puts a record in, waiting for room.
fn put(producer: &mut Producer, record: &[u8]) {
    let until = Instant::now() + Duration::from_secs(20);
    while !producer.has_room(record.len()) {
        assert!(Instant::now() < until, "no room for 20 s");
        std::thread::yield_now();
    }
    let (a, b) = record.split_at(record.len() / 2);
    producer.put(a);
    producer.put(b);
    producer.end();
}

/// The records between header and trailer.
fn records(file: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = file.strip_prefix(b"head").unwrap().strip_suffix(b"tail").unwrap();
    let mut records = Vec::new();
    while let Some(len) = rest.first_chunk::<4>() {
        let (record, more) = rest.split_at(u32::from_le_bytes(*len) as usize);
        records.push(record.to_vec());
        rest = more;
    }
    assert!(rest.is_empty());
    records
}

#[test]
fn what_two_producers_put_in_is_in_the_file_once_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let (spool, producers) = Spool::start(plan(Target::File(path.clone()), Rotation::default(), 2)).unwrap();
    let threads = producers.into_iter().enumerate().map(|(number, mut producer)| {
        std::thread::spawn(move || {
            for n in 0..20_000_u32 {
                let fill = u8::try_from(number).unwrap();
                put(&mut producer, &[record(1000, fill)[..996].to_vec(), n.to_le_bytes().to_vec()].concat());
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
    let written = spool.finish();
    let expected = Written { records: 40_000, bytes: 40_000_008, files: 1, ..Written::default() };
    assert_eq!(written, expected);
    let records = records(&fs::read(path).unwrap());
    for number in 0..2 {
        let of: Vec<u32> = records
            .iter()
            .filter(|record| record[4] == number)
            .map(|record| u32::from_le_bytes(*record.last_chunk().unwrap()))
            .collect();
        assert!(of.iter().copied().eq(0..20_000), "producer {number}");
    }
}

#[test]
fn a_flush_brings_records_into_the_file_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let (spool, mut producers) =
        Spool::start(plan(Target::File(path.clone()), Rotation::default(), 1)).unwrap();
    let producer = &mut producers[0];
    put(producer, &record(60, 1));
    assert_eq!((producer.pending(), producer.written()), (1, 0));
    producer.flush();
    let until = Instant::now() + Duration::from_secs(20);
    while producer.pending() > 0 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    assert_eq!((producer.written(), fs::read(&path).unwrap().len()), (1, 64));
    drop(producers);
    assert_eq!(spool.finish().records, 1);
    assert_eq!(records(&fs::read(path).unwrap()), [record(60, 1)]);
}

#[test]
fn files_are_no_longer_than_asked_and_the_last_ones_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.x");
    let rotation = Rotation { bytes: Some(1000), keep: Some(3), ..Rotation::default() };
    let (spool, mut producers) = Spool::start(plan(Target::File(path), rotation, 1)).unwrap();
    for n in 0..100 {
        put(&mut producers[0], &record(100, n));
    }
    // Longer than a file may be: alone in one.
    put(&mut producers[0], &record(5000, 200));
    put(&mut producers[0], &record(100, 201));
    drop(producers);
    let written = spool.finish();
    // Nine records to a file, and the last of twelve files has one; then the long one, and the last.
    assert_eq!((written.records, written.files, written.failure), (102, 14, None));
    let mut names: Vec<_> = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    let kept: Vec<Vec<u8>> = names
        .iter()
        .map(|path| records(&fs::read(path).unwrap()).iter().map(|record| record[4]).collect())
        .collect();
    assert_eq!(kept, [vec![99], vec![200], vec![201]], "{names:?}");
    assert!(names[0].file_name().unwrap().to_str().unwrap().starts_with("out-00012-"), "{names:?}");
}

#[test]
fn what_a_file_ends_with_has_room_in_it() {
    // Header and nine records fit all of these, what a file ends with not the first ones.
    for (limit, each) in [(904, 8), (907, 8), (908, 9), (909, 9)] {
        let directory = tempfile::tempdir().unwrap();
        let rotation = Rotation { bytes: Some(limit), ..Rotation::default() };
        let target = Target::File(directory.path().join("out"));
        let (spool, mut producers) = Spool::start(plan(target, rotation, 1)).unwrap();
        for n in 0..each + 1 {
            put(&mut producers[0], &record(100, n));
        }
        drop(producers);
        assert_eq!(spool.finish().files, 2);
        let mut files: Vec<_> = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        let first = fs::read(&files[0]).unwrap();
        assert!(first.len() as u64 <= limit, "{} of {limit}", first.len());
        assert_eq!(records(&first).len(), usize::from(each), "{limit}");
    }
}

#[test]
fn files_are_no_older_than_asked() {
    let directory = tempfile::tempdir().unwrap();
    let rotation = Rotation { time: Some(Duration::from_millis(30)), ..Rotation::default() };
    let target = Target::File(directory.path().join("out"));
    let (spool, mut producers) = Spool::start(plan(target, rotation, 1)).unwrap();
    for n in 0..3 {
        put(&mut producers[0], &record(100, n));
        producers[0].flush();
        std::thread::sleep(Duration::from_millis(80));
    }
    drop(producers);
    let written = spool.finish();
    assert_eq!((written.records, written.files), (3, 3));
}

#[test]
fn a_file_that_can_not_be_made_is_refused_by_name() {
    let error = Spool::start(plan(Target::File("/nowhere/at/all".into()), Rotation::default(), 1));
    assert!(error.err().unwrap().to_string().starts_with("/nowhere/at/all can't be written: "));
}

#[test]
fn a_full_device_ends_it_and_producers_learn_that() {
    // Every write to it fails as on a full disk; opening does not. Its header must fit, so it has none.
    let full = Plan { header: Vec::new(), ..plan(Target::File("/dev/full".into()), Rotation::default(), 1) };
    let (spool, mut producers) = Spool::start(full).unwrap();
    put(&mut producers[0], &record(100, 1));
    producers[0].flush();
    let until = Instant::now() + Duration::from_secs(20);
    while !producers[0].has_ended() {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    // What comes later does not wait for anybody.
    for _ in 0..100_000 {
        put(&mut producers[0], &record(1000, 2));
    }
    assert_eq!(producers[0].written(), 0);
    drop(producers);
    let written = spool.finish();
    assert_eq!(written.records, 0);
    assert!(written.failure.as_deref().unwrap().starts_with("no space left: /dev/full"), "{written:?}");
}

/// A pipe, and its end, from which nobody reads.
fn fifo(directory: &tempfile::TempDir) -> (PathBuf, fs::File) {
    let path = directory.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    let end = fs::File::options().read(true).write(true).open(&path).unwrap();
    (path, end)
}

/// More than a pipe takes.
const MUCH: u32 = 2000;

#[test]
fn a_pipe_that_takes_nothing_keeps_nobody_from_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let (path, end) = fifo(&directory);
    let (spool, mut producers) = Spool::start(plan(Target::File(path), Rotation::default(), 1)).unwrap();
    for _ in 0..MUCH {
        put(&mut producers[0], &record(1000, 1));
    }
    drop(producers);
    let began = Instant::now();
    let written = spool.finish_by(began + Duration::from_millis(100));
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(
        written.is_left_behind && written.has_ended() && written.records < u64::from(MUCH),
        "{written:?}"
    );
    // The thread goes with it.
    drop(end);
}

#[test]
fn who_learns_that_the_reader_of_a_pipe_has_gone_knows_all_that_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let (path, end) = fifo(&directory);
    let (spool, mut producers) = Spool::start(plan(Target::File(path), Rotation::default(), 1)).unwrap();
    put(&mut producers[0], &record(100, 1));
    producers[0].flush();
    let until = Instant::now() + Duration::from_secs(20);
    while spool.written().records == 0 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    drop(end);
    put(&mut producers[0], &record(100, 2));
    assert!(producers[0].flush());
    while !spool.written().is_gone {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    drop(producers);
    let written = spool.finish();
    assert_eq!((written.records, written.failure.as_ref(), written.has_ended()), (1, None, true));
}

#[test]
fn a_pipe_that_nobody_reads_is_refused_where_it_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (path, end) = fifo(&directory);
    drop(end);
    let error = Spool::start(plan(Target::File(path), Rotation::default(), 1)).err().unwrap();
    assert!(error.to_string().contains("it is a pipe that nobody reads"), "{error}");
}
